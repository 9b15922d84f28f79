/* Memory operations on streams, host functions on streams, and work that tests add: slow writes and
 * gates. */
#include "cuda_stub.h"

#include <stdlib.h>
#include <string.h>

typedef struct stub_copy {
    void *dst;
    const void *src; /* NULL: the data is in `staged` */
    size_t nbytes;   /* of a row */
    size_t nrows;
    size_t dst_pitch;
    size_t src_pitch;
    int value; /* of a memset; -1: none */
    int delay_ms;
    unsigned char staged[];
} stub_copy;

static void
run_copy(void *ctx, void *launched)
{
    (void)launched;
    stub_copy *copy = ctx;
    stub_sleep_ns((int64_t)copy->delay_ms * 1000000);
    const char *src = copy->src != NULL ? copy->src : (const char *)copy->staged;
    for (size_t row = 0; row < copy->nrows; row++) {
        char *dst = (char *)copy->dst + row * copy->dst_pitch;
        if (copy->value >= 0) {
            memset(dst, copy->value, copy->nbytes);
        } else {
            memmove(dst, src + row * copy->src_pitch, copy->nbytes);
        }
    }
}

/* Host memory that the driver does not know is read and written before the call returns. */
static bool
is_pageable(const void *data)
{
    allocation found;
    return !cuda_find_allocation(data, &found);
}

static dd_cuda_result
enqueue_copy(const stub_copy *wanted, dd_cuda_stream handle)
{
    int result;
    stub_stream *stream = cuda_stream_find(handle, &result);
    if (stream == NULL) {
        return (dd_cuda_result)result;
    }
    bool is_staged = wanted->src != NULL && is_pageable(wanted->src);
    size_t nstaged = is_staged ? wanted->nrows * wanted->nbytes : 0;
    stub_copy *made = stub_zalloc(sizeof *made + nstaged);
    *made = *wanted;
    for (size_t row = 0; is_staged && row < wanted->nrows; row++) {
        memcpy(made->staged + row * wanted->nbytes, (const char *)wanted->src + row * wanted->src_pitch,
               wanted->nbytes);
    }
    if (is_staged) {
        made->src = NULL;
        made->src_pitch = wanted->nbytes;
    }
    bool must_wait = wanted->value < 0 && is_pageable(wanted->dst);
    result = cuda_enqueue(stream, &(dd_stub_work){.run = run_copy, .release = free, .ctx = made});
    if (result == 0 && must_wait) {
        pthread_mutex_lock(&cuda_lock);
        if (stream->capture == NULL) {
            cuda_stream_wait_done_locked(stream, stream->nenqueued);
        }
        pthread_mutex_unlock(&cuda_lock);
    }
    cuda_stream_release(stream);
    return (dd_cuda_result)result;
}

static dd_cuda_result
enqueue_plain(void *dst, const void *src, size_t nbytes, dd_cuda_stream stream)
{
    return enqueue_copy(&(stub_copy){.dst = dst, .src = src, .nbytes = nbytes, .nrows = 1, .value = -1},
                        stream);
}

static void *
pointer(dd_cuda_ptr data)
{
    return (void *)(uintptr_t)data;
}

CUDA_EXPORT dd_cuda_result
cuMemcpyAsync(dd_cuda_ptr dst, dd_cuda_ptr src, size_t nbytes, dd_cuda_stream stream)
{
    ENTER(cuMemcpyAsync);
    return enqueue_plain(pointer(dst), pointer(src), nbytes, stream);
}

CUDA_EXPORT dd_cuda_result
cuMemcpyHtoDAsync_v2(dd_cuda_ptr dst, const void *src, size_t nbytes, dd_cuda_stream stream)
{
    ENTER(cuMemcpyHtoDAsync);
    return is_pageable(pointer(dst)) ? DD_CUDA_INVALID_VALUE
                                     : enqueue_plain(pointer(dst), src, nbytes, stream);
}

CUDA_EXPORT dd_cuda_result
cuMemcpyDtoHAsync_v2(void *dst, dd_cuda_ptr src, size_t nbytes, dd_cuda_stream stream)
{
    ENTER(cuMemcpyDtoHAsync);
    return is_pageable(pointer(src)) ? DD_CUDA_INVALID_VALUE
                                     : enqueue_plain(dst, pointer(src), nbytes, stream);
}

