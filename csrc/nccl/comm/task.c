#include "nccl/comm/task_internal.h"

#include "core/lock.h"
#include "core/mem.h"
#include "core/system.h"
#include "core/thread.h"

#include <string.h>

void
dd_nccl_task_release(dd_nccl_task *t)
{
    if (t == NULL || atomic_fetch_sub_explicit(&t->refs, 1, memory_order_acq_rel) != 1) {
        return;
    }
    for (int i = 0; i < t->ncomms && t->comms != NULL; i++) {
        dd_nccl_comm_free_record(t->comms[i]);
    }
    dd_nccl_comm_release(t->parent);
    dd_cond_fini(&t->changed);
    dd_lock_fini(&t->mu);
    dd_mem_free(t->ids);
    dd_mem_free(t->numbers);
    dd_mem_free(t->comms);
    dd_mem_free(t->handles);
    dd_mem_free(t);
}

dd_status
dd_nccl_task_create(dd_nccl_task_kind kind, const dd_nccl_device_ref *at, int ncomms, dd_nccl_task **created,
                    dd_error *err)
{
    dd_nccl_task *t = dd_mem_zalloc(sizeof *t);
    if (t == NULL) {
        return dd_error_no_memory(err, sizeof *t);
    }
    atomic_init(&t->refs, 1);
    t->kind = kind;
    t->lib = *at->lib;
    t->cuda = *at->cuda;
    dd_lock_init(&t->mu, DD_LOCK_NCCL_TASK);
    dd_cond_init(&t->changed);
    t->ncomms = ncomms;
    t->comms = dd_mem_zalloc((size_t)ncomms * sizeof(void *));
    t->handles = dd_mem_zalloc((size_t)ncomms * sizeof(void *));
    bool has_memory = t->comms != NULL && t->handles != NULL;
    for (int i = 0; i < ncomms && has_memory; i++) {
        t->comms[i] = dd_nccl_comm_new_record(at->lib, at->cuda, at->device);
        has_memory = t->comms[i] != NULL;
    }
    dd_status status = has_memory ? dd_cuda_context_of(at->cuda, at->device, &t->context, err)
                                  : dd_error_no_memory(err, (size_t)ncomms * sizeof **t->comms);
    if (status != DD_OK) {
        dd_nccl_task_release(t);
        return status;
    }
    *created = t;
    return DD_OK;
}

/* ---- the thread */

static dd_nccl_result
call_init(dd_nccl_task *t, dd_nccl_abi_config *config)
{
    const dd_nccl_api *api = &t->lib.api;
    if (t->nids > 1) {
        return api->ncclCommInitRankScalable(t->handles, t->size, t->rank, t->nids, t->ids, config);
    }
    return api->ncclCommInitRankConfig(t->handles, t->size, t->ids[0], t->rank, config);
}

static dd_nccl_result
call_nccl(dd_nccl_task *t)
{
    const dd_nccl_api *api = &t->lib.api;
    dd_nccl_abi_config *config = t->has_config ? &t->packed : NULL;
    switch (t->kind) {
    case DD_NCCL_TASK_INIT:
        return call_init(t, config);
    case DD_NCCL_TASK_INIT_ALL:
        return api->ncclCommInitAll(t->handles, t->nnumbers, t->numbers);
    case DD_NCCL_TASK_SPLIT:
        return api->ncclCommSplit(t->parent_handle, t->color, t->key, t->handles, config);
    case DD_NCCL_TASK_SHRINK:
        return api->ncclCommShrink(t->parent_handle, t->numbers, t->nnumbers, t->handles, config,
                                   t->is_abort ? DD_NCCL_SHRINK_ABORT : DD_NCCL_SHRINK_DEFAULT);
    case DD_NCCL_TASK_GROW:
        return api->ncclCommGrow(t->parent_handle, t->size, t->nids > 0 ? t->ids : NULL, t->rank, t->handles,
                                 config);
    case DD_NCCL_TASK_FINALIZE:
        return api->ncclCommFinalize(t->parent_handle);
    case DD_NCCL_TASK_SUSPEND:
        return api->ncclCommSuspend(t->parent_handle, DD_NCCL_SUSPEND_MEM);
    case DD_NCCL_TASK_RESUME:
        return api->ncclCommResume(t->parent_handle);
    case DD_NCCL_TASK_WINDOW:
        break;
    }
    return api->ncclCommWindowRegister(t->parent_handle, t->data, t->nbytes, &t->window,
                                       DD_NCCL_WIN_COLL_SYMMETRIC);
}

/* Query the parent and the new communicators. Sets *is_ready if none is in progress. Queries the
 * parent first: NCCL writes a child's handle while the parent is in progress. */
