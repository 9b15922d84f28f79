/* A process group whose bytes NCCL moves: what ProcessGroupNCCL is made of.
 *
 * It has for each device that it is used with a stream of its own and a communicator, made on first use (or at once, with
 * `device`), and keeps a list of the works under way, which the watchdog looks through (watchdog.h): there they end, by their event, by
 * an error of NCCL, by their time-out, or with the group. The first failure ends everything under way, and every later call
 * fails at once with the original cause. Nothing here blocks the host but making communicators, first calls, in which
 * NCCL connects ranks, dd_nccl_work_wait and close.
 *
 * Every function may be called from any thread; calls of one group are put into its streams one after the other. */
#ifndef DD_NCCL_GROUP_H
#define DD_NCCL_GROUP_H

#include "collective/coll.h"
#include "kernels/view.h"
#include "nccl/comm/comm.h"
#include "nccl/watchdog.h"
#include "observe/recorder.h"
#include "store/store.h"
#include "work/work.h"

typedef struct dd_nccl_group dd_nccl_group;
typedef struct dd_nccl_work dd_nccl_work;
typedef struct dd_nccl_group_window dd_nccl_group_window; /* window.h */

#define DD_NCCL_DEFAULT_TIMEOUT_NS (600 * DD_NS_PER_S)

typedef struct dd_nccl_group_options {
    /* Gather, scatter and all_to_all are grouped messages with every NCCL. Ranks compare it when they meet. */
    bool has_grouped_messages;
    dd_bytes name;           /* for messages, and a prefix in the store */
    int64_t timeout_ns;      /* of operations that are given none */
    int64_t init_timeout_ns; /* of making a communicator; 0: timeout_ns */
    dd_nccl_config config;
    bool is_high_priority;
    bool has_event_cache; /* events are used again */
    bool has_timing;      /* works know how long they took, by a start event: see dd_nccl_group_set_timing */
    bool is_nan_check;    /* see dd_nccl_group_set_nan_check */
    int ranks_per_root;   /* scalable init: one unique id for so many ranks, from this many on; 0: never */
} dd_nccl_group_options;

/* What groups stand on, which outlives them and their works. */
typedef struct dd_nccl_base {
    const dd_nccl_lib *lib;
    const dd_cuda *cuda; /* NULL: there is no device */
    dd_nccl_watchdog *watchdog;
} dd_nccl_base;

/* Meets nobody: the first communicator does. recorder_group is taken (also on failure) and
 * may be NULL. With size 1 the store may be NULL. DD_NOT_SUPPORTED when there is no device. */
dd_status dd_nccl_group_open(const dd_nccl_base *base, dd_store *store, int rank, int size,
                             const dd_nccl_group_options *options, dd_recorder_group *recorder_group,
                             dd_nccl_group **group, dd_error *err) DD_MUST_CHECK;
dd_nccl_group *dd_nccl_group_acquire(dd_nccl_group *group);
/* Whether the group can end without taking away an operation that a caller counts on: none is under way at the deadline, and none has failed
 * without a caller having been told. */
bool dd_nccl_group_is_idle(dd_nccl_group *group, const dd_wait *wait);
/* The last one aborts the group, without waiting for it (close and abort do); works that are still held stay usable. NULL is fine. */
void dd_nccl_group_release(dd_nccl_group *group);

int dd_nccl_group_rank(const dd_nccl_group *group);
int dd_nccl_group_size(const dd_nccl_group *group);
dd_bytes dd_nccl_group_name(const dd_nccl_group *group);
int64_t dd_nccl_group_get_timeout_ns(dd_nccl_group *group);
void dd_nccl_group_set_timeout_ns(dd_nccl_group *group, int64_t timeout_ns);
/* Is added to the time-outs of the works that are called until one of those has completed. */
void dd_nccl_group_add_ephemeral_timeout_ns(dd_nccl_group *group, int64_t extra_ns);
/* How many collectives have been called. */
uint64_t dd_nccl_group_sequence(dd_nccl_group *group);
/* DD_OK, or why every call fails. */
dd_status dd_nccl_group_check(dd_nccl_group *group, dd_error *err) DD_MUST_CHECK;
/* Floats among the inputs are looked through for NaN before anything is sent: for debugging, since the host waits for what comes before.
 * DD_INVALID_ARGUMENT names the tensor and the first element. Calls in a capture of a CUDA graph make the graph look each time it is
 * launched, and nobody waits: what it finds fails the group. Devices look themselves, or, where the driver does not take our kernels, the
 * host does, which no graph can ask. */
