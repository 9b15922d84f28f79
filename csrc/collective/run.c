#include "collective/run_internal.h"

#include "core/mem.h"
#include "core/system.h"

#include <string.h>

/* How often the arena may get somewhere (some tens of microseconds each) before others have a turn. */
#define MAX_ARENA_MOVES 16

/* Data of an operation of this rank that is moved with the engine's lock held: less than a microsecond of copying. */
#define MOVED_LOCKED_NBYTES ((size_t)16384)
/* What is copied without a look at anything else: some tens of microseconds. */
#define PIECE_NBYTES ((size_t)262144)

/* ---- creation */

static bool progress_task(dd_task *task);
static bool fall_asleep(dd_task *task);
static void note_bell(void *ctx, int local);
static void note_wanted(void *ctx, int local, uint32_t id);

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
    made->arena_options.wake = note_bell;
    made->arena_options.want_region = note_wanted;
    made->arena_options.ctx = made;
    dd_list_init(&made->task.link);
    made->task.progress = progress_task;
    made->task.fall_asleep = fall_asleep;
    made->task.deadline_ns = DD_NEVER_NS;
    made->task.is_crowded = made->task.is_outnumbered = env->is_crowded;
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
        dd_hierarchy_fini(&run->hierarchy);
        dd_mem_free(run->mover.wanted);
        dd_mem_free(run);
    }
}

/* ---- the arena */

void
dd_run_start_arena(dd_run *run, const dd_coll_args *args, bool is_partial)
{
    const dd_topology *topology = run->env.topology;
    run->arena_options.signature = run->call.signature;
    run->arena_options.sequence = run->call.sequence;
    run->arena_options.is_partial = is_partial;
    run->is_arena_busy = true;
    run->mover.is_large = dd_coll_nbytes(args, topology->local, topology->nlocal) > MOVED_LOCKED_NBYTES;
    dd_arena_start(run->env.arena, args, &run->arena_options);
}

/* ---- moving data without the lock */

static void
note_bell(void *ctx, int local)
{
    dd_run *run = ctx;
    dd_arena_ranks_add(&run->mover.bells, local);
}

static void
note_wanted(void *ctx, int local, uint32_t id)
{
    dd_run_mover *mover = &((dd_run *)ctx)->mover;
    mover->wanted[mover->nwanted++] = (dd_run_wanted){.local = local, .id = id};
}

static void
tell_what_is_due(dd_run *run)
{
    dd_run_mover *mover = &run->mover;
    for (int k = dd_arena_ranks_take(&mover->bells); k >= 0; k = dd_arena_ranks_take(&mover->bells)) {
        run->env.wake(run->env.ctx, k);
    }
    while (mover->nwanted > 0) {
        mover->nwanted--;
        run->env.want_region(run->env.ctx, mover->wanted[mover->nwanted].local,
                             mover->wanted[mover->nwanted].id);
    }
}

/* A piece of work, by this thread alone. False: the collective has ended meanwhile. */
static bool
do_unlocked(dd_run *run, void (*work)(dd_run *run, void *ctx), void *ctx)
{
    dd_run_mover *mover = &run->mover;
    uint64_t nended = mover->nended;
    mover->is_taken = true;
    mover->nabsent++;
    atomic_store_explicit(&mover->is_moving, true, memory_order_relaxed);
    dd_engine_unlock(run->env.engine);
    work(run, ctx);
    atomic_store_explicit(&mover->is_moving, false, memory_order_release);
    dd_engine_lock(run->env.engine);
    mover->nabsent--;
    if (mover->nended != nended) {
        return false;
    }
    mover->is_taken = false;
    return true;
}

static void
move_in_arena(dd_run *run, void *ctx)
{
    *(dd_arena_state *)ctx = dd_arena_progress(run->env.arena);
}

static bool
move(dd_run *run, dd_arena_state *state)
{
    if (!run->mover.is_large) {
        move_in_arena(run, state);
    } else if (!do_unlocked(run, move_in_arena, state)) {
        return false;
    }
    tell_what_is_due(run);
    return true;
}

void
dd_run_halt_locked(dd_run *run)
{
    while (run != NULL && atomic_load_explicit(&run->mover.is_moving, memory_order_acquire)) {
        dd_sys_sched_yield();
    }
}

bool
dd_run_is_moving_locked(const dd_run *run)
{
    return run != NULL && run->mover.is_taken;
}

