/* Shared state of the simulator's files: one world and its contents. */
#ifndef DD_SIM_SIM_INTERNAL_H
#define DD_SIM_SIM_INTERNAL_H

#include "core/clock.h"
#include "core/list.h"
#include "sim/world/sim.h"

#include <stddef.h>
#include <sys/socket.h>

#define SIM_FDS_MAX 512
#define SIM_FAULTS_MAX 16
#define SIM_TLS_NBYTES 256 /* space for the variables of a thread */

typedef struct sim_process sim_process;
typedef struct sim_fiber sim_fiber;
typedef struct sim_file sim_file;
typedef struct sim_node sim_node;

/* ---- threads */

typedef enum sim_fiber_state {
    FIBER_RUNNABLE,
    FIBER_BLOCKED,
    FIBER_ENDED, /* not yet joined */
} sim_fiber_state;

struct sim_fiber {
    dd_list link; /* world.fibers */
    sim_process *process;
    int number; /* in the world */
    char name[16];
    sim_fiber_state state;
    bool is_detached;
    const void *waits_for; /* BLOCKED: an address that the waking code also knows */
    const char *doing;
    int64_t wake_ns;     /* BLOCKED: the latest time */
    bool is_on_calendar; /* wake_ns is a calendar time and moves with the calendar */
    bool was_woken;      /* woken before wake_ns */
    void *stack;         /* lowest address */
    void *sp;            /* valid while the thread is not running */
    int saved_errno;
    uint8_t tls[SIM_TLS_NBYTES];
    void *(*run)(void *arg);
    void *arg;
};

extern const char sim_polling; /* the address for threads that wait for descriptors */

/* Save the caller's stack pointer in *save and continue at `load`. */
void sim_switch_stack(void **save, void *load);
void *sim_stack_acquire(void);
void sim_stack_release(void *stack);
/* Return the stack pointer of a thread that begins with `entry`, which must not return. */
void *sim_stack_begin(void *stack, void (*entry)(void));
/* Return the address and size of the library's thread-local variables (_Thread_local). */
uint8_t *sim_tls(size_t *nbytes);

/* Create a thread. Return NULL if there is no memory. */
sim_fiber *sim_fiber_create(sim_process *process, const char *name, void *(*run)(void *arg), void *arg);
void sim_fiber_destroy(sim_fiber *fiber);
/* Let time pass by about cost_ns, and perhaps switch to another thread. Do nothing outside the
 * threads of the world. */
void sim_step(int64_t cost_ns);
void sim_yield(void);
/* Block until a wake-up. Return false if until_ns passed first. */
bool sim_block(const void *address, int64_t until_ns, const char *doing);
void sim_wake(sim_fiber *fiber, bool was_woken);
void sim_wake_one(const void *address);
void sim_wake_all(const void *address);
/* Wake the threads of a process that wait for descriptors, so that they check again. */
void sim_wake_pollers(const sim_process *process);
/* End the calling thread. */
void sim_leave(void) __attribute__((noreturn));

/* ---- events at a set time */

typedef struct sim_event {
    int64_t at_ns;
    uint64_t number; /* of two events at one time, the lower number runs first */
    void (*run)(void *subject, int64_t word);
    void *subject;
    int64_t word;
} sim_event;
/* Run the next event and advance the time to it. Return false if the next event is later than
 * until_ns. */
bool sim_run_event(int64_t until_ns);
void sim_plan(int64_t at_ns, void (*run)(void *subject, int64_t word), void *subject, int64_t word);

/* ---- processes */

typedef struct sim_allocation {
    dd_list link;
    sim_process *process;
    size_t nbytes;
} sim_allocation;

typedef struct sim_mapping {
    uint8_t *at;
    size_t nbytes;
} sim_mapping;

struct sim_process {
    int number;
    int host;
    long long pid;
    sim_state state;
    void (*body)(void *arg);
    void *arg;
    sim_file *fds[SIM_FDS_MAX];
    int fd_limit;
    dd_list allocations;
    int nallocations;
    sim_mapping *mappings;
    size_t nmappings, mappings_capacity;
    bool is_fenced;
    int64_t ncalls, nsends;    /* counted as in sim_fault */
    int64_t next_fault_ncalls; /* no fault is pending before this call */
    int64_t nallocations_to_fail;
    bool is_to_flip; /* flip a bit of the next bytes sent over TCP */
    int slowness;    /* 1 is normal speed */
    sim_leftovers leftovers;
};

void sim_process_end(sim_process *process, sim_state how);
/* Free all memory of the process. */
void sim_free_all(sim_process *process);
void sim_unmap(sim_process *process, uint8_t *at, size_t nbytes);
/* Record a mapping. Return false if there is no memory for the record. */
bool sim_note_mapping(sim_process *process, uint8_t *at, size_t nbytes);
void sim_fault_run(int fault);
void sim_check_faults(sim_process *process);

/* ---- files */

typedef enum sim_file_kind {
    FILE_EVENT,
    FILE_EPOLL,
    FILE_MEMORY,
    FILE_TEXT,   /* fixed content */
    FILE_DISK,   /* disk.c */
    FILE_SOCKET, /* socket.c */
} sim_file_kind;

struct sim_file {
    dd_list link; /* world.files */
    sim_file_kind kind;
    int nrefs;          /* descriptors, descriptors in transit, and events */
    int nfds;           /* the same without events */
    sim_process *owner; /* the process whose threads poll it */
    uint64_t count;     /* EVENT */
    dd_list watches;    /* EPOLL: the watched files */
    int memory_fd;      /* MEMORY: the real descriptor */
    int seals;          /* MEMORY */
    const char *text;   /* TEXT */
    size_t at;          /* TEXT */
    sim_node *node;     /* DISK */
    struct sim_socket *socket;
};

