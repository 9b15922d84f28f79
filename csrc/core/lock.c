#include "core/lock.h"

#include <errno.h>

void
dd_lock_init(dd_lock *lock, dd_lock_kind kind)
{
    /* Initialising a default mutex cannot fail on Linux. */
    (void)pthread_mutex_init(&lock->mutex, NULL);
    lock->kind = kind;
}

void
dd_lock_fini(dd_lock *lock)
{
    (void)pthread_mutex_destroy(&lock->mutex);
}

void
dd_lock_take(dd_lock *lock)
{
    pthread_mutex_lock(&lock->mutex);
}

bool
dd_lock_try(dd_lock *lock)
{
    return pthread_mutex_trylock(&lock->mutex) == 0;
}

bool
dd_lock_was_free_at_fork(dd_lock *lock)
{
    bool is_free = pthread_mutex_trylock(&lock->mutex) == 0;
    if (is_free) {
        pthread_mutex_unlock(&lock->mutex);
    }
    return is_free;
}

void
dd_lock_release(dd_lock *lock)
{
    pthread_mutex_unlock(&lock->mutex);
}

/* ---- locks with a timeout */

void
dd_timed_lock_init(dd_timed_lock *self, dd_lock_kind kind)
{
    dd_lock_init(&self->guard, kind);
    dd_cond_init(&self->freed);
    self->is_taken = false;
}

void
dd_timed_lock_fini(dd_timed_lock *self)
{
    dd_cond_fini(&self->freed);
    dd_lock_fini(&self->guard);
}

bool
dd_timed_lock_take_within(dd_timed_lock *self, int64_t timeout_ns)
{
    pthread_mutex_lock(&self->guard.mutex);
    if (self->is_taken && timeout_ns > 0) {
        int64_t until_ns = dd_deadline_after(timeout_ns);
        struct timespec until = {until_ns / DD_NS_PER_S, until_ns % DD_NS_PER_S};
        while (self->is_taken &&
               pthread_cond_timedwait(&self->freed, &self->guard.mutex, &until) != ETIMEDOUT) {
        }
    }
    bool is_acquired = !self->is_taken;
    self->is_taken = true;
    pthread_mutex_unlock(&self->guard.mutex);
    return is_acquired;
}

void
dd_timed_lock_release(dd_timed_lock *self)
{
    pthread_mutex_lock(&self->guard.mutex);
    self->is_taken = false;
    (void)pthread_cond_signal(&self->freed);
    pthread_mutex_unlock(&self->guard.mutex);
}

/* ---- condition variables */

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
dd_cond_fini(pthread_cond_t *cond)
{
    (void)pthread_cond_destroy(cond);
}

void
dd_cond_signal(pthread_cond_t *cond)
{
    (void)pthread_cond_signal(cond);
}

void
dd_cond_broadcast(pthread_cond_t *cond)
{
    (void)pthread_cond_broadcast(cond);
}

void
dd_cond_wait(pthread_cond_t *cond, dd_lock *lock)
{
    (void)pthread_cond_wait(cond, &lock->mutex);
}

void
dd_cond_wait_until(pthread_cond_t *cond, dd_lock *lock, const struct timespec *until)
{
    (void)pthread_cond_timedwait(cond, &lock->mutex, until);
}

void
dd_cond_wait_slice(pthread_cond_t *cond, dd_lock *lock, const dd_wait *wait)
{
    int64_t until_ns = dd_clock_now_ns() + dd_wait_slice_ns(wait);
    struct timespec until = {until_ns / DD_NS_PER_S, until_ns % DD_NS_PER_S};
    dd_cond_wait_until(cond, lock, &until);
}

dd_status
dd_cond_wait_checked(pthread_cond_t *cond, dd_lock *lock, const dd_wait *wait, dd_error *err)
{
    dd_cond_wait_slice(cond, lock, wait);
    dd_lock_release(lock);
    dd_status status = dd_wait_check(wait, err);
    dd_lock_take(lock);
    return status == DD_OK && dd_wait_has_expired(wait) ? DD_TIMED_OUT : status;
}
