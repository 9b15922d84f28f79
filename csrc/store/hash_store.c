/* A store in the memory of one process: a keyspace under one mutex, shared by all clones. A call that has to
 * wait parks a waiter of its own, on its own stack, and sleeps on its own condition: whoever makes the key
 * appear wakes just those who waited for it. */
#include "core/mem.h"
#include "core/thread.h"
#include "store/keyspace.h"
#include "store/store.h"

#define KIND "HashStore"

typedef struct hash_data {
    atomic_uint refs; /* atomic: one for each store on it */
    pthread_mutex_t mu;
    dd_keyspace ks;    /* guarded by mu */
    bool is_item_lost; /* guarded by mu: a popper had no memory for the item it was handed */
    /* Atomic: the mutex is held. A forked child, where the holder does not exist, reads it to know whether
     * the data is whole. */
    atomic_bool is_busy;
} hash_data;

typedef struct hash_store {
    dd_store head;
    hash_data *data; /* const after init */
} hash_store;

/* A call that waits: const after init, but for the last three, guarded by mu. */
typedef struct blocked_call {
    dd_waiter waiter;
    hash_data *data;
    const char *what;
    const dd_bytes *keys;
    size_t nkeys;
    const dd_wait *wait;
    pthread_cond_t cond;
    bool is_ready;
    dd_status status; /* of copying the item */
    dd_blob item;     /* for POP */
} blocked_call;

static hash_data *
data_of(dd_store *store)
{
    return DD_CONTAINER_OF(store, hash_store, head)->data;
}

static void
data_lock(hash_data *data)
{
    pthread_mutex_lock(&data->mu);
    atomic_store(&data->is_busy, true);
}

static void
data_unlock(hash_data *data)
{
    atomic_store(&data->is_busy, false);
    pthread_mutex_unlock(&data->mu);
}

static dd_status
data_create(hash_data **created, dd_error *err)
{
    hash_data *data = dd_mem_zalloc(sizeof *data);
    if (data == NULL) {
        return dd_error_no_memory(err, sizeof *data);
    }
    atomic_init(&data->refs, 1);
    atomic_init(&data->is_busy, false);
    dd_mutex_init(&data->mu);
    dd_keyspace_init(&data->ks);
    *created = data;
    return DD_OK;
}

static void
data_release(hash_data *data, bool is_forked)
{
    if (atomic_fetch_sub_explicit(&data->refs, 1, memory_order_acq_rel) != 1) {
        return;
    }
    if (is_forked && atomic_load(&data->is_busy)) {
        /* A thread that is not in this process was changing it: half a change cannot be walked, only left. */
        return;
    }
    dd_keyspace_fini(&data->ks);
    if (!is_forked) {
        pthread_mutex_destroy(&data->mu);
    }
    dd_mem_free(data);
}

static void
on_ready(dd_waiter *waiter, dd_bytes value)
{
    blocked_call *call = DD_CONTAINER_OF(waiter, blocked_call, waiter);
    if (waiter->kind == DD_WAITER_POP) {
        call->status = dd_blob_assign(&call->item, value, NULL);
        call->data->is_item_lost = call->status != DD_OK;
    }
    call->is_ready = true;
    pthread_cond_signal(&call->cond);
}

typedef struct key_cursor {
    const dd_bytes *keys;
    size_t next;
} key_cursor;

static dd_bytes
next_key(void *ctx)
{
    key_cursor *cursor = ctx;
    return cursor->keys[cursor->next++];
}

static bool
is_there_locked(const blocked_call *call, dd_bytes key)
{
    dd_bytes value;
    if (call->waiter.kind == DD_WAITER_KEYS) {
        return dd_keyspace_has(&call->data->ks, key);
    }
    /* A popper or a barrier that times out misses its only key, whatever else is stored there. */
    return call->waiter.kind == DD_WAITER_VALUE && dd_keyspace_get(&call->data->ks, key, &value);
}

