/* Plans one operation on a device in the core's terms: operations on blocks, copies before and after, scratch
 * memory. */
#ifndef DD_PYTHON_NCCL_PLAN_H
#define DD_PYTHON_NCCL_PLAN_H

#include "python/nccl/nccl.h"

/* Lives on the stack. Borrows from the operands of its items. */
typedef struct py_nccl_plan {
    dd_nccl_call call;
    dd_nccl_op *ops;         /* `first_op`, or owned */
    dd_nccl_copy *copies;    /* owned, or NULL: the copies before, then those after */
    void **scratch;          /* owned array, or NULL: scratch memory, which the call takes over */
    bool is_blocking;        /* the host must wait for the end */
    bool is_stream_ordered;  /* see tensor/device.h */
    dd_cuda_stream *streams; /* `first_streams`, or owned; all different */
    dd_nccl_op first_op;
    dd_cuda_stream first_streams[PY_MAX_STREAMS + 1]; /* enough for one item */
} py_nccl_plan;

/* Makes the call without its time-out and its callback. False with an exception and nothing to undo. May release the
 * GIL. */
bool py_nccl_plan_make(py_nccl_plan *plan, py_group *group, const py_nccl_item *items, size_t nitems);
/* Ends the plan, whether or not the call has been made. The core takes care of the call's memory. */
void py_nccl_plan_fini(py_nccl_plan *plan);

#endif
