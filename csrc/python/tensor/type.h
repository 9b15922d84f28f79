/* Cached facts about classes of tensors: looking them up takes too long for calls of
 * microseconds. */
#ifndef DD_PYTHON_TENSOR_TYPE_H
#define DD_PYTHON_TENSOR_TYPE_H

#include "python/tensor/dlpack.h"

#include <stdbool.h>

/* The top-level package that the class is from. */
typedef enum py_tensor_library {
    PY_LIBRARY_OTHER,
    PY_LIBRARY_TORCH,
    PY_LIBRARY_CUPY,
    PY_LIBRARY_JAX,
    PY_LIBRARY_TENSORFLOW,
} py_tensor_library;

typedef struct py_tensor_facts {
    const dl_exchange_api *api; /* of the supported major version, or NULL */
    py_tensor_library library;
    bool has_device; /* __dlpack_device__ */
    bool has_is_neg; /* is_neg() and is_conj(), for views that negate or conjugate their memory */
    bool has_is_conj;
} py_tensor_facts;

typedef struct py_tensor_types py_tensor_types;

/* Create a table for all threads, which keeps no class alive. */
py_tensor_types *py_tensor_types_create(void);
void py_tensor_types_destroy(py_tensor_types *types);

/* Get the facts about the object's class, as found with the first object of the class. */
void py_tensor_type_find(const py_state *state, PyObject *object, py_tensor_facts *facts);

#endif
