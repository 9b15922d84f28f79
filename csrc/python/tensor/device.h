/* Tensors in the memory of CUDA devices: which device they are on, and which stream their library works on.
 *
 * If the library's stream is known, the library exports without synchronising, and the operation waits for that
 * stream. When somebody waits for the work, the library is asked for its stream again. A library whose stream is
 * not known orders its own work before the stream of the group (`__dlpack__(stream=...)`), and the host waits for
 * the end. */
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
    PY_STREAM_EXPLICIT, /* set by dldist.nccl.stream() on this thread */
    PY_STREAM_DEFAULT,  /* the device's default stream, for our own memory, which belongs to no library */
    PY_STREAM_EXCHANGE, /* from DLPack's exchange API of the type */
    PY_STREAM_TORCH,
    PY_STREAM_CUPY,
} py_stream_kind;

typedef struct py_stream {
    py_stream_kind kind;
    dl_current_stream ask; /* of PY_STREAM_EXCHANGE */
    void *handle;          /* when the call was made */
} py_stream;

/* The devices and streams of the tensors of one call. */
typedef struct py_device_scope {
    py_state *state; /* NULL: only host memory is accepted, and the fields below are unused */
    /* Finds the stream that producers order their work before; false with an exception. NULL: the default stream */
    bool (*find_stream)(void *ctx, int device, void **stream);
    void *ctx;
    int device;         /* the device of all tensors; PY_NO_DEVICE: none has come yet */
    bool is_host_taken; /* host memory is accepted, too, and staged */
    bool has_host;      /* a tensor was in host memory */
    bool is_blocking;   /* a producer's stream is not known */
    /* All memory comes from allocators (torch's, CuPy's) that reuse it in stream order, and a call that has
     * returned has made that stream wait. So nothing has to be kept until the device is done, just as nobody keeps
     * the tensors of a kernel. If a tensor was made on another stream than the one it is used on, its user must
     * take care of it (record_stream), as with any kernel. */
    bool is_stream_ordered;
    size_t nstreams;
    py_stream streams[PY_MAX_STREAMS]; /* all different */
} py_device_scope;

void py_device_scope_init(py_device_scope *scope, py_state *state);

/* Whether NCCL can work with this DLDeviceType. */
bool py_device_is_cuda(int device_type);

/* 1 if the argument's memory is on a CUDA device, 0 if not, -1 with an exception. */
int py_device_has(const py_argument *argument);

/* Notes the stream of a tensor that came through the exchange API. False with an exception. */
bool py_device_note_exchange(py_device_scope *scope, const py_tensor_facts *facts, int device,
                             const py_argument *argument);
/* Notes the stream of our own memory. False with an exception. */
bool py_device_note_own(py_device_scope *scope, int device, const py_argument *argument);

/* Chooses the stream to pass to the argument's __dlpack__: sets *stream to a new reference, or to NULL to pass none
 * (memory that is not on a CUDA device). False with an exception. */
bool py_device_choose_stream(py_device_scope *scope, const py_tensor_facts *facts,
                             const py_argument *argument, PyObject **stream);

/* Adds a tensor to the scope. False with DistArgumentError if it is on another device than those before it, or on one
 * that the group does not serve. */
bool py_device_take(py_device_scope *scope, const py_tensor *tensor, const py_argument *argument);

/* Asks the scope's libraries for their current streams on this thread. False with an exception. */
bool py_device_ask_streams(const py_device_scope *scope, void *handles[PY_MAX_STREAMS]);

/* Reads a stream: an int, an object with __cuda_stream__, or a stream of torch or CuPy. False with an exception. */
bool py_device_read_stream(const py_argument *argument, void **stream);

/* _core._swap_stream(stream): sets the CUDA stream that this thread works on, or unsets it with None. Returns the one
 * before, or None. */
PyObject *py_device_swap_stream(PyObject *module, PyObject *stream);

void py_device_state_destroy(py_state *state);

#endif
