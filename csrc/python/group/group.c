#include "python/group/group.h"

#include "python/base/error.h"
#include "python/observe/recorder.h"
#include "python/tensor/device.h"

dd_group *
py_group_core(PyObject *group)
{
    return ((py_group *)group)->group;
}

bool
py_group_finish_wait(py_wait *wait, dd_status status, const dd_error *err)
{
    if (status == DD_OK || wait->exception[0] != NULL) {
        return py_wait_finish(wait, status, err);
    }
    py_error_raise_of_group(wait->state, status, err);
    return false;
}

bool
py_group_require_open(const py_group *self)
{
    if (self->group == NULL) {
        PyErr_SetString(PyExc_RuntimeError, "Group.__init__() has not been called on this object");
        return false;
    }
    return true;
}

bool
py_group_require_usable(const py_group *self)
{
    if (!py_group_require_open(self)) {
        return false;
    }
    dd_error err;
    dd_status status = dd_engine_check_fork(dd_group_engine(self->group), &err);
    if (status != DD_OK) {
        py_error_raise_of_group(self->state, status, &err);
    }
    return status == DD_OK;
}

py_group *
py_group_serving(py_group *self, PyObject *tensor, const char *function)
{
    if (self->device_group == NULL) {
        return self;
    }
    py_argument argument = {.state = self->state, .function = function, .name = "tensor", .value = tensor};
    int is_on_device = py_device_has(&argument);
    return is_on_device < 0 ? NULL : is_on_device > 0 ? self->device_group : self;
}

bool
py_group_read_timeout(const py_group *self, PyObject *value, int64_t *timeout_ns, const char *function)
{
    if (value == NULL || value == Py_None) {
        *timeout_ns = -1;
        return true;
    }
    return py_to_timeout_ns(self->state, value, timeout_ns, function, "timeout");
}

void
py_group_take(py_group *self, dd_group *group)
{
    self->group = group;
    self->rank = dd_group_rank(group);
    self->size = dd_group_size(group);
    py_recorder_attach(self->state, group);
    dd_list_push_back(&self->state->groups, &self->link);
}

void
py_group_drop(dd_group *group)
{
    Py_BEGIN_ALLOW_THREADS
    dd_group_release(group);
    Py_END_ALLOW_THREADS
}
