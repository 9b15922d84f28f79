/* The only file that includes Python.h. It selects the ABI:
 *
 * - By default the stable ABI of 3.11 (abi3): one binary serves every later Python with a GIL.
 * - With Py_TARGET_ABI3T, which setup.py defines, the stable ABI of 3.15 (abi3t): one binary serves
 *   every later Python, with and without a GIL. PyObject and PyModuleDef have no members there: see
 *   base/object.h and module.c.
 * - On free-threaded Pythons before 3.15, which have no stable ABI, the API of that version. */
#ifndef DD_PYTHON_BASE_API_H
#define DD_PYTHON_BASE_API_H

/* Suppress this project's warnings in Python's own headers. */
#pragma GCC system_header

#include <pyconfig.h>

#if !defined(Py_GIL_DISABLED) && !defined(Py_TARGET_ABI3T) && !defined(Py_LIMITED_API)
#define Py_LIMITED_API 0x030B0000
#endif
#define PY_SSIZE_T_CLEAN

#include <Python.h>
#include <structmember.h>

/* PY_MAY_LACK_GIL is defined if the binary may run without a GIL. */
#if defined(Py_GIL_DISABLED) || defined(Py_TARGET_ABI3T)
#define PY_MAY_LACK_GIL
#endif

#endif
