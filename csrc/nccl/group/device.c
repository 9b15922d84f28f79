/* A group's record of a CUDA device: making it current, and freeing its resources. */
#include "nccl/group/internal.h"

#define IDLE_NS (200 * DD_NS_PER_MS)

dd_status
nccl_enter(const dd_nccl_group *group, const nccl_device *device, dd_cuda_guard *guard, dd_error *err)
{
    dd_cuda_context current;
    *guard = (dd_cuda_guard){.cuda = group->cuda};
    if (group->cuda->api.cuCtxGetCurrent(&current) == DD_CUDA_SUCCESS && current == device->context) {
        return DD_OK;
    }
    return dd_cuda_enter(group->cuda, device->number, guard, err);
}

/* Return a device's next channel: of all ranks, then pairs, then NULL. *at must begin at 0. */
static nccl_channel *
next_channel(const dd_nccl_group *group, nccl_device *device, int *at)
{
    if (*at == 0) {
        *at = 1;
        return &device->all;
    }
    while (device->pairs != NULL && *at <= group->size) {
        nccl_channel *pair = device->pairs[(*at)++ - 1];
        if (pair != NULL) {
            return pair;
        }
    }
    return NULL;
}

static void
close_stream(const dd_cuda *cuda, dd_cuda_stream *stream)
{
    if (*stream != NULL) {
        (void)cuda->api.cuStreamDestroy(*stream);
    }
    *stream = NULL;
}

static void
free_nan_report(const dd_cuda *cuda, nccl_channel *channel)
{
    if (channel->nan_report != NULL) {
        (void)cuda->api.cuMemFreeHost((void *)(uintptr_t)channel->nan_report);
    }
    channel->nan_report = NULL;
}

static bool
stream_becomes_idle(const dd_cuda *cuda, dd_cuda_stream stream, const dd_wait *wait)
{
    while (stream != NULL && cuda->api.cuStreamQuery(stream) == DD_CUDA_NOT_READY) {
        if (dd_wait_has_expired(wait)) {
            return false;
        }
        (void)!dd_wait_sleep(wait, 50 * DD_NS_PER_US, NULL);
    }
    return true;
}

/* Wait briefly for all streams of the group on the device: a stream becomes idle a little later
 * than its last work, and aborts take time. Return false if a stream hangs. */
static bool
becomes_idle(const dd_nccl_group *group, nccl_device *device)
{
    dd_wait wait = dd_wait_after(IDLE_NS);
    int at = 0;
    for (nccl_channel *channel; (channel = next_channel(group, device, &at)) != NULL;) {
        if (!stream_becomes_idle(group->cuda, channel->stream, &wait)) {
            return false;
        }
    }
    return true;
}

/* Return true if the device has memory that cannot be freed in stream order. */
static bool
has_more_memory(const dd_nccl_group *group, nccl_device *device)
{
    bool has_report = false;
    int at = 0;
    for (nccl_channel *channel; (channel = next_channel(group, device, &at)) != NULL;) {
        has_report |= channel->nan_report != NULL;
    }
    return device->barrier != 0 || device->host != NULL || has_report || !dd_list_is_empty(&device->retired);
}

void
nccl_device_close(dd_nccl_group *group, nccl_device *device)
{
    const dd_cuda *cuda = group->cuda;
    dd_cuda_guard guard;
    if (device->is_closed) {
        return;
    }
    device->is_closed = true;
    dd_status status = nccl_enter(group, device, &guard, NULL);
    nccl_events_close(group, device);
    if (status != DD_OK) {
        return; /* the driver has shut down, and has freed everything */
    }
    dd_cuda_capture_mode mode = dd_cuda_relax_capture(cuda);
    if (device->pool != NULL && device->barrier != 0) {
        (void)cuda->api.cuMemFreeAsync(device->barrier, device->all.stream);
        device->barrier = 0;
    }
    /* Freeing this memory waits for the device, maybe for ever: leak it if the device is busy. */
    if (has_more_memory(group, device) && becomes_idle(group, device)) {
        nccl_scratch_close(group, device);
        if (device->barrier != 0) {
            (void)cuda->api.cuMemFree(device->barrier);
        }
        if (device->host != NULL) {
            (void)cuda->api.cuMemFreeHost(device->host);
        }
        int at = 0;
        for (nccl_channel *channel; (channel = next_channel(group, device, &at)) != NULL;) {
            free_nan_report(cuda, channel);
        }
    }
    dd_cuda_nan_report_retire(cuda->nan, atomic_load(&device->nan_report));
    if (device->order != NULL) {
        (void)cuda->api.cuEventDestroy(device->order);
    }
    int at = 0;
    for (nccl_channel *channel; (channel = next_channel(group, device, &at)) != NULL;) {
        close_stream(cuda, &channel->stream);
    }
    dd_cuda_restore_capture(cuda, mode);
    dd_cuda_leave(&guard);
}

void
nccl_device_destroy(dd_nccl_group *group, nccl_device *device)
{
    if (device == NULL) {
        return;
    }
    int at = 0;
    for (nccl_channel *channel; (channel = next_channel(group, device, &at)) != NULL;) {
        dd_nccl_comm *comm = atomic_load(&channel->comm);
        if (comm != NULL) {
            dd_nccl_comm_set_owner(comm, NULL);
        }
        dd_nccl_comm_release(comm);
    }
    nccl_device_close(group, device);
    for (int peer = 0; device->pairs != NULL && peer < group->size; peer++) {
        dd_mem_free(device->pairs[peer]);
    }
    dd_mem_free(device->pairs);
    dd_mem_free(device);
}
