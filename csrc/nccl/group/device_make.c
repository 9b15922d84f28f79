/* Creation of a group's record of a CUDA device: a context, streams, and small resources. */
#include "nccl/group/internal.h"

#include "core/lock.h"

#define BARRIER_NBYTES 16u

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

/* Create a new device's stream, event and barrier memory. The device's context must be current. */
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
