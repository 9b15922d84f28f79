/* An argument of a Python function, with the names that error messages need. */
#ifndef DD_PYTHON_BASE_ARGUMENT_H
#define DD_PYTHON_BASE_ARGUMENT_H

#include "python/base/state.h"

#include <stdbool.h>

typedef struct py_argument {
    const py_state *state;
    const char *function;
    const char *name;
    PyObject *value; /* borrowed: the object that the caller passed */
} py_argument;

typedef enum py_fault {
    PY_FAULT_VALUE, /* the value is wrong: raises DistArgumentError */
    PY_FAULT_DTYPE, /* the dtype is wrong: raises DistTypeError */
    PY_FAULT_TYPE,  /* the value is not a tensor: raises TypeError */
} py_fault;

/* Raise `exception` with the text "<function>(): argument '<name>' <text>". <text> is formatted from
 * `format` as by PyUnicode_FromFormat. Both names are replaced by those of the program's call, if it
 * is another one (_base/argument_names.py). */
void py_raise_for_argument(PyObject *exception, const char *function, const char *name, const char *format,
                           ...);

/* Raise the exception for `fault`, with the text of py_raise_for_argument. */
void py_argument_raise(const py_argument *argument, py_fault fault, const char *format, ...);

/* Raise DistArgumentError. The format is "<problem>: got <value>, expected <value>[; <remedy>]". */
#define py_raise_argument(of_state, call, parameter, ...)                                           \
    py_argument_raise(&(py_argument){.state = (of_state), .function = (call), .name = (parameter)}, \
                      PY_FAULT_VALUE, __VA_ARGS__)

/* Replace the current exception by DistArgumentError "<function>(): argument '<name>' (<type>)
 * <label>: <first line of its text>". Keep a MemoryError, or an exception that is not derived from
 * Exception. */
void py_argument_raise_from_current(const py_argument *argument, const char *label);

/* Return true if the class of argument->value is defined in the top-level package `package`. */
bool py_argument_is_from(const py_argument *argument, const char *package);

#endif
