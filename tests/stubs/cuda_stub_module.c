/* Modules and kernels. dldist has one module, whose kernels run as C code, one thread after the
 * other. */
#include "cuda_stub.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- csrc/nccl/driver/nan_kernel.cu, with replacements for the names of CUDA */

typedef struct dim3 {
    unsigned int x;
} dim3;
typedef struct ulonglong2 {
    unsigned long long x;
    unsigned long long y;
} __attribute__((aligned(16))) ulonglong2;
static _Thread_local dim3 gridDim;
static _Thread_local dim3 blockDim;
static _Thread_local dim3 blockIdx;
static _Thread_local dim3 threadIdx;

#define DD_KERNEL static void
#define DD_DEVICE static
#define DD_PEEK(address) __atomic_load_n((address), __ATOMIC_RELAXED)

static void
atomicMin(unsigned long long *address, unsigned long long value)
{
    unsigned long long old = __atomic_load_n(address, __ATOMIC_RELAXED);
    while (value < old &&
           !__atomic_compare_exchange_n(address, &old, value, true, __ATOMIC_RELEASE, __ATOMIC_RELAXED)) {
    }
}

#include "nccl/driver/nan_kernel.cu"

static const struct kernel {
    const char *name;
    unsigned width;
    void (*run)(const unsigned char *data, dd_u64 nfloats, dd_u64 limit, dd_u64 key, dd_u64 *report);
} kernels[] = {
    {"dd_find_nan_8", 1, dd_find_nan_8},
    {"dd_find_nan_16", 2, dd_find_nan_16},
    {"dd_find_nan_32", 4, dd_find_nan_32},
    {"dd_find_nan_64", 8, dd_find_nan_64},
};
#define NKERNELS (sizeof kernels / sizeof kernels[0])

/* ---- modules and functions */

static stub_count function_count = {.kind = "function"};
static stub_table modules = STUB_TABLE(&cuda_modules, 5);
static stub_table functions = STUB_TABLE(&function_count, 6);

typedef struct stub_module {
    stub_object base;
    int device;
    bool has[NKERNELS];        /* present in the module's text */
    void *functions[NKERNELS]; /* handles; under cuda_lock */
} stub_module;

typedef struct stub_function {
    stub_object base;
    int device;
    const struct kernel *kernel;
    atomic_bool is_unloaded;
} stub_function;

static void
free_object(stub_object *object)
{
    free(object);
}

CUDA_EXPORT dd_cuda_result
cuModuleLoadData(dd_cuda_module *module, const void *image)
{
    ENTER(cuModuleLoadData);
    int device = cuda_current_device();
    int unsafe = capture_check_unsafe();
    if (unsafe != 0 || device < 0) {
        return unsafe != 0 ? (dd_cuda_result)unsafe : DD_CUDA_INVALID_CONTEXT;
    }
    if (image == NULL || strncmp(image, ".version ", 9) != 0) {
        return (dd_cuda_result)CUDA_INVALID_PTX;
    }
    stub_module *made = stub_zalloc(sizeof *made);
    stub_object_init(&made->base, free_object);
    made->device = device;
    for (size_t i = 0; i < NKERNELS; i++) {
        char entry[64];
        snprintf(entry, sizeof entry, ".entry %s(", kernels[i].name);
        made->has[i] = strstr(image, entry) != NULL;
    }
    *module = stub_table_add(&modules, &made->base);
    return DD_CUDA_SUCCESS;
}

CUDA_EXPORT dd_cuda_result
cuModuleUnload(dd_cuda_module handle)
{
    ENTER(cuModuleUnload);
    stub_module *module = stub_table_remove(&modules, handle);
    if (module == NULL) {
        return DD_CUDA_INVALID_HANDLE;
    }
    for (size_t i = 0; i < NKERNELS; i++) {
        if (module->functions[i] != NULL) {
            stub_function *function = stub_table_remove(&functions, module->functions[i]);
            atomic_store(&function->is_unloaded, true);
            stub_object_release(&function->base);
        }
    }
    stub_object_release(&module->base);
    return DD_CUDA_SUCCESS;
}

static void *
function_of_locked(stub_module *module, size_t i)
{
    if (module->functions[i] == NULL) {
        stub_function *made = stub_zalloc(sizeof *made);
        stub_object_init(&made->base, free_object);
        made->device = module->device;
        made->kernel = &kernels[i];
        module->functions[i] = stub_table_add(&functions, &made->base);
    }
    return module->functions[i];
}

