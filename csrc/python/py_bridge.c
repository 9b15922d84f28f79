#include "python/py_bridge.h"

#include "core/mem.h"
#include "python/py_gate.h"
#include "python/py_store.h"

#include <string.h>

typedef struct py_bridge {
    dd_store head;
    py_state *state;  /* the object keeps it alive */
    PyObject *object; /* const after open; owned */
} py_bridge;

/* One operation: between enter and leave the thread has the GIL. */
typedef struct bridge_call {
    py_bridge *bridge;
    const char *method;
    const dd_wait *wait; /* NULL for operations that cannot fail */
    PyGILState_STATE gil;
} bridge_call;

static bridge_call
enter(dd_store *store, const char *method, const dd_wait *wait)
{
    return (bridge_call){(py_bridge *)store, method, wait, PyGILState_Ensure()};
}

/* Writes the exception that is set into err, for a caller that is not Python. */
static dd_status
describe_exception(const bridge_call *call, dd_error *err)
{
    dd_status status = py_error_status_of_current(call->bridge->state);
    PyObject *exception[3];
    PyErr_Fetch(&exception[0], &exception[1], &exception[2]);
    PyErr_NormalizeException(&exception[0], &exception[1], &exception[2]);
    PyObject *text =
        PyUnicode_FromFormat("%s() of a store written in Python raised %R", call->method, exception[1]);
    PyObject *bytes = text != NULL ? PyUnicode_AsEncodedString(text, "utf-8", "backslashreplace") : NULL;
    if (bytes != NULL) {
        dd_error_set(err, status, "%s", PyBytes_AsString(bytes));
    } else {
        PyErr_Clear();
        dd_error_set(err, status, "%s() of a store written in Python raised", call->method);
    }
    Py_XDECREF(text);
    Py_XDECREF(bytes);
    PyErr_Restore(exception[0], exception[1], exception[2]);
    return status;
}

/* Ends an operation. With an exception set, it stays with the Python caller that waits on this thread, if
 * there is one: it gets the exception itself and not a text about it. */
static dd_status
leave(const bridge_call *call, dd_status status, dd_error *err)
{
    if (PyErr_Occurred() != NULL) {
        py_wait *caller = py_wait_of(call->wait);
        if (caller != NULL) {
            status = dd_error_set(err, py_error_status_of_current(call->bridge->state),
                                  "%s() of a store written in Python raised", call->method);
            py_wait_keep_exception(caller);
        } else {
            status = describe_exception(call, err);
            PyErr_Clear();
        }
    }
    PyGILState_Release(call->gil);
    return status;
}

/* Calls the method; takes `args`, which may be NULL with an exception set. */
static PyObject *
invoke(const bridge_call *call, PyObject *args)
{
    if (args == NULL) {
        return NULL;
    }
    PyObject *method = PyObject_GetAttrString(call->bridge->object, call->method);
    PyObject *result = method != NULL ? PyObject_CallObject(method, args) : NULL;
    Py_XDECREF(method);
    Py_DECREF(args);
    return result;
}

/* The same for its truth: what is not an answer is an exception. */
static bool
invoke_for_truth(const bridge_call *call, PyObject *args)
{
    PyObject *result = invoke(call, args);
    bool is_true = result != NULL && PyObject_IsTrue(result) > 0;
    Py_XDECREF(result);
    return is_true;
}

static void
raise_wrong_result(const bridge_call *call, PyObject *result, const char *wanted)
{
    PyObject *type_name = PyType_GetName(Py_TYPE(result));
    if (type_name != NULL) {
        PyErr_Format(PyExc_TypeError, "%s() of a store must return %s, not %U", call->method, wanted,
                     type_name);
        Py_DECREF(type_name);
    }
}

static int64_t
invoke_for_number(const bridge_call *call, PyObject *args)
{
    int64_t number = 0;
    PyObject *result = invoke(call, args);
    if (result != NULL && !PyIndex_Check(result)) {
        raise_wrong_result(call, result, "an int");
    } else if (result != NULL) {
        (void)py_to_int64(result, &number, call->method, "return");
    }
    Py_XDECREF(result);
    return number;
}

static void
invoke_for_nothing(const bridge_call *call, PyObject *args)
{
    PyObject *result = invoke(call, args);
    Py_XDECREF(result);
}

