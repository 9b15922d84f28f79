#include "python/base/error.h"

#include <string.h>

/* Maximum number of attempts at a call; a KeyboardInterrupt of the last attempt is raised. */
#define MAX_TRIES 3

#define NO_BASE (-1)
#define BUILTIN_TIMEOUT (-2)    /* number that stands for Python's TimeoutError */
#define BUILTIN_CONNECTION (-3) /* number that stands for Python's ConnectionError */
#define BUILTIN_VALUE (-4)      /* number that stands for Python's ValueError */
#define BUILTIN_TYPE (-5)       /* number that stands for Python's TypeError */

/* The exception classes. Base classes must come before the classes derived from them. A class
 * without a base derives from RuntimeError, as torch's (docs/c10d-differences.md, "Other errors"). */
static const struct {
    py_error_kind kind;
    const char *name;
    int bases[2];
    const char *doc;
} error_table[] = {
    {PY_ERROR_DIST,
     "dldist.DistError",
     {NO_BASE, NO_BASE},
     "Any failure of dldist.\n\n`code` names the kind of failure. `rank`, `host` and `pid` identify the rank it is "
     "about, if it is about one rank of a group. `op`, `seq`, `group` and `elapsed` (seconds) identify the call that "
     "failed; `seq` is None for messages and for calls that did not begin. Anything not known is None."},
    {PY_ERROR_BACKEND, "dldist.DistBackendError", {PY_ERROR_DIST, NO_BASE}, "A backend failed."},
    {PY_ERROR_NETWORK, "dldist.DistNetworkError", {PY_ERROR_DIST, NO_BASE}, "A connection failed."},
    {PY_ERROR_STORE, "dldist.DistStoreError", {PY_ERROR_DIST, NO_BASE}, "A store failed."},
    {PY_ERROR_QUEUE_EMPTY,
     "dldist.DistQueueEmptyError",
     {PY_ERROR_STORE, NO_BASE},
     "The queue was empty, and the call did not wait."},
    {PY_ERROR_TIMEOUT, "dldist.DistTimeoutError", {PY_ERROR_DIST, BUILTIN_TIMEOUT}, "The timeout expired."},
    {PY_ERROR_STORE_TIMEOUT,
     "dldist.DistStoreTimeoutError",
     {PY_ERROR_STORE, PY_ERROR_TIMEOUT},
     "The keys did not appear in the store in time."},
    {PY_ERROR_NETWORK_TIMEOUT,
     "dldist.DistNetworkTimeoutError",
     {PY_ERROR_NETWORK, PY_ERROR_TIMEOUT},
     "Another process did not answer in time."},
    {PY_ERROR_AUTH,
     "dldist.DistAuthError",
     {PY_ERROR_NETWORK, NO_BASE},
     "The two sides do not know the same secret."},
    {PY_ERROR_PEER_LOST,
     "dldist.DistPeerLostError",
     {PY_ERROR_BACKEND, BUILTIN_CONNECTION},
     "A rank of the group has died, has left, or cannot be reached."},
    {PY_ERROR_MISMATCH,
     "dldist.DistMismatchError",
     {PY_ERROR_BACKEND, NO_BASE},
     "The ranks of a group have called different operations."},
    {PY_ERROR_ABORTED, "dldist.DistAbortedError", {PY_ERROR_BACKEND, NO_BASE}, "The group was aborted."},
    {PY_ERROR_ARGUMENT,
     "dldist.DistArgumentError",
     {PY_ERROR_DIST, BUILTIN_VALUE},
     "An argument has a wrong value: a rank out of range, a list that is too short, a tensor of the wrong size."},
    {PY_ERROR_TYPE,
     "dldist.DistTypeError",
     {PY_ERROR_ARGUMENT, BUILTIN_TYPE},
     "A tensor has a dtype that dldist does not support, or one that differs from the other tensors of the call."},
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
    PyObject *second = bases[1] == BUILTIN_TIMEOUT      ? PyExc_TimeoutError
                       : bases[1] == BUILTIN_CONNECTION ? PyExc_ConnectionError
                       : bases[1] == BUILTIN_VALUE      ? PyExc_ValueError
                       : bases[1] == BUILTIN_TYPE       ? PyExc_TypeError
                                                        : state->errors[bases[1]];
    return PyTuple_Pack(2, state->errors[bases[0]], second);
}

