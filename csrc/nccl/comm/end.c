/* The end of a communicator: on the calling thread, or on a separate thread if the end may hang. */
#include "nccl/comm/internal.h"

#include "core/mem.h"

#include <stdio.h>

/* First NCCL version that can abort in two steps: an abort in an NCCL group ends other threads'
 * calls on the communicator, and the end of the NCCL group frees the communicator. */
#define ABORTS_IN_GROUPS_SINCE 22203

/* Abort or destroy a handle that take_handle_locked has removed from the communicator. */
static dd_status
end_handle(const dd_nccl_comm *comm, dd_nccl_comm_handle handle, bool is_abort, dd_error *err)
{
    if (dd_cuda_is_shut_down(comm->cuda)) {
        return DD_OK;
    }
    dd_cuda_guard guard;
    dd_status status = dd_cuda_enter(comm->cuda, comm->device, &guard, err);
    if (status != DD_OK) {
        return status;
    }
    const dd_nccl_api *api = &comm->lib->api;
    dd_cuda_capture_mode mode = dd_cuda_relax_capture(comm->cuda);
    dd_nccl_last_error before;
    dd_nccl_note_last_error(comm->lib, NULL, &before);
    dd_nccl_result result = is_abort ? api->ncclCommAbort(handle) : api->ncclCommDestroy(handle);
    dd_cuda_restore_capture(comm->cuda, mode);
    dd_cuda_leave(&guard);
    char name[64];
    return dd_nccl_check(comm->lib, &before, result, err, "%s of %s",
                         is_abort ? "ncclCommAbort" : "ncclCommDestroy",
                         dd_nccl_comm_print(comm, name, sizeof name));
}

static dd_nccl_comm_handle
take_handle_locked(dd_nccl_comm *comm, dd_nccl_comm_state state)
{
    dd_nccl_comm_handle handle = comm->handle;
    comm->state = state;
    comm->handle = NULL;
    dd_cond_broadcast(&comm->changed);
    return handle;
}

/* ---- ending on a separate thread */

typedef enum end_kind {
    END_DESTROY,
    END_ABORT,              /* wait until no thread is inside, then abort */
    END_ABORT_IN_TWO_STEPS, /* end the call of the thread inside, wait until it leaves, then free */
} end_kind;

typedef struct pending_end {
    atomic_uint refs;   /* references: one for the caller, one for the thread */
    dd_nccl_comm *comm; /* owned reference */
    dd_nccl_comm_handle handle;
    end_kind kind;
    dd_nccl_lib lib; /* copy, like cuda and context: the thread may outlive the originals */
    dd_cuda cuda;
    dd_cuda_context context;
    struct pending_end *next; /* next in the caller's list; used only by the caller */
    bool is_done;             /* guarded by comm->mu; `status` and `error` are final */
    dd_status status;
    dd_error error;
} pending_end;

static void
release_pending_end(pending_end *pending)
{
    if (atomic_fetch_sub_explicit(&pending->refs, 1, memory_order_acq_rel) == 1) {
        dd_nccl_comm_release(pending->comm);
        dd_mem_free(pending);
    }
}

static void
wait_until_left(dd_nccl_comm *comm)
{
    dd_lock_take(&comm->mu);
    while (comm->is_inside) {
        dd_cond_wait(&comm->changed, &comm->mu);
    }
    dd_lock_release(&comm->mu);
}

static bool
has_left_within(dd_nccl_comm *comm, int64_t patience_ns)
{
    dd_wait patience = dd_wait_after(patience_ns);
    dd_lock_take(&comm->mu);
    while (comm->is_inside && !dd_wait_has_expired(&patience)) {
        dd_cond_wait_slice(&comm->changed, &comm->mu, &patience);
    }
    bool has_left = !comm->is_inside;
    dd_lock_release(&comm->mu);
    return has_left;
}

static dd_nccl_result
abort_in_two_steps(const pending_end *pending)
{
    const dd_nccl_api *api = &pending->lib.api;
    if (api->ncclGroupStart() != DD_NCCL_SUCCESS) {
        wait_until_left(pending->comm);
        return api->ncclCommAbort(pending->handle);
    }
    dd_nccl_result result = api->ncclCommAbort(pending->handle);
    wait_until_left(pending->comm);
    dd_nccl_result ended = api->ncclGroupEnd();
    return result != DD_NCCL_SUCCESS ? result : ended;
}

