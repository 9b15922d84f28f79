/* The driver: which thread drives the engine, how it drives, and how it sleeps. */
#include "transport/engine_internal.h"

#include "core/assert.h"
#include "core/fence.h"
#include "core/lock.h"
#include "core/system.h"
#include "core/thread.h"

#include <time.h>

#define FLUSH_STEP_NS DD_NS_PER_MS
#define EVENTS_MAX 32
/* Limit of rounds that the background thread runs at a time while callers are active. */
#define ROUNDS_PER_POLL 64
/* A caller that polls only one peer runs a full round in one of this many calls. */
#define CALLS_PER_ROUND 64u

/* Increment a counter that other threads read. All writers hold the lock, so a store suffices. */
static void
count_up(atomic_uint_fast64_t *counter)
{
    uint64_t before = atomic_load_explicit(counter, memory_order_relaxed);
    atomic_store_explicit(counter, before + 1, memory_order_relaxed);
}

/* Yield to the awaited thread, which needs this core. Returns false if the yield took long. */
static bool
yield_core(const dd_engine *engine)
{
    int64_t began_ns = dd_clock_now_ns();
    (void)dd_sys_sched_yield();
    return dd_clock_now_ns() - began_ns < DD_YIELD_LONG_NS || dd_spin_is_endless(&engine->spin);
}

bool
dd_engine_yield_locked(dd_engine *engine)
{
    if (engine->spin.max_ns == 0) {
        return false;
    }
    dd_engine_unlock(engine);
    bool is_short = yield_core(engine);
    dd_engine_lock(engine);
    return is_short;
}

void
dd_engine_take_over_locked(dd_engine *engine)
{
    dd_assert_holds(ENGINE);
    if (engine->driver == &engine->background) {
        engine_wake_driver(engine);
        engine->driver = NULL;
    }
}

void
dd_engine_note_call_locked(dd_engine *engine)
{
    dd_assert_holds(ENGINE);
    count_up(&engine->ncalls);
}

void
dd_engine_note_active_locked(dd_engine *engine)
{
    count_up(&engine->ndrives);
    dd_engine_take_over_locked(engine);
}

/* ---- the driver's sleep */

static int
timeout_until_ms(int64_t until_ns)
{
    int64_t left_ms = (dd_deadline_left_ns(until_ns) + DD_NS_PER_MS - 1) / DD_NS_PER_MS;
    return left_ms < 60000 ? (int)left_ms : 60000;
}

/* Sleep on the links, without the lock. Afterwards, another thread may be the driver. */
static void
sleep_on_links(dd_engine *engine, dd_waiter *self, int64_t until_ns)
{
    struct epoll_event events[EVENTS_MAX];
    int timeout_ms = until_ns == DD_NEVER_NS ? -1 : timeout_until_ms(until_ns);
    unsigned generation = engine->lane_generation;
    self->is_asleep = true;
    engine->nsleeping++;
    dd_engine_unlock(engine);
    int nevents = dd_sys_epoll_wait(engine->epoll_fd, events, EVENTS_MAX, timeout_ms);
    dd_engine_lock(engine);
    engine->nsleeping--;
    self->is_asleep = false;
    /* An event may point to a lane that has been destroyed meanwhile. If any lane has been
     * destroyed, drop all events: epoll reports the valid ones again. */
    if (engine->driver == self && engine->lane_generation == generation) {
        (void)engine_handle_events(engine, events, nevents);
    } else if (engine->driver != self) {
        engine_drain_wake_fd(engine);
    }
}

/* ---- driving the engine */

/* State of one call of drive(), the loop of the driver. */
typedef struct drive_state {
    dd_waiter *self;
    const dd_wait *wait;
    int64_t check_ns;       /* time at which drive() returns to check `wait`; 0 if not known yet */
    int64_t idle_since_ns;  /* start of the rounds without progress; 0 after progress */
    int64_t polls_until_ns; /* time at which polling ends; 0 after sleep or progress */
    unsigned nidle;
} drive_state;

