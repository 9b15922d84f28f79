#include "store/tcp_store.h"

#include "python/base/settings.h"
#include "python/store/store.h"

#define HANDSHAKE_TIMEOUT_NS (10 * DD_NS_PER_S)
#define MAX_LIMIT (INT64_C(1) << 40)
#define NOT_GIVEN INT64_MIN /* value of an integer argument that is not given */

typedef struct py_tcp_store {
    py_store base;
    atomic_bool is_libuv; /* the argument use_libuv, which has no effect; atomic */
} py_tcp_store;

/* The arguments of __init__, converted to the core's options. */
typedef struct tcp_store_arguments {
    /* the argument `secret`, or NULL; take_secret replaces it by owned bytes for `options` */
    PyObject *secret;
    bool is_master;
    bool is_multi_tenant;
    dd_tcp_registry *registry; /* the process's servers; NULL unless is_multi_tenant */
    bool is_libuv;
    bool is_open_to_own_torch;
    int64_t port;
    int64_t world_size;
    int64_t listen_fd;
    int64_t max_key_bytes;
    int64_t max_value_bytes;
    dd_tcp_limits limits;
    dd_tcp_store_options options;
} tcp_store_arguments;

static bool
check_port(tcp_store_arguments *arguments)
{
    int64_t port = arguments->port;
    if (port < 0 || port > UINT16_MAX) {
        PyErr_Format(PyExc_TypeError, "TCPStore(): argument 'port' must be in 0..65535, not %lld",
                     (long long)port);
        return false;
    }
    if (port == 0 && !arguments->is_master) {
        PyErr_SetString(PyExc_ValueError, "TCPStore(): argument 'port' must not be 0 for a client");
        return false;
    }
    arguments->options.port = (uint16_t)port;
    return true;
}

static bool
check_world_size(tcp_store_arguments *arguments)
{
    if (arguments->world_size == 0) {
        PyErr_SetString(PyExc_ValueError,
                        "TCPStore(): TCPStore world size cannot be 0: got world_size=0, expected None");
        return false;
    }
    arguments->options.world_size = arguments->world_size;
    return true;
}

static bool
check_listen_fd(const tcp_store_arguments *arguments)
{
    int64_t fd = arguments->listen_fd;
    if (fd != NOT_GIVEN && (fd < 0 || fd > INT_MAX)) {
        PyErr_Format(PyExc_ValueError,
                     "TCPStore(): argument 'master_listen_fd' is not a file descriptor: %lld", (long long)fd);
        return false;
    }
    return true;
}

static bool
take_limit(int64_t number, const char *name, uint64_t *limit)
{
    if (number == NOT_GIVEN) {
        return true;
    }
    if (number < 1 || number > MAX_LIMIT) {
        PyErr_Format(PyExc_ValueError, "TCPStore(): argument '%s' must be in 1..%lld, not %lld", name,
                     (long long)MAX_LIMIT, (long long)number);
        return false;
    }
    *limit = (uint64_t)number;
    return true;
}

static bool
take_limits(tcp_store_arguments *arguments)
{
    dd_tcp_limits *limits = &arguments->limits;
    *limits = DD_TCP_LIMITS_DEFAULT;
    if (!take_limit(arguments->max_key_bytes, "max_key_bytes", &limits->max_key_bytes) ||
        !take_limit(arguments->max_value_bytes, "max_value_bytes", &limits->max_value_bytes)) {
        return false;
    }
    /* A request must hold the largest key and, for compare_set, two of the largest values. */
    uint64_t least = limits->max_key_bytes + 2 * limits->max_value_bytes + 64;
    if (limits->max_request_bytes < least) {
        limits->max_request_bytes = least;
    }
    return true;
}

/* Copy the secret, from the argument or the environment: neither may be read without the GIL. */
static bool
take_secret(tcp_store_arguments *arguments)
{
    py_bytes secret = {0};
    PyObject *ours = arguments->secret == NULL ? py_settings_read("secret") : NULL;
    PyObject *given = ours != NULL ? ours : arguments->secret;
    bool is_read = given != NULL && py_bytes_init(&secret, given, "TCPStore", "secret");
    arguments->secret = is_read ? py_from_value(secret.view) : NULL;
    py_bytes_fini(&secret);
    Py_XDECREF(ours);
    if (arguments->secret == NULL) {
        return false;
    }
    arguments->options.secret =
        dd_bytes_of(PyBytes_AsString(arguments->secret), (size_t)PyBytes_Size(arguments->secret));
    return true;
}

