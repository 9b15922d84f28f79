#include "python/store/store.h"

#include "python/base/object.h"
#include "python/store/bridge.h"

#include <stddef.h>

PyTypeObject *
py_store_own_type(const py_state *state, PyTypeObject *type, const char **kind)
{
    const struct {
        PyTypeObject *type;
        const char *kind;
    } own[] = {
        {state->tcp_store_type, "TCPStore"},
        {state->file_store_type, "FileStore"},
        {state->hash_store_type, "HashStore"},
        {state->prefix_store_type, "PrefixStore"},
        {state->store_type, NULL},
    };
    size_t i = 0;
    while (own[i].kind != NULL && !PyType_IsSubtype(type, own[i].type)) {
        i++;
    }
    *kind = own[i].kind;
    return own[i].type;
}

static PyObject *
store_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    py_store *self = (py_store *)py_object_new(type, args, kwargs);
    if (self != NULL) {
        (void)py_store_own_type(self->state, type, &self->kind);
        atomic_init(&self->timeout_ns, DD_STORE_DEFAULT_TIMEOUT_NS);
    }
    return (PyObject *)self;
}

static int
store_init(PyObject *self, PyObject *args, PyObject *kwargs)
{
    const py_params params = {.function = "Store"};
    return py_params_read_tuple(&params, ((py_store *)self)->state, args, kwargs) ? 0 : -1;
}

bool
py_store_acquire_if_any(py_state *state, PyObject *object, const char *function, const char *name,
                        dd_store **store)
{
    bool is_any = object != NULL && object != Py_None;
    *store = is_any ? py_store_acquire(state, object, function, name) : NULL;
    return !is_any || *store != NULL;
}

void
py_store_drop(dd_store *store)
{
    if (store != NULL) {
        Py_BEGIN_ALLOW_THREADS
        dd_store_release(store);
        Py_END_ALLOW_THREADS
    }
}

void
py_store_dealloc(PyObject *object)
{
    py_store *self = (py_store *)object;
    py_object_begin_dealloc(object);
    dd_store *store = self->store;
    self->store = NULL;
    py_store_drop(store);
    py_object_end_dealloc(object);
}

static void
raise_opened(const py_store *self)
{
    PyErr_Format(PyExc_RuntimeError, "%s.__init__() was already called on this object", self->kind);
}

int
py_store_open(py_store *self, int64_t timeout_ns, py_store_opener *open, const void *options)
{
    if (py_store_of(self) != NULL) {
        raise_opened(self);
        return -1;
    }
    py_wait wait;
    dd_error err;
    dd_store *store = NULL;
    py_wait_init(&wait, self->state, timeout_ns, true);
    dd_status status = PY_WITHOUT_GIL(open(options, &store, &wait.wait, &err));
    if (py_wait_finish(&wait, status, &err)) {
        if (PY_ONCE_SET(&self->store, store)) {
            return 0;
        }
        raise_opened(self); /* another thread has already run __init__ */
    }
    if (status == DD_OK) {
        py_store_drop(store);
    }
    return -1;
}

PyObject *
py_store_wrap(PyTypeObject *type, dd_store *store)
{
    PyObject *object = store_new(type, NULL, NULL);
    if (object == NULL) {
        py_store_drop(store);
        return NULL;
    }
    ((py_store *)object)->store = store;
    return object;
}

void
py_store_raise_unopened(const py_store *self)
{
    PyErr_Format(PyExc_RuntimeError, "%s.__init__() was not called on this object",
                 self->kind != NULL ? self->kind : "Store");
}

dd_store *
py_store_opened(const py_store *self)
{
    dd_store *store = py_store_of(self);
    if (store == NULL) {
        py_store_raise_unopened(self);
    }
    return store;
}

dd_store *
py_store_acquire(py_state *state, PyObject *object, const char *function, const char *name)
{
    if (!PyObject_TypeCheck(object, state->store_type)) {
        py_raise_wrong_type(function, name, "a Store", object);
        return NULL;
    }
    const char *kind;
    PyTypeObject *type = Py_TYPE(object);
    if (py_store_own_type(state, type, &kind) != type || kind == NULL) {
        return py_bridge_open(state, object);
    }
    dd_store *store = py_store_opened((py_store *)object);
    return store != NULL ? dd_store_acquire(store) : NULL;
}