static dd_status
timed_out_locked(const blocked_call *call, dd_error *err)
{
    dd_bytes missing[DD_STORE_MISSING_SHOWN];
    size_t nmissing = 0;
    for (size_t i = 0; i < call->nkeys; i++) {
        if (!is_there_locked(call, call->keys[i]) && nmissing++ < DD_STORE_MISSING_SHOWN) {
            missing[nmissing - 1] = call->keys[i];
        }
    }
    return dd_store_error_missing(err, call->what, KIND, missing, nmissing, call->nkeys, call->wait);
}

/* Sleeps until the call is told. The mutex is held before and after. */
static dd_status
sleep_locked(blocked_call *call, dd_error *err)
{
    hash_data *data = call->data;
    while (!call->is_ready) {
        atomic_store(&data->is_busy, false);
        dd_cond_wait_slice(&call->cond, &data->mu, call->wait);
        atomic_store(&data->is_busy, true);
        if (call->is_ready) {
            break;
        }
        if (dd_wait_is_over(call->wait)) {
            return timed_out_locked(call, err);
        }
        data_unlock(data);
        dd_status status = dd_wait_check(call->wait, err);
        data_lock(data);
        if (status != DD_OK) {
            return status;
        }
    }
    return DD_OK;
}

/* An item came in the moment in which its popper was interrupted: it goes back to the head of the queue. */
static void
give_back_locked(blocked_call *call)
{
    do {
        call->data->is_item_lost = false;
        if (dd_keyspace_queue_unpop(&call->data->ks, call->keys[0], &call->item, NULL) != DD_OK) {
            return;
        }
    } while (call->data->is_item_lost);
}

/* Waits until all keys are ready for `kind`; on DD_OK they were, at one moment. The mutex is held before and
 * after, but not in between. */
static dd_status
block_locked(blocked_call *call, dd_waiter_kind kind, dd_error *err)
{
    key_cursor cursor = {call->keys, 0};
    bool is_parked = false;
    call->waiter = (dd_waiter){.kind = kind, .on_ready = on_ready};
    call->is_ready = false;
    call->status = DD_OK;
    dd_status status =
        dd_keyspace_park(&call->data->ks, &call->waiter, next_key, &cursor, call->nkeys, &is_parked, err);
    if (status != DD_OK || !is_parked) {
        return status;
    }
    dd_cond_init(&call->cond);
    status = sleep_locked(call, err);
    dd_keyspace_unpark(&call->data->ks, &call->waiter);
    pthread_cond_destroy(&call->cond);
    return status;
}

static dd_status
hash_set(dd_store *store, dd_bytes key, dd_bytes value, const dd_wait *wait, dd_error *err)
{
    (void)wait;
    hash_data *data = data_of(store);
    data_lock(data);
    dd_status status = dd_keyspace_set(&data->ks, key, value, err);
    data_unlock(data);
    return status;
}

static dd_status
hash_get(dd_store *store, dd_bytes key, dd_blob *value, const dd_wait *wait, dd_error *err)
{
    hash_data *data = data_of(store);
    blocked_call call = {.data = data, .what = "get", .keys = &key, .nkeys = 1, .wait = wait};
    dd_bytes found;
    dd_status status = DD_OK;
    data_lock(data);
    /* In a loop, as the key may be deleted between the wake-up and the look. */
    while (status == DD_OK && !dd_keyspace_get(&data->ks, key, &found)) {
        status = block_locked(&call, DD_WAITER_VALUE, err);
    }
    if (status == DD_OK) {
        status = dd_blob_assign(value, found, err);
    }
    data_unlock(data);
    return status;
}

static dd_status
hash_try_get(dd_store *store, dd_bytes key, dd_blob *value, bool *is_found, const dd_wait *wait,
             dd_error *err)
{
    (void)wait;
    hash_data *data = data_of(store);
    dd_bytes found;
    dd_status status = DD_OK;
    data_lock(data);
    bool is_there = dd_keyspace_get(&data->ks, key, &found);
    if (is_there) {
        status = dd_blob_assign(value, found, err);
    }
    data_unlock(data);
    if (status == DD_OK) {
        *is_found = is_there;
    }
    return status;
}

static dd_status
hash_add(dd_store *store, dd_bytes key, int64_t amount, int64_t *sum, const dd_wait *wait, dd_error *err)
{
    (void)wait;
    hash_data *data = data_of(store);
    data_lock(data);
    dd_status status = dd_keyspace_add(&data->ks, key, amount, sum, err);
    data_unlock(data);
    return status;
}

