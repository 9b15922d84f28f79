/* What a fork does to objects that own descriptors and threads: the child gets copies of the descriptors, none of
 * the threads, and must not use the objects.
 *
 * Descriptors registered here are closed in the child at once, so that a connection ends when the process that made
 * it ends, however many children it has forked. In the child the numbers are then free for others to reuse: an
 * object of an older generation frees its memory and closes nothing. */
#ifndef DD_CORE_FORK_H
#define DD_CORE_FORK_H

#include <stdint.h>

/* A number that changes in the child of every fork; objects keep the one they were made under. */
uint64_t dd_fork_generation(void);

/* Registers an open descriptor; returns it, so that it wraps the call that opened it (-1 passes through). */
int dd_fork_own(int fd);

/* Closes a descriptor and takes it off the register; -1 is fine. */
void dd_fork_close(int fd);

#endif
