/* The part of a GPU framework that a communication library uses: tensors around foreign memory,
 * exported by DLPack from C as fast as in real frameworks, and a current stream per thread and
 * device. cuda_framework.py builds it and makes the tensor types. */
#define Py_LIMITED_API 0x030B0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define MAX_DIMS 4
#define MAX_DEVICES 16
#define CUDA 2

typedef struct dl_tensor {
    void *data;
    int32_t device_type;
    int32_t device_id;
    int32_t ndim;
    uint8_t code;
    uint8_t bits;
    uint16_t lanes;
    int64_t *shape;
    int64_t *strides;
    uint64_t byte_offset;
} dl_tensor;

typedef struct dl_managed {
    uint32_t major;
    uint32_t minor;
    void *context;
    void (*deleter)(struct dl_managed *self);
    uint64_t flags;
    dl_tensor tensor;
} dl_managed;

typedef struct exchange_api {
    uint32_t major;
    uint32_t minor;
    const struct exchange_api *previous;
    void *allocate;
    int (*export_object)(void *object, dl_managed **managed);
    void *import_object;
    void *view_object;
    int (*current_stream)(int32_t device_type, int32_t device, void **stream);
} exchange_api;

typedef struct tensor {
    PyObject ob_base; /* PyObject_HEAD */
    PyObject *owner;  /* owns the memory */
    dl_tensor dl;
    int64_t shape[MAX_DIMS];
    int64_t strides[MAX_DIMS];
    int nexports;
} tensor;

static _Thread_local void *current[MAX_DEVICES];

static int
current_stream(int32_t device_type, int32_t device, void **stream)
{
    if (device_type != CUDA || device < 0 || device >= MAX_DEVICES) {
        PyErr_Format(PyExc_ValueError, "no stream on device %d:%d", (int)device_type, (int)device);
        return -1;
    }
    *stream = current[device];
    return 0;
}

/* ---- exports */

static void
delete_managed(dl_managed *managed)
{
    PyGILState_STATE gil = PyGILState_Ensure();
    tensor *self = managed->context;
    self->nexports--;
    Py_DECREF((PyObject *)self);
    free(managed);
    PyGILState_Release(gil);
}

static int
export_object(void *object, dl_managed **out)
{
    tensor *self = object;
    dl_managed *managed = calloc(1, sizeof *managed);
    if (managed == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    managed->major = 1;
    managed->minor = 1;
    managed->context = Py_NewRef((PyObject *)self);
    managed->deleter = delete_managed;
    managed->tensor = self->dl;
    self->nexports++;
    *out = managed;
    return 0;
}

static const exchange_api api = {
    .major = 1, .minor = 3, .export_object = export_object, .current_stream = current_stream};

static void
destroy_capsule(PyObject *capsule)
{
    if (PyCapsule_IsValid(capsule, "dltensor_versioned")) {
        dl_managed *managed = PyCapsule_GetPointer(capsule, "dltensor_versioned");
        managed->deleter(managed);
    }
}

static PyObject *
tensor_dlpack(PyObject *self, PyObject *args, PyObject *kwargs)
{
    (void)args;
    (void)kwargs;
    dl_managed *managed;
    return export_object(self, &managed) == 0 ? PyCapsule_New(managed, "dltensor_versioned", destroy_capsule)
                                              : NULL;
}

static PyObject *
tensor_dlpack_device(PyObject *self, PyObject *unused)
{
    (void)unused;
    return Py_BuildValue("(ii)", CUDA, (int)((tensor *)self)->dl.device_id);
}

static PyObject *
get_nexports(PyObject *self, void *closure)
{
    (void)closure;
    return PyLong_FromLong(((tensor *)self)->nexports);
}

static PyObject *
get_owner(PyObject *self, void *closure)
{
    (void)closure;
    return Py_NewRef(((tensor *)self)->owner);
}

/* ---- the type */

/* Tensor(owner, address, shape, strides, device, code, bits) */
static PyObject *
tensor_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    PyObject *owner;
    PyObject *shape;
    PyObject *strides;
    unsigned long long address;
    int device;
    int code;
    int bits;
    (void)kwargs;
    if (!PyArg_ParseTuple(args, "OKO!O!iii", &owner, &address, &PyTuple_Type, &shape, &PyTuple_Type, &strides,
                          &device, &code, &bits) ||
        PyTuple_Size(shape) > MAX_DIMS || PyTuple_Size(shape) != PyTuple_Size(strides)) {
        return PyErr_Occurred() != NULL ? NULL : PyErr_Format(PyExc_ValueError, "dimensions");
    }
    allocfunc alloc = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    tensor *self = (tensor *)alloc(type, 0);
    if (self == NULL) {
        return NULL;
    }
    self->owner = Py_NewRef(owner);
    self->dl = (dl_tensor){.data = (void *)(uintptr_t)address,
                           .device_type = CUDA,
                           .device_id = device,
                           .ndim = (int32_t)PyTuple_Size(shape),
                           .code = (uint8_t)code,
                           .bits = (uint8_t)bits,
                           .lanes = 1,
                           .shape = self->shape,
                           .strides = self->strides};
    for (int i = 0; i < self->dl.ndim; i++) {
        self->shape[i] = PyLong_AsLongLong(PyTuple_GetItem(shape, i));
        self->strides[i] = PyLong_AsLongLong(PyTuple_GetItem(strides, i));
    }
    return (PyObject *)self;
}

