#include "python/group/engine.h"

#include "core/mem.h"
#include "python/base/convert.h"
#include "python/base/error.h"
#include "python/base/settings.h"
#include "python/group/group.h"
#include "python/store/store.h"
#include "store/tcp_store.h"

#define RING_NBYTES ((size_t)1 << 20)
#define HANDSHAKE_TIMEOUT_NS (30 * DD_NS_PER_S)
#define PRESENCE_NS DD_NS_PER_S /* timeout of the check whether another process runs */
/* The longest time that interpreter exit waits for unfinished operations of all groups together. */
#define EXIT_NS (DD_NS_PER_S / 2)

/* Read the engine's options from the tuple of settings `values`. They borrow from the tuple. */
static bool
read_engine_options(py_state *state, PyObject *values, dd_connect_options *options)
{
    int first_port;
    int last_port;
    bool has_shm;
    bool is_encrypted;
    int waiting;
    const py_params params =
        PY_PARAMS("connection", 9, 9, {"ifnames", PY_TEXT, &options->ifnames},
                  {"first_port", PY_INT, &first_port}, {"last_port", PY_INT, &last_port},
                  {"has_shm", PY_FLAG, &has_shm}, {"nlanes", PY_INT, &options->nlanes},
                  {"congestion", PY_TEXT, &options->congestion}, {"secret", PY_BYTES, &options->secret},
                  {"is_encrypted", PY_FLAG, &is_encrypted}, {"waiting", PY_INT, &waiting});
    if (!py_params_read_tuple(&params, state, values, NULL)) {
        return false;
    }
    options->first_port = (uint16_t)first_port;
    options->last_port = (uint16_t)last_port;
    options->is_shm_disabled = !has_shm;
    options->is_encryption_off = !is_encrypted;
    options->waiting = (dd_spin_policy)waiting;
    options->ring_nbytes = RING_NBYTES;
    options->timeout_ns = HANDSHAKE_TIMEOUT_NS;
    return true;
}

/* An entry of the list of engines. There is one engine for each secret, because an engine proves
 * knowledge of its one secret to all its peers. */
typedef struct py_engine {
    struct py_engine *next;
    dd_engine *engine;
} py_engine;

/* Return the engine with this secret, or NULL. A forked child does not use its parent's engines. */
static dd_engine *
find_engine_locked(const py_state *state, dd_bytes secret)
{
    for (const py_engine *one = state->engines; one != NULL; one = one->next) {
        if (dd_engine_check_fork(one->engine, NULL) == DD_OK &&
            dd_bytes_equal_secret(dd_engine_secret(one->engine), secret)) {
            return one->engine;
        }
    }
    return NULL;
}

static dd_status
open_engine_locked(py_state *state, const dd_connect_options *options, dd_engine **engine, dd_error *err)
{
    py_engine *one = dd_mem_zalloc(sizeof *one);
    if (one == NULL) {
        return dd_error_no_memory(err, sizeof *one);
    }
    dd_status status = dd_engine_open(options, engine, err);
    if (status != DD_OK) {
        dd_mem_free(one);
        return status;
    }
    *one = (py_engine){.next = state->engines, .engine = *engine};
    state->engines = one;
    return DD_OK;
}

/* Return the engine for the secret in `options` (borrowed), and open the engine if needed. */
static dd_engine *
find_or_open_engine(py_state *state, const dd_connect_options *options)
{
    dd_error err;
    dd_status status = DD_OK;
    py_lock_take(&state->engines_lock);
    dd_engine *engine = find_engine_locked(state, options->secret);
    if (engine == NULL) {
        status = open_engine_locked(state, options, &engine, &err);
    }
    py_lock_release(&state->engines_lock);
    return py_error_check_of_group(state, status, &err) ? engine : NULL;
}

dd_engine *
py_engine_get(py_state *state, dd_bytes secret)
{
    /* This import also registers the closing of groups at interpreter exit. */
    PyObject *runtime = PyImport_ImportModule("dldist._base.callback_thread");
    PyObject *values = runtime != NULL ? py_settings_read("connection") : NULL;
    dd_connect_options options = {.ifnames = ""};
    dd_engine *engine = NULL;
    if (values != NULL && read_engine_options(state, values, &options)) {
        options.secret = secret.len > 0 ? secret : options.secret;
        engine = find_or_open_engine(state, &options);
    }
    Py_XDECREF(values);
    Py_XDECREF(runtime);
    return engine;
}

bool
py_engine_read_selection(py_state *state, dd_selection *selection)
{
    PyObject *text = py_settings_read("algorithm");
    const char *utf8 = text != NULL ? PyUnicode_AsUTF8AndSize(text, NULL) : NULL;
    dd_status status = DD_INTERNAL;
    if (utf8 != NULL) {
        dd_error err;
        status = dd_selection_parse(utf8, selection, &err);
        if (status != DD_OK) {
            dd_error_prepend(&err, "DLDIST_ALGORITHM");
            py_error_raise_of_group(state, status, &err);
        }
    }
    Py_XDECREF(text);
    return status == DD_OK;
}

PyObject *
py_engine_make_endpoint(PyObject *module, PyObject *store_object)
{
    py_state *state = PyModule_GetState(module);
    PyObject *bytes = NULL;
    dd_store *store;
    dd_blob endpoint = {0};
    if (!py_store_acquire_if_any(state, store_object, "_process_endpoint", "store", &store)) {
        return NULL;
    }
    dd_engine *engine = py_engine_get(state, dd_tcp_store_secret(store));
    if (engine != NULL && PY_GROUP_TRY(state, dd_group_make_endpoint, engine, store, &endpoint)) {
        bytes = PyBytes_FromStringAndSize((const char *)endpoint.data, (Py_ssize_t)endpoint.len);
    }
    dd_blob_fini(&endpoint);
    py_store_drop(store);
    return bytes;
}

PyObject *
py_engine_is_other_running(PyObject *module, PyObject *args)
{
    py_state *state = PyModule_GetState(module);
    dd_bytes endpoint;
    dd_bytes own_endpoint;
    dd_presence presence;
    const py_params params = PY_PARAMS("_is_other_running", 2, 2, {"endpoint", PY_BYTES, &endpoint},
                                       {"own_endpoint", PY_BYTES, &own_endpoint});
    if (!py_params_read_tuple(&params, state, args, NULL) ||
        !PY_GROUP_CALL(state, PRESENCE_NS, dd_group_find_presence, endpoint, own_endpoint, &presence)) {
        return NULL;
    }
    return PyBool_FromLong(presence == DD_PRESENCE_RUNNING);
}

PyObject *
py_engine_shut_down(PyObject *module, PyObject *Py_UNUSED(unused))
{
    PyObject *groups = py_group_list(PyModule_GetState(module), &py_group_kind_cpu);
    if (groups == NULL) {
        return NULL;
    }
    dd_wait wait = dd_wait_after(EXIT_NS);
    for (Py_ssize_t i = 0; i < PyList_Size(groups); i++) {
        const py_group *group = (py_group *)PyList_GetItem(groups, i);
        Py_BEGIN_ALLOW_THREADS
        if (group->kind->check_fork(group, NULL) == DD_OK) {
            /* ignore the error, because no caller can receive it */
            (void)!dd_group_close(group->group, &wait, NULL);
        }
        Py_END_ALLOW_THREADS
    }
    Py_DECREF(groups);
    Py_RETURN_NONE;
}
