/* The state of an NCCL group: devices, channels and works.
 *
 * A channel is a communicator, its stream, and the works of that stream in order: one for all ranks
 * on each device, and one for each pair of ranks that met before there was one for all.
 *
 * The comment of a field begins with the lock that guards it. `launch` is held while a call is put
 * into streams, including NCCL's calls, which may take long: threads wait for it with a deadline.
 * `lock` guards state, is never held in a call of CUDA or NCCL, and is taken inside `launch`, never
 * the reverse. So a failure reaches all threads immediately, even if one hangs. */
#ifndef DD_NCCL_GROUP_INTERNAL_H
#define DD_NCCL_GROUP_INTERNAL_H

#include "core/list.h"
#include "core/lock.h"
#include "core/mem.h"
#include "core/thread.h"
#include "core/timer.h"
#include "nccl/group.h"
#include "nccl/watchdog.h"

#define NCCL_ALL_RANKS (-1)
#define NCCL_CONNECTED_BITS 512u

/* ---- events, kept for reuse */

typedef struct nccl_events {
    dd_cuda_event *items; /* lock */
    size_t count;
    size_t capacity;
    bool is_closed; /* no more events are kept */
} nccl_events;

/* ---- devices and channels */

typedef struct nccl_device nccl_device;
typedef struct nccl_channel nccl_channel;
typedef struct nccl_work nccl_work;

struct nccl_channel {
    nccl_channel *next;                           /* const; the group's list, which only grows, at its head */
    dd_nccl_group *group;                         /* const */
    nccl_device *device;                          /* const */
    int peer;                                     /* const; the other rank of a pair, or NCCL_ALL_RANKS */
    uint64_t use;                                 /* lock; number among the communicators of these ranks */
    dd_cuda_stream stream;                        /* const until the device is closed */
    _Atomic(dd_nccl_comm *) comm;                 /* set once, under lock; owned; may have ended */
    bool is_blocking;                             /* const since comm is set */
    bool is_connecting;                           /* lock; a thread creates comm, others wait on `ended` */
    bool is_ending;                               /* lock; comm is being or has been aborted or destroyed */
    bool has_failed_to_close;                     /* lock; comm is left to be aborted */
    dd_list works;                                /* lock; under way, in the order of the stream */
    uint64_t connected[NCCL_CONNECTED_BITS / 64]; /* launch; bits of calls that have connected ranks */
    dd_cuda_nan_report *nan_report;               /* launch; for inputs of a call; NULL until used */
};

struct nccl_device {
    int number;              /* const */
    dd_cuda_context context; /* const */
    dd_cuda_event order;     /* launch; makes one stream wait for another, then free again */
    dd_cuda_ptr barrier;     /* const; memory that a barrier reduces */
    void *host;              /* launch; pinned, to search inputs on the host; NULL until used */
    dd_cuda_pool pool;       /* const; for stream-ordered memory; NULL if there is none */
    bool is_closed;          /* launch; all is freed, except events of works that are still held */
    nccl_events events[2];   /* lock; without and with timing */
    dd_list retired;         /* launch; without pools, memory that the device may still use */
    nccl_channel all;
    nccl_channel **pairs;                     /* lock; [size]; NULL until used */
    _Atomic(dd_cuda_nan_report *) nan_report; /* set once, under `launch`; for graphs; or NULL */
};

/* The operation that a cause is about. */
typedef struct nccl_origin {
    uint64_t record;
    uint64_t number; /* nccl_work.number; 0 if there is none */
    bool is_message;
    bool is_captured; /* part of a graph: no work can report the failure */
    size_t call_len;  /* length of its print, with which the cause begins */
} nccl_origin;

/* TOLD once a caller knows that a call was captured in a graph that cannot search for NaN. */
typedef enum nccl_nan_missed {
    NCCL_NAN_MISSED_NONE,
    NCCL_NAN_MISSED_UNREPORTED,
    NCCL_NAN_MISSED_REPORTED,
} nccl_nan_missed;

/* Inputs that graphs search for NaN; call/nan.c. */
typedef struct nccl_nan_captured nccl_nan_captured;
typedef struct nccl_nan_captures {
    nccl_nan_captured *items;
    size_t count;
    size_t capacity;
} nccl_nan_captures;

/* Progress of a close by dd_nccl_groups_post_close. */
typedef enum nccl_background_close {
    NCCL_CLOSE_NONE,
    NCCL_CLOSE_RUNNING,
    NCCL_CLOSE_DONE,
} nccl_background_close;

