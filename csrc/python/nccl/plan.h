/* Translation of a device operation into the core's call: blocks, copies and scratch memory. */
#ifndef DD_PYTHON_NCCL_PLAN_H
#define DD_PYTHON_NCCL_PLAN_H

#include "python/nccl/nccl.h"

/* The translation of one operation; not a dldist.Plan. Lives on the stack and borrows from the
 * operands of its items. */
typedef struct py_nccl_plan {
    dd_nccl_call call;
    dd_nccl_op *ops; /* array of operations: `first_op`, or owned */
    /* copies before the operation, then copies after it; owned array, or NULL */
    dd_nccl_copy *copies;
    /* scratch allocations, which the call takes ownership of; owned array, or NULL */
    void **scratch;
    bool is_blocking;       /* true if the host must wait for the operation's end */
    bool is_stream_ordered; /* memory is reused in stream order (py_device_scope) */
    /* the call's streams, without duplicates: `first_streams`, or an owned array */
    dd_cuda_stream *streams;
    dd_nccl_op first_op;
    dd_cuda_stream first_streams[PY_MAX_STREAMS + 1]; /* array for the streams of a single item */
} py_nccl_plan;

/* Prepare the plan's call, except for timeout and callback. May release the GIL. On failure return
 * false with an exception; the plan then needs no cleanup. */
bool py_nccl_plan_make(py_nccl_plan *plan, py_group *group, const py_nccl_item *items, size_t nitems);
/* Free the plan's arrays, whether or not the call was made. The core frees scratch memory. */
void py_nccl_plan_fini(py_nccl_plan *plan);

#endif