static dd_status
poll_all(dd_nccl_task *t, bool *is_ready, dd_error *err)
{
    dd_nccl_result result = DD_NCCL_SUCCESS;
    *is_ready = false;
    if (t->parent != NULL) {
        dd_status status = dd_nccl_comm_poll(t->parent, t->label, &result, err);
        if (status == DD_BACKEND && t->kind == DD_NCCL_TASK_SHRINK && t->is_abort) {
            status = DD_OK; /* ignore the parent's failure, the reason for the shrink */
        }
        if (status != DD_OK || result == DD_NCCL_IN_PROGRESS) {
            return status;
        }
    }
    for (int i = 0; i < t->ncomms; i++) {
        if (t->handles[i] == NULL) {
            continue;
        }
        dd_nccl_result asked = t->lib.api.ncclCommGetAsyncError(t->handles[i], &result);
        dd_status status = dd_nccl_check(&t->lib, &t->before, asked != DD_NCCL_SUCCESS ? asked : result, err,
                                         "%s", t->label);
        if (status != DD_OK || result == DD_NCCL_IN_PROGRESS) {
            return status;
        }
    }
    *is_ready = true;
    return DD_OK;
}

/* Poll until NCCL is done, or the caller has abandoned the task. */
static dd_status
await_ready(dd_nccl_task *t, dd_error *err)
{
    for (int64_t nap_ns = DD_NCCL_POLL_MIN_NS;; nap_ns *= nap_ns < DD_NCCL_POLL_MAX_NS ? 2 : 1) {
        bool is_ready;
        dd_status status = poll_all(t, &is_ready, err);
        if (status != DD_OK || is_ready) {
            return status;
        }
        t->is_async = true;
        dd_wait nap = dd_wait_after(nap_ns);
        dd_lock_take(&t->mu);
        if (!t->is_cancelled) {
            dd_cond_wait_slice(&t->changed, &t->mu, &nap);
        }
        bool has_ended = t->is_cancelled;
        dd_lock_release(&t->mu);
        if (has_ended) {
            return dd_error_set(err, DD_ABORTED, "%s was cancelled", t->label);
        }
    }
}

/* Check that NCCL created the communicators: only a split with no colour may yield none. */
static dd_status
check_handles(dd_nccl_task *t, dd_error *err)
{
    if (t->kind == DD_NCCL_TASK_SPLIT && t->color == DD_NCCL_NO_COLOR) {
        return DD_OK;
    }
    for (int i = 0; i < t->ncomms; i++) {
        if (t->handles[i] == NULL) {
            return dd_error_set(err, DD_BACKEND, "%s succeeded, but returned no communicator", t->label);
        }
    }
    return DD_OK;
}

/* Return a sharing setting as NCCL reads it: from the environment, configuration or parent. */
static bool
has_sharing(const dd_nccl_task *t, const char *variable, int value, bool is_parent_config)
{
    const char *text = dd_sys_getenv(variable);
    if (text != NULL && text[0] != '\0') {
        return strcmp(text, "0") != 0;
    }
    return t->has_config ? value == 1 : is_parent_config;
}

static dd_status
fill_record(dd_nccl_task *t, dd_nccl_comm *comm, dd_nccl_comm_handle handle, dd_error *err)
{
    const dd_nccl_api *api = &t->lib.api;
    dd_status status = dd_nccl_check(&t->lib, &t->before, api->ncclCommUserRank(handle, &comm->rank), err,
                                     "ncclCommUserRank after %s", t->label);
    if (status == DD_OK) {
        status = dd_nccl_check(&t->lib, &t->before, api->ncclCommCount(handle, &comm->size), err,
                               "ncclCommCount after %s", t->label);
    }
    comm->is_blocking =
        !t->is_async && (t->kind == DD_NCCL_TASK_INIT_ALL || dd_nccl_config_is_blocking(&t->config));
    comm->handle = handle;
    comm->shares_splits = has_sharing(t, "NCCL_COMM_SPLIT_SHARE_RESOURCES", t->config.values.splitShare,
                                      t->parent != NULL && t->parent->shares_splits);
    comm->shares_shrunk = has_sharing(t, "NCCL_COMM_SHRINK_SHARE_RESOURCES", t->config.values.shrinkShare,
                                      t->parent != NULL && t->parent->shares_shrunk);
    dd_nccl_note_last_error(&t->lib, handle, &comm->last_success);
    return status;
}

static dd_status
call_and_await(dd_nccl_task *t, dd_error *err)
{
    dd_lock_take(&t->mu);
    t->is_in_call = true;
    dd_lock_release(&t->mu);
    dd_nccl_note_last_error(&t->lib, t->parent_handle, &t->before);
    dd_nccl_result result = call_nccl(t);
    t->is_async = result == DD_NCCL_IN_PROGRESS;
    dd_status status = dd_nccl_check(&t->lib, &t->before, result, err, "%s", t->label);
    dd_lock_take(&t->mu);
    t->is_in_call = false;
    dd_lock_release(&t->mu);
    return status == DD_OK ? await_ready(t, err) : status;
}

