#include "python/tensor/tensor.h"

#include "python/base/error.h"
#include "python/base/params.h"
#include "python/tensor/device.h"
#include "python/tensor/dtype.h"
#include "python/tensor/foreign.h"
#include "python/tensor/memory.h"
#include "python/tensor/numpy.h"

#include <stdio.h>
#include <string.h>

bool
py_tensor_set_row_major(dd_view *view)
{
    int64_t stride = (int64_t)dd_dtype_size(view->dtype);
    for (int i = view->ndim - 1; i >= 0; i--) {
        view->strides[i] = stride;
        /* Skip 0, because the other dimensions of an empty tensor may overflow when multiplied. */
        if (view->shape[i] != 0 && __builtin_mul_overflow(stride, view->shape[i], &stride)) {
            return false;
        }
    }
    return true;
}

static bool
read_buffer_dtype(py_tensor *tensor, const py_argument *argument)
{
    const Py_buffer *buffer = &tensor->buffer;
    const char *format = buffer->format != NULL ? buffer->format : "B";
    switch (py_dtype_of_format(format, (size_t)buffer->itemsize, &tensor->view.dtype)) {
    case PY_FORMAT_NUMBER:
        return true;
    case PY_FORMAT_FOREIGN:
        if (!py_foreign_raise(argument, "has a non-native byte order", "native")) {
            py_argument_raise(
                argument, PY_FAULT_DTYPE,
                "has a non-native byte order: got format '%s', expected native; convert it first", format);
        }
        return false;
    case PY_FORMAT_UNKNOWN:
        break;
    }
    if (py_foreign_raise(argument, "has an unsupported dtype", "a dtype such as 'float32'")) {
        return false;
    }
    py_argument_raise(
        argument, PY_FAULT_DTYPE,
        "has an unsupported dtype: got elements of %zd bytes of format '%s', expected a dtype such as 'float32'",
        buffer->itemsize, format);
    return false;
}

bool
py_tensor_read_layout(py_tensor *tensor, const py_argument *argument)
{
    const Py_buffer *buffer = &tensor->buffer;
    dd_view *view = &tensor->view;
    if (buffer->ndim > DD_VIEW_MAX_DIMS) {
        py_argument_raise(argument, PY_FAULT_VALUE,
                          "has a wrong number of dimensions: got %d, expected 0 to %d", buffer->ndim,
                          DD_VIEW_MAX_DIMS);
        return false;
    }
    view->data = buffer->buf;
    view->is_readonly = buffer->readonly != 0;
    view->ndim = buffer->ndim;
    for (int i = 0; i < view->ndim; i++) {
        view->shape[i] = buffer->shape[i];
        view->strides[i] = buffer->strides != NULL ? buffer->strides[i] : 0;
    }
    /* ctypes returns no strides even if they are requested. */
    if (buffer->strides == NULL && !py_tensor_set_row_major(view)) {
        py_argument_raise(argument, PY_FAULT_VALUE, "has strides that do not fit into 64 bits");
        return false;
    }
    return true;
}

/* Fail if the object is a masked array of NumPy, whose class has the attribute `mask`. */
static bool
check_unmasked(const py_state *state, const py_argument *argument)
{
    PyTypeObject *type = Py_TYPE(argument->value);
    PyObject *ndarray = PY_ONCE_GET(&state->ndarray_type);
    bool may_be_array = ndarray == NULL || PyType_IsSubtype(type, (PyTypeObject *)ndarray) != 0;
    if (!may_be_array || !py_has_attribute((PyObject *)type, state->names[PY_NAME_MASK])) {
        return true;
    }
    py_argument_raise(
        argument, PY_FAULT_DTYPE,
        "is a masked array: expected an array without a mask; pass x.filled(0), or x.data and x.mask");
    return false;
}

static bool
has_dtype(const Py_buffer *buffer)
{
    dd_dtype dtype;
    return py_dtype_of_format(buffer->format != NULL ? buffer->format : "B", (size_t)buffer->itemsize,
                              &dtype) == PY_FORMAT_NUMBER;
}

