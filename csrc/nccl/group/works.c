/* Works: how they are created, and how they end.
 *
 * A work is in its channel's list from before NCCL is called until it has ended. The watchdog, a
 * waiting thread, or a failure of the group may notice the end of a work. Each of them holds the
 * group's lock to complete the work, and only the first completion counts. Any thread with a
 * reference may query the work's events, which live as long as the work. */
#include "nccl/group/internal.h"

#include "core/lock.h"
#include <stdio.h>
#include <string.h>

#define MAX_POOL 64u

/* ---- creation and destruction */

static void
release_events(nccl_work *work)
{
    /* An event that the device has not reached, or that a graph refers to, must not be reused. */
    bool is_reusable =
        !work->is_captured && atomic_load_explicit(&work->is_device_done, memory_order_acquire);
    nccl_device *device = work->channel->device;
    if (!is_reusable || !work->group->options.has_event_cache) {
        dd_cuda_guard guard;
        if (nccl_enter(work->group, device, &guard, NULL) != DD_OK) {
            return; /* the driver has shut down and freed the events */
        }
        nccl_event_release(work->group, device, work->has_timing, work->start, is_reusable);
        nccl_event_release(work->group, device, work->has_timing, work->end, is_reusable);
        dd_cuda_leave(&guard);
        return;
    }
    nccl_event_release(work->group, device, work->has_timing, work->start, true);
    nccl_event_release(work->group, device, work->has_timing, work->end, true);
}

static void
destroy_work(dd_work *base)
{
    nccl_work *work = (nccl_work *)base;
    dd_nccl_group *group = work->group;
    bool is_cached = false;
    if (nccl_group_check_fork(group, NULL) == DD_OK) {
        release_events(work);
        dd_lock_take(&group->lock);
        is_cached = group->npool < MAX_POOL && !group->is_closed;
        if (is_cached) {
            dd_list_push_back(&group->pool, &work->link);
            group->npool++;
        }
        dd_lock_release(&group->lock);
    }
    if (!is_cached) {
        dd_mem_free(work);
    }
    nccl_group_release_internal(group);
}

/* Take a work from the pool, or allocate one; NULL if there is no memory. */
static nccl_work *
take_work(dd_nccl_group *group)
{
    nccl_work *work = NULL;
    dd_lock_take(&group->lock);
    group->ntaken++;
    if (group->npool > 0) {
        work = DD_CONTAINER_OF(group->pool.next, nccl_work, link);
        dd_list_remove(&work->link);
        group->npool--;
    } else if (group->ntaken > MAX_POOL) {
        group->ntaken = 0;
        atomic_store_explicit(&group->needs_poll, true, memory_order_relaxed);
    }
    dd_lock_release(&group->lock);
    return work != NULL ? work : dd_mem_alloc(sizeof *work);
}

static dd_status
acquire_events(nccl_work *work, dd_error *err)
{
    nccl_device *device = work->channel->device;
    dd_status status = nccl_event_acquire(work->group, device, work->has_timing, &work->end, err);
    if (status == DD_OK && work->has_timing) {
        status = nccl_event_acquire(work->group, device, true, &work->start, err);
    }
    return status;
}

static bool
is_message_only(const dd_nccl_call *call)
{
    for (size_t i = 0; i < call->nops; i++) {
        if (call->ops[i].kind == DD_NCCL_OP_COLL) {
            return false;
        }
    }
    return call->nops > 0;
}

