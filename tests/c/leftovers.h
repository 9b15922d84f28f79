/* What a process has, for tests that see to it that nothing is left behind. The counts themselves mean nothing, only that they stay. */
#ifndef LEFTOVERS_H
#define LEFTOVERS_H

int count_fds(void);
int count_threads(void);
int count_threads_now(void);     /* a thread that has been joined may be listed for a moment more */
int count_shared_mappings(void); /* of memfds */

#endif
