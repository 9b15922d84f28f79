/* Sleeping until another process changes shared memory, without a lost wake-up.
 *
 * A sleeper has a bit in a word that the others can see. It parks: sets its bit, then looks at the memory once more,
 * and sleeps if nothing has changed. A process that changes the memory looks at the word afterwards; if a bit is set,
 * it clears it and rings the bell of that sleeper (a byte in a socket, a datagram: dd_doorbell, link_shm.c). So a bell
 * costs a system call only for a sleeper, and rings once.
 *
 * Both store and then load, and each store has to be visible before the load that follows. Otherwise the sleeper misses the
 * change, the other process misses the bit, and no bell rings. dd_park has a full fence for the sleeper. The process that
 * makes the change needs one as well: an atomic_thread_fence, or a change by a sequentially consistent read-modify-write.
 * Where that would cost too much, the sleeper pays for both by the fence of core/fence.h (collective/arena/sync.c).
 *
 * The rings of links, the arena, its board and windows sleep by this; tests/models checks all of them. */
#ifndef DD_CORE_PARK_H
#define DD_CORE_PARK_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* A bit for each sleeper. It is a peer's word: a bit that is set for nothing costs a bell. */
typedef _Atomic uint64_t dd_park_bits;
/* The bit in a word of one sleeper. */
#define DD_PARK_SOLE UINT64_C(1)

/* Sets the bit, with a full fence behind it. Look at the memory now: if it has changed, take the bit back. */
void dd_park(dd_park_bits *bits, uint64_t own);

/* Loads are acquires and sequentially consistent, also where nothing comes with the value: so no later store of the caller
 * is seen before the look is done (load buffering, docs/memory-orders.md). */
static inline bool
dd_park_is_any(const dd_park_bits *bits, uint64_t mask)
{
    return (atomic_load_explicit(bits, memory_order_seq_cst) & mask) != 0;
}

/* True for the caller that has cleared the bit: it rings the sleeper's bell, or is the sleeper, which is awake. Call it after
 * the change and its fence. */
static inline bool
dd_park_take(dd_park_bits *bits, uint64_t sleeper)
{
    return dd_park_is_any(bits, sleeper) &&
           (atomic_fetch_and_explicit(bits, ~sleeper, memory_order_acq_rel) & sleeper) != 0;
}

#endif