/* DD_OK with an exception set is possible: leave() looks at the exception first. */
static dd_status
blob_from_result(const bridge_call *call, PyObject *result, dd_blob *value, dd_error *err)
{
    py_bytes bytes = {0};
    int rc = py_bytes_try_init(&bytes, result);
    if (rc == 0) {
        raise_wrong_result(call, result, "bytes");
    }
    dd_status status = rc > 0 ? dd_blob_assign(value, bytes.view, err) : DD_OK;
    py_bytes_fini(&bytes);
    return status;
}

static dd_status
invoke_for_blob(const bridge_call *call, PyObject *args, dd_blob *value, dd_error *err)
{
    PyObject *result = invoke(call, args);
    dd_status status = result != NULL ? blob_from_result(call, result, value, err) : DD_OK;
    Py_XDECREF(result);
    return status;
}

#define ANY_COUNT SIZE_MAX

static dd_status
blobs_from_result(const bridge_call *call, PyObject *result, size_t count, dd_blob_list *list, dd_error *err)
{
    PyObject *items = PySequence_List(result);
    if (items == NULL) {
        return DD_OK;
    }
    size_t nitems = (size_t)PyList_Size(items);
    dd_status status = DD_OK;
    if (count != ANY_COUNT && nitems != count) {
        PyErr_Format(PyExc_ValueError, "%s() of a store returned %zu values for %zu keys", call->method,
                     nitems, count);
    } else {
        status = dd_blob_list_init(list, nitems, err);
    }
    for (size_t i = 0; status == DD_OK && PyErr_Occurred() == NULL && i < nitems; i++) {
        status = blob_from_result(call, PyList_GetItem(items, (Py_ssize_t)i), &list->items[i], err);
    }
    if (status != DD_OK || PyErr_Occurred() != NULL) {
        dd_blob_list_fini(list);
    }
    Py_DECREF(items);
    return status;
}

static dd_status
invoke_for_blobs(const bridge_call *call, PyObject *args, size_t count, dd_blob_list *list, dd_error *err)
{
    PyObject *result = invoke(call, args);
    dd_status status = result != NULL ? blobs_from_result(call, result, count, list, err) : DD_OK;
    Py_XDECREF(result);
    return status;
}

static bool
is_timed(const dd_wait *wait)
{
    const py_wait *caller = py_wait_of(wait);
    return caller != NULL ? caller->has_timeout : wait->deadline_ns != DD_NEVER_NS;
}

/* The time-out for a method, as a timedelta: what the caller gave, just as it was, and after that what is
 * left of it. */
static PyObject *
time_left(const bridge_call *call)
{
    py_wait *caller = py_wait_of(call->wait);
    int64_t left_ns = dd_deadline_left_ns(call->wait->deadline_ns);
    if (caller != NULL && !caller->is_handed_on && call->wait->deadline_ns == caller->wait.deadline_ns) {
        caller->is_handed_on = true;
        left_ns = left_ns == DD_NEVER_NS ? left_ns : caller->wait.deadline_ns - caller->wait.start_ns;
    }
    return py_from_timeout_ns(call->bridge->state, left_ns);
}

/* Whether the class has a method of its own in place of Store's. Then it may take no time-out where c10d's
 * has none. */
static bool
is_overridden(const bridge_call *call)
{
    PyObject *own = PyObject_GetAttrString((PyObject *)Py_TYPE(call->bridge->object), call->method);
    PyObject *base = PyObject_GetAttrString((PyObject *)call->bridge->state->store_type, call->method);
    bool is_own = own != base;
    Py_XDECREF(own);
    Py_XDECREF(base);
    PyErr_Clear();
    return is_own;
}

static dd_status
bridge_set(dd_store *store, dd_bytes key, dd_bytes value, const dd_wait *wait, dd_error *err)
{
    bridge_call call = enter(store, "set", wait);
    invoke_for_nothing(&call, Py_BuildValue("(NN)", py_from_key(key), py_from_value(value)));
    return leave(&call, DD_OK, err);
}

static dd_status bridge_wait(dd_store *store, const dd_bytes *keys, size_t nkeys, const dd_wait *wait,
                             dd_error *err);

