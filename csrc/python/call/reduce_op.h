/* dldist.ReduceOp: what a reduction does with the elements. */
#ifndef DD_PYTHON_CALL_REDUCE_OP_H
#define DD_PYTHON_CALL_REDUCE_OP_H

#include "kernels/reduce.h"
#include "python/base/state.h"
#include "python/call/operands.h"

#include <stdbool.h>

/* Makes the type, with its constants; NULL with an exception. */
PyObject *py_reduce_op_make_type(PyObject *module);

/* A ReduceOp or its name in any case ("sum") as op and factor; NULL is SUM. False with an exception. */
bool py_reduce_op_read(const py_state *state, PyObject *object, dd_reduction *reduction,
                       const char *function);
/* The same, of groups of NCCL: `tensor` gets a factor that is in the memory of a device, borrowed from the
 * ReduceOp; NULL without one. */
bool py_reduce_op_read_with_tensor(const py_state *state, PyObject *object, dd_reduction *reduction,
                                   PyObject **tensor, const char *function);
/* Adds such a factor to the tensors of a call, behind all others: it is kept as long as they are. *data: its
 * address. False with an exception. */
bool py_reduce_op_add_factor(PyObject *tensor, py_operands *operands, const void **data);

#endif