static void
tensor_dealloc(PyObject *object)
{
    PyTypeObject *type = Py_TYPE(object);
    Py_CLEAR(((tensor *)object)->owner);
    freefunc free_object = (freefunc)PyType_GetSlot(type, Py_tp_free);
    free_object(object);
    Py_DECREF(type);
}

static PyMethodDef tensor_methods[] = {
    {"__dlpack__", (PyCFunction)(void (*)(void))tensor_dlpack, METH_VARARGS | METH_KEYWORDS, NULL},
    {"__dlpack_device__", tensor_dlpack_device, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef tensor_getset[] = {
    {"exports", get_nexports, NULL, "How many of its exports are in use.", NULL},
    {"owner", get_owner, NULL, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot tensor_slots[] = {
    {Py_tp_new, (void *)tensor_new},
    {Py_tp_dealloc, (void *)tensor_dealloc},
    {Py_tp_methods, tensor_methods},
    {Py_tp_getset, tensor_getset},
    {0, NULL},
};

static PyType_Spec tensor_spec = {
    .name = "cuda_framework_core.Tensor",
    .basicsize = sizeof(tensor),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
    .slots = tensor_slots,
};

/* ---- the module */

static PyObject *
get_stream(PyObject *module, PyObject *device)
{
    (void)module;
    void *stream;
    long number = PyLong_AsLong(device);
    return PyErr_Occurred() == NULL && current_stream(CUDA, (int32_t)number, &stream) == 0
               ? PyLong_FromUnsignedLongLong((uintptr_t)stream)
               : NULL;
}

static PyObject *
set_stream(PyObject *module, PyObject *args)
{
    (void)module;
    int device;
    unsigned long long stream;
    if (!PyArg_ParseTuple(args, "iK", &device, &stream) || device < 0 || device >= MAX_DEVICES) {
        return PyErr_Occurred() != NULL ? NULL : PyErr_Format(PyExc_ValueError, "device");
    }
    current[device] = (void *)(uintptr_t)stream;
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"get_stream", get_stream, METH_O, "This thread's current stream of a device."},
    {"set_stream", set_stream, METH_VARARGS, "set_stream(device, handle), for this thread."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, .m_name = "cuda_framework_core", .m_size = -1,
                                        .m_methods = functions};

PyMODINIT_FUNC
PyInit_cuda_framework_core(void)
{
    PyObject *module = PyModule_Create(&definition);
    PyObject *type = module != NULL ? PyType_FromSpec(&tensor_spec) : NULL;
    PyObject *capsule = PyCapsule_New((void *)(uintptr_t)&api, "dlpack_exchange_api", NULL);
    if (type == NULL || capsule == NULL || PyModule_AddObjectRef(module, "Tensor", type) < 0 ||
        PyModule_AddObjectRef(module, "EXCHANGE_API", capsule) < 0) {
        Py_CLEAR(module);
    }
    Py_XDECREF(type);
    Py_XDECREF(capsule);
    return module;
}
