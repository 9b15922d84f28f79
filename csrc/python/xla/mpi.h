/* MPI for XLA: each communicator is a dldist group, which a Python function creates. */
#ifndef DD_PYTHON_XLA_MPI_H
#define DD_PYTHON_XLA_MPI_H

#include "python/base/api.h"

/* The name of the capsule that _mpi_calls returns, with a pointer to a dd_mpi_calls. */
#define PY_MPI_CALLS "dldist.mpi_calls"

PyObject *py_mpi_calls(PyObject *module, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames);

#endif
