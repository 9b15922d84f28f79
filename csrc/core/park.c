#include "core/park.h"

void
dd_park(dd_park_bits *bits, uint64_t own)
{
    /* Release: a process that sees the bit must also see the sleeper's earlier stores. */
    atomic_fetch_or_explicit(bits, own, memory_order_release);
    atomic_thread_fence(memory_order_seq_cst);
}
