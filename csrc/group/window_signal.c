/* Signals of windows, and whoever waits for them. */
#include "group/window_internal.h"

#include "core/spin.h"

#include <sched.h>

/* A signal that answers ours is there within a microsecond or two: that long nobody is asked for a lock. */
#define SHORT_LOOKS 512
/* Where there are more ranks than cores, each look gives the core away. */
#define CROWDED_LOOKS 8

/* Somebody who waits for a word. */
typedef struct window_waiter {
    dd_list link;
    const char *what;
    int rank;
    int channel;
    bool is_alone; /* wants to signal once the word there is 0; else wants to take one */
    atomic_bool is_done;
    dd_error error; /* of is_done; code DD_OK: got it */
} window_waiter;

static _Atomic uint32_t *
own_word(const dd_window *window, int channel, int source)
{
    return &window->members[window->group->rank].words[window_word(window, channel, source)];
}

static _Atomic uint32_t *
far_word(const dd_window *window, int channel, int rank)
{
    return &window->members[rank].words[window_word(window, channel, window->group->rank)];
}

static window_tally *
tally_of(const dd_window *window, int channel, int rank)
{
    return &window->tallies[window_word(window, channel, rank)];
}

/* ---- words that change, and who is told */

void
window_wake(dd_window *window, int rank)
{
    window_control *control = window->members[rank].control;
    dd_group *group = window->group;
    bool is_own = rank == group->rank;
    if (atomic_load(&control->is_asleep) == 0 || (!is_own && atomic_exchange(&control->is_asleep, 0) == 0)) {
        return;
    }
    dd_engine_lock(group->engine);
    if (is_own) {
        (void)window_progress_locked(window); /* the sleeper sleeps on if it waits for others */
    } else {
        dd_peer_ring_bell_locked(group->peers[rank]);
    }
    dd_engine_unlock(group->engine);
}

void
window_signal_direct(dd_window *window, int rank, int channel)
{
    atomic_fetch_add(far_word(window, channel, rank), 1);
    window_wake(window, rank);
}

static bool
take(_Atomic uint32_t *word)
{
    uint32_t count = atomic_load(word);
    while (count > 0) {
        if (atomic_compare_exchange_weak(word, &count, count - 1)) {
            return true;
        }
    }
    return false;
}

static void
tell_taken_locked(dd_window *window, int source, int channel)
{
    window_tally *tally = tally_of(window, channel, source);
    if (tally->is_to_be_told && atomic_load(own_word(window, channel, source)) == 0) {
        tally->is_to_be_told = false;
        atomic_fetch_sub(&window->nto_be_told, 1);
        window_note_post_taken_locked(window, source, channel);
    }
}

/* After a signal of `source` was taken: it may wait for that. */
static void
note_taken(dd_window *window, int source, int channel)
{
    if (window->members[source].is_direct) {
        window_wake(window, source);
    }
    if (atomic_load(&window->nto_be_told) > 0) {
        dd_engine_lock(window->group->engine);
        tell_taken_locked(window, source, channel);
        dd_engine_unlock(window->group->engine);
        dd_engine_kick(window->group->engine);
    }
}

void
window_on_signal_locked(dd_window *window, int source, int channel)
{
    atomic_fetch_add(own_word(window, channel, source), 1);
    (void)window_progress_locked(window);
}

void
window_on_ask_locked(dd_window *window, int source, int channel)
{
    window_tally *tally = tally_of(window, channel, source);
    if (!tally->is_to_be_told) {
        tally->is_to_be_told = true;
        atomic_fetch_add(&window->nto_be_told, 1);
    }
    tell_taken_locked(window, source, channel);
}

void
window_on_taken_locked(dd_window *window, int source, int channel)
{
    window_tally *tally = tally_of(window, channel, source);
    tally->ntaken = tally->nasked;
    tally->is_asking = false;
    (void)window_progress_locked(window);
}

/* ---- waiters */

