/* Devices, primary contexts, the current context, and properties of the driver. */
#include "cuda_stub.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

pthread_mutex_t cuda_lock = PTHREAD_MUTEX_INITIALIZER;
pthread_cond_t cuda_changed;

const char stub_own_prefix[] = "cu";

static stub_count stream_count = {.kind = "stream"};
static stub_count event_count = {.kind = "event"};
static stub_count graph_count = {.kind = "graph"};
static stub_count exec_count = {.kind = "exec"};
static stub_count pool_count = {.kind = "pool"};
stub_count cuda_contexts_retained = {.kind = "context"};
stub_count cuda_memory = {.kind = "memory"};
stub_count cuda_host_memory = {.kind = "host memory"};
stub_count cuda_modules = {.kind = "module"};
stub_count *const stub_counts[] = {
    &stream_count,           &event_count, &graph_count,      &exec_count,   &pool_count,
    &cuda_contexts_retained, &cuda_memory, &cuda_host_memory, &cuda_modules, NULL};

stub_table cuda_streams = STUB_TABLE(&stream_count, 1);
stub_table cuda_events = STUB_TABLE(&event_count, 2);
stub_table cuda_graphs = STUB_TABLE(&graph_count, 3);
stub_table cuda_execs = STUB_TABLE(&exec_count, 4);
stub_table cuda_pools = STUB_TABLE(&pool_count, 7);

static atomic_bool is_down;
static int ndevices = 8;
static atomic_int nretained[CUDA_MAX_DEVICES];

#define MAX_DEPTH 64
static _Thread_local unsigned char current[MAX_DEPTH]; /* devices + 1; 0: none */
static _Thread_local int depth;

__attribute__((constructor)) static void
start(void)
{
    stub_cond_init(&cuda_changed);
    const char *text = getenv("DLDIST_STUB_DEVICES");
    if (text != NULL) {
        int wanted = atoi(text);
        ndevices = wanted < 0 ? 0 : wanted > CUDA_MAX_DEVICES ? CUDA_MAX_DEVICES : wanted;
    }
}

bool
cuda_is_down(void)
{
    return atomic_load(&is_down);
}

void
dd_stub_shut_down(int down)
{
    atomic_store(&is_down, down != 0);
}

void
stub_on_command(const char *name, const char *arguments)
{
    if (strcmp(name, "shut_down") == 0) {
        dd_stub_shut_down(1);
    } else if (strcmp(name, "memory") == 0) {
        dd_stub_limit_memory(atoll(arguments));
    }
}

void
stub_on_reset(void)
{
    dd_stub_shut_down(0);
    dd_stub_limit_memory(-1);
}

int
cuda_device_count(void)
{
    return ndevices;
}

/* ---- contexts, which are also numbers */

#define CONTEXT_BASE 0x00dc000000000000ull

static dd_cuda_context
context_of(int device)
{
    return (dd_cuda_context)(uintptr_t)(CONTEXT_BASE | (uint64_t)(device + 1) << 12);
}

/* Return -1 if the context is invalid or not retained. */
static int
device_of(dd_cuda_context context)
{
    for (int device = 0; device < ndevices; device++) {
        if (context == context_of(device)) {
            return atomic_load(&nretained[device]) > 0 ? device : -1;
        }
    }
    return -1;
}

int
cuda_current_device(void)
{
    int device = current[depth] - 1;
    return device >= 0 && atomic_load(&nretained[device]) > 0 ? device : -1;
}

int
dd_stub_current_device(int *device)
{
    *device = current[depth] > 0 ? current[depth] - 1 : 0;
    return cuda_is_down() ? DD_CUDA_DEINITIALIZED : DD_CUDA_SUCCESS;
}

int
dd_stub_exchange_device(int device)
{
    int before = current[depth] - 1;
    current[depth] = (unsigned char)(device + 1);
    return before;
}

static bool
is_device(int device)
{
    return device >= 0 && device < ndevices;
}