/* Read a buffer. Return 1 on success, 0 if another way may succeed, -1 with an exception. */
static int
try_buffer(py_tensor *tensor, py_state *state, const py_argument *argument)
{
    if (py_numpy_try_read(state, argument->value, &tensor->view)) {
        tensor->route = PY_ROUTE_BUFFER;
        tensor->device_type = PY_DEVICE_CPU;
        return 1;
    }
    if (!PyObject_CheckBuffer(argument->value)) {
        return 0;
    }
    if (!check_unmasked(state, argument)) {
        return -1;
    }
    if (PyObject_GetBuffer(argument->value, &tensor->buffer, PyBUF_RECORDS_RO) == 0) {
        int rc = has_dtype(&tensor->buffer) ? 0 : py_foreign_try_read(tensor, argument);
        if (rc != 0) {
            return rc;
        }
        tensor->route = PY_ROUTE_BUFFER;
        tensor->device_type = PY_DEVICE_CPU;
        if (!read_buffer_dtype(tensor, argument) || !py_tensor_read_layout(tensor, argument)) {
            return -1;
        }
        py_numpy_try_enable(state, argument->value, &tensor->view);
        return 1;
    }
    tensor->buffer.obj = NULL;
    if (PyErr_ExceptionMatches(PyExc_Exception) &&
        py_has_attribute(argument->value, state->names[PY_NAME_DLPACK])) {
        PyErr_Clear();
        return 0;
    }
    py_argument_raise_from_current(argument, "cannot be exported as a buffer");
    return -1;
}

/* Read a SharedArray or an NcclArray. Return the same values as try_buffer. */
static int
try_own(py_tensor *tensor, const py_state *state, const py_argument *argument)
{
    PyTypeObject *type = Py_TYPE(argument->value);
    if (type != state->shared_array_type && type != state->nccl_array_type) {
        return 0;
    }
    const py_memory *memory = ((const py_memory_array *)argument->value)->memory;
    tensor->view = memory->view;
    tensor->device_type = memory->device_type;
    tensor->device_id = memory->device_id;
    if (type == state->nccl_array_type && tensor->scope != NULL &&
        !py_device_note_own(tensor->scope, memory->device_id, argument)) {
        return -1;
    }
    tensor->route = PY_ROUTE_OWN;
    return 1;
}

#define A_TENSOR                                                                                            \
    "a tensor (an object with __dlpack__ or the buffer protocol: an array of NumPy, PyTorch, JAX or CuPy, " \
    "a bytearray, a memoryview"

static bool
import_tensor(py_tensor *tensor, py_state *state, py_tensor_use use, const py_argument *argument)
{
    int rc = try_own(tensor, state, argument);
    if (rc == 0) {
        rc = try_buffer(tensor, state, argument);
    }
    if (rc == 0) {
        rc = py_foreign_try_read(tensor, argument);
    }
    if (rc == 0) {
        rc = py_dlpack_try_exchange(tensor, state, use, argument);
    }
    if (rc == 0) {
        rc = py_dlpack_try_capsule(tensor, state, use, argument);
    }
    if (rc == 0) {
        bool is_value = PyFloat_Check(argument->value) || PyLong_Check(argument->value) ||
                        PyComplex_Check(argument->value) ||
                        PyObject_HasAttrString(argument->value, "__array__") != 0;
        const char *expected = is_value ? A_TENSOR
                                   "; dldist.functional also accepts numbers and objects with __array__)"
                                        : A_TENSOR ")";
        py_raise_wrong_type(argument->function, argument->name, expected, argument->value);
    }
    return rc > 0;
}

/* Return true if the elements are aligned: arithmetic needs aligned elements. */
static bool
is_aligned(const dd_view *view)
{
    size_t size = dd_dtype_size(view->dtype);
    size_t alignment = dd_dtype_kind_of(view->dtype) == DD_KIND_COMPLEX ? size / 2 : size;
    return (uintptr_t)view->data % alignment == 0;
}

static bool
finish_view(dd_view *view, const py_argument *argument)
{
    if (!dd_view_finish(view)) {
        py_argument_raise(argument, PY_FAULT_VALUE, "has an impossible shape");
        return false;
    }
    if (view->data == NULL && view->count > 0) {
        py_argument_raise(argument, PY_FAULT_VALUE, "has %zu elements and no memory", view->count);
        return false;
    }
    view->is_contiguous = view->is_contiguous && (view->count == 0 || is_aligned(view));
    return true;
}

static void
raise_readonly(const py_argument *argument)
{
    PyObject *type_name = PyType_GetName(Py_TYPE(argument->value));
    if (type_name == NULL) {
        return;
    }
    bool is_jax = py_argument_is_from(argument, "jaxlib") || py_argument_is_from(argument, "jax");
    const char *package = is_jax ? "jax" : py_argument_is_from(argument, "tensorflow") ? "tensorflow" : NULL;
    if (package != NULL) {
        py_argument_raise(argument, PY_FAULT_VALUE,
                          "is an output: got an immutable array of %s (%U), expected a writable array",
                          package, type_name);
    } else {
        py_argument_raise(argument, PY_FAULT_VALUE,
                          "is an output: got a read-only %U, expected a writable array", type_name);
    }
    Py_DECREF(type_name);
}

static int64_t
stride_length(const dd_view *view, int dimension)
{
    int64_t stride = view->strides[dimension];
    return stride < 0 ? -stride : stride;
}

/* Return a dimension whose stride is shorter than the memory of the dimensions with shorter strides,
 * so that elements may share memory; -1 if there is none. */
