/* Threads that leave signals to others. */
#ifndef DD_CORE_THREAD_H
#define DD_CORE_THREAD_H

#include "core/status.h"

#include <pthread.h>

/* Starts a joinable thread with all signals blocked. `name` is cut to 15 characters. */
dd_status dd_thread_start(pthread_t *thread, const char *name, void *(*run)(void *), void *arg,
                          dd_error *err) DD_MUST_CHECK;

#endif
