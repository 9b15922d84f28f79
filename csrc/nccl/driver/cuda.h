/* The CUDA driver, loaded at run time: its functions, its devices, and their primary contexts.
 *
 * Primary contexts are what the CUDA runtime uses, too, so streams, events and memory of torch, CuPy and JAX are good here. */
#ifndef DD_NCCL_DRIVER_CUDA_H
#define DD_NCCL_DRIVER_CUDA_H

#include "core/status.h"
#include "nccl/driver/cuda_api.h"
#include "nccl/driver/cuda_nan.h"

#include <stdbool.h>

typedef struct dd_cuda_contexts dd_cuda_contexts;

/* Constant once it is open; everybody calls cuda->api.cuEventQuery(...). */
typedef struct dd_cuda {
    dd_cuda_api api;
    const char *path;           /* of the library */
    int driver_version;         /* 13000 is 13.0 */
    int ndevices;               /* at least 1 */
    dd_cuda_contexts *contexts; /* owned; has a lock */
    dd_cuda_nan *nan;           /* owned; has a lock */
} dd_cuda;

/* explicit_path may be NULL. DD_NOT_SUPPORTED: no driver (everything tried and why it failed), or no device. */
dd_status dd_cuda_open(const char *explicit_path, dd_cuda **cuda, dd_error *err) DD_MUST_CHECK;
/* Lets the contexts go, after everything that uses them. NULL is fine. */
void dd_cuda_close(dd_cuda *cuda);

/* DD_INVALID_ARGUMENT, naming how many there are. */
dd_status dd_cuda_check_device(const dd_cuda *cuda, int device, dd_error *err) DD_MUST_CHECK;
/* The device's primary context, retained by the first caller. Any thread. */
dd_status dd_cuda_context_of(const dd_cuda *cuda, int device, dd_cuda_context *context,
                             dd_error *err) DD_MUST_CHECK;
/* Memory of the device, ordered on streams, that all devices of the process can reach: NCCL reads buffers of ranks of one process directly.
 * Made by the first caller. NULL where the driver or the device has none. Any thread, with the device's context current. */
dd_cuda_pool dd_cuda_pool_of(const dd_cuda *cuda, int device);
/* True if the memory at data was made by cuMemCreate, as ncclMemAlloc does: only such memory can be a window of NCCL. Also
 * true if the driver has no way to find out. */
bool dd_cuda_is_mapped_memory(const dd_cuda *cuda, void *data);
/* The device of the calling thread's current context; DD_CUDA_NO_CURRENT where there is none. */
#define DD_CUDA_NO_CURRENT (-1)
dd_status dd_cuda_current_device(const dd_cuda *cuda, int *device, dd_error *err) DD_MUST_CHECK;

/* DD_OK, or DD_BACKEND: "<what>: CUDA_ERROR_INVALID_VALUE (1): invalid argument". `what` names the call: "cuEventRecord on device 1". */
dd_status dd_cuda_check(const dd_cuda *cuda, dd_cuda_result result, dd_error *err, const char *what, ...)
    DD_PRINTF(4, 5) DD_MUST_CHECK;
/* CUDA says so while the process ends: nothing is left to be freed, and nobody is to hear about it. */
bool dd_cuda_is_shutting_down(dd_cuda_result result);
/* Asks the driver. */
bool dd_cuda_is_gone(const dd_cuda *cuda);

/* While somebody captures a graph, a question to the device, or memory that is made or freed, spoils the capture, unless the thread that asks
 * says that it has nothing to do with it. Says so for the calling thread; gives what it said before, to be restored. */
dd_cuda_capture_mode dd_cuda_relax_capture(const dd_cuda *cuda);
void dd_cuda_restore_capture(const dd_cuda *cuda, dd_cuda_capture_mode before);

/* Makes a device's primary context the calling thread's current one until leave, which puts the caller's back, whatever NCCL
 * has set in between. One thread, properly nested. */
typedef struct dd_cuda_guard {
    const dd_cuda *cuda;
    dd_cuda_context before;
    bool is_entered;
} dd_cuda_guard;

dd_status dd_cuda_enter(const dd_cuda *cuda, int device, dd_cuda_guard *guard, dd_error *err) DD_MUST_CHECK;
/* For many devices in turn: only remembers what is current. */
dd_status dd_cuda_enter_as_is(const dd_cuda *cuda, dd_cuda_guard *guard, dd_error *err) DD_MUST_CHECK;
void dd_cuda_leave(dd_cuda_guard *guard); /* a zeroed guard, and one that has left, are fine */

#endif
