#include "python/carrier/carrier.h"

#include "mpi/mpi.h"
#include "python/base/convert.h"
#include "python/base/error.h"
#include "python/base/params.h"
#include "python/group/group.h"
#include "ucc/ucc.h"
#include "xccl/xccl.h"

#include <string.h>

#define CAPSULE "dldist.carrier"

typedef struct carrier_kind {
    const char *name;
    dd_status (*open)(const dd_dylib_search *search, dd_carrier_library **library, dd_error *err);
} carrier_kind;

static const carrier_kind KINDS[] = {
    {"mpi", dd_mpi_open},
    {"ucc", dd_ucc_open},
    {"xccl", dd_xccl_open},
};

static const carrier_kind *
find_carrier_kind(const char *name)
{
    for (size_t i = 0; i < sizeof KINDS / sizeof KINDS[0]; i++) {
        if (strcmp(KINDS[i].name, name) == 0) {
            return &KINDS[i];
        }
    }
    PyErr_Format(PyExc_ValueError, "unknown carrier: got %s, expected mpi, ucc or xccl", name);
    return NULL;
}

/* Load a carrier's library. The library is never unloaded, because it may have threads. */
PyObject *
py_carrier_open(PyObject *module, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    py_state *state = PyModule_GetState(module);
    const char *name = NULL;
    PyObject *candidates;
    dd_dylib_search search = {NULL, NULL, 0};
    const py_params params =
        PY_PARAMS("_carrier_open", 2, 3, {"name", PY_TEXT, &name}, {"candidates", PY_OBJECT, &candidates},
                  {"path", PY_TEXT, &search.explicit_path});
    if (!py_params_read(&params, state, args, nargs, kwnames)) {
        return NULL;
    }
    const carrier_kind *kind = find_carrier_kind(name);
    const char **paths = kind != NULL ? py_to_paths(candidates, &search.ncandidates) : NULL;
    if (paths == NULL) {
        return NULL;
    }
    search.candidates = paths;
    dd_error err;
    dd_carrier_library *library = NULL;
    dd_status status = PY_WITHOUT_GIL(kind->open(&search, &library, &err));
    PyMem_Free(paths);
    return py_error_check_of_group(state, status, &err) ? PyCapsule_New(library, CAPSULE, NULL) : NULL;
}

static dd_carrier_library *
library_of(PyObject *carrier)
{
    return PyCapsule_GetPointer(carrier, CAPSULE);
}

PyObject *
py_carrier_info(PyObject *Py_UNUSED(module), PyObject *carrier)
{
    const dd_carrier_library *library = library_of(carrier);
    return library != NULL ? Py_BuildValue("(sss)", library->name, library->version, library->path) : NULL;
}

/* ---- MPI_COMM_WORLD */

PyObject *
py_carrier_begin_mpi(PyObject *module, PyObject *carrier)
{
    dd_error err;
    int rank = 0;
    int size = 0;
    dd_carrier_library *library = library_of(carrier);
    if (library == NULL) {
        return NULL;
    }
    dd_status status = PY_WITHOUT_GIL(dd_mpi_begin(library, &rank, &size, &err));
    return py_error_check_of_group(PyModule_GetState(module), status, &err)
               ? Py_BuildValue("(ii)", rank, size)
               : NULL;
}

#define SHARED_NBYTES 512

PyObject *
py_carrier_share_mpi(PyObject *module, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    py_state *state = PyModule_GetState(module);
    PyObject *carrier;
    const char *text = NULL;
    int64_t timeout_ns = DD_NEVER_NS;
    char room[SHARED_NBYTES] = "";
    const py_params params = PY_PARAMS("_carrier_share_mpi", 3, 3, {"carrier", PY_OBJECT, &carrier},
                                       {"text", PY_TEXT, &text}, {"timeout", PY_TIMEOUT, &timeout_ns});
    if (!py_params_read(&params, state, args, nargs, kwnames)) {
        return NULL;
    }
    dd_carrier_library *library = library_of(carrier);
    if (library == NULL) {
        return NULL;
    }
    if (strlen(text) >= sizeof room) {
        return PyErr_Format(PyExc_ValueError, "text too long for other ranks: got %zu bytes", strlen(text));
    }
    memcpy(room, text, strlen(text));
    py_wait wait;
    dd_error err;
    py_wait_init(&wait, state, timeout_ns, true);
    dd_status status = PY_WITHOUT_GIL(dd_mpi_share(library, room, sizeof room, &wait.wait, &err));
    room[sizeof room - 1] = '\0';
    return py_wait_finish(&wait, status, &err) ? PyUnicode_FromString(room) : NULL;
}

PyObject *
py_carrier_end_mpi(PyObject *module, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    PyObject *carrier;
    bool is_well = false;
    const py_params params =
        PY_PARAMS("_carrier_end_mpi", 2, 2, {"carrier", PY_OBJECT, &carrier}, {"is_well", PY_FLAG, &is_well});
    if (!py_params_read(&params, PyModule_GetState(module), args, nargs, kwnames)) {
        return NULL;
    }
    dd_carrier_library *library = library_of(carrier);
    if (library == NULL) {
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS
    dd_mpi_end(library, is_well);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

PY_GROUP_METHOD(carry)
{
    py_group *group = (py_group *)self;
    PyObject *carrier;
    int64_t timeout_ns = -1;
    const py_params params =
        PY_PARAMS("_carry", 1, 2, {"carrier", PY_OBJECT, &carrier}, {"timeout", PY_TIMEOUT, &timeout_ns});
    if (!py_group_require_cpu(group, "_carry") || !py_group_require_open(group) ||
        !py_params_read(&params, group->state, args, nargs, kwnames)) {
        return NULL;
    }
    dd_carrier_library *library = library_of(carrier);
    if (library == NULL) {
        return NULL;
    }
    py_wait wait;
    dd_error err;
    py_wait_init(&wait, group->state, py_group_timeout_or_own(group, timeout_ns), true);
    dd_status status = PY_WITHOUT_GIL(dd_group_set_carrier(group->group, library, &wait.wait, &err));
    dd_recorder_group *recorded = dd_group_recorder_group(group->group);
    if (status == DD_OK && recorded != NULL) {
        status = dd_recorder_group_set_kind(recorded, library->name, &err);
    }
    return py_group_finish_wait(&wait, status, &err) ? Py_NewRef(Py_None) : NULL;
}
