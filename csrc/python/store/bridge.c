#include "python/store/bridge.h"

#include "core/mem.h"
#include "python/base/gate.h"
#include "python/store/store.h"

typedef struct py_bridge {
    dd_store head;
    py_state *state;  /* module state; borrowed; kept alive by `object` */
    PyObject *object; /* the Python store; owned; const after open */
    bool is_generic;  /* true if created by py_bridge_open_generic; const after open */
} py_bridge;

/* One operation, during which the thread holds the GIL (bridge_enter to bridge_leave). */
typedef struct bridge_call {
    py_bridge *bridge;
    const char *method;
    const dd_wait *wait; /* the caller's wait; NULL for an operation that cannot fail */
    PyGILState_STATE gil;
} bridge_call;

/* Begin an operation. No gate (base/gate.h) is needed, because Python started the thread. */
static bridge_call
bridge_enter(dd_store *store, const char *method, const dd_wait *wait)
{
    return (bridge_call){(py_bridge *)store, method, wait, PyGILState_Ensure()};
}

/* Describe the current exception in `err` for a caller outside Python. Return the exception's
 * status; the exception stays set. */
static dd_status
describe_exception(const bridge_call *call, dd_error *err)
{
    dd_status status = py_error_status_of_current(call->bridge->state);
    PyObject *exception = py_error_take();
    PyObject *text =
        PyUnicode_FromFormat("%s() of a store written in Python raised %R", call->method, exception);
    PyObject *bytes = text != NULL ? PyUnicode_AsEncodedString(text, "utf-8", "backslashreplace") : NULL;
    if (bytes != NULL) {
        dd_error_set(err, status, "%s", PyBytes_AsString(bytes));
    } else {
        PyErr_Clear();
        dd_error_set(err, status, "%s() of a store written in Python raised", call->method);
    }
    Py_XDECREF(text);
    Py_XDECREF(bytes);
    py_error_put(exception);
    return status;
}

/* End an operation and clear the current exception. If a Python caller waits on this thread, the
 * exception is kept for that caller; otherwise `err` describes the exception. */
static dd_status
bridge_leave(const bridge_call *call, dd_status status, dd_error *err)
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

/* Call the method and release `args`, which may be NULL with an exception. */
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

/* Read bytes from the method's result. May return DD_OK with an exception set; bridge_leave checks
 * for the exception. */
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

static int64_t
number_from_result(const bridge_call *call, PyObject *result)
{
    int64_t number = 0;
    if (!PyIndex_Check(result)) {
        raise_wrong_result(call, result, "an int");
    } else {
        (void)py_to_int64(result, &number, call->method, "return");
    }
    return number;
}

/* Convert the method's result to the request's result. May return DD_OK with an exception set. */
static dd_status
take_result(const bridge_call *call, PyObject *returned, const dd_store_request *request,
            dd_store_result *result, dd_error *err)
{
    switch (py_store_ops[request->op].gives) {
    case 'v':
        return blob_from_result(call, returned, &result->value, err);
    case 'o':
        result->flag = returned != Py_None;
        return result->flag ? blob_from_result(call, returned, &result->value, err) : DD_OK;
    case 'V':
        return blobs_from_result(call, returned, request->nkeys, &result->list, err);
    case 'K':
        return blobs_from_result(call, returned, ANY_COUNT, &result->list, err);
    case 'n':
        result->number = number_from_result(call, returned);
        return DD_OK;
    case 'b':
        result->flag = PyObject_IsTrue(returned) > 0;
        return DD_OK;
    default:
        return DD_OK;
    }
}

static bool
is_timed(const dd_wait *wait)
{
    const py_wait *caller = py_wait_of(wait);
    return caller != NULL ? caller->has_timeout : wait->deadline_ns != DD_NEVER_NS;
}

/* Return the timeout for a method as a timedelta, or NULL with an exception. The first method of a
 * call gets the caller's timeout unchanged, later methods get the remaining time. */
static PyObject *
time_left(const bridge_call *call)
{
    py_wait *caller = py_wait_of(call->wait);
    int64_t left_ns = dd_deadline_left_ns(call->wait->deadline_ns);
    if (caller != NULL && !caller->is_passed_on && call->wait->deadline_ns == caller->wait.deadline_ns) {
        caller->is_passed_on = true;
        left_ns = left_ns == DD_NEVER_NS ? left_ns : caller->wait.deadline_ns - caller->wait.start_ns;
    }
    return py_from_timeout_ns(call->bridge->state, left_ns);
}

/* Return true if the class overrides the method. An override may lack the timeout parameter, as
 * some of torch's methods do. */
static bool
is_overridden(const bridge_call *call)
{
    PyObject *own_method = PyObject_GetAttrString((PyObject *)Py_TYPE(call->bridge->object), call->method);
    PyObject *base = PyObject_GetAttrString((PyObject *)call->bridge->state->store_type, call->method);
    bool is_own = own_method != base;
    Py_XDECREF(own_method);
    Py_XDECREF(base);
    PyErr_Clear();
    return is_own;
}

static PyObject *
make_argument(const bridge_call *call, char kind, const dd_store_request *request, size_t *nvalues)
{
    switch (kind) {
    case 'k':
        return py_from_key(request->keys[0]);
    case 'K':
        return py_from_keys(request->keys, request->nkeys);
    case 'v':
        return py_from_value(request->values[(*nvalues)++]);
    case 'V':
        return py_from_values(request->values, request->nkeys);
    case 'b':
        return PyBool_FromLong(request->number != 0);
    case 't':
        return time_left(call);
    default:
        return PyLong_FromLongLong(request->number);
    }
}

