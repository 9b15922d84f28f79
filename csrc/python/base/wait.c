#include "python/base/wait.h"

#include <sys/syscall.h>
#include <unistd.h>

/* Run the handlers of pending signals; return true if a handler raises. Only the main thread runs
 * signal handlers, so other threads need not compete for the GIL. */
static bool
is_interrupted(void *ctx)
{
    py_wait *wait = ctx;
    if (syscall(SYS_gettid) != getpid()) {
        return false;
    }
    PyGILState_STATE gil = PyGILState_Ensure();
    bool is_raised = PyErr_CheckSignals() < 0;
    if (is_raised) {
        wait->is_signal = true;
        py_wait_keep_exception(wait);
    }
    PyGILState_Release(gil);
    return is_raised;
}

void
py_wait_init(py_wait *wait, py_state *state, int64_t timeout_ns, bool has_timeout)
{
    int64_t now_ns = dd_clock_now_ns();
    *wait = (py_wait){
        .wait =
            {
                .start_ns = now_ns,
                .deadline_ns = timeout_ns < DD_NEVER_NS - now_ns ? now_ns + timeout_ns : DD_NEVER_NS,
                .is_interrupted = is_interrupted,
                .ctx = wait,
            },
        .state = state,
        .has_timeout = has_timeout,
    };
}

void
py_wait_init_endless(py_wait *wait, py_state *state)
{
    *wait = (py_wait){
        .wait = {.deadline_ns = DD_NEVER_NS, .is_interrupted = is_interrupted, .ctx = wait},
        .state = state,
        .has_timeout = true,
    };
}

void
py_wait_on_block(void *wait)
{
    py_wait *self = wait;
    if (self->thread == NULL) {
        self->thread = PyEval_SaveThread();
    }
}

void
py_wait_begin(py_wait *wait)
{
    wait->wait.on_block = py_wait_on_block;
#ifdef PY_MAY_LACK_GIL
    py_wait_on_block(wait);
#endif
}

void
py_wait_return(py_wait *wait)
{
    if (wait->thread != NULL) {
        PyEval_RestoreThread(wait->thread);
        wait->thread = NULL;
    }
}

py_wait *
py_wait_of(const dd_wait *wait)
{
    return wait != NULL && wait->is_interrupted == is_interrupted ? wait->ctx : NULL;
}

void
py_wait_keep_exception(py_wait *wait)
{
    PyObject *earlier = wait->exception;
    wait->exception = py_error_take();
    Py_XDECREF(earlier);
}

bool
py_wait_finish(py_wait *wait, dd_status status, const dd_error *err)
{
    /* A signal handler's exception is raised even if the operation has succeeded. */
    if (wait->exception != NULL && (status != DD_OK || wait->is_signal)) {
        py_error_put(wait->exception);
        return false;
    }
    Py_XDECREF(wait->exception);
    if (status == DD_OK) {
        return true;
    }
    py_error_raise(wait->state, status, err);
    return false;
}
