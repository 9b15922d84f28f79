/* Calls under way: their order, their deadlines, their ends; and what the context has to tell. */
#include "group/group_internal.h"

#include "core/mem.h"
#include "core/spin.h"

#include <stdio.h>
#include <string.h>

/* How long the others are given to say where they are, once a deadline has passed. */
#define ANSWER_NS (300 * DD_NS_PER_MS)
#define ANSWER_LOOK_NS (5 * DD_NS_PER_MS)
/* A collective that takes longer looks after those it waits for, and then again after twice as long. By messages they are asked what they
 * are doing: ranks that wait for each other, as when they disagree about the root, would else be silent until the time-out. On
 * one host it is looked whether they still run: who notices the end of a process may have been stopped. */
#define CURIOUS_AFTER_NS (500 * DD_NS_PER_MS)
#define CURIOUS_AT_MOST_NS (60 * DD_NS_PER_S)
/* Of callers in a hurry: less than a microsecond. */
#define HASTY_LOOKS 16
/* Where ranks share a core, looks between which it is not given away. */
#define LOOKS_PER_YIELD 4

dd_status
group_check_usable_locked(dd_group *group, const char *what, dd_error *err)
{
    if (group->is_closing) {
        return dd_error_set(err, DD_CLOSED, "%s: group \"%.*s\" (rank %d of %d) is closed", what,
                            (int)group->name.len, (const char *)group->name.data, group->rank, group->size);
    }
    if (group->cause.code != DD_OK) {
        dd_engine_finish_telling_locked(group->engine);
        dd_error_copy(err, &group->cause);
        dd_error_prepend(err, "%s on group \"%.*s\" (rank %d of %d): the group has failed before", what,
                         (int)group->name.len, (const char *)group->name.data, group->rank, group->size);
        return group->cause.code;
    }
    return DD_OK;
}

void
group_init_call(group_call *call, dd_group *group, const char *what, const dd_call_options *options,
                int64_t limit_ns)
{
    dd_work_init(&call->work, what, 0, 0);
    call->work.on_done = options->on_done;
    call->work.ctx = options->ctx;
    call->group = group;
    call->timeout_ns = options->timeout_ns;
    call->limit_ns = limit_ns;
    call->deadline_ns = DD_NEVER_NS;
    call->form = options->form != NULL ? options->form->record : NULL;
    call->told = options->form == NULL ? options->record : NULL;
    call->stack = options->stack;
    call->record = DD_NO_RECORD;
    call->has_recorded_start = false;
    call->is_unstamped = true;
    dd_list_init(&call->link);
}

/* ---- the group's task */

static int64_t
earliest_deadline_ns(const dd_list *calls, int64_t earliest_ns)
{
    for (const dd_list *node = calls->next; node != calls; node = node->next) {
        const group_call *call = DD_CONTAINER_OF(node, group_call, link);
        earliest_ns = call->deadline_ns < earliest_ns ? call->deadline_ns : earliest_ns;
    }
    return earliest_ns;
}

void
group_update_task_locked(dd_group *group)
{
    bool is_busy = !dd_list_is_empty(&group->collectives) || !dd_list_is_empty(&group->messages);
    const dd_group_guest *guest = group->guest;
    bool has_busy_guest = guest != NULL && guest->ncalls + guest->nletters > 0;
    atomic_store_explicit(&group->is_idle, !is_busy && !has_busy_guest, memory_order_release);
    if (!is_busy) {
        if (group->is_task_in) {
            dd_engine_remove_task_locked(group->engine, &group->task);
            group->is_task_in = false;
        }
        return;
    }
    if (!group->is_task_in) {
        dd_engine_add_task_locked(group->engine, &group->task);
        group->is_task_in = true;
    }
}