static int
find_short_stride(const dd_view *view)
{
    int64_t extent = (int64_t)dd_dtype_size(view->dtype);
    bool is_done[DD_VIEW_MAX_DIMS] = {false};
    while (view->count > 1 && !view->is_contiguous) {
        int next = -1;
        for (int i = 0; i < view->ndim; i++) {
            bool is_candidate = !is_done[i] && view->shape[i] > 1;
            if (is_candidate && (next < 0 || stride_length(view, i) < stride_length(view, next))) {
                next = i;
            }
        }
        if (next < 0 || stride_length(view, next) < extent) {
            return next;
        }
        is_done[next] = true;
        extent += stride_length(view, next) * (view->shape[next] - 1);
    }
    return -1;
}

static bool
check_writable(const dd_view *view, const py_argument *argument)
{
    if (view->is_readonly) {
        raise_readonly(argument);
        return false;
    }
    int dimension = find_short_stride(view);
    if (dimension >= 0) {
        py_argument_raise(
            argument, PY_FAULT_VALUE,
            "is an output: got stride %lld in dimension %d, expected distinct elements; pass a copy",
            (long long)view->strides[dimension], dimension);
    }
    return dimension < 0;
}

bool
py_tensor_init(py_tensor *tensor, py_state *state, PyObject *object, py_tensor_use use, const char *function,
               const char *name)
{
    py_argument argument = {.state = state, .function = function, .name = name, .value = object};
    if (!import_tensor(tensor, state, use, &argument) || !finish_view(&tensor->view, &argument) ||
        (use == PY_TENSOR_OUT && !check_writable(&tensor->view, &argument))) {
        py_tensor_fini(tensor);
        return false;
    }
    tensor->object = Py_NewRef(object);
    return true;
}

/* Return a new reference to the object that owns the memory of a NumPy view or a memoryview, or to
 * the object itself. */
static PyObject *
find_owner(const py_state *state, PyObject *object)
{
    PyObject *name = state->names[PyMemoryView_Check(object) ? PY_NAME_OBJ : PY_NAME_BASE];
    PyObject *owner = PyObject_GetAttr(object, name);
    if (owner == NULL && !PyErr_ExceptionMatches(PyExc_Exception)) {
        return NULL;
    }
    PyErr_Clear();
    if (owner == NULL || owner == Py_None) {
        Py_XDECREF(owner);
        return Py_NewRef(object);
    }
    return owner;
}

/* Hold a weak reference to the array: NumPy's resize(refcheck=False) does not check for exported
 * buffers, but it does check for weak references. */
bool
py_tensor_pin(py_tensor *tensor, const py_state *state)
{
    if (tensor->route != PY_ROUTE_BUFFER || PyByteArray_Check(tensor->object)) {
        return true;
    }
    PyObject *owner = find_owner(state, tensor->object);
    if (owner == NULL) {
        return false;
    }
    tensor->pin = PyWeakref_NewRef(owner, NULL);
    Py_DECREF(owner);
    if (tensor->pin == NULL && !PyErr_ExceptionMatches(PyExc_TypeError)) {
        return false;
    }
    PyErr_Clear(); /* the owner does not support weak references, so it is not NumPy's */
    return true;
}

void
py_tensor_fini(py_tensor *tensor)
{
    bool is_borrowed = tensor->pin == NULL && tensor->managed == NULL && tensor->buffer.obj == NULL &&
                       tensor->object != NULL && Py_REFCNT(tensor->object) > 1;
    if (tensor->route != PY_ROUTE_NONE && is_borrowed) { /* usual case: no exception is possible */
        tensor->route = PY_ROUTE_NONE;
        Py_CLEAR(tensor->object);
    } else if (tensor->route != PY_ROUTE_NONE) {
        PyObject *exception = py_error_take();
        Py_CLEAR(tensor->pin);
        PyBuffer_Release(&tensor->buffer); /* has no effect if no buffer is held */
        py_dlpack_release(tensor);
        tensor->route = PY_ROUTE_NONE;
        Py_CLEAR(tensor->object);
        py_error_put(exception);
    }
}

int
py_tensor_traverse(const py_tensor *tensor, visitproc visit, void *arg)
{
    Py_VISIT(tensor->object);
    /* usually `object` again, because the buffer holds a second reference to `object` */
    Py_VISIT(tensor->buffer.obj);
    return 0;
}

#define DEVICE_TEXT 48

static void
write_device(const py_tensor *tensor, char text[DEVICE_TEXT])
{
    const char *name = py_device_name(tensor->device_type);
    if (tensor->device_type == PY_DEVICE_CPU) {
        snprintf(text, DEVICE_TEXT, "%s", name);
    } else if (name != NULL) {
        snprintf(text, DEVICE_TEXT, "%s:%d", name, tensor->device_id);
    } else {
        snprintf(text, DEVICE_TEXT, "device type %d:%d", tensor->device_type, tensor->device_id);
    }
}