static dd_status
bridge_get(dd_store *store, dd_bytes key, dd_blob *value, const dd_wait *wait, dd_error *err)
{
    bridge_call call = enter(store, "get", wait);
    PyObject *args;
    if (!is_timed(wait)) {
        args = Py_BuildValue("(N)", py_from_key(key));
    } else if (!is_overridden(&call)) {
        args = Py_BuildValue("(NN)", py_from_key(key), time_left(&call));
    } else {
        /* An override of get has no time-out to give, but wait has. */
        dd_status status = bridge_wait(store, &key, 1, wait, err);
        if (status != DD_OK) {
            return leave(&call, status, err);
        }
        args = Py_BuildValue("(N)", py_from_key(key));
    }
    dd_status status = invoke_for_blob(&call, args, value, err);
    return leave(&call, status, err);
}

static dd_status
bridge_try_get(dd_store *store, dd_bytes key, dd_blob *value, bool *is_found, const dd_wait *wait,
               dd_error *err)
{
    bridge_call call = enter(store, "try_get", wait);
    PyObject *result = invoke(&call, Py_BuildValue("(N)", py_from_key(key)));
    dd_status status = DD_OK;
    if (result != NULL) {
        *is_found = result != Py_None;
        status = *is_found ? blob_from_result(&call, result, value, err) : DD_OK;
        Py_DECREF(result);
    }
    return leave(&call, status, err);
}

static dd_status
bridge_add(dd_store *store, dd_bytes key, int64_t amount, int64_t *sum, const dd_wait *wait, dd_error *err)
{
    bridge_call call = enter(store, "add", wait);
    int64_t number = invoke_for_number(&call, Py_BuildValue("(NL)", py_from_key(key), (long long)amount));
    dd_status status = leave(&call, DD_OK, err);
    if (status == DD_OK) {
        *sum = number;
    }
    return status;
}

static dd_status
bridge_compare_set(dd_store *store, dd_bytes key, dd_bytes expected, dd_bytes desired, dd_blob *value,
                   const dd_wait *wait, dd_error *err)
{
    bridge_call call = enter(store, "compare_set", wait);
    PyObject *args =
        Py_BuildValue("(NNN)", py_from_key(key), py_from_value(expected), py_from_value(desired));
    dd_status status = invoke_for_blob(&call, args, value, err);
    return leave(&call, status, err);
}

static dd_status
bridge_wait(dd_store *store, const dd_bytes *keys, size_t nkeys, const dd_wait *wait, dd_error *err)
{
    bridge_call call = enter(store, "wait", wait);
    PyObject *args = is_timed(wait) ? Py_BuildValue("(NN)", py_from_keys(keys, nkeys), time_left(&call))
                                    : Py_BuildValue("(N)", py_from_keys(keys, nkeys));
    invoke_for_nothing(&call, args);
    return leave(&call, DD_OK, err);
}

static dd_status
bridge_check(dd_store *store, const dd_bytes *keys, size_t nkeys, bool *is_ready, const dd_wait *wait,
             dd_error *err)
{
    bridge_call call = enter(store, "check", wait);
    bool is_true = invoke_for_truth(&call, Py_BuildValue("(N)", py_from_keys(keys, nkeys)));
    dd_status status = leave(&call, DD_OK, err);
    if (status == DD_OK) {
        *is_ready = is_true;
    }
    return status;
}

static dd_status
bridge_delete_key(dd_store *store, dd_bytes key, bool *is_deleted, const dd_wait *wait, dd_error *err)
{
    bridge_call call = enter(store, "delete_key", wait);
    bool is_true = invoke_for_truth(&call, Py_BuildValue("(N)", py_from_key(key)));
    dd_status status = leave(&call, DD_OK, err);
    if (status == DD_OK) {
        *is_deleted = is_true;
    }
    return status;
}

static dd_status
bridge_num_keys(dd_store *store, int64_t *count, const dd_wait *wait, dd_error *err)
{
    bridge_call call = enter(store, "num_keys", wait);
    int64_t number = invoke_for_number(&call, PyTuple_New(0));
    dd_status status = leave(&call, DD_OK, err);
    if (status == DD_OK) {
        *count = number;
    }
    return status;
}

