#include "python/xla/mpi.h"

#include "python/base/error.h"
#include "python/base/gate.h"
#include "python/base/lock.h"
#include "python/base/params.h"
#include "python/group/group.h"
#include "xla/mpi.h"

#include <pthread.h>

/* A callable (first, place) that returns the Group of a communicator. Owned; guarded by
 * comm_factory_lock. */
static PyObject *comm_factory;
static py_lock comm_factory_lock;

/* The functions that XLA calls; const once set by fill_calls. */
static dd_mpi_calls calls;
static pthread_once_t calls_once = PTHREAD_ONCE_INIT;

/* Create a communicator that fails with the current exception's text; clear the exception. */
static dd_mpi_handle
make_broken(int address)
{
    PyObject *exception = py_error_take();
    PyObject *name = PyType_GetName(Py_TYPE(exception));
    PyObject *text = name != NULL ? PyUnicode_FromFormat("%U: %S", name, exception) : NULL;
    const char *reason = text != NULL ? PyUnicode_AsUTF8AndSize(text, NULL) : NULL;
    dd_mpi_handle made = dd_mpi_comm_create_broken(address, address + 1,
                                                   reason != NULL ? reason : "an exception without a text");
    PyErr_Clear();
    Py_XDECREF(text);
    Py_XDECREF(name);
    Py_XDECREF(exception);
    return made;
}

static dd_mpi_handle
make_group_comm(int first, int address)
{
    PyObject *make = PY_LOCKED(&comm_factory_lock, Py_NewRef(comm_factory));
    PyObject *group = PyObject_CallFunction(make, "ii", first, address);
    Py_DECREF(make);
    dd_mpi_handle made = group != NULL ? dd_mpi_comm_create(py_group_core(group)) : make_broken(address);
    Py_XDECREF(group);
    return made;
}

/* Create one part of the world communicator. Called on threads of XLA, without the GIL. `color` is
 * the first device of the new communicator, `key` the index of this process's device in it. */
static int
comm_split(dd_mpi_handle world, int color, int key, dd_mpi_handle *part)
{
    (void)world;
    py_gate_pass pass;
    if (!py_gate_enter(&pass)) {
        *part = dd_mpi_comm_create_broken(key, key + 1, "Python is ending");
        return DD_MPI_SUCCESS;
    }
    *part = make_group_comm(color, key);
    py_gate_leave(&pass);
    return DD_MPI_SUCCESS;
}

static void
fill_calls(void)
{
    calls = dd_mpi_group_calls;
    calls.Comm_split = comm_split;
}

static void
set_comm_factory(PyObject *make)
{
    py_lock_take(&comm_factory_lock);
    PyObject *before = comm_factory;
    comm_factory = Py_NewRef(make);
    py_lock_release(&comm_factory_lock);
    Py_XDECREF(before);
}

PyObject *
py_mpi_calls(PyObject *module, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    int rank;
    int size;
    PyObject *make;
    const py_params params = PY_PARAMS("_mpi_calls", 3, 3, {"rank", PY_INT, &rank}, {"size", PY_INT, &size},
                                       {"make", PY_OBJECT, &make});
    if (!py_params_read(&params, PyModule_GetState(module), args, nargs, kwnames)) {
        return NULL;
    }
    dd_mpi_handle world = dd_mpi_comm_create_broken(
        rank, size, "dldist carries out what XLA calls on its own communicators, not on MPI_COMM_WORLD");
    if (world == DD_MPI_NULL) {
        return PyErr_NoMemory();
    }
    dd_mpi_set_world(world);
    set_comm_factory(make);
    (void)pthread_once(&calls_once, fill_calls);
    return PyCapsule_New(&calls, PY_MPI_CALLS, NULL);
}