static dd_status
hash_compare_set(dd_store *store, dd_bytes key, dd_bytes expected, dd_bytes desired, dd_blob *value,
                 const dd_wait *wait, dd_error *err)
{
    (void)wait;
    hash_data *data = data_of(store);
    /* Room for either outcome first: once the key is set, nothing may fail any more. */
    dd_blob result = {0};
    dd_bytes now;
    dd_status status = dd_blob_reserve(&result, desired.len, err);
    if (status != DD_OK) {
        return status;
    }
    data_lock(data);
    status = dd_keyspace_compare_set(&data->ks, key, expected, desired, &now, err);
    if (status == DD_OK) {
        status = dd_blob_assign(&result, now, err);
    }
    data_unlock(data);
    if (status != DD_OK) {
        dd_blob_fini(&result);
        return status;
    }
    dd_blob_fini(value);
    *value = result;
    return DD_OK;
}

static dd_status
hash_wait(dd_store *store, const dd_bytes *keys, size_t nkeys, const dd_wait *wait, dd_error *err)
{
    hash_data *data = data_of(store);
    blocked_call call = {.data = data, .what = "wait", .keys = keys, .nkeys = nkeys, .wait = wait};
    data_lock(data);
    dd_status status = block_locked(&call, DD_WAITER_KEYS, err);
    data_unlock(data);
    return status;
}

static dd_status
hash_check(dd_store *store, const dd_bytes *keys, size_t nkeys, bool *is_ready, const dd_wait *wait,
           dd_error *err)
{
    (void)wait;
    (void)err;
    hash_data *data = data_of(store);
    size_t i = 0;
    data_lock(data);
    while (i < nkeys && dd_keyspace_has(&data->ks, keys[i])) {
        i++;
    }
    data_unlock(data);
    *is_ready = i == nkeys;
    return DD_OK;
}

static dd_status
hash_delete_key(dd_store *store, dd_bytes key, bool *is_deleted, const dd_wait *wait, dd_error *err)
{
    (void)wait;
    (void)err;
    hash_data *data = data_of(store);
    data_lock(data);
    *is_deleted = dd_keyspace_delete(&data->ks, key);
    data_unlock(data);
    return DD_OK;
}

static dd_status
hash_num_keys(dd_store *store, int64_t *count, const dd_wait *wait, dd_error *err)
{
    (void)wait;
    (void)err;
    hash_data *data = data_of(store);
    data_lock(data);
    *count = data->ks.nvalues;
    data_unlock(data);
    return DD_OK;
}

static dd_status
hash_append(dd_store *store, dd_bytes key, dd_bytes value, const dd_wait *wait, dd_error *err)
{
    (void)wait;
    hash_data *data = data_of(store);
    data_lock(data);
    dd_status status = dd_keyspace_append(&data->ks, key, value, err);
    data_unlock(data);
    return status;
}

static bool
has_all_values_locked(const hash_data *data, const dd_bytes *keys, size_t nkeys)
{
    dd_bytes value;
    size_t i = 0;
    while (i < nkeys && dd_keyspace_get(&data->ks, keys[i], &value)) {
        i++;
    }
    return i == nkeys;
}

static dd_status
copy_values_locked(const hash_data *data, const dd_bytes *keys, dd_blob_list *list, dd_error *err)
{
    dd_status status = DD_OK;
    for (size_t i = 0; status == DD_OK && i < list->count; i++) {
        dd_bytes value;
        if (!dd_keyspace_get(&data->ks, keys[i], &value)) {
            return dd_error_set(err, DD_INTERNAL, "a key vanished under the lock");
        }
        status = dd_blob_assign(&list->items[i], value, err);
    }
    return status;
}

