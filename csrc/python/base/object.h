/* Makes and frees objects of heap types.
 *
 * Objects that release the GIL when they end have a tp_traverse and, like tuples, no tp_clear: other threads would
 * run while the collector clears objects that belong together. Such an object gets its references when it is made,
 * so every cycle passes through an object that was changed later, and the collector clears that one. */
#ifndef DD_PYTHON_BASE_OBJECT_H
#define DD_PYTHON_BASE_OBJECT_H

#include "python/base/state.h"

/* The space for Python's own fields at the start of an object. abi3t hides their size, which differs between Pythons with
 * and without a GIL (16 and 32 bytes in 3.15), so the structs reserve more. The import fails if it is not enough. */
#ifdef Py_TARGET_ABI3T
typedef struct py_object_space {
    void *reserved[8];
} py_object_space;
#else
typedef PyObject py_object_space;
#endif

/* The head of our objects: the first fields of their structs. */
#define PY_OBJECT_HEAD                                                  \
    py_object_space ob_base; /* PyObject_HEAD */                        \
    PyObject *module;        /* const after new: keeps `state` alive */ \
    py_state *state;         /* const after new */                      \
    PyObject *weakrefs

typedef struct py_object {
    PY_OBJECT_HEAD;
} py_object;

/* Sets the state's object_size. -1 with an exception, also if py_object_space is too small for this Python. */
int py_object_read_size(py_state *state);

/* A new object of a type of ours, or of a class derived from one: zeroed except for its head, and tracked by the
 * collector if its type has GC. Ignores the arguments: it can be a tp_new. NULL with an exception. */
PyObject *py_object_new(PyTypeObject *type, PyObject *args, PyObject *kwargs);

/* A tp_traverse for objects that refer to nothing but their type and the module. */
int py_object_traverse(PyObject *object, visitproc visit, void *arg);

/* The first step of a tp_dealloc: ends the weak references and what the collector knows of the object. */
void py_object_begin_dealloc(PyObject *object);
/* The last step: frees the memory, then drops the object's references to its type and the module. */
void py_object_end_dealloc(PyObject *object);
/* Both, for objects that own nothing. */
void py_object_dealloc(PyObject *object);

/* The tp_members of types whose objects can have weak references. */
extern PyMemberDef py_object_members[];

/* The flags of types that nobody derives from, of those that programs may derive from, and of those whose objects only
 * we make. */
#define PY_TYPE_FLAGS (Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE)
#define PY_BASE_TYPE_FLAGS (PY_TYPE_FLAGS | Py_TPFLAGS_BASETYPE)
#define PY_MADE_TYPE_FLAGS (PY_TYPE_FLAGS | Py_TPFLAGS_DISALLOW_INSTANTIATION)

/* ---- objects without that head */

/* A zeroed object; NULL with an exception. */
PyObject *py_object_alloc(PyTypeObject *type);
/* Frees the memory, then drops the object's reference to its type. */
void py_object_free(PyObject *object);

/* None, or NULL if there is an exception. */
static inline PyObject *
py_none_if(bool is_done)
{
    return is_done ? Py_NewRef(Py_None) : NULL;
}

/* Appends an item to a list and releases it. If either is NULL, or there is no memory, releases the list and sets it to NULL. */
void py_list_append(PyObject **list, PyObject *item);

/* ---- methods written in Python */

/* Calls <module>.<function>(self, *args, **kwargs). args and kwargs may be NULL. A new reference; NULL with an
 * exception. */
PyObject *py_object_call_python(PyObject *self, const char *module, const char *function, PyObject *args,
                                PyObject *kwargs);

#endif
