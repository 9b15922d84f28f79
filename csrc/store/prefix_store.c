/* A view of another store in which every key stands under "<prefix>/". It adds nothing but names: waits,
 * time-outs and messages are the underlying store's, so errors show the whole key. */
#include "core/list.h"
#include "core/mem.h"
#include "store/store.h"

#include <string.h>

#define SMALL_KEY_BYTES ((size_t)256)

typedef struct prefix_store {
    dd_store head;
    dd_store *underlying; /* const after init; one reference */
    size_t prefix_len;    /* const after init; with the "/" */
    uint8_t prefix[];
} prefix_store;

/* A key under the prefix. Most are short: those need no allocation. */
typedef struct joined_key {
    dd_bytes key;
    uint8_t *heap;
    uint8_t small[SMALL_KEY_BYTES];
} joined_key;

/* Keys under the prefix. */
typedef struct joined_keys {
    dd_bytes *keys; /* one block: the views, then their bytes */
} joined_keys;

static prefix_store *
prefix_of(dd_store *store)
{
    return DD_CONTAINER_OF(store, prefix_store, head);
}

static dd_store *
underlying_of(dd_store *store)
{
    return prefix_of(store)->underlying;
}

static dd_bytes
write_joined(const prefix_store *self, dd_bytes key, uint8_t *out)
{
    memcpy(out, self->prefix, self->prefix_len);
    if (key.len > 0) {
        memcpy(out + self->prefix_len, key.data, key.len);
    }
    return dd_bytes_of(out, self->prefix_len + key.len);
}

static dd_status
joined_key_init(joined_key *joined, dd_store *store, dd_bytes key, dd_error *err)
{
    const prefix_store *self = prefix_of(store);
    size_t len;
    joined->heap = NULL;
    if (__builtin_add_overflow(self->prefix_len, key.len, &len)) {
        return dd_error_no_memory(err, key.len);
    }
    if (len > sizeof joined->small) {
        joined->heap = dd_mem_alloc(len);
        if (joined->heap == NULL) {
            return dd_error_no_memory(err, len);
        }
    }
    joined->key = write_joined(self, key, joined->heap != NULL ? joined->heap : joined->small);
    return DD_OK;
}

static void
joined_key_fini(joined_key *joined)
{
    dd_mem_free(joined->heap);
}

static dd_status
joined_keys_init(joined_keys *joined, dd_store *store, const dd_bytes *keys, size_t nkeys, dd_error *err)
{
    const prefix_store *self = prefix_of(store);
    size_t nbytes;
    bool is_too_big = __builtin_mul_overflow(nkeys, sizeof(dd_bytes) + self->prefix_len, &nbytes);
    for (size_t i = 0; i < nkeys; i++) {
        is_too_big |= __builtin_add_overflow(nbytes, keys[i].len, &nbytes);
    }
    joined->keys = is_too_big ? NULL : dd_mem_alloc(nbytes);
    if (joined->keys == NULL) {
        return dd_error_no_memory(err, nbytes);
    }
    uint8_t *out = (uint8_t *)(joined->keys + nkeys);
    for (size_t i = 0; i < nkeys; i++) {
        joined->keys[i] = write_joined(self, keys[i], out);
        out += joined->keys[i].len;
    }
    return DD_OK;
}

static void
joined_keys_fini(joined_keys *joined)
{
    dd_mem_free(joined->keys);
}

static dd_status
prefix_set(dd_store *store, dd_bytes key, dd_bytes value, const dd_wait *wait, dd_error *err)
{
    joined_key joined;
    dd_status status = joined_key_init(&joined, store, key, err);
    if (status == DD_OK) {
        status = underlying_of(store)->ops->set(underlying_of(store), joined.key, value, wait, err);
    }
    joined_key_fini(&joined);
    return status;
}

