/* The monitor of this process (watch/monitor.h). dldist._base.monitor_thread starts it with the first group of several
 * ranks. */
#ifndef DD_PYTHON_OBSERVE_WATCH_H
#define DD_PYTHON_OBSERVE_WATCH_H

#include "python/group/group.h"
#include "watch/monitor.h"

/* ---- for groups; these need the GIL, and release it meanwhile */

/* Adds an open group to the monitor, which is started if needed. `extra` says how the monitor can fail the group.
 * The environment decides on is_fatal. -1 with an exception. extra->release is called in any case, when the member
 * is no longer needed. */
int py_watch_add(const py_group *group, const dd_monitor_member *extra, uint64_t *id);
/* Removes a group; an id of 0 does nothing. The group's store is released, unless the monitor hangs in it. */
void py_watch_remove(py_state *state, uint64_t id);
/* Sets the heartbeat that the monitor checks; NULL for none. The environment decides on its time-out, and on what
 * happens if it stops. Does nothing without a monitor, or if there already is a heartbeat. */
void py_watch_heartbeat(py_state *state, const dd_monitor_heartbeat *heartbeat);

/* ---- NCCL's groups (observe/watch_nccl.c) */

/* Has the monitor watch a group until it ends, if it has several ranks. -1 with an exception. */
int py_watch_add_nccl(py_group *group);
/* Removes a group that has ended; may be called again. */
void py_watch_remove_nccl(py_group *group);

/* ---- functions of the module */

PyObject *py_watch_open(PyObject *module, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames);
PyObject *py_watch_run(PyObject *module, PyObject *unused);
PyObject *py_watch_stop(PyObject *module, PyObject *grace);
PyObject *py_watch_add_group(PyObject *module, PyObject *group);
PyObject *py_watch_remove_group(PyObject *module, PyObject *id);
PyObject *py_watch_request_dump(PyObject *module, PyObject *unused);
PyObject *py_watch_on_signal(PyObject *module, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames);
PyObject *py_watch_report(PyObject *module, PyObject *unused);

#endif