bool
dd_run_is_in_the_way_locked(dd_run *run)
{
    return run->is_arena_busy && !run->mover.is_taken && dd_arena_is_in_the_way(run->env.arena);
}

static void
note_arena_failed(dd_run *run, dd_arena_state state)
{
    dd_error error;
    const char *what = dd_coll_name(run->call.args.coll);
    if (state == DD_ARENA_MISMATCH) {
        run->culprit = dd_arena_get_culprit(run->env.arena);
        run->culprit.rank = run->env.topology->local_ranks[run->culprit.rank];
        run->culprit.other = run->env.topology->local_ranks[run->culprit.other];
        (void)dd_error_set(&error, DD_MISMATCH, "%s", "");
        dd_error_blame(&error, run->culprit.rank, NULL, 0);
    } else {
        (void)dd_error_set(&error, DD_PROTOCOL,
                           "%s through the shared memory of a host: another rank wrote nonsense into it",
                           what);
    }
    dd_run_note_failed(run, &error);
}

static void
on_arena_ended(dd_run *run, dd_arena_state state)
{
    run->is_arena_busy = false;
    if (state != DD_ARENA_DONE) {
        note_arena_failed(run, state);
    }
    if (run->route != DD_ROUTE_ARENA) {
        if (state == DD_ARENA_DONE) {
            dd_run_note_leg_ended(run, DD_LANE_ARENA);
        }
        dd_run_advance_legs(run);
    } else {
        dd_run_end(run, state == DD_ARENA_DONE ? NULL : &run->error);
    }
}

/* True when it got somewhere. One operation may lead to the next. */
static bool
drive_arena(dd_run *run)
{
    bool has_moved = false;
    for (int i = 0; i < MAX_ARENA_MOVES && run->is_arena_busy && !run->mover.is_taken; i++) {
        dd_arena_state state;
        if (!move(run, &state)) {
            return true;
        }
        if (state == DD_ARENA_BLOCKED) {
            return has_moved;
        }
        has_moved = true;
        if (state != DD_ARENA_MOVED) {
            on_arena_ended(run, state);
        }
    }
    return has_moved;
}

/* ---- one rank */

typedef struct copy_task {
    dd_run_copying *copying;
    size_t count; /* of elements, to be copied next */
} copy_task;

static void
copy_piece(dd_run *run, void *ctx)
{
    (void)run;
    const dd_run_copying *copying = ((copy_task *)ctx)->copying;
    size_t count = ((copy_task *)ctx)->count;
    uint8_t *dst = copying->dst + copying->ndone * copying->dst_size;
    const void *src = copying->src + copying->ndone * copying->src_size;
    if (copying->is_fold) {
        dd_reduce(&copying->reduction, copying->stage, dst, &src, 1, count);
    } else {
        memcpy(dst, src, count * copying->dst_size);
    }
}

static bool
start_copying(dd_run *run, const dd_run_copying *wanted, dd_lane lane)
{
    dd_run_copying *copying = &run->copying[lane];
    *copying = *wanted;
    if (copying->count * copying->src_size <= MOVED_LOCKED_NBYTES) {
        copy_piece(run, &(copy_task){.copying = copying, .count = copying->count});
        return true;
    }
    copying->is_busy = true;
    run->mover.is_large = true;
    return false;
}

bool
dd_run_start_copy(dd_run *run, const dd_coll_args *args, bool is_partial, dd_lane lane)
{
    bool is_fold = args->coll == DD_COLL_REDUCE || args->coll == DD_COLL_ALL_REDUCE ||
                   args->coll == DD_COLL_REDUCE_SCATTER;
    if (args->coll == DD_COLL_BARRIER || args->outputs[0].nbytes == 0 ||
        (!is_fold && args->inputs[0].data == args->outputs[0].data)) {
        return true;
    }
    dd_dtype dtype = args->reduction.dtype;
    dd_run_copying copying = {.is_fold = is_fold,
                              .reduction = args->reduction,
                              .stage = is_partial ? DD_STAGE_FIRST : DD_STAGE_WHOLE,
                              .src = args->inputs[0].data,
                              .dst = args->outputs[0].data,
                              .src_size = is_fold ? dd_dtype_size(dtype) : 1,
                              .dst_size = 1};
    if (is_fold) {
        copying.dst_size = dd_dtype_size(is_partial ? dd_reduce_accumulator(dtype) : dtype);
    }
    copying.count = args->outputs[0].nbytes / copying.dst_size;
    return start_copying(run, &copying, lane);
}

