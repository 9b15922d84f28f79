/* Conversion between one element of an array and a Python number. */
#ifndef DD_PYTHON_TENSOR_ELEMENT_H
#define DD_PYTHON_TENSOR_ELEMENT_H

#include "core/dtype.h"
#include "python/base/state.h"

#include <stdbool.h>

/* Return a new bool, int, float or complex. The element must be aligned. */
PyObject *py_element_get(dd_dtype dtype, const void *element);

/* Floats round like a conversion from float64. OverflowError if an int does not fit. */
bool py_element_set(dd_dtype dtype, void *element, PyObject *value);

#endif
