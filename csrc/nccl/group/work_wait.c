/* Queries of works, and waits for their end. Unlike works.c, a query here may fail the group. */
#include "nccl/group/internal.h"

#include "core/lock.h"
#include "core/wait_policy.h"

/* Query the device; complete the work if it has ended, and fail the group if the query fails.
 * Return the result of the query, even if another thread has completed the work. */
static nccl_progress
work_poll(nccl_work *work)
{
    dd_nccl_group *group = work->group;
    if (!atomic_load_explicit(&work->is_launched, memory_order_acquire)) {
        return NCCL_UNDER_WAY;
    }
    nccl_work_check_start(work);
    dd_error error;
    nccl_progress progress = nccl_work_query(work, work->end, &error);
    if (progress == NCCL_UNDER_WAY) {
        return progress;
    }
    if (progress != NCCL_ENDED) {
        /* The error does not begin with the work's name, so call_len is 0. */
        nccl_origin origin = {.record = work->record};
        nccl_group_end(group, &error, &origin,
                       progress == NCCL_NO_MORE ? NCCL_END_DRIVER_GONE : NCCL_END_FAILED);
        return progress;
    }
    nccl_work_complete_up_to(work);
    return progress;
}

nccl_progress
nccl_channel_poll(nccl_channel *channel, bool *is_busy)
{
    /* The device may have finished hundreds of works: double the step until a work has not ended.
     * Then restart with the first work under way: if a query fails, that work must be blamed. */
    size_t step = 1;
    for (;;) {
        nccl_work *work = nccl_channel_nth_work(channel, step);
        if (work == NULL) {
            return NCCL_ENDED;
        }
        *is_busy = true;
        nccl_progress progress = step == 1 ? work_poll(work) : nccl_work_poll_ahead(work);
        dd_work_release(&work->base.base);
        if (progress != NCCL_ENDED && step == 1) {
            return progress;
        }
        step = progress == NCCL_ENDED ? 2 * step : 1;
    }
}

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
    (void)work_poll(work);
    return dd_work_is_done(&base->base);
}

void
dd_nccl_work_note_reported(dd_nccl_work *base)
{
    dd_nccl_group *group = ((nccl_work *)base)->group;
    if (nccl_group_check_fork(group, NULL) == DD_OK) {
        dd_lock_take(&group->lock);
        group->is_unreported = false;
        dd_lock_release(&group->lock);
    }
}

dd_status
dd_nccl_work_result(dd_nccl_work *base, dd_error *err)
{
    dd_status status = dd_work_is_done(&base->base) ? dd_work_result(&base->base, err) : DD_OK;
    if (status != DD_OK) {
        dd_nccl_work_note_reported(base);
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
    dd_cuda_guard guard; /* if `stream` is NULL, it is the current context's default stream */
    status = nccl_enter(work->group, work->channel->device, &guard, err);
    if (status != DD_OK) {
        return status;
    }
    status = dd_cuda_check(work->group->cuda, work->group->cuda->api.cuStreamWaitEvent(stream, work->end, 0),
                           err, "cuStreamWaitEvent on device %d", work->channel->device->number);
    dd_cuda_leave(&guard);
    return status;
}

/* Poll for DD_POLL_EVENT_NS before sleeping, because many works are short. */
static bool
spin(dd_nccl_work *base)
{
    int64_t until_ns = dd_clock_now_ns() + DD_POLL_EVENT_NS;
    do {
        if (dd_nccl_work_poll(base)) {
            return true;
        }
    } while (dd_clock_now_ns() < until_ns);
    return false;
}

/* Sleep for nap_ns, or until a work, a connection or an abort of the group ends. */
static void
work_nap(nccl_work *work, const dd_wait *wait, int64_t nap_ns)
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
    int64_t nap_ns = DD_NAP_EVENT_MIN_NS;
    bool is_done = spin(base);
    while (!is_done) {
        if (dd_wait_has_expired(wait)) {
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
        work_nap(work, wait, nap_ns);
        nap_ns = nap_ns * 2 < DD_NAP_EVENT_MAX_NS ? nap_ns * 2 : DD_NAP_EVENT_MAX_NS;
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
    if (atomic_load_explicit(&work->is_device_done, memory_order_acquire)) {
        return true;
    }
    nccl_progress progress = nccl_group_check_fork(work->group, NULL) == DD_OK
                                 ? nccl_work_query(work, work->end, NULL)
                                 : NCCL_NO_MORE;
    bool is_quiet = progress == NCCL_ENDED || progress == NCCL_NO_MORE;
    if (is_quiet) {
        atomic_store_explicit(&work->is_device_done, true, memory_order_release);
    }
    return is_quiet;
}

dd_status
dd_nccl_work_duration(dd_nccl_work *base, float *ms, dd_error *err)
{
    nccl_work *work = (nccl_work *)base;
    if (work->start == NULL || work->is_captured) {
        return dd_error_set(err, DD_NOT_SUPPORTED, "%s was not timed%s", work->label,
                            work->is_captured ? ": it belongs to a CUDA graph" : "");
    }
    if (!dd_nccl_work_poll(base)) {
        return dd_error_set(err, DD_INVALID_ARGUMENT, "%s has not ended yet", work->label);
    }
    dd_status status = dd_work_result(&base->base, err);
    if (status != DD_OK) {
        return status;
    }
    dd_cuda_guard guard; /* cuEventElapsedTime needs a current context, unlike cuEventQuery */
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
