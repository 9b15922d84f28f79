/* dldist.ReduceOp: the operation that a reduction applies to the elements. */
#ifndef DD_PYTHON_CALL_REDUCE_OP_H
#define DD_PYTHON_CALL_REDUCE_OP_H

#include "kernels/reduce.h"
#include "python/base/state.h"
#include "python/call/operands.h"

#include <stdbool.h>

extern PyType_Spec py_reduce_op_spec;
/* Add all operations as class attributes, also under c10d's other names. */
int py_reduce_op_add_attributes(PyTypeObject *type);

/* Read the operation and factor from a ReduceOp, or from its name in upper or lower case; NULL
 * means SUM. `*tensor` is set to a factor in device memory (borrowed from the ReduceOp), or NULL.
 * If `tensor` is NULL, such a factor is rejected. */
bool py_reduce_op_read(const py_state *state, PyObject *object, dd_reduction *reduction, PyObject **tensor,
                       const char *function);
/* Add a factor in device memory to the call's tensors, which keep the factor alive. Must be called
 * after all other tensors have been added. Set *data to the factor's address. */
bool py_reduce_op_add_factor(PyObject *tensor, py_operands *operands, const void **data);

#endif
