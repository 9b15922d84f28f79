#include "python/tensor/foreign.h"

#include "python/base/error.h"
#include "python/tensor/dtype.h"
#include "transport/signature.h"

#include <stdio.h>
#include <string.h>

/* The dtype of a NumPy array: its texts, which `objects` keeps alive; empty for other objects. */
typedef struct array_dtype {
    PyObject *objects[3];
    const char *name; /* str(array.dtype), such as "datetime64[s]" */
    const char *type; /* array.dtype.str, such as "<M8[s]" */
} array_dtype;

static const char *
text_of(PyObject *object)
{
    const char *text = object != NULL ? PyUnicode_AsUTF8AndSize(object, NULL) : NULL;
    return text != NULL ? text : "";
}

static void
array_dtype_init(array_dtype *dtype, PyObject *array)
{
    PyObject *descriptor = PyObject_GetAttrString(array, "dtype");
    PyObject *name = descriptor != NULL ? PyObject_Str(descriptor) : NULL;
    PyObject *type = name != NULL ? PyObject_GetAttrString(descriptor, "str") : NULL;
    *dtype = (array_dtype){.objects = {descriptor, name, type},
                           .name = type != NULL ? text_of(name) : "",
                           .type = text_of(type)};
    py_error_forget();
}

static void
array_dtype_fini(array_dtype *dtype)
{
    for (int i = 0; i < 3; i++) {
        Py_XDECREF(dtype->objects[i]);
    }
}

static bool
is_kind(const array_dtype *dtype, const char *kinds)
{
    return dtype->type[0] != '\0' && dtype->type[1] != '\0' && strchr(kinds, dtype->type[1]) != NULL;
}

/* Return the characters of the dtype's name as a number; if it is too long, a letter and a hash. */
static uint64_t
pack_name(const array_dtype *dtype)
{
    const char *text = is_kind(dtype, "Mm") ? dtype->type : dtype->name;
    char packed[sizeof(uint64_t) + 1] = {0};
    uint32_t hash = 2166136261u; /* FNV-1a */
    for (const char *at = text; *at != '\0'; at++) {
        hash = (hash ^ (unsigned char)*at) * 16777619u;
    }
    if (snprintf(packed, sizeof packed, "%s", text) >= (int)sizeof packed) {
        (void)snprintf(packed, sizeof packed, "%c%07x", dtype->type[1], (unsigned)(hash >> 4));
    }
    uint64_t name;
    memcpy(&name, packed, sizeof name);
    return name;
}

const char *
py_tensor_dtype_name(const py_tensor *tensor, char out[PY_DTYPE_TEXT])
{
    const dd_signature signature = {.dtype = (uint8_t)tensor->view.dtype,
                                    .extra_bits = tensor->foreign_dtype};
    return dd_signature_dtype_name(&signature, out);
}

bool
py_foreign_raise(const py_argument *argument, const char *problem, const char *expected)
{
    array_dtype dtype;
    array_dtype_init(&dtype, argument->value);
    bool is_array = dtype.type[0] != '\0';
    if (is_array) {
        bool has_fields = is_kind(&dtype, "V") && strchr("[{(", dtype.name[0]) != NULL;
        const char *remedy = is_kind(&dtype, "OSUT")           ? "x.tolist() to a call for objects"
                             : has_fields                      ? "each field, x['name']"
                             : py_dtype_is_foreign(dtype.type) ? "x.astype(x.dtype.newbyteorder('='))"
                             : is_kind(&dtype, "Mm")           ? "x.view('int64')"
                             : dtype.name[0] == '|'            ? "x.view('uint8')"
                             : is_kind(&dtype, "c")            ? "x.astype('complex128')"
                                                               : "x.astype('float64')";
        py_argument_raise(argument, PY_FAULT_DTYPE, "%s: got dtype %s, expected %s; pass %s", problem,
                          dtype.name, expected, remedy);
    }
    array_dtype_fini(&dtype);
    return is_array;
}

/* Set the tensor's dtype and its foreign dtype. Return false if it has neither. */
static bool
choose_dtype(py_tensor *tensor, const array_dtype *dtype)
{
    bool is_foreign = py_dtype_is_foreign(dtype->type);
    if (py_dtype_of_extension(dtype->name, &tensor->view.dtype)) {
        return !is_foreign;
    }
    tensor->view.dtype = DD_DTYPE_UINT8;
    tensor->foreign_dtype = tensor->takes_foreign && dtype->type[0] != '\0' ? pack_name(dtype) : 0;
    tensor->has_nat = is_kind(dtype, "Mm") && !is_foreign;
    return tensor->foreign_dtype != 0;
}

/* Get a buffer of the array as elements of `void`, which all dtypes without objects can be. */
static bool
get_void_buffer(PyObject *array, PyObject *descriptor, Py_buffer *buffer)
{
    PyObject *nbytes = PyObject_GetAttrString(descriptor, "itemsize");
    PyObject *dtype = nbytes != NULL ? PyUnicode_FromFormat("V%S", nbytes) : NULL;
    PyObject *view = dtype != NULL ? PyObject_CallMethod(array, "view", "O", dtype) : NULL;
    bool is_done = view != NULL && PyObject_GetBuffer(view, buffer, PyBUF_RECORDS_RO) == 0;
    Py_XDECREF(view);
    Py_XDECREF(dtype);
    Py_XDECREF(nbytes);
    if (!is_done) {
        buffer->obj = NULL;
        py_error_forget();
    }
    return is_done;
}

/* Set the dtype of foreign elements; if it is bytes, add their dimension. */
static void
set_layout(py_tensor *tensor)
{
    dd_view *view = &tensor->view;
    int64_t nbytes = tensor->buffer.itemsize;
    view->dtype = nbytes == 8   ? DD_DTYPE_INT64
                  : nbytes == 4 ? DD_DTYPE_UINT32
                  : nbytes == 2 ? DD_DTYPE_UINT16
                                : DD_DTYPE_UINT8;
    if (nbytes != (int64_t)dd_dtype_size(view->dtype)) {
        if (view->ndim == 0) {
            view->shape[view->ndim] = 1;
            view->strides[view->ndim++] = nbytes;
        }
        view->shape[view->ndim] = nbytes;
        view->strides[view->ndim++] = 1;
    }
}

int
py_foreign_try_read(py_tensor *tensor, const py_argument *argument)
{
    if (!PyObject_CheckBuffer(argument->value)) {
        return 0;
    }
    array_dtype dtype;
    array_dtype_init(&dtype, argument->value);
    Py_buffer buffer;
    bool is_read =
        choose_dtype(tensor, &dtype) && get_void_buffer(argument->value, dtype.objects[0], &buffer);
    array_dtype_fini(&dtype);
    if (!is_read || buffer.ndim > DD_VIEW_MAX_DIMS - 2 || buffer.itemsize == 0) {
        if (is_read) {
            PyBuffer_Release(&buffer);
        }
        tensor->foreign_dtype = 0;
        return 0;
    }
    PyBuffer_Release(&tensor->buffer); /* has no effect if no buffer is held */
    tensor->buffer = buffer;
    tensor->route = PY_ROUTE_BUFFER;
    tensor->device_type = PY_DEVICE_CPU;
    if (!py_tensor_read_layout(tensor, argument)) {
        return -1;
    }
    if (tensor->foreign_dtype != 0) {
        set_layout(tensor);
    }
    return 1;
}
