#include "python/base/log.h"

#include "core/log.h"
#include "python/base/convert.h"
#include "python/base/error.h"
#include "python/base/signals.h"

#include <string.h>

PyObject *
py_log_set_level(PyObject *module, PyObject *level)
{
    py_state *state = PyModule_GetState(module);
    if (!PyUnicode_Check(level)) {
        py_raise_wrong_type("set_log_level", "level", "str", level);
        return NULL;
    }
    const char *text = PyUnicode_AsUTF8AndSize(level, NULL);
    dd_log_level parsed;
    if (text == NULL) {
        return NULL;
    }
    if (!dd_log_level_parse(text, &parsed)) {
        PyErr_Format(PyExc_ValueError,
                     "set_log_level(): argument 'level': got %R, expected 'off', 'info' or 'debug'", level);
        return NULL;
    }
    dd_log_set_level(parsed);
    atomic_store(&state->is_log_stopping, false);
    return PyBool_FromLong(parsed != DD_LOG_OFF);
}

static bool
log_is_stopping(void *ctx)
{
    py_state *state = ctx;
    return atomic_load_explicit(&state->is_log_stopping, memory_order_relaxed);
}

/* Wait for a log record. Return (level, seconds since the epoch, number of records lost before this
 * record, message), or None if no record arrives before the timeout or the log is stopping. */
PyObject *
py_log_take_record(PyObject *module, PyObject *timeout)
{
    py_state *state = PyModule_GetState(module);
    int64_t timeout_ns;
    if (!py_to_timeout_ns(state, timeout, &timeout_ns, "_take_log_record", "timeout")) {
        return NULL;
    }
    dd_wait wait = dd_wait_after(timeout_ns);
    wait.is_interrupted = log_is_stopping;
    wait.ctx = state;
    dd_log_record record;
    dd_error err;
    dd_status status;
    sigset_t before;
    Py_BEGIN_ALLOW_THREADS
    py_signals_hold(&before);
    status = dd_log_take(&record, &wait, &err);
    py_signals_release(&before);
    Py_END_ALLOW_THREADS
    if (status == DD_TIMED_OUT || status == DD_INTERRUPTED) {
        Py_RETURN_NONE;
    }
    if (status != DD_OK) {
        py_error_raise(state, status, &err);
        return NULL;
    }
    PyObject *message =
        PyUnicode_DecodeUTF8(record.message, (Py_ssize_t)strlen(record.message), "backslashreplace");
    return Py_BuildValue("(sdIN)", record.level == DD_LOG_DEBUG ? "debug" : "info", record.unix_time_s,
                         record.lost, message);
}

PyObject *
py_log_stop(PyObject *module, PyObject *Py_UNUSED(unused))
{
    py_state *state = PyModule_GetState(module);
    atomic_store(&state->is_log_stopping, true);
    Py_RETURN_NONE;
}
