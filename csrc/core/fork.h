/* Descriptors and threads in a forked child. A child gets copies of the parent's descriptors but
 * not its threads, and must not use objects that own them. It immediately closes the descriptors
 * registered here, so that a connection ends with the process that opened it. Their numbers can
 * then be reused: an object from before the fork must free its memory, but close nothing. */
#ifndef DD_CORE_FORK_H
#define DD_CORE_FORK_H

#include <stdint.h>

/* Return a number that changes in the child of every fork. New objects store the number. */
uint64_t dd_fork_generation(void);

/* Register an open descriptor, so that a forked child closes it. Return `fd`, which may be -1. */
int dd_fork_register(int fd);

/* Close a descriptor and remove it from the register. No effect if `fd` is negative. */
void dd_fork_close(int fd);

#endif
