/* The process's monitor (watch/monitor.h). dldist._base.monitor_thread starts it with the first
 * group of several ranks. */
#ifndef DD_PYTHON_OBSERVE_WATCH_H
#define DD_PYTHON_OBSERVE_WATCH_H

#include "python/group/group.h"
#include "watch/monitor.h"

/* ---- functions for groups: must be called with the GIL, which they release while they wait */

/* Add an open group to the monitor, and start the monitor if needed. `extra` defines how the
 * monitor can fail the group; extra->release is always called when the member is no longer needed.
 * The environment determines is_fatal. Return -1 with an exception on failure. */
int py_watch_add(const py_group *group, const dd_monitor_member *extra, uint64_t *id);
/* Remove the group with this id from the monitor; an id of 0 has no effect. Release the group's
 * store, unless the monitor hangs in a call of this store. */
void py_watch_remove(py_state *state, uint64_t id);
/* Set the heartbeat that the monitor checks; NULL removes it. The environment determines the
 * heartbeat's timeout and the action if the heartbeat stops. No effect without a monitor, or if a
 * heartbeat is already set. */
void py_watch_heartbeat(py_state *state, const dd_monitor_heartbeat *heartbeat);

/* ---- NCCL groups (observe/watch_nccl.c) */

/* Monitor a group of several ranks until it ends. Returns -1 with an exception on failure. */
int py_watch_add_nccl(py_group *group);
/* Remove a group that has ended from the monitor. May be called more than once. */
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
