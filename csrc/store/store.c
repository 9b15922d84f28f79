#include "store/store.h"

#include "core/fork.h"
#include "core/mem.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

dd_status
dd_blob_list_init(dd_blob_list *list, size_t count, dd_error *err)
{
    *list = (dd_blob_list){0};
    if (count == 0) {
        return DD_OK;
    }
    list->items = dd_mem_alloc_array(count, sizeof(dd_blob));
    if (list->items == NULL) {
        return dd_error_no_memory(err, (unsigned long long)count * sizeof(dd_blob));
    }
    memset(list->items, 0, count * sizeof(dd_blob));
    list->count = count;
    return DD_OK;
}

void
dd_blob_list_fini(dd_blob_list *list)
{
    for (size_t i = 0; i < list->count; i++) {
        dd_blob_fini(&list->items[i]);
    }
    dd_mem_free(list->items);
    *list = (dd_blob_list){0};
}

void
dd_store_init(dd_store *store, const dd_store_ops *ops, int64_t timeout_ns)
{
    store->ops = ops;
    store->root = store;
    store->fork_generation = dd_fork_generation();
    store->owner_pid = (long long)getpid();
    atomic_init(&store->refs, 1);
    atomic_init(&store->timeout_ns, timeout_ns);
}

dd_store *
dd_store_acquire(dd_store *store)
{
    /* Relaxed: whoever acquires has a reference already, so the store cannot be on its way out. */
    atomic_fetch_add_explicit(&store->refs, 1, memory_order_relaxed);
    return store;
}

void
dd_store_release(dd_store *store)
{
    /* Acquire-release: the one who destroys sees all that the others did before they let go. */
    if (store == NULL || atomic_fetch_sub_explicit(&store->refs, 1, memory_order_acq_rel) > 1) {
        return;
    }
    if (store->root == store) {
        store->ops->destroy(store);
    } else {
        dd_store_release(store->root);
        dd_mem_free(store);
    }
}

dd_status
dd_store_clone_handle(dd_store *store, dd_store **other, const dd_wait *wait, dd_error *err)
{
    (void)wait;
    dd_store *handle = dd_mem_zalloc(sizeof *handle);
    if (handle == NULL) {
        return dd_error_no_memory(err, sizeof *handle);
    }
    dd_store_init(handle, store->ops, dd_store_head_get_timeout_ns(store));
    handle->root = dd_store_acquire(store->root);
    *other = handle;
    return DD_OK;
}

bool
dd_store_is_forked(const dd_store *store)
{
    return store->fork_generation != dd_fork_generation();
}

dd_status
dd_store_check_fork(const dd_store *store, dd_error *err)
{
    if (!dd_store_is_forked(store)) {
        return DD_OK;
    }
    return dd_error_set(err, DD_FORKED, "%s was opened in process %lld, used in process %lld after a fork",
                        store->ops->kind, store->owner_pid, (long long)getpid());
}

int64_t
dd_store_head_get_timeout_ns(dd_store *store)
{
    return atomic_load_explicit(&store->timeout_ns, memory_order_relaxed);
}

void
dd_store_head_set_timeout_ns(dd_store *store, int64_t timeout_ns)
{
    atomic_store_explicit(&store->timeout_ns, timeout_ns, memory_order_relaxed);
}

bool
dd_store_extended_api_yes(dd_store *store)
{
    (void)store;
    return true;
}

/* What is at a key, nothing if it is missing. */
typedef dd_status (*current_fn)(dd_store *store, dd_bytes key, dd_blob *value, const dd_wait *wait,
                                dd_error *err);

static dd_status
look_at_key(dd_store *store, dd_bytes key, dd_blob *value, const dd_wait *wait, dd_error *err)
{
    bool is_found = false;
    return store->ops->try_get(store, key, value, &is_found, wait, err);
}

/* A missing key is made, with nothing in it. */
static dd_status
look_by_compare_set(dd_store *store, dd_bytes key, dd_blob *value, const dd_wait *wait, dd_error *err)
{
    dd_bytes nothing = {0};
    return store->ops->compare_set(store, key, nothing, nothing, value, wait, err);
}

/* One try of an append: `is_done` tells whether nobody came in between. */
static dd_status
try_append(dd_store *store, dd_bytes key, dd_bytes value, current_fn look, const dd_wait *wait, bool *is_done,
           dd_error *err)
{
    dd_blob old = {0};
    dd_blob desired = {0};
    dd_blob stored = {0};
    dd_status status = look(store, key, &old, wait, err);
    if (status == DD_OK) {
        status = dd_blob_append(&desired, old.data, old.len, err);
    }
    if (status == DD_OK) {
        status = dd_blob_append(&desired, value.data, value.len, err);
    }
    if (status == DD_OK) {
        status = store->ops->compare_set(store, key, dd_blob_view(&old), dd_blob_view(&desired), &stored,
                                         wait, err);
    }
    if (status == DD_OK) {
        *is_done = dd_bytes_equal(dd_blob_view(&stored), dd_blob_view(&desired));
    }
    dd_blob_fini(&old);
    dd_blob_fini(&desired);
    dd_blob_fini(&stored);
    return status;
}

