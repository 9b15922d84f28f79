/* A process group that uses NCCL: the base of ProcessGroupNCCL.
 *
 * For each device in use it has a stream and a communicator, created on first use or by
 * dd_nccl_group_connect. The watchdog (watchdog.h) checks its works under way, which end by their
 * event, an error of NCCL, their timeout, or with the group. The first failure ends everything
 * under way, and later calls fail immediately with the original cause. The host blocks only to
 * create communicators, in first calls (NCCL connects ranks), and to wait for works or the end.
 * Every function may be called from any thread; calls of one group enter its streams one by one. */
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
    /* Gather, scatter and all_to_all are grouped messages with every NCCL. All ranks must agree. */
    bool has_grouped_messages;
    dd_bytes name;           /* for messages, and a prefix in the store */
    int64_t timeout_ns;      /* for operations that have none */
    int64_t init_timeout_ns; /* for creating a communicator; 0 for timeout_ns */
    dd_nccl_config config;
    bool is_high_priority;
    bool has_event_cache; /* events are reused */
    bool has_timing;      /* works have a start event: see dd_nccl_group_set_timing */
    bool is_nan_check;    /* see dd_nccl_group_set_nan_check */
    int ranks_per_root;   /* scalable init: ranks for each unique id; 0 for a single id */
} dd_nccl_group_options;

/* Shared objects, which must outlive all groups and their works. */
typedef struct dd_nccl_base {
    const dd_nccl_lib *lib;
    const dd_cuda *cuda; /* NULL if there is no device */
    dd_nccl_watchdog *watchdog;
} dd_nccl_base;

/* Open a group; the ranks meet for the first communicator. recorder_group is taken, also on
 * failure, and may be NULL. The store may be NULL for size 1. DD_NOT_SUPPORTED without a device. */
dd_status dd_nccl_group_open(const dd_nccl_base *base, dd_store *store, int rank, int size,
                             const dd_nccl_group_options *options, dd_recorder_group *recorder_group,
                             dd_nccl_group **group, dd_error *err) DD_MUST_CHECK;
dd_nccl_group *dd_nccl_group_acquire(dd_nccl_group *group);
/* Wait for operations under way. True if ending the group loses no result: none is under way at the
 * deadline, and a caller has received every failure. */
bool dd_nccl_group_is_idle(dd_nccl_group *group, const dd_wait *wait);
/* The last release aborts the group without waiting; works still held stay usable. May be NULL. */
void dd_nccl_group_release(dd_nccl_group *group);

int dd_nccl_group_rank(const dd_nccl_group *group);
int dd_nccl_group_size(const dd_nccl_group *group);
dd_bytes dd_nccl_group_name(const dd_nccl_group *group);
int64_t dd_nccl_group_get_timeout_ns(dd_nccl_group *group);
void dd_nccl_group_set_timeout_ns(dd_nccl_group *group, int64_t timeout_ns);
/* Extend the timeouts of works started from now on, until one of them completes. */
void dd_nccl_group_add_ephemeral_timeout_ns(dd_nccl_group *group, int64_t extra_ns);
/* Return the number of collectives that have been called. */
uint64_t dd_nccl_group_sequence(dd_nccl_group *group);
/* DD_OK, or the reason why every call fails. */
dd_status dd_nccl_group_check(dd_nccl_group *group, dd_error *err) DD_MUST_CHECK;
/* Turn the search of float inputs for NaN on or off. For debugging: the host waits for preceding
 * work before anything is sent. DD_INVALID_ARGUMENT names the tensor and the first element. A call
 * captured in a CUDA graph makes each launch of the graph search; no thread waits for it, and a NaN
 * fails the group. Devices search, or, outside graphs, the host if the driver rejects kernels. */
void dd_nccl_group_set_nan_check(dd_nccl_group *group, bool is_on);
/* True, once, if a call has been captured in a graph that cannot search. */
bool dd_nccl_group_take_nan_missed(dd_nccl_group *group);

/* Turn the timing of works on or off for new calls. */
void dd_nccl_group_set_timing(dd_nccl_group *group, bool is_on);

/* Get the communicator of all ranks on a device, acquired. If it does not exist, all ranks must
 * call this to create it, after comparing NCCL versions in the store (DD_MISMATCH names two). */
dd_status dd_nccl_group_connect(dd_nccl_group *group, int device, dd_nccl_comm **comm, const dd_wait *wait,
                                dd_error *err) DD_MUST_CHECK;
/* Return the communicator of all ranks, acquired; NULL if it does not exist. */
dd_nccl_comm *dd_nccl_group_find_comm(dd_nccl_group *group, int device);
/* Use a communicator made from another group's. Takes `comm`, also on failure. */
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

