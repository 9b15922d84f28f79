#include "python/group/group.h"

#include "core/mem.h"
#include "python/base/error.h"
#include "python/observe/recorder.h"
#include "python/tensor/device.h"

#include <string.h>

dd_group *
py_group_core(PyObject *group)
{
    return ((py_group *)group)->group;
}

bool
py_group_finish_wait(py_wait *wait, dd_status status, const dd_error *err)
{
    if (status == DD_OK || wait->exception != NULL) {
        return py_wait_finish(wait, status, err);
    }
    py_error_raise_of_group(wait->state, status, err);
    return false;
}

static bool
raise_if_forked(const py_group *self)
{
    dd_error err;
    return py_error_check_of_group(self->state, self->kind->check_fork(self, &err), &err);
}

const char *
py_group_type_name(const py_group *self)
{
    bool is_nccl = PyObject_TypeCheck((PyObject *)(uintptr_t)self, self->state->nccl_group_type);
    return is_nccl ? "NcclGroup" : "Group";
}

bool
py_group_require_new(const py_group *self, const py_group_kind *kind)
{
    bool is_open = PY_ONCE_GET(&self->kind) != NULL;
    if (is_open || strcmp(py_group_type_name(self), kind->type_name) != 0) {
        PyErr_Format(PyExc_RuntimeError, "%s.__init__() %s", kind->type_name,
                     is_open ? "was already called on this object" : "is not that of this object's type");
        return false;
    }
    return true;
}

bool
py_group_claim(py_group *self, const py_group_kind *kind)
{
    if (atomic_exchange(&self->is_claimed, true)) {
        PyErr_Format(PyExc_RuntimeError, "%s.__init__() was already called on this object", kind->type_name);
        return false;
    }
    return true;
}

bool
py_group_require_open(const py_group *self)
{
    if (PY_ONCE_GET(&self->kind) == NULL) {
        PyErr_Format(PyExc_RuntimeError, "%s.__init__() has not been called on this object",
                     py_group_type_name(self));
        return false;
    }
    return !self->kind->is_lost_in_child || raise_if_forked(self);
}

bool
py_group_require_usable(const py_group *self)
{
    return py_group_require_open(self) && (self->kind->is_lost_in_child || raise_if_forked(self));
}

bool
py_group_require_cpu(const py_group *self, const char *function)
{
    if (!py_group_require_open(self)) {
        return false;
    }
    if (self->group == NULL) {
        PyErr_Format(PyExc_NotImplementedError, "%s(): unsupported by an %s: expected a group of the CPU",
                     function, self->kind->type_name);
    }
    return self->group != NULL;
}

py_group *
py_group_get_device_group(py_group *self)
{
    return PY_LOCKED(&self->lock, (py_group *)Py_XNewRef((PyObject *)self->device_group));
}

py_group *
py_group_serving(py_group *self, PyObject *tensor, const char *function)
{
    py_group *device_group = py_group_get_device_group(self);
    py_argument argument = {.state = self->state, .function = function, .name = "tensor", .value = tensor};
    int is_on_device = device_group != NULL ? py_device_has(&argument) : 0;
    if (is_on_device > 0) {
        return device_group;
    }
    Py_XDECREF((PyObject *)device_group);
    return is_on_device == 0 ? (py_group *)Py_NewRef((PyObject *)self) : NULL;
}

int64_t
py_group_timeout_or_own(const py_group *self, int64_t timeout_ns)
{
    return timeout_ns >= 0 ? timeout_ns : self->kind->get_timeout_ns(self);
}

void
py_group_publish(py_group *self, const py_group_kind *kind, int rank, int size)
{
    self->rank = rank;
    self->size = size;
    self->weak = PyWeakref_NewRef((PyObject *)self, NULL);
    if (self->weak == NULL) {
        PyErr_WriteUnraisable(NULL); /* out of memory: process exit will not close the group */
    }
    dd_list_init(&self->link);
    (void)PY_ONCE_SET(&self->kind, kind);
    py_lock_take(&self->state->groups_lock);
    if (self->weak != NULL) {
        dd_list_push_back(&self->state->groups, &self->link);
    }
    py_lock_release(&self->state->groups_lock);
}

