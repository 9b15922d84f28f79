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

/* ---- requests */

/* Copy the bytes that a blob borrows. If `status` is a failure, only drop them. */
static dd_status
own_blob(dd_blob *blob, dd_status status, dd_error *err)
{
    dd_bytes lent = dd_blob_view(blob);
    *blob = (dd_blob){0};
    return status == DD_OK ? dd_blob_assign(blob, lent, err) : status;
}

static dd_status
own_all(dd_store_result *result, dd_status status, dd_error *err)
{
    if (result->is_lent) {
        result->is_lent = false;
        status = own_blob(&result->value, status, err);
        for (size_t i = 0; i < result->list.count; i++) {
            status = own_blob(&result->list.items[i], status, err);
        }
    }
    return status;
}

dd_status
dd_store_result_own(dd_store_result *result, dd_error *err)
{
    return own_all(result, DD_OK, err);
}

void
dd_store_result_fini(dd_store_result *result)
{
    (void)own_all(result, DD_INTERNAL, NULL);
    dd_blob_fini(&result->value);
    dd_blob_list_fini(&result->list);
}

const char *
dd_store_op_name(dd_store_op op)
{
    static const char *const names[] = {
#define OP_NAME(NAME, name) [DD_STORE_##NAME] = #name,
        DD_STORE_OP_LIST(OP_NAME)
#undef OP_NAME
            [DD_STORE_MEET] = "meet",
        [DD_STORE_CHECK_EACH] = "check_each",
    };
    return names[op];
}

dd_status
dd_store_run(dd_store *store, const dd_store_request *request, dd_store_result *result, const dd_wait *wait,
             dd_error *err)
{
    return store->ops->run(store->root, request, result, wait, err);
}

/* Run a request. If a value was found, move it from the result to *value; `value` may be NULL. */
static dd_status
run_request(dd_store *store, dd_store_request request, dd_store_result *result, dd_blob *value,
            const dd_wait *wait, dd_error *err)
{
    dd_status status = dd_store_run(store, &request, result, wait, err);
    if (status == DD_OK && value != NULL && (request.op != DD_STORE_TRY_GET || result->flag)) {
        dd_blob_fini(value);
        *value = result->value;
        result->value = (dd_blob){0};
    }
    dd_store_result_fini(result);
    return status;
}

dd_status
dd_store_set(dd_store *store, dd_bytes key, dd_bytes value, const dd_wait *wait, dd_error *err)
{
    dd_store_request request = {.op = DD_STORE_SET, .keys = &key, .nkeys = 1, .values = &value};
    return run_request(store, request, &(dd_store_result){0}, NULL, wait, err);
}

dd_status
dd_store_get(dd_store *store, dd_bytes key, dd_blob *value, const dd_wait *wait, dd_error *err)
{
    dd_store_request request = {.op = DD_STORE_GET, .keys = &key, .nkeys = 1};
    return run_request(store, request, &(dd_store_result){0}, value, wait, err);
}

dd_status
dd_store_try_get(dd_store *store, dd_bytes key, dd_blob *value, bool *is_found, const dd_wait *wait,
                 dd_error *err)
{
    dd_store_request request = {.op = DD_STORE_TRY_GET, .keys = &key, .nkeys = 1};
    dd_store_result result = {0};
    dd_status status = run_request(store, request, &result, value, wait, err);
    if (status == DD_OK) {
        *is_found = result.flag;
    }
    return status;
}

dd_status
dd_store_try_multi_get(dd_store *store, const dd_bytes *keys, size_t nkeys, dd_blob_list *values,
                       const dd_wait *wait, dd_error *err)
{
    dd_store_request request = {.op = DD_STORE_MULTI_GET, .keys = keys, .nkeys = nkeys, .number = 1};
    dd_store_result result = {0};
    dd_status status = dd_store_run(store, &request, &result, wait, err);
    if (status == DD_OK) {
        *values = result.list;
        result.list = (dd_blob_list){0};
    }
    dd_store_result_fini(&result);
    return status;
}

dd_status
dd_store_add(dd_store *store, dd_bytes key, int64_t amount, int64_t *sum, const dd_wait *wait, dd_error *err)
{
    dd_store_request request = {.op = DD_STORE_ADD, .keys = &key, .nkeys = 1, .number = amount};
    dd_store_result result = {0};
    dd_status status = run_request(store, request, &result, NULL, wait, err);
    if (status == DD_OK) {
        *sum = result.number;
    }
    return status;
}

dd_status
dd_store_compare_set(dd_store *store, dd_bytes key, dd_bytes expected, dd_bytes desired, dd_blob *value,
                     const dd_wait *wait, dd_error *err)
{
    dd_bytes values[] = {expected, desired};
    dd_store_request request = {.op = DD_STORE_COMPARE_SET, .keys = &key, .nkeys = 1, .values = values};
    return run_request(store, request, &(dd_store_result){0}, value, wait, err);
}

/* ---- handles */

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
    /* Relaxed is enough: the caller has a reference, so no thread is destroying the store. */
    atomic_fetch_add_explicit(&store->refs, 1, memory_order_relaxed);
    return store;
}

void
dd_store_release(dd_store *store)
{
    /* Acquire-release: the thread that destroys the store must see the writes of all threads. */
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
dd_store_clone_handle(dd_store *store, dd_store **clone, const dd_wait *wait, dd_error *err)
{
    (void)wait;
    dd_store *handle = dd_mem_zalloc(sizeof *handle);
    if (handle == NULL) {
        return dd_error_no_memory(err, sizeof *handle);
    }
    dd_store_init(handle, store->ops, dd_store_head_get_timeout_ns(store));
    handle->root = dd_store_acquire(store->root);
    *clone = handle;
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
    return dd_error_set(
        err, DD_FORKED,
        "%s was opened in process %lld and used in process %lld after a fork; open it again there",
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
dd_store_error_missing(const dd_store_missing *missing, const dd_wait *wait, dd_error *err)
{
    char list[DD_STORE_MISSING_SHOWN * 84 + 8];
    size_t used = 0;
    size_t nshown = missing->nkeys < DD_STORE_MISSING_SHOWN ? missing->nkeys : DD_STORE_MISSING_SHOWN;
    list[0] = '\0';
    for (size_t i = 0; i < nshown; i++) {
        char key[80];
        used += (size_t)snprintf(list + used, sizeof list - used, "%s%s%s", i > 0 ? ", " : "", missing->root,
                                 dd_bytes_print(missing->keys[i], key, sizeof key));
    }
    if (nshown < missing->nkeys) {
        (void)snprintf(list + used, sizeof list - used, ", ...");
    }
    return dd_error_set(err, DD_TIMED_OUT, "%s after %.0fms, keys: %s (%zu of %zu missing): %s on %s",
                        missing->opening, dd_wait_limit_s(wait) * 1e3, list, missing->nkeys, missing->nasked,
                        missing->label, missing->where);
}
