#include "python/base/params.h"

#include <limits.h>
#include <string.h>

/* Return the parameter's index, or -1. Search from the end, because callers usually pass the last
 * parameters by name. */
static int
find_param(const py_params *params, PyObject *name)
{
    const char *text = PyUnicode_AsUTF8AndSize(name, NULL);
    if (text == NULL) {
        PyErr_Clear(); /* a name that is not a str, or not valid UTF-8, matches no parameter */
        return -1;
    }
    int i = params->count - 1;
    while (i >= 0 && (params->list[i].name[0] != text[0] || strcmp(params->list[i].name, text) != 0)) {
        i--;
    }
    return i;
}

static bool
take_keyword(const py_params *params, PyObject *name, PyObject *value, PyObject **values)
{
    int i = find_param(params, name);
    if (i < 0 || values[i] != NULL) {
        PyErr_Format(PyExc_TypeError,
                     i < 0 ? "%s() got an unexpected keyword argument '%S'"
                           : "%s() got multiple values for argument '%S'",
                     params->function, name);
        return false;
    }
    values[i] = value;
    return true;
}

static bool
check_positional(const py_params *params, Py_ssize_t nargs)
{
    if (nargs > params->npositional) {
        PyErr_Format(PyExc_TypeError, "%s() takes at most %d positional arguments (%zd given)",
                     params->function, params->npositional, nargs);
    }
    return nargs <= params->npositional;
}

static bool
check_required(const py_params *params, PyObject *const *values)
{
    for (int i = 0; i < params->nrequired; i++) {
        if (values[i] == NULL) {
            PyErr_Format(PyExc_TypeError, "%s() missing required argument '%s'", params->function,
                         params->list[i].name);
            return false;
        }
    }
    return true;
}

bool
py_params_parse(const py_params *params, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames,
                PyObject *values[PY_PARAMS_MAX])
{
    if (!check_positional(params, nargs)) {
        return false;
    }
    for (int i = 0; i < params->count; i++) {
        values[i] = i < nargs ? args[i] : NULL;
    }
    if (kwnames == NULL && nargs >= params->nrequired) {
        return true; /* the usual case: all arguments are positional */
    }
    Py_ssize_t nnames = kwnames != NULL ? PyTuple_Size(kwnames) : 0;
    for (Py_ssize_t k = 0; k < nnames; k++) {
        if (!take_keyword(params, PyTuple_GetItem(kwnames, k), args[nargs + k], values)) {
            return false;
        }
    }
    return check_required(params, values);
}

bool
py_params_int(const py_state *state, PyObject *value, int *number, const char *function, const char *name)
{
    int64_t wide;
    if (!py_to_int64(value, &wide, function, name)) {
        return false;
    }
    if (wide < INT_MIN || wide > INT_MAX) {
        py_raise_argument(state, function, name, "is out of range: got %R, expected an int of 32 bits",
                          value);
        return false;
    }
    *number = (int)wide;
    return true;
}

static bool
item_read_int(const py_argument *item, int *number)
{
    return py_params_int(item->state, item->value, number, item->function, item->name);
}

int *
py_params_ints(const py_argument *argument, bool (*read)(const py_argument *item, int *number), int *count)
{
    PyObject *tuple = PySequence_Tuple(argument->value);
    Py_ssize_t n = tuple != NULL ? PyTuple_Size(tuple) : 0;
    int *numbers = tuple != NULL ? PyMem_Calloc((size_t)n + 1, sizeof *numbers) : NULL;
    if (tuple != NULL && numbers == NULL) {
        PyErr_NoMemory();
    }
    for (Py_ssize_t i = 0; numbers != NULL && i < n; i++) {
        py_argument item = *argument;
        item.value = PyTuple_GetItem(tuple, i);
        if (!(read != NULL ? read : item_read_int)(&item, &numbers[i])) {
            PyMem_Free(numbers);
            numbers = NULL;
        }
    }
    Py_XDECREF(tuple);
    *count = (int)n;
    return numbers;
}

bool
py_params_check_rank(const py_state *state, int rank, int size, const char *function, const char *name)
{
    if (rank < 0 || rank >= size) {
        py_raise_argument(state, function, name, "is an invalid rank: got %d, expected 0 to %d", rank,
                          size - 1);
        return false;
    }
    return true;
}

