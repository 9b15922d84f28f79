/* dldist.SharedArray: memory of Group.empty, as a buffer and by DLPack. */
#include "core/mem.h"
#include "python/py_device_memory.h"
#include "python/py_dtype.h"
#include "python/py_error.h"
#include "python/py_group.h"

typedef struct shared_memory {
    py_memory memory;  /* first */
    dd_region *region; /* owned */
} shared_memory;

typedef struct py_shared_array {
    PyObject ob_base; /* PyObject_HEAD */
    PyObject *module; /* const after new */
    PyObject *weakrefs;
    py_memory *memory; /* const after new; counted; of a shared_memory */
} py_shared_array;

static void
destroy_memory(py_memory *memory)
{
    shared_memory *shared = (shared_memory *)memory;
    dd_region_release(shared->region);
    dd_mem_free(shared);
}

/* ---- making */

static py_memory *
allocate(py_group *group, const dd_view *view)
{
    shared_memory *shared = dd_mem_alloc(sizeof *shared);
    if (shared == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    dd_error err;
    dd_status status;
    Py_BEGIN_ALLOW_THREADS
    status = dd_group_alloc(group->group, dd_view_nbytes(view), &shared->region, &err);
    Py_END_ALLOW_THREADS
    if (status != DD_OK) {
        dd_mem_free(shared);
        py_error_raise_of_group(group->state, status, &err);
        return NULL;
    }
    dd_view filled = *view;
    filled.data = dd_region_data(shared->region);
    py_memory_init(&shared->memory, &filled, destroy_memory);
    return &shared->memory;
}

PyObject *
py_group_empty(PyObject *object, PyObject *args, PyObject *kwargs)
{
    static char *keywords[] = {"shape", "dtype", NULL};
    py_group *group = (py_group *)object;
    PyObject *shape;
    PyObject *dtype = NULL;
    dd_view view;
    if (!py_group_require_open(group) ||
        !PyArg_ParseTupleAndKeywords(args, kwargs, "O|O:empty", keywords, &shape, &dtype) ||
        !py_memory_read_view(group->state, shape, dtype, &view)) {
        return NULL;
    }
    py_memory *memory = allocate(group, &view);
    if (memory == NULL) {
        return NULL;
    }
    PyTypeObject *type = group->state->shared_array_type;
    allocfunc alloc = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    py_shared_array *self = (py_shared_array *)alloc(type, 0);
    if (self == NULL) {
        py_memory_release(memory);
        return NULL;
    }
    self->module = Py_NewRef(group->module);
    self->memory = memory;
    return (PyObject *)self;
}

static void
shared_array_dealloc(PyObject *object)
{
    py_shared_array *self = (py_shared_array *)object;
    PyTypeObject *type = Py_TYPE(object);
    PyObject_GC_UnTrack(object);
    if (self->weakrefs != NULL) {
        PyObject_ClearWeakRefs(object);
    }
    if (self->memory != NULL) {
        Py_BEGIN_ALLOW_THREADS
        py_memory_release(self->memory);
        Py_END_ALLOW_THREADS
    }
    PyObject *module = self->module;
    freefunc free_object = (freefunc)PyType_GetSlot(type, Py_tp_free);
    free_object(object);
    Py_DECREF(type);
    Py_XDECREF(module);
}

static int
shared_array_traverse(PyObject *object, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(object));
    Py_VISIT(((py_shared_array *)object)->module);
    return 0;
}

/* ---- as a buffer */

static int
shared_array_get_buffer(PyObject *object, Py_buffer *buffer, int flags)
{
    dd_view *view = &((py_shared_array *)object)->memory->view;
    const char *format = py_memory_format(view->dtype);
    if (format == NULL && (flags & PyBUF_FORMAT) == PyBUF_FORMAT) {
        PyErr_Format(PyExc_BufferError, "the buffer protocol has no format for %s: use DLPack",
                     dd_dtype_name(view->dtype));
        buffer->obj = NULL;
        return -1;
    }
    *buffer = (Py_buffer){
        .buf = view->data,
        .obj = Py_NewRef(object),
        .len = (Py_ssize_t)dd_view_nbytes(view),
        .itemsize = (Py_ssize_t)dd_dtype_size(view->dtype),
        .ndim = view->ndim,
        .format = (flags & PyBUF_FORMAT) == PyBUF_FORMAT ? (char *)(uintptr_t)format : NULL,
        .shape = (flags & PyBUF_ND) == PyBUF_ND ? (Py_ssize_t *)view->shape : NULL,
        .strides = (flags & PyBUF_STRIDES) == PyBUF_STRIDES ? (Py_ssize_t *)view->strides : NULL,
    };
    return 0;
}

