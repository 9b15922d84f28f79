/* The methods of dldist.Store. Store operations are rows of one table and take the same steps: turn
 * arguments into a request, run the request without the GIL (py_call_begin to py_call_end), return
 * its result. */

#include "python/store/store.h"

/* The largest number of parameters of a method. */
#define MAX_ARGS 3

/* clang-format off */
#define KEY {"key", 'k', NULL}
#define KEYS {"keys", 'K', NULL}
#define VALUE(name) {#name, 'v', NULL}
#define VALUES {"values", 'V', NULL}
#define NUMBER(name, kind) {#name, kind, NULL}
#define TIME_LIMIT {"timeout", 't', NULL}

const py_store_op py_store_ops[] = {
    [DD_STORE_SET] = {PY_PARAMS("set", 2, 2, KEY, VALUE(value)), '-', PY_UNBOUND_NOT_IMPLEMENTED},
    [DD_STORE_GET] = {PY_PARAMS("get", 1, 2, KEY, TIME_LIMIT), 'v', PY_UNBOUND_NOT_IMPLEMENTED},
    [DD_STORE_TRY_GET] = {PY_PARAMS("try_get", 1, 1, KEY), 'o', PY_UNBOUND_GENERIC},
    [DD_STORE_ADD] = {PY_PARAMS("add", 2, 2, KEY, NUMBER(amount, 'n')), 'n', PY_UNBOUND_PURE_VIRTUAL},
    [DD_STORE_COMPARE_SET] = {PY_PARAMS("compare_set", 3, 3, KEY, VALUE(expected_value), VALUE(desired_value)), 'v', PY_UNBOUND_NOT_IMPLEMENTED},
    [DD_STORE_WAIT] = {PY_PARAMS("wait", 1, 2, KEYS, TIME_LIMIT), '-', PY_UNBOUND_PURE_VIRTUAL},
    [DD_STORE_CHECK] = {PY_PARAMS("check", 1, 1, KEYS), 'b', PY_UNBOUND_PURE_VIRTUAL},
    [DD_STORE_DELETE_KEY] = {PY_PARAMS("delete_key", 1, 1, KEY), 'b', PY_UNBOUND_PURE_VIRTUAL},
    [DD_STORE_NUM_KEYS] = {{.function = "num_keys"}, 'n', PY_UNBOUND_PURE_VIRTUAL},
    [DD_STORE_APPEND] = {PY_PARAMS("append", 2, 2, KEY, VALUE(value)), '-', PY_UNBOUND_GENERIC},
    [DD_STORE_MULTI_GET] = {PY_PARAMS("multi_get", 1, 1, KEYS), 'V', PY_UNBOUND_GENERIC},
    [DD_STORE_MULTI_SET] = {PY_PARAMS("multi_set", 2, 2, KEYS, VALUES), '-', PY_UNBOUND_GENERIC},
    [DD_STORE_QUEUE_PUSH] = {PY_PARAMS("queue_push", 2, 2, KEY, VALUE(value)), '-', PY_UNBOUND_NOT_SUPPORTED},
    [DD_STORE_QUEUE_POP] = {PY_PARAMS("queue_pop", 1, 3, KEY, NUMBER(block, 'b'), TIME_LIMIT), 'v', PY_UNBOUND_NOT_SUPPORTED},
    [DD_STORE_QUEUE_LEN] = {PY_PARAMS("queue_len", 1, 1, KEY), 'n', PY_UNBOUND_NOT_SUPPORTED},
    [DD_STORE_LIST_KEYS] = {{.function = "list_keys"}, 'K', PY_UNBOUND_NOT_SUPPORTED},
    [DD_STORE_BARRIER] = {PY_PARAMS("barrier", 2, 3, KEY, NUMBER(world_size, 's'), TIME_LIMIT), '-', PY_UNBOUND_GENERIC},
};
/* clang-format on */

/* A call's request and the objects that the request borrows. The struct must be zeroed first,
 * because arguments_fini relies on zeroed fields. */
typedef struct arguments {
    dd_store_request request;
    py_bytes bytes[MAX_ARGS];
    size_t nbytes;
    py_bytes_list keys;
    py_bytes_list values;
    dd_bytes value_views[MAX_ARGS];
    size_t nvalues;
    PyObject *timeout; /* the timeout argument, borrowed, or NULL */
} arguments;

static void
arguments_fini(arguments *taken)
{
    for (size_t i = 0; i < taken->nbytes; i++) {
        py_bytes_fini(&taken->bytes[i]);
    }
    if (taken->keys.items != NULL) {
        py_bytes_list_fini(&taken->keys);
        py_bytes_list_fini(&taken->values);
    }
}

