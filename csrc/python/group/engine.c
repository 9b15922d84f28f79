#include "python/group/engine.h"

#include "python/base/convert.h"
#include "python/base/error.h"
#include "python/group/group.h"

#define RING_NBYTES ((size_t)1 << 20)
#define HANDSHAKE_TIMEOUT_NS (30 * DD_NS_PER_S)
/* How long the end of the interpreter waits for unfinished operations, for all groups together. */
#define EXIT_NS (DD_NS_PER_S / 2)

/* Calls dldist.base.settings.<function>(). A new reference; NULL with an exception. */
static PyObject *
read_settings(const char *function)
{
    PyObject *settings = PyImport_ImportModule("dldist.base.settings");
    PyObject *values = settings != NULL ? PyObject_CallMethod(settings, function, NULL) : NULL;
    Py_XDECREF(settings);
    return values;
}

/* The options borrow from `values`. False with an exception. */
static bool
read_options(PyObject *values, dd_connect_options *options)
{
    int first_port;
    int last_port;
    int has_shm;
    int waiting;
    Py_ssize_t secret_len;
    const char *secret;
    if (!PyArg_ParseTuple(values, "siipisy#i", &options->ifnames, &first_port, &last_port, &has_shm,
                          &options->nlanes, &options->congestion, &secret, &secret_len, &waiting)) {
        return false;
    }
    options->first_port = (uint16_t)first_port;
    options->last_port = (uint16_t)last_port;
    options->is_shm_disabled = has_shm == 0;
    options->waiting = (dd_spin_policy)waiting;
    options->secret = dd_bytes_of(secret, (size_t)secret_len);
    options->ring_nbytes = RING_NBYTES;
    options->timeout_ns = HANDSHAKE_TIMEOUT_NS;
    return true;
}

static dd_engine *
open_engine(py_state *state)
{
    /* The import also arranges that groups are closed at exit. */
    PyObject *runtime = PyImport_ImportModule("dldist.base.completions");
    PyObject *values = runtime != NULL ? read_settings("connection") : NULL;
    dd_connect_options options = {.ifnames = ""};
    dd_engine *engine = NULL;
    if (values != NULL && read_options(values, &options)) {
        dd_error err;
        dd_status status = dd_engine_open(&options, &engine, &err);
        if (status != DD_OK) {
            py_error_raise_of_group(state, status, &err);
            engine = NULL;
        }
    }
    Py_XDECREF(values);
    Py_XDECREF(runtime);
    return engine;
}

static bool
has_engine(const py_state *state)
{
    /* A forked child leaves the parent's engine alone. */
    return state->engine != NULL && dd_engine_check_fork(state->engine, NULL) == DD_OK;
}

dd_engine *
py_engine_get(py_state *state)
{
    if (has_engine(state)) {
        return state->engine;
    }
    dd_engine *engine = open_engine(state);
    if (engine == NULL) {
        return NULL;
    }
    if (has_engine(state)) {
        /* Another thread made one during the import. */
        Py_BEGIN_ALLOW_THREADS
        dd_engine_release(engine);
        Py_END_ALLOW_THREADS
        return state->engine;
    }
    state->engine = engine;
    return engine;
}

bool
py_engine_read_selection(py_state *state, dd_selection *selection)
{
    PyObject *text = read_settings("algorithm");
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

/* Takes a reference to every open group, so that they can be closed without the GIL. Returns their number. */
static size_t
collect_groups(py_state *state, dd_group **groups, size_t max)
{
    size_t count = 0;
    for (dd_list *node = state->groups.next; node != &state->groups && count < max; node = node->next) {
        dd_group *group = DD_CONTAINER_OF(node, py_group, link)->group;
        if (dd_engine_check_fork(dd_group_engine(group), NULL) == DD_OK) {
            groups[count++] = dd_group_acquire(group);
        }
    }
    return count;
}

static void
close_groups(dd_group **groups, size_t count)
{
    dd_wait wait = dd_wait_after(EXIT_NS);
    for (size_t i = 0; i < count; i++) {
        dd_status ignored = dd_group_close(groups[i], &wait, NULL); /* nobody is left to be told */
        (void)ignored;
        dd_group_release(groups[i]);
    }
}

PyObject *
py_engine_shut_down(PyObject *module, PyObject *unused)
{
    (void)unused;
    py_state *state = PyModule_GetState(module);
    size_t max = 0;
    for (dd_list *node = state->groups.next; node != &state->groups; node = node->next) {
        max++;
    }
    dd_group **groups = PyMem_Calloc(max + 1, sizeof(dd_group *));
    if (groups == NULL) {
        return PyErr_NoMemory();
    }
    size_t count = collect_groups(state, groups, max);
    Py_BEGIN_ALLOW_THREADS
    close_groups(groups, count);
    Py_END_ALLOW_THREADS
    PyMem_Free(groups);
    Py_RETURN_NONE;
}
