#include "nccl/driver/cuda.h"

#include "core/dylib.h"
#include "core/fork.h"
#include "core/lock.h"
#include "core/mem.h"
#include "core/thread.h"

#include <stdarg.h>
#include <stdio.h>

/* The process's context and memory pool on a device. */
typedef struct held_device {
    dd_cuda_context context; /* NULL before the first use */
    dd_cuda_pool pool;       /* NULL before the first use, or if the device has no pools */
    bool has_queried_pool;
} held_device;

struct dd_cuda_contexts {
    dd_dylib lib;             /* const after dd_cuda_open */
    uint64_t fork_generation; /* const after dd_cuda_open */
    dd_lock mu;
    held_device of[]; /* guarded by mu; ndevices elements */
};

#define SYMBOL_REQUIRED(field, symbol, params) {#symbol, offsetof(dd_cuda_api, field), false},
#define SYMBOL_OPTIONAL(field, symbol, params) {#symbol, offsetof(dd_cuda_api, field), true},

static const dd_dylib_symbol CUDA_SYMBOLS[] = {DD_CUDA_REQUIRED(SYMBOL_REQUIRED)
                                                   DD_CUDA_OPTIONAL(SYMBOL_OPTIONAL)};

static const dd_dylib_spec CUDA_SPEC = {.label = "the CUDA driver",
                                        .sonames = {"libcuda.so.1", "libcuda.so"},
                                        .probe = "cuDriverGetVersion",
                                        .symbols = CUDA_SYMBOLS,
                                        .nsymbols = sizeof CUDA_SYMBOLS / sizeof CUDA_SYMBOLS[0]};

/* Initialise the driver. Every failure is DD_NOT_SUPPORTED, because it depends on the machine. */
static dd_status
start_driver(dd_cuda *cuda, dd_error *err)
{
    dd_status status = dd_cuda_check(cuda, cuda->api.cuInit(0), err, "cuInit");
    if (status == DD_OK) {
        status = dd_cuda_check(cuda, cuda->api.cuDriverGetVersion(&cuda->driver_version), err,
                               "cuDriverGetVersion");
    }
    if (status == DD_OK) {
        status = dd_cuda_check(cuda, cuda->api.cuDeviceGetCount(&cuda->ndevices), err, "cuDeviceGetCount");
    }
    if (status == DD_OK && cuda->ndevices < 1) {
        status = dd_error_set(err, DD_NOT_SUPPORTED, "no CUDA device is visible: check CUDA_VISIBLE_DEVICES");
    }
    if (status != DD_OK) {
        dd_error_prepend(err, "the CUDA driver cannot be used");
        if (err != NULL) {
            err->code = DD_NOT_SUPPORTED;
        }
        return DD_NOT_SUPPORTED;
    }
    return DD_OK;
}

static dd_status
contexts_create(dd_cuda *cuda, dd_dylib *lib, dd_error *err)
{
    size_t size = sizeof(dd_cuda_contexts) + (size_t)cuda->ndevices * sizeof(held_device);
    dd_cuda_contexts *contexts = dd_mem_zalloc(size);
    if (contexts == NULL) {
        return dd_error_no_memory(err, size);
    }
    cuda->nan = dd_cuda_nan_create(&cuda->api, cuda->ndevices);
    if (cuda->nan == NULL) {
        dd_mem_free(contexts);
        return dd_error_no_memory(err, size);
    }
    contexts->lib = *lib;
    *lib = (dd_dylib){0};
    contexts->fork_generation = dd_fork_generation();
    dd_lock_init(&contexts->mu, DD_LOCK_CUDA_CONTEXTS);
    cuda->contexts = contexts;
    cuda->path = contexts->lib.path;
    return DD_OK;
}

dd_status
dd_cuda_open(const char *explicit_path, dd_cuda **opened, dd_error *err)
{
    dd_cuda *cuda = dd_mem_zalloc(sizeof *cuda);
    if (cuda == NULL) {
        return dd_error_no_memory(err, sizeof *cuda);
    }
    dd_dylib lib = {0};
    dd_dylib_search search = {.explicit_path = explicit_path};
    dd_status status = dd_dylib_load(&CUDA_SPEC, &search, &lib, &cuda->api, NULL, err);
    if (status == DD_OK) {
        status = start_driver(cuda, err);
    }
    if (status == DD_OK) {
        status = contexts_create(cuda, &lib, err);
    }
    dd_dylib_fini(&lib);
    if (status != DD_OK) {
        dd_mem_free(cuda);
        return status;
    }
    *opened = cuda;
    return DD_OK;
}

