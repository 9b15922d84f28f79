#include "nccl/driver/cuda_nan.h"

#include "core/lock.h"
#include "core/mem.h"

#define NWIDTHS 4
#define BLOCK_NTHREADS 256u
/* Largest number of thread blocks: enough to occupy any device. */
#define MAX_NBLOCKS 1024u
#define THREAD_NBYTES 16u /* bytes that a thread reads at a time: WIDE_NBYTES of nan_kernel.cu */

/* The PTX code of nan_kernel.cu, compiled by tools/make_nan_ptx.py. */
const char dd_nan_ptx[] =
#include "nccl/driver/nan_ptx.inc"
    ;

typedef enum nan_state {
    NAN_UNKNOWN,
    NAN_READY,
    NAN_REFUSED,
} nan_state;

typedef struct nan_device {
    _Atomic(nan_state) state; /* fields below are constant once state is not NAN_UNKNOWN */
    dd_cuda_context context;
    dd_cuda_module module;
    dd_cuda_function functions[NWIDTHS]; /* kernels for floats of 1, 2, 4 and 8 bytes */
} nan_device;

typedef struct stale_report {
    struct stale_report *next;
    dd_cuda_nan_report *report;
} stale_report;

struct dd_cuda_nan {
    const dd_cuda_api *api;
    int ndevices;
    dd_lock mu;
    stale_report *stale;  /* guarded by mu; reports that graphs may still write */
    nan_device devices[]; /* ndevices elements; each is written once, under mu */
};

dd_cuda_nan *
dd_cuda_nan_create(const dd_cuda_api *api, int ndevices)
{
    dd_cuda_nan *nan = dd_mem_zalloc(sizeof *nan + (size_t)ndevices * sizeof(nan_device));
    if (nan != NULL) {
        nan->api = api;
        nan->ndevices = ndevices;
        dd_lock_init(&nan->mu, DD_LOCK_CUDA_NAN);
    }
    return nan;
}

void
dd_cuda_nan_destroy(dd_cuda_nan *nan)
{
    if (nan == NULL) {
        return;
    }
    /* Ignore failures, because the process is ending. */
    for (int number = 0; number < nan->ndevices; number++) {
        nan_device *device = &nan->devices[number];
        if (device->module != NULL && nan->api->cuCtxPushCurrent(device->context) == DD_CUDA_SUCCESS) {
            dd_cuda_context popped;
            (void)nan->api->cuModuleUnload(device->module);
            (void)nan->api->cuCtxPopCurrent(&popped);
        }
    }
    while (nan->stale != NULL) {
        stale_report *stale = nan->stale;
        nan->stale = stale->next;
        (void)nan->api->cuMemFreeHost((void *)(uintptr_t)stale->report);
        dd_mem_free(stale);
    }
    dd_lock_fini(&nan->mu);
    dd_mem_free(nan);
}

/* ---- the kernels */

static bool
load_kernels(const dd_cuda_api *api, nan_device *device)
{
    static const char *const names[NWIDTHS] = {"dd_find_nan_8", "dd_find_nan_16", "dd_find_nan_32",
                                               "dd_find_nan_64"};
    if (api->cuModuleLoadData == NULL || api->cuModuleUnload == NULL || api->cuModuleGetFunction == NULL ||
        api->cuLaunchKernel == NULL || api->cuCtxGetCurrent(&device->context) != DD_CUDA_SUCCESS ||
        api->cuModuleLoadData(&device->module, dd_nan_ptx) != DD_CUDA_SUCCESS) {
        device->module = NULL;
        return false;
    }
    for (int i = 0; i < NWIDTHS; i++) {
        if (api->cuModuleGetFunction(&device->functions[i], device->module, names[i]) != DD_CUDA_SUCCESS) {
            return false;
        }
    }
    return true;
}

bool
dd_cuda_nan_is_ready(dd_cuda_nan *nan, int number)
{
    nan_device *device = &nan->devices[number];
    nan_state state = atomic_load_explicit(&device->state, memory_order_acquire);
    if (state == NAN_UNKNOWN) {
        dd_lock_take(&nan->mu);
        state = atomic_load_explicit(&device->state, memory_order_relaxed);
        if (state == NAN_UNKNOWN) {
            state = load_kernels(nan->api, device) ? NAN_READY : NAN_REFUSED;
            atomic_store_explicit(&device->state, state, memory_order_release);
        }
        dd_lock_release(&nan->mu);
    }
    return state == NAN_READY;
}

static dd_cuda_function
function_of(const nan_device *device, unsigned width)
{
    switch (width) {
    case 1:
        return device->functions[0];
    case 2:
        return device->functions[1];
    case 4:
        return device->functions[2];
    default:
        return device->functions[3];
    }
}

dd_cuda_result
dd_cuda_nan_enqueue(const dd_cuda_nan *nan, int number, const dd_cuda_nan_search *search,
                    dd_cuda_stream stream)
{
    const uint64_t block_nbytes = (uint64_t)BLOCK_NTHREADS * THREAD_NBYTES;
    uint64_t nblocks = (search->nfloats * search->width + block_nbytes - 1) / block_nbytes;
    dd_cuda_ptr data = (dd_cuda_ptr)(uintptr_t)search->data;
    /* Pass the host address: 64-bit drivers map pinned memory at the same address everywhere. */
    dd_cuda_ptr report = (dd_cuda_ptr)(uintptr_t)search->report;
    uint64_t nfloats = search->nfloats;
    uint64_t limit = search->limit;
    uint64_t key = search->key;
    void *params[] = {&data, &nfloats, &limit, &key, &report};
    return nan->api->cuLaunchKernel(function_of(&nan->devices[number], search->width),
                                    nblocks < MAX_NBLOCKS ? (unsigned)nblocks : MAX_NBLOCKS, 1, 1,
                                    BLOCK_NTHREADS, 1, 1, 0, stream, params, NULL);
}

/* ---- reports */

dd_cuda_result
dd_cuda_nan_report_create(const dd_cuda_nan *nan, dd_cuda_nan_report **report)
{
    void *memory = NULL;
    dd_cuda_result result = nan->api->cuMemHostAlloc(&memory, sizeof **report, DD_CUDA_MEMHOSTALLOC_PORTABLE);
    if (result == DD_CUDA_SUCCESS) {
        *report = memory;
        atomic_init(*report, DD_CUDA_NAN_NONE);
    }
    return result;
}

void
dd_cuda_nan_report_retire(dd_cuda_nan *nan, dd_cuda_nan_report *report)
{
    stale_report *stale = report != NULL ? dd_mem_alloc(sizeof *stale) : NULL;
    if (stale == NULL) {
        return; /* leak the report, for lack of memory */
    }
    dd_lock_take(&nan->mu);
    *stale = (stale_report){.next = nan->stale, .report = report};
    nan->stale = stale;
    dd_lock_release(&nan->mu);
}
