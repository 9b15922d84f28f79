#include "python/py_error.h"

#include <string.h>

#define NO_BASE (-1)
#define BUILTIN_TIMEOUT (-2) /* TimeoutError of Python itself */

/* Bases come before what is derived from them; with none, it is a RuntimeError. */
static const struct {
    py_error_kind kind;
    const char *name;
    int bases[2];
    const char *doc;
} error_table[] = {
    {PY_ERROR_DIST,
     "dldist.DistError",
     {NO_BASE, NO_BASE},
     "Any failure of dldist.\n\n`code` names its kind."},
    {PY_ERROR_BACKEND, "dldist.DistBackendError", {PY_ERROR_DIST, NO_BASE}, "A backend failed."},
    {PY_ERROR_NETWORK, "dldist.DistNetworkError", {PY_ERROR_DIST, NO_BASE}, "A connection failed."},
    {PY_ERROR_STORE, "dldist.DistStoreError", {PY_ERROR_DIST, NO_BASE}, "A store failed."},
    {PY_ERROR_QUEUE_EMPTY,
     "dldist.DistQueueEmptyError",
     {PY_ERROR_STORE, NO_BASE},
     "A pop that does not block found the queue empty."},
    {PY_ERROR_TIMEOUT, "dldist.DistTimeoutError", {PY_ERROR_DIST, BUILTIN_TIMEOUT}, "The time was up."},
    {PY_ERROR_STORE_TIMEOUT,
     "dldist.DistStoreTimeoutError",
     {PY_ERROR_STORE, PY_ERROR_TIMEOUT},
     "A store did not have the keys in time."},
    {PY_ERROR_NETWORK_TIMEOUT,
     "dldist.DistNetworkTimeoutError",
     {PY_ERROR_NETWORK, PY_ERROR_TIMEOUT},
     "A peer did not answer in time."},
    {PY_ERROR_AUTH,
     "dldist.DistAuthError",
     {PY_ERROR_NETWORK, NO_BASE},
     "The two sides do not share the secret."},
};

static PyObject *
make_bases(const py_state *state, const int bases[2])
{
    if (bases[0] == NO_BASE) {
        return PyTuple_Pack(1, PyExc_RuntimeError);
    }
    if (bases[1] == NO_BASE) {
        return PyTuple_Pack(1, state->errors[bases[0]]);
    }
    PyObject *second = bases[1] == BUILTIN_TIMEOUT ? PyExc_TimeoutError : state->errors[bases[1]];
    return PyTuple_Pack(2, state->errors[bases[0]], second);
}

int
py_error_add_to_module(PyObject *module, py_state *state)
{
    for (size_t i = 0; i < sizeof error_table / sizeof error_table[0]; i++) {
        PyObject *bases = make_bases(state, error_table[i].bases);
        PyObject *dict = bases != NULL ? Py_BuildValue("{sO}", "code", Py_None) : NULL;
        PyObject *error =
            dict != NULL ? PyErr_NewExceptionWithDoc(error_table[i].name, error_table[i].doc, bases, dict)
                         : NULL;
        Py_XDECREF(bases);
        Py_XDECREF(dict);
        if (error == NULL) {
            return -1;
        }
        state->errors[error_table[i].kind] = error;
        if (PyModule_AddObjectRef(module, error_table[i].name + strlen("dldist."), error) < 0) {
            return -1;
        }
    }
    return PyModule_AddObjectRef(module, "QueueEmptyError", state->errors[PY_ERROR_QUEUE_EMPTY]);
}