dd_status
nccl_work_create(nccl_channel *channel, const dd_nccl_call *call, int64_t start_ns, bool is_captured,
                 nccl_work **created, dd_error *err)
{
    dd_nccl_group *group = channel->group;
    nccl_work *work = take_work(group);
    if (work == NULL) {
        return dd_error_no_memory(err, sizeof *work);
    }
    dd_work_init(&work->base.base, call->label, 0, start_ns);
    if (call->nops == 1 && call->ops[0].kind == DD_NCCL_OP_RECV) {
        work->base.base.source_rank = call->ops[0].peer;
    }
    work->base.base.on_done = call->on_done; /* not called if dd_nccl_group_start fails */
    work->base.base.ctx = call->ctx;
    work->base.base.destroy = destroy_work;
    work->group = nccl_group_acquire_internal(group);
    work->channel = channel;
    dd_list_init(&work->link);
    dd_timer_init(&work->late, NULL); /* no callback: the watchdog checks the first deadline */
    work->start = NULL;
    work->end = NULL;
    work->label = call->label;
    work->number = 0;
    work->record = DD_NO_RECORD;
    work->timeout_ns = call->timeout_ns >= 0 ? call->timeout_ns
                                             : atomic_load_explicit(&group->timeout_ns, memory_order_relaxed);
    work->ephemeral_ns = 0;
    work->is_message = is_message_only(call);
    work->has_timing = atomic_load_explicit(&group->has_timing, memory_order_relaxed);
    work->is_captured = is_captured;
    atomic_init(&work->is_started, false);
    atomic_init(&work->is_launched, false);
    atomic_init(&work->is_device_done, true); /* true until the work is in the stream */
    dd_status status = acquire_events(work, err);
    if (status != DD_OK) {
        dd_work_release(&work->base.base);
        return status;
    }
    *created = work;
    return DD_OK;
}

/* ---- texts */

size_t
nccl_work_print(const nccl_work *work, char out[128])
{
    const char *kind = work->is_message ? " message" : "";
    int len = snprintf(out, 128, "%s%s #%llu of rank %d ", work->label, kind,
                       (unsigned long long)work->number, work->group->rank);
    return len < 128 ? (size_t)len : 127;
}

nccl_origin
nccl_work_origin(const nccl_work *work)
{
    char call[128];
    return (nccl_origin){.record = work->record,
                         .number = work->number,
                         .is_message = work->is_message,
                         .call_len = nccl_work_print(work, call)};
}

void
nccl_work_describe(const nccl_work *work, const dd_error *cause, dd_error *error)
{
    const dd_nccl_group *group = work->group;
    const nccl_origin *origin = &group->origin;
    bool is_found =
        cause == &group->cause && origin->number == work->number && origin->is_message == work->is_message;
    *error = *cause;
    if (is_found && strlen(error->message) >= origin->call_len) {
        memmove(error->message, error->message + origin->call_len,
                strlen(error->message + origin->call_len) + 1);
    }
    dd_error_prepend(error, "%s%s #%llu on group \"%.*s\" (rank %d of %d)", work->label,
                     work->is_message ? " message" : "", (unsigned long long)work->number,
                     (int)group->options.name.len, (const char *)group->options.name.data, group->rank,
                     group->size);
    dd_error_note_call(error, work->label, work->is_message ? 0 : work->number,
                       dd_clock_now_ns() - work->base.base.start_ns, group->options.name.data,
                       group->options.name.len);
}

/* ---- completion */

static void
complete_locked(nccl_work *work, const dd_error *error, dd_list *ended)
{
    dd_nccl_group *group = work->group;
    int64_t now_ns = work->record != DD_NO_RECORD ? dd_clock_now_ns() : 0;
    if (work->record != DD_NO_RECORD && group->recorder != NULL) {
        if (error == NULL && !atomic_load_explicit(&work->is_started, memory_order_relaxed)) {
            dd_recorder_start(group->recorder, work->record, now_ns);
        }
        dd_recorder_end(group->recorder, work->record, now_ns, error);
    }
    if (work->ephemeral_ns > 0) {
        group->ephemeral_ns -= work->ephemeral_ns;
    }
    if (error == NULL && !work->is_message) {
        group->last_completed = work->number;
    }
    dd_list_remove(&work->link);
    dd_timer_clear(&work->late);
    dd_list_push_back(ended, &work->link);
    (void)dd_work_complete(&work->base.base, error);
    if (group->nwaiters > 0) {
        dd_cond_broadcast(&group->ended);
    }
}

/* Complete the channel's works from the first up to `last`, and move them to `ended`. */
static void
complete_through_locked(nccl_channel *channel, nccl_work *last, dd_list *ended)
{
    /* The stream has passed `last`, and so also all works before it. */
    while (!dd_work_is_done(&last->base.base)) {
        nccl_work *work = DD_CONTAINER_OF(channel->works.next, nccl_work, link);
        atomic_store_explicit(&work->is_device_done, true, memory_order_release);
        complete_locked(work, NULL, ended);
    }
}

