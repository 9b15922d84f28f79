/* A wait in the core (dd_wait) on behalf of a Python caller. Ctrl-C ends the wait, and exceptions
 * of Python code that the core calls reach the caller. */
#ifndef DD_PYTHON_BASE_WAIT_H
#define DD_PYTHON_BASE_WAIT_H

#include "core/wait.h"
#include "python/base/error.h"

#include <stdbool.h>

/* Evaluate an expression without the GIL. */
#define PY_WITHOUT_GIL(expression)                      \
    __extension__({                                     \
        PyThreadState *py_thread = PyEval_SaveThread(); \
        __typeof__(expression) py_value = (expression); \
        PyEval_RestoreThread(py_thread);                \
        py_value;                                       \
    })

/* Evaluate an expression that calls the core for about a microsecond. With a GIL, keep the GIL,
 * because retaking it would take longer. Without a GIL, detach: see base/lock.h. */
#ifdef PY_MAY_LACK_GIL
#define PY_BRIEFLY(expression) PY_WITHOUT_GIL(expression)
#else
#define PY_BRIEFLY(expression) (expression)
#endif

/* The wait of one call into the core. Lives on the stack of the caller's thread. */
typedef struct py_wait {
    dd_wait wait;
    py_state *state;
    /* true if the caller passed the timeout; false if it is the store's default */
    bool has_timeout;
    bool is_passed_on;     /* true once Python code called by the core has received the timeout */
    bool is_signal;        /* true if a signal handler raised `exception` */
    PyObject *exception;   /* owned exception, to be raised when the core has returned; or NULL */
    PyThreadState *thread; /* the thread's state while py_wait_on_block has released the GIL */
} py_wait;

void py_wait_init(py_wait *wait, py_state *state, int64_t timeout_ns, bool has_timeout);

/* Init a wait without a deadline, for an operation that ends by itself. Errors then do not report
 * the elapsed time, because the start is not recorded. */
void py_wait_init_endless(py_wait *wait, py_state *state);

/* Release the GIL unless an earlier call has released it. `wait` must point to a py_wait. */
void py_wait_on_block(void *wait);
/* Begin a call into the core that may take only a microsecond: the call starts with the GIL held,
 * and the core calls py_wait_on_block (wait.on_block) if the call takes longer. Without a GIL, the
 * thread detaches now. */
void py_wait_begin(py_wait *wait);
/* Retake the GIL if py_wait_on_block has released it. */
void py_wait_return(py_wait *wait);

/* Return the py_wait that contains `wait`, or that contains the dd_wait from which `wait` was
 * copied. Return NULL if no py_wait does. */
py_wait *py_wait_of(const dd_wait *wait);

/* Clear the current exception and keep it for py_wait_finish. Drops an exception kept before. */
void py_wait_keep_exception(py_wait *wait);

/* End the call. Return true on success. Otherwise return false and raise an exception: the one kept
 * by py_wait_keep_exception if the call failed or a signal handler raised it, else the one for
 * `status`. */
bool py_wait_finish(py_wait *wait, dd_status status, const dd_error *err);

#endif
