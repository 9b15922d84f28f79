/* CUDA tensors: their device, and the stream that their library works on.
 *
 * If the library's stream is known, the library exports without synchronising, and the operation
 * waits for that stream. When a caller waits for the work, the library's stream is queried again. A
 * library with an unknown stream orders its work before the group's stream
 * (`__dlpack__(stream=...)`), and the host waits for the end. */
#ifndef DD_PYTHON_TENSOR_DEVICE_H
#define DD_PYTHON_TENSOR_DEVICE_H

#include "python/base/argument.h"
#include "python/tensor/type.h"

#include <stdbool.h>
#include <stdint.h>

/* The values of DLDeviceType that NCCL works with. */
#define PY_DEVICE_CUDA 2
#define PY_DEVICE_CUDA_MANAGED 13

#define PY_NO_DEVICE (-1)
#define PY_MAX_STREAMS 6

typedef enum py_stream_kind {
    PY_STREAM_EXPLICIT, /* the stream set by dldist.nccl.stream() on this thread */
    PY_STREAM_DEFAULT,  /* the device's default stream, for dldist's own memory */
    PY_STREAM_EXCHANGE, /* the stream from the DLPack exchange API of the tensor's type */
    PY_STREAM_TORCH,
    PY_STREAM_CUPY,
} py_stream_kind;

typedef struct py_stream {
    py_stream_kind kind;
    dl_current_stream query; /* the function that queries the stream; only for PY_STREAM_EXCHANGE */
    void *handle;            /* the handle of the stream when the call was made */
} py_stream;

/* A scope: the devices and streams of the tensors of one call. */
typedef struct py_device_scope {
    py_state *state; /* NULL if only host memory is accepted; all other fields are then unused */
    /* Find the stream before which a library must order its work if the library's own stream is
     * unknown. If find_stream is NULL, this is the default stream. */
    bool (*find_stream)(void *ctx, int device, void **stream);
    void *ctx;
    int device;         /* the device of all tensors; PY_NO_DEVICE before the first tensor */
    bool is_host_taken; /* true if host memory is also accepted, and staged */
    bool has_host;      /* true if a tensor was in host memory */
    /* true if a tensor's library has an unknown stream, so that the host must wait for the end */
    bool is_blocking;
    /* True if all memory comes from allocators (torch's, CuPy's) that reuse memory in the order of
     * the memory's stream. Every call makes this stream wait for the operation before the call
     * returns, so memory need not be kept until the device is done, as for a kernel. If a tensor is
     * used on another stream than it was allocated on, the caller must protect it (record_stream),
     * as for a kernel. */
    bool is_stream_ordered;
    size_t nstreams;
    py_stream streams[PY_MAX_STREAMS]; /* streams of the tensors' libraries, without duplicates */
} py_device_scope;

void py_device_scope_init(py_device_scope *scope, py_state *state);

/* Return true if NCCL can work with this DLDeviceType. */
bool py_device_is_cuda(int device_type);

/* Return 1 if the argument's memory is on a CUDA device, 0 if not, -1 with an exception. */
int py_device_has(const py_argument *argument);

/* Add to the scope the stream of a tensor that was read through the exchange API. */
bool py_device_note_exchange(py_device_scope *scope, const py_tensor_facts *facts, int device,
                             const py_argument *argument);
/* Add to the scope the stream of dldist's own memory. */
bool py_device_note_own(py_device_scope *scope, int device, const py_argument *argument);

/* Choose the stream to pass to the argument's __dlpack__. Set *stream to a new reference, or to
 * NULL if no stream must be passed, because the memory is not on a CUDA device. */
bool py_device_choose_stream(py_device_scope *scope, const py_tensor_facts *facts,
                             const py_argument *argument, PyObject **stream);

/* Add a tensor to the scope. Raise DistArgumentError if the tensor is on another device than the
 * tensors added earlier, or on a device that the group does not serve. */
bool py_device_take(py_device_scope *scope, const py_tensor *tensor, const py_argument *argument);

/* Query, on this thread, the current streams of the libraries of the scope's tensors. */
bool py_device_query_streams(const py_device_scope *scope, void *handles[PY_MAX_STREAMS]);

/* Read a stream: an int, an object with __cuda_stream__, or a stream of torch or CuPy. */
bool py_device_read_stream(const py_argument *argument, void **stream);

/* Implement _core._swap_stream(stream): set the CUDA stream that this thread works on; None removes
 * it. Return the previous stream, or None. */
PyObject *py_device_swap_stream(PyObject *module, PyObject *stream);

void py_device_state_destroy(py_state *state);

#endif
