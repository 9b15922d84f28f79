/* Any array as a dd_view, through the buffer protocol, DLPack's C exchange API, or its capsules. Nothing is
 * copied. */
#ifndef DD_PYTHON_TENSOR_TENSOR_H
#define DD_PYTHON_TENSOR_TENSOR_H

#include "kernels/view.h"
#include "python/base/argument.h"
#include "python/base/state.h"

#include <stdbool.h>

typedef enum py_tensor_use {
    PY_TENSOR_IN, /* only read */
    /* written: ValueError if it is read-only, has elements that share memory (stride 0), or is a copy */
    PY_TENSOR_OUT,
} py_tensor_use;

/* How the tensor was read, which decides what must be given back. */
typedef enum py_tensor_route {
    PY_ROUTE_NONE,
    PY_ROUTE_BUFFER,
    PY_ROUTE_ARRAY_INTERFACE, /* dtypes that ml_dtypes adds to NumPy */
    PY_ROUTE_EXCHANGE,        /* __dlpack_c_exchange_api__ */
    PY_ROUTE_OWN,             /* a SharedArray or an NcclArray: `object` keeps the memory alive */
    PY_ROUTE_DLPACK,          /* __dlpack__, DLPack 1 */
    PY_ROUTE_DLPACK_LEGACY,   /* __dlpack__, DLPack 0, which has no read-only flag */
} py_tensor_route;

/* A tensor that is held: the memory of `view` stays valid until fini. Start zeroed or with py_tensor_start: fini
 * may then be called at any time. The struct may be moved in memory. */
typedef struct py_tensor {
    /* is_contiguous is also false if elements are not aligned, so that such memory is packed, too */
    dd_view view;
    int device_type; /* DLDeviceType; 1 is the CPU */
    int device_id;
    PyObject *object; /* owned: what the caller gave, to return as a result */
    PyObject *pin;    /* owned: a weak reference (py_tensor_pin), or NULL */
    /* Set before init if device memory is accepted, otherwise NULL. Not used afterwards */
    struct py_device_scope *scope;
    py_tensor_route route;
    /* held with PY_ROUTE_BUFFER unless the array was read directly; obj is NULL if not held */
    Py_buffer buffer;
    void *managed; /* a dl_managed or dl_managed_versioned to give back, or NULL */
} py_tensor;

/* As good as zeroed: fields not set here are written before they are read. */
static inline void
py_tensor_start(py_tensor *tensor)
{
    tensor->device_id = 0;
    tensor->object = NULL;
    tensor->pin = NULL;
    tensor->scope = NULL;
    tensor->route = PY_ROUTE_NONE;
    tensor->buffer.obj = NULL;
    tensor->managed = NULL;
}

/* Reads a tensor. False with an exception that names the function and the argument, and with nothing to undo:
 * TypeError if the object is not a tensor or its elements have no dd_dtype, ValueError for tensors that cannot be
 * used. A tensor on another device has its device set and its memory unread; a caller that needs CPU memory calls
 * py_tensor_require_cpu. Without a scope, no stream of a device is waited for, except that __dlpack__ makes its
 * default stream wait; with a scope, see tensor/device.h. Needs the GIL, as does fini; both may run Python code.
 * */
bool py_tensor_init(py_tensor *tensor, py_state *state, PyObject *object, py_tensor_use use,
                    const char *function, const char *name);
/* Keeps NumPy from moving the memory until fini, for operations during which the caller goes on. Other exporters
 * of buffers do not move memory while a buffer is held; exporters by DLPack cannot be stopped. False with an
 * exception. */
bool py_tensor_pin(py_tensor *tensor, const py_state *state);
/* An exception that is set stays set. */
void py_tensor_fini(py_tensor *tensor);
/* For the collector: visits the objects that the tensor holds. */
int py_tensor_traverse(const py_tensor *tensor, visitproc visit, void *arg);

/* False with ValueError "<function>(): argument '<name>' is on cuda:1, and the group has no backend for that
 * device (it has: cpu)". Memory that a driver has pinned for the CPU counts as the CPU's. */
bool py_tensor_require_cpu(const py_tensor *tensor, const py_state *state, const char *function,
                           const char *name);

/* Sets row-major strides on a view whose dtype and shape are set; false if they do not fit into 64 bits. */
bool py_tensor_set_row_major(dd_view *view);

/* A list or tuple of tensors. A single tensor does not count as a list. Start zeroed. */
typedef struct py_tensor_list {
    py_tensor *items;
    Py_ssize_t count;
} py_tensor_list;

/* Like py_tensor_init for each item; messages call an item '<name>[<index>]'. */
bool py_tensor_list_init(py_tensor_list *list, py_state *state, PyObject *object, py_tensor_use use,
                         const char *function, const char *name);
void py_tensor_list_fini(py_tensor_list *list);

/* A new tuple of ints; NULL with an exception. */
PyObject *py_tensor_tuple(const int64_t *numbers, int count);

/* _core._describe_tensor(object, writable): a dict of what dldist sees, for tests. */
PyObject *py_tensor_describe(PyObject *module, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames);

/* Functions of the module that move elements (tensor/copy.c). dst and src must have the same number of elements
 * and may share memory. Large tensors are moved without the GIL. _copy_tensor(dst, src) needs equal dtypes.
 * _copy_tensors(dsts, srcs) does the same pair by pair. _convert_tensor(dst, src) takes equal dtypes or any two
 * floating-point dtypes. _reduce_tensor(dst, src, op) reduces both into dst by the operation of this number; AVG and
 * PREMUL_SUM only add up. */
PyObject *py_tensor_copy(PyObject *module, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames);
PyObject *py_tensor_copy_list(PyObject *module, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames);
PyObject *py_tensor_convert(PyObject *module, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames);
PyObject *py_tensor_reduce(PyObject *module, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames);

/* _core._digest(data, keys): the bytes of dd_digest (tensor/digest.c). */
PyObject *py_tensor_digest(PyObject *module, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames);

#endif
