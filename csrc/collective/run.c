/* A collective from start to end: legs in two parallel lanes.
 *
 * Only run_advance begins a collective, starts its legs, and ends it. All other functions record a
 * change (a call is posted, a leg has ended, the collective has failed) and call it. If run_advance
 * is already on the call stack, the call there sees the change. */
#include "collective/run_internal.h"

#include "core/assert.h"
#include "core/mem.h"

#include <string.h>

#define MAX_MOVES 16 /* pieces (some tens of us each) moved before other tasks have a turn */
/* Longest time for which data is moved without the lock. Until it ends, the driver of the engine
 * serves no links, and a caller does not check for signals. */
#define DRIVER_STAY_NS DD_NS_PER_MS
#define CALLER_STAY_NS DD_WAIT_SLICE_NS
/* Rounds, each of up to MAX_MOVES pieces, in which a failing group completes calls; one more per
 * rank. The limit keeps ranks that go on publishing data from holding the lock busy. */
#define CATCH_UP_ROUNDS 16

/* ---- legs */

static const dd_leg_ops *const ops_of_kind[] = {
    [DD_LEG_NOTHING] = NULL,
    [DD_LEG_ARENA] = &dd_leg_arena,
    [DD_LEG_PLAN] = &dd_leg_plan,
    [DD_LEG_CARRIER] = &dd_leg_carrier,
};

/* The kind of the only leg that a collective has, on every route except a hierarchy. */
static const dd_leg_kind only_leg[DD_LANE_COUNT][DD_ROUTE_CARRIED + 1] = {
    [DD_LANE_ARENA] = {[DD_ROUTE_LOCAL] = DD_LEG_ARENA},
    [DD_LANE_PLAN] = {[DD_ROUTE_FLAT] = DD_LEG_PLAN, [DD_ROUTE_CARRIED] = DD_LEG_CARRIER},
};

static bool
get_leg(dd_run *run, dd_leg_lane lane, dd_leg *leg)
{
    if (run->route == DD_ROUTE_HIERARCHY) {
        return dd_hierarchy_get_leg(&run->hierarchy, lane, run->lanes[lane].nended, leg);
    }
    *leg = (dd_leg){.kind = only_leg[lane][run->route],
                    .args = run->call.args,
                    .rank = run->env.topology->rank,
                    .nranks = run->env.topology->nranks};
    return true;
}

static void
note_leg_ended(dd_run *run, dd_run_lane *lane)
{
    lane->running = NULL;
    lane->has_leg = false;
    lane->nended++;
    lane->is_finished = run->route != DD_ROUTE_HIERARCHY;
}

/* Start the lane's next leg. Return false if the lane must wait, or has no legs left. */
static bool
start_leg(dd_run *run, dd_leg_lane number, dd_leg_lane other)
{
    dd_run_lane *lane = &run->lanes[number];
    if (!lane->has_leg) {
        lane->has_leg = get_leg(run, number, &lane->leg);
        lane->is_finished = !lane->has_leg;
    }
    if (lane->is_finished || run->lanes[other].nended < lane->leg.needs) {
        return false;
    }
    const dd_leg_ops *ops = ops_of_kind[lane->leg.kind];
    if (ops == NULL) {
        note_leg_ended(run, lane);
        return true;
    }
    lane->running = ops;
    run->task.is_outnumbered = run->task.is_crowded = run->env.is_crowded || ops->has_threads;
    ops->start(run, &lane->leg);
    return true;
}

/* Inline, because for a small collective most of these calls find nothing to start. */
static inline bool
start_next_leg(dd_run *run, dd_leg_lane number, dd_leg_lane other)
{
    const dd_run_lane *lane = &run->lanes[number];
    bool is_free = !lane->is_finished && lane->running == NULL && run->error.code == DD_OK;
    return is_free && start_leg(run, number, other);
}

/* Record a failure of the collective. Only the first one counts. */
static void
run_note_failed(dd_run *run, const dd_error *error)
{
    if (run->error.code == DD_OK) {
        run->error = *error;
    }
}

static void
cancel_legs(dd_run *run)
{
    for (int number = 0; number < DD_LANE_COUNT; number++) {
        const dd_leg_ops *ops = run->lanes[number].running;
        if (ops != NULL && ops->cancel != NULL) {
            ops->cancel(run, &run->error);
        }
        run->lanes[number].running = NULL;
    }
}