/* Return weak references to the groups of a kind in the state's list. References to the groups
 * themselves would be unsafe: another thread may be freeing a group that is still in the list.
 * The caller frees the result with dd_mem_free. Return NULL, without an exception, if memory ran
 * out. */
static PyObject **
list_weak(py_state *state, const py_group_kind *kind, size_t *count)
{
    size_t capacity = 1;
    *count = 0;
    py_lock_take(&state->groups_lock);
    for (dd_list *node = state->groups.next; node != &state->groups; node = node->next) {
        capacity++;
    }
    PyObject **found = dd_mem_alloc_array(capacity, sizeof(PyObject *));
    for (dd_list *node = state->groups.next; found != NULL && node != &state->groups; node = node->next) {
        const py_group *group = DD_CONTAINER_OF(node, py_group, link);
        if (group->kind == kind) {
            found[(*count)++] = Py_NewRef(group->weak);
        }
    }
    py_lock_release(&state->groups_lock);
    return found;
}

/* Append the group of a weak reference to the list, unless the group has been freed. */
static bool
append_if_alive(PyObject *list, PyObject *weak)
{
    PyObject *object = PyObject_CallNoArgs(weak);
    bool is_ok = object != NULL && (object == Py_None || PyList_Append(list, object) == 0);
    Py_XDECREF(object);
    return is_ok;
}

PyObject *
py_group_list(py_state *state, const py_group_kind *kind)
{
    size_t count;
    PyObject *list = PyList_New(0);
    PyObject **found = list != NULL ? list_weak(state, kind, &count) : NULL;
    if (found == NULL) {
        Py_XDECREF(list);
        return PyErr_NoMemory();
    }
    bool is_ok = true;
    for (size_t i = 0; i < count; i++) {
        is_ok = is_ok && append_if_alive(list, found[i]);
        Py_DECREF(found[i]);
    }
    dd_mem_free(found);
    if (!is_ok) {
        Py_CLEAR(list);
    }
    return list;
}

static bool
check_different_ranks(const py_argument *argument, const int *ranks, int count, int size)
{
    for (int i = 0; i < count; i++) {
        int first = 0;
        while (ranks[first] != ranks[i]) {
            first++;
        }
        if (first < i || ranks[i] < 0 || ranks[i] >= size) {
            py_argument_raise(argument, PY_FAULT_VALUE, "has an invalid rank: got %d%s, expected 0 to %d",
                              ranks[i], first < i ? " twice" : "", size - 1);
            return false;
        }
    }
    return true;
}

int *
py_group_read_ranks(const py_group *self, PyObject *object, int *count, const char *function,
                    const char *name)
{
    if (!PyList_Check(object) && !PyTuple_Check(object)) {
        py_raise_wrong_type(function, name, "a list or tuple of int", object);
        return NULL;
    }
    const py_argument argument = {.state = self->state, .function = function, .name = name, .value = object};
    int *ranks = py_params_ints(&argument, NULL, count);
    if (ranks != NULL && !check_different_ranks(&argument, ranks, *count, self->size)) {
        PyMem_Free(ranks);
        ranks = NULL;
    }
    return ranks;
}

PyObject *
py_group_name_part(const py_group *self, const int *ranks, int count, int max_named, dd_bytes *name)
{
    dd_bytes whole = self->kind->get_name(self);
    PyObject *text = PyUnicode_DecodeUTF8((const char *)whole.data, (Py_ssize_t)whole.len, "replace");
    for (int i = 0; text != NULL && i < count && i <= max_named; i++) {
        PyObject *longer = i < max_named ? PyUnicode_FromFormat(i == 0 ? "%U/%d" : "%U,%d", text, ranks[i])
                                         : PyUnicode_FromFormat("%U,...", text);
        Py_DECREF(text);
        text = longer;
    }
    Py_ssize_t len;
    const char *utf8 = text != NULL ? PyUnicode_AsUTF8AndSize(text, &len) : NULL;
    if (utf8 == NULL) {
        Py_XDECREF(text);
        return NULL;
    }
    *name = dd_bytes_of(utf8, (size_t)len);
    return text;
}
