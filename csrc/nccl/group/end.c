/* The end of a group by a failure or an abort. lifecycle/close.c has the normal end. */
#include "nccl/group/internal.h"

#include "core/lock.h"
#include "core/thread.h"

/* ---- failures */

static void
end_works_locked(dd_nccl_group *group, dd_list *ended)
{
    for (nccl_channel *channel = group->channels; channel != NULL; channel = channel->next) {
        for (dd_list *node = channel->works.next, *next; node != &channel->works; node = next) {
            next = node->next;
            nccl_work *work = DD_CONTAINER_OF(node, nccl_work, link);
            if (work != group->launching) {
                nccl_work_fail_locked(work, &group->cause, ended);
            }
        }
    }
}

void
nccl_group_end(dd_nccl_group *group, const dd_error *cause, const nccl_origin *origin, nccl_end how)
{
    dd_list ended;
    dd_list_init(&ended);
    bool is_failure = how == NCCL_END_FAILED || how == NCCL_END_ABORTED;
    if (how != NCCL_END_DRIVER_GONE) {
        nccl_group_end_complete(group);
    }
    dd_lock_take(&group->lock);
    bool is_first = group->cause.code == DD_OK && !group->is_close_done;
    if (is_first) {
        if (is_failure && group->recorder_group != NULL) {
            dd_recorder_raise_alarm(group->recorder_group, origin != NULL ? origin->record : DD_NO_RECORD,
                                    cause);
        }
        group->cause = *cause;
        group->origin = origin != NULL ? *origin : (nccl_origin){.record = DD_NO_RECORD};
        group->is_driver_shut_down = how == NCCL_END_DRIVER_GONE;
        group->is_released = how == NCCL_END_RELEASED;
        atomic_store(&group->stop, true);
        end_works_locked(group, &ended);
        bool is_lost = !dd_list_is_empty(&ended) || (origin != NULL && origin->is_captured);
        group->is_unreported = how == NCCL_END_FAILED && is_lost;
        dd_cond_broadcast(&group->ended);
    }
    dd_lock_release(&group->lock);
    nccl_works_release_ended(&ended);
    if (is_first && is_failure && !nccl_watchdog_is_abort_off(group->watchdog)) {
        nccl_group_start_abort(group);
    }
}

void
dd_nccl_group_fail(dd_nccl_group *group, const dd_error *cause)
{
    if (nccl_group_check_fork(group, NULL) == DD_OK) {
        nccl_group_end(group, cause, NULL, NCCL_END_FAILED);
    }
}

void
dd_nccl_group_retire(dd_nccl_group *group, const dd_error *cause)
{
    if (nccl_group_check_fork(group, NULL) == DD_OK) {
        nccl_group_end(group, cause, NULL, NCCL_END_RELEASED);
    }
}

/* ---- aborting communicators */

/* Return the next channel for abort_channel, or NULL. Acquires the group and its watchdog. */
static nccl_channel *
channel_take_to_abort(dd_nccl_group *group)
{
    dd_lock_take(&group->lock);
    nccl_channel *channel = group->is_driver_shut_down ? NULL : group->channels;
    while (channel != NULL && (atomic_load(&channel->comm) == NULL || channel->is_ending)) {
        channel = channel->next;
    }
    if (channel != NULL) {
        channel->is_ending = true;
        group->naborts++;
    }
    dd_lock_release(&group->lock);
    if (channel != NULL) {
        nccl_group_acquire_internal(group);
        nccl_watchdog_begin_abort(group->watchdog);
    }
    return channel;
}

static void *
abort_channel(void *arg)
{
    nccl_channel *channel = arg;
    dd_nccl_group *group = channel->group;
    dd_nccl_watchdog *watchdog = group->watchdog;
    dd_error cause;
    dd_lock_take(&group->lock);
    if (group->cause.code != DD_OK) {
        nccl_group_describe_cause_locked(group, &cause);
    } else {
        dd_error_set(&cause, DD_ABORTED, "the group has ended");
    }
    bool is_released = group->is_released;
    dd_lock_release(&group->lock);
    /* Ignore the result: the group has failed already, and callers receive the first cause. */
    dd_nccl_comm *comm = atomic_load(&channel->comm);
    (void)!(is_released ? dd_nccl_comm_abort_alone : dd_nccl_comm_abort)(comm, cause.message, NULL);
    dd_lock_take(&group->lock);
    group->naborts--;
    dd_cond_broadcast(&group->ended);
    /* Release the group's reference before a waiting thread can see that the abort has ended. */
    bool is_last = atomic_fetch_sub_explicit(&group->refs, 1, memory_order_acq_rel) == 1;
    dd_lock_release(&group->lock);
    if (is_last) {
        nccl_group_destroy(group);
    }
    nccl_watchdog_end_abort(watchdog);
    return NULL;
}

void
nccl_group_start_abort(dd_nccl_group *group)
{
    nccl_channel *channel;
    while ((channel = channel_take_to_abort(group)) != NULL) {
        pthread_t thread;
        if (dd_thread_start(&thread, "dldist-abort", abort_channel, channel, NULL) == DD_OK) {
            dd_thread_detach(thread);
        } else {
            (void)abort_channel(channel); /* no thread could be started, so abort here */
        }
    }
}

dd_status
nccl_group_wait_for_abort(dd_nccl_group *group, const dd_wait *wait, dd_error *err)
{
    dd_status status = DD_OK;
    dd_lock_take(&group->lock);
    while (group->naborts > 0 && status == DD_OK) {
        status = dd_cond_wait_checked(&group->ended, &group->lock, wait, err);
    }
    if (status == DD_TIMED_OUT) {
        status =
            group->naborts == 0
                ? DD_OK
                : dd_error_set(err, DD_OP_TIMED_OUT,
                               "ncclCommAbort did not return within %.3f s; its thread keeps waiting for it",
                               dd_wait_elapsed_s(wait));
    }
    dd_lock_release(&group->lock);
    return status;
}

void
nccl_group_abort_as_relative(void *ctx, const char *reason)
{
    dd_nccl_group *group = ctx;
    dd_error cause;
    dd_error_set(&cause, DD_ABORTED, "%s", reason);
    nccl_group_end(group, &cause, NULL, NCCL_END_FAILED);
    nccl_group_start_abort(group); /* abort even if is_abort_off is set */
    nccl_group_release_internal(group);
}

dd_status
dd_nccl_group_abort(dd_nccl_group *group, const char *reason, const dd_wait *wait, dd_error *err)
{
    dd_status status = nccl_group_check_fork(group, err);
    if (status != DD_OK) {
        return status;
    }
    dd_lock_take(&group->lock);
    bool has_ended = group->is_close_done || group->is_driver_shut_down;
    group->is_released = false;
    dd_lock_release(&group->lock);
    if (!has_ended) {
        dd_error cause;
        dd_error_set(&cause, DD_ABORTED, "rank %d aborted the group: %s", group->rank, reason);
        nccl_group_end(group, &cause, NULL, NCCL_END_ABORTED);
        nccl_group_start_abort(group); /* abort even if is_abort_off is set */
    }
    dd_lock_take(&group->lock);
    group->is_unreported = false; /* a caller that aborts the group expects no results */
    dd_lock_release(&group->lock);
    return nccl_group_wait_for_abort(group, wait, err);
}
