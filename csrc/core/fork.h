/* Descriptors and threads in a forked child. The child gets copies of the descriptors, but not the
 * threads, and must not use the objects that own them. It immediately closes the descriptors
 * registered here, so that a connection ends with the process that opened it. Their numbers can
 * then be reused: an object from before the fork must free its memory, but close nothing. */
#ifndef DD_CORE_FORK_H
#define DD_CORE_FORK_H

#include <stdint.h>

/* Return a number that changes in the child of every fork. Objects store it at their creation. */
uint64_t dd_fork_generation(void);

/* Register an open descriptor, so that a forked child closes it. Return it; -1 stays -1. */
int dd_fork_register(int fd);

/* Close a descriptor and remove it from the register. A negative number has no effect. */
void dd_fork_close(int fd);

#endif
