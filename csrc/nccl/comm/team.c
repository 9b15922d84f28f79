#include "nccl/comm/team.h"

#include "core/lock.h"
#include "core/mem.h"
#include "core/thread.h"
#include "nccl/comm/internal.h"

#include <string.h>

/* First NCCL version that allows two ranks on a device (NCCL_MULTI_RANK_GPU_ENABLE=1). */
#define SHARED_DEVICE_SINCE 23003

struct dd_nccl_team {
    const dd_nccl_lib *lib; /* const, like the next three fields */
    const dd_cuda *cuda;
    int size;
    int *devices;          /* stored after the array `comms`, in the same allocation */
    dd_timed_lock call_mu; /* admits one call at a time; taken before mu */
    dd_lock mu;
    dd_nccl_comm *comms[]; /* write under call_mu and mu, read under either; NULL if taken apart */
};

/* ---- one item */

static bool
has_root(dd_nccl_item_kind kind)
{
    return kind == DD_NCCL_ITEM_BROADCAST || kind == DD_NCCL_ITEM_REDUCE || kind == DD_NCCL_ITEM_GATHER ||
           kind == DD_NCCL_ITEM_SCATTER || kind == DD_NCCL_ITEM_SEND || kind == DD_NCCL_ITEM_RECV;
}

static dd_status
check_item(const char *label, const dd_nccl_item *item, int size, dd_error *err)
{
    if (has_root(item->kind) && (item->root < 0 || item->root >= size)) {
        return dd_error_set(err, DD_INVALID_ARGUMENT, "%s: invalid rank: got %d, expected 0 to %d", label,
                            item->root, size - 1);
    }
    return DD_OK;
}

/* ---- a call: enters all communicators, and enqueues all items in one NCCL group */

typedef struct call {
    const char *label;
    const dd_nccl_api *api;
    const dd_nccl_lib *lib;
    dd_nccl_comm *const *comms;
    dd_nccl_comm_handle *handles;
    int ncomms;
    const dd_nccl_item *items; /* items[k * ncomms + i] is the k-th item of comms[i] */
    int nitems;                /* number of items for each communicator */
    const dd_cuda_stream *streams;
    const dd_wait *wait;
} call;

/* Enqueue one item. Make its device current: a NULL stream is the current device's default. */
static dd_status
enqueue_one(const call *c, int i, const dd_nccl_item *item, dd_error *err)
{
    dd_nccl_comm *comm = c->comms[i];
    dd_cuda_guard guard;
    dd_status status = dd_cuda_enter(dd_nccl_comm_cuda(comm), dd_nccl_comm_device(comm), &guard, err);
    if (status != DD_OK) {
        return status;
    }
    dd_cuda_stream stream = c->streams != NULL ? c->streams[i] : NULL;
    dd_nccl_result result = dd_nccl_item_call(c->api, item, c->handles[i], stream);
    dd_cuda_leave(&guard);
    return dd_nccl_check(c->lib, dd_nccl_comm_before(comm, result), result, err, "%s of rank %d of %d",
                         c->label, dd_nccl_comm_rank(comm), dd_nccl_comm_size(comm));
}

/* Enqueue all items, up to the first failure. The caller must end the NCCL group in any case. */
static dd_status
enqueue_all(const call *c, dd_error *err)
{
    dd_status status = DD_OK;
    for (int k = 0; k < c->nitems; k++) {
        for (int i = 0; i < c->ncomms && status == DD_OK; i++) {
            status = enqueue_one(c, i, &c->items[k * c->ncomms + i], err);
        }
    }
    return status;
}

static dd_status
run_group(const call *c, dd_error *err)
{
    dd_nccl_result began = c->api->ncclGroupStart();
    dd_status status = dd_nccl_check(c->lib, dd_nccl_comm_before(c->comms[0], began), began, err,
                                     "ncclGroupStart for %s", c->label);
    if (status != DD_OK) {
        return status;
    }
    status = enqueue_all(c, err);
    dd_nccl_result ended = c->api->ncclGroupEnd();
    if (status == DD_OK) {
        status = dd_nccl_check(c->lib, dd_nccl_comm_before(c->comms[0], ended), ended, err,
                               "ncclGroupEnd for %s", c->label);
    }
    for (int i = 0; i < c->ncomms && status == DD_OK; i++) {
        status = dd_nccl_comm_wait_ready(c->comms[i], c->label, NULL, c->wait, err);
    }
    return status;
}

/* Run the NCCL group, and restore the current context, which ncclGroupEnd may change. */
static dd_status
run_entered(const call *c, dd_error *err)
{
    dd_cuda_guard guard;
    const dd_cuda *cuda = dd_nccl_comm_cuda(c->comms[0]);
    dd_status status = dd_cuda_enter(cuda, dd_nccl_comm_device(c->comms[0]), &guard, err);
    if (status != DD_OK) {
        return status;
    }
    status = run_group(c, err);
    dd_cuda_leave(&guard);
    return status;
}

