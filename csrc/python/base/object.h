/* Creation and release of objects of heap types.
 *
 * Objects that release the GIL in their deallocation have a tp_traverse and, like tuples, no
 * tp_clear, because other threads would run while the collector clears objects that belong
 * together. Such an object gets all its references when it is created. A reference cycle therefore
 * always contains another object that was changed later, and the collector clears that object. */
#ifndef DD_PYTHON_BASE_OBJECT_H
#define DD_PYTHON_BASE_OBJECT_H

#include "python/base/state.h"

/* The space for Python's own fields at the start of an object. abi3t hides their size, 16 bytes
 * with a GIL and 32 without one (3.15), so the structs reserve more. The import fails if the space
 * is too small. */
#ifdef Py_TARGET_ABI3T
typedef struct py_object_space {
    void *reserved[8];
} py_object_space;
#else
typedef PyObject py_object_space;
#endif

/* The first fields of every dldist object's struct. */
#define PY_OBJECT_HEAD                                                                    \
    py_object_space ob_base; /* PyObject_HEAD's fields */                                 \
    PyObject *module;        /* the module, which keeps `state` alive; const after new */ \
    py_state *state;         /* the module's state; const after new */                    \
    PyObject *weakrefs

typedef struct py_object {
    PY_OBJECT_HEAD;
} py_object;

/* Set state->object_size. Fails if py_object_space is too small for this Python. */
int py_object_read_size(py_state *state);

/* Create a zeroed object of a dldist type, or of a class derived from one; only the object's head
 * is set. The collector tracks the object if its type has GC. The arguments are ignored, so that
 * this function can be a tp_new. */
PyObject *py_object_new(PyTypeObject *type, PyObject *args, PyObject *kwargs);

/* A tp_traverse for objects that refer only to their type and the module. */
int py_object_traverse(PyObject *object, visitproc visit, void *arg);

/* The first step of a tp_dealloc: clear weak references and untrack the object. */
void py_object_begin_dealloc(PyObject *object);
/* The last step of a tp_dealloc: free the memory, then release the type and the module. */
void py_object_end_dealloc(PyObject *object);
/* A tp_dealloc for objects that own nothing besides their head: py_object_begin_dealloc, then
 * py_object_end_dealloc. */
void py_object_dealloc(PyObject *object);

/* The tp_members of types whose objects can have weak references. */
extern PyMemberDef py_object_members[];

/* Flags of three kinds of types: final types, types that programs may derive from, and types that
 * only C code instantiates. */
#define PY_TYPE_FLAGS (Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE)
#define PY_BASE_TYPE_FLAGS (PY_TYPE_FLAGS | Py_TPFLAGS_BASETYPE)
#define PY_MADE_TYPE_FLAGS (PY_TYPE_FLAGS | Py_TPFLAGS_DISALLOW_INSTANTIATION)

/* ---- objects without PY_OBJECT_HEAD */

/* Create a zeroed object of this type. Return NULL with an exception on failure. */
PyObject *py_object_alloc(PyTypeObject *type);
/* Free the memory, then release the object's type. */
void py_object_free(PyObject *object);

/* Return None if is_done is true. Otherwise return NULL; the caller must have set an exception. */
static inline PyObject *
py_none_if(bool is_done)
{
    return is_done ? Py_NewRef(Py_None) : NULL;
}

/* Append an item to a list, and release the item. If the item or the list is NULL, or memory runs
 * out, release the list and set it to NULL. */
void py_list_append(PyObject **list, PyObject *item);

/* ---- methods written in Python */

/* Call <module>.<function>(self, *args, **kwargs) and return the result, a new reference. args and
 * kwargs may be NULL. */
PyObject *py_object_call_python(PyObject *self, const char *module, const char *function, PyObject *args,
                                PyObject *kwargs);

#endif
