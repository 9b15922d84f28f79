/* Count the resources of a process, for tests that check for leaks. Only compare the counts with
 * each other. */
#ifndef LEFTOVERS_H
#define LEFTOVERS_H

int count_fds(void);
int count_threads(void);
int count_threads_now(void);     /* a joined thread may still be listed for a short time */
int count_shared_mappings(void); /* mappings of memfds */

#endif
