/* What work/work.c and work/flight.c share. All with the GIL held. */
#ifndef DD_PYTHON_WORK_FLIGHT_H
#define DD_PYTHON_WORK_FLIGHT_H

#include "nccl/nccl_group.h"
#include "python/base/wait.h"
#include "python/work/work.h"

typedef struct py_work {
    PyObject ob_base; /* PyObject_HEAD */
    PyObject *module; /* const after new: keeps `state` alive */
    py_state *state;  /* const after new */
    PyObject *weakrefs;
    py_flight *flight; /* const after adopt: one share in it; NULL for one that Python has made */
} py_work;

/* Of a flight with is_nccl that has started. */
dd_nccl_work *py_flight_nccl_work(const py_flight *flight);

/* Without the GIL: the host waits for the end. */
dd_status py_flight_wait(py_flight *flight, const dd_wait *wait, dd_error *err) DD_MUST_CHECK;

/* What its calls fill, of one that has not been settled: a new list, NULL with an exception. */
PyObject *py_flight_make_results(const py_flight *flight);

/* wait(timeout=None): NULL or None is 0, which is no limit. False with an exception. */
bool py_work_read_timeout(const py_work *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames,
                          int64_t *timeout_ns);
/* For what only an operation can answer: false with a RuntimeError where there is none. The texts are c10d's. */
bool py_work_require_flight(const py_work *self, const char *text);
/* Waits on the host and settles; false with an exception. */
bool py_work_wait_for_end(py_work *self, int64_t timeout_ns);
/* 1: done, and what it has brought is where it belongs. 0: not yet, or for ever without an operation. -1 with an
 * exception. */
int py_work_look(py_work *self);

bool py_flight_is_done(py_flight *flight);

/* Of one that is done: unpacks its outputs, lets its tensors go, keeps its results. False with an
 * exception. May be called any number of times, from any thread; the caller has a share in it. */
bool py_flight_settle(py_flight *flight);

/* Its Work goes away. */
void py_flight_abandon(py_flight *flight);

/* Calls `watcher` without arguments when it is done: at once when it is, else on the completion thread. -1
 * with an exception; one that is under way in the parent of a forked child has no thread that could call. */
int py_flight_watch(py_flight *flight, PyObject *watcher);

void py_completions_schedule_drain_locked(py_completions *queue);

#endif