struct dd_nccl_group {
    atomic_uint users; /* references by dd_nccl_group_acquire */
    atomic_uint refs;  /* one for all users, one for each work, one for each thread that uses it */
    const dd_nccl_lib *lib;
    const dd_cuda *cuda;
    dd_nccl_watchdog *watchdog;
    dd_store *store;                   /* owned; NULL with one rank */
    dd_recorder_group *recorder_group; /* lock; owned; NULL if none, or after the last release */
    dd_recorder *recorder;             /* lock; NULL without recorder_group */
    int rank;
    int size;
    dd_nccl_group_options options; /* const; name is owned */
    uint64_t generation;           /* const; dd_fork_generation() */
    atomic_bool stop;              /* set with the cause; ends creation of communicators */
    atomic_bool is_nan_check;
    _Atomic(nccl_nan_missed) nan_missed;
    atomic_bool has_nan_graphs;     /* a device has a report for calls in graphs */
    nccl_nan_captures nan_captures; /* lock */
    atomic_bool has_timing;         /* for new works */
    atomic_llong timeout_ns;

    dd_list link; /* the watchdog's lock; in no list if not watched */

    dd_timed_lock launch;

    dd_lock lock;
    pthread_cond_t ended; /* signalled when a work, a connection or an abort ends */
    nccl_work *
        launching; /* lock; the work that is being put into a stream, and is ended by the thread that does so */
    unsigned nwaiters;   /* lock; threads that wait on `ended` for a work */
    dd_error cause;      /* lock; code is DD_OK until a failure */
    nccl_origin origin;  /* lock; of the cause */
    bool is_unreported;  /* lock; the cause ended operations, and no caller has received it */
    bool is_released;    /* lock; released or retired; groups split from it go on */
    bool is_closed;      /* lock; dd_nccl_group_close has begun */
    bool is_ended;       /* lock; close has finished: nothing can fail */
    bool is_driver_gone; /* lock; CUDA and NCCL must not be called */
    nccl_background_close background_close; /* lock, like the next; for dd_nccl_group_close */
    dd_error background_close_error;        /* code is DD_OK if there is none, or a caller has it */
    unsigned naborts;                       /* lock; communicators that are being aborted, on a thread each */
    nccl_channel *channels;                 /* lock */
    uint64_t ncollectives;                  /* lock; called */
    uint64_t nmessages;                     /* lock; called */
    uint64_t last_completed;                /* lock; number of the last completed collective */
    uint64_t nmeetings;                     /* lock; meetings for communicators of all ranks */
    dd_list windows;                        /* lock; open ones */
    uint64_t nwindows;                      /* lock; meetings for windows */
    dd_timer_set deadlines;                 /* lock; `late` of the works under way */
    int64_t ephemeral_ns;                   /* lock; extra time for new works */
    int64_t ephemeral_free_ns;              /* lock; the part that no work under way takes */
    dd_list pool;                           /* lock; works for reuse */
    size_t npool;                           /* lock */
    unsigned ntaken;                        /* lock; works taken since needs_poll was set */
    atomic_bool needs_poll;                 /* the pool is empty: works may have ended */

    _Atomic(nccl_device *) devices[]; /* [cuda->ndevices]; set once, under `launch` */
};

/* ---- works */

struct nccl_work {
    dd_nccl_work base;    /* first */
    dd_nccl_group *group; /* a reference */
    nccl_channel *channel;
    dd_list link;        /* lock; in the channel's works, the pool, or a list of ended works */
    dd_cuda_event start; /* NULL without timing; lives as long as the work, like `end` */
    dd_cuda_event end;
    const char *what;
    uint64_t number; /* count of collectives or of messages */
    uint64_t record;
    int64_t timeout_ns;
    dd_timer late;        /* lock; in the group's deadlines while it is under way */
    int64_t ephemeral_ns; /* lock; extra time that ends with it */
    bool is_message;
    bool has_timing;
    bool is_captured;
    atomic_bool is_started;     /* known to have begun */
    atomic_bool is_launched;    /* release: all is enqueued, and `end` is recorded */
    atomic_bool is_device_done; /* the device is done with it, or shut down */
};

/* ---- the watchdog */

struct dd_nccl_watchdog {
    const dd_cuda *cuda;
    dd_nccl_watchdog_options options; /* const; zeros are replaced */
    uint64_t generation;              /* const; dd_fork_generation() */
    _Atomic(const char *) activity;
    atomic_ullong npolls;
    atomic_bool is_asleep;  /* until nccl_watchdog_kick; set under lock */
    atomic_bool is_hurried; /* until no work is under way */

