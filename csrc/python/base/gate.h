/* The GIL for threads that Python did not start. Once the interpreter is ending, such a thread must not ask for the
 * GIL: it would hang or crash. The gate lets threads in until the interpreter begins to end, which then waits for
 * those that are inside. */
#ifndef DD_PYTHON_BASE_GATE_H
#define DD_PYTHON_BASE_GATE_H

#include "python/base/api.h"

#include <stdbool.h>

typedef struct py_gate_pass {
    PyGILState_STATE gil;
    bool is_counted;
} py_gate_pass;

/* Takes the GIL. False: Python is ending, and the GIL was not taken. Threads that Python knows are always let in,
 * because the interpreter takes care of them. */
bool py_gate_enter(py_gate_pass *pass);
void py_gate_leave(const py_gate_pass *pass);

/* Registers the module's _close_gate with atexit. -1 with an exception. */
int py_gate_init(PyObject *module);
/* _core._close_gate() */
PyObject *py_gate_close(PyObject *module, PyObject *unused);

#endif
