/* The state of a group of NCCL: its devices, its channels, its works, and which lock guards what.
 *
 * A channel is a communicator, a stream of its own, and the works of that stream in their order: one for all ranks on each device, and one for
 * each pair of ranks that met before there was one for all.
 *
 * Two locks. `launch` is held while one call is put into streams, NCCL included, which may take long: threads that want it have a
 * deadline. `lock` is for state, never held during a call of CUDA or NCCL, and taken inside `launch`, never the other way round. So a failure is
 * told to everybody at once, whatever a thread is stuck in. */
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
#define NCCL_MET_BITS 512u

/* ---- events, kept for their next use */

typedef struct nccl_events {
    dd_cuda_event *items; /* lock */
    size_t count;
    size_t capacity;
    bool is_closed; /* nothing is kept any more */
} nccl_events;

/* ---- devices and channels */

typedef struct nccl_device nccl_device;
typedef struct nccl_channel nccl_channel;
typedef struct nccl_work nccl_work;

struct nccl_channel {
    nccl_channel *next;    /* const: of the group's list, to which channels are only added, at its head */
    dd_nccl_group *group;  /* const */
    nccl_device *device;   /* const */
    int peer;              /* const: of a pair; NCCL_ALL_RANKS */
    uint64_t use;          /* lock; which communicator of these ranks it is */
    dd_cuda_stream stream; /* const until the device is closed */
    _Atomic(dd_nccl_comm *)
        comm;                 /* set once, with the lock; owned. Its handle may be gone, the object stays */
    bool is_blocking;         /* const since comm is set */
    bool is_connecting;       /* lock; somebody makes it, others wait on `ended` */
    bool is_ending;           /* lock; its communicator has been or is being aborted or destroyed */
    bool has_failed_to_close; /* lock; its communicator is left to be aborted */
    dd_list works;            /* lock; under way, in the order of the stream */
    uint64_t met[NCCL_MET_BITS / 64]; /* launch; what calls have connected */
    /* launch; of the inputs of a call; NULL until the first */
    dd_cuda_nan_report *nan_report;
};

struct nccl_device {
    int number;              /* const */
    dd_cuda_context context; /* const */
    dd_cuda_event order;     /* launch; recorded in one stream for another to wait for, and then free again */
    dd_cuda_ptr barrier;     /* const; what a barrier reduces */
    void *host;              /* launch; pinned, for looking through inputs there; NULL until the first */
    dd_cuda_pool pool;       /* const; for memory in the order of a stream; NULL: there is none */
    bool is_closed;          /* launch; what it had is gone, but for events of works that are still held */
    nccl_events events[2];   /* lock; without and with timing */
    dd_list retired;         /* launch; memory that the device may still use, where there are no pools */
    nccl_channel all;
    nccl_channel **pairs; /* lock; [size], NULL until the first */
    /* set once, with `launch`; of calls in graphs; NULL until the first */
    _Atomic(dd_cuda_nan_report *) nan_report;
};

/* The operation that a cause is about. */
typedef struct nccl_origin {
    uint64_t record;
    uint64_t number; /* as of nccl_work; 0: none */
    bool is_message;
    bool is_captured; /* its graph has failed, and it is no work any more that could tell of it */
    size_t call_len;  /* of its print, which the cause begins with */
} nccl_origin;

/* Whether a call has been captured whose graph cannot look for NaN, and whether the caller has heard. */
typedef enum nccl_nan_missed {
    NCCL_NAN_MISSED_NONE,
    NCCL_NAN_MISSED_UNTOLD,
    NCCL_NAN_MISSED_TOLD,
} nccl_nan_missed;

/* Inputs of calls in graphs, in which they look for NaN; call/nan.c. */
typedef struct nccl_nan_captured nccl_nan_captured;
typedef struct nccl_nan_captures {
    nccl_nan_captured *items;
    size_t count;
    size_t capacity;
} nccl_nan_captures;

/* Whether a thread of dd_nccl_groups_post_close closes the group. */
typedef enum nccl_aside {
    NCCL_NOT_ASIDE,
    NCCL_CLOSING_ASIDE,
    NCCL_CLOSED_ASIDE,
} nccl_aside;