static bool
take_keys(arguments *taken, PyObject *object, const char *function, const char *name)
{
    if (!py_bytes_list_init(&taken->keys, object, function, name)) {
        return false;
    }
    taken->request.keys = taken->keys.views;
    taken->request.nkeys = taken->keys.count;
    return true;
}

/* Read the values of multi_set. Must be called after the keys have been read. */
static bool
take_values(arguments *taken, PyObject *object, const char *function, const char *name)
{
    if (!py_bytes_list_init(&taken->values, object, function, name)) {
        return false;
    }
    if (taken->keys.count != taken->values.count) {
        PyErr_Format(PyExc_ValueError,
                     "%s(): argument 'values' has a wrong length: got %zu, expected %zu, as 'keys'", function,
                     taken->values.count, taken->keys.count);
        return false;
    }
    taken->request.values = taken->values.views;
    return true;
}

static bool
take_bytes(arguments *taken, char kind, PyObject *object, const char *function, const char *name)
{
    py_bytes *bytes = &taken->bytes[taken->nbytes++];
    if (!py_bytes_init(bytes, object, function, name)) {
        return false;
    }
    if (kind == 'k') {
        taken->request.keys = &bytes->view;
        taken->request.nkeys = 1;
    } else {
        taken->value_views[taken->nvalues++] = bytes->view;
        taken->request.values = taken->value_views;
    }
    return true;
}

static bool
take_size(arguments *taken, PyObject *object, const char *function, const char *name)
{
    if (!py_to_int64(object, &taken->request.number, function, name)) {
        return false;
    }
    if (taken->request.number < 1) {
        PyErr_Format(PyExc_ValueError, "%s(): argument '%s' is out of range: got %lld, expected 1 or more",
                     function, name, (long long)taken->request.number);
        return false;
    }
    return true;
}

static bool
take_argument(arguments *taken, char kind, PyObject *object, const char *function, const char *name)
{
    switch (kind) {
    case 'K':
        return take_keys(taken, object, function, name);
    case 'V':
        return take_values(taken, object, function, name);
    case 'n':
        return py_to_int64(object, &taken->request.number, function, name);
    case 's':
        return take_size(taken, object, function, name);
    case 'b':
        taken->request.number = object != NULL ? PyObject_IsTrue(object) : 1;
        return taken->request.number >= 0;
    case 't':
        taken->timeout = object;
        return true;
    default:
        return take_bytes(taken, kind, object, function, name);
    }
}

static bool
take_arguments(arguments *taken, const py_params *params, PyObject *const *objects)
{
    bool is_ok = true;
    for (int i = 0; is_ok && i < params->count; i++) {
        const py_param *param = &params->list[i];
        is_ok = take_argument(taken, (char)param->kind, objects[i], params->function, param->name);
    }
    return is_ok;
}

static PyObject *
make_result(char kind, const dd_store_result *result)
{
    switch (kind) {
    case 'v':
        return py_from_value(dd_blob_view(&result->value));
    case 'o':
        return result->flag ? py_from_value(dd_blob_view(&result->value)) : Py_NewRef(Py_None);
    case 'V':
        return py_from_blob_list(&result->list, py_from_value);
    case 'K':
        return py_from_blob_list(&result->list, py_from_key);
    case 'n':
        return PyLong_FromLongLong(result->number);
    case 'b':
        return PyBool_FromLong(result->flag);
    default:
        return Py_NewRef(Py_None);
    }
}

static PyObject *
call_method(dd_store_op which, PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    const py_store_op *op = &py_store_ops[which];
    PyObject *objects[PY_PARAMS_MAX];
    arguments taken = {.request = {.op = which}};
    PyObject *given = NULL;
    py_call call;
    if (py_params_parse(&op->params, args, nargs, kwnames, objects) &&
        take_arguments(&taken, &op->params, objects) &&
        py_call_begin(&call, (py_store *)self, op->params.function, op->unbound, taken.timeout)) {
        dd_store_result result = {0};
        Py_BEGIN_ALLOW_THREADS
        call.status = dd_store_run(call.store, &taken.request, &result, &call.wait.wait, &call.err);
        Py_END_ALLOW_THREADS
        given = py_call_end(&call) ? make_result(op->gives, &result) : NULL;
        dd_store_result_fini(&result);
    }
    arguments_fini(&taken);
    return given;
}