void
nccl_work_fail_locked(nccl_work *work, const dd_error *cause, dd_list *ended)
{
    dd_error error;
    nccl_work_describe(work, cause, &error);
    complete_locked(work, &error, ended);
}

void
nccl_works_release_ended(dd_list *ended)
{
    while (!dd_list_is_empty(ended)) {
        nccl_work *work = DD_CONTAINER_OF(ended->next, nccl_work, link);
        dd_list_remove(&work->link);
        dd_work_release(&work->base.base);
    }
}

/* ---- queries of the device */

/* Query an event, in relaxed mode: otherwise the query would invalidate a graph capture. */
static dd_cuda_result
query(const nccl_work *work, dd_cuda_event event)
{
    const dd_cuda *cuda = work->group->cuda;
    dd_cuda_capture_mode mode = dd_cuda_relax_capture(cuda);
    dd_cuda_result result = cuda->api.cuEventQuery(event);
    dd_cuda_restore_capture(cuda, mode);
    return result;
}

nccl_progress
nccl_work_query(const nccl_work *work, dd_cuda_event event, dd_error *err)
{
    dd_cuda_result result = query(work, event);
    if (result == DD_CUDA_SUCCESS) {
        return NCCL_ENDED;
    }
    if (result == DD_CUDA_NOT_READY) {
        return NCCL_UNDER_WAY;
    }
    if (dd_cuda_is_shutting_down(result)) {
        dd_error_set(err, DD_CLOSED, "the CUDA driver is shutting down");
        return NCCL_NO_MORE;
    }
    (void)!dd_cuda_check(work->group->cuda, result, err, "cuEventQuery on device %d",
                         work->channel->device->number);
    return NCCL_BROKEN;
}

void
nccl_work_check_start(nccl_work *work)
{
    if (work->start == NULL || atomic_load_explicit(&work->is_started, memory_order_relaxed) ||
        query(work, work->start) != DD_CUDA_SUCCESS) {
        return;
    }
    dd_nccl_group *group = work->group;
    bool was_started = atomic_exchange(&work->is_started, true);
    dd_lock_take(&group->lock);
    if (!was_started && work->record != DD_NO_RECORD && group->recorder != NULL) {
        dd_recorder_start(group->recorder, work->record, dd_clock_now_ns());
    }
    dd_lock_release(&group->lock);
}

void
nccl_work_complete_up_to(nccl_work *work)
{
    dd_nccl_group *group = work->group;
    dd_list ended;
    dd_list_init(&ended);
    dd_lock_take(&group->lock);
    if (!dd_work_is_done(&work->base.base)) {
        complete_through_locked(work->channel, work, &ended);
    }
    dd_lock_release(&group->lock);
    nccl_works_release_ended(&ended);
}

nccl_work *
nccl_channel_nth_work(nccl_channel *channel, size_t n)
{
    dd_nccl_group *group = channel->group;
    nccl_work *work = NULL;
    dd_lock_take(&group->lock);
    if (!dd_list_is_empty(&channel->works)) {
        dd_list *link = channel->works.next;
        for (size_t i = 1; i < n && link->next != &channel->works; i++) {
            link = link->next;
        }
        work = DD_CONTAINER_OF(link, nccl_work, link);
        dd_work_acquire(&work->base.base);
    }
    dd_lock_release(&group->lock);
    return work;
}

nccl_progress
nccl_work_poll_ahead(nccl_work *work)
{
    if (!atomic_load_explicit(&work->is_launched, memory_order_acquire) ||
        query(work, work->end) != DD_CUDA_SUCCESS) {
        return NCCL_UNDER_WAY;
    }
    nccl_work_complete_up_to(work);
    return NCCL_ENDED;
}

void
nccl_group_end_complete(dd_nccl_group *group)
{
    dd_lock_take(&group->lock);
    nccl_channel *channel = group->cause.code == DD_OK ? group->channels : NULL;
    dd_lock_release(&group->lock);
    for (; channel != NULL; channel = channel->next) {
        nccl_work *work;
        nccl_progress progress = NCCL_ENDED;
        while (progress == NCCL_ENDED && (work = nccl_channel_nth_work(channel, 1)) != NULL) {
            progress = nccl_work_poll_ahead(work);
            dd_work_release(&work->base.base);
        }
    }
}
