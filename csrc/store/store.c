#include "store/store.h"

#include "core/fork.h"
#include "core/mem.h"
#include "core/system.h"

#include <stdio.h>
#include <string.h>

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
    store->owner_pid = (long long)dd_sys_getpid();
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
                        store->ops->kind, store->owner_pid, (long long)dd_sys_getpid());
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
