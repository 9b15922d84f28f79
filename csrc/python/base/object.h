/* Allocates and frees objects of heap types.
 *
 * Objects that release the GIL when they end have a tp_traverse and, like tuples, no tp_clear: other threads would
 * run while the collector clears objects that belong together. Such an object gets its references when it is made,
 * so every cycle passes through an object that was changed later, and the collector clears that one. */
#ifndef DD_PYTHON_BASE_OBJECT_H
#define DD_PYTHON_BASE_OBJECT_H

#include "python/base/api.h"

/* A zeroed object, tracked by the collector if its type has GC; NULL with an exception. */
PyObject *py_object_alloc(PyTypeObject *type);

/* Calls <module>.<function>(self, *args, **kwargs), for methods written in Python. args and kwargs may be NULL. A new
 * reference; NULL with an exception. */
PyObject *py_object_call_python(PyObject *self, const char *module, const char *function, PyObject *args,
                                PyObject *kwargs);

/* The last step of a dealloc: frees the memory, then drops the object's references to its type and to `module`, which
 * may be NULL. */
void py_object_free(PyObject *object, PyObject *module);

#endif
