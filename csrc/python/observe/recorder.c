#include "python/observe/recorder.h"

#include "core/fork.h"
#include "core/mem.h"
#include "python/base/convert.h"
#include "python/base/error.h"
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

void
py_recorder_attach(py_state *state, dd_group *group)
{
    dd_recorder_group_info info = {.name = dd_group_name(group),
                                   .desc = dd_bytes_of_string("undefined"),
                                   .kind = "gloo",
                                   .rank = dd_group_rank(group),
                                   .size = dd_group_size(group)};
    dd_recorder_group *recorder_group = NULL;
    if (is_there(state) &&
        dd_recorder_add_group(state->recorder->recorder, &info, &recorder_group, NULL) == DD_OK) {
        dd_group_set_recorder(group, recorder_group);
        dd_recorder_group_release(recorder_group);
    }
}

/* ---- names */

/* Reads `size` ranks. The caller frees the result with PyMem_Free; NULL with an exception. */
static int *
read_ranks(PyObject *object, int size)
{
    PyObject *tuple = PySequence_Tuple(object);
    if (tuple == NULL) {
        return NULL;
    }
    int *ranks = PyMem_Calloc((size_t)size + 1, sizeof *ranks);
    if (ranks == NULL) {
        PyErr_NoMemory();
    } else if (PyTuple_Size(tuple) != size) {
        PyErr_Format(PyExc_ValueError, "_describe(): %zd global ranks for a group of %d", PyTuple_Size(tuple),
                     size);
    }
    for (int i = 0; ranks != NULL && i < size && PyErr_Occurred() == NULL; i++) {
        ranks[i] = (int)PyLong_AsLong(PyTuple_GetItem(tuple, i));
    }
    Py_DECREF(tuple);
    if (PyErr_Occurred() != NULL) {
        PyMem_Free(ranks);
        return NULL;
    }
    return ranks;
}

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
    int *ranks = read_ranks(ranks_object, info->size);
    if (ranks == NULL) {
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
    dd_status status;
    Py_BEGIN_ALLOW_THREADS
    status = dd_recorder_dump(recorder, &options, &dump, &err);
    Py_END_ALLOW_THREADS
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
    dd_status status;
    Py_BEGIN_ALLOW_THREADS
    status = dd_recorder_dump_to_file(recorder, &options, text, &err);
    Py_END_ALLOW_THREADS
    Py_DECREF(path);
    if (status != DD_OK) {
        py_error_raise(state, status, &err);
        return NULL;
    }
    Py_RETURN_NONE;
}

PyObject *
py_recorder_reset(PyObject *module, PyObject *unused)
{
    (void)unused;
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
py_recorder_capacity(PyObject *module, PyObject *unused)
{
    (void)unused;
    dd_recorder *recorder = py_recorder_get(PyModule_GetState(module));
    return recorder != NULL ? PyLong_FromSize_t(dd_recorder_capacity(recorder)) : NULL;
}
