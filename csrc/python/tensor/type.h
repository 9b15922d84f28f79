/* Cached facts about classes of tensors, because looking up attributes takes too long for calls of
 * microseconds. */
#ifndef DD_PYTHON_TENSOR_TYPE_H
#define DD_PYTHON_TENSOR_TYPE_H

#include "python/tensor/dlpack.h"

#include <stdbool.h>

/* The library (top-level package) that defines a class of tensors. */
typedef enum py_tensor_library {
    PY_LIBRARY_OTHER,
    PY_LIBRARY_TORCH,
    PY_LIBRARY_CUPY,
    PY_LIBRARY_JAX,
    PY_LIBRARY_TENSORFLOW,
} py_tensor_library;

typedef struct py_tensor_facts {
    /* the class's DLPack exchange API in the supported major version, or NULL */
    const dl_exchange_api *api;
    py_tensor_library library;
    bool has_device; /* true if the class has __dlpack_device__ */
    /* true if the class has is_neg() and is_conj(), for views that negate or conjugate memory */
    bool has_is_neg;
    bool has_is_conj;
} py_tensor_facts;

typedef struct py_tensor_types py_tensor_types;

/* Create a table of facts, which all threads share and which keeps no class alive. */
py_tensor_types *py_tensor_types_create(void);
void py_tensor_types_destroy(py_tensor_types *types);

/* Get the facts about the object's class, found with its first object and then cached. */
void py_tensor_type_find(const py_state *state, PyObject *object, py_tensor_facts *facts);

#endif
