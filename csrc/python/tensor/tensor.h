/* Any array as a dd_view: the buffer protocol, DLPack's C exchange API, or its capsules. Nothing is copied. */
#ifndef DD_PYTHON_TENSOR_TENSOR_H
#define DD_PYTHON_TENSOR_TENSOR_H

#include "kernels/view.h"
#include "python/base/argument.h"
#include "python/base/state.h"

#include <stdbool.h>

typedef enum py_tensor_use {
    PY_TENSOR_IN, /* only read */
    /* written: ValueError for what is read-only, has elements that share memory (stride 0), or is a copy */
    PY_TENSOR_OUT,
} py_tensor_use;

/* How the memory was got; what has to be given back depends on it. */
typedef enum py_tensor_route {
    PY_ROUTE_NONE,
    PY_ROUTE_BUFFER,
    PY_ROUTE_ARRAY_INTERFACE, /* dtypes that ml_dtypes adds to NumPy */
    PY_ROUTE_EXCHANGE,        /* __dlpack_c_exchange_api__ */
    PY_ROUTE_OWN,             /* a SharedArray or an NcclArray: `object` keeps its memory */
    PY_ROUTE_DLPACK,          /* __dlpack__, DLPack 1 */
    PY_ROUTE_DLPACK_LEGACY,   /* __dlpack__, DLPack 0: does not tell whether it is read-only */
} py_tensor_route;

/* A held tensor: the memory of `view` stays valid until fini. Start zeroed, or by py_tensor_start: fini is then always right. May be
 * moved in memory. */
typedef struct py_tensor {
    /* is_contiguous is false, too, where elements are not aligned: such memory is packed like any other */
    dd_view view;
    int device_type; /* DLDeviceType; 1 is the CPU */
    int device_id;
    PyObject *object; /* owned: what the caller gave, for results */
    PyObject *pin;    /* owned: a weak reference (py_tensor_pin), or NULL */
    /* Set before init where memory of devices is wanted; else NULL. Not looked at afterwards */
    struct py_device_scope *scope;
    py_tensor_route route;
    Py_buffer
        buffer;    /* held with PY_ROUTE_BUFFER, but for arrays that are read directly; else without an obj */
    void *managed; /* a dl_managed or dl_managed_versioned to give back, or NULL */
} py_tensor;

/* The same as zeroed: shapes and the like are written before they are read. */
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

/* False with an exception that names the function and the argument, and nothing to undo: TypeError for what is
 * no tensor or has elements of another type than dd_dtype, ValueError for tensors that cannot be used. Tensors
 * of other devices come with their device set and their memory unread; a caller that wants the CPU asks
 * py_tensor_require_cpu. Without a scope no stream of a device is waited for, except that __dlpack__ makes its
 * default stream wait; with one, see tensor/device.h. Needs the GIL, as does fini; both may run Python code. */
bool py_tensor_init(py_tensor *tensor, py_state *state, PyObject *object, py_tensor_use use,
                    const char *function, const char *name);
/* For operations during which the caller goes on: until fini NumPy does not move the memory. Other exporters of buffers refuse to while
 * one is held, anyhow; those of DLPack cannot be kept from it. False with an exception. */
bool py_tensor_pin(py_tensor *tensor, const py_state *state);
/* Keeps an exception that is set. */
void py_tensor_fini(py_tensor *tensor);
/* For the collector: what is held of it. */
int py_tensor_traverse(const py_tensor *tensor, visitproc visit, void *arg);

/* ValueError "<function>(): argument '<name>' is on cuda:1, and the group has no backend for that device (it
 * has: cpu)". Memory that a driver has pinned for the CPU is the CPU's. */
bool py_tensor_require_cpu(const py_tensor *tensor, const py_state *state, const char *function,
                           const char *name);

/* Gives a view whose dtype and shape are set the strides of row-major order; false when they do not fit. */
bool py_tensor_set_row_major(dd_view *view);

/* A list or tuple of tensors; a single tensor is not taken for a list. Start zeroed. */
typedef struct py_tensor_list {
    py_tensor *items;
    Py_ssize_t count;
} py_tensor_list;

/* As py_tensor_init; messages call an item '<name>[<index>]'. */
bool py_tensor_list_init(py_tensor_list *list, py_state *state, PyObject *object, py_tensor_use use,
                         const char *function, const char *name);
void py_tensor_list_fini(py_tensor_list *list);

/* _describe_tensor(object, writable), of the module: a dict of what dldist sees, for tests. */
PyObject *py_tensor_describe(PyObject *module, PyObject *args);

/* Functions of the module that move elements, in tensor/copy.c; dst and src have as many, and may share
 * memory; the GIL is released for what is large. _copy_tensor(dst, src): of the same dtype. _copy_tensors(dsts,
 * srcs): the same, pair by pair. _convert_tensor(dst, src): of any floating-point types, or of the same dtype.
 * _add_tensor(dst, src): adds src to dst, as the sum of a reduction. */
PyObject *py_tensor_copy(PyObject *module, PyObject *args);
PyObject *py_tensor_copy_list(PyObject *module, PyObject *args);
PyObject *py_tensor_convert(PyObject *module, PyObject *args);
PyObject *py_tensor_add(PyObject *module, PyObject *args);

#endif
