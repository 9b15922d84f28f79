/* The process's flight recorder in Python. It also records the Python stacks of calls. */
#ifndef DD_PYTHON_OBSERVE_RECORDER_H
#define DD_PYTHON_OBSERVE_RECORDER_H

#include "group/group.h"
#include "observe/recorder.h"
#include "python/call/operands.h"

#define PY_RECORDER_MAX_TENSORS 8

typedef struct py_recorder py_recorder;

/* Return the recorder of this process, never its parent's. The first call creates the recorder from
 * the settings; it lives as long as the process. Return NULL with an exception on failure. */
dd_recorder *py_recorder_get(py_state *state);

/* Create the recorder's entry for a new group; the caller releases it. CPU groups have the kind
 * "gloo". Returns NULL without an exception if the group is not recorded. */
dd_recorder_group *py_recorder_add_group(py_state *state, const char *kind, dd_bytes name, int rank,
                                         int size);

/* Return the number under which the recorder keeps the caller's Python stack; 0 if unknown. The
 * process must have a recorder. */
uint32_t py_recorder_stack(py_state *state);

/* The record of a call. The record borrows the shapes of the operands. */
typedef struct py_record {
    dd_record_call call;
    dd_record_tensor inputs[PY_RECORDER_MAX_TENSORS];
    dd_record_tensor outputs[PY_RECORDER_MAX_TENSORS];
    int64_t totals[2]; /* element count of inputs and outputs, if recorded as one tensor */
} py_record;

/* Fill in the record of a collective with prepared operands. Returns NULL if recording is off. */
dd_record_call *py_record_collective(py_record *record, py_state *state, dd_coll coll,
                                     const py_operands *operands);
/* Like py_recorder_stack, for a collective whose cached form (group/form.h) has the rest of its
 * record. Return 0 if recording is off. */
uint32_t py_record_stack(py_state *state);
/* Fill in the record of a message, whose tensor is operand 0. Return NULL if recording is off. */
dd_record_call *py_record_message(py_record *record, py_state *state, const py_operands *operands,
                                  bool is_send, int peer);

/* Implement Group._describe(name, desc, global_ranks) for any object with a recorder group; `group`
 * may be NULL. Return None, or NULL with an exception. */
PyObject *py_recorder_describe(py_state *state, dd_recorder_group *group, dd_recorder_group_info *info,
                               PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames);

/* Module functions. _dump_recorder(is_json, has_entries, has_stacks, is_active_only, path=None)
 * returns bytes, or writes them to a file. _reset_recorder() drops all entries.
 * _recorder_capacity() returns 0 if recording is off. */
PyObject *py_recorder_dump(PyObject *module, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames);
PyObject *py_recorder_reset(PyObject *module, PyObject *unused);
PyObject *py_recorder_capacity(PyObject *module, PyObject *unused);

/* Module functions for backends written in Python. _add_recorded_group(name, desc, rank,
 * global_ranks) returns the group for the other functions. _begin_record(group, name, is_p2p, peer,
 * timeout_ns, inputs, outputs) returns a record's id, and _end_record(group, record, failure=None)
 * ends the record. Tensors are tuples of a dtype name and a shape. */
PyObject *py_recorder_add_foreign(PyObject *module, PyObject *const *args, Py_ssize_t nargs,
                                  PyObject *kwnames);
PyObject *py_recorder_begin(PyObject *module, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames);
PyObject *py_recorder_end(PyObject *module, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames);

#endif
