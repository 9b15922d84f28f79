#include "python/observe/recorder.h"

#include "core/fork.h"
#include "core/mem.h"
#include "python/base/error.h"
#include "python/base/params.h"
#include "python/base/settings.h"
#include "python/base/wait.h"
#include "python/observe/recorder_internal.h"

#include <string.h>

/* Set the folder of the dldist package, like "/usr/lib/.../dldist/". */
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
    PyErr_Clear(); /* if the package has no file, stacks show frames of its code */
    Py_XDECREF(file);
    Py_XDECREF(package);
    return slash == NULL || self->folder != NULL;
}

static void
recorder_destroy(py_recorder *self)
{
    dd_recorder_destroy(self->recorder);
    dd_mem_free(self->folder);
    py_recorder_fini_stacks(self);
    dd_mem_free(self);
}

/* Create the core's recorder from the settings. */
static bool
create_core(py_recorder *self, py_state *state, PyObject *settings)
{
    int64_t capacity;
    const py_params params = PY_PARAMS("recorder", 2, 2, {"capacity", PY_INT64, &capacity},
                                       {"max_frames", PY_INT, &self->max_frames});
    if (!py_params_read_tuple(&params, state, settings, NULL)) {
        return false;
    }
    dd_error err;
    dd_status status = dd_recorder_create((size_t)capacity, &self->recorder, &err);
    if (status != DD_OK) {
        py_error_raise(state, status, &err);
    }
    return status == DD_OK;
}

static py_recorder *
recorder_create(py_state *state)
{
    PyObject *settings = py_settings_read("recorder");
    py_recorder *self = settings != NULL ? dd_mem_zalloc(sizeof *self) : NULL;
    bool is_made = false;
    if (self != NULL) {
        self->generation = dd_fork_generation();
        is_made = create_core(self, state, settings) && read_folder(self) && py_recorder_init_stacks(self);
    }
    if (!is_made && settings != NULL && PyErr_Occurred() == NULL) {
        PyErr_NoMemory();
    }
    if (!is_made && self != NULL) {
        recorder_destroy(self);
        self = NULL;
    }
    Py_XDECREF(settings);
    return self;
}

/* Return true if there is a recorder and this process created it: a forked child must not use its
 * parent's recorder. */
static bool
is_of_process(const py_recorder *self)
{
    return self != NULL && self->generation == dd_fork_generation();
}

dd_recorder *
py_recorder_get(py_state *state)
{
    py_recorder *before = py_recorder_current(state);
    if (is_of_process(before)) {
        return before->recorder;
    }
    py_recorder *made = recorder_create(state);
    if (made == NULL) {
        return NULL;
    }
    if (!__atomic_compare_exchange_n(&state->recorder, &before, made, false, __ATOMIC_ACQ_REL,
                                     __ATOMIC_ACQUIRE)) {
        recorder_destroy(made); /* another thread has created the recorder, now in `before` */
        return before->recorder;
    }
    return made->recorder;
}

dd_recorder_group *
py_recorder_add_group(py_state *state, const char *kind, dd_bytes name, int rank, int size)
{
    dd_recorder *recorder = py_recorder_get(state);
    if (recorder == NULL) {
        PyErr_Clear(); /* ignore the error: the group works without a recorder */
        return NULL;
    }
    dd_recorder_group_info info = {
        .name = name, .desc = dd_bytes_of_string("undefined"), .kind = kind, .rank = rank, .size = size};
    dd_recorder_group *group = NULL;
    return dd_recorder_add_group(recorder, &info, &group, NULL) == DD_OK ? group : NULL;
}

/* ---- names */

PyObject *
py_recorder_describe(py_state *state, dd_recorder_group *group, dd_recorder_group_info *info,
                     PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    PyObject *ranks_object;
    const py_params params =
        PY_PARAMS("_describe", 3, 3, {"name", PY_STRING, &info->name}, {"desc", PY_STRING, &info->desc},
                  {"global_ranks", PY_OBJECT, &ranks_object});
    if (!py_params_read(&params, state, args, nargs, kwnames)) {
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

/* Dump the recorder to the file `path` (bytes) and return None, or return the dump as bytes if
 * `path` is NULL. Return NULL with an exception on failure. */
static PyObject *
recorder_dump(py_state *state, dd_recorder *recorder, const dd_dump_options *options, PyObject *path)
{
    const char *file = path != NULL ? PyBytes_AsString(path) : NULL;
    dd_blob contents = {0};
    dd_error err;
    dd_status status = PY_WITHOUT_GIL(file != NULL ? dd_recorder_dump_to_file(recorder, options, file, &err)
                                                   : dd_recorder_dump(recorder, options, &contents, &err));
    PyObject *result = NULL;
    if (status != DD_OK) {
        py_error_raise(state, status, &err);
    } else {
        result = file != NULL ? Py_NewRef(Py_None) : py_from_value(dd_blob_view(&contents));
    }
    dd_blob_fini(&contents);
    return result;
}

PyObject *
py_recorder_dump(PyObject *module, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    py_state *state = PyModule_GetState(module);
    dd_recorder *recorder = py_recorder_get(state);
    dd_dump_options options;
    bool is_json;
    PyObject *path = NULL;
    PyObject *encoded = NULL;
    const py_params params = PY_PARAMS(
        "_dump_recorder", 4, 5, {"is_json", PY_FLAG, &is_json},
        {"has_entries", PY_FLAG, &options.has_entries}, {"has_stacks", PY_FLAG, &options.has_stacks},
        {"is_active_only", PY_FLAG, &options.is_active_only}, {"path", PY_OBJECT, &path});
    if (recorder == NULL || !py_params_read(&params, state, args, nargs, kwnames) ||
        (path != NULL && !PyUnicode_FSConverter(path, &encoded))) {
        return NULL;
    }
    options.format = is_json ? DD_DUMP_JSON : DD_DUMP_PICKLE;
    PyObject *result = recorder_dump(state, recorder, &options, encoded);
    Py_XDECREF(encoded);
    return result;
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
