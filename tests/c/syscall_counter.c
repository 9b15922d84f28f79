#include "syscall_counter.h"

#include <errno.h>
#include <linux/futex.h>
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define FLAGS (PTRACE_O_TRACESYSGOOD | PTRACE_O_TRACECLONE | PTRACE_O_EXITKILL)

const counted_thread *
syscall_counter_find(const syscall_counter *counter, pid_t tid)
{
    for (size_t i = 0; i < SYSCALL_COUNTER_THREADS; i++) {
        if (atomic_load(&counter->threads[i].tid) == tid) {
            return &counter->threads[i];
        }
    }
    return NULL;
}

/* Return NULL if there is no free slot: the thread is then not counted, and a caller that finds
 * itself by syscall_counter_find notices. */
static counted_thread *
place_of(syscall_counter *counter, pid_t tid)
{
    for (size_t i = 0; i < SYSCALL_COUNTER_THREADS; i++) {
        counted_thread *thread = &counter->threads[i];
        long owner = atomic_load(&thread->tid);
        if (owner == 0) {
            atomic_store(&thread->current, SYSCALL_COUNTER_AWAKE);
            atomic_store(&thread->tid, tid);
        }
        if (owner == 0 || owner == tid) {
            return thread;
        }
    }
    return NULL;
}

static bool
is_wake(uint64_t number, const __typeof__(((struct __ptrace_syscall_info *)0)->entry.args[0]) *args)
{
    switch (number) {
    case SYS_futex: {
        uint64_t operation = args[1] & (uint64_t)FUTEX_CMD_MASK;
        return operation == FUTEX_WAKE || operation == FUTEX_WAKE_BITSET || operation == FUTEX_WAKE_OP ||
               operation == FUTEX_REQUEUE || operation == FUTEX_CMP_REQUEUE;
    }
    case SYS_write:
    case SYS_writev:
    case SYS_sendto:
    case SYS_sendmsg:
        return true;
    default:
        return false;
    }
}

static bool
is_sleep(uint64_t number, const __typeof__(((struct __ptrace_syscall_info *)0)->entry.args[0]) *args)
{
    switch (number) {
    case SYS_futex: {
        uint64_t operation = args[1] & (uint64_t)FUTEX_CMD_MASK;
        return operation == FUTEX_WAIT || operation == FUTEX_WAIT_BITSET;
    }
    case SYS_epoll_pwait:
#ifdef SYS_epoll_wait
    case SYS_epoll_wait:
#endif
        return (int)args[3] != 0; /* a poll with timeout 0 does not sleep */
    case SYS_nanosleep:
    case SYS_clock_nanosleep:
        return true;
    default:
        return false;
    }
}

static void
note_syscall(syscall_counter *counter, pid_t tid)
{
    struct __ptrace_syscall_info info;
    counted_thread *thread = place_of(counter, tid);
    if (thread == NULL || ptrace(PTRACE_GET_SYSCALL_INFO, tid, sizeof info, &info) <= 0) {
        return;
    }
    if (info.op == PTRACE_SYSCALL_INFO_EXIT) {
        atomic_store(&thread->current, SYSCALL_COUNTER_AWAKE);
    } else if (info.op == PTRACE_SYSCALL_INFO_ENTRY) {
        atomic_fetch_add(&thread->ncalls, 1);
        atomic_fetch_add(&thread->nwakes, is_wake(info.entry.nr, info.entry.args) ? 1 : 0);
        atomic_fetch_add(&thread->nsleeps, is_sleep(info.entry.nr, info.entry.args) ? 1 : 0);
        atomic_fetch_add(&thread->nyields, info.entry.nr == SYS_sched_yield ? 1 : 0);
        atomic_store(&thread->current, (long)info.entry.nr);
    }
}

static bool
is_job_control(int number)
{
    return number == SIGSTOP || number == SIGTSTP || number == SIGTTIN || number == SIGTTOU;
}

/* Continue a stopped thread, with the signal that stopped it. The thread may be dead. */
static void
go_on(syscall_counter *counter, pid_t tid, int status)
{
    int number = WSTOPSIG(status);
    unsigned event = (unsigned)status >> 16;
    if (number == (SIGTRAP | 0x80)) {
        note_syscall(counter, tid);
        (void)ptrace(PTRACE_SYSCALL, tid, NULL, NULL);
    } else if (event == PTRACE_EVENT_STOP && is_job_control(number)) {
        (void)ptrace(PTRACE_LISTEN, tid, NULL, NULL);
    } else {
        (void)ptrace(PTRACE_SYSCALL, tid, NULL, (void *)(intptr_t)(event == 0 ? number : 0));
    }
}

static int
trace(syscall_counter *counter, pid_t child)
{
    for (;;) {
        int status = 0;
        pid_t tid = waitpid(-1, &status, __WALL);
        if (tid < 0 && errno != EINTR) {
            return -1;
        }
        if (tid > 0 && WIFSTOPPED(status)) {
            go_on(counter, tid, status);
        } else if (tid == child) {
            return status;
        } else if (tid > 0 && (WIFEXITED(status) || WIFSIGNALED(status))) {
            counted_thread *thread = place_of(counter, tid);
            if (thread != NULL) {
                atomic_store(&thread->tid, -1); /* the kernel may reuse its number */
            }
        }
    }
}

bool
syscall_counter_run(syscall_counter *counter, int (*body)(void *arg), void *arg, int *status)
{
    int gate[2];
    if (pipe(gate) != 0) {
        return false;
    }
    pid_t child = fork();
    if (child == 0) {
        char go = 0;
        close(gate[1]);
        ssize_t got;
        do {
            got = read(gate[0], &go, 1);
        } while (got < 0 && errno == EINTR);
        close(gate[0]);
        _exit(got == 1 ? body(arg) : 0);
    }
    close(gate[0]);
    bool is_traced = child > 0 && ptrace(PTRACE_SEIZE, child, NULL, (void *)(intptr_t)FLAGS) == 0 &&
                     ptrace(PTRACE_INTERRUPT, child, NULL, NULL) == 0;
    int code = errno;
    is_traced = is_traced && write(gate[1], "g", 1) == 1;
    close(gate[1]);
    if (is_traced) {
        *status = trace(counter, child);
    } else if (child > 0) {
        (void)waitpid(child, NULL, 0);
    }
    errno = code;
    return is_traced;
}
