/* A leg that is a plan: messages between ranks, and local steps. */
#include "collective/run_internal.h"

/* End the leg. If the plan has failed, wait first for a thread that may be moving a step of it. */
static void
on_plan_done(void *ctx, const dd_error *error)
{
    dd_run *run = ctx;
    dd_error failure;
    if (error != NULL) {
        dd_run_halt_locked(run);
        failure = *error; /* copy, because the error belongs to the plan */
    }
    dd_run_release_plan(run);
    run->on_leg_done(run, error != NULL ? &failure : NULL);
}

static void
plan_leg_start(dd_run *run, const dd_leg *leg)
{
    dd_error error;
    if (dd_run_find_plan(run, leg, &error) != DD_OK) {
        run->on_leg_done(run, &error);
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

static bool
plan_leg_take(dd_run *run, dd_run_piece *piece)
{
    piece->is_large = piece->is_long = true;
    return dd_plan_run_take_step_locked(run->plan->plan, &piece->step);
}

static void
plan_leg_move(dd_run *run, dd_run_piece *piece)
{
    dd_plan_run_do_step(run->plan->plan, piece->step);
}

/* End a step. The result is never DD_LEG_DONE, because the plan reports its end to on_plan_done. */
static dd_leg_state
plan_leg_end(dd_run *run, const dd_run_piece *piece, dd_error *error)
{
    (void)error;
    dd_plan_run_end_step_locked(run->plan->plan, piece->step);
    return DD_LEG_MOVED;
}

static bool
plan_leg_catch_up(dd_run *run)
{
    return dd_plan_run_catch_up_locked(run->plan->plan);
}

static bool
plan_leg_may_sleep(dd_run *run)
{
    return !dd_plan_run_is_busy_locked(run->plan->plan);
}

static int
plan_leg_missing(const dd_run *run, int *ranks, int nfound, int max)
{
    return nfound + dd_plan_run_missing_locked(run->plan->plan, ranks + nfound, max - nfound);
}

static void
plan_leg_cancel(dd_run *run, const dd_error *error)
{
    dd_plan_run_cancel_locked(run->plan->plan, error);
}

const dd_leg_ops dd_leg_plan = {
    .start = plan_leg_start,
    .take = plan_leg_take,
    .move = plan_leg_move,
    .end = plan_leg_end,
    .catch_up = plan_leg_catch_up,
    .may_sleep = plan_leg_may_sleep,
    .missing = plan_leg_missing,
    .cancel = plan_leg_cancel,
};
