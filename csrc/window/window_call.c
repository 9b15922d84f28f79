/* Calls: how they begin, wait and end. */
#include "window/window_internal.h"

#include <stdio.h>

static bool
is_far(const window_call *call)
{
    return call->window == NULL || !call->window->members[call->rank].is_direct;
}

void
window_init_call(window_call *call, const dd_window *window, const window_op *op, int rank, int64_t start_ns)
{
    dd_work_init(&call->work, op->what, 0, start_ns);
    call->op = op;
    dd_list_init(&call->link);
    dd_list_init(&call->asking);
    call->hub = window->hub;
    call->window = NULL;
    call->window_id = window->id;
    call->rank = rank;
    call->letter = NULL;
    call->target = NULL;
}

/* Tells the group of the calls, and keeps the task in the engine while there are any. */
static void
note_calls_locked(window_hub *hub)
{
    bool has_calls = !dd_list_is_empty(&hub->waiting) || !dd_list_is_empty(&hub->moving);
    if (has_calls == dd_list_is_empty(&hub->task.link)) {
        if (has_calls) {
            dd_engine_add_task_locked(hub->engine, &hub->task);
        } else {
            dd_engine_remove_task_locked(hub->engine, &hub->task);
            hub->task.deadline_ns = DD_NEVER_NS;
        }
    }
    dd_group_note_guest_locked(hub->group);
}

void
window_enter_locked(window_call *call)
{
    window_hub *hub = call->hub;
    bool is_moving = call->window == NULL;
    dd_list_push_back(is_moving ? &hub->moving : &hub->waiting, &call->link);
    hub->guest.ncalls += is_moving ? 1 : 0;
    if (is_far(call)) {
        dd_context_expect_locked(hub->context, call->rank, true);
    }
    hub->task.deadline_ns =
        call->deadline_ns < hub->task.deadline_ns ? call->deadline_ns : hub->task.deadline_ns;
    note_calls_locked(hub);
}

void
window_end_call_locked(window_call *call, const dd_error *cause)
{
    window_hub *hub = call->hub;
    bool is_counted = call->work.destroy != NULL;
    dd_error error;
    dd_list_remove(&call->link);
    hub->guest.ncalls -= call->window == NULL ? 1 : 0;
    if (is_far(call)) {
        dd_context_expect_locked(hub->context, call->rank, false);
    }
    if (call->letter != NULL) {
        hub->nleaving -= call->letter->is_leaving ? 1 : 0;
        call->letter->is_leaving = false;
        call->letter->put = NULL;
        call->letter = NULL;
    }
    if (cause != NULL) {
        error = *cause;
        window_describe(hub, call->op->what, call->window_id, &error);
    }
    dd_engine_note_ended_locked(hub->engine);
    (void)dd_work_complete(&call->work, cause != NULL ? &error : NULL);
    if (is_counted) {
        dd_work_release(&call->work);
    } /* else it was on the stack of a caller, who may have returned by now */
    note_calls_locked(hub);
}

bool
window_settle_locked(window_call *call)
{
    const window_op *op = call->op;
    dd_error error;
    error.code = DD_OK;
    /* Asked first: what the rank has done before it closed counts. */
    bool has_closed = window_has_closed_locked(call->window, call->rank);
    bool is_through = !(has_closed && op->needs_open) &&
                      (window_try_word(op, window_find_word(call->window, op, call->rank, call->channel)) ||
                       (is_far(call) && op->try_far_locked != NULL && op->try_far_locked(call, &error)));
    if (!is_through && has_closed) {
        (void)window_error_closed(call->hub, call->rank, &error);
        is_through = true;
    }
    if (is_through) {
        window_end_call_locked(call, error.code != DD_OK ? &error : NULL);
    }
    return is_through;
}

bool
window_progress_locked(window_hub *hub)
{
    bool is_progress = false;
    for (dd_list *node = hub->waiting.next, *next; node != &hub->waiting; node = next) {
        next = node->next;
        is_progress = window_settle_locked(DD_CONTAINER_OF(node, window_call, link)) || is_progress;
    }
    return is_progress;
}