static void
raise_unbound(py_store *self, const char *function, py_unbound unbound)
{
    PyObject *name = PyType_GetName(Py_TYPE((PyObject *)self));
    if (name == NULL) {
        return;
    }
    if (unbound == PY_UNBOUND_NOT_IMPLEMENTED) {
        PyErr_Format(PyExc_NotImplementedError, "%U.%s(): Not implemented.", name, function);
    } else if (unbound == PY_UNBOUND_PURE_VIRTUAL) {
        PyErr_Format(PyExc_NotImplementedError,
                     "Tried to call pure virtual function \"Store::%s\" of class %U", function, name);
    } else {
        PyErr_Format(PyExc_NotImplementedError, "%U.%s() is not supported by this store", name, function);
    }
    Py_DECREF(name);
}

/* Open the store that a method uses if a Python class does not override the method. The caller owns
 * the store. Return NULL with an exception on failure. */
static dd_store *
open_fallback(py_store *self, const char *function, py_unbound unbound)
{
    if (unbound == PY_UNBOUND_GENERIC) {
        return py_bridge_open_generic(self->state, (PyObject *)self);
    }
    raise_unbound(self, function, unbound);
    return NULL;
}

bool
py_call_begin(py_call *call, py_store *self, const char *function, py_unbound unbound, PyObject *timeout)
{
    int64_t timeout_ns = 0;
    bool has_timeout = timeout != NULL && timeout != Py_None;
    if (has_timeout && !py_to_timeout_ns(self->state, timeout, &timeout_ns, function, "timeout")) {
        return false;
    }
    call->fallback = NULL;
    call->store = py_store_of(self);
    if (call->store == NULL) {
        if (self->kind != NULL) {
            return py_store_opened(self) != NULL;
        }
        call->fallback = open_fallback(self, function, unbound);
        call->store = call->fallback;
        if (call->store == NULL) {
            return false;
        }
    }
    if (!has_timeout) {
        timeout_ns = call->store->ops->get_timeout_ns(call->store);
    }
    py_wait_init(&call->wait, self->state, timeout_ns, has_timeout);
    call->err.message[0] = '\0';
    call->status = dd_store_check_fork(call->store, &call->err);
    return call->status == DD_OK || py_call_end(call);
}

bool
py_call_end(py_call *call)
{
    bool is_done = py_wait_finish(&call->wait, call->status, &call->err);
    if (call->fallback != NULL) {
        dd_store_release(call->fallback);
    }
    return is_done;
}

static PyObject *
store_get_timeout(PyObject *object, void *Py_UNUSED(closure))
{
    py_store *self = (py_store *)object;
    if (self->kind != NULL && py_store_opened(self) == NULL) {
        return NULL;
    }
    dd_store *store = py_store_of(self);
    int64_t timeout_ns = store != NULL ? store->ops->get_timeout_ns(store)
                                       : atomic_load_explicit(&self->timeout_ns, memory_order_relaxed);
    return py_from_timeout_ns(self->state, timeout_ns);
}

static PyGetSetDef store_getset[] = {
    {"timeout", store_get_timeout, NULL,
     "How long calls wait that are given no timeout of their own, as a timedelta.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot store_slots[] = {
    {Py_tp_doc,
     "Store()\n--\n\n"
     "A key-value store that processes meet in.\n\n"
     "Keys are str or bytes-like; values are returned as bytes. A class derived from Store that overrides set,\n"
     "get, add, compare_set, wait, check, delete_key, num_keys and clone can be handed to whatever takes a\n"
     "store; what it does not override of append, multi_get, multi_set, try_get and barrier is made of\n"
     "those. Any object is good for many threads at once."},
    {Py_tp_new, (void *)store_new},
    {Py_tp_init, (void *)store_init},
    {Py_tp_dealloc, (void *)py_store_dealloc},
    {Py_tp_traverse, (void *)py_object_traverse},
    {Py_tp_methods, py_store_methods},
    {Py_tp_getset, store_getset},
    {Py_tp_members, py_object_members},
    {0, NULL},
};

PyType_Spec py_store_spec = {"dldist.Store", sizeof(py_store), 0, PY_BASE_TYPE_FLAGS | Py_TPFLAGS_HAVE_GC,
                             store_slots};