/* Return the arguments for the method as a new tuple, or NULL with an exception. */
static PyObject *
make_arguments(const bridge_call *call, const dd_store_request *request, bool has_timeout)
{
    const py_params *params = &py_store_ops[request->op].params;
    bool takes_timeout = params->count > 0 && params->list[params->count - 1].kind == 't';
    int nargs = params->count - (takes_timeout && !has_timeout ? 1 : 0);
    size_t nvalues = 0;
    PyObject *args = PyTuple_New(nargs);
    for (int i = 0; args != NULL && i < nargs; i++) {
        PyObject *arg = make_argument(call, (char)params->list[i].kind, request, &nvalues);
        if (arg == NULL || PyTuple_SetItem(args, i, arg) != 0) {
            Py_CLEAR(args);
        }
    }
    return args;
}

/* Run an operation's generic form, because the object's class does not override the method. */
static dd_status
run_generic(dd_store *store, const dd_store_request *request, dd_store_result *result, const dd_wait *wait,
            dd_error *err)
{
    bridge_call call = bridge_enter(store, "check", wait);
    dd_store_request generic = *request;
    if (request->op == DD_STORE_APPEND) {
        generic.number = !is_overridden(&call);
    }
    PyGILState_Release(call.gil);
    return dd_store_run_generic(store, &generic, result, wait, err);
}

static dd_status
bridge_run(dd_store *store, const dd_store_request *request, dd_store_result *result, const dd_wait *wait,
           dd_error *err)
{
    dd_store_op op = request->op;
    if (op == DD_STORE_MEET || (op == DD_STORE_MULTI_GET && request->number != 0)) {
        return dd_store_run_generic(store, request, result, wait, err);
    }
    if (((py_bridge *)store)->is_generic && py_store_ops[op].unbound == PY_UNBOUND_GENERIC) {
        return run_generic(store, request, result, wait, err);
    }
    bridge_call call = bridge_enter(store, dd_store_op_name(op), wait);
    bool is_bounded = is_timed(wait) && !(op == DD_STORE_QUEUE_POP && request->number == 0);
    bool may_lack_timeout = op == DD_STORE_GET || op == DD_STORE_QUEUE_POP;
    bool has_timeout = is_bounded && !(may_lack_timeout && is_overridden(&call));
    if (op == DD_STORE_GET && is_bounded && !has_timeout) {
        /* The override of get may lack the timeout parameter: call wait first, with the timeout. */
        dd_store_request first = {.op = DD_STORE_WAIT, .keys = request->keys, .nkeys = request->nkeys};
        dd_status status = bridge_run(store, &first, result, wait, err);
        if (status != DD_OK) {
            return bridge_leave(&call, status, err);
        }
    }
    PyObject *returned = invoke(&call, make_arguments(&call, request, has_timeout));
    dd_status status = returned != NULL ? take_result(&call, returned, request, result, err) : DD_OK;
    Py_XDECREF(returned);
    return bridge_leave(&call, status, err);
}

static dd_status
bridge_clone(dd_store *store, dd_store **clone, const dd_wait *wait, dd_error *err)
{
    bridge_call call = bridge_enter(store, "clone", wait);
    PyObject *result = invoke(&call, PyTuple_New(0));
    if (result != NULL) {
        dd_store *made = py_store_acquire(call.bridge->state, result, "clone", "return");
        if (made != NULL) {
            *clone = made;
        }
        Py_DECREF(result);
    }
    return bridge_leave(&call, DD_OK, err);
}

/* End an operation that cannot fail: an exception goes to sys.unraisablehook. */
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
    bridge_call call = bridge_enter(store, "has_extended_api", NULL);
    PyObject *result = invoke(&call, PyTuple_New(0));
    bool is_true = result != NULL && PyObject_IsTrue(result) > 0;
    Py_XDECREF(result);
    leave_unraisable(&call);
    return is_true;
}

static int64_t
bridge_get_timeout_ns(dd_store *store)
{
    bridge_call call = bridge_enter(store, "timeout", NULL);
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
    bridge_call call = bridge_enter(store, "set_timeout", NULL);
    Py_XDECREF(invoke(&call, Py_BuildValue("(N)", py_from_timeout_ns(call.bridge->state, timeout_ns))));
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

static const dd_store_ops bridge_ops = {
    .kind = "Store",
    .run = bridge_run,
    .clone = bridge_clone,
    .has_extended_api = bridge_has_extended_api,
    .get_timeout_ns = bridge_get_timeout_ns,
    .set_timeout_ns = bridge_set_timeout_ns,
    .destroy = bridge_destroy,
};

static dd_store *
open_bridge(py_state *state, PyObject *object, bool is_generic)
{
    py_bridge *bridge = dd_mem_alloc(sizeof *bridge);
    if (bridge == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    dd_store_init(&bridge->head, &bridge_ops, DD_STORE_DEFAULT_TIMEOUT_NS);
    bridge->state = state;
    bridge->object = Py_NewRef(object);
    bridge->is_generic = is_generic;
    return &bridge->head;
}

dd_store *
py_bridge_open(py_state *state, PyObject *object)
{
    return open_bridge(state, object, false);
}

dd_store *
py_bridge_open_generic(py_state *state, PyObject *object)
{
    return open_bridge(state, object, true);
}

PyObject *
py_bridge_object(const dd_store *store)
{
    return store->ops == &bridge_ops ? ((const py_bridge *)store)->object : NULL;
}
