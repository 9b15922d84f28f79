/* dldist.Window: memory of each rank of a group that other ranks write, read and signal. */
#ifndef DD_PYTHON_WINDOW_WINDOW_H
#define DD_PYTHON_WINDOW_WINDOW_H

#include "python/group/group.h"
#include "window/window.h"

typedef struct py_window {
    PY_OBJECT_HEAD;
    /* All fields are const after new until the garbage collector clears the window; then zero. */
    py_group *group;   /* owned reference to the Group */
    dd_window *window; /* owned reference to the core's window */
    py_tensor memory;  /* the memory that this rank passed */
    uint8_t *data;     /* the memory that other ranks see: `memory`, or its whole region */
    size_t nbytes;
    size_t offset; /* offset in bytes of `memory` from `data` */
} py_window;

/* Return false with an exception if the garbage collector has cleared the window. */
bool py_window_require_open(const py_window *self);

/* Return false with an exception that names the argument if the window has no such rank. */
bool py_window_check_rank(const py_window *self, int rank, const char *function, const char *name);

/* Module functions. _is_shared(tensor) returns True if the tensor lies in a region of an existing
 * group. _write32(function, tensor, offset, value, count) writes 32-bit elements; a reader that
 * sees a written element also sees everything that was written before. */
PyObject *py_window_is_shared(PyObject *module, PyObject *tensor);
PyObject *py_window_write32(PyObject *module, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames);

extern PyType_Spec py_window_spec;

/* ---- methods in window/call.c */

#define PY_WINDOW_METHOD(name) \
    PyObject *py_window_##name(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)

PY_WINDOW_METHOD(put);
PY_WINDOW_METHOD(get);
PY_WINDOW_METHOD(flush);
PY_WINDOW_METHOD(signal);
PY_WINDOW_METHOD(put_signal);
PY_WINDOW_METHOD(wait_signal);
PY_WINDOW_METHOD(take_signal);
PY_WINDOW_METHOD(barrier);

#endif
