/* One call on its way into a stream: checked, connected, made into calls of NCCL, and enqueued. */
#ifndef DD_NCCL_CALL_INTERNAL_H
#define DD_NCCL_CALL_INTERNAL_H

#include "nccl/driver/item.h"
#include "nccl/group/internal.h"
#include "nccl/window.h"

/* A call on its way into a stream; call/launch.c. */
typedef struct nccl_launch {
    dd_nccl_group *group;
    const dd_nccl_call *call;
    nccl_channel *channel;
    nccl_work *work;
    dd_nccl_comm_handle comm;
    const dd_wait *wait;
    dd_error *err; /* never NULL */
    bool is_capturing;
    bool is_run;     /* nccl_launch_run has been called: scratch has been taken care of */
    bool is_posted;  /* NCCL has been called: the other ranks count on us */
    void **staged;   /* owned; for each operation, NULL without; NULL when there is none at all */
    float *estimate; /* NCCL only says how long it would take; NULL: it is carried out */
} nccl_launch;

struct dd_nccl_group_window {
    atomic_uint refs;
    dd_nccl_group *group;  /* const; counted */
    dd_nccl_comm *comm;    /* const; owned */
    dd_nccl_window handle; /* const */
    int device;            /* const, as the rest but for is_closed */
    char *data;
    size_t nbytes;
    dd_list link;          /* the group's lock; of its windows, or in no list */
    atomic_bool is_closed; /* written under `launch` */
};

/* ---- connect.c */

/* The channel for a call, connected. */
dd_status nccl_channel_for(dd_nccl_group *group, const dd_nccl_call *call, const dd_wait *wait,
                           nccl_channel **channel, dd_error *err) DD_MUST_CHECK;

/* ---- errors.c */

/* Of a call by the thread inside the channel's communicator. */
dd_status nccl_launch_check(const nccl_launch *launch, dd_nccl_result result, const char *what) DD_MUST_CHECK;
dd_status nccl_launch_check_cuda(const nccl_launch *launch, dd_cuda_result result,
                                 const char *what) DD_MUST_CHECK;

/* ---- launch.c */

/* NCCL's calls, in a group where there is more than one, and in an estimate. */
dd_status nccl_launch_post(nccl_launch *launch) DD_MUST_CHECK;
/* Within the device, in the order of the stream; nothing in an estimate. */
dd_status nccl_launch_copy_bytes(const nccl_launch *launch, void *dst, const void *src,
                                 size_t nbytes) DD_MUST_CHECK;
bool nccl_are_equal(const dd_block *blocks, int n);
/* Whether it is a message, or a collective that groups can make of messages. nccl_check_kind must have accepted a collective. */
bool nccl_may_have_messages(const dd_nccl_op *op);
/* NCCL gets sends and receives, or one-sided calls, for it: none of its collectives. */
bool nccl_is_made_of_messages(const dd_nccl_group *group, const dd_nccl_op *op);

/* ---- launch_aside.c */

/* Whether NCCL may wait for other ranks in this call, because it is the first of its kind and size on the channel, and the caller can be
 * interrupted. True once. The caller holds `launch`. */
bool nccl_may_connect(nccl_launch *launch);
/* What `post` returns, which runs on a thread of its own meanwhile. If the caller is interrupted, the group ends, and with it the call. */
dd_status nccl_post_aside(nccl_launch *launch, dd_status (*post)(nccl_launch *launch)) DD_MUST_CHECK;

/* ---- run.c */

/* Enqueue the whole call and its end event; for an estimate, only call NCCL, with memory for staging. The caller must hold `launch`,
 * and the device's context must be current. */
dd_status nccl_launch_run(nccl_launch *launch);
/* `later` comes after what `earlier` holds so far. The caller holds `launch`, the context is current. */
dd_status nccl_stream_order(nccl_launch *launch, dd_cuda_stream earlier, dd_cuda_stream later);
/* Whether one of the call's streams belongs to a graph in the making. */
dd_status nccl_launch_find_capture(nccl_launch *launch);

/* ---- check.c */

dd_status nccl_check_call(const dd_nccl_group *group, const dd_nccl_call *call, dd_error *err);
/* Whether NCCL has calls for a collective. */
dd_status nccl_check_kind(dd_coll coll, dd_error *err) DD_MUST_CHECK;

/* ---- wire.c */

/* How NCCL reduces a dtype. */
typedef struct nccl_wire {
    dd_nccl_dtype dtype;
    dd_nccl_redop op;
    size_t element; /* bytes of one NCCL element */
    bool is_premul;
} nccl_wire;
dd_status nccl_wire_of(const dd_nccl_lib *lib, const dd_reduction *reduction, const void *factor,
                       nccl_wire *wire, dd_error *err);

/* ---- window_call.c: one-sided operations */

dd_status nccl_window_check(const dd_nccl_group *group, const dd_nccl_call *call, const dd_nccl_op *op,
                            dd_error *err) DD_MUST_CHECK;
/* No window of the call has been closed. The caller holds `launch`, with which none is. */
dd_status nccl_window_check_open(const nccl_launch *launch) DD_MUST_CHECK;
/* One call of NCCL. */
dd_status nccl_window_post(const nccl_launch *launch, const dd_nccl_op *op) DD_MUST_CHECK;
static inline bool
nccl_is_one_sided(const dd_nccl_op *op)
{
    return op->window != NULL;
}

/* ---- nan.c */
dd_status nccl_check_nan(nccl_launch *launch);
/* What graphs with calls of the group have found: fails the group. Costs next to nothing without such graphs. */
void nccl_nan_look(dd_nccl_group *group);

/* ---- copy.c */

dd_status nccl_copy_enqueue(const dd_cuda *cuda, dd_cuda_stream stream, const dd_nccl_copy *copy,
                            dd_error *err);

#endif
