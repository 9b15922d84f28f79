/* Signals, and waiting: for words in memory, or for notes about signals and puts. */
#include "core/spin.h"
#include "window/window_internal.h"

#include <sched.h>

/* A signal that answers ours comes within a microsecond or two. So long it is looked for without any lock. */
#define SHORT_LOOKS 512
/* With more ranks than cores, the core is given away after each look. */
#define CROWDED_LOOKS 8

/* ---- words */

static _Atomic uint32_t *
own_word(const dd_window *window, int channel, int source)
{
    return &window->members[window->hub->rank].words[window_word(window, channel, source)];
}

static _Atomic uint32_t *
far_word(const dd_window *window, int channel, int rank)
{
    return &window->members[rank].words[window_word(window, channel, window->hub->rank)];
}

void
window_wake(dd_window *window, int rank)
{
    window_control *control = window->members[rank].control;
    window_hub *hub = window->hub;
    bool is_own = rank == hub->rank;
    if (atomic_load(&control->is_asleep) == 0 || (!is_own && atomic_exchange(&control->is_asleep, 0) == 0)) {
        return;
    }
    dd_engine_lock(hub->engine);
    if (is_own) {
        (void)window_progress_locked(hub); /* a sleeper that waits for something else sleeps on */
    } else {
        dd_peer_ring_bell_locked(hub->guest.peers[rank]);
    }
    dd_engine_unlock(hub->engine);
}

void
window_signal_direct(dd_window *window, int rank, int channel)
{
    atomic_fetch_add(far_word(window, channel, rank), 1);
    window_wake(window, rank);
}

static inline bool
is_as_wished(const window_op *op, uint32_t count)
{
    return op->wish == WINDOW_WISH_SIGNAL ? count > 0 : count == 0;
}

_Atomic uint32_t *
window_find_word(const dd_window *window, const window_op *op, int rank, int channel)
{
    if (op->wish == WINDOW_WISH_SIGNAL) {
        return own_word(window, channel, rank);
    }
    bool is_direct = window->members[rank].is_direct;
    return op->wish == WINDOW_WISH_ROOM && is_direct ? far_word(window, channel, rank) : NULL;
}

bool
window_is_word_there(const window_op *op, _Atomic uint32_t *word)
{
    return word != NULL && is_as_wished(op, atomic_load(word));
}

bool
window_try_word(const window_op *op, _Atomic uint32_t *word)
{
    uint32_t count = word != NULL ? atomic_load(word) : 0;
    while (word != NULL && is_as_wished(op, count)) {
        if (atomic_compare_exchange_weak(word, &count, op->wish == WINDOW_WISH_SIGNAL ? count - 1 : 1)) {
            return true;
        }
    }
    return false;
}

/* ---- notes that ask, and answer */

/* A put, or a signal alone. */
dd_status
window_send_put_locked(dd_window *window, const window_order *order, dd_error *err)
{
    dd_status status = window_send_locked(window->hub, order, err);
    if (status == DD_OK && order->note.nbytes > 0) {
        window_tally_of(window, DD_WINDOW_NO_CHANNEL, order->rank)->nsent++;
    }
    if (status == DD_OK && order->note.channel != DD_WINDOW_NO_CHANNEL) {
        window_tally_of(window, order->note.channel, order->rank)->nsent++;
    }
    return status;
}

static dd_status
ask_locked(dd_window *window, int rank, uint32_t channel, dd_error *err)
{
    window_tally *tally = window_tally_of(window, channel, rank);
    window_order order = {.rank = rank,
                          .note = {.type = DD_WINDOW_ASK, .channel = channel, .window = window->id}};
    if (tally->is_asking) {
        return DD_OK;
    }
    dd_status status = window_send_locked(window->hub, &order, err);
    tally->is_asking = status == DD_OK;
    tally->nasked = tally->nsent;
    return status;
}

static bool
try_alone_locked(window_call *call, dd_error *error)
{
    dd_window *window = call->window;
    uint32_t channel = (uint32_t)call->channel;
    const window_tally *tally = window_tally_of(window, channel, call->rank);
    if (tally->ntaken != tally->nsent) {
        return ask_locked(window, call->rank, channel, error) != DD_OK;
    }
    window_order order = {.rank = call->rank,
                          .note = {.type = DD_WINDOW_PUT, .channel = channel, .window = window->id}};
    (void)!window_send_put_locked(window, &order, error);
    return true;
}

