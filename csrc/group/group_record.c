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

static int64_t
timeout_of(const group_call *call)
{
    return call->deadline_ns == DD_NEVER_NS ? DD_NEVER_NS : call->deadline_ns - call->work.start_ns;
}

void
group_record_begin_locked(group_call *call, dd_record_call *record, bool is_started)
{
    dd_group *group = call->group;
    if (record == NULL || group->recorder_group == NULL) {
        return;
    }
    record->created_ns = call->work.start_ns;
    record->timeout_ns = timeout_of(call);
    record->is_started = is_started;
    call->record = dd_recorder_begin(group->recorder_group, record);
    call->has_recorded_start = is_started;
}

void
group_stamp_locked(group_call *call)
{
    dd_group *group = call->group;
    if (!call->is_unstamped) {
        return;
    }
    call->is_unstamped = false;
    call->work.start_ns = dd_clock_now_ns();
    call->deadline_ns = group_deadline_ns(group, call->timeout_ns, call->work.start_ns);
    if (call->form != NULL && group->recorder_group != NULL) {
        call->record = dd_recorder_begin_form(group->recorder_group, call->form, call->work.start_ns,
                                              timeout_of(call), call->has_recorded_start);
    }
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
    group_stamp_locked(call);
    if (call->record != DD_NO_RECORD) {
        dd_recorder_end(dd_recorder_of_group(call->group->recorder_group), call->record, dd_clock_now_ns(),
                        error);
    }
}

/* The collective under way is what has failed first; without one, the oldest message. */
static uint64_t
record_of_failure(dd_group *group)
{
    dd_list *calls = !dd_list_is_empty(&group->collectives) ? &group->collectives : &group->messages;
    if (dd_list_is_empty(calls)) {
        return DD_NO_RECORD;
    }
    group_call *first = DD_CONTAINER_OF(calls->next, group_call, link);
    group_stamp_locked(first);
    return first->record;
}

void
group_raise_alarm_locked(dd_group *group)
{
    if (group->recorder_group != NULL && group->cause.code != DD_CLOSED) {
        dd_recorder_raise_alarm(group->recorder_group, record_of_failure(group), &group->cause);
    }
}