static void
renew_deadline_locked(dd_group *group)
{
    int64_t earliest = group_ask_again_ns(group, group->is_active ? group->curious_ns : DD_NEVER_NS);
    earliest = earliest_deadline_ns(&group->messages, earliest);
    if (group->is_asking) {
        /* Ranks of this host answer by hearing the bell, which wakes nobody here. */
        int64_t look_ns = group->arena != NULL ? dd_clock_now_ns() + ANSWER_LOOK_NS : group->asked_until_ns;
        look_ns = look_ns < group->asked_until_ns ? look_ns : group->asked_until_ns;
        group->task.deadline_ns = look_ns < earliest ? look_ns : earliest;
    } else {
        group->task.deadline_ns = earliest_deadline_ns(&group->collectives, earliest);
    }
}

void
group_note_deadline_locked(dd_group *group, int64_t deadline_ns)
{
    if (!group->is_task_in) {
        renew_deadline_locked(group);
    } else if (deadline_ns < group->task.deadline_ns) {
        group->task.deadline_ns = deadline_ns;
    }
    group_update_task_locked(group);
}

/* A member that has left will not come any more; what needs it cannot end. */
static bool
fail_if_gone_locked(dd_group *group)
{
    int missing[DD_ARENA_MAX_RANKS];
    int count = dd_run_missing_locked(group->run, missing, DD_ARENA_MAX_RANKS);
    for (int i = 0; i < count; i++) {
        if (group->members[missing[i]].is_gone) {
            dd_cause cause = group_make_cause(group, DD_CAUSE_LEFT, DD_PEER_LOST, missing[i]);
            group_fail_cause_locked(group, &cause);
            return true;
        }
    }
    return false;
}

/* Whether a rank that a message waits for needs the core that we run on. Says where we run for the same. */
static bool
is_in_the_way_locked(dd_group *group)
{
    const dd_topology *topology = &group->topology;
    if (group->arena == NULL || dd_list_is_empty(&group->messages) || dd_run_is_moving_locked(group->run)) {
        return false;
    }
    dd_arena_note_cpu(group->arena);
    const p2p_call *first = (p2p_call *)DD_CONTAINER_OF(group->messages.next, group_call, link);
    int rank = first->message.rank;
    bool is_local = rank != DD_ANY_RANK && topology->host_of[rank] == topology->host;
    return is_local && dd_arena_is_in_the_way_of(group->arena, topology->local_of[rank]);
}

static bool
group_task_progress(dd_task *task)
{
    dd_group *group = DD_CONTAINER_OF(task, dd_group, task);
    bool is_progress = group_map_wanted_locked(group);
    task->is_crowded = group->is_crowded || is_in_the_way_locked(group);
    if (group->is_asking) {
        group_ask_connected_locked(group);
        if (group_has_all_answers_locked(group)) {
            group_fail_timed_out_locked(group);
            return true;
        }
    }
    return (group->ngone > 0 && group->is_active && fail_if_gone_locked(group)) || is_progress;
}

static bool
group_task_fall_asleep(dd_task *task)
{
    /* Descriptors that come later wake the driver, as deadlines and messages do; these have come before they were wanted. */
    return !group_map_wanted_locked(DD_CONTAINER_OF(task, dd_group, task));
}

static void
expire_messages_locked(dd_group *group, int64_t now_ns)
{
    for (dd_list *node = group->messages.next, *next; node != &group->messages; node = next) {
        next = node->next;
        p2p_call *call = (p2p_call *)DD_CONTAINER_OF(node, group_call, link);
        if (call->base.deadline_ns > now_ns) {
            continue;
        }
        dd_error cause;
        double elapsed_s = (double)(now_ns - call->base.work.start_ns) * 1e-9;
        int rank = call->message.rank;
        if (rank == DD_ANY_RANK) {
            dd_error_set(&cause, DD_OP_TIMED_OUT, "timed out after %.3g s; no rank has sent (tag %llu)",
                         elapsed_s, (unsigned long long)call->message.tag);
        } else {
            char who[128];
            dd_error_set(&cause, DD_OP_TIMED_OUT, "timed out after %.3g s; %s has not %s (tag %llu)",
                         elapsed_s, group_print_member(group, rank, who),
                         call->message.is_send ? "received" : "sent", (unsigned long long)call->message.tag);
            group_add_progress_locked(group, &call->message, &cause);
            const dd_card *card = dd_peer_card(group->peers[rank]);
            dd_error_blame(&cause, rank, card->host, card->pid);
        }
        group_cancel_message_locked(call, &cause);
    }
}

