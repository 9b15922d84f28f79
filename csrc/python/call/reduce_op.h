/* dldist.ReduceOp: what a reduction does with the elements. */
#ifndef DD_PYTHON_CALL_REDUCE_OP_H
#define DD_PYTHON_CALL_REDUCE_OP_H

#include "kernels/reduce.h"
#include "python/base/state.h"
#include "python/call/operands.h"

#include <stdbool.h>

extern PyType_Spec py_reduce_op_spec;
/* Adds the operations as attributes, and the other names of c10d's enumeration. -1 with an exception. */
int py_reduce_op_add_attributes(PyTypeObject *type);

/* Reads op and factor from a ReduceOp or its name, in upper or lower case ("sum"); NULL is SUM. A factor in device
 * memory is put into `tensor` (borrowed from the ReduceOp; NULL: there is none), and refused if `tensor` is NULL. False
 * with an exception. */
bool py_reduce_op_read(const py_state *state, PyObject *object, dd_reduction *reduction, PyObject **tensor,
                       const char *function);
/* Adds such a factor to the tensors of a call, after all others, so that it lives as long as they do. Sets *data
 * to its address. False with an exception. */
bool py_reduce_op_add_factor(PyObject *tensor, py_operands *operands, const void **data);

#endif
