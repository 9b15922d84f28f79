/* Processors that lack features. */

#include "core/cpu.h"

#include "faults/faults.h"
#include "faults/wrap.h"

#include <stdatomic.h>

static _Atomic unsigned hidden;

void
dd_cpu_hide_features(unsigned features)
{
    atomic_store_explicit(&hidden, features, memory_order_relaxed);
}

WRAP(unsigned, dd_cpu_features, (void))
{
    return __real_dd_cpu_features() & ~atomic_load_explicit(&hidden, memory_order_relaxed);
}
