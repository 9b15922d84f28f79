/* A leg that a carrier (an external library) moves as a whole collective. First, the ranks of this
 * host join the call on the arena's board. */
#include "collective/run_internal.h"

#include "collective/arena/board.h"
#include "core/clock.h"
#include "core/system.h"
#include "core/wait_policy.h"

#include <string.h>

/* Time that a cancelled operation has to end by itself: the other ranks take part in it, or have
 * exited. */
#define CANCEL_NS (100 * DD_NS_PER_MS)

dd_status
dd_run_set_carrier_locked(dd_run *run, dd_carrier *carrier, dd_error *err)
{
    const dd_topology *topology = run->env.topology;
    bool is_on_one_board = topology->nranks == 1 || (topology->nhosts == 1 && run->env.arena != NULL);
    dd_status status = dd_conversion_create(topology->rank, topology->nranks, &run->carried.conversion, err);
    if (status == DD_OK && !is_on_one_board) {
        status = dd_run_create_comparison(topology->nranks, &run->carried.comparison, err);
    }
    if (status == DD_OK) {
        run->carried.carrier = carrier;
    }
    return status;
}

static bool
is_in_library(const dd_run_carried *carried)
{
    return carried->state > DD_CARRIED_GATHERING;
}

dd_carrier *
dd_run_carrier(const dd_run *run)
{
    return run->carried.carrier;
}

static bool
carrier_leg_does_poll_yield(const dd_run *run)
{
    return is_in_library(&run->carried) && run->carried.carrier->library->yields_core;
}

uint64_t
dd_run_count_carried_locked(const dd_run *run)
{
    return run->carried.ncalls;
}

bool
dd_run_keeps_memory_locked(const dd_run *run)
{
    return run->carried.is_memory_kept;
}

/* ---- joining the ranks of this host */

/* Return the number of ranks whose positions this rank can read on the board. */
static int
count_boards(const dd_run *run)
{
    return run->env.arena != NULL ? run->env.topology->nlocal : 0;
}

static void
await_others(dd_run *run)
{
    dd_run_carried *carried = &run->carried;
    carried->awaited = (dd_arena_ranks){{0}};
    dd_arena_fence_position();
    for (int k = 0; k < count_boards(run); k++) {
        if (k == run->env.topology->local) {
            continue;
        }
        dd_arena_ranks_add(&carried->awaited, k);
        if (dd_arena_is_position_awaited(run->env.arena, k)) {
            run->env.wake(run->env.ctx, k);
        }
    }
}

static dd_leg_state
fail_mismatch(dd_run *run, int rank, const dd_signature *peer_signature, dd_error *error)
{
    run->mismatch = (dd_arena_mismatch){.rank = rank,
                                        .other = run->env.topology->rank,
                                        .signature = *peer_signature,
                                        .other_signature = run->call.signature,
                                        .sequence = run->call.sequence};
    (void)dd_error_set(error, DD_MISMATCH, "%s", "");
    dd_error_blame(error, run->mismatch.rank, NULL, 0);
    return DD_LEG_FAILED;
}

/* Return true if the other rank is in the same call or past this call. A rank past it has waited
 * there for this rank, and has compared the calls. */
static bool
is_past_or_same(const dd_run *run, const dd_arena_position *position)
{
    return position->sequence != run->call.sequence ||
           memcmp(&position->signature, &run->call.signature, sizeof position->signature) == 0;
}

static dd_leg_state
gather_ranks(dd_run *run, dd_error *error)
{
    dd_arena_ranks *awaited = &run->carried.awaited;
    bool has_all = true;
    for (int k = 0; k < count_boards(run); k++) {
        if (!dd_arena_ranks_have(awaited, k)) {
            continue;
        }
        if (dd_arena_read_sequence(run->env.arena, k) < run->call.sequence) {
            has_all = false;
            continue;
        }
        dd_arena_position position = dd_arena_read_position(run->env.arena, k);
        if (!is_past_or_same(run, &position)) {
            return fail_mismatch(run, run->env.topology->local_ranks[k], &position.signature, error);
        }
        dd_arena_ranks_remove(awaited, k);
    }
    /* A failed rank's position stays on its board. Stay stuck: the group reports the failure. */
    for (int k = 0; has_all && k < count_boards(run); k++) {
        has_all = !dd_arena_has_posted_cause(run->env.arena, k);
    }
    return has_all ? DD_LEG_MOVED : DD_LEG_STUCK;
}

/* ---- in the library */