static bool
try_flush_locked(window_call *call, dd_error *error)
{
    const window_tally *tally = window_tally_of(call->window, DD_WINDOW_NO_CHANNEL, call->rank);
    return (int32_t)(tally->ntaken - call->goal) >= 0 ||
           ask_locked(call->window, call->rank, DD_WINDOW_NO_CHANNEL, error) != DD_OK;
}

static void
answer_locked(dd_window *window, int source, uint32_t channel)
{
    window_order order = {.rank = source,
                          .note = {.type = DD_WINDOW_DONE, .channel = channel, .window = window->id},
                          .is_answer = true};
    window_send_or_fail_locked(window->hub, &order);
}

static void
tell_taken_locked(dd_window *window, int source, int channel)
{
    window_tally *tally = window_tally_of(window, (uint32_t)channel, source);
    if (tally->is_to_be_told && atomic_load(own_word(window, channel, source)) == 0) {
        tally->is_to_be_told = false;
        atomic_fetch_sub(&window->nto_be_told, 1);
        answer_locked(window, source, (uint32_t)channel);
    }
}

void
window_on_signal_locked(dd_window *window, int source, int channel)
{
    atomic_fetch_add(own_word(window, channel, source), 1);
    (void)window_progress_locked(window->hub);
}

void
window_on_ask_locked(dd_window *window, int source, uint32_t channel)
{
    if (channel == DD_WINDOW_NO_CHANNEL) { /* what was put before is in place when this note is taken */
        answer_locked(window, source, channel);
        return;
    }
    window_tally *tally = window_tally_of(window, channel, source);
    if (!tally->is_to_be_told) {
        tally->is_to_be_told = true;
        atomic_fetch_add(&window->nto_be_told, 1);
    }
    tell_taken_locked(window, source, (int)channel);
}

void
window_on_done_locked(dd_window *window, int source, uint32_t channel)
{
    window_tally *tally = window_tally_of(window, channel, source);
    tally->ntaken = tally->nasked;
    tally->is_asking = false;
    (void)window_progress_locked(window->hub);
}

/* After taking a signal of `source`, which may be waiting for that. */
static void
note_taken(dd_window *window, int source, int channel)
{
    if (window->members[source].is_direct) {
        window_wake(window, source);
    }
    if (atomic_load(&window->nto_be_told) > 0) {
        dd_engine_lock(window->hub->engine);
        tell_taken_locked(window, source, channel);
        dd_engine_unlock(window->hub->engine);
        dd_engine_kick(window->hub->engine);
    }
}

/* ---- waiting for words */

static const window_op op_flush = {.what = "flush", .lack = "answered", .try_far_locked = try_flush_locked};
static const window_op op_alone = {.what = "signal_alone",
                                   .lack = "taken the signal",
                                   .needs_channel = true,
                                   .needs_open = true,
                                   .wish = WINDOW_WISH_ROOM,
                                   .try_far_locked = try_alone_locked};
/* Does not need the window to be open there: signals from before it was closed count. */
static const window_op op_wait = {
    .what = "wait_signal", .lack = "signalled", .needs_channel = true, .wish = WINDOW_WISH_SIGNAL};

/* Looks for a moment, without a lock. */
static bool
take_soon(const dd_window *window, const window_op *op, int rank, int channel)
{
    bool is_crowded = window->hub->task.is_crowded;
    int nlooks = !window->members[rank].is_direct ? 0 : is_crowded ? CROWDED_LOOKS : SHORT_LOOKS;
    _Atomic uint32_t *word = window_find_word(window, op, rank, channel);
    while (!window_try_word(op, word)) {
        if (nlooks-- == 0) {
            return false;
        }
        if (is_crowded) {
            (void)sched_yield();
        } else {
            dd_spin_pause();
        }
    }
    return true;
}