static dd_status
append_with(dd_store *store, dd_bytes key, dd_bytes value, current_fn look, const dd_wait *wait,
            dd_error *err)
{
    for (;;) {
        bool is_done = false;
        dd_status status = try_append(store, key, value, look, wait, &is_done, err);
        if (status != DD_OK || is_done) {
            return status;
        }
        if (dd_wait_is_over(wait)) {
            char shown[128];
            return dd_error_set(err, DD_TIMED_OUT,
                                "append to key \"%s\" timed out after %.3f s on %s: others keep changing it",
                                dd_bytes_print(key, shown, sizeof shown), dd_wait_elapsed_s(wait),
                                store->ops->kind);
        }
        status = dd_wait_check(wait, err);
        if (status != DD_OK) {
            return status;
        }
    }
}

dd_status
dd_store_generic_append(dd_store *store, dd_bytes key, dd_bytes value, const dd_wait *wait, dd_error *err)
{
    return append_with(store, key, value, look_at_key, wait, err);
}

dd_status
dd_store_append_by_compare_set(dd_store *store, dd_bytes key, dd_bytes value, const dd_wait *wait,
                               dd_error *err)
{
    return append_with(store, key, value, look_by_compare_set, wait, err);
}

dd_status
dd_store_generic_multi_get(dd_store *store, const dd_bytes *keys, size_t nkeys, dd_blob_list *values,
                           const dd_wait *wait, dd_error *err)
{
    dd_blob_list list;
    dd_status status = dd_blob_list_init(&list, nkeys, err);
    for (size_t i = 0; status == DD_OK && i < nkeys; i++) {
        status = store->ops->get(store, keys[i], &list.items[i], wait, err);
    }
    if (status != DD_OK) {
        dd_blob_list_fini(&list);
        return status;
    }
    *values = list;
    return DD_OK;
}

dd_status
dd_store_generic_multi_set(dd_store *store, const dd_bytes *keys, const dd_bytes *values, size_t nkeys,
                           const dd_wait *wait, dd_error *err)
{
    dd_status status = DD_OK;
    for (size_t i = 0; status == DD_OK && i < nkeys; i++) {
        status = store->ops->set(store, keys[i], values[i], wait, err);
    }
    return status;
}

dd_status
dd_store_generic_try_get(dd_store *store, dd_bytes key, dd_blob *value, bool *is_found, const dd_wait *wait,
                         dd_error *err)
{
    bool is_ready = false;
    dd_status status = store->ops->check(store, &key, 1, &is_ready, wait, err);
    if (status == DD_OK && is_ready) {
        status = store->ops->get(store, key, value, wait, err);
    }
    if (status == DD_OK) {
        *is_found = is_ready;
    }
    return status;
}

static dd_status
key_with_suffix(dd_bytes key, const char *suffix, dd_blob *joined, dd_error *err)
{
    dd_status status = dd_blob_assign(joined, key, err);
    return status == DD_OK ? dd_blob_append(joined, suffix, strlen(suffix), err) : status;
}

dd_status
dd_store_generic_barrier(dd_store *store, dd_bytes key, int64_t world_size, const dd_wait *wait,
                         dd_error *err)
{
    dd_blob count_key = {0};
    dd_blob last_key = {0};
    int64_t count = 0;
    dd_status status = key_with_suffix(key, "/num_members", &count_key, err);
    if (status == DD_OK) {
        status = key_with_suffix(key, "/last_member", &last_key, err);
    }
    if (status == DD_OK) {
        status = store->ops->add(store, dd_blob_view(&count_key), 1, &count, wait, err);
    }
    dd_bytes last = dd_blob_view(&last_key);
    if (status == DD_OK) {
        status = count >= world_size ? store->ops->set(store, last, dd_bytes_of_string("1"), wait, err)
                                     : store->ops->wait(store, &last, 1, wait, err);
    }
    dd_blob_fini(&count_key);
    dd_blob_fini(&last_key);
    return status;
}

dd_status
dd_store_error_missing(dd_error *err, const char *what, const char *where, const dd_bytes *missing,
                       size_t nmissing, size_t nkeys, const dd_wait *wait)
{
    char list[DD_STORE_MISSING_SHOWN * 82 + 8];
    size_t used = 0;
    size_t nshown = nmissing < DD_STORE_MISSING_SHOWN ? nmissing : DD_STORE_MISSING_SHOWN;
    list[0] = '\0';
    for (size_t i = 0; i < nshown; i++) {
        char key[80];
        used += (size_t)snprintf(list + used, sizeof list - used, "%s%s", i > 0 ? ", " : "",
                                 dd_bytes_print(missing[i], key, sizeof key));
    }
    if (nshown < nmissing) {
        (void)snprintf(list + used, sizeof list - used, ", ...");
    }
    return dd_error_set(err, DD_TIMED_OUT, "%s timed out after %.3f s on %s: keys missing: %s (%zu of %zu)",
                        what, dd_wait_elapsed_s(wait), where, list, nmissing, nkeys);
}
