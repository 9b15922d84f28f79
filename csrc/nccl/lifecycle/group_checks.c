/* The watchdog's checks that may fail a group: deadlines of works, errors of communicators. */
#include "nccl/lifecycle/internal.h"

#include "core/lock.h"

void
nccl_group_check_deadlines(dd_nccl_group *group, int64_t now_ns)
{
    dd_lock_take(&group->lock);
    dd_timer *first = dd_timer_set_first_due(&group->deadlines, now_ns);
    if (first == NULL || group->cause.code != DD_OK) {
        dd_lock_release(&group->lock);
        return;
    }
    const nccl_work *late = DD_CONTAINER_OF(first, nccl_work, late);
    nccl_origin origin = nccl_work_origin(late);
    char call[128];
    nccl_work_print(late, call);
    dd_error cause;
    dd_error_set(&cause, DD_OP_TIMED_OUT,
                 "%stimed out after %.3g s (enqueued %.3g s ago), sequence %llu; last completed %llu", call,
                 (double)late->timeout_ns / (double)DD_NS_PER_S,
                 (double)(now_ns - late->base.base.start_ns) / (double)DD_NS_PER_S,
                 (unsigned long long)late->number, (unsigned long long)group->last_completed);
    dd_lock_release(&group->lock);
    nccl_group_end(group, &cause, &origin, NCCL_END_FAILED);
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
