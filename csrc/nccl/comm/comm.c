/* The record of a communicator: entering and leaving, queries, and references. */
#include "nccl/comm/internal.h"

#include "core/fork.h"
#include "core/lock.h"
#include "core/mem.h"

#include <stdio.h>
#include <string.h>

dd_nccl_comm *
dd_nccl_comm_new_record(const dd_nccl_lib *lib, const dd_cuda *cuda, int device)
{
    dd_nccl_comm *comm = dd_mem_zalloc(sizeof *comm);
    if (comm == NULL) {
        return NULL;
    }
    atomic_init(&comm->refs, 1);
    comm->lib = lib;
    comm->cuda = cuda;
    comm->device = device;
    comm->fork_generation = dd_fork_generation();
    comm->state = DD_NCCL_COMM_READY;
    static _Atomic uint64_t nflags; /* relaxed is enough: values need only be unique */
    comm->family.flag = atomic_fetch_add_explicit(&nflags, 1, memory_order_relaxed);
    dd_list_init(&comm->family.link);
    dd_lock_init(&comm->mu, DD_LOCK_NCCL_COMM);
    dd_cond_init(&comm->changed);
    return comm;
}

void
dd_nccl_comm_free_record(dd_nccl_comm *comm)
{
    if (comm == NULL) {
        return;
    }
    if (comm->fork_generation == dd_fork_generation()) {
        dd_nccl_family_remove(comm);
        dd_cond_fini(&comm->changed);
        dd_lock_fini(&comm->mu);
    }
    dd_mem_free(comm);
}

const char *
dd_nccl_comm_print(const dd_nccl_comm *comm, char *out, size_t size)
{
    (void)snprintf(out, size, "rank %d of %d on device %d", comm->rank, comm->size, comm->device);
    return out;
}

dd_status
dd_nccl_comm_check_fork(const dd_nccl_comm *comm, dd_error *err)
{
    if (comm->fork_generation != dd_fork_generation()) {
        return dd_error_set(err, DD_FORKED, "the NCCL communicator belongs to the process before the fork");
    }
    return DD_OK;
}

static dd_status
check_state_locked(const dd_nccl_comm *comm, dd_error *err)
{
    char name[64];
    switch (comm->state) {
    case DD_NCCL_COMM_READY:
        return DD_OK;
    case DD_NCCL_COMM_ABORTED:
        return dd_error_set(err, DD_ABORTED, "the NCCL communicator of %s was aborted: %s",
                            dd_nccl_comm_print(comm, name, sizeof name), comm->reason);
    case DD_NCCL_COMM_DESTROYED:
        break;
    }
    return dd_error_set(err, DD_CLOSED, "the NCCL communicator of %s was destroyed",
                        dd_nccl_comm_print(comm, name, sizeof name));
}

dd_status
dd_nccl_comm_check_aborted(dd_nccl_comm *comm, dd_error *err)
{
    dd_lock_take(&comm->mu);
    dd_status status = comm->state == DD_NCCL_COMM_ABORTED ? check_state_locked(comm, err) : DD_OK;
    dd_lock_release(&comm->mu);
    return status;
}

dd_status
dd_nccl_check_wait(const char *label, const atomic_bool *stop, const dd_wait *wait, dd_error *err)
{
    if (stop != NULL && atomic_load(stop)) {
        return dd_error_set(err, DD_ABORTED, "%s was cancelled after %.3f s", label, dd_wait_elapsed_s(wait));
    }
    if (dd_wait_has_expired(wait)) {
        return dd_error_set(err, DD_OP_TIMED_OUT, "%s timed out after %.3f s", label,
                            dd_wait_elapsed_s(wait));
    }
    return dd_wait_check(wait, err);
}

dd_status
dd_nccl_await_change_locked(pthread_cond_t *changed, dd_lock *mu, const char *label, const atomic_bool *stop,
                            const dd_wait *wait, dd_error *err)
{
    dd_cond_wait_slice(changed, mu, wait);
    dd_lock_release(mu);
    dd_status status = dd_nccl_check_wait(label, stop, wait, err);
    dd_lock_take(mu);
    return status;
}

