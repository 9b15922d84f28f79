#include "collective/arena/state.h"

#include "core/fence.h"
#include "core/park.h"
#include "core/system.h"

#include <string.h>

/* Ranks sleep by the protocol of core/park.h. The fence that a publisher would need costs as much
 * as the rest of a small operation, so the sleeper, which has time, makes one fence for both sides
 * (core/fence.h). For this, every rank's process must be registered for fences, which takes some
 * time; until then, publishers order their own stores. A rank publishes that its process is
 * registered between operations, when the rank cannot be asleep; then it fences before each
 * sleep. */

static uint64_t
sync_bit_of(int rank)
{
    return UINT64_C(1) << rank % 64;
}

bool
dd_arena_is_any(const dd_arena *arena, const arena_bits *bits)
{
    uint64_t any = 0;
    for (int i = 0; i < arena->nwords; i++) {
        any |= atomic_load_explicit(&(*bits)[i], memory_order_seq_cst);
    }
    return any != 0;
}

void
dd_arena_note_registered(dd_arena *arena)
{
    if (dd_fence_is_registered()) {
        arena->is_registered = true;
        atomic_fetch_and(&arena->shared->unregistered[arena->rank / 64], ~sync_bit_of(arena->rank));
    }
}

static void
wake_sleepers(dd_arena *arena)
{
    dd_arena_ranks asleep = {{0}};
    for (int i = 0; i < arena->nwords; i++) {
        asleep.words[i] =
            atomic_load_explicit(&arena->shared->asleep[i], memory_order_seq_cst) & arena->all_ranks.words[i];
    }
    for (int k = dd_arena_ranks_pop(&asleep); k >= 0; k = dd_arena_ranks_pop(&asleep)) {
        /* Load `awaited` after `asleep`, so that it is at least as new as the bit. Acquire keeps
         * later stores from being visible before (load buffering,
         * docs/contributing/memory-orders.md). */
        uint32_t awaited = atomic_load_explicit(&arena->slots[k].control->awaited, memory_order_acquire);
        bool is_awaiting_this = k != arena->rank && awaited == (uint32_t)arena->rank &&
                                dd_park_take(&arena->shared->asleep[k / 64], sync_bit_of(k));
        if (is_awaiting_this && arena->op.options.wake != NULL) {
            arena->op.options.wake(arena->op.options.ctx, k);
            arena->op.budget = 0; /* stop, to ring the bell before more data is moved */
        }
    }
}

/* ---- CPUs of the ranks */

static uint32_t
current_cpu(void)
{
    return (uint32_t)(dd_sys_sched_getcpu() + 1);
}

void
dd_arena_note_cpu(dd_arena *arena)
{
    uint32_t cpu = current_cpu();
    if (__builtin_expect(cpu != arena->cpu, false)) {
        arena->cpu = cpu;
        atomic_store_explicit(&arena->slots[arena->rank].control->cpu, cpu, memory_order_relaxed);
    }
}

static bool
was_seen_on(const dd_arena *arena, int k, uint32_t cpu)
{
    return cpu != 0 && atomic_load_explicit(&arena->slots[k].control->cpu, memory_order_relaxed) == cpu;
}

bool
dd_arena_must_yield_to(const dd_arena *arena, int k)
{
    return was_seen_on(arena, k, current_cpu());
}

bool
dd_arena_must_yield(const dd_arena *arena)
{
    uint32_t cpu = current_cpu();
    bool is_shared = false;
    dd_arena_ranks left = dd_arena_missing(arena);
    for (int k = dd_arena_ranks_pop(&left); k >= 0; k = dd_arena_ranks_pop(&left)) {
        is_shared = is_shared || was_seen_on(arena, k, cpu);
    }
    return is_shared;
}

/* ---- publishing */

void
dd_arena_publish(dd_arena *arena, uint32_t step)
{
    arena_control *own_control = arena->slots[arena->rank].control;
    _Atomic uint64_t *stored = &own_control->records[arena->number % ARENA_NRECORDS].mark;
    uint64_t mark = dd_arena_mark_of(arena, step);
    dd_arena_note_cpu(arena);
    /* Bits of `unregistered` are only ever cleared, so a stale value is safe. */
    if (__builtin_expect(dd_arena_is_any(arena, &arena->shared->unregistered), false)) {
        atomic_store_explicit(stored, mark, memory_order_seq_cst);
    } else {
        atomic_store_explicit(stored, mark, memory_order_release);
        atomic_signal_fence(memory_order_seq_cst);
    }
    if (__builtin_expect(dd_arena_is_any(arena, &arena->shared->asleep), false)) {
        wake_sleepers(arena);
    }
}

