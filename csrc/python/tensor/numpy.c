/* Arrays are read as NumPy's own macros read them. The layout of the fields is part of NumPy's ABI,
 * unchanged since version 1.7; the first array is also read as a buffer, to check the layout. */
#include "python/tensor/numpy.h"

#include "python/base/error.h"

#include <string.h>

#define ARRAY_IS_WRITEABLE 0x0400
#define ARRAY_WARNS_ON_WRITE ((int)(1u << 31))

/* The first fields of an ndarray, after the object's head. */
typedef struct numpy_array {
    char *data;
    int ndim;
    Py_ssize_t *shape;
    Py_ssize_t *strides;
    PyObject *base;
    PyObject *descr;
    int flags;
} numpy_array;

/* The first fields of a dtype, after the object's head. */
typedef struct numpy_descr {
    PyTypeObject *type;
    char kind;
    char letter;
    char byte_order;
    char flags;
    int number;
} numpy_descr;

/* For each of NumPy's type numbers, the dtype plus 1; 0 if not supported. */
#define PLUS_ONE(dtype) ((unsigned char)((dtype) + 1))
#define SIZED(type, narrow, wide) PLUS_ONE(sizeof(type) == 4 ? (narrow) : (wide))
static const unsigned char dtypes_plus_one[] = {
    [0] = PLUS_ONE(DD_DTYPE_BOOL),
    [1] = PLUS_ONE(DD_DTYPE_INT8),
    [2] = PLUS_ONE(DD_DTYPE_UINT8),
    [3] = PLUS_ONE(DD_DTYPE_INT16),
    [4] = PLUS_ONE(DD_DTYPE_UINT16),
    [5] = PLUS_ONE(DD_DTYPE_INT32),
    [6] = PLUS_ONE(DD_DTYPE_UINT32),
    [7] = SIZED(long, DD_DTYPE_INT32, DD_DTYPE_INT64),
    [8] = SIZED(long, DD_DTYPE_UINT32, DD_DTYPE_UINT64),
    [9] = PLUS_ONE(DD_DTYPE_INT64),
    [10] = PLUS_ONE(DD_DTYPE_UINT64),
    [11] = PLUS_ONE(DD_DTYPE_FLOAT32),
    [12] = PLUS_ONE(DD_DTYPE_FLOAT64),
    [14] = PLUS_ONE(DD_DTYPE_COMPLEX64),
    [15] = PLUS_ONE(DD_DTYPE_COMPLEX128),
    [23] = PLUS_ONE(DD_DTYPE_FLOAT16),
};

static const void *
fields_of(const py_state *state, PyObject *object)
{
    return (const char *)object + state->object_size;
}

/* Read the array's fields. Return false if the array must be read as a buffer instead. */
static bool
read_array(const py_state *state, PyObject *object, dd_view *view)
{
    const numpy_array *array = fields_of(state, object);
    const numpy_descr *descr = fields_of(state, array->descr);
    unsigned number = (unsigned)descr->number;
    if (number >= sizeof dtypes_plus_one || dtypes_plus_one[number] == 0 || array->ndim < 0 ||
        array->ndim > DD_VIEW_MAX_DIMS || (descr->byte_order != '=' && descr->byte_order != '|') ||
        (array->flags & ARRAY_WARNS_ON_WRITE) != 0) {
        return false;
    }
    view->data = array->data;
    view->dtype = (dd_dtype)(dtypes_plus_one[number] - 1);
    view->is_readonly = (array->flags & ARRAY_IS_WRITEABLE) == 0;
    view->ndim = array->ndim;
    for (int i = 0; i < array->ndim; i++) {
        view->shape[i] = array->shape[i];
        view->strides[i] = array->strides[i];
    }
    return true;
}

bool
py_numpy_try_read(const py_state *state, PyObject *object, dd_view *view)
{
    return (PyObject *)Py_TYPE(object) == PY_ONCE_GET(&state->ndarray_type) &&
           read_array(state, object, view);
}

/* Return numpy.ndarray (a new reference), or NULL without an exception if NumPy is not imported. */
static PyObject *
find_ndarray(void)
{
    PyObject *modules = PyImport_GetModuleDict(); /* borrowed dict of the imported modules */
    PyObject *numpy = PyMapping_GetItemString(modules, "numpy");
    PyObject *type = numpy != NULL ? PyObject_GetAttrString(numpy, "ndarray") : NULL;
    Py_XDECREF(numpy);
    py_error_forget();
    return type;
}

static bool
is_same_view(const dd_view *a, const dd_view *b)
{
    size_t nbytes = (size_t)b->ndim * sizeof b->shape[0];
    return a->data == b->data && a->dtype == b->dtype && a->is_readonly == b->is_readonly &&
           a->ndim == b->ndim && memcmp(a->shape, b->shape, nbytes) == 0 &&
           memcmp(a->strides, b->strides, nbytes) == 0;
}

void
py_numpy_try_enable(py_state *state, PyObject *object, const dd_view *view)
{
    if (atomic_load_explicit(&state->has_seen_ndarray, memory_order_relaxed)) {
        return;
    }
    PyObject *type = find_ndarray();
    dd_view direct;
    if (type == (PyObject *)Py_TYPE(object)) {
        bool is_expected = read_array(state, object, &direct) && is_same_view(&direct, view);
        /* If the values differ, ndarray_type stays NULL, so that arrays are read as buffers. */
        if (!atomic_exchange(&state->has_seen_ndarray, true) && is_expected) {
            (void)PY_ONCE_SET(&state->ndarray_type, Py_NewRef(type));
        }
    }
    Py_XDECREF(type);
}
