/* Calls on windows: their start, wait and end. */
#include "core/assert.h"
#include "core/mem.h"
#include "window/window_internal.h"

#include <stdio.h>
#include <string.h>

/* ---- failure of a call */

/* Prepend a text such as "put on window 3 of group "dp" (rank 0 of 2)" to an error. */
static void
describe(const window_hub *hub, const char *label, uint64_t window, dd_error *err)
{
    dd_bytes name = dd_group_name(hub->group);
    dd_error_prepend(err, "%s on window %llu of group \"%.*s\" (rank %d of %d)", label,
                     (unsigned long long)window, (int)name.len, (const char *)name.data, hub->rank,
                     hub->size);
}

dd_status
window_error_closed(const window_hub *hub, int rank, dd_error *err)
{
    return dd_group_error_about(hub->group, rank, DD_CLOSED, "has closed the window", err);
}

static bool
has_closed(const window_member *member)
{
    return member->is_closed || (member->is_direct && atomic_load(&member->control->is_closed) != 0);
}

dd_status
window_end_failed(window_hub *hub, const char *label, dd_status status, dd_error *err)
{
    if (status == DD_OK || dd_engine_check_fork(hub->engine, NULL) != DD_OK) {
        return status;
    }
    dd_engine_lock(hub->engine);
    if (status == DD_CLOSED) {
        dd_engine_receive_locked(hub->engine);
        if (dd_group_cause_locked(hub->group) != NULL) {
            status = dd_group_check_usable_locked(hub->group, label, err);
        }
    }
    dd_engine_finish_notices_locked(hub->engine);
    dd_engine_unlock(hub->engine);
    return status;
}

/* Check the arguments, and whether the call can succeed; with the lock held, check more state. */
static dd_status
find_obstacle(const dd_window *window, const window_args *args, bool is_locked, dd_error *err)
{
    const window_hub *hub = window->hub;
    int rank = args->target.rank;
    size_t nbytes = args->block.nbytes;
    int state = atomic_load_explicit(&window->state, memory_order_acquire);
    if (rank < 0 || rank >= hub->size) {
        return dd_error_set(err, DD_INVALID_ARGUMENT, "invalid rank: got %d, expected 0 to %d", rank,
                            hub->size - 1);
    }
    const window_member *member = &window->members[rank];
    if (args->channel == DD_NO_CHANNEL && args->op->needs_channel) {
        return dd_error_set(err, DD_INVALID_ARGUMENT, "a signal needs a channel: got none, expected 0 to %d",
                            window->nchannels - 1);
    }
    if (args->channel < DD_NO_CHANNEL || args->channel >= window->nchannels) {
        return dd_error_set(err, DD_INVALID_ARGUMENT, "invalid channel: got %d, expected 0 to %d",
                            args->channel, window->nchannels - 1);
    }
    if (args->target.offset > member->nbytes || nbytes > member->nbytes - args->target.offset) {
        return dd_error_set(
            err, DD_INVALID_ARGUMENT,
            "out of range: got %zu bytes at offset %zu, expected at most %zu bytes on rank %d", nbytes,
            args->target.offset, member->nbytes, rank);
    }
    if (state != WINDOW_OPEN) {
        return dd_error_set(err, DD_CLOSED,
                            state == WINDOW_ENDED ? "the group is closed"
                                                  : "this rank has closed the window");
    }
    /* While the source is busy, data that the rank sent before it left is still being received. */
    if (is_locked && dd_group_has_left_locked(hub->group, rank) && !hub->sources[rank].is_busy) {
        return dd_group_error_about(hub->group, rank, DD_PEER_LOST, "has left the group", err);
    }
    bool is_closed = is_locked ? member->is_closed
                               : args->op->needs_open && member->is_direct &&
                                     atomic_load(&member->control->is_closed) != 0;
    return is_closed ? window_error_closed(hub, rank, err) : DD_OK;
}

dd_status
window_check(const dd_window *window, const window_args *args, dd_error *err)
{
    window_hub *hub = window->hub;
    dd_status status = dd_engine_check_fork(hub->engine, err);
    if (status == DD_OK && (status = find_obstacle(window, args, false, err)) != DD_OK) {
        describe(hub, args->op->label, window->id, err);
        status = window_end_failed(hub, args->op->label, status, err);
    }
    return status;
}

