/* A Python object for each thread, in a dict. The dict is a `once` pointer (base/lock.h), NULL
 * until the first thread sets a value. A thread changes only its own entry, so a borrowed value
 * stays valid until its thread swaps it. */
#ifndef DD_PYTHON_BASE_THREAD_VALUES_H
#define DD_PYTHON_BASE_THREAD_VALUES_H

#include "python/base/api.h"

/* Return this thread's value (borrowed). Return NULL without an exception if no value is set, NULL
 * with an exception on failure. */
PyObject *py_thread_value_get(PyObject *const *values);
/* Set this thread's value; NULL removes it. Return a new reference to the old value, or None. */
PyObject *py_thread_value_swap(PyObject **values, PyObject *value);

#endif
