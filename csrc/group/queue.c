/* Calls under way: a call is posted, started when the previous one has ended, polled and
 * watched. */
#include "group/internal.h"

#include "core/assert.h"
#include "core/wait_policy.h"

static void
visit_held(void *ctx, int rank, const dd_signature *signature)
{
    dd_group *group = ctx;
    group_receive_coll_locked(group, rank, group->nstarted, signature);
}

static void
check_held_locked(dd_group *group)
{
    if (group->topology.nhosts > 1) {
        dd_context_visit_held_locked(group->context, group->nstarted, visit_held, group);
    }
}

static void start_next_locked(dd_group *group);

static void
on_run_done(void *ctx, const dd_error *error)
{
    group_call *call = ctx;
    dd_group *group = call->group;
    group->is_active = false;
    if (error == NULL) {
        group->is_querying = false;
        group_post_position_locked(group);
        group_complete_locked(call, NULL);
        check_held_locked(group); /* a message left over from the collective fails the group */
        start_next_locked(group);
        group_update_task_locked(group);
        return;
    }
    if (group->cause.code != DD_OK) {
        group_complete_by_cause_locked(call, dd_run_keeps_memory_locked(group->run));
        return;
    }
    dd_arena_mismatch mismatch = dd_run_mismatch(group->run);
    if (error->code == DD_MISMATCH && mismatch.rank >= 0) {
        group_fail_mismatch_locked(group, &mismatch);
    } else if (error->code == DD_MISMATCH ||
               (error->code == DD_INVALID_ARGUMENT && error->blamed.rank >= 0)) {
        group_fail_misfit_locked(group, error);
    } else {
        dd_group_fail_locked(group, error);
    }
}

static void
start_locked(group_call *call)
{
    dd_group *group = call->group;
    group->is_active = true;
    group_record_start_locked(call);
    group->nstarted = call->work.sequence;
    group->signatures[group->nstarted % SIGNATURES_MAX] = call->signature;
    group_post_position_locked(group);
    dd_run_call run_call = {
        .args = call->args,
        .signature = call->signature,
        .sequence = call->work.sequence,
        .on_done = on_run_done,
        .ctx = call,
    };
    dd_timer_clear(&group->query_timer);
    if (group->topology.nhosts > 1) { /* on a single host, group_watch_locked does this later */
        group_schedule_query_locked(group, dd_clock_now_ns());
    }
    check_held_locked(group); /* first: signatures explain more than a wrong size */
    if (!group_has_failed_locked(group)) {
        dd_run_start_locked(group->run, &run_call);
    }
}

/* Return true if the next call may start. A failing group also starts it, because its data may have
 * arrived; not with a carrier, which does not show that. */
static bool
may_start_next_locked(const dd_group *group)
{
    bool is_failing = group->found != NULL;
    return !group_has_failed_locked(group) && !(is_failing && dd_group_carrier(group) != NULL);
}

static void
start_next_locked(dd_group *group)
{
    if (group->is_starting) {
        return; /* a caller up the stack starts the next call in its loop */
    }
    group->is_starting = true;
    while (!group->is_active && !dd_list_is_empty(&group->collectives) && may_start_next_locked(group)) {
        start_locked(DD_CONTAINER_OF(group->collectives.next, group_call, link));
    }
    group->is_starting = false;
}

/* Post a message. It ends here, without a driver, if its data fits into the receiver's ring or has
 * already arrived. It needs a record before it ends, to note the source. */
static void
post_message_locked(group_call *call)
{
    dd_group *group = call->group;
    dd_list_push_back(&group->messages, &call->link);
    if (group_post_carried_locked(call)) {
        return;
    }
    if (call->is_send) {
        dd_context_post_send_locked(group->context, &call->message);
    } else {
        dd_context_post_recv_locked(group->context, &call->message);
    }
    group_begin_record_if_needed_locked(call);
    (void)dd_context_notify_locked(&call->message);
}

static void
post_collective_locked(group_call *call)
{
    dd_group *group = call->group;
    if (!call->is_quick || call->work.on_done != NULL) {
        group_begin_record_locked(call);
    }
    call->work.sequence = ++group->nposted;
    dd_list_push_back(&group->collectives, &call->link);
    start_next_locked(group);
}

