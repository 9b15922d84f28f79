#include "python/observe/recorder.h"

#include "core/fork.h"
#include "core/mem.h"
#include "python/base/convert.h"
#include "python/base/error.h"
#include "python/base/params.h"
#include "python/base/wait.h"
#include "python/observe/recorder_internal.h"

#include <string.h>

/* "/usr/lib/.../dldist/" */
static bool
read_folder(py_recorder *self)
{
    PyObject *package = PyImport_ImportModule("dldist");
    PyObject *file = package != NULL ? PyObject_GetAttrString(package, "__file__") : NULL;
    Py_ssize_t len;
    const char *text = file != NULL ? PyUnicode_AsUTF8AndSize(file, &len) : NULL;
    const char *slash = text != NULL ? strrchr(text, '/') : NULL;
    if (slash != NULL) {
        self->folder_len = (size_t)(slash + 1 - text);
        self->folder = dd_mem_alloc(self->folder_len + 1);
        if (self->folder != NULL) {
            memcpy(self->folder, text, self->folder_len);
            self->folder[self->folder_len] = '\0';
        }
    }
    PyErr_Clear(); /* if the package has no file, its frames are shown */
    Py_XDECREF(file);
    Py_XDECREF(package);
    return slash == NULL || self->folder != NULL;
}

static void
destroy(py_recorder *self)
{
    dd_recorder_destroy(self->recorder);
    dd_mem_free(self->folder);
    py_recorder_fini_stacks(self);
    dd_mem_free(self);
}

static py_recorder *
create(py_state *state)
{
    PyObject *settings = PyImport_ImportModule("dldist.base.settings");
    PyObject *values = settings != NULL ? PyObject_CallMethod(settings, "recorder", NULL) : NULL;
    py_recorder *self = values != NULL ? dd_mem_zalloc(sizeof *self) : NULL;
    Py_ssize_t capacity = 0;
    if (self != NULL && PyArg_ParseTuple(values, "ni", &capacity, &self->max_frames)) {
        dd_error err;
        dd_status status = dd_recorder_create((size_t)capacity, &self->recorder, &err);
        self->generation = dd_fork_generation();
        if (status != DD_OK) {
            py_error_raise(state, status, &err);
        } else if ((!read_folder(self) || !py_recorder_init_stacks(self)) && PyErr_Occurred() == NULL) {
            PyErr_NoMemory();
        }
    } else if (values != NULL && PyErr_Occurred() == NULL) {
        PyErr_NoMemory();
    }
    if (self != NULL && PyErr_Occurred() != NULL) {
        destroy(self);
        self = NULL;
    }
    Py_XDECREF(values);
    Py_XDECREF(settings);
    return self;
}

static bool
is_there(const py_state *state)
{
    /* A forked child leaves the parent's recorder alone. */
    return state->recorder != NULL && state->recorder->generation == dd_fork_generation();
}

dd_recorder *
py_recorder_get(py_state *state)
{
    if (is_there(state)) {
        return state->recorder->recorder;
    }
    py_recorder *made = create(state);
    if (made == NULL) {
        return NULL;
    }
    if (is_there(state)) {
        destroy(made); /* another thread made one during the import */
    } else {
        state->recorder = made;
    }
    return state->recorder->recorder;
}

dd_recorder_group *
py_recorder_add_group(py_state *state, const char *kind, dd_bytes name, int rank, int size)
{
    dd_recorder *recorder = py_recorder_get(state);
    if (recorder == NULL) {
        PyErr_Clear(); /* calls work without it */
        return NULL;
    }
    dd_recorder_group_info info = {
        .name = name, .desc = dd_bytes_of_string("undefined"), .kind = kind, .rank = rank, .size = size};
    dd_recorder_group *group = NULL;
    return dd_recorder_add_group(recorder, &info, &group, NULL) == DD_OK ? group : NULL;
}

/* ---- names */

