/* The CUDA driver, loaded at run time: its functions, devices and primary contexts. The CUDA
 * runtime uses the same contexts, so streams, events and memory of PyTorch, CuPy and JAX work. */
#ifndef DD_NCCL_DRIVER_CUDA_H
#define DD_NCCL_DRIVER_CUDA_H

#include "core/status.h"
#include "nccl/driver/cuda_api.h"
#include "nccl/driver/cuda_nan.h"

#include <stdbool.h>

typedef struct dd_cuda_contexts dd_cuda_contexts;

/* The loaded driver, constant once open. Call functions directly: cuda->api.cuEventQuery(...). */
typedef struct dd_cuda {
    dd_cuda_api api;
    const char *path;           /* path of the loaded library */
    int driver_version;         /* CUDA version of the driver, such as 13000 for 13.0 */
    int ndevices;               /* number of devices; at least 1 */
    dd_cuda_contexts *contexts; /* owned; devices' contexts and pools; has its own lock */
    dd_cuda_nan *nan;           /* owned; kernels that search for NaN; has its own lock */
} dd_cuda;

/* Load the driver; explicit_path may be NULL. DD_NOT_SUPPORTED if there is no driver (the message
 * has each path tried and why it failed) or no device. */
dd_status dd_cuda_open(const char *explicit_path, dd_cuda **cuda, dd_error *err) DD_MUST_CHECK;
/* Release the contexts; `cuda` may be NULL. Must be called after all their users have ended. */
void dd_cuda_close(dd_cuda *cuda);

/* Return DD_INVALID_ARGUMENT if there is no such device; the message has the number of devices. */
dd_status dd_cuda_check_device(const dd_cuda *cuda, int device, dd_error *err) DD_MUST_CHECK;
/* Return the device's primary context; the first call retains it. May be called from any thread. */
dd_status dd_cuda_context_of(const dd_cuda *cuda, int device, dd_cuda_context *context,
                             dd_error *err) DD_MUST_CHECK;
/* Return the device's pool for stream-ordered memory; the first call creates it. All devices that
 * can reach this one have access: NCCL reads buffers of ranks in one process directly. NULL if the
 * driver or device has no pools. For any thread; the device's context must be current. */
dd_cuda_pool dd_cuda_pool_of(const dd_cuda *cuda, int device);
/* Return true if the memory at `data` was made by cuMemCreate, as ncclMemAlloc does: only such
 * memory can become an NCCL window. Also true if the driver cannot tell. */
bool dd_cuda_is_mapped_memory(const dd_cuda *cuda, void *data);
/* Return the device of the calling thread's current context; DD_CUDA_NO_CURRENT if it has none. */
#define DD_CUDA_NO_CURRENT (-1)
dd_status dd_cuda_current_device(const dd_cuda *cuda, int *device, dd_error *err) DD_MUST_CHECK;

/* Convert a CUDA result into a status: DD_OK, or DD_BACKEND with a message such as "<label>:
 * CUDA_ERROR_INVALID_VALUE (1): invalid argument". `label` is a format for the name of the call,
 * such as "cuEventRecord on device 1". */
dd_status dd_cuda_check(const dd_cuda *cuda, dd_cuda_result result, dd_error *err, const char *label, ...)
    DD_PRINTF(4, 5) DD_MUST_CHECK;
/* Return true if the driver is shutting down as the process exits; then do not free anything. */
bool dd_cuda_is_shutting_down(dd_cuda_result result);
bool dd_cuda_is_shut_down(const dd_cuda *cuda);

/* Let the calling thread query, allocate and free without invalidating captures of CUDA graphs by
 * any thread. Returns the previous mode, which the caller must pass to dd_cuda_restore_capture. */
dd_cuda_capture_mode dd_cuda_relax_capture(const dd_cuda *cuda);
void dd_cuda_restore_capture(const dd_cuda *cuda, dd_cuda_capture_mode before);

/* The context that was current before dd_cuda_enter. dd_cuda_leave makes it current again, even if
 * NCCL has changed the current context. Both calls must be on one thread, properly nested. */
typedef struct dd_cuda_guard {
    const dd_cuda *cuda;
    dd_cuda_context before;
    bool is_entered;
} dd_cuda_guard;

dd_status dd_cuda_enter(const dd_cuda *cuda, int device, dd_cuda_guard *guard, dd_error *err) DD_MUST_CHECK;
/* Save the current context without changing it, for a caller that visits several devices. */
dd_status dd_cuda_enter_as_is(const dd_cuda *cuda, dd_cuda_guard *guard, dd_error *err) DD_MUST_CHECK;
void dd_cuda_leave(dd_cuda_guard *guard); /* `guard` may be zeroed, or have been left */

#endif