    dd_lock lock;
    pthread_cond_t wake;
    dd_list groups;   /* lock */
    size_t ngroups;   /* lock */
    size_t naborts;   /* lock; threads that abort or close, and use the driver until they end */
    size_t nenders;   /* lock; threads that close, also counted in naborts */
    bool is_started;  /* lock; the thread must be joined */
    bool has_ended;   /* lock; the thread is done: joining it does not wait */
    bool is_stopping; /* lock */
    bool is_ended;    /* lock; the driver has shut down, and the thread ends */
    pthread_t thread; /* lock */

    int64_t busy_ns;  /* only the thread; when a work was last under way */
    int64_t comms_ns; /* only the thread; when communicators were last checked */
};

/* ---- group.c */

dd_nccl_group *nccl_group_acquire_internal(dd_nccl_group *group);
void nccl_group_release_internal(dd_nccl_group *group);
/* False if the last reference has been released. */
bool nccl_group_try_acquire(void *group);
void nccl_group_destroy(dd_nccl_group *group); /* after the last release */
void nccl_group_free(dd_nccl_group *group);    /* only the memory; may be NULL */
dd_status nccl_group_check_fork(const dd_nccl_group *group, dd_error *err) DD_MUST_CHECK;
/* DD_OK, or why every call fails, which counts as reporting the cause to a caller. */
dd_status nccl_group_check_locked(dd_nccl_group *group, dd_error *err) DD_MUST_CHECK;
/* Describe the cause of a group that has failed. */
void nccl_group_describe_cause_locked(const dd_nccl_group *group, dd_error *err);
/* Take `launch`. DD_INTERRUPTED, DD_OP_TIMED_OUT, or the cause as soon as there is one. */
dd_status nccl_group_enter_launch(dd_nccl_group *group, const dd_wait *wait, dd_error *err) DD_MUST_CHECK;
void nccl_group_leave_launch(dd_nccl_group *group);

/* ---- device.c */

/* Free streams and the like. The caller must hold `launch`, or be the last user. */
void nccl_device_close(dd_nccl_group *group, nccl_device *device);
/* Free the rest, with the group. */
void nccl_device_destroy(dd_nccl_group *group, nccl_device *device);
/* Make the device's context current until dd_cuda_leave. Cheap if it is already current. */
dd_status nccl_enter(const dd_nccl_group *group, const nccl_device *device, dd_cuda_guard *guard,
                     dd_error *err) DD_MUST_CHECK;

/* ---- device_make.c: streams, and communicators for them */

/* Find or create the group's part of a device. */
dd_status nccl_device_of(dd_nccl_group *group, int number, const dd_wait *wait, nccl_device **device,
                         dd_error *err) DD_MUST_CHECK;
/* Create a channel of two ranks, without a communicator. The caller must hold `launch`. */
dd_status nccl_pair_create(dd_nccl_group *group, nccl_device *device, int peer, nccl_channel **pair,
                           dd_error *err) DD_MUST_CHECK;

/* ---- events.c. The device's context must be current; takes the group's lock */

dd_status nccl_event_acquire(dd_nccl_group *group, nccl_device *device, bool has_timing, dd_cuda_event *event,
                             dd_error *err);
/* is_reusable: nothing refers to its last recording. event may be NULL. */
void nccl_event_release(dd_nccl_group *group, nccl_device *device, bool has_timing, dd_cuda_event event,
                        bool is_reusable);
void nccl_events_close(dd_nccl_group *group, nccl_device *device);

/* ---- works.c */

/* Create a work with one reference, not yet in the channel's list. */
dd_status nccl_work_create(nccl_channel *channel, const dd_nccl_call *call, int64_t start_ns,
                           bool is_captured, nccl_work **work, dd_error *err) DD_MUST_CHECK;
