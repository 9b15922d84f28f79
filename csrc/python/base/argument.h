/* The argument being read, so that every message can name it. */
#ifndef DD_PYTHON_BASE_ARGUMENT_H
#define DD_PYTHON_BASE_ARGUMENT_H

#include "python/base/state.h"

#include <stdbool.h>

typedef struct py_argument {
    const py_state *state;
    const char *function;
    const char *name;
    PyObject *value; /* borrowed */
} py_argument;

typedef enum py_fault {
    PY_FAULT_VALUE, /* DistArgumentError */
    PY_FAULT_DTYPE, /* DistTypeError */
    PY_FAULT_TYPE,  /* TypeError: not a tensor at all */
} py_fault;

/* Raises the exception for the fault, with the text "<function>(): argument '<name>' <text>". The format is that of
 * PyUnicode_FromFormat. */
void py_argument_raise(const py_argument *argument, py_fault fault, const char *format, ...);

/* Raises DistArgumentError "<function>(): argument '<name>' (<type>) <what>: <first line of the text>" for the
 * exception that is set, which becomes its cause. A MemoryError, and anything not derived from Exception, stays as
 * it is. */
void py_argument_raise_from_current(const py_argument *argument, const char *what);

/* Whether the class of the value comes from this top-level package. */
bool py_argument_is_from(const py_argument *argument, const char *package);

#endif
