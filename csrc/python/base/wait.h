/* A dd_wait on behalf of a Python caller. Ctrl-C ends it, and exceptions of Python code that the core calls reach the
 * caller. */
#ifndef DD_PYTHON_BASE_WAIT_H
#define DD_PYTHON_BASE_WAIT_H

#include "core/wait.h"
#include "python/base/error.h"

#include <stdbool.h>

/* The value of an expression that is computed without the GIL. */
#define PY_WITHOUT_GIL(expression)                      \
    __extension__({                                     \
        PyThreadState *py_thread = PyEval_SaveThread(); \
        __typeof__(expression) py_value = (expression); \
        PyEval_RestoreThread(py_thread);                \
        py_value;                                       \
    })

/* The value of an expression that calls the core for a microsecond, less than releasing and retaking the GIL. Without a
 * GIL, the thread detaches for it: see base/lock.h. */
#ifdef PY_MAY_LACK_GIL
#define PY_BRIEFLY(expression) PY_WITHOUT_GIL(expression)
#else
#define PY_BRIEFLY(expression) (expression)
#endif

/* One call into the core. Lives on the stack of the caller's thread. */
typedef struct py_wait {
    dd_wait wait;
    py_state *state;
    bool has_timeout;      /* the caller gave the time-out; otherwise it is the store's */
    bool is_handed_on;     /* Python code called by the core was given the time-out */
    bool is_signal;        /* the exception below came from a signal handler */
    PyObject *exception;   /* kept while the core unwinds */
    PyThreadState *thread; /* set while the GIL is released by py_wait_let_go */
} py_wait;

void py_wait_init(py_wait *wait, py_state *state, int64_t timeout_ns, bool has_timeout);

/* A wait without a deadline, for something that ends by itself. Its start is not recorded, so its errors do not
 * say how long it took. */
void py_wait_init_endless(py_wait *wait, py_state *state);

/* Releases the GIL; may be called again. */
void py_wait_let_go(void *wait);
/* Begins a call into the core that may take only a microsecond, less than releasing and retaking the GIL: it starts with
 * the GIL held, and the core calls py_wait_let_go (wait.let_go) when it takes longer. Without a GIL, the thread detaches
 * now. */
void py_wait_begin(py_wait *wait);
/* Retakes the GIL if it was released. */
void py_wait_return(py_wait *wait);

/* The py_wait that `wait`, or the wait it was made from, belongs to. NULL when there is none. */
py_wait *py_wait_of(const dd_wait *wait);

/* Clears the exception that is set and keeps it for py_wait_finish. Only the latest is kept. */
void py_wait_keep_exception(py_wait *wait);

/* Ends the call. False with an exception: the one kept by py_wait_keep_exception, unchanged, if the call failed or a
 * signal handler raised it; otherwise the one for the status. True otherwise. */
bool py_wait_finish(py_wait *wait, dd_status status, const dd_error *err);

#endif
