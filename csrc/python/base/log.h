/* Pass the core's log records to pkg/dldist/_base/log.py, which passes them to Python's logging. */
#ifndef DD_PYTHON_BASE_LOG_H
#define DD_PYTHON_BASE_LOG_H

#include "python/base/state.h"

/* Module functions _set_log_level(level), _take_log_record(timeout) and _stop_log(). */
PyObject *py_log_set_level(PyObject *module, PyObject *level);
PyObject *py_log_take_record(PyObject *module, PyObject *timeout);
PyObject *py_log_stop(PyObject *module, PyObject *unused);

#endif
