/* One call of an operation: reads the arguments, calls the core, and returns the results. */
#ifndef DD_PYTHON_GROUP_CALL_H
#define DD_PYTHON_GROUP_CALL_H

#include "python/group/group.h"

/* Kinds of parameters (py_param.kind). */
typedef enum py_call_kind {
    PY_CALL_OTHER,
    PY_CALL_TENSORS, /* a tensor, or a list of tensors */
    PY_CALL_REDUCTION,
    PY_CALL_ROOT,
    PY_CALL_TIMEOUT,
    PY_CALL_ASYNC,
} py_call_kind;

/* clang-format off */
#define PY_OTHER(name) {#name, PY_CALL_OTHER, NULL}
#define PY_TENSORS(name) {#name, PY_CALL_TENSORS, NULL}
#define PY_REDUCTION {"op", PY_CALL_REDUCTION, NULL}
#define PY_ROOT {"root", PY_CALL_ROOT, NULL}
#define PY_TIME_LIMIT {"timeout", PY_CALL_TIMEOUT, NULL}
#define PY_ASYNC {"async_op", PY_CALL_ASYNC, NULL}
/* clang-format on */

/* One call of a method. Lives on the stack of the method. */
typedef struct py_group_call {
    py_group *group;
    const py_params *params;
    PyObject *values[PY_PARAMS_MAX]; /* borrowed arguments in order; NULL if not given or None */
    py_operands *operands;           /* points to `own`, or to the operands of the flight */
    bool is_async;
    /* Python references of an operation that outlives the method (work/work.h). NULL, except for
     * async calls, plans, and all calls of an NcclGroup. */
    py_flight *flight;
    int64_t timeout_ns;
    int root;
    dd_reduction reduction;
    bool is_flat; /* value of dd_nccl_op.is_flat; only for an NcclGroup */
    /* only for PREMUL_SUM on an NcclGroup: a factor in device memory (borrowed), or NULL */
    PyObject *factor;
    py_operands own;
} py_group_call;

/* Put the arguments into call->values. A call that has only been parsed need not be ended. */
bool py_group_call_parse(py_group_call *call, PyObject *self, const py_params *params, PyObject *const *args,
                         Py_ssize_t nargs, PyObject *kwnames);
/* Choose the group that serves the tensors' device, and read op, root, timeout and async_op. If
 * this fails, the call must not be ended. */
bool py_group_call_begin(py_group_call *call);
/* End a call that has begun but not run. Return NULL, and keep the current exception. */
PyObject *py_group_call_fail(py_group_call *call);

/* Run the call or create a plan, and end the call in any case. Return None, a Work or a Plan. If
 * is_ok is false, an earlier step has failed: only end the call, as py_group_call_fail does. */
PyObject *py_group_call_run(py_group_call *call, dd_coll coll, bool is_ok);

/* A message to or from a rank. */
typedef struct py_group_message {
    bool is_send;
    int rank;
    uint64_t tag;
    uint32_t channel; /* as in dd_p2p */
    bool is_any_tag;  /* true if a receive accepts every tag */
    bool is_typed;    /* true if sender and receiver must use the same dtype */
} py_group_message;

/* py_group_call_wait and py_group_call_start run a call with prepared operands through a callback,
 * to which they pass `target`. Both always end the call. Both set the timeout of `options` and, for a
 * flight, on_done.
 *
 * py_group_call_wait is for a call without a flight: its callback `run` returns when the operation
 * has ended. The GIL is held until the core waits, unless is_long is true or a tensor is staged. */
typedef dd_status py_group_run(const py_group_call *call, void *target, const dd_call_options *options,
                               const dd_wait *wait, dd_error *err);
bool py_group_call_wait(py_group_call *call, py_group_run *run, void *target, dd_call_options *options,
                        bool is_long);
/* py_group_call_start is for a call with a flight: its callback `post` starts the operation. Return
 * a Work. */
typedef dd_status py_group_post(const py_group_call *call, const void *target, const dd_call_options *options,
                                dd_work **work, dd_error *err);
PyObject *py_group_call_start(py_group_call *call, py_group_post *post, const void *target,
                              dd_call_options *options);

/* Record a parsed call instead of running it, if this thread's calls of the group are recorded
 * (batches, coalescing). Return 1 with a new reference in *result if the call was recorded, 0 if
 * this thread's calls are not recorded, -1 with an exception. */
int py_group_call_record(py_group_call *call, PyObject **result);

#endif
