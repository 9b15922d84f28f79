/* Looking through floats for NaN before they are sent: on the host, in pieces, for debugging. */
#include "nccl/nccl_internal.h"

#include <stdio.h>
#include <string.h>

#define PIECE_NBYTES ((size_t)1 << 18)

typedef struct nan_search {
    size_t width;   /* bytes of a float */
    uint64_t mask;  /* what is left of its bits */
    uint64_t limit; /* and from what value on they are NaN */
    size_t nfloats; /* in an element */
} nan_search;

static bool
search_of(dd_dtype dtype, nan_search *search)
{
    switch (dtype) {
    case DD_DTYPE_FLOAT16:
        *search = (nan_search){2, 0x7fff, 0x7c01, 1};
        return true;
    case DD_DTYPE_BFLOAT16:
        *search = (nan_search){2, 0x7fff, 0x7f81, 1};
        return true;
    case DD_DTYPE_FLOAT8_E4M3FN:
        *search = (nan_search){1, 0x7f, 0x7f, 1};
        return true;
    case DD_DTYPE_FLOAT8_E5M2:
        *search = (nan_search){1, 0x7f, 0x7d, 1};
        return true;
    case DD_DTYPE_FLOAT32:
    case DD_DTYPE_COMPLEX64:
        *search = (nan_search){4, 0x7fffffff, 0x7f800001, dtype == DD_DTYPE_FLOAT32 ? 1 : 2};
        return true;
    case DD_DTYPE_FLOAT64:
    case DD_DTYPE_COMPLEX128:
        *search = (nan_search){8, UINT64_C(0x7fffffffffffffff), UINT64_C(0x7ff0000000000001),
                               dtype == DD_DTYPE_FLOAT64 ? 1 : 2};
        return true;
    case DD_DTYPE_BOOL:
    case DD_DTYPE_INT8:
    case DD_DTYPE_UINT8:
    case DD_DTYPE_INT16:
    case DD_DTYPE_UINT16:
    case DD_DTYPE_INT32:
    case DD_DTYPE_UINT32:
    case DD_DTYPE_INT64:
    case DD_DTYPE_UINT64:
        break;
    }
    return false;
}

/* The index of the first NaN among n floats, or n. Devices and hosts have the same byte order here: little. */
static size_t
find_nan(const nan_search *search, const char *data, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        uint64_t bits = 0;
        memcpy(&bits, data + i * search->width, search->width);
        if ((bits & search->mask) >= search->limit) {
            return i;
        }
    }
    return n;
}

/* The stream has done everything so far: asked again and again, since nothing else has a deadline. */
static dd_status
wait_for_stream(nccl_launch *launch, const dd_wait *wait)
{
    const dd_cuda *cuda = launch->group->cuda;
    for (;;) {
        dd_cuda_result result = cuda->api.cuStreamQuery(launch->channel->stream);
        if (result != DD_CUDA_NOT_READY) {
            return dd_cuda_check(cuda, result, launch->err, "cuStreamQuery on device %d",
                                 launch->channel->device->number);
        }
        if (dd_wait_is_over(wait)) {
            return dd_error_set(launch->err, DD_OP_TIMED_OUT,
                                "the inputs could not be looked through for NaN within %.3f s",
                                dd_wait_elapsed_s(wait));
        }
        if (atomic_load(&launch->group->stop)) {
            return dd_nccl_group_check(launch->group, launch->err);
        }
        dd_status status = dd_wait_sleep(wait, 50 * DD_NS_PER_US, launch->err);
        if (status != DD_OK) {
            return status;
        }
    }
}

static dd_status
check_block(nccl_launch *launch, const dd_block *block, const nan_search *search, const char *which,
            const dd_wait *wait)
{
    nccl_device *device = launch->channel->device;
    for (size_t at = 0; at < block->nbytes; at += PIECE_NBYTES) {
        size_t nbytes = block->nbytes - at < PIECE_NBYTES ? block->nbytes - at : PIECE_NBYTES;
        dd_cuda_ptr src = (dd_cuda_ptr)(uintptr_t)block->data + at;
        dd_status status = dd_cuda_check(
            launch->group->cuda,
            launch->group->cuda->api.cuMemcpyDtoHAsync(device->host, src, nbytes, launch->channel->stream),
            launch->err, "cuMemcpyDtoHAsync on device %d", device->number);
        if (status == DD_OK) {
            status = wait_for_stream(launch, wait);
        }
        if (status != DD_OK) {
            return status;
        }
        size_t n = nbytes / search->width;
        size_t found = find_nan(search, device->host, n);
        if (found < n) {
            size_t element = (at / search->width + found) / search->nfloats;
            return dd_error_set(launch->err, DD_INVALID_ARGUMENT, "%s: %s has a NaN at element %zu",
                                launch->call->what, which, element);
        }
    }
    return DD_OK;
}

static dd_status
check_op(nccl_launch *launch, const dd_nccl_op *op, const dd_wait *wait)
{
    const dd_nccl_group *group = launch->group;
    bool is_coll = op->kind == DD_NCCL_OP_COLL;
    const dd_block *blocks = is_coll ? op->args.inputs : &op->block;
    int n = is_coll ? dd_coll_ninputs(op->args.coll, op->args.root == group->rank, group->size)
                    : op->kind == DD_NCCL_OP_SEND || op->kind == DD_NCCL_OP_PUT;
    nan_search search;
    if (n == 0 || !search_of(is_coll ? op->args.reduction.dtype : op->dtype, &search)) {
        return DD_OK;
    }
    dd_status status = DD_OK;
    for (int k = 0; k < n && status == DD_OK; k++) {
        char which[32] = "the input";
        if (n > 1) {
            snprintf(which, sizeof which, "input %d", k);
        }
        status = check_block(launch, &blocks[k], &search, which, wait);
    }
    return status;
}

static dd_status
check_inputs(nccl_launch *launch)
{
    nccl_device *device = launch->channel->device;
    const dd_cuda *cuda = launch->group->cuda;
    if (device->host == NULL) {
        dd_status status = dd_cuda_check(
            cuda, cuda->api.cuMemHostAlloc(&device->host, PIECE_NBYTES, DD_CUDA_MEMHOSTALLOC_PORTABLE),
            launch->err, "cuMemHostAlloc of %zu bytes", PIECE_NBYTES);
        if (status != DD_OK) {
            return status;
        }
    }
    dd_wait wait = dd_wait_at_most(launch->wait, launch->work->timeout_ns);
    dd_status status = DD_OK;
    for (size_t i = 0; i < launch->call->nops && status == DD_OK; i++) {
        status = check_op(launch, &launch->call->ops[i], &wait);
        if (status != DD_OK && launch->call->nops > 1) {
            dd_error_prepend(launch->err, "operation %zu of %zu", i, launch->call->nops);
        }
    }
    return status;
}

dd_status
nccl_check_nan(nccl_launch *launch)
{
    /* Another thread's capture, which would be spoiled by questions to the device, has nothing to do with these. */
    const dd_cuda_api *api = &launch->group->cuda->api;
    dd_cuda_capture_mode mode = DD_CUDA_CAPTURE_MODE_RELAXED;
    (void)api->cuThreadExchangeStreamCaptureMode(&mode);
    dd_status status = check_inputs(launch);
    (void)api->cuThreadExchangeStreamCaptureMode(&mode);
    return status;
}
