/* A group's streams and scratch memory, for callers that enqueue their own work. */
#include "nccl/call/internal.h"

/* Take `launch` and make the device's context current, until leave_device. */
static dd_status
enter_device(dd_nccl_group *group, int number, nccl_device **device, dd_cuda_guard *guard, dd_error *err)
{
    dd_wait wait = dd_wait_after(dd_nccl_group_get_timeout_ns(group));
    dd_status status = nccl_group_check_fork(group, err);
    if (status == DD_OK) {
        status = nccl_device_of(group, number, &wait, device, err);
    }
    if (status == DD_OK) {
        status = nccl_group_enter_launch(group, &wait, err);
    }
    if (status != DD_OK) {
        return status;
    }
    status = (*device)->is_closed ? dd_error_set(err, DD_CLOSED, "the group is closed")
                                  : nccl_enter(group, *device, guard, err);
    if (status != DD_OK) {
        nccl_group_leave_launch(group);
    }
    return status;
}

static void
leave_device(dd_nccl_group *group, dd_cuda_guard *guard)
{
    dd_cuda_leave(guard);
    nccl_group_leave_launch(group);
}

dd_status
dd_nccl_group_stream(dd_nccl_group *group, int number, dd_cuda_stream *stream, dd_error *err)
{
    nccl_device *device;
    dd_cuda_guard guard;
    dd_status status = enter_device(group, number, &device, &guard, err);
    if (status == DD_OK) {
        *stream = device->all.stream;
        leave_device(group, &guard);
    }
    return status;
}

dd_status
dd_nccl_group_order(dd_nccl_group *group, int number, const dd_cuda_stream *streams, size_t nstreams,
                    dd_error *err)
{
    dd_error error;
    nccl_device *device;
    dd_cuda_guard guard;
    dd_status status = enter_device(group, number, &device, &guard, err);
    if (status != DD_OK) {
        return status;
    }
    dd_nccl_call call = {.streams = streams, .nstreams = nstreams};
    nccl_launch launch = {.group = group, .call = &call, .channel = &device->all, .err = &error};
    status = nccl_launch_find_capture(&launch);
    for (size_t i = 0; i < nstreams && status == DD_OK; i++) {
        status = nccl_stream_order(&launch, streams[i], device->all.stream);
    }
    leave_device(group, &guard);
    return status == DD_OK ? DD_OK : dd_error_copy(err, &error);
}

dd_status
dd_nccl_group_alloc_scratch(dd_nccl_group *group, int number, size_t nbytes, void **data, dd_error *err)
{
    nccl_device *device;
    dd_cuda_guard guard;
    dd_status status = enter_device(group, number, &device, &guard, err);
    if (status != DD_OK) {
        return status;
    }
    status = nccl_scratch_alloc(group, &device->all, nbytes > 0 ? nbytes : 1, data, err);
    leave_device(group, &guard);
    return status;
}

void
dd_nccl_group_free_scratch(dd_nccl_group *group, int number, void *data)
{
    nccl_device *device;
    dd_cuda_guard guard;
    if (data == NULL || enter_device(group, number, &device, &guard, NULL) != DD_OK) {
        return;
    }
    nccl_scratch_free(group, &device->all, data);
    leave_device(group, &guard);
}
