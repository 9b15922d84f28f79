/* A group's timers and task in the engine: they enforce deadlines and query late ranks. */
#include "group/internal.h"

#include "core/assert.h"

#include <stdio.h>

/* Time that other ranks have to report their progress after a deadline has passed. */
#define ANSWER_NS (300 * DD_NS_PER_MS)
#define ANSWER_CHECK_NS (5 * DD_NS_PER_MS)
/* Time after which a collective queries the ranks that it waits for; it does so again whenever the
 * waiting time has doubled. Ranks on other hosts report their current calls: without a query, ranks
 * that wait for each other, for example because they disagree about the root, are silent until the
 * timeout. On this host, the query shows whether a rank still runs, because the process that would
 * notice the end of another may itself be stopped. */
#define QUERY_AFTER_NS (500 * DD_NS_PER_MS)
#define QUERY_MAX_NS (60 * DD_NS_PER_S)

/* ---- late ranks */

/* Query all reachable ranks. True if all have answered; local ranks do so by taking their posts. */
static bool
deadlines_query_locked(dd_group *group)
{
    bool has_all = true;
    for (int rank = 0; rank < group->size; rank++) {
        member_state *member = &group->members[rank];
        if (group_is_on_board(group, rank)) {
            if (!member->has_answered &&
                dd_arena_has_taken_posts(group->arena, group->topology.local_of[rank])) {
                group_read_answer_locked(group, rank);
            }
        } else if (!member->is_queried && dd_context_is_connected_locked(group->context, rank)) {
            member->is_queried = true;
            dd_context_post_question_locked(group->context, rank);
        }
        has_all = has_all && member->has_answered;
    }
    return has_all;
}

/* Start the timer that polls for local ranks' answers, which wake no thread of this rank. */
static void
start_answers_timer_locked(dd_group *group, int64_t now_ns)
{
    int64_t check_ns = group->arena != NULL ? now_ns + ANSWER_CHECK_NS : group->query_until_ns;
    check_ns = check_ns < group->query_until_ns ? check_ns : group->query_until_ns;
    dd_engine_start_timer_locked(group->engine, &group->answers, check_ns);
}

static void
begin_query_locked(dd_group *group, int64_t now_ns)
{
    group->is_querying = true;
    group->query_until_ns = now_ns + ANSWER_NS;
    start_answers_timer_locked(group, now_ns);
    for (int rank = 0; rank < group->size; rank++) {
        group->members[rank].is_queried = rank == group->rank;
        group->members[rank].has_answered = rank == group->rank;
        group->members[rank].is_absent = false;
        if (rank != group->rank && !group->members[rank].has_left && !group_is_on_board(group, rank)) {
            dd_peer_connect_locked(group->peers[rank]);
        }
    }
    group_ring_others_locked(group);
    (void)deadlines_query_locked(group);
}

static void
fail_timed_out_locked(dd_group *group)
{
    group_end_complete_locked(group);
    if (!group->is_querying) {
        return; /* no longer querying: the collective is complete, or the group has failed */
    }
    for (int rank = 0; rank < group->size; rank++) {
        if (!group->members[rank].has_answered && group_is_on_board(group, rank)) {
            group_read_position_locked(group, rank);
        }
    }
    if (group->cause.code == DD_OK) { /* otherwise, the answers have shown that calls differ */
        const group_call *call = DD_CONTAINER_OF(group->collectives.next, group_call, link);
        dd_cause cause = group_cause_of_lateness(group, call);
        group_fail_cause_locked(group, &cause);
    }
}

/* ---- the task */

/* Return a rank that has left although the collective needs it, or -1. */
static int
find_left_locked(const dd_group *group)
{
    int missing[DD_ARENA_MAX_RANKS];
    int count = group->is_active ? dd_run_missing_locked(group->run, missing, DD_ARENA_MAX_RANKS) : 0;
    for (int i = 0; i < count; i++) {
        if (group->members[missing[i]].has_left) {
            return missing[i];
        }
    }
    return -1;
}