bool
py_tensor_require_cpu(const py_tensor *tensor, const py_state *state, const char *function, const char *name)
{
    if (py_device_is_cpu(tensor->device_type)) {
        return true;
    }
    char device[DEVICE_TEXT];
    write_device(tensor, device);
    py_raise_argument(state, function, name, "is on a device without a backend: got %s, expected cpu",
                      device);
    return false;
}

bool
py_tensor_list_init(py_tensor_list *list, py_state *state, PyObject *object, py_tensor_use use,
                    const char *function, const char *name)
{
    if (!PyList_Check(object) && !PyTuple_Check(object)) {
        py_raise_wrong_type(function, name, "a list or tuple of tensors", object);
        return false;
    }
    /* Copy a list to a tuple: reading a tensor may run Python code, which may change the list. */
    PyObject *objects = PySequence_Tuple(object);
    if (objects == NULL) {
        return false;
    }
    Py_ssize_t count = PyTuple_Size(objects);
    list->items = PyMem_Calloc((size_t)count, sizeof *list->items);
    if (list->items == NULL) {
        PyErr_NoMemory();
    }
    bool is_done = list->items != NULL;
    for (Py_ssize_t i = 0; is_done && i < count; i++) {
        list->items[i].takes_foreign = true;
        char item_name[64];
        snprintf(item_name, sizeof item_name, "%.40s[%zd]", name, i);
        is_done =
            py_tensor_init(&list->items[i], state, PyTuple_GetItem(objects, i), use, function, item_name);
        list->count += is_done ? 1 : 0;
    }
    Py_DECREF(objects);
    if (!is_done) {
        py_tensor_list_fini(list);
    }
    return is_done;
}

void
py_tensor_list_fini(py_tensor_list *list)
{
    for (Py_ssize_t i = 0; i < list->count; i++) {
        py_tensor_fini(&list->items[i]);
    }
    PyMem_Free(list->items);
    *list = (py_tensor_list){0};
}

PyObject *
py_tensor_tuple(const int64_t *numbers, int count)
{
    PyObject *tuple = PyTuple_New(count);
    for (int i = 0; tuple != NULL && i < count; i++) {
        PyObject *number = PyLong_FromLongLong(numbers[i]);
        if (number == NULL || PyTuple_SetItem(tuple, i, number) < 0) {
            Py_CLEAR(tuple);
        }
    }
    return tuple;
}

static PyObject *
tensor_describe(const py_tensor *tensor)
{
    static const char *const routes[] = {
        [PY_ROUTE_NONE] = "none", [PY_ROUTE_BUFFER] = "buffer", [PY_ROUTE_EXCHANGE] = "exchange",
        [PY_ROUTE_OWN] = "own",   [PY_ROUTE_DLPACK] = "dlpack", [PY_ROUTE_DLPACK_LEGACY] = "dlpack_legacy",
    };
    const dd_view *view = &tensor->view;
    char device[DEVICE_TEXT];
    write_device(tensor, device);
    PyObject *shape = py_tensor_tuple(view->shape, view->ndim);
    PyObject *strides = py_tensor_tuple(view->strides, view->ndim);
    if (shape == NULL || strides == NULL) {
        Py_XDECREF(shape);
        Py_XDECREF(strides);
        return NULL;
    }
    return Py_BuildValue("{ss ss si sN sN sK sn sO sO ss si si}", "route", routes[tensor->route], "dtype",
                         dd_dtype_name(view->dtype), "itemsize", (int)dd_dtype_size(view->dtype), "shape",
                         shape, "strides", strides, "data", (unsigned long long)(uintptr_t)view->data,
                         "count", (Py_ssize_t)view->count, "is_readonly",
                         view->is_readonly ? Py_True : Py_False, "is_contiguous",
                         view->is_contiguous ? Py_True : Py_False, "device", device, "device_type",
                         tensor->device_type, "device_id", tensor->device_id);
}

PyObject *
py_tensor_describe(PyObject *module, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    py_state *state = PyModule_GetState(module);
    PyObject *object;
    bool is_written;
    const py_params params = PY_PARAMS("_describe_tensor", 2, 2, {"object", PY_OBJECT, &object},
                                       {"writable", PY_FLAG, &is_written});
    py_tensor tensor = {0};
    if (!py_params_read(&params, state, args, nargs, kwnames) ||
        !py_tensor_init(&tensor, state, object, is_written ? PY_TENSOR_OUT : PY_TENSOR_IN, "_describe_tensor",
                        "object")) {
        return NULL;
    }
    PyObject *description = tensor_describe(&tensor);
    py_tensor_fini(&tensor);
    return description;
}
