/* The monitor of this process (watch/monitor.h): dldist.base.watch starts it with the first group of several ranks. */
#ifndef DD_PYTHON_OBSERVE_WATCH_H
#define DD_PYTHON_OBSERVE_WATCH_H

#include "python/group/group.h"
#include "watch/monitor.h"

/* ---- for groups; with the GIL, which is let go meanwhile */

/* Starts the monitor if need be; whether is_fatal is the environment's. -1 with an exception. member->release is
 * called in any case, in the end. */
int py_watch_add(py_state *state, const dd_monitor_member *member, uint64_t *id);
/* 0 is fine. The group's store is let go, unless the monitor hangs in it. */
void py_watch_remove(py_state *state, uint64_t id);
/* Whose heartbeat is looked at, NULL for nobody's; its time-out and what becomes of a dead one are the environment's. Does nothing
 * without a monitor, or where there is a heartbeat already. */
void py_watch_heartbeat(py_state *state, const dd_monitor_heartbeat *heartbeat);

/* ---- groups of NCCL's (observe/watch_nccl.c) */

/* Has the monitor look after a group that others are in, too, until its end. -1 with an exception. */
int py_watch_add_nccl(py_group *group);
/* The group has ended; idempotent. */
void py_watch_remove_nccl(py_group *group);

/* ---- functions of the module */

PyObject *py_watch_open(PyObject *module, PyObject *args);
PyObject *py_watch_run(PyObject *module, PyObject *unused);
PyObject *py_watch_stop(PyObject *module, PyObject *grace);
PyObject *py_watch_add_group(PyObject *module, PyObject *group);
PyObject *py_watch_remove_group(PyObject *module, PyObject *id);
PyObject *py_watch_request_dump(PyObject *module, PyObject *unused);
PyObject *py_watch_on_signal(PyObject *module, PyObject *args);
PyObject *py_watch_report(PyObject *module, PyObject *unused);

#endif