static dd_nccl_result
end_now(const pending_end *pending)
{
    switch (pending->kind) {
    case END_DESTROY:
        return pending->lib.api.ncclCommDestroy(pending->handle);
    case END_ABORT:
        if (pending->comm->is_blocking) { /* this NCCL cannot end another thread's call */
            (void)has_left_within(pending->comm, DD_NCCL_LEAVE_NS);
        } else {
            wait_until_left(pending->comm);
        }
        return pending->lib.api.ncclCommAbort(pending->handle);
    case END_ABORT_IN_TWO_STEPS:
        break;
    }
    return abort_in_two_steps(pending);
}

static void *
run_pending_end(void *arg)
{
    pending_end *pending = arg;
    dd_nccl_comm *comm = pending->comm;
    char name[64];
    (void)dd_cuda_relax_capture(&pending->cuda);
    pending->status = dd_cuda_check(&pending->cuda, pending->cuda.api.cuCtxSetCurrent(pending->context),
                                    &pending->error, "cuCtxSetCurrent for the end of an NCCL communicator");
    if (pending->status == DD_OK) {
        dd_nccl_last_error before;
        dd_nccl_note_last_error(&pending->lib, NULL, &before);
        pending->status = dd_nccl_check(&pending->lib, &before, end_now(pending), &pending->error, "%s of %s",
                                        pending->kind == END_DESTROY ? "ncclCommDestroy" : "ncclCommAbort",
                                        dd_nccl_comm_print(comm, name, sizeof name));
    }
    dd_lock_take(&comm->mu);
    pending->is_done = true;
    dd_cond_broadcast(&comm->changed);
    dd_lock_release(&comm->mu);
    release_pending_end(pending);
    return NULL;
}

/* Wait for the thread that ends a handle. After DD_TIMED_OUT or DD_INTERRUPTED it continues. */
static dd_status
await_pending_end(pending_end *pending, const dd_wait *wait, dd_error *err)
{
    dd_nccl_comm *comm = pending->comm;
    dd_status status = DD_OK;
    dd_lock_take(&comm->mu);
    while (!pending->is_done && status == DD_OK) {
        status = dd_cond_wait_checked(&comm->changed, &comm->mu, wait, err);
    }
    status = pending->is_done ? DD_OK : status;
    dd_lock_release(&comm->mu);
    return status;
}

/* Start a thread that ends the handle. NULL if there is no memory or no thread. */
static pending_end *
start_pending_end(dd_nccl_comm *comm, dd_nccl_comm_handle handle, end_kind kind)
{
    pthread_t thread;
    pending_end *pending = dd_mem_zalloc(sizeof *pending);
    if (pending == NULL) {
        return NULL;
    }
    atomic_init(&pending->refs, 2);
    pending->comm = dd_nccl_comm_acquire(comm);
    pending->handle = handle;
    pending->kind = kind;
    pending->lib = *comm->lib;
    pending->cuda = *comm->cuda;
    if (dd_cuda_context_of(comm->cuda, comm->device, &pending->context, NULL) != DD_OK ||
        dd_thread_start(&thread, "dldist-end", run_pending_end, pending, NULL) != DD_OK) {
        release_pending_end(pending);
        release_pending_end(pending);
        return NULL;
    }
    dd_thread_detach(thread);
    return pending;
}

/* End the handle on the calling thread, however long that takes: the kernels must end first. */
static dd_status
end_here(dd_nccl_comm *comm, dd_nccl_comm_handle handle, end_kind kind, dd_error *err)
{
    (void)has_left_within(comm, DD_NCCL_LEAVE_NS);
    return end_handle(comm, handle, kind != END_DESTROY, err);
}