#define STORE_METHOD(NAME, name)                                                           \
    static PyObject *store_##name(PyObject *self, PyObject *const *args, Py_ssize_t nargs, \
                                  PyObject *kwnames)                                       \
    {                                                                                      \
        return call_method(DD_STORE_##NAME, self, args, nargs, kwnames);                   \
    }
DD_STORE_OP_LIST(STORE_METHOD)

PyObject *
py_store_clone(PyObject *object, PyObject *Py_UNUSED(unused))
{
    py_store *self = (py_store *)object;
    dd_store *clone = NULL;
    py_call call;
    if (!py_call_begin(&call, self, "clone", PY_UNBOUND_PURE_VIRTUAL, NULL)) {
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS
    call.status = call.store->ops->clone(call.store, &clone, &call.wait.wait, &call.err);
    Py_END_ALLOW_THREADS
    if (!py_call_end(&call)) {
        py_store_drop(clone);
        return NULL;
    }
    const char *kind;
    return py_store_wrap(py_store_own_type(self->state, Py_TYPE(object), &kind), clone);
}

static PyObject *
store_set_timeout(PyObject *object, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    py_store *self = (py_store *)object;
    int64_t timeout_ns;
    const py_params params = PY_PARAMS("set_timeout", 1, 1, {"timeout", PY_TIMEOUT, &timeout_ns});
    if (!py_params_read(&params, self->state, args, nargs, kwnames) ||
        (self->kind != NULL && py_store_opened(self) == NULL)) {
        return NULL;
    }
    dd_store *store = py_store_of(self);
    if (store == NULL) {
        atomic_store_explicit(&self->timeout_ns, timeout_ns, memory_order_relaxed);
    } else {
        store->ops->set_timeout_ns(store, timeout_ns);
    }
    Py_RETURN_NONE;
}

static PyObject *
store_has_extended_api(PyObject *object, PyObject *Py_UNUSED(unused))
{
    py_store *self = (py_store *)object;
    if (self->kind != NULL && py_store_opened(self) == NULL) {
        return NULL;
    }
    dd_store *store = py_store_of(self);
    return PyBool_FromLong(store != NULL && store->ops->has_extended_api(store));
}

PyMethodDef py_store_methods[] = {
    {"set", PY_FAST_METHOD(store_set),
     "set($self, key, value)\n--\n\nStores the value at the key, and replaces an older value."},
    {"get", PY_FAST_METHOD(store_get),
     "get($self, key, timeout=None)\n--\n\n"
     "The value at the key, as bytes; waits until there is one.\n\n"
     "timeout: a timedelta or seconds; None is the store's, 0 looks once. When it is over:\n"
     "DistStoreTimeoutError."},
    {"try_get", PY_FAST_METHOD(store_try_get),
     "try_get($self, key)\n--\n\nThe value at the key, or None when there is none now."},
    {"add", PY_FAST_METHOD(store_add),
     "add($self, key, amount)\n--\n\n"
     "Adds to the number at the key, which is 0 if it is missing, and returns the sum."},
    {"compare_set", PY_FAST_METHOD(store_compare_set),
     "compare_set($self, key, expected_value, desired_value)\n--\n\n"
     "Stores desired_value if the key holds expected_value, or is missing and expected_value is\n"
     "empty. Returns what the key holds afterwards; for a missing key that was not set,\n"
     "expected_value."},
    {"wait", PY_FAST_METHOD(store_wait),
     "wait($self, keys, timeout=None)\n--\n\n"
     "Waits until every key has a value, or a queue with something in it."},
    {"check", PY_FAST_METHOD(store_check),
     "check($self, keys)\n--\n\nWhether every key has a value or a queue that is not empty."},
    {"delete_key", PY_FAST_METHOD(store_delete_key),
     "delete_key($self, key)\n--\n\nDeletes the value at the key; tells whether there was one."},
    {"num_keys", PY_FAST_METHOD(store_num_keys),
     "num_keys($self)\n--\n\n"
     "How many keys have a value. Like c10d's, a FileStore counts one of its own, too, and so does a TCPStore\n"
     "with a world_size."},
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
    {"list_keys", PY_FAST_METHOD(store_list_keys),
     "list_keys($self)\n--\n\n"
     "All keys that have a value, as str. Bytes that are not UTF-8 are kept by surrogateescape."},
    {"barrier", PY_FAST_METHOD(store_barrier),
     "barrier($self, key, world_size, timeout=None)\n--\n\n"
     "Returns when world_size callers have called it with this key. A key works once."},
    {"clone", py_store_clone, METH_NOARGS, "clone($self)\n--\n\nAnother store on the same data."},
    {"set_timeout", PY_FAST_METHOD(store_set_timeout),
     "set_timeout($self, timeout)\n--\n\nSets the timeout of calls that have no timeout of their own."},
    {"has_extended_api", store_has_extended_api, METH_NOARGS,
     "has_extended_api($self)\n--\n\nWhether append, multi_get and multi_set are one operation each."},
    {NULL, NULL, 0, NULL},
};
