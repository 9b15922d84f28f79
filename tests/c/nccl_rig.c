#include "nccl_rig.h"

#include "check.h"
#include "core/thread.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct nccl_rig_thread {
    nccl_rig_rank self;
    void (*body)(nccl_rig_rank *self);
    pthread_t thread;
} nccl_rig_thread;

/* ---- the stubs */

static void *
symbol(void *library, const char *name)
{
    void *address = dlsym(library, name);
    CHECK(address != NULL);
    return address;
}

#define TAKE(function, library, name) \
    memcpy(&(function), (void *[]){symbol(library, "dd_stub_" name)}, sizeof(function))

static void
take_stub(nccl_rig_stub *stub, void *library)
{
    TAKE(stub->fail, library, "fail");
    TAKE(stub->hang, library, "hang");
    TAKE(stub->release, library, "release");
    TAKE(stub->hanging, library, "hanging");
    TAKE(stub->calls, library, "calls");
    TAKE(stub->reset, library, "reset");
    TAKE(stub->live, library, "live");
    TAKE(stub->made, library, "made");
    TAKE(stub->bad_uses, library, "bad_uses");
}

static bool
load_stubs(nccl_rig *rig)
{
    char path[512];
    snprintf(path, sizeof path, "%s/libcuda.so.1", DD_STUBS_DIR);
    if (!CHECK_OK(dd_cuda_open(path, &rig->cuda, check_err()))) {
        return false;
    }
    void *cuda = dlopen(path, RTLD_NOW | RTLD_NOLOAD);
    snprintf(path, sizeof path, "%s/nccl-%s/libnccl.so.2", DD_STUBS_DIR,
             rig->options.version != NULL ? rig->options.version : "2.32.3");
    dd_dylib_search search = {.explicit_path = path};
    if (!CHECK_OK(dd_nccl_lib_open(&search, &rig->lib, check_err()))) {
        return false;
    }
    void *nccl = dlopen(path, RTLD_NOW | RTLD_NOLOAD);
    if (!CHECK(cuda != NULL && nccl != NULL)) {
        return false;
    }
    take_stub(&rig->cuda_stub, cuda);
    take_stub(&rig->nccl_stub, nccl);
    TAKE(rig->shut_down, cuda, "shut_down");
    TAKE(rig->slow_write, cuda, "slow_write");
    TAKE(rig->gate, cuda, "gate");
    TAKE(rig->open_gate, cuda, "open_gate");
    TAKE(rig->free, cuda, "free");
    TAKE(rig->async_error, nccl, "async_error");
    TAKE(rig->hang_kernel, nccl, "hang_kernel");
    TAKE(rig->slow_kernels, nccl, "slow_kernels");
    TAKE(rig->slow_launches, nccl, "slow_launches");
    TAKE(rig->slow_ends, nccl, "slow_ends");
    TAKE(rig->end_apart, nccl, "end_apart");
    dlclose(cuda);
    dlclose(nccl);
    return true;
}

/* ---- a rank */

bool
nccl_rig_open_group(nccl_rig_rank *self, const char *name)
{
    nccl_rig *rig = self->rig;
    dd_recorder_group_info info = {.name = dd_bytes_of_string(name),
                                   .desc = dd_bytes_of_string(name),
                                   .kind = "nccl",
                                   .rank = self->rank,
                                   .size = self->size};
    dd_recorder_group *recorded = NULL;
    dd_nccl_group_options options = {
        .name = dd_bytes_of_string(name),
        .timeout_ns = rig->options.timeout_ns > 0 ? rig->options.timeout_ns : 60 * DD_NS_PER_S * check_slow(),
        .has_event_cache = !rig->options.has_no_event_cache,
        .has_timing = rig->options.has_timing,
        .is_nan_check = rig->options.is_nan_check,
    };
    dd_nccl_config_init(&options.config);
    if (rig->options.is_nonblocking) {
        options.config.values.blocking = 0;
    }
    return CHECK_OK(dd_recorder_add_group(rig->recorder, &info, &recorded, check_err())) &&
           CHECK_OK(dd_nccl_group_open(&(dd_nccl_base){rig->lib, rig->cuda, rig->watchdog}, rig->store,
                                       self->rank, self->size, &options, recorded, &self->group,
                                       check_err()));
}