static bool
fail_if_left_locked(dd_group *group)
{
    if (find_left_locked(group) < 0) {
        return false;
    }
    group_end_complete_locked(group); /* the rank's last message may have arrived */
    int rank = group->cause.code == DD_OK ? find_left_locked(group) : -1;
    if (rank >= 0) {
        dd_cause cause = group_make_cause(group, DD_CAUSE_LEFT, DD_PEER_LOST, rank);
        group_fail_cause_locked(group, &cause);
    }
    return true;
}

/* Return true if the first message waits for a rank that needs this core. Also publish this core's
 * number, so that the awaited rank can do the same check. */
static bool
must_yield_locked(dd_group *group)
{
    const dd_topology *topology = &group->topology;
    if (group->arena == NULL || dd_list_is_empty(&group->messages) || dd_run_is_moving_locked(group->run)) {
        return false;
    }
    dd_arena_note_cpu(group->arena);
    int rank = DD_CONTAINER_OF(group->messages.next, group_call, link)->message.rank;
    bool is_local = rank != DD_ANY_RANK && topology->host_of[rank] == topology->host;
    return is_local && dd_arena_must_yield_to(group->arena, topology->local_of[rank]);
}

static bool
map_wanted_locked(dd_group *group)
{
    dd_error error = {.code = DD_OK};
    bool has_arrived = group_map_wanted_locked(group, &error);
    if (error.code != DD_OK) {
        group_fail_own_locked(group, &error);
    }
    return has_arrived;
}

static bool
deadlines_progress(dd_task *task)
{
    dd_group *group = DD_CONTAINER_OF(task, dd_group, task);
    bool is_progress = map_wanted_locked(group);
    bool is_carrying = group->ncarried > 0; /* poll: a carrier's library wakes no thread */
    task->is_crowded = group->is_crowded || is_carrying || must_yield_locked(group);
    task->is_outnumbered = group->is_crowded || is_carrying;
    if (group->is_querying && deadlines_query_locked(group)) {
        fail_timed_out_locked(group);
        return true;
    }
    is_progress = group_poll_carried_locked(group) || is_progress;
    return (group->nleft > 0 && group->is_active && fail_if_left_locked(group)) || is_progress;
}

static bool
deadlines_fall_asleep(dd_task *task)
{
    /* Map regions first: a descriptor that arrived before its region was wanted does not wake the
     * driver. */
    dd_group *group = DD_CONTAINER_OF(task, dd_group, task);
    return !map_wanted_locked(group) && group_may_nap_locked(group);
}

/* ---- timers */

static void
expire_message_locked(group_call *call, int64_t now_ns)
{
    dd_error cause;
    dd_group *group = call->group;
    double elapsed_s = (double)(now_ns - call->work.start_ns) * 1e-9;
    /* The source is known as soon as a message of any rank has begun to arrive. */
    int rank = call->message.id != 0 ? call->message.source : call->message.rank;
    char tag[32];
    group_print_tag(&call->message, tag);
    if (rank == DD_ANY_RANK) {
        dd_error_set(&cause, DD_OP_TIMED_OUT, "timed out after %.3g s; no rank has sent (%s)", elapsed_s,
                     tag);
    } else {
        char rank_name[128];
        dd_error_set(&cause, DD_OP_TIMED_OUT, "timed out after %.3g s; %s has not %s (%s)", elapsed_s,
                     group_print_member(group, rank, rank_name), call->message.is_send ? "received" : "sent",
                     tag);
        group_blame(group, rank, &cause);
    }
    group_add_progress_locked(group, &call->message, &cause);
    group_cancel_message_locked(call, &cause);
}

/* End a message at its deadline. For a collective, query the other ranks instead, unless a query is
 * already under way, and wait for their answers. */
static void
deadlines_on_late(dd_timer *timer)
{
    group_call *call = DD_CONTAINER_OF(timer, group_call, late);
    dd_group *group = call->group;
    int64_t now_ns = dd_clock_now_ns();
    if (call->is_message) {
        expire_message_locked(call, now_ns);
    } else if (group->is_querying) {
        dd_engine_start_timer_locked(group->engine, timer, group->query_until_ns);
    } else {
        begin_query_locked(group, now_ns);
    }
}