/* End the handle on a thread that continues after DD_TIMED_OUT (err not set) or DD_INTERRUPTED. */
static dd_status
end_late(dd_nccl_comm *comm, dd_nccl_comm_handle handle, end_kind kind, const dd_wait *wait, dd_error *err)
{
    pending_end *pending = start_pending_end(comm, handle, kind);
    if (pending == NULL) {
        return end_here(comm, handle, kind, err);
    }
    dd_status status = await_pending_end(pending, wait, err);
    if (status == DD_OK && pending->status != DD_OK) {
        status = dd_error_copy(err, &pending->error);
    }
    release_pending_end(pending);
    return status;
}

/* ---- aborting */

static bool
can_abort_in_two_steps(const dd_nccl_comm *comm)
{
    return comm->is_blocking && comm->lib->version >= ABORTS_IN_GROUPS_SINCE;
}

static dd_status
abort_during_call(dd_nccl_comm *comm, dd_nccl_comm_handle handle, dd_error *err)
{
    char name[64];
    dd_wait patience = dd_wait_after(DD_NCCL_CANCEL_NS);
    dd_status status = end_late(
        comm, handle, can_abort_in_two_steps(comm) ? END_ABORT_IN_TWO_STEPS : END_ABORT, &patience, err);
    return status != DD_TIMED_OUT
               ? status
               : dd_error_set(
                     err, DD_OP_TIMED_OUT,
                     "aborting the NCCL communicator of %s did not finish within %.0f s: a thread is still "
                     "in a call on it, and the abort ends when that thread returns",
                     dd_nccl_comm_print(comm, name, sizeof name), dd_wait_elapsed_s(&patience));
}

/* Take out the handle to abort it, and set the reason. NULL if the communicator has ended. */
static dd_nccl_comm_handle
comm_take_to_abort(dd_nccl_comm *comm, const char *reason, bool *is_inside)
{
    dd_nccl_comm_handle handle = NULL;
    dd_lock_take(&comm->mu);
    if (comm->state == DD_NCCL_COMM_READY) {
        (void)snprintf(comm->reason, sizeof comm->reason, "%.*s", (int)sizeof comm->reason - 1, reason);
        handle = take_handle_locked(comm, DD_NCCL_COMM_ABORTED);
    }
    *is_inside = comm->is_inside;
    dd_lock_release(&comm->mu);
    return handle;
}

/* Start aborting a related communicator without an owner. NULL if there is nothing to wait for. */
static pending_end *
start_abort(dd_nccl_comm *comm, const char *reason)
{
    bool is_inside;
    dd_nccl_comm_handle handle = comm_take_to_abort(comm, reason, &is_inside);
    if (handle == NULL || dd_cuda_is_shut_down(comm->cuda)) {
        return NULL;
    }
    end_kind kind = is_inside && can_abort_in_two_steps(comm) ? END_ABORT_IN_TWO_STEPS : END_ABORT;
    pending_end *pending = start_pending_end(comm, handle, kind);
    if (pending == NULL) {
        (void)end_here(comm, handle, kind, NULL);
    }
    return pending;
}

/* Abort the related communicators. Must be called before NCCL aborts comm: NCCL may have one abort
 * flag for all of them, and their operations would then look successful. */
static pending_end *
abort_relatives(dd_nccl_comm *comm, const char *reason, dd_nccl_reach reach)
{
    pending_end *started = NULL;
    dd_nccl_comm *relative;
    dd_nccl_comm_owner owner;
    const char *why;
    dd_nccl_family_mark_abort(comm, reach);
    while ((relative = dd_nccl_family_next(&owner, &why)) != NULL) {
        char text[sizeof((dd_error *)NULL)->message];
        (void)snprintf(text, sizeof text, "%s was aborted: %s", why, reason);
        pending_end *pending = NULL;
        if (owner.abort != NULL) {
            owner.abort(owner.ctx, text);
        } else {
            pending = start_abort(relative, text);
        }
        if (pending != NULL) {
            pending->next = started;
            started = pending;
        }
        dd_nccl_comm_release(relative);
    }
    return started;
}

static void
await_relatives(pending_end *started)
{
    dd_wait patience = dd_wait_after(DD_NCCL_CANCEL_NS);
    while (started != NULL) {
        pending_end *pending = started;
        started = pending->next;
        (void)!await_pending_end(pending, &patience, NULL);
        release_pending_end(pending);
    }
}

