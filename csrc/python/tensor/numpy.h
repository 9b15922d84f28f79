/* Reads NumPy's arrays directly: getting a buffer costs more than all the rest of a small call. */
#ifndef DD_PYTHON_TENSOR_NUMPY_H
#define DD_PYTHON_TENSOR_NUMPY_H

#include "kernels/view.h"
#include "python/base/state.h"

#include <stdbool.h>

/* Reads data, dtype, shape and strides of an object that is exactly a numpy.ndarray with a plain, native dtype. False
 * without an exception for anything else, and until py_numpy_learn has seen an array. */
bool py_numpy_try_read(const py_state *state, PyObject *object, dd_view *view);

/* The object came as a buffer, which `view` describes. If the object is the first NumPy array, and reading it
 * directly gives the same, arrays are read directly from then on. Leaves no exception set. */
void py_numpy_learn(py_state *state, PyObject *object, const dd_view *view);

#endif
