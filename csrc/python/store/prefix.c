#include "python/store/bridge.h"
#include "python/store/store.h"

typedef struct py_prefix_store {
    py_store base;
    PyObject *prefix;     /* the argument of __init__; written before `underlying`, then const */
    PyObject *underlying; /* once, set after the store: the object for underlying_store */
} py_prefix_store;

typedef struct view_options {
    dd_bytes prefix;
    dd_store *below;
} view_options;

static dd_status
open_prefix(const void *given, dd_store **store, const dd_wait *wait, dd_error *err)
{
    (void)wait;
    const view_options *options = given;
    return dd_prefix_store_open(store, options->prefix, options->below, err);
}

/* Open the object's store, a view of the underlying store. The caller must set the object's own
 * fields. Return -1 with an exception on failure. */
static int
open_view(py_store *self, PyObject *prefix, PyObject *underlying)
{
    py_bytes bytes = {0};
    if (!py_bytes_init(&bytes, prefix, "PrefixStore", "prefix")) {
        return -1;
    }
    dd_store *below = py_store_acquire(self->state, underlying, "PrefixStore", "store");
    const view_options options = {.prefix = bytes.view, .below = below};
    int rc = below != NULL ? py_store_open(self, 0, open_prefix, &options) : -1;
    py_store_drop(below);
    py_bytes_fini(&bytes);
    return rc;
}

static int
prefix_store_init(PyObject *object, PyObject *args, PyObject *kwargs)
{
    py_prefix_store *self = (py_prefix_store *)object;
    PyObject *prefix;
    PyObject *underlying;
    const py_params params =
        PY_PARAMS("PrefixStore", 2, 2, {"prefix", PY_OBJECT, &prefix}, {"store", PY_OBJECT, &underlying});
    if (!py_params_read_tuple(&params, self->base.state, args, kwargs)) {
        return -1;
    }
    if (underlying == Py_None) {
        PyErr_SetString(PyExc_ValueError, "store argument cannot be None");
        return -1;
    }
    if (open_view(&self->base, prefix, underlying) < 0) {
        return -1;
    }
    self->prefix = Py_NewRef(prefix); /* only the __init__ that opened the store gets here */
    (void)PY_ONCE_SET(&self->underlying, Py_NewRef(underlying));
    return 0;
}

/* If this store is a view of a bridge, and the bridge's only user, return the bridge's object
 * (borrowed), otherwise NULL. The garbage collector may count the bridge's reference to its object
 * only if the bridge has no other users. This frees a Python store that keeps a PrefixStore of
 * itself. */
static PyObject *
object_of_own_bridge(const py_prefix_store *self)
{
    dd_store *view = self->base.store;
    if (view == NULL || atomic_load(&view->refs) != 1) {
        return NULL;
    }
    const dd_store *below = dd_prefix_store_underlying(view);
    return atomic_load(&below->refs) == 1 ? py_bridge_object(below) : NULL;
}

/* The type has no tp_clear; base/object.h explains why. */
static int
prefix_store_traverse(PyObject *object, visitproc visit, void *arg)
{
    py_prefix_store *self = (py_prefix_store *)object;
    Py_VISIT(self->prefix);
    Py_VISIT(self->underlying);
    Py_VISIT(object_of_own_bridge(self));
    return py_object_traverse(object, visit, arg);
}

static void
prefix_store_dealloc(PyObject *object)
{
    py_prefix_store *self = (py_prefix_store *)object;
    PyObject_GC_UnTrack(object);
    Py_CLEAR(self->prefix);
    Py_CLEAR(self->underlying);
    py_store_dealloc(object);
}

/* Return the underlying object (borrowed), or NULL with an exception before __init__ has set it. */
static PyObject *
prefix_get_underlying(PyObject *object)
{
    const py_prefix_store *self = (const py_prefix_store *)object;
    PyObject *underlying = PY_ONCE_GET(&self->underlying);
    if (underlying == NULL) {
        py_store_raise_unopened(&self->base);
    }
    return underlying;
}

static PyObject *
prefix_store_get_underlying(PyObject *object, void *Py_UNUSED(closure))
{
    return Py_XNewRef(prefix_get_underlying(object));
}

