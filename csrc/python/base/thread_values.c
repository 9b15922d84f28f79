#include "python/base/thread_values.h"

#include "python/base/lock.h"

PyObject *
py_thread_value_get(PyObject *const *values)
{
    PyObject *dict = PY_ONCE_GET(values);
    if (dict == NULL || PyDict_Size(dict) == 0) {
        return NULL;
    }
    PyObject *thread = PyLong_FromUnsignedLong(PyThread_get_thread_ident());
    PyObject *value = thread != NULL ? PyDict_GetItemWithError(dict, thread) : NULL;
    Py_XDECREF(thread);
    return value;
}

/* Return the dict of all threads' values (borrowed), and create the dict if needed. */
static PyObject *
dict_of(PyObject **values)
{
    PyObject *dict = PY_ONCE_GET(values);
    return dict != NULL ? dict : py_once_object(values, PyDict_New());
}

PyObject *
py_thread_value_swap(PyObject **values, PyObject *value)
{
    PyObject *dict = dict_of(values);
    PyObject *thread = dict != NULL ? PyLong_FromUnsignedLong(PyThread_get_thread_ident()) : NULL;
    if (thread == NULL) {
        return NULL;
    }
    PyObject *before = Py_XNewRef(PyDict_GetItemWithError(dict, thread));
    int rc = PyErr_Occurred() != NULL ? -1 : 0;
    if (rc == 0 && value != NULL) {
        rc = PyDict_SetItem(dict, thread, value);
    } else if (rc == 0 && before != NULL) {
        rc = PyDict_DelItem(dict, thread);
    }
    Py_DECREF(thread);
    if (rc < 0) {
        Py_XDECREF(before);
        return NULL;
    }
    return before != NULL ? before : Py_NewRef(Py_None);
}
