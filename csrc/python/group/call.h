/* One call of an operation: arguments in, the core, results out. */
#ifndef DD_PYTHON_GROUP_CALL_H
#define DD_PYTHON_GROUP_CALL_H

#include "python/group/group.h"

/* On the stack of the method. */
typedef struct py_group_call {
    py_group *group;
    const py_params *params;
    PyObject *values[PY_PARAMS_MAX]; /* in the order of the parameters; NULL: not given */
    py_operands *operands;           /* own, or the flight's */
    bool is_async;
    py_flight *
        flight; /* of calls that do not wait for the end, of plans, and of all calls of an NcclGroup; else NULL */
    int64_t timeout_ns;
    int root;
    dd_reduction reduction;
    PyObject *
        factor; /* of PREMUL_SUM on an NcclGroup, borrowed from an argument: a tensor on the device; or NULL */
    py_operands own;
} py_group_call;

/* Puts the arguments in order. False with an exception; nothing has to be ended yet. */
bool py_group_call_parse(py_group_call *call, PyObject *self, const py_params *params, PyObject *const *args,
                         Py_ssize_t nargs, PyObject *kwnames);
/* Chooses the group that serves the tensors' device, and reads what the parameters' names tell it to: op, root, timeout, async_op. False
 * with an exception and nothing to end. */
bool py_group_call_begin(py_group_call *call);
/* For calls that have begun and fail before they run. Returns NULL. */
PyObject *py_group_call_fail(py_group_call *call);

/* Runs it, or makes a plan of it, and ends the call in any case: None, a Work or a Plan; NULL with an exception. is_ok false:
 * py_group_call_fail. */
PyObject *py_group_call_run(py_group_call *call, dd_coll coll, bool is_ok);

/* A message to or from a rank. */
typedef struct py_group_message {
    bool is_send;
    int rank;
    uint64_t tag;
    bool is_typed; /* the dtype of the other side is to be the same, unless that side has bytes */
} py_group_message;

/* What a call does once its operands have been prepared; `what` says which. Both end the call in any case; the options lack what they fill
 * in: time-out, on_done. Without a flight: waits for `run`, keeping the GIL for as long as the core does not wait, unless it is_long. False
 * with an exception. */
typedef dd_status py_group_run(const py_group_call *call, void *what, const dd_call_options *options,
                               const dd_wait *wait, dd_error *err);
bool py_group_call_wait(py_group_call *call, py_group_run *run, void *what, dd_call_options *options,
                        bool is_long);
/* With one: `post` starts it, and somebody else waits. A Work, or NULL with an exception. */
typedef dd_status py_group_post(const py_group_call *call, const void *what, const dd_call_options *options,
                                dd_work **work, dd_error *err);
PyObject *py_group_call_start(py_group_call *call, py_group_post *post, const void *what,
                              dd_call_options *options);

/* Of a call that has been parsed, on a group with recorders: 1 where this thread's calls are recorded, and `result` is what it returns; 0
 * where they are not; -1 with an exception. */
int py_group_call_record(py_group_call *call, PyObject **result);

#endif