struct dd_nccl_group {
    atomic_uint users; /* references by dd_nccl_group_acquire */
    atomic_uint refs;  /* one for all users, one for each work, one for each thread that looks at it */
    const dd_nccl_lib *lib;
    const dd_cuda *cuda;
    dd_nccl_watchdog *watchdog;
    dd_store *store;                   /* owned; NULL with one rank */
    dd_recorder_group *recorder_group; /* lock; owned; NULL: none, or nobody holds the group any more */
    dd_recorder *recorder;             /* lock; NULL without recorder_group */
    int rank;
    int size;
    dd_nccl_group_options options; /* const; name is owned */
    uint64_t generation;           /* const; of core/fork.h */
    atomic_bool stop;              /* set with the cause: what makes communicators gives up */
    atomic_bool is_nan_check;
    _Atomic(nccl_nan_missed) nan_missed;
    atomic_bool has_nan_graphs;     /* a device has a report of calls in graphs */
    nccl_nan_captures nan_captures; /* lock */
    atomic_bool has_timing;         /* of the works from now on */
    atomic_llong timeout_ns;

    dd_list link; /* the watchdog's lock; in no list when it is not watched */

    dd_timed_lock launch;

    dd_lock lock;
    pthread_cond_t ended; /* something has ended: a work, a connection, an abort */
    nccl_work *
        launching; /* lock; the work that is being put into a stream, and is ended by the thread that does so */
    unsigned nwaiters;       /* lock; threads that wait on `ended` for a work */
    dd_error cause;          /* lock; code DD_OK while all is well */
    nccl_origin origin;      /* lock; of the cause */
    bool is_unheard;         /* lock; the cause has ended operations, and no caller has been told of it yet */
    bool is_let_go;          /* lock; its end is no abort, and none of the groups split from it */
    bool is_closed;          /* lock; dd_nccl_group_close has begun */
    bool is_over;            /* lock; it has been closed: nothing can fail any more */
    bool is_driver_gone;     /* lock; nothing of CUDA and NCCL is called any more */
    nccl_aside aside;        /* lock; with the next: for dd_nccl_group_close */
    dd_error aside_error;    /* code DD_OK: there is none, or a caller has it */
    unsigned naborts;        /* lock; communicators that are being aborted, on a thread each */
    nccl_channel *channels;  /* lock */
    uint64_t ncollectives;   /* lock; called */
    uint64_t nmessages;      /* lock; called */
    uint64_t last_completed; /* lock; number of a collective */
    uint64_t nmeetings;      /* lock; communicators of all ranks that were met for */
    dd_list windows;         /* lock; those that are open */
    uint64_t nwindows;       /* lock; that the ranks have met for */
    dd_timer_set deadlines;  /* lock; `late` of the works under way */
    int64_t ephemeral_ns;    /* lock; what is added to time-outs now */
    int64_t ephemeral_free_ns; /* lock; the part that no work under way takes with it */
    dd_list pool;              /* lock; works to be used again */
    size_t npool;              /* lock */
    unsigned ntaken;           /* lock; works, since needs_look was set */
    atomic_bool needs_look;    /* no work is left to be used again: some may have ended */

    _Atomic(nccl_device *) devices[]; /* [cuda->ndevices]; made under `launch`, for good */
};

/* ---- works */

struct nccl_work {
    dd_nccl_work base;    /* first */
    dd_nccl_group *group; /* counted */
    nccl_channel *channel;
    dd_list link;        /* lock; of the channel's works, of the pool, or of those that have just ended */
    dd_cuda_event start; /* NULL without timing; until the work is destroyed, like `end` */
    dd_cuda_event end;
    const char *what;
    uint64_t number; /* of collectives or of messages */
    uint64_t record;
    int64_t timeout_ns;
    dd_timer late;        /* lock; in the group's deadlines while it is under way */
    int64_t ephemeral_ns; /* lock; what ends with it */
    bool is_message;
    bool has_timing;
    bool is_captured;
    atomic_bool is_started;  /* is known to have begun */
    atomic_bool is_launched; /* release: everything is in the stream, `end` has been recorded */
    atomic_bool is_quiet;    /* the device is through with it, or gone */
};

/* ---- the watchdog */

struct dd_nccl_watchdog {
    const dd_cuda *cuda;
    dd_nccl_watchdog_options options; /* const; without zeros */
    uint64_t generation;              /* const; of core/fork.h */
    _Atomic(const char *) activity;
    atomic_ullong nlooks;
    atomic_bool is_asleep;  /* until somebody kicks; set with the lock held */
    atomic_bool is_hurried; /* until nothing is left */