static bool
take_encryption(tcp_store_arguments *arguments)
{
    PyObject *is_encrypted = py_settings_read("is_encrypted");
    int is_true = is_encrypted != NULL ? PyObject_IsTrue(is_encrypted) : -1;
    Py_XDECREF(is_encrypted);
    arguments->options.is_encryption_off = is_true == 0;
    return is_true >= 0;
}

static bool
parse_arguments(py_state *state, PyObject *args, PyObject *kwargs, tcp_store_arguments *arguments)
{
    const py_params params = PY_PARAMS(
        "TCPStore", 2, 9, {"host_name", PY_TEXT, &arguments->options.host},
        {"port", PY_INT64, &arguments->port}, {"world_size", PY_INT64, &arguments->world_size},
        {"is_master", PY_FLAG, &arguments->is_master},
        {"timeout", PY_TIMEOUT, &arguments->options.timeout_ns},
        {"wait_for_workers", PY_FLAG, &arguments->options.is_wait_for_workers},
        {"multi_tenant", PY_FLAG, &arguments->is_multi_tenant},
        {"master_listen_fd", PY_INT64, &arguments->listen_fd}, {"use_libuv", PY_FLAG, &arguments->is_libuv},
        {"secret", PY_OBJECT, &arguments->secret}, {"max_key_bytes", PY_INT64, &arguments->max_key_bytes},
        {"max_value_bytes", PY_INT64, &arguments->max_value_bytes},
        {"_is_open_to_own_torch", PY_FLAG, &arguments->is_open_to_own_torch});
    *arguments = (tcp_store_arguments){
        .is_libuv = true,
        .world_size = -1,
        .listen_fd = NOT_GIVEN,
        .max_key_bytes = NOT_GIVEN,
        .max_value_bytes = NOT_GIVEN,
        .options = {.timeout_ns = DD_STORE_DEFAULT_TIMEOUT_NS, .is_wait_for_workers = true},
    };
    if (!py_params_read_tuple(&params, state, args, kwargs)) {
        return false;
    }
    arguments->registry = arguments->is_multi_tenant ? state->tcp_registry : NULL;
    return check_world_size(arguments) && check_port(arguments) && check_listen_fd(arguments) &&
           take_limits(arguments) && take_encryption(arguments) && take_secret(arguments);
}

/* Open the client; on the master, open the server before. Must be called without the GIL. */
static dd_status
open_store(const void *given, dd_store **store, const dd_wait *wait, dd_error *err)
{
    const tcp_store_arguments *arguments = given;
    dd_tcp_store_options options = arguments->options;
    if (arguments->is_master) {
        dd_tcp_server_options server_options = {
            .host = options.host,
            .port = options.port,
            .listen_fd = arguments->listen_fd == NOT_GIVEN ? -1 : (int)arguments->listen_fd,
            .secret = options.secret,
            .is_encryption_off = options.is_encryption_off,
            .is_open_to_own_torch = arguments->is_open_to_own_torch,
            .limits = arguments->limits,
            .handshake_timeout_ns = HANDSHAKE_TIMEOUT_NS,
            .registry = arguments->registry,
        };
        dd_status status = dd_tcp_server_open(&options.server, &server_options, wait, err);
        if (status != DD_OK) {
            return status;
        }
    }
    dd_status status = dd_tcp_store_open(store, &options, wait, err);
    if (options.server != NULL) {
        dd_tcp_server_release(options.server);
    }
    return status;
}

static int
tcp_store_init(PyObject *object, PyObject *args, PyObject *kwargs)
{
    py_tcp_store *self = (py_tcp_store *)object;
    tcp_store_arguments arguments;
    if (!parse_arguments(self->base.state, args, kwargs, &arguments)) {
        return -1;
    }
    int rc = py_store_open(&self->base, arguments.options.timeout_ns, open_store, &arguments);
    if (rc == 0) {
        self->is_libuv = arguments.is_libuv;
    }
    Py_DECREF(arguments.secret);
    return rc;
}