static dd_status
team_call_run(call *c, dd_error *err)
{
    for (int i = 0; i < c->nitems * c->ncomms; i++) {
        dd_status status = check_item(c->label, &c->items[i], dd_nccl_comm_size(c->comms[0]), err);
        if (status != DD_OK) {
            return status;
        }
    }
    int nentered = 0;
    dd_status status = DD_OK;
    while (nentered < c->ncomms && status == DD_OK) {
        status = dd_nccl_comm_enter(c->comms[nentered], NULL, c->wait, &c->handles[nentered], err);
        nentered += status == DD_OK;
    }
    if (status == DD_OK) {
        status = run_entered(c, err);
    }
    while (nentered > 0) {
        dd_nccl_comm_leave(c->comms[--nentered]);
    }
    return status;
}

dd_status
dd_nccl_comm_run(dd_nccl_comm *comm, const char *label, const dd_nccl_item *items, int nitems,
                 dd_cuda_stream stream, const dd_wait *wait, dd_error *err)
{
    dd_nccl_comm_handle handle;
    const dd_nccl_lib *lib = dd_nccl_comm_lib(comm);
    call c = {label, &lib->api, lib, &comm, &handle, 1, items, nitems, &stream, wait};
    return team_call_run(&c, err);
}

/* ---- teams */

/* Return the index of the first device that repeats an earlier one, or -1. */
static int
find_repeated_device(const int *devices, int n)
{
    for (int i = 0; i < n; i++) {
        for (int k = 0; k < i; k++) {
            if (devices[i] == devices[k]) {
                return i;
            }
        }
    }
    return -1;
}

/* Reject a repeated device if NCCL is too old; newer versions decide by environment variables. */
static dd_status
check_devices(const dd_nccl_lib *lib, const int *devices, int n, dd_error *err)
{
    int repeated = lib->version < SHARED_DEVICE_SINCE ? find_repeated_device(devices, n) : -1;
    return repeated < 0
               ? DD_OK
               : dd_error_set(
                     err, DD_INVALID_ARGUMENT,
                     "device %d appears twice: two ranks on one device need NCCL_MULTI_RANK_GPU_ENABLE=1 "
                     "and NCCL 2.30.3 or newer, this is NCCL %s",
                     devices[repeated], lib->version_text);
}

/* Reject one stream for two ranks on a device: the kernels of the two ranks would deadlock. */
static dd_status
check_streams(const dd_nccl_team *team, const dd_cuda_stream *streams, dd_error *err)
{
    for (int i = 0; i < team->size; i++) {
        for (int k = 0; k < i; k++) {
            bool is_one = streams == NULL || streams[i] == streams[k];
            if (is_one && team->devices[i] == team->devices[k]) {
                return dd_error_set(
                    err, DD_INVALID_ARGUMENT,
                    "ranks %d and %d on device %d use the same stream: expected one stream for each", k, i,
                    team->devices[i]);
            }
        }
    }
    return DD_OK;
}

dd_status
dd_nccl_team_open(const dd_nccl_lib *lib, const dd_cuda *cuda, const int *devices, int ndevices,
                  dd_nccl_team **opened, const dd_wait *wait, dd_error *err)
{
    if (ndevices < 1) {
        return dd_error_set(err, DD_INVALID_ARGUMENT,
                            "a team of NCCL communicators needs a device: got none");
    }
    dd_status status = check_devices(lib, devices, ndevices, err);
    if (status != DD_OK) {
        return status;
    }
    size_t size = sizeof(dd_nccl_team) + (size_t)ndevices * (sizeof(dd_nccl_comm *) + sizeof(int));
    dd_nccl_team *team = dd_mem_zalloc(size);
    if (team == NULL) {
        return dd_error_no_memory(err, size);
    }
    team->lib = lib;
    team->cuda = cuda;
    team->size = ndevices;
    team->devices = (int *)(team->comms + ndevices);
    memcpy(team->devices, devices, (size_t)ndevices * sizeof(int));
    dd_timed_lock_init(&team->call_mu, DD_LOCK_NCCL_TEAM_CALL);
    dd_lock_init(&team->mu, DD_LOCK_NCCL_TEAM);
    status = dd_nccl_comm_init_all(lib, cuda, devices, ndevices, team->comms, wait, err);
    if (status != DD_OK) {
        int repeated = status == DD_BACKEND ? find_repeated_device(devices, ndevices) : -1;
        if (repeated >= 0) { /* a likely reason, which ncclCommInitAll does not report */
            dd_error_prepend(err, "device %d appears twice, which needs NCCL_MULTI_RANK_GPU_ENABLE=1",
                             devices[repeated]);
        }
        dd_nccl_team_close(team);
        return status;
    }
    *opened = team;
    return DD_OK;
}

void
dd_nccl_team_close(dd_nccl_team *team)
{
    if (team == NULL) {
        return;
    }
    for (int i = 0; i < team->size; i++) {
        if (team->comms[i] != NULL) {
            /* Destroy now, not at the last release: abort handles may still hold references. */
            dd_status status = dd_nccl_comm_destroy(team->comms[i], NULL);
            (void)status;
            dd_nccl_comm_release(team->comms[i]);
        }
    }
    dd_timed_lock_fini(&team->call_mu);
    dd_lock_fini(&team->mu);
    dd_mem_free(team);
}