sim_file *sim_file_create(sim_file_kind kind);
sim_file *sim_file_acquire(sim_file *file);
void sim_file_release(sim_file *file);
/* Drop a descriptor. The last one closes the file. */
void sim_file_drop_fd(sim_file *file);
/* Install a descriptor and take over the reference. Return -1 and set errno if the table is
 * full. */
int sim_fd_install(sim_process *process, sim_file *file);
/* Return NULL and set EBADF if there is no such descriptor. */
sim_file *sim_fd_get(int fd);
short sim_file_readiness(const sim_file *file);
/* Wake the threads that poll descriptors of the owner, so that they check again. */
void sim_file_notify(sim_file *file);
void sim_file_forget_watches(sim_file *file);
/* Same as the system calls, except for the deadline. */
struct epoll_event;
struct pollfd;
int sim_epoll_control(sim_file *epoll, int operation, sim_file *file, const struct epoll_event *event);
int sim_epoll_wait(sim_file *epoll, struct epoll_event *events, int capacity, int64_t until_ns);
int sim_poll(struct pollfd *fds, size_t count, int64_t until_ns);

/* ---- files by name, same as the system calls */

struct stat;
struct flock;
/* Return NULL and set ENOENT if there is no such file. */
sim_file *sim_disk_open(const char *name, int flags);
/* Close a file whose last descriptor was closed. */
void sim_disk_close(sim_file *file);
int sim_disk_unlink(const char *name);
/* Remove all files. */
void sim_disk_clear(void);
int sim_disk_stat(const char *name, struct stat *info);
int sim_disk_fstat(const sim_file *file, struct stat *info);
int sim_disk_truncate(sim_file *file, off_t nbytes);
ssize_t sim_disk_read(const sim_file *file, void *data, size_t nbytes, off_t at);
ssize_t sim_disk_write(sim_file *file, const void *data, size_t nbytes, off_t at);
int sim_disk_lock(sim_file *file, const struct flock *lock);

/* ---- sockets, same as the system calls in non-blocking mode */

sim_file *sim_socket_create(int family, int type);
int sim_socket_bind(sim_file *file, const struct sockaddr *addr, socklen_t len);
int sim_socket_listen(sim_file *file, int backlog);
/* Return NULL and set errno on error. The caller installs the descriptor. */
sim_file *sim_socket_accept(sim_file *file);
int sim_socket_connect(sim_file *file, const struct sockaddr *addr, socklen_t len);
ssize_t sim_socket_send(sim_file *file, const struct msghdr *message);
ssize_t sim_socket_recv(sim_file *file, struct msghdr *message);
int sim_socket_get_option(sim_file *file, int level, int name, void *value, socklen_t *len);
int sim_socket_set_option(sim_file *file, int level, int name, const void *value, socklen_t len);
int sim_socket_get_name(const sim_file *file, bool is_of_peer, struct sockaddr *addr, socklen_t *len);
/* SIOCOUTQ and SIOCOUTQNSD. */
int sim_socket_count_queued(const sim_file *file, bool is_unsent);
short sim_socket_readiness(const sim_file *file);
/* Close a socket whose last descriptor was closed. If is_silent is set, the peer is not
 * notified. */
void sim_socket_close(sim_file *file, bool is_silent);
void sim_socket_free(sim_file *file);
bool sim_is_cut(int from, int to);
/* Resume transfers that a cut held up, where the cut has ended. */
void sim_network_resume(void);
/* Start the timers after which kernels abort connections over the cut path. */
void sim_network_note_cut(void);

/* ---- the world */

typedef struct sim_path {
    bool is_cut; /* holds everything that is sent on this path */
    int64_t latency_ns;
} sim_path;

typedef struct sim_world {
    sim_options options;
    uint64_t random[4];
    uint64_t digest;
    int64_t now_ns;
    int64_t calendar_ns[SIM_HOSTS_MAX]; /* of each host, at now_ns 0 */
    int64_t boot_ns[SIM_HOSTS_MAX];     /* the monotonic clock of each host at now_ns 0 */
    bool is_off[SIM_HOSTS_MAX];
    int next_port[SIM_HOSTS_MAX];
    sim_path paths[SIM_HOSTS_MAX][SIM_HOSTS_MAX]; /* [from][to] */
    sim_process processes[SIM_PROCESSES_MAX];
    int nprocesses;
    dd_list fibers;
    sim_fiber *running; /* NULL if the scheduler is running */
    void *scheduler_sp;
    int nfibers; /* total created */
    int64_t nsteps;
    int64_t budget; /* steps until the next switch of threads */
    int64_t next_wake_ns;
    sim_event *events; /* a heap */
    size_t nevents, events_capacity;
    uint64_t nevents_ever;
    dd_list files;
    dd_list nodes; /* nodes that have a name */
    int nnodes;    /* total created */
    sim_fault faults[SIM_FAULTS_MAX];
    int64_t happened_ns[SIM_FAULTS_MAX]; /* -1 until it happens */
    int nfaults;
    int due_fault; /* pending fault of the running process; -1 for none */
} sim_world;

extern sim_world world;

static inline sim_process *
sim_self(void)
{
    return world.running->process;
}

void sim_seed_random(uint64_t seed);
/* Return about `mean`, sometimes many times as much. */
int64_t sim_around(int64_t mean);
bool sim_one_in(int64_t odds); /* odds 0: never */

/* ---- the trace */

/* Add the values to the digest and, if tracing is on, print them. */
void sim_trace(const char *label, int64_t a, int64_t b);

#endif
