/* The log of the core for pkg/dldist/base/log.py, which hands its records to Python's logging. */
#ifndef DD_PYTHON_BASE_LOG_H
#define DD_PYTHON_BASE_LOG_H

#include "python/base/state.h"

/* Functions of the module. */
PyObject *py_log_set_level(PyObject *module, PyObject *level);
PyObject *py_log_take_record(PyObject *module, PyObject *timeout);
PyObject *py_log_stop(PyObject *module, PyObject *unused);

#endif
