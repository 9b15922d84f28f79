#include "python/xla/mpi.h"

#include "python/base/error.h"
#include "python/base/gate.h"
#include "python/group/group.h"
#include "xla/mpi.h"

/* split(color, key), which gives a Group. Owned; set once, before XLA calls anything. */
static PyObject *splitter;

/* A communicator that fails with the exception that is set, which ends here. */
static dd_mpi_handle
make_broken(int rank)
{
    PyObject *exception = py_error_take();
    PyObject *name = PyType_GetName(Py_TYPE(exception));
    PyObject *text = name != NULL ? PyUnicode_FromFormat("%U: %S", name, exception) : NULL;
    const char *reason = text != NULL ? PyUnicode_AsUTF8AndSize(text, NULL) : NULL;
    dd_mpi_handle made =
        dd_mpi_comm_create_broken(rank, reason != NULL ? reason : "an exception without a text");
    PyErr_Clear();
    Py_XDECREF(text);
    Py_XDECREF(name);
    Py_XDECREF(exception);
    return made;
}

static dd_mpi_handle
make_part(int color, int key)
{
    PyObject *group = PyObject_CallFunction(splitter, "ii", color, key);
    dd_mpi_handle made = group != NULL ? dd_mpi_comm_create(py_group_core(group)) : make_broken(key);
    Py_XDECREF(group);
    return made;
}

/* Called by threads of XLA, without the GIL. Of the world alone, as XLA does. */
static int
comm_split(dd_mpi_handle comm, int color, int key, dd_mpi_handle *part)
{
    (void)comm;
    py_gate_pass pass;
    if (!py_gate_enter(&pass)) {
        *part = dd_mpi_comm_create_broken(key, "Python is ending");
        return DD_MPI_SUCCESS;
    }
    *part = make_part(color, key);
    py_gate_leave(&pass);
    return DD_MPI_SUCCESS;
}

PyObject *
py_mpi_calls(PyObject *Py_UNUSED(module), PyObject *args)
{
    static dd_mpi_calls calls;
    PyObject *world;
    PyObject *split;
    if (!PyArg_ParseTuple(args, "OO:_mpi_calls", &world, &split)) {
        return NULL;
    }
    dd_mpi_handle comm = DD_MPI_NULL;
    if (PyUnicode_Check(world)) {
        const char *reason = PyUnicode_AsUTF8AndSize(world, NULL);
        comm = reason != NULL ? dd_mpi_comm_create_broken(0, reason) : DD_MPI_NULL;
    } else {
        comm = dd_mpi_comm_create(py_group_core(world));
    }
    if (comm == DD_MPI_NULL) {
        return PyErr_Occurred() != NULL ? NULL : PyErr_NoMemory();
    }
    dd_mpi_set_world(comm);
    Py_XDECREF(splitter);
    splitter = Py_NewRef(split);
    calls = dd_mpi_group_calls;
    calls.Comm_split = comm_split;
    return PyCapsule_New(&calls, PY_MPI_CALLS, NULL);
}
