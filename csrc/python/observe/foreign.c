/* Flight recorder entries for backends written in Python (FlightRecorderHook), whose operations
 * dldist's groups do not run. A recorded group is a capsule. */
#include "core/clock.h"
#include "python/base/convert.h"
#include "python/base/error.h"
#include "python/base/params.h"
#include "python/observe/recorder.h"

#include <stdio.h>
#include <string.h>

#define CAPSULE_NAME "dldist.recorded_group"
#define MAX_DIMENSIONS 16

/* Names that torch's analyser knows for operations. Records keep pointers to these strings. */
static const char *const names[] = {"send",
                                    "recv",
                                    "broadcast",
                                    "all_reduce",
                                    "allreduce_coalesced",
                                    "reduce",
                                    "all_gather",
                                    "all_gather_single",
                                    "ALLGATHER_coalesced",
                                    "all_gather_into_tensor_coalesced",
                                    "reduce_scatter",
                                    "reduce_scatter_single",
                                    "reduce_scatter_tensor_coalesced",
                                    "all_to_all",
                                    "barrier",
                                    "scatter",
                                    "gather"};

static const char *
static_name(const char *name)
{
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (strcmp(names[i], name) == 0) {
            return names[i];
        }
    }
    return "unknown";
}

static dd_recorder_group *
group_of_capsule(PyObject *capsule)
{
    return PyCapsule_GetPointer(capsule, CAPSULE_NAME);
}

static void
release_group(PyObject *capsule)
{
    dd_recorder_group_release(group_of_capsule(capsule));
}

/* Add an entry for a group with this description. Return NULL if out of memory. */
static dd_recorder_group *
add_described_group(py_state *state, const dd_recorder_group_info *info)
{
    dd_recorder_group *group = py_recorder_add_group(state, info->kind, info->name, info->rank, info->size);
    if (group != NULL && dd_recorder_group_rename(group, info, NULL) != DD_OK) {
        dd_recorder_group_release(group);
        group = NULL;
    }
    return group;
}

PyObject *
py_recorder_add_foreign(PyObject *module, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    py_state *state = PyModule_GetState(module);
    dd_recorder_group_info info = {.kind = "gloo"};
    PyObject *ranks_object;
    const py_params params = PY_PARAMS("_add_recorded_group", 4, 4, {"name", PY_STRING, &info.name},
                                       {"desc", PY_STRING, &info.desc}, {"rank", PY_INT, &info.rank},
                                       {"global_ranks", PY_OBJECT, &ranks_object});
    if (!py_params_read(&params, state, args, nargs, kwnames)) {
        return NULL;
    }
    const py_argument argument = {
        .state = state, .function = "_add_recorded_group", .name = "global_ranks", .value = ranks_object};
    int *ranks = py_params_ints(&argument, NULL, &info.size);
    if (ranks == NULL) {
        return NULL;
    }
    info.global_ranks = ranks;
    dd_recorder_group *group = add_described_group(state, &info);
    PyMem_Free(ranks);
    if (group == NULL) {
        return PyErr_NoMemory();
    }
    PyObject *capsule = PyCapsule_New(group, CAPSULE_NAME, release_group);
    if (capsule == NULL) {
        dd_recorder_group_release(group);
    }
    return capsule;
}

/* ---- tensors: tuples of a dtype name and a shape */

typedef struct shapes {
    dd_record_tensor tensors[PY_RECORDER_MAX_TENSORS];
    int64_t lengths[PY_RECORDER_MAX_TENSORS][MAX_DIMENSIONS];
    size_t count;
    uint32_t more;
} shapes;

static bool
read_dtype_name(PyObject *name, dd_dtype *dtype)
{
    PyObject *utf8 = PyUnicode_AsUTF8String(name);
    const char *text = utf8 != NULL ? PyBytes_AsString(utf8) : NULL;
    bool is_found = false;
    for (unsigned i = 0; text != NULL && !is_found && dd_dtype_is_valid(i); i++) {
        is_found = strcmp(dd_dtype_name((dd_dtype)i), text) == 0;
        *dtype = (dd_dtype)i;
    }
    Py_XDECREF(utf8);
    if (!is_found && PyErr_Occurred() == NULL) {
        PyErr_Format(PyExc_ValueError, "_begin_record(): there is no dtype %R", name);
    }
    return is_found;
}

