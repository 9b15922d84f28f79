/* dldist's own memory, on the host or on a device, as an array with DLPack export. */
#ifndef DD_PYTHON_TENSOR_MEMORY_H
#define DD_PYTHON_TENSOR_MEMORY_H

#include "python/base/object.h"
#include "python/tensor/dlpack.h"

#include <stdatomic.h>

/* The head of a struct that owns memory. The array and each of its exports hold a reference.
 * Consumers may release exports on their own threads, so no function here needs the GIL. */
typedef struct py_memory {
    atomic_uint refs;
    dd_view view; /* the elements; const */
    int64_t strides_in_elements[DD_VIEW_MAX_DIMS];
    int device_type; /* DLDeviceType of the memory; const */
    int device_id;   /* number of the device; const */
    void (*destroy)(struct py_memory *memory);
} py_memory;

/* Initialise memory that `view` describes, with one reference. */
void py_memory_init(py_memory *memory, const dd_view *view, void (*destroy)(py_memory *memory));
void py_memory_acquire(py_memory *memory);
void py_memory_release(py_memory *memory);

/* Read the shape and dtype of a row-major view without memory. The shape is an int, or a list or
 * tuple of ints. `dtype` is a name, a dtype object of another library, or NULL for float32. */
bool py_memory_read_view(const py_argument *shape, PyObject *dtype, dd_view *view);
/* The two halves of py_memory_read_view. For py_memory_read_shape, view->dtype must be set. */
bool py_memory_read_dtype(const py_argument *argument, dd_dtype *dtype);
bool py_memory_read_shape(const py_argument *shape, dd_view *view);

/* The common head of the objects SharedArray (group/array.c) and NcclArray (nccl/array.c). */
typedef struct py_memory_array {
    PY_OBJECT_HEAD;
    py_memory *memory; /* counted reference to the memory; const after new */
} py_memory_array;

/* Create an array object. Takes ownership of a reference to the memory, even on failure. */
PyObject *py_memory_array_make(PyTypeObject *type, py_memory *memory);
void py_memory_array_dealloc(PyObject *object);
PyObject *py_memory_array_get_shape(PyObject *object, void *closure);
PyObject *py_memory_array_get_dtype(PyObject *object, void *closure);
PyObject *py_memory_array_get_nbytes(PyObject *object, void *closure);
PyObject *py_memory_array_dlpack(PyObject *object, PyObject *const *args, Py_ssize_t nargs,
                                 PyObject *kwnames);
PyObject *py_memory_array_dlpack_device(PyObject *object, PyObject *unused);

/* Table rows of the methods and attributes that SharedArray and NcclArray share. */
/* clang-format off */
#define PY_MEMORY_ARRAY_METHODS \
    {"__dlpack__", PY_FAST_METHOD(py_memory_array_dlpack), \
     "__dlpack__($self, *, stream=None, max_version=None, dl_device=None, copy=None)\n--\n\n" \
     "A DLPack capsule, which keeps the memory alive."}, \
    {"__dlpack_device__", py_memory_array_dlpack_device, METH_NOARGS, \
     "__dlpack_device__($self, /)\n--\n\nIts device, in DLPack's numbers."}
#define PY_MEMORY_ARRAY_GETSET \
    {"shape", py_memory_array_get_shape, NULL, "The length of each dimension.", NULL}, \
    {"dtype", py_memory_array_get_dtype, NULL, "\"float32\" and so on.", NULL}, \
    {"nbytes", py_memory_array_get_nbytes, NULL, "The number of bytes of all elements.", NULL}
/* clang-format on */

#endif
