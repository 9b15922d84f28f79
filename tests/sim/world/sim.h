/* A world in one process and on one thread: hosts, processes with threads, a network, and a clock that goes on only when something
 * happens. The real library runs in it. Everything that a run does follows from its options, so a run can be repeated to the bit.
 *
 * It defines the functions of core/system.h, mem.h, fork.h and fence.h in place of csrc/core, and the linker redirects the C
 * library's threads, locks and clocks to it (SIM_WRAPPED in the Makefile). There is one world at a time. docs/contributing/simulator.md lists
 * what is simulated. */
#ifndef DD_SIM_SIM_H
#define DD_SIM_SIM_H

#include <stdbool.h>
#include <stdint.h>

#define SIM_HOSTS_MAX 8
#define SIM_PROCESSES_MAX 16

typedef struct sim_options {
    uint64_t seed;    /* of the order of things, and of how long they take */
    bool is_traced;   /* to stdout: every call of the system, and every change of threads */
    int nhosts;       /* at most SIM_HOSTS_MAX; host h is at 10.0.0.(h + 1) and 127.0.0.1 */
    int ncpus;        /* of each host */
    int switch_every; /* atomic operations and calls between two changes of threads, on average */
    int call_cost_ns; /* of a call of the system, on average; atomic operations and looks at the clock cost less */
    int64_t latency_ns;   /* between hosts, on average */
    int backlog_max;      /* of listening sockets, as net.core.somaxconn */
    int interrupts_every; /* between two calls that fail with EINTR although they may wait, or move fewer bytes than they could; 0: none */
} sim_options;

/* Begins a world in which nothing runs yet. */
void sim_begin(const sim_options *options);
/* Ends it, and frees what is left. */
void sim_end(void);

/* A process on a host, whose first thread runs `body`. When that returns, the process has exited: its other threads are gone, its
 * descriptors are closed. Returns its number, which counts from 0. */
int sim_spawn(int host, void (*body)(void *arg), void *arg);
/* From within a process. */
int sim_own_process(void);
long long sim_pid_of(int process);
int64_t sim_now_ns(void);
uint64_t sim_random(void);
/* A number below `bound`, which is positive. */
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

/* What the process has left behind at its exit. */
typedef struct sim_leftovers {
    int nfds;
    int nallocations;
    int nmappings;
    int nthreads;
} sim_leftovers;
sim_leftovers sim_leftovers_of(int process);

/* ---- faults. What is to happen when */

typedef enum sim_fault_kind {
    SIM_KILL,      /* as by SIGKILL */
    SIM_STOP,      /* as by SIGSTOP, for `duration_ns` */
    SIM_SLOW,      /* its threads get their turn `amount` times less often, for `duration_ns` */
    SIM_NO_MEMORY, /* `amount` allocations fail from here on */
    SIM_NO_FDS,    /* no more descriptors than it has, and `amount`, for `duration_ns` */
    SIM_CUT,       /* nothing passes between its host and the host `amount`, for `duration_ns` */
    SIM_HALF_CUT,  /* the same, but the other way it passes */
    SIM_POWER_OFF, /* its host vanishes, with all processes, and without a word to others */
    SIM_CLOCK,     /* the calendar of its host jumps by `duration_ns`, which may be negative */
    SIM_DELAY,     /* what its host sends takes `duration_ns` longer from here on */
    SIM_FLIP,      /* a bit of what it sends over TCP next is another one */
    SIM_FAULT_KINDS,
} sim_fault_kind;

const char *sim_fault_name(sim_fault_kind kind);

typedef struct sim_fault {
    sim_fault_kind kind;
    int process;
    /* When: after so many calls of the system by that process, or after so many by which others may hear of it (what it sends, and
     * writes to a file), or at that time. One of them is not 0. */
    int64_t after_ncalls;
    int64_t after_ntold;
    int64_t after_ns;
    int64_t duration_ns;
    int64_t amount;
} sim_fault;

void sim_plan_fault(const sim_fault *fault);
/* Whether it has happened, by the order in which they were planned. */
bool sim_has_happened(int fault);
int64_t sim_happened_at_ns(int fault);

typedef enum sim_outcome {
    SIM_ALL_ENDED, /* every process has exited or was killed */
    SIM_STUCK,     /* nothing can ever happen again, or not before limit_ns */
    SIM_TOO_LONG,  /* more steps than a world may take: something spins */
} sim_outcome;

/* Runs until all processes have ended, or until limit_ns. */
sim_outcome sim_run(int64_t limit_ns, int64_t limit_steps);
int64_t sim_nsteps(void);
/* A number that follows from all that has happened, in its order. */
uint64_t sim_digest(void);
/* A line of the caller's in the trace. */
void sim_note(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* What every thread does, for a world that is stuck. To stdout. */
void sim_print_threads(void);

#endif
