/* Translation of a device operation into the core's call: blocks, copies and scratch memory. */
#ifndef DD_PYTHON_NCCL_PLAN_H
#define DD_PYTHON_NCCL_PLAN_H

#include "python/nccl/nccl.h"

/* A plan. Lives on the stack and borrows from the operands of its items. */
typedef struct py_nccl_plan {
    dd_nccl_call call;
    dd_nccl_op *ops;         /* `first_op`, or an owned array */
    dd_nccl_copy *copies;    /* owned, or NULL: copies before the operation, then after it */
    void **scratch;          /* owned array, or NULL; the call takes over the memory */
    bool is_blocking;        /* the host must wait for the end */
    bool is_stream_ordered;  /* see tensor/device.h */
    dd_cuda_stream *streams; /* `first_streams`, or an owned array; no duplicates */
    dd_nccl_op first_op;
    dd_cuda_stream first_streams[PY_MAX_STREAMS + 1]; /* enough for one item */
} py_nccl_plan;

/* Prepare the call except for its timeout and callback. May release the GIL. On failure returns
 * false with an exception, and leaves nothing to clean up. */
bool py_nccl_plan_make(py_nccl_plan *plan, py_group *group, const py_nccl_item *items, size_t nitems);
/* End the plan, whether or not the call was made. Scratch memory is left to the core. */
void py_nccl_plan_fini(py_nccl_plan *plan);

#endif
