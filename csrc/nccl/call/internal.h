/* A call on its way into a stream: check, connect ranks, convert into NCCL calls, enqueue. */
#ifndef DD_NCCL_CALL_INTERNAL_H
#define DD_NCCL_CALL_INTERNAL_H

#include "nccl/driver/item.h"
#include "nccl/group/internal.h"
#include "nccl/window.h"

/* The state of one call; see call/start.c. */
typedef struct nccl_launch {
    dd_nccl_group *group;
    const dd_nccl_call *call;
    nccl_channel *channel;
    nccl_work *work;
    dd_nccl_comm_handle comm;
    const dd_wait *wait;
    dd_error *err; /* where to store the error; never NULL */
    bool is_capturing;
    bool is_run;     /* nccl_launch_run has been called, which frees the call's scratch */
    bool is_posted;  /* NCCL has been called, so other ranks depend on the call */
    void **staged;   /* owned; each operation's staging memory (or NULL); NULL if none is staged */
    float *estimate; /* where to store the estimated time; NULL if the call is executed */
} nccl_launch;

struct dd_nccl_group_window {
    atomic_uint refs;
    dd_nccl_group *group;  /* const; owned reference */
    dd_nccl_comm *comm;    /* const; owned reference */
    dd_nccl_window handle; /* const; the registered window */
    int device;            /* const, like `data` and `nbytes`; CUDA device number */
    char *data;
    size_t nbytes;
    dd_list link;          /* guarded by the group's lock; in the group's windows, or in no list */
    atomic_bool is_closed; /* written under the group's lock `launch` */
};

/* ---- connect.c */

/* Find or create the channel for a call, and connect its ranks. */
dd_status nccl_channel_for(dd_nccl_group *group, const dd_nccl_call *call, const dd_wait *wait,
                           nccl_channel **channel, dd_error *err) DD_MUST_CHECK;

/* ---- errors.c */

/* Check the result of an NCCL call. The caller must be inside the channel's communicator. */
dd_status nccl_launch_check(const nccl_launch *launch, dd_nccl_result result,
                            const char *label) DD_MUST_CHECK;
dd_status nccl_launch_check_cuda(const nccl_launch *launch, dd_cuda_result result,
                                 const char *label) DD_MUST_CHECK;

/* ---- launch.c */

/* Call NCCL for all operations; in an NCCL group if there are several, or for an estimate. */
dd_status nccl_launch_post(nccl_launch *launch) DD_MUST_CHECK;
/* Enqueue a copy within the device's memory. Does nothing for an estimate. */
dd_status nccl_launch_copy_bytes(const nccl_launch *launch, void *dst, const void *src,
                                 size_t nbytes) DD_MUST_CHECK;
bool nccl_are_equal(const dd_block *blocks, int n);
/* Return true for messages, and for collectives that can be made of messages. Call nccl_check_kind
 * for the collective before. */
bool nccl_may_have_messages(const dd_nccl_op *op);
/* Return true if the operation uses sends, receives or one-sided calls, but no NCCL collective. */
bool nccl_is_made_of_messages(const dd_nccl_group *group, const dd_nccl_op *op);

/* ---- launch_thread.c */

/* Return true, once, if NCCL may wait for other ranks in this call: it is the first of its kind and
 * size on the channel, and the caller can be interrupted. The caller must hold `launch`. */
bool nccl_may_connect(nccl_launch *launch);
/* Run `post` on a separate thread. If the caller is interrupted, fail the group to end `post`. */
dd_status nccl_post_on_thread(nccl_launch *launch, dd_status (*post)(nccl_launch *launch)) DD_MUST_CHECK;

/* ---- run.c */

/* Enqueue the whole call and record its end event. For an estimate, only allocate staging memory
 * and call NCCL. The caller must hold `launch`, and the device's context must be current. */
dd_status nccl_launch_run(nccl_launch *launch);
/* Make stream `later` wait for all work now enqueued on stream `earlier`. The caller must hold
 * `launch`, and the device's context must be current. */
dd_status nccl_stream_order(nccl_launch *launch, dd_cuda_stream earlier, dd_cuda_stream later);
/* Set launch->is_capturing if one of the call's streams is being captured. */
dd_status nccl_launch_find_capture(nccl_launch *launch);

/* ---- check.c */

dd_status nccl_check_call(const dd_nccl_group *group, const dd_nccl_call *call, dd_error *err);
/* Check that NCCL has this kind of collective. */
dd_status nccl_check_kind(dd_coll coll, dd_error *err) DD_MUST_CHECK;

/* ---- wire.c */

/* NCCL's dtype and operation for a reduction. */
typedef struct nccl_wire {
    dd_nccl_dtype dtype;
    dd_nccl_redop op;
    size_t element; /* size in bytes of one NCCL element */
    bool is_premul;
} nccl_wire;
dd_status nccl_wire_of(const dd_nccl_lib *lib, const dd_reduction *reduction, const void *factor,
                       nccl_wire *wire, dd_error *err);

/* ---- window_call.c: puts, signals, and waits for signals */

dd_status nccl_window_check(const dd_nccl_group *group, const dd_nccl_call *call, const dd_nccl_op *op,
                            dd_error *err) DD_MUST_CHECK;
/* Check that no window of the call is closed. The caller must hold `launch`. */
dd_status nccl_window_check_open(const nccl_launch *launch) DD_MUST_CHECK;
/* Call NCCL for a put, a signal, or a wait for signals. */
dd_status nccl_window_post(const nccl_launch *launch, const dd_nccl_op *op) DD_MUST_CHECK;
static inline bool
nccl_is_one_sided(const dd_nccl_op *op)
{
    return op->window != NULL;
}

/* ---- nan.c */
dd_status nccl_check_nan(nccl_launch *launch);
/* Fail the group if a CUDA graph with captured calls has found a NaN. Cheap without such graphs. */
void nccl_nan_poll(dd_nccl_group *group);

/* ---- copy.c */

dd_status nccl_copy_enqueue(const dd_cuda *cuda, dd_cuda_stream stream, const dd_nccl_copy *copy,
                            dd_error *err);

#endif