/* Blocks are contiguous device memory. All ranks must make the same NCCL calls. all_gather and
 * reduce_scatter use NCCL's own call if all blocks are equal (through staging memory if they are
 * not adjacent), else grouped broadcasts or reductions. gather, scatter and all_to_all are grouped
 * messages, unless the call is_flat and both the group and NCCL allow NCCL's own call. */
typedef struct dd_nccl_op {
    dd_nccl_op_kind kind;
    dd_coll_args args;  /* COLL. PREMUL_SUM uses reduction.factor or `factor` */
    const void *factor; /* one element of the dtype in device memory; NULL for reduction.factor */
    /* gather, scatter, all_to_all: equal, adjacent blocks on all ranks, so NCCL's own calls fit. */
    bool is_flat;
    dd_block block; /* SEND, RECV, PUT */
    dd_dtype dtype; /* of the block; for the recorder and the check for NaN */
    int peer;       /* all except COLL */
    /* Packed for the group's NCCL; borrowed. NULL if NCCL is to choose. Only for collectives that
     * are not made of messages (else DD_NOT_SUPPORTED). */
    const dd_nccl_abi_coll_config *config;
    /* Only PUT, SIGNAL and WAIT_SIGNAL. It must exist until the call has returned. */
    dd_nccl_group_window *window;
    size_t offset; /* PUT: bytes into the peer's window */
    int channel;
    int count; /* WAIT_SIGNAL: number of signals to consume */
} dd_nccl_op;

/* A stream-ordered copy between tensors of one dtype and shape. Either may be in host memory. */
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
    /* A batch of operations, perhaps of one, while other ranks may have more: uses the communicator
     * of all ranks. A single message may use a pair's. Other calls have one operation. */
    bool is_batch;
    const dd_nccl_copy *before; /* for example to pack */
    size_t nbefore;
    const dd_nccl_copy *after;
    size_t nafter;
    /* From dd_nccl_group_alloc_scratch. Taken in any case, and freed in stream order at the end. */
    void *const *scratch;
    size_t nscratch;
    const dd_cuda_stream *streams; /* the call runs after their current contents */
    size_t nstreams;
    int64_t timeout_ns; /* negative for the group's */
    /* Recorded from begin to end if the call is accepted; its times are filled in. May be NULL. */
    dd_record_call *record;
    /* Passed to the work (work.h). If captured, called before start returns; not if start fails. */
    void (*on_done)(dd_work *work, void *ctx);
    void *ctx;
} dd_nccl_call;

/* Order the group's stream after the current contents of these streams, as dd_nccl_group_start
 * does. Call it before that for scratch within a capture, which must include the group's stream by
 * then, and for data that producers have put into other streams. */
dd_status dd_nccl_group_order(dd_nccl_group *group, int device, const dd_cuda_stream *streams,
                              size_t nstreams, dd_error *err) DD_MUST_CHECK;
/* Allocate device memory for staging, ordered on the group's stream. */
dd_status dd_nccl_group_alloc_scratch(dd_nccl_group *group, int device, size_t nbytes, void **data,
                                      dd_error *err) DD_MUST_CHECK;
/* Free scratch that was not passed to a call. */
void dd_nccl_group_free_scratch(dd_nccl_group *group, int device, void *data);
/* Get the group's stream on the device. A producer may order its work before it; the stream must
 * then be one of the call's streams, since messages of pairs have their own. */
dd_status dd_nccl_group_stream(dd_nccl_group *group, int device, dd_cuda_stream *stream,
                               dd_error *err) DD_MUST_CHECK;

/* Check the call (DD_INVALID_ARGUMENT, DD_NOT_SUPPORTED), enqueue it, and return a work with a
 * reference. Connects ranks first if needed, up to `wait` or the group's init timeout. A single
 * message between ranks that have no communicator yet uses one for the pair. In a capture of a CUDA
 * graph the work is not watched, and is done once it is enqueued. If NCCL connects ranks for a
 * call, the host waits for them, until the call's timeout or the caller's interruption, which also
 * ends the group: DD_ABORTED. */
dd_status dd_nccl_group_start(dd_nccl_group *group, const dd_nccl_call *call, dd_nccl_work **work,
                              const dd_wait *wait, dd_error *err) DD_MUST_CHECK;

/* ---- estimates */

#define DD_NCCL_NO_ESTIMATE (-1.0F)