bool
dd_run_start_rounding(dd_run *run, const dd_coll_args *args, dd_lane lane)
{
    dd_dtype dtype = args->reduction.dtype;
    dd_run_copying copying = {.is_fold = true,
                              .reduction = args->reduction,
                              .stage = DD_STAGE_LAST,
                              .src = args->inputs[0].data,
                              .dst = args->outputs[0].data,
                              .src_size = dd_dtype_size(dd_reduce_accumulator(dtype)),
                              .dst_size = dd_dtype_size(dtype)};
    copying.count = args->outputs[0].nbytes / copying.dst_size;
    return start_copying(run, &copying, lane);
}

static void
on_copied(dd_run *run, dd_lane lane)
{
    run->copying[lane].is_busy = false;
    if (run->route == DD_ROUTE_COPY) {
        dd_run_end(run, NULL);
    } else {
        dd_run_note_leg_ended(run, lane);
        dd_run_advance_legs(run);
    }
}

/* True when it got somewhere. */
static bool
drive_copy(dd_run *run, dd_lane lane)
{
    dd_run_copying *copying = &run->copying[lane];
    bool has_moved = false;
    for (int i = 0; i < MAX_ARENA_MOVES && copying->is_busy && !run->mover.is_taken; i++) {
        size_t left = copying->count - copying->ndone;
        copy_task task = {.copying = copying, .count = PIECE_NBYTES / copying->src_size};
        task.count = task.count < left ? task.count : left;
        has_moved = true;
        if (!do_unlocked(run, copy_piece, &task)) {
            break;
        }
        copying->ndone += task.count;
        if (copying->ndone == copying->count) {
            on_copied(run, lane);
        }
    }
    return has_moved;
}

static bool
drive_copies(dd_run *run)
{
    bool has_moved = drive_copy(run, DD_LANE_ARENA);
    return drive_copy(run, DD_LANE_PLAN) || has_moved;
}

static bool
is_copying(const dd_run *run)
{
    return run->copying[DD_LANE_ARENA].is_busy || run->copying[DD_LANE_PLAN].is_busy;
}

/* ---- a collective from start to end */

static dd_run_route
choose_route(const dd_run *run, dd_coll coll)
{
    const dd_run_env *env = &run->env;
    if (env->topology->nranks == 1) {
        return DD_ROUTE_COPY;
    }
    if (env->topology->nhosts == 1) {
        return env->arena != NULL && !env->selection.is_flat ? DD_ROUTE_ARENA : DD_ROUTE_FLAT;
    }
    return run->is_hierarchic && dd_hierarchy_fits(env->topology, coll) ? DD_ROUTE_HIERARCHY : DD_ROUTE_FLAT;
}

static void
start_one(dd_run *run)
{
    run->is_failed = false;
    run->mover.is_large = false;
    run->culprit.rank = -1;
    run->route = choose_route(run, run->call.args.coll);
    if (run->route == DD_ROUTE_ARENA) {
        dd_run_start_arena(run, &run->call.args, false);
    } else if (run->route == DD_ROUTE_COPY) {
        if (dd_run_start_copy(run, &run->call.args, false, DD_LANE_ARENA)) {
            dd_run_end(run, NULL);
        }
    } else {
        dd_run_begin_legs(run);
    }
}

static void
watch(dd_run *run)
{
    if (!run->has_task) {
        run->has_task = true;
        dd_engine_add_task_locked(run->env.engine, &run->task);
    }
}

static void
unwatch(dd_run *run)
{
    if (run->has_task) {
        run->has_task = false;
        dd_engine_remove_task_locked(run->env.engine, &run->task);
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
        (void)drive_arena(run);
        (void)drive_copies(run);
    }
    run->is_starting = false;
    if (!run->is_idle) {
        watch(run);
        if (run->mover.is_large) {
            /* The driver may have gone to sleep while data was moved here. */
            dd_engine_settle_driver_locked(run->env.engine);
        }
    }
}

static void
trim(dd_run *run)
{
    if (run->route != DD_ROUTE_ARENA) {
        dd_run_buffer_trim(&run->scratch);
        dd_run_buffer_trim(&run->plan_scratch);
    }
}

