/* A collective from start to end: legs in two lanes, plans and operations of the arena beside them. */
#include "collective/run_internal.h"

#include "core/mem.h"
#include "core/system.h"

/* ---- creation */

dd_status
dd_run_create(const dd_run_env *env, dd_run **run, dd_error *err)
{
    size_t nwanted = 2 * (size_t)env->topology->nlocal;
    dd_run *made = dd_mem_zalloc(sizeof *made);
    dd_run_wanted *wanted = dd_mem_alloc_array(nwanted, sizeof *wanted);
    if (made == NULL || wanted == NULL) {
        dd_mem_free(made);
        dd_mem_free(wanted);
        return dd_error_no_memory(err, sizeof *made + nwanted * sizeof *wanted);
    }
    made->env = *env;
    made->mover.wanted = wanted;
    made->is_idle = true;
    made->culprit.rank = -1;
    dd_run_init_moves(made);
    bool has_arena = env->arena != NULL || env->topology->nlocal == 1;
    made->is_hierarchic = has_arena && !env->selection.is_flat && env->topology->nhosts > 1;
    if (made->is_hierarchic) {
        dd_hierarchy_limits limits = {0};
        dd_status status = dd_hierarchy_init(&made->hierarchy, env->topology, &limits, err);
        if (status != DD_OK) {
            dd_run_destroy(made);
            return status;
        }
    }
    *run = made;
    return DD_OK;
}

/* Threads that have moved its data may have yet to come back. */
static void
wait_for_movers(dd_run *run)
{
    if (run->env.engine == NULL || dd_engine_check_fork(run->env.engine, NULL) != DD_OK) {
        return;
    }
    dd_engine_lock(run->env.engine);
    while (run->mover.nabsent > 0) {
        dd_engine_unlock(run->env.engine);
        dd_sys_sched_yield();
        dd_engine_lock(run->env.engine);
    }
    dd_engine_unlock(run->env.engine);
}

void
dd_run_destroy(dd_run *run)
{
    if (run != NULL) {
        wait_for_movers(run);
        dd_run_drop_plans(run);
        dd_run_buffer_fini(&run->scratch);
        dd_run_buffer_fini(&run->plan_scratch);
        dd_run_buffer_fini(&run->key);
        dd_carry_destroy(run->carried.carry);
        dd_run_destroy_comparison(run->carried.comparison);
        dd_hierarchy_fini(&run->hierarchy);
        dd_mem_free(run->mover.wanted);
        dd_mem_free(run);
    }
}

/* ---- start and end */

static dd_run_route
choose_route(const dd_run *run)
{
    const dd_run_env *env = &run->env;
    bool has_arena = env->arena != NULL && !env->selection.is_flat;
    if (env->topology->nlocal > 1 && env->topology->nhosts == 1 && has_arena) {
        return DD_ROUTE_LOCAL;
    }
    bool is_fit = run->is_hierarchic && dd_hierarchy_fits(env->topology, run->call.args.coll);
    return is_fit ? DD_ROUTE_HIERARCHY : DD_ROUTE_FLAT;
}

static void advance(dd_run *run);
static void fail_later(dd_run *run, const dd_error *error);

static void
begin_legs(dd_run *run)
{
    for (int lane = 0; lane < DD_LANE_COUNT; lane++) {
        dd_run_lane *state = &run->lanes[lane];
        state->has_leg = state->is_running = state->is_over = false;
        state->nended = 0;
    }
    if (run->route == DD_ROUTE_HIERARCHY) {
        dd_error error;
        dd_hierarchy_begin(&run->hierarchy, &run->call.args);
        if (dd_run_buffer_reserve(&run->scratch, run->hierarchy.scratch_nbytes, &error) != DD_OK) {
            fail_later(run, &error);
        }
        run->hierarchy.scratch = run->scratch.data;
    }
    advance(run);
}