    dd_lock lock;
    pthread_cond_t wake;
    dd_list groups;   /* lock */
    size_t ngroups;   /* lock */
    size_t naborts;   /* lock; threads that abort or end groups, and use the driver until they end */
    size_t nenders;   /* lock; those that close groups */
    bool is_started;  /* lock; there is a thread, to be joined */
    bool has_ended;   /* lock; the thread is done: joining it does not wait */
    bool is_stopping; /* lock */
    bool is_over;     /* lock; the driver is gone: the thread has ended */
    pthread_t thread; /* lock */

    int64_t busy_ns;  /* the thread's: when something was under way last */
    int64_t comms_ns; /* the same: when communicators were asked last */
};

/* ---- group.c */

dd_nccl_group *nccl_group_acquire_internal(dd_nccl_group *group);
void nccl_group_release_internal(dd_nccl_group *group);
/* False if the last reference has gone. */
bool nccl_group_try_acquire(void *group);
void nccl_group_destroy(dd_nccl_group *group); /* when the last reference has gone */
void nccl_group_free(dd_nccl_group *group);    /* only the memory; NULL is fine */
dd_status nccl_group_check_fork(const dd_nccl_group *group, dd_error *err) DD_MUST_CHECK;
/* Why every call fails. Counts as telling a caller. */
dd_status nccl_group_check_locked(dd_nccl_group *group, dd_error *err) DD_MUST_CHECK;
/* Of a group that has failed. */
void nccl_group_describe_cause_locked(const dd_nccl_group *group, dd_error *err);
/* DD_INTERRUPTED, DD_OP_TIMED_OUT, or the cause as soon as there is one. */
dd_status nccl_group_enter_launch(dd_nccl_group *group, const dd_wait *wait, dd_error *err) DD_MUST_CHECK;
void nccl_group_leave_launch(dd_nccl_group *group);

/* ---- device.c */

/* Streams and the like are let go; the caller holds `launch`, or is the last one. */
void nccl_device_close(dd_nccl_group *group, nccl_device *device);
/* The rest, with the group. */
void nccl_device_destroy(dd_nccl_group *group, nccl_device *device);
/* The device's context is current until dd_cuda_leave. Costs next to nothing where it is already. */
dd_status nccl_enter(const dd_nccl_group *group, const nccl_device *device, dd_cuda_guard *guard,
                     dd_error *err) DD_MUST_CHECK;

/* ---- device_make.c: streams, and communicators for them */

/* Made if need be. */
dd_status nccl_device_of(dd_nccl_group *group, int number, const dd_wait *wait, nccl_device **device,
                         dd_error *err) DD_MUST_CHECK;
/* A channel of two ranks, without a communicator so far. The caller holds `launch`. */
dd_status nccl_pair_create(dd_nccl_group *group, nccl_device *device, int peer, nccl_channel **pair,
                           dd_error *err) DD_MUST_CHECK;

/* ---- events.c. The device's context is current; takes the group's lock */

dd_status nccl_event_take(dd_nccl_group *group, nccl_device *device, bool has_timing, dd_cuda_event *event,
                          dd_error *err);
/* is_reusable: nothing refers to what was recorded last. NULL is fine. */
void nccl_event_give(dd_nccl_group *group, nccl_device *device, bool has_timing, dd_cuda_event event,
                     bool is_reusable);
void nccl_events_close(dd_nccl_group *group, nccl_device *device);

/* ---- works.c */

/* With a reference for the caller and one for the channel's list. */
dd_status nccl_work_create(nccl_channel *channel, const dd_nccl_call *call, int64_t start_ns,
                           bool is_captured, nccl_work **work, dd_error *err) DD_MUST_CHECK;
