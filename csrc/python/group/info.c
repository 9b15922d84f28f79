/* Attributes of groups of both kinds. */
#include "python/base/error.h"
#include "python/group/group.h"
#include "python/group/plan.h"

#include <string.h>

static PyObject *
get_rank(PyObject *object, void *Py_UNUSED(closure))
{
    py_group *self = (py_group *)object;
    return py_group_require_open(self) ? PyLong_FromLong(self->rank) : NULL;
}

static PyObject *
get_size(PyObject *object, void *Py_UNUSED(closure))
{
    py_group *self = (py_group *)object;
    return py_group_require_open(self) ? PyLong_FromLong(self->size) : NULL;
}

static PyObject *
group_get_name(PyObject *object, void *Py_UNUSED(closure))
{
    py_group *self = (py_group *)object;
    if (!py_group_require_open(self)) {
        return NULL;
    }
    dd_bytes name = self->kind->get_name(self);
    return PyUnicode_DecodeUTF8((const char *)name.data, (Py_ssize_t)name.len, "replace");
}

static PyObject *
get_is_closed(PyObject *object, void *Py_UNUSED(closure))
{
    py_group *self = (py_group *)object;
    return py_group_require_open(self) ? PyBool_FromLong(self->is_closed) : NULL;
}

static PyObject *
get_error(PyObject *object, void *Py_UNUSED(closure))
{
    py_group *self = (py_group *)object;
    if (!py_group_require_open(self)) {
        return NULL;
    }
    dd_error err;
    dd_status status = PY_WITHOUT_GIL(self->kind->check(self, &err));
    if (status == DD_OK || status == DD_CLOSED) {
        Py_RETURN_NONE;
    }
    return py_error_of_group(self->state, status, &err);
}

static PyObject *
group_get_sequence(PyObject *object, void *Py_UNUSED(closure))
{
    py_group *self = (py_group *)object;
    return py_group_require_usable(self)
               ? PyLong_FromUnsignedLongLong(PY_WITHOUT_GIL(self->kind->get_sequence(self)))
               : NULL;
}

static PyObject *
get_ncarried(PyObject *object, void *Py_UNUSED(closure))
{
    py_group *self = (py_group *)object;
    if (!py_group_require_usable(self)) {
        return NULL;
    }
    uint64_t count = self->group != NULL ? PY_WITHOUT_GIL(dd_group_count_carried(self->group)) : 0;
    return PyLong_FromUnsignedLongLong(count);
}

static PyObject *
group_get_timeout(PyObject *object, void *Py_UNUSED(closure))
{
    py_group *self = (py_group *)object;
    return py_group_require_open(self) ? py_from_timeout_ns(self->state, self->kind->get_timeout_ns(self))
                                       : NULL;
}

static int
set_timeout(PyObject *object, PyObject *value, void *Py_UNUSED(closure))
{
    py_group *self = (py_group *)object;
    int64_t timeout_ns;
    if (value == NULL) {
        PyErr_SetString(PyExc_AttributeError, "the timeout of a group cannot be deleted");
        return -1;
    }
    if (!py_group_require_open(self) ||
        !py_to_timeout_ns(self->state, value, &timeout_ns, self->kind->timeout_name, "timeout")) {
        return -1;
    }
    self->kind->set_timeout_ns(self, timeout_ns);
    return 0;
}

static PyObject *
make_member(py_group *self, int rank)
{
    dd_member_info info;
    Py_BEGIN_ALLOW_THREADS
    dd_group_get_member(self->group, rank, &info);
    Py_END_ALLOW_THREADS
    PyObject *fields[] = {
        PyLong_FromLong(rank),
        PyUnicode_DecodeUTF8(info.host, (Py_ssize_t)strlen(info.host), "backslashreplace"),
        PyLong_FromLongLong(info.pid),
        PyUnicode_FromString(info.transport),
        PyBool_FromLong(info.is_same_host),
    };
    PyObject *member = PyStructSequence_New(self->state->member_type);
    bool is_ok = member != NULL;
    for (Py_ssize_t i = 0; i < (Py_ssize_t)(sizeof fields / sizeof fields[0]); i++) {
        if (member != NULL) {
            is_ok = is_ok && fields[i] != NULL;
            PyStructSequence_SetItem(member, i, fields[i]);
        } else {
            Py_XDECREF(fields[i]);
        }
    }
    if (!is_ok) {
        Py_CLEAR(member);
    }
    return member;
}

