/* Facts about classes of tensors. They are looked up once for each class, because calls that take microseconds
 * have no time to look them up for every tensor. */
#ifndef DD_PYTHON_TENSOR_TYPE_H
#define DD_PYTHON_TENSOR_TYPE_H

#include "python/tensor/dlpack.h"

#include <stdbool.h>

/* The top-level package that the class comes from. */
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
    bool has_is_neg; /* methods that tell whether a view stands for something other than what is in memory */
    bool has_is_conj;
} py_tensor_facts;

typedef struct py_tensor_types py_tensor_types;

/* A table for any thread, which keeps no class alive. NULL with an exception. */
py_tensor_types *py_tensor_types_create(void);
void py_tensor_types_destroy(py_tensor_types *types);

/* Gives the facts about the object's class, as they were when its first object came. */
void py_tensor_type_find(const py_state *state, PyObject *object, py_tensor_facts *facts);

#endif