/* With the lock, since it goes by notes. */
static bool
try_alone_far_locked(dd_window *window, window_waiter *waiter)
{
    window_tally *tally = tally_of(window, waiter->channel, waiter->rank);
    if (tally->ntaken == tally->nsent) {
        (void)!window_note_post_signal_locked(window, waiter->rank, waiter->channel, &waiter->error);
        return true;
    }
    if (!tally->is_asking &&
        window_note_post_ask_locked(window, waiter->rank, waiter->channel, &waiter->error) != DD_OK) {
        return true;
    }
    if (!tally->is_asking) {
        tally->is_asking = true;
        tally->nasked = tally->nsent;
    }
    return false;
}

static bool
try_alone_direct(dd_window *window, int rank, int channel)
{
    uint32_t none = 0;
    return atomic_compare_exchange_strong(far_word(window, channel, rank), &none, 1);
}

/* Without what follows from it for the other side. */
static bool
try_locked(dd_window *window, window_waiter *waiter)
{
    if (!waiter->is_alone) {
        return take(own_word(window, waiter->channel, waiter->rank));
    }
    return window->members[waiter->rank].is_direct ? try_alone_direct(window, waiter->rank, waiter->channel)
                                                   : try_alone_far_locked(window, waiter);
}

static void
update_task_locked(dd_window *window)
{
    bool is_wanted = !dd_list_is_empty(&window->waiters);
    dd_engine *engine = window->group->engine;
    if (is_wanted && !window->is_task_in) {
        dd_engine_add_task_locked(engine, &window->task);
    } else if (!is_wanted && window->is_task_in) {
        dd_engine_remove_task_locked(engine, &window->task);
    }
    window->is_task_in = is_wanted;
}

static void
add_locked(dd_window *window, window_waiter *waiter)
{
    dd_list_push_back(&window->waiters, &waiter->link);
    if (!window->members[waiter->rank].is_direct) {
        dd_context_expect_locked(window->group->context, waiter->rank, true);
    }
    update_task_locked(window);
}

static void
remove_locked(dd_window *window, window_waiter *waiter)
{
    dd_list_remove(&waiter->link);
    if (!window->members[waiter->rank].is_direct) {
        dd_context_expect_locked(window->group->context, waiter->rank, false);
    }
    update_task_locked(window);
}

static void
finish_locked(dd_window *window, window_waiter *waiter)
{
    remove_locked(window, waiter);
    atomic_store_explicit(&waiter->is_done, true, memory_order_release);
    dd_engine_note_ended_locked(window->group->engine);
}

static bool
has_closed_locked(const dd_window *window, int rank)
{
    return window->members[rank].is_closed || window_has_closed(&window->members[rank]);
}

/* Whether the waiter is through. */
static bool
settle_locked(dd_window *window, window_waiter *waiter)
{
    /* Asked first: what the rank has signalled before it closed counts. */
    bool is_hopeless = has_closed_locked(window, waiter->rank);
    if (is_hopeless && waiter->is_alone) {
        (void)window_error_closed(window, waiter->rank, &waiter->error);
        return true;
    }
    if (!try_locked(window, waiter)) {
        if (is_hopeless) {
            (void)window_error_closed(window, waiter->rank, &waiter->error);
        }
        return is_hopeless;
    }
    return true;
}

bool
window_progress_locked(dd_window *window)
{
    bool is_progress = false;
    for (dd_list *node = window->waiters.next, *next; node != &window->waiters; node = next) {
        next = node->next;
        window_waiter *waiter = DD_CONTAINER_OF(node, window_waiter, link);
        if (settle_locked(window, waiter)) {
            finish_locked(window, waiter);
            is_progress = true;
        }
    }
    return is_progress;
}

void
window_fail_waiters_locked(dd_window *window, int rank, const dd_error *cause)
{
    (void)window_progress_locked(window); /* what has come before counts */
    for (dd_list *node = window->waiters.next, *next; node != &window->waiters; node = next) {
        next = node->next;
        window_waiter *waiter = DD_CONTAINER_OF(node, window_waiter, link);
        if (rank == DD_ANY_RANK || waiter->rank == rank) {
            waiter->error = *cause;
            finish_locked(window, waiter);
        }
    }
}

