/* Works: how they are asked, and how they end.
 *
 * A work is in its channel's list from before NCCL is called until it has ended. The watchdog, a thread that waits, or a failure of the
 * group may notice its end. All of them hold the group's lock when they complete it, and only the first counts. Its events live as long as it does, so
 * that any holder may ask. */
#include "nccl/nccl_internal.h"

#include "core/lock.h"
#include <stdio.h>
#include <string.h>

#define MAX_POOL 64u
#define SPIN_NS (20 * DD_NS_PER_US)
#define MIN_NAP_NS (50 * DD_NS_PER_US)
#define MAX_NAP_NS DD_NS_PER_MS

/* ---- made and destroyed */

static void
give_events(nccl_work *work)
{
    /* What the device has not reached yet, and what a graph refers to, is not recorded again. */
    bool is_reusable = !work->is_captured && atomic_load_explicit(&work->is_quiet, memory_order_acquire);
    nccl_device *device = work->channel->device;
    if (!is_reusable || !work->group->options.has_event_cache) {
        dd_cuda_guard guard;
        if (nccl_enter(work->group, device, &guard, NULL) != DD_OK) {
            return; /* the driver is gone, and the events with it */
        }
        nccl_event_give(work->group, device, work->has_timing, work->start, is_reusable);
        nccl_event_give(work->group, device, work->has_timing, work->end, is_reusable);
        dd_cuda_leave(&guard);
        return;
    }
    nccl_event_give(work->group, device, work->has_timing, work->start, true);
    nccl_event_give(work->group, device, work->has_timing, work->end, true);
}

static void
destroy_work(dd_work *base)
{
    nccl_work *work = (nccl_work *)base;
    dd_nccl_group *group = work->group;
    bool is_kept = false;
    if (nccl_group_check_fork(group, NULL) == DD_OK) {
        give_events(work);
        dd_lock_take(&group->lock);
        is_kept = group->npool < MAX_POOL && !group->is_closed;
        if (is_kept) {
            dd_list_push_back(&group->pool, &work->link);
            group->npool++;
        }
        dd_lock_release(&group->lock);
    }
    if (!is_kept) {
        dd_mem_free(work);
    }
    nccl_group_release_internal(group);
}

/* NULL: there is none to be used again. *must_look: so many have been taken since the last look that some may have ended. */
static nccl_work *
take_from_pool(dd_nccl_group *group, bool *must_look)
{
    nccl_work *work = NULL;
    dd_lock_take(&group->lock);
    group->ntaken++;
    *must_look = group->npool == 0 && group->ntaken > MAX_POOL;
    if (group->npool > 0) {
        work = DD_CONTAINER_OF(group->pool.next, nccl_work, link);
        dd_list_remove(&work->link);
        group->npool--;
    } else if (*must_look) {
        group->ntaken = 0;
    }
    dd_lock_release(&group->lock);
    return work;
}

/* A caller that is faster than the watchdog's looks now and then looks itself, so that works and events are used again. */
static nccl_work *
take_work(nccl_launch *launch)
{
    bool must_look;
    nccl_work *work = take_from_pool(launch->group, &must_look);
    if (must_look && !launch->is_capturing) {
        bool is_busy;
        (void)nccl_channel_look(launch->channel, &is_busy);
        work = take_from_pool(launch->group, &must_look);
    }
    return work != NULL ? work : dd_mem_alloc(sizeof *work);
}