void dd_nccl_group_set_nan_check(dd_nccl_group *group, bool is_on);
/* Whether a call has been captured into a graph that does not look. True once. */
bool dd_nccl_group_take_nan_missed(dd_nccl_group *group);

/* Whether the works of the calls from now on know how long they took. */
void dd_nccl_group_set_timing(dd_nccl_group *group, bool is_on);

/* The communicator of all ranks on a device, made if need be: all ranks call. First they compare their NCCL versions through the store
 * (DD_MISMATCH names both). Acquired. */
dd_status dd_nccl_group_connect(dd_nccl_group *group, int device, dd_nccl_comm **comm, const dd_wait *wait,
                                dd_error *err) DD_MUST_CHECK;
/* The one that is there, acquired; NULL when there is none. */
dd_nccl_comm *dd_nccl_group_find_comm(dd_nccl_group *group, int device);
/* Groups whose communicator is made from another's. `comm` is taken. */
dd_status dd_nccl_group_adopt(dd_nccl_group *group, int device, dd_nccl_comm *comm,
                              dd_error *err) DD_MUST_CHECK;

/* ---- operations */

typedef enum dd_nccl_op_kind {
    DD_NCCL_OP_COLL,
    DD_NCCL_OP_SEND,
    DD_NCCL_OP_RECV,
    DD_NCCL_OP_PUT,
    DD_NCCL_OP_SIGNAL,
    DD_NCCL_OP_WAIT_SIGNAL,
} dd_nccl_op_kind;

/* Blocks are contiguous memory of the device. All ranks must call the same of NCCL, whatever they know of each other: all_gather and reduce_scatter use
 * NCCL's own calls when all blocks are equal, by way of staging memory where they do not lie side by side, and grouped broadcasts or
 * reductions when they are not; gather, scatter and all_to_all are grouped messages unless the call is_flat, and the group and NCCL let it. */
typedef struct dd_nccl_op {
    dd_nccl_op_kind kind;
    dd_coll_args args;  /* COLL. PREMUL_SUM: reduction.factor, or `factor` */
    const void *factor; /* one element of the dtype in the device's memory; NULL: reduction.factor */
    /* gather, scatter, all_to_all: on every rank the blocks are equal and lie side by side, as those of one tensor cut evenly. Then
     * NCCL's own calls are used, where it has them. */
    bool is_flat;
    dd_block block; /* SEND, RECV, PUT */
    dd_dtype dtype; /* the same: for the recorder and the check for NaN */
    int peer;       /* of all but COLL */
    /* Packed for the group's NCCL; borrowed. NULL: NCCL chooses. Collectives only, and not those that are made of messages (DD_NOT_SUPPORTED). */
    const dd_nccl_abi_coll_config *config;
    /* PUT, SIGNAL and WAIT_SIGNAL only. The window stays until the call has returned. */
    dd_nccl_group_window *window;
    size_t offset; /* PUT: bytes, in the peer's */
    int channel;
    int count; /* WAIT_SIGNAL: how many signals it takes */
} dd_nccl_op;

/* Elements from one place to another, stream-ordered: same dtype and shape. Either side may be memory of the host. */
typedef struct dd_nccl_copy {
    dd_view src;
    dd_view dst;
} dd_nccl_copy;