static dd_status
window_call_check_locked(const window_call *call, dd_error *err)
{
    dd_status status = dd_group_check_usable_locked(call->hub->group, call->args.op->label, err);
    if (status == DD_OK && (status = find_obstacle(call->window, &call->args, true, err)) != DD_OK) {
        describe(call->hub, call->args.op->label, call->window_id, err);
    }
    return status;
}

static void
error_timed_out(const window_call *call, dd_error *error)
{
    const window_op *op = call->args.op;
    char label[64];
    dd_error own_error;
    double elapsed_s = (double)(dd_clock_now_ns() - call->work.start_ns) * 1e-9;
    (void)snprintf(label, sizeof label, op->needs_channel ? "has not %s on channel %d" : "has not %s",
                   op->missing, call->args.channel);
    (void)dd_group_error_about(call->hub->group, call->args.target.rank, DD_OP_TIMED_OUT, label, &own_error);
    (void)dd_error_set(error, DD_OP_TIMED_OUT, "timed out after %.3g s; %s", elapsed_s, own_error.message);
    error->blamed = own_error.blamed;
}

/* ---- words */

/* Return the word for which the operation waits; NULL if there is none or it is not mapped. */
static _Atomic uint32_t *
find_word(const dd_window *window, const window_args *args)
{
    const window_member *own_member = &window->members[window->hub->rank];
    const window_member *member = &window->members[args->target.rank];
    switch (args->op->word) {
    case WINDOW_WORD_ROOM:
        return member->is_direct ? &member->words[window_word(window, args->channel, window->hub->rank)]
                                 : NULL;
    case WINDOW_WORD_OWN_ROOM:
    case WINDOW_WORD_SIGNAL:
        return &own_member->words[window_word(window, args->channel, args->target.rank)];
    case WINDOW_NO_WORD:
        break;
    }
    return NULL;
}

static inline bool
is_word_ready(const window_op *op, uint32_t count)
{
    return op->word == WINDOW_WORD_SIGNAL ? count > 0 : count == 0;
}

/* Take one signal, or add one to a word that is 0. Return true on success. */
bool
window_try_word(const dd_window *window, const window_args *args)
{
    _Atomic uint32_t *word = find_word(window, args);
    uint32_t count = word != NULL ? atomic_load(word) : 0;
    while (word != NULL && is_word_ready(args->op, count)) {
        uint32_t left = args->op->word == WINDOW_WORD_SIGNAL ? count - 1 : 1;
        if (atomic_compare_exchange_weak(word, &count, left)) {
            return true;
        }
    }
    return false;
}

void
window_wake(dd_window *window, int rank)
{
    window_control *control = window->members[rank].control;
    window_hub *hub = window->hub;
    bool is_own = rank == hub->rank;
    bool is_due = is_own ? dd_park_is_any(&control->sleeper, DD_PARK_SOLE)
                         : dd_park_take(&control->sleeper, DD_PARK_SOLE);
    if (!is_due) {
        return;
    }
    dd_engine_lock(hub->engine);
    if (is_own) {
        /* a caller that sleeps for another word continues to sleep */
        (void)window_progress_locked(hub);
    } else {
        dd_peer_ring_bell_locked(hub->extension.peers[rank]);
    }
    dd_engine_unlock(hub->engine);
}

/* ---- start and end of a call */

static void
destroy_call(dd_work *work)
{
    dd_mem_free(((window_call *)work)->copy);
    dd_mem_free(work);
}

static void window_call_on_deadline(dd_timer *timer);

window_call *
window_make_call(window_hub *hub, int rank, const char *label, int64_t start_ns, size_t data_nbytes)
{
    window_call *call = dd_mem_alloc(sizeof *call + data_nbytes);
    if (call != NULL) {
        dd_work_init(&call->work, label, 0, start_ns);
        call->work.destroy = destroy_call;
        memset((char *)call + sizeof call->work, 0, sizeof *call - sizeof call->work);
        call->args.target.rank = rank;
        call->hub = hub;
        dd_list_init(&call->link);
        call->deadline_ns = DD_NEVER_NS;
        dd_timer_init(&call->late, window_call_on_deadline);
        call->data_nbytes = data_nbytes;
    }
    return call;
}

/* Report the number of calls to the group. While callers wait for calls, keep the hub's task in the
 * engine. */
