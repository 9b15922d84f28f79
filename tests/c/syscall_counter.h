/* Counts the system calls of every thread of a child process, by ptrace. What makes none runs at full speed meanwhile.
 *
 * The counts are in memory that the child shares, so that its threads can look at their own without a system call. Where ptrace is
 * refused (by a sandbox, or since somebody traces already) there is no counting, and the caller says so. */
#ifndef DD_TESTS_SYSCALL_COUNTER_H
#define DD_TESTS_SYSCALL_COUNTER_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#define SYSCALL_COUNTER_THREADS 256
#define SYSCALL_COUNTER_AWAKE (-1)

/* Written by the tracer alone. The layout is read by Python, too: six 64-bit integers. */
typedef struct counted_thread {
    atomic_long tid;     /* 0: a free place */
    atomic_long ncalls;  /* begun so far */
    atomic_long nwakes;  /* those of them that wake somebody: wakes of futexes, writes, sends */
    atomic_long nsleeps; /* those that may sleep: waits for futexes and descriptors, naps */
    atomic_long nyields; /* those that give the core away */
    atomic_long current; /* the number of the one it is in, or SYSCALL_COUNTER_AWAKE */
} counted_thread;

typedef struct syscall_counter {
    counted_thread threads[SYSCALL_COUNTER_THREADS];
} syscall_counter;

/* Runs `body` in a child of the caller's and counts until it has ended; *status is as waitpid gives it. False: refused, with errno. */
bool syscall_counter_run(syscall_counter *counter, int (*body)(void *arg), void *arg, int *status);

/* The place of a thread that is traced; NULL: it is not known yet. */
const counted_thread *syscall_counter_find(const syscall_counter *counter, pid_t tid);

#endif