void
window_end_waits_locked(window_hub *hub, const dd_window *window, int rank, const dd_error *cause)
{
    (void)window_progress_locked(hub);
    for (dd_list *node = hub->waiting.next, *next; node != &hub->waiting; node = next) {
        next = node->next;
        window_call *call = DD_CONTAINER_OF(node, window_call, link);
        if ((window == NULL || call->window == window) && (rank == DD_ANY_RANK || call->rank == rank)) {
            window_end_call_locked(call, cause);
        }
    }
}

static void
error_timed_out(const window_call *call, dd_error *error)
{
    char what[64];
    dd_error own;
    double elapsed_s = (double)(dd_clock_now_ns() - call->work.start_ns) * 1e-9;
    (void)snprintf(what, sizeof what, call->op->needs_channel ? "has not %s on channel %d" : "has not %s",
                   call->op->lack, call->channel);
    (void)dd_group_error_about(call->hub->group, call->rank, DD_OP_TIMED_OUT, what, &own);
    (void)dd_error_set(error, DD_OP_TIMED_OUT, "timed out after %.3g s; %s", elapsed_s, own.message);
    error->culprit = own.culprit;
}

/* The caller does not wait any longer. A put ends when its data have been copied, since only then its memory is free. */
static void
give_up_locked(window_call *call, const dd_error *cause)
{
    call->deadline_ns = DD_NEVER_NS;
    if (call->letter != NULL) {
        call->hub->nleaving += call->letter->is_leaving ? 0 : 1;
        call->letter->is_leaving = true;
        return;
    }
    bool is_get = call->window == NULL;
    window_end_call_locked(call, cause);
    if (is_get) {
        window_abandon_get_locked(call);
    }
}

/* ---- the task of a hub */

/* Called by the driver, who alone knows that nobody sleeps. */
static bool
on_round(dd_task *task)
{
    window_hub *hub = DD_CONTAINER_OF(task, window_hub, task);
    for (dd_list *node = hub->windows.next; hub->has_slept && node != &hub->windows; node = node->next) {
        dd_window *window = DD_CONTAINER_OF(node, dd_window, link);
        if (window->has_slept) {
            window->has_slept = false;
            atomic_store(&window->members[hub->rank].control->is_asleep, 0);
        }
    }
    hub->has_slept = false;
    window_call *put = NULL;
    bool is_rescuing = hub->nleaving > 0 && window_rescue_locked(hub, 0, &put);
    if (put != NULL) {
        dd_error error;
        error_timed_out(put, &error);
        window_end_call_locked(put, &error);
    }
    return window_progress_locked(hub) || is_rescuing;
}

static bool
fall_asleep(dd_task *task)
{
    window_hub *hub = DD_CONTAINER_OF(task, window_hub, task);
    bool is_any_there = hub->nleaving > 0;
    for (dd_list *node = hub->waiting.next; node != &hub->waiting; node = node->next) {
        const window_call *call = DD_CONTAINER_OF(node, window_call, link);
        dd_window *window = call->window;
        hub->has_slept = window->has_slept = true;
        atomic_store(&window->members[hub->rank].control->is_asleep, 1);
        is_any_there =
            is_any_there || window_has_closed_locked(window, call->rank) ||
            window_is_word_there(call->op, window_find_word(window, call->op, call->rank, call->channel));
    }
    return !is_any_there;
}

/* Giving one up may end others, too: so the search starts again each time. */
static window_call *
find_expired(const window_hub *hub, int64_t now_ns, int64_t *next_ns)
{
    const dd_list *lists[] = {&hub->waiting, &hub->moving};
    *next_ns = DD_NEVER_NS;
    for (int i = 0; i < 2; i++) {
        for (dd_list *node = lists[i]->next; node != lists[i]; node = node->next) {
            window_call *call = DD_CONTAINER_OF(node, window_call, link);
            if (call->deadline_ns <= now_ns) {
                return call;
            }
            *next_ns = call->deadline_ns < *next_ns ? call->deadline_ns : *next_ns;
        }
    }
    return NULL;
}

static void
on_deadline(dd_task *task)
{
    window_hub *hub = DD_CONTAINER_OF(task, window_hub, task);
    int64_t now_ns = dd_clock_now_ns();
    window_call *call;
    while ((call = find_expired(hub, now_ns, &task->deadline_ns)) != NULL) {
        dd_error error;
        error_timed_out(call, &error);
        give_up_locked(call, &error);
    }
}

