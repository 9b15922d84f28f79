#include "python/tensor/memory.h"

#include "core/mem.h"
#include "python/base/object.h"
#include "python/base/params.h"
#include "python/tensor/dtype.h"

#include <string.h>

/* The names of DLPack's capsules. */
#define LEGACY "dltensor"
#define VERSIONED "dltensor_versioned"

void
py_memory_init(py_memory *memory, const dd_view *view, void (*destroy)(py_memory *memory))
{
    atomic_init(&memory->refs, 1);
    memory->view = *view;
    memory->device_type = PY_DEVICE_CPU;
    memory->device_id = 0;
    memory->destroy = destroy;
    for (int i = 0; i < view->ndim; i++) {
        memory->strides_in_elements[i] = view->strides[i] / (int64_t)dd_dtype_size(view->dtype);
    }
}

void
py_memory_acquire(py_memory *memory)
{
    atomic_fetch_add_explicit(&memory->refs, 1, memory_order_relaxed);
}

void
py_memory_release(py_memory *memory)
{
    if (atomic_fetch_sub_explicit(&memory->refs, 1, memory_order_acq_rel) == 1) {
        memory->destroy(memory);
    }
}

static bool
read_length(const py_argument *argument, PyObject *value, int64_t *length)
{
    if (!py_to_int64(value, length, argument->function, argument->name)) {
        return false;
    }
    if (*length < 0) {
        py_argument_raise(argument, PY_FAULT_VALUE, "has a negative length: got %lld, expected 0 or more",
                          (long long)*length);
        return false;
    }
    return true;
}

/* Read a shape: an int, or a list or tuple of ints. */
static bool
read_view_shape(const py_argument *argument, dd_view *view)
{
    PyObject *shape = argument->value;
    if (!PyList_Check(shape) && !PyTuple_Check(shape)) {
        view->ndim = 1;
        return read_length(argument, shape, &view->shape[0]);
    }
    PyObject *tuple = PySequence_Tuple(shape);
    if (tuple == NULL) {
        return false;
    }
    bool is_ok = PyTuple_Size(tuple) <= DD_VIEW_MAX_DIMS;
    if (!is_ok) {
        py_argument_raise(argument, PY_FAULT_VALUE, "has too many dimensions: got %zd, expected 0 to %d",
                          PyTuple_Size(tuple), DD_VIEW_MAX_DIMS);
    }
    view->ndim = is_ok ? (int)PyTuple_Size(tuple) : 0;
    for (int i = 0; is_ok && i < view->ndim; i++) {
        is_ok = read_length(argument, PyTuple_GetItem(tuple, i), &view->shape[i]);
    }
    Py_DECREF(tuple);
    return is_ok;
}

/* Return the name of a dtype (NumPy) or of a scalar type (numpy.float32), else the str() of the
 * object (torch.float32): a new str. */
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

bool
py_memory_read_dtype(const py_argument *argument, dd_dtype *dtype)
{
    PyObject *value = argument->value;
    PyObject *text = PyUnicode_Check(value) ? Py_NewRef(value) : find_dtype_name(value);
    const char *utf8 = text != NULL ? PyUnicode_AsUTF8AndSize(text, NULL) : NULL;
    const char *dot = utf8 != NULL ? strrchr(utf8, '.') : NULL;
    bool is_found = utf8 != NULL && py_dtype_of_name(dot != NULL ? dot + 1 : utf8, dtype);
    if (utf8 != NULL && !is_found) {
        py_argument_raise(argument, PY_FAULT_DTYPE, "is not a dtype: got %R, expected a name", value);
    }
    Py_XDECREF(text);
    return is_found;
}

bool
py_memory_read_shape(const py_argument *shape, dd_view *view)
{
    if (!read_view_shape(shape, view)) {
        return false;
    }
    if (!py_tensor_set_row_major(view) || !dd_view_finish(view)) {
        py_argument_raise(shape, PY_FAULT_VALUE, "has more elements than memory can hold");
        return false;
    }
    return true;
}

bool
py_memory_read_view(const py_argument *shape, PyObject *dtype, dd_view *view)
{
    py_argument of_dtype = *shape;
    of_dtype.name = "dtype";
    of_dtype.value = dtype;
    *view = (dd_view){.dtype = DD_DTYPE_FLOAT32};
    return (dtype == NULL || py_memory_read_dtype(&of_dtype, &view->dtype)) &&
           py_memory_read_shape(shape, view);
}

/* ---- export by DLPack */

static void
fill_dl_tensor(dl_tensor *tensor, py_memory *memory)
{
    *tensor = (dl_tensor){
        .data = memory->view.data,
        .device_type = memory->device_type,
        .device_id = memory->device_id,
        .ndim = memory->view.ndim,
        .code = py_dtype_dlpack_code(memory->view.dtype),
        .nbits = (uint8_t)(8 * dd_dtype_size(memory->view.dtype)),
        .nlanes = 1,
        .shape = memory->view.shape,
        .strides = memory->strides_in_elements,
    };
}

static void
delete_legacy(dl_managed *managed)
{
    py_memory_release(managed->context);
    dd_mem_free(managed);
}

static void
delete_versioned(dl_managed_versioned *managed)
{
    py_memory_release(managed->context);
    dd_mem_free(managed);
}

