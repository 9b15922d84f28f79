#include "python/py_device_memory.h"

#include "core/mem.h"
#include "python/py_convert.h"
#include "python/py_dtype.h"

#include <string.h>

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
py_memory_release(py_memory *memory)
{
    if (atomic_fetch_sub_explicit(&memory->refs, 1, memory_order_acq_rel) == 1) {
        memory->destroy(memory);
    }
}

const char *
py_memory_format(dd_dtype dtype)
{
    return outside[dtype].format;
}

/* ---- arguments */

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

bool
py_memory_read_view(const py_state *state, PyObject *shape, PyObject *dtype, dd_view *view)
{
    *view = (dd_view){.dtype = DD_DTYPE_FLOAT32};
    return read_shape(state, shape, view) && (dtype == NULL || read_dtype(state, dtype, &view->dtype)) &&
           finish_view(state, view);
}

/* ---- by DLPack */

static void
fill_dl_tensor(dl_tensor *tensor, py_memory *memory)
{
    *tensor = (dl_tensor){
        .data = memory->view.data,
        .device_type = memory->device_type,
        .device_id = memory->device_id,
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
    py_memory_release(managed->context);
    dd_mem_free(managed);
}

static void
delete_versioned(dl_managed_versioned *managed)
{
    py_memory_release(managed->context);
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
export_legacy(py_memory *memory)
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
export_versioned(py_memory *memory)
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

PyObject *
py_memory_export(py_memory *memory, PyObject *version, PyObject *device, PyObject *copy, const char *text)
{
    int major = 0;
    int minor = 0;
    int device_type = memory->device_type;
    int device_id = memory->device_id;
    if ((version != Py_None && !PyArg_Parse(version, "(ii)", &major, &minor)) ||
        (device != Py_None && !PyArg_Parse(device, "(ii)", &device_type, &device_id))) {
        return NULL;
    }
    int is_copy = copy != Py_None ? PyObject_IsTrue(copy) : 0;
    if (is_copy != 0 || device_type != memory->device_type || device_id != memory->device_id) {
        if (is_copy >= 0) {
            PyErr_SetString(PyExc_BufferError, text);
        }
        return NULL;
    }
    return major >= 1 ? export_versioned(memory) : export_legacy(memory);
}

PyObject *
py_memory_shape(const py_memory *memory)
{
    const dd_view *view = &memory->view;
    PyObject *shape = PyTuple_New(view->ndim);
    for (int i = 0; shape != NULL && i < view->ndim; i++) {
        PyObject *length = PyLong_FromLongLong(view->shape[i]);
        if (length == NULL || PyTuple_SetItem(shape, i, length) < 0) {
            Py_CLEAR(shape);
        }
    }
    return shape;
}