/* ---- from start to end */

/* Carry out a small collective in a group of one rank. Return false if it is not small. */
static bool
copy_single_rank(const dd_coll_args *args)
{
    if (args->coll == DD_COLL_BARRIER || args->outputs[0].nbytes == 0 ||
        dd_coll_nfolded(args->coll, 0, 1) == 0) {
        return true;
    }
    const void *src = args->inputs[0].data;
    const dd_block *dst = &args->outputs[0];
    bool is_fold = dd_coll_is_folding(args->coll);
    if (!is_fold && src == dst->data) {
        return true;
    }
    if (dst->nbytes > DD_RUN_LOCKED_NBYTES) {
        return false;
    }
    if (is_fold) {
        dd_reduce(&args->reduction, args->stage, dst->data, &src, 1, dst->nbytes / dd_coll_output_size(args));
    } else {
        memcpy(dst->data, src, dst->nbytes);
    }
    return true;
}

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

static void
begin_route(dd_run *run, dd_run_route route)
{
    run->route = route;
    for (int number = 0; number < DD_LANE_COUNT; number++) {
        dd_run_lane *lane = &run->lanes[number];
        lane->running = NULL;
        lane->has_leg = false;
        lane->is_finished = route != DD_ROUTE_HIERARCHY && only_leg[number][route] == DD_LEG_NOTHING;
        lane->nended = 0;
    }
    if (route == DD_ROUTE_HIERARCHY) {
        dd_error error;
        dd_hierarchy_begin(&run->hierarchy, &run->call.args);
        if (dd_run_buffer_reserve(&run->scratch, run->hierarchy.scratch_nbytes, &error) != DD_OK) {
            run_note_failed(run, &error);
        }
        run->hierarchy.scratch = run->scratch.data;
    }
}

static void
run_begin(dd_run *run)
{
    run->phase = DD_RUN_UNDER_WAY;
    run->error.code = DD_OK;
    run->mismatch.rank = -1;
    if (run->env.topology->nranks == 1 && copy_single_rank(&run->call.args)) {
        run->route = DD_ROUTE_LOCAL;
        run->lanes[DD_LANE_ARENA].is_finished = run->lanes[DD_LANE_PLAN].is_finished = true;
    } else {
        begin_route(run, dd_run_has_carrier(run) ? DD_ROUTE_CARRIED : choose_route(run));
    }
}

/* End the collective. on_done may post the next one. */
static void
run_complete(dd_run *run)
{
    dd_run_piece ignored;
    (void)dd_run_take_over_piece(run, &ignored);
    run->phase = DD_RUN_IDLE;
    dd_run_buffer_trim(&run->scratch);
    dd_run_buffer_trim(&run->plan_scratch);
    run->call.on_done(run->call.ctx, run->error.code != DD_OK ? &run->error : NULL);
}

/* Start all legs that can start. The lanes' order affects only how soon messages are sent. */
static void
start_legs(dd_run *run)
{
    bool has_started = true;
    while (has_started) {
        has_started = start_next_leg(run, DD_LANE_PLAN, DD_LANE_ARENA);
        has_started = start_next_leg(run, DD_LANE_ARENA, DD_LANE_PLAN) || has_started;
    }
    if (run->error.code != DD_OK) {
        cancel_legs(run);
    }
}

static bool
run_has_ended(const dd_run *run)
{
    return run->error.code != DD_OK ||
           (run->lanes[DD_LANE_PLAN].is_finished && run->lanes[DD_LANE_ARENA].is_finished);
}

/* Loop instead of recursing: on_done may post the next collective, which may end here as well. */
static void
run_advance(dd_run *run)
{
    if (run->is_advancing) {
        return;
    }
    run->is_advancing = true;
    bool goes_on = run->phase != DD_RUN_IDLE;
    while (goes_on) {
        if (run->phase == DD_RUN_POSTED) {
            run_begin(run);
        }
        start_legs(run);
        goes_on = run_has_ended(run);
        if (goes_on) {
            run_complete(run);
            goes_on = run->phase == DD_RUN_POSTED;
        }
    }
    run->is_advancing = false;
}

/* ---- the task: in the engine during a collective, unless the collective ends when started */

