/* What py_work.c and py_work_flight.c share. All with the GIL held. */
#ifndef DD_PYTHON_PY_WORK_INTERNAL_H
#define DD_PYTHON_PY_WORK_INTERNAL_H

#include "python/py_work.h"

bool py_flight_is_done(py_flight *flight);

/* Of one that is done: unpacks its outputs, lets its tensors go, keeps its results. False with an
 * exception. May be called any number of times, from any thread; whoever calls has a share in it. */
bool py_flight_settle(py_flight *flight);

/* Its Work goes away. */
void py_flight_abandon(py_flight *flight);

/* Calls `watcher` without arguments when it is done: at once when it is, else on the completion thread. -1
 * with an exception; one that is under way in the parent of a forked child has nobody who could call. */
int py_flight_watch(py_flight *flight, PyObject *watcher);

void py_completions_schedule_drain(py_completions *queue);

#endif
