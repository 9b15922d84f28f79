/* The attributes of an NcclGroup. */
#include "python/base/convert.h"
#include "python/base/error.h"
#include "python/nccl/nccl.h"

static PyObject *
get_rank(PyObject *object, void *closure)
{
    (void)closure;
    const py_group *self = (py_group *)object;
    return py_nccl_group_require(self) ? PyLong_FromLong(self->rank) : NULL;
}

static PyObject *
get_size(PyObject *object, void *closure)
{
    (void)closure;
    const py_group *self = (py_group *)object;
    return py_nccl_group_require(self) ? PyLong_FromLong(self->size) : NULL;
}

static PyObject *
get_name(PyObject *object, void *closure)
{
    (void)closure;
    const py_group *self = (py_group *)object;
    if (!py_nccl_group_require(self)) {
        return NULL;
    }
    dd_bytes name = dd_nccl_group_name(self->nccl->group);
    return PyUnicode_DecodeUTF8((const char *)name.data, (Py_ssize_t)name.len, "replace");
}

static PyObject *
get_timeout(PyObject *object, void *closure)
{
    (void)closure;
    const py_group *self = (py_group *)object;
    return py_nccl_group_require(self)
               ? py_from_timeout_ns(self->state, dd_nccl_group_get_timeout_ns(self->nccl->group))
               : NULL;
}

static int
set_timeout(PyObject *object, PyObject *value, void *closure)
{
    (void)closure;
    const py_group *self = (py_group *)object;
    int64_t timeout_ns;
    if (value == NULL) {
        PyErr_SetString(PyExc_AttributeError, "the timeout of a group cannot be deleted");
        return -1;
    }
    if (!py_nccl_group_require(self) ||
        !py_to_timeout_ns(self->state, value, &timeout_ns, "NcclGroup.timeout", "timeout")) {
        return -1;
    }
    dd_nccl_group_set_timeout_ns(self->nccl->group, timeout_ns);
    return 0;
}

static PyObject *
get_sequence(PyObject *object, void *closure)
{
    (void)closure;
    const py_group *self = (py_group *)object;
    return py_nccl_group_require(self)
               ? PyLong_FromUnsignedLongLong(dd_nccl_group_sequence(self->nccl->group))
               : NULL;
}

static PyObject *
get_error(PyObject *object, void *closure)
{
    (void)closure;
    const py_group *self = (py_group *)object;
    if (!py_nccl_group_require(self)) {
        return NULL;
    }
    dd_error err;
    dd_status status;
    Py_BEGIN_ALLOW_THREADS
    status = dd_nccl_group_check(self->nccl->group, &err);
    Py_END_ALLOW_THREADS
    if (status == DD_OK || status == DD_CLOSED) {
        Py_RETURN_NONE;
    }
    return py_error_of_group(self->state, status, &err);
}

static PyObject *
get_is_closed(PyObject *object, void *closure)
{
    (void)closure;
    const py_group *self = (py_group *)object;
    return py_nccl_group_require(self) ? PyBool_FromLong(self->is_closed) : NULL;
}

static PyObject *
get_device(PyObject *object, void *closure)
{
    (void)closure;
    const py_group *self = (py_group *)object;
    if (!py_nccl_group_require(self)) {
        return NULL;
    }
    return self->nccl->device != PY_NO_DEVICE ? PyLong_FromLong(self->nccl->device) : Py_NewRef(Py_None);
}

static PyObject *
get_members(PyObject *object, void *closure)
{
    (void)object;
    (void)closure;
    PyErr_SetString(PyExc_NotImplementedError, "an NcclGroup does not know where its members are");
    return NULL;
}

PyObject *
py_nccl_group_repr(PyObject *object)
{
    const py_group *self = (py_group *)object;
    if (self->nccl == NULL) {
        return PyUnicode_FromString("<dldist.NcclGroup: never opened>");
    }
    dd_bytes name = dd_nccl_group_name(self->nccl->group);
    PyObject *text = PyUnicode_DecodeUTF8((const char *)name.data, (Py_ssize_t)name.len, "replace");
    PyObject *repr = text != NULL
                         ? PyUnicode_FromFormat("<dldist.NcclGroup %R: rank %d of %d%s>", text, self->rank,
                                                self->size, self->is_closed ? ", closed" : "")
                         : NULL;
    Py_XDECREF(text);
    return repr;
}

PyGetSetDef py_nccl_group_getset[] = {
    {"rank", get_rank, NULL, "This process's rank.", NULL},
    {"size", get_size, NULL, "The number of ranks.", NULL},
    {"name", get_name, NULL, "Its name.", NULL},
    {"timeout", get_timeout, set_timeout, "How long operations may take if they are given no timeout.", NULL},
    {"sequence", get_sequence, NULL, "The number of collectives this rank has called.", NULL},
    {"members", get_members, NULL, "Not known: raises NotImplementedError.", NULL},
    {"error", get_error, NULL,
     "The exception that every call raises now; None if calls do not fail, and after close().", NULL},
    {"is_closed", get_is_closed, NULL, "Whether this rank has called close().", NULL},
    {"device", get_device, NULL,
     "The device it is bound to or was first used with; None if it is not known yet.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};
