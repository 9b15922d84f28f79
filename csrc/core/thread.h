/* Mutexes, conditions on the monotonic clock, and threads that leave signals to others. */
#ifndef DD_CORE_THREAD_H
#define DD_CORE_THREAD_H

#include "core/status.h"
#include "core/wait.h"

#include <pthread.h>

void dd_mutex_init(pthread_mutex_t *mutex);
void dd_cond_init(pthread_cond_t *cond);

/* Waits on cond for one slice of `wait` (see wait.h) or until it is signalled; the caller holds mutex and checks
 * its predicate, then the deadline, then dd_wait_check (which may run foreign code: without the mutex). */
void dd_cond_wait_slice(pthread_cond_t *cond, pthread_mutex_t *mutex, const dd_wait *wait);

/* Starts a joinable thread with all signals blocked. `name` is cut to 15 characters. */
dd_status dd_thread_start(pthread_t *thread, const char *name, void *(*run)(void *), void *arg,
                          dd_error *err) DD_MUST_CHECK;

#endif
