/* Any array as a dd_view, without a copy: by the buffer protocol, DLPack's C exchange API, or
 * DLPack capsules. */
#ifndef DD_PYTHON_TENSOR_TENSOR_H
#define DD_PYTHON_TENSOR_TENSOR_H

#include "kernels/view.h"
#include "python/base/argument.h"
#include "python/base/state.h"

#include <stdbool.h>

typedef enum py_tensor_use {
    PY_TENSOR_IN, /* the tensor is only read */
    /* the tensor is written: raise ValueError if it is read-only, is a copy, or has elements that
     * share memory */
    PY_TENSOR_OUT,
} py_tensor_use;

/* The way in which a tensor was read: determines what py_tensor_fini releases. */
typedef enum py_tensor_route {
    PY_ROUTE_NONE,
    PY_ROUTE_BUFFER,
    PY_ROUTE_EXCHANGE,      /* the C function table __dlpack_c_exchange_api__ */
    PY_ROUTE_OWN,           /* a SharedArray or an NcclArray: `object` keeps the memory alive */
    PY_ROUTE_DLPACK,        /* a capsule from __dlpack__, DLPack 1 */
    PY_ROUTE_DLPACK_LEGACY, /* a capsule from __dlpack__, DLPack 0, which has no read-only flag */
} py_tensor_route;

/* A tensor in use: the memory of `view` stays valid until py_tensor_fini. The struct must be
 * zeroed, or set by py_tensor_start, before py_tensor_init; py_tensor_fini may then be called at
 * any time. The struct may be moved in memory. */
typedef struct py_tensor {
    /* is_contiguous is also false if elements are not aligned, so that such tensors are packed */
    dd_view view;
    int device_type; /* DLDeviceType of the memory; 1 is the CPU */
    int device_id;
    PyObject *object; /* owned: the object that the caller passed, to return as a result */
    PyObject *pin;    /* owned: a weak reference that py_tensor_pin creates, or NULL */
    /* Must be set before py_tensor_init if device memory is accepted, otherwise NULL. Not used
     * after py_tensor_init. */
    struct py_device_scope *scope;
    /* Must be set before py_tensor_init if dtypes are accepted whose elements are only moved. */
    bool takes_foreign;
    bool has_nat;           /* the elements are INT64 and dates of NumPy; only with foreign_dtype */
    uint64_t foreign_dtype; /* name of a dtype that is only moved (foreign.h); 0 for a dd_dtype */
    py_tensor_route route;
    /* PY_ROUTE_BUFFER: the held buffer; its obj is NULL if the array was read without a buffer */
    Py_buffer buffer;
    void *managed; /* the producer's dl_managed or dl_managed_versioned, or NULL; owned */
} py_tensor;

/* Prepare a tensor for py_tensor_init. This is faster than zeroing the struct, and enough, because
 * all other fields are written before they are read. */
static inline void
py_tensor_start(py_tensor *tensor)
{
    tensor->device_id = 0;
    tensor->object = NULL;
    tensor->pin = NULL;
    tensor->scope = NULL;
    tensor->takes_foreign = false;
    tensor->has_nat = false;
    tensor->foreign_dtype = 0;
    tensor->route = PY_ROUTE_NONE;
    tensor->buffer.obj = NULL;
    tensor->managed = NULL;
}

/* Read a tensor. Exceptions name the function and the argument: TypeError if the object is not a
 * tensor or its elements have no dd_dtype, ValueError if the tensor cannot be used. After a
 * failure, py_tensor_fini is not needed. A tensor on another device is accepted, but its memory is
 * not read: call py_tensor_require_cpu if CPU memory is needed. Without a scope, no device stream
 * is waited for, except that __dlpack__ makes its default stream wait; with a scope, see
 * tensor/device.h. py_tensor_init and py_tensor_fini need the GIL and may run Python code. */
bool py_tensor_init(py_tensor *tensor, py_state *state, PyObject *object, py_tensor_use use,
                    const char *function, const char *name);
/* Keep NumPy from moving the memory until py_tensor_fini, for operations during which the caller
 * continues. Other buffer exporters do not move memory while a buffer is held; DLPack exporters
 * cannot be kept from moving memory. */
bool py_tensor_pin(py_tensor *tensor, const py_state *state);
/* Release everything that the tensor holds. Keeps the current exception. */
void py_tensor_fini(py_tensor *tensor);
/* Visit the objects that the tensor holds, for the garbage collector. */
int py_tensor_traverse(const py_tensor *tensor, visitproc visit, void *arg);

/* Raise ValueError "<function>(): argument '<name>' is on cuda:1, and the group has no backend for
 * that device (it has: cpu)" unless the tensor is in CPU memory. Memory that a driver has pinned
 * for the CPU counts as CPU memory. */
bool py_tensor_require_cpu(const py_tensor *tensor, const py_state *state, const char *function,
                           const char *name);

#define PY_DTYPE_TEXT 9
/* Return the name of the dtype; the buffer is used for a foreign dtype. */
const char *py_tensor_dtype_name(const py_tensor *tensor, char out[PY_DTYPE_TEXT]);

/* Set data, shape and strides from tensor->buffer; the dtype must be set if the buffer has no strides. */
bool py_tensor_read_layout(py_tensor *tensor, const py_argument *argument);

/* Set row-major strides from the view's dtype and shape. Return false if they overflow 64 bits. */
bool py_tensor_set_row_major(dd_view *view);

/* A list or tuple of tensors. A single tensor does not count as a list. The struct must be zeroed
 * before py_tensor_list_init. */
typedef struct py_tensor_list {
    py_tensor *items;
    Py_ssize_t count;
} py_tensor_list;

/* Like py_tensor_init for each item, which may have a foreign dtype; messages name an item '<name>[<index>]'. */
bool py_tensor_list_init(py_tensor_list *list, py_state *state, PyObject *object, py_tensor_use use,
                         const char *function, const char *name);
void py_tensor_list_fini(py_tensor_list *list);

/* Return a new tuple of ints with these numbers. */
PyObject *py_tensor_tuple(const int64_t *numbers, int count);

/* _core._describe_tensor(object, writable): a dict of the tensor's fields, for tests. */
PyObject *py_tensor_describe(PyObject *module, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames);

/* Functions of the module that move elements (tensor/copy.c). dst and src must have the same number
 * of elements and may share memory. Large tensors are moved without the GIL. _copy_tensor(dst, src)
 * needs equal dtypes, as does _copy_tensors(dsts, srcs), which copies each pair.
 * _convert_tensor(dst, src) takes equal dtypes or any two floating-point dtypes.
 * _reduce_tensor(dst, src, op) reduces both into dst with ReduceOp number `op`; AVG and PREMUL_SUM
 * only add. */
PyObject *py_tensor_copy(PyObject *module, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames);
PyObject *py_tensor_copy_list(PyObject *module, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames);
PyObject *py_tensor_convert(PyObject *module, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames);
PyObject *py_tensor_reduce(PyObject *module, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames);

/* Implement _core._digest(data, keys): return the bytes of dd_digest (tensor/digest.c). */
PyObject *py_tensor_digest(PyObject *module, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames);

#endif
