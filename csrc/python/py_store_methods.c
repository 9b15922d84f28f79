/* The methods of dldist.Store. Each one is the same four steps: arguments, py_call_begin, the operation
 * without the GIL, py_call_end. */

#include "python/py_store.h"

static PyObject *
store_set(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    static const py_signature signature = {"set", {"key", "value"}, 2, 2};
    PyObject *values[PY_MAX_ARGS];
    py_bytes key = {0};
    py_bytes value = {0};
    py_call call;
    bool is_done = false;
    if (py_args_parse(&signature, args, nargs, kwnames, values) &&
        py_bytes_init(&key, values[0], "set", "key") && py_bytes_init(&value, values[1], "set", "value") &&
        py_call_begin(&call, (py_store *)self, "set", PY_UNBOUND_NOT_IMPLEMENTED, NULL)) {
        Py_BEGIN_ALLOW_THREADS
        call.status = call.store->ops->set(call.store, key.view, value.view, &call.wait.wait, &call.err);
        Py_END_ALLOW_THREADS
        is_done = py_call_end(&call);
    }
    py_bytes_fini(&key);
    py_bytes_fini(&value);
    return is_done ? Py_NewRef(Py_None) : NULL;
}

/* Ends a call and frees the blob: returns its value, or NULL with an exception. */
static PyObject *
finish_blob(py_call *call, dd_blob *blob)
{
    PyObject *result = py_call_end(call) ? py_from_value(dd_blob_view(blob)) : NULL;
    dd_blob_fini(blob);
    return result;
}

static PyObject *
store_get(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    static const py_signature signature = {"get", {"key", "timeout"}, 1, 2};
    PyObject *values[PY_MAX_ARGS];
    py_bytes key = {0};
    py_call call;
    PyObject *result = NULL;
    if (py_args_parse(&signature, args, nargs, kwnames, values) &&
        py_bytes_init(&key, values[0], "get", "key") &&
        py_call_begin(&call, (py_store *)self, "get", PY_UNBOUND_NOT_IMPLEMENTED, values[1])) {
        dd_blob value = {0};
        Py_BEGIN_ALLOW_THREADS
        call.status = call.store->ops->get(call.store, key.view, &value, &call.wait.wait, &call.err);
        Py_END_ALLOW_THREADS
        result = finish_blob(&call, &value);
    }
    py_bytes_fini(&key);
    return result;
}

static PyObject *
store_try_get(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    static const py_signature signature = {"try_get", {"key"}, 1, 1};
    PyObject *values[PY_MAX_ARGS];
    py_bytes key = {0};
    py_call call;
    PyObject *result = NULL;
    if (py_args_parse(&signature, args, nargs, kwnames, values) &&
        py_bytes_init(&key, values[0], "try_get", "key") &&
        py_call_begin(&call, (py_store *)self, "try_get", PY_UNBOUND_GENERIC, NULL)) {
        dd_blob value = {0};
        bool is_found = false;
        Py_BEGIN_ALLOW_THREADS
        call.status =
            call.store->ops->try_get(call.store, key.view, &value, &is_found, &call.wait.wait, &call.err);
        Py_END_ALLOW_THREADS
        result = finish_blob(&call, &value);
        if (result != NULL && !is_found) {
            Py_DECREF(result);
            result = Py_NewRef(Py_None);
        }
    }
    py_bytes_fini(&key);
    return result;
}

static PyObject *
store_add(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    static const py_signature signature = {"add", {"key", "amount"}, 2, 2};
    PyObject *values[PY_MAX_ARGS];
    py_bytes key = {0};
    int64_t amount;
    int64_t sum = 0;
    py_call call;
    bool is_done = false;
    if (py_args_parse(&signature, args, nargs, kwnames, values) &&
        py_bytes_init(&key, values[0], "add", "key") && py_to_int64(values[1], &amount, "add", "amount") &&
        py_call_begin(&call, (py_store *)self, "add", PY_UNBOUND_PURE_VIRTUAL, NULL)) {
        Py_BEGIN_ALLOW_THREADS
        call.status = call.store->ops->add(call.store, key.view, amount, &sum, &call.wait.wait, &call.err);
        Py_END_ALLOW_THREADS
        is_done = py_call_end(&call);
    }
    py_bytes_fini(&key);
    return is_done ? PyLong_FromLongLong(sum) : NULL;
}