/* Return true if rank k has reached `mark`: its record then has this mark or a later one. */
static bool
has_reached(const dd_arena *arena, int k, uint64_t mark)
{
    const arena_record *record = &arena->slots[k].control->records[(mark >> 32) % ARENA_NRECORDS];
    /* Acquire, to see the published data; sequentially consistent, for the protocol of sleepers. */
    return dd_arena_is_reached(atomic_load_explicit(&record->mark, memory_order_seq_cst), mark);
}

bool
dd_arena_find_missing(const dd_arena *arena, const dd_arena_ranks *ranks, uint64_t mark,
                      dd_arena_ranks *missing)
{
    uint64_t any = 0;
    dd_arena_ranks found = {{0}};
    for (int i = 0; i < arena->nwords; i++) {
        for (uint64_t left = ranks->words[i]; left != 0; left &= left - 1) {
            int k = 64 * i + __builtin_ctzll(left);
            if (k != arena->rank && !has_reached(arena, k, mark)) {
                found.words[i] |= sync_bit_of(k);
            }
        }
        any |= found.words[i];
    }
    *missing = found;
    return any != 0;
}

bool
dd_arena_have_reached(dd_arena *arena, const dd_arena_ranks *ranks, uint64_t mark)
{
    arena_op *op = &arena->op;
    if (dd_arena_is_reached(arena->floor, mark)) {
        op->is_awaiting = false;
        return true;
    }
    /* Check only the ranks that had not reached the mark at the last check. */
    bool is_same = op->is_awaiting && op->awaited_mark == mark && op->awaited_of == ranks;
    op->is_awaiting = dd_arena_find_missing(arena, is_same ? &op->awaited : ranks, mark, &op->awaited);
    op->awaited_mark = mark;
    op->awaited_of = ranks;
    if (!op->is_awaiting && ranks == &arena->all_ranks) {
        arena->floor = mark;
    }
    return !op->is_awaiting;
}

dd_arena_ranks
dd_arena_missing(const dd_arena *arena)
{
    const arena_op *op = &arena->op;
    dd_arena_ranks missing = {{0}};
    if (op->is_awaiting) {
        (void)dd_arena_find_missing(arena, &op->awaited, op->awaited_mark, &missing);
    }
    return missing;
}

/* Fence all ranks, if this rank is registered; otherwise all publishers order their own stores. */
static bool
fence_all(const dd_arena *arena)
{
    return !arena->is_registered || dd_fence_all();
}

bool
dd_arena_fall_asleep(dd_arena *arena)
{
    const arena_op *op = &arena->op;
    dd_arena_ranks missing;
    if (!op->is_awaiting) {
        /* A rank that waits for space in its slot must retry, so it must not sleep. If opening is
         * blocked (is_rejected), the report of the failure wakes this rank. */
        return op->phase != ARENA_OPENING || op->is_rejected;
    }
    if (!dd_arena_find_missing(arena, &op->awaited, op->awaited_mark, &missing)) {
        return false;
    }
    /* Await only one of the missing ranks: once that rank has published, check the others again. */
    dd_arena_ranks first = missing;
    arena_control *own_control = arena->slots[arena->rank].control;
    atomic_store_explicit(&own_control->awaited, (uint32_t)dd_arena_ranks_pop(&first), memory_order_relaxed);
    dd_park(&arena->shared->asleep[arena->rank / 64], sync_bit_of(arena->rank));
    arena->has_slept = true;
    /* Without the fence, publishers may not see this rank's bit. */
    bool is_fenced = fence_all(arena);
    dd_arena_ranks remaining;
    (void)dd_arena_find_missing(arena, &missing, op->awaited_mark, &remaining);
    if (!is_fenced || memcmp(&remaining, &missing, sizeof(remaining)) != 0) {
        dd_arena_stay_awake(arena);
        return false;
    }
    return true;
}

void
dd_arena_stay_awake(dd_arena *arena)
{
    if (arena->has_slept) {
        arena->has_slept = false;
        (void)dd_park_take(&arena->shared->asleep[arena->rank / 64], sync_bit_of(arena->rank));
    }
}
