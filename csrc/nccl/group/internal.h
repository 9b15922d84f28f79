/* The state of an NCCL group: devices, channels and works.
 *
 * A channel is a communicator, its stream, and the works of that stream in order. Each device has
 * one channel for all ranks, and one for each pair of ranks that met before all ranks did.
 *
 * The comment of a field names its lock. A thread holds `launch` while it enqueues a call on
 * streams, including NCCL's calls, which may take long: threads wait for `launch` with a deadline.
 * `lock` guards state, is never held in a call of CUDA or NCCL, and may be taken inside `launch`,
 * never the reverse. So a failure reaches all threads immediately, even if one thread hangs. */
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

/* ---- CUDA events, kept for reuse */

typedef struct nccl_events {
    dd_cuda_event *items; /* guarded by lock; unused events */
    size_t count;
    size_t capacity;
    bool is_closed; /* guarded by lock; unused events are destroyed, not kept */
} nccl_events;

/* ---- devices and channels */

typedef struct nccl_device nccl_device;
typedef struct nccl_channel nccl_channel;
typedef struct nccl_work nccl_work;

struct nccl_channel {
    nccl_channel *next;           /* const after insertion; the group's next channel */
    dd_nccl_group *group;         /* const; the group that owns the channel */
    nccl_device *device;          /* const; the device that the channel uses */
    int peer;                     /* const; the other rank of a pair, or NCCL_ALL_RANKS */
    uint64_t use;                 /* guarded by lock; serial number among comms of these ranks */
    dd_cuda_stream stream;        /* const until the device is closed; stream of NCCL's calls */
    _Atomic(dd_nccl_comm *) comm; /* written once under lock; owned; may be aborted or destroyed */
    bool is_blocking;             /* const once comm is set; comm is a blocking communicator */
    bool is_connecting;           /* guarded by lock; comm is being created; wait on `ended` */
    bool is_ending;               /* guarded by lock; comm is being, or was, aborted or destroyed */
    bool has_failed_to_close;     /* guarded by lock; closing comm failed: comm must be aborted */
    dd_list works;                /* guarded by lock; works under way, in the stream's order */
    /* Guarded by launch; a set of the kinds and sizes of calls for which NCCL has connected. */
    uint64_t connected[NCCL_CONNECTED_BITS / 64];
    dd_cuda_nan_report *nan_report; /* guarded by launch; NaN report on a call's inputs; or NULL */
};

struct nccl_device {
    int number;              /* const; CUDA device number */
    dd_cuda_context context; /* const; primary context */
    dd_cuda_event order;     /* guarded by launch; temporary; makes one stream wait for another */
    dd_cuda_ptr barrier;     /* const; device memory that barriers all-reduce */
    void *host;              /* guarded by launch; pinned, to search for NaN; NULL until used */
    dd_cuda_pool pool;       /* const; pool for stream-ordered memory; NULL if there is none */
    bool is_closed;          /* guarded by launch; everything but events of works is freed */
    nccl_events events[2];   /* guarded by lock; cached events: [0] without, [1] with timing */
    dd_list retired;         /* guarded by launch; if pool is NULL: memory to free once unused */
    nccl_channel all;
    /* Guarded by lock; array of `size` channels, indexed by peer; NULL until used. */
    nccl_channel **pairs;
    _Atomic(dd_cuda_nan_report *) nan_report; /* written under launch; report of graphs; or NULL */
};

/* The operation that caused a group's failure. */
typedef struct nccl_origin {
    uint64_t record;
    uint64_t number; /* nccl_work.number; 0 if the cause is not about one operation */
    bool is_message;
    bool is_captured; /* part of a CUDA graph, so no work can report the failure */
    size_t call_len;  /* length of the operation's name at the start of the cause */
} nccl_origin;

/* The warning that a captured call cannot search for NaN: none, to be reported, or reported. */
typedef enum nccl_nan_missed {
    NCCL_NAN_MISSED_NONE,
    NCCL_NAN_MISSED_UNREPORTED,
    NCCL_NAN_MISSED_REPORTED,
} nccl_nan_missed;

/* The inputs that CUDA graphs search for NaN; see call/nan.c. */
typedef struct nccl_nan_captured nccl_nan_captured;
typedef struct nccl_nan_captures {
    nccl_nan_captured *items;
    size_t count;
    size_t capacity;
} nccl_nan_captures;

/* State of a close that dd_nccl_groups_post_close started. */
typedef enum nccl_background_close {
    NCCL_CLOSE_NONE,
    NCCL_CLOSE_RUNNING,
    NCCL_CLOSE_DONE,
} nccl_background_close;

