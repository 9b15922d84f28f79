/* What the files of the simulator share: one world, and what is in it. */
#ifndef DD_SIM_SIM_INTERNAL_H
#define DD_SIM_SIM_INTERNAL_H

#include "core/clock.h"
#include "core/list.h"
#include "sim/world/sim.h"

#include <stddef.h>
#include <sys/socket.h>

#define SIM_FDS_MAX 512
#define SIM_FAULTS_MAX 16
#define SIM_TLS_NBYTES 256 /* room for the variables of a thread */

typedef struct sim_process sim_process;
typedef struct sim_fiber sim_fiber;
typedef struct sim_file sim_file;
typedef struct sim_node sim_node;

/* ---- threads */

typedef enum sim_fiber_state {
    FIBER_RUNNABLE,
    FIBER_BLOCKED,
    FIBER_ENDED, /* has not been joined */
} sim_fiber_state;

struct sim_fiber {
    dd_list link; /* world.fibers */
    sim_process *process;
    int number; /* in the world */
    char name[16];
    sim_fiber_state state;
    bool is_detached;
    const void *waits_for; /* BLOCKED: an address that whoever wakes it knows */
    const char *doing;
    int64_t wake_ns;     /* BLOCKED: at the latest */
    bool is_on_calendar; /* wake_ns is a time of the calendar, and jumps with it */
    bool was_woken;      /* and not by the time */
    void *stack;         /* its lowest address */
    void *sp;            /* while it does not run */
    int saved_errno;
    uint8_t tls[SIM_TLS_NBYTES];
    void *(*run)(void *arg);
    void *arg;
};

extern const char sim_polling; /* what those wait for who wait for descriptors */

/* Saves where the caller is at *save, and goes on at `load`. */
void sim_switch_stack(void **save, void *load);
void *sim_stack_acquire(void);
void sim_stack_release(void *stack);
/* The stack pointer of a thread that begins with `entry`, which does not return. */
void *sim_stack_begin(void *stack, void (*entry)(void));
/* The variables of the thread that the library has (_Thread_local): where they are, and how many bytes. */
uint8_t *sim_tls(size_t *nbytes);

/* NULL: there is no memory for it. */
sim_fiber *sim_fiber_create(sim_process *process, const char *name, void *(*run)(void *arg), void *arg);
void sim_fiber_destroy(sim_fiber *fiber);
/* Somebody else may run; time goes on by about cost_ns. From outside of all threads nothing happens. */
void sim_step(int64_t cost_ns);
void sim_yield(void);
/* False: until_ns has come first. */
bool sim_block(const void *address, int64_t until_ns, const char *doing);
void sim_wake(sim_fiber *fiber, bool was_woken);
void sim_wake_one(const void *address);
void sim_wake_all(const void *address);
/* Those of a process who wait for descriptors look again. */
void sim_wake_pollers(const sim_process *process);
/* The calling thread does not exist any more. */
void sim_leave(void) __attribute__((noreturn));

/* ---- events that are due at a moment */

typedef struct sim_event {
    int64_t at_ns;
    uint64_t number; /* of those at one moment the first comes first */
    void (*run)(void *subject, int64_t word);
    void *subject;
    int64_t word;
} sim_event;
/* Runs the first, if it is due by then; time goes on to it. False: it is not. */
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
    int64_t ncalls, ntold;     /* as of sim_fault */
    int64_t next_fault_ncalls; /* no fault is due before so many calls */
    int64_t nallocations_to_fail;
    bool is_to_flip; /* a bit of the next bytes that it sends over TCP */
    int slowness;    /* 1: none */
    sim_leftovers leftovers;
};

void sim_process_end(sim_process *process, sim_state how);
/* All its memory. */
void sim_free_all(sim_process *process);
void sim_unmap(sim_process *process, uint8_t *at, size_t nbytes);
/* False: there is no memory to note it. */
bool sim_note_mapping(sim_process *process, uint8_t *at, size_t nbytes);
void sim_fault_run(int fault);
void sim_check_faults(sim_process *process);

/* ---- files */

typedef enum sim_file_kind {
    FILE_EVENT,
    FILE_EPOLL,
    FILE_MEMORY,
    FILE_TEXT,   /* with fixed content */
    FILE_DISK,   /* sim_disk.c */
    FILE_SOCKET, /* sim_socket.c */
} sim_file_kind;

struct sim_file {
    dd_list link; /* world.files */
    sim_file_kind kind;
    int nrefs;          /* descriptors, those on their way, and events */
    int nfds;           /* of these, descriptors and those on their way */
    sim_process *owner; /* whose threads wait for it */
    uint64_t count;     /* EVENT */
    dd_list watches;    /* EPOLL: what it watches */
    int memory_fd;      /* MEMORY: the real one */
    int seals;          /* MEMORY */
    const char *text;   /* TEXT */
    size_t at;          /* TEXT */
    sim_node *node;     /* DISK */
    struct sim_socket *socket;
};

