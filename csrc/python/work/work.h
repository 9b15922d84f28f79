/* dldist.Work: a started operation, and its completion in Python. Work is also a base class: a Work
 * created in Python has no operation, and derived classes implement its methods themselves.
 *
 * No thread of the core runs Python code. The Python objects that an operation needs (tensors,
 * staging memory, callbacks) are its flight. A flight belongs to its Work; if the Work is dropped,
 * the flight belongs to the operation. When the core ends an operation whose flight still needs
 * Python, it puts the flight into a list of a queue. The completion thread, which Python starts on
 * demand, calls the callbacks; the next thread that drains the queue releases the flights of
 * dropped Works.
 *
 * A work of a group on devices may fail while the device still reads and writes its tensors. The
 * tensors are then kept until the device is done with them. */
#ifndef DD_PYTHON_WORK_WORK_H
#define DD_PYTHON_WORK_WORK_H

#include "core/lock.h"
#include "core/wait.h"
#include "python/call/operands.h"
#include "work/work.h"

#include <pthread.h>

typedef struct py_completions py_completions;
struct py_group;

typedef struct py_flight {
    /* tensors: const while nreaders > 0 (py_flight_finish); unpacking is guarded by unpacking_mu */
    py_operands operands;
    /* The fields below are const after the start. */
    py_completions *queue;
    /* fork generation of the process that created the flight; a forked child must not use it */
    uint64_t generation;
    PyObject *group;    /* owned reference to the group */
    dd_work *work;      /* the core's work; owned; NULL before the start */
    int64_t timeout_ns; /* the operation's timeout in nanoseconds */
    int op_type;        /* number of the operation in torch's c10d.OpType */
    /* The fields below are used only for groups on devices. */
    bool is_nccl;     /* const after creation: true if `work` is the head of a dd_nccl_work */
    bool is_blocking; /* true if wait() blocks the host */
    /* true if the tensors' memory is reused only in the order of its stream, which waits for the
     * operation's end */
    bool is_stream_ordered;
    struct py_flight *others; /* owned: further calls of the same operation, in order */
    /* number of references: one by the Work, or by the operation if the Work was dropped; one by
     * the queue while is_watched */
    atomic_int nowners;
    atomic_bool is_finished; /* atomic: set to true once, after `results` */
    py_lock lock;
    /* The fields below are guarded by `lock`. */
    PyObject *results; /* the list of output tensors; owned; NULL until finished, then const */
    int nreaders;      /* number of threads that create results from the operands */
    /* The fields below are guarded by unpacking_mu, which must be taken only without the GIL. */
    dd_lock unpacking_mu;
    bool is_unpacked;
    /* The fields below are guarded by the queue's lock. */
    dd_list link;
    bool is_done;
    atomic_bool is_watched; /* true while a watcher has not been called yet, or is being called */
    /* true if the Work was dropped before the end; const once a list of the queue has the flight */
    bool is_orphan;
    /* owned list of the callbacks for the operation's end; the first is called next */
    struct py_watcher *watchers;
} py_flight;

/* Create a flight for a call on the group, with its operands initialised. First release the flights
 * of dropped Works. Return NULL with an exception on failure. */
py_flight *py_flight_create(struct py_group *group, const char *function, int op_type);
/* Destroy a flight that has not started, or whose operation has ended. */
void py_flight_destroy(py_flight *flight);
/* The callback on_done of dd_call_options. Called on any thread, with the engine's lock held. */
void py_flight_on_done(dd_work *work, void *ctx);

extern PyType_Spec py_work_spec;
extern PyType_Spec py_nccl_work_spec;

/* Make a new Work or NcclWork the owner of the flight, whose operation must have started. */
void py_work_adopt(PyObject *work, py_flight *flight);

/* Return the queue of ended operations of this process, never its parent's. */
py_completions *py_completions_get(py_state *state);
/* Release the flights of dropped Works. Takes little time if there are none. */
void py_completions_drain(py_state *state);

/* Implement _core._wait_any(works, timeout): wait until one Work of a tuple has ended. Return True,
 * or False after the timeout, or None if the core cannot wait for these Works with one sleep. */
PyObject *py_work_wait_any(PyObject *module, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames);

/* Module functions. _take_completions() waits for an operation with watchers to end and calls the
 * watchers; it returns False when it must not be called again. _stop_completions() stops
 * _take_completions, and calls the remaining watchers. */
PyObject *py_completions_take(PyObject *module, PyObject *unused);
PyObject *py_completions_stop(PyObject *module, PyObject *unused);
/* Implement _core._call_and_report(callback, argument): call a callback whose result no caller
 * waits for. An Exception that the callback raises goes to sys.unraisablehook. */
PyObject *py_completions_call_and_report(PyObject *module, PyObject *const *args, Py_ssize_t nargs,
                                         PyObject *kwnames);

#endif