/* Return a new class dict with the default values of the exception's attributes. */
static PyObject *
make_attributes(py_error_kind kind)
{
    bool is_argument = kind == PY_ERROR_ARGUMENT || kind == PY_ERROR_TYPE;
    return Py_BuildValue("{sz sO sO sO sO sO sO sO}", "code",
                         is_argument ? dd_status_name(DD_INVALID_ARGUMENT) : NULL, "rank", Py_None, "host",
                         Py_None, "pid", Py_None, "op", Py_None, "seq", Py_None, "group", Py_None, "elapsed",
                         Py_None);
}

int
py_error_add_to_module(PyObject *module, py_state *state)
{
    for (size_t i = 0; i < sizeof error_table / sizeof error_table[0]; i++) {
        PyObject *bases = make_bases(state, error_table[i].bases);
        PyObject *dict = bases != NULL ? make_attributes(error_table[i].kind) : NULL;
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

/* Return the exception class for a status (borrowed). */
static PyObject *
exception_of_status(const py_state *state, dd_status status)
{
    switch (status) {
    case DD_INVALID_ARGUMENT:
        return state->errors[PY_ERROR_ARGUMENT];
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
    case DD_OP_TIMED_OUT:
        return state->errors[PY_ERROR_TIMEOUT];
    case DD_PEER_LOST:
        return state->errors[PY_ERROR_PEER_LOST];
    case DD_MISMATCH:
        return state->errors[PY_ERROR_MISMATCH];
    case DD_ABORTED:
        return state->errors[PY_ERROR_ABORTED];
    case DD_BACKEND:
        return state->errors[PY_ERROR_BACKEND];
    case DD_OK:
    case DD_SYSTEM:
    case DD_INTERNAL:
        return state->errors[PY_ERROR_DIST];
    }
    return state->errors[PY_ERROR_DIST];
}

static PyObject *
exception_of_group(const py_state *state, dd_status status)
{
    bool is_groups_own = status == DD_CLOSED || status == DD_FORKED;
    return is_groups_own ? state->errors[PY_ERROR_BACKEND] : exception_of_status(state, status);
}

/* Set an attribute of the exception to `value`, and release `value`. Return false with an exception
 * on failure. If `value` is NULL, an exception must be set: return false. */
static bool
set_attribute(PyObject *error, const char *name, PyObject *value)
{
    bool is_set = value != NULL && PyObject_SetAttrString(error, name, value) == 0;
    Py_XDECREF(value);
    return is_set;
}

static PyObject *
make_text(const char *text)
{
    return PyUnicode_DecodeUTF8(text, (Py_ssize_t)strlen(text), "backslashreplace");
}

static bool
set_blamed_rank(PyObject *error, const dd_blamed_rank *blamed)
{
    return (blamed->rank < 0 || set_attribute(error, "rank", PyLong_FromLong(blamed->rank))) &&
           (blamed->host[0] == '\0' || set_attribute(error, "host", make_text(blamed->host))) &&
           (blamed->pid == 0 || set_attribute(error, "pid", PyLong_FromLongLong(blamed->pid)));
}

static bool
set_call(PyObject *error, const dd_failed_call *call)
{
    return call->op[0] == '\0' ||
           (set_attribute(error, "op", make_text(call->op)) &&
            set_attribute(error, "group", make_text(call->group)) &&
            (call->sequence == 0 ||
             set_attribute(error, "seq", PyLong_FromUnsignedLongLong(call->sequence))) &&
            set_attribute(error, "elapsed", PyFloat_FromDouble((double)call->elapsed_ns * 1e-9)));
}

/* Set the attributes of a dldist exception; do nothing for Python's own exception types. */
static bool
set_attributes(const py_state *state, PyObject *error, dd_status status, const dd_error *err)
{
    int is_dist_error = PyObject_IsInstance(error, state->errors[PY_ERROR_DIST]);
    if (is_dist_error <= 0) {
        return is_dist_error == 0;
    }
    bool has_details = err != NULL && err->message[0] != '\0';
    return set_attribute(error, "code", PyUnicode_FromString(dd_status_name(status))) &&
           (!has_details || (set_blamed_rank(error, &err->blamed) && set_call(error, &err->call)));
}

/* Return the text as a new str. Programs search error texts for the word "timeout": append it to
 * the text of a timeout error that lacks the word, such as "timed out". */
static PyObject *
message_of(dd_status status, const char *text)
{
    bool is_timeout = status == DD_TIMED_OUT || status == DD_NETWORK_TIMED_OUT || status == DD_OP_TIMED_OUT;
    PyObject *message = make_text(text);
    if (message == NULL || !is_timeout || strcasestr(text, "timeout") != NULL) {
        return message;
    }
    PyObject *with_word = PyUnicode_FromFormat("%U (timeout)", message);
    Py_DECREF(message);
    return with_word;
}

static PyObject *
make_error(const py_state *state, PyObject *type, dd_status status, const dd_error *err)
{
    const char *text = err != NULL && err->message[0] != '\0' ? err->message : dd_status_text(status);
    PyObject *message = message_of(status, text);
    PyObject *error = message != NULL ? PyObject_CallFunctionObjArgs(type, message, NULL) : NULL;
    Py_XDECREF(message);
    if (error != NULL && !set_attributes(state, error, status, err)) {
        Py_CLEAR(error);
    }
    return error;
}

static void
raise_as(const py_state *state, PyObject *type, dd_status status, const dd_error *err)
{
    if (status == DD_INTERRUPTED && PyErr_Occurred() != NULL) {
        return;
    }
    /* Ctrl-C reaches all ranks, so this rank may notice a lost rank before it checks for its own
     * signal. Run the signal handler now, so that the program can catch the handler's exception: a
     * pending signal would interrupt the code that reports the loss. */
    if (PyErr_Occurred() == NULL && PyErr_CheckSignals() < 0) {
        return;
    }
    PyObject *error = make_error(state, type, status, err);
    if (error != NULL) {
        PyErr_SetObject(type, error);
        Py_DECREF(error);
    }
}

void
py_error_raise(py_state *state, dd_status status, const dd_error *err)
{
    raise_as(state, exception_of_status(state, status), status, err);
}

void
py_error_raise_of_group(py_state *state, dd_status status, const dd_error *err)
{
    raise_as(state, exception_of_group(state, status), status, err);
}

bool
py_error_check_of_group(py_state *state, dd_status status, const dd_error *err)
{
    if (status != DD_OK) {
        py_error_raise_of_group(state, status, err);
    }
    return status == DD_OK;
}

PyObject *
py_error_of_group(py_state *state, dd_status status, const dd_error *err)
{
    return make_error(state, exception_of_group(state, status), status, err);
}

PyObject *
py_error_take(void)
{
    PyObject *type;
    PyObject *error;
    PyObject *traceback;
    PyErr_Fetch(&type, &error, &traceback);
    if (type == NULL) {
        return NULL;
    }
    PyErr_NormalizeException(&type, &error, &traceback);
    if (traceback != NULL) {
        (void)PyException_SetTraceback(error, traceback);
    }
    Py_DECREF(type);
    Py_XDECREF(traceback);
    return error;
}

void
py_error_put(PyObject *error)
{
    if (error == NULL) {
        PyErr_Clear();
    } else {
        PyErr_Restore(Py_NewRef((PyObject *)Py_TYPE(error)), error, PyException_GetTraceback(error));
    }
}

void
py_error_forget(void)
{
    PyObject *error = py_error_take();
    if (error != NULL && PyErr_GivenExceptionMatches(error, PyExc_KeyboardInterrupt)) {
        PyErr_SetInterrupt();
    }
    Py_XDECREF(error);
}

bool
py_has_attribute(PyObject *object, PyObject *name)
{
    PyObject *exception = py_error_take();
    PyObject *attribute = PyObject_GetAttr(object, name);
    Py_XDECREF(attribute);
    py_error_forget();
    py_error_put(exception);
    return attribute != NULL;
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

/* Clear a KeyboardInterrupt and return true. Leave any other exception set and return false. */
static bool
pass_over_ctrl_c(void)
{
    if (PyErr_ExceptionMatches(PyExc_KeyboardInterrupt) == 0) {
        return false;
    }
    PyErr_Clear();
    return true;
}

/* This function must be in C: Python runs the handler of a pending signal when it enters a Python
 * function, before the function can catch the exception. */
PyObject *
py_error_call_despite_ctrl_c(PyObject *Py_UNUSED(module), PyObject *args)
{
    PyObject *function;
    if (PyTuple_Size(args) < 1 || (function = PyTuple_GetItem(args, 0)) == NULL) {
        PyErr_SetString(PyExc_TypeError, "_call_despite_ctrl_c(): argument 'function' is missing");
        return NULL;
    }
    PyObject *rest = PyTuple_GetSlice(args, 1, PyTuple_Size(args));
    PyObject *result = NULL;
    bool is_done = rest == NULL;
    for (int tries = 0; !is_done && tries < MAX_TRIES; tries++) {
        if (PyErr_CheckSignals() < 0 && !pass_over_ctrl_c()) {
            break;
        }
        result = PyObject_Call(function, rest, NULL);
        is_done = result != NULL || tries + 1 == MAX_TRIES || !pass_over_ctrl_c();
    }
    Py_XDECREF(rest);
    return result;
}
