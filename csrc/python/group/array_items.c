/* Contiguous elements and parts of a SharedArray. NumPy does the rest, in the same memory. */
#include "python/group/array.h"

#include "python/tensor/element.h"

#include <string.h>

/* Consecutive elements of an array. */
typedef struct span {
    size_t start;
    dd_view shape;   /* without memory; one element has no dimensions */
    bool is_element; /* an element, not an array without dimensions */
} span;

static const dd_view *
view_of(PyObject *array)
{
    return &((py_memory_array *)array)->memory->view;
}

static void *
element_at(PyObject *array, size_t number)
{
    const dd_view *view = view_of(array);
    return (char *)view->data + number * dd_dtype_size(view->dtype);
}

/* Removes the first dimension and keeps the elements at `index` in it. False with an exception. */
static bool
enter(span *at, Py_ssize_t index)
{
    dd_view *shape = &at->shape;
    int64_t length = shape->shape[0];
    if (index < -length || index >= length) {
        PyErr_Format(PyExc_IndexError, "index %zd is out of bounds for a length of %lld", index,
                     (long long)length);
        return false;
    }
    shape->count = length > 0 ? shape->count / (size_t)length : 0;
    at->start += (size_t)(index < 0 ? index + length : index) * shape->count;
    shape->ndim--;
    for (int i = 0; i < shape->ndim; i++) {
        shape->shape[i] = shape->shape[i + 1];
    }
    return true;
}

/* Narrows the first dimension to a slice. False with an exception. */
static bool
cut(span *at, PyObject *slice)
{
    dd_view *shape = &at->shape;
    Py_ssize_t start;
    Py_ssize_t stop;
    Py_ssize_t step;
    if (PySlice_Unpack(slice, &start, &stop, &step) < 0) {
        return false;
    }
    if (step != 1) {
        PyErr_SetString(PyExc_IndexError,
                        "slices of a SharedArray have step 1: for other steps use numpy.asarray(array)[...]");
        return false;
    }
    Py_ssize_t length = PySlice_AdjustIndices((Py_ssize_t)shape->shape[0], &start, &stop, step);
    size_t row = shape->shape[0] > 0 ? shape->count / (size_t)shape->shape[0] : 0;
    at->start += (size_t)start * row;
    shape->shape[0] = length;
    shape->count = (size_t)length * row;
    return true;
}

static bool
apply(span *at, PyObject *key)
{
    if (key == Py_Ellipsis) {
        return true;
    }
    if (at->shape.ndim == 0) {
        PyErr_SetString(PyExc_IndexError, "too many indices for this SharedArray");
        return false;
    }
    if (PySlice_Check(key)) {
        return cut(at, key);
    }
    if (!PyIndex_Check(key)) {
        PyErr_Format(PyExc_TypeError, "a SharedArray is indexed by ints and slices, not by %R", Py_TYPE(key));
        return false;
    }
    Py_ssize_t index = PyNumber_AsSsize_t(key, PyExc_IndexError);
    return (index != -1 || PyErr_Occurred() == NULL) && enter(at, index);
}

/* Finds the span of a key: ints, and after them at most one slice or `...`. False with an exception. */
static bool
find(PyObject *array, PyObject *key, span *at)
{
    *at = (span){.shape = *view_of(array)};
    if (!PyTuple_Check(key)) {
        bool is_found = apply(at, key);
        at->is_element = at->shape.ndim == 0 && key != Py_Ellipsis;
        return is_found;
    }
    Py_ssize_t count = PyTuple_Size(key);
    bool is_last = false;
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *part = PyTuple_GetItem(key, i);
        if (is_last) {
            PyErr_SetString(
                PyExc_IndexError,
                "parts of a SharedArray must be contiguous: for others use numpy.asarray(array)[...]");
            return false;
        }
        if (!apply(at, part)) {
            return false;
        }
        is_last = part == Py_Ellipsis || PySlice_Check(part);
    }
    at->is_element = at->shape.ndim == 0 && !is_last;
    return true;
}

