/* Exceptions: what a dd_status looks like in Python. */
#ifndef DD_PYTHON_BASE_ERROR_H
#define DD_PYTHON_BASE_ERROR_H

#include "core/status.h"
#include "python/base/state.h"

/* Makes the exceptions and puts them into the module; -1 with an exception. */
int py_error_add_to_module(PyObject *module, py_state *state);

/* Raises what stands for `status`, with err's message; on the main thread what the handler of a pending signal
 * raises comes first. DD_INTERRUPTED keeps an exception that is set. */
void py_error_raise(py_state *state, dd_status status, const dd_error *err);

/* The same for what a group says: it is DistBackendError that stands for DD_CLOSED and DD_FORKED there. */
void py_error_raise_of_group(py_state *state, dd_status status, const dd_error *err);

/* The exception that py_error_raise_of_group raises; a new reference, NULL with an exception. */
PyObject *py_error_of_group(py_state *state, dd_status status, const dd_error *err);

/* The status the core sees for the exception that is set: what kind of failure it is, DD_STORE when it is a
 * stranger. */
dd_status py_error_status_of_current(py_state *state);

/* _core._call_despite_ctrl_c(function, *args): for what a process still has to say when it ends. A Ctrl-C that
 * is pending, or comes in the call, is passed over, and the call made again, a few times. */
PyObject *py_error_call_despite_ctrl_c(PyObject *module, PyObject *args);

/* _core._raise_status(code), _core._status_names(): for tests that walk all codes. */
PyObject *py_error_raise_status(PyObject *module, PyObject *code);
PyObject *py_error_status_names(PyObject *module, PyObject *unused);

#endif
