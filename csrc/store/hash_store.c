/* A store in the memory of one process: a keyspace that a mutex guards. A call that must wait parks
 * a waiter on its stack and sleeps on its own condition variable, so a thread that sets a key wakes
 * only the calls that wait for this key. */
#include "core/mem.h"

#include "core/lock.h"
#include "core/thread.h"
#include "store/keyspace.h"

#define KIND "HashStore"

typedef struct hash_store {
    dd_store head;
    dd_lock mu;
    dd_keyspace ks; /* guarded by mu */
} hash_store;

/* A call that waits. All fields are guarded by the store's mu. */
typedef struct blocked_call {
    dd_key_waiter waiter;
    pthread_cond_t cond;
    bool is_ready;
    dd_store_result result;
    dd_error error; /* reason why there is no result; code is DD_OK if there is a result */
} blocked_call;

static void
on_ready(dd_key_waiter *waiter, dd_store_result *result, const dd_error *error)
{
    blocked_call *call = DD_CONTAINER_OF(waiter, blocked_call, waiter);
    call->is_ready = true;
    if (error != NULL) {
        (void)dd_error_copy(&call->error, error);
    } else if (dd_store_result_own(result, &call->error) == DD_OK) {
        call->result = *result;
        *result = (dd_store_result){0};
    }
    dd_cond_signal(&call->cond);
}

/* Wait until the request can be answered, after at least one sleep. The caller must hold the mutex,
 * which is released while the thread sleeps. */
static dd_status
block_locked(hash_store *self, const dd_store_request *request, dd_store_result *result, const dd_wait *wait,
             dd_error *err)
{
    blocked_call call = {.waiter = {.on_ready = on_ready}};
    dd_status status = dd_keyspace_park(&self->ks, &call.waiter, request, err);
    if (status != DD_OK) {
        return status;
    }
    dd_cond_init(&call.cond);
    for (;;) {
        dd_cond_wait_slice(&call.cond, &self->mu, wait);
        if (call.is_ready || dd_wait_has_expired(wait)) {
            break;
        }
        dd_lock_release(&self->mu);
        status = dd_wait_check(wait, err);
        dd_lock_take(&self->mu);
        if (call.is_ready || status != DD_OK) {
            break;
        }
    }
    if (status == DD_OK && !call.is_ready) {
        status = dd_keyspace_error_missing(&self->ks, request, KIND, wait, err);
    }
    dd_keyspace_unpark(&self->ks, &call.waiter);
    dd_cond_fini(&call.cond);
    if (status == DD_OK) {
        *result = call.result;
        return call.error.code == DD_OK ? DD_OK : dd_error_copy(err, &call.error);
    }
    if (request->op == DD_STORE_QUEUE_POP && call.is_ready) {
        /* Interrupted after an item was received: return the item to the head of its queue. */
        (void)!dd_keyspace_queue_unpop(&self->ks, request->keys[0], &call.result.value, NULL);
    }
    dd_store_result_fini(&call.result);
    return status;
}

static dd_status
hash_run(dd_store *store, const dd_store_request *request, dd_store_result *result, const dd_wait *wait,
         dd_error *err)
{
    hash_store *self = DD_CONTAINER_OF(store, hash_store, head);
    bool is_answered = false;
    dd_lock_take(&self->mu);
    dd_status status = dd_keyspace_answer(&self->ks, request, result, &is_answered, err);
    if (status == DD_OK && !is_answered) {
        dd_store_result_fini(result);
        status = block_locked(self, request, result, wait, err);
    }
    dd_lock_release(&self->mu);
    return status;
}

static void
hash_destroy(dd_store *store)
{
    hash_store *self = DD_CONTAINER_OF(store, hash_store, head);
    if (dd_store_is_forked(store) && !dd_lock_was_free_at_fork(&self->mu)) {
        return; /* leak the keys, which may be half changed */
    }
    dd_keyspace_fini(&self->ks);
    dd_lock_fini(&self->mu);
    dd_mem_free(self);
}

static const dd_store_ops hash_ops = {
    .kind = KIND,
    .run = hash_run,
    .clone = dd_store_clone_handle,
    .has_extended_api = dd_store_extended_api_yes,
    .get_timeout_ns = dd_store_head_get_timeout_ns,
    .set_timeout_ns = dd_store_head_set_timeout_ns,
    .destroy = hash_destroy,
};

dd_status
dd_hash_store_open(dd_store **store, int64_t timeout_ns, dd_error *err)
{
    hash_store *self = dd_mem_zalloc(sizeof *self);
    if (self == NULL) {
        return dd_error_no_memory(err, sizeof *self);
    }
    dd_store_init(&self->head, &hash_ops, timeout_ns);
    dd_lock_init(&self->mu, DD_LOCK_HASH_STORE);
    dd_keyspace_init(&self->ks);
    *store = &self->head;
    return DD_OK;
}