static dd_status
abort_comm(dd_nccl_comm *comm, const char *reason, dd_nccl_reach reach, dd_error *err)
{
    bool is_inside;
    dd_status status = dd_nccl_comm_check_fork(comm, err);
    dd_nccl_comm_handle handle = status == DD_OK ? comm_take_to_abort(comm, reason, &is_inside) : NULL;
    if (handle == NULL) {
        return status;
    }
    pending_end *relatives = abort_relatives(comm, reason, reach);
    if (is_inside && !can_abort_in_two_steps(comm)) {
        /* NCCL is too old for END_ABORT_IN_TWO_STEPS if the communicator is blocking: free it even
         * if the thread stays inside. */
        is_inside = !has_left_within(comm, DD_NCCL_LEAVE_NS) && !comm->is_blocking;
    }
    status = is_inside ? abort_during_call(comm, handle, err) : end_handle(comm, handle, true, err);
    await_relatives(relatives);
    return status;
}

dd_status
dd_nccl_comm_abort(dd_nccl_comm *comm, const char *reason, dd_error *err)
{
    return abort_comm(comm, reason, DD_NCCL_REACH_ALL, err);
}

dd_status
dd_nccl_comm_abort_alone(dd_nccl_comm *comm, const char *reason, dd_error *err)
{
    return abort_comm(comm, reason, DD_NCCL_REACH_SHARING, err);
}

/* ---- destroying */

#define HAS_FAILED "it had failed and was destroyed"

/* Remove the handle once no thread is inside; *handle is NULL if the communicator has ended. Sets
 * *must_abort if it has failed, because destroying it would wait for ranks that may be lost. */
static dd_status
take_to_destroy(dd_nccl_comm *comm, const dd_wait *wait, dd_nccl_comm_handle *handle, bool *must_abort,
                dd_error *err)
{
    *handle = NULL;
    dd_status status = dd_nccl_comm_check_fork(comm, err);
    if (status != DD_OK) {
        return status;
    }
    dd_lock_take(&comm->mu);
    status = dd_nccl_comm_await_turn_locked(comm, NULL, wait, err);
    if (status == DD_OK && comm->state == DD_NCCL_COMM_READY) {
        dd_nccl_result health = DD_NCCL_SUCCESS;
        dd_nccl_result asked = comm->lib->api.ncclCommGetAsyncError(comm->handle, &health);
        bool is_well =
            asked == DD_NCCL_SUCCESS && (health == DD_NCCL_SUCCESS || health == DD_NCCL_IN_PROGRESS);
        *must_abort = comm->must_abort || !is_well;
        *handle = take_handle_locked(comm, DD_NCCL_COMM_DESTROYED);
    }
    dd_lock_release(&comm->mu);
    return status;
}

dd_status
dd_nccl_comm_destroy(dd_nccl_comm *comm, dd_error *err)
{
    bool must_abort = false;
    dd_nccl_comm_handle handle;
    dd_wait wait = dd_wait_after(DD_NEVER_NS);
    dd_status status = take_to_destroy(comm, &wait, &handle, &must_abort, err);
    if (handle == NULL) {
        return status;
    }
    pending_end *relatives = must_abort ? abort_relatives(comm, HAS_FAILED, DD_NCCL_REACH_SHARING) : NULL;
    status = end_handle(comm, handle, must_abort, err);
    await_relatives(relatives);
    return status;
}

dd_status
dd_nccl_comm_destroy_within(dd_nccl_comm *comm, const dd_wait *wait, dd_error *err)
{
    bool must_abort = false;
    dd_nccl_comm_handle handle;
    dd_status status = take_to_destroy(comm, wait, &handle, &must_abort, err);
    if (handle == NULL || dd_cuda_is_shut_down(comm->cuda)) {
        return status;
    }
    pending_end *relatives = must_abort ? abort_relatives(comm, HAS_FAILED, DD_NCCL_REACH_SHARING) : NULL;
    status = end_late(comm, handle, must_abort ? END_ABORT : END_DESTROY, wait, err);
    await_relatives(relatives);
    return status == DD_TIMED_OUT ? DD_OK : status;
}