/* Read the clock; the first call also sets check_ns. A short drive() never reads the clock. */
static int64_t
read_drive_clock(drive_state *state)
{
    int64_t now_ns = dd_clock_now_ns();
    if (state->check_ns == 0) {
        state->check_ns = now_ns + dd_wait_slice_ns(state->wait);
    }
    return now_ns;
}

static int64_t
choose_budget_ns(const dd_engine *engine, const dd_waiter *self)
{
    /* If ranks outnumber the cores, waits are long because other ranks compute. So the length of
     * past waits predicts nothing: use the maximum. */
    int64_t budget_ns = engine->is_outnumbered ? engine->spin.max_ns : engine->spin.budget_ns;
    bool is_idle = dd_list_is_empty(&engine->tasks) && engine->nposted == 0;
    if (self->is_background && budget_ns > DD_POLL_BACKGROUND_NS) {
        budget_ns = is_idle ? 0 : DD_POLL_BACKGROUND_NS;
    }
    return budget_ns;
}

/* Return true if the driver must continue to poll, false if it must sleep. */
static bool
poll_on(const dd_engine *engine, drive_state *state, int64_t now_ns)
{
    if (state->idle_since_ns == 0) {
        state->idle_since_ns = now_ns;
    }
    if (state->polls_until_ns == 0) {
        state->polls_until_ns = now_ns + choose_budget_ns(engine, state->self);
    }
    return now_ns < state->polls_until_ns && (!engine->is_crowded || yield_core(engine));
}

static void
drive_note_progress(dd_engine *engine, drive_state *state)
{
    if (state->idle_since_ns != 0 && !engine->is_outnumbered && !state->self->is_background) {
        dd_spin_note_wait(&engine->spin, dd_clock_now_ns() - state->idle_since_ns);
    }
    state->idle_since_ns = 0;
    state->polls_until_ns = 0;
}

/* Spin, run timers, or sleep, after a round without work. Returns false to end driving. */
static bool
idle(dd_engine *engine, drive_state *state)
{
    if (++state->nidle % DD_ROUNDS_PER_CLOCK != 0 && !engine->is_crowded) {
        dd_spin_pause();
        return true;
    }
    int64_t now_ns = read_drive_clock(state);
    int64_t next_ns = engine_run_timers(engine, now_ns);
    if (now_ns >= state->check_ns || !dd_list_is_empty(&engine->done)) {
        return now_ns < state->check_ns;
    }
    if (poll_on(engine, state, now_ns)) {
        return true;
    }
    if (!engine_fall_asleep(engine)) {
        state->polls_until_ns = 0; /* poll again, which yields the core if ranks share it */
        return true;
    }
    sleep_on_links(engine, state->self, next_ns < state->check_ns ? next_ns : state->check_ns);
    state->polls_until_ns = 0;
    return engine->driver == state->self;
}

/* Drive until the waiter is done, `wait` must be checked, or another thread is the driver. */
static void
drive(dd_engine *engine, dd_waiter *self, const dd_wait *wait)
{
    drive_state state = {.self = self, .wait = wait};
    state.check_ns = wait == NULL ? DD_NEVER_NS : 0;
    for (unsigned nbusy = 1;; nbusy++) {
        bool is_progress = engine_run_round(engine);
        if (is_progress) {
            drive_note_progress(engine, &state);
        }
        if (waiter_is_done(self) || engine->driver != self) {
            return; /* a task may have released the lock: another thread may drive */
        }
        if (is_progress && !dd_list_is_empty(&engine->waiters)) {
            engine_wake_done_waiters(engine);
        }
        if (atomic_load_explicit(&engine->nlockers, memory_order_relaxed) > 0) {
            engine_yield_lock(engine);
            if (engine->driver != self || waiter_is_done(self)) {
                return;
            }
        }
        if (is_progress && nbusy % 64 == 0) {
            int64_t now_ns = read_drive_clock(&state);
            (void)engine_run_timers(engine, now_ns);
            if (now_ns >= state.check_ns) {
                return;
            }
        } else if (!is_progress && !idle(engine, &state)) {
            return;
        }
    }
}