/* Ends one with an error; `cause` is the group's. */
void nccl_work_fail_locked(nccl_work *work, const dd_error *cause, dd_list *ended);
/* Release the works in `ended`; without the lock. */
void nccl_works_release_ended(dd_list *ended);
/* What an error of this work says: the operation, and the cause. */
void nccl_work_describe(const nccl_work *work, const dd_error *cause, dd_error *error);
/* "all_reduce #5 of rank 0 " into out; its length. */
size_t nccl_work_print(const nccl_work *work, char out[128]);
nccl_origin nccl_work_origin(const nccl_work *work);
typedef enum nccl_progress {
    NCCL_UNDER_WAY,
    NCCL_ENDED,
    NCCL_BROKEN,  /* err says why */
    NCCL_NO_MORE, /* the driver is shutting down */
} nccl_progress;
/* Asks the device about an event of a work that has been launched. No locks. */
nccl_progress nccl_work_query(const nccl_work *work, dd_cuda_event event, dd_error *err);
/* Note that a work has begun, if the device has reached it. No locks. */
void nccl_work_look_at_start(nccl_work *work);
/* Complete it and those before it: the stream has passed it. */
void nccl_work_complete_up_to(nccl_work *work);
/* Complete it and those before it if the stream has passed it. */
nccl_progress nccl_work_look_ahead(nccl_work *work);
/* The n-th work under way of a channel, acquired, or the last if there are fewer; NULL if there is none. */
nccl_work *nccl_channel_nth_work(nccl_channel *channel, size_t n);
/* Complete the works whose kernels have ended, before a failure ends the rest. Nothing if the group has failed. */
void nccl_group_end_complete(dd_nccl_group *group);

/* ---- work_wait.c */

/* Completes what the device is through with on the channel, by few questions even if that is much. *is_busy is set if anything was under
 * way. */
nccl_progress nccl_channel_look(nccl_channel *channel, bool *is_busy);
/* DD_OK once it has ended, however; at the deadline DD_OP_TIMED_OUT. */
dd_status nccl_work_await(nccl_work *work, const dd_wait *wait, dd_error *err) DD_MUST_CHECK;

/* ---- end.c */

typedef enum nccl_end {
    NCCL_END_FAILED,
    NCCL_END_ABORTED, /* the same, by a caller, who knows */
    NCCL_END_LET_GO,  /* nobody holds it any more, or another one takes its place: nobody is to hear of it */
    NCCL_END_DRIVER_GONE, /* nor here, and nothing is aborted */
} nccl_end;

/* Everything under way ends, and later calls fail, with the cause; only the first counts. origin: the operation that failed first, whose
 * print the cause begins with; NULL: it is none. */
void nccl_group_end(dd_nccl_group *group, const dd_error *cause, const nccl_origin *origin, nccl_end how);
/* All communicators are aborted, each on a thread of its own: one that hangs in NCCL or the driver, perhaps since it waits for a kernel of
 * another, keeps none of the others from it. */
void nccl_group_start_abort(dd_nccl_group *group);
/* Since a relative of its communicator is aborted (dd_nccl_comm_owner). */
void nccl_group_abort_as_relative(void *group, const char *reason);
/* DD_OP_TIMED_OUT: some go on. */
dd_status nccl_group_wait_for_abort(dd_nccl_group *group, const dd_wait *wait, dd_error *err) DD_MUST_CHECK;

/* ---- scratch.c. The caller holds `launch`, the context is current. In the order of the channel's stream */

dd_status nccl_scratch_alloc(dd_nccl_group *group, nccl_channel *channel, size_t nbytes, void **data,
                             dd_error *err);
void nccl_scratch_free(dd_nccl_group *group, nccl_channel *channel, void *data);
/* What could not be freed yet, as the group ends. */
void nccl_scratch_close(dd_nccl_group *group, nccl_device *device);

/* ---- watch_list.c */

/* The next group in turn, acquired. The caller holds the lock. */
dd_nccl_group *nccl_watchdog_next_group_locked(dd_nccl_watchdog *watchdog);
void nccl_watchdog_remove(dd_nccl_watchdog *watchdog, dd_nccl_group *group);
/* There is something to watch again. Cheap while it looks anyway. */
void nccl_watchdog_kick(dd_nccl_watchdog *watchdog);
/* The watchdog ends after the threads that abort, whose last act is the second. */
void nccl_watchdog_begin_abort(dd_nccl_watchdog *watchdog);
void nccl_watchdog_end_abort(dd_nccl_watchdog *watchdog);
/* The same for a thread that closes groups or ends communicators. False if there are DD_NCCL_ENDERS_MAX of them. */
bool nccl_watchdog_begin_end(dd_nccl_watchdog *watchdog);
void nccl_watchdog_end_end(dd_nccl_watchdog *watchdog);
bool nccl_watchdog_is_abort_off(const dd_nccl_watchdog *watchdog);
int64_t nccl_watchdog_abort_timeout_ns(const dd_nccl_watchdog *watchdog);

#endif
