#include "python/nccl/nccl.h"

#include "core/fork.h"
#include "core/mem.h"
#include "python/base/error.h"
#include "python/observe/watch.h"

/* ---- loading */

static void
nccl_destroy(py_nccl *nccl)
{
    if (nccl != NULL) {
        dd_nccl_watchdog_destroy(nccl->watchdog);
        dd_nccl_lib_close(nccl->lib);
        dd_cuda_close(nccl->cuda);
        Py_XDECREF(nccl->coll_configs);
        dd_mem_free(nccl);
    }
}

/* The settings for loading NCCL: the paths of libraries, and the watchdog's options. */
typedef struct load_arguments {
    dd_dylib_search search;
    const char *cuda_path;
    dd_nccl_watchdog_options watchdog;
    const char *psk; /* pre-shared key of NCCL's connections; NULL if they are not encrypted */
    int64_t psk_print;
} load_arguments;

static dd_status
load_nccl(const load_arguments *arguments, py_nccl *nccl, dd_error *err)
{
    dd_status status = dd_cuda_open(arguments->cuda_path, &nccl->cuda, err);
    if (status == DD_OK) {
        status = dd_nccl_lib_open(&arguments->search, &nccl->lib, err);
    }
    if (status == DD_OK && arguments->psk != NULL) {
        status = dd_nccl_set_encryption(nccl->lib, arguments->psk, (uint64_t)arguments->psk_print, err);
    }
    if (status == DD_OK) {
        status = dd_nccl_watchdog_create(nccl->cuda, &arguments->watchdog, &nccl->watchdog, err);
    }
    nccl->generation = dd_fork_generation();
    return status;
}

static PyObject *
load_and_keep(py_state *state, const load_arguments *arguments)
{
    py_nccl *nccl = dd_mem_zalloc(sizeof *nccl);
    if (nccl == NULL) {
        return PyErr_NoMemory();
    }
    dd_error err;
    dd_status status = PY_WITHOUT_GIL(load_nccl(arguments, nccl, &err));
    if (status == DD_OK && PY_ONCE_SET(&state->nccl, nccl)) {
        Py_RETURN_NONE;
    }
    nccl_destroy(nccl);
    /* Ignore the error if another thread has loaded NCCL first: then this thread's key came too
     * late. */
    if (PY_ONCE_GET(&state->nccl) == NULL && !py_error_check_of_group(state, status, &err)) {
        return NULL;
    }
    Py_RETURN_NONE;
}

PyObject *
py_nccl_find_obstacle(PyObject *module, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    dd_dylib_search search = {.explicit_path = NULL};
    PyObject *candidates;
    const py_params params = PY_PARAMS("_find_nccl_obstacle", 1, 2, {"candidates", PY_OBJECT, &candidates},
                                       {"nccl", PY_TEXT, &search.explicit_path});
    if (!py_params_read(&params, PyModule_GetState(module), args, nargs, kwnames)) {
        return NULL;
    }
    const char **paths = py_to_paths(candidates, &search.ncandidates);
    if (paths == NULL) {
        return NULL;
    }
    search.candidates = paths;
    dd_nccl_lib *lib = NULL;
    dd_error err;
    dd_status status;
    Py_BEGIN_ALLOW_THREADS
    status = dd_nccl_lib_open(&search, &lib, &err);
    dd_nccl_lib_close(lib);
    Py_END_ALLOW_THREADS
    PyMem_Free(paths);
    return status == DD_OK ? Py_NewRef(Py_None) : PyUnicode_FromString(err.message);
}

