/* Direct access to NumPy arrays, because getting a buffer takes longer than the rest of a call. */
#ifndef DD_PYTHON_TENSOR_NUMPY_H
#define DD_PYTHON_TENSOR_NUMPY_H

#include "kernels/view.h"
#include "python/base/state.h"

#include <stdbool.h>

/* Read data, dtype, shape and strides if the object is exactly a numpy.ndarray with a plain,
 * native dtype. Otherwise, and before py_numpy_try_enable has seen an array, return false without an
 * exception. */
bool py_numpy_try_read(const py_state *state, PyObject *object, dd_view *view);

/* Enable direct reading if the object is the first NumPy array and direct reading gives `view`,
 * which was read from the object as a buffer. Leaves no exception set. */
void py_numpy_try_enable(py_state *state, PyObject *object, const dd_view *view);

#endif
