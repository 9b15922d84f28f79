/* Arrays of NumPy, read where they are: its buffers cost more than all the rest of a small call. */
#ifndef DD_PYTHON_TENSOR_NUMPY_H
#define DD_PYTHON_TENSOR_NUMPY_H

#include "kernels/view.h"
#include "python/base/state.h"

#include <stdbool.h>

/* Data, dtype, shape and strides of an exact numpy.ndarray of a plain, native dtype. False, without an exception, for all else, and
 * until py_numpy_learn has seen an array. */
bool py_numpy_try_read(const py_state *state, PyObject *object, dd_view *view);

/* The object has come as a buffer, and `view` is what that says. If it is NumPy's first array, and what can be read of it directly is
 * the same, arrays are read so from then on. Keeps no exception. */
void py_numpy_learn(py_state *state, PyObject *object, const dd_view *view);

#endif
