/* dldist.SharedArray: memory of Group.empty, as a buffer and by DLPack. */
#include "core/mem.h"
#include "python/py_dlpack.h"
#include "python/py_dtype.h"
#include "python/py_error.h"
#include "python/py_group.h"

#include <stdatomic.h>
#include <string.h>

/* The memory, and how the array lies in it; counted by the array and by what it has been exported as.
 * Consumers let go of their exports on threads of theirs: nothing here is Python's. */
typedef struct shared_memory {
    atomic_uint refs;
    dd_region *region; /* owned */
    dd_view view;      /* const */
    int64_t strides_in_elements[DD_VIEW_MAX_DIMS];
} shared_memory;

typedef struct py_shared_array {
    PyObject ob_base; /* PyObject_HEAD */
    PyObject *module; /* const after new */
    PyObject *weakrefs;
    shared_memory *memory; /* const after new; counted */
} py_shared_array;

/* What the dtypes are called outside: format of a buffer (NULL: none), DLDataTypeCode. */
static const struct {
    const char *format;
    uint8_t code;
} outside[DD_DTYPE_COUNT] = {
    [DD_DTYPE_BOOL] = {"?", 6},          [DD_DTYPE_INT8] = {"b", 0},
    [DD_DTYPE_UINT8] = {"B", 1},         [DD_DTYPE_INT16] = {"h", 0},
    [DD_DTYPE_UINT16] = {"H", 1},        [DD_DTYPE_INT32] = {"i", 0},
    [DD_DTYPE_UINT32] = {"I", 1},        [DD_DTYPE_INT64] = {"q", 0},
    [DD_DTYPE_UINT64] = {"Q", 1},        [DD_DTYPE_FLOAT16] = {"e", 2},
    [DD_DTYPE_BFLOAT16] = {NULL, 4},     [DD_DTYPE_FLOAT8_E4M3FN] = {NULL, 10},
    [DD_DTYPE_FLOAT8_E5M2] = {NULL, 12}, [DD_DTYPE_FLOAT32] = {"f", 2},
    [DD_DTYPE_FLOAT64] = {"d", 2},       [DD_DTYPE_COMPLEX64] = {"Zf", 5},
    [DD_DTYPE_COMPLEX128] = {"Zd", 5},
};

static void
release_memory(shared_memory *memory)
{
    if (atomic_fetch_sub_explicit(&memory->refs, 1, memory_order_acq_rel) == 1) {
        dd_region_release(memory->region);
        dd_mem_free(memory);
    }
}

/* ---- making */

static bool
read_length(const py_state *state, PyObject *value, int64_t *length)
{
    if (!py_to_int64(value, length, "empty", "shape")) {
        return false;
    }
    if (*length < 0) {
        PyErr_Format(state->errors[PY_ERROR_ARGUMENT], "empty(): argument 'shape' has a length of %lld",
                     (long long)*length);
        return false;
    }
    return true;
}

/* An int, or a list or tuple of them. */
static bool
read_shape(const py_state *state, PyObject *shape, dd_view *view)
{
    if (!PyList_Check(shape) && !PyTuple_Check(shape)) {
        view->ndim = 1;
        return read_length(state, shape, &view->shape[0]);
    }
    PyObject *tuple = PySequence_Tuple(shape);
    if (tuple == NULL) {
        return false;
    }
    bool is_ok = PyTuple_Size(tuple) <= DD_VIEW_MAX_DIMS;
    if (!is_ok) {
        PyErr_Format(state->errors[PY_ERROR_ARGUMENT],
                     "empty(): argument 'shape' has %zd dimensions; dldist takes up to %d",
                     PyTuple_Size(tuple), DD_VIEW_MAX_DIMS);
    }
    view->ndim = is_ok ? (int)PyTuple_Size(tuple) : 0;
    for (int i = 0; is_ok && i < view->ndim; i++) {
        is_ok = read_length(state, PyTuple_GetItem(tuple, i), &view->shape[i]);
    }
    Py_DECREF(tuple);
    return is_ok;
}

/* A str: the name of a dtype (NumPy), of a scalar type (numpy.float32), or what it prints as
 * (torch.float32). NULL with an exception. */
