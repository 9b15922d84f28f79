/* GIL access for threads that Python did not start. Once the interpreter is shutting down, such a
 * thread would hang or crash if it requested the GIL. The gate admits these threads until shutdown
 * begins; the interpreter then waits for the threads inside the gate. */
#ifndef DD_PYTHON_BASE_GATE_H
#define DD_PYTHON_BASE_GATE_H

#include "python/base/api.h"

#include <stdbool.h>

typedef struct py_gate_pass {
    PyGILState_STATE gil;
    bool is_counted;
} py_gate_pass;

/* Take the GIL. Return false without the GIL if Python is shutting down. Always admits threads that
 * Python knows, because the interpreter itself handles these threads at shutdown. */
bool py_gate_enter(py_gate_pass *pass);
void py_gate_leave(const py_gate_pass *pass);

/* Register the module's _close_gate with atexit. */
int py_gate_init(PyObject *module);
/* Implement _core._close_gate(): close the gate, and wait for the threads inside the gate. */
PyObject *py_gate_close(PyObject *module, PyObject *unused);

#endif
