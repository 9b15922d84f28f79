/* Functions beyond cu* that the libnccl stub needs from the libcuda stub: its own kinds of work on
 * streams. They are not counted, and no fault is injected. Results are cu* results. */
#ifndef DD_TESTS_CUDA_STUB_TASKS_H
#define DD_TESTS_CUDA_STUB_TASKS_H

#include "stub_control.h"

#include <stdbool.h>

/* Work is launched once when it is enqueued. In a stream that captures, it is launched each time
 * its graph is. */
typedef struct dd_stub_work {
    void *(*launch)(
        /* Called each time the work is placed on a stream; its result is the argument of `run`. It
         * must not block. May be NULL. */
        void *ctx);
    void (*run)(void *ctx, void *launched);
    void (*release)(void *ctx); /* called after the last launch; may be NULL */
    void *ctx;
} dd_stub_work;

/* Take over the work. It is also released on failure. */
DD_STUB_EXPORT int dd_stub_enqueue(void *stream, const dd_stub_work *work);
/* Make later work of `later` wait for the present work of `earlier`. Takes part in captures as an
 * event would. */
DD_STUB_EXPORT int dd_stub_join(void *earlier, void *later);
/* Same as cuEventRecord. */
DD_STUB_EXPORT int dd_stub_record(void *event, void *stream);
DD_STUB_EXPORT int dd_stub_stream_device(void *stream, int *device);
DD_STUB_EXPORT bool dd_stub_is_capturing(void *stream);
/* Return the device of the calling thread, 0 if none is current, as in the CUDA runtime. */
DD_STUB_EXPORT int dd_stub_current_device(int *device);
/* Set the device of the calling thread (-1: none). Return the previous one. */
DD_STUB_EXPORT int dd_stub_exchange_device(int device);
/* Return the device of the nbytes at data; -1: host memory that the driver knows; -2: memory that
 * it does not know, at least in part. */
DD_STUB_EXPORT int dd_stub_memory_device(const void *data, size_t nbytes);
/* Return true if other devices of the process cannot read the memory. */
DD_STUB_EXPORT int dd_stub_is_private(const void *data);
/* Wait until the device has finished all present work of its streams. */
DD_STUB_EXPORT void dd_stub_wait_device(int device);
/* Check a call that CUDA's modes do not allow during a capture: return 0, or the result for the
 * caller. */
DD_STUB_EXPORT int dd_stub_check_unsafe(void);
/* Memory that other processes can map. */
DD_STUB_EXPORT int dd_stub_alloc(int device, size_t nbytes, void **data);
DD_STUB_EXPORT int dd_stub_free(void *data);
typedef struct dd_stub_file {
    int file; /* a descriptor of this process */
    size_t nbytes;
    size_t offset; /* of the address */
} dd_stub_file;
/* Find the file of an address in memory of dd_stub_alloc. Return false if there is none. */
DD_STUB_EXPORT bool dd_stub_find_file(const void *data, dd_stub_file *found);

#endif
