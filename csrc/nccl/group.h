/* A process group that uses NCCL: the base of ProcessGroupNCCL.
 *
 * For each device in use, the group has a stream and a communicator, created on first use or by
 * dd_nccl_group_connect. A work ends when its CUDA event is complete, when NCCL reports an error,
 * when its timeout expires, or when the group ends; the watchdog (watchdog.h) checks for all four.
 * The first failure ends every work under way, and later calls fail immediately with the cause of
 * that failure. The host blocks only to create communicators, in first calls (NCCL connects ranks),
 * and to wait for works or for the end of the group. Every function may be called from any thread;
 * a group enqueues its calls one at a time. */
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
typedef struct dd_nccl_group_window dd_nccl_group_window; /* see window.h */

#define DD_NCCL_DEFAULT_TIMEOUT_NS (600 * DD_NS_PER_S)

typedef struct dd_nccl_group_options {
    /* Use messages for gather, scatter and all_to_all with every NCCL. All ranks must agree. */
    bool has_grouped_messages;
    dd_bytes name;           /* the group's name, for errors and as a prefix of store keys */
    int64_t timeout_ns;      /* timeout of operations that specify none */
    int64_t init_timeout_ns; /* timeout for creating a communicator; 0 to use timeout_ns */
    dd_nccl_config config;
    bool is_high_priority;
    bool has_event_cache; /* reuse CUDA events instead of destroying them */
    bool has_timing;      /* record when works start: see dd_nccl_group_set_timing */
    bool is_nan_check;    /* search inputs for NaN: see dd_nccl_group_set_nan_check */
    int ranks_per_root;   /* scalable init: number of ranks for each unique id; 0 for one id */
} dd_nccl_group_options;

/* Objects shared by all groups. They must outlive the groups and their works. */
typedef struct dd_nccl_base {
    const dd_nccl_lib *lib;
    const dd_cuda *cuda; /* NULL if the host has no CUDA device */
    dd_nccl_watchdog *watchdog;
} dd_nccl_base;

/* Open a group. All ranks must call this, and meet in the store for the first communicator. Takes
 * ownership of recorder_group (may be NULL), even on failure. `store` may be NULL for size 1.
 * DD_NOT_SUPPORTED if the host has no device. */
dd_status dd_nccl_group_open(const dd_nccl_base *base, dd_store *store, int rank, int size,
                             const dd_nccl_group_options *options, dd_recorder_group *recorder_group,
                             dd_nccl_group **group, dd_error *err) DD_MUST_CHECK;
dd_nccl_group *dd_nccl_group_acquire(dd_nccl_group *group);
/* Wait until no work is under way, or until the deadline. Return true if ending the group would
 * then lose no result: no work is under way, and a caller has received every failure. */
bool dd_nccl_group_is_idle(dd_nccl_group *group, const dd_wait *wait);
/* Release a group; may be NULL. The last release aborts without waiting; works stay usable. */
void dd_nccl_group_release(dd_nccl_group *group);

int dd_nccl_group_rank(const dd_nccl_group *group);
int dd_nccl_group_size(const dd_nccl_group *group);
dd_bytes dd_nccl_group_name(const dd_nccl_group *group);
int64_t dd_nccl_group_get_timeout_ns(dd_nccl_group *group);
void dd_nccl_group_set_timeout_ns(dd_nccl_group *group, int64_t timeout_ns);
/* Add extra_ns to the timeouts of works started from now on, until the first of them completes. */
void dd_nccl_group_add_ephemeral_timeout_ns(dd_nccl_group *group, int64_t extra_ns);
/* Return the number of collectives that this rank has called on the group. */
uint64_t dd_nccl_group_sequence(dd_nccl_group *group);
/* Return DD_OK, or the error with which every call on the group fails. */
dd_status dd_nccl_group_check(dd_nccl_group *group, dd_error *err) DD_MUST_CHECK;
/* Turn on or off the search of float inputs for NaN, a debugging aid: the host waits for preceding
 * work before it sends. A NaN fails the call with DD_INVALID_ARGUMENT, which names the tensor and
 * the element. If a call is captured in a CUDA graph, each launch of the graph searches; no thread
 * waits for the result, and a NaN fails the group. A kernel searches; if the driver rejects the
 * kernel, the host searches, except in graphs. */
void dd_nccl_group_set_nan_check(dd_nccl_group *group, bool is_on);
/* Return true, only once, if a call was captured in a CUDA graph that cannot search for NaN. */
bool dd_nccl_group_take_nan_missed(dd_nccl_group *group);

/* Turn timing on or off for new works: timed works record when they start on the device. */
void dd_nccl_group_set_timing(dd_nccl_group *group, bool is_on);

/* Return a device's communicator of all ranks, acquired. If there is none, all ranks must call this
 * to create it; before, they compare NCCL versions in the store (DD_MISMATCH names two ranks). */
dd_status dd_nccl_group_connect(dd_nccl_group *group, int device, dd_nccl_comm **comm, const dd_wait *wait,
                                dd_error *err) DD_MUST_CHECK;
