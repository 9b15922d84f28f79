/* Conversion between one element of an array and a Python number. */
#ifndef DD_PYTHON_TENSOR_ELEMENT_H
#define DD_PYTHON_TENSOR_ELEMENT_H

#include "core/dtype.h"
#include "python/base/state.h"

#include <stdbool.h>

/* Convert an element, which must be aligned, to a new bool, int, float or complex. */
PyObject *py_element_get(dd_dtype dtype, const void *element);

/* Store a Python number as an element. A float is rounded as in a conversion from float64; an int
 * that does not fit raises OverflowError. */
bool py_element_set(dd_dtype dtype, void *element, PyObject *value);

#endif
