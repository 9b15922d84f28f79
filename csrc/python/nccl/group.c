/* dldist.NcclGroup: a Group whose data NCCL moves. Its methods are a Group's own (group/operations.c,
 * group/p2p.c). */
#include "core/mem.h"
#include "python/base/error.h"
#include "python/base/object.h"
#include "python/nccl/nccl.h"
#include "python/observe/watch.h"

/* ---- its device */

bool
py_nccl_group_choose_device(py_group *self, int *device)
{
    py_nccl_core *core = self->nccl;
    if (core->device == PY_NO_DEVICE) {
        int guess = self->rank % self->state->nccl->cuda->ndevices;
        if (PyErr_WarnFormat(
                PyExc_UserWarning, 1,
                "this group does not know its device, and takes cuda:%d, as ranks often do: give it with "
                "device_id of init_process_group, or device_ids of barrier; if other ranks use another order, "
                "this may hang",
                guess) < 0) {
            return false;
        }
        core->device = guess;
    }
    *device = core->device;
    return true;
}

/* ---- making */

bool
py_nccl_group_take(py_group *self, const py_group_kind *kind, dd_nccl_group *group,
                   const dd_nccl_group_options *options, dd_recorder_group *recorded)
{
    py_nccl_core *core = dd_mem_zalloc(sizeof *core);
    if (core == NULL) {
        PyErr_NoMemory();
        return false;
    }
    core->group = group;
    core->options = *options;
    core->options.name = dd_bytes_of(NULL, 0);
    core->device = PY_NO_DEVICE;
    core->recorded = recorded;
    self->nccl = core;
    py_group_become(self, kind, dd_nccl_group_rank(group), dd_nccl_group_size(group));
    return true;
}

void
py_nccl_group_drop(dd_nccl_group *group)
{
    Py_BEGIN_ALLOW_THREADS
    dd_nccl_group_release(group);
    Py_END_ALLOW_THREADS
}

PyObject *
py_nccl_group_wrap(const py_group *parent, dd_nccl_group *group, const dd_nccl_group_options *options,
                   dd_recorder_group *recorded, int device)
{
    PyTypeObject *type = parent->state->nccl_group_type;
    py_group *self = (py_group *)py_object_new(type, NULL, NULL);
    if (self == NULL || !py_nccl_group_take(self, parent->kind, group, options, recorded)) {
        Py_XDECREF((PyObject *)self);
        py_nccl_group_drop(group);
        return NULL;
    }
    self->nccl->device = device;
    self->nccl->is_bound = parent->nccl->is_bound;
    self->nccl->is_blocking_wait = parent->nccl->is_blocking_wait;
    self->store = Py_XNewRef(parent->store);
    if (group != parent->nccl->group && py_watch_add_nccl(self) < 0) {
        Py_DECREF((PyObject *)self);
        return NULL;
    }
    return (PyObject *)self;
}

/* Sets one field to a str or a number; None leaves it unset. False with an exception. */
static bool
set_field(const py_state *state, dd_nccl_config *config, PyObject *name, PyObject *value,
          const char *function)
{
    const char *field = PyUnicode_Check(name) ? PyUnicode_AsUTF8AndSize(name, NULL) : NULL;
    dd_nccl_config_value given = {.is_set = value != Py_None, .is_text = PyUnicode_Check(value) != 0};
    if (field == NULL) {
        if (PyErr_Occurred() == NULL) {
            py_raise_wrong_type(function, "config", "a dict of str", name);
        }
        return false;
    }
    if (given.is_text) {
        given.text = PyUnicode_AsUTF8AndSize(value, NULL);
        if (given.text == NULL) {
            return false;
        }
    } else if (given.is_set) {
        int64_t number;
        if (!py_to_int64(value, &number, function, field)) {
            return false;
        }
        given.number = number;
    }
    dd_error err;
    dd_status status = dd_nccl_config_set(config, field, &given, &err);
    return py_error_check_of_group((py_state *)(uintptr_t)state, status, &err);
}

bool
py_nccl_read_config(const py_state *state, PyObject *dict, dd_nccl_config *config, const char *function)
{
    dd_nccl_config_init(config);
    if (dict == NULL || dict == Py_None) {
        return true;
    }
    if (!PyDict_Check(dict)) {
        py_raise_wrong_type(function, "config", "a dict", dict);
        return false;
    }
    PyObject *name;
    PyObject *value;
    Py_ssize_t position = 0;
    while (PyDict_Next(dict, &position, &name, &value)) {
        if (!set_field(state, config, name, value, function)) {
            return false;
        }
    }
    return true;
}