void
dd_run_end(dd_run *run, const dd_error *error)
{
    dd_run_halt_locked(run);
    run->mover.nended++;
    run->mover.is_taken = false;
    run->mover.bells = (dd_arena_ranks){{0}};
    run->mover.nwanted = 0;
    run->is_idle = true;
    run->is_arena_busy = false;
    run->copying[DD_LANE_ARENA].is_busy = run->copying[DD_LANE_PLAN].is_busy = false;
    unwatch(run);
    trim(run);
    bool was_starting = run->is_starting;
    run->is_starting = true;
    run->call.on_done(run->call.ctx, error);
    run->is_starting = was_starting;
    if (run->is_waiting && !was_starting) {
        start_waiting(run);
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

static void
do_plan_step(dd_run *run, void *ctx)
{
    dd_plan_run_do_step(run->plan->plan, *(const uint32_t *)ctx);
}

static bool
progress_plan(dd_run *run)
{
    uint32_t step;
    if (run->plan == NULL || run->mover.is_taken || !dd_plan_run_take_step_locked(run->plan->plan, &step)) {
        return false;
    }
    if (do_unlocked(run, do_plan_step, &step)) {
        dd_plan_run_end_step_locked(run->plan->plan, step);
    }
    return true;
}

bool
dd_run_progress_locked(dd_run *run)
{
    bool has_moved = run->is_arena_busy && drive_arena(run);
    has_moved = drive_copies(run) || has_moved;
    return progress_plan(run) || has_moved;
}

static bool
progress_task(dd_task *task)
{
    dd_run *run = DD_CONTAINER_OF(task, dd_run, task);
    bool has_moved = dd_run_progress_locked(run);
    if (!has_moved) {
        task->is_crowded = run->env.is_crowded || dd_run_is_in_the_way_locked(run);
    }
    return has_moved;
}

static bool
fall_asleep(dd_task *task)
{
    const dd_run *run = DD_CONTAINER_OF(task, dd_run, task);
    if (run->mover.is_taken) {
        return true; /* a thread that moves its data drives afterwards, or wakes the driver */
    }
    if (is_copying(run) || (run->plan != NULL && dd_plan_run_is_busy_locked(run->plan->plan))) {
        return false;
    }
    return !run->is_arena_busy || dd_arena_fall_asleep(run->env.arena);
}

void
dd_run_cancel_locked(dd_run *run, const dd_error *error)
{
    if (run->is_idle) {
        return;
    }
    if (run->is_waiting) {
        run->is_waiting = false;
        dd_run_end(run, error);
    } else if (run->route == DD_ROUTE_ARENA || run->route == DD_ROUTE_COPY) {
        dd_run_end(run, error);
    } else {
        dd_run_note_failed(run, error);
        dd_run_advance_legs(run);
    }
}

/* ---- what others want to know */

bool
dd_run_is_idle(const dd_run *run)
{
    return run->is_idle;
}

dd_arena_culprit
dd_run_culprit(const dd_run *run)
{
    return run->culprit;
}

const char *
dd_run_way(const dd_run *run)
{
    switch (run->route) {
    case DD_ROUTE_COPY:
        return "copy";
    case DD_ROUTE_ARENA:
        return "arena";
    case DD_ROUTE_FLAT:
    case DD_ROUTE_HIERARCHY:
        break;
    }
    return run->way[0] != '\0' ? run->way : "arena";
}

static int
add_local_missing(const dd_run *run, int *ranks, int nfound, int max)
{
    dd_arena_ranks missing = dd_arena_missing(run->env.arena);
    for (int place = 0; place < run->env.topology->nlocal && nfound < max; place++) {
        int rank = run->env.topology->local_ranks[place];
        bool is_new = true;
        for (int i = 0; i < nfound; i++) {
            is_new = is_new && ranks[i] != rank;
        }
        if (is_new && dd_arena_ranks_have(&missing, place)) {
            ranks[nfound++] = rank;
        }
    }
    return nfound;
}

int
dd_run_missing_locked(const dd_run *run, int *ranks, int max)
{
    int nfound = run->plan != NULL ? dd_plan_run_missing_locked(run->plan->plan, ranks, max) : 0;
    bool may_look = run->is_arena_busy && !run->mover.is_taken;
    return may_look ? add_local_missing(run, ranks, nfound, max) : nfound;
}
