/* dldist.Window: memory of all ranks of a group that the others write, read and signal. */
#ifndef DD_PYTHON_WINDOW_WINDOW_H
#define DD_PYTHON_WINDOW_WINDOW_H

#include "python/group/group.h"
#include "window/window.h"

typedef struct py_window {
    PY_OBJECT_HEAD;
    /* const after new, until the collector clears them: then all are zero */
    py_group *group;   /* owned */
    dd_window *window; /* owned */
    py_tensor memory;  /* the memory that this rank gave */
    uint8_t *data;     /* what the others see: the memory, or all of its region */
    size_t nbytes;
    size_t offset; /* of the memory within what the others see */
} py_window;

/* False with an exception if the collector has cleared the window. */
bool py_window_require_open(const py_window *self);

/* False with an exception that names the argument if the window has no such rank. */
bool py_window_check_rank(const py_window *self, int rank, const char *function, const char *name);

/* Functions of the module. _is_shared(tensor): whether it lies in a region of a group that still exists.
 * _write32(function, tensor, offset, value, count): writes elements of 32 bits; whoever sees one also sees
 * everything written before it. */
PyObject *py_window_is_shared(PyObject *module, PyObject *tensor);
PyObject *py_window_write32(PyObject *module, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames);

extern PyType_Spec py_window_spec;

/* ---- methods, in a file of their own */

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