static PyObject *
find_dtype_name(PyObject *value)
{
    static const char *const attributes[] = {"name", "__name__"};
    for (size_t i = 0; i < sizeof attributes / sizeof attributes[0]; i++) {
        PyObject *name = PyObject_GetAttrString(value, attributes[i]);
        if (name != NULL && PyUnicode_Check(name)) {
            return name;
        }
        Py_XDECREF(name);
        if (PyErr_Occurred() != NULL && !PyErr_ExceptionMatches(PyExc_Exception)) {
            return NULL;
        }
        PyErr_Clear();
    }
    return PyObject_Str(value);
}

static bool
read_dtype(const py_state *state, PyObject *value, dd_dtype *dtype)
{
    PyObject *text = PyUnicode_Check(value) ? Py_NewRef(value) : find_dtype_name(value);
    const char *utf8 = text != NULL ? PyUnicode_AsUTF8AndSize(text, NULL) : NULL;
    const char *dot = utf8 != NULL ? strrchr(utf8, '.') : NULL;
    bool is_found = false;
    for (int i = 0; utf8 != NULL && i < DD_DTYPE_COUNT && !is_found; i++) {
        is_found = strcmp(dot != NULL ? dot + 1 : utf8, dd_dtype_name((dd_dtype)i)) == 0;
        *dtype = (dd_dtype)i;
    }
    if (utf8 != NULL && !is_found) {
        PyErr_Format(state->errors[PY_ERROR_TYPE], "empty(): argument 'dtype': there is no dtype %R", value);
    }
    Py_XDECREF(text);
    return is_found;
}

static bool
finish_view(const py_state *state, dd_view *view)
{
    if (!py_tensor_set_row_major(view) || !dd_view_finish(view)) {
        PyErr_SetString(state->errors[PY_ERROR_ARGUMENT],
                        "empty(): argument 'shape' has more elements than fit into memory");
        return false;
    }
    return true;
}

