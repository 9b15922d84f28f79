/* A group's timers and its task in the engine: deadlines of calls, questions to ranks that take long, and the questions that precede a
 * verdict. */
#include "group/internal.h"

#include "core/assert.h"

#include <stdio.h>

/* How long the others are given to say where they are, once a deadline has passed. */
#define ANSWER_NS (300 * DD_NS_PER_MS)
#define ANSWER_LOOK_NS (5 * DD_NS_PER_MS)
/* A collective that takes longer looks after those it waits for, and then again after twice as long. By messages they are asked what they
 * are doing: ranks that wait for each other, as when they disagree about the root, would else be silent until the time-out. On
 * one host it looks whether they still run: the process that would notice the end of another may have been stopped. */
#define CURIOUS_AFTER_NS (500 * DD_NS_PER_MS)
#define CURIOUS_AT_MOST_NS (60 * DD_NS_PER_S)

/* ---- ranks that are late */

/* Asks those who can be asked by now. True: all have answered. Ranks of this host answer by hearing the bell, for which they have to run. */
static bool
deadlines_ask_locked(dd_group *group)
{
    bool has_all = true;
    for (int rank = 0; rank < group->size; rank++) {
        member_state *member = &group->members[rank];
        if (group_is_on_board(group, rank)) {
            if (!member->has_answered && dd_arena_has_heard(group->arena, group->topology.local_of[rank])) {
                group_hear_answer_locked(group, rank);
            }
        } else if (!member->is_asked && dd_context_is_connected_locked(group->context, rank)) {
            member->is_asked = true;
            dd_context_post_question_locked(group->context, rank);
        }
        has_all = has_all && member->has_answered;
    }
    return has_all;
}

/* Ranks of this host answer by hearing the bell, which wakes nobody here. */
static void
start_answers_timer_locked(dd_group *group, int64_t now_ns)
{
    int64_t look_ns = group->arena != NULL ? now_ns + ANSWER_LOOK_NS : group->asked_until_ns;
    look_ns = look_ns < group->asked_until_ns ? look_ns : group->asked_until_ns;
    dd_engine_start_timer_locked(group->engine, &group->answers, look_ns);
}

static void
begin_asking_locked(dd_group *group, int64_t now_ns)
{
    group->is_asking = true;
    group->asked_until_ns = now_ns + ANSWER_NS;
    start_answers_timer_locked(group, now_ns);
    for (int rank = 0; rank < group->size; rank++) {
        group->members[rank].is_asked = rank == group->rank;
        group->members[rank].has_answered = rank == group->rank;
        group->members[rank].is_absent = false;
        if (rank != group->rank && !group->members[rank].is_gone && !group_is_on_board(group, rank)) {
            dd_peer_connect_locked(group->peers[rank]);
        }
    }
    group_ring_others_locked(group);
    (void)deadlines_ask_locked(group);
}

static void
fail_timed_out_locked(dd_group *group)
{
    group_end_complete_locked(group);
    if (!group->is_asking) {
        return; /* the collective was complete, or the group has failed */
    }
    for (int rank = 0; rank < group->size; rank++) {
        if (!group->members[rank].has_answered && group_is_on_board(group, rank)) {
            group_hear_place_locked(group, rank);
        }
    }
    if (group->cause.code == DD_OK) { /* else it was seen why they do not agree */
        const group_call *call = DD_CONTAINER_OF(group->collectives.next, group_call, link);
        dd_cause cause = group_cause_of_lateness(group, call);
        group_fail_cause_locked(group, &cause);
    }
}

/* ---- the task */

/* A member that has left will not come any more; what needs it cannot end. */
static int
find_gone_locked(const dd_group *group)
{
    int missing[DD_ARENA_MAX_RANKS];
    int count = group->is_active ? dd_run_missing_locked(group->run, missing, DD_ARENA_MAX_RANKS) : 0;
    for (int i = 0; i < count; i++) {
        if (group->members[missing[i]].is_gone) {
            return missing[i];
        }
    }
    return -1;
}

static bool
fail_if_gone_locked(dd_group *group)
{
    if (find_gone_locked(group) < 0) {
        return false;
    }
    group_end_complete_locked(group); /* its last message may be here */
    int rank = group->cause.code == DD_OK ? find_gone_locked(group) : -1;
    if (rank >= 0) {
        dd_cause cause = group_make_cause(group, DD_CAUSE_LEFT, DD_PEER_LOST, rank);
        group_fail_cause_locked(group, &cause);
    }
    return true;
}

/* Whether a rank that a message waits for needs the core that we run on. Says where we run for the same. */
static bool
must_make_way_locked(dd_group *group)
{
    const dd_topology *topology = &group->topology;
    if (group->arena == NULL || dd_list_is_empty(&group->messages) || dd_run_is_moving_locked(group->run)) {
        return false;
    }
    dd_arena_note_cpu(group->arena);
    int rank = DD_CONTAINER_OF(group->messages.next, group_call, link)->message.rank;
    bool is_local = rank != DD_ANY_RANK && topology->host_of[rank] == topology->host;
    return is_local && dd_arena_must_make_way_for(group->arena, topology->local_of[rank]);
}

/* Regions that have been wanted and have come. */
static bool
map_wanted_locked(dd_group *group)
{
    dd_error error = {.code = DD_OK};
    bool has_come = group_map_wanted_locked(group, &error);
    if (error.code != DD_OK) {
        group_fail_own_locked(group, &error);
    }
    return has_come;
}

