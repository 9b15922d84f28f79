/* dldist.NcclArray: device memory from ncclMemAlloc, exported through DLPack. */
#include "core/fork.h"
#include "core/mem.h"
#include "python/base/error.h"
#include "python/nccl/group_comm.h"
#include "python/tensor/memory.h"

typedef struct nccl_memory {
    py_memory memory; /* the base; must be the first field */
    const py_nccl *nccl;
} nccl_memory;

/* Free the memory, which no operation uses: unfinished operations hold references. Runs on any
 * thread and must not wait, because a stream may hang. */
static void
nccl_memory_destroy(py_memory *memory)
{
    nccl_memory *allocation = (nccl_memory *)memory;
    if (memory->view.data != NULL && allocation->nccl->generation == dd_fork_generation()) {
        py_nccl_mem_free(allocation->nccl, memory->device_id, memory->view.data);
    }
    dd_mem_free(allocation);
}

static py_memory *
nccl_memory_make(py_group *group, dd_view *view, int device)
{
    py_nccl *nccl = group->state->nccl;
    nccl_memory *allocation = dd_mem_zalloc(sizeof *allocation);
    if (allocation == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    if (!PY_GROUP_TRY(group->state, py_nccl_mem_alloc, nccl, device, dd_view_nbytes(view), &view->data)) {
        dd_mem_free(allocation);
        return NULL;
    }
    allocation->nccl = nccl;
    py_memory_init(&allocation->memory, view, nccl_memory_destroy);
    allocation->memory.device_type = PY_DEVICE_CUDA;
    allocation->memory.device_id = device;
    return &allocation->memory;
}

PyObject *
py_nccl_group_empty(PyObject *object, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    py_group *group = (py_group *)object;
    py_argument shape = {.state = group->state, .function = "empty", .name = "shape"};
    PyObject *dtype = NULL;
    PyObject *device_object = NULL;
    const py_params params = PY_PARAMS("empty", 1, 3, {"shape", PY_OBJECT, &shape.value},
                                       {"dtype", PY_OBJECT, &dtype}, {"device", PY_OBJECT, &device_object});
    dd_view view;
    int device;
    if (!py_group_require_open(group) || !py_params_read(&params, group->state, args, nargs, kwnames) ||
        !py_memory_read_view(&shape, dtype, &view) ||
        !py_nccl_comm_read_device(group, device_object, &device, "empty")) {
        return NULL;
    }
    py_memory *memory = nccl_memory_make(group, &view, device);
    return memory != NULL ? py_memory_array_make(group->state->nccl_array_type, memory) : NULL;
}

static PyObject *
get_pointer(PyObject *object, void *Py_UNUSED(closure))
{
    return PyLong_FromVoidPtr(((py_memory_array *)object)->memory->view.data);
}

static PyObject *
array_get_device(PyObject *object, void *Py_UNUSED(closure))
{
    return PyLong_FromLong(((py_memory_array *)object)->memory->device_id);
}

static PyObject *
array_repr(PyObject *object)
{
    const py_memory *memory = ((py_memory_array *)object)->memory;
    PyObject *shape = py_memory_array_get_shape(object, NULL);
    PyObject *text = shape != NULL
                         ? PyUnicode_FromFormat("<dldist.NcclArray: %R of %s on cuda:%d>", shape,
                                                dd_dtype_name(memory->view.dtype), memory->device_id)
                         : NULL;
    Py_XDECREF(shape);
    return text;
}

static PyMethodDef array_methods[] = {
    PY_MEMORY_ARRAY_METHODS,
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef array_getset[] = {
    PY_MEMORY_ARRAY_GETSET,
    {"ptr", get_pointer, NULL, "Its address on the device.", NULL},
    {"device", array_get_device, NULL, "The number of its device.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot array_slots[] = {
    {Py_tp_doc,
     "NCCL's memory on a device, not initialised; made by NcclGroup.empty.\n\n"
     "It speaks DLPack: torch.from_dlpack(a), cupy.from_dlpack(a). It may outlive its group. It is freed when nothing\n"
     "refers to it any more, so streams that still use it must be waited for before that."},
    {Py_tp_dealloc, (void *)py_memory_array_dealloc},
    {Py_tp_repr, (void *)array_repr},
    {Py_tp_methods, array_methods},
    {Py_tp_getset, array_getset},
    {Py_tp_members, py_object_members},
    {0, NULL},
};

PyType_Spec py_nccl_array_spec = {"dldist.NcclArray", sizeof(py_memory_array), 0, PY_MADE_TYPE_FLAGS,
                                  array_slots};