/* ---- waiting for an operation */

static bool
may_drive(const dd_engine *engine, const dd_waiter *self)
{
    const dd_waiter *driver = engine->driver;
    return driver == NULL || driver == self || driver->is_asleep || driver->is_background;
}

static void
become_driver(dd_engine *engine, dd_waiter *self)
{
    engine_wake_driver(engine); /* wake the previous driver, which is no longer the driver */
    engine->driver = self;
    atomic_store_explicit(&engine->is_driven, !self->is_background, memory_order_relaxed);
}

/* Stop driving. The next waiter drives or, if none, the background thread after its nap. */
static void
drive_release(dd_engine *engine, dd_waiter *self)
{
    if (engine->driver != self) {
        return;
    }
    engine->driver = NULL;
    engine_note_undriven(engine);
    for (dd_list *node = engine->waiters.next; node != &engine->waiters; node = node->next) {
        dd_waiter *other = DD_CONTAINER_OF(node, dd_waiter, link);
        dd_cond_signal(&other->turn);
        if (!waiter_is_done(other)) {
            return;
        }
    }
    if (!self->is_background) {
        engine_cut_nap_short(engine);
    }
}

static void
wait_for_turn(dd_engine *engine, dd_waiter *self, const dd_wait *wait)
{
    dd_list_push_back(&engine->waiters, &self->link);
    dd_cond_wait_slice(&self->turn, &engine->mu, wait);
    dd_list_remove(&self->link);
}

/* Drive, or wait for the turn to drive, until the waiter is done. The caller must hold the lock,
 * which is released while the caller's interrupt is checked. */
static dd_status
wait_locked(dd_engine *engine, dd_waiter *self, const dd_wait *wait, dd_error *err)
{
    for (;;) {
        if (may_drive(engine, self)) {
            become_driver(engine, self);
            drive(engine, self, wait);
        } else {
            wait_for_turn(engine, self, wait);
        }
        if (waiter_is_done(self)) {
            return DD_OK;
        }
        if (wait->is_interrupted != NULL) {
            /* Check the interrupt before the deadline: a caller may wait in slices shorter than the
             * driver's. The check may take long, and may itself wait for this engine, so let other
             * threads drive during the check. */
            drive_release(engine, self);
            dd_engine_unlock(engine);
            dd_status status = dd_wait_check(wait, err);
            dd_engine_lock(engine);
            if (status != DD_OK) {
                return status;
            }
        }
        if (waiter_is_done(self)) {
            return DD_OK;
        }
        if (dd_wait_has_expired(wait)) {
            return DD_OP_TIMED_OUT;
        }
    }
}

void
dd_engine_prepare_driver_locked(dd_engine *engine)
{
    if (engine->driver != NULL && engine->driver->is_asleep && !engine_fall_asleep(engine)) {
        engine_wake(engine);
    }
}

void
dd_engine_receive_locked(dd_engine *engine)
{
    engine_receive_all(engine);
    engine_end_broken_peers(engine);
    engine_notify_done(engine);
    dd_engine_prepare_driver_locked(engine);
}

/* Delay a caller until failure notices to other ranks have left this process, or 200 ms have
 * passed: the caller may end the process as soon as the failure is reported. */
static void
finish_notices_locked(dd_engine *engine, dd_waiter *self)
{
    static const struct timespec pause = {.tv_nsec = 200 * DD_NS_PER_US};
    while (engine->notices_until_ns != 0) {
        if (may_drive(engine, self)) {
            (void)engine_run_round(engine);
            engine_wake_done_waiters(engine);
        } /* otherwise the driver runs rounds */
        if (!engine_is_notifying(engine) || dd_clock_now_ns() >= engine->notices_until_ns) {
            engine->notices_until_ns = 0;
            dd_engine_prepare_driver_locked(engine);
            return;
        }
        dd_engine_unlock(engine);
        (void)dd_sys_nanosleep(&pause, NULL);
        dd_engine_lock(engine);
    }
}