/* Of the driver: it alone knows that nobody sleeps. */
static bool
on_round(dd_task *task)
{
    dd_window *window = DD_CONTAINER_OF(task, dd_window, task);
    if (window->has_slept) {
        window->has_slept = false;
        atomic_store(&window->members[window->group->rank].control->is_asleep, 0);
    }
    return window_progress_locked(window);
}

static bool
fall_asleep(dd_task *task)
{
    dd_window *window = DD_CONTAINER_OF(task, dd_window, task);
    atomic_store(&window->members[window->group->rank].control->is_asleep, 1);
    bool is_progress = false;
    for (dd_list *node = window->waiters.next; node != &window->waiters && !is_progress; node = node->next) {
        const window_waiter *waiter = DD_CONTAINER_OF(node, window_waiter, link);
        bool is_direct = window->members[waiter->rank].is_direct;
        uint32_t count = !waiter->is_alone ? atomic_load(own_word(window, waiter->channel, waiter->rank))
                         : is_direct       ? atomic_load(far_word(window, waiter->channel, waiter->rank)) == 0
                                           : 0;
        is_progress = count > 0 || has_closed_locked(window, waiter->rank);
    }
    window->has_slept = true;
    return !is_progress;
}

void
window_task_init(dd_window *window)
{
    window->task = (dd_task){
        .progress = on_round,
        .fall_asleep = fall_asleep,
        .deadline_ns = DD_NEVER_NS,
        .is_crowded = window->group->task.is_crowded,
    };
    dd_list_init(&window->task.link);
}

/* ---- waiting */

static dd_status
error_timed_out(const dd_window *window, const window_waiter *waiter, const dd_wait *wait, dd_error *err)
{
    char who[128];
    (void)dd_error_set(err, DD_OP_TIMED_OUT, "timed out after %.3g s; %s has not %s on channel %d",
                       dd_wait_elapsed_s(wait), group_print_member(window->group, waiter->rank, who),
                       waiter->is_alone ? "taken the signal" : "signalled", waiter->channel);
    window_blame(window->group, waiter->rank, err);
    return DD_OP_TIMED_OUT;
}

/* Takes it out, if nobody has finished it meanwhile. */
static bool
withdraw(dd_window *window, window_waiter *waiter)
{
    dd_engine_lock(window->group->engine);
    bool is_withdrawn = !atomic_load_explicit(&waiter->is_done, memory_order_relaxed);
    if (is_withdrawn) {
        remove_locked(window, waiter);
    }
    dd_engine_unlock(window->group->engine);
    return is_withdrawn;
}

static dd_status
enter(dd_window *window, window_waiter *waiter, dd_error *err)
{
    dd_group *group = window->group;
    dd_engine_lock(group->engine);
    /* Whatever has become of its rank since. */
    bool is_there = !waiter->is_alone && atomic_load(&window->state) == WINDOW_OPEN &&
                    take(own_word(window, waiter->channel, waiter->rank));
    atomic_store_explicit(&waiter->is_done, is_there, memory_order_relaxed);
    dd_status status = is_there ? DD_OK : window_check_far_locked(window, waiter->rank, err);
    if (status == DD_OK && !is_there) {
        add_locked(window, waiter);
        (void)window_progress_locked(window);
    }
    dd_engine_unlock(group->engine);
    return status;
}

/* Drives the engine until the waiter has what it wants. */
static dd_status
wait_for(dd_window *window, window_waiter *waiter, const dd_wait *wait, dd_error *err)
{
    dd_list_init(&waiter->link);
    waiter->error.code = DD_OK;
    dd_status status = enter(window, waiter, err);
    if (status == DD_OK) {
        status = dd_engine_wait(window->group->engine, &waiter->is_done, wait, err);
        if (status == DD_OK || !withdraw(window, waiter)) {
            status = waiter->error.code == DD_OK ? DD_OK : dd_error_copy(err, &waiter->error);
        } else if (status == DD_OP_TIMED_OUT) {
            status = error_timed_out(window, waiter, wait, err);
        }
    }
    if (status != DD_OK && status != DD_INTERRUPTED) {
        window_describe(window, waiter->what, err);
    }
    return window_find_cause(window, waiter->what, status, err);
}