/* ---- entering and leaving */

static bool
is_taken_locked(const dd_nccl_comm *comm)
{
    return comm->state == DD_NCCL_COMM_READY && comm->is_inside;
}

dd_status
dd_nccl_comm_await_turn_locked(dd_nccl_comm *comm, const atomic_bool *stop, const dd_wait *wait,
                               dd_error *err)
{
    dd_status status = DD_OK;
    while (status == DD_OK && is_taken_locked(comm)) {
        status = dd_nccl_await_change_locked(&comm->changed, &comm->mu,
                                             "waiting for another thread's call on the NCCL communicator",
                                             stop, wait, err);
    }
    return is_taken_locked(comm) ? status : DD_OK;
}

dd_status
dd_nccl_comm_enter(dd_nccl_comm *comm, const atomic_bool *stop, const dd_wait *wait,
                   dd_nccl_comm_handle *handle, dd_error *err)
{
    dd_status status = dd_nccl_comm_check_fork(comm, err);
    if (status != DD_OK) {
        return status;
    }
    dd_lock_take(&comm->mu);
    status = dd_nccl_comm_await_turn_locked(comm, stop, wait, err);
    if (status == DD_OK) {
        status = check_state_locked(comm, err);
    }
    if (status == DD_OK) {
        comm->is_inside = true;
        dd_nccl_note_last_error(comm->lib, comm->handle, &comm->at_entry);
        *handle = comm->handle;
    }
    dd_lock_release(&comm->mu);
    return status;
}

void
dd_nccl_comm_leave(dd_nccl_comm *comm)
{
    dd_lock_take(&comm->mu);
    comm->is_inside = false;
    if (comm->state == DD_NCCL_COMM_READY) {
        dd_nccl_note_last_error(comm->lib, comm->handle, &comm->last_success);
    }
    dd_cond_broadcast(&comm->changed);
    dd_lock_release(&comm->mu);
}

const dd_nccl_last_error *
dd_nccl_comm_before(const dd_nccl_comm *comm, dd_nccl_result result)
{
    return dd_nccl_is_of_the_call(result) ? &comm->at_entry : &comm->last_success;
}

/* Query NCCL for an asynchronous error. The caller must hold mu, which keeps the handle valid. */
static dd_status
poll_locked(const dd_nccl_comm *comm, const char *label, dd_nccl_result *result, dd_error *err)
{
    char name[64];
    dd_nccl_result asked = comm->lib->api.ncclCommGetAsyncError(comm->handle, result);
    dd_status status =
        dd_nccl_check(comm->lib, &comm->last_success, asked, err, "ncclCommGetAsyncError of %s",
                      dd_nccl_comm_print(comm, name, sizeof name));
    return status == DD_OK ? dd_nccl_check(comm->lib, &comm->last_success, *result, err, "%s", label)
                           : status;
}

dd_status
dd_nccl_comm_poll(dd_nccl_comm *comm, const char *label, dd_nccl_result *result, dd_error *err)
{
    *result = DD_NCCL_SUCCESS;
    dd_status status = dd_nccl_comm_check_fork(comm, err);
    if (status != DD_OK) {
        return status;
    }
    dd_lock_take(&comm->mu);
    status = check_state_locked(comm, err);
    if (status == DD_OK) {
        status = poll_locked(comm, label, result, err);
    }
    dd_lock_release(&comm->mu);
    return status;
}