static dd_status
prefix_get(dd_store *store, dd_bytes key, dd_blob *value, const dd_wait *wait, dd_error *err)
{
    joined_key joined;
    dd_status status = joined_key_init(&joined, store, key, err);
    if (status == DD_OK) {
        status = underlying_of(store)->ops->get(underlying_of(store), joined.key, value, wait, err);
    }
    joined_key_fini(&joined);
    return status;
}

static dd_status
prefix_try_get(dd_store *store, dd_bytes key, dd_blob *value, bool *is_found, const dd_wait *wait,
               dd_error *err)
{
    joined_key joined;
    dd_status status = joined_key_init(&joined, store, key, err);
    if (status == DD_OK) {
        status =
            underlying_of(store)->ops->try_get(underlying_of(store), joined.key, value, is_found, wait, err);
    }
    joined_key_fini(&joined);
    return status;
}

static dd_status
prefix_add(dd_store *store, dd_bytes key, int64_t amount, int64_t *sum, const dd_wait *wait, dd_error *err)
{
    joined_key joined;
    dd_status status = joined_key_init(&joined, store, key, err);
    if (status == DD_OK) {
        status = underlying_of(store)->ops->add(underlying_of(store), joined.key, amount, sum, wait, err);
    }
    joined_key_fini(&joined);
    return status;
}

static dd_status
prefix_compare_set(dd_store *store, dd_bytes key, dd_bytes expected, dd_bytes desired, dd_blob *value,
                   const dd_wait *wait, dd_error *err)
{
    joined_key joined;
    dd_status status = joined_key_init(&joined, store, key, err);
    if (status == DD_OK) {
        status = underlying_of(store)->ops->compare_set(underlying_of(store), joined.key, expected, desired,
                                                        value, wait, err);
    }
    joined_key_fini(&joined);
    return status;
}

static dd_status
prefix_wait(dd_store *store, const dd_bytes *keys, size_t nkeys, const dd_wait *wait, dd_error *err)
{
    joined_keys joined;
    dd_status status = joined_keys_init(&joined, store, keys, nkeys, err);
    if (status == DD_OK) {
        status = underlying_of(store)->ops->wait(underlying_of(store), joined.keys, nkeys, wait, err);
    }
    joined_keys_fini(&joined);
    return status;
}

static dd_status
prefix_check(dd_store *store, const dd_bytes *keys, size_t nkeys, bool *is_ready, const dd_wait *wait,
             dd_error *err)
{
    joined_keys joined;
    dd_status status = joined_keys_init(&joined, store, keys, nkeys, err);
    if (status == DD_OK) {
        status =
            underlying_of(store)->ops->check(underlying_of(store), joined.keys, nkeys, is_ready, wait, err);
    }
    joined_keys_fini(&joined);
    return status;
}

static dd_status
prefix_delete_key(dd_store *store, dd_bytes key, bool *is_deleted, const dd_wait *wait, dd_error *err)
{
    joined_key joined;
    dd_status status = joined_key_init(&joined, store, key, err);
    if (status == DD_OK) {
        status =
            underlying_of(store)->ops->delete_key(underlying_of(store), joined.key, is_deleted, wait, err);
    }
    joined_key_fini(&joined);
    return status;
}

static dd_status
prefix_num_keys(dd_store *store, int64_t *count, const dd_wait *wait, dd_error *err)
{
    return underlying_of(store)->ops->num_keys(underlying_of(store), count, wait, err);
}

static dd_status
prefix_append(dd_store *store, dd_bytes key, dd_bytes value, const dd_wait *wait, dd_error *err)
{
    joined_key joined;
    dd_status status = joined_key_init(&joined, store, key, err);
    if (status == DD_OK) {
        status = underlying_of(store)->ops->append(underlying_of(store), joined.key, value, wait, err);
    }
    joined_key_fini(&joined);
    return status;
}

