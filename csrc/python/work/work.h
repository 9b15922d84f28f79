/* dldist.Work: an operation that has been started, and what happens in Python when it ends. It is also a base
 * class: a Work made in Python has no operation, and classes derived from it implement its methods themselves.
 *
 * No thread of the core runs Python code. What an operation needs in Python (tensors, staging memory, callbacks)
 * is its flight. A flight belongs to its Work; if the Work is dropped, it belongs to the operation. When the core
 * ends an operation, it puts the flight into a list if something is left to do: the completion thread, which
 * Python starts on demand, runs callbacks, and the next thread that drains the queue releases what a dropped Work
 * has left.
 *
 * The work of a group on devices may fail while the device still reads and writes its tensors. They are kept until
 * the device is done with them. */
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
    /* const while the flight has readers, except for unpacking, which unpacking_mu guards; see py_flight_settle */
    py_operands operands;
    /* const after start */
    py_completions *queue;
    uint64_t generation; /* of forks: a forked child touches nothing here */
    PyObject *group;     /* owned */
    dd_work *work;       /* owned; NULL before the start */
    int64_t timeout_ns;  /* of the operation */
    int op_type;         /* c10d's OpType */
    /* for groups on devices */
    bool is_nccl;     /* const after creation: `work` is the head of a dd_nccl_work */
    bool is_blocking; /* a wait makes the host wait */
    /* its memory is reused only in the order of its stream, and that stream waits for the end */
    bool is_stream_ordered;
    struct py_flight *others; /* owned: further calls of the same operation, in order */
    atomic_int nowners;       /* references: the Work's, or the one it left; the queue's, for callbacks */
    atomic_bool is_settled;   /* set once, after `results` */
    py_lock lock;
    /* guarded by lock */
    PyObject *results; /* owned; NULL until settled, then const */
    int nreaders;      /* threads that make results of the operands */
    /* guarded by unpacking_mu, which only detached threads take */
    dd_lock unpacking_mu;
    bool is_unpacked;
    /* guarded by the queue's lock */
    dd_list link;
    bool is_done;
    atomic_bool is_watched;      /* there are watchers, or the last of them is being called */
    bool is_orphan;              /* const once the flight is in a list of the queue */
    struct py_watcher *watchers; /* owned: the next one to call */
} py_flight;

/* A new flight of a group, with its operands initialised. First releases what dropped Works have left. NULL with an
 * exception. */
py_flight *py_flight_create(struct py_group *group, const char *function, int op_type);
/* Destroys a flight that has not started or has ended. */
void py_flight_destroy(py_flight *flight);
/* The on_done of dd_call_options. May be called on any thread, with the engine's lock held. */
void py_flight_on_done(dd_work *work, void *ctx);

extern PyType_Spec py_work_spec;
extern PyType_Spec py_nccl_work_spec;

/* Gives a new Work or NcclWork its flight, whose operation has started. The Work takes it over. */
void py_work_adopt(PyObject *work, py_flight *flight);

/* The queue of this process, never that of its parent. NULL with an exception. */
py_completions *py_completions_get(py_state *state);
/* Releases what dropped Works have left. Cheap if there is nothing. */
void py_completions_drain(py_state *state);

/* Functions of the module. _take_completions() waits for a watched work to end and calls its watchers; it returns
 * False to stop. _stop_completions() makes it stop, and makes the calls that are left. */
PyObject *py_completions_take(PyObject *module, PyObject *unused);
PyObject *py_completions_stop(PyObject *module, PyObject *unused);
/* _core._call_and_report(callback, argument): calls a callback whose result nobody waits for. An Exception that it
 * raises goes to sys.unraisablehook. */
PyObject *py_completions_call_and_report(PyObject *module, PyObject *const *args, Py_ssize_t nargs,
                                         PyObject *kwnames);

#endif
