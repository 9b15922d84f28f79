/* A value for each thread that has set one: a dict, or NULL while no thread has. All functions need the GIL. */
#ifndef DD_PYTHON_BASE_THREAD_VALUES_H
#define DD_PYTHON_BASE_THREAD_VALUES_H

#include "python/base/api.h"

/* This thread's value (borrowed). NULL with an exception, or without one if there is none. */
PyObject *py_thread_value_get(PyObject *values);
/* Sets this thread's value, or unsets it with NULL. Returns the one before, or None: a new reference, NULL with an
 * exception. */
PyObject *py_thread_value_swap(PyObject **values, PyObject *value);

#endif
