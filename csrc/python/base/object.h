/* Both ends of the life of an object whose type is on the heap.
 *
 * Objects whose end lets the GIL go have a tp_traverse and no tp_clear, as tuples: other threads would run while the collector is clearing
 * what belongs together. What they refer to is given when they are made, so that every cycle goes through something that was changed later,
 * which the collector clears. */
#ifndef DD_PYTHON_BASE_OBJECT_H
#define DD_PYTHON_BASE_OBJECT_H

#include "python/base/api.h"

/* Zeroed, and tracked by the collector where the type is; NULL with an exception. */
PyObject *py_object_alloc(PyTypeObject *type);

/* Calls <module>.<function>(self, *args, **kwargs): for methods that are written in Python. args and kwargs may be NULL. */
PyObject *py_object_call_python(PyObject *self, const char *module, const char *function, PyObject *args,
                                PyObject *kwargs);

/* The last act of a dealloc: gives the memory back, and then what the object held of its type and its module (may be NULL). */
void py_object_free(PyObject *object, PyObject *module);

#endif
