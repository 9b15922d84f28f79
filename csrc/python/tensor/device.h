/* Tensors in the memory of CUDA devices: on which device they are, and on which stream their library works.
 *
 * A library whose stream is known exports without synchronising, and the operation waits for that stream; the library's stream
 * is asked for again when the work is waited for. Others order themselves before the stream of the group
 * (`__dlpack__(stream=...)`), and it is the host that waits for the end. */
#ifndef DD_PYTHON_TENSOR_DEVICE_H
#define DD_PYTHON_TENSOR_DEVICE_H

#include "python/base/argument.h"
#include "python/tensor/type.h"

#include <stdbool.h>
#include <stdint.h>

/* DLDeviceType: what NCCL works with. */
#define PY_DEVICE_CUDA 2
#define PY_DEVICE_CUDA_MANAGED 13

#define PY_NO_DEVICE (-1)
#define PY_MAX_STREAMS 6

typedef enum py_stream_kind {
    PY_STREAM_EXPLICIT, /* what dldist.nccl.stream() says on this thread */
    PY_STREAM_DEFAULT,  /* the device's default stream: memory of ours, which belongs to no library */
    PY_STREAM_EXCHANGE, /* DLPack's exchange API of the type */
    PY_STREAM_TORCH,
    PY_STREAM_CUPY,
} py_stream_kind;

typedef struct py_stream {
    py_stream_kind kind;
    dl_current_stream ask; /* EXCHANGE */
    void *handle;          /* at the call */
} py_stream;

/* The devices and streams of the tensors of one call. */
typedef struct py_device_scope {
    py_state *state; /* NULL: only memory of the host is wanted, and nothing below counts */
    /* The stream that producers order themselves before; false with an exception. NULL: the default one */
    bool (*find_stream)(void *ctx, int device, void **stream);
    void *ctx;
    int device;         /* that all tensors are on; PY_NO_DEVICE: none has come yet */
    bool is_host_taken; /* memory of the host, too: it is staged */
    bool has_host;      /* there was some */
    bool is_blocking;   /* the stream of one of the producers is not known */
    /* All memory is of allocators (torch's, CuPy's) that give it to later users of the same stream, which a call that has returned has made
     * wait: nothing has to be kept until the device is through, just as nobody keeps the tensors of a kernel. A tensor that was made
     * on another stream than it is used on is its user's to look after (record_stream), as with any kernel. */
    bool is_stream_ordered;
    size_t nstreams;
    py_stream streams[PY_MAX_STREAMS]; /* all different */
} py_device_scope;

void py_device_scope_init(py_device_scope *scope, py_state *state);

/* Whether DLDeviceType is what NCCL can work with. */
bool py_device_is_cuda(int device_type);

/* 1 where an object's memory is a CUDA device's, 0 where it is not; -1 with an exception. */
int py_device_has(const py_argument *argument);

/* Notes the stream of a tensor that has come by the exchange API. False with an exception. */
bool py_device_note_exchange(py_device_scope *scope, const py_tensor_facts *facts, int device,
                             const py_argument *argument);
/* The same for memory of ours. */
bool py_device_note_own(py_device_scope *scope, int device, const py_argument *argument);

/* What __dlpack__ of the argument is to be told: sets *stream to a new reference, NULL for nothing (memory of the CPU). False with an
 * exception. */
bool py_device_choose_stream(py_device_scope *scope, const py_tensor_facts *facts,
                             const py_argument *argument, PyObject **stream);

/* Counts a tensor in; DistArgumentError when it is on another device than those before, or where NCCL cannot work. */
bool py_device_take(py_device_scope *scope, const py_tensor *tensor, const py_argument *argument);

/* The streams of the scope's libraries as they are on this thread now. False with an exception. */
bool py_device_ask_streams(const py_device_scope *scope, void *handles[PY_MAX_STREAMS]);

/* A stream given as an int, an object with __cuda_stream__, or torch's and CuPy's objects. */
bool py_device_read_stream(const py_argument *argument, void **stream);

/* _swap_stream(stream): makes it the stream that this thread works on, None for nobody's; returns the one before. */
PyObject *py_device_swap_stream(PyObject *module, PyObject *stream);

void py_device_state_destroy(py_state *state);

#endif
