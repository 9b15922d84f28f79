/* Carriers in Python: third-party libraries that move a group's data. A capsule holds each one. */
#ifndef DD_PYTHON_CARRIER_CARRIER_H
#define DD_PYTHON_CARRIER_CARRIER_H

#include "python/base/api.h"

PyObject *py_carrier_open(PyObject *module, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames);
PyObject *py_carrier_info(PyObject *module, PyObject *carrier);
PyObject *py_carrier_begin_mpi(PyObject *module, PyObject *carrier);
PyObject *py_carrier_share_mpi(PyObject *module, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames);
PyObject *py_carrier_end_mpi(PyObject *module, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames);

#endif