CUDA_EXPORT dd_cuda_result
cuModuleGetFunction(dd_cuda_function *function, dd_cuda_module handle, const char *name)
{
    ENTER(cuModuleGetFunction);
    stub_module *module = stub_table_find(&modules, handle);
    if (module == NULL) {
        return DD_CUDA_INVALID_HANDLE;
    }
    dd_cuda_result result = (dd_cuda_result)CUDA_NOT_FOUND;
    for (size_t i = 0; i < NKERNELS; i++) {
        if (module->has[i] && strcmp(name, kernels[i].name) == 0) {
            pthread_mutex_lock(&cuda_lock);
            *function = function_of_locked(module, i);
            pthread_mutex_unlock(&cuda_lock);
            result = DD_CUDA_SUCCESS;
        }
    }
    stub_object_release(&module->base);
    return result;
}

/* ---- launches */

typedef struct stub_launch {
    stub_function *function; /* a reference */
    unsigned grid;
    unsigned block;
    const unsigned char *data;
    dd_u64 nfloats;
    dd_u64 limit;
    dd_u64 key;
    dd_u64 *report;
} stub_launch;

/* Return false for an invalid address or an unloaded kernel. A device would stop there, and fail
 * its context. */
static bool
can_run(const stub_launch *launch)
{
    int device = launch->function->device;
    int of_report = dd_stub_memory_device(launch->report, sizeof *launch->report);
    return !atomic_load(&launch->function->is_unloaded) &&
           dd_stub_memory_device(launch->data, launch->nfloats * launch->function->kernel->width) == device &&
           (of_report == device || of_report == -1) && (uintptr_t)launch->report % sizeof(dd_u64) == 0;
}

static void
run_launch(void *ctx, void *launched)
{
    (void)launched;
    const stub_launch *launch = ctx;
    if (!can_run(launch)) {
        stub_count_bad_use();
        return;
    }
    gridDim.x = launch->grid;
    blockDim.x = launch->block;
    for (blockIdx.x = 0; blockIdx.x < launch->grid; blockIdx.x++) {
        for (threadIdx.x = 0; threadIdx.x < launch->block; threadIdx.x++) {
            launch->function->kernel->run(launch->data, launch->nfloats, launch->limit, launch->key,
                                          launch->report);
        }
    }
}

static void
release_launch(void *ctx)
{
    stub_launch *launch = ctx;
    stub_object_release(&launch->function->base);
    free(launch);
}

static dd_cuda_result
enqueue_launch(stub_function *function, unsigned grid, unsigned block, dd_cuda_stream stream, void **params)
{
    stub_launch *launch = stub_zalloc(sizeof *launch);
    *launch = (stub_launch){.function = stub_object_acquire(&function->base), .grid = grid, .block = block};
    memcpy(&launch->data, params[0], sizeof launch->data);
    memcpy(&launch->nfloats, params[1], sizeof launch->nfloats);
    memcpy(&launch->limit, params[2], sizeof launch->limit);
    memcpy(&launch->key, params[3], sizeof launch->key);
    memcpy(&launch->report, params[4], sizeof launch->report);
    return (dd_cuda_result)dd_stub_enqueue(
        stream, &(dd_stub_work){.run = run_launch, .release = release_launch, .ctx = launch});
}

CUDA_EXPORT dd_cuda_result
cuLaunchKernel(dd_cuda_function handle, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,
               unsigned int block_x, unsigned int block_y, unsigned int block_z, unsigned int shared_bytes,
               dd_cuda_stream stream, void **params, void **extra)
{
    ENTER(cuLaunchKernel);
    stub_function *function = stub_table_find(&functions, handle);
    if (function == NULL) {
        return DD_CUDA_INVALID_HANDLE;
    }
    int of_stream = -1;
    dd_cuda_result result = (dd_cuda_result)dd_stub_stream_device(stream, &of_stream);
    if (result == DD_CUDA_SUCCESS &&
        (function->device != cuda_current_device() || function->device != of_stream)) {
        result = DD_CUDA_INVALID_HANDLE;
    }
    /* The kernels use only the x dimension, and no shared memory. */
    if (result == DD_CUDA_SUCCESS &&
        (grid_x == 0 || block_x == 0 || block_x > 1024 || grid_y != 1 || grid_z != 1 || block_y != 1 ||
         block_z != 1 || shared_bytes != 0 || params == NULL || extra != NULL)) {
        result = DD_CUDA_INVALID_VALUE;
    }
    if (result == DD_CUDA_SUCCESS) {
        result = enqueue_launch(function, grid_x, block_x, stream, params);
    }
    stub_object_release(&function->base);
    return result;
}
