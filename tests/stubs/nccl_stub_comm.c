/* Communicators: their states, queries, and their ends. nccl_stub_make.c creates them. */
#include "nccl_stub.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

pthread_mutex_t nccl_lock = PTHREAD_MUTEX_INITIALIZER;
pthread_cond_t nccl_changed;

stub_count nccl_comm_count = {.kind = "comm"};
stub_table nccl_comms = STUB_TABLE(&nccl_comm_count, 8);

/* The last warning of the process. Protected by nccl_lock. */
static char last_warning[NCCL_TEXT_MAX];
/* Each thread's copy of it. Not thread-local: libraries that are loaded late get little such
 * memory. */
static pthread_key_t copy_key;

__attribute__((constructor)) static void
start(void)
{
    stub_cond_init(&nccl_changed);
    pthread_key_create(&copy_key, free);
}

static void
set_warning(const char *format, va_list args)
{
    pthread_mutex_lock(&nccl_lock);
    (void)vsnprintf(last_warning, sizeof last_warning, format, args);
    pthread_mutex_unlock(&nccl_lock);
}

void
nccl_warn(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    set_warning(format, args);
    va_end(args);
}

dd_nccl_result
nccl_fail(dd_nccl_result result, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    set_warning(format, args);
    va_end(args);
    return result;
}

dd_nccl_result
nccl_fail_null(const char *function, const char *argument)
{
    return nccl_fail(DD_NCCL_INVALID_ARGUMENT, "%s : %s argument is NULL", function, argument);
}

const char *
nccl_last_error(void)
{
    char *copy = pthread_getspecific(copy_key);
    if (copy == NULL) {
        copy = stub_zalloc(NCCL_TEXT_MAX);
        pthread_setspecific(copy_key, copy);
    }
    pthread_mutex_lock(&nccl_lock);
    memcpy(copy, last_warning, NCCL_TEXT_MAX);
    pthread_mutex_unlock(&nccl_lock);
    return copy;
}

/* ---- lifetime */

static void
free_comm(stub_object *object)
{
    nccl_comm *comm = (nccl_comm *)object;
    nccl_windows_end(comm);
    wire_close(comm->wire);
    free(comm->redops);
    free(comm);
}

nccl_comm *
nccl_comm_make(int nranks, int rank, int device, const dd_nccl_abi_config *config)
{
    nccl_comm *comm = stub_zalloc(sizeof *comm);
    stub_object_init(&comm->base, free_comm);
    comm->nranks = nranks;
    comm->rank = rank;
    comm->device = device;
    comm->config = *config;
    comm->state = DD_NCCL_IN_PROGRESS;
    return comm;
}

void
nccl_comm_release(nccl_comm *comm)
{
    stub_object_release(&comm->base);
}

bool
nccl_comm_is_blocking(const nccl_comm *comm)
{
    return comm->config.blocking != 0;
}

nccl_comm *
nccl_comm_find(dd_nccl_comm_handle handle, dd_nccl_result *result)
{
    nccl_comm *comm = stub_table_find(&nccl_comms, handle);
    *result = comm != NULL ? DD_NCCL_SUCCESS
                           : nccl_fail(DD_NCCL_INVALID_ARGUMENT, "%s",
                                       handle == NULL ? "comm argument is NULL"
                                                      : "Error: corrupted comm object detected");
    return comm;
}

/* Set the result of the call. Return the text of its warning, or NULL; a failed communicator has
 * none. */
static const char *
trouble_locked(const nccl_comm *comm, nccl_need need, dd_nccl_result *result)
{
    *result = DD_NCCL_SUCCESS;
    if (comm->state == DD_NCCL_IN_PROGRESS) {
        *result = DD_NCCL_INVALID_ARGUMENT;
        return "Attempt to use communicator before the previous operation returned ncclSuccess";
    }
    if (need == NCCL_NEED_NOT_BUSY) {
        return NULL;
    }
    if (comm->state != DD_NCCL_SUCCESS) {
        *result = comm->state;
        return NULL;
    }
    if (need == NCCL_NEED_WELL) {
        return NULL;
    }
    *result = DD_NCCL_INVALID_USAGE;
    if (comm->is_finalized && comm->nranks > 1) {
        return "the communicator has been finalized";
    }
    if (comm->is_suspended) {
        return "the communicator is suspended";
    }
    if (comm->is_revoked && need == NCCL_NEED_UNREVOKED) {
        return "the communicator has been revoked";
    }
    *result = DD_NCCL_SUCCESS;
    return NULL;
}