static void
on_answers_due(dd_timer *timer)
{
    dd_group *group = DD_CONTAINER_OF(timer, dd_group, answers);
    int64_t now_ns = dd_clock_now_ns();
    if (group->is_querying && now_ns < group->query_until_ns) {
        start_answers_timer_locked(group, now_ns);
    } else if (group->is_querying) {
        fail_timed_out_locked(group);
    }
}

static void
query_missing_locked(dd_group *group, int64_t now_ns)
{
    int missing[DD_ARENA_MAX_RANKS];
    int count = dd_run_missing_locked(group->run, missing, DD_ARENA_MAX_RANKS);
    for (int i = 0; i < count && group->cause.code == DD_OK; i++) {
        if (group_is_on_board(group, missing[i])) {
            group_read_position_locked(group, missing[i]);
            dd_peer_check_process_locked(group->peers[missing[i]]);
        } else {
            dd_context_post_question_locked(group->context, missing[i]);
        }
    }
    if (group->cause.code != DD_OK) {
        return;
    }
    const group_call *call = DD_CONTAINER_OF(group->collectives.next, group_call, link);
    int64_t waited_ns = now_ns - call->work.start_ns;
    waited_ns = waited_ns > QUERY_AFTER_NS ? waited_ns : QUERY_AFTER_NS;
    waited_ns = waited_ns < QUERY_MAX_NS ? waited_ns : QUERY_MAX_NS;
    dd_engine_start_timer_locked(group->engine, &group->query_timer, now_ns + waited_ns);
}

static void
on_query_due(dd_timer *timer)
{
    dd_group *group = DD_CONTAINER_OF(timer, dd_group, query_timer);
    if (group->is_active) {
        query_missing_locked(group, dd_clock_now_ns());
    }
}

/* Repeat pending requests for regions. The operation waiting for a region is polled next round. */
static void
on_region_due(dd_timer *timer)
{
    dd_group *group = DD_CONTAINER_OF(timer, dd_group, region_timer);
    (void)map_wanted_locked(group);
    group_start_region_timer_locked(group);
}

/* Restart the timer. Its expiry wakes the driver, and the group's task then polls the library. */
static void
deadlines_on_poll(dd_timer *timer)
{
    dd_group *group = DD_CONTAINER_OF(timer, dd_group, poll_timer);
    if (group->ncarried > 0) {
        dd_engine_start_timer_locked(group->engine, timer, dd_clock_now_ns() + DD_NAP_LIBRARY_NS);
    }
}

void
group_schedule_query_locked(dd_group *group, int64_t since_ns)
{
    if (group->is_active && !dd_timer_is_set(&group->query_timer) &&
        (group->topology.nhosts > 1 || group->topology.nlocal > 2)) {
        dd_engine_start_timer_locked(group->engine, &group->query_timer, since_ns + QUERY_AFTER_NS);
        group_update_task_locked(group);
    }
}

void
group_start_deadline_locked(group_call *call)
{
    dd_assert_holds(ENGINE);
    dd_group *group = call->group;
    call->late.on_due = deadlines_on_late;
    dd_engine_start_timer_locked(group->engine, &call->late, call->deadline_ns);
    if (!dd_timer_is_set(&group->poll_timer)) { /* a later call must not postpone the poll */
        deadlines_on_poll(&group->poll_timer);
    }
    group_update_task_locked(group);
}

void
group_deadlines_init(dd_group *group)
{
    group->task = (dd_task){.progress = deadlines_progress, .fall_asleep = deadlines_fall_asleep};
    dd_list_init(&group->task.link);
    dd_timer_init(&group->answers, on_answers_due);
    dd_timer_init(&group->query_timer, on_query_due);
    dd_timer_init(&group->region_timer, on_region_due);
    dd_timer_init(&group->poll_timer, deadlines_on_poll);
}