static bool
read_record_shape(PyObject *shape, dd_record_tensor *tensor, int64_t lengths[MAX_DIMENSIONS])
{
    Py_ssize_t ndim = PyTuple_Size(shape);
    if (ndim > MAX_DIMENSIONS) {
        ndim = MAX_DIMENSIONS; /* leave out the other dimensions, because a record keeps fewer */
    }
    for (Py_ssize_t d = 0; d < ndim; d++) {
        lengths[d] = PyLong_AsLongLong(PyTuple_GetItem(shape, d));
    }
    tensor->ndim = (int)ndim;
    tensor->shape = lengths;
    return PyErr_Occurred() == NULL;
}

static bool
read_items(PyObject *tuple, shapes *out)
{
    Py_ssize_t count = PyTuple_Size(tuple);
    *out = (shapes){.count = 0};
    for (Py_ssize_t i = 0; i < count; i++) {
        if (out->count == PY_RECORDER_MAX_TENSORS) {
            out->more = (uint32_t)(count - i);
            break;
        }
        PyObject *pair = PyTuple_GetItem(tuple, i);
        dd_record_tensor *tensor = &out->tensors[out->count];
        *tensor = (dd_record_tensor){.count = 1};
        PyObject *dtype = PyTuple_GetItem(pair, 0);
        PyObject *shape = dtype != NULL ? PyTuple_GetItem(pair, 1) : NULL;
        if (shape == NULL || !read_dtype_name(dtype, &tensor->dtype) ||
            !read_record_shape(shape, tensor, out->lengths[out->count])) {
            return false;
        }
        out->count++;
    }
    return true;
}

static bool
read_tensors(PyObject *list, shapes *out)
{
    PyObject *tuple = PySequence_Tuple(list);
    bool is_ok = tuple != NULL && read_items(tuple, out);
    Py_XDECREF(tuple);
    return is_ok;
}

/* ---- records */

PyObject *
py_recorder_begin(PyObject *module, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    py_state *state = PyModule_GetState(module);
    PyObject *capsule, *inputs, *outputs;
    const char *name;
    bool is_p2p;
    int peer;
    int64_t timeout_ns;
    const py_params params = PY_PARAMS("_begin_record", 7, 7, {"group", PY_OBJECT, &capsule},
                                       {"name", PY_TEXT, &name}, {"is_p2p", PY_FLAG, &is_p2p},
                                       {"peer", PY_INT, &peer}, {"timeout_ns", PY_INT64, &timeout_ns},
                                       {"inputs", PY_OBJECT, &inputs}, {"outputs", PY_OBJECT, &outputs});
    shapes read[2];
    if (!py_params_read(&params, state, args, nargs, kwnames) || !read_tensors(inputs, &read[0]) ||
        !read_tensors(outputs, &read[1])) {
        return NULL;
    }
    dd_recorder_group *group = group_of_capsule(capsule);
    if (group == NULL) {
        return NULL;
    }
    dd_record_call call = {
        .name = static_name(name),
        .is_p2p = is_p2p,
        .is_started = true,
        .peer = peer,
        .created_ns = dd_clock_now_ns(),
        .timeout_ns = timeout_ns,
        .stack = py_recorder_stack(state),
        .inputs = read[0].tensors,
        .outputs = read[1].tensors,
        .ninputs = read[0].count,
        .noutputs = read[1].count,
        .ninputs_more = read[0].more,
        .noutputs_more = read[1].more,
    };
    return PyLong_FromUnsignedLongLong(dd_recorder_begin(group, &call));
}

PyObject *
py_recorder_end(PyObject *module, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    py_state *state = PyModule_GetState(module);
    PyObject *capsule;
    int64_t record;
    const char *failure = NULL;
    const py_params params = PY_PARAMS("_end_record", 2, 3, {"group", PY_OBJECT, &capsule},
                                       {"record", PY_INT64, &record}, {"failure", PY_TEXT, &failure});
    if (!py_params_read(&params, state, args, nargs, kwnames)) {
        return NULL;
    }
    dd_recorder_group *group = group_of_capsule(capsule);
    if (group == NULL) {
        return NULL;
    }
    dd_error error;
    if (failure != NULL) {
        dd_error_set(&error, DD_BACKEND, "%s", failure);
    }
    dd_recorder_end(dd_recorder_of_group(group), (uint64_t)record, dd_clock_now_ns(),
                    failure != NULL ? &error : NULL);
    Py_RETURN_NONE;
}
