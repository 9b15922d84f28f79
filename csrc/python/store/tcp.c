#include "store/tcp_store.h"

#include "python/store/store.h"

#include <stdlib.h>
#include <string.h>

#define HANDSHAKE_TIMEOUT_NS (10 * DD_NS_PER_S)
#define MAX_LIMIT (INT64_C(1) << 40)

typedef struct py_tcp_store {
    py_store base;
    bool is_libuv; /* const after init: the value of use_libuv, which has no effect */
} py_tcp_store;

/* The arguments of __init__ as the core's options, whose texts belong to `host` and `secret`. */
typedef struct tcp_store_arguments {
    PyObject *host;   /* str, borrowed from the call */
    PyObject *secret; /* bytes, owned */
    bool is_master;
    bool is_multi_tenant;
    bool is_libuv;
    int listen_fd;
    dd_tcp_limits limits;
    dd_tcp_store_options options;
} tcp_store_arguments;

static bool
take_host(tcp_store_arguments *arguments)
{
    if (!PyUnicode_Check(arguments->host)) {
        py_raise_wrong_type("TCPStore", "host_name", "str", arguments->host);
        return false;
    }
    Py_ssize_t len;
    arguments->options.host = PyUnicode_AsUTF8AndSize(arguments->host, &len);
    if (arguments->options.host == NULL) {
        return false;
    }
    if (strlen(arguments->options.host) != (size_t)len) {
        PyErr_SetString(PyExc_ValueError, "TCPStore(): argument 'host_name' contains a null character");
        return false;
    }
    return true;
}

