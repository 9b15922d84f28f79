/* What the double of libnccl needs of that of libcuda beyond cu*: its own kinds of work on streams. Not counted, and no fault
 * is injected here. Results are those of cu*. */
#ifndef DD_TESTS_CUDA_STUB_TASKS_H
#define DD_TESTS_CUDA_STUB_TASKS_H

#include "stub_control.h"

#include <stdbool.h>

/* Is launched once when it is enqueued; in a stream that captures, as often as its graph is. */
typedef struct dd_stub_work {
    void *(*launch)(
        void *
            ctx); /* each time it gets its place on a stream: what `run` is given. NULL: nothing. Must not block */
    void (*run)(void *ctx, void *launched);
    void (*release)(void *ctx); /* it is not launched again. NULL: nothing to do */
    void *ctx;
} dd_stub_work;

/* Takes the work; releases it also on failure. */
DD_STUB_EXPORT int dd_stub_enqueue(void *stream, const dd_stub_work *work);
/* What `later` holds from now on waits for what `earlier` holds now. Part of a capture as an event would be. */
DD_STUB_EXPORT int dd_stub_join(void *earlier, void *later);
/* As cuEventRecord. */
DD_STUB_EXPORT int dd_stub_record(void *event, void *stream);
DD_STUB_EXPORT int dd_stub_stream_device(void *stream, int *device);
DD_STUB_EXPORT bool dd_stub_is_capturing(void *stream);
/* Of the calling thread; 0 where nothing is current, as the runtime has it. */
DD_STUB_EXPORT int dd_stub_current_device(int *device);
/* Makes another device the calling thread's (-1: none) and gives the one before. */
DD_STUB_EXPORT int dd_stub_exchange_device(int device);
/* The device that the nbytes at data are on; -1: host memory that the driver knows; -2: memory that it does not, or not all of it. */
DD_STUB_EXPORT int dd_stub_memory_device(const void *data, size_t nbytes);
/* Whether other devices of the process cannot read it. */
DD_STUB_EXPORT int dd_stub_is_private(const void *data);
/* Until the device has done all that its streams hold now. */
DD_STUB_EXPORT void dd_stub_wait_device(int device);
/* For calls that are not allowed while somebody captures, as CUDA's modes say: 0, or the result for the caller. */
DD_STUB_EXPORT int dd_stub_check_unsafe(void);
/* Memory that other processes can map. */
DD_STUB_EXPORT int dd_stub_alloc(int device, size_t nbytes, void **data);
DD_STUB_EXPORT int dd_stub_free(void *data);
typedef struct dd_stub_file {
    int file; /* a descriptor of this process */
    size_t nbytes;
    size_t offset; /* of the address */
} dd_stub_file;
/* Of an address in memory of dd_stub_alloc; false when it is in none. */
DD_STUB_EXPORT bool dd_stub_find_file(const void *data, dd_stub_file *found);

#endif