nccl_comm *
nccl_comm_find_ready(dd_nccl_comm_handle handle, nccl_need need, dd_nccl_result *result)
{
    nccl_comm *comm = nccl_comm_find(handle, result);
    if (comm == NULL) {
        return NULL;
    }
    pthread_mutex_lock(&nccl_lock);
    const char *trouble = trouble_locked(comm, need, result);
    pthread_mutex_unlock(&nccl_lock);
    if (*result == DD_NCCL_SUCCESS) {
        return comm;
    }
    nccl_comm_release(comm);
    if (trouble != NULL) {
        nccl_warn("%s", trouble);
    }
    return NULL;
}

void
nccl_comm_set_state(nccl_comm *comm, dd_nccl_result state)
{
    pthread_mutex_lock(&nccl_lock);
    comm->state = state;
    pthread_cond_broadcast(&nccl_changed);
    pthread_mutex_unlock(&nccl_lock);
}

dd_nccl_result
nccl_comm_fail(nccl_comm *comm, dd_nccl_result result)
{
    pthread_mutex_lock(&nccl_lock);
    if (!nccl_comm_is_blocking(comm) && comm->state == DD_NCCL_SUCCESS) {
        comm->state = result;
    }
    pthread_mutex_unlock(&nccl_lock);
    return result;
}

dd_nccl_result
nccl_refuse(dd_nccl_comm_handle handle, dd_nccl_result result)
{
    nccl_comm *comm = handle != NULL ? stub_table_find(&nccl_comms, handle) : NULL;
    if (comm != NULL) {
        (void)nccl_comm_fail(comm, result);
        nccl_comm_release(comm);
    }
    return result;
}

void
nccl_comm_begin_job(nccl_comm *comm)
{
    pthread_mutex_lock(&nccl_lock);
    comm->njobs++;
    pthread_mutex_unlock(&nccl_lock);
}

void
nccl_comm_end_job(nccl_comm *comm)
{
    pthread_mutex_lock(&nccl_lock);
    comm->njobs--;
    pthread_cond_broadcast(&nccl_changed);
    pthread_mutex_unlock(&nccl_lock);
}

void
nccl_comm_begin_inside(nccl_comm *comm)
{
    pthread_mutex_lock(&nccl_lock);
    comm->ninside++;
    pthread_mutex_unlock(&nccl_lock);
}

void
nccl_comm_end_inside(nccl_comm *comm)
{
    pthread_mutex_lock(&nccl_lock);
    comm->ninside--;
    pthread_mutex_unlock(&nccl_lock);
}

dd_nccl_result
nccl_check_unsafe(const char *function)
{
    int cuda = dd_stub_check_unsafe();
    return cuda == 0 ? DD_NCCL_SUCCESS
                     : nccl_fail(DD_NCCL_UNHANDLED_CUDA_ERROR,
                                 "%s: Cuda failure %d: a stream is being captured", function, cuda);
}

/* ---- ends */

void
nccl_comm_stop(nccl_comm *comm)
{
    atomic_store(&comm->is_stopped, true);
    pthread_mutex_lock(&nccl_lock);
    if (comm->wire != NULL) {
        wire_wake(comm->wire);
    }
    pthread_cond_broadcast(&nccl_changed);
    pthread_mutex_unlock(&nccl_lock);
}

void
nccl_comm_halt(nccl_comm *comm)
{
    nccl_comm_stop(comm);
    pthread_mutex_lock(&nccl_lock);
    while (comm->nrunning > 0) {
        pthread_cond_wait(&nccl_changed, &nccl_lock);
    }
    pthread_mutex_unlock(&nccl_lock);
}

static void
wait_for_jobs(nccl_comm *comm)
{
    pthread_mutex_lock(&nccl_lock);
    while (comm->njobs > 0) {
        pthread_cond_wait(&nccl_changed, &nccl_lock);
    }
    pthread_mutex_unlock(&nccl_lock);
}

static void
wait_for_kernels(nccl_comm *comm)
{
    pthread_mutex_lock(&nccl_lock);
    while (comm->turn < atomic_load(&comm->ntickets) && !atomic_load(&comm->is_stopped)) {
        pthread_cond_wait(&nccl_changed, &nccl_lock);
    }
    pthread_mutex_unlock(&nccl_lock);
}

