/* DLPack: tensors of other libraries, through its C exchange API or its capsules. */
#ifndef DD_PYTHON_TENSOR_DLPACK_H
#define DD_PYTHON_TENSOR_DLPACK_H

#include "python/tensor/tensor.h"

#include <stdint.h>

/* The only major version whose layout is known. */
#define PY_DLPACK_MAJOR 1

/* DLTensor. Strides are in elements; before DLPack 1.2, NULL strides mean row-major order. */
typedef struct dl_tensor {
    void *data;
    int32_t device_type;
    int32_t device_id;
    int32_t ndim;
    uint8_t code;
    uint8_t nbits;
    uint16_t nlanes;
    int64_t *shape;
    int64_t *strides;
    uint64_t byte_offset;
} dl_tensor;

/* DLManagedTensor, the struct of DLPack 0. */
typedef struct dl_managed {
    dl_tensor tensor;
    void *context;
    void (*deleter)(struct dl_managed *self);
} dl_managed;

typedef struct dl_version {
    uint32_t major;
    uint32_t minor;
} dl_version;

#define DL_FLAG_READ_ONLY 1u
#define DL_FLAG_IS_COPIED 2u

/* DLManagedTensorVersioned. If version.major is unknown, use only version, context and deleter. */
typedef struct dl_managed_versioned {
    dl_version version;
    void *context;
    void (*deleter)(struct dl_managed_versioned *self);
    uint64_t flags;
    dl_tensor tensor;
} dl_managed_versioned;

/* Set *stream to the stream that the library works on. Return 0, or -1 with an exception. */
typedef int (*dl_current_stream)(int32_t device_type, int32_t device_id, void **stream);

/* DLPackExchangeAPI. Functions that dldist does not call are declared as void pointers. */
typedef struct dl_exchange_api {
    dl_version version;
    const struct dl_exchange_api *previous; /* function table of an older major version, or NULL */
    void *allocate;
    int (*export_object)(void *object, dl_managed_versioned **managed);
    void *import_object;
    /* fill in a borrowed view of a tensor; NULL if the library does not provide this */
    int (*view_object)(void *object, dl_tensor *view);
    dl_current_stream current_stream;
} dl_exchange_api;

/* Read a tensor through the exchange API or through a capsule. Both functions set route, managed,
 * device and view, except for the fields that dd_view_finish computes. Return 1 on success, 0 if
 * the object does not offer the protocol, -1 with an exception. The caller must call py_tensor_fini
 * in every case. */
int py_dlpack_try_exchange(py_tensor *tensor, const py_state *state, py_tensor_use use,
                           const py_argument *argument);
int py_dlpack_try_capsule(py_tensor *tensor, const py_state *state, py_tensor_use use,
                          const py_argument *argument);

/* Return tensor->managed, which may be NULL, to its producer. */
void py_dlpack_release(py_tensor *tensor);

#endif