PyObject *
py_nccl_load(PyObject *module, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    py_state *state = PyModule_GetState(module);
    load_arguments arguments = {.cuda_path = NULL};
    PyObject *candidates;
    const py_params params =
        PY_PARAMS("_load_nccl", 1, 6, {"candidates", PY_OBJECT, &candidates},
                  {"nccl", PY_TEXT, &arguments.search.explicit_path}, {"cuda", PY_TEXT, &arguments.cuda_path},
                  {"is_abort_off", PY_FLAG, &arguments.watchdog.is_abort_off},
                  {"psk", PY_TEXT, &arguments.psk}, {"psk_print", PY_INT64, &arguments.psk_print});
    if (!py_params_read(&params, state, args, nargs, kwnames)) {
        return NULL;
    }
    if (PY_ONCE_GET(&state->nccl) != NULL) {
        Py_RETURN_NONE;
    }
    const char **paths = py_to_paths(candidates, &arguments.search.ncandidates);
    if (paths == NULL) {
        return NULL;
    }
    arguments.search.candidates = paths;
    PyObject *result = load_and_keep(state, &arguments);
    PyMem_Free(paths);
    return result;
}

static py_nccl *
nccl_raise_if_forked(py_state *state)
{
    py_nccl *nccl = PY_ONCE_GET(&state->nccl);
    if (nccl->generation != dd_fork_generation()) {
        dd_error err;
        py_error_raise_of_group(
            state,
            dd_error_set(&err, DD_FORKED,
                         "NCCL and CUDA were loaded before the fork, and do not work in the child"),
            &err);
        return NULL;
    }
    return nccl;
}

py_nccl *
py_nccl_get(py_state *state)
{
    if (PY_ONCE_GET(&state->nccl) == NULL) {
        PyObject *library = PyImport_ImportModule("dldist.nccl.library");
        PyObject *loaded = library != NULL ? PyObject_CallMethod(library, "load", NULL) : NULL;
        Py_XDECREF(library);
        Py_XDECREF(loaded);
        if (loaded == NULL) {
            return NULL;
        }
    }
    return nccl_raise_if_forked(state);
}

PyObject *
py_nccl_info(PyObject *module, PyObject *Py_UNUSED(unused))
{
    const py_state *state = PyModule_GetState(module);
    const py_nccl *nccl = PY_ONCE_GET(&state->nccl);
    if (nccl == NULL) {
        Py_RETURN_NONE;
    }
    return Py_BuildValue("{ss si ss ss si si sK ss}", "path", nccl->lib->path, "version", nccl->lib->version,
                         "version_text", nccl->lib->version_text, "cuda_path", nccl->cuda->path,
                         "driver_version", nccl->cuda->driver_version, "ndevices", nccl->cuda->ndevices,
                         "heartbeat", (unsigned long long)dd_nccl_watchdog_heartbeat(nccl->watchdog),
                         "activity", dd_nccl_watchdog_activity(nccl->watchdog));
}

PyObject *
py_nccl_config_fields(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused))
{
    dd_nccl_config config;
    dd_nccl_config_init(&config);
    PyObject *list = PyList_New(0);
    for (size_t i = 0; list != NULL && i < config.nfields; i++) {
        py_list_append(&list,
                       Py_BuildValue("(siO)", config.fields[i].alias, config.fields[i].since,
                                     config.fields[i].type == DD_NCCL_FIELD_TEXT ? Py_True : Py_False));
    }
    return list;
}

void
py_nccl_hurry(py_state *state)
{
    const py_nccl *nccl = PY_ONCE_GET(&state->nccl);
    if (nccl != NULL) {
        dd_nccl_watchdog_hurry(nccl->watchdog);
    }
}

/* ---- unloading */

void
py_nccl_destroy(py_state *state)
{
    /* Leave NCCL open in a forked child, which lacks the threads that closing would wait for. */
    if (state->nccl != NULL && state->nccl->generation == dd_fork_generation()) {
        py_watch_heartbeat(state, NULL);
        py_nccl_allocator_end();
        nccl_destroy(state->nccl);
    }
    state->nccl = NULL;
}

void
py_nccl_comm_release(dd_nccl_comm *comm)
{
    Py_BEGIN_ALLOW_THREADS
    dd_nccl_comm_release(comm);
    Py_END_ALLOW_THREADS
}