struct dd_nccl_group {
    atomic_uint users; /* number of references from dd_nccl_group_acquire */
    atomic_uint refs;  /* internal references: one for all users, each work, each thread */
    const dd_nccl_lib *lib;
    const dd_cuda *cuda;
    dd_nccl_watchdog *watchdog;
    dd_store *store;                   /* owned; NULL if the group has one rank */
    dd_recorder_group *recorder_group; /* guarded by lock; owned; NULL if none or released */
    dd_recorder *recorder;             /* guarded by lock; NULL if recorder_group is NULL */
    int rank;
    int size;
    dd_nccl_group_options options; /* const; options.name is owned */
    uint64_t generation;           /* const; dd_fork_generation() at the time of creation */
    atomic_bool stop;              /* set with `cause`; cancels the creation of communicators */
    atomic_bool is_nan_check;
    _Atomic(nccl_nan_missed) nan_missed;
    atomic_bool has_nan_graphs;     /* a device has a NaN report for calls in CUDA graphs */
    nccl_nan_captures nan_captures; /* guarded by lock; inputs that CUDA graphs search */
    atomic_bool has_timing;         /* new works are timed */
    atomic_llong timeout_ns;

    dd_list link; /* guarded by the watchdog's lock; in its list of groups, or in no list */

    dd_timed_lock launch;

    dd_lock lock;
    pthread_cond_t ended; /* signalled when a work, a connection or an abort ends */
    /* The work being enqueued; only the thread that enqueues it may end it. `lock` guards this
     * field and all fields up to `ntaken`. */
    nccl_work *launching;
    unsigned nwaiters;                      /* number of threads that wait on `ended` for a work */
    dd_error cause;                         /* code is DD_OK until the group fails */
    nccl_origin origin;                     /* the operation that caused the failure */
    bool is_unreported;                     /* `cause` ended works, and no caller has received it */
    bool is_released;                       /* an abort must not reach groups split from this one */
    bool is_closed;                         /* dd_nccl_group_close has been called */
    bool is_close_done;                     /* close has finished; the group can no longer fail */
    bool is_driver_shut_down;               /* CUDA and NCCL must no longer be called */
    nccl_background_close background_close; /* state of a close by dd_nccl_groups_post_close */
    dd_error background_close_error;        /* code is DD_OK if none, or once a close returned it */
    unsigned naborts;                       /* number of communicators that threads are aborting */
    nccl_channel *channels;                 /* list of all channels */
    uint64_t ncollectives;                  /* number of collectives called */
    uint64_t nmessages;                     /* number of messages called */
    uint64_t last_completed;                /* number of the last completed collective */
    uint64_t nmeetings;                     /* number of rendezvous for all-rank communicators */
    dd_list windows;                        /* open windows */
    uint64_t nwindows;                      /* number of rendezvous for windows */
    dd_timer_set deadlines;                 /* the `late` timers of the works under way */
    int64_t ephemeral_ns;                   /* extra timeout for new works */
    int64_t ephemeral_free_ns;              /* part of ephemeral_ns not yet given to a work */
    dd_list pool;                           /* finished works for reuse */
    size_t npool;                           /* number of works in `pool` */
    unsigned ntaken;                        /* number of works created since needs_poll was set */
    atomic_bool needs_poll;                 /* `pool` ran empty: complete works in the next call */

    _Atomic(nccl_device *) devices[]; /* cuda->ndevices elements, each written once under launch */
};

/* ---- works */

struct nccl_work {
    dd_nccl_work base;    /* must be the first field, for casts from and to dd_work */
    dd_nccl_group *group; /* owned reference */
    nccl_channel *channel;
    dd_list link;        /* guarded by lock; in the channel's works, the pool or `ended` */
    dd_cuda_event start; /* NULL without timing; `start` and `end` live as long as the work */
    dd_cuda_event end;
    const char *label;
    uint64_t number; /* number among the group's collectives, or among its messages */
    uint64_t record;
    int64_t timeout_ns;
    dd_timer late;        /* guarded by lock; in the group's `deadlines` while under way */
    int64_t ephemeral_ns; /* guarded by lock; the work's part of the group's extra timeout */
    bool is_message;
    bool has_timing;
    bool is_captured;
    atomic_bool is_started;     /* the device is known to have begun the work */
    atomic_bool is_launched;    /* stored with release once all is enqueued and `end` is recorded */
    atomic_bool is_device_done; /* the device has finished the work, or has shut down */
};

/* ---- the watchdog */

struct dd_nccl_watchdog {
    const dd_cuda *cuda;
    dd_nccl_watchdog_options options; /* const; zeros have been replaced by defaults */
    uint64_t generation;              /* const; dd_fork_generation() at the time of creation */
    _Atomic(const char *) activity;
    atomic_ullong npolls;
    atomic_bool is_asleep;  /* the thread sleeps until kicked; written under lock */
    atomic_bool is_hurried; /* check every millisecond until no work is under way */

