#include "python/base/convert.h"

#include "core/clock.h"
#include "python/base/argument.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

void
py_raise_wrong_type(const char *function, const char *name, const char *wanted, PyObject *value)
{
    PyObject *type_name = PyType_GetName(Py_TYPE(value));
    if (type_name != NULL) {
        py_raise_for_argument(PyExc_TypeError, function, name, "must be %s, not %U", wanted, type_name);
        Py_DECREF(type_name);
    }
}

static int
bytes_init_from_str(py_bytes *bytes, PyObject *value)
{
    Py_ssize_t len;
    const char *data = PyUnicode_AsUTF8AndSize(value, &len);
    if (data != NULL) {
        bytes->view = dd_bytes_of(data, (size_t)len);
        return 1;
    }
    if (!PyErr_ExceptionMatches(PyExc_UnicodeEncodeError)) {
        return -1;
    }
    PyErr_Clear();
    bytes->owner = PyUnicode_AsEncodedString(value, "utf-8", "surrogateescape");
    if (bytes->owner == NULL) {
        return -1;
    }
    bytes->view = dd_bytes_of(PyBytes_AsString(bytes->owner), (size_t)PyBytes_Size(bytes->owner));
    return 1;
}

static int
bytes_init_from_buffer(py_bytes *bytes, PyObject *value)
{
    Py_buffer *buffer = PyMem_Malloc(sizeof *buffer);
    if (buffer == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    if (PyObject_GetBuffer(value, buffer, PyBUF_SIMPLE) < 0) {
        PyMem_Free(buffer);
        return -1;
    }
    bytes->buffer = buffer;
    bytes->view = dd_bytes_of(buffer->buf, (size_t)buffer->len);
    return 1;
}

int
py_bytes_try_init(py_bytes *bytes, PyObject *value)
{
    if (PyUnicode_Check(value)) {
        return bytes_init_from_str(bytes, value);
    }
    if (PyBytes_Check(value)) {
        bytes->view = dd_bytes_of(PyBytes_AsString(value), (size_t)PyBytes_Size(value));
        return 1;
    }
    return PyObject_CheckBuffer(value) ? bytes_init_from_buffer(bytes, value) : 0;
}

bool
py_bytes_init(py_bytes *bytes, PyObject *value, const char *function, const char *name)
{
    int rc = py_bytes_try_init(bytes, value);
    if (rc == 0) {
        py_raise_wrong_type(function, name, "str or bytes-like", value);
    }
    return rc > 0;
}

void
py_bytes_fini(py_bytes *bytes)
{
    Py_CLEAR(bytes->owner);
    if (bytes->buffer != NULL) {
        PyBuffer_Release(bytes->buffer);
        PyMem_Free(bytes->buffer);
        bytes->buffer = NULL;
    }
}

/* Set list->views[i] to the bytes of item i. First replace an item that needs a buffer or a
 * conversion by a bytes object, so that a long list does not hold many buffers. */
static bool
view_item(py_bytes_list *list, Py_ssize_t i, const char *function, const char *name)
{
    PyObject *item = PyList_GetItem(list->items, i);
    py_bytes bytes = {0};
    int rc = item != NULL ? py_bytes_try_init(&bytes, item) : -1;
    if (rc == 0) {
        char item_name[64];
        (void)snprintf(item_name, sizeof item_name, "%s[%zd]", name, i);
        py_raise_wrong_type(function, item_name, "str or bytes-like", item);
    }
    if (rc <= 0) {
        return false;
    }
    if (bytes.owner != NULL || bytes.buffer != NULL) {
        PyObject *copy = py_from_value(bytes.view);
        py_bytes_fini(&bytes);
        if (copy == NULL || PyList_SetItem(list->items, i, copy) < 0) {
            return false;
        }
        bytes.view = dd_bytes_of(PyBytes_AsString(copy), (size_t)PyBytes_Size(copy));
    }
    list->views[i] = bytes.view;
    return true;
}

bool
py_bytes_list_init(py_bytes_list *list, PyObject *value, const char *function, const char *name)
{
    if (!PySequence_Check(value) || PyUnicode_Check(value) || PyObject_CheckBuffer(value)) {
        py_raise_wrong_type(function, name, "a sequence of str or bytes-like", value);
        return false;
    }
    list->items = PySequence_List(value);
    if (list->items == NULL) {
        return false;
    }
    Py_ssize_t count = PyList_Size(list->items);
    list->views = PyMem_Calloc((size_t)count, sizeof *list->views);
    if (list->views == NULL) {
        PyErr_NoMemory();
        return false;
    }
    list->count = (size_t)count;
    for (Py_ssize_t i = 0; i < count; i++) {
        if (!view_item(list, i, function, name)) {
            return false;
        }
    }
    return true;
}

void
py_bytes_list_fini(py_bytes_list *list)
{
    Py_CLEAR(list->items);
    PyMem_Free(list->views);
    *list = (py_bytes_list){0};
}

bool
py_to_int64(PyObject *value, int64_t *number, const char *function, const char *name)
{
    PyObject *index = PyNumber_Index(value);
    if (index == NULL) {
        if (PyErr_ExceptionMatches(PyExc_TypeError)) {
            PyErr_Clear();
            py_raise_wrong_type(function, name, "int", value);
        }
        return false;
    }
    int overflow;
    long long wide = PyLong_AsLongLongAndOverflow(index, &overflow);
    Py_DECREF(index);
    if (overflow != 0) {
        py_raise_for_argument(PyExc_TypeError, function, name,
                              "is out of range: got an int of more bits, expected an int of 64 bits");
        return false;
    }
    *number = wide;
    return true;
}

static bool
attribute_as_int64(PyObject *object, const char *name, int64_t *number)
{
    PyObject *value = PyObject_GetAttrString(object, name);
    *number = value != NULL ? PyLong_AsLongLong(value) : -1;
    Py_XDECREF(value);
    return *number != -1 || PyErr_Occurred() == NULL;
}

/* Convert a timedelta to nanoseconds: to -1 if the timedelta is negative (its days are negative),
 * and to DD_NEVER_NS if the result does not fit. */
static bool
timedelta_as_ns(PyObject *value, int64_t *timeout_ns)
{
    int64_t days;
    int64_t seconds;
    int64_t microseconds;
    if (!attribute_as_int64(value, "days", &days) || !attribute_as_int64(value, "seconds", &seconds) ||
        !attribute_as_int64(value, "microseconds", &microseconds)) {
        return false;
    }
    int64_t max_days = DD_NEVER_NS / (86400 * DD_NS_PER_S) - 1;
    *timeout_ns = days > max_days ? DD_NEVER_NS
                  : days < 0      ? -1
                                  : (days * 86400 + seconds) * DD_NS_PER_S + microseconds * DD_NS_PER_US;
    return true;
}

static bool
seconds_as_ns(double seconds, int64_t *timeout_ns)
{
    if (isnan(seconds) || seconds < 0) {
        *timeout_ns = -1;
    } else if (seconds >= (double)DD_NEVER_NS / (double)DD_NS_PER_S) {
        *timeout_ns = DD_NEVER_NS;
    } else {
        /* Round up, so that a timeout below a nanosecond does not become 0. */
        *timeout_ns = (int64_t)ceil(seconds * (double)DD_NS_PER_S);
    }
    return true;
}

/* Convert a real number of seconds to nanoseconds. Return 1 on success, 0 if the value is not a
 * real number, -1 with an exception. */
static int
number_as_ns(PyObject *value, int64_t *timeout_ns)
{
    if (!PyNumber_Check(value)) {
        return 0;
    }
    double seconds = PyFloat_AsDouble(value);
    if (seconds == -1.0 && PyErr_Occurred() != NULL) {
        if (PyErr_ExceptionMatches(PyExc_OverflowError)) {
            /* `value` is an int that overflows a double: use only its sign. */
            PyErr_Clear();
            PyObject *zero = PyLong_FromLong(0);
            int is_negative = zero != NULL ? PyObject_RichCompareBool(value, zero, Py_LT) : -1;
            Py_XDECREF(zero);
            *timeout_ns = is_negative != 0 ? -1 : DD_NEVER_NS;
            return is_negative < 0 ? -1 : 1;
        }
        if (PyErr_ExceptionMatches(PyExc_TypeError)) {
            PyErr_Clear();
            return 0;
        }
        return -1;
    }
    return seconds_as_ns(seconds, timeout_ns) ? 1 : -1;
}

bool
py_to_timeout_ns(py_state *state, PyObject *value, int64_t *timeout_ns, const char *function,
                 const char *name)
{
    int rc = number_as_ns(value, timeout_ns);
    if (rc == 0) {
        PyObject *timedelta = py_state_timedelta(state);
        int is_timedelta = timedelta != NULL ? PyObject_IsInstance(value, timedelta) : -1;
        if (is_timedelta == 0) {
            py_raise_wrong_type(function, name, "timedelta or a number of seconds", value);
        }
        rc = is_timedelta > 0 && timedelta_as_ns(value, timeout_ns) ? 1 : -1;
    }
    if (rc > 0 && *timeout_ns < 0) {
        py_raise_argument(state, function, name, "is not a valid time: got %R, expected 0 or more seconds",
                          value);
        return false;
    }
    return rc > 0;
}

PyObject *
py_from_timeout_ns(py_state *state, int64_t timeout_ns)
{
    PyObject *timedelta = py_state_timedelta(state);
    if (timedelta == NULL) {
        return NULL;
    }
    long long seconds = timeout_ns / DD_NS_PER_S;
    long long microseconds = timeout_ns % DD_NS_PER_S / DD_NS_PER_US;
    return PyObject_CallFunction(timedelta, "iLL", 0, seconds, microseconds);
}

PyObject *
py_from_value(dd_bytes value)
{
    return PyBytes_FromStringAndSize((const char *)value.data, (Py_ssize_t)value.len);
}

PyObject *
py_from_key(dd_bytes key)
{
    return PyUnicode_DecodeUTF8(key.len > 0 ? (const char *)key.data : "", (Py_ssize_t)key.len,
                                "surrogateescape");
}

static PyObject *
list_of_bytes(const dd_bytes *items, size_t count, PyObject *(*convert)(dd_bytes bytes))
{
    PyObject *list = PyList_New((Py_ssize_t)count);
    for (size_t i = 0; list != NULL && i < count; i++) {
        PyObject *item = convert(items[i]);
        if (item == NULL || PyList_SetItem(list, (Py_ssize_t)i, item) < 0) {
            Py_CLEAR(list);
        }
    }
    return list;
}

PyObject *
py_from_values(const dd_bytes *values, size_t count)
{
    return list_of_bytes(values, count, py_from_value);
}

PyObject *
py_from_keys(const dd_bytes *keys, size_t count)
{
    return list_of_bytes(keys, count, py_from_key);
}

PyObject *
py_from_blob_list(const dd_blob_list *blobs, PyObject *(*convert)(dd_bytes bytes))
{
    PyObject *list = PyList_New((Py_ssize_t)blobs->count);
    for (size_t i = 0; list != NULL && i < blobs->count; i++) {
        PyObject *item = convert(dd_blob_view(&blobs->items[i]));
        if (item == NULL || PyList_SetItem(list, (Py_ssize_t)i, item) < 0) {
            Py_CLEAR(list);
        }
    }
    return list;
}

const char **
py_to_paths(PyObject *list, size_t *count)
{
    Py_ssize_t n = PyList_Size(list);
    const char **paths = n >= 0 ? PyMem_Calloc((size_t)n + 1, sizeof *paths) : NULL;
    if (paths == NULL && PyErr_Occurred() == NULL) {
        PyErr_NoMemory();
    }
    for (Py_ssize_t i = 0; paths != NULL && i < n; i++) {
        paths[i] = PyUnicode_AsUTF8AndSize(PyList_GetItem(list, i), NULL);
        if (paths[i] == NULL) {
            PyMem_Free(paths);
            return NULL;
        }
    }
    *count = (size_t)n;
    return paths;
}
