/* A view of another store in which every key has the prefix "<prefix>/". Waits, timeouts and
 * messages are the underlying store's, so errors show whole keys. */
#include "core/list.h"
#include "core/mem.h"
#include "store/store.h"

#include <string.h>

/* Size in bytes of the buffer on the stack. Most requests have one short key and fit into it. */
#define SMALL_BYTES ((size_t)256)

typedef struct prefix_store {
    dd_store head;
    dd_store *underlying; /* const after init; the view owns a reference */
    int depth;            /* const after init; 1 if the underlying store is not a view */
    size_t prefix_len;    /* const after init; length of the prefix, including "/" */
    uint8_t prefix[];
} prefix_store;

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

/* Remove the prefix from keys, and drop the keys without it. Allocates nothing, so cannot fail. */
static void
strip_keys(const prefix_store *self, dd_blob_list *list)
{
    size_t nkept = 0;
    for (size_t i = 0; i < list->count; i++) {
        dd_blob key = list->items[i];
        if (key.len >= self->prefix_len && memcmp(key.data, self->prefix, self->prefix_len) == 0) {
            dd_blob_consume(&key, self->prefix_len);
            list->items[nkept++] = key;
        } else {
            dd_blob_fini(&key);
        }
    }
    list->count = nkept;
}

/* Write the prefixed keys to `keys`, which must have space for the keys and for their bytes. */
static void
join_keys(const prefix_store *self, const dd_store_request *request, dd_bytes *keys)
{
    uint8_t *end = (uint8_t *)(keys + request->nkeys);
    for (size_t i = 0; i < request->nkeys; i++) {
        dd_bytes key = request->keys[i];
        keys[i] = dd_bytes_of(end, self->prefix_len + key.len);
        memcpy(end, self->prefix, self->prefix_len);
        if (key.len > 0) {
            memcpy(end + self->prefix_len, key.data, key.len);
        }
        end += keys[i].len;
    }
}

static dd_status
prefix_run(dd_store *store, const dd_store_request *request, dd_store_result *result, const dd_wait *wait,
           dd_error *err)
{
    const prefix_store *self = prefix_of(store);
    dd_bytes small[SMALL_BYTES / sizeof(dd_bytes)];
    size_t nbytes;
    bool is_too_big = __builtin_mul_overflow(request->nkeys, sizeof(dd_bytes) + self->prefix_len, &nbytes);
    for (size_t i = 0; i < request->nkeys; i++) {
        is_too_big |= __builtin_add_overflow(nbytes, request->keys[i].len, &nbytes);
    }
    dd_bytes *keys = is_too_big ? NULL : nbytes <= sizeof small ? small : dd_mem_alloc(nbytes);
    if (keys == NULL) {
        return dd_error_no_memory(err, nbytes);
    }
    join_keys(self, request, keys);
    dd_store_request below = *request;
    below.keys = keys;
    dd_status status = dd_store_run(self->underlying, &below, result, wait, err);
    if (status == DD_OK && request->op == DD_STORE_LIST_KEYS) {
        strip_keys(self, &result->list);
    }
    if (keys != small) {
        dd_mem_free(keys);
    }
    return status;
}

static dd_status
prefix_clone(dd_store *store, dd_store **clone, const dd_wait *wait, dd_error *err)
{
    const prefix_store *self = prefix_of(store);
    dd_store *underlying = NULL;
    dd_status status = self->underlying->ops->clone(self->underlying, &underlying, wait, err);
    if (status != DD_OK) {
        return status;
    }
    status = dd_prefix_store_open(clone, dd_bytes_of(self->prefix, self->prefix_len - 1), underlying, err);
    dd_store_release(underlying);
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
    .run = prefix_run,
    .clone = prefix_clone,
    .has_extended_api = prefix_has_extended_api,
    .get_timeout_ns = prefix_get_timeout_ns,
    .set_timeout_ns = prefix_set_timeout_ns,
    .destroy = prefix_destroy,
};

static bool
is_prefix_store(const dd_store *store)
{
    return store->ops == &prefix_ops;
}

dd_status
dd_prefix_store_open(dd_store **store, dd_bytes prefix, dd_store *underlying, dd_error *err)
{
    size_t nbytes;
    int depth = is_prefix_store(underlying) ? prefix_of(underlying)->depth + 1 : 1;
    if (depth > DD_PREFIX_STORE_MAX_DEPTH) {
        return dd_error_set(err, DD_INVALID_ARGUMENT,
                            "PrefixStore: nested too deeply: got %d levels, expected at most %d", depth,
                            DD_PREFIX_STORE_MAX_DEPTH);
    }
    if (__builtin_add_overflow(sizeof(prefix_store) + 1, prefix.len, &nbytes)) {
        return dd_error_no_memory(err, prefix.len);
    }
    prefix_store *self = dd_mem_zalloc(nbytes);
    if (self == NULL) {
        return dd_error_no_memory(err, nbytes);
    }
    dd_store_init(&self->head, &prefix_ops, 0);
    /* A view that a forked child opens on its parent's store must be as unusable as the store. */
    self->head.fork_generation = underlying->fork_generation;
    self->head.owner_pid = underlying->owner_pid;
    self->underlying = dd_store_acquire(underlying);
    self->depth = depth;
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

dd_store *
dd_prefix_store_root(dd_store *store)
{
    while (is_prefix_store(store)) {
        store = underlying_of(store);
    }
    return store;
}