    dd_lock lock;
    pthread_cond_t wake;
    dd_list groups;   /* guarded by lock; the groups to check */
    size_t ngroups;   /* guarded by lock; number of groups */
    size_t naborts;   /* guarded by lock; number of threads that abort or close */
    size_t nenders;   /* guarded by lock; number of threads that close; included in naborts */
    bool is_started;  /* guarded by lock; the thread runs, and must be joined */
    bool has_ended;   /* guarded by lock; the thread is done: joining it does not block */
    bool is_stopping; /* guarded by lock; the thread must end */
    bool is_ended;    /* guarded by lock; the CUDA driver has shut down, and the thread ends */
    pthread_t thread; /* guarded by lock; valid if is_started */

    int64_t busy_ns;  /* used only by the thread; when a work was last under way */
    int64_t comms_ns; /* used only by the thread; when communicators were last checked */
};

/* ---- group.c */

dd_nccl_group *nccl_group_acquire_internal(dd_nccl_group *group);
void nccl_group_release_internal(dd_nccl_group *group);
/* Acquire an internal reference. Return false if the last reference has been released. */
bool nccl_group_try_acquire(void *group);
void nccl_group_destroy(dd_nccl_group *group); /* free group and devices, after the last release */
void nccl_group_free(dd_nccl_group *group);    /* free only the memory; `group` may be NULL */
dd_status nccl_group_check_fork(const dd_nccl_group *group, dd_error *err) DD_MUST_CHECK;
/* Return DD_OK, or the error with which every call fails. Returning the cause of a failure counts
 * as reporting it to a caller. */
dd_status nccl_group_check_locked(dd_nccl_group *group, dd_error *err) DD_MUST_CHECK;
/* Set `err` to the cause with the group's name in front. The group must have failed. */
void nccl_group_describe_cause_locked(const dd_nccl_group *group, dd_error *err);
/* Take `launch`. DD_INTERRUPTED, DD_OP_TIMED_OUT, or the cause as soon as the group has failed. */
dd_status nccl_group_enter_launch(dd_nccl_group *group, const dd_wait *wait, dd_error *err) DD_MUST_CHECK;
void nccl_group_leave_launch(dd_nccl_group *group);

/* ---- device.c */

/* Free the device's streams and memory. The caller must hold `launch`, or be the last user. */
void nccl_device_close(dd_nccl_group *group, nccl_device *device);
/* Close the device if it is open, release its communicators and free its memory. */
void nccl_device_destroy(dd_nccl_group *group, nccl_device *device);
/* Make the device's context current until dd_cuda_leave. Cheap if it is current already. */
dd_status nccl_enter(const dd_nccl_group *group, const nccl_device *device, dd_cuda_guard *guard,
                     dd_error *err) DD_MUST_CHECK;

/* ---- device_make.c: streams, and communicators for them */

/* Find or create the group's record of a CUDA device. */
dd_status nccl_device_of(dd_nccl_group *group, int number, const dd_wait *wait, nccl_device **device,
                         dd_error *err) DD_MUST_CHECK;
/* Create a channel to `peer`, without a communicator. The caller must hold `launch`. */
dd_status nccl_pair_create(dd_nccl_group *group, nccl_device *device, int peer, nccl_channel **pair,
                           dd_error *err) DD_MUST_CHECK;

/* ---- events.c. The device's context must be current; the functions take the group's lock */

dd_status nccl_event_acquire(dd_nccl_group *group, nccl_device *device, bool has_timing, dd_cuda_event *event,
                             dd_error *err);
/* Return an event (may be NULL) to the cache. Pass is_reusable only if nothing refers to the
 * event's last recording; otherwise the event is destroyed. */
void nccl_event_release(dd_nccl_group *group, nccl_device *device, bool has_timing, dd_cuda_event event,
                        bool is_reusable);
void nccl_events_close(dd_nccl_group *group, nccl_device *device);

/* ---- works.c */

/* Create a work with one reference. It must then be added to the channel's list of works. */
dd_status nccl_work_create(nccl_channel *channel, const dd_nccl_call *call, int64_t start_ns,
                           bool is_captured, nccl_work **work, dd_error *err) DD_MUST_CHECK;