static shared_memory *
allocate(py_group *group, const dd_view *view)
{
    shared_memory *memory = dd_mem_alloc(sizeof *memory);
    if (memory == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    dd_error err;
    dd_status status;
    Py_BEGIN_ALLOW_THREADS
    status = dd_group_alloc(group->group, dd_view_nbytes(view), &memory->region, &err);
    Py_END_ALLOW_THREADS
    if (status != DD_OK) {
        dd_mem_free(memory);
        py_error_raise_of_group(group->state, status, &err);
        return NULL;
    }
    atomic_init(&memory->refs, 1);
    memory->view = *view;
    memory->view.data = dd_region_data(memory->region);
    for (int i = 0; i < view->ndim; i++) {
        memory->strides_in_elements[i] = view->strides[i] / (int64_t)dd_dtype_size(view->dtype);
    }
    return memory;
}

PyObject *
py_group_empty(PyObject *object, PyObject *args, PyObject *kwargs)
{
    static char *keywords[] = {"shape", "dtype", NULL};
    py_group *group = (py_group *)object;
    PyObject *shape;
    PyObject *dtype = NULL;
    dd_view view = {.dtype = DD_DTYPE_FLOAT32};
    if (!py_group_require_open(group) ||
        !PyArg_ParseTupleAndKeywords(args, kwargs, "O|O:empty", keywords, &shape, &dtype) ||
        !read_shape(group->state, shape, &view) ||
        (dtype != NULL && !read_dtype(group->state, dtype, &view.dtype)) ||
        !finish_view(group->state, &view)) {
        return NULL;
    }
    shared_memory *memory = allocate(group, &view);
    if (memory == NULL) {
        return NULL;
    }
    PyTypeObject *type = group->state->shared_array_type;
    allocfunc alloc = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    py_shared_array *self = (py_shared_array *)alloc(type, 0);
    if (self == NULL) {
        release_memory(memory);
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
        release_memory(self->memory);
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
    const char *format = outside[view->dtype].format;
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

static void
fill_dl_tensor(dl_tensor *tensor, shared_memory *memory)
{
    *tensor = (dl_tensor){
        .data = memory->view.data,
        .device_type = PY_DEVICE_CPU,
        .ndim = memory->view.ndim,
        .code = outside[memory->view.dtype].code,
        .nbits = (uint8_t)(8 * dd_dtype_size(memory->view.dtype)),
        .nlanes = 1,
        .shape = memory->view.shape,
        .strides = memory->strides_in_elements,
    };
}

static void
delete_legacy(dl_managed *managed)
{
    release_memory(managed->context);
    dd_mem_free(managed);
}

static void
delete_versioned(dl_managed_versioned *managed)
{
    release_memory(managed->context);
    dd_mem_free(managed);
}

/* A capsule that nobody has taken. */
static void
destroy_legacy_capsule(PyObject *capsule)
{
    if (PyCapsule_IsValid(capsule, "dltensor")) {
        delete_legacy(PyCapsule_GetPointer(capsule, "dltensor"));
    }
}

static void
destroy_versioned_capsule(PyObject *capsule)
{
    if (PyCapsule_IsValid(capsule, "dltensor_versioned")) {
        delete_versioned(PyCapsule_GetPointer(capsule, "dltensor_versioned"));
    }
}

static PyObject *
export_legacy(shared_memory *memory)
{
    dl_managed *managed = dd_mem_zalloc(sizeof *managed);
    if (managed == NULL) {
        return PyErr_NoMemory();
    }
    fill_dl_tensor(&managed->tensor, memory);
    managed->context = memory;
    managed->deleter = delete_legacy;
    PyObject *capsule = PyCapsule_New(managed, "dltensor", destroy_legacy_capsule);
    if (capsule == NULL) {
        dd_mem_free(managed);
        return NULL;
    }
    atomic_fetch_add_explicit(&memory->refs, 1, memory_order_relaxed);
    return capsule;
}

static PyObject *
export_versioned(shared_memory *memory)
{
    dl_managed_versioned *managed = dd_mem_zalloc(sizeof *managed);
    if (managed == NULL) {
        return PyErr_NoMemory();
    }
    fill_dl_tensor(&managed->tensor, memory);
    managed->version = (dl_version){.major = 1, .minor = 0};
    managed->context = memory;
    managed->deleter = delete_versioned;
    PyObject *capsule = PyCapsule_New(managed, "dltensor_versioned", destroy_versioned_capsule);
    if (capsule == NULL) {
        dd_mem_free(managed);
        return NULL;
    }
    atomic_fetch_add_explicit(&memory->refs, 1, memory_order_relaxed);
    return capsule;
}

static PyObject *
shared_array_dlpack(PyObject *object, PyObject *args, PyObject *kwargs)
{
    static char *keywords[] = {"stream", "max_version", "dl_device", "copy", NULL};
    shared_memory *memory = ((py_shared_array *)object)->memory;
    PyObject *stream = Py_None;
    PyObject *version = Py_None;
    PyObject *device = Py_None;
    PyObject *copy = Py_None;
    int major = 0;
    int minor = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|$OOOO:__dlpack__", keywords, &stream, &version, &device,
                                     &copy) ||
        (version != Py_None && !PyArg_Parse(version, "(ii)", &major, &minor))) {
        return NULL;
    }
    if (stream != Py_None) {
        PyErr_SetString(PyExc_BufferError, "memory of the CPU has no streams: stream must be None");
        return NULL;
    }
    int device_type = PY_DEVICE_CPU;
    int device_id = 0;
    if (device != Py_None && !PyArg_Parse(device, "(ii)", &device_type, &device_id)) {
        return NULL;
    }
    int is_copy = copy != Py_None ? PyObject_IsTrue(copy) : 0;
    if (is_copy != 0 || device_type != PY_DEVICE_CPU) {
        if (is_copy >= 0) {
            PyErr_SetString(PyExc_BufferError,
                            "a SharedArray is exported as it is: no copies, no other devices");
        }
        return NULL;
    }
    return major >= 1 ? export_versioned(memory) : export_legacy(memory);
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
    const dd_view *view = &((py_shared_array *)object)->memory->view;
    PyObject *shape = PyTuple_New(view->ndim);
    for (int i = 0; shape != NULL && i < view->ndim; i++) {
        PyObject *length = PyLong_FromLongLong(view->shape[i]);
        if (length == NULL || PyTuple_SetItem(shape, i, length) < 0) {
            Py_CLEAR(shape);
        }
    }
    return shape;
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