/* Return a device's communicator of all ranks, acquired; NULL if it does not exist. */
dd_nccl_comm *dd_nccl_group_find_comm(dd_nccl_group *group, int device);
/* Use `comm`, made from another group's communicator, on the device. Takes it even on failure. */
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

/* One operation on contiguous device memory. All ranks must make the same NCCL calls. all_gather
 * and reduce_scatter use NCCL's collective if all blocks are equal (through staging memory if they
 * are not adjacent), else grouped broadcasts or reductions. gather, scatter and all_to_all are
 * grouped messages, unless is_flat is set and both the group and NCCL allow NCCL's collective. */
typedef struct dd_nccl_op {
    dd_nccl_op_kind kind;
    dd_coll_args args;  /* used by COLL; the factor of PREMUL_SUM is reduction.factor or `factor` */
    const void *factor; /* factor of PREMUL_SUM in device memory; NULL to use reduction.factor */
    /* gather, scatter, all_to_all: all ranks' blocks are equal and adjacent, as NCCL requires */
    bool is_flat;
    dd_block block; /* used by SEND, RECV and PUT */
    dd_dtype dtype; /* element type of the block, for the recorder and the NaN check */
    int peer;       /* rank to send to, receive from or signal; used by all kinds except COLL */
    /* Borrowed configuration, packed for the group's NCCL; NULL to let NCCL choose. Only for
     * collectives that are not made of messages (else DD_NOT_SUPPORTED). */
    const dd_nccl_abi_coll_config *config;
    /* Window for PUT, SIGNAL and WAIT_SIGNAL. Must exist until the call has returned. */
    dd_nccl_group_window *window;
    size_t offset; /* used by PUT: offset in bytes in the peer's window */
    int channel;
    int count; /* used by WAIT_SIGNAL: number of signals to consume */
} dd_nccl_op;

/* A stream-ordered copy between tensors of equal dtype and shape. Either may be in host memory. */
typedef struct dd_nccl_copy {
    dd_view src;
    dd_view dst;
} dd_nccl_copy;

/* A call: its operations form one NCCL group and one work. */
typedef struct dd_nccl_call {
    const char *label; /* name of the call, such as "all_reduce"; static text */
    int device;
    const dd_nccl_op *ops;
    size_t nops;
    /* true for a batch: one or more operations, whose number may differ between ranks, on the
     * communicator of all ranks. false for exactly one operation; if it is a message, it may use
     * the communicator of its two ranks. */
    bool is_batch;
    const dd_nccl_copy *before; /* copies made before the operations, for example to pack */
    size_t nbefore;
    const dd_nccl_copy *after;
    size_t nafter;
    /* Memory of dd_nccl_group_alloc_scratch. The call owns it, and frees it in stream order. */
    void *const *scratch;
    size_t nscratch;
    const dd_cuda_stream *streams; /* the call runs after all work now enqueued on these streams */
    size_t nstreams;
    int64_t timeout_ns; /* timeout of the call; negative to use the group's */
    /* Flight recorder entry, made if the call is accepted; may be NULL. Its times are filled in. */
    dd_record_call *record;
    /* Called when the work is done (work.h); not called if start fails. If the call is captured in
     * a CUDA graph, on_done is called before start returns. */
    void (*on_done)(dd_work *work, void *ctx);
    void *ctx;
} dd_nccl_call;

/* Make the group's stream wait for what is now enqueued on `streams`, as dd_nccl_group_start does.
 * Must be called before start for data that producers have enqueued on other streams, and before
 * allocating scratch in a graph capture, which must then include the group's stream. */
dd_status dd_nccl_group_order(dd_nccl_group *group, int device, const dd_cuda_stream *streams,
                              size_t nstreams, dd_error *err) DD_MUST_CHECK;
/* Allocate device memory for staging, ordered on the group's stream. */
dd_status dd_nccl_group_alloc_scratch(dd_nccl_group *group, int device, size_t nbytes, void **data,
                                      dd_error *err) DD_MUST_CHECK;
/* Free scratch memory that was not passed to a call. */
void dd_nccl_group_free_scratch(dd_nccl_group *group, int device, void *data);
/* Return the group's stream on the device. A producer may make this stream wait for its data, but
 * must then pass this stream in the call's `streams`: messages may use another stream. */
dd_status dd_nccl_group_stream(dd_nccl_group *group, int device, dd_cuda_stream *stream,
                               dd_error *err) DD_MUST_CHECK;

/* Check the call (DD_INVALID_ARGUMENT, DD_NOT_SUPPORTED), enqueue it, and return a work with one
 * reference. Connects ranks first if needed, within `wait` or the group's init timeout. A single
 * message uses a communicator of its two ranks if there is no communicator of all ranks. In a
 * capture of a CUDA graph, the work is not watched, and is done once enqueued. If NCCL must connect
 * ranks for the call, the host waits, up to the call's timeout; an interruption of the caller ends
 * the wait, and fails the group with DD_ABORTED. */