static PyObject *
tcp_store_clone(PyObject *object, PyObject *unused)
{
    PyObject *clone = py_store_clone(object, unused);
    if (clone != NULL) {
        ((py_tcp_store *)clone)->is_libuv = ((py_tcp_store *)object)->is_libuv;
    }
    return clone;
}

static PyObject *
tcp_store_get_host(PyObject *object, void *Py_UNUSED(closure))
{
    dd_store *store = py_store_opened((py_store *)object);
    return store != NULL ? PyUnicode_FromString(dd_tcp_store_host(store)) : NULL;
}

static PyObject *
tcp_store_get_port(PyObject *object, void *Py_UNUSED(closure))
{
    dd_store *store = py_store_opened((py_store *)object);
    return store != NULL ? PyLong_FromLong(dd_tcp_store_port(store)) : NULL;
}

static PyObject *
tcp_store_get_libuv(PyObject *object, void *Py_UNUSED(closure))
{
    return PyBool_FromLong(((py_tcp_store *)object)->is_libuv);
}

static PyObject *
tcp_store_repr(PyObject *object)
{
    PyObject *host = tcp_store_get_host(object, NULL);
    if (host == NULL) {
        return NULL;
    }
    dd_store *store = py_store_of((py_store *)object);
    PyObject *text =
        PyUnicode_FromFormat("TCPStore(host=%R, port=%d, server=%s)", host, (int)dd_tcp_store_port(store),
                             dd_tcp_store_is_server(store) ? "True" : "False");
    Py_DECREF(host);
    return text;
}

static PyMethodDef tcp_store_methods[] = {
    {"clone", tcp_store_clone, METH_NOARGS, "clone($self)\n--\n\nAnother connection to the same server."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef tcp_store_getset[] = {
    {"host", tcp_store_get_host, NULL, "The host the server is on, as it was given.", NULL},
    {"port", tcp_store_get_port, NULL, "The port of the server.", NULL},
    {"libuvBackend", tcp_store_get_libuv, NULL, "The value of use_libuv, which has no effect.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot tcp_store_slots[] = {
    {Py_tp_doc,
     "TCPStore(host_name, port, world_size=None, is_master=False, timeout=300.0, wait_for_workers=True,\n"
     "         multi_tenant=False, master_listen_fd=None, use_libuv=True, *, secret=None, max_key_bytes=None,\n"
     "         max_value_bytes=None, _is_open_to_own_torch=False)\n--\n\n"
     "A store on a server that one of the processes runs; it speaks the protocol of PyTorch's TCPStore.\n\n"
     "host_name, port: where the server is, or for the master where it listens; port 0 takes a free one.\n"
     "world_size: how many processes join; with wait_for_workers the master waits for them.\n"
     "timeout: a timedelta or seconds; for connecting, and for calls that are given none.\n"
     "multi_tenant: masters of this process on the same port share one server, if all ask for it.\n"
     "master_listen_fd: a bound socket for the server to listen on, which takes it over.\n"
     "use_libuv: accepted and without effect.\n"
     "secret: what both sides must know; None is the environment's DLDIST_SECRET, empty is none. With one,\n"
     "connections over TCP are encrypted, those of groups that meet in the store, too.\n"
     "max_key_bytes, max_value_bytes: what the master's server takes; None is 64 KiB and 256 MiB."},
    {Py_tp_init, (void *)tcp_store_init},
    {Py_tp_repr, (void *)tcp_store_repr},
    {Py_tp_dealloc, (void *)py_store_dealloc},
    {Py_tp_traverse, (void *)py_object_traverse},
    {Py_tp_methods, tcp_store_methods},
    {Py_tp_getset, tcp_store_getset},
    {0, NULL},
};

PyType_Spec py_tcp_store_spec = {"dldist.TCPStore", sizeof(py_tcp_store), 0,
                                 PY_BASE_TYPE_FLAGS | Py_TPFLAGS_HAVE_GC, tcp_store_slots};
