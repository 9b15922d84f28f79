/* The GIL, for threads that are not Python's. Once the interpreter is ending, such a thread must not ask for it: it would hang or crash.
 * The gate lets them in until Python begins to end, which waits for those that are inside. */
#ifndef DD_PYTHON_BASE_GATE_H
#define DD_PYTHON_BASE_GATE_H

#include "python/base/api.h"

#include <stdbool.h>

typedef struct py_gate_pass {
    PyGILState_STATE gil;
    bool is_counted;
} py_gate_pass;

/* False: Python is ending, and the GIL cannot be had. Threads that Python knows always come in: the interpreter takes care of them. */
bool py_gate_enter(py_gate_pass *pass);
void py_gate_leave(const py_gate_pass *pass);

/* Has the module's _close_gate called when the interpreter ends. -1 with an exception. */
int py_gate_init(PyObject *module);
/* _close_gate(), of the module. */
PyObject *py_gate_close(PyObject *module, PyObject *unused);

#endif
