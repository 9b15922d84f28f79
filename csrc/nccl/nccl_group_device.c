/* What a group has on a device: a context, streams, and a few small things. */
#include "nccl/nccl_internal.h"

#include "core/lock.h"

#define BARRIER_NBYTES 16u
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

/* The channels of a device: that of all ranks, then those of pairs by peer; NULL after the last. Starts with *at == 0. */
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

/* ---- made */

static dd_status
create_stream(dd_nccl_group *group, int device, dd_cuda_stream *stream, dd_error *err)
{
    int least = 0;
    int greatest = 0;
    dd_status status =
        dd_cuda_check(group->cuda, group->cuda->api.cuCtxGetStreamPriorityRange(&least, &greatest), err,
                      "cuCtxGetStreamPriorityRange on device %d", device);
    if (status != DD_OK) {
        return status;
    }
    int priority = group->options.is_high_priority ? greatest : least;
    return dd_cuda_check(
        group->cuda,
        group->cuda->api.cuStreamCreateWithPriority(stream, DD_CUDA_STREAM_NON_BLOCKING, priority), err,
        "cuStreamCreateWithPriority on device %d", device);
}

static void
init_channel(nccl_channel *channel, dd_nccl_group *group, nccl_device *device, int peer)
{
    *channel = (nccl_channel){.group = group, .device = device, .peer = peer};
    dd_list_init(&channel->works);
}

static void
add_channel(dd_nccl_group *group, nccl_channel *channel)
{
    dd_lock_take(&group->lock);
    channel->next = group->channels;
    group->channels = channel;
    dd_lock_release(&group->lock);
}

dd_status
nccl_pair_create(dd_nccl_group *group, nccl_device *device, int peer, nccl_channel **pair, dd_error *err)
{
    nccl_channel *channel = dd_mem_alloc(sizeof *channel);
    if (channel == NULL) {
        return dd_error_no_memory(err, sizeof *channel);
    }
    init_channel(channel, group, device, peer);
    dd_cuda_guard guard;
    dd_status status = nccl_enter(group, device, &guard, err);
    if (status == DD_OK) {
        status = create_stream(group, device->number, &channel->stream, err);
        dd_cuda_leave(&guard);
    }
    if (status != DD_OK) {
        dd_mem_free(channel);
        return status;
    }
    add_channel(group, channel);
    *pair = channel;
    return DD_OK;
}

/* Its context is current. */
static dd_status
fill_device(dd_nccl_group *group, nccl_device *device, dd_error *err)
{
    const dd_cuda *cuda = group->cuda;
    int number = device->number;
    void *barrier = NULL;
    device->pool = dd_cuda_pool_of(cuda, number);
    dd_status status = create_stream(group, number, &device->all.stream, err);
    if (status == DD_OK) {
        status = dd_cuda_check(cuda, cuda->api.cuEventCreate(&device->order, DD_CUDA_EVENT_DISABLE_TIMING),
                               err, "cuEventCreate on device %d", number);
    }
    if (status == DD_OK) {
        status = nccl_scratch_alloc(group, &device->all, BARRIER_NBYTES, &barrier, err);
        device->barrier = (dd_cuda_ptr)(uintptr_t)barrier;
    }
    if (status == DD_OK) {
        status = dd_cuda_check(
            cuda, cuda->api.cuMemsetD8Async(device->barrier, 0, BARRIER_NBYTES, device->all.stream), err,
            "cuMemsetD8Async on device %d", number);
    }
    return status;
}

static dd_status
create_device(dd_nccl_group *group, int number, dd_error *err)
{
    dd_cuda_context context;
    dd_cuda_guard guard;
    dd_status status = dd_cuda_context_of(group->cuda, number, &context, err);
    if (status == DD_OK) {
        status = dd_cuda_enter(group->cuda, number, &guard, err);
    }
    if (status != DD_OK) {
        return status;
    }
    nccl_device *device = dd_mem_zalloc(sizeof *device);
    if (device == NULL) {
        dd_cuda_leave(&guard);
        return dd_error_no_memory(err, sizeof *device);
    }
    device->number = number;
    device->context = context;
    dd_list_init(&device->retired);
    init_channel(&device->all, group, device, NCCL_ALL_RANKS);
    dd_cuda_capture_mode mode = dd_cuda_relax_capture(group->cuda);
    status = fill_device(group, device, err);
    dd_cuda_restore_capture(group->cuda, mode);
    dd_cuda_leave(&guard);
    if (status != DD_OK) {
        nccl_device_destroy(group, device);
        return status;
    }
    add_channel(group, &device->all);
    atomic_store_explicit(&group->devices[number], device, memory_order_release);
    return DD_OK;
}

dd_status
nccl_device_of(dd_nccl_group *group, int number, const dd_wait *wait, nccl_device **out, dd_error *err)
{
    dd_status status = dd_cuda_check_device(group->cuda, number, err);
    if (status != DD_OK) {
        return status;
    }
    nccl_device *device = atomic_load_explicit(&group->devices[number], memory_order_acquire);
    if (device == NULL) {
        status = nccl_group_enter_launch(group, wait, err);
        if (status != DD_OK) {
            return status;
        }
        status = dd_nccl_group_check(group, err);
        if (status == DD_OK && atomic_load(&group->devices[number]) == NULL) {
            status = create_device(group, number, err);
        }
        nccl_group_leave_launch(group);
        device = atomic_load(&group->devices[number]);
    }
    *out = device;
    return status;
}

/* ---- ended */

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
        if (dd_wait_is_over(wait)) {
            return false;
        }
        (void)!dd_wait_sleep(wait, 50 * DD_NS_PER_US, NULL);
    }
    return true;
}

/* All streams of the group there. The end of the last work is seen a moment before the stream is, and an abort takes its time. A stream that hangs
 * is not waited for. */
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

/* Without pools, or for looking through inputs. */
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
        return; /* the driver is gone, and what it had with it */
    }
    dd_cuda_capture_mode mode = dd_cuda_relax_capture(cuda);
    if (device->pool != NULL && device->barrier != 0) {
        (void)cuda->api.cuMemFreeAsync(device->barrier, device->all.stream);
        device->barrier = 0;
    }
    /* Other memory is freed by waiting for the device, forever perhaps. What is still used stays until the process ends. */
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
    dd_cuda_nan_report_keep(cuda->nan, atomic_load(&device->nan_report));
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
