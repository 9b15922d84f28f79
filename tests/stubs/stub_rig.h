/* The functions of both libraries, for tests that call the stubs directly. The build sets the
 * folder of the libraries. */
#ifndef DD_TESTS_STUB_RIG_H
#define DD_TESTS_STUB_RIG_H

#include "check.h"
#include "nccl/driver/lib_api.h"
#include "stub_control.h"

#include <dirent.h>
#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define OTHER_CUDA(X)                                                                                  \
    X(cuMemAllocAsync, cuMemAllocAsync, (dd_cuda_ptr * data, size_t nbytes, dd_cuda_stream stream))    \
    X(cuEventSynchronize, cuEventSynchronize, (dd_cuda_event event))                                   \
    X(cuMemcpyHtoDAsync, cuMemcpyHtoDAsync_v2,                                                         \
      (dd_cuda_ptr dst, const void *src, size_t nbytes, dd_cuda_stream stream))                        \
    X(cuStreamBeginCapture, cuStreamBeginCapture_v2, (dd_cuda_stream stream, dd_cuda_capture_mode m))  \
    X(cuStreamEndCapture, cuStreamEndCapture, (dd_cuda_stream stream, void **graph))                   \
    X(cuGraphInstantiate, cuGraphInstantiateWithFlags, (void **exec, void *graph, unsigned long long)) \
    X(cuGraphLaunch, cuGraphLaunch, (void *exec, dd_cuda_stream stream))                               \
    X(cuGraphDestroy, cuGraphDestroy, (void *graph))                                                   \
    X(cuGraphExecDestroy, cuGraphExecDestroy, (void *exec))

#define CONTROLS(X)    \
    X(dd_stub_fail)    \
    X(dd_stub_hang)    \
    X(dd_stub_release) \
    X(dd_stub_hanging) X(dd_stub_calls) X(dd_stub_reset) X(dd_stub_live) X(dd_stub_made) X(dd_stub_bad_uses)
#define CUDA_CONTROLS(X) \
    X(dd_stub_shut_down) X(dd_stub_limit_memory) X(dd_stub_slow_write) X(dd_stub_gate) X(dd_stub_open_gate)
#define NCCL_CONTROLS(X) \
    X(dd_stub_warn)      \
    X(dd_stub_slow_ends) \
    X(dd_stub_end_apart) \
    X(dd_stub_async_error) X(dd_stub_hang_kernel) X(dd_stub_slow_kernels) X(dd_stub_slow_launches)

#define CONTROL_FIELD(name) __typeof__(&name) name;

static struct {
    void *library;
    DD_CUDA_REQUIRED(DD_CUDA_POINTER)
    DD_CUDA_OPTIONAL(DD_CUDA_POINTER)
    OTHER_CUDA(DD_CUDA_POINTER)
    CONTROLS(CONTROL_FIELD)
    CUDA_CONTROLS(CONTROL_FIELD)
} cuda;

static struct {
    void *library;
    DD_NCCL_REQUIRED(DD_NCCL_POINTER)
    DD_NCCL_OPTIONAL(DD_NCCL_OPTIONAL_POINTER)
    CONTROLS(CONTROL_FIELD)
    NCCL_CONTROLS(CONTROL_FIELD)
} nccl;

static bool
resolve(void *library, const char *name, void *place)
{
    void *symbol = dlsym(library, name);
    memcpy(place, &symbol, sizeof symbol);
    return symbol != NULL;
}

static void
load_cuda(void)
{
    cuda.library = dlopen(DD_STUBS_DIR "/libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    REQUIRE(cuda.library != NULL);
#define RESOLVE(name, symbol, params) CHECK(resolve(cuda.library, #symbol, &cuda.name));
    DD_CUDA_REQUIRED(RESOLVE)
    DD_CUDA_OPTIONAL(RESOLVE)
    OTHER_CUDA(RESOLVE)
#undef RESOLVE
#define RESOLVE(name) CHECK(resolve(cuda.library, #name, &cuda.name));
    CONTROLS(RESOLVE)
    CUDA_CONTROLS(RESOLVE)
#undef RESOLVE
}

static void
load_nccl(const char *version)
{
    char path[512];
    load_cuda();
    snprintf(path, sizeof path, "%s/nccl-%s/libnccl.so.2", DD_STUBS_DIR, version);
    nccl.library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!CHECK(nccl.library != NULL)) {
        fprintf(stderr, "%s\n", dlerror());
        return;
    }
#define RESOLVE(name, since, returns, params) CHECK(resolve(nccl.library, #name, &nccl.name));
    DD_NCCL_REQUIRED(RESOLVE)
#undef RESOLVE
#define RESOLVE(name, since, returns, params, capability) (void)resolve(nccl.library, #name, &nccl.name);
    DD_NCCL_OPTIONAL(RESOLVE)
#undef RESOLVE
#define RESOLVE(name) CHECK(resolve(nccl.library, #name, &nccl.name));
    CONTROLS(RESOLVE)
    NCCL_CONTROLS(RESOLVE)
#undef RESOLVE
}

#define CU(call) CHECK_INT(cuda.call, DD_CUDA_SUCCESS)
#define NC(call) CHECK_INT(nccl.call, DD_NCCL_SUCCESS)

