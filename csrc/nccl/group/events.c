/* A cache of unused CUDA events: creating an event takes longer than recording it. */
#include "nccl/group/internal.h"

#include "core/lock.h"
#define MIN_CAPACITY 64u
#define MAX_CACHED 4096u

dd_status
nccl_event_acquire(dd_nccl_group *group, nccl_device *device, bool has_timing, dd_cuda_event *event,
                   dd_error *err)
{
    nccl_events *events = &device->events[has_timing];
    dd_cuda_event cached = NULL;
    dd_lock_take(&group->lock);
    if (events->count > 0) {
        cached = events->items[--events->count];
    }
    dd_lock_release(&group->lock);
    if (cached != NULL) {
        *event = cached;
        return DD_OK;
    }
    unsigned flags = has_timing ? 0 : DD_CUDA_EVENT_DISABLE_TIMING;
    return dd_cuda_check(group->cuda, group->cuda->api.cuEventCreate(event, flags), err,
                         "cuEventCreate on device %d", device->number);
}

/* Put an event into the cache. False if the cache is closed or full, or there is no memory. */
static bool
cache_locked(nccl_events *events, dd_cuda_event event)
{
    if (events->is_closed || events->count == MAX_CACHED) {
        return false;
    }
    if (events->count == events->capacity) {
        size_t capacity = events->capacity > 0 ? events->capacity * 2 : MIN_CAPACITY;
        dd_cuda_event *items = dd_mem_realloc(events->items, capacity * sizeof(dd_cuda_event));
        if (items == NULL) {
            return false;
        }
        events->items = items;
        events->capacity = capacity;
    }
    events->items[events->count++] = event;
    return true;
}

void
nccl_event_release(dd_nccl_group *group, nccl_device *device, bool has_timing, dd_cuda_event event,
                   bool is_reusable)
{
    if (event == NULL) {
        return;
    }
    bool is_cached = false;
    if (is_reusable && group->options.has_event_cache) {
        dd_lock_take(&group->lock);
        is_cached = cache_locked(&device->events[has_timing], event);
        dd_lock_release(&group->lock);
    }
    if (!is_cached) {
        (void)group->cuda->api.cuEventDestroy(event);
    }
}

void
nccl_events_close(dd_nccl_group *group, nccl_device *device)
{
    for (int timing = 0; timing < 2; timing++) {
        dd_lock_take(&group->lock);
        nccl_events events = device->events[timing];
        device->events[timing] = (nccl_events){.is_closed = true};
        dd_lock_release(&group->lock);
        for (size_t i = 0; i < events.count; i++) {
            (void)group->cuda->api.cuEventDestroy(events.items[i]);
        }
        dd_mem_free(events.items);
    }
}