bool
py_params_rank(const py_state *state, PyObject *value, int size, int *rank, const char *function,
               const char *name)
{
    return py_params_int(state, value, rank, function, name) &&
           py_params_check_rank(state, *rank, size, function, name);
}

bool
py_params_flag(const py_state *state, PyObject *value, bool *is_set, const char *function, const char *name)
{
    int is_true = value == Py_True ? 1 : value == Py_False ? 0 : PyObject_IsTrue(value);
    if (is_true < 0) {
        py_argument argument = {.state = state, .function = function, .name = name, .value = value};
        py_argument_raise_from_current(&argument, "is neither true nor false");
        return false;
    }
    *is_set = is_true > 0;
    return true;
}

static bool
read_string(const char *function, const py_param *param, PyObject *value, dd_bytes *string)
{
    if (!PyUnicode_Check(value)) {
        py_raise_wrong_type(function, param->name, "str", value);
        return false;
    }
    Py_ssize_t len;
    const char *text = PyUnicode_AsUTF8AndSize(value, &len);
    if (text != NULL) {
        *string = dd_bytes_of(text, (size_t)len);
    }
    return text != NULL;
}

static bool
param_read_text(const char *function, const py_param *param, PyObject *value)
{
    dd_bytes string;
    if (!read_string(function, param, value, &string)) {
        return false;
    }
    if (memchr(string.data, '\0', string.len) != NULL) {
        PyErr_Format(PyExc_ValueError, "%s(): argument '%s' contains a null character", function,
                     param->name);
        return false;
    }
    *(const char **)param->target = (const char *)string.data;
    return true;
}

static bool
param_read_bytes(const char *function, const py_param *param, PyObject *value)
{
    if (!PyBytes_Check(value)) {
        py_raise_wrong_type(function, param->name, "bytes", value);
        return false;
    }
    *(dd_bytes *)param->target = dd_bytes_of(PyBytes_AsString(value), (size_t)PyBytes_Size(value));
    return true;
}

static bool
param_read(py_state *state, const char *function, const py_param *param, PyObject *value)
{
    switch ((py_kind)param->kind) {
    case PY_OBJECT:
        *(PyObject **)param->target = value;
        return true;
    case PY_INT:
        return py_params_int(state, value, param->target, function, param->name);
    case PY_INT64:
        return py_to_int64(value, param->target, function, param->name);
    case PY_FLAG:
        return py_params_flag(state, value, param->target, function, param->name);
    case PY_TIMEOUT:
        return py_to_timeout_ns(state, value, param->target, function, param->name);
    case PY_TEXT:
        return param_read_text(function, param, value);
    case PY_STRING:
        return read_string(function, param, value, param->target);
    case PY_BYTES:
        return param_read_bytes(function, param, value);
    }
    return false;
}

static bool
read_values(const py_params *params, py_state *state, PyObject *const *values)
{
    for (int i = 0; i < params->count; i++) {
        const py_param *param = &params->list[i];
        bool is_absent =
            values[i] == NULL || (values[i] == Py_None && i >= params->nrequired && param->kind != PY_FLAG);
        if (!is_absent && !param_read(state, params->function, param, values[i])) {
            return false;
        }
    }
    return true;
}

bool
py_params_read(const py_params *params, py_state *state, PyObject *const *args, Py_ssize_t nargs,
               PyObject *kwnames)
{
    PyObject *values[PY_PARAMS_MAX];
    return py_params_parse(params, args, nargs, kwnames, values) && read_values(params, state, values);
}

bool
py_params_read_tuple(const py_params *params, py_state *state, PyObject *args, PyObject *kwargs)
{
    PyObject *values[PY_PARAMS_MAX] = {NULL};
    if (!check_positional(params, PyTuple_Size(args))) {
        return false;
    }
    for (Py_ssize_t i = 0; i < PyTuple_Size(args); i++) {
        values[i] = PyTuple_GetItem(args, i);
    }
    Py_ssize_t position = 0;
    PyObject *name;
    PyObject *value;
    while (kwargs != NULL && PyDict_Next(kwargs, &position, &name, &value)) {
        if (!take_keyword(params, name, value, values)) {
            return false;
        }
    }
    return check_required(params, values) && read_values(params, state, values);
}
