/* A leg that is an operation of the arena. */
#include "collective/run_internal.h"

#include "core/clock.h"
#include "core/system.h"
#include "core/wait_policy.h"

#include <string.h>

/* ---- requests (wake-ups, regions) of the arena, passed on at the end of a piece */

static void
add_bell(void *ctx, int local)
{
    dd_run *run = ctx;
    dd_arena_ranks_add(&run->arena.bells, local);
}

static void
add_wanted_region(void *ctx, int local, uint32_t id)
{
    dd_run_arena *arena = &((dd_run *)ctx)->arena;
    arena->wanted[arena->nwanted++] = (dd_run_wanted){.local = local, .id = id};
}

static void
flush_requests(dd_run *run)
{
    dd_run_arena *arena = &run->arena;
    for (int k = dd_arena_ranks_pop(&arena->bells); k >= 0; k = dd_arena_ranks_pop(&arena->bells)) {
        run->env.wake(run->env.ctx, k);
    }
    while (arena->nwanted > 0) {
        arena->nwanted--;
        run->env.want_region(run->env.ctx, arena->wanted[arena->nwanted].local,
                             arena->wanted[arena->nwanted].id);
    }
}

void
dd_run_init_arena(dd_run *run)
{
    run->arena.options.wake = add_bell;
    run->arena.options.want_region = add_wanted_region;
    run->arena.options.ctx = run;
}

/* ---- pieces */

static void
arena_leg_start(dd_run *run, const dd_leg *leg)
{
    const dd_topology *topology = run->env.topology;
    run->arena.bells = (dd_arena_ranks){{0}};
    run->arena.nwanted = 0;
    run->arena.options.signature = run->call.signature;
    run->arena.options.sequence = run->call.sequence;
    run->arena.is_large =
        dd_coll_nbytes(&leg->args, topology->local, topology->nlocal) > DD_RUN_LOCKED_NBYTES;
    dd_arena_start(run->env.arena, &leg->args, &run->arena.options);
}

/* Take no piece of a large operation while it is blocked: moving would only release the lock. */
static bool
arena_leg_take(dd_run *run, dd_run_piece *piece)
{
    piece->is_large = run->arena.is_large;
    piece->is_long = piece->is_large && !run->mover.is_catching_up;
    return !piece->is_large || !dd_arena_is_blocked(run->env.arena);
}

static bool
must_lock(const dd_run *run)
{
    static const dd_arena_ranks no_ranks;
    return run->arena.nwanted > 0 || memcmp(&run->arena.bells, &no_ranks, sizeof no_ranks) != 0 ||
           atomic_load_explicit(&run->mover.is_recalled, memory_order_relaxed);
}

/* Poll until another rank has published data that is needed. Return false to lock first. */
static bool
poll_unlocked(const dd_run *run)
{
    bool must_yield = run->env.is_crowded;
    int64_t until_ns = dd_clock_now_ns() + (must_yield ? DD_POLL_PIECE_CROWDED_NS : DD_POLL_PIECE_NS);
    for (unsigned polls = 1; dd_arena_is_blocked(run->env.arena); polls++) {
        if (must_yield) {
            (void)dd_sys_sched_yield();
        } else {
            dd_spin_pause();
        }
        if (must_yield || polls % DD_ROUNDS_PER_CLOCK == 0) {
            must_yield = run->env.is_crowded || dd_arena_must_yield(run->env.arena);
            if (must_lock(run) || dd_clock_now_ns() >= until_ns) {
                return false;
            }
        }
    }
    return true;
}

/* Move one piece and, if stay_ns is set, later pieces without the lock. An operation that is
 * blocked but awaits no rank needs the lock: a region is missing, or a rank has failed. */
static void
arena_leg_move(dd_run *run, dd_run_piece *piece)
{
    dd_arena *arena = run->env.arena;
    int64_t until_ns = piece->stay_ns > 0 ? dd_clock_now_ns() + piece->stay_ns : 0;
    bool goes_on = until_ns > 0;
    bool has_moved = false;
    piece->state = dd_arena_progress(arena);
    while (goes_on && piece->state == DD_ARENA_MOVED) {
        has_moved = true;
        goes_on = !must_lock(run) && dd_clock_now_ns() < until_ns && poll_unlocked(run);
        piece->state = goes_on ? dd_arena_progress(arena) : DD_ARENA_MOVED;
    }
    if (piece->state == DD_ARENA_BLOCKED && has_moved) {
        piece->state = DD_ARENA_MOVED;
    }
}

static dd_leg_state
arena_leg_fail(dd_run *run, dd_arena_state state, dd_error *error)
{
    if (state == DD_ARENA_MISMATCH) {
        run->mismatch = dd_arena_get_mismatch(run->env.arena);
        run->mismatch.rank = run->env.topology->local_ranks[run->mismatch.rank];
        run->mismatch.other = run->env.topology->local_ranks[run->mismatch.other];
        (void)dd_error_set(error, DD_MISMATCH, "%s", "");
        dd_error_blame(error, run->mismatch.rank, NULL, 0);
    } else {
        (void)dd_error_set(error, DD_PROTOCOL,
                           "%s: another rank wrote malformed data into the shared memory of this host",
                           dd_coll_name(run->call.args.coll));
    }
    return DD_LEG_FAILED;
}

static dd_leg_state
arena_leg_end(dd_run *run, const dd_run_piece *piece, dd_error *error)
{
    flush_requests(run);
    switch (piece->state) {
    case DD_ARENA_BLOCKED:
        return DD_LEG_STUCK;
    case DD_ARENA_MOVED:
        return DD_LEG_MOVED;
    case DD_ARENA_DONE:
        return DD_LEG_DONE;
    case DD_ARENA_MISMATCH:
    case DD_ARENA_BROKEN:
        break;
    }
    return arena_leg_fail(run, piece->state, error);
}

/* ---- waiting */

static bool
arena_leg_may_sleep(dd_run *run)
{
    return dd_arena_fall_asleep(run->env.arena);
}

static int
arena_leg_missing(const dd_run *run, int *ranks, int nfound, int max)
{
    if (dd_run_is_moving_locked(run)) {
        return nfound;
    }
    dd_arena_ranks missing = dd_arena_missing(run->env.arena);
    for (int local = 0; local < run->env.topology->nlocal && nfound < max; local++) {
        if (dd_arena_ranks_have(&missing, local)) {
            dd_plan_run_note_rank(ranks, &nfound, run->env.topology->local_ranks[local]);
        }
    }
    return nfound;
}

static bool
arena_leg_needs_core(dd_run *run)
{
    return !dd_run_is_moving_locked(run) && dd_arena_must_yield(run->env.arena);
}

const dd_leg_ops dd_leg_arena = {
    .start = arena_leg_start,
    .take = arena_leg_take,
    .move = arena_leg_move,
    .end = arena_leg_end,
    .may_sleep = arena_leg_may_sleep,
    .missing = arena_leg_missing,
    .needs_core = arena_leg_needs_core,
    .is_polled = true,
};
