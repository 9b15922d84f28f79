/* dldist.ReduceOp: what a reduction does with the elements. */
#ifndef DD_PYTHON_PY_REDUCE_OP_H
#define DD_PYTHON_PY_REDUCE_OP_H

#include "kernels/reduce.h"
#include "python/py_state.h"

#include <stdbool.h>

/* Makes the type, with its constants; NULL with an exception. */
PyObject *py_reduce_op_make_type(PyObject *module);

/* A ReduceOp or its name in any case ("sum") as op and factor; NULL is SUM. False with an exception. */
bool py_reduce_op_read(const py_state *state, PyObject *object, dd_reduction *reduction,
                       const char *function);

#endif