static PyObject *
store_compare_set(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    static const py_signature signature = {"compare_set", {"key", "expected_value", "desired_value"}, 3, 3};
    PyObject *values[PY_MAX_ARGS];
    py_bytes arguments[3] = {0};
    py_call call;
    PyObject *result = NULL;
    bool is_ok = py_args_parse(&signature, args, nargs, kwnames, values);
    for (int i = 0; is_ok && i < 3; i++) {
        is_ok = py_bytes_init(&arguments[i], values[i], "compare_set", signature.names[i]);
    }
    if (is_ok && py_call_begin(&call, (py_store *)self, "compare_set", PY_UNBOUND_NOT_IMPLEMENTED, NULL)) {
        dd_blob value = {0};
        Py_BEGIN_ALLOW_THREADS
        call.status = call.store->ops->compare_set(call.store, arguments[0].view, arguments[1].view,
                                                   arguments[2].view, &value, &call.wait.wait, &call.err);
        Py_END_ALLOW_THREADS
        result = finish_blob(&call, &value);
    }
    for (int i = 0; i < 3; i++) {
        py_bytes_fini(&arguments[i]);
    }
    return result;
}

static PyObject *
store_wait(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    static const py_signature signature = {"wait", {"keys", "timeout"}, 1, 2};
    PyObject *values[PY_MAX_ARGS];
    py_bytes_list keys = {0};
    py_call call;
    bool is_done = false;
    if (py_args_parse(&signature, args, nargs, kwnames, values) &&
        py_bytes_list_init(&keys, values[0], "wait", "keys") &&
        py_call_begin(&call, (py_store *)self, "wait", PY_UNBOUND_PURE_VIRTUAL, values[1])) {
        Py_BEGIN_ALLOW_THREADS
        call.status = call.store->ops->wait(call.store, keys.views, keys.count, &call.wait.wait, &call.err);
        Py_END_ALLOW_THREADS
        is_done = py_call_end(&call);
    }
    py_bytes_list_fini(&keys);
    return is_done ? Py_NewRef(Py_None) : NULL;
}

static PyObject *
store_check(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    static const py_signature signature = {"check", {"keys"}, 1, 1};
    PyObject *values[PY_MAX_ARGS];
    py_bytes_list keys = {0};
    bool is_ready = false;
    py_call call;
    bool is_done = false;
    if (py_args_parse(&signature, args, nargs, kwnames, values) &&
        py_bytes_list_init(&keys, values[0], "check", "keys") &&
        py_call_begin(&call, (py_store *)self, "check", PY_UNBOUND_PURE_VIRTUAL, NULL)) {
        Py_BEGIN_ALLOW_THREADS
        call.status =
            call.store->ops->check(call.store, keys.views, keys.count, &is_ready, &call.wait.wait, &call.err);
        Py_END_ALLOW_THREADS
        is_done = py_call_end(&call);
    }
    py_bytes_list_fini(&keys);
    return is_done ? PyBool_FromLong(is_ready) : NULL;
}

static PyObject *
store_delete_key(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    static const py_signature signature = {"delete_key", {"key"}, 1, 1};
    PyObject *values[PY_MAX_ARGS];
    py_bytes key = {0};
    bool is_deleted = false;
    py_call call;
    bool is_done = false;
    if (py_args_parse(&signature, args, nargs, kwnames, values) &&
        py_bytes_init(&key, values[0], "delete_key", "key") &&
        py_call_begin(&call, (py_store *)self, "delete_key", PY_UNBOUND_PURE_VIRTUAL, NULL)) {
        Py_BEGIN_ALLOW_THREADS
        call.status =
            call.store->ops->delete_key(call.store, key.view, &is_deleted, &call.wait.wait, &call.err);
        Py_END_ALLOW_THREADS
        is_done = py_call_end(&call);
    }
    py_bytes_fini(&key);
    return is_done ? PyBool_FromLong(is_deleted) : NULL;
}

