/* Conversion of dd_status to Python exceptions. Throughout the binding, a function that can fail
 * sets an exception and returns false, NULL or -1, unless its comment describes another result. */
#ifndef DD_PYTHON_BASE_ERROR_H
#define DD_PYTHON_BASE_ERROR_H

#include "core/status.h"
#include "python/base/state.h"

/* Create the exception classes and add them to the module. */
int py_error_add_to_module(PyObject *module, py_state *state);

/* Raise the exception for `status` with err's message. On the main thread, run the handlers of
 * pending signals first; if a handler raises, keep the handler's exception instead. With
 * DD_INTERRUPTED, keep an exception that is already set. */
void py_error_raise(py_state *state, dd_status status, const dd_error *err);

/* Like py_error_raise, for a group: DD_CLOSED and DD_FORKED raise DistBackendError. */
void py_error_raise_of_group(py_state *state, dd_status status, const dd_error *err);

/* Return true for DD_OK. Otherwise call py_error_raise_of_group and return false. */
bool py_error_check_of_group(py_state *state, dd_status status, const dd_error *err);

/* Return a new reference to the exception that py_error_raise_of_group would raise. */
PyObject *py_error_of_group(py_state *state, dd_status status, const dd_error *err);

/* Clear the current exception and return a new reference to it; NULL if there is none. */
PyObject *py_error_take(void);
/* Set the current exception, taking ownership of `error`; if NULL, clear the current exception. */
void py_error_put(PyObject *error);
/* Clear the current exception, if any, after a lookup in the caller's objects that may fail. A
 * KeyboardInterrupt is not lost: the main thread is signalled again, as by SIGINT. Other exceptions
 * outside Exception, such as SystemExit, are lost. */
void py_error_forget(void);
/* Return true if the lookup of the attribute succeeds. Keeps the current exception. */
bool py_has_attribute(PyObject *object, PyObject *name);

/* Return the status for the current exception: DD_STORE for an Exception of unknown kind,
 * DD_INTERRUPTED if it is not derived from Exception. */
dd_status py_error_status_of_current(py_state *state);

/* Implement _core._call_despite_ctrl_c(function, *args), for calls that an exiting process must
 * make: ignore a Ctrl-C before or during the call and repeat the call, up to three attempts in
 * all. */
PyObject *py_error_call_despite_ctrl_c(PyObject *module, PyObject *args);

#endif
