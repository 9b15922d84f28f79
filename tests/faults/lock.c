/* The locks of each thread: checks of their order (core/lock.h), which abort the process and name
 * both locks, and assertions (core/assert.h). */

#include "core/lock.h"

#include "core/assert.h"
#include "faults/faults.h"
#include "faults/wrap.h"

#include <stdio.h>
#include <stdlib.h>

#define MAX_HELD 8

/* The locks of this thread, in the order in which it took them. */
static _Thread_local const dd_lock *held[MAX_HELD];
static _Thread_local int nheld;
static _Thread_local unsigned long ntaken;

static const char *
lock_name(dd_lock_kind kind)
{
    static const char *const words[] = {
#define X(name, text) text,
        DD_LOCK_LIST(X)
#undef X
    };
    return words[kind];
}

static void
check_order(const dd_lock *lock)
{
    for (int i = 0; i < nheld; i++) {
        if (held[i]->kind >= lock->kind) {
            (void)fprintf(stderr, "order of locks: a thread that holds the lock of %s takes the lock of %s\n",
                          lock_name(held[i]->kind), lock_name(lock->kind));
            abort();
        }
    }
}

static void
note_taken(const dd_lock *lock)
{
    if (nheld == MAX_HELD) {
        (void)fprintf(stderr, "order of locks: a thread holds more than %d\n", MAX_HELD);
        abort();
    }
    held[nheld++] = lock;
    ntaken++;
}

unsigned long
dd_lock_ntaken(void)
{
    return ntaken;
}

bool
dd_lock_holds(dd_lock_kind kind)
{
    int i = 0;
    while (i < nheld && held[i]->kind != kind) {
        i++;
    }
    return i < nheld;
}

void
dd_assert_fail(const char *claim, const char *file, int line)
{
    (void)fprintf(stderr, "%s:%d: assertion failed: %s\n", file, line, claim);
    abort();
}

static void
note_released(const dd_lock *lock)
{
    int at = nheld - 1;
    while (at >= 0 && held[at] != lock) {
        at--;
    }
    if (at < 0) {
        (void)fprintf(stderr, "order of locks: a thread releases the lock of %s, which it does not hold\n",
                      lock_name(lock->kind));
        abort();
    }
    nheld--;
    for (; at < nheld; at++) {
        held[at] = held[at + 1];
    }
}

/* A wait on a condition releases the lock, and takes it again at its end. */
static void
note_wait_begins(const dd_lock *lock)
{
    note_released(lock);
    check_order(lock);
}

WRAP(void, dd_lock_take, (dd_lock * lock))
{
    check_order(lock);
    __real_dd_lock_take(lock);
    note_taken(lock);
}

WRAP(bool, dd_lock_try, (dd_lock * lock))
{
    check_order(lock);
    bool is_taken = __real_dd_lock_try(lock);
    if (is_taken) {
        note_taken(lock);
    }
    return is_taken;
}

WRAP(void, dd_lock_release, (dd_lock * lock))
{
    note_released(lock);
    __real_dd_lock_release(lock);
}

WRAP(bool, dd_timed_lock_take_within, (dd_timed_lock * self, int64_t timeout_ns))
{
    check_order(&self->guard);
    bool is_ours = __real_dd_timed_lock_take_within(self, timeout_ns);
    if (is_ours) {
        note_taken(&self->guard);
    }
    return is_ours;
}

WRAP(void, dd_timed_lock_release, (dd_timed_lock * self))
{
    note_released(&self->guard);
    __real_dd_timed_lock_release(self);
}

WRAP(void, dd_cond_wait, (pthread_cond_t * cond, dd_lock *lock))
{
    note_wait_begins(lock);
    __real_dd_cond_wait(cond, lock);
    note_taken(lock);
}

WRAP(void, dd_cond_wait_until, (pthread_cond_t * cond, dd_lock *lock, const struct timespec *until))
{
    note_wait_begins(lock);
    __real_dd_cond_wait_until(cond, lock, until);
    note_taken(lock);
}

WRAP(void, dd_cond_wait_slice, (pthread_cond_t * cond, dd_lock *lock, const dd_wait *wait))
{
    note_wait_begins(lock);
    __real_dd_cond_wait_slice(cond, lock, wait);
    note_taken(lock);
}

WRAP(dd_status, dd_cond_wait_checked,
     (pthread_cond_t * cond, dd_lock *lock, const dd_wait *wait, dd_error *err))
{
    note_wait_begins(lock);
    dd_status status = __real_dd_cond_wait_checked(cond, lock, wait, err);
    note_taken(lock);
    return status;
}
