#include "core/thread.h"

#include <signal.h>
#include <stdio.h>
#include <time.h>

void
dd_mutex_init(pthread_mutex_t *mutex)
{
    /* Cannot fail for a default mutex on Linux. */
    (void)pthread_mutex_init(mutex, NULL);
}

void
dd_cond_init(pthread_cond_t *cond)
{
    pthread_condattr_t attr;
    (void)pthread_condattr_init(&attr);
    (void)pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    (void)pthread_cond_init(cond, &attr);
    (void)pthread_condattr_destroy(&attr);
}

void
dd_cond_wait_slice(pthread_cond_t *cond, pthread_mutex_t *mutex, const dd_wait *wait)
{
    int64_t until_ns = dd_clock_now_ns() + dd_wait_slice_ns(wait);
    struct timespec until = {until_ns / DD_NS_PER_S, until_ns % DD_NS_PER_S};
    (void)pthread_cond_timedwait(cond, mutex, &until);
}

dd_status
dd_thread_start(pthread_t *thread, const char *name, void *(*run)(void *), void *arg, dd_error *err)
{
    sigset_t all;
    sigset_t old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int rc = pthread_create(thread, NULL, run, arg);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (rc != 0) {
        return dd_error_set_errno(err, DD_SYSTEM, rc, "cannot start thread %s", name);
    }
    char short_name[16];
    snprintf(short_name, sizeof short_name, "%s", name);
    (void)pthread_setname_np(*thread, short_name);
    return DD_OK;
}