static bool
deadlines_progress(dd_task *task)
{
    dd_group *group = DD_CONTAINER_OF(task, dd_group, task);
    bool is_progress = map_wanted_locked(group);
    bool is_carrying = group->ncarried > 0; /* a library wakes nobody */
    task->is_crowded = group->is_crowded || is_carrying || must_make_way_locked(group);
    task->is_outnumbered = group->is_crowded || is_carrying;
    if (group->is_asking && deadlines_ask_locked(group)) {
        fail_timed_out_locked(group);
        return true;
    }
    is_progress = group_look_at_carried_locked(group) || is_progress;
    return (group->ngone > 0 && group->is_active && fail_if_gone_locked(group)) || is_progress;
}

static bool
deadlines_fall_asleep(dd_task *task)
{
    /* Descriptors that come later wake the driver, as deadlines and messages do; these have come before they were wanted. */
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
    int rank = call->message.rank;
    if (rank == DD_ANY_RANK) {
        dd_error_set(&cause, DD_OP_TIMED_OUT, "timed out after %.3g s; no rank has sent (tag %llu)",
                     elapsed_s, (unsigned long long)call->message.tag);
    } else {
        char who[128];
        dd_error_set(&cause, DD_OP_TIMED_OUT, "timed out after %.3g s; %s has not %s (tag %llu)", elapsed_s,
                     group_print_member(group, rank, who), call->message.is_send ? "received" : "sent",
                     (unsigned long long)call->message.tag);
        group_add_progress_locked(group, &call->message, &cause);
        group_blame(group, rank, &cause);
    }
    group_cancel_message_locked(call, &cause);
}

/* A message ends at its deadline. For a collective, the other ranks are asked first; one whose deadline passes meanwhile waits for
 * their answers. */
static void
deadlines_on_late(dd_timer *timer)
{
    group_call *call = DD_CONTAINER_OF(timer, group_call, late);
    dd_group *group = call->group;
    int64_t now_ns = dd_clock_now_ns();
    if (call->is_message) {
        expire_message_locked(call, now_ns);
    } else if (group->is_asking) {
        dd_engine_start_timer_locked(group->engine, timer, group->asked_until_ns);
    } else {
        begin_asking_locked(group, now_ns);
    }
}

static void
on_answers_due(dd_timer *timer)
{
    dd_group *group = DD_CONTAINER_OF(timer, dd_group, answers);
    int64_t now_ns = dd_clock_now_ns();
    if (group->is_asking && now_ns < group->asked_until_ns) {
        start_answers_timer_locked(group, now_ns);
    } else if (group->is_asking) {
        fail_timed_out_locked(group);
    }
}

static void
ask_missing_locked(dd_group *group, int64_t now_ns)
{
    int missing[DD_ARENA_MAX_RANKS];
    int count = dd_run_missing_locked(group->run, missing, DD_ARENA_MAX_RANKS);
    for (int i = 0; i < count && group->cause.code == DD_OK; i++) {
        if (group_is_on_board(group, missing[i])) {
            group_hear_place_locked(group, missing[i]);
            dd_peer_look_for_locked(group->peers[missing[i]]);
        } else {
            dd_context_post_question_locked(group->context, missing[i]);
        }
    }
    if (group->cause.code != DD_OK) {
        return;
    }
    const group_call *call = DD_CONTAINER_OF(group->collectives.next, group_call, link);
    int64_t waited_ns = now_ns - call->work.start_ns;
    waited_ns = waited_ns > CURIOUS_AFTER_NS ? waited_ns : CURIOUS_AFTER_NS;
    waited_ns = waited_ns < CURIOUS_AT_MOST_NS ? waited_ns : CURIOUS_AT_MOST_NS;
    dd_engine_start_timer_locked(group->engine, &group->curious, now_ns + waited_ns);
}

static void
on_curious(dd_timer *timer)
{
    dd_group *group = DD_CONTAINER_OF(timer, dd_group, curious);
    if (group->is_active) {
        ask_missing_locked(group, dd_clock_now_ns());
    }
}

/* The operation that waits for a region asks for it when it is looked at, in the round after this. */
static void
on_ask_again(dd_timer *timer)
{
    dd_group *group = DD_CONTAINER_OF(timer, dd_group, ask_again);
    (void)map_wanted_locked(group);
    group_start_asking_again_locked(group);
}

/* The look itself is the task's, in the round after this. */
static void
deadlines_on_look(dd_timer *timer)
{
    dd_group *group = DD_CONTAINER_OF(timer, dd_group, look);
    if (group->ncarried > 0) {
        dd_engine_start_timer_locked(group->engine, timer, dd_clock_now_ns() + DD_NAP_LIBRARY_NS);
    }
}

void
group_be_curious_locked(dd_group *group, int64_t since_ns)
{
    if (group->is_active && !dd_timer_is_set(&group->curious) &&
        (group->topology.nhosts > 1 || group->topology.nlocal > 2)) {
        dd_engine_start_timer_locked(group->engine, &group->curious, since_ns + CURIOUS_AFTER_NS);
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
    if (!dd_timer_is_set(&group->look)) { /* calls that follow each other do not put it off */
        deadlines_on_look(&group->look);
    }
    group_update_task_locked(group);
}

void
group_deadlines_init(dd_group *group)
{
    group->task = (dd_task){.progress = deadlines_progress, .fall_asleep = deadlines_fall_asleep};
    dd_list_init(&group->task.link);
    dd_timer_init(&group->answers, on_answers_due);
    dd_timer_init(&group->curious, on_curious);
    dd_timer_init(&group->ask_again, on_ask_again);
    dd_timer_init(&group->look, deadlines_on_look);
}