static dd_status
prefix_multi_get(dd_store *store, const dd_bytes *keys, size_t nkeys, dd_blob_list *values,
                 const dd_wait *wait, dd_error *err)
{
    joined_keys joined;
    dd_status status = joined_keys_init(&joined, store, keys, nkeys, err);
    if (status == DD_OK) {
        status =
            underlying_of(store)->ops->multi_get(underlying_of(store), joined.keys, nkeys, values, wait, err);
    }
    joined_keys_fini(&joined);
    return status;
}

static dd_status
prefix_multi_set(dd_store *store, const dd_bytes *keys, const dd_bytes *values, size_t nkeys,
                 const dd_wait *wait, dd_error *err)
{
    joined_keys joined;
    dd_status status = joined_keys_init(&joined, store, keys, nkeys, err);
    if (status == DD_OK) {
        status =
            underlying_of(store)->ops->multi_set(underlying_of(store), joined.keys, values, nkeys, wait, err);
    }
    joined_keys_fini(&joined);
    return status;
}

static dd_status
prefix_queue_push(dd_store *store, dd_bytes key, dd_bytes value, const dd_wait *wait, dd_error *err)
{
    joined_key joined;
    dd_status status = joined_key_init(&joined, store, key, err);
    if (status == DD_OK) {
        status = underlying_of(store)->ops->queue_push(underlying_of(store), joined.key, value, wait, err);
    }
    joined_key_fini(&joined);
    return status;
}

static dd_status
prefix_queue_pop(dd_store *store, dd_bytes key, bool is_blocking, dd_blob *value, const dd_wait *wait,
                 dd_error *err)
{
    joined_key joined;
    dd_status status = joined_key_init(&joined, store, key, err);
    if (status == DD_OK) {
        status = underlying_of(store)->ops->queue_pop(underlying_of(store), joined.key, is_blocking, value,
                                                      wait, err);
    }
    joined_key_fini(&joined);
    return status;
}

static dd_status
prefix_queue_len(dd_store *store, dd_bytes key, int64_t *count, const dd_wait *wait, dd_error *err)
{
    joined_key joined;
    dd_status status = joined_key_init(&joined, store, key, err);
    if (status == DD_OK) {
        status = underlying_of(store)->ops->queue_len(underlying_of(store), joined.key, count, wait, err);
    }
    joined_key_fini(&joined);
    return status;
}

static bool
is_under_prefix(const prefix_store *self, dd_bytes key)
{
    return key.len >= self->prefix_len && memcmp(key.data, self->prefix, self->prefix_len) == 0;
}

/* Keeps the keys under the prefix, without it. Needs no memory, so it cannot fail. */
static void
strip_keys(const prefix_store *self, dd_blob_list *list)
{
    size_t nkept = 0;
    for (size_t i = 0; i < list->count; i++) {
        dd_blob key = list->items[i];
        if (is_under_prefix(self, dd_blob_view(&key))) {
            dd_blob_consume(&key, self->prefix_len);
            list->items[nkept++] = key;
        } else {
            dd_blob_fini(&key);
        }
    }
    list->count = nkept;
}

static dd_status
prefix_list_keys(dd_store *store, dd_blob_list *keys, const dd_wait *wait, dd_error *err)
{
    dd_status status = underlying_of(store)->ops->list_keys(underlying_of(store), keys, wait, err);
    if (status == DD_OK) {
        strip_keys(prefix_of(store), keys);
    }
    return status;
}

static dd_status
prefix_barrier(dd_store *store, dd_bytes key, int64_t world_size, const dd_wait *wait, dd_error *err)
{
    joined_key joined;
    dd_status status = joined_key_init(&joined, store, key, err);
    if (status == DD_OK) {
        status = underlying_of(store)->ops->barrier(underlying_of(store), joined.key, world_size, wait, err);
    }
    joined_key_fini(&joined);
    return status;
}

