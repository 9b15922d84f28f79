/* Threads that leave signals to others. */
#ifndef DD_CORE_THREAD_H
#define DD_CORE_THREAD_H

#include "core/clock.h"
#include "core/status.h"

#include <pthread.h>
#include <stdbool.h>

/* Starts a joinable thread with all signals blocked. `name` is cut to 15 characters. */
dd_status dd_thread_start(pthread_t *thread, const char *name, void *(*run)(void *), void *arg,
                          dd_error *err) DD_MUST_CHECK;
/* Waits for its end; or has it end by itself. */
void dd_thread_join(pthread_t thread);
void dd_thread_detach(pthread_t thread);
/* False: it has not ended within timeout_ns, and may still be joined. */
bool dd_thread_try_join(pthread_t thread, int64_t timeout_ns);
/* The calling thread, and its name as the system knows it. */
pthread_t dd_thread_self(void);
void dd_thread_own_name(char *name, size_t nbytes);

#endif