static PyObject *
prefix_store_get_non_prefix(PyObject *object, void *Py_UNUSED(closure))
{
    PyTypeObject *type = ((py_store *)object)->state->prefix_store_type;
    while (object != NULL && PyObject_TypeCheck(object, type)) {
        object = prefix_get_underlying(object);
    }
    return Py_XNewRef(object);
}

/* Timeout and has_extended_api are the underlying store's, whatever its class. */

static PyObject *
prefix_store_get_timeout(PyObject *object, void *Py_UNUSED(closure))
{
    PyObject *underlying = prefix_get_underlying(object);
    return underlying != NULL ? PyObject_GetAttrString(underlying, "timeout") : NULL;
}

static PyObject *
call_underlying(PyObject *object, const char *name, PyObject *argument)
{
    PyObject *underlying = prefix_get_underlying(object);
    PyObject *method = underlying != NULL ? PyObject_GetAttrString(underlying, name) : NULL;
    PyObject *result = method != NULL ? PyObject_CallFunctionObjArgs(method, argument, NULL) : NULL;
    Py_XDECREF(method);
    return result;
}

static PyObject *
prefix_store_set_timeout(PyObject *object, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    PyObject *timeout;
    const py_params params = PY_PARAMS("set_timeout", 1, 1, {"timeout", PY_OBJECT, &timeout});
    return py_params_read(&params, ((py_store *)object)->state, args, nargs, kwnames)
               ? call_underlying(object, "set_timeout", timeout)
               : NULL;
}

static PyObject *
prefix_store_has_extended_api(PyObject *object, PyObject *Py_UNUSED(unused))
{
    return call_underlying(object, "has_extended_api", NULL);
}

static PyObject *
prefix_store_clone(PyObject *object, PyObject *Py_UNUSED(unused))
{
    py_prefix_store *self = (py_prefix_store *)object;
    PyObject *underlying = call_underlying(object, "clone", NULL);
    if (underlying == NULL) {
        return NULL;
    }
    PyObject *type = (PyObject *)self->base.state->prefix_store_type;
    PyObject *clone = PyObject_CallFunctionObjArgs(type, self->prefix, underlying, NULL);
    Py_DECREF(underlying);
    return clone;
}

static PyObject *
prefix_store_repr(PyObject *object)
{
    py_prefix_store *self = (py_prefix_store *)object;
    PyObject *underlying = prefix_get_underlying(object);
    return underlying != NULL
               ? PyUnicode_FromFormat("PrefixStore(prefix=%R, store=%R)", self->prefix, underlying)
               : NULL;
}

static PyMethodDef prefix_store_methods[] = {
    {"clone", prefix_store_clone, METH_NOARGS,
     "clone($self)\n--\n\nThe same prefix on a clone of the store below."},
    {"set_timeout", PY_FAST_METHOD(prefix_store_set_timeout),
     "set_timeout($self, timeout)\n--\n\nSets the timeout of the store below."},
    {"has_extended_api", prefix_store_has_extended_api, METH_NOARGS,
     "has_extended_api($self)\n--\n\nWhether the store below has it."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef prefix_store_getset[] = {
    {"underlying_store", prefix_store_get_underlying, NULL, "The store below: the very object.", NULL},
    {"_underlying_non_prefix_store", prefix_store_get_non_prefix, NULL,
     "The first store below that has no prefix.", NULL},
    {"timeout", prefix_store_get_timeout, NULL, "The timeout of the store below.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot prefix_store_slots[] = {
    {Py_tp_doc, "PrefixStore(prefix, store)\n--\n\n"
                "A view of a store in which every key has \"<prefix>/\" before it."},
    {Py_tp_init, (void *)prefix_store_init},
    {Py_tp_repr, (void *)prefix_store_repr},
    {Py_tp_dealloc, (void *)prefix_store_dealloc},
    {Py_tp_traverse, (void *)prefix_store_traverse},
    {Py_tp_methods, prefix_store_methods},
    {Py_tp_getset, prefix_store_getset},
    {0, NULL},
};

PyType_Spec py_prefix_store_spec = {"dldist.PrefixStore", sizeof(py_prefix_store), 0,
                                    PY_BASE_TYPE_FLAGS | Py_TPFLAGS_HAVE_GC, prefix_store_slots};