static dd_status
carry_out(dd_nccl_task *t, dd_error *err)
{
    (void)dd_cuda_relax_capture(&t->cuda);
    dd_status status = dd_cuda_check(&t->cuda, t->cuda.api.cuCtxSetCurrent(t->context), err,
                                     "cuCtxSetCurrent for %s", t->label);
    if (status != DD_OK) {
        return status;
    }
    if (t->kind == DD_NCCL_TASK_SHRINK && t->is_abort) {
        dd_lock_take(&t->parent->mu);
        t->parent->must_abort = true;
        dd_lock_release(&t->parent->mu);
    }
    status = call_and_await(t, err);
    dd_nccl_result ignored;
    dd_error ended;
    if (status == DD_BACKEND && t->parent != NULL &&
        dd_nccl_comm_poll(t->parent, t->label, &ignored, &ended) == DD_ABORTED) {
        return dd_error_copy(err, &ended); /* the parent was aborted, which caused the error */
    }
    if (status == DD_OK) {
        status = check_handles(t, err);
    }
    for (int i = 0; i < t->ncomms && status == DD_OK; i++) {
        if (t->handles[i] != NULL) {
            status = fill_record(t, t->comms[i], t->handles[i], err);
        }
    }
    return status;
}

static void
abort_made(dd_nccl_task *t)
{
    for (int i = 0; i < t->ncomms; i++) {
        if (t->handles[i] != NULL) {
            (void)t->lib.api.ncclCommAbort(t->handles[i]);
            t->handles[i] = NULL;
        }
    }
}

static void *
run_task(void *arg)
{
    dd_nccl_task *t = arg;
    t->status = carry_out(t, &t->error);
    if (t->parent != NULL) {
        dd_nccl_comm_leave(t->parent);
    }
    dd_lock_take(&t->mu);
    if (t->status != DD_OK || t->is_cancelled) {
        dd_lock_release(&t->mu);
        abort_made(t);
        dd_lock_take(&t->mu);
    }
    t->is_done = true;
    dd_cond_broadcast(&t->changed);
    dd_lock_release(&t->mu);
    dd_nccl_task_release(t);
    return NULL;
}

/* ---- the caller */

/* Wait for the thread. On failure abandon it, unless it is done. If the thread is only polling,
 * give it time to abort its communicators, which could otherwise disturb the next attempt. */
static dd_status
await_task(dd_nccl_task *t, const atomic_bool *stop, const dd_wait *wait, dd_error *err)
{
    dd_status status = DD_OK;
    dd_lock_take(&t->mu);
    while (!t->is_done && status == DD_OK) {
        status = dd_nccl_await_change_locked(&t->changed, &t->mu, t->label, stop, wait, err);
    }
    if (t->is_done) {
        dd_lock_release(&t->mu);
        return DD_OK;
    }
    t->is_cancelled = true;
    dd_cond_broadcast(&t->changed);
    dd_wait patience = dd_wait_after(DD_NCCL_LEAVE_NS);
    while (!t->is_done && !t->is_in_call && !dd_wait_has_expired(&patience)) {
        dd_cond_wait_slice(&t->changed, &t->mu, &patience);
    }
    dd_lock_release(&t->mu);
    return status;
}

/* Add new communicators to the parent's family. If the parent has been aborted, abort them all. */
static dd_status
join_family(dd_nccl_task *t, dd_error *err)
{
    bool is_split = t->kind == DD_NCCL_TASK_SPLIT;
    bool shares = is_split ? t->parent->shares_splits
                           : t->kind == DD_NCCL_TASK_SHRINK && !t->is_abort && t->parent->shares_shrunk;
    for (int i = 0; i < t->ncomms && (is_split || shares); i++) {
        if (t->handles[i] != NULL) {
            dd_nccl_family_add(t->parent, t->comms[i], is_split, shares);
        }
    }
    dd_status status = is_split || shares ? dd_nccl_comm_check_aborted(t->parent, err) : DD_OK;
    for (int i = 0; i < t->ncomms && status != DD_OK; i++) {
        if (t->handles[i] != NULL) {
            (void)!dd_nccl_comm_abort(t->comms[i], "its parent was aborted", NULL);
            dd_nccl_comm_release(t->comms[i]);
            t->comms[i] = NULL;
        }
    }
    return status;
}

dd_status
dd_nccl_task_run(dd_nccl_task *t, dd_nccl_comm **comms, const atomic_bool *stop, const dd_wait *wait,
                 dd_error *err)
{
    pthread_t thread;
    atomic_fetch_add_explicit(&t->refs, 1, memory_order_relaxed);
    dd_status status = dd_thread_start(&thread, "dld-nccl-call", run_task, t, err);
    if (status != DD_OK) {
        if (t->parent != NULL) {
            dd_nccl_comm_leave(t->parent);
        }
        dd_nccl_task_release(t);
        dd_nccl_task_release(t);
        return status;
    }
    status = await_task(t, stop, wait, err);
    if (status == DD_OK) {
        dd_thread_join(thread);
        status = t->status == DD_OK ? DD_OK : dd_error_copy(err, &t->error);
    } else {
        dd_thread_detach(thread);
    }
    if (status == DD_OK && t->parent != NULL) {
        status = join_family(t, err);
    }
    for (int i = 0; i < t->ncomms && status == DD_OK; i++) {
        bool is_made = t->handles[i] != NULL;
        comms[i] = is_made ? t->comms[i] : NULL;
        t->comms[i] = is_made ? NULL : t->comms[i];
    }
    dd_nccl_task_release(t);
    return status;
}