/* call->goal is set. */
static dd_status
wait_for(dd_window *window, window_call *call, int channel, const dd_wait *wait, dd_error *err)
{
    window_hub *hub = window->hub;
    const window_op *op = call->op;
    call->window = window;
    call->channel = channel;
    call->deadline_ns = wait->deadline_ns;
    dd_engine_lock(hub->engine);
    /* A signal that is there is taken, whatever has become of its rank since. */
    bool is_there = atomic_load(&window->state) == WINDOW_OPEN &&
                    window_try_word(op, window_find_word(window, op, call->rank, channel));
    dd_status status = is_there ? DD_OK : window_check_locked(window, op, call->rank, err);
    if (status == DD_OK && !is_there) {
        window_enter_locked(call);
        (void)window_settle_locked(call);
    }
    dd_engine_unlock(hub->engine);
    if (status == DD_OK && !is_there) {
        status = window_finish(call, wait, err);
    }
    return window_conclude(hub, op->what, status, err);
}

static dd_status
run_wait(dd_window *window, const window_op *op, int rank, int channel, const dd_wait *wait, dd_error *err)
{
    dd_status status = window_check(window, op, (dd_window_place){.rank = rank}, 0, channel, err);
    if (status == DD_OK && !take_soon(window, op, rank, channel)) {
        window_call call;
        window_init_call(&call, window, op, rank, wait->start_ns);
        status = wait_for(window, &call, channel, wait, err);
    }
    return status;
}

dd_status
dd_window_wait_signal(dd_window *window, int rank, int channel, const dd_wait *wait, dd_error *err)
{
    dd_status status = run_wait(window, &op_wait, rank, channel, wait, err);
    if (status == DD_OK) {
        note_taken(window, rank, channel);
    }
    return status;
}

dd_status
dd_window_signal_alone(dd_window *window, int rank, int channel, const dd_wait *wait, dd_error *err)
{
    dd_status status = run_wait(window, &op_alone, rank, channel, wait, err);
    if (status == DD_OK && window->members[rank].is_direct) {
        window_wake(window, rank);
    } else if (status == DD_OK) {
        dd_engine_kick(window->hub->engine);
    }
    return status;
}

/* Asks the rank whether all is in place. False: it is. */
static bool
begin_flush(dd_window *window, int rank, uint32_t *goal)
{
    dd_error ignored; /* the wait meets it again */
    dd_engine_lock(window->hub->engine);
    const window_tally *tally = window_tally_of(window, DD_WINDOW_NO_CHANNEL, rank);
    *goal = tally->nsent;
    bool is_needed = tally->ntaken != tally->nsent;
    if (is_needed) {
        (void)!ask_locked(window, rank, DD_WINDOW_NO_CHANNEL, &ignored);
    }
    dd_engine_unlock(window->hub->engine);
    return is_needed;
}

dd_status
dd_window_flush(dd_window *window, const dd_wait *wait, dd_error *err)
{
    int size = window->hub->size;
    window_call call;
    dd_status status =
        window_check(window, &op_flush, (dd_window_place){.rank = window->hub->rank}, 0, DD_NO_CHANNEL, err);
    if (!window->has_far_members) {
        return status;
    }
    /* All are asked before the first is waited for. */
    for (int rank = 0; rank < size && status == DD_OK; rank++) {
        (void)begin_flush(window, rank, &call.goal);
    }
    for (int rank = 0; rank < size && status == DD_OK; rank++) {
        if (begin_flush(window, rank, &call.goal)) {
            window_init_call(&call, window, &op_flush, rank, wait->start_ns);
            status = wait_for(window, &call, DD_NO_CHANNEL, wait, err);
        }
    }
    return status;
}

dd_status
dd_window_barrier(dd_window *window, int channel, const dd_wait *wait, dd_error *err)
{
    int size = window->hub->size;
    int rank = window->hub->rank;
    dd_status status = window->has_far_members ? dd_window_flush(window, wait, err) : DD_OK;
    for (int step = 0; step < size && status == DD_OK; step++) {
        status = dd_window_signal_alone(window, (rank + step) % size, channel, wait, err);
    }
    for (int step = 0; step < size && status == DD_OK; step++) {
        status = dd_window_wait_signal(window, (rank + size - step) % size, channel, wait, err);
    }
    return status;
}
