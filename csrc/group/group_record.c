/* What a group tells the flight recorder. */
#include "group/group_internal.h"

void
dd_group_set_recorder(dd_group *group, dd_recorder_group *recorder_group)
{
    dd_engine_lock(group->engine);
    group->recorder_group = dd_recorder_group_acquire(recorder_group);
    if (group->cause.code != DD_OK) {
        group_raise_alarm_locked(group);
    }
    dd_engine_unlock(group->engine);
}

dd_recorder_group *
dd_group_recorder_group(dd_group *group)
{
    return group->recorder_group;
}

void
group_record_begin_locked(group_call *call, dd_record_call *record, bool is_started)
{
    dd_group *group = call->group;
    if (record == NULL || group->recorder_group == NULL) {
        return;
    }
    record->created_ns = call->work.start_ns;
    record->timeout_ns =
        call->deadline_ns == DD_NEVER_NS ? DD_NEVER_NS : call->deadline_ns - call->work.start_ns;
    record->is_started = is_started;
    call->record = dd_recorder_begin(group->recorder_group, record);
    call->has_recorded_start = is_started;
}

void
group_record_start_locked(group_call *call)
{
    if (call->record != DD_NO_RECORD && !call->has_recorded_start) {
        dd_recorder_start(dd_recorder_of_group(call->group->recorder_group), call->record, dd_clock_now_ns());
    }
}

void
group_record_end_locked(group_call *call, const dd_error *error)
{
    if (call->record != DD_NO_RECORD) {
        dd_recorder_end(dd_recorder_of_group(call->group->recorder_group), call->record, dd_clock_now_ns(),
                        error);
    }
}

/* The collective under way is what has failed first; without one, the oldest message. */
static uint64_t
record_of_failure(const dd_group *group)
{
    const dd_list *calls = !dd_list_is_empty(&group->collectives) ? &group->collectives : &group->messages;
    return !dd_list_is_empty(calls) ? DD_CONTAINER_OF(calls->next, group_call, link)->record : DD_NO_RECORD;
}

void
group_raise_alarm_locked(dd_group *group)
{
    if (group->recorder_group != NULL && group->cause.code != DD_CLOSED) {
        dd_recorder_raise_alarm(group->recorder_group, record_of_failure(group), &group->cause);
    }
}
