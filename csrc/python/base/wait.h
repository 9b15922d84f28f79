/* A dd_wait on behalf of a Python caller: Ctrl-C ends it, and exceptions of Python code below the core come
 * through. */
#ifndef DD_PYTHON_BASE_WAIT_H
#define DD_PYTHON_BASE_WAIT_H

#include "core/wait.h"
#include "python/base/error.h"

#include <stdbool.h>

/* Lives on the stack of the caller's thread for one call into the core. */
typedef struct py_wait {
    dd_wait wait;
    py_state *state;
    bool has_timeout;       /* the caller gave the time-out; else it is the store's */
    bool is_handed_on;      /* Python code below was given the time-out */
    bool is_signal;         /* the exception below came from a signal handler */
    PyObject *exception[3]; /* type, value, traceback; kept while the core unwinds */
    PyThreadState *thread;  /* while the GIL is let go by py_wait_let_go */
} py_wait;

void py_wait_init(py_wait *wait, py_state *state, int64_t timeout_ns, bool has_timeout);

/* Without a deadline: what is waited for ends by itself. Its start is not known, and its errors tell no
 * time. */
void py_wait_init_endless(py_wait *wait, py_state *state);

/* For calls that may be over in a microsecond, which is less than it takes to give the GIL away and get it back:
 * they begin with it, and the core calls this when they take longer (wait.let_go). Once is enough. */
void py_wait_let_go(void *wait);
/* Gets the GIL back if it was let go. */
void py_wait_return(py_wait *wait);

/* The py_wait that `wait` (or one made from it) belongs to, NULL when it is not from here. */
py_wait *py_wait_of(const dd_wait *wait);

/* Takes the exception that is set out of the thread until py_wait_finish; the latest one wins. */
void py_wait_keep_exception(py_wait *wait);

/* Ends the call: true for DD_OK. Otherwise raises: what Python code had raised, unchanged, else what stands
 * for the status. */
bool py_wait_finish(py_wait *wait, dd_status status, const dd_error *err);

#endif
