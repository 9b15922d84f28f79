/* The exceptions that Python sees in place of a dd_status. */
#ifndef DD_PYTHON_BASE_ERROR_H
#define DD_PYTHON_BASE_ERROR_H

#include "core/status.h"
#include "python/base/state.h"

/* Makes the exception classes and adds them to the module; -1 with an exception. */
int py_error_add_to_module(PyObject *module, py_state *state);

/* Raises the exception for `status` with err's message. On the main thread, a pending signal is handled first, and
 * what its handler raises is raised instead. With DD_INTERRUPTED, an exception that is already set stays. */
void py_error_raise(py_state *state, dd_status status, const dd_error *err);

/* Like py_error_raise, for the status of a group: DD_CLOSED and DD_FORKED raise DistBackendError. */
void py_error_raise_of_group(py_state *state, dd_status status, const dd_error *err);

/* True for DD_OK; otherwise false with the exception of py_error_raise_of_group. */
bool py_error_check_of_group(py_state *state, dd_status status, const dd_error *err);

/* The exception that py_error_raise_of_group would raise; a new reference, NULL with an exception. */
PyObject *py_error_of_group(py_state *state, dd_status status, const dd_error *err);

/* Clears the exception that is set and returns it: a new reference, NULL if there is none. */
PyObject *py_error_take(void);
/* Sets an exception again, which it takes over; NULL: none. */
void py_error_put(PyObject *error);

/* The status that tells the core what kind of failure the exception that is set is: DD_STORE for an Exception of
 * unknown kind, DD_INTERRUPTED for anything not derived from Exception. */
dd_status py_error_status_of_current(py_state *state);

/* _core._call_despite_ctrl_c(function, *args): for calls that a process still has to make as it ends. A Ctrl-C that
 * is pending or comes during the call is ignored, and the call is made again, a few times. */
PyObject *py_error_call_despite_ctrl_c(PyObject *module, PyObject *args);

#endif
