#include "python/base/params.h"

#include <limits.h>

const char *
py_name_text(py_name name)
{
    static const char *const texts[PY_NAME_COUNT] = {
#define PY_NAME_TEXT(id, text) text,
        PY_NAME_LIST(PY_NAME_TEXT)
#undef PY_NAME_TEXT
    };
    return texts[name];
}

bool
py_name_is_tensor(py_name name)
{
    return name >= PY_NAME_TENSOR && name <= PY_NAME_INPUT_LIST;
}

static int
find_param(const py_params *params, const py_state *state, PyObject *name)
{
    for (int i = 0; i < params->count; i++) {
        if (name == state->names[params->names[i]]) {
            return i;
        }
    }
    for (int i = 0; i < params->count; i++) {
        if (PyUnicode_CompareWithASCIIString(name, py_name_text(params->names[i])) == 0) {
            return i;
        }
    }
    return -1;
}

static bool
take_keywords(const py_params *params, const py_state *state, PyObject *const *args, PyObject *kwnames,
              PyObject **values)
{
    Py_ssize_t count = PyTuple_Size(kwnames);
    for (Py_ssize_t k = 0; k < count; k++) {
        PyObject *name = PyTuple_GetItem(kwnames, k);
        int i = find_param(params, state, name);
        if (i < 0 || values[i] != NULL) {
            PyErr_Format(PyExc_TypeError,
                         i < 0 ? "%s() got an unexpected keyword argument '%U'"
                               : "%s() got multiple values for argument '%U'",
                         params->function, name);
            return false;
        }
        values[i] = args[k];
    }
    return true;
}

bool
py_params_parse(const py_params *params, const py_state *state, PyObject *const *args, Py_ssize_t nargs,
                PyObject *kwnames, PyObject *values[PY_PARAMS_MAX])
{
    if (nargs > params->npositional) {
        PyErr_Format(PyExc_TypeError, "%s() takes at most %d positional arguments (%zd given)",
                     params->function, params->npositional, nargs);
        return false;
    }
    for (int i = 0; i < params->count; i++) {
        values[i] = i < nargs ? args[i] : NULL;
    }
    if (kwnames == NULL && nargs == params->nrequired) {
        return true; /* the usual case */
    }
    if (kwnames != NULL && !take_keywords(params, state, args + nargs, kwnames, values)) {
        return false;
    }
    for (int i = 0; i < params->nrequired; i++) {
        if (values[i] == NULL) {
            PyErr_Format(PyExc_TypeError, "%s() missing required argument '%s'", params->function,
                         py_name_text(params->names[i]));
            return false;
        }
    }
    for (int i = params->nrequired; i < params->count; i++) {
        values[i] = values[i] == Py_None ? NULL : values[i];
    }
    return true;
}

bool
py_params_int(const py_state *state, PyObject *value, int *number, const char *function, const char *name)
{
    int64_t wide;
    if (!py_to_int64(value, &wide, function, name)) {
        return false;
    }
    if (wide < INT_MIN || wide > INT_MAX) {
        PyErr_Format(state->errors[PY_ERROR_ARGUMENT], "%s(): argument '%s' is %R, which is far out of range",
                     function, name, value);
        return false;
    }
    *number = (int)wide;
    return true;
}

static bool
read_int(const py_argument *item, int *number)
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
        if (!(read != NULL ? read : read_int)(&item, &numbers[i])) {
            PyMem_Free(numbers);
            numbers = NULL;
        }
    }
    Py_XDECREF(tuple);
    *count = (int)n;
    return numbers;
}

bool
py_params_rank(const py_state *state, PyObject *value, int size, int *rank, const char *function,
               const char *name)
{
    if (!py_params_int(state, value, rank, function, name)) {
        return false;
    }
    if (*rank < 0 || *rank >= size) {
        PyErr_Format(state->errors[PY_ERROR_ARGUMENT],
                     "%s(): argument '%s': invalid rank: %d is not in 0 to %d", function, name, *rank,
                     size - 1);
        return false;
    }
    return true;
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