static dd_status
bridge_append(dd_store *store, dd_bytes key, dd_bytes value, const dd_wait *wait, dd_error *err)
{
    bridge_call call = enter(store, "append", wait);
    invoke_for_nothing(&call, Py_BuildValue("(NN)", py_from_key(key), py_from_value(value)));
    return leave(&call, DD_OK, err);
}

/* What Store.append does for a class that has none of its own. */
static dd_status
bridge_generic_append(dd_store *store, dd_bytes key, dd_bytes value, const dd_wait *wait, dd_error *err)
{
    bridge_call call = enter(store, "check", wait);
    bool can_check = is_overridden(&call);
    PyGILState_Release(call.gil);
    return can_check ? dd_store_generic_append(store, key, value, wait, err)
                     : dd_store_append_by_compare_set(store, key, value, wait, err);
}

static dd_status
bridge_multi_get(dd_store *store, const dd_bytes *keys, size_t nkeys, dd_blob_list *values,
                 const dd_wait *wait, dd_error *err)
{
    bridge_call call = enter(store, "multi_get", wait);
    PyObject *args = Py_BuildValue("(N)", py_from_keys(keys, nkeys));
    dd_status status = invoke_for_blobs(&call, args, nkeys, values, err);
    return leave(&call, status, err);
}

static dd_status
bridge_multi_set(dd_store *store, const dd_bytes *keys, const dd_bytes *values, size_t nkeys,
                 const dd_wait *wait, dd_error *err)
{
    bridge_call call = enter(store, "multi_set", wait);
    invoke_for_nothing(&call,
                       Py_BuildValue("(NN)", py_from_keys(keys, nkeys), py_from_values(values, nkeys)));
    return leave(&call, DD_OK, err);
}

static dd_status
bridge_queue_push(dd_store *store, dd_bytes key, dd_bytes value, const dd_wait *wait, dd_error *err)
{
    bridge_call call = enter(store, "queue_push", wait);
    invoke_for_nothing(&call, Py_BuildValue("(NN)", py_from_key(key), py_from_value(value)));
    return leave(&call, DD_OK, err);
}

static dd_status
bridge_queue_pop(dd_store *store, dd_bytes key, bool is_blocking, dd_blob *value, const dd_wait *wait,
                 dd_error *err)
{
    bridge_call call = enter(store, "queue_pop", wait);
    PyObject *args;
    if (is_blocking && is_timed(wait) && !is_overridden(&call)) {
        args = Py_BuildValue("(NNN)", py_from_key(key), PyBool_FromLong(1), time_left(&call));
    } else {
        args = Py_BuildValue("(NN)", py_from_key(key), PyBool_FromLong(is_blocking));
    }
    dd_status status = invoke_for_blob(&call, args, value, err);
    return leave(&call, status, err);
}

static dd_status
bridge_queue_len(dd_store *store, dd_bytes key, int64_t *count, const dd_wait *wait, dd_error *err)
{
    bridge_call call = enter(store, "queue_len", wait);
    int64_t number = invoke_for_number(&call, Py_BuildValue("(N)", py_from_key(key)));
    dd_status status = leave(&call, DD_OK, err);
    if (status == DD_OK) {
        *count = number;
    }
    return status;
}

static dd_status
bridge_list_keys(dd_store *store, dd_blob_list *keys, const dd_wait *wait, dd_error *err)
{
    bridge_call call = enter(store, "list_keys", wait);
    dd_status status = invoke_for_blobs(&call, PyTuple_New(0), ANY_COUNT, keys, err);
    return leave(&call, status, err);
}

static dd_status
bridge_barrier(dd_store *store, dd_bytes key, int64_t world_size, const dd_wait *wait, dd_error *err)
{
    bridge_call call = enter(store, "barrier", wait);
    long long size = world_size;
    PyObject *args = is_timed(wait) ? Py_BuildValue("(NLN)", py_from_key(key), size, time_left(&call))
                                    : Py_BuildValue("(NL)", py_from_key(key), size);
    invoke_for_nothing(&call, args);
    return leave(&call, DD_OK, err);
}

static dd_status
bridge_clone(dd_store *store, dd_store **other, const dd_wait *wait, dd_error *err)
{
    bridge_call call = enter(store, "clone", wait);
    PyObject *result = invoke(&call, PyTuple_New(0));
    if (result != NULL) {
        dd_store *made = py_store_acquire(call.bridge->state, result, "clone", "return");
        if (made != NULL) {
            *other = made;
        }
        Py_DECREF(result);
    }
    return leave(&call, DD_OK, err);
}