static dd_status
hash_multi_get(dd_store *store, const dd_bytes *keys, size_t nkeys, dd_blob_list *values, const dd_wait *wait,
               dd_error *err)
{
    hash_data *data = data_of(store);
    blocked_call call = {.data = data, .what = "multi_get", .keys = keys, .nkeys = nkeys, .wait = wait};
    dd_blob_list list;
    dd_status status = dd_blob_list_init(&list, nkeys, err);
    if (status != DD_OK) {
        return status;
    }
    data_lock(data);
    while (status == DD_OK && !has_all_values_locked(data, keys, nkeys)) {
        status = block_locked(&call, DD_WAITER_VALUE, err);
    }
    if (status == DD_OK) {
        status = copy_values_locked(data, keys, &list, err);
    }
    data_unlock(data);
    if (status != DD_OK) {
        dd_blob_list_fini(&list);
        return status;
    }
    *values = list;
    return DD_OK;
}

static dd_status
hash_multi_set(dd_store *store, const dd_bytes *keys, const dd_bytes *values, size_t nkeys,
               const dd_wait *wait, dd_error *err)
{
    (void)wait;
    hash_data *data = data_of(store);
    dd_status status = DD_OK;
    data_lock(data);
    for (size_t i = 0; status == DD_OK && i < nkeys; i++) {
        status = dd_keyspace_set(&data->ks, keys[i], values[i], err);
    }
    data_unlock(data);
    return status;
}

static dd_status
hash_queue_push(dd_store *store, dd_bytes key, dd_bytes value, const dd_wait *wait, dd_error *err)
{
    (void)wait;
    hash_data *data = data_of(store);
    dd_status status;
    data_lock(data);
    /* A popper without memory for the item fails; the item goes on to the next in line. */
    do {
        data->is_item_lost = false;
        status = dd_keyspace_queue_push(&data->ks, key, value, err);
    } while (status == DD_OK && data->is_item_lost);
    data_unlock(data);
    return status;
}

/* Waits for an item to be handed over. */
static dd_status
wait_for_item_locked(blocked_call *call, dd_error *err)
{
    dd_status status = block_locked(call, DD_WAITER_POP, err);
    if (status == DD_OK && call->status != DD_OK) {
        return dd_error_set(err, call->status, "no memory for an item of the queue");
    }
    if (status != DD_OK && call->is_ready && call->status == DD_OK) {
        give_back_locked(call);
    }
    return status;
}

static dd_status
hash_queue_pop(dd_store *store, dd_bytes key, bool is_blocking, dd_blob *value, const dd_wait *wait,
               dd_error *err)
{
    hash_data *data = data_of(store);
    blocked_call call = {.data = data, .what = "queue_pop", .keys = &key, .nkeys = 1, .wait = wait};
    dd_status status = DD_OK;
    data_lock(data);
    if (!dd_keyspace_queue_pop(&data->ks, key, &call.item)) {
        status = is_blocking ? wait_for_item_locked(&call, err) : DD_QUEUE_EMPTY;
    }
    data_unlock(data);
    if (status == DD_OK) {
        dd_blob_fini(value);
        *value = call.item;
        return DD_OK;
    }
    dd_blob_fini(&call.item);
    if (status == DD_QUEUE_EMPTY) {
        char shown[128];
        return dd_error_set(err, DD_QUEUE_EMPTY, "queue \"%s\" is empty",
                            dd_bytes_print(key, shown, sizeof shown));
    }
    return status;
}

static dd_status
hash_queue_len(dd_store *store, dd_bytes key, int64_t *count, const dd_wait *wait, dd_error *err)
{
    (void)wait;
    (void)err;
    hash_data *data = data_of(store);
    data_lock(data);
    *count = dd_keyspace_queue_len(&data->ks, key);
    data_unlock(data);
    return DD_OK;
}

static dd_status
copy_keys_locked(const hash_data *data, dd_blob_list *list, dd_error *err)
{
    dd_status status = dd_blob_list_init(list, (size_t)data->ks.nvalues, err);
    const dd_map_node *cursor = NULL;
    dd_bytes key;
    for (size_t i = 0; status == DD_OK && dd_keyspace_next_key(&data->ks, &cursor, &key); i++) {
        status = dd_blob_assign(&list->items[i], key, err);
    }
    return status;
}

static dd_status
hash_list_keys(dd_store *store, dd_blob_list *keys, const dd_wait *wait, dd_error *err)
{
    (void)wait;
    hash_data *data = data_of(store);
    dd_blob_list list;
    data_lock(data);
    dd_status status = copy_keys_locked(data, &list, err);
    data_unlock(data);
    if (status != DD_OK) {
        dd_blob_list_fini(&list);
        return status;
    }
    *keys = list;
    return DD_OK;
}

