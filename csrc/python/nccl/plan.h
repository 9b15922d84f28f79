/* The calls of one operation on a device, as the core takes them: operations on blocks, copies before and after, scratch memory. */
#ifndef DD_PYTHON_NCCL_PLAN_H
#define DD_PYTHON_NCCL_PLAN_H

#include "python/nccl/nccl.h"

/* On a stack; start zeroed. Borrows from the operands of its items. */
typedef struct py_nccl_plan {
    dd_nccl_call call;
    dd_nccl_op *ops;         /* `first_op`, or owned */
    dd_nccl_copy *copies;    /* owned, or NULL: those before, then those after */
    void **scratch;          /* owned, or NULL: memory that the call takes */
    bool is_blocking;        /* the host has to wait for the end */
    bool is_stream_ordered;  /* see tensor/device.h */
    dd_cuda_stream *streams; /* `first_streams`, or owned; all different */
    size_t max_streams;
    dd_nccl_op first_op;
    dd_cuda_stream first_streams[PY_MAX_STREAMS + 1]; /* enough for one item */
} py_nccl_plan;

/* All of the call but its time-out and its callback. False with an exception, and nothing to undo. May let the GIL go. */
bool py_nccl_plan_make(py_nccl_plan *plan, py_group *group, const py_nccl_item *items, size_t nitems);
/* The call has been made, or not; its memory is the core's business. */
void py_nccl_plan_fini(py_nccl_plan *plan);

#endif
