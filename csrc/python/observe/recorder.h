/* The flight recorder in Python: one for each process. It also records who made a call. */
#ifndef DD_PYTHON_OBSERVE_RECORDER_H
#define DD_PYTHON_OBSERVE_RECORDER_H

#include "group/group.h"
#include "observe/recorder.h"
#include "python/call/operands.h"

#define PY_RECORDER_MAX_TENSORS 8

typedef struct py_recorder py_recorder;

/* The recorder of this process, never that of its parent. It is made as the settings say, and lives as long as the
 * process. NULL with an exception. */
dd_recorder *py_recorder_get(py_state *state);

/* What is recorded of a new group, for its core; the caller releases it. The kind of a group of the CPU is "gloo". NULL
 * without an exception: the group is not recorded. */
dd_recorder_group *py_recorder_add_group(py_state *state, const char *kind, dd_bytes name, int rank,
                                         int size);

/* The number of the caller's stack, for dd_record_call; 0: not known. The process must have a recorder. */
uint32_t py_recorder_stack(py_state *state);

/* What is recorded of a call. It borrows the shapes of the operands. */
typedef struct py_record {
    dd_record_call call;
    dd_record_tensor inputs[PY_RECORDER_MAX_TENSORS];
    dd_record_tensor outputs[PY_RECORDER_MAX_TENSORS];
    int64_t totals[2]; /* number of elements of a side that is recorded as one tensor */
} py_record;

/* Fills in the record of a collective whose operands have been prepared. NULL if nothing is recorded. */
dd_record_call *py_record_collective(py_record *record, py_state *state, dd_coll coll,
                                     const py_operands *operands);
/* The number of the caller's stack, for a collective that a form describes; 0 if nothing is recorded. */
uint32_t py_record_stack(py_state *state);
/* Fills in the record of a message, the first operand. NULL if nothing is recorded. */
dd_record_call *py_record_message(py_record *record, py_state *state, const py_operands *operands,
                                  bool is_send, int peer);

/* Group._describe(name, desc, global_ranks), for any object that has a recorder's group, which may be NULL. Returns
 * None, or NULL with an exception. */
PyObject *py_recorder_describe(py_state *state, dd_recorder_group *group, dd_recorder_group_info *info,
                               PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames);

/* Functions of the module: _dump_recorder(is_json, has_entries, has_stacks, is_active_only, path=None) returns bytes, or
 * writes them to a file; _reset_recorder() forgets all entries, _recorder_capacity() returns 0 if nothing is recorded. */
PyObject *py_recorder_dump(PyObject *module, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames);
PyObject *py_recorder_reset(PyObject *module, PyObject *unused);
PyObject *py_recorder_capacity(PyObject *module, PyObject *unused);

/* Functions of the module, for operations of backends written in Python: _add_recorded_group(name, desc, rank, global_ranks) gives what the others take,
 * _begin_record(group, name, is_p2p, peer, timeout_ns, inputs, outputs) the id of a record, and _end_record(group, record, failure=None)
 * ends it. Tensors are tuples of a dtype's name and a shape. */
PyObject *py_recorder_add_foreign(PyObject *module, PyObject *const *args, Py_ssize_t nargs,
                                  PyObject *kwnames);
PyObject *py_recorder_begin(PyObject *module, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames);
PyObject *py_recorder_end(PyObject *module, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames);

#endif