/* For operations that have no way to fail: the exception is reported where Python reports such. */
static void
leave_unraisable(const bridge_call *call)
{
    if (PyErr_Occurred() != NULL) {
        PyErr_WriteUnraisable(call->bridge->object);
    }
    PyGILState_Release(call->gil);
}

static bool
bridge_has_extended_api(dd_store *store)
{
    bridge_call call = enter(store, "has_extended_api", NULL);
    bool is_true = invoke_for_truth(&call, PyTuple_New(0));
    leave_unraisable(&call);
    return is_true;
}

static int64_t
bridge_get_timeout_ns(dd_store *store)
{
    bridge_call call = enter(store, "timeout", NULL);
    int64_t timeout_ns = DD_STORE_DEFAULT_TIMEOUT_NS;
    PyObject *timeout = PyObject_GetAttrString(call.bridge->object, "timeout");
    if (timeout != NULL) {
        (void)py_to_timeout_ns(call.bridge->state, timeout, &timeout_ns, "timeout", "return");
    }
    Py_XDECREF(timeout);
    leave_unraisable(&call);
    return timeout_ns;
}

static void
bridge_set_timeout_ns(dd_store *store, int64_t timeout_ns)
{
    bridge_call call = enter(store, "set_timeout", NULL);
    invoke_for_nothing(&call, Py_BuildValue("(N)", py_from_timeout_ns(call.bridge->state, timeout_ns)));
    leave_unraisable(&call);
}

static void
bridge_destroy(dd_store *store)
{
    py_bridge *bridge = (py_bridge *)store;
    py_gate_pass pass;
    if (py_gate_enter(&pass)) {
        Py_DECREF(bridge->object);
        py_gate_leave(&pass);
    }
    dd_mem_free(bridge);
}

#define BRIDGE_OPS_COMMON                                                                          \
    .kind = "Store", .set = bridge_set, .get = bridge_get, .add = bridge_add,                      \
    .compare_set = bridge_compare_set, .wait = bridge_wait, .check = bridge_check,                 \
    .delete_key = bridge_delete_key, .num_keys = bridge_num_keys, .queue_push = bridge_queue_push, \
    .queue_pop = bridge_queue_pop, .queue_len = bridge_queue_len, .list_keys = bridge_list_keys,   \
    .clone = bridge_clone, .has_extended_api = bridge_has_extended_api,                            \
    .get_timeout_ns = bridge_get_timeout_ns, .set_timeout_ns = bridge_set_timeout_ns,              \
    .destroy = bridge_destroy

static const dd_store_ops bridge_ops = {
    BRIDGE_OPS_COMMON,
    .try_get = bridge_try_get,
    .append = bridge_append,
    .multi_get = bridge_multi_get,
    .multi_set = bridge_multi_set,
    .barrier = bridge_barrier,
};

static const dd_store_ops generic_ops = {
    BRIDGE_OPS_COMMON,
    .try_get = dd_store_generic_try_get,
    .append = bridge_generic_append,
    .multi_get = dd_store_generic_multi_get,
    .multi_set = dd_store_generic_multi_set,
    .barrier = dd_store_generic_barrier,
};

static dd_store *
open_with(const dd_store_ops *ops, py_state *state, PyObject *object)
{
    py_bridge *bridge = dd_mem_alloc(sizeof *bridge);
    if (bridge == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    dd_store_init(&bridge->head, ops, DD_STORE_DEFAULT_TIMEOUT_NS);
    bridge->state = state;
    bridge->object = Py_NewRef(object);
    return &bridge->head;
}

dd_store *
py_bridge_open(py_state *state, PyObject *object)
{
    return open_with(&bridge_ops, state, object);
}

dd_store *
py_bridge_open_generic(py_state *state, PyObject *object)
{
    return open_with(&generic_ops, state, object);
}

PyObject *
py_bridge_object(const dd_store *store)
{
    return store->ops == &bridge_ops || store->ops == &generic_ops ? ((const py_bridge *)store)->object
                                                                   : NULL;
}