/* Everything in one call is one NCCL group and one work. */
typedef struct dd_nccl_call {
    const char *what; /* "all_reduce"; static text */
    int device;
    const dd_nccl_op *ops;
    size_t nops;
    /* The caller has put operations together, one perhaps, while other ranks may have more: then the communicator of all ranks is used.
     * Alone, a message may use that of a pair. Other calls have one operation. */
    bool is_batch;
    const dd_nccl_copy *before; /* packing and so on */
    size_t nbefore;
    const dd_nccl_copy *after;
    size_t nafter;
    /* Of dd_nccl_group_alloc_scratch: taken, whatever becomes of the call, and freed, stream-ordered, when all this is done. */
    void *const *scratch;
    size_t nscratch;
    const dd_cuda_stream *streams; /* what these streams hold so far comes first */
    size_t nstreams;
    int64_t timeout_ns; /* < 0: the group's */
    /* The recorder is told of a call that is accepted, from its beginning (the times are filled in) to its end. NULL: of nothing. */
    dd_record_call *record;
    /* Handed to the work (work.h). Not called when dd_nccl_group_start fails. Of a captured work it is called before start returns. */
    void (*on_done)(dd_work *work, void *ctx);
    void *ctx;
} dd_nccl_call;

/* Makes the group's stream come after what these streams hold so far. dd_nccl_group_start does it, too; before it this is for scratch within a
 * capture, which must have reached the group's stream by then, and for data that producers have put into other streams. */
dd_status dd_nccl_group_order(dd_nccl_group *group, int device, const dd_cuda_stream *streams,
                              size_t nstreams, dd_error *err) DD_MUST_CHECK;
/* Memory of the device, for staging, ordered on the group's stream. */
dd_status dd_nccl_group_alloc_scratch(dd_nccl_group *group, int device, size_t nbytes, void **data,
                                      dd_error *err) DD_MUST_CHECK;
/* For calls that were not made after all. */
void dd_nccl_group_free_scratch(dd_nccl_group *group, int device, void *data);
/* The group's stream on the device, which a producer may order its work before: then it is among the call's streams, since messages of
 * pairs have streams of their own. */
dd_status dd_nccl_group_stream(dd_nccl_group *group, int device, dd_cuda_stream *stream,
                               dd_error *err) DD_MUST_CHECK;

/* Checks what can be checked (DD_INVALID_ARGUMENT, DD_NOT_SUPPORTED), enqueues, and gives a work with a reference for the caller.
 * Connects first if need be, which may wait until `wait` or the group's init time-out. A message, alone, between two ranks that are the first to meet uses a
 * communicator of their own pair. Within a capture of a CUDA graph the work is not watched and counts as done once it has been enqueued.
 *
 * Where NCCL connects ranks for a call, it waits for them on the host. The call's time-out ends that, and so does the caller's interruption, which
 * ends the group, too: DD_ABORTED. */
dd_status dd_nccl_group_start(dd_nccl_group *group, const dd_nccl_call *call, dd_nccl_work **work,
                              const dd_wait *wait, dd_error *err) DD_MUST_CHECK;

/* ---- estimates */

#define DD_NCCL_NO_ESTIMATE (-1.0F)

/* DD_NOT_SUPPORTED for an operation that NCCL cannot estimate: a message, or a collective that it lacks or makes of messages. */
dd_status dd_nccl_op_check_estimate(const dd_nccl_op *op, dd_error *err) DD_MUST_CHECK;
/* A collective that is called for an estimate counts, and is recorded as one that has ended. record may be NULL; its times are filled in. */
void dd_nccl_group_note_estimated(dd_nccl_group *group, dd_record_call *record);
/* How many microseconds the operations would take, as NCCL says (DD_NCCL_NO_ESTIMATE: it says nothing, nor is it asked for one rank): they are put into a group of
 * NCCL's which is not carried out. Checks and connects as dd_nccl_group_start does; all ranks call, since NCCL may connect them, too, and
 * has the call's time for that. The call's scratch is taken; it has no streams, no record and no on_done, and its copies are not made.
 * DD_NOT_SUPPORTED with an NCCL before 2.22.3, and on communicators that do not block: there NCCL (up to 2.32) carries out what it is to
 * estimate. */
