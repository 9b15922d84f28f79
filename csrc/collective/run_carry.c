/* A collective whose data a carrier moves: the ranks of this host come together first, by the board of their arena. */
#include "collective/run_internal.h"

#include "collective/arena/board.h"
#include "core/clock.h"
#include "core/system.h"

#include <string.h>

/* How long it is worth a look after another. */
#define AWAKE_NS (50 * DD_NS_PER_MS)
/* How long an operation that nobody waits for any more is given to end by itself. The other ranks are in it, too, or are gone. */
#define LEAVING_NS (100 * DD_NS_PER_MS)
/* How often the library is queried before a failing group gives an operation up. */
#define LAST_LOOKS 1000

dd_status
dd_run_set_carrier_locked(dd_run *run, dd_carrier *carrier, dd_error *err)
{
    const dd_topology *topology = run->env.topology;
    bool is_on_one_board = topology->nranks == 1 || (topology->nhosts == 1 && run->env.arena != NULL);
    dd_status status = dd_carry_create(topology->rank, topology->nranks, &run->carried.carry, err);
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
    return carried->state > DD_CARRIED_AWAITED;
}

dd_carrier *
dd_run_carrier(const dd_run *run)
{
    return run->carried.carrier;
}

bool
dd_run_gives_way_locked(const dd_run *run)
{
    return is_in_library(&run->carried) && run->carried.carrier->library->gives_way;
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

/* ---- the ranks of this host come together */

/* How many ranks have a place on the board that this one can read. */
static int
count_places(const dd_run *run)
{
    return run->env.arena != NULL ? run->env.topology->nlocal : 0;
}

static void
await_others(dd_run *run)
{
    dd_run_carried *carried = &run->carried;
    carried->awaited = (dd_arena_ranks){{0}};
    dd_arena_show_place();
    for (int k = 0; k < count_places(run); k++) {
        if (k == run->env.topology->local) {
            continue;
        }
        dd_arena_ranks_add(&carried->awaited, k);
        if (dd_arena_is_place_awaited(run->env.arena, k)) {
            run->env.wake(run->env.ctx, k);
        }
    }
}

static void
fail_mismatch(dd_run *run, int rank, const dd_signature *theirs)
{
    dd_error error;
    run->culprit = (dd_arena_culprit){.rank = rank,
                                      .other = run->env.topology->rank,
                                      .signature = *theirs,
                                      .other_signature = run->call.signature,
                                      .sequence = run->call.sequence};
    (void)dd_error_set(&error, DD_MISMATCH, "%s", "");
    dd_error_blame(&error, run->culprit.rank, NULL, 0);
    dd_run_end(run, &error);
}

/* A rank that is past this call has waited for us in it, and has compared. False: it has not come, or the collective has failed. */
static bool
has_come(dd_run *run, int k)
{
    if (dd_arena_read_sequence(run->env.arena, k) < run->call.sequence) {
        return false;
    }
    dd_arena_place place = dd_arena_read_place(run->env.arena, k);
    if (place.sequence == run->call.sequence &&
        memcmp(&place.signature, &run->call.signature, sizeof place.signature) != 0) {
        fail_mismatch(run, run->env.topology->local_ranks[k], &place.signature);
        return false;
    }
    return true;
}

/* The state of a run after a step. */
typedef enum carried_step {
    CARRIED_STUCK,
    CARRIED_MOVED,
    CARRIED_OVER,
} carried_step;

static carried_step
gather_ranks(dd_run *run)
{
    dd_run_carried *carried = &run->carried;
    uint64_t nended = run->mover.nended;
    bool has_all = true;
    for (int k = 0; k < count_places(run); k++) {
        if (!dd_arena_ranks_have(&carried->awaited, k)) {
            continue;
        }
        if (has_come(run, k)) {
            dd_arena_ranks_remove(&carried->awaited, k);
        } else if (run->mover.nended != nended) {
            return CARRIED_OVER;
        } else {
            has_all = false;
        }
    }
    /* Who has given up stays where it was on the board. The group is about to hear of it. */
    for (int k = 0; has_all && k < count_places(run); k++) {
        has_all = !dd_arena_has_given_up(run->env.arena, k);
    }
    return has_all ? CARRIED_MOVED : CARRIED_STUCK;
}

/* ---- in the library */

/* Hands a call to the library, which ends the collective if it fails. */
static carried_step
enter(dd_run *run, const dd_carried_call *call, dd_carried_state state)
{
    dd_run_carried *carried = &run->carried;
    dd_error error;
    dd_carrier *carrier = carried->carrier;
    if (carrier->ops->start(carrier, call, &carried->operation, &error) != DD_OK) {
        dd_run_end(run, &error);
        return CARRIED_OVER;
    }
    carried->state = state;
    carried->awake_until_ns = 0;
    return CARRIED_MOVED;
}

static carried_step
hand_over(dd_run *run)
{
    dd_run_carried *carried = &run->carried;
    dd_error error;
    if (!carried->is_taken) {
        carried->state = DD_CARRIED_NOT;
        dd_run_go_own_way(run);
        return CARRIED_OVER;
    }
    if (dd_carry_place(carried->carry, &error) != DD_OK) {
        dd_run_end(run, &error);
        return CARRIED_OVER;
    }
    carried->ncalls++;
    return enter(run, carried->call, DD_CARRIED_UNDER_WAY);
}

static carried_step
leave_gathering(dd_run *run)
{
    dd_run_carried *carried = &run->carried;
    return carried->comparison != NULL
               ? enter(run, dd_run_compare(carried->comparison, &run->call.signature), DD_CARRIED_COMPARED)
               : hand_over(run);
}

/* A library that says that they differ, and then not how, has gone wrong. */
static void
fail_different(dd_run *run)
{
    dd_error error;
    const dd_signature *theirs;
    int rank = dd_run_find_different(run->carried.comparison, run->env.topology->nranks, &theirs);
    if (rank >= 0) {
        fail_mismatch(run, rank, theirs);
        return;
    }
    (void)dd_error_set(&error, DD_PROTOCOL, "%s: %s has added up wrongly what the ranks call",
                       dd_coll_name(run->call.args.coll), run->carried.carrier->library->version);
    dd_run_end(run, &error);
}

/* The library is through with what it has. */
static carried_step
go_on(dd_run *run)
{
    dd_run_carried *carried = &run->carried;
    if (carried->state == DD_CARRIED_COMPARED && dd_run_is_same(carried->comparison)) {
        return hand_over(run);
    }
    if (carried->state == DD_CARRIED_COMPARED) {
        int nranks = run->env.topology->nranks;
        return enter(run, dd_run_tell(carried->comparison, nranks), DD_CARRIED_TOLD);
    }
    if (carried->state == DD_CARRIED_TOLD) {
        fail_different(run);
        return CARRIED_OVER;
    }
    dd_carry_end(carried->carry);
    dd_run_end(run, NULL);
    return CARRIED_OVER;
}

static carried_step
look(dd_run *run)
{
    dd_run_carried *carried = &run->carried;
    dd_error error;
    bool is_done = false;
    dd_carrier *carrier = carried->carrier;
    if (carrier->ops->look(carrier, &carried->operation, &is_done, &error) != DD_OK) {
        dd_run_end(run, &error);
        return CARRIED_OVER;
    }
    return is_done ? go_on(run) : CARRIED_STUCK;
}

bool
dd_run_progress_carried(dd_run *run)
{
    bool has_moved = false;
    carried_step step = CARRIED_MOVED;
    if (run->carried.state == DD_CARRIED_AWAITED) {
        step = gather_ranks(run);
        step = step == CARRIED_MOVED ? leave_gathering(run) : step;
        has_moved = step != CARRIED_STUCK;
    }
    while (step == CARRIED_MOVED) {
        step = look(run);
        has_moved = has_moved || step != CARRIED_STUCK;
    }
    return has_moved;
}

bool
dd_run_catch_up_carried(dd_run *run)
{
    bool has_moved = false;
    int nlooks = is_in_library(&run->carried) ? LAST_LOOKS : 1;
    for (int look = 0; look < nlooks && dd_run_is_carrying(run) && !has_moved; look++) {
        has_moved = dd_run_progress_carried(run);
    }
    return has_moved;
}

/* ---- start and end */

/* What the library has not goes dldist's own way, once the ranks of this host are together, too: a rank that is past a call has compared. */
bool
dd_run_start_carried(dd_run *run)
{
    dd_run_carried *carried = &run->carried;
    if (carried->carrier == NULL || run->env.topology->nranks == 1) {
        return false;
    }
    carried->call = dd_carry_describe(carried->carry, &run->call.args);
    carried->is_taken = carried->carrier->ops->has(carried->carrier, carried->call);
    run->route = DD_ROUTE_CARRIED;
    carried->state = DD_CARRIED_AWAITED;
    await_others(run);
    return true;
}

/* ---- waiting */

int64_t
dd_run_next_look_ns(const dd_run *run)
{
    return is_in_library(&run->carried) ? dd_clock_now_ns() + DD_CARRIED_NAP_NS : DD_NEVER_NS;
}

/* It may have come since the last look, and left. */
static bool
is_missing(const dd_run *run, int k)
{
    return dd_arena_ranks_have(&run->carried.awaited, k) &&
           dd_arena_read_sequence(run->env.arena, k) < run->call.sequence;
}

int
dd_run_missing_carried(const dd_run *run, int *ranks, int max)
{
    int nfound = 0;
    const dd_topology *topology = run->env.topology;
    for (int k = 0; run->carried.state == DD_CARRIED_AWAITED && k < topology->nlocal && nfound < max; k++) {
        if (is_missing(run, k)) {
            ranks[nfound++] = topology->local_ranks[k];
        }
    }
    return nfound;
}

/* Of the ranks that are awaited: who comes later rings. */
static bool
may_await(dd_run *run)
{
    int missing;
    dd_arena_await_places(run->env.arena);
    return dd_run_missing_carried(run, &missing, 1) > 0;
}

bool
dd_run_may_nap(int64_t *awake_until_ns)
{
    int64_t now_ns = dd_clock_now_ns();
    if (*awake_until_ns == 0) {
        *awake_until_ns = now_ns + AWAKE_NS;
    }
    return now_ns >= *awake_until_ns;
}

bool
dd_run_may_sleep_carried(dd_run *run)
{
    dd_run_carried *carried = &run->carried;
    if (carried->state == DD_CARRIED_AWAITED) {
        return may_await(run);
    }
    run->task.deadline_ns = dd_run_next_look_ns(run); /* for when it may */
    return dd_run_may_nap(&carried->awake_until_ns);
}

/* ---- the end before its time */

static bool
ends_soon(dd_run_carried *carried)
{
    dd_carrier *carrier = carried->carrier;
    int64_t until_ns = dd_clock_now_ns() + LEAVING_NS;
    bool is_done = false;
    while (!is_done && dd_clock_now_ns() < until_ns) {
        if (carrier->ops->look(carrier, &carried->operation, &is_done, NULL) != DD_OK) {
            return true;
        }
        if (!is_done) {
            dd_sys_sched_yield();
        }
    }
    return is_done;
}

/* What the library has not let go of is left to it: the user's arrays and our buffers, or what ranks compare by. */
void
dd_run_leave_carried(dd_run *run)
{
    dd_run_carried *carried = &run->carried;
    bool is_left = is_in_library(carried) && !ends_soon(carried) &&
                   !carried->carrier->ops->leave(carried->carrier, &carried->operation);
    if (is_left && carried->state == DD_CARRIED_UNDER_WAY) {
        carried->is_memory_kept = true;
        dd_carry_abandon(carried->carry);
    } else if (is_left) {
        carried->comparison = NULL;
    }
}
