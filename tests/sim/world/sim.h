/* A world in one process and on one thread: hosts, processes with threads, a network, and a clock
 * that advances only when something happens. The real library runs in it. The options determine a
 * run completely, so a run can be repeated bit for bit.
 *
 * It defines the functions of core/system.h, mem.h, fork.h and fence.h instead of csrc/core, and
 * the linker redirects the C library's threads, locks and clocks to it (SIM_WRAPPED in the
 * Makefile). There is one world at a time. docs/contributing/simulator.md lists the simulated
 * features. */
#ifndef DD_SIM_SIM_H
#define DD_SIM_SIM_H

#include <stdbool.h>
#include <stdint.h>

#define SIM_HOSTS_MAX 8
#define SIM_PROCESSES_MAX 16

typedef struct sim_options {
    uint64_t seed;  /* determines the schedule and all durations */
    bool is_traced; /* print every system call and every switch of threads to stdout */
    int nhosts;     /* at most SIM_HOSTS_MAX; host h is at 10.0.0.(h + 1) and 127.0.0.1 */
    int ncpus;      /* per host */
    /* average number of atomic operations and calls between two switches of threads */
    int switch_every;
    int call_cost_ns;   /* average per system call; atomic operations and clock reads cost less */
    int64_t latency_ns; /* between hosts, on average */
    int backlog_max;    /* for listening sockets, as net.core.somaxconn */
    /* Average number of calls between two that fail with EINTR (if they may block) or that move
     * fewer bytes than possible. 0: never. */
    int interrupts_every;
} sim_options;

/* Begin a world without processes. */
void sim_begin(const sim_options *options);
/* End the world and free its memory. */
void sim_end(void);

/* Spawn a process on a host, whose first thread runs `body`. The process exits when `body` returns:
 * its other threads end and its descriptors are closed. Return the process number, which counts
 * from 0. */
int sim_spawn(int host, void (*body)(void *arg), void *arg);
/* Call these only in a process of the world. */
int sim_own_process(void);
long long sim_pid_of(int process);
int64_t sim_now_ns(void);
uint64_t sim_random(void);
/* Return a number below `bound`, which must be positive. */
uint64_t sim_below(uint64_t bound);
void sim_sleep(int64_t duration_ns);
/* Set the calendar of the caller's host forward, or back if by_ns is negative. */
void sim_move_calendar(int64_t by_ns);

typedef enum sim_state {
    SIM_RUNS,
    SIM_STOPPED,
    SIM_EXITED,
    SIM_KILLED,
} sim_state;
sim_state sim_state_of(int process);

/* Resources that the process did not release before it exited. */
typedef struct sim_leftovers {
    int nfds;
    int nallocations;
    int nmappings;
    int nthreads;
} sim_leftovers;
sim_leftovers sim_leftovers_of(int process);

/* ---- faults */

typedef enum sim_fault_kind {
    SIM_KILL,      /* as SIGKILL does */
    SIM_STOP,      /* as SIGSTOP does, for `duration_ns` */
    SIM_SLOW,      /* its threads run `amount` times less often, for `duration_ns` */
    SIM_NO_MEMORY, /* the next `amount` allocations fail */
    SIM_NO_FDS,    /* only `amount` more descriptors for `duration_ns` */
    SIM_CUT,       /* block traffic between its host and the host `amount`, for `duration_ns` */
    SIM_HALF_CUT,  /* the same in one direction only */
    SIM_POWER_OFF, /* its host disappears with all processes, without notice to other hosts */
    SIM_CLOCK,     /* the calendar of its host jumps by `duration_ns`, which may be negative */
    SIM_DELAY,     /* packets that its host sends take `duration_ns` longer from now on */
    SIM_FLIP,      /* one bit of its next bytes over TCP is flipped */
    SIM_FAULT_KINDS,
} sim_fault_kind;

const char *sim_fault_name(sim_fault_kind kind);

typedef struct sim_fault {
    sim_fault_kind kind;
    int process;
    /* The trigger: a number of system calls by the process; a number of calls that other processes
     * can notice (sends and writes to a file); or a time. Exactly one is not 0. */
    int64_t after_ncalls;
    int64_t after_nsends;
    int64_t after_ns;
    int64_t duration_ns;
    int64_t amount;
} sim_fault;

void sim_plan_fault(const sim_fault *fault);
/* Return true if the fault has happened. Faults are numbered in the order in which they were
 * planned. */
bool sim_has_happened(int fault);
int64_t sim_happened_at_ns(int fault);

typedef enum sim_outcome {
    SIM_ALL_ENDED, /* every process has exited or was killed */
    SIM_STUCK,     /* nothing can happen, at least not before limit_ns */
    SIM_TOO_LONG,  /* more steps than limit_steps: a thread spins */
} sim_outcome;

/* Run until all processes have ended, or until limit_ns. */
sim_outcome sim_run(int64_t limit_ns, int64_t limit_steps);
int64_t sim_nsteps(void);
/* Return a hash of all events and their order. */
uint64_t sim_digest(void);
/* Write a line to the trace. */
void sim_note(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Print the state of every thread to stdout, for a stuck world. */
void sim_print_threads(void);

#endif