sim_file *sim_file_create(sim_file_kind kind);
sim_file *sim_file_acquire(sim_file *file);
void sim_file_release(sim_file *file);
/* A descriptor is gone; the last one closes. */
void sim_file_drop_fd(sim_file *file);
/* -1 and errno: too many. Takes the reference over on success. */
int sim_fd_install(sim_process *process, sim_file *file);
/* NULL and EBADF. */
sim_file *sim_fd_get(int fd);
short sim_file_readiness(const sim_file *file);
/* Whoever waits for descriptors of its owner looks again. */
void sim_file_notify(sim_file *file);
void sim_file_forget_watches(sim_file *file);
/* As the system's calls, but for the deadline. */
struct epoll_event;
struct pollfd;
int sim_epoll_control(sim_file *epoll, int operation, sim_file *file, const struct epoll_event *event);
int sim_epoll_wait(sim_file *epoll, struct epoll_event *events, int capacity, int64_t until_ns);
int sim_poll(struct pollfd *fds, size_t count, int64_t until_ns);

/* ---- files by name: as the system's calls */

struct stat;
struct flock;
/* NULL and ENOENT. */
sim_file *sim_disk_open(const char *name, int flags);
/* Its last descriptor is gone. */
void sim_disk_close(sim_file *file);
int sim_disk_unlink(const char *name);
/* Of all files. */
void sim_disk_clear(void);
int sim_disk_stat(const char *name, struct stat *info);
int sim_disk_fstat(const sim_file *file, struct stat *info);
int sim_disk_truncate(sim_file *file, off_t nbytes);
ssize_t sim_disk_read(const sim_file *file, void *data, size_t nbytes, off_t at);
ssize_t sim_disk_write(sim_file *file, const void *data, size_t nbytes, off_t at);
int sim_disk_lock(sim_file *file, const struct flock *lock);

/* ---- sockets: as the system's calls, none of which waits */

sim_file *sim_socket_create(int family, int type);
int sim_socket_bind(sim_file *file, const struct sockaddr *addr, socklen_t len);
int sim_socket_listen(sim_file *file, int backlog);
/* NULL and errno; the reference of a descriptor is the caller's to install. */
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
/* Its last descriptor is gone. `is_silent`: and nobody is told. */
void sim_socket_close(sim_file *file, bool is_silent);
void sim_socket_free(sim_file *file);
bool sim_is_cut(int from, int to);
/* What was held up by a cut goes on, where there is none any more. */
void sim_network_resume(void);
/* What is sent over a path that is cut from now on is looked after by the kernels, which give up some time. */
void sim_network_note_cut(void);

/* ---- the world */

typedef struct sim_path {
    bool is_cut; /* what is sent on it stays where it is */
    int64_t latency_ns;
} sim_path;

typedef struct sim_world {
    sim_options options;
    uint64_t random[4];
    uint64_t digest;
    int64_t now_ns;
    int64_t calendar_ns[SIM_HOSTS_MAX]; /* of each host, at now_ns 0 */
    int64_t boot_ns[SIM_HOSTS_MAX];     /* what its monotonic clock showed at now_ns 0 */
    bool is_off[SIM_HOSTS_MAX];
    int next_port[SIM_HOSTS_MAX];
    sim_path paths[SIM_HOSTS_MAX][SIM_HOSTS_MAX]; /* from, to */
    sim_process processes[SIM_PROCESSES_MAX];
    int nprocesses;
    dd_list fibers;
    sim_fiber *running; /* NULL: the scheduler */
    void *scheduler_sp;
    int nfibers; /* ever made */
    int64_t nsteps;
    int64_t budget; /* steps until somebody else may run */
    int64_t next_wake_ns;
    sim_event *events; /* a heap */
    size_t nevents, events_capacity;
    uint64_t nevents_ever;
    dd_list files;
    dd_list nodes; /* those with a name */
    int nnodes;    /* ever made */
    sim_fault faults[SIM_FAULTS_MAX];
    int64_t happened_ns[SIM_FAULTS_MAX]; /* -1: not yet */
    int nfaults;
    int due_fault; /* of the running process; -1: none */
} sim_world;

extern sim_world world;

static inline sim_process *
sim_self(void)
{
    return world.running->process;
}

void sim_seed_random(uint64_t seed);
/* About `mean`, and sometimes many times as much. */
int64_t sim_around(int64_t mean);
bool sim_one_in(int64_t odds); /* 0: never */

/* ---- the trace */

/* Into the digest, and where it is asked for into the trace. */
void sim_trace(const char *what, int64_t a, int64_t b);

#endif
