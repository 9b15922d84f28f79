/* End of a call: the call is removed from its list, and its record and its work get the result. */
#include "group/internal.h"

#include "core/assert.h"

void
group_complete_locked(group_call *call, const dd_error *cause)
{
    dd_assert_holds(ENGINE);
    dd_group *group = call->group;
    bool is_counted = call->work.destroy != NULL;
    dd_list_remove(&call->link);
    dd_timer_clear(&call->late);
    dd_engine_note_ended_locked(group->engine);
    if (cause == NULL) {
        group_record_end_locked(call, NULL);
        dd_work_complete(&call->work, NULL);
    } else {
        dd_error error;
        group_begin_record_locked(call); /* sets start_ns, from which the elapsed time follows */
        group_describe_failure(group, &call->work, cause, &error);
        error.keeps_memory = cause->keeps_memory;
        group_record_end_locked(call, &error);
        dd_work_complete(&call->work, &error);
    }
    if (is_counted) {
        dd_work_release(&call->work);
    } /* if not counted, the call was on its caller's stack: do not use it any further */
}

void
group_complete_by_cause_locked(group_call *call, bool keeps_memory)
{
    dd_error cause = call->group->cause;
    cause.keeps_memory = keeps_memory;
    group_complete_locked(call, &cause);
}

static void
stop_timers_locked(dd_group *group)
{
    dd_timer_clear(&group->answers);
    dd_timer_clear(&group->query_timer);
    dd_timer_clear(&group->region_timer);
    dd_timer_clear(&group->poll_timer);
}

void
group_update_task_locked(dd_group *group)
{
    dd_assert_holds(ENGINE);
    bool is_busy = !dd_list_is_empty(&group->collectives) || !dd_list_is_empty(&group->messages);
    const dd_group_extension *extension = group->extension;
    bool has_busy_extension = extension != NULL && extension->ncalls + extension->nunawaited > 0;
    atomic_store_explicit(&group->is_idle, !is_busy && !has_busy_extension, memory_order_release);
    if (!is_busy) {
        stop_timers_locked(group);
        dd_engine_remove_task_locked(group->engine, &group->task);
    } else if (dd_list_is_empty(&group->task.link)) {
        dd_engine_add_task_locked(group->engine, &group->task);
        group_start_region_timer_locked(group);
    }
}

void
group_fail_messages_locked(dd_group *group, int rank, const dd_error *cause)
{
    for (dd_list *node = group->messages.next, *next; node != &group->messages; node = next) {
        next = node->next;
        group_call *call = DD_CONTAINER_OF(node, group_call, link);
        bool is_last_sender = call->message.rank == DD_ANY_RANK && group->nleft == group->size - 1;
        if (rank == DD_ANY_RANK || call->message.rank == rank || is_last_sender) {
            group_cancel_message_locked(call, cause);
        }
    }
}