void
dd_run_go_own_way(dd_run *run)
{
    run->route = choose_route(run);
    dd_run_set_pace(run);
    if (run->route != DD_ROUTE_LOCAL) {
        begin_legs(run);
        return;
    }
    run->lanes[DD_LANE_ARENA].is_over = run->lanes[DD_LANE_PLAN].is_over = true;
    dd_run_start_arena(run, &run->call.args);
}

static void
start_one(dd_run *run)
{
    run->is_failed = false;
    run->mover.is_large = run->mover.has_left = false;
    run->culprit.rank = -1;
    run->route = DD_ROUTE_LOCAL;
    if (run->env.topology->nranks == 1 && dd_run_do_alone(&run->call.args)) {
        dd_run_end(run, NULL);
        return;
    }
    if (!dd_run_start_carried(run)) {
        dd_run_go_own_way(run);
    }
}

/* A loop instead of recursion: on_done starts the next collective, which may be at its end at once. */
static void
start_waiting(dd_run *run)
{
    run->is_starting = true;
    while (run->is_waiting) {
        run->is_waiting = false;
        start_one(run);
        if (!run->is_idle) {
            (void)dd_run_progress_locked(run);
        }
    }
    run->is_starting = false;
    if (!run->is_idle) {
        if (!run->has_task) {
            dd_run_add_task(run);
        }
        if (run->mover.has_left) {
            /* The driver may have gone to sleep while data was moved here. */
            dd_engine_settle_driver_locked(run->env.engine);
        }
    }
}

void
dd_run_start_locked(dd_run *run, const dd_run_call *call)
{
    run->call = *call;
    run->is_idle = false;
    run->is_waiting = true;
    if (!run->is_starting) {
        start_waiting(run);
    }
}

void
dd_run_end(dd_run *run, const dd_error *error)
{
    dd_run_forget_moves(run);
    run->carried.state = DD_CARRIED_NOT;
    run->is_idle = true;
    if (run->has_task) {
        run->has_task = false;
        dd_engine_remove_task_locked(run->env.engine, &run->task);
    }
    if (run->route == DD_ROUTE_FLAT || run->route == DD_ROUTE_HIERARCHY) {
        dd_run_buffer_trim(&run->scratch);
        dd_run_buffer_trim(&run->plan_scratch);
    }
    bool was_starting = run->is_starting;
    run->is_starting = true;
    run->call.on_done(run->call.ctx, error);
    run->is_starting = was_starting;
    if (run->is_waiting && !was_starting) {
        start_waiting(run);
    }
}

/* ---- legs */

static void
note_leg_ended(dd_run *run, dd_leg_lane lane)
{
    run->lanes[lane].is_running = false;
    run->lanes[lane].has_leg = false;
    run->lanes[lane].nended++;
}

/* A message passing collective between all ranks is one leg. */
static bool
get_leg(dd_run *run, dd_leg_lane lane, uint64_t index, dd_leg *leg)
{
    if (run->route == DD_ROUTE_HIERARCHY) {
        return dd_hierarchy_get_leg(&run->hierarchy, lane, index, leg);
    }
    *leg = (dd_leg){.kind = DD_LEG_PLAN,
                    .args = run->call.args,
                    .rank = run->env.topology->rank,
                    .nranks = run->env.topology->nranks};
    return lane == DD_LANE_PLAN && index == 0;
}

static void
on_plan_done(void *ctx, const dd_error *error)
{
    dd_run *run = ctx;
    if (error != NULL) {
        dd_run_halt_locked(run);
        fail_later(run, error); /* before the plan goes, and the error with it */
    } else {
        note_leg_ended(run, DD_LANE_PLAN);
    }
    dd_run_let_plan_go(run);
    advance(run);
}

static void
start_plan(dd_run *run, const dd_leg *leg)
{
    dd_error error;
    if (dd_run_find_plan(run, leg, &error) != DD_OK) {
        fail_later(run, &error);
        return;
    }
    dd_plan_run_options options = {
        .context = run->env.context,
        .ranks = leg->ranks,
        .sequence = run->call.sequence,
        .signature = run->call.signature,
        .scratch = run->plan_scratch.data,
        .on_done = on_plan_done,
        .ctx = run,
    };
    dd_plan_run_start_locked(run->plan->plan, &leg->args, &options);
}