/* A communicator exists at least until the graphs with its kernels are destroyed. */
static void
wait_for_graphs(nccl_comm *comm)
{
    pthread_mutex_lock(&nccl_lock);
    while (comm->ngraphs > 0) {
        pthread_cond_wait(&nccl_changed, &nccl_lock);
    }
    pthread_mutex_unlock(&nccl_lock);
}

/* Ended communicators whose other ranks in this process have not ended. Protected by nccl_lock. */
static nccl_comm *first_ended;

static int
count_ranks_here(const nccl_comm *comm)
{
    int n = 0;
    for (int rank = 0; comm->wire != NULL && !nccl_fault_ends_apart() && rank < comm->nranks; rank++) {
        n += wire_card_of(comm->wire, rank).pid == wire_card_of(comm->wire, comm->rank).pid;
    }
    return n;
}

/* Add a communicator to the ended ones. Return the list of all ranks in this process if it is the
 * last one, otherwise NULL. */
static nccl_comm *
add_ended(nccl_comm *comm)
{
    nccl_comm *all = comm;
    int n = 1;
    comm->next_ended = NULL;
    pthread_mutex_lock(&nccl_lock);
    for (nccl_comm *at = first_ended; at != NULL; at = at->next_ended) {
        n += memcmp(at->spec.name, comm->spec.name, sizeof at->spec.name) == 0;
    }
    if (n < count_ranks_here(comm)) {
        comm->next_ended = first_ended;
        first_ended = comm;
        all = NULL;
    }
    for (nccl_comm **link = &first_ended; all != NULL && *link != NULL;) {
        nccl_comm *at = *link;
        if (memcmp(at->spec.name, comm->spec.name, sizeof at->spec.name) == 0) {
            *link = at->next_ended;
            at->next_ended = all;
            all = at;
        } else {
            link = &at->next_ended;
        }
    }
    pthread_mutex_unlock(&nccl_lock);
    return all;
}

/* End a communicator. The last rank of the process waits for the kernels of all ranks, and frees
 * memory, which waits for all work of its device; earlier ranks return. */
static void
end_comm(nccl_comm *comm)
{
    wait_for_jobs(comm); /* threads of NCCL */
    pthread_mutex_lock(&nccl_lock);
    bool is_used = comm->ninside > 0 || comm->nopen > 0;
    pthread_mutex_unlock(&nccl_lock);
    if (is_used) {
        /* a thread is in a call on the communicator and will use freed memory */
        stub_count_bad_use();
    }
    nccl_comm *known = stub_table_remove(&nccl_comms, comm->base.handle);
    nccl_comm *all = known != NULL ? add_ended(known) : NULL;
    for (nccl_comm *at = all; at != NULL; at = at->next_ended) {
        wait_for_kernels(at);
        nccl_comm_halt(at);
        wait_for_graphs(at);
    }
    if (all != NULL) {
        dd_stub_wait_device(comm->device);
        nccl_fault_on_end();
    }
    while (all != NULL) {
        nccl_comm *next = all->next_ended;
        nccl_comm_release(all);
        all = next;
    }
}

static dd_nccl_result
run_end(nccl_job *job)
{
    end_comm(job->comm);
    return DD_NCCL_SUCCESS;
}

/* Take over the caller's reference. Inside a group, from 2.22.3 on, the end of the group ends the
 * communicator. */
static dd_nccl_result
end_in_group(nccl_comm *comm)
{
    if (nccl_group_is_open() && nccl_stub_version >= 22203) {
        nccl_job *job = stub_zalloc(sizeof *job);
        job->run = run_end;
        job->comm = comm;
        job->is_end = true;
        return nccl_group_add_job(job);
    }
    end_comm(comm);
    nccl_comm_release(comm);
    return DD_NCCL_SUCCESS;
}

/* Calls that wait on the communicator return before this one does, also in a group. */
dd_nccl_result
nccl_abort(dd_nccl_comm_handle handle)
{
    dd_nccl_result result = DD_NCCL_SUCCESS;
    nccl_comm *comm = handle != NULL ? nccl_comm_find(handle, &result) : NULL;
    if (comm == NULL) {
        return result;
    }
    (void)nccl_check_unsafe("ncclCommAbort"); /* continues, but invalidates the capture */
    atomic_store(&comm->is_aborted, true);
    nccl_comm_stop(comm);
    return end_in_group(comm);
}

