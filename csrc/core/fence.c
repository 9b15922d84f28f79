#include "core/fence.h"

#include "core/fork.h"

#include <linux/membarrier.h>
#include <stdatomic.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <unistd.h>

/* The fork generation in which this process registered, plus one; 0 if it has not registered. This
 * is a fact about the process, so it may be global. */
static _Atomic uint64_t registered_in;

void
dd_fence_register(void)
{
    if (!dd_fence_is_registered() &&
        syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED, 0, 0) == 0) {
        atomic_store_explicit(&registered_in, dd_fork_generation() + 1, memory_order_release);
    }
}

bool
dd_fence_is_registered(void)
{
    return atomic_load_explicit(&registered_in, memory_order_acquire) == dd_fork_generation() + 1;
}

bool
dd_fence_all(void)
{
    return syscall(SYS_membarrier, MEMBARRIER_CMD_GLOBAL_EXPEDITED, 0, 0) == 0;
}
