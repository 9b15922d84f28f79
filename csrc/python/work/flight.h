/* Declarations shared by work/work.c and work/flight.c. A flight is the Python references of an
 * operation (work/work.h). Call all functions with the GIL held, or attached, unless noted. */
#ifndef DD_PYTHON_WORK_FLIGHT_H
#define DD_PYTHON_WORK_FLIGHT_H

#include "nccl/group.h"
#include "python/base/object.h"
#include "python/base/wait.h"
#include "python/work/work.h"

typedef struct py_work {
    PY_OBJECT_HEAD;
    /* the operation's references; owned; const after py_work_adopt; NULL without an operation */
    py_flight *flight;
} py_work;

/* Return the NCCL work (borrowed). The flight must have is_nccl set and must have started. */
dd_nccl_work *py_flight_nccl_work(const py_flight *flight);

/* Block until the operation has ended. Must be called without the GIL. */
dd_status py_flight_wait(py_flight *flight, const dd_wait *wait, dd_error *err) DD_MUST_CHECK;

/* Read the argument of wait(timeout=None); None gives 0, which means no limit. */
bool py_work_read_timeout(const py_work *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames,
                          int64_t *timeout_ns);
/* Return true if the Work has an operation, else raise RuntimeError(text); the texts are
 * torch's. */
bool py_work_require_flight(const py_work *self, const char *text);
/* Block until the operation has ended, and finish the flight. */
bool py_work_wait_for_end(py_work *self, int64_t timeout_ns);
/* Return 1 if the operation has ended and the flight is finished; 0 if the operation has not ended
 * or there is none; -1 with an exception. */
int py_work_poll(py_work *self);

/* Return a new reference to the list of tensors that the flight's calls fill, or NULL with an
 * exception. Once the flight is finished it is always the same list. */
PyObject *py_flight_get_results(py_flight *flight);

bool py_flight_is_done(py_flight *flight);

/* Finish a completed flight: unpack its outputs, keep its results and release its tensors. Any
 * thread that holds a reference may call this any number of times. */
bool py_flight_finish(py_flight *flight);

/* Release the Work's reference to the flight. Must be called when the Work is destroyed. */
void py_flight_release(py_flight *flight);

/* Call `watcher` without arguments once the operation has ended: immediately if it has already
 * ended, otherwise on the completion thread. Return -1 with an exception on failure, also in a
 * forked child for an unfinished flight of its parent, because no thread would make the call. */
int py_flight_watch(py_flight *flight, PyObject *watcher);

void py_completions_schedule_drain_locked(py_completions *queue);

#endif