/* Release the exported memory, unless a consumer has taken it and has renamed the capsule. */
static void
destroy_capsule(PyObject *capsule)
{
    if (PyCapsule_IsValid(capsule, LEGACY)) {
        delete_legacy(PyCapsule_GetPointer(capsule, LEGACY));
    } else if (PyCapsule_IsValid(capsule, VERSIONED)) {
        delete_versioned(PyCapsule_GetPointer(capsule, VERSIONED));
    }
}

/* Create the capsule of an export and own `managed`; if that is NULL, raise MemoryError. */
static PyObject *
make_capsule(py_memory *memory, void *managed, const char *name)
{
    PyObject *capsule = managed != NULL ? PyCapsule_New(managed, name, destroy_capsule) : PyErr_NoMemory();
    if (capsule != NULL) {
        py_memory_acquire(memory);
    } else {
        dd_mem_free(managed);
    }
    return capsule;
}

static PyObject *
export_legacy(py_memory *memory)
{
    dl_managed *managed = dd_mem_zalloc(sizeof *managed);
    if (managed != NULL) {
        fill_dl_tensor(&managed->tensor, memory);
        managed->context = memory;
        managed->deleter = delete_legacy;
    }
    return make_capsule(memory, managed, LEGACY);
}

static PyObject *
export_versioned(py_memory *memory)
{
    dl_managed_versioned *managed = dd_mem_zalloc(sizeof *managed);
    if (managed != NULL) {
        fill_dl_tensor(&managed->tensor, memory);
        managed->version = (dl_version){.major = 1, .minor = 0};
        managed->context = memory;
        managed->deleter = delete_versioned;
    }
    return make_capsule(memory, managed, VERSIONED);
}

/* Read a pair of ints, such as a version or a device. */
static bool
read_pair(py_state *state, PyObject *pair, const char *name, int *first, int *second)
{
    int count = 0;
    const py_argument argument = {.state = state, .function = "__dlpack__", .name = name, .value = pair};
    int *numbers = py_params_ints(&argument, NULL, &count);
    if (numbers != NULL && count == 2) {
        *first = numbers[0];
        *second = numbers[1];
    } else if (numbers != NULL) {
        py_raise_wrong_type("__dlpack__", name, "a pair of int", pair);
    }
    PyMem_Free(numbers);
    return PyErr_Occurred() == NULL;
}

/* Implement __dlpack__. For device memory the stream is ignored: writers order their own streams,
 * so there is no producer to wait for. */
PyObject *
py_memory_array_dlpack(PyObject *object, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    const py_memory_array *self = (const py_memory_array *)object;
    py_memory *memory = self->memory;
    PyObject *stream = NULL;
    PyObject *version = NULL;
    PyObject *device = NULL;
    bool is_copy = false;
    const py_params params =
        PY_PARAMS("__dlpack__", 0, 0, {"stream", PY_OBJECT, &stream}, {"max_version", PY_OBJECT, &version},
                  {"dl_device", PY_OBJECT, &device}, {"copy", PY_FLAG, &is_copy});
    int major = 0;
    int minor = 0;
    int device_type = memory->device_type;
    int device_id = memory->device_id;
    if (!py_params_read(&params, self->state, args, nargs, kwnames) ||
        (version != NULL && !read_pair(self->state, version, "max_version", &major, &minor)) ||
        (device != NULL && !read_pair(self->state, device, "dl_device", &device_type, &device_id))) {
        return NULL;
    }
    if (stream != NULL && memory->device_type == PY_DEVICE_CPU) {
        PyErr_SetString(PyExc_BufferError, "CPU memory has no streams: stream must be None");
        return NULL;
    }
    if (is_copy || device_type != memory->device_type || device_id != memory->device_id) {
        PyErr_Format(PyExc_BufferError, "%s cannot be copied or moved to another device on export",
                     memory->device_type == PY_DEVICE_CPU ? "a SharedArray" : "an NcclArray");
        return NULL;
    }
    return major >= 1 ? export_versioned(memory) : export_legacy(memory);
}

PyObject *
py_memory_array_dlpack_device(PyObject *object, PyObject *Py_UNUSED(unused))
{
    const py_memory *memory = ((py_memory_array *)object)->memory;
    return Py_BuildValue("(ii)", memory->device_type, memory->device_id);
}

PyObject *
py_memory_array_make(PyTypeObject *type, py_memory *memory)
{
    py_memory_array *self = (py_memory_array *)py_object_new(type, NULL, NULL);
    if (self == NULL) {
        py_memory_release(memory);
        return NULL;
    }
    self->memory = memory;
    return (PyObject *)self;
}

void
py_memory_array_dealloc(PyObject *object)
{
    py_memory *memory = ((py_memory_array *)object)->memory;
    py_object_begin_dealloc(object);
    if (memory != NULL) {
        Py_BEGIN_ALLOW_THREADS
        py_memory_release(memory);
        Py_END_ALLOW_THREADS
    }
    py_object_end_dealloc(object);
}

PyObject *
py_memory_array_get_shape(PyObject *object, void *Py_UNUSED(closure))
{
    const dd_view *view = &((py_memory_array *)object)->memory->view;
    return py_tensor_tuple(view->shape, view->ndim);
}

PyObject *
py_memory_array_get_dtype(PyObject *object, void *Py_UNUSED(closure))
{
    return PyUnicode_FromString(dd_dtype_name(((py_memory_array *)object)->memory->view.dtype));
}

PyObject *
py_memory_array_get_nbytes(PyObject *object, void *Py_UNUSED(closure))
{
    return PyLong_FromSize_t(dd_view_nbytes(&((py_memory_array *)object)->memory->view));
}