dd_nccl_result
nccl_destroy(dd_nccl_comm_handle handle)
{
    if (handle == NULL) {
        return DD_NCCL_SUCCESS;
    }
    dd_nccl_result result;
    nccl_comm *comm = nccl_comm_find_ready(handle, NCCL_NEED_WELL, &result);
    if (comm == NULL) {
        return result;
    }
    (void)nccl_check_unsafe("ncclCommDestroy");
    return end_in_group(comm);
}

static dd_nccl_result
run_finalize(nccl_job *job)
{
    wait_for_kernels(job->comm);
    wait_for_graphs(job->comm);
    return DD_NCCL_SUCCESS;
}

dd_nccl_result
nccl_finalize(dd_nccl_comm_handle handle)
{
    if (handle == NULL) {
        return DD_NCCL_SUCCESS;
    }
    dd_nccl_result result;
    nccl_comm *comm = nccl_comm_find_ready(handle, NCCL_NEED_WELL, &result);
    if (comm == NULL) {
        return result;
    }
    (void)nccl_check_unsafe("ncclCommFinalize");
    pthread_mutex_lock(&nccl_lock);
    bool is_again = comm->is_finalized;
    bool is_usable = !comm->is_suspended && !comm->is_revoked;
    comm->is_finalized = is_usable;
    pthread_mutex_unlock(&nccl_lock);
    if (is_again || !is_usable) {
        if (!is_usable) {
            nccl_warn("the communicator is suspended or has been revoked");
        }
        result = nccl_comm_fail(comm, is_usable ? DD_NCCL_INVALID_ARGUMENT : DD_NCCL_INVALID_USAGE);
        nccl_comm_release(comm);
        return result;
    }
    nccl_job *job = stub_zalloc(sizeof *job);
    job->run = run_finalize;
    job->comm = comm;
    nccl_group_start();
    (void)nccl_group_add_job(job);
    return nccl_group_end();
}

dd_nccl_result
nccl_revoke(dd_nccl_comm_handle handle)
{
    dd_nccl_result result;
    nccl_comm *comm = nccl_comm_find_ready(handle, NCCL_NEED_NOT_BUSY, &result);
    if (comm == NULL) {
        return result;
    }
    pthread_mutex_lock(&nccl_lock);
    comm->is_revoked = true;
    pthread_mutex_unlock(&nccl_lock);
    nccl_comm_halt(comm);
    nccl_comm_release(comm);
    return DD_NCCL_SUCCESS;
}

bool
nccl_comm_barrier(nccl_comm *comm)
{
    char own = 0;
    char all[WIRE_MAX_RANKS];
    wire_exchange_args args = {.mine = &own, .nbytes = sizeof own, .all = all};
    return comm->nranks == 1 || wire_exchange(comm->wire, &args, &comm->is_aborted) == WIRE_OK;
}

static dd_nccl_result
suspend(nccl_comm *comm, bool is_suspended)
{
    dd_nccl_result unsafe = nccl_check_unsafe(is_suspended ? "ncclCommSuspend" : "ncclCommResume");
    if (unsafe != DD_NCCL_SUCCESS) {
        return unsafe;
    }
    pthread_mutex_lock(&nccl_lock);
    bool was = comm->is_suspended;
    pthread_mutex_unlock(&nccl_lock);
    if (was == is_suspended) {
        return nccl_fail(DD_NCCL_INVALID_USAGE, "the communicator is %s",
                         was ? "suspended already" : "not suspended");
    }
    if (is_suspended) {
        dd_stub_wait_device(comm->device);
    }
    if (!nccl_comm_barrier(comm)) {
        return nccl_fail(DD_NCCL_INTERNAL_ERROR, "the communicator was aborted during the call");
    }
    pthread_mutex_lock(&nccl_lock);
    comm->is_suspended = is_suspended;
    pthread_mutex_unlock(&nccl_lock);
    return nccl_comm_barrier(comm)
               ? DD_NCCL_SUCCESS
               : nccl_fail(DD_NCCL_INTERNAL_ERROR, "the communicator was aborted during the call");
}

dd_nccl_result
nccl_suspend(dd_nccl_comm_handle handle, bool is_suspended)
{
    dd_nccl_result result;
    nccl_comm *comm = nccl_comm_find_ready(handle, NCCL_NEED_NOT_BUSY, &result);
    if (comm == NULL) {
        return result;
    }
    nccl_comm_begin_inside(comm);
    result = suspend(comm, is_suspended);
    nccl_comm_end_inside(comm);
    nccl_comm_release(comm);
    return result;
}

/* ---- queries */

