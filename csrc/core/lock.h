/* Mutexes with a checked lock order; docs/contributing/locks.md lists the data that each guards.
 *
 * A thread that holds a lock must take only locks later in the list below, and never two of one
 * kind, so no two threads can wait for each other. Test builds check this (tests/faults/lock.c). */
#ifndef DD_CORE_LOCK_H
#define DD_CORE_LOCK_H

#include "core/wait.h"

#include <pthread.h>
#include <stdbool.h>
#include <time.h>

/* X(kind, description), ordered from the outermost lock to the innermost. */
#define DD_LOCK_LIST(X)                                                 \
    X(TEST, "a test")                                                   \
    X(NCCL_TEAM_CALL, "the calls of a team of devices")                 \
    X(NCCL_TEAM, "a team of devices")                                   \
    X(NCCL_LAUNCH, "the launches of an NCCL group")                     \
    X(NCCL_WATCHDOG, "NCCL's watchdog")                                 \
    X(NCCL_GROUP, "an NCCL group")                                      \
    X(NCCL_COMM, "an NCCL communicator")                                \
    X(NCCL_TASK, "a call of NCCL on a thread of its own")               \
    X(NCCL_FAMILY, "communicators made from others")                    \
    X(CUDA_CONTEXTS, "the contexts of devices")                         \
    X(CUDA_NAN, "the kernels that look for NaN")                        \
    X(XLA_PROGRAMS, "the programs that XLA runs")                       \
    X(MONITOR, "the monitor")                                           \
    X(ENGINE_OPENING, "the opening of an engine's ports")               \
    X(ENGINE, "an engine: links, messages, calls of its groups")        \
    X(CONNECTOR, "dials that have not begun, and ports")                \
    X(ENGINE_NAP, "the sleep of an engine's thread")                    \
    X(STORE_SERVERS, "the servers of this process")                     \
    X(STORE_CLIENT, "a client of a TCP store")                          \
    X(FILE_STORE, "a file store")                                       \
    X(HASH_STORE, "a hash store")                                       \
    X(STORE_JOINED, "who has joined a TCP store")                       \
    X(BACKGROUND_TASK, "a background task")                             \
    X(UNPACKING, "the outputs of an operation")                         \
    X(COMPLETIONS, "ended operations, whose watchers are still queued") \
    X(RECORDER, "the flight recorder")                                  \
    X(CALL_SITES, "stacks that have been seen")                         \
    X(CRYPTO, "the loading of a library of ciphers")                    \
    X(FORK, "descriptors that a forked child closes")                   \
    X(LOG, "records for the log")

typedef enum dd_lock_kind {
#define X(kind, words) DD_LOCK_##kind,
    DD_LOCK_LIST(X)
#undef X
        DD_LOCK_COUNT,
} dd_lock_kind;

typedef struct dd_lock {
    pthread_mutex_t mutex;
    dd_lock_kind kind; /* const after init */
} dd_lock;

#define DD_LOCK_INITIALIZER(of_kind)                        \
    {                                                       \
        .mutex = PTHREAD_MUTEX_INITIALIZER, .kind = of_kind \
    }

void dd_lock_init(dd_lock *lock, dd_lock_kind kind);
void dd_lock_fini(dd_lock *lock);

void dd_lock_take(dd_lock *lock);
/* Take the lock if it is free. Return false, without waiting, if another thread holds it. The lock
 * order applies to this call too, because a caller may wait for the lock after this call fails. */
bool dd_lock_try(dd_lock *lock);
void dd_lock_release(dd_lock *lock);
/* Return false if a thread of the parent held the lock at the fork: the guarded data may then be
 * half changed. Call only in a forked child, which has one thread. Does not take the lock. */
bool dd_lock_was_free_at_fork(dd_lock *lock);

/* ---- a lock with a timeout
 *
 * POSIX can wait for a mutex only by the calendar clock, which may be set back during the wait. A
 * function with another clock needs glibc 2.30, and musl has none. So this lock is a flag with a
 * condition variable; its mutex is held only to read or set the flag. The lock order applies. */

typedef struct dd_timed_lock {
    dd_lock guard; /* guards is_taken; its kind is the kind of the timed lock */
    pthread_cond_t freed;
    bool is_taken; /* guarded by `guard`; true while a thread holds the timed lock */
} dd_timed_lock;

void dd_timed_lock_init(dd_timed_lock *self, dd_lock_kind kind);
void dd_timed_lock_fini(dd_timed_lock *self);
/* Take the lock. Return false if it is not free within timeout_ns nanoseconds, which may be 0. */
bool dd_timed_lock_take_within(dd_timed_lock *self, int64_t timeout_ns);
void dd_timed_lock_release(dd_timed_lock *self);

/* ---- condition variables that use the monotonic clock */

void dd_cond_init(pthread_cond_t *cond);
void dd_cond_fini(pthread_cond_t *cond);
void dd_cond_signal(pthread_cond_t *cond);
void dd_cond_broadcast(pthread_cond_t *cond);
/* In both calls, the caller must hold the lock, and must check the awaited condition afterwards. */
void dd_cond_wait(pthread_cond_t *cond, dd_lock *lock);
void dd_cond_wait_until(pthread_cond_t *cond, dd_lock *lock, const struct timespec *until);
/* Wait for a signal on `cond`, for at most one slice of `wait` (see wait.h). The caller must hold
 * the lock, and then check its condition, the deadline and, unlocked, dd_wait_check. */
void dd_cond_wait_slice(pthread_cond_t *cond, dd_lock *lock, const dd_wait *wait);
/* Like dd_cond_wait_slice, but also check `wait`, without the lock. Return DD_TIMED_OUT, without a
 * message, at the deadline, or the status of dd_wait_check. The caller must check its condition
 * before it uses the status. */
dd_status dd_cond_wait_checked(pthread_cond_t *cond, dd_lock *lock, const dd_wait *wait,
                               dd_error *err) DD_MUST_CHECK;

#endif
