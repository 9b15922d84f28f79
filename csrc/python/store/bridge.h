/* A dd_store whose operations call the methods of a Python object. */
#ifndef DD_PYTHON_STORE_BRIDGE_H
#define DD_PYTHON_STORE_BRIDGE_H

#include "python/base/state.h"
#include "store/store.h"

/* Create a store whose operations call the methods of the object that have the operations' names.
 * The store keeps a reference to the object, an instance of Store. Operations may be called with or
 * without the GIL, but only on threads that Python started. */
dd_store *py_bridge_open(py_state *state, PyObject *object);

/* Create the store that runs a method of Store which the object's class does not override. Like
 * py_bridge_open, but append, multi_get, multi_set, try_get and barrier are built on the object's
 * other methods, instead of calling the object's methods of these names. */
dd_store *py_bridge_open_generic(py_state *state, PyObject *object);

/* Return the object of a bridge (borrowed), or NULL if the store is not a bridge. */
PyObject *py_bridge_object(const dd_store *store);

#endif
