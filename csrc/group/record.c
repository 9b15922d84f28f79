/* Entries of a group's calls in the flight recorder. */
#include "group/internal.h"

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

static uint64_t
begin_record(const group_call *call)
{
    dd_recorder_group *recorder_group = call->group->recorder_group;
    if (call->form != NULL) {
        dd_record_times times = {.created_ns = call->work.start_ns,
                                 .timeout_ns = timeout_of(call),
                                 .is_started = call->has_recorded_start};
        return dd_recorder_begin_form(recorder_group, call->form, call->stack, &times);
    }
    call->record_args->created_ns = call->work.start_ns;
    call->record_args->timeout_ns = timeout_of(call);
    call->record_args->is_started = call->has_recorded_start;
    return dd_recorder_begin(recorder_group, call->record_args);
}

static bool
is_recorded(const group_call *call)
{
    return (call->form != NULL || call->record_args != NULL) && call->group->recorder_group != NULL;
}

void
group_begin_record_locked(group_call *call)
{
    if (!call->needs_record) {
        return;
    }
    call->needs_record = false;
    int64_t start_ns = dd_clock_now_ns();
    int64_t timeout_ns = call->timeout_ns >= 0
                             ? call->timeout_ns
                             : atomic_load_explicit(&call->group->timeout_ns, memory_order_relaxed);
    int64_t deadline_ns = timeout_ns < DD_NEVER_NS - start_ns ? start_ns + timeout_ns : DD_NEVER_NS;
    call->work.start_ns = start_ns;
    call->deadline_ns = deadline_ns < call->limit_ns ? deadline_ns : call->limit_ns;
    if (is_recorded(call)) {
        call->record = begin_record(call);
    }
}

void
group_begin_record_if_needed_locked(group_call *call)
{
    if (call->work.on_done != NULL || is_recorded(call)) {
        group_begin_record_locked(call);
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
    /* A call that ends before it has a start time gets one time for its start and end. */
    bool is_instant = call->needs_record;
    group_begin_record_if_needed_locked(call);
    if (call->record != DD_NO_RECORD) {
        dd_recorder_end(dd_recorder_of_group(call->group->recorder_group), call->record,
                        is_instant ? call->work.start_ns : dd_clock_now_ns(), error);
    }
}

/* Return the record of the collective under way, or of the oldest message if there is none. */
static uint64_t
record_of_failure(dd_group *group)
{
    dd_list *calls = !dd_list_is_empty(&group->collectives) ? &group->collectives : &group->messages;
    if (dd_list_is_empty(calls)) {
        return DD_NO_RECORD;
    }
    group_call *first = DD_CONTAINER_OF(calls->next, group_call, link);
    group_begin_record_locked(first);
    return first->record;
}

void
group_raise_alarm_locked(dd_group *group)
{
    if (group->recorder_group != NULL && group->cause.code != DD_CLOSED) {
        dd_recorder_raise_alarm(group->recorder_group, record_of_failure(group), &group->cause);
    }
}
