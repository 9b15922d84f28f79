#include "python/base/gate.h"

#include "core/clock.h"

#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

#define CLOSED (1u << 31)
#define CLOSING_NS (2 * DD_NS_PER_S)
#define CLOSING_STEP_US 200

/* The gate: the CLOSED bit, and the number of threads inside. There is one gate per process, as
 * there is one interpreter. It is not a lock, because a fork could leave a lock held. */
static atomic_uint gate;
static pthread_once_t once = PTHREAD_ONCE_INIT;

bool
py_gate_enter(py_gate_pass *pass)
{
    pass->is_counted = PyGILState_GetThisThreadState() == NULL;
    if (pass->is_counted && (atomic_fetch_add(&gate, 1) & CLOSED) != 0) {
        atomic_fetch_sub(&gate, 1);
        return false;
    }
    pass->gil = PyGILState_Ensure();
    return true;
}

void
py_gate_leave(const py_gate_pass *pass)
{
    PyGILState_Release(pass->gil);
    if (pass->is_counted) {
        atomic_fetch_sub(&gate, 1);
    }
}

/* Reset the count in a forked child, which does not have the threads that were inside the gate. */
static void
reset_gate_in_child(void)
{
    atomic_fetch_and(&gate, CLOSED);
}

static void
register_fork_handler(void)
{
    (void)pthread_atfork(NULL, NULL, reset_gate_in_child);
}

int
py_gate_init(PyObject *module)
{
    (void)pthread_once(&once, register_fork_handler);
    PyObject *atexit = PyImport_ImportModule("atexit");
    PyObject *close = atexit != NULL ? PyObject_GetAttrString(module, "_close_gate") : NULL;
    PyObject *done = close != NULL ? PyObject_CallMethod(atexit, "register", "O", close) : NULL;
    int rc = done != NULL ? 0 : -1;
    Py_XDECREF(done);
    Py_XDECREF(close);
    Py_XDECREF(atexit);
    return rc;
}

/* Release the GIL while waiting, because threads inside the gate need the GIL to leave. The wait is
 * bounded: a thread that takes longer, in the destructor of an object, is abandoned like any Python
 * thread at exit. */
PyObject *
py_gate_close(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused))
{
    if ((atomic_fetch_or(&gate, CLOSED) & ~CLOSED) != 0) {
        Py_BEGIN_ALLOW_THREADS
        int64_t deadline_ns = dd_deadline_after(CLOSING_NS);
        while ((atomic_load(&gate) & ~CLOSED) != 0 && dd_deadline_left_ns(deadline_ns) > 0) {
            usleep(CLOSING_STEP_US);
        }
        Py_END_ALLOW_THREADS
    }
    Py_RETURN_NONE;
}
