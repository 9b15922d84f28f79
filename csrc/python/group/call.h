/* One call of an operation: it reads the arguments, calls the core and returns the results. */
#ifndef DD_PYTHON_GROUP_CALL_H
#define DD_PYTHON_GROUP_CALL_H

#include "python/group/group.h"

/* The kinds of the parameters of calls. */
typedef enum py_call_kind {
    PY_CALL_OTHER,
    PY_CALL_TENSORS, /* a tensor, or a list of them */
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

/* Lives on the stack of the method. */
typedef struct py_group_call {
    py_group *group;
    const py_params *params;
    PyObject *values[PY_PARAMS_MAX]; /* borrowed, in the order of the parameters; NULL: not given, or None */
    py_operands *operands;           /* own, or the flight's */
    bool is_async;
    /* of calls that do not wait for the end, of plans, and of all calls of an NcclGroup; otherwise NULL */
    py_flight *flight;
    int64_t timeout_ns;
    int root;
    dd_reduction reduction;
    bool is_flat; /* on an NcclGroup: see dd_nccl_op */
    /* of PREMUL_SUM on an NcclGroup, borrowed from an argument: a factor that is a tensor on the device; or NULL */
    PyObject *factor;
    py_operands own;
} py_group_call;

/* Puts the arguments in order. False with an exception. There is nothing to end yet in either case. */
bool py_group_call_parse(py_group_call *call, PyObject *self, const py_params *params, PyObject *const *args,
                         Py_ssize_t nargs, PyObject *kwnames);
/* Chooses the group that serves the tensors' device, and reads the parameters op, root, timeout and async_op.
 * False with an exception and nothing to end. */
bool py_group_call_begin(py_group_call *call);
/* Ends a call that has begun and fails before it runs. Keeps the exception and returns NULL. */
PyObject *py_group_call_fail(py_group_call *call);

/* Runs the call or makes a plan of it, and always ends it. Returns None, a Work or a Plan, or NULL with an
 * exception. If is_ok is false, it is py_group_call_fail. */
PyObject *py_group_call_run(py_group_call *call, dd_coll coll, bool is_ok);

/* A message to or from a rank. */
typedef struct py_group_message {
    bool is_send;
    int rank;
    uint64_t tag;
    bool is_typed; /* the dtype of the other side must be the same, unless that side has bytes */
} py_group_message;

/* These two run a call whose operands have been prepared; `what` is passed to the function that does it. Both
 * always end the call. They fill in the time-out and on_done of the options.
 *
 * For a call without a flight: runs `run` to its end. The GIL is held until the core waits, unless is_long is true
 * or a tensor is staged. False with an exception. */
typedef dd_status py_group_run(const py_group_call *call, void *what, const dd_call_options *options,
                               const dd_wait *wait, dd_error *err);
bool py_group_call_wait(py_group_call *call, py_group_run *run, void *what, dd_call_options *options,
                        bool is_long);
/* For a call with a flight: starts the operation with `post`. Returns a Work, or NULL with an exception. */
typedef dd_status py_group_post(const py_group_call *call, const void *what, const dd_call_options *options,
                                dd_work **work, dd_error *err);
PyObject *py_group_call_start(py_group_call *call, py_group_post *post, const void *what,
                              dd_call_options *options);

/* For a call that has been parsed, on a group with recorders. 1: this thread's calls are recorded, and the call
 * returns *result, a new reference. 0: they are not. -1 with an exception. */
int py_group_call_record(py_group_call *call, PyObject **result);

#endif
