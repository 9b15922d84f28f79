/* One element of an array as a Python number. */
#ifndef DD_PYTHON_TENSOR_ELEMENT_H
#define DD_PYTHON_TENSOR_ELEMENT_H

#include "core/dtype.h"
#include "python/base/state.h"

#include <stdbool.h>

/* A new bool, int, float or complex; NULL with an exception. The element must be aligned. */
PyObject *py_element_get(dd_dtype dtype, const void *element);

/* Rounds as a conversion from float64 does. False with an exception: OverflowError for an int that does not fit. */
bool py_element_set(dd_dtype dtype, void *element, PyObject *value);

#endif
