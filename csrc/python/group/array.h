/* The elements and parts of a SharedArray. */
#ifndef DD_PYTHON_GROUP_ARRAY_H
#define DD_PYTHON_GROUP_ARRAY_H

#include "python/tensor/memory.h"

/* A new array over the elements from number `start` on, in the same memory. The elements must exist. `shape` is a
 * view without memory. NULL with an exception. */
PyObject *py_shared_array_view(PyObject *array, size_t start, const dd_view *shape);

/* len(a), a[key], a[key] = value; slots of the type. */
Py_ssize_t py_shared_array_length(PyObject *array);
PyObject *py_shared_array_item(PyObject *array, Py_ssize_t index);
PyObject *py_shared_array_get(PyObject *array, PyObject *key);
int py_shared_array_set(PyObject *array, PyObject *key, PyObject *value);

#endif