dd_status dd_nccl_group_estimate(dd_nccl_group *group, const dd_nccl_call *call, float *microseconds,
                                 const dd_wait *wait, dd_error *err) DD_MUST_CHECK;

/* ---- works. `base` is completed by the watchdog or by the first thread that asks; a work that has ended with an error may still be read and
 * written by the device until memory_is_free. */

struct dd_nccl_work {
    dd_work base; /* first */
    /* The rest is group/works.c's. */
};

/* Asks the device: whether it has ended. Completes the work then. */
bool dd_nccl_work_poll(dd_nccl_work *work);
/* A caller has been told of its error: dd_nccl_group_close need not. */
void dd_nccl_work_on_told(dd_nccl_work *work);
/* How it has ended so far, DD_OK while it is under way; tells the caller. */
dd_status dd_nccl_work_result(dd_nccl_work *work, dd_error *err) DD_MUST_CHECK;
/* Makes the stream wait for it, not the host. */
dd_status dd_nccl_work_wait_stream(dd_nccl_work *work, dd_cuda_stream stream, dd_error *err) DD_MUST_CHECK;
/* Makes the host wait. At the deadline of `wait` DD_OP_TIMED_OUT, and the operation goes on. */
dd_status dd_nccl_work_wait(dd_nccl_work *work, const dd_wait *wait, dd_error *err) DD_MUST_CHECK;
/* The device is through with it, or will never touch it again. */
bool dd_nccl_work_memory_is_free(dd_nccl_work *work);
/* Milliseconds on the device; DD_NOT_SUPPORTED without timing, DD_INVALID_ARGUMENT before the end. */
dd_status dd_nccl_work_duration(dd_nccl_work *work, float *ms, dd_error *err) DD_MUST_CHECK;
int64_t dd_nccl_work_timeout_ns(const dd_nccl_work *work);

/* Makes the host wait until nothing is under way any more, on this rank; then as dd_nccl_group_check. */
dd_status dd_nccl_group_wait_works(dd_nccl_group *group, const dd_wait *wait, dd_error *err) DD_MUST_CHECK;

/* ---- the end */

/* Fails the group as if the watchdog had found `cause`: works end with it at once, communicators are aborted by the watchdog's helper. */
void dd_nccl_group_fail(dd_nccl_group *group, const dd_error *cause);
/* The same without an alarm, and its communicators stay: one of them is about to be shrunk to those ranks that have not failed, which
 * aborts it. */
void dd_nccl_group_retire(dd_nccl_group *group, const dd_error *cause);
/* The same with DD_ABORTED, and waits for the communicators' ends until the deadline: DD_OP_TIMED_OUT, and their abort goes on. Idempotent. */
dd_status dd_nccl_group_abort(dd_nccl_group *group, const char *reason, const dd_wait *wait, dd_error *err);
/* Good order: everything enqueued is carried out, communicators are finalised and destroyed. Later calls are DD_CLOSED. At the deadline
 * DD_OP_TIMED_OUT, and the group is aborted. Without a deadline operations have their own time-outs, and then communicators a few
 * seconds. Of a group that has failed, before or meanwhile, it waits for the aborts; it is the cause when that has ended operations and
 * no caller has been told (by a work's error, or by a later call), else DD_OK. Idempotent. */
dd_status dd_nccl_group_close(dd_nccl_group *group, const dd_wait *wait, dd_error *err) DD_MUST_CHECK;

/* Closes several groups of one watchdog side by side, on at most DD_NCCL_ENDERS_MAX threads: NCCL takes half a second for the end of
 * each communicator. Does not wait, and may do nothing. Call dd_nccl_group_close for each afterwards, which closes it, or waits for its
 * thread and has the error. */
#define DD_NCCL_ENDERS_MAX 32
void dd_nccl_groups_post_close(dd_nccl_group *const *groups, size_t n);

#endif
