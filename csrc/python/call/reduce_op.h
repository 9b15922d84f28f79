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

/* Reads op and factor from a ReduceOp or its name, in upper or lower case ("sum"); NULL is SUM. False with an
 * exception, also for a factor that is a tensor on a device. */
bool py_reduce_op_read(const py_state *state, PyObject *object, dd_reduction *reduction,
                       const char *function);
/* For NCCL's groups: also accepts a factor in device memory, and sets `tensor` to it (borrowed from the ReduceOp),
 * or to NULL if there is none. */
bool py_reduce_op_read_with_tensor(const py_state *state, PyObject *object, dd_reduction *reduction,
                                   PyObject **tensor, const char *function);
/* Adds such a factor to the tensors of a call, after all others, so that it lives as long as they do. Sets *data
 * to its address. False with an exception. */
bool py_reduce_op_add_factor(PyObject *tensor, py_operands *operands, const void **data);

#endif