static void
look_again(const dd_window *window)
{
    if (window->task.is_crowded) {
        (void)sched_yield();
    } else {
        dd_spin_pause();
    }
}

static int
nlooks(const dd_window *window)
{
    return window->task.is_crowded ? CROWDED_LOOKS : SHORT_LOOKS;
}

static dd_status
check_channel(const dd_window *window, const char *what, int channel, dd_error *err)
{
    if (channel != DD_NO_CHANNEL) {
        return DD_OK;
    }
    (void)dd_error_set(err, DD_INVALID_ARGUMENT, "a signal needs a channel");
    window_describe(window, what, err);
    return DD_INVALID_ARGUMENT;
}

dd_status
dd_window_signal(dd_window *window, int rank, int channel, const dd_wait *wait, dd_error *err)
{
    dd_status status = check_channel(window, "signal", channel, err);
    if (status == DD_OK) {
        status = window_check_open(window, "signal", rank, channel, err);
    }
    if (status == DD_OK && window->members[rank].is_direct) {
        window_signal_direct(window, rank, channel);
    } else if (status == DD_OK) {
        dd_window_place nowhere = {.rank = rank};
        status = dd_window_put(window, (dd_block){.data = NULL}, nowhere, channel, wait, err);
    }
    return status;
}

dd_status
dd_window_wait_signal(dd_window *window, int rank, int channel, const dd_wait *wait, dd_error *err)
{
    const char *what = "wait_signal";
    dd_status status = check_channel(window, what, channel, err);
    if (status == DD_OK) {
        status = window_check(window, what, rank, channel, err);
    }
    if (status != DD_OK) {
        return status;
    }
    _Atomic uint32_t *word = own_word(window, channel, rank);
    bool is_taken = take(word);
    for (int look = nlooks(window); !is_taken && look > 0 && window->members[rank].is_direct; look--) {
        look_again(window);
        is_taken = take(word);
    }
    if (!is_taken) {
        window_waiter waiter = {.what = what, .rank = rank, .channel = channel};
        status = wait_for(window, &waiter, wait, err);
    }
    if (status == DD_OK) {
        note_taken(window, rank, channel);
    }
    return status;
}

dd_status
dd_window_signal_alone(dd_window *window, int rank, int channel, const dd_wait *wait, dd_error *err)
{
    const char *what = "signal_alone";
    dd_status status = check_channel(window, what, channel, err);
    if (status == DD_OK) {
        status = window_check_open(window, what, rank, channel, err);
    }
    if (status != DD_OK) {
        return status;
    }
    bool is_direct = window->members[rank].is_direct;
    bool is_set = is_direct && try_alone_direct(window, rank, channel);
    for (int look = nlooks(window); !is_set && look > 0 && is_direct; look--) {
        look_again(window);
        is_set = try_alone_direct(window, rank, channel);
    }
    if (!is_set) {
        window_waiter waiter = {.what = what, .rank = rank, .channel = channel, .is_alone = true};
        status = wait_for(window, &waiter, wait, err);
    }
    if (status == DD_OK && is_direct) {
        window_wake(window, rank);
    } else if (status == DD_OK) {
        dd_engine_kick(window->group->engine);
    }
    return status;
}

dd_status
dd_window_barrier(dd_window *window, int channel, const dd_wait *wait, dd_error *err)
{
    int size = window->group->size;
    dd_status status = window->has_far_members ? dd_window_flush(window, wait, err) : DD_OK;
    for (int step = 0; step < size && status == DD_OK; step++) {
        status = dd_window_signal_alone(window, (window->group->rank + step) % size, channel, wait, err);
    }
    for (int step = 0; step < size && status == DD_OK; step++) {
        status =
            dd_window_wait_signal(window, (window->group->rank + size - step) % size, channel, wait, err);
    }
    return status;
}