void
group_post_locked(group_call *call)
{
    dd_assert_holds(ENGINE);
    dd_group *group = call->group;
    call->has_recorded_start =
        call->is_message || (dd_list_is_empty(&group->collectives) && !group->is_starting);
    atomic_store_explicit(&group->is_idle, false, memory_order_release);
    if (call->is_message) {
        post_message_locked(call);
    } else {
        post_collective_locked(call);
    }
    if (!dd_work_is_done(&call->work)) {
        group_begin_record_if_needed_locked(call);
    }
}

void
group_watch_locked(group_call *call)
{
    dd_group *group = call->group;
    if (dd_work_is_done(&call->work)) {
        return;
    }
    group_begin_record_locked(call);
    if (!call->is_message) {
        group_schedule_query_locked(group, call->work.start_ns);
    }
    group_start_deadline_locked(call);
    if (call->is_carried && call->message.rank != DD_ANY_RANK &&
        group->members[call->message.rank].has_left) {
        dd_error cause; /* a library does not notice that a rank has left */
        (void)dd_group_error_about(group, call->message.rank, DD_PEER_LOST, "has left the group", &cause);
        group_cancel_message_locked(call, &cause);
    } else if (call->is_message && call->message.rank == DD_ANY_RANK && group->size > 1 &&
               group->nleft == group->size - 1) { /* no rank is left that could send */
        dd_error cause;
        dd_error_set(&cause, DD_PEER_LOST, "all other ranks have left the group");
        group_cancel_message_locked(call, &cause);
    }
}

/* ---- polling */

/* Return true if all queued calls are quick: the end of one starts the next in the same poll. */
static bool
are_all_quick_locked(const dd_group *group)
{
    const dd_list *all = &group->collectives;
    bool is_quick = true;
    for (const dd_list *node = all->next; node != all && is_quick; node = node->next) {
        is_quick = DD_CONTAINER_OF(node, group_call, link)->is_quick;
    }
    return is_quick;
}

/* Pause between polls, or yield to ranks on the same core. Return false if polling should stop. */
static bool
yield_between_polls_locked(dd_group *group, int npolled)
{
    bool is_time = npolled % DD_POLLS_PER_YIELD == 0;
    bool is_crowded = group->is_crowded && !dd_run_yields_locked(group->run);
    bool is_due = is_crowded || (is_time && dd_run_must_yield_locked(group->run));
    if (!is_due) {
        dd_spin_pause();
    }
    return !is_due || dd_engine_yield_locked(group->engine);
}

void
group_poll_call_locked(group_call *call, bool is_hasty)
{
    dd_assert_holds(ENGINE);
    dd_group *group = call->group;
    int npolls = is_hasty ? DD_POLLS_HASTY : DD_POLLS_PATIENT;
    if (is_hasty) {
        dd_engine_note_call_locked(group->engine);
    }
    if (dd_work_is_done(&call->work)) {
        return; /* the call has ended while the lock was free */
    }
    if (call->is_carried) {
        group_poll_carried_call_locked(call, npolls);
        return;
    }
    if (call->is_message) {
        (void)dd_context_poll_locked(&call->message, npolls);
        return;
    }
    dd_engine_take_over_locked(group->engine);
    if (is_hasty && !are_all_quick_locked(group)) {
        return;
    }
    if (is_hasty && group->is_crowded) {
        npolls = 1; /* poll once: the awaited ranks need this core */
    }
    if (!is_hasty) {
        dd_engine_note_active_locked(group->engine);
    }
    for (int npolled = 0; npolled < npolls && group->is_active && !dd_work_is_done(&call->work); npolled++) {
        if (dd_run_progress_locked(group->run)) {
            continue;
        }
        /* Stop polling if the call can only advance after a yield. */
        bool needs_yield = is_hasty && dd_run_must_yield_locked(group->run);
        if (needs_yield || !dd_run_needs_polling_locked(group->run)) {
            break;
        }
        if (is_hasty) {
            dd_spin_pause();
        } else if (!yield_between_polls_locked(group, npolled)) {
            return;
        }
    }
    if (is_hasty) {
        dd_engine_prepare_driver_locked(group->engine);
    }
}