/* The exception of a status, borrowed. */
static PyObject *
exception_of(const py_state *state, dd_status status)
{
    switch (status) {
    case DD_INVALID_ARGUMENT:
        return PyExc_ValueError;
    case DD_NOT_SUPPORTED:
        return PyExc_NotImplementedError;
    case DD_OUT_OF_MEMORY:
        return PyExc_MemoryError;
    case DD_INTERRUPTED:
        return PyExc_KeyboardInterrupt;
    case DD_TIMED_OUT:
        return state->errors[PY_ERROR_STORE_TIMEOUT];
    case DD_NETWORK:
    case DD_PROTOCOL:
        return state->errors[PY_ERROR_NETWORK];
    case DD_NETWORK_TIMED_OUT:
        return state->errors[PY_ERROR_NETWORK_TIMEOUT];
    case DD_AUTH:
        return state->errors[PY_ERROR_AUTH];
    case DD_STORE:
    case DD_CLOSED:
    case DD_FORKED:
        return state->errors[PY_ERROR_STORE];
    case DD_QUEUE_EMPTY:
        return state->errors[PY_ERROR_QUEUE_EMPTY];
    case DD_OK:
    case DD_SYSTEM:
    case DD_INTERNAL:
        return state->errors[PY_ERROR_DIST];
    }
    return state->errors[PY_ERROR_DIST];
}

/* Gives the instance its `code`; the ones of Python itself have no such attribute and get none. */
static int
set_code(const py_state *state, PyObject *error, dd_status status)
{
    int is_ours = PyObject_IsInstance(error, state->errors[PY_ERROR_DIST]);
    if (is_ours <= 0) {
        return is_ours;
    }
    PyObject *code = PyUnicode_FromString(dd_status_name(status));
    int rc = code != NULL ? PyObject_SetAttrString(error, "code", code) : -1;
    Py_XDECREF(code);
    return rc;
}

void
py_error_raise(py_state *state, dd_status status, const dd_error *err)
{
    if (status == DD_INTERRUPTED && PyErr_Occurred() != NULL) {
        return;
    }
    const char *text = err != NULL && err->message[0] != '\0' ? err->message : dd_status_text(status);
    PyObject *message = PyUnicode_DecodeUTF8(text, (Py_ssize_t)strlen(text), "backslashreplace");
    if (message == NULL) {
        return;
    }
    PyObject *type = exception_of(state, status);
    PyObject *error = PyObject_CallFunctionObjArgs(type, message, NULL);
    if (error != NULL && set_code(state, error, status) == 0) {
        PyErr_SetObject(type, error);
    }
    Py_XDECREF(error);
    Py_DECREF(message);
}

dd_status
py_error_status_of_current(py_state *state)
{
    if (PyErr_ExceptionMatches(state->errors[PY_ERROR_QUEUE_EMPTY])) {
        return DD_QUEUE_EMPTY;
    }
    if (PyErr_ExceptionMatches(PyExc_TimeoutError)) {
        return DD_TIMED_OUT;
    }
    if (PyErr_ExceptionMatches(PyExc_NotImplementedError)) {
        return DD_NOT_SUPPORTED;
    }
    if (PyErr_ExceptionMatches(PyExc_MemoryError)) {
        return DD_OUT_OF_MEMORY;
    }
    return PyErr_ExceptionMatches(PyExc_Exception) ? DD_STORE : DD_INTERRUPTED;
}

PyObject *
py_error_raise_status(PyObject *module, PyObject *code)
{
    long status = PyLong_AsLong(code);
    if (status == -1 && PyErr_Occurred() != NULL) {
        return NULL;
    }
    if (status < DD_OK || status >= DD_STATUS_COUNT) {
        PyErr_Format(PyExc_IndexError, "no status has the number %ld", status);
        return NULL;
    }
    if (status == DD_OK) {
        Py_RETURN_NONE;
    }
    dd_error err;
    dd_error_set(&err, (dd_status)status, "raised for a test: %s", dd_status_text((dd_status)status));
    py_error_raise(PyModule_GetState(module), (dd_status)status, &err);
    return NULL;
}

PyObject *
py_error_status_names(PyObject *module, PyObject *unused)
{
    (void)module;
    (void)unused;
    PyObject *names = PyList_New(0);
    for (int status = 0; names != NULL && status < DD_STATUS_COUNT; status++) {
        PyObject *name = PyUnicode_FromString(dd_status_name((dd_status)status));
        if (name == NULL || PyList_Append(names, name) < 0) {
            Py_CLEAR(names);
        }
        Py_XDECREF(name);
    }
    return names;
}
