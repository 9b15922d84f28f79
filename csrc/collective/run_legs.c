/* A collective as legs in two lanes: plans, and operations of the arena beside them. */
#include "collective/run_internal.h"

#include <string.h>

void
dd_run_note_failed(dd_run *run, const dd_error *error)
{
    if (!run->is_failed) {
        run->is_failed = true;
        run->error = *error;
    }
}

void
dd_run_note_leg_ended(dd_run *run, dd_lane lane)
{
    run->lanes[lane].is_running = false;
    run->lanes[lane].has_leg = false;
    run->lanes[lane].nended++;
}

/* A message passing collective between all ranks is one leg. */
static bool
get_flat_leg(const dd_run *run, dd_lane lane, uint64_t index, dd_leg *leg)
{
    if (lane != DD_LANE_PLAN || index > 0) {
        return false;
    }
    *leg = (dd_leg){.kind = DD_LEG_PLAN,
                    .args = run->call.args,
                    .rank = run->env.topology->rank,
                    .nranks = run->env.topology->nranks};
    return true;
}

static bool
get_leg(dd_run *run, dd_lane lane, uint64_t index, dd_leg *leg)
{
    return run->route == DD_ROUTE_FLAT ? get_flat_leg(run, lane, index, leg)
                                       : dd_hierarchy_get_leg(&run->hierarchy, lane, index, leg);
}

static void
on_plan_done(void *ctx, const dd_error *error)
{
    dd_run *run = ctx;
    if (error != NULL) {
        dd_run_halt_locked(run); /* before the plan goes */
        dd_run_note_failed(run, error);
    } else {
        dd_run_note_leg_ended(run, DD_LANE_PLAN);
    }
    dd_run_let_plan_go(run);
    dd_run_advance_legs(run);
}

static void
start_plan(dd_run *run, const dd_leg *leg)
{
    dd_error error;
    if (dd_run_find_plan(run, leg, &error) != DD_OK) {
        dd_run_note_failed(run, &error);
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

static void
start_leg(dd_run *run, dd_lane lane)
{
    dd_leg *leg = &run->lanes[lane].leg;
    run->lanes[lane].is_running = true;
    if (leg->kind == DD_LEG_PLAN) {
        start_plan(run, leg);
    } else if (leg->kind == DD_LEG_ARENA && leg->nranks > 1) {
        dd_run_start_arena(run, &leg->args, leg->is_partial);
    } else {
        bool is_over = leg->kind == DD_LEG_ARENA   ? dd_run_start_copy(run, &leg->args, leg->is_partial, lane)
                       : leg->kind == DD_LEG_ROUND ? dd_run_start_rounding(run, &leg->args, lane)
                                                   : true;
        if (is_over) {
            dd_run_note_leg_ended(run, lane);
        }
    }
}

/* False when the lane has to wait, or is at its end. */
static bool
advance_lane(dd_run *run, dd_lane lane, dd_lane other)
{
    dd_run_lane *state = &run->lanes[lane];
    if (state->is_over || state->is_running || run->is_failed) {
        return false;
    }
    if (!state->has_leg) {
        state->has_leg = get_leg(run, lane, state->nended, &state->leg);
        state->is_over = !state->has_leg;
    }
    if (state->is_over || run->lanes[other].nended < state->leg.needs) {
        return false;
    }
    start_leg(run, lane);
    return true;
}

static void
stop_plan(dd_run *run)
{
    if (run->plan != NULL) {
        dd_plan_run_cancel_locked(run->plan->plan, &run->error);
    }
}

/* The order of the two lanes decides nothing but how soon a message is on its way. */
void
dd_run_advance_legs(dd_run *run)
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
    if (run->is_failed) {
        stop_plan(run);
    }
    run->is_advancing = false;
    if (run->is_failed) {
        dd_run_end(run, &run->error);
    } else if (run->lanes[DD_LANE_PLAN].is_over && run->lanes[DD_LANE_ARENA].is_over) {
        dd_run_end(run, NULL);
    }
}

void
dd_run_begin_legs(dd_run *run)
{
    memset(run->lanes, 0, sizeof run->lanes);
    run->way[0] = '\0';
    dd_error error;
    if (run->route == DD_ROUTE_HIERARCHY) {
        dd_hierarchy_begin(&run->hierarchy, &run->call.args);
        if (dd_run_buffer_reserve(&run->scratch, run->hierarchy.scratch_nbytes, &error) != DD_OK) {
            dd_run_note_failed(run, &error);
        }
        run->hierarchy.scratch = run->scratch.data;
    }
    dd_run_advance_legs(run);
}