static PyObject *
get_members(PyObject *object, void *Py_UNUSED(closure))
{
    py_group *self = (py_group *)object;
    if (!py_group_require_cpu(self, "Group.members") || !py_group_require_usable(self)) {
        return NULL;
    }
    PyObject *members = PyList_New(0);
    for (int rank = 0; members != NULL && rank < self->size; rank++) {
        py_list_append(&members, make_member(self, rank));
    }
    return members;
}

PyObject *
py_group_repr(PyObject *object)
{
    const py_group *self = (py_group *)object;
    if (PY_ONCE_GET(&self->kind) == NULL) {
        return PyUnicode_FromFormat("<dldist.%s: never opened>", py_group_type_name(self));
    }
    PyObject *name = group_get_name(object, NULL);
    PyObject *text =
        name != NULL ? PyUnicode_FromFormat("<dldist.%s %R: rank %d of %d%s>", self->kind->type_name, name,
                                            self->rank, self->size, self->is_closed ? ", closed" : "")
                     : NULL;
    Py_XDECREF(name);
    return text;
}

PyObject *
py_group_make_member_type(void)
{
    static PyStructSequence_Field fields[] = {
        {"rank", "its rank in the group"},
        {"host", "the name of its host"},
        {"pid", "the process ID on that host"},
        {"transport",
         "\"shared memory\", \"TCP\", \"self\", or \"\" before the first message and after it has left"},
        {"is_same_host", "whether it is on the host of this rank"},
        {NULL, NULL},
    };
    static PyStructSequence_Desc desc = {
        .name = "dldist.Member", .doc = "A member of a group.", .fields = fields, .n_in_sequence = 5};
    return (PyObject *)PyStructSequence_NewType(&desc);
}

static PyObject *
get_device_group(PyObject *object, void *Py_UNUSED(closure))
{
    py_group *group = py_group_get_device_group((py_group *)object);
    return group != NULL ? (PyObject *)group : Py_NewRef(Py_None);
}

static int
set_device_group(PyObject *object, PyObject *group, void *Py_UNUSED(closure))
{
    py_group *self = (py_group *)object;
    bool is_none = group == NULL || group == Py_None;
    if (!is_none && !PyObject_TypeCheck(group, self->state->nccl_group_type)) {
        py_raise_wrong_type("Group", "_device_group", "NcclGroup", group);
        return -1;
    }
    py_lock_take(&self->lock);
    py_group *before = self->device_group;
    __atomic_store_n(&self->device_group, is_none ? NULL : (py_group *)Py_NewRef(group), __ATOMIC_RELAXED);
    py_lock_release(&self->lock);
    Py_XDECREF((PyObject *)before);
    return 0;
}

PyObject *
py_group_find_serving(PyObject *object, PyObject *tensor)
{
    return (PyObject *)py_group_serving((py_group *)object, tensor, "_serving");
}

PyGetSetDef py_group_getset[] = {
    {"rank", get_rank, NULL, "This process's rank.", NULL},
    {"size", get_size, NULL, "The number of ranks.", NULL},
    {"name", group_get_name, NULL, "Its name.", NULL},
    {"timeout", group_get_timeout, set_timeout, "How long operations may take if they are given no timeout.",
     NULL},
    {"plan", py_group_get_plan, NULL, "Creates plans: plan.all_reduce(x), with the arguments of all_reduce.",
     NULL},
    {"sequence", group_get_sequence, NULL, "The number of collectives this rank has called.", NULL},
    {"members", get_members, NULL, "A Member for each rank.", NULL},
    {"error", get_error, NULL,
     "The exception that every call raises now; None if calls do not fail, and after close().", NULL},
    {"is_closed", get_is_closed, NULL, "Whether this rank has called close().", NULL},
    {"_ncarried", get_ncarried, NULL, "How many calls a library has been handed that carries the group.",
     NULL},
    {"_device_group", get_device_group, set_device_group,
     "An NcclGroup of the same ranks, which serves device memory, or None.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};
