/* A fence for other processes: a thread that goes through it makes the processors of all processes that take part go through one, too.
 * Memory that is shared with them can then be published without a fence of its own. */
#ifndef DD_CORE_FENCE_H
#define DD_CORE_FENCE_H

#include <stdbool.h>

/* Makes this process take part. In a process with threads the kernel waits for all processors: tens of milliseconds, so a
 * thread that nobody waits for does it. */
void dd_fence_register(void);
/* False, too, where the kernel refuses, and in a forked child until it has registered itself. */
bool dd_fence_is_registered(void);
/* Fences all that take part; false when it is refused. */
bool dd_fence_all(void);

#endif