dd_nccl_result
nccl_mem_stat(dd_nccl_comm_handle handle, dd_nccl_mem_stat stat, uint64_t *value)
{
    dd_nccl_result result;
    nccl_comm *comm = nccl_comm_find(handle, &result);
    if (comm == NULL) {
        return result;
    }
    const uint64_t suspendable = (uint64_t)64 << 20;
    const uint64_t persistent = (uint64_t)8 << 20;
    pthread_mutex_lock(&nccl_lock);
    bool is_suspended = comm->is_suspended;
    pthread_mutex_unlock(&nccl_lock);
    nccl_comm_release(comm);
    switch (stat) {
    case DD_NCCL_MEM_STAT_SUSPEND:
        *value = suspendable;
        return DD_NCCL_SUCCESS;
    case DD_NCCL_MEM_STAT_SUSPENDED:
        *value = is_suspended;
        return DD_NCCL_SUCCESS;
    case DD_NCCL_MEM_STAT_PERSIST:
        *value = persistent;
        return DD_NCCL_SUCCESS;
    case DD_NCCL_MEM_STAT_TOTAL:
        *value = persistent + suspendable;
        return DD_NCCL_SUCCESS;
    }
    return nccl_fail(DD_NCCL_INVALID_ARGUMENT, "ncclCommMemStats: no statistic %d", (int)stat);
}

/* Do not write fields newer than the version in the struct: the caller's struct ends before
 * them. */
dd_nccl_result
nccl_properties(dd_nccl_comm_handle handle, dd_nccl_abi_properties *properties)
{
    if (properties == NULL || properties->magic != DD_NCCL_MAGIC ||
        (int)properties->version > nccl_stub_version) {
        return nccl_fail(DD_NCCL_INVALID_USAGE, "ncclCommQueryProperties: %s",
                         properties != NULL && properties->magic == DD_NCCL_MAGIC
                             ? "NCCL library is too old"
                             : "ncclCommProperties_t argument must be initialized");
    }
    dd_nccl_result result;
    nccl_comm *comm = nccl_comm_find_ready(handle, NCCL_NEED_READY, &result);
    if (comm == NULL) {
        return result;
    }
    int version = (int)properties->version;
    properties->rank = comm->rank;
    properties->nRanks = comm->nranks;
    properties->cudaDev = properties->nvmlDev = comm->device;
    properties->deviceApiSupport = true;
    properties->multimemSupport = comm->nranks > 1;
    if (version >= 22907) {
        properties->nLsaTeams = 1;
        properties->hostRmaSupport = true;
    }
    if (version >= 23102) {
        memcpy(&properties->commHash, comm->spec.name, sizeof properties->commHash);
        properties->ginMinStride = 1;
    }
    nccl_comm_release(comm);
    return DD_NCCL_SUCCESS;
}

dd_nccl_result
nccl_async_error(dd_nccl_comm_handle handle, dd_nccl_result *state)
{
    if (state == NULL) {
        return nccl_fail_null("ncclGetAsyncError", "asyncError");
    }
    dd_nccl_result result;
    nccl_comm *comm = nccl_comm_find(handle, &result);
    if (comm == NULL) {
        return result;
    }
    pthread_mutex_lock(&nccl_lock);
    *state = comm->state;
    bool is_open = comm->nopen > 0;
    pthread_mutex_unlock(&nccl_lock);
    if (is_open && !nccl_comm_is_blocking(comm)) {
        /* NCCL joins and frees a job that the group's thread will also join */
        stub_count_bad_use();
    }
    nccl_comm_release(comm);
    return DD_NCCL_SUCCESS;
}

dd_nccl_result
nccl_comm_info(const char *function, dd_nccl_comm_handle handle, int what, int *value)
{
    static const char *const arguments[] = {
        [NCCL_INFO_COUNT] = "count", [NCCL_INFO_DEVICE] = "devid", [NCCL_INFO_RANK] = "rank"};
    if (handle == NULL || value == NULL) {
        return nccl_fail_null(function, handle == NULL ? "comm" : arguments[what]);
    }
    dd_nccl_result result;
    nccl_comm *comm = nccl_comm_find_ready(handle, NCCL_NEED_WELL, &result);
    if (comm == NULL) {
        return result;
    }
    *value = what == NCCL_INFO_COUNT ? comm->nranks : what == NCCL_INFO_DEVICE ? comm->device : comm->rank;
    nccl_comm_release(comm);
    return DD_NCCL_SUCCESS;
}
