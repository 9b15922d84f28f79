/* Forks, and objects that own descriptors and threads. A child gets copies of the descriptors, but
 * not the threads, and must not use the objects. It closes the descriptors registered here
 * immediately, so that a connection ends with the process that opened it. Their numbers can then be
 * reused: an object of an older generation must free its memory and close nothing. */
#ifndef DD_CORE_FORK_H
#define DD_CORE_FORK_H

#include <stdint.h>

/* Return a number that changes in the child of every fork. Objects store it at creation. */
uint64_t dd_fork_generation(void);

/* Register an open descriptor and return it; -1 is returned as it is. */
int dd_fork_register(int fd);

/* Close a descriptor and remove it from the register. It may be -1. */
void dd_fork_close(int fd);

#endif
