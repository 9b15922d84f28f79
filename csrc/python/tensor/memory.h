/* Memory of ours, of the host or of a device, as an array: its shape and dtype, and its export by DLPack. */
#ifndef DD_PYTHON_TENSOR_MEMORY_H
#define DD_PYTHON_TENSOR_MEMORY_H

#include "python/tensor/dlpack.h"

#include <stdatomic.h>

/* Counted by the array and by what it has been exported as. Consumers let go of their exports on threads of theirs: nothing here is
 * Python's. The head of what owns the memory. */
typedef struct py_memory {
    atomic_uint refs;
    dd_view view; /* const */
    int64_t strides_in_elements[DD_VIEW_MAX_DIMS];
    int device_type; /* const; DLDeviceType */
    int device_id;   /* const */
    void (*destroy)(struct py_memory *memory);
} py_memory;

/* With one reference, around memory that `view` describes. */
void py_memory_init(py_memory *memory, const dd_view *view, void (*destroy)(py_memory *memory));
void py_memory_acquire(py_memory *memory);
void py_memory_release(py_memory *memory);

/* A row-major view without memory: the shape is an int or a list or tuple of them, the argument 'dtype' a name or an object of
 * another library, or NULL for float32. False with an exception. */
bool py_memory_read_view(const py_argument *shape, PyObject *dtype, dd_view *view);
/* Its halves. The shape is that of a view whose dtype is set. */
bool py_memory_read_dtype(const py_argument *argument, dd_dtype *dtype);
bool py_memory_read_shape(const py_argument *shape, dd_view *view);

/* The format of a buffer of the dtype; NULL where there is none. */
const char *py_memory_format(dd_dtype dtype);

/* __dlpack__ after its stream has been looked after: the rest of its arguments. `text` says what else is not done. */
PyObject *py_memory_export(py_memory *memory, PyObject *version, PyObject *device, PyObject *copy,
                           const char *text);

/* A SharedArray (group/array.c), or an NcclArray (nccl/array.c): what the two have in common. */
typedef struct py_memory_array {
    PyObject ob_base; /* PyObject_HEAD */
    PyObject *module; /* const after new */
    PyObject *weakrefs;
    py_memory *memory; /* const after new; counted */
} py_memory_array;

/* Takes the reference to the memory, also on failure: NULL with an exception. */
PyObject *py_memory_array_make(PyTypeObject *type, PyObject *module, py_memory *memory);
void py_memory_array_dealloc(PyObject *object); /* of one that the collector does not track (any more) */
PyObject *py_memory_array_get_shape(PyObject *object, void *closure);
PyObject *py_memory_array_get_dtype(PyObject *object, void *closure);
PyObject *py_memory_array_get_nbytes(PyObject *object, void *closure);

#endif
