/* The CUDA driver, loaded at run time: its functions, its devices, and their primary contexts. The
 * CUDA runtime also uses these, so streams, events and memory of torch, CuPy and JAX work. */
#ifndef DD_NCCL_DRIVER_CUDA_H
#define DD_NCCL_DRIVER_CUDA_H

#include "core/status.h"
#include "nccl/driver/cuda_api.h"
#include "nccl/driver/cuda_nan.h"

#include <stdbool.h>

typedef struct dd_cuda_contexts dd_cuda_contexts;

/* Constant once it is open. Call functions directly: cuda->api.cuEventQuery(...). */
typedef struct dd_cuda {
    dd_cuda_api api;
    const char *path;           /* the library's file */
    int driver_version;         /* 13000 is 13.0 */
    int ndevices;               /* at least 1 */
    dd_cuda_contexts *contexts; /* owned; has a lock */
    dd_cuda_nan *nan;           /* owned; has a lock */
} dd_cuda;

/* Load the driver; explicit_path may be NULL. DD_NOT_SUPPORTED without a driver (the message has
 * each path tried and why it failed) or without a device. */
dd_status dd_cuda_open(const char *explicit_path, dd_cuda **cuda, dd_error *err) DD_MUST_CHECK;
/* Release the contexts. Call it after everything that uses them has ended. `cuda` may be NULL. */
void dd_cuda_close(dd_cuda *cuda);

/* DD_INVALID_ARGUMENT if there is no such device; the message gives the number of devices. */
dd_status dd_cuda_check_device(const dd_cuda *cuda, int device, dd_error *err) DD_MUST_CHECK;
/* Find the device's primary context; the first call retains it. Any thread. */
dd_status dd_cuda_context_of(const dd_cuda *cuda, int device, dd_cuda_context *context,
                             dd_error *err) DD_MUST_CHECK;
/* Return the pool for stream-ordered device memory, created by the first call. Every device that
 * can reach this one has access: NCCL reads buffers of ranks in one process directly. NULL if the
 * driver or device has no pools. Any thread, with the device's context current. */
dd_cuda_pool dd_cuda_pool_of(const dd_cuda *cuda, int device);
/* True if cuMemCreate made the memory at data, as ncclMemAlloc does: only such memory can become an
 * NCCL window. Also true if the driver cannot tell. */
bool dd_cuda_is_mapped_memory(const dd_cuda *cuda, void *data);
/* Find the device of the calling thread's current context; DD_CUDA_NO_CURRENT if there is none. */
#define DD_CUDA_NO_CURRENT (-1)
dd_status dd_cuda_current_device(const dd_cuda *cuda, int *device, dd_error *err) DD_MUST_CHECK;

/* Turn a result of CUDA into a status: DD_OK, or DD_BACKEND with "<what>: CUDA_ERROR_INVALID_VALUE
 * (1): invalid argument". `what` is a format that gives the call: "cuEventRecord on device 1". */
dd_status dd_cuda_check(const dd_cuda *cuda, dd_cuda_result result, dd_error *err, const char *what, ...)
    DD_PRINTF(4, 5) DD_MUST_CHECK;
/* True if the driver shuts down because the process ends: nothing is left to free or to report. */
bool dd_cuda_is_shutting_down(dd_cuda_result result);
/* Query the driver whether it is shutting down. */
bool dd_cuda_is_gone(const dd_cuda *cuda);

/* Keep the calling thread's queries, allocations and frees from invalidating captures of CUDA
 * graphs by any thread. Returns the previous mode, to be restored. */
dd_cuda_capture_mode dd_cuda_relax_capture(const dd_cuda *cuda);
void dd_cuda_restore_capture(const dd_cuda *cuda, dd_cuda_capture_mode before);

/* The calling thread's context, saved by enter and restored by leave even if NCCL has set another
 * since. Both must run on one thread, properly nested. */
typedef struct dd_cuda_guard {
    const dd_cuda *cuda;
    dd_cuda_context before;
    bool is_entered;
} dd_cuda_guard;

dd_status dd_cuda_enter(const dd_cuda *cuda, int device, dd_cuda_guard *guard, dd_error *err) DD_MUST_CHECK;
/* Only save the current context: for a caller that goes through several devices. */
dd_status dd_cuda_enter_as_is(const dd_cuda *cuda, dd_cuda_guard *guard, dd_error *err) DD_MUST_CHECK;
void dd_cuda_leave(dd_cuda_guard *guard); /* the guard may be zeroed, or have left */

#endif
