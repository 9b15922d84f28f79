/* Functions by which tests in Python make the core fail, added to the module dldist._core. */

#include "core/mem.h"
#include "core/system.h"
#include "faults/faults.h"
#include "faults/wrap.h"
#include "python/base/error.h"
#include "python/base/gate.h"

#include <string.h>

static PyObject *
fail_allocation(PyObject *Py_UNUSED(module), PyObject *number)
{
    long countdown = PyLong_AsLong(number);
    return countdown != -1 || PyErr_Occurred() == NULL ? PyLong_FromLong(dd_mem_fail_after(countdown)) : NULL;
}

static PyObject *
fail_system_call(PyObject *Py_UNUSED(module), PyObject *args)
{
    static dd_sys_fault fault;
    const char *name;
    long number;
    int error_number;
    int is_lasting;
    if (!PyArg_ParseTuple(args, "slip:_fail_system_call", &name, &number, &error_number, &is_lasting)) {
        return NULL;
    }
    for (int call = 0; call < DD_SYS_CALL_COUNT; call++) {
        if (strcmp(dd_sys_call_name((dd_sys_call)call), name) == 0) {
            fault = (dd_sys_fault){.call = (dd_sys_call)call,
                                   .number = number,
                                   .error_number = error_number,
                                   .is_lasting = is_lasting != 0};
            dd_sys_fail_call(number >= 0 ? &fault : NULL);
            Py_RETURN_NONE;
        }
    }
    return PyErr_Format(PyExc_ValueError, "_fail_system_call(): no call \"%s\"", name);
}

static PyObject *
count_system_calls(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(ignored))
{
    PyObject *counts = PyDict_New();
    for (int call = 0; call < DD_SYS_CALL_COUNT && counts != NULL; call++) {
        PyObject *count = PyLong_FromLong(dd_sys_count_calls((dd_sys_call)call));
        if (count == NULL || PyDict_SetItemString(counts, dd_sys_call_name((dd_sys_call)call), count) != 0) {
            Py_CLEAR(counts);
        }
        Py_XDECREF(count);
    }
    return counts;
}

static PyObject *
raise_status(PyObject *module, PyObject *code)
{
    long status = PyLong_AsLong(code);
    if (status == -1 && PyErr_Occurred() != NULL) {
        return NULL;
    }
    if (status < DD_OK || status >= DD_STATUS_COUNT) {
        PyErr_Format(PyExc_IndexError, "no status has the number %ld", status);
        return NULL;
    }
    if (status == DD_OK) {
        Py_RETURN_NONE;
    }
    dd_error err;
    dd_error_set(&err, (dd_status)status, "raised for a test: %s", dd_status_text((dd_status)status));
    py_error_raise(PyModule_GetState(module), (dd_status)status, &err);
    return NULL;
}

static PyObject *
status_names(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused))
{
    PyObject *names = PyList_New(0);
    for (int status = 0; names != NULL && status < DD_STATUS_COUNT; status++) {
        PyObject *name = PyUnicode_FromString(dd_status_name((dd_status)status));
        if (name == NULL || PyList_Append(names, name) < 0) {
            Py_CLEAR(names);
        }
        Py_XDECREF(name);
    }
    return names;
}

static PyMethodDef fault_methods[] = {
    {"_fail_allocation", fail_allocation, METH_O,
     "_fail_allocation($module, number, /)\n--\n\n"
     "Make the allocation with this number from now on fail, counted from 0; with -1, none. Return the number of\n"
     "allocations since the last call."},
    {"_fail_system_call", fail_system_call, METH_VARARGS,
     "_fail_system_call($module, name, number, errno, is_lasting, /)\n--\n\n"
     "Make the system call of the core with this name and number from now on fail, and all later ones of this name if the\n"
     "failure is lasting; with the number -1, none."},
    {"_count_system_calls", count_system_calls, METH_NOARGS,
     "_count_system_calls($module)\n--\n\nReturn the number of calls of each name since _fail_system_call."},
    {"_raise_status", raise_status, METH_O,
     "_raise_status($module, code, /)\n--\n\nRaise the exception for a status of the core."},
    {"_status_names", status_names, METH_NOARGS,
     "_status_names($module, /)\n--\n\nReturn the names of all statuses of the core, by number."},
    {NULL, NULL, 0, NULL},
};

/* Called last in the module's initialization. */
WRAP(int, py_gate_init, (PyObject * module))
{
    return PyModule_AddFunctions(module, fault_methods) < 0 ? -1 : __real_py_gate_init(module);
}