static dd_status
prefix_clone(dd_store *store, dd_store **other, const dd_wait *wait, dd_error *err)
{
    const prefix_store *self = prefix_of(store);
    dd_store *underlying = NULL;
    dd_status status = self->underlying->ops->clone(self->underlying, &underlying, wait, err);
    if (status != DD_OK) {
        return status;
    }
    status = dd_prefix_store_open(other, dd_bytes_of(self->prefix, self->prefix_len - 1), underlying, err);
    dd_store_release(underlying);
    return status;
}

static dd_status
prefix_meet(dd_store *store, const dd_meet_request *request, dd_meet_reply *reply, const dd_wait *wait,
            dd_error *err)
{
    const prefix_store *self = prefix_of(store);
    dd_meet_request below = *request;
    dd_blob place = {0};
    dd_status status = dd_blob_assign(&place, dd_bytes_of(self->prefix, self->prefix_len), err);
    if (status == DD_OK) {
        status = dd_blob_append(&place, request->place.data, request->place.len, err);
    }
    if (status == DD_OK) {
        below.place = dd_blob_view(&place);
        status = dd_store_meet(self->underlying, &below, reply, wait, err);
    }
    dd_blob_fini(&place);
    return status;
}

static bool
prefix_has_extended_api(dd_store *store)
{
    return underlying_of(store)->ops->has_extended_api(underlying_of(store));
}

static int64_t
prefix_get_timeout_ns(dd_store *store)
{
    return underlying_of(store)->ops->get_timeout_ns(underlying_of(store));
}

static void
prefix_set_timeout_ns(dd_store *store, int64_t timeout_ns)
{
    underlying_of(store)->ops->set_timeout_ns(underlying_of(store), timeout_ns);
}

static void
prefix_destroy(dd_store *store)
{
    dd_store_release(underlying_of(store));
    dd_mem_free(prefix_of(store));
}

static const dd_store_ops prefix_ops = {
    .kind = "PrefixStore",
    .set = prefix_set,
    .get = prefix_get,
    .try_get = prefix_try_get,
    .add = prefix_add,
    .compare_set = prefix_compare_set,
    .wait = prefix_wait,
    .check = prefix_check,
    .delete_key = prefix_delete_key,
    .num_keys = prefix_num_keys,
    .append = prefix_append,
    .multi_get = prefix_multi_get,
    .multi_set = prefix_multi_set,
    .queue_push = prefix_queue_push,
    .queue_pop = prefix_queue_pop,
    .queue_len = prefix_queue_len,
    .list_keys = prefix_list_keys,
    .barrier = prefix_barrier,
    .clone = prefix_clone,
    .meet = prefix_meet,
    .has_extended_api = prefix_has_extended_api,
    .get_timeout_ns = prefix_get_timeout_ns,
    .set_timeout_ns = prefix_set_timeout_ns,
    .destroy = prefix_destroy,
};

dd_status
dd_prefix_store_open(dd_store **store, dd_bytes prefix, dd_store *underlying, dd_error *err)
{
    size_t nbytes;
    if (__builtin_add_overflow(sizeof(prefix_store) + 1, prefix.len, &nbytes)) {
        return dd_error_no_memory(err, prefix.len);
    }
    prefix_store *self = dd_mem_zalloc(nbytes);
    if (self == NULL) {
        return dd_error_no_memory(err, nbytes);
    }
    dd_store_init(&self->head, &prefix_ops, 0);
    /* A view made in a child over its parent's store is of no more use there than that store. */
    self->head.fork_generation = underlying->fork_generation;
    self->head.owner_pid = underlying->owner_pid;
    self->underlying = dd_store_acquire(underlying);
    self->prefix_len = prefix.len + 1;
    if (prefix.len > 0) {
        memcpy(self->prefix, prefix.data, prefix.len);
    }
    self->prefix[prefix.len] = '/';
    *store = &self->head;
    return DD_OK;
}

dd_store *
dd_prefix_store_underlying(dd_store *store)
{
    return underlying_of(store);
}

bool
dd_prefix_store_is(const dd_store *store)
{
    return store->ops == &prefix_ops;
}
