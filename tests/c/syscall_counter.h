/* Count the system calls of every thread of a child process, by ptrace. Code without system calls
 * runs at full speed.
 *
 * The counts are in memory shared with the child, so that its threads can read their own without a
 * system call. If ptrace is refused (by a sandbox, or because another tracer is attached), calls
 * are not counted and the caller is notified. */
#ifndef DD_TESTS_SYSCALL_COUNTER_H
#define DD_TESTS_SYSCALL_COUNTER_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#define SYSCALL_COUNTER_THREADS 256
#define SYSCALL_COUNTER_AWAKE (-1)

/* Written only by the tracer. Python also reads this layout: six 64-bit integers. */
typedef struct counted_thread {
    atomic_long tid;     /* 0 if the slot is free */
    atomic_long ncalls;  /* calls started so far */
    atomic_long nwakes;  /* calls that wake a thread: wakes of futexes, writes, sends */
    atomic_long nsleeps; /* calls that may sleep: waits for futexes and descriptors, sleeps */
    atomic_long nyields; /* calls that yield the core */
    atomic_long current; /* number of the current call, or SYSCALL_COUNTER_AWAKE */
} counted_thread;

typedef struct syscall_counter {
    counted_thread threads[SYSCALL_COUNTER_THREADS];
} syscall_counter;

/* Run `body` in a child of the caller and count until it exits. *status is the status from waitpid.
 * Return false with errno set if ptrace is refused. */
bool syscall_counter_run(syscall_counter *counter, int (*body)(void *arg), void *arg, int *status);

/* Return the slot of a traced thread; NULL if it is not known yet. */
const counted_thread *syscall_counter_find(const syscall_counter *counter, pid_t tid);

#endif
