/* Sleeping until another process changes shared memory, without a lost wake-up.
 *
 * A sleeper owns a bit in a word that the other processes can read. It parks: it sets its bit,
 * reads the memory again, and sleeps if nothing has changed. A process that changes the memory
 * reads the word afterwards; if a bit is set, it clears it and rings that sleeper's bell (a byte in
 * a socket, a datagram: dd_doorbell, link_shm.c). So a system call is made only for a sleeper, and
 * once.
 *
 * Both sides store and then load, and each store must be visible before the load that follows;
 * otherwise the sleeper misses the change, the other process misses the bit, and no bell rings.
 * dd_park has a full fence for the sleeper. The process that makes the change needs an
 * atomic_thread_fence, or a change by a sequentially consistent read-modify-write. Where that is
 * too expensive, the sleeper executes the fence for both, by core/fence.h
 * (collective/arena/sync.c).
 *
 * The rings of links, the arena, its board and windows use it; tests/models checks all of them. */
#ifndef DD_CORE_PARK_H
#define DD_CORE_PARK_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* One bit for each sleeper. Peers can write it: a bit that is set wrongly costs only a bell. */
typedef _Atomic uint64_t dd_park_bits;
/* The bit, if the word has only one sleeper. */
#define DD_PARK_SOLE UINT64_C(1)

/* Set the bit and execute a full fence. Then read the memory: if it changed, clear the bit. */
void dd_park(dd_park_bits *bits, uint64_t own);

/* Loads are acquire and sequentially consistent, even if no data depends on the value: so no later
 * store of the caller is visible before the load (load buffering, docs/contributing/memory-orders.md). */
static inline bool
dd_park_is_any(const dd_park_bits *bits, uint64_t mask)
{
    return (atomic_load_explicit(bits, memory_order_seq_cst) & mask) != 0;
}

/* Clear the bit, and return true to the caller that cleared it: it must ring the sleeper's bell,
 * unless it is the sleeper itself. Call it after the change and its fence. */
static inline bool
dd_park_take(dd_park_bits *bits, uint64_t sleeper)
{
    return dd_park_is_any(bits, sleeper) &&
           (atomic_fetch_and_explicit(bits, ~sleeper, memory_order_acq_rel) & sleeper) != 0;
}

#endif