static void *
run_rank(void *arg)
{
    nccl_rig_thread *member = arg;
    nccl_rig_rank *self = &member->self;
    const dd_cuda *cuda = self->rig->cuda;
    dd_cuda_guard guard;
    if (!CHECK_OK(dd_cuda_enter(cuda, self->rank, &guard, check_err())) ||
        !nccl_rig_open_group(self, "rig")) {
        return NULL;
    }
    CHECK_INT(cuda->api.cuStreamCreateWithPriority(&self->stream, DD_CUDA_STREAM_NON_BLOCKING, 0),
              DD_CUDA_SUCCESS);
    member->body(self);
    if (!self->rig->options.is_not_closed) {
        dd_wait wait = nccl_rig_patience();
        CHECK_OK(dd_nccl_group_close(self->group, &wait, check_err()));
    }
    dd_nccl_group_release(self->group);
    CHECK_INT(cuda->api.cuStreamDestroy(self->stream), DD_CUDA_SUCCESS);
    dd_cuda_leave(&guard);
    return NULL;
}

/* ---- the rig */

/* Wait for background work to end; then none of the kind may be left. */
static void
check_none_left(nccl_rig_stub *stub, const char *kind)
{
    dd_wait wait = nccl_rig_patience();
    while (stub->live(kind) != 0 && !dd_wait_has_expired(&wait)) {
        (void)!dd_wait_sleep(&wait, DD_NS_PER_MS, NULL);
    }
    if (!CHECK_INT(stub->live(kind), 0)) {
        fprintf(stderr, "    of the kind \"%s\"\n", kind);
    }
}

static void
check_stubs(nccl_rig *rig)
{
    static const char *const cuda_kinds[] = {"stream", "event", "memory"};
    static const char *const nccl_kinds[] = {"comm", "redop"};
    for (size_t i = 0; i < sizeof nccl_kinds / sizeof nccl_kinds[0]; i++) {
        check_none_left(&rig->nccl_stub, nccl_kinds[i]);
    }
    for (size_t i = 0; i < sizeof cuda_kinds / sizeof cuda_kinds[0]; i++) {
        check_none_left(&rig->cuda_stub, cuda_kinds[i]);
    }
    CHECK_INT(rig->cuda_stub.bad_uses(), 0);
    CHECK_INT(rig->nccl_stub.bad_uses(), 0);
}

static bool
open_rig(nccl_rig *rig)
{
    dd_nccl_watchdog_options options = {
        .interval_ns = rig->options.interval_ns > 0 ? rig->options.interval_ns : DD_NS_PER_MS,
        .abort_timeout_ns = 5 * DD_NS_PER_S,
        .is_abort_off = rig->options.is_abort_off,
    };
    return load_stubs(rig) &&
           CHECK_OK(dd_nccl_watchdog_create(rig->cuda, &options, &rig->watchdog, check_err())) &&
           CHECK_OK(dd_recorder_create(100, &rig->recorder, check_err())) &&
           CHECK_OK(dd_hash_store_open(&rig->store, 60 * DD_NS_PER_S, check_err()));
}

void
nccl_rig_run(const nccl_rig_options *options, void (*body)(nccl_rig_rank *self), void *arg)
{
    nccl_rig rig = {.options = *options};
    REQUIRE(open_rig(&rig));
    nccl_rig_thread *members = calloc((size_t)options->size, sizeof *members);
    REQUIRE(members != NULL);
    pthread_barrier_init(&rig.barrier, NULL, (unsigned)options->size);
    for (int rank = 0; rank < options->size; rank++) {
        members[rank] = (nccl_rig_thread){
            .self = {.rig = &rig, .rank = rank, .size = options->size, .arg = arg}, .body = body};
        CHECK_OK(dd_thread_start(&members[rank].thread, "rank", run_rank, &members[rank], check_err()));
    }
    for (int rank = 0; rank < options->size; rank++) {
        pthread_join(members[rank].thread, NULL);
    }
    pthread_barrier_destroy(&rig.barrier);
    free(members);
    if (!options->leaves_some) {
        check_stubs(&rig);
    }
    dd_nccl_watchdog_destroy(rig.watchdog);
    rig.cuda_stub.reset();
    rig.nccl_stub.reset();
    dd_store_release(rig.store);
    dd_recorder_destroy(rig.recorder);
    dd_nccl_lib_close(rig.lib);
    dd_cuda_close(rig.cuda);
    if (!options->leaves_some) {
        check_none_left(&rig.cuda_stub, "host memory"); /* graphs may keep host memory */
        check_none_left(&rig.cuda_stub, "module");
    }
}

void
nccl_rig_run_all(void (*body)(nccl_rig_rank *self), void *arg)
{
    static const char *const versions[] = {"2.18.1", "2.32.3"};
    static const int sizes[] = {1, 2, 4};
    for (size_t v = 0; v < 2; v++) {
        for (size_t s = 0; s < 3; s++) {
            for (int blocking = 0; blocking < 2; blocking++) {
                nccl_rig_options options = {
                    .size = sizes[s], .version = versions[v], .is_nonblocking = blocking == 0};
                nccl_rig_run(&options, body, arg);
            }
        }
    }
}

