/* dldist.Store: the base type of all stores in Python, and how a Python object becomes a dd_store. */
#ifndef DD_PYTHON_STORE_STORE_H
#define DD_PYTHON_STORE_STORE_H

#include "python/base/object.h"
#include "python/base/params.h"
#include "python/base/wait.h"
#include "store/store.h"

#include <stdatomic.h>

/* The head of every store object. The type of each kind has it as its first member. */
typedef struct py_store {
    PY_OBJECT_HEAD;
    const char *kind; /* const after new: "TCPStore", or NULL for a class written in Python */
    dd_store *store;  /* once, by init; NULL for a class written in Python */
    /* atomic (relaxed: a setting); of a class written in Python */
    atomic_int_fast64_t timeout_ns;
} py_store;

/* A new reference to the store of a Python object. An instance of exactly one of our types gives its own store. An
 * instance of a class derived in Python gives a bridge (store/bridge.h), so that its overrides are called. NULL
 * with an exception if the object is not a store; `function` and `name` are for the message. */
dd_store *py_store_acquire(py_state *state, PyObject *object, const char *function, const char *name);

/* The same for an object that may be NULL or None: then *store is NULL. False with an exception. */
bool py_store_acquire_if_any(py_state *state, PyObject *object, const char *function, const char *name,
                             dd_store **store);

/* The type of ours that a class is or derives from (borrowed), and the name of its kind. For a class that derives
 * from Store alone, the type is Store and the kind NULL. */
PyTypeObject *py_store_own_type(const py_state *state, PyTypeObject *type, const char **kind);

/* The store of an object, or NULL if it is not open or is of a class written in Python. */
static inline dd_store *
py_store_of(const py_store *self)
{
    return PY_ONCE_GET(&self->store);
}

/* The end of a kind's __init__: opens its store, without the GIL. -1 with an exception, also if the object is open. */
typedef dd_status py_store_opener(const void *options, dd_store **store, const dd_wait *wait, dd_error *err);
int py_store_open(py_store *self, int64_t timeout_ns, py_store_opener *open, const void *options);

/* A new object of exactly this type around the store, which is taken even on failure: NULL with an exception. */
PyObject *py_store_wrap(PyTypeObject *type, dd_store *store);

/* The store of an object (borrowed). NULL with an exception if the object is not open. */
dd_store *py_store_opened(const py_store *self);
/* The exception of py_store_opened. */
void py_store_raise_unopened(const py_store *self);

/* One call of a method: everything around the call into the core. */
typedef struct py_call {
    py_wait wait;
    dd_store *store;    /* borrowed from the object, or the fallback */
    dd_store *fallback; /* owned, or NULL */
    dd_status status;   /* what the core returned */
    dd_error err;
} py_call;

/* What a method does when a class written in Python does not override it. The texts are c10d's. The exception is
 * NotImplementedError, which is a RuntimeError, as in c10d. */
typedef enum py_unbound {
    PY_UNBOUND_NOT_IMPLEMENTED, /* "Not implemented." */
    PY_UNBOUND_PURE_VIRTUAL,    /* "Tried to call pure virtual function" */
    PY_UNBOUND_NOT_SUPPORTED,
    PY_UNBOUND_GENERIC, /* the form built on other methods */
} py_unbound;

/* An operation of stores as a method of a Python object. The binding turns arguments into a request; the bridge
 * turns a request into arguments. */
typedef struct py_store_op {
    /* The kind of each parameter: 'k' the key, 'K' the keys, 'v' the next value, 'V' the values, 'n' the number,
     * 's' the number as a size (1 or more), 'b' the number as a bool (True if not given), 't' a time-out (comes
     * last) */
    py_params params;
    /* The kind of the result: '-' None, 'v' the value, 'o' the value or None, 'V' a list of values, 'K' a list of
     * keys, 'n' the number, 'b' a bool */
    char gives;
    py_unbound unbound;
} py_store_op;

extern const py_store_op py_store_ops[]; /* by dd_store_op */

/* False with an exception; then there is nothing to end. A `timeout` of NULL or None means the store's. */
bool py_call_begin(py_call *call, py_store *self, const char *function, py_unbound unbound,
                   PyObject *timeout);
/* Ends the call: true if it succeeded, false with an exception. */
bool py_call_end(py_call *call);

void py_store_dealloc(PyObject *self);
/* Releases the store, which may be NULL, without the GIL. Called with the GIL held. */
void py_store_drop(dd_store *store);

/* Store.clone, for the kinds that copy more. */
PyObject *py_store_clone(PyObject *self, PyObject *unused);

extern PyMethodDef py_store_methods[];

extern PyType_Spec py_store_spec;
extern PyType_Spec py_tcp_store_spec;
extern PyType_Spec py_file_store_spec;
extern PyType_Spec py_hash_store_spec;
extern PyType_Spec py_prefix_store_spec;

#endif