/* Complete a work with an error that describes the group's `cause`, and move it to `ended`. */
void nccl_work_fail_locked(nccl_work *work, const dd_error *cause, dd_list *ended);
/* Release the works in `ended`. The caller must not hold the group's lock. */
void nccl_works_release_ended(dd_list *ended);
/* Set `error` to the work's error: the name of the operation, then `cause`. */
void nccl_work_describe(const nccl_work *work, const dd_error *cause, dd_error *error);
/* Print "all_reduce #5 of rank 0 " to out; return its length. */
size_t nccl_work_print(const nccl_work *work, char out[128]);
nccl_origin nccl_work_origin(const nccl_work *work);
typedef enum nccl_progress {
    NCCL_UNDER_WAY,
    NCCL_ENDED,
    NCCL_BROKEN,  /* the query failed */
    NCCL_NO_MORE, /* the CUDA driver is shutting down */
} nccl_progress;
/* Query the device about an event of a launched work. The caller must hold no locks. */
nccl_progress nccl_work_query(const nccl_work *work, dd_cuda_event event, dd_error *err);
/* Note in the recorder that a work has begun, if it has. The caller must hold no locks. */
void nccl_work_check_start(nccl_work *work);
/* Complete a work that the device has finished, and all works before it in the stream. */
void nccl_work_complete_up_to(nccl_work *work);
/* If the device has finished the work, complete it and all before it. Never fails the group. */
nccl_progress nccl_work_poll_ahead(nccl_work *work);
/* Acquire the channel's n-th work under way (from 1), or the last if fewer; NULL if none. */
nccl_work *nccl_channel_nth_work(nccl_channel *channel, size_t n);
/* Complete works that have finished, before a failure would end them. No-op after a failure. */
void nccl_group_end_complete(dd_nccl_group *group);

/* ---- work_wait.c */

/* Complete the channel's finished works with few queries. Set *is_busy if a work is under way. */
nccl_progress nccl_channel_poll(nccl_channel *channel, bool *is_busy);
/* Wait until a work ends, with success or an error. DD_OP_TIMED_OUT at the deadline. */
dd_status nccl_work_await(nccl_work *work, const dd_wait *wait, dd_error *err) DD_MUST_CHECK;

/* ---- end.c */

typedef enum nccl_end {
    NCCL_END_FAILED,
    NCCL_END_ABORTED,     /* aborted by a caller, which needs no report of the cause */
    NCCL_END_RELEASED,    /* released, or replaced by another group: the cause is not reported */
    NCCL_END_DRIVER_GONE, /* the driver has shut down: no report, and no aborts */
} nccl_end;

/* Fail the group: end all works under way with `cause`; later calls fail with it too. Only the
 * first call has an effect. `origin` is the operation that failed first, with whose name `cause`
 * begins; or NULL. */
void nccl_group_end(dd_nccl_group *group, const dd_error *cause, const nccl_origin *origin, nccl_end how);
/* Abort all communicators, each on a separate thread: an abort may hang in NCCL or the driver, for
 * example waiting for another communicator's kernel, and must not delay the other aborts. */
void nccl_group_start_abort(dd_nccl_group *group);
/* dd_nccl_comm_owner.abort: end the group, because a communicator related to its own is aborted. */
void nccl_group_abort_as_relative(void *group, const char *reason);
/* Wait until the communicators are aborted. DD_OP_TIMED_OUT at the deadline; aborts continue. */
dd_status nccl_group_wait_for_abort(dd_nccl_group *group, const dd_wait *wait, dd_error *err) DD_MUST_CHECK;

/* ---- scratch.c: in stream order. The caller must hold `launch`; the context must be current */

dd_status nccl_scratch_alloc(dd_nccl_group *group, nccl_channel *channel, size_t nbytes, void **data,
                             dd_error *err);
void nccl_scratch_free(dd_nccl_group *group, nccl_channel *channel, void *data);
/* Free the remaining scratch memory. The device must be idle. */
void nccl_scratch_close(dd_nccl_group *group, nccl_device *device);

/* ---- watch_list.c */

/* Return the next group (round robin), acquired, or NULL. The watchdog's lock must be held. */
dd_nccl_group *nccl_watchdog_next_group_locked(dd_nccl_watchdog *watchdog);
void nccl_watchdog_remove(dd_nccl_watchdog *watchdog, dd_nccl_group *group);
/* Wake the watchdog. Cheap if the watchdog is awake. */
void nccl_watchdog_kick(dd_nccl_watchdog *watchdog);
/* Count a thread that aborts, which the watchdog outlives. The thread must call end_abort last. */
void nccl_watchdog_begin_abort(dd_nccl_watchdog *watchdog);
void nccl_watchdog_end_abort(dd_nccl_watchdog *watchdog);
/* Count a thread that closes groups. Return false if DD_NCCL_ENDERS_MAX such threads exist. */
bool nccl_watchdog_begin_end(dd_nccl_watchdog *watchdog);
void nccl_watchdog_end_end(dd_nccl_watchdog *watchdog);
bool nccl_watchdog_is_abort_off(const dd_nccl_watchdog *watchdog);
int64_t nccl_watchdog_abort_timeout_ns(const dd_nccl_watchdog *watchdog);

#endif
