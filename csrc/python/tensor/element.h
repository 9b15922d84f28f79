/* One element of an array as a number of Python. */
#ifndef DD_PYTHON_TENSOR_ELEMENT_H
#define DD_PYTHON_TENSOR_ELEMENT_H

#include "core/dtype.h"
#include "python/base/state.h"

#include <stdbool.h>

/* A bool, int, float or complex; NULL with an exception. The element is aligned. */
PyObject *py_element_get(dd_dtype dtype, const void *element);

/* Rounds as a conversion from float64 does; an int that does not fit is an OverflowError. False with an exception. */
bool py_element_set(dd_dtype dtype, void *element, PyObject *value);

#endif
