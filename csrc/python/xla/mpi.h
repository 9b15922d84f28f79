/* MPI for XLA, whose communicators are groups that Python makes. */
#ifndef DD_PYTHON_XLA_MPI_H
#define DD_PYTHON_XLA_MPI_H

#include "python/base/api.h"

/* The name of the capsule that _mpi_calls gives: it holds a dd_mpi_calls. */
#define PY_MPI_CALLS "dldist.mpi_calls"

PyObject *py_mpi_calls(PyObject *module, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames);

#endif
