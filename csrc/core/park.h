/* Sleeping until another process changes shared memory, without a lost wake-up.
 *
 * A sleeper owns a bit in a word that the other processes can read. To park, the sleeper sets its
 * bit, reads the memory again, and sleeps if nothing has changed. A process that changes the memory
 * then reads the word. If a bit is set, the process clears it and rings that sleeper's bell (a byte
 * in a socket or a datagram: dd_doorbell, link_shm.c). So a system call is made only if there is a
 * sleeper, and only once.
 *
 * Both sides store and then load, and each store must be visible before the load that follows.
 * Otherwise the sleeper misses the change, the other process misses the bit, and no bell rings.
 * dd_park has a full fence for the sleeper. The process that makes the change needs an
 * atomic_thread_fence, or must make the change by a sequentially consistent read-modify-write.
 * Where that is too expensive, the sleeper executes the fence for both sides, with core/fence.h
 * (collective/arena/sync.c).
 *
 * The rings of links, the arena, the arena's board and windows park in this way; tests/models
 * checks each of them. */
#ifndef DD_CORE_PARK_H
#define DD_CORE_PARK_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* A word with a bit for each sleeper. Peers can write it: a wrong bit costs only one bell. */
typedef _Atomic uint64_t dd_park_bits;
/* The sleeper's bit in a word that only one process or thread sleeps on. */
#define DD_PARK_SOLE UINT64_C(1)

/* Set the sleeper's bit and execute a full fence. The caller must then read the shared memory
 * again, and must clear the bit if the memory has changed. */
void dd_park(dd_park_bits *bits, uint64_t own);

/* Return true if a bit of `mask` is set. The load is acquire and sequentially consistent, even
 * where no data depends on it, so that no later store of the caller becomes visible before the load
 * (load buffering, docs/contributing/memory-orders.md). */
static inline bool
dd_park_is_any(const dd_park_bits *bits, uint64_t mask)
{
    return (atomic_load_explicit(bits, memory_order_seq_cst) & mask) != 0;
}

/* Clear the sleeper's bit. Return true if this call cleared it: the caller must then ring the
 * sleeper's bell, unless the caller is the sleeper. A process that changes the memory must call
 * this after the change and a fence. */
static inline bool
dd_park_take(dd_park_bits *bits, uint64_t sleeper)
{
    return dd_park_is_any(bits, sleeper) &&
           (atomic_fetch_and_explicit(bits, ~sleeper, memory_order_acq_rel) & sleeper) != 0;
}

#endif