static bool
take_port(PyObject *value, tcp_store_arguments *arguments)
{
    int64_t port;
    if (!py_to_int64(value, &port, "TCPStore", "port")) {
        return false;
    }
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
take_world_size(PyObject *value, tcp_store_arguments *arguments)
{
    int64_t world_size = -1;
    if (value != NULL && value != Py_None && !py_to_int64(value, &world_size, "TCPStore", "world_size")) {
        return false;
    }
    if (world_size == 0) {
        PyErr_SetString(PyExc_ValueError, "TCPStore world size cannot be 0 (argument 'world_size')");
        return false;
    }
    arguments->options.world_size = world_size;
    return true;
}

static bool
take_listen_fd(PyObject *value, tcp_store_arguments *arguments)
{
    int64_t fd = -1;
    if (value != NULL && value != Py_None) {
        if (!py_to_int64(value, &fd, "TCPStore", "master_listen_fd")) {
            return false;
        }
        if (fd < 0 || fd > INT_MAX) {
            PyErr_Format(PyExc_ValueError,
                         "TCPStore(): argument 'master_listen_fd' is not a file descriptor: %lld",
                         (long long)fd);
            return false;
        }
    }
    arguments->listen_fd = (int)fd;
    return true;
}

static bool
take_limit(PyObject *value, const char *name, uint64_t *limit)
{
    int64_t number;
    if (value == NULL || value == Py_None) {
        return true;
    }
    if (!py_to_int64(value, &number, "TCPStore", name)) {
        return false;
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
take_limits(PyObject *max_key_bytes, PyObject *max_value_bytes, tcp_store_arguments *arguments)
{
    dd_tcp_limits *limits = &arguments->limits;
    *limits = DD_TCP_LIMITS_DEFAULT;
    if (!take_limit(max_key_bytes, "max_key_bytes", &limits->max_key_bytes) ||
        !take_limit(max_value_bytes, "max_value_bytes", &limits->max_value_bytes)) {
        return false;
    }
    /* A request must hold the largest key and, for compare_set, two of the largest values. */
    uint64_t least = limits->max_key_bytes + 2 * limits->max_value_bytes + 64;
    if (limits->max_request_bytes < least) {
        limits->max_request_bytes = least;
    }
    return true;
}

/* Takes the given secret, or the one from the environment. It is copied, because neither may be read once the GIL is
 * released. */
static bool
take_secret(PyObject *value, tcp_store_arguments *arguments)
{
    py_bytes secret = {0};
    if (value != NULL && value != Py_None) {
        if (!py_bytes_init(&secret, value, "TCPStore", "secret")) {
            return false;
        }
    } else {
        const char *text = getenv("DLDIST_SECRET");
        secret.view = dd_bytes_of_string(text != NULL ? text : "");
    }
    arguments->secret = py_from_value(secret.view);
    py_bytes_fini(&secret);
    if (arguments->secret == NULL) {
        return false;
    }
    arguments->options.secret =
        dd_bytes_of(PyBytes_AsString(arguments->secret), (size_t)PyBytes_Size(arguments->secret));
    return true;
}

static bool
parse_arguments(py_state *state, PyObject *args, PyObject *kwargs, tcp_store_arguments *arguments)
{
    static char *keywords[] = {"host_name",
                               "port",
                               "world_size",
                               "is_master",
                               "timeout",
                               "wait_for_workers",
                               "multi_tenant",
                               "master_listen_fd",
                               "use_libuv",
                               "secret",
                               "max_key_bytes",
                               "max_value_bytes",
                               NULL};
    PyObject *port;
    PyObject *world_size = NULL;
    PyObject *timeout = NULL;
    PyObject *listen_fd = NULL;
    PyObject *secret = NULL;
    PyObject *max_key_bytes = NULL;
    PyObject *max_value_bytes = NULL;
    int is_master = 0;
    int is_waiting = 1;
    int is_multi_tenant = 0;
    int is_libuv = 1;
    *arguments = (tcp_store_arguments){.options = {.timeout_ns = DD_STORE_DEFAULT_TIMEOUT_NS}};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO|OpOppOp$OOO:TCPStore", keywords, &arguments->host,
                                     &port, &world_size, &is_master, &timeout, &is_waiting, &is_multi_tenant,
                                     &listen_fd, &is_libuv, &secret, &max_key_bytes, &max_value_bytes)) {
        return false;
    }
    arguments->is_master = is_master != 0;
    arguments->is_multi_tenant = is_multi_tenant != 0;
    arguments->is_libuv = is_libuv != 0;
    arguments->options.is_wait_for_workers = is_waiting != 0;
    return take_host(arguments) && take_port(port, arguments) && take_world_size(world_size, arguments) &&
           (timeout == NULL ||
            py_to_timeout_ns(state, timeout, &arguments->options.timeout_ns, "TCPStore", "timeout")) &&
           take_listen_fd(listen_fd, arguments) && take_limits(max_key_bytes, max_value_bytes, arguments) &&
           take_secret(secret, arguments);
}

/* Opens the server, if this is the master, and the client. Runs without the GIL. */
static dd_status
open_store(const py_state *state, const tcp_store_arguments *arguments, dd_store **store, const dd_wait *wait,
           dd_error *err)
{
    dd_tcp_store_options options = arguments->options;
    if (arguments->is_master) {
        dd_tcp_server_options server_options = {
            .host = options.host,
            .port = options.port,
            .listen_fd = arguments->listen_fd,
            .secret = options.secret,
            .limits = arguments->limits,
            .handshake_timeout_ns = HANDSHAKE_TIMEOUT_NS,
            .registry = arguments->is_multi_tenant ? state->tcp_registry : NULL,
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
    int rc = -1;
    if (py_store_begin_init(&self->base)) {
        py_wait wait;
        py_wait_init(&wait, self->base.state, arguments.options.timeout_ns, true);
        dd_store *store = NULL;
        dd_error err;
        dd_status status;
        Py_BEGIN_ALLOW_THREADS
        status = open_store(self->base.state, &arguments, &store, &wait.wait, &err);
        Py_END_ALLOW_THREADS
        rc = py_store_finish_init(&self->base, store, &wait, status, &err);
        self->is_libuv = arguments.is_libuv;
    }
    Py_DECREF(arguments.secret);
    return rc;
}

static PyObject *
tcp_store_clone(PyObject *object, PyObject *unused)
{
    PyObject *other = py_store_clone(object, unused);
    if (other != NULL) {
        ((py_tcp_store *)other)->is_libuv = ((py_tcp_store *)object)->is_libuv;
    }
    return other;
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
tcp_store_get_extended(PyObject *object, void *Py_UNUSED(closure))
{
    dd_store *store = py_store_opened((py_store *)object);
    return store != NULL ? PyBool_FromLong(dd_tcp_store_is_extended(store)) : NULL;
}

static PyObject *
tcp_store_server_stats(PyObject *object, PyObject *Py_UNUSED(unused))
{
    dd_store *store = py_store_opened((py_store *)object);
    if (store == NULL) {
        return NULL;
    }
    dd_error err;
    dd_status status = dd_store_check_fork(store, &err);
    if (status != DD_OK) {
        py_error_raise(((py_store *)object)->state, status, &err);
        return NULL;
    }
    dd_tcp_server *server = dd_tcp_store_server(store);
    if (server == NULL) {
        Py_RETURN_NONE;
    }
    dd_tcp_server_stats stats;
    Py_BEGIN_ALLOW_THREADS
    dd_tcp_server_get_stats(server, &stats);
    Py_END_ALLOW_THREADS
    return Py_BuildValue("{sKsKsK}", "connections", (unsigned long long)stats.connections, "parked",
                         (unsigned long long)stats.parked, "entries", (unsigned long long)stats.entries);
}

static PyObject *
tcp_store_repr(PyObject *object)
{
    PyObject *host = tcp_store_get_host(object, NULL);
    if (host == NULL) {
        return NULL;
    }
    dd_store *store = ((py_store *)object)->store;
    PyObject *text =
        PyUnicode_FromFormat("TCPStore(host=%R, port=%d, server=%s)", host, (int)dd_tcp_store_port(store),
                             dd_tcp_store_is_server(store) ? "True" : "False");
    Py_DECREF(host);
    return text;
}

static PyMethodDef tcp_store_methods[] = {
    {"clone", tcp_store_clone, METH_NOARGS, "clone($self)\n--\n\nAnother connection to the same server."},
    {"_server_stats", tcp_store_server_stats, METH_NOARGS,
     "_server_stats($self)\n--\n\nCounts of the server in this process, None when it is elsewhere."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef tcp_store_getset[] = {
    {"host", tcp_store_get_host, NULL, "The host the server is on, as it was given.", NULL},
    {"port", tcp_store_get_port, NULL, "The port of the server.", NULL},
    {"libuvBackend", tcp_store_get_libuv, NULL, "What use_libuv was; there is one server only.", NULL},
    {"_is_extended", tcp_store_get_extended, NULL, "Whether the server is dldist's own.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot tcp_store_slots[] = {
    {Py_tp_doc,
     "TCPStore(host_name, port, world_size=None, is_master=False, timeout=300.0, wait_for_workers=True,\n"
     "         multi_tenant=False, master_listen_fd=None, use_libuv=True, *, secret=None, max_key_bytes=None,\n"
     "         max_value_bytes=None)\n--\n\n"
     "A store on a server that one of the processes runs; it speaks the protocol of PyTorch's TCPStore.\n\n"
     "host_name, port: where the server is, or for the master where it listens; port 0 takes a free one.\n"
     "world_size: how many processes join; with wait_for_workers the master waits for them.\n"
     "timeout: a timedelta or seconds; for connecting, and for calls that are given none.\n"
     "multi_tenant: masters of this process on the same port share one server, if all ask for it.\n"
     "master_listen_fd: a bound socket for the server to listen on, which takes it over.\n"
     "use_libuv: accepted and without effect.\n"
     "secret: what both sides must know; None is the environment's DLDIST_SECRET, empty is none.\n"
     "max_key_bytes, max_value_bytes: what the master's server takes; None is 64 KiB and 256 MiB."},
    {Py_tp_init, (void *)tcp_store_init},
    {Py_tp_repr, (void *)tcp_store_repr},
    {Py_tp_dealloc, (void *)py_store_dealloc},
    {Py_tp_traverse, (void *)py_object_traverse},
    {Py_tp_methods, tcp_store_methods},
    {Py_tp_getset, tcp_store_getset},
    {0, NULL},
};

PyType_Spec py_tcp_store_spec = {
    .name = "dldist.TCPStore",
    .basicsize = sizeof(py_tcp_store),
    .flags = PY_STORE_TYPE_FLAGS,
    .slots = tcp_store_slots,
};