/* Release a device's pool and context. Ignore failures, because the process is ending. */
static void
release_device(const dd_cuda *cuda, int device)
{
    held_device *held = &cuda->contexts->of[device];
    if (held->pool != NULL) {
        (void)cuda->api.cuMemPoolDestroy(held->pool);
    }
    if (held->context != NULL) {
        (void)cuda->api.cuDevicePrimaryCtxRelease(device);
    }
}

void
dd_cuda_close(dd_cuda *cuda)
{
    if (cuda == NULL) {
        return;
    }
    dd_cuda_contexts *contexts = cuda->contexts;
    if (contexts->fork_generation == dd_fork_generation()) {
        dd_cuda_nan_destroy(cuda->nan);
        for (int device = 0; device < cuda->ndevices; device++) {
            release_device(cuda, device);
        }
        dd_lock_fini(&contexts->mu);
    }
    dd_dylib_fini(&contexts->lib);
    dd_mem_free(contexts);
    dd_mem_free(cuda);
}

dd_status
dd_cuda_check_device(const dd_cuda *cuda, int device, dd_error *err)
{
    if (device < 0 || device >= cuda->ndevices) {
        return dd_error_set(err, DD_INVALID_ARGUMENT, "unknown CUDA device: got %d, expected 0 to %d", device,
                            cuda->ndevices - 1);
    }
    return DD_OK;
}

static dd_status
retain_locked(const dd_cuda *cuda, int device, dd_error *err)
{
    dd_cuda_device handle;
    dd_status status =
        dd_cuda_check(cuda, cuda->api.cuDeviceGet(&handle, device), err, "cuDeviceGet %d", device);
    if (status != DD_OK) {
        return status;
    }
    return dd_cuda_check(cuda,
                         cuda->api.cuDevicePrimaryCtxRetain(&cuda->contexts->of[device].context, handle), err,
                         "cuDevicePrimaryCtxRetain of device %d", device);
}

dd_status
dd_cuda_context_of(const dd_cuda *cuda, int device, dd_cuda_context *context, dd_error *err)
{
    dd_status status = dd_cuda_check_device(cuda, device, err);
    if (status != DD_OK) {
        return status;
    }
    dd_cuda_contexts *contexts = cuda->contexts;
    dd_lock_take(&contexts->mu);
    if (contexts->of[device].context == NULL) {
        status = retain_locked(cuda, device, err);
    }
    *context = contexts->of[device].context;
    dd_lock_release(&contexts->mu);
    return status;
}

/* ---- memory */

bool
dd_cuda_is_mapped_memory(const dd_cuda *cuda, void *data)
{
    const dd_cuda_api *api = &cuda->api;
    if (api->cuMemRetainAllocationHandle == NULL || api->cuMemRelease == NULL) {
        return true;
    }
    dd_cuda_memory_handle handle;
    bool is_mapped = api->cuMemRetainAllocationHandle(&handle, data) == DD_CUDA_SUCCESS;
    if (is_mapped) {
        (void)api->cuMemRelease(handle);
    }
    return is_mapped;
}

/* ---- pools */

static bool
has_pools(const dd_cuda *cuda, dd_cuda_device device)
{
    int has = 0;
    const dd_cuda_api *api = &cuda->api;
    return api->cuMemPoolCreate != NULL && api->cuMemPoolDestroy != NULL && api->cuMemPoolSetAccess != NULL &&
           api->cuMemAllocFromPoolAsync != NULL && api->cuMemFreeAsync != NULL &&
           api->cuDeviceCanAccessPeer != NULL &&
           api->cuDeviceGetAttribute(&has, DD_CUDA_DEVICE_MEMORY_POOLS_SUPPORTED, device) ==
               DD_CUDA_SUCCESS &&
           has != 0;
}

/* Let all devices that can reach this device access the pool's memory. */
static bool
open_to_peers(const dd_cuda *cuda, dd_cuda_pool pool, int device)
{
    dd_cuda_access *accesses = dd_mem_alloc_array((size_t)cuda->ndevices, sizeof *accesses);
    size_t n = 0;
    for (int peer = 0; accesses != NULL && peer < cuda->ndevices; peer++) {
        int can = 0;
        if (peer != device && cuda->api.cuDeviceCanAccessPeer(&can, peer, device) == DD_CUDA_SUCCESS && can) {
            accesses[n++] = (dd_cuda_access){.location = {DD_CUDA_LOCATION_DEVICE, peer},
                                             .flags = DD_CUDA_ACCESS_READWRITE};
        }
    }
    bool is_open =
        accesses != NULL && (n == 0 || cuda->api.cuMemPoolSetAccess(pool, accesses, n) == DD_CUDA_SUCCESS);
    dd_mem_free(accesses);
    return is_open;
}

