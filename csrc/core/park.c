#include "core/park.h"

void
dd_park(dd_park_bits *bits, uint64_t own)
{
    /* Release: whoever sees the bit sees what its sleeper has stored with it, such as whom it waits for. */
    atomic_fetch_or_explicit(bits, own, memory_order_release);
    atomic_thread_fence(memory_order_seq_cst);
}
