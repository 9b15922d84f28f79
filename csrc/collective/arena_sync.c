#include "collective/arena_internal.h"

#include "core/fence.h"

#include <sched.h>

/* A publisher stores its epoch and then looks whether somebody sleeps; a sleeper says so and then looks at the epochs. Each must
 * make its store visible before its load, or both may miss each other. In the publisher that would cost as much as
 * the rest of a small operation, so the sleeper, who has time, sees to it for both: the fence of core/fence.h.
 * Unless every rank's process takes part in it, publishers order their own stores: at first, since that takes a process a while.
 * A rank says that its process does between operations, when it cannot be asleep: it fences before every sleep from then on. */

void
dd_arena_note_registered(dd_arena *arena)
{
    if (dd_fence_is_registered()) {
        arena->is_registered = true;
        atomic_fetch_and(&arena->shared->unregistered, ~(UINT64_C(1) << arena->rank));
    }
}

static void
wake_sleepers(dd_arena *arena, uint64_t asleep)
{
    /* The load of `asleep` came before: awaited is at least as new as the bit. */
    uint64_t others = asleep & arena->all_ranks & ~(UINT64_C(1) << arena->rank);
    for (; others != 0; others &= others - 1) {
        int k = __builtin_ctzll(others);
        uint64_t bit = UINT64_C(1) << k;
        uint32_t awaited = atomic_load_explicit(&arena->slots[k].control->awaited, memory_order_relaxed);
        bool is_ours =
            awaited == (uint32_t)arena->rank &&
            (atomic_fetch_and_explicit(&arena->shared->asleep, ~bit, memory_order_acq_rel) & bit) != 0;
        if (is_ours && arena->op.options.wake != NULL) {
            arena->op.options.wake(arena->op.options.ctx, k);
            arena->op.budget = 0; /* so that the bell is rung before anything else is moved */
        }
    }
}

/* ---- who runs where */

static uint32_t
current_cpu(void)
{
    return (uint32_t)(sched_getcpu() + 1);
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
dd_arena_is_in_the_way_of(const dd_arena *arena, int k)
{
    return was_seen_on(arena, k, current_cpu());
}

bool
dd_arena_is_in_the_way(const dd_arena *arena)
{
    uint32_t cpu = current_cpu();
    bool is_shared = false;
    for (uint64_t left = dd_arena_missing(arena); left != 0; left &= left - 1) {
        is_shared = is_shared || was_seen_on(arena, __builtin_ctzll(left), cpu);
    }
    return is_shared;
}

/* ---- publishing */

void
dd_arena_publish(dd_arena *arena, uint64_t epoch)
{
    arena_record *record = &arena->slots[arena->rank].control->records[arena->op.parity];
    arena->epoch = epoch;
    dd_arena_note_cpu(arena);
    /* Bits are only ever cleared: an old value is on the safe side. */
    uint64_t unregistered = atomic_load_explicit(&arena->shared->unregistered, memory_order_relaxed);
    if (__builtin_expect(unregistered != 0, false)) {
        atomic_store_explicit(&record->epoch, epoch, memory_order_seq_cst);
    } else {
        atomic_store_explicit(&record->epoch, epoch, memory_order_release);
        atomic_signal_fence(memory_order_seq_cst);
    }
    uint64_t asleep = atomic_load_explicit(&arena->shared->asleep, memory_order_seq_cst);
    if (__builtin_expect(asleep != 0, false)) {
        wake_sleepers(arena, asleep);
    }
}

/* What a rank has published, as far as this operation can tell. A rank that has gone on to the next operation has left the epochs
 * of this one in their record; and before this operation's header the other record has the last one's. */
static uint64_t
published_by(const dd_arena *arena, int k, uint64_t wanted)
{
    const arena_control *control = arena->slots[k].control;
    /* Acquire, for what was published; and sequentially consistent, for the sleeper. */
    uint64_t epoch = atomic_load_explicit(&control->records[arena->op.parity].epoch, memory_order_seq_cst);
    if (epoch < wanted && wanted < arena->op.first_epoch) {
        epoch = atomic_load_explicit(&control->records[arena->op.parity ^ 1].epoch, memory_order_seq_cst);
    }
    return epoch;
}

uint64_t
dd_arena_missing_of(const dd_arena *arena, uint64_t ranks, uint64_t epoch)
{
    uint64_t missing = 0;
    for (uint64_t left = ranks; left != 0; left &= left - 1) {
        int k = __builtin_ctzll(left);
        if (published_by(arena, k, epoch) < epoch) {
            missing |= UINT64_C(1) << k;
        }
    }
    return missing;
}

bool
dd_arena_has_come(dd_arena *arena, uint64_t ranks, uint64_t epoch)
{
    arena_op *op = &arena->op;
    if (arena->floor >= epoch) {
        return true;
    }
    ranks &= ~(UINT64_C(1) << arena->rank);
    /* Those found there once need not be looked at again. */
    bool is_same = op->awaited_epoch == epoch && op->awaited_ranks != 0;
    uint64_t missing = dd_arena_missing_of(arena, is_same ? op->awaited_ranks : ranks, epoch);
    op->awaited_epoch = epoch;
    op->awaited_ranks = missing;
    if (missing != 0) {
        return false;
    }
    if ((ranks | UINT64_C(1) << arena->rank) == arena->all_ranks) {
        arena->floor = epoch;
    }
    return true;
}

uint64_t
dd_arena_missing(const dd_arena *arena)
{
    const arena_op *op = &arena->op;
    return dd_arena_missing_of(arena, op->awaited_ranks, op->awaited_epoch);
}

/* A rank that is not registered itself makes everybody else keep order. */
static bool
fence_all(const dd_arena *arena)
{
    return !arena->is_registered || dd_fence_all();
}

bool
dd_arena_fall_asleep(dd_arena *arena)
{
    uint64_t missing = dd_arena_missing(arena);
    if (missing == 0) {
        return arena->op.awaited_ranks == 0 && arena->op.phase != ARENA_OPENING;
    }
    /* One of them is enough: we look again when it has come. */
    arena_control *own = arena->slots[arena->rank].control;
    atomic_store_explicit(&own->awaited, (uint32_t)__builtin_ctzll(missing), memory_order_relaxed);
    atomic_fetch_or_explicit(&arena->shared->asleep, UINT64_C(1) << arena->rank, memory_order_seq_cst);
    arena->has_slept = true;
    /* Where the fence is refused, nobody can be relied on to wake us. */
    bool is_fenced = fence_all(arena);
    if (!is_fenced || (missing & ~dd_arena_missing(arena)) != 0) {
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
        atomic_fetch_and_explicit(&arena->shared->asleep, ~(UINT64_C(1) << arena->rank),
                                  memory_order_relaxed);
    }
}