void
nccl_rig_meet(nccl_rig_rank *self)
{
    pthread_barrier_wait(&self->rig->barrier);
}

/* ---- calls */

void *
nccl_rig_alloc(nccl_rig_rank *self, size_t nbytes)
{
    dd_cuda_ptr data = 0;
    CHECK_INT(self->rig->cuda->api.cuMemAlloc(&data, nbytes), DD_CUDA_SUCCESS);
    return (void *)(uintptr_t)data;
}

void
nccl_rig_free(nccl_rig_rank *self, void *data)
{
    CHECK_INT(self->rig->free(data), DD_CUDA_SUCCESS);
}

dd_nccl_call
nccl_rig_call(nccl_rig_rank *self, const char *label, const dd_nccl_op *ops, size_t nops)
{
    return (dd_nccl_call){.label = label,
                          .device = self->rank,
                          .ops = ops,
                          .nops = nops,
                          .is_batch = nops > 1,
                          .streams = &self->stream,
                          .nstreams = 1,
                          .timeout_ns = -1};
}

dd_nccl_op
nccl_rig_coll(dd_coll coll, dd_dtype dtype, const dd_block *inputs, const dd_block *outputs)
{
    return (dd_nccl_op){
        .kind = DD_NCCL_OP_COLL,
        .args = {.coll = coll, .reduction = {.dtype = dtype}, .inputs = inputs, .outputs = outputs}};
}

dd_nccl_op
nccl_rig_all_reduce(dd_dtype dtype, dd_redop op, const dd_block *block)
{
    dd_nccl_op coll = nccl_rig_coll(DD_COLL_ALL_REDUCE, dtype, block, block);
    coll.args.reduction.op = op;
    return coll;
}

bool
nccl_rig_find_graphs(nccl_rig_graphs *graphs)
{
    static const char *const names[] = {
        "cuStreamBeginCapture_v2", "cuStreamEndCapture", "cuGraphInstantiateWithFlags",
        "cuGraphLaunch",           "cuGraphDestroy",     "cuGraphExecDestroy"};
    void *library = dlopen(DD_STUBS_DIR "/libcuda.so.1", RTLD_NOW);
    void *found[6];
    for (int i = 0; i < 6; i++) {
        found[i] = library != NULL ? dlsym(library, names[i]) : NULL;
        if (!CHECK(found[i] != NULL)) {
            return false;
        }
    }
    memcpy(graphs, found, sizeof *graphs);
    dlclose(library);
    return true;
}

int
nccl_rig_new_gate(void)
{
    static atomic_int last = 200;
    return atomic_fetch_add(&last, 1);
}

dd_wait
nccl_rig_patience(void)
{
    return dd_wait_after(20 * DD_NS_PER_S * check_slow());
}

dd_status
nccl_rig_start(nccl_rig_rank *self, const dd_nccl_call *call, dd_nccl_work **work, dd_error *err)
{
    dd_wait wait = nccl_rig_patience();
    return dd_nccl_group_start(self->group, call, work, &wait, err);
}

dd_status
nccl_rig_wait(dd_nccl_work *work, dd_error *err)
{
    dd_wait wait = nccl_rig_patience();
    return dd_nccl_work_wait(work, &wait, err);
}

dd_status
nccl_rig_do(nccl_rig_rank *self, const dd_nccl_call *call, dd_error *err)
{
    dd_nccl_work *work;
    dd_status status = nccl_rig_start(self, call, &work, err);
    if (status != DD_OK) {
        return status;
    }
    status = nccl_rig_wait(work, err);
    dd_work_release(&work->base);
    return status;
}

bool
nccl_rig_check_sum(nccl_rig_rank *self)
{
    float *data = nccl_rig_alloc(self, sizeof *data);
    *data = (float)self->rank + 1;
    dd_block block = {data, sizeof *data};
    dd_nccl_op op = nccl_rig_all_reduce(DD_DTYPE_FLOAT32, DD_REDOP_SUM, &block);
    dd_nccl_call call = nccl_rig_call(self, "all_reduce", &op, 1);
    bool is_good = CHECK_OK(nccl_rig_do(self, &call, check_err()));
    is_good = is_good && CHECK_INT((int)*data, self->size * (self->size + 1) / 2);
    nccl_rig_free(self, data);
    return is_good;
}