/* DD_NOT_SUPPORTED for messages, and for collectives that NCCL lacks or makes of messages. */
dd_status dd_nccl_op_check_estimate(const dd_nccl_op *op, dd_error *err) DD_MUST_CHECK;
/* Count an estimated collective, and record it as ended. Fills in record, which may be NULL. */
void dd_nccl_group_note_estimated(dd_nccl_group *group, dd_record_call *record);
/* Estimate the time of the operations with an NCCL group that is not executed. DD_NCCL_NO_ESTIMATE
 * if NCCL gives none, and for one rank. Checks and connects like dd_nccl_group_start; all ranks
 * must call it, since NCCL may connect them, within the call's timeout. Frees the call's scratch.
 * It must have no streams, record and on_done; its copies are not made. DD_NOT_SUPPORTED before
 * NCCL 2.22.3, and on nonblocking communicators, where NCCL (up to 2.32) executes the calls. */
dd_status dd_nccl_group_estimate(dd_nccl_group *group, const dd_nccl_call *call, float *microseconds,
                                 const dd_wait *wait, dd_error *err) DD_MUST_CHECK;

/* ---- works. After an error the device may use the memory until memory_is_free */

struct dd_nccl_work {
    dd_work base; /* first */
    /* nccl_work in group/internal.h has the rest. */
};

/* Query the device, and complete an ended work, as the watchdog does. True if it has ended. */
bool dd_nccl_work_poll(dd_nccl_work *work);
/* Note that a caller has received the work's error: dd_nccl_group_close then does not report it. */
void dd_nccl_work_note_reported(dd_nccl_work *work);
/* Return the result, DD_OK while under way. An error then counts as received by a caller. */
dd_status dd_nccl_work_result(dd_nccl_work *work, dd_error *err) DD_MUST_CHECK;
/* Make the stream, not the host, wait for the work. */
dd_status dd_nccl_work_wait_stream(dd_nccl_work *work, dd_cuda_stream stream, dd_error *err) DD_MUST_CHECK;
/* Wait on the host. DD_OP_TIMED_OUT at the deadline of `wait`; the operation goes on. */
dd_status dd_nccl_work_wait(dd_nccl_work *work, const dd_wait *wait, dd_error *err) DD_MUST_CHECK;
/* True if the device has finished with the memory, or will never use it again. */
bool dd_nccl_work_memory_is_free(dd_nccl_work *work);
/* Get the time on the device. DD_NOT_SUPPORTED without timing, DD_INVALID_ARGUMENT if not ended. */
dd_status dd_nccl_work_duration(dd_nccl_work *work, float *ms, dd_error *err) DD_MUST_CHECK;
int64_t dd_nccl_work_timeout_ns(const dd_nccl_work *work);

/* Wait on the host until no work is under way on this rank; then return dd_nccl_group_check. */
dd_status dd_nccl_group_wait_works(dd_nccl_group *group, const dd_wait *wait, dd_error *err) DD_MUST_CHECK;

/* ---- the end */

/* Fail the group as if the watchdog had found `cause`: works end now, communicators are aborted. */
void dd_nccl_group_fail(dd_nccl_group *group, const dd_error *cause);
/* Do the same without an alarm, and keep the communicators: one is about to be shrunk to the ranks
 * that have not failed, which aborts it. */
void dd_nccl_group_retire(dd_nccl_group *group, const dd_error *cause);
/* Fail the group with DD_ABORTED, and wait for the aborts of communicators until the deadline: then
 * DD_OP_TIMED_OUT, and they go on. Idempotent. */
dd_status dd_nccl_group_abort(dd_nccl_group *group, const char *reason, const dd_wait *wait, dd_error *err);
/* Execute everything enqueued, then finalise and destroy the communicators. Later calls are
 * DD_CLOSED. At the deadline DD_OP_TIMED_OUT, and the group is aborted. Without a deadline,
 * operations have their own timeouts, and then communicators have 10 s. If the group fails before
 * the end, wait for the aborts; return the cause if it ended operations and no caller has received
 * it (by a work's error or a later call), else DD_OK. Idempotent. */
dd_status dd_nccl_group_close(dd_nccl_group *group, const dd_wait *wait, dd_error *err) DD_MUST_CHECK;

/* Start closing several groups of one watchdog in parallel, on at most DD_NCCL_ENDERS_MAX threads:
 * NCCL needs half a second to end a communicator. Does not wait, and may do nothing. Then call
 * dd_nccl_group_close for each, which closes it or waits for its thread, and returns the error. */
#define DD_NCCL_ENDERS_MAX 32
void dd_nccl_groups_post_close(dd_nccl_group *const *groups, size_t n);

#endif
