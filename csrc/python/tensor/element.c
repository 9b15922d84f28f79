#include "python/tensor/element.h"

#include "kernels/convert.h"

#include <stdint.h>
#include <string.h>

/* Read a signed integer of `size` bytes: in little-endian order, the first bytes of a wide integer
 * are the narrow integer. */
static int64_t
sign_extend(const void *element, size_t size)
{
    uint64_t bits = 0;
    memcpy(&bits, element, size);
    unsigned nunused = 64 - 8 * (unsigned)size;
    return (int64_t)(bits << nunused) >> nunused;
}

static uint64_t
read_uint(const void *element, size_t size)
{
    uint64_t bits = 0;
    memcpy(&bits, element, size);
    return bits;
}

static double
read_float(dd_dtype dtype, const void *element)
{
    double value;
    dd_convert(DD_DTYPE_FLOAT64, &value, dtype, element, 1);
    return value;
}

PyObject *
py_element_get(dd_dtype dtype, const void *element)
{
    size_t size = dd_dtype_size(dtype);
    dd_dtype part = dtype == DD_DTYPE_COMPLEX64 ? DD_DTYPE_FLOAT32 : DD_DTYPE_FLOAT64;
    switch (dd_dtype_kind_of(dtype)) {
    case DD_KIND_BOOL:
        return PyBool_FromLong(*(const uint8_t *)element);
    case DD_KIND_INT:
        return PyLong_FromLongLong(sign_extend(element, size));
    case DD_KIND_UINT:
        return PyLong_FromUnsignedLongLong(read_uint(element, size));
    case DD_KIND_FLOAT:
        return PyFloat_FromDouble(read_float(dtype, element));
    case DD_KIND_COMPLEX:
        break;
    }
    return PyComplex_FromDoubles(read_float(part, element),
                                 read_float(part, (const char *)element + size / 2));
}

static bool
raise_overflow(dd_dtype dtype, PyObject *value)
{
    PyErr_Format(PyExc_OverflowError, "%R does not fit into %s", value, dd_dtype_name(dtype));
    return false;
}

static bool
set_int(dd_dtype dtype, void *element, PyObject *value)
{
    size_t size = dd_dtype_size(dtype);
    int overflow;
    PyObject *index = PyNumber_Index(value);
    long long number = index != NULL ? PyLong_AsLongLongAndOverflow(index, &overflow) : -1;
    Py_XDECREF(index);
    if (index == NULL) {
        return false;
    }
    if (overflow != 0 || sign_extend(&number, size) != number) {
        return raise_overflow(dtype, value);
    }
    memcpy(element, &number, size);
    return true;
}

static bool
set_uint(dd_dtype dtype, void *element, PyObject *value)
{
    size_t size = dd_dtype_size(dtype);
    PyObject *index = PyNumber_Index(value);
    unsigned long long number = index != NULL ? PyLong_AsUnsignedLongLong(index) : 0;
    Py_XDECREF(index);
    bool is_out = PyErr_Occurred() != NULL && PyErr_ExceptionMatches(PyExc_OverflowError);
    if (PyErr_Occurred() != NULL && !is_out) {
        return false;
    }
    if (is_out || read_uint(&number, size) != number) {
        PyErr_Clear();
        return raise_overflow(dtype, value);
    }
    memcpy(element, &number, size);
    return true;
}

static bool
set_float(dd_dtype dtype, void *element, PyObject *value)
{
    double number = PyFloat_AsDouble(value);
    if (number == -1.0 && PyErr_Occurred() != NULL) {
        return false;
    }
    dd_convert(dtype, element, DD_DTYPE_FLOAT64, &number, 1);
    return true;
}

/* Set a complex element from a number, or from an object with __complex__. */
static bool
set_complex(dd_dtype dtype, void *element, PyObject *value)
{
    PyObject *number = PyObject_CallFunctionObjArgs((PyObject *)&PyComplex_Type, value, NULL);
    if (number == NULL) {
        return false;
    }
    dd_dtype part = dtype == DD_DTYPE_COMPLEX64 ? DD_DTYPE_FLOAT32 : DD_DTYPE_FLOAT64;
    double parts[2] = {PyComplex_RealAsDouble(number), PyComplex_ImagAsDouble(number)};
    Py_DECREF(number);
    dd_convert(part, element, DD_DTYPE_FLOAT64, parts, 2);
    return true;
}

bool
py_element_set(dd_dtype dtype, void *element, PyObject *value)
{
    int is_true;
    switch (dd_dtype_kind_of(dtype)) {
    case DD_KIND_BOOL:
        is_true = PyObject_IsTrue(value);
        if (is_true >= 0) {
            *(uint8_t *)element = (uint8_t)is_true;
        }
        return is_true >= 0;
    case DD_KIND_INT:
        return set_int(dtype, element, value);
    case DD_KIND_UINT:
        return set_uint(dtype, element, value);
    case DD_KIND_FLOAT:
        return set_float(dtype, element, value);
    case DD_KIND_COMPLEX:
        break;
    }
    return set_complex(dtype, element, value);
}