dd_status
dd_engine_wait(dd_engine *engine, const atomic_bool *is_done, const dd_wait *wait, dd_error *err)
{
    if (atomic_load_explicit(is_done, memory_order_acquire)) {
        return DD_OK;
    }
    dd_status status = dd_engine_check_fork(engine, err);
    if (status != DD_OK) {
        return status;
    }
    dd_waiter self = {.is_done = is_done};
    dd_cond_init(&self.turn);
    dd_list_init(&self.link);
    dd_engine_lock(engine);
    dd_engine_note_active_locked(engine);
    status = wait_locked(engine, &self, wait, err);
    finish_notices_locked(engine, &self);
    drive_release(engine, &self);
    dd_engine_unlock(engine);
    dd_cond_fini(&self.turn);
    return status;
}

/* The first wait is 0: GOODBYEs of small groups need one round, full connections more. */
void
engine_flush(dd_engine *engine, bool (*is_done)(void *ctx), void *ctx, const dd_wait *wait)
{
    atomic_bool never = false;
    dd_wait step = dd_wait_at_most(wait, 0);
    for (;;) {
        dd_engine_lock(engine);
        bool has_flushed = is_done(ctx);
        dd_engine_unlock(engine);
        if (has_flushed || dd_wait_has_expired(wait) ||
            dd_engine_wait(engine, &never, &step, NULL) == DD_INTERRUPTED) {
            return;
        }
        step = dd_wait_at_most(wait, FLUSH_STEP_NS);
    }
}

void
dd_engine_finish_notices_locked(dd_engine *engine)
{
    dd_waiter waiter = {.is_done = NULL};
    finish_notices_locked(engine, &waiter);
}

static bool
has_output(const dd_engine *engine)
{
    const dd_list *lists[] = {&engine->shm_lanes, &engine->tcp_lanes};
    for (int i = 0; i < 2; i++) {
        for (const dd_list *node = lists[i]->next; node != lists[i]; node = node->next) {
            if (lane_has_output(DD_CONTAINER_OF(node, dd_lane, link))) {
                return true;
            }
        }
    }
    return false;
}

static bool
has_work(const dd_engine *engine)
{
    return has_output(engine) || !dd_list_is_empty(&engine->tasks);
}

/* Return true if no posted message, output or task needs a driver. */
static bool
is_idle(const dd_engine *engine)
{
    return !has_work(engine) && engine->nposted == 0;
}

void
dd_engine_kick(dd_engine *engine)
{
    if (dd_engine_check_fork(engine, NULL) != DD_OK) {
        return;
    }
    dd_engine_lock(engine);
    dd_waiter *driver = engine->driver;
    if (driver == NULL || driver->is_asleep) {
        /* Most sends end after one round. A process without peers has no background thread and must
         * do all work here. */
        while (engine_run_round(engine)) {
            engine_wake_done_waiters(engine);
            if (engine->has_thread || engine->driver != driver) {
                break;
            }
        }
        if (driver == NULL) {
            if (!is_idle(engine)) {
                engine_wake(engine);
            }
        } else if (has_work(engine)) {
            engine_wake(engine);
        } else {
            dd_engine_prepare_driver_locked(engine);
        }
    }
    dd_engine_unlock(engine);
}

/* ---- the background thread */

/* Run rounds without becoming the driver: a driver would sleep on the links until a caller wakes
 * it. */
static void
drive_run_rounds(dd_engine *engine)
{
    for (int round = 0; round < ROUNDS_PER_POLL && engine_run_round(engine); round++) {
    }
    (void)engine_run_timers(engine, dd_clock_now_ns());
    engine_wake_done_waiters(engine);
}

static void *
run_background(void *arg)
{
    dd_engine *engine = arg;
    dd_waiter *self = &engine->background;
    engine_callers_seen seen = {0};
    dd_fence_register(); /* no caller waits for this: creating a group takes longer */
    while (engine_nap(engine, &seen)) {
        dd_engine_lock(engine);
        if (engine->driver == NULL && seen.are_active && is_idle(engine)) {
            drive_run_rounds(engine);
        }
        if (engine->driver == NULL && !(seen.are_active && is_idle(engine))) {
            become_driver(engine, self);
            drive(engine, self, NULL);
            drive_release(engine, self);
        }
        dd_engine_unlock(engine);
    }
    return NULL;
}

