/* Shared by work/work.c and work/flight.c. Everything here needs the GIL, or an attached thread, unless it says
 * otherwise. */
#ifndef DD_PYTHON_WORK_FLIGHT_H
#define DD_PYTHON_WORK_FLIGHT_H

#include "nccl/group.h"
#include "python/base/object.h"
#include "python/base/wait.h"
#include "python/work/work.h"

typedef struct py_work {
    PY_OBJECT_HEAD;
    py_flight *flight; /* const after adopt: holds one reference; NULL for a Work made in Python */
} py_work;

/* The work (borrowed) of a flight that has is_nccl set and has started. */
dd_nccl_work *py_flight_nccl_work(const py_flight *flight);

/* Makes the host wait for the end. Called without the GIL. */
dd_status py_flight_wait(py_flight *flight, const dd_wait *wait, dd_error *err) DD_MUST_CHECK;

/* Reads the argument of wait(timeout=None). None gives 0, which means no limit. False with an exception. */
bool py_work_read_timeout(const py_work *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames,
                          int64_t *timeout_ns);
/* For questions that only an operation can answer: false with a RuntimeError if there is none. The texts are
 * c10d's. */
bool py_work_require_flight(const py_work *self, const char *text);
/* Makes the host wait for the end and settles the flight. False with an exception. */
bool py_work_wait_for_end(py_work *self, int64_t timeout_ns);
/* 1: done and settled. 0: not done; always 0 without an operation. -1 with an exception. */
int py_work_look(py_work *self);

/* The tensors that the calls of a flight fill: the list that stays if it is settled, otherwise a new one. A new
 * reference; NULL with an exception. */
PyObject *py_flight_get_results(py_flight *flight);

bool py_flight_is_done(py_flight *flight);

/* Settles a flight that is done: unpacks its outputs, keeps its results and releases its tensors. False with an
 * exception. May be called any number of times, from any thread. The caller holds a reference. */
bool py_flight_settle(py_flight *flight);

/* Called when the Work of the flight goes away. */
void py_flight_abandon(py_flight *flight);

/* Calls `watcher` without arguments when the flight is done: now if it is, otherwise on the completion thread. -1
 * with an exception, also for an unfinished flight of the parent of a forked child, where no thread could call. */
int py_flight_watch(py_flight *flight, PyObject *watcher);

void py_completions_schedule_drain_locked(py_completions *queue);

#endif