dd_status dd_nccl_group_start(dd_nccl_group *group, const dd_nccl_call *call, dd_nccl_work **work,
                              const dd_wait *wait, dd_error *err) DD_MUST_CHECK;

/* ---- estimates */

#define DD_NCCL_NO_ESTIMATE (-1.0F)

/* DD_OK if NCCL can estimate `op`, else DD_NOT_SUPPORTED: messages and collectives made of them. */
dd_status dd_nccl_op_check_estimate(const dd_nccl_op *op, dd_error *err) DD_MUST_CHECK;
/* Count a collective that was only estimated; fill in `record` (may be NULL) as already ended. */
void dd_nccl_group_note_estimated(dd_nccl_group *group, dd_record_call *record);
/* Estimate how long the call would take, without executing it. DD_NCCL_NO_ESTIMATE if NCCL has no
 * estimate or the group has one rank. Checks and connects like dd_nccl_group_start, so all ranks
 * must call it; NCCL may connect ranks within the call's timeout. Frees the call's scratch. The
 * call must have no streams, record or on_done; its copies are not made. DD_NOT_SUPPORTED before
 * NCCL 2.22.3, and on nonblocking communicators, where NCCL up to 2.32 executes the calls. */
dd_status dd_nccl_group_estimate(dd_nccl_group *group, const dd_nccl_call *call, float *microseconds,
                                 const dd_wait *wait, dd_error *err) DD_MUST_CHECK;

/* ---- works. After an error the device may use a work's memory until memory_is_free is true */

struct dd_nccl_work {
    dd_work base; /* must be first, for casts to and from dd_work */
    /* The other fields are in nccl_work (group/internal.h). */
};

/* Query the device, and complete the work if it has finished. Return true if the work has ended. */
bool dd_nccl_work_poll(dd_nccl_work *work);
/* Note that a caller has received the work's error, so that dd_nccl_group_close omits it. */
void dd_nccl_work_note_reported(dd_nccl_work *work);
/* Return the work's result; DD_OK while under way. An error then counts as received by a caller. */
dd_status dd_nccl_work_result(dd_nccl_work *work, dd_error *err) DD_MUST_CHECK;
/* Make `stream` wait for the work. The host does not wait. */
dd_status dd_nccl_work_wait_stream(dd_nccl_work *work, dd_cuda_stream stream, dd_error *err) DD_MUST_CHECK;
/* Wait on the host for the work. At the deadline, DD_OP_TIMED_OUT; the work stays under way. */
dd_status dd_nccl_work_wait(dd_nccl_work *work, const dd_wait *wait, dd_error *err) DD_MUST_CHECK;
/* Return true if the device has finished with the work's memory, or will never use it again. */
bool dd_nccl_work_memory_is_free(dd_nccl_work *work);
/* Return the device time in ms. DD_NOT_SUPPORTED if not timed, DD_INVALID_ARGUMENT if not ended. */
dd_status dd_nccl_work_duration(dd_nccl_work *work, float *ms, dd_error *err) DD_MUST_CHECK;
int64_t dd_nccl_work_timeout_ns(const dd_nccl_work *work);

/* Wait on the host until no work is under way on this rank; then return dd_nccl_group_check. */
dd_status dd_nccl_group_wait_works(dd_nccl_group *group, const dd_wait *wait, dd_error *err) DD_MUST_CHECK;

/* ---- the end */

/* Fail the group as if the watchdog had found `cause`: end works, and abort communicators. */
void dd_nccl_group_fail(dd_nccl_group *group, const dd_error *cause);
/* Fail the group without an alarm or aborts. The caller must then shrink one of its communicators
 * to the ranks that have not failed, which aborts the communicator. */
void dd_nccl_group_retire(dd_nccl_group *group, const dd_error *cause);
/* Fail the group with DD_ABORTED, and wait until its communicators are aborted. DD_OP_TIMED_OUT at
 * the deadline; the aborts then continue. Idempotent. */
dd_status dd_nccl_group_abort(dd_nccl_group *group, const char *reason, const dd_wait *wait, dd_error *err);
/* Wait until everything enqueued has been executed, then finalise and destroy the communicators.
 * Later calls return DD_CLOSED. At the deadline, abort the group and return DD_OP_TIMED_OUT.
 * Without a deadline, operations end by their own timeouts, then communicators have 10 s. If the
 * group fails before the end, wait for the aborts; return the cause if the failure ended operations
 * and no caller has received the cause (from a work or a later call), else DD_OK. Idempotent. */
dd_status dd_nccl_group_close(dd_nccl_group *group, const dd_wait *wait, dd_error *err) DD_MUST_CHECK;

/* Start closing groups of one watchdog in parallel, on at most DD_NCCL_ENDERS_MAX threads: NCCL
 * needs half a second to end a communicator. Does not wait. Then call dd_nccl_group_close for each
 * group: it waits for the group's thread, or closes the group if no thread has started. */
#define DD_NCCL_ENDERS_MAX 32
void dd_nccl_groups_post_close(dd_nccl_group *const *groups, size_t n);

#endif
