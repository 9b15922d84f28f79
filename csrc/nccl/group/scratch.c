/* Temporary device memory, allocated and freed in the order of a stream. Without memory pools it is
 * allocated immediately, and freed by a later call once the device has finished with it. */
#include "nccl/group/internal.h"

typedef struct retired_memory {
    dd_list link;
    dd_cuda_ptr data;
    dd_cuda_event event; /* recorded after the memory's last use; NULL if recording failed */
} retired_memory;

/* Free the retired memory that the device has finished with; if is_final, all retired memory. */
static void
reclaim(dd_nccl_group *group, nccl_device *device, bool is_final)
{
    const dd_cuda_api *api = &group->cuda->api;
    for (dd_list *node = device->retired.next, *next; node != &device->retired; node = next) {
        next = node->next;
        retired_memory *memory = DD_CONTAINER_OF(node, retired_memory, link);
        if (!is_final && (memory->event == NULL || api->cuEventQuery(memory->event) != DD_CUDA_SUCCESS)) {
            continue;
        }
        (void)api->cuMemFree(memory->data);
        nccl_event_release(group, device, false, memory->event, true);
        dd_list_remove(&memory->link);
        dd_mem_free(memory);
    }
}

dd_status
nccl_scratch_alloc(dd_nccl_group *group, nccl_channel *channel, size_t nbytes, void **data, dd_error *err)
{
    const dd_cuda_api *api = &group->cuda->api;
    nccl_device *device = channel->device;
    dd_cuda_ptr ptr = 0;
    dd_cuda_result result;
    if (device->pool != NULL) {
        result = api->cuMemAllocFromPoolAsync(&ptr, nbytes, device->pool, channel->stream);
    } else {
        reclaim(group, device, false);
        result = api->cuMemAlloc(&ptr, nbytes);
    }
    if (result == DD_CUDA_ERROR_OUT_OF_MEMORY) {
        return dd_error_set(err, DD_OUT_OF_MEMORY, "out of memory on device %d: no %zu bytes for staging",
                            device->number, nbytes);
    }
    if (result != DD_CUDA_SUCCESS) {
        return dd_cuda_check(group->cuda, result, err, "allocating %zu bytes on device %d", nbytes,
                             device->number);
    }
    *data = (void *)(uintptr_t)ptr;
    return DD_OK;
}

/* Free `data` later, when the device has finished with it; leak it if there is no memory. */
static void
retire(dd_nccl_group *group, nccl_channel *channel, dd_cuda_ptr data)
{
    retired_memory *memory = dd_mem_alloc(sizeof *memory);
    if (memory == NULL) {
        return;
    }
    memory->data = data;
    memory->event = NULL;
    if (nccl_event_acquire(group, channel->device, false, &memory->event, NULL) == DD_OK &&
        group->cuda->api.cuEventRecord(memory->event, channel->stream) != DD_CUDA_SUCCESS) {
        nccl_event_release(group, channel->device, false, memory->event, false);
        memory->event = NULL;
    }
    dd_list_push_back(&channel->device->retired, &memory->link);
}

void
nccl_scratch_free(dd_nccl_group *group, nccl_channel *channel, void *data)
{
    if (data == NULL) {
        return;
    }
    if (channel->device->pool != NULL) {
        (void)group->cuda->api.cuMemFreeAsync((dd_cuda_ptr)(uintptr_t)data, channel->stream);
    } else {
        retire(group, channel, (dd_cuda_ptr)(uintptr_t)data);
    }
}

void
nccl_scratch_close(dd_nccl_group *group, nccl_device *device)
{
    reclaim(group, device, true);
}