dd_status
dd_nccl_comm_check(dd_nccl_comm *comm, dd_error *err)
{
    char name[64];
    char label[128];
    (void)snprintf(label, sizeof label, "NCCL's communicator of %s has failed",
                   dd_nccl_comm_print(comm, name, sizeof name));
    dd_nccl_result result;
    dd_status status = dd_nccl_comm_check_fork(comm, NULL);
    if (status != DD_OK) {
        return DD_OK;
    }
    dd_lock_take(&comm->mu);
    /* On a nonblocking communicator, a query also completes what NCCL runs on its own thread. Only
     * the thread inside may do that while there is one, and it queries NCCL itself. */
    bool may_query = comm->state == DD_NCCL_COMM_READY && (comm->is_blocking || !comm->is_inside);
    if (may_query) {
        status = poll_locked(comm, label, &result, err);
    }
    if (may_query && status == DD_OK && !comm->is_inside) {
        dd_nccl_note_last_error(comm->lib, comm->handle, &comm->last_success);
    }
    dd_lock_release(&comm->mu);
    return status == DD_BACKEND ? status : DD_OK;
}

dd_status
dd_nccl_comm_wait_ready(dd_nccl_comm *comm, const char *label, const atomic_bool *stop, const dd_wait *wait,
                        dd_error *err)
{
    if (comm->is_blocking) {
        return DD_OK;
    }
    for (int64_t nap_ns = DD_NCCL_POLL_MIN_NS;; nap_ns *= nap_ns < DD_NCCL_POLL_MAX_NS ? 2 : 1) {
        dd_nccl_result result;
        dd_status status = dd_nccl_comm_poll(comm, label, &result, err);
        if (status == DD_OK && result != DD_NCCL_IN_PROGRESS) {
            return DD_OK;
        }
        if (status == DD_OK) {
            status = dd_nccl_check_wait(label, stop, wait, err);
        }
        if (status == DD_OK) {
            status = dd_wait_sleep(wait, nap_ns, err);
        }
        if (status != DD_OK) {
            return status;
        }
    }
}

/* ---- references */

dd_nccl_comm *
dd_nccl_comm_acquire(dd_nccl_comm *comm)
{
    atomic_fetch_add_explicit(&comm->refs, 1, memory_order_relaxed);
    return comm;
}

void
dd_nccl_comm_release(dd_nccl_comm *comm)
{
    if (comm == NULL || atomic_fetch_sub_explicit(&comm->refs, 1, memory_order_acq_rel) != 1) {
        return;
    }
    dd_status status = dd_nccl_comm_destroy(comm, NULL); /* no caller can receive the error */
    (void)status;
    dd_nccl_comm_free_record(comm);
}

/* ---- properties */

int
dd_nccl_comm_rank(const dd_nccl_comm *comm)
{
    return comm->rank;
}

int
dd_nccl_comm_size(const dd_nccl_comm *comm)
{
    return comm->size;
}

int
dd_nccl_comm_device(const dd_nccl_comm *comm)
{
    return comm->device;
}

const dd_nccl_lib *
dd_nccl_comm_lib(const dd_nccl_comm *comm)
{
    return comm->lib;
}

const dd_cuda *
dd_nccl_comm_cuda(const dd_nccl_comm *comm)
{
    return comm->cuda;
}

dd_nccl_comm_handle
dd_nccl_comm_pointer(dd_nccl_comm *comm)
{
    if (dd_nccl_comm_check_fork(comm, NULL) != DD_OK) {
        return NULL;
    }
    dd_lock_take(&comm->mu);
    dd_nccl_comm_handle handle = comm->handle;
    dd_lock_release(&comm->mu);
    return handle;
}

bool
dd_nccl_comm_is_blocking(const dd_nccl_comm *comm)
{
    return comm->is_blocking;
}

bool
dd_nccl_comm_has_ended(dd_nccl_comm *comm)
{
    dd_lock_take(&comm->mu);
    bool has_ended = comm->state == DD_NCCL_COMM_ABORTED || comm->state == DD_NCCL_COMM_DESTROYED;
    dd_lock_release(&comm->mu);
    return has_ended;
}

uint64_t
dd_nccl_comm_nsplits(dd_nccl_comm *comm)
{
    dd_lock_take(&comm->mu);
    uint64_t nsplits = comm->nsplits;
    dd_lock_release(&comm->mu);
    return nsplits;
}