static void
update_task(dd_run *run)
{
    bool is_wanted = run->phase != DD_RUN_IDLE;
    if (is_wanted == run->has_task || run->is_advancing) {
        return;
    }
    run->has_task = is_wanted;
    if (is_wanted) {
        dd_engine_add_task_locked(run->env.engine, &run->task);
    } else {
        dd_engine_remove_task_locked(run->env.engine, &run->task);
        dd_timer_clear(&run->carried.poll_timer);
    }
}

/* Handle the end of a plan's leg. */
static void
run_on_leg_done(dd_run *run, const dd_error *error)
{
    dd_run_lane *lane = &run->lanes[DD_LANE_PLAN];
    if (error != NULL) {
        lane->running = NULL;
        run_note_failed(run, error);
    } else {
        note_leg_ended(run, lane);
    }
    run_advance(run);
    update_task(run);
}

void
dd_run_start_locked(dd_run *run, const dd_run_call *call)
{
    dd_assert_holds(ENGINE);
    dd_assert(run->phase == DD_RUN_IDLE);
    run->call = *call;
    run->phase = DD_RUN_POSTED;
    run_advance(run);
    if (!run->is_advancing) {
        (void)dd_run_progress_locked(run);
    }
}

void
dd_run_cancel_locked(dd_run *run, const dd_error *error)
{
    dd_assert_holds(ENGINE);
    if (run->phase == DD_RUN_POSTED) {
        run->phase = DD_RUN_IDLE;
        run->call.on_done(run->call.ctx, error);
    } else if (run->phase == DD_RUN_UNDER_WAY) {
        run_note_failed(run, error);
        run_advance(run);
    }
    update_task(run);
}

/* ---- pieces */

/* Take a piece: first of the arena, because a plan's step may take as long as many arena pieces. */
static bool
take_piece(dd_run *run, const dd_leg_ops *stuck, dd_run_piece *piece)
{
    if (run->phase == DD_RUN_IDLE) {
        return false;
    }
    for (int number = 0; number < DD_LANE_COUNT && run->mover.taken == 0; number++) {
        const dd_leg_ops *ops = run->lanes[number].running;
        *piece = (dd_run_piece){.ops = ops};
        if (ops != NULL && ops != stuck && ops->take(run, piece)) {
            return true;
        }
    }
    return false;
}

static dd_run_lane *
find_lane(dd_run *run, const dd_leg_ops *ops)
{
    bool is_first = run->lanes[DD_LANE_ARENA].running == ops;
    return &run->lanes[is_first ? DD_LANE_ARENA : DD_LANE_PLAN];
}

static dd_leg_state
end_piece(dd_run *run, const dd_run_piece *piece)
{
    dd_error error;
    dd_leg_state state = piece->ops->end(run, piece, &error);
    switch (state) {
    case DD_LEG_STUCK:
    case DD_LEG_MOVED:
        return state;
    case DD_LEG_DONE:
        note_leg_ended(run, find_lane(run, piece->ops));
        break;
    case DD_LEG_FAILED:
        find_lane(run, piece->ops)->running = NULL;
        run_note_failed(run, &error);
        break;
    case DD_LEG_DECLINED:
        begin_route(run, choose_route(run));
        break;
    }
    run_advance(run);
    return state;
}

static bool
run_progress(dd_run *run, int64_t stay_ns)
{
    bool has_moved = false;
    const dd_leg_ops *stuck = NULL;
    dd_run_piece piece = {.is_long = false};
    for (int i = 0; i < MAX_MOVES && !piece.is_long && take_piece(run, stuck, &piece); i++) {
        piece.stay_ns = stay_ns;
        if (!dd_run_move_piece(run, &piece)) {
            return true;
        }
        bool is_stuck = end_piece(run, &piece) == DD_LEG_STUCK;
        stuck = is_stuck ? piece.ops : stuck;
        has_moved = has_moved || !is_stuck;
    }
    update_task(run);
    return has_moved;
}

bool
dd_run_progress_locked(dd_run *run)
{
    dd_assert_holds(ENGINE);
    return run_progress(run, CALLER_STAY_NS);
}

static bool
catch_up_messages(dd_run *run)
{
    bool has_moved = false;
    for (int number = 0; number < DD_LANE_COUNT; number++) {
        const dd_leg_ops *ops = run->lanes[number].running;
        has_moved = (ops != NULL && ops->catch_up != NULL && ops->catch_up(run)) || has_moved;
    }
    return has_moved;
}

