/* The work of a collective, piece by piece: of the arena's operation, of a plan's large steps. Large ones are
 * done without the engine's lock. */
#include "collective/run_internal.h"

#include "core/system.h"

#include <string.h>

/* How many pieces (some tens of microseconds each) before others have a turn. */
#define MAX_MOVES 16
/* Rounds of up to MAX_MOVES pieces in which a failing group finishes complete calls, with one more for each rank. Ranks that
 * go on publishing data must not keep the lock busy for longer. */
#define CATCH_UP_ROUNDS 16

/* Data of an operation of this rank that is moved with the engine's lock held: less than a microsecond of copying. */
#define MOVED_LOCKED_NBYTES ((size_t)16384)

/* ---- starting */

void
dd_run_start_arena(dd_run *run, const dd_coll_args *args)
{
    const dd_topology *topology = run->env.topology;
    run->arena_options.signature = run->call.signature;
    run->arena_options.sequence = run->call.sequence;
    run->is_arena_busy = true;
    run->mover.is_large = dd_coll_nbytes(args, topology->local, topology->nlocal) > MOVED_LOCKED_NBYTES;
    dd_arena_start(run->env.arena, args, &run->arena_options);
}

bool
dd_run_do_alone(const dd_coll_args *args)
{
    if (args->coll == DD_COLL_BARRIER || args->outputs[0].nbytes == 0) {
        return true;
    }
    const void *src = args->inputs[0].data;
    const dd_block *dst = &args->outputs[0];
    bool is_fold = dd_coll_is_folding(args->coll);
    if (!is_fold && src == dst->data) {
        return true;
    }
    if (dst->nbytes > MOVED_LOCKED_NBYTES) {
        return false;
    }
    if (is_fold) {
        dd_reduce(&args->reduction, args->stage, dst->data, &src, 1, dst->nbytes / dd_coll_output_size(args));
    } else {
        memcpy(dst->data, src, dst->nbytes);
    }
    return true;
}

/* ---- ends */

/* What the arena has asked for meanwhile. */
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

static void
on_arena_failed(dd_run *run, dd_arena_state state)
{
    dd_error error;
    if (state == DD_ARENA_MISMATCH) {
        run->culprit = dd_arena_get_culprit(run->env.arena);
        run->culprit.rank = run->env.topology->local_ranks[run->culprit.rank];
        run->culprit.other = run->env.topology->local_ranks[run->culprit.other];
        (void)dd_error_set(&error, DD_MISMATCH, "%s", "");
        dd_error_blame(&error, run->culprit.rank, NULL, 0);
    } else {
        (void)dd_error_set(&error, DD_PROTOCOL,
                           "%s through the shared memory of a host: another rank wrote nonsense into it",
                           dd_coll_name(run->call.args.coll));
    }
    dd_run_fail(run, &error);
}

/* ---- pieces */

/* A piece of a large operation releases the lock. So polling a blocked operation takes no piece. */
static bool
may_arena_move(const dd_run *run)
{
    return run->is_arena_busy && !(run->mover.is_large && dd_arena_is_blocked(run->env.arena));
}

/* False when there is nothing to be done, or another thread is doing it. */
static bool
take_piece(dd_run *run, bool is_arena_blocked, dd_run_piece *next)
{
    if (run->mover.is_taken) {
        return false;
    }
    next->is_of_arena = !is_arena_blocked && may_arena_move(run);
    return next->is_of_arena ||
           (run->plan != NULL && dd_plan_run_take_step_locked(run->plan->plan, &next->step));
}

static void
do_piece(dd_run *run, dd_run_piece *this)
{
    if (this->is_of_arena) {
        this->state = dd_arena_progress(run->env.arena);
    } else {
        dd_plan_run_do_step(run->plan->plan, this->step);
    }
}

/* Only by this thread. False if another thread has ended the piece, or the collective, before this one had the lock again. */
static bool
do_piece_unlocked(dd_run *run, dd_run_piece *this)
{
    dd_run_mover *mover = &run->mover;
    uint64_t number = ++mover->npieces;
    mover->piece = *this;
    mover->is_taken = mover->has_left = true;
    mover->nabsent++;
    atomic_store_explicit(&mover->is_moving, true, memory_order_relaxed);
    dd_engine_unlock(run->env.engine);
    do_piece(run, &mover->piece);
    atomic_store_explicit(&mover->is_moving, false, memory_order_release);
    dd_engine_lock(run->env.engine);
    mover->nabsent--;
    if (!mover->is_taken || mover->npieces != number) {
        return false;
    }
    mover->is_taken = false;
    *this = mover->piece;
    return true;
}

static void
end_piece(dd_run *run, const dd_run_piece *this)
{
    if (!this->is_of_arena) {
        dd_plan_run_end_step_locked(run->plan->plan, this->step);
        return;
    }
    tell_what_is_due(run);
    if (this->state == DD_ARENA_BLOCKED || this->state == DD_ARENA_MOVED) {
        return;
    }
    run->is_arena_busy = false;
    if (this->state == DD_ARENA_DONE) {
        dd_run_end_leg(run, DD_LANE_ARENA);
    } else {
        on_arena_failed(run, this->state);
    }
}