static PyObject *
store_num_keys(PyObject *self, PyObject *unused)
{
    (void)unused;
    int64_t count = 0;
    py_call call;
    if (!py_call_begin(&call, (py_store *)self, "num_keys", PY_UNBOUND_PURE_VIRTUAL, NULL)) {
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS
    call.status = call.store->ops->num_keys(call.store, &count, &call.wait.wait, &call.err);
    Py_END_ALLOW_THREADS
    return py_call_end(&call) ? PyLong_FromLongLong(count) : NULL;
}

static PyObject *
store_append(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    static const py_signature signature = {"append", {"key", "value"}, 2, 2};
    PyObject *values[PY_MAX_ARGS];
    py_bytes key = {0};
    py_bytes value = {0};
    py_call call;
    bool is_done = false;
    if (py_args_parse(&signature, args, nargs, kwnames, values) &&
        py_bytes_init(&key, values[0], "append", "key") &&
        py_bytes_init(&value, values[1], "append", "value") &&
        py_call_begin(&call, (py_store *)self, "append", PY_UNBOUND_GENERIC, NULL)) {
        Py_BEGIN_ALLOW_THREADS
        call.status = call.store->ops->append(call.store, key.view, value.view, &call.wait.wait, &call.err);
        Py_END_ALLOW_THREADS
        is_done = py_call_end(&call);
    }
    py_bytes_fini(&key);
    py_bytes_fini(&value);
    return is_done ? Py_NewRef(Py_None) : NULL;
}

static PyObject *
store_multi_get(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    static const py_signature signature = {"multi_get", {"keys"}, 1, 1};
    PyObject *values[PY_MAX_ARGS];
    py_bytes_list keys = {0};
    py_call call;
    PyObject *result = NULL;
    if (py_args_parse(&signature, args, nargs, kwnames, values) &&
        py_bytes_list_init(&keys, values[0], "multi_get", "keys") &&
        py_call_begin(&call, (py_store *)self, "multi_get", PY_UNBOUND_GENERIC, NULL)) {
        dd_blob_list found = {0};
        Py_BEGIN_ALLOW_THREADS
        call.status = call.store->ops->multi_get(call.store, keys.views, keys.count, &found, &call.wait.wait,
                                                 &call.err);
        Py_END_ALLOW_THREADS
        result = py_call_end(&call) ? py_from_blob_list(&found, py_from_value) : NULL;
        dd_blob_list_fini(&found);
    }
    py_bytes_list_fini(&keys);
    return result;
}

static bool
is_same_length(const py_bytes_list *keys, const py_bytes_list *values)
{
    if (keys->count != values->count) {
        PyErr_Format(PyExc_ValueError,
                     "multi_set(): 'keys' and 'values' must be of one length, not %zu and %zu", keys->count,
                     values->count);
        return false;
    }
    return true;
}

static PyObject *
store_multi_set(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    static const py_signature signature = {"multi_set", {"keys", "values"}, 2, 2};
    PyObject *arguments[PY_MAX_ARGS];
    py_bytes_list keys = {0};
    py_bytes_list values = {0};
    py_call call;
    bool is_done = false;
    if (py_args_parse(&signature, args, nargs, kwnames, arguments) &&
        py_bytes_list_init(&keys, arguments[0], "multi_set", "keys") &&
        py_bytes_list_init(&values, arguments[1], "multi_set", "values") && is_same_length(&keys, &values) &&
        py_call_begin(&call, (py_store *)self, "multi_set", PY_UNBOUND_GENERIC, NULL)) {
        Py_BEGIN_ALLOW_THREADS
        call.status = call.store->ops->multi_set(call.store, keys.views, values.views, keys.count,
                                                 &call.wait.wait, &call.err);
        Py_END_ALLOW_THREADS
        is_done = py_call_end(&call);
    }
    py_bytes_list_fini(&keys);
    py_bytes_list_fini(&values);
    return is_done ? Py_NewRef(Py_None) : NULL;
}

static PyObject *
store_queue_push(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    static const py_signature signature = {"queue_push", {"key", "value"}, 2, 2};
    PyObject *values[PY_MAX_ARGS];
    py_bytes key = {0};
    py_bytes value = {0};
    py_call call;
    bool is_done = false;
    if (py_args_parse(&signature, args, nargs, kwnames, values) &&
        py_bytes_init(&key, values[0], "queue_push", "key") &&
        py_bytes_init(&value, values[1], "queue_push", "value") &&
        py_call_begin(&call, (py_store *)self, "queue_push", PY_UNBOUND_NOT_SUPPORTED, NULL)) {
        Py_BEGIN_ALLOW_THREADS
        call.status =
            call.store->ops->queue_push(call.store, key.view, value.view, &call.wait.wait, &call.err);
        Py_END_ALLOW_THREADS
        is_done = py_call_end(&call);
    }
    py_bytes_fini(&key);
    py_bytes_fini(&value);
    return is_done ? Py_NewRef(Py_None) : NULL;
}

static PyObject *
store_queue_pop(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    static const py_signature signature = {"queue_pop", {"key", "block", "timeout"}, 1, 3};
    PyObject *values[PY_MAX_ARGS];
    py_bytes key = {0};
    py_call call;
    PyObject *result = NULL;
    if (!py_args_parse(&signature, args, nargs, kwnames, values)) {
        return NULL;
    }
    int is_blocking = values[1] != NULL ? PyObject_IsTrue(values[1]) : 1;
    if (is_blocking >= 0 && py_bytes_init(&key, values[0], "queue_pop", "key") &&
        py_call_begin(&call, (py_store *)self, "queue_pop", PY_UNBOUND_NOT_SUPPORTED, values[2])) {
        dd_blob value = {0};
        Py_BEGIN_ALLOW_THREADS
        call.status = call.store->ops->queue_pop(call.store, key.view, is_blocking != 0, &value,
                                                 &call.wait.wait, &call.err);
        Py_END_ALLOW_THREADS
        result = finish_blob(&call, &value);
    }
    py_bytes_fini(&key);
    return result;
}

static PyObject *
store_queue_len(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    static const py_signature signature = {"queue_len", {"key"}, 1, 1};
    PyObject *values[PY_MAX_ARGS];
    py_bytes key = {0};
    int64_t count = 0;
    py_call call;
    bool is_done = false;
    if (py_args_parse(&signature, args, nargs, kwnames, values) &&
        py_bytes_init(&key, values[0], "queue_len", "key") &&
        py_call_begin(&call, (py_store *)self, "queue_len", PY_UNBOUND_NOT_SUPPORTED, NULL)) {
        Py_BEGIN_ALLOW_THREADS
        call.status = call.store->ops->queue_len(call.store, key.view, &count, &call.wait.wait, &call.err);
        Py_END_ALLOW_THREADS
        is_done = py_call_end(&call);
    }
    py_bytes_fini(&key);
    return is_done ? PyLong_FromLongLong(count) : NULL;
}

static PyObject *
store_list_keys(PyObject *self, PyObject *unused)
{
    (void)unused;
    dd_blob_list keys = {0};
    py_call call;
    if (!py_call_begin(&call, (py_store *)self, "list_keys", PY_UNBOUND_NOT_SUPPORTED, NULL)) {
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS
    call.status = call.store->ops->list_keys(call.store, &keys, &call.wait.wait, &call.err);
    Py_END_ALLOW_THREADS
    PyObject *result = py_call_end(&call) ? py_from_blob_list(&keys, py_from_key) : NULL;
    dd_blob_list_fini(&keys);
    return result;
}

static bool
world_size_of(PyObject *value, int64_t *world_size)
{
    if (!py_to_int64(value, world_size, "barrier", "world_size")) {
        return false;
    }
    if (*world_size < 1) {
        PyErr_Format(PyExc_ValueError, "barrier(): argument 'world_size' must be 1 or more, not %lld",
                     (long long)*world_size);
        return false;
    }
    return true;
}

static PyObject *
store_barrier(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    static const py_signature signature = {"barrier", {"key", "world_size", "timeout"}, 2, 3};
    PyObject *values[PY_MAX_ARGS];
    py_bytes key = {0};
    int64_t world_size;
    py_call call;
    bool is_done = false;
    if (py_args_parse(&signature, args, nargs, kwnames, values) && world_size_of(values[1], &world_size) &&
        py_bytes_init(&key, values[0], "barrier", "key") &&
        py_call_begin(&call, (py_store *)self, "barrier", PY_UNBOUND_GENERIC, values[2])) {
        Py_BEGIN_ALLOW_THREADS
        call.status = call.store->ops->barrier(call.store, key.view, world_size, &call.wait.wait, &call.err);
        Py_END_ALLOW_THREADS
        is_done = py_call_end(&call);
    }
    py_bytes_fini(&key);
    return is_done ? Py_NewRef(Py_None) : NULL;
}

/* The type of exactly our kind that an object is made from. */
static PyTypeObject *
own_type_of(const py_store *self)
{
    PyTypeObject *types[] = {self->state->tcp_store_type, self->state->file_store_type,
                             self->state->hash_store_type, self->state->prefix_store_type};
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        if (PyObject_TypeCheck((PyObject *)self, types[i])) {
            return types[i];
        }
    }
    return self->state->store_type;
}

PyObject *
py_store_clone(PyObject *object, PyObject *unused)
{
    (void)unused;
    py_store *self = (py_store *)object;
    dd_store *other = NULL;
    py_call call;
    if (!py_call_begin(&call, self, "clone", PY_UNBOUND_PURE_VIRTUAL, NULL)) {
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS
    call.status = call.store->ops->clone(call.store, &other, &call.wait.wait, &call.err);
    Py_END_ALLOW_THREADS
    if (!py_call_end(&call)) {
        py_store_drop(other);
        return NULL;
    }
    return py_store_wrap(own_type_of(self), other);
}

static PyObject *
store_set_timeout(PyObject *object, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    static const py_signature signature = {"set_timeout", {"timeout"}, 1, 1};
    py_store *self = (py_store *)object;
    PyObject *values[PY_MAX_ARGS];
    int64_t timeout_ns;
    if (!py_args_parse(&signature, args, nargs, kwnames, values) ||
        !py_to_timeout_ns(self->state, values[0], &timeout_ns, "set_timeout", "timeout") ||
        (self->kind != NULL && py_store_opened(self) == NULL)) {
        return NULL;
    }
    if (self->store == NULL) {
        self->timeout_ns = timeout_ns;
        Py_RETURN_NONE;
    }
    self->store->ops->set_timeout_ns(self->store, timeout_ns);
    Py_RETURN_NONE;
}

static PyObject *
store_has_extended_api(PyObject *object, PyObject *unused)
{
    (void)unused;
    py_store *self = (py_store *)object;
    if (self->kind != NULL && py_store_opened(self) == NULL) {
        return NULL;
    }
    return PyBool_FromLong(self->store != NULL && self->store->ops->has_extended_api(self->store));
}

PyMethodDef py_store_methods[] = {
    {"set", PY_FAST_METHOD(store_set),
     "set($self, key, value)\n--\n\nStores the value at the key, over one that is there."},
    {"get", PY_FAST_METHOD(store_get),
     "get($self, key, timeout=None)\n--\n\n"
     "The value at the key, as bytes; waits until there is one.\n\n"
     "timeout: a timedelta or seconds; None is the store's, 0 looks once. When it is over:\n"
     "DistStoreTimeoutError."},
    {"try_get", PY_FAST_METHOD(store_try_get),
     "try_get($self, key)\n--\n\nThe value at the key, or None when there is none now."},
    {"add", PY_FAST_METHOD(store_add),
     "add($self, key, amount)\n--\n\n"
     "Adds to the decimal number at the key (a missing one is 0) and returns the sum."},
    {"compare_set", PY_FAST_METHOD(store_compare_set),
     "compare_set($self, key, expected_value, desired_value)\n--\n\n"
     "Stores desired_value if the key holds expected_value, or is missing and expected_value is\n"
     "empty. Returns what the key holds afterwards; for a missing key that was not set,\n"
     "expected_value."},
    {"wait", PY_FAST_METHOD(store_wait),
     "wait($self, keys, timeout=None)\n--\n\n"
     "Waits until every key has a value or a queue that is not empty."},
    {"check", PY_FAST_METHOD(store_check),
     "check($self, keys)\n--\n\nWhether every key has a value or a queue that is not empty."},
    {"delete_key", PY_FAST_METHOD(store_delete_key),
     "delete_key($self, key)\n--\n\nDeletes the value at the key; tells whether there was one."},
    {"num_keys", store_num_keys, METH_NOARGS, "num_keys($self)\n--\n\nHow many keys have a value."},
    {"append", PY_FAST_METHOD(store_append),
     "append($self, key, value)\n--\n\nAppends to the value at the key; a missing one is empty."},
    {"multi_get", PY_FAST_METHOD(store_multi_get),
     "multi_get($self, keys)\n--\n\nThe values of all keys, in order; waits until there are."},
    {"multi_set", PY_FAST_METHOD(store_multi_set),
     "multi_set($self, keys, values)\n--\n\nStores each value at the key in the same place."},
    {"queue_push", PY_FAST_METHOD(store_queue_push),
     "queue_push($self, key, value)\n--\n\nPuts the value at the end of the queue at the key."},
    {"queue_pop", PY_FAST_METHOD(store_queue_pop),
     "queue_pop($self, key, block=True, timeout=None)\n--\n\n"
     "Takes the first value of the queue at the key.\n\n"
     "When it is empty, waits for one, or raises DistQueueEmptyError if block is false."},
    {"queue_len", PY_FAST_METHOD(store_queue_len),
     "queue_len($self, key)\n--\n\nHow many values are in the queue at the key."},
    {"list_keys", store_list_keys, METH_NOARGS,
     "list_keys($self)\n--\n\n"
     "All keys with a value, as str. What is not UTF-8 comes by surrogateescape, and back by it."},
    {"barrier", PY_FAST_METHOD(store_barrier),
     "barrier($self, key, world_size, timeout=None)\n--\n\n"
     "Returns when world_size callers have come to the key, which is good for one time."},
    {"clone", py_store_clone, METH_NOARGS, "clone($self)\n--\n\nAnother store on the same data."},
    {"set_timeout", PY_FAST_METHOD(store_set_timeout),
     "set_timeout($self, timeout)\n--\n\nHow long calls wait that are given no time-out."},
    {"has_extended_api", store_has_extended_api, METH_NOARGS,
     "has_extended_api($self)\n--\n\nWhether append, multi_get and multi_set are one operation each."},
    {NULL, NULL, 0, NULL},
};