CUDA_EXPORT dd_cuda_result
cuInit(unsigned int flags)
{
    ENTER(cuInit);
    if (flags != 0) {
        return DD_CUDA_INVALID_VALUE;
    }
    return ndevices > 0 ? DD_CUDA_SUCCESS : DD_CUDA_NO_DEVICE;
}

CUDA_EXPORT dd_cuda_result
cuDriverGetVersion(int *version)
{
    ENTER(cuDriverGetVersion);
    *version = 13000;
    return DD_CUDA_SUCCESS;
}

static const struct result_info {
    int result;
    const char *name;
} results[] = {
#define RESULT_INFO(name, value, theirs) {(value), #theirs},
    DD_CUDA_RESULT_LIST(RESULT_INFO)
#undef RESULT_INFO
        {CUDA_CAPTURE_INVALIDATED, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED"},
    {CUDA_CAPTURE_MERGE, "CUDA_ERROR_STREAM_CAPTURE_MERGE"},
    {CUDA_CAPTURE_UNMATCHED, "CUDA_ERROR_STREAM_CAPTURE_UNMATCHED"},
    {CUDA_CAPTURE_UNJOINED, "CUDA_ERROR_STREAM_CAPTURE_UNJOINED"},
    {CUDA_CAPTURE_ISOLATION, "CUDA_ERROR_STREAM_CAPTURE_ISOLATION"},
    {CUDA_CAPTURE_WRONG_THREAD, "CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD"},
};

static const char *
name_of(int result)
{
    for (size_t i = 0; i < sizeof results / sizeof results[0]; i++) {
        if (results[i].result == result) {
            return results[i].name;
        }
    }
    return NULL;
}

CUDA_EXPORT dd_cuda_result
cuGetErrorName(dd_cuda_result result, const char **name)
{
    ENTER(cuGetErrorName);
    *name = name_of((int)result);
    return *name != NULL ? DD_CUDA_SUCCESS : DD_CUDA_INVALID_VALUE;
}

/* "CUDA_ERROR_NOT_READY" -> "the stub says CUDA_ERROR_NOT_READY": a text that a test can find in a
 * message. */
CUDA_EXPORT dd_cuda_result
cuGetErrorString(dd_cuda_result result, const char **text)
{
    ENTER(cuGetErrorString);
    static _Thread_local char said[128];
    const char *name = name_of((int)result);
    snprintf(said, sizeof said, "the stub says %s", name != NULL ? name : "nothing");
    *text = name != NULL ? said : NULL;
    return name != NULL ? DD_CUDA_SUCCESS : DD_CUDA_INVALID_VALUE;
}

CUDA_EXPORT dd_cuda_result
cuDeviceGetCount(int *count)
{
    ENTER(cuDeviceGetCount);
    *count = ndevices;
    return DD_CUDA_SUCCESS;
}

CUDA_EXPORT dd_cuda_result
cuDeviceGet(dd_cuda_device *device, int ordinal)
{
    ENTER(cuDeviceGet);
    *device = ordinal;
    return is_device(ordinal) ? DD_CUDA_SUCCESS : DD_CUDA_INVALID_DEVICE;
}

CUDA_EXPORT dd_cuda_result
cuDeviceGetAttribute(int *value, dd_cuda_device_attribute attribute, dd_cuda_device device)
{
    ENTER(cuDeviceGetAttribute);
    if (!is_device(device)) {
        return DD_CUDA_INVALID_DEVICE;
    }
    switch (attribute) {
    case DD_CUDA_DEVICE_PCI_BUS_ID:
        *value = 0x10 + device;
        return DD_CUDA_SUCCESS;
    case DD_CUDA_DEVICE_PCI_DEVICE_ID:
    case DD_CUDA_DEVICE_PCI_DOMAIN_ID:
    case DD_CUDA_DEVICE_COMPUTE_CAPABILITY_MINOR:
        *value = 0;
        return DD_CUDA_SUCCESS;
    case DD_CUDA_DEVICE_COMPUTE_CAPABILITY_MAJOR:
        *value = 9;
        return DD_CUDA_SUCCESS;
    case DD_CUDA_DEVICE_UNIFIED_ADDRESSING:
    case DD_CUDA_DEVICE_MEMORY_POOLS_SUPPORTED:
        *value = 1;
        return DD_CUDA_SUCCESS;
    }
    return DD_CUDA_INVALID_VALUE;
}

CUDA_EXPORT dd_cuda_result
cuDevicePrimaryCtxRetain(dd_cuda_context *context, dd_cuda_device device)
{
    ENTER(cuDevicePrimaryCtxRetain);
    if (!is_device(device)) {
        return DD_CUDA_INVALID_DEVICE;
    }
    atomic_fetch_add(&nretained[device], 1);
    stub_count_add(&cuda_contexts_retained);
    *context = context_of(device);
    return DD_CUDA_SUCCESS;
}

CUDA_EXPORT dd_cuda_result
cuDevicePrimaryCtxRelease_v2(dd_cuda_device device)
{
    ENTER(cuDevicePrimaryCtxRelease);
    if (!is_device(device)) {
        return DD_CUDA_INVALID_DEVICE;
    }
    int n = atomic_load(&nretained[device]);
    do {
        if (n == 0) {
            stub_count_bad_use();
            return DD_CUDA_INVALID_CONTEXT;
        }
    } while (!atomic_compare_exchange_weak(&nretained[device], &n, n - 1));
    stub_count_remove(&cuda_contexts_retained);
    return DD_CUDA_SUCCESS;
}

CUDA_EXPORT dd_cuda_result
cuCtxGetCurrent(dd_cuda_context *context)
{
    ENTER(cuCtxGetCurrent);
    *context = current[depth] > 0 ? context_of(current[depth] - 1) : NULL;
    return DD_CUDA_SUCCESS;
}

CUDA_EXPORT dd_cuda_result
cuCtxSetCurrent(dd_cuda_context context)
{
    ENTER(cuCtxSetCurrent);
    int device = device_of(context);
    if (context != NULL && device < 0) {
        return DD_CUDA_INVALID_CONTEXT;
    }
    current[depth] = context != NULL ? (unsigned char)(device + 1) : 0;
    return DD_CUDA_SUCCESS;
}

CUDA_EXPORT dd_cuda_result
cuCtxGetDevice(dd_cuda_device *device)
{
    ENTER(cuCtxGetDevice);
    *device = cuda_current_device();
    return *device >= 0 ? DD_CUDA_SUCCESS : DD_CUDA_INVALID_CONTEXT;
}

CUDA_EXPORT dd_cuda_result
cuCtxPushCurrent_v2(dd_cuda_context context)
{
    ENTER(cuCtxPushCurrent);
    int device = device_of(context);
    if (device < 0 || depth + 1 >= MAX_DEPTH) {
        return DD_CUDA_INVALID_CONTEXT;
    }
    current[++depth] = (unsigned char)(device + 1);
    return DD_CUDA_SUCCESS;
}

CUDA_EXPORT dd_cuda_result
cuCtxPopCurrent_v2(dd_cuda_context *context)
{
    ENTER(cuCtxPopCurrent);
    if (current[depth] == 0) {
        return DD_CUDA_INVALID_CONTEXT;
    }
    if (context != NULL) {
        *context = context_of(current[depth] - 1);
    }
    current[depth] = 0;
    depth -= depth > 0;
    return DD_CUDA_SUCCESS;
}

CUDA_EXPORT dd_cuda_result
cuCtxGetStreamPriorityRange(int *least, int *greatest)
{
    ENTER(cuCtxGetStreamPriorityRange);
    if (cuda_current_device() < 0) {
        return DD_CUDA_INVALID_CONTEXT;
    }
    *least = 0;
    *greatest = -5;
    return DD_CUDA_SUCCESS;
}