bool
dd_run_progress_locked(dd_run *run)
{
    if (run->route == DD_ROUTE_CARRIED && !run->is_idle) {
        return dd_run_progress_carried(run);
    }
    bool has_moved = false;
    bool is_blocked = false;
    dd_run_piece next = {0};
    /* A plan's step may be as long as many pieces. */
    for (int i = 0; i < MAX_MOVES && take_piece(run, is_blocked, &next); i++) {
        if ((next.is_of_arena && !run->mover.is_large) || run->mover.is_catching_up) {
            do_piece(run, &next);
        } else if (!do_piece_unlocked(run, &next)) {
            return true;
        }
        bool is_stuck = next.is_of_arena && next.state == DD_ARENA_BLOCKED;
        is_blocked = is_blocked || is_stuck;
        has_moved = has_moved || !is_stuck;
        end_piece(run, &next);
        if (!next.is_of_arena) {
            break;
        }
    }
    return has_moved;
}

/* Ends the piece that another thread is moving, instead of that thread. */
static void
take_over_piece(dd_run *run)
{
    dd_run_mover *mover = &run->mover;
    if (mover->is_taken) {
        dd_run_halt_locked(run);
        mover->is_taken = false;
        dd_run_piece taken = mover->piece;
        end_piece(run, &taken);
    }
}

void
dd_run_catch_up_locked(dd_run *run)
{
    bool was_catching_up = run->mover.is_catching_up;
    bool has_moved = true;
    run->mover.is_catching_up = true;
    take_over_piece(run);
    for (int i = 0; i < CATCH_UP_ROUNDS + run->env.topology->nranks && has_moved && !run->is_idle; i++) {
        has_moved = run->plan != NULL && dd_plan_run_catch_up_locked(run->plan->plan);
        if (dd_run_is_carrying(run)) {
            has_moved = dd_run_catch_up_carried(run);
        } else if (!run->is_idle) {
            has_moved = dd_run_progress_locked(run) || has_moved;
        }
    }
    run->mover.is_catching_up = was_catching_up;
}

bool
dd_run_looks_help_locked(const dd_run *run)
{
    return run->is_arena_busy || dd_run_is_carrying(run);
}

/* ---- between pieces */

void
dd_run_halt_locked(dd_run *run)
{
    while (run != NULL && atomic_load_explicit(&run->mover.is_moving, memory_order_acquire)) {
        dd_sys_sched_yield();
    }
}

void
dd_run_forget_moves(dd_run *run)
{
    dd_run_halt_locked(run);
    run->mover.nended++;
    run->mover.is_taken = false;
    run->mover.bells = (dd_arena_ranks){{0}};
    run->mover.nwanted = 0;
    run->is_arena_busy = false;
}

bool
dd_run_is_moving_locked(const dd_run *run)
{
    return run != NULL && run->mover.is_taken;
}

bool
dd_run_must_make_way_locked(dd_run *run)
{
    return run->is_arena_busy && !run->mover.is_taken && dd_arena_must_make_way(run->env.arena);
}

static bool
progress_task(dd_task *task)
{
    dd_run *run = DD_CONTAINER_OF(task, dd_run, task);
    bool has_moved = dd_run_progress_locked(run);
    if (!has_moved && dd_run_is_carrying(run)) {
        task->is_crowded = !dd_run_gives_way_locked(run);
    } else if (!has_moved) {
        task->is_crowded = run->env.is_crowded || dd_run_must_make_way_locked(run);
    }
    return has_moved;
}

static bool
fall_asleep(dd_task *task)
{
    dd_run *run = DD_CONTAINER_OF(task, dd_run, task);
    if (dd_run_is_carrying(run)) {
        return dd_run_may_sleep_carried(run);
    }
    if (run->mover.is_taken) {
        return true; /* a thread that moves its data drives afterwards, or wakes the driver */
    }
    if (run->plan != NULL && dd_plan_run_is_busy_locked(run->plan->plan)) {
        return false;
    }
    return !run->is_arena_busy || dd_arena_fall_asleep(run->env.arena);
}

static void
on_deadline(dd_task *task)
{
    task->deadline_ns = dd_run_next_look_ns(DD_CONTAINER_OF(task, dd_run, task));
}

void
dd_run_init_moves(dd_run *run)
{
    run->arena_options.wake = note_bell;
    run->arena_options.want_region = note_wanted;
    run->arena_options.ctx = run;
    dd_list_init(&run->task.link);
    run->task.progress = progress_task;
    run->task.fall_asleep = fall_asleep;
    run->task.deadline_ns = DD_NEVER_NS;
    run->task.on_deadline = on_deadline;
}

/* A library wakes nobody, and may have threads that need the core. */
void
dd_run_set_pace(dd_run *run)
{
    bool is_carrying = dd_run_is_carrying(run);
    run->task.deadline_ns = DD_NEVER_NS;
    run->task.is_crowded = run->task.is_outnumbered = run->env.is_crowded || is_carrying;
}

void
dd_run_add_task(dd_run *run)
{
    run->has_task = true;
    dd_run_set_pace(run);
    dd_engine_add_task_locked(run->env.engine, &run->task);
}
