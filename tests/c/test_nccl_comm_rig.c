#include "test_nccl_comm_rig.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void
load_symbol(const char *path, const char *name, void *pointer)
{
    void *handle = dlopen(path, RTLD_NOW | RTLD_NOLOAD);
    void *function = handle != NULL ? dlsym(handle, name) : NULL;
    memcpy(pointer, &function, sizeof function);
}

static void
load_controls(const char *path, stub_controls *controls)
{
    load_symbol(path, "dd_stub_fail", &controls->fail);
    load_symbol(path, "dd_stub_hang", &controls->hang);
    load_symbol(path, "dd_stub_release", &controls->release);
    load_symbol(path, "dd_stub_reset", &controls->reset);
    load_symbol(path, "dd_stub_hanging", &controls->hanging);
    load_symbol(path, "dd_stub_calls", &controls->calls);
    load_symbol(path, "dd_stub_live", &controls->live);
    load_symbol(path, "dd_stub_bad_uses", &controls->bad_uses);
    load_symbol(path, "dd_stub_shut_down", &controls->shut_down);
    load_symbol(path, "dd_stub_async_error", &controls->async_error);
    load_symbol(path, "dd_stub_slow_launches", &controls->slow_launches);
}

const char *
comm_rig_nccl_path(const char *version)
{
    static _Thread_local char path[512];
    (void)snprintf(path, sizeof path, "%s/nccl-%s/libnccl.so.2", DD_STUBS_DIR, version);
    return path;
}

bool
comm_rig_open(comm_rig *rig, const char *version)
{
    *rig = (comm_rig){0};
    (void)setenv("DLDIST_STUB_DEVICES", "4", 1);
    dd_dylib_search search = {.explicit_path = comm_rig_nccl_path(version)};
    if (!CHECK_OK(dd_cuda_open(DD_STUBS_DIR "/libcuda.so.1", &rig->cuda, check_err())) ||
        !CHECK_OK(dd_nccl_lib_open(&search, &rig->lib, check_err()))) {
        return false;
    }
    load_controls(rig->cuda->path, &rig->on_cuda);
    load_controls(rig->lib->path, &rig->on_nccl);
    if (!CHECK(rig->on_cuda.reset != NULL && rig->on_nccl.reset != NULL)) {
        return false;
    }
    rig->on_cuda.reset();
    rig->on_nccl.reset();
    return true;
}

static void
check_doubles(const comm_rig *rig)
{
    CHECK_INT(rig->on_nccl.live("comm"), 0);
    CHECK_INT(rig->on_nccl.bad_uses(), 0);
    CHECK_INT(rig->on_cuda.bad_uses(), 0);
}

void
comm_rig_leave_open(comm_rig *rig)
{
    dd_wait wait = dd_wait_after(5 * DD_NS_PER_S * check_slow());
    while (rig->on_nccl.live("comm") > 0 && !dd_wait_has_expired(&wait)) {
        CHECK_OK(dd_wait_sleep(&wait, DD_NS_PER_MS, check_err()));
    }
    check_doubles(rig);
}

void
comm_rig_close(comm_rig *rig)
{
    check_doubles(rig);
    dd_nccl_lib_close(rig->lib);
    dd_cuda_close(rig->cuda);
}

void
comm_rig_ranks(comm_rig *rig, comm_rig_rank *ranks, int n, dd_nccl_unique_id *id)
{
    CHECK_OK(dd_nccl_make_unique_id(rig->lib, id, check_err()));
    for (int i = 0; i < n; i++) {
        ranks[i] = (comm_rig_rank){.rig = rig,
                                   .rank = i,
                                   .size = n,
                                   .ids = id,
                                   .nids = 1,
                                   .timeout_ns = 8 * DD_NS_PER_S * check_slow()};
    }
}

static void *
run_rank(void *arg)
{
    comm_rig_rank *rank = arg;
    rank->run(rank);
    return NULL;
}

void
comm_rig_run(comm_rig_rank *ranks, int n, void (*run)(comm_rig_rank *rank))
{
    for (int i = 0; i < n; i++) {
        ranks[i].run = run;
        CHECK_OK(dd_thread_start(&ranks[i].thread, "rank", run_rank, &ranks[i], check_err()));
    }
    for (int i = 0; i < n; i++) {
        pthread_join(ranks[i].thread, NULL);
    }
}

void
comm_rig_init(comm_rig_rank *rank)
{
    dd_nccl_config config;
    dd_nccl_config_init(&config);
    config.values.blocking = !rank->is_nonblocking;
    dd_nccl_comm_spec spec = {.lib = rank->rig->lib,
                              .cuda = rank->rig->cuda,
                              .device = rank->rank % rank->rig->cuda->ndevices,
                              .rank = rank->rank,
                              .size = rank->size,
                              .config = &config};
    dd_wait wait = dd_wait_after(rank->timeout_ns);
    rank->status =
        dd_nccl_comm_init(&spec, rank->ids, rank->nids, &rank->comm, rank->stop, &wait, &rank->error);
}

bool
comm_rig_connect(comm_rig *rig, comm_rig_rank *ranks, int n, bool is_nonblocking)
{
    dd_nccl_unique_id id;
    comm_rig_ranks(rig, ranks, n, &id);
    for (int i = 0; i < n; i++) {
        ranks[i].is_nonblocking = is_nonblocking;
    }
    comm_rig_run(ranks, n, comm_rig_init);
    bool is_good = true;
    for (int i = 0; i < n; i++) {
        ranks[i].ids = NULL; /* the array was on this stack */
        is_good = CHECK_INT(ranks[i].status, DD_OK) && is_good;
    }
    return is_good;
}

void
comm_rig_release(comm_rig_rank *ranks, int n)
{
    for (int i = 0; i < n; i++) {
        dd_nccl_comm_release(ranks[i].child);
        dd_nccl_comm_release(ranks[i].comm);
    }
}

dd_status
comm_rig_enter(dd_nccl_comm *comm, dd_nccl_comm_handle *handle)
{
    dd_wait wait = dd_wait_after(60 * DD_NS_PER_S * check_slow());
    return dd_nccl_comm_enter(comm, NULL, &wait, handle, check_err());
}
