/* Translation of a device operation into the core's call: blocks, copies and scratch memory. */
#ifndef DD_PYTHON_NCCL_PLAN_H
#define DD_PYTHON_NCCL_PLAN_H

#include "python/nccl/nccl.h"

/* The translation of one operation; not a dldist.Plan. Lives on the stack and borrows from the
 * operands of its items. */
typedef struct py_nccl_plan {
    dd_nccl_call call;
    dd_nccl_op *ops; /* points to `first_op`, or to an owned array */
    /* owned array, or NULL: copies before the operation, then copies after it */
    dd_nccl_copy *copies;
    /* owned array of scratch allocations, or NULL; the call takes ownership of the allocations */
    void **scratch;
    bool is_blocking;       /* the host must wait for the operation's end */
    bool is_stream_ordered; /* see py_device_scope.is_stream_ordered */
    /* points to `first_streams`, or to an owned array; without duplicates */
    dd_cuda_stream *streams;
    dd_nccl_op first_op;
    dd_cuda_stream first_streams[PY_MAX_STREAMS + 1]; /* enough for the streams of one item */
} py_nccl_plan;

/* Prepare the plan's call, except for timeout and callback. May release the GIL. On failure return
 * false with an exception; the plan then needs no cleanup. */
bool py_nccl_plan_make(py_nccl_plan *plan, py_group *group, const py_nccl_item *items, size_t nitems);
/* Free the plan's arrays, whether or not the call was made. Scratch memory belongs to the core. */
void py_nccl_plan_fini(py_nccl_plan *plan);

#endif
