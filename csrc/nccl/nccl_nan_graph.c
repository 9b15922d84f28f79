/* Looking for NaN in CUDA graphs. A call in a capture puts its kernels into the graph. Nobody waits for them: what they report is read by the
 * watchdog, by the next call, and by the end of the group, and fails the group.
 *
 * All calls that are captured on a device share a report, which is never reset: the group fails for the first NaN. Their inputs are
 * remembered as long as the group lives, as are reports beyond it, since nobody tells when a graph ends. */
#include "nccl/nccl_nan.h"

#include "core/lock.h"

struct nccl_nan_captured {
    nccl_nan_place place;
    nccl_origin origin;
    char call[128];
};

/* ---- capturing */

static size_t
count_inputs(const nccl_launch *launch)
{
    nccl_nan_place place = NCCL_NAN_FIRST;
    const dd_block *block;
    size_t n = 0;
    while (nccl_nan_next(launch, &place, &block)) {
        n++;
    }
    return n;
}

static dd_status
reserve_locked(dd_nccl_group *group, size_t n, dd_error *err)
{
    nccl_nan_captures *captures = &group->nan_captures;
    if (captures->capacity - captures->count >= n) {
        return DD_OK;
    }
    size_t capacity = captures->count + (n > captures->count ? n : captures->count);
    nccl_nan_captured *items = dd_mem_realloc(captures->items, capacity * sizeof *items);
    if (items == NULL) {
        return dd_error_no_memory(err, capacity * sizeof *items);
    }
    captures->items = items;
    captures->capacity = capacity;
    return DD_OK;
}

/* *first: the number of the first input, which the others follow. */
static dd_status
remember_inputs(nccl_launch *launch, uint64_t *first)
{
    dd_nccl_group *group = launch->group;
    size_t n = count_inputs(launch);
    nccl_nan_captured item = {.origin = nccl_work_origin(launch->work), .place = NCCL_NAN_FIRST};
    item.origin.is_captured = true;
    nccl_work_print(launch->work, item.call);
    item.origin.call_len += 1; /* ": " instead of the space */
    dd_lock_take(&group->lock);
    dd_status status = reserve_locked(group, n, launch->err);
    *first = group->nan_captures.count;
    const dd_block *block;
    while (status == DD_OK && nccl_nan_next(launch, &item.place, &block)) {
        group->nan_captures.items[group->nan_captures.count++] = item;
    }
    dd_lock_release(&group->lock);
    return status;
}

/* The device's report for graphs, made by the first call that is captured there. */
static dd_status
take_report(nccl_launch *launch, dd_cuda_nan_report **report)
{
    nccl_device *device = launch->channel->device;
    *report = atomic_load_explicit(&device->nan_report, memory_order_relaxed);
    if (*report != NULL) {
        return DD_OK;
    }
    dd_status status = nccl_launch_check_cuda(
        launch, dd_cuda_nan_report_create(launch->group->cuda->nan, report), "cuMemHostAlloc");
    if (status == DD_OK) {
        atomic_store_explicit(&device->nan_report, *report, memory_order_release);
        atomic_store_explicit(&launch->group->has_nan_graphs, true, memory_order_release);
    }
    return status;
}

dd_status
nccl_nan_capture(nccl_launch *launch)
{
    uint64_t first;
    dd_cuda_nan_report *report;
    dd_status status = take_report(launch, &report);
    if (status == DD_OK) {
        status = remember_inputs(launch, &first);
    }
    return status == DD_OK ? nccl_nan_enqueue(launch, first, report) : status;
}

/* ---- what graphs report */

static uint64_t
reported_by_graphs(dd_nccl_group *group)
{
    if (dd_cuda_is_gone(group->cuda)) {
        return DD_CUDA_NAN_NONE; /* and its memory with it */
    }
    for (int number = 0; number < group->cuda->ndevices; number++) {
        nccl_device *device = atomic_load_explicit(&group->devices[number], memory_order_acquire);
        dd_cuda_nan_report *report =
            device != NULL ? atomic_load_explicit(&device->nan_report, memory_order_acquire) : NULL;
        uint64_t reported =
            report != NULL ? atomic_load_explicit(report, memory_order_acquire) : DD_CUDA_NAN_NONE;
        if (reported != DD_CUDA_NAN_NONE) {
            return reported;
        }
    }
    return DD_CUDA_NAN_NONE;
}

void
nccl_nan_look(dd_nccl_group *group)
{
    if (!atomic_load_explicit(&group->has_nan_graphs, memory_order_acquire) || atomic_load(&group->stop)) {
        return;
    }
    uint64_t reported = reported_by_graphs(group);
    if (reported == DD_CUDA_NAN_NONE) {
        return;
    }
    dd_lock_take(&group->lock);
    nccl_nan_captured found = group->nan_captures.items[nccl_nan_number(reported)];
    dd_lock_release(&group->lock);
    dd_error cause;
    (void)nccl_nan_describe("in a CUDA graph", &found.place, nccl_nan_index(reported), &cause);
    dd_error_prepend(&cause, "%.*s", (int)found.origin.call_len - 2, found.call);
    nccl_group_end(group, &cause, &found.origin, NCCL_END_FAILED);
}
