#include "python/group/engine.h"

#include "python/base/convert.h"
#include "python/base/error.h"
#include "python/base/settings.h"
#include "python/group/group.h"

#define RING_NBYTES ((size_t)1 << 20)
#define HANDSHAKE_TIMEOUT_NS (30 * DD_NS_PER_S)
/* How long the end of the interpreter waits for unfinished operations, for all groups together. */
#define EXIT_NS (DD_NS_PER_S / 2)

/* The options borrow from `values`. False with an exception. */
static bool
read_options(py_state *state, PyObject *values, dd_connect_options *options)
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

static dd_engine *
open_engine(py_state *state)
{
    /* The import also arranges that groups are closed at exit. */
    PyObject *runtime = PyImport_ImportModule("dldist.base.completions");
    PyObject *values = runtime != NULL ? py_settings_read("connection") : NULL;
    dd_connect_options options = {.ifnames = ""};
    dd_engine *engine = NULL;
    if (values != NULL && read_options(state, values, &options)) {
        dd_error err;
        dd_status status = dd_engine_open(&options, &engine, &err);
        engine = py_error_check_of_group(state, status, &err) ? engine : NULL;
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
            (void)!dd_group_close(group->group, &wait, NULL); /* nobody is left to be told */
        }
        Py_END_ALLOW_THREADS
    }
    Py_DECREF(groups);
    Py_RETURN_NONE;
}