void
engine_drive_init(dd_engine *engine)
{
    atomic_init(&engine->nlockers, 0);
    atomic_init(&engine->is_stopped, false);
    dd_list_init(&engine->waiters);
    engine->background = (dd_waiter){.is_background = true, .is_done = &engine->is_stopped};
    dd_list_init(&engine->background.link);
    engine_nap_init(engine);
    engine->spin = dd_spin_create(DD_POLL_PEERS_NS);
}

dd_status
engine_start_background(dd_engine *engine, dd_error *err)
{
    if (engine->has_thread) {
        return DD_OK;
    }
    dd_status status = dd_thread_start(&engine->thread, "dldist-engine", run_background, engine, err);
    dd_engine_lock(engine);
    engine->has_thread = status == DD_OK;
    dd_engine_unlock(engine);
    return status;
}

void
engine_stop_background(dd_engine *engine)
{
    if (!engine->has_thread) {
        return;
    }
    dd_lock_take(&engine->nap_mu);
    engine->is_stopping = true;
    dd_cond_signal(&engine->nap);
    dd_lock_release(&engine->nap_mu);
    dd_engine_lock(engine);
    atomic_store_explicit(&engine->is_stopped, true, memory_order_release);
    engine_wake_driver(engine);
    dd_engine_unlock(engine);
    dd_thread_join(engine->thread);
    engine->has_thread = false; /* no other thread uses the engine from here on */
}

/* ---- polling for the end of one message */

/* Return the lane of the peer that uses shared memory, or NULL if there is none. */
static dd_lane *
shm_lane(const dd_peer *peer)
{
    return peer->nlanes > 0 && peer->lanes[0]->stream->is_shared_memory ? peer->lanes[0] : NULL;
}

static void
drive_serve_peer(dd_peer *peer)
{
    dd_lane *lane = shm_lane(peer);
    if (lane == NULL) {
        (void)self_deliver(peer->engine);
        return;
    }
    if (!lane->is_ended) {
        (void)lane_receive(lane);
    }
    if (lane_has_output(lane)) {
        (void)lane_pump(lane);
    }
}

/* Return true if only one message is posted, and there are no tasks or prompt requests. */
static bool
is_alone(const dd_engine *engine)
{
    return engine->nposted == 1 && dd_list_is_empty(&engine->tasks) &&
           atomic_load_explicit(&engine->nprompt, memory_order_relaxed) == 0;
}

bool
dd_context_poll_locked(dd_message *message, int npolls)
{
    dd_assert_holds(ENGINE);
    dd_engine *engine = message->context->engine;
    dd_peer *peer = message->peer; /* NULL if the message is a receive from any rank */
    if (peer != NULL && !peer->is_self && shm_lane(peer) == NULL) {
        return false;
    }
    if (engine->spin.max_ns == 0) {
        npolls = 1;
    }
    /* Run full rounds in some of the calls, so that frequent calls do not delay other work. */
    bool is_due = atomic_load_explicit(&engine->ndrives, memory_order_relaxed) % CALLS_PER_ROUND == 0;
    dd_engine_note_active_locked(engine);
    bool is_narrow = peer != NULL && !is_due && is_alone(engine);
    for (int npolled = 0; npolled < npolls; npolled += is_narrow ? 1 : DD_POLLS_PER_ROUND) {
        if (is_narrow) {
            drive_serve_peer(peer);
        } else {
            (void)engine_run_round(engine);
        }
        if (dd_context_notify_locked(message) ||
            atomic_load_explicit(&engine->nlockers, memory_order_relaxed) > 0) {
            break;
        }
        dd_spin_pause();
    }
    engine_notify_done(engine); /* notify the owners of other messages */
    dd_engine_prepare_driver_locked(engine);
    return !message->is_posted;
}
