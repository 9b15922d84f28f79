/* dldist.Store, the base type of all stores in Python, and conversion of objects to dd_store. */
#ifndef DD_PYTHON_STORE_STORE_H
#define DD_PYTHON_STORE_STORE_H

#include "python/base/object.h"
#include "python/base/params.h"
#include "python/base/wait.h"
#include "store/store.h"

#include <stdatomic.h>

/* The head of every store object: must be the first member of each store type's struct. */
typedef struct py_store {
    PY_OBJECT_HEAD;
    const char *kind; /* built-in type's name: "TCPStore"; NULL for a class written in Python */
    dd_store *store;  /* the core's store; once, set by __init__; NULL if written in Python */
    /* timeout of a store written in Python, in nanoseconds; atomic, relaxed */
    atomic_int_fast64_t timeout_ns;
} py_store;

/* Return a new reference to the store of a Python object. An instance of exactly a built-in type
 * gives the instance's own store. An instance of a class derived in Python gives a bridge
 * (store/bridge.h), so that the class's overrides are called. Returns NULL with an exception if the
 * object is not a store; `function` and `name` are for the message. */
dd_store *py_store_acquire(py_state *state, PyObject *object, const char *function, const char *name);

/* Like py_store_acquire, but set *store to NULL if the object is NULL or None. */
bool py_store_acquire_if_any(py_state *state, PyObject *object, const char *function, const char *name,
                             dd_store **store);

/* Return the built-in type that a class is, or derives from (borrowed). Set *kind to the type's
 * name, as in py_store.kind. For a class that derives only from Store, return Store and set *kind
 * to NULL. */
PyTypeObject *py_store_own_type(const py_state *state, PyTypeObject *type, const char **kind);

/* Return the object's store, or NULL if it is not open or its class is written in Python. */
static inline dd_store *
py_store_of(const py_store *self)
{
    return PY_ONCE_GET(&self->store);
}

/* Open the object's store without the GIL, as the last step of a kind's __init__. Returns -1 with
 * an exception on failure, also if the object is open already. */
typedef dd_status py_store_opener(const void *options, dd_store **store, const dd_wait *wait, dd_error *err);
int py_store_open(py_store *self, int64_t timeout_ns, py_store_opener *open, const void *options);

/* Create an object of exactly this type, which takes ownership of the store, even on failure. */
PyObject *py_store_wrap(PyTypeObject *type, dd_store *store);

/* Return the object's store (borrowed), or NULL with an exception if it is not open. */
dd_store *py_store_opened(const py_store *self);
/* Raise the exception of py_store_opened for an object that is not open. */
void py_store_raise_unopened(const py_store *self);

/* One call of a store method, with the call's wait, store and result. */
typedef struct py_call {
    py_wait wait;
    dd_store *store; /* the store that the call uses, borrowed: the object's own or `fallback` */
    /* owned store for a method that a Python class does not override, or NULL */
    dd_store *fallback;
    dd_status status; /* result of the core's call */
    dd_error err;
} py_call;

/* The effect of calling a method that a class written in Python does not override. Exceptions are
 * NotImplementedError, a subclass of RuntimeError, with torch's messages. */
typedef enum py_unbound {
    PY_UNBOUND_NOT_IMPLEMENTED, /* raises "Not implemented." */
    PY_UNBOUND_PURE_VIRTUAL,    /* raises "Tried to call pure virtual function" */
    PY_UNBOUND_NOT_SUPPORTED,
    PY_UNBOUND_GENERIC, /* run the operation's generic form, which calls other methods */
} py_unbound;

/* A store operation as a Python method. A bridge calls the methods by the same rows. */
typedef struct py_store_op {
    /* The kind of each parameter: 'k' the key, 'K' the keys, 'v' the next value, 'V' the values,
     * 'n' the number, 's' the number as a size (at least 1), 'b' the number as a bool (True by
     * default), 't' a timeout (must be last). */
    py_params params;
    /* The kind of the result: '-' None, 'v' the value, 'o' the value or None, 'V' a list of values,
     * 'K' a list of keys, 'n' the number, 'b' a bool. */
    char gives;
    py_unbound unbound;
} py_store_op;

extern const py_store_op py_store_ops[]; /* rows, indexed by dd_store_op */

/* Begin a call. If `timeout` is NULL or None, the store's timeout applies. On failure return false
 * with an exception; py_call_end must then not be called. */
bool py_call_begin(py_call *call, py_store *self, const char *function, py_unbound unbound,
                   PyObject *timeout);
/* End a call. Return true if the call succeeded, otherwise false with an exception. */
bool py_call_end(py_call *call);

void py_store_dealloc(PyObject *self);
/* Release the store, which may be NULL, without the GIL. Must be called with the GIL held. */
void py_store_drop(dd_store *store);

/* Implement Store.clone. Store types that copy more fields call this function first. */
PyObject *py_store_clone(PyObject *self, PyObject *unused);

extern PyMethodDef py_store_methods[];

extern PyType_Spec py_store_spec;
extern PyType_Spec py_tcp_store_spec;
extern PyType_Spec py_file_store_spec;
extern PyType_Spec py_hash_store_spec;
extern PyType_Spec py_prefix_store_spec;

#endif
