/* The flight recorder in Python: one a process, and who called. */
#ifndef DD_PYTHON_OBSERVE_RECORDER_H
#define DD_PYTHON_OBSERVE_RECORDER_H

#include "group/group.h"
#include "observe/recorder.h"
#include "python/call/operands.h"

#define PY_RECORDER_MAX_TENSORS 8

typedef struct py_recorder py_recorder;

/* The recorder of this process (not of its parent), made as the settings say; it lives as long as the process. NULL with an exception. */
dd_recorder *py_recorder_get(py_state *state);

/* A group that has been made is recorded from now on; "gloo" is the kind of those of the CPU. Without memory it goes unrecorded. */
void py_recorder_attach(py_state *state, dd_group *group);

/* The caller's stack, for dd_record_call; 0: not known. */
uint32_t py_recorder_stack(py_state *state);

/* What is told of a call. Borrows the shapes of the operands. */
typedef struct py_record {
    dd_record_call call;
    dd_record_tensor inputs[PY_RECORDER_MAX_TENSORS];
    dd_record_tensor outputs[PY_RECORDER_MAX_TENSORS];
    int64_t totals[2]; /* elements of a side that is told as one tensor */
} py_record;

/* Of a collective, whose operands have been prepared; NULL when nothing is recorded. */
dd_record_call *py_record_collective(py_record *record, py_state *state, dd_coll coll,
                                     const py_operands *operands);
/* Of a collective that a form describes: who calls it. */
uint32_t py_record_stack(py_state *state);
/* Of a message: the first operand. */
dd_record_call *py_record_message(py_record *record, py_state *state, const py_operands *operands,
                                  bool is_send, int peer);

/* (name, desc, global ranks): Group._describe, for any object with a recorder's group. None, or NULL with an exception. */
PyObject *py_recorder_describe(py_state *state, dd_recorder_group *group, dd_recorder_group_info *info,
                               PyObject *args);

/* Functions of the module: _dump_recorder(is_json, has_entries, has_stacks, is_active_only) gives bytes, _dump_recorder_to_file(path,
 * is_json, has_entries, has_stacks, is_active_only) writes them, _reset_recorder() forgets, _recorder_capacity() is 0 when nothing is
 * recorded. */
PyObject *py_recorder_dump(PyObject *module, PyObject *args);
PyObject *py_recorder_dump_to_file(PyObject *module, PyObject *args);
PyObject *py_recorder_reset(PyObject *module, PyObject *unused);
PyObject *py_recorder_capacity(PyObject *module, PyObject *unused);

#endif
