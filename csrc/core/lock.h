/* Mutexes that know their place in the order of locks; docs/locks.md says what each of them guards.
 *
 * A thread that holds a lock may take only locks that come later in the list below, and never two of one kind. So no
 * two threads can wait for each other. Test builds check it (tests/faults/lock.c). */
#ifndef DD_CORE_LOCK_H
#define DD_CORE_LOCK_H

#include "core/wait.h"

#include <pthread.h>
#include <stdbool.h>
#include <time.h>

/* X(kind, words for it), outermost first. */
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
    X(ERRAND, "what is done on a thread of its own")                    \
    X(UNPACKING, "the outputs of an operation")                         \
    X(COMPLETIONS, "operations that have ended and have not been told") \
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
/* False if another thread has it: it never waits. The order holds all the same, because callers may wait
 * for the lock when this fails. */
bool dd_lock_try(dd_lock *lock);
void dd_lock_release(dd_lock *lock);
/* For a forked child, in which no other thread runs. False if a thread of the parent held the lock at the
 * fork: what the lock guards may be half changed. The lock is not taken, so there is no order to keep. */
bool dd_lock_was_free_at_fork(dd_lock *lock);

/* ---- a lock with a deadline
 *
 * POSIX can wait for a mutex only on the calendar clock, which may be set back during the wait; the call
 * with another clock needs glibc 2.30, and musl has none. So this is a flag that a condition waits for,
 * and the mutex is held for a look at it. The order of locks holds for it as for a dd_lock. */

typedef struct dd_timed_lock {
    dd_lock look; /* guards is_taken; has the kind */
    pthread_cond_t freed;
    bool is_taken; /* guarded by look */
} dd_timed_lock;

void dd_timed_lock_init(dd_timed_lock *self, dd_lock_kind kind);
void dd_timed_lock_fini(dd_timed_lock *self);
/* False if other threads hold it for timeout_ns, which may be 0. */
bool dd_timed_lock_take_within(dd_timed_lock *self, int64_t timeout_ns);
void dd_timed_lock_release(dd_timed_lock *self);

/* ---- conditions, on the monotonic clock */

void dd_cond_init(pthread_cond_t *cond);
void dd_cond_fini(pthread_cond_t *cond);
void dd_cond_signal(pthread_cond_t *cond);
void dd_cond_broadcast(pthread_cond_t *cond);
/* The caller holds the lock and checks its predicate afterwards. */
void dd_cond_wait(pthread_cond_t *cond, dd_lock *lock);
void dd_cond_wait_until(pthread_cond_t *cond, dd_lock *lock, const struct timespec *until);
/* Waits on cond for one slice of `wait` (see wait.h) or until it is signalled; the caller holds the lock and checks
 * its predicate, then the deadline, then dd_wait_check (which may run foreign code: without the lock). */
void dd_cond_wait_slice(pthread_cond_t *cond, dd_lock *lock, const dd_wait *wait);
/* The same, and then, without the lock, looks at the wait: DD_TIMED_OUT without a message when it is over, or what dd_wait_check says.
 * The caller checks its predicate first, whatever this says. */
dd_status dd_cond_wait_checked(pthread_cond_t *cond, dd_lock *lock, const dd_wait *wait,
                               dd_error *err) DD_MUST_CHECK;

#endif