static void
ask_missing_locked(dd_group *group, int64_t now_ns)
{
    int missing[DD_ARENA_MAX_RANKS];
    int count = dd_run_missing_locked(group->run, missing, DD_ARENA_MAX_RANKS);
    for (int i = 0; i < count && group->cause.code == DD_OK; i++) {
        if (group_is_on_board(group, missing[i])) {
            group_look_up_locked(group, missing[i], false);
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
    group->curious_ns = now_ns + (waited_ns < CURIOUS_AT_MOST_NS ? waited_ns : CURIOUS_AT_MOST_NS);
}

static void
group_task_on_deadline(dd_task *task)
{
    dd_group *group = DD_CONTAINER_OF(task, dd_group, task);
    int64_t now_ns = dd_clock_now_ns();
    expire_messages_locked(group, now_ns);
    (void)group_map_wanted_locked(group);
    if (group->is_active && now_ns >= group->curious_ns) {
        ask_missing_locked(group, now_ns);
    }
    if (group->is_asking && now_ns >= group->asked_until_ns) {
        group_fail_timed_out_locked(group);
    } else if (!group->is_asking && earliest_deadline_ns(&group->collectives, DD_NEVER_NS) <= now_ns) {
        group->asked_until_ns = now_ns + ANSWER_NS;
        group_begin_asking_locked(group);
    }
    renew_deadline_locked(group);
    group_update_task_locked(group);
}

void
group_task_init(dd_group *group)
{
    group->task = (dd_task){
        .progress = group_task_progress,
        .fall_asleep = group_task_fall_asleep,
        .deadline_ns = DD_NEVER_NS,
        .on_deadline = group_task_on_deadline,
    };
    dd_list_init(&group->task.link);
}

/* ---- ends */

void
group_complete_locked(group_call *call, const dd_error *cause)
{
    dd_group *group = call->group;
    bool is_counted = call->work.destroy != NULL;
    dd_list_remove(&call->link);
    dd_engine_note_ended_locked(group->engine);
    if (cause == NULL) {
        group_record_end_locked(call, NULL);
        dd_work_complete(&call->work, NULL);
    } else {
        dd_error error;
        group_stamp_locked(call); /* for how long it has taken */
        group_describe_failure(group, &call->work, cause, &error);
        group_record_end_locked(call, &error);
        dd_work_complete(&call->work, &error);
    }
    if (is_counted) {
        dd_work_release(&call->work);
    } /* else it was on the stack of a caller who has seen that it is done, and is gone */
}

void
group_destroy_call(dd_work *work)
{
    dd_mem_free(DD_CONTAINER_OF(work, group_call, work));
}

static void
visit_held(void *ctx, int rank, const dd_signature *signature)
{
    dd_group *group = ctx;
    group_context_handler.on_coll(group, rank, group->nstarted, signature);
}

static void
look_at_held_locked(dd_group *group)
{
    if (group->topology.nhosts > 1) {
        dd_context_visit_held_locked(group->context, group->nstarted, visit_held, group);
    }
}

static void
on_run_done(void *ctx, const dd_error *error)
{
    coll_call *call = ctx;
    dd_group *group = call->base.group;
    group->is_active = false;
    if (error == NULL) {
        group->is_asking = false;
        group_note_place_locked(group);
        group_complete_locked(&call->base, NULL);
        look_at_held_locked(group); /* now there should be nothing left */
        group_start_next_locked(group);
        group_update_task_locked(group);
        return;
    }
    if (group->cause.code != DD_OK) {
        group_complete_locked(&call->base, &group->cause);
        return;
    }
    dd_arena_culprit culprit = dd_run_culprit(group->run);
    if (error->code == DD_MISMATCH && culprit.rank >= 0) {
        group_fail_mismatch_locked(group, &culprit);
    } else if (error->code == DD_MISMATCH ||
               (error->code == DD_INVALID_ARGUMENT && error->culprit.rank >= 0)) {
        group_fail_misfit_locked(group, error);
    } else {
        group_fail_locked(group, error, true, DD_ANY_RANK);
    }
}

static void
start_locked(dd_group *group, coll_call *call)
{
    group->is_active = true;
    group_record_start_locked(&call->base);
    group->nstarted = call->base.work.sequence;
    group->signatures[group->nstarted % SIGNATURES_KEPT] = call->signature;
    group_note_place_locked(group);
    dd_run_call run_call = {
        .args = call->args,
        .signature = call->signature,
        .sequence = call->base.work.sequence,
        .on_done = on_run_done,
        .ctx = call,
    };
    group->curious_ns = DD_NEVER_NS;
    if (group->topology.nhosts > 1) {
        group->curious_ns = dd_clock_now_ns() + CURIOUS_AFTER_NS;
        group_note_deadline_locked(group, group->curious_ns);
    }
    look_at_held_locked(group); /* first of all: a message that does not fit says less than two signatures */
    if (group->cause.code == DD_OK) {
        dd_run_start_locked(group->run, &run_call);
    }
}

void
group_start_next_locked(dd_group *group)
{
    if (group->is_starting) {
        return; /* whoever is in here goes on with the next */
    }
    group->is_starting = true;
    while (!group->is_active && !dd_list_is_empty(&group->collectives) && group->cause.code == DD_OK) {
        start_locked(group, (coll_call *)DD_CONTAINER_OF(group->collectives.next, group_call, link));
    }
    group->is_starting = false;
}

/* ---- collectives */

/* Checked by its form, or now. The call keeps the blocks' arrays where they are. */
static dd_status
init_coll_call(coll_call *call, dd_group *group, const dd_coll_args *args, const dd_call_options *options,
               int64_t limit_ns, dd_error *err)
{
    dd_coll_form checked;
    const dd_coll_form *form = options->form;
    dd_status status = dd_engine_check_fork(group->engine, err);
    if (status == DD_OK && form == NULL) {
        form = &checked;
        status = group_check_coll(group, args, &checked, err);
    }
    if (status == DD_OK) {
        group_init_call(&call->base, group, dd_coll_name(args->coll), options, limit_ns);
        call->args = *args;
        call->args.reduction.divisor = group->size;
        call->signature = form->signature;
        call->is_quick = form->is_quick;
    }
    return status;
}

bool
group_is_next_locked(const dd_group *group)
{
    return dd_list_is_empty(&group->collectives) && !group->is_starting;
}

void
group_post_coll_locked(dd_group *group, coll_call *call)
{
    group_call *base = &call->base;
    base->has_recorded_start = group_is_next_locked(group);
    if (!call->is_quick || base->work.on_done != NULL) {
        group_stamp_locked(base);
    } /* else the others come first */
    base->work.sequence = ++group->nposted;
    dd_list_push_back(&group->collectives, &base->link);
    atomic_store_explicit(&group->is_idle, false, memory_order_release);
    group_start_next_locked(group);
    if (!dd_work_is_done(&base->work)) {
        group_stamp_locked(base);
    }
}

void
group_watch_coll_locked(dd_group *group, const coll_call *call)
{
    if (!dd_list_is_empty(&group->collectives)) {
        if (group->is_active && group->curious_ns == DD_NEVER_NS && group->topology.nlocal > 2) {
            group->curious_ns = call->base.work.start_ns + CURIOUS_AFTER_NS;
            group_note_deadline_locked(group, group->curious_ns);
        }
        group_note_deadline_locked(group, call->base.deadline_ns);
    }
    group_update_task_locked(group);
}

void
group_look_hastily_locked(dd_group *group, const coll_call *call)
{
    for (int look = 0; look < HASTY_LOOKS && group->is_active && !dd_work_is_done(&call->base.work); look++) {
        if (!dd_run_progress_locked(group->run)) {
            dd_spin_pause();
        }
    }
    dd_engine_settle_driver_locked(group->engine);
}

/* Ranks that share a core get there one after the other, each when the one before gives it away. */
void
group_look_a_while_locked(dd_group *group, const coll_call *call, int nlooks)
{
    dd_engine_note_active_locked(group->engine);
    for (int look = 0; group->is_active && look < nlooks && !dd_work_is_done(&call->base.work); look++) {
        if (dd_run_progress_locked(group->run)) {
            continue;
        }
        bool is_time = look % LOOKS_PER_YIELD == LOOKS_PER_YIELD - 1;
        if (group->is_crowded || (is_time && dd_run_is_in_the_way_locked(group->run))) {
            if (!dd_engine_give_way_locked(group->engine)) {
                return;
            }
        } else {
            dd_spin_pause();
        }
    }
}

dd_status
group_make_coll_call(dd_group *group, const dd_coll_args *args, const dd_call_options *options,
                     size_t head_nbytes, coll_call **out, dd_error *err)
{
    bool is_root = args->root == group->rank;
    size_t ninputs = (size_t)dd_coll_ninputs(args->coll, is_root, group->size);
    size_t noutputs = (size_t)dd_coll_noutputs(args->coll, is_root, group->size);
    size_t nbytes = head_nbytes + (ninputs + noutputs) * sizeof(dd_block);
    coll_call *call = dd_mem_alloc(nbytes);
    if (call == NULL) {
        return dd_error_no_memory(err, nbytes);
    }
    dd_status status = init_coll_call(call, group, args, options, DD_NEVER_NS, err);
    if (status != DD_OK) {
        dd_mem_free(call);
        return status;
    }
    dd_block *blocks = (dd_block *)(void *)((char *)call + head_nbytes);
    call->args.inputs = blocks;
    call->args.outputs = blocks + ninputs;
    if (ninputs > 0) {
        memcpy(blocks, args->inputs, ninputs * sizeof *blocks);
    }
    if (noutputs > 0) {
        memcpy(blocks + ninputs, args->outputs, noutputs * sizeof *blocks);
    }
    *out = call;
    return DD_OK;
}

dd_status
dd_group_collective(dd_group *group, const dd_coll_args *args, const dd_call_options *options, dd_work **work,
                    dd_error *err)
{
    coll_call *call = NULL;
    dd_status status = group_make_coll_call(group, args, options, sizeof *call, &call, err);
    if (status != DD_OK) {
        return status;
    }
    call->base.work.destroy = group_destroy_call;
    dd_engine_lock(group->engine);
    status = group_check_usable_locked(group, call->base.work.what, err);
    if (status == DD_OK) {
        *work = dd_work_acquire(&call->base.work);
        group_post_coll_locked(group, call);
        group_watch_coll_locked(group, call);
    }
    dd_engine_unlock(group->engine);
    if (status != DD_OK) {
        dd_mem_free(call);
    }
    return status;
}

/* A caller that hears of a failure may end the process. */
static void
finish_telling(dd_group *group)
{
    if (dd_engine_check_fork(group->engine, NULL) == DD_OK) {
        dd_engine_lock(group->engine);
        dd_engine_finish_telling_locked(group->engine);
        dd_engine_unlock(group->engine);
    }
}

/* Of a work that is done, by whatever thread. */
static dd_status
result_of(dd_group *group, dd_work *work, dd_error *err)
{
    dd_status status = dd_work_result(work, err);
    if (status != DD_OK) {
        finish_telling(group);
    }
    return status;
}

dd_status
group_await_end(group_call *call, const char *what, const dd_wait *wait, dd_error *err)
{
    dd_group *group = call->group;
    dd_work *work = &call->work;
    dd_wait until_done = *wait;
    until_done.deadline_ns = DD_NEVER_NS; /* the group's task ends it in time, and says why */
    if (dd_work_is_done(work) && work->error.code != DD_OK) {
        dd_wait_let_go(wait); /* telling the others may take a moment */
    }
    dd_status status = dd_group_wait(group, work, &until_done, err);
    if (!dd_work_is_done(work)) {
        char reason[96];
        snprintf(reason, sizeof reason, "interrupted in %s", what);
        dd_group_abort(group, reason);
        until_done = dd_wait_after(DD_NEVER_NS);
        dd_status ignored = dd_group_wait(group, work, &until_done, NULL);
        (void)ignored;
    }
    return status;
}

/* Takes the lock. True: the call may well be over before anything need be let go of. */
static bool
lock_hastily(dd_group *group, const coll_call *call, const dd_wait *wait)
{
    if (call->is_quick && dd_engine_try_lock(group->engine)) {
        if (group_is_next_locked(group) && group->cause.code == DD_OK) {
            return true;
        }
        dd_engine_unlock(group->engine);
    }
    dd_wait_let_go(wait);
    dd_engine_lock(group->engine);
    return false;
}

/* Posts it, and looks whether it is over at once. */
static dd_status
begin_collective(dd_group *group, coll_call *call, const dd_wait *wait, dd_error *err)
{
    bool is_hasty = lock_hastily(group, call, wait);
    dd_status status = group_check_usable_locked(group, call->base.work.what, err);
    if (status == DD_OK) {
        group_post_coll_locked(group, call);
        if (is_hasty) {
            group_look_hastily_locked(group, call);
        }
        if (!dd_work_is_done(&call->base.work)) {
            dd_engine_unlock(group->engine);
            dd_wait_let_go(wait);
            dd_engine_lock(group->engine);
            group_look_a_while_locked(group, call, GROUP_SHORT_LOOKS);
        }
        group_watch_coll_locked(group, call);
    }
    dd_engine_unlock(group->engine);
    return status;
}

dd_status
dd_group_collective_and_wait(dd_group *group, const dd_coll_args *args, const dd_call_options *options,
                             const dd_wait *wait, dd_error *err)
{
    coll_call call;
    dd_status status = init_coll_call(&call, group, args, options, wait->deadline_ns, err);
    if (status == DD_OK) {
        status = begin_collective(group, &call, wait, err);
    }
    return status == DD_OK ? group_await_end(&call.base, call.base.work.what, wait, err) : status;
}

dd_status
dd_group_wait(dd_group *group, dd_work *work, const dd_wait *wait, dd_error *err)
{
    if (!dd_work_is_done(work)) {
        dd_status status = dd_engine_check_fork(group->engine, err);
        if (status == DD_OK) {
            status = dd_engine_wait(group->engine, &work->is_done, wait, err);
        }
        if (status == DD_OP_TIMED_OUT) {
            return dd_error_set(
                err, status,
                "Operation timed out! %s on group \"%.*s\" (rank %d of %d) is still under way "
                "after %.3g s of waiting",
                work->what, (int)group->name.len, (const char *)group->name.data, group->rank, group->size,
                dd_wait_elapsed_s(wait));
        }
        if (status != DD_OK) {
            return status;
        }
    }
    return result_of(group, work, err);
}

void
dd_group_kick(dd_group *group)
{
    dd_engine_kick(group->engine);
}

/* ---- what the context has to tell */

/* True when they are the same, or we know nothing. */
static bool
compare_signatures_locked(dd_group *group, int rank, uint64_t sequence, const dd_signature *signature)
{
    const dd_signature *ours = group_signature_of(group, sequence);
    if (ours == NULL || group->cause.code != DD_OK || memcmp(signature, ours, sizeof *signature) == 0) {
        return true;
    }
    dd_arena_culprit culprit = {.rank = rank,
                                .other = group->rank,
                                .signature = *signature,
                                .other_signature = *ours,
                                .sequence = sequence};
    group_fail_mismatch_locked(group, &culprit);
    return false;
}

static void
on_coll(void *ctx, int rank, uint64_t sequence, const dd_signature *signature)
{
    dd_group *group = ctx;
    member_state *member = &group->members[rank];
    if (sequence > 0 && sequence >= member->sequence) { /* 0: from the making of the group */
        member->sequence = sequence;
        member->signature = *signature;
        member->has_said_it = true;
    }
    bool is_over = sequence < group->nstarted || !group->is_active;
    if (compare_signatures_locked(group, rank, sequence, signature) && is_over) {
        group_fail_surplus_locked(group, rank, sequence);
    }
}

static void
on_abort(void *ctx, int rank, const dd_cause *cause)
{
    group_fail_heard_locked(ctx, rank, cause);
}

static void
on_lost(void *ctx, int rank, const dd_error *error)
{
    dd_group *group = ctx;
    if (group->members[rank].is_gone) {
        return;
    }
    dd_cause cause;
    if (dd_error_is_own(error)) { /* the other one may be well */
        char who[128];
        char own[128];
        dd_status code = error->code == DD_OUT_OF_MEMORY ? error->code : DD_SYSTEM;
        cause = group_make_cause(group, DD_CAUSE_OTHER, code, group->rank);
        snprintf(cause.text, sizeof cause.text, "%s has no way to %s: %.600s",
                 group_print_member(group, group->rank, own), group_print_member(group, rank, who),
                 error->message);
    } else {
        cause = group_make_cause(group, DD_CAUSE_LOST, DD_PEER_LOST, rank);
        snprintf(cause.text, sizeof cause.text, "%s", error->message);
    }
    group_fail_cause_locked(group, &cause);
}

static void
on_goodbye(void *ctx, int rank)
{
    dd_group *group = ctx;
    if (group->members[rank].is_gone) {
        return;
    }
    group->members[rank].is_gone = true;
    group->ngone++;
    char who[128];
    const dd_card *card = dd_peer_card(group->peers[rank]);
    dd_error cause;
    dd_error_set(&cause, DD_PEER_LOST, "%s has left the group", group_print_member(group, rank, who));
    dd_error_blame(&cause, rank, card->host, card->pid);
    group_fail_messages_locked(group, rank, &cause);
    if (group->guest != NULL) {
        group->guest->on_goodbye(group->guest, rank);
    }
}

static void
on_asked(void *ctx, uint64_t *sequence, dd_signature *signature, bool *is_inside)
{
    dd_group *group = ctx;
    *sequence = group->nstarted;
    *signature = group->signatures[group->nstarted % SIGNATURES_KEPT];
    *is_inside = group->is_active;
}

static void
on_loss(void *ctx, int rank, int to, uint64_t nbytes)
{
    dd_group *group = ctx;
    group->members[rank].lost_to = to;
    group->members[rank].lost_nbytes = to != rank ? nbytes : 0;
}

static void
on_answer(void *ctx, int rank, uint64_t sequence, const dd_signature *signature, bool is_inside)
{
    dd_group *group = ctx;
    member_state *member = &group->members[rank];
    member->has_answered = true;
    member->is_inside = is_inside;
    if (sequence >= member->sequence) {
        member->sequence = sequence;
        member->signature = *signature;
        member->has_said_it = sequence > 0;
    }
    (void)compare_signatures_locked(group, rank, sequence, signature);
}

static dd_message *
on_request(void *ctx, int rank, const dd_request *request)
{
    dd_group_guest *guest = ((dd_group *)ctx)->guest;
    return guest != NULL ? guest->on_request(guest, rank, request) : NULL;
}

const dd_context_handler group_context_handler = {
    .on_coll = on_coll,
    .on_abort = on_abort,
    .on_lost = on_lost,
    .on_goodbye = on_goodbye,
    .on_asked = on_asked,
    .on_answer = on_answer,
    .on_loss = on_loss,
    .on_request = on_request,
    .on_bell = group_on_bell,
    .on_fd_wanted = group_on_fd_wanted,
    .on_fd = group_on_fd,
};
