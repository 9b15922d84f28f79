/* A memory fence for several processes. dd_fence_all makes all running threads of all registered
 * processes execute a fence, so these threads need no fence of their own when they publish data. */
#ifndef DD_CORE_FENCE_H
#define DD_CORE_FENCE_H

#include <stdbool.h>

/* Register this process. If the process has several threads, the kernel waits for all processors,
 * which takes tens of milliseconds, so call this on a thread for which no other thread waits. */
void dd_fence_register(void);
/* Return true if this process is registered. A forked child must register itself. */
bool dd_fence_is_registered(void);
/* Execute a fence in all threads of the registered processes. False if the kernel refuses. */
bool dd_fence_all(void);

#endif
