/* Looking for NaN on the host, in pieces: for drivers that do not take our kernels. */
#include "nccl/nccl_nan.h"

#include <string.h>

#define PIECE_NBYTES ((size_t)1 << 18)

/* The index of the first NaN among n floats, or n. Devices and hosts have the same byte order here: little. */
static size_t
find_nan(const nccl_nan_format *format, const char *data, size_t n)
{
    uint64_t magnitude = UINT64_MAX >> (65 - 8 * format->width);
    for (size_t i = 0; i < n; i++) {
        uint64_t bits = 0;
        memcpy(&bits, data + i * format->width, format->width);
        if ((bits & magnitude) >= format->limit) {
            return i;
        }
    }
    return n;
}

static dd_status
check_block(nccl_launch *launch, const dd_block *block, const nccl_nan_place *place, const dd_wait *wait)
{
    const dd_cuda_api *api = &launch->group->cuda->api;
    nccl_device *device = launch->channel->device;
    const unsigned width = place->format.width;
    for (size_t at = 0; at < block->nbytes; at += PIECE_NBYTES) {
        size_t nbytes = block->nbytes - at < PIECE_NBYTES ? block->nbytes - at : PIECE_NBYTES;
        dd_cuda_ptr src = (dd_cuda_ptr)(uintptr_t)block->data + at;
        dd_status status = nccl_launch_check_cuda(
            launch, api->cuMemcpyDtoHAsync(device->host, src, nbytes, launch->channel->stream),
            "cuMemcpyDtoHAsync");
        if (status == DD_OK) {
            status = nccl_nan_wait(launch, wait);
        }
        if (status != DD_OK) {
            return status;
        }
        size_t n = nbytes / width;
        size_t found = find_nan(&place->format, device->host, n);
        if (found < n) {
            return nccl_nan_describe(launch->call->what, place, at / width + found, launch->err);
        }
    }
    return DD_OK;
}

dd_status
nccl_nan_check_on_host(nccl_launch *launch)
{
    nccl_device *device = launch->channel->device;
    const dd_cuda *cuda = launch->group->cuda;
    dd_status status = DD_OK;
    if (device->host == NULL) {
        status = dd_cuda_check(
            cuda, cuda->api.cuMemHostAlloc(&device->host, PIECE_NBYTES, DD_CUDA_MEMHOSTALLOC_PORTABLE),
            launch->err, "cuMemHostAlloc of %zu bytes", PIECE_NBYTES);
    }
    dd_wait wait = dd_wait_at_most(launch->wait, launch->work->timeout_ns);
    nccl_nan_place place = NCCL_NAN_FIRST;
    const dd_block *block;
    while (status == DD_OK && nccl_nan_next(launch, &place, &block)) {
        status = check_block(launch, block, &place, &wait);
    }
    return status;
}
