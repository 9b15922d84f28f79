/* Programs for XLA's foreign function interface, made of Plans and messages. */
#ifndef DD_PYTHON_XLA_FFI_H
#define DD_PYTHON_XLA_FFI_H

#include "python/base/api.h"

/* Functions of the module (module.c). */
PyObject *py_ffi_handler(PyObject *module, PyObject *unused);
PyObject *py_ffi_program(PyObject *module, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames);
PyObject *py_ffi_set_group(PyObject *module, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames);

#endif
