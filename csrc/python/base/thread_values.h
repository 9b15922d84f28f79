/* A value for each thread that has set one: a `once` dict (base/lock.h), NULL until the first thread does. A thread
 * changes only its own entry, so a borrowed value stays valid until the thread swaps it. */
#ifndef DD_PYTHON_BASE_THREAD_VALUES_H
#define DD_PYTHON_BASE_THREAD_VALUES_H

#include "python/base/api.h"

/* This thread's value (borrowed). NULL with an exception, or without one if there is none. */
PyObject *py_thread_value_get(PyObject *const *values);
/* Sets this thread's value, or unsets it with NULL. Returns the one before, or None: a new reference, NULL with an
 * exception. */
PyObject *py_thread_value_swap(PyObject **values, PyObject *value);

#endif