/* End a work with the group's `cause`, and move it to `ended`. */
void nccl_work_fail_locked(nccl_work *work, const dd_error *cause, dd_list *ended);
/* Release the works in `ended`. Must be called without the lock. */
void nccl_works_release_ended(dd_list *ended);
/* Compose a work's error: the operation, and the cause. */
void nccl_work_describe(const nccl_work *work, const dd_error *cause, dd_error *error);
/* Print "all_reduce #5 of rank 0 " to out; return its length. */
size_t nccl_work_print(const nccl_work *work, char out[128]);
nccl_origin nccl_work_origin(const nccl_work *work);
typedef enum nccl_progress {
    NCCL_UNDER_WAY,
    NCCL_ENDED,
    NCCL_BROKEN,  /* with an error */
    NCCL_NO_MORE, /* the driver is shutting down */
} nccl_progress;
/* Query the device about an event of a work that has been launched. No locks. */
nccl_progress nccl_work_query(const nccl_work *work, dd_cuda_event event, dd_error *err);
/* Note that a work has begun, if the device has reached it. No locks. */
void nccl_work_check_start(nccl_work *work);
/* Complete a work that the stream has passed, and those before it. */
void nccl_work_complete_up_to(nccl_work *work);
/* Do the same, if the stream has passed the work. */
nccl_progress nccl_work_poll_ahead(nccl_work *work);
/* Return a channel's n-th work under way, acquired, or the last if there are fewer, or NULL. */
nccl_work *nccl_channel_nth_work(nccl_channel *channel, size_t n);
/* Complete works whose kernels have ended. Call it before a failure; does nothing after one. */
void nccl_group_end_complete(dd_nccl_group *group);

/* ---- work_wait.c */

/* Complete works that the device has finished, with few queries. *is_busy if any is under way. */
nccl_progress nccl_channel_poll(nccl_channel *channel, bool *is_busy);
/* Wait for the end of a work, with or without an error. DD_OP_TIMED_OUT at the deadline. */
dd_status nccl_work_await(nccl_work *work, const dd_wait *wait, dd_error *err) DD_MUST_CHECK;

/* ---- end.c */

typedef enum nccl_end {
    NCCL_END_FAILED,
    NCCL_END_ABORTED,     /* by a caller, which needs no report */
    NCCL_END_RELEASED,    /* released, or replaced by another group: not reported */
    NCCL_END_DRIVER_GONE, /* not reported; nothing is aborted */
} nccl_end;

/* End everything under way with the cause; later calls fail with it. Only the first call counts.
 * origin: the operation that failed first, with whose print the cause begins; may be NULL. */
void nccl_group_end(dd_nccl_group *group, const dd_error *cause, const nccl_origin *origin, nccl_end how);
/* Abort all communicators, each on its own thread: one that hangs in NCCL or the driver, perhaps
 * waiting for another's kernel, must not hold up the others. */
void nccl_group_start_abort(dd_nccl_group *group);
/* dd_nccl_comm_owner.abort: end the group, because a relative of its communicator is aborted. */
void nccl_group_abort_as_relative(void *group, const char *reason);
/* Wait for the aborts. DD_OP_TIMED_OUT leaves them running. */
dd_status nccl_group_wait_for_abort(dd_nccl_group *group, const dd_wait *wait, dd_error *err) DD_MUST_CHECK;

/* ---- scratch.c: in stream order. The caller must hold `launch`, with the context current */

dd_status nccl_scratch_alloc(dd_nccl_group *group, nccl_channel *channel, size_t nbytes, void **data,
                             dd_error *err);
void nccl_scratch_free(dd_nccl_group *group, nccl_channel *channel, void *data);
/* Free the remaining memory. The device must be idle. */
void nccl_scratch_close(dd_nccl_group *group, nccl_device *device);

/* ---- watch_list.c */

/* Return the next group, round robin, acquired. The caller must hold the lock. */
dd_nccl_group *nccl_watchdog_next_group_locked(dd_nccl_watchdog *watchdog);
void nccl_watchdog_remove(dd_nccl_watchdog *watchdog, dd_nccl_group *group);
/* Wake the watchdog. Cheap if it is awake. */
void nccl_watchdog_kick(dd_nccl_watchdog *watchdog);
/* Count a thread that aborts, which the watchdog outlives. end_abort must be its last call. */
void nccl_watchdog_begin_abort(dd_nccl_watchdog *watchdog);
void nccl_watchdog_end_abort(dd_nccl_watchdog *watchdog);
/* Count a thread that closes. False if there are already DD_NCCL_ENDERS_MAX. */
bool nccl_watchdog_begin_end(dd_nccl_watchdog *watchdog);
void nccl_watchdog_end_end(dd_nccl_watchdog *watchdog);
bool nccl_watchdog_is_abort_off(const dd_nccl_watchdog *watchdog);
int64_t nccl_watchdog_abort_timeout_ns(const dd_nccl_watchdog *watchdog);

#endif