void
dd_run_catch_up_locked(dd_run *run)
{
    dd_run_piece piece;
    bool was_catching_up = run->mover.is_catching_up;
    bool has_moved = true;
    run->mover.is_catching_up = true;
    if (dd_run_take_over_piece(run, &piece)) {
        (void)end_piece(run, &piece);
    }
    int nrounds = CATCH_UP_ROUNDS + run->env.topology->nranks;
    for (int i = 0; i < nrounds && has_moved && run->phase != DD_RUN_IDLE; i++) {
        has_moved = catch_up_messages(run);
        has_moved = dd_run_progress_locked(run) || has_moved;
    }
    run->mover.is_catching_up = was_catching_up;
    update_task(run);
}

/* ---- waiting */

bool
dd_run_needs_polling_locked(const dd_run *run)
{
    bool is_polled = false;
    for (int number = 0; number < DD_LANE_COUNT; number++) {
        const dd_leg_ops *ops = run->lanes[number].running;
        is_polled = is_polled || (ops != NULL && ops->is_polled);
    }
    return is_polled;
}

bool
dd_run_must_yield_locked(dd_run *run)
{
    bool needs_core = false;
    for (int number = 0; number < DD_LANE_COUNT && !needs_core; number++) {
        const dd_leg_ops *ops = run->lanes[number].running;
        needs_core = ops != NULL && ops->needs_core != NULL && ops->needs_core(run);
    }
    return needs_core;
}

bool
dd_run_yields_locked(const dd_run *run)
{
    bool yields_core = false;
    for (int number = 0; number < DD_LANE_COUNT && !yields_core; number++) {
        const dd_leg_ops *ops = run->lanes[number].running;
        yields_core = ops != NULL && ops->does_poll_yield != NULL && ops->does_poll_yield(run);
    }
    return yields_core;
}

static bool
progress_task(dd_task *task)
{
    dd_run *run = DD_CONTAINER_OF(task, dd_run, task);
    bool has_moved = run_progress(run, DRIVER_STAY_NS);
    if (!has_moved) {
        bool needs_core = task->is_outnumbered || dd_run_must_yield_locked(run);
        task->is_crowded = needs_core && !dd_run_yields_locked(run);
    }
    return has_moved;
}

/* Return true if the driver may sleep. While a thread moves data it may: that thread then drives,
 * or wakes the driver. The arena's lane comes last, because from then on other ranks ring. */
static bool
run_fall_asleep(dd_task *task)
{
    dd_run *run = DD_CONTAINER_OF(task, dd_run, task);
    const dd_leg_ops *first = run->lanes[DD_LANE_PLAN].running;
    const dd_leg_ops *last = run->lanes[DD_LANE_ARENA].running;
    return run->mover.taken != 0 ||
           ((first == NULL || first->may_sleep(run)) && (last == NULL || last->may_sleep(run)));
}

int
dd_run_missing_locked(const dd_run *run, int *ranks, int max)
{
    dd_assert_holds(ENGINE);
    const dd_leg_ops *first = run->lanes[DD_LANE_PLAN].running;
    const dd_leg_ops *last = run->lanes[DD_LANE_ARENA].running;
    int nfound = first != NULL ? first->missing(run, ranks, 0, max) : 0;
    return last != NULL ? last->missing(run, ranks, nfound, max) : nfound;
}

dd_arena_mismatch
dd_run_mismatch(const dd_run *run)
{
    return run->mismatch;
}

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
    made->arena.wanted = wanted;
    made->mismatch.rank = -1;
    made->on_leg_done = run_on_leg_done;
    dd_run_init_arena(made);
    dd_list_init(&made->task.link);
    made->task.progress = progress_task;
    made->task.fall_asleep = run_fall_asleep;
    dd_run_init_carried(made);
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

void
dd_run_destroy(dd_run *run)
{
    if (run != NULL) {
        dd_run_wait_for_movers(run);
        dd_run_destroy_plans(run);
        dd_run_buffer_fini(&run->scratch);
        dd_run_buffer_fini(&run->plan_scratch);
        dd_run_buffer_fini(&run->key);
        dd_conversion_destroy(run->carried.conversion);
        dd_run_destroy_comparison(run->carried.comparison);
        dd_hierarchy_fini(&run->hierarchy);
        dd_mem_free(run->arena.wanted);
        dd_mem_free(run);
    }
}
