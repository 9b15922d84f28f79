/* dldist.Work: an operation that is under way, and what happens in Python when it ends. It is a base class, too: one that
 * Python makes has no operation behind it, and classes derived from it say for themselves how it goes.
 *
 * No thread of the core runs Python. What an operation holds (tensors, staging memory, callbacks) is its
 * flight. A flight belongs to its Work; a Work that is dropped leaves it to the operation. When the core
 * ends an operation, it puts the flight into a list if somebody has to do something about it: run
 * callbacks (the completion thread, which Python starts on demand), or let go what a dropped Work has left
 * (the first one to come by).
 *
 * The work of a group on devices may have failed while the device still reads and writes its tensors: those are kept until it is through with them. */
#ifndef DD_PYTHON_WORK_WORK_H
#define DD_PYTHON_WORK_WORK_H

#include "core/lock.h"
#include "core/wait.h"
#include "python/call/operands.h"
#include "work/work.h"

#include <pthread.h>

typedef struct py_completions py_completions;

typedef struct py_flight {
    py_operands operands; /* guarded by the GIL, but for unpacking: unpacking_mu */
    /* const after start */
    py_completions *queue;
    uint64_t generation; /* of forks: in a child nothing here is touched */
    PyObject *group;     /* owned */
    dd_work *work;       /* owned; NULL before the start */
    int64_t timeout_ns;  /* of the operation */
    int op_type;         /* c10d's */
    /* Of groups of devices. */
    bool is_nccl;     /* const after creation: `work` is the head of a dd_nccl_work */
    bool is_blocking; /* a wait makes the host wait */
    bool
        is_stream_ordered; /* its memory is used again in the order of its stream only, and that waits for the end */
    struct py_flight *others; /* owned: calls that are one operation with this one, in order */
    /* guarded by the GIL */
    int nowners;        /* the Work or what is left of it; the queue, for callbacks */
    PyObject *results;  /* owned; NULL until settled */
    PyObject *watchers; /* owned list of callables, or NULL */
    bool is_settled;
    /* guarded by unpacking_mu, which is never held with the GIL */
    dd_lock unpacking_mu;
    bool is_unpacked;
    /* guarded by the queue's lock */
    dd_list link;
    bool is_done;
    bool is_watched;
    bool is_orphan;
} py_flight;

/* A flight with its operands initialised; NULL with an exception. */
py_flight *py_flight_create(py_state *state, PyObject *group, const char *function, int op_type);
/* One that has not started, or has ended. */
void py_flight_destroy(py_flight *flight);
/* For dd_call_options: any thread, the engine's lock held. */
void py_flight_on_done(dd_work *work, void *ctx);

/* Makes the type; NULL with an exception. */
PyObject *py_work_make_type(PyObject *module);

/* A Work for a flight that is about to start, and is taken over with the start. NULL with an exception. */
PyObject *py_work_create(py_state *state);
/* The same for a group of devices. */
PyObject *py_nccl_work_create(py_state *state);
PyObject *py_nccl_work_make_type(PyObject *module, PyObject *base);
void py_work_adopt(PyObject *work, py_flight *flight);

/* The queue of this process (not of its parent); NULL with an exception. */
py_completions *py_completions_get(py_state *state);
/* Lets go what dropped works have left. Cheap when there is nothing. */
void py_completions_drain(py_state *state);

/* Functions of the module. _take_completions() waits for works that somebody watches and calls who watches
 * them; False: stop. _stop_completions() ends it. */
PyObject *py_completions_take(PyObject *module, PyObject *unused);
PyObject *py_completions_stop(PyObject *module, PyObject *unused);
/* _call_aloud(callback, argument): nobody waits for what a callback returns; an Exception that it raises goes
 * to sys.unraisablehook. */
PyObject *py_completions_call_aloud(PyObject *module, PyObject *args);

#endif