static dd_leg_state
enter_library(dd_run *run, const dd_carried_call *call, dd_carried_state state, dd_error *error)
{
    dd_run_carried *carried = &run->carried;
    dd_carrier *carrier = carried->carrier;
    if (carrier->ops->start(carrier, call, &carried->operation, error) != DD_OK) {
        return DD_LEG_FAILED;
    }
    carried->state = state;
    carried->awake_until_ns = 0;
    return DD_LEG_MOVED;
}

/* Hand the call to the library. Only now decline a call that the library lacks, because the ranks
 * have compared their calls. */
static dd_leg_state
leg_hand_over(dd_run *run, dd_error *error)
{
    dd_run_carried *carried = &run->carried;
    if (!carried->is_supported) {
        return DD_LEG_DECLINED;
    }
    if (dd_conversion_set_memory(carried->conversion, error) != DD_OK) {
        return DD_LEG_FAILED;
    }
    carried->ncalls++;
    return enter_library(run, carried->call, DD_CARRIED_UNDER_WAY, error);
}

static dd_leg_state
end_gathering(dd_run *run, dd_error *error)
{
    dd_run_comparison *comparison = run->carried.comparison;
    return comparison != NULL ? enter_library(run, dd_run_compare(comparison, &run->call.signature),
                                              DD_CARRIED_COMPARING, error)
                              : leg_hand_over(run, error);
}

/* Find the rank whose call differs. If none does, the library's difference is its own failure. */
static dd_leg_state
fail_different(dd_run *run, dd_error *error)
{
    const dd_signature *peer_signature;
    int rank = dd_run_find_different(run->carried.comparison, run->env.topology->nranks, &peer_signature);
    if (rank >= 0) {
        return fail_mismatch(run, rank, peer_signature, error);
    }
    (void)dd_error_set(error, DD_PROTOCOL,
                       "%s: %s returned a wrong sum, so the calls of the ranks cannot be compared",
                       dd_coll_name(run->call.args.coll), run->carried.carrier->library->version);
    return DD_LEG_FAILED;
}

/* Continue the leg after the library has finished a call. */
static dd_leg_state
continue_carried(dd_run *run, dd_error *error)
{
    dd_run_carried *carried = &run->carried;
    if (carried->state == DD_CARRIED_COMPARING && dd_run_is_same(carried->comparison)) {
        return leg_hand_over(run, error);
    }
    if (carried->state == DD_CARRIED_COMPARING) {
        int nranks = run->env.topology->nranks;
        return enter_library(run, dd_run_gather_signatures(carried->comparison, nranks), DD_CARRIED_LOCATING,
                             error);
    }
    if (carried->state == DD_CARRIED_LOCATING) {
        return fail_different(run, error);
    }
    dd_conversion_end(carried->conversion);
    return DD_LEG_DONE;
}

static dd_leg_state
poll_library(dd_run *run, dd_error *error)
{
    bool is_done = false;
    dd_carrier *carrier = run->carried.carrier;
    if (carrier->ops->poll(carrier, &run->carried.operation, &is_done, error) != DD_OK) {
        return DD_LEG_FAILED;
    }
    return is_done ? continue_carried(run, error) : DD_LEG_STUCK;
}

/* ---- work of a leg */

bool
dd_run_has_carrier(const dd_run *run)
{
    return run->carried.carrier != NULL && run->env.topology->nranks > 1;
}

/* Return true if no library has the reduction: AVG of integers in wider integers, and MAX with NaT. */
static bool
is_own_reduction(const dd_coll_args *args)
{
    const dd_reduction *reduction = &args->reduction;
    return dd_coll_is_folding(args->coll) &&
           (reduction->has_nat || dd_reduce_is_exact_mean(reduction->dtype, reduction->op));
}

static void
carrier_leg_start(dd_run *run, const dd_leg *leg)
{
    dd_run_carried *carried = &run->carried;
    carried->call = dd_conversion_describe(carried->conversion, &leg->args);
    carried->is_supported = dd_coll_traits_of[leg->args.coll].is_common && !is_own_reduction(&leg->args) &&
                            carried->carrier->ops->has(carried->carrier, carried->call);
    carried->state = DD_CARRIED_GATHERING;
    await_others(run);
}

static bool
carrier_leg_take(dd_run *run, dd_run_piece *piece)
{
    (void)run;
    piece->is_large = false;
    return true;
}

static dd_leg_state
progress_carried(dd_run *run, dd_error *error)
{
    dd_leg_state state = DD_LEG_MOVED;
    bool has_moved = false;
    if (run->carried.state == DD_CARRIED_GATHERING) {
        state = gather_ranks(run, error);
        state = state == DD_LEG_MOVED ? end_gathering(run, error) : state;
        has_moved = state == DD_LEG_MOVED;
    }
    while (state == DD_LEG_MOVED) {
        state = poll_library(run, error);
        has_moved = has_moved || state == DD_LEG_MOVED;
    }
    return state == DD_LEG_STUCK && has_moved ? DD_LEG_MOVED : state;
}