dd_task
window_make_task(const window_hub *hub)
{
    return (dd_task){.progress = on_round,
                     .fall_asleep = fall_asleep,
                     .deadline_ns = DD_NEVER_NS,
                     .on_deadline = on_deadline,
                     .is_crowded = hub->guest.is_crowded};
}

/* ---- what every call goes through */

dd_status
window_check(const dd_window *window, const window_op *op, dd_window_place place, size_t nbytes, int channel,
             dd_error *err)
{
    window_hub *hub = window->hub;
    dd_status status = dd_engine_check_fork(hub->engine, err);
    if (status != DD_OK) {
        return status;
    }
    int state = atomic_load_explicit(&window->state, memory_order_acquire);
    const window_member *member =
        place.rank >= 0 && place.rank < hub->size ? &window->members[place.rank] : NULL;
    if (member == NULL) {
        status = dd_error_set(err, DD_INVALID_ARGUMENT, "invalid rank: %d is not in 0 to %d", place.rank,
                              hub->size - 1);
    } else if (channel == DD_NO_CHANNEL && op->needs_channel) {
        status = dd_error_set(err, DD_INVALID_ARGUMENT, "a signal needs a channel");
    } else if (channel < DD_NO_CHANNEL || channel >= window->nchannels) {
        status = dd_error_set(err, DD_INVALID_ARGUMENT, "invalid channel: %d is not in 0 to %d", channel,
                              window->nchannels - 1);
    } else if (place.offset > member->nbytes || nbytes > member->nbytes - place.offset) {
        status = dd_error_set(err, DD_INVALID_ARGUMENT, "%zu bytes from %zu, where rank %d has %zu", nbytes,
                              place.offset, place.rank, member->nbytes);
    } else if (state != WINDOW_OPEN) {
        status = dd_error_set(
            err, DD_CLOSED, state == WINDOW_OVER ? "the group is closed" : "this rank has closed the window");
    } else if (op->needs_open && member->is_direct && atomic_load(&member->control->is_closed) != 0) {
        status = window_error_closed(hub, place.rank, err);
    } else {
        return DD_OK;
    }
    window_describe(hub, op->what, window->id, err);
    return window_conclude(hub, op->what, status, err);
}

dd_status
window_check_locked(const dd_window *window, const window_op *op, int rank, dd_error *err)
{
    window_hub *hub = window->hub;
    dd_status status = dd_group_check_usable_locked(hub->group, op->what, err);
    if (status != DD_OK) {
        return status;
    }
    if (atomic_load(&window->state) != WINDOW_OPEN) {
        status = dd_error_set(err, DD_CLOSED, "this rank has closed the window");
    } else if (dd_group_has_left_locked(hub->group, rank) && !hub->sources[rank].is_busy) {
        /* While it is busy, what the rank said before it left is still on its way. */
        status = dd_group_error_about(hub->group, rank, DD_PEER_LOST, "has left the group", err);
    } else if (window->members[rank].is_closed) {
        status = window_error_closed(hub, rank, err);
    } else {
        return DD_OK;
    }
    window_describe(hub, op->what, window->id, err);
    return status;
}

dd_status
window_finish(window_call *call, const dd_wait *wait, dd_error *err)
{
    dd_wait until_done = *wait;
    until_done.deadline_ns = DD_NEVER_NS;
    dd_engine *engine = call->hub->engine;
    dd_status status = dd_engine_wait(engine, &call->work.is_done, &until_done, err);
    if (status == DD_OK) {
        return dd_work_result(&call->work, err);
    }
    dd_error cause;
    (void)dd_error_set(&cause, DD_ABORTED, "its caller was interrupted");
    dd_engine_lock(engine);
    if (!dd_work_is_done(&call->work)) {
        give_up_locked(call, &cause);
    }
    dd_engine_unlock(engine);
    until_done.is_interrupted = NULL; /* all that is left is copying */
    (void)!dd_engine_wait(engine, &call->work.is_done, &until_done, NULL);
    return status;
}
