/* dldist.nccl.NcclAbortHandle and NcclUniqueId. */
#include "python/nccl/team.h"

#include "core/fork.h"

#include <string.h>

#define UNIQUE_ID_NBYTES ((Py_ssize_t)sizeof(dd_nccl_unique_id))

static PyObject *
abort_handle_abort(PyObject *object, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    py_nccl_abort_handle *self = (py_nccl_abort_handle *)object;
    const char *reason = "abort() was called";
    const py_params params = PY_PARAMS("abort", 0, 1, {"reason", PY_TEXT, &reason});
    if (!py_params_read(&params, self->state, args, nargs, kwnames)) {
        return NULL;
    }
    return py_none_if(PY_GROUP_TRY(self->state, dd_nccl_comm_abort, self->comm, reason));
}

static PyObject *
abort_handle_is_aborted(PyObject *object, void *Py_UNUSED(closure))
{
    return PyBool_FromLong(dd_nccl_comm_has_ended(((py_nccl_abort_handle *)object)->comm));
}

static void
abort_handle_dealloc(PyObject *object)
{
    py_nccl_abort_handle *self = (py_nccl_abort_handle *)object;
    py_object_begin_dealloc(object);
    if (self->comm != NULL && self->state->nccl->generation == dd_fork_generation()) {
        py_nccl_comm_release(self->comm);
    }
    py_object_end_dealloc(object);
}

static PyMethodDef abort_handle_methods[] = {
    {"abort", PY_FAST_METHOD(abort_handle_abort),
     "abort($self, reason='abort() was called')\n--\n\n"
     "Ends the communicator and its unfinished operations. May be called from any thread, any number of times."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef abort_handle_getset[] = {
    {"is_aborted", abort_handle_is_aborted, NULL, "Whether the communicator has been aborted, or has ended.",
     NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot abort_handle_slots[] = {
    {Py_tp_doc, "Aborts an NcclRankComm from any thread; made by its abort_handle()."},
    {Py_tp_dealloc, (void *)abort_handle_dealloc},
    {Py_tp_methods, abort_handle_methods},
    {Py_tp_getset, abort_handle_getset},
    {0, NULL},
};

PyType_Spec py_nccl_abort_handle_spec = {"dldist.nccl.NcclAbortHandle", sizeof(py_nccl_abort_handle), 0,
                                         PY_MADE_TYPE_FLAGS, abort_handle_slots};

dd_nccl_unique_id
py_nccl_unique_id_get(PyObject *object)
{
    py_nccl_unique_id *self = (py_nccl_unique_id *)object;
    return PY_LOCKED(&self->lock, self->id);
}

/* Create a unique ID, or copy `bytes` if its data is not NULL. */
static bool
make_unique_id(py_state *state, dd_bytes bytes, dd_nccl_unique_id *id)
{
    if (bytes.data != NULL) {
        memcpy(id, bytes.data, sizeof *id);
        return true;
    }
    const py_nccl *nccl = py_nccl_get(state);
    if (nccl == NULL) {
        return false;
    }
    return PY_GROUP_TRY(state, dd_nccl_make_unique_id, nccl->lib, id);
}

static int
unique_id_init(PyObject *object, PyObject *args, PyObject *kwargs)
{
    py_nccl_unique_id *self = (py_nccl_unique_id *)object;
    dd_bytes bytes = {.data = NULL};
    const py_params params = PY_PARAMS("NcclUniqueId", 0, 1, {"data", PY_BYTES, &bytes});
    if (!py_params_read_tuple(&params, self->state, args, kwargs)) {
        return -1;
    }
    if (bytes.data != NULL && bytes.len != (size_t)UNIQUE_ID_NBYTES) {
        PyErr_Format(self->state->errors[PY_ERROR_ARGUMENT],
                     "NcclUniqueId(): argument 'data' has a wrong length: got %zu bytes, expected %zd",
                     bytes.len, UNIQUE_ID_NBYTES);
        return -1;
    }
    dd_nccl_unique_id id;
    if (!make_unique_id(self->state, bytes, &id)) {
        return -1;
    }
    py_lock_take(&self->lock);
    self->id = id;
    py_lock_release(&self->lock);
    return 0;
}

static PyObject *
unique_id_as_bytes(PyObject *object, PyObject *Py_UNUSED(unused))
{
    dd_nccl_unique_id id = py_nccl_unique_id_get(object);
    return PyBytes_FromStringAndSize(id.bytes, UNIQUE_ID_NBYTES);
}

static PyObject *
unique_id_reduce(PyObject *object, PyObject *unused)
{
    PyObject *bytes = unique_id_as_bytes(object, unused);
    return bytes != NULL ? Py_BuildValue("O(N)", (PyObject *)Py_TYPE(object), bytes) : NULL;
}

static PyMethodDef unique_id_methods[] = {
    {"as_bytes", unique_id_as_bytes, METH_NOARGS, "as_bytes($self, /)\n--\n\nIts 128 bytes."},
    {"__bytes__", unique_id_as_bytes, METH_NOARGS, "__bytes__($self, /)\n--\n\nIts 128 bytes."},
    {"__reduce__", unique_id_reduce, METH_NOARGS, "__reduce__($self, /)\n--\n\nFor pickle and copy."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot unique_id_slots[] = {
    {Py_tp_doc,
     "NcclUniqueId(data=None)\n--\n\n"
     "The ID that the ranks of one communicator find each other by: a new one, or one made of these 128 bytes."},
    {Py_tp_new, (void *)py_object_new},
    {Py_tp_init, (void *)unique_id_init},
    {Py_tp_dealloc, (void *)py_object_dealloc},
    {Py_tp_methods, unique_id_methods},
    {0, NULL},
};

PyType_Spec py_nccl_unique_id_spec = {"dldist.nccl.NcclUniqueId", sizeof(py_nccl_unique_id), 0, PY_TYPE_FLAGS,
                                      unique_id_slots};