/* Return the address of one side of a 2-D copy, or NULL for an unsupported memory type. */
static char *
side_of(dd_cuda_memory_type type, const void *host, dd_cuda_ptr device)
{
    switch (type) {
    case DD_CUDA_MEMORY_HOST:
        return (char *)(uintptr_t)host;
    case DD_CUDA_MEMORY_DEVICE:
    case DD_CUDA_MEMORY_UNIFIED:
        return pointer(device);
    case DD_CUDA_MEMORY_ARRAY:
        break;
    }
    return NULL;
}

CUDA_EXPORT dd_cuda_result
cuMemcpy2DAsync_v2(const dd_cuda_copy_2d *wanted, dd_cuda_stream stream)
{
    ENTER(cuMemcpy2DAsync);
    char *src = side_of(wanted->srcMemoryType, wanted->srcHost, wanted->srcDevice);
    char *dst = side_of(wanted->dstMemoryType, wanted->dstHost, wanted->dstDevice);
    bool is_wide = wanted->Height > 1 && (wanted->srcPitch < wanted->WidthInBytes + wanted->srcXInBytes ||
                                          wanted->dstPitch < wanted->WidthInBytes + wanted->dstXInBytes);
    if (src == NULL || dst == NULL || is_wide) {
        return DD_CUDA_INVALID_VALUE;
    }
    return enqueue_copy(&(stub_copy){.dst = dst + wanted->dstY * wanted->dstPitch + wanted->dstXInBytes,
                                     .src = src + wanted->srcY * wanted->srcPitch + wanted->srcXInBytes,
                                     .nbytes = wanted->WidthInBytes,
                                     .nrows = wanted->Height,
                                     .dst_pitch = wanted->dstPitch,
                                     .src_pitch = wanted->srcPitch,
                                     .value = -1},
                        stream);
}

CUDA_EXPORT dd_cuda_result
cuMemsetD8Async(dd_cuda_ptr dst, unsigned char value, size_t nbytes, dd_cuda_stream stream)
{
    ENTER(cuMemsetD8Async);
    return enqueue_copy(&(stub_copy){.dst = pointer(dst), .nbytes = nbytes, .nrows = 1, .value = value},
                        stream);
}

int
dd_stub_slow_write(void *stream, void *dst, const void *src, size_t nbytes, int ms)
{
    stub_copy wanted = {.dst = dst, .src = src, .nbytes = nbytes, .nrows = 1, .value = -1, .delay_ms = ms};
    return (int)enqueue_copy(&wanted, stream);
}

/* ---- host functions */

typedef struct host_call {
    void (*function)(void *arg);
    void *arg;
} host_call;

static void
run_host_call(void *ctx, void *launched)
{
    (void)launched;
    host_call *call = ctx;
    call->function(call->arg);
}

CUDA_EXPORT dd_cuda_result
cuLaunchHostFunc(dd_cuda_stream stream, void (*function)(void *arg), void *arg)
{
    ENTER(cuLaunchHostFunc);
    host_call *call = stub_zalloc(sizeof *call);
    *call = (host_call){.function = function, .arg = arg};
    return (dd_cuda_result)dd_stub_enqueue(
        stream, &(dd_stub_work){.run = run_host_call, .release = free, .ctx = call});
}

/* ---- gates */

#define NGATES 256
static bool is_gate_open[NGATES]; /* under cuda_lock */

static void
run_gate(void *ctx, void *launched)
{
    (void)launched;
    pthread_mutex_lock(&cuda_lock);
    while (!is_gate_open[(uintptr_t)ctx]) {
        pthread_cond_wait(&cuda_changed, &cuda_lock);
    }
    pthread_mutex_unlock(&cuda_lock);
}

int
dd_stub_gate(void *stream, int gate)
{
    if (gate < 0 || gate >= NGATES) {
        return DD_CUDA_INVALID_VALUE;
    }
    return dd_stub_enqueue(stream, &(dd_stub_work){.run = run_gate, .ctx = (void *)(uintptr_t)gate});
}

void
dd_stub_open_gate(int gate)
{
    pthread_mutex_lock(&cuda_lock);
    if (gate >= 0 && gate < NGATES) {
        is_gate_open[gate] = true;
    }
    pthread_cond_broadcast(&cuda_changed);
    pthread_mutex_unlock(&cuda_lock);
}
