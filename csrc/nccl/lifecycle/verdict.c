/* Checks by the watchdog that fail a group: deadlines of works, and errors of communicators. */
#include "nccl/internal.h"

#include "core/lock.h"

void
nccl_group_check_deadlines(dd_nccl_group *group, int64_t now_ns)
{
    dd_lock_take(&group->lock);
    if (now_ns < group->next_deadline_ns || group->cause.code != DD_OK) {
        dd_lock_release(&group->lock);
        return;
    }
    const nccl_work *late = NULL;
    int64_t next_ns = DD_NEVER_NS;
    for (nccl_channel *channel = group->channels; channel != NULL; channel = channel->next) {
        for (dd_list *node = channel->works.next; node != &channel->works; node = node->next) {
            const nccl_work *work = DD_CONTAINER_OF(node, nccl_work, link);
            if (work->deadline_ns < next_ns) {
                next_ns = work->deadline_ns;
            }
            if (work->deadline_ns <= now_ns && (late == NULL || work->deadline_ns < late->deadline_ns)) {
                late = work;
            }
        }
    }
    group->next_deadline_ns = next_ns;
    dd_error cause;
    nccl_origin origin;
    if (late != NULL) {
        origin = nccl_work_origin(late);
        char call[128];
        nccl_work_print(late, call);
        dd_error_set(&cause, DD_OP_TIMED_OUT,
                     "%stimed out after %.3g s (enqueued %.3g s ago), sequence %llu; last completed %llu",
                     call, (double)late->timeout_ns / (double)DD_NS_PER_S,
                     (double)(now_ns - late->base.base.start_ns) / (double)DD_NS_PER_S,
                     (unsigned long long)late->number, (unsigned long long)group->last_completed);
    }
    dd_lock_release(&group->lock);
    if (late != NULL) {
        nccl_group_end(group, &cause, &origin, NCCL_END_FAILED);
    }
}

void
nccl_group_check_comms(dd_nccl_group *group)
{
    dd_lock_take(&group->lock);
    nccl_channel *channel = group->cause.code == DD_OK && !group->is_closed ? group->channels : NULL;
    dd_lock_release(&group->lock);
    for (; channel != NULL; channel = channel->next) {
        dd_nccl_comm *comm = atomic_load_explicit(&channel->comm, memory_order_acquire);
        dd_error cause;
        if (comm != NULL && dd_nccl_comm_check(comm, &cause) != DD_OK) {
            nccl_group_end(group, &cause, NULL, NCCL_END_FAILED);
            return;
        }
    }
}