/* ---- by DLPack */

static PyObject *
shared_array_dlpack(PyObject *object, PyObject *args, PyObject *kwargs)
{
    static char *keywords[] = {"stream", "max_version", "dl_device", "copy", NULL};
    PyObject *stream = Py_None;
    PyObject *version = Py_None;
    PyObject *device = Py_None;
    PyObject *copy = Py_None;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|$OOOO:__dlpack__", keywords, &stream, &version, &device,
                                     &copy)) {
        return NULL;
    }
    if (stream != Py_None) {
        PyErr_SetString(PyExc_BufferError, "memory of the CPU has no streams: stream must be None");
        return NULL;
    }
    return py_memory_export(((py_shared_array *)object)->memory, version, device, copy,
                            "a SharedArray is exported as it is: no copies, no other devices");
}

static PyObject *
shared_array_dlpack_device(PyObject *object, PyObject *unused)
{
    (void)object;
    (void)unused;
    return Py_BuildValue("(ii)", PY_DEVICE_CPU, 0);
}

/* ---- questions */

static PyObject *
get_shape(PyObject *object, void *closure)
{
    (void)closure;
    return py_memory_shape(((py_shared_array *)object)->memory);
}

static PyObject *
get_dtype(PyObject *object, void *closure)
{
    (void)closure;
    return PyUnicode_FromString(dd_dtype_name(((py_shared_array *)object)->memory->view.dtype));
}

static PyObject *
get_nbytes(PyObject *object, void *closure)
{
    (void)closure;
    return PyLong_FromSize_t(dd_view_nbytes(&((py_shared_array *)object)->memory->view));
}

static PyObject *
shared_array_repr(PyObject *object)
{
    PyObject *shape = get_shape(object, NULL);
    PyObject *text =
        shape != NULL ? PyUnicode_FromFormat("<dldist.SharedArray: %R of %s>", shape,
                                             dd_dtype_name(((py_shared_array *)object)->memory->view.dtype))
                      : NULL;
    Py_XDECREF(shape);
    return text;
}

static PyMethodDef shared_array_methods[] = {
    {"__dlpack__", (PyCFunction)(void (*)(void))shared_array_dlpack, METH_VARARGS | METH_KEYWORDS,
     "__dlpack__($self, *, stream=None, max_version=None, dl_device=None, copy=None)\n--\n\n"
     "A capsule of DLPack, which keeps the memory."},
    {"__dlpack_device__", shared_array_dlpack_device, METH_NOARGS,
     "__dlpack_device__($self, /)\n--\n\nThe CPU."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef shared_array_getset[] = {
    {"shape", get_shape, NULL, "Its lengths.", NULL},
    {"dtype", get_dtype, NULL, "\"float32\" and so on.", NULL},
    {"nbytes", get_nbytes, NULL, "Bytes of all elements.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMemberDef shared_array_members[] = {
    {"__weaklistoffset__", T_PYSSIZET, offsetof(py_shared_array, weakrefs), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot shared_array_slots[] = {
    {Py_tp_doc,
     "Memory that the ranks of a host share; made by Group.empty.\n\n"
     "It is a writable buffer and speaks DLPack: numpy.asarray(a), torch.from_dlpack(a), memoryview(a).\n"
     "It may outlive its group."},
    {Py_tp_dealloc, (void *)shared_array_dealloc},
    {Py_tp_traverse, (void *)shared_array_traverse},
    {Py_tp_repr, (void *)shared_array_repr},
    {Py_tp_methods, shared_array_methods},
    {Py_tp_getset, shared_array_getset},
    {Py_tp_members, shared_array_members},
    {Py_bf_getbuffer, (void *)shared_array_get_buffer},
    {0, NULL},
};

static PyType_Spec shared_array_spec = {
    .name = "dldist.SharedArray",
    .basicsize = sizeof(py_shared_array),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE |
             Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = shared_array_slots,
};

PyObject *
py_shared_array_make_type(PyObject *module)
{
    return PyType_FromModuleAndSpec(module, &shared_array_spec, NULL);
}
