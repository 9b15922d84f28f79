/* A fence for other processes: dd_fence_all makes all running threads of registered processes
 * execute a fence. Memory shared with them can then be published without one. */
#ifndef DD_CORE_FENCE_H
#define DD_CORE_FENCE_H

#include <stdbool.h>

/* Register this process. In a process with threads the kernel waits for all processors, for tens of
 * milliseconds: call it on a thread for which none waits. */
void dd_fence_register(void);
/* Also false if the kernel refused, and in a forked child until it registers. */
bool dd_fence_is_registered(void);
/* Execute a fence in all registered processes. Return false if the kernel refuses. */
bool dd_fence_all(void);

#endif
