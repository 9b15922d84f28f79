/* Threads of the library, which block all signals. */
#ifndef DD_CORE_THREAD_H
#define DD_CORE_THREAD_H

#include "core/status.h"

#include <pthread.h>

/* Start a joinable thread with all signals blocked. `name` is truncated to 15 characters. */
dd_status dd_thread_start(pthread_t *thread, const char *name, void *(*run)(void *), void *arg,
                          dd_error *err) DD_MUST_CHECK;
/* Wait until the thread has ended (join), or let the system free it when it ends (detach). */
void dd_thread_join(pthread_t thread);
void dd_thread_detach(pthread_t thread);
/* Return the calling thread (self), or copy its name as the system knows it (own_name). */
pthread_t dd_thread_self(void);
void dd_thread_own_name(char *name, size_t nbytes);

#endif
