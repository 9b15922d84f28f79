/* What a class of tensors is like, found out once: calls that take microseconds have no time to ask it of every tensor. */
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
    const dl_exchange_api *api; /* of a major version that is understood, or NULL */
    py_tensor_library library;
    bool has_device; /* __dlpack_device__ */
    bool has_is_neg; /* methods that tell of views that stand for something else than is in memory */
    bool has_is_conj;
} py_tensor_facts;

typedef struct py_tensor_types py_tensor_types;

/* NULL with an exception. Guarded by the GIL; keeps no class alive. */
py_tensor_types *py_tensor_types_create(void);
void py_tensor_types_destroy(py_tensor_types *types);

/* Of the object's class, as it was when the first object of it came. */
void py_tensor_type_find(const py_state *state, PyObject *object, py_tensor_facts *facts);

#endif