int
dd_nccl_team_size(const dd_nccl_team *team)
{
    return team->size;
}

int
dd_nccl_team_device(const dd_nccl_team *team, int rank)
{
    return team->devices[rank];
}

dd_nccl_comm *
dd_nccl_team_acquire_comm(dd_nccl_team *team, int rank)
{
    dd_lock_take(&team->mu);
    dd_nccl_comm *comm = team->comms[rank];
    if (comm != NULL) {
        dd_nccl_comm_acquire(comm);
    }
    dd_lock_release(&team->mu);
    return comm;
}

static dd_status
check_whole_locked(const dd_nccl_team *team, dd_error *err)
{
    if (team->comms[0] == NULL) {
        return dd_error_set(err, DD_CLOSED, "the team of %d NCCL communicators was destroyed", team->size);
    }
    return DD_OK;
}

static dd_status
team_run_locked(dd_nccl_team *team, call *c, dd_error *err)
{
    dd_status status = check_whole_locked(team, err);
    if (status != DD_OK) {
        return status;
    }
    c->handles = dd_mem_alloc_array((size_t)team->size, sizeof(void *));
    if (c->handles == NULL) {
        return dd_error_no_memory(err, (size_t)team->size * sizeof(void *));
    }
    status = team_call_run(c, err);
    dd_mem_free(c->handles);
    return status;
}

/* Take call_mu, with a deadline, because another thread may hang in NCCL. */
static dd_status
begin_call(dd_nccl_team *team, const dd_wait *wait, dd_error *err)
{
    while (!dd_timed_lock_take_within(&team->call_mu, dd_wait_slice_ns(wait))) {
        dd_status status =
            dd_nccl_check_wait("waiting for another call of the NCCL communicators", NULL, wait, err);
        if (status != DD_OK) {
            return status;
        }
    }
    return DD_OK;
}

dd_status
dd_nccl_team_run(dd_nccl_team *team, const char *label, const dd_nccl_item *items, int nitems_per_rank,
                 const dd_cuda_stream *streams, const dd_wait *wait, dd_error *err)
{
    call c = {label,      &team->lib->api, team->lib,       team->comms, NULL,
              team->size, items,           nitems_per_rank, streams,     wait};
    dd_status status = check_streams(team, streams, err);
    if (status == DD_OK) {
        status = begin_call(team, wait, err);
    }
    if (status != DD_OK) {
        return status;
    }
    status = team_run_locked(team, &c, err);
    dd_timed_lock_release(&team->call_mu);
    return status;
}

/* A thread's job: to abort one rank's communicator. */
typedef struct rank_abort {
    dd_nccl_team *team;
    int rank;
    const char *reason;
    bool has_thread;
    pthread_t thread;
    dd_status status;
    dd_error error;
} rank_abort;

static void *
abort_rank(void *arg)
{
    rank_abort *one = arg;
    dd_nccl_comm *comm = dd_nccl_team_acquire_comm(one->team, one->rank);
    one->status = comm != NULL ? dd_nccl_comm_abort(comm, one->reason, &one->error) : DD_OK;
    dd_nccl_comm_release(comm);
    return NULL;
}

dd_status
dd_nccl_team_abort(dd_nccl_team *team, const char *reason, dd_error *err)
{
    rank_abort *all = dd_mem_alloc_array((size_t)team->size, sizeof *all);
    if (all == NULL) {
        return dd_error_no_memory(err, (size_t)team->size * sizeof *all);
    }
    for (int i = 0; i < team->size; i++) {
        all[i] = (rank_abort){.team = team, .rank = i, .reason = reason};
        all[i].has_thread =
            dd_thread_start(&all[i].thread, "dldist-abort", abort_rank, &all[i], NULL) == DD_OK;
    }
    dd_status status = DD_OK;
    for (int i = 0; i < team->size; i++) {
        if (!all[i].has_thread) {
            (void)abort_rank(&all[i]);
        }
    }
    for (int i = 0; i < team->size; i++) {
        if (all[i].has_thread) {
            dd_thread_join(all[i].thread);
        }
        if (status == DD_OK && all[i].status != DD_OK) {
            status = dd_error_copy(err, &all[i].error);
        }
    }
    dd_mem_free(all);
    return status;
}

dd_status
dd_nccl_team_take_apart(dd_nccl_team *team, dd_nccl_comm **comms, const dd_wait *wait, dd_error *err)
{
    dd_status status = begin_call(team, wait, err);
    if (status != DD_OK) {
        return status;
    }
    dd_lock_take(&team->mu);
    status = check_whole_locked(team, err);
    for (int i = 0; i < team->size && status == DD_OK; i++) {
        comms[i] = team->comms[i];
        team->comms[i] = NULL;
    }
    dd_lock_release(&team->mu);
    dd_timed_lock_release(&team->call_mu);
    return status;
}