/* Create a memory pool. NULL after any failure: callers can work without a pool. */
static dd_cuda_pool
make_pool(const dd_cuda *cuda, int device)
{
    dd_cuda_device handle;
    dd_cuda_pool pool = NULL;
    if (cuda->api.cuDeviceGet(&handle, device) != DD_CUDA_SUCCESS || !has_pools(cuda, handle)) {
        return NULL;
    }
    dd_cuda_pool_props props = {.allocType = DD_CUDA_ALLOCATION_PINNED,
                                .location = {DD_CUDA_LOCATION_DEVICE, device}};
    if (cuda->api.cuMemPoolCreate(&pool, &props) != DD_CUDA_SUCCESS) {
        return NULL;
    }
    if (!open_to_peers(cuda, pool, device)) {
        (void)cuda->api.cuMemPoolDestroy(pool);
        return NULL;
    }
    return pool;
}

dd_cuda_pool
dd_cuda_pool_of(const dd_cuda *cuda, int device)
{
    held_device *held = &cuda->contexts->of[device];
    dd_lock_take(&cuda->contexts->mu);
    if (!held->has_queried_pool) {
        held->has_queried_pool = true;
        held->pool = make_pool(cuda, device);
    }
    dd_cuda_pool pool = held->pool;
    dd_lock_release(&cuda->contexts->mu);
    return pool;
}

/* ---- the current context */

dd_status
dd_cuda_current_device(const dd_cuda *cuda, int *device, dd_error *err)
{
    dd_cuda_context current;
    dd_status status = dd_cuda_check(cuda, cuda->api.cuCtxGetCurrent(&current), err, "cuCtxGetCurrent");
    if (status != DD_OK) {
        return status;
    }
    if (current == NULL) {
        *device = DD_CUDA_NO_CURRENT;
        return DD_OK;
    }
    return dd_cuda_check(cuda, cuda->api.cuCtxGetDevice(device), err, "cuCtxGetDevice");
}

dd_status
dd_cuda_check(const dd_cuda *cuda, dd_cuda_result result, dd_error *err, const char *label, ...)
{
    if (result == DD_CUDA_SUCCESS) {
        return DD_OK;
    }
    char call[256];
    va_list args;
    va_start(args, label);
    (void)vsnprintf(call, sizeof call, label, args);
    va_end(args);
    const char *name = NULL;
    const char *text = NULL;
    (void)cuda->api.cuGetErrorName(result, &name);
    (void)cuda->api.cuGetErrorString(result, &text);
    return dd_error_set(err, DD_BACKEND, "%s: %s (%d): %s", call, name != NULL ? name : "CUDA error",
                        (int)result, text != NULL ? text : "unknown to this driver");
}

bool
dd_cuda_is_shutting_down(dd_cuda_result result)
{
    return result == DD_CUDA_DEINITIALIZED;
}

bool
dd_cuda_is_shut_down(const dd_cuda *cuda)
{
    dd_cuda_context current;
    return dd_cuda_is_shutting_down(cuda->api.cuCtxGetCurrent(&current));
}

dd_cuda_capture_mode
dd_cuda_relax_capture(const dd_cuda *cuda)
{
    dd_cuda_capture_mode mode = DD_CUDA_CAPTURE_MODE_RELAXED;
    (void)cuda->api.cuThreadExchangeStreamCaptureMode(&mode);
    return mode;
}

void
dd_cuda_restore_capture(const dd_cuda *cuda, dd_cuda_capture_mode before)
{
    (void)cuda->api.cuThreadExchangeStreamCaptureMode(&before);
}

dd_status
dd_cuda_enter_as_is(const dd_cuda *cuda, dd_cuda_guard *guard, dd_error *err)
{
    *guard = (dd_cuda_guard){.cuda = cuda};
    dd_status status = dd_cuda_check(cuda, cuda->api.cuCtxGetCurrent(&guard->before), err, "cuCtxGetCurrent");
    guard->is_entered = status == DD_OK;
    return status;
}

dd_status
dd_cuda_enter(const dd_cuda *cuda, int device, dd_cuda_guard *guard, dd_error *err)
{
    *guard = (dd_cuda_guard){.cuda = cuda};
    dd_cuda_context context;
    dd_status status = dd_cuda_context_of(cuda, device, &context, err);
    if (status != DD_OK) {
        return status;
    }
    status = dd_cuda_enter_as_is(cuda, guard, err);
    if (status != DD_OK || guard->before == context) {
        return status;
    }
    status =
        dd_cuda_check(cuda, cuda->api.cuCtxSetCurrent(context), err, "cuCtxSetCurrent of device %d", device);
    guard->is_entered = status == DD_OK;
    return status;
}

void
dd_cuda_leave(dd_cuda_guard *guard)
{
    if (guard->is_entered) {
        /* This fails only if the driver or the context has ended: then nothing can be restored. */
        (void)guard->cuda->api.cuCtxSetCurrent(guard->before);
        guard->is_entered = false;
    }
}
