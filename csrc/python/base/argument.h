/* The argument that is being looked at, so that every message can name it. */
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
    PY_FAULT_TYPE,  /* TypeError: no tensor at all */
} py_fault;

/* Raises what stands for the fault with "<function>(): argument '<name>' <text>". The format is
 * PyUnicode_FromFormat's. */
void py_argument_raise(const py_argument *argument, py_fault fault, const char *format, ...);

/* Turns the exception that is set into the cause of a DistArgumentError "<function>(): argument '<name>' (<type>)
 * <what>: <first line of its text>". MemoryError, and what is no Exception, stay as they are. */
void py_argument_raise_from_current(const py_argument *argument, const char *what);

/* Whether the class of the value comes from the top-level package of that name. */
bool py_argument_is_from(const py_argument *argument, const char *package);

#endif