static dd_status
take_events(nccl_launch *launch, nccl_work *work, dd_error *err)
{
    nccl_device *device = launch->channel->device;
    dd_status status = nccl_event_take(launch->group, device, work->has_timing, &work->end, err);
    if (status == DD_OK && work->has_timing) {
        status = nccl_event_take(launch->group, device, true, &work->start, err);
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
nccl_work_create(nccl_launch *launch, dd_error *err)
{
    const dd_nccl_call *call = launch->call;
    dd_nccl_group *group = launch->group;
    nccl_work *work = take_work(launch);
    if (work == NULL) {
        return dd_error_no_memory(err, sizeof *work);
    }
    dd_work_init(&work->base.base, call->what, 0, launch->wait->start_ns);
    if (call->nops == 1 && call->ops[0].kind == DD_NCCL_OP_RECV) {
        work->base.base.source_rank = call->ops[0].peer;
    }
    work->base.base.on_done = call->on_done; /* a call that fails completes nothing */
    work->base.base.ctx = call->ctx;
    work->base.base.destroy = destroy_work;
    work->group = nccl_group_acquire_internal(group);
    work->channel = launch->channel;
    dd_list_init(&work->link);
    work->start = NULL;
    work->end = NULL;
    work->what = call->what;
    work->number = 0;
    work->record = DD_NO_RECORD;
    work->timeout_ns = call->timeout_ns >= 0 ? call->timeout_ns
                                             : atomic_load_explicit(&group->timeout_ns, memory_order_relaxed);
    work->ephemeral_ns = 0;
    work->is_message = is_message_only(call);
    work->is_barrier = call->is_barrier;
    work->has_timing = atomic_load_explicit(&group->has_timing, memory_order_relaxed);
    work->is_captured = launch->is_capturing;
    atomic_init(&work->is_started, false);
    atomic_init(&work->is_launched, false);
    atomic_init(&work->is_quiet, true); /* until something is in the stream */
    dd_status status = take_events(launch, work, err);
    if (status != DD_OK) {
        dd_work_release(&work->base.base);
        return status;
    }
    launch->work = work;
    return DD_OK;
}

/* ---- words */

size_t
nccl_work_print(const nccl_work *work, char out[128])
{
    const char *kind = work->is_message ? " message" : "";
    int len = snprintf(out, 128, "%s%s #%llu of rank %d ", work->what, kind, (unsigned long long)work->number,
                       work->group->rank);
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
    bool is_this_one =
        cause == &group->cause && origin->number == work->number && origin->is_message == work->is_message;
    *error = *cause;
    if (is_this_one && strlen(error->message) >= origin->call_len) {
        memmove(error->message, error->message + origin->call_len,
                strlen(error->message + origin->call_len) + 1);
    }
    dd_error_prepend(error, "%s%s #%llu on group \"%.*s\" (rank %d of %d)", work->what,
                     work->is_message ? " message" : "", (unsigned long long)work->number,
                     (int)group->options.name.len, (const char *)group->options.name.data, group->rank,
                     group->size);
    dd_error_note_call(error, work->what, work->is_message ? 0 : work->number,
                       dd_clock_now_ns() - work->base.base.start_ns, group->options.name.data,
                       group->options.name.len);
}

/* ---- ends */

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
    dd_list_push_back(ended, &work->link);
    (void)dd_work_complete(&work->base.base, error);
    if (group->nwaiters > 0) {
        dd_cond_broadcast(&group->ended);
    }
}

void
nccl_works_complete_locked(nccl_channel *channel, nccl_work *last, dd_list *ended)
{
    /* The stream has reached the end of this one, so it has passed those before it. */
    while (!dd_work_is_done(&last->base.base)) {
        nccl_work *work = DD_CONTAINER_OF(channel->works.next, nccl_work, link);
        atomic_store_explicit(&work->is_quiet, true, memory_order_release);
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

/* ---- asking the device */

/* A thread that captures a graph may ask about events outside of it only when it says that it knows what it does. */
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

static void
look_at_start(nccl_work *work)
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

/* The stream has passed it. */
static void
complete_up_to(nccl_work *work)
{
    dd_nccl_group *group = work->group;
    dd_list ended;
    dd_list_init(&ended);
    dd_lock_take(&group->lock);
    if (!dd_work_is_done(&work->base.base)) {
        nccl_works_complete_locked(work->channel, work, &ended);
    }
    dd_lock_release(&group->lock);
    nccl_works_release_ended(&ended);
}

nccl_progress
nccl_work_look(nccl_work *work)
{
    dd_nccl_group *group = work->group;
    if (!atomic_load_explicit(&work->is_launched, memory_order_acquire)) {
        return NCCL_UNDER_WAY;
    }
    look_at_start(work);
    dd_error error;
    nccl_progress progress = nccl_work_query(work, work->end, &error);
    if (progress == NCCL_UNDER_WAY) {
        return progress;
    }
    if (progress != NCCL_ENDED) {
        nccl_origin origin = {.record = work->record}; /* the error does not begin with it */
        nccl_group_end(group, &error, &origin,
                       progress == NCCL_NO_MORE ? NCCL_END_DRIVER_GONE : NCCL_END_FAILED);
        return progress;
    }
    complete_up_to(work);
    return progress;
}

/* The n-th work under way of a channel, acquired, or the last if there are fewer; NULL: there is none. */
static nccl_work *
nth_work(nccl_channel *channel, size_t n)
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

/* Completes it and those before it if the stream has passed it. */
static nccl_progress
look_ahead(nccl_work *work)
{
    if (!atomic_load_explicit(&work->is_launched, memory_order_acquire) ||
        query(work, work->end) != DD_CUDA_SUCCESS) {
        return NCCL_UNDER_WAY;
    }
    complete_up_to(work);
    return NCCL_ENDED;
}

nccl_progress
nccl_channel_look(nccl_channel *channel, bool *is_busy)
{
    /* A stream may have passed hundreds: twice as many at a time, until one has not ended. Then from the first again, which is the
     * one that a failure is told of. */
    size_t step = 1;
    for (;;) {
        nccl_work *work = nth_work(channel, step);
        if (work == NULL) {
            return NCCL_ENDED;
        }
        *is_busy = true;
        nccl_progress progress = step == 1 ? nccl_work_look(work) : look_ahead(work);
        dd_work_release(&work->base.base);
        if (progress != NCCL_ENDED && step == 1) {
            return progress;
        }
        step = progress == NCCL_ENDED ? 2 * step : 1;
    }
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
        while (progress == NCCL_ENDED && (work = nth_work(channel, 1)) != NULL) {
            progress = look_ahead(work);
            dd_work_release(&work->base.base);
        }
    }
}

/* ---- what others may ask */

bool
dd_nccl_work_poll(dd_nccl_work *base)
{
    nccl_work *work = (nccl_work *)base;
    if (dd_work_is_done(&base->base)) {
        return true;
    }
    if (nccl_group_check_fork(work->group, NULL) != DD_OK) {
        return false;
    }
    (void)nccl_work_look(work);
    return dd_work_is_done(&base->base);
}

bool
dd_nccl_work_is_started(dd_nccl_work *base)
{
    nccl_work *work = (nccl_work *)base;
    if (dd_work_is_done(&base->base)) {
        return true;
    }
    if (nccl_group_check_fork(work->group, NULL) == DD_OK &&
        atomic_load_explicit(&work->is_launched, memory_order_acquire)) {
        look_at_start(work);
    }
    return atomic_load_explicit(&work->is_started, memory_order_relaxed);
}

void
dd_nccl_work_on_told(dd_nccl_work *base)
{
    dd_nccl_group *group = ((nccl_work *)base)->group;
    if (nccl_group_check_fork(group, NULL) == DD_OK) {
        dd_lock_take(&group->lock);
        group->is_unheard = false;
        dd_lock_release(&group->lock);
    }
}

dd_status
dd_nccl_work_result(dd_nccl_work *base, dd_error *err)
{
    dd_status status = dd_work_is_done(&base->base) ? dd_work_result(&base->base, err) : DD_OK;
    if (status != DD_OK) {
        dd_nccl_work_on_told(base);
    }
    return status;
}

dd_status
dd_nccl_work_wait_stream(dd_nccl_work *base, dd_cuda_stream stream, dd_error *err)
{
    nccl_work *work = (nccl_work *)base;
    dd_status status = nccl_group_check_fork(work->group, err);
    if (status != DD_OK) {
        return status;
    }
    if (dd_work_is_done(&base->base) && !work->is_captured) {
        return dd_nccl_work_result(base, err);
    }
    dd_cuda_guard guard; /* the default streams are those of the current context */
    status = nccl_enter(work->group, work->channel->device, &guard, err);
    if (status != DD_OK) {
        return status;
    }
    status = dd_cuda_check(work->group->cuda, work->group->cuda->api.cuStreamWaitEvent(stream, work->end, 0),
                           err, "cuStreamWaitEvent on device %d", work->channel->device->number);
    dd_cuda_leave(&guard);
    return status;
}

/* Looks again and again for a moment: many works are short. */
static bool
spin(dd_nccl_work *base)
{
    int64_t until_ns = dd_clock_now_ns() + SPIN_NS;
    do {
        if (dd_nccl_work_poll(base)) {
            return true;
        }
    } while (dd_clock_now_ns() < until_ns);
    return false;
}

/* One nap, or until something of the group ends. */
static void
nap(nccl_work *work, const dd_wait *wait, int64_t nap_ns)
{
    dd_nccl_group *group = work->group;
    dd_wait slice = dd_wait_at_most(wait, nap_ns);
    dd_lock_take(&group->lock);
    if (!dd_work_is_done(&work->base.base)) {
        group->nwaiters++;
        dd_cond_wait_slice(&group->ended, &group->lock, &slice);
        group->nwaiters--;
    }
    dd_lock_release(&group->lock);
}

dd_status
nccl_work_await(nccl_work *work, const dd_wait *wait, dd_error *err)
{
    dd_nccl_work *base = &work->base;
    dd_status status = nccl_group_check_fork(work->group, err);
    if (status != DD_OK || dd_work_is_done(&base->base)) {
        return status;
    }
    int64_t nap_ns = MIN_NAP_NS;
    bool is_done = spin(base);
    while (!is_done) {
        if (dd_wait_is_over(wait)) {
            char call[128];
            nccl_work_print(work, call);
            return dd_error_set(err, DD_OP_TIMED_OUT, "%son group \"%.*s\" has not ended after %.3f s", call,
                                (int)work->group->options.name.len,
                                (const char *)work->group->options.name.data, dd_wait_elapsed_s(wait));
        }
        status = dd_wait_check(wait, err);
        if (status != DD_OK) {
            return status;
        }
        nap(work, wait, nap_ns);
        nap_ns = nap_ns * 2 < MAX_NAP_NS ? nap_ns * 2 : MAX_NAP_NS;
        is_done = dd_nccl_work_poll(base);
    }
    return DD_OK;
}

dd_status
dd_nccl_work_wait(dd_nccl_work *base, const dd_wait *wait, dd_error *err)
{
    dd_status status = nccl_work_await((nccl_work *)base, wait, err);
    return status == DD_OK ? dd_nccl_work_result(base, err) : status;
}

bool
dd_nccl_work_memory_is_free(dd_nccl_work *base)
{
    nccl_work *work = (nccl_work *)base;
    if (!dd_nccl_work_poll(base)) {
        return false;
    }
    if (atomic_load_explicit(&work->is_quiet, memory_order_acquire)) {
        return true;
    }
    nccl_progress progress = nccl_group_check_fork(work->group, NULL) == DD_OK
                                 ? nccl_work_query(work, work->end, NULL)
                                 : NCCL_NO_MORE;
    bool is_quiet = progress == NCCL_ENDED || progress == NCCL_NO_MORE;
    if (is_quiet) {
        atomic_store_explicit(&work->is_quiet, true, memory_order_release);
    }
    return is_quiet;
}

dd_status
dd_nccl_work_duration(dd_nccl_work *base, float *ms, dd_error *err)
{
    nccl_work *work = (nccl_work *)base;
    if (work->start == NULL || work->is_captured) {
        return dd_error_set(err, DD_NOT_SUPPORTED, "%s was not timed%s", work->what,
                            work->is_captured ? ": it belongs to a CUDA graph" : "");
    }
    if (!dd_nccl_work_poll(base)) {
        return dd_error_set(err, DD_INVALID_ARGUMENT, "%s has not ended yet", work->what);
    }
    dd_status status = dd_work_result(&base->base, err);
    if (status != DD_OK) {
        return status;
    }
    dd_cuda_guard guard; /* unlike cuEventQuery it wants a context */
    status = nccl_enter(work->group, work->channel->device, &guard, err);
    if (status != DD_OK) {
        return status;
    }
    status = dd_cuda_check(work->group->cuda,
                           work->group->cuda->api.cuEventElapsedTime(ms, work->start, work->end), err,
                           "cuEventElapsedTime on device %d", work->channel->device->number);
    dd_cuda_leave(&guard);
    return status;
}

int64_t
dd_nccl_work_timeout_ns(const dd_nccl_work *base)
{
    return ((const nccl_work *)base)->timeout_ns;
}

bool
dd_nccl_work_is_captured(const dd_nccl_work *base)
{
    return ((const nccl_work *)base)->is_captured;
}

bool
dd_nccl_work_is_barrier(const dd_nccl_work *base)
{
    return ((const nccl_work *)base)->is_barrier;
}
