/* The only place that includes Python.h. It asks for the limited API of 3.11, so that one binary serves every later
 * version. */
#ifndef DD_PYTHON_BASE_API_H
#define DD_PYTHON_BASE_API_H

/* Silences this project's warnings in Python's own headers. */
#pragma GCC system_header

#include <pyconfig.h>

/* Free-threaded builds have no stable ABI before Python 3.15. */
#if !defined(Py_GIL_DISABLED) && !defined(Py_LIMITED_API)
#define Py_LIMITED_API 0x030B0000
#endif
#define PY_SSIZE_T_CLEAN

#include <Python.h>
#include <structmember.h>

#endif
