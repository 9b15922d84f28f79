/* Threads that move a collective's data without the engine's lock: see dd_run_mover. */
#include "collective/run_internal.h"

#include "core/system.h"

/* Move a piece, and lock again. Return false if another thread has taken the piece over. */
static bool
move_unlocked(dd_run *run, dd_run_piece *piece)
{
    dd_run_mover *mover = &run->mover;
    uint64_t number = ++mover->npieces;
    mover->piece = *piece;
    mover->taken = number;
    mover->nabsent++;
    atomic_store_explicit(&mover->is_recalled, false, memory_order_relaxed);
    atomic_store_explicit(&mover->is_moving, true, memory_order_relaxed);
    dd_engine_unlock(run->env.engine);
    piece->ops->move(run, &mover->piece);
    atomic_store_explicit(&mover->is_moving, false, memory_order_release);
    dd_engine_lock(run->env.engine);
    mover->nabsent--;
    if (mover->taken != number) {
        return false;
    }
    mover->taken = 0;
    *piece = mover->piece;
    return true;
}

bool
dd_run_move_piece(dd_run *run, dd_run_piece *piece)
{
    if (piece->is_large && !run->mover.is_catching_up) {
        return move_unlocked(run, piece);
    }
    piece->stay_ns = 0;
    if (piece->ops->move != NULL) {
        piece->ops->move(run, piece);
    }
    return true;
}

void
dd_run_recall_locked(dd_run *run)
{
    atomic_store_explicit(&run->mover.is_recalled, true, memory_order_relaxed);
}

void
dd_run_halt_locked(dd_run *run)
{
    if (run != NULL) {
        dd_run_recall_locked(run);
    }
    while (run != NULL && atomic_load_explicit(&run->mover.is_moving, memory_order_acquire)) {
        dd_sys_sched_yield();
    }
}

bool
dd_run_take_over_piece(dd_run *run, dd_run_piece *piece)
{
    if (run->mover.taken == 0) {
        return false;
    }
    dd_run_halt_locked(run);
    run->mover.taken = 0;
    *piece = run->mover.piece;
    return true;
}

bool
dd_run_is_moving_locked(const dd_run *run)
{
    return run != NULL && run->mover.taken != 0;
}

void
dd_run_wait_for_movers(dd_run *run)
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