static void
update_task_locked(window_hub *hub)
{
    bool has_calls = !dd_list_is_empty(&hub->waiting) || hub->extension.ncalls > 0;
    if (has_calls == dd_list_is_empty(&hub->task.link)) {
        if (has_calls) {
            dd_engine_add_task_locked(hub->engine, &hub->task);
        } else {
            dd_engine_remove_task_locked(hub->engine, &hub->task);
        }
    }
    dd_group_update_extension_locked(hub->group);
}

/* Return the counter in the group's extension that counts this call. */
static size_t *
count_of(window_call *call)
{
    dd_group_extension *extension = &call->hub->extension;
    return dd_work_is_done(&call->work) ? &extension->nunawaited : &extension->ncalls;
}

void
window_add_locked(window_call *call)
{
    dd_assert_holds(ENGINE);
    window_hub *hub = call->hub;
    (void)dd_work_acquire(&call->work);
    dd_list_push_back(call->is_moving ? &hub->moving : &hub->waiting, &call->link);
    if (call->is_moving) {
        call->window = NULL;
        ++*count_of(call);
        hub->moving_nbytes += sizeof *call + call->data_nbytes;
    } else if (call->uses_messages) {
        dd_context_expect_locked(hub->context, call->args.target.rank, true);
    }
    dd_engine_start_timer_locked(hub->engine, &call->late, call->deadline_ns);
    update_task_locked(hub);
}

void
window_complete_locked(window_call *call, const dd_error *cause)
{
    dd_assert_holds(ENGINE);
    dd_error error;
    if (dd_work_is_done(&call->work)) {
        return;
    }
    if (cause != NULL) {
        error = *cause;
        describe(call->hub, call->args.op->label, call->window_id, &error);
    }
    call->work.error.code = DD_OK; /* reset: an abandoned put may still succeed */
    *count_of(call) -= call->is_moving ? 1 : 0;
    dd_engine_note_ended_locked(call->hub->engine);
    (void)dd_work_complete(&call->work, cause != NULL ? &error : NULL);
    *count_of(call) += call->is_moving ? 1 : 0;
    update_task_locked(call->hub);
}

void
window_remove_locked(window_call *call)
{
    window_hub *hub = call->hub;
    dd_list_remove(&call->link);
    dd_timer_clear(&call->late);
    if (call->is_moving) {
        --*count_of(call);
        hub->moving_nbytes -= sizeof *call + call->data_nbytes;
        hub->nwanted -= call->is_wanted ? 1 : 0;
    } else if (call->uses_messages) {
        dd_context_expect_locked(hub->context, call->args.target.rank, false);
    }
    dd_work_release(&call->work);
    update_task_locked(hub);
}

/* Remove the call from its list before completing it: on_done may end other calls and the group. */
void
window_end_wait_locked(window_call *call, const dd_error *cause)
{
    dd_list_remove(&call->link);
    dd_timer_clear(&call->late);
    window_complete_locked(call, cause);
    window_remove_locked(call);
}

/* End a call if its word has, or can never get, the required value. Return true if it ended. */
static bool
end_if_decided_locked(window_call *call)
{
    int rank = call->args.target.rank;
    dd_error error;
    /* Read is_closed before the word, because signals that the rank sent before it closed count. */
    bool is_closed = has_closed(&call->window->members[rank]);
    bool is_satisfied =
        !(is_closed && call->args.op->needs_open) && window_try_word(call->window, &call->args);
    if (!is_satisfied && is_closed) {
        (void)window_error_closed(call->hub, rank, &error);
    }
    if (is_satisfied || is_closed) {
        window_end_wait_locked(call, is_satisfied ? NULL : &error);
    }
    return is_satisfied || is_closed;
}

bool
window_progress_locked(window_hub *hub)
{
    dd_assert_holds(ENGINE);
    bool is_progress = false;
    for (dd_list *node = hub->waiting.next; node != &hub->waiting;) {
        bool is_ended = end_if_decided_locked(DD_CONTAINER_OF(node, window_call, link));
        is_progress = is_progress || is_ended;
        node = is_ended ? hub->waiting.next : node->next;
    }
    return is_progress;
}

void
window_end_waits_locked(window_hub *hub, const dd_window *window, int rank, const dd_error *cause)
{
    (void)window_progress_locked(hub);
    for (dd_list *node = hub->waiting.next; node != &hub->waiting;) {
        window_call *call = DD_CONTAINER_OF(node, window_call, link);
        node = node->next;
        if ((window == NULL || call->window == window) &&
            (rank == DD_ANY_RANK || call->args.target.rank == rank)) {
            window_end_wait_locked(call, cause);
            node = hub->waiting.next;
        }
    }
}