static void
use_device(int device)
{
    dd_cuda_context context = NULL;
    CU(cuDevicePrimaryCtxRetain(&context, device));
    CU(cuCtxSetCurrent(context));
}

static dd_cuda_stream
make_stream(unsigned flags)
{
    dd_cuda_stream stream = NULL;
    CU(cuStreamCreateWithPriority(&stream, flags, 0));
    return stream;
}

__attribute__((unused)) static dd_cuda_event
make_event(unsigned flags)
{
    dd_cuda_event event = NULL;
    CU(cuEventCreate(&event, flags));
    return event;
}

__attribute__((unused)) static void *
make_memory(size_t nbytes)
{
    dd_cuda_ptr data = 0;
    CU(cuMemAlloc(&data, nbytes));
    return (void *)(uintptr_t)data;
}

__attribute__((unused)) static void
free_memory(void *data)
{
    CU(cuMemFree((dd_cuda_ptr)(uintptr_t)data));
}

static void
check_no_cuda_left(void)
{
    static const char *const kinds[] = {"stream", "event", "graph", "exec", "memory", "host memory"};
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        if (!CHECK_INT(cuda.dd_stub_live(kinds[i]), 0)) {
            fprintf(stderr, "    of kind %s\n", kinds[i]);
        }
    }
    CHECK_INT(cuda.dd_stub_bad_uses(), 0);
}

/* ---- ranks as threads: each has its device, a stream and a communicator, which it destroys at its
 * end */

#define MAX_RANKS 4

typedef struct stub_team stub_team;

typedef struct member {
    stub_team *team;
    int rank;
    dd_nccl_comm_handle comm;
    dd_cuda_stream stream;
    pthread_t thread;
} member;

struct stub_team {
    int size;
    int blocking;
    dd_nccl_unique_id id;
    void (*run)(member *member);
    pthread_barrier_t barrier;
    member members[MAX_RANKS];
};

static dd_nccl_abi_config
make_config(int blocking)
{
    dd_nccl_abi_config config = {.size = sizeof config, .magic = DD_NCCL_MAGIC, .version = 23203};
#define UNDEFINED_INT_FIELD(name) config.name = INT_MIN;
#define UNDEFINED_TEXT_FIELD(name) config.name = NULL;
#define UNDEFINE(name, alias, since, type) UNDEFINED_##type##_FIELD(name)
    DD_NCCL_CONFIG_FIELDS(UNDEFINE)
    config.blocking = blocking;
    return config;
}

static dd_nccl_result
wait_until_ready(dd_nccl_comm_handle comm)
{
    dd_nccl_result state = DD_NCCL_IN_PROGRESS;
    while (state == DD_NCCL_IN_PROGRESS) {
        sched_yield();
        NC(ncclCommGetAsyncError(comm, &state));
    }
    return state;
}

static void *
run_member(void *arg)
{
    member *self = arg;
    use_device(self->rank);
    self->stream = make_stream(DD_CUDA_STREAM_NON_BLOCKING);
    dd_nccl_abi_config config = make_config(self->team->blocking);
    dd_nccl_result expected = self->team->blocking ? DD_NCCL_SUCCESS : DD_NCCL_IN_PROGRESS;
    CHECK_INT(nccl.ncclCommInitRankConfig(&self->comm, self->team->size, self->team->id, self->rank, &config),
              expected);
    CHECK_INT(wait_until_ready(self->comm), DD_NCCL_SUCCESS);
    self->team->run(self);
    if (self->comm != NULL) {
        NC(ncclCommDestroy(self->comm));
    }
    CU(cuStreamDestroy(self->stream));
    CU(cuDevicePrimaryCtxRelease(self->rank));
    return NULL;
}

static int
count_files(void)
{
    int n = 0;
    DIR *folder = opendir(getenv("DLDIST_STUB_DIR"));
    for (struct dirent *entry = NULL; folder != NULL && (entry = readdir(folder)) != NULL;) {
        n += strncmp(entry->d_name, "dldist-nccl-stub-", 17) == 0;
    }
    if (folder != NULL) {
        closedir(folder);
    }
    return n;
}

__attribute__((unused)) static void
run_team(int size, int blocking, void (*run)(member *member))
{
    char folder[] = "/tmp/dldist-stubs-XXXXXX";
    REQUIRE(mkdtemp(folder) != NULL);
    setenv("DLDIST_STUB_DIR", folder, 1);
    stub_team team = {.size = size, .blocking = blocking, .run = run};
    NC(ncclGetUniqueId(&team.id));
    pthread_barrier_init(&team.barrier, NULL, (unsigned)size);
    for (int rank = 0; rank < size; rank++) {
        team.members[rank].team = &team;
        team.members[rank].rank = rank;
        REQUIRE(pthread_create(&team.members[rank].thread, NULL, run_member, &team.members[rank]) == 0);
    }
    for (int rank = 0; rank < size; rank++) {
        pthread_join(team.members[rank].thread, NULL);
    }
    pthread_barrier_destroy(&team.barrier);
    CHECK_INT(count_files(), 0);
    CHECK_INT(rmdir(folder), 0);
    CHECK_INT(nccl.dd_stub_live("comm"), 0);
    CHECK_INT(nccl.dd_stub_live("redop"), 0);
    CHECK_INT(nccl.dd_stub_bad_uses(), 0);
    check_no_cuda_left();
}

#endif