/* End a piece. In a failing group, poll more often, because libraries find arrived data late. */
static dd_leg_state
carrier_leg_end(dd_run *run, const dd_run_piece *piece, dd_error *error)
{
    (void)piece;
    bool must_abandon = run->mover.is_catching_up && is_in_library(&run->carried);
    dd_leg_state state = DD_LEG_STUCK;
    for (int npolled = 0; npolled < (must_abandon ? DD_POLLS_LAST : 1) && state == DD_LEG_STUCK; npolled++) {
        state = progress_carried(run, error);
    }
    return state;
}

/* ---- waiting */

/* Restart the timer, which wakes the driver to poll the library: a library wakes no thread. */
static void
leg_on_poll(dd_timer *timer)
{
    dd_run *run = DD_CONTAINER_OF(timer, dd_run, carried.poll_timer);
    if (is_in_library(&run->carried)) {
        dd_engine_start_timer_locked(run->env.engine, timer, dd_clock_now_ns() + DD_NAP_LIBRARY_NS);
    }
}

void
dd_run_init_carried(dd_run *run)
{
    dd_timer_init(&run->carried.poll_timer, leg_on_poll);
}

/* Return true if rank k is awaited and, according to the board, still has not joined. */
static bool
is_missing(const dd_run *run, int k)
{
    return dd_arena_ranks_have(&run->carried.awaited, k) &&
           dd_arena_read_sequence(run->env.arena, k) < run->call.sequence;
}

static int
carrier_leg_missing(const dd_run *run, int *ranks, int nfound, int max)
{
    const dd_topology *topology = run->env.topology;
    for (int k = 0; run->carried.state == DD_CARRIED_GATHERING && k < topology->nlocal && nfound < max; k++) {
        if (is_missing(run, k)) {
            ranks[nfound++] = topology->local_ranks[k];
        }
    }
    return nfound;
}

/* Make the awaited ranks ring this rank's bell when they join. Return false if all have joined. */
static bool
may_await(dd_run *run)
{
    int missing;
    dd_arena_await_positions(run->env.arena);
    return carrier_leg_missing(run, &missing, 0, 1) > 0;
}

bool
dd_run_may_nap(int64_t *awake_until_ns)
{
    int64_t now_ns = dd_clock_now_ns();
    if (*awake_until_ns == 0) {
        *awake_until_ns = now_ns + DD_AWAKE_LIBRARY_NS;
    }
    return now_ns >= *awake_until_ns;
}

static bool
carrier_leg_may_sleep(dd_run *run)
{
    dd_run_carried *carried = &run->carried;
    if (carried->state == DD_CARRIED_GATHERING) {
        return may_await(run);
    }
    leg_on_poll(&carried->poll_timer); /* starts the timer, in case the driver may sleep */
    return dd_run_may_nap(&carried->awake_until_ns);
}

/* ---- cancelling */

static bool
ends_soon(dd_run_carried *carried)
{
    dd_carrier *carrier = carried->carrier;
    int64_t until_ns = dd_clock_now_ns() + CANCEL_NS;
    bool is_done = false;
    while (!is_done && dd_clock_now_ns() < until_ns) {
        if (carrier->ops->poll(carrier, &carried->operation, &is_done, NULL) != DD_OK) {
            return true;
        }
        if (!is_done) {
            dd_sys_sched_yield();
        }
    }
    return is_done;
}

/* Give the library CANCEL_NS to end the operation. If it then still uses the memory, leave that to
 * it: the user's arrays and the buffers, or the memory of the calls by which ranks compare. */
static void
carrier_leg_cancel(dd_run *run, const dd_error *error)
{
    (void)error;
    dd_run_carried *carried = &run->carried;
    bool is_memory_left = is_in_library(carried) && !ends_soon(carried) &&
                          !carried->carrier->ops->abandon(carried->carrier, &carried->operation);
    if (is_memory_left && carried->state == DD_CARRIED_UNDER_WAY) {
        carried->is_memory_kept = true;
        dd_conversion_leak_buffers(carried->conversion);
    } else if (is_memory_left) {
        carried->comparison = NULL;
    }
}

const dd_leg_ops dd_leg_carrier = {
    .start = carrier_leg_start,
    .take = carrier_leg_take,
    .end = carrier_leg_end,
    .may_sleep = carrier_leg_may_sleep,
    .missing = carrier_leg_missing,
    .cancel = carrier_leg_cancel,
    .does_poll_yield = carrier_leg_does_poll_yield,
    .is_polled = true,
    .has_threads = true,
};