static dd_status
barrier_timed_out_locked(const blocked_call *call, int64_t world_size, dd_error *err)
{
    char shown_key[128];
    char shown_count[32];
    dd_bytes count = {0};
    (void)dd_keyspace_get(&call->data->ks, call->keys[0], &count);
    return dd_error_set(err, DD_TIMED_OUT,
                        "barrier timed out after %.3f s on " KIND ": %s of %lld have come to key \"%s\"",
                        dd_wait_elapsed_s(call->wait), dd_bytes_print(count, shown_count, sizeof shown_count),
                        (long long)world_size, dd_bytes_print(call->keys[0], shown_key, sizeof shown_key));
}

static dd_status
hash_barrier(dd_store *store, dd_bytes key, int64_t world_size, const dd_wait *wait, dd_error *err)
{
    hash_data *data = data_of(store);
    blocked_call call = {.data = data, .what = "barrier", .keys = &key, .nkeys = 1, .wait = wait};
    bool is_complete = false;
    data_lock(data);
    dd_status status = dd_keyspace_barrier_arrive(&data->ks, key, world_size, &is_complete, err);
    if (status == DD_OK && !is_complete) {
        status = block_locked(&call, DD_WAITER_BARRIER, err);
        if (status == DD_TIMED_OUT) {
            status = barrier_timed_out_locked(&call, world_size, err);
        }
    }
    data_unlock(data);
    return status;
}

/* Takes over the caller's reference to data on success. */
static dd_status open_on_data(dd_store **store, hash_data *data, int64_t timeout_ns, dd_error *err);

static dd_status
hash_clone(dd_store *store, dd_store **other, const dd_wait *wait, dd_error *err)
{
    (void)wait;
    hash_data *data = data_of(store);
    dd_status status = open_on_data(other, data, dd_store_head_get_timeout_ns(store), err);
    if (status == DD_OK) {
        /* Relaxed: this store's own reference keeps the data alive meanwhile. */
        atomic_fetch_add_explicit(&data->refs, 1, memory_order_relaxed);
    }
    return status;
}

static void
hash_destroy(dd_store *store)
{
    data_release(data_of(store), dd_store_is_forked(store));
    dd_mem_free(DD_CONTAINER_OF(store, hash_store, head));
}

static const dd_store_ops hash_ops = {
    .kind = KIND,
    .set = hash_set,
    .get = hash_get,
    .try_get = hash_try_get,
    .add = hash_add,
    .compare_set = hash_compare_set,
    .wait = hash_wait,
    .check = hash_check,
    .delete_key = hash_delete_key,
    .num_keys = hash_num_keys,
    .append = hash_append,
    .multi_get = hash_multi_get,
    .multi_set = hash_multi_set,
    .queue_push = hash_queue_push,
    .queue_pop = hash_queue_pop,
    .queue_len = hash_queue_len,
    .list_keys = hash_list_keys,
    .barrier = hash_barrier,
    .clone = hash_clone,
    .has_extended_api = dd_store_extended_api_yes,
    .get_timeout_ns = dd_store_head_get_timeout_ns,
    .set_timeout_ns = dd_store_head_set_timeout_ns,
    .destroy = hash_destroy,
};

static dd_status
open_on_data(dd_store **store, hash_data *data, int64_t timeout_ns, dd_error *err)
{
    hash_store *self = dd_mem_zalloc(sizeof *self);
    if (self == NULL) {
        return dd_error_no_memory(err, sizeof *self);
    }
    dd_store_init(&self->head, &hash_ops, timeout_ns);
    self->data = data;
    *store = &self->head;
    return DD_OK;
}

dd_status
dd_hash_store_open(dd_store **store, int64_t timeout_ns, dd_error *err)
{
    hash_data *data = NULL;
    dd_status status = data_create(&data, err);
    if (status != DD_OK) {
        return status;
    }
    status = open_on_data(store, data, timeout_ns, err);
    if (status != DD_OK) {
        data_release(data, false);
    }
    return status;
}