PyObject *
py_recorder_describe(py_state *state, dd_recorder_group *group, dd_recorder_group_info *info, PyObject *args)
{
    const char *name;
    const char *desc;
    Py_ssize_t name_len;
    Py_ssize_t desc_len;
    PyObject *ranks_object;
    if (!PyArg_ParseTuple(args, "s#s#O:_describe", &name, &name_len, &desc, &desc_len, &ranks_object)) {
        return NULL;
    }
    int count;
    const py_argument argument = {
        .state = state, .function = "_describe", .name = "global_ranks", .value = ranks_object};
    int *ranks = py_params_ints(&argument, NULL, &count);
    if (ranks == NULL) {
        return NULL;
    }
    if (count != info->size) {
        PyErr_Format(PyExc_ValueError, "_describe(): %d global ranks for a group of %d", count, info->size);
        PyMem_Free(ranks);
        return NULL;
    }
    info->name = dd_bytes_of(name, (size_t)name_len);
    info->desc = dd_bytes_of(desc, (size_t)desc_len);
    info->global_ranks = ranks;
    dd_error err;
    dd_status status = group != NULL ? dd_recorder_group_rename(group, info, &err) : DD_OK;
    PyMem_Free(ranks);
    if (status != DD_OK) {
        py_error_raise(state, status, &err);
        return NULL;
    }
    Py_RETURN_NONE;
}

/* ---- functions of the module */

static dd_dump_options
make_options(const int flags[4])
{
    return (dd_dump_options){.format = flags[0] != 0 ? DD_DUMP_JSON : DD_DUMP_PICKLE,
                             .has_entries = flags[1] != 0,
                             .has_stacks = flags[2] != 0,
                             .is_active_only = flags[3] != 0};
}

PyObject *
py_recorder_dump(PyObject *module, PyObject *args)
{
    py_state *state = PyModule_GetState(module);
    dd_recorder *recorder = py_recorder_get(state);
    int flags[4];
    if (recorder == NULL ||
        !PyArg_ParseTuple(args, "pppp:_dump_recorder", &flags[0], &flags[1], &flags[2], &flags[3])) {
        return NULL;
    }
    dd_dump_options options = make_options(flags);
    dd_blob dump = {0};
    dd_error err;
    dd_status status = PY_WITHOUT_GIL(dd_recorder_dump(recorder, &options, &dump, &err));
    PyObject *bytes = NULL;
    if (status == DD_OK) {
        bytes = PyBytes_FromStringAndSize((const char *)dump.data, (Py_ssize_t)dump.len);
    } else {
        py_error_raise(state, status, &err);
    }
    dd_blob_fini(&dump);
    return bytes;
}

PyObject *
py_recorder_dump_to_file(PyObject *module, PyObject *args)
{
    py_state *state = PyModule_GetState(module);
    dd_recorder *recorder = py_recorder_get(state);
    PyObject *path = NULL;
    int flags[4];
    if (recorder == NULL || !PyArg_ParseTuple(args, "O&pppp:_dump_recorder_to_file", PyUnicode_FSConverter,
                                              &path, &flags[0], &flags[1], &flags[2], &flags[3])) {
        return NULL;
    }
    dd_dump_options options = make_options(flags);
    const char *text = PyBytes_AsString(path);
    dd_error err;
    dd_status status = PY_WITHOUT_GIL(dd_recorder_dump_to_file(recorder, &options, text, &err));
    Py_DECREF(path);
    if (status != DD_OK) {
        py_error_raise(state, status, &err);
        return NULL;
    }
    Py_RETURN_NONE;
}

PyObject *
py_recorder_reset(PyObject *module, PyObject *Py_UNUSED(unused))
{
    dd_recorder *recorder = py_recorder_get(PyModule_GetState(module));
    if (recorder == NULL) {
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS
    dd_recorder_reset(recorder);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

PyObject *
py_recorder_capacity(PyObject *module, PyObject *Py_UNUSED(unused))
{
    dd_recorder *recorder = py_recorder_get(PyModule_GetState(module));
    return recorder != NULL ? PyLong_FromSize_t(dd_recorder_capacity(recorder)) : NULL;
}