/* False when the lane has to wait, or is at its end. */
static bool
advance_lane(dd_run *run, dd_leg_lane lane, dd_leg_lane other)
{
    dd_run_lane *state = &run->lanes[lane];
    dd_leg *leg = &state->leg;
    if (state->is_over || state->is_running || run->is_failed) {
        return false;
    }
    if (!state->has_leg) {
        state->has_leg = get_leg(run, lane, state->nended, leg);
        state->is_over = !state->has_leg;
    }
    if (state->is_over || run->lanes[other].nended < leg->needs) {
        return false;
    }
    state->is_running = true;
    switch (leg->kind) {
    case DD_LEG_NOTHING:
        note_leg_ended(run, lane);
        break;
    case DD_LEG_ARENA:
        dd_run_start_arena(run, &leg->args);
        break;
    case DD_LEG_PLAN:
        start_plan(run, leg);
        break;
    }
    return true;
}

/* Starts as many legs as can be, and ends the collective after the last or when it has failed. The order of
 * the two lanes decides nothing but how soon a message is on its way. */
static void
advance(dd_run *run)
{
    if (run->is_advancing) {
        return;
    }
    run->is_advancing = true;
    bool has_moved = true;
    while (has_moved) {
        has_moved = advance_lane(run, DD_LANE_PLAN, DD_LANE_ARENA);
        has_moved = advance_lane(run, DD_LANE_ARENA, DD_LANE_PLAN) || has_moved;
    }
    if (run->is_failed && run->plan != NULL) {
        dd_plan_run_cancel_locked(run->plan->plan, &run->error);
    }
    run->is_advancing = false;
    if (run->is_failed) {
        dd_run_end(run, &run->error);
    } else if (run->lanes[DD_LANE_PLAN].is_over && run->lanes[DD_LANE_ARENA].is_over) {
        dd_run_end(run, NULL);
    }
}

void
dd_run_end_leg(dd_run *run, dd_leg_lane lane)
{
    note_leg_ended(run, lane);
    advance(run);
}

/* The caller advances, which ends the collective. */
static void
fail_later(dd_run *run, const dd_error *error)
{
    if (!run->is_failed) {
        run->is_failed = true;
        run->error = *error;
    }
}

void
dd_run_fail(dd_run *run, const dd_error *error)
{
    fail_later(run, error);
    advance(run);
}

void
dd_run_cancel_locked(dd_run *run, const dd_error *error)
{
    if (run->is_waiting) {
        run->is_waiting = false;
        dd_run_end(run, error);
    } else if (run->route == DD_ROUTE_CARRIED && !run->is_idle) {
        dd_run_leave_carried(run);
        dd_run_end(run, error);
    } else if (!run->is_idle) {
        dd_run_fail(run, error);
    }
}

/* ---- what others want to know */

dd_arena_culprit
dd_run_culprit(const dd_run *run)
{
    return run->culprit;
}

static int
add_local_missing(const dd_run *run, int *ranks, int nfound, int max)
{
    dd_arena_ranks missing = dd_arena_missing(run->env.arena);
    for (int place = 0; place < run->env.topology->nlocal && nfound < max; place++) {
        if (dd_arena_ranks_have(&missing, place)) {
            dd_plan_run_note_rank(ranks, &nfound, run->env.topology->local_ranks[place]);
        }
    }
    return nfound;
}

int
dd_run_missing_locked(const dd_run *run, int *ranks, int max)
{
    int nfound = run->plan != NULL ? dd_plan_run_missing_locked(run->plan->plan, ranks, max) : 0;
    if (run->route == DD_ROUTE_CARRIED) {
        return dd_run_missing_carried(run, ranks, max);
    }
    bool may_look = run->is_arena_busy && !run->mover.is_taken;
    return may_look ? add_local_missing(run, ranks, nfound, max) : nfound;
}
