#include "python/base/thread_values.h"

PyObject *
py_thread_value_get(PyObject *values)
{
    PyObject *thread = values != NULL ? PyLong_FromUnsignedLong(PyThread_get_thread_ident()) : NULL;
    PyObject *value = thread != NULL ? PyDict_GetItemWithError(values, thread) : NULL;
    Py_XDECREF(thread);
    return value;
}

PyObject *
py_thread_value_swap(PyObject **values, PyObject *value)
{
    if (*values == NULL) {
        *values = PyDict_New();
    }
    PyObject *thread = *values != NULL ? PyLong_FromUnsignedLong(PyThread_get_thread_ident()) : NULL;
    if (thread == NULL) {
        return NULL;
    }
    PyObject *before = Py_XNewRef(PyDict_GetItemWithError(*values, thread));
    int rc = PyErr_Occurred() != NULL ? -1 : 0;
    if (rc == 0 && value != NULL) {
        rc = PyDict_SetItem(*values, thread, value);
    } else if (rc == 0 && before != NULL) {
        rc = PyDict_DelItem(*values, thread);
    }
    if (rc == 0 && PyDict_Size(*values) == 0) {
        Py_CLEAR(*values);
    }
    Py_DECREF(thread);
    if (rc < 0) {
        Py_XDECREF(before);
        return NULL;
    }
    return before != NULL ? before : Py_NewRef(Py_None);
}
