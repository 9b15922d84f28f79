/* A dd_store whose operations call the methods of a Python object. */
#ifndef DD_PYTHON_STORE_BRIDGE_H
#define DD_PYTHON_STORE_BRIDGE_H

#include "python/base/state.h"
#include "store/store.h"

/* Every operation calls the method of that name. Keeps a reference on the object, an instance of Store. Its
 * operations may be called with or without the GIL, on threads that Python started. NULL with
 * an exception. */
dd_store *py_bridge_open(py_state *state, PyObject *object);

/* The same for the object's own base methods to fall back on: append, multi_get, multi_set, try_get and
 * barrier are the generic forms, in terms of the object's other methods. */
dd_store *py_bridge_open_generic(py_state *state, PyObject *object);

/* The object of a bridge (borrowed), NULL when the store is something else. */
PyObject *py_bridge_object(const dd_store *store);

#endif