dd_status
window_begin(window_call *call, dd_error *err)
{
    dd_window *window = call->window;
    dd_engine_lock(call->hub->engine);
    /* Take a signal that has arrived, even if its sender has failed since. */
    bool has_arrived = atomic_load(&window->state) == WINDOW_OPEN && window_try_word(window, &call->args);
    dd_status status = has_arrived ? DD_OK : window_call_check_locked(call, err);
    if (has_arrived) {
        (void)dd_work_complete(&call->work, NULL);
    } else if (status == DD_OK && find_word(window, &call->args) != NULL) {
        window_add_locked(call);
        (void)end_if_decided_locked(call);
    } else if (status == DD_OK) {
        status = window_send_call_locked(call, err);
        if (status != DD_OK) {
            describe(call->hub, call->args.op->label, call->window_id, err);
        }
    }
    dd_engine_unlock(call->hub->engine);
    return status;
}

static void
cancel_call_locked(window_call *call, const dd_error *cause)
{
    dd_timer_clear(&call->late);
    if (call->is_moving) {
        window_abandon_message_locked(call, cause);
    } else {
        window_end_wait_locked(call, cause);
    }
}

static void
window_call_on_deadline(dd_timer *timer)
{
    dd_error error;
    window_call *call = DD_CONTAINER_OF(timer, window_call, late);
    error_timed_out(call, &error);
    cancel_call_locked(call, &error);
}

void
window_abandon(window_call *call)
{
    dd_error cause;
    (void)dd_error_set(&cause, DD_ABORTED, "its caller no longer waits");
    dd_engine_lock(call->hub->engine);
    if (!dd_work_is_done(&call->work)) {
        cancel_call_locked(call, &cause);
    }
    dd_engine_unlock(call->hub->engine);
}

dd_status
window_finish(window_call *call, const dd_wait *wait, dd_error *err)
{
    dd_engine *engine = call->hub->engine;
    dd_wait until_done = dd_wait_without_deadline(wait); /* no deadline, as the call has its own */
    dd_status status = dd_engine_wait(engine, &call->work.is_done, &until_done, err);
    if (status == DD_OK) {
        return dd_work_result(&call->work, err);
    }
    window_abandon(call);
    until_done.is_interrupted = NULL; /* not interruptible: only data remains to be copied */
    (void)!dd_engine_wait(engine, &call->work.is_done, &until_done, NULL);
    return status;
}

/* ---- the task of a hub */

static void
set_parked(window_hub *hub, bool is_parked)
{
    for (dd_list *node = hub->windows.next; node != &hub->windows; node = node->next) {
        const dd_window *window = DD_CONTAINER_OF(node, dd_window, link);
        dd_park_bits *sleeper = &window->members[hub->rank].control->sleeper;
        if (is_parked) {
            dd_park(sleeper, DD_PARK_SOLE);
        } else {
            (void)dd_park_take(sleeper, DD_PARK_SOLE);
        }
    }
    hub->has_slept = is_parked;
}

/* Run by the driver, so this rank is awake: clear its sleep marks, and check the waiting calls. */
static bool
window_call_on_round(dd_task *task)
{
    window_hub *hub = DD_CONTAINER_OF(task, window_hub, task);
    if (hub->has_slept) {
        set_parked(hub, false);
    }
    bool is_copying = window_copy_wanted_locked(hub);
    return window_progress_locked(hub) || is_copying;
}

static bool
window_call_fall_asleep(dd_task *task)
{
    window_hub *hub = DD_CONTAINER_OF(task, window_hub, task);
    bool has_ready = hub->nwanted > 0;
    if (!dd_list_is_empty(&hub->waiting)) {
        set_parked(hub, true);
    }
    for (dd_list *node = hub->waiting.next; node != &hub->waiting && !has_ready; node = node->next) {
        const window_call *call = DD_CONTAINER_OF(node, window_call, link);
        has_ready = has_closed(&call->window->members[call->args.target.rank]) ||
                    is_word_ready(call->args.op, atomic_load(find_word(call->window, &call->args)));
    }
    return !has_ready;
}

dd_task
window_make_task(const window_hub *hub)
{
    return (dd_task){.progress = window_call_on_round,
                     .fall_asleep = window_call_fall_asleep,
                     .is_crowded = hub->extension.is_crowded};
}