static PyObject *
get(PyObject *array, const span *at)
{
    return at->is_element ? py_element_get(at->shape.dtype, element_at(array, at->start))
                          : py_shared_array_view(array, at->start, &at->shape);
}

Py_ssize_t
py_shared_array_length(PyObject *array)
{
    const dd_view *view = view_of(array);
    if (view->ndim == 0) {
        PyErr_SetString(PyExc_TypeError, "len() of a SharedArray without dimensions");
        return -1;
    }
    return (Py_ssize_t)view->shape[0];
}

PyObject *
py_shared_array_item(PyObject *array, Py_ssize_t index)
{
    span at = {.shape = *view_of(array)};
    if (at.shape.ndim == 0) {
        PyErr_SetString(PyExc_TypeError, "a SharedArray without dimensions is not a sequence");
        return NULL;
    }
    if (!enter(&at, index)) {
        return NULL;
    }
    at.is_element = at.shape.ndim == 0;
    return get(array, &at);
}

PyObject *
py_shared_array_get(PyObject *array, PyObject *key)
{
    span at;
    return find(array, key, &at) ? get(array, &at) : NULL;
}

/* ---- writing */

static bool put(PyObject *array, const span *at, PyObject *value);

/* Writes a list or tuple with one item for each index of the first dimension. False with an exception. */
static bool
put_items(PyObject *array, const span *at, PyObject *items)
{
    Py_ssize_t count = PySequence_Size(items);
    if (at->shape.ndim == 0 || count != (Py_ssize_t)at->shape.shape[0]) {
        PyErr_Format(PyExc_ValueError, "a list of %zd items does not fit into %lld places", count,
                     at->shape.ndim > 0 ? (long long)at->shape.shape[0] : 1LL);
        return false;
    }
    bool is_ok = true;
    for (Py_ssize_t i = 0; is_ok && i < count; i++) {
        span row = *at;
        PyObject *item = PySequence_GetItem(items, i);
        is_ok = item != NULL && enter(&row, i);
        row.is_element = row.shape.ndim == 0;
        is_ok = is_ok && put(array, &row, item);
        Py_XDECREF(item);
    }
    return is_ok;
}

/* Copies from another array with the same number of elements and the same dtype. False with an exception. */
static bool
put_array(PyObject *array, const span *at, PyObject *other)
{
    PyObject *part = py_shared_array_view(array, at->start, &at->shape);
    PyObject *arguments[] = {part, other};
    PyObject *done =
        part != NULL ? py_tensor_copy(((py_memory_array *)array)->module, arguments, 2, NULL) : NULL;
    Py_XDECREF(done);
    Py_XDECREF(part);
    return done != NULL;
}

/* Writes one number to all places. False with an exception. */
static bool
fill(PyObject *array, const span *at, PyObject *value)
{
    _Alignas(16) char element[DD_DTYPE_MAX_SIZE];
    if (!py_element_set(at->shape.dtype, element, value)) {
        return false;
    }
    size_t size = dd_dtype_size(at->shape.dtype);
    for (size_t i = 0; i < at->shape.count; i++) {
        memcpy(element_at(array, at->start + i), element, size);
    }
    return true;
}

static bool
put(PyObject *array, const span *at, PyObject *value)
{
    if (at->is_element) {
        return py_element_set(at->shape.dtype, element_at(array, at->start), value);
    }
    if (PyList_Check(value) || PyTuple_Check(value)) {
        return put_items(array, at, value);
    }
    bool is_array = PyObject_CheckBuffer(value) || PyObject_HasAttrString(value, "__dlpack__");
    return is_array ? put_array(array, at, value) : fill(array, at, value);
}

int
py_shared_array_set(PyObject *array, PyObject *key, PyObject *value)
{
    span at;
    if (value == NULL) {
        PyErr_SetString(PyExc_TypeError, "elements of a SharedArray cannot be deleted");
        return -1;
    }
    return find(array, key, &at) && put(array, &at, value) ? 0 : -1;
}
