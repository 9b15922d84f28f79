/* Operations of a store that are made of other operations. */
#include "store/meet_join.h"
#include "store/store.h"

#include <string.h>

/* ---- append */

/* Try once to append. *is_done is false if another client changed the key during the attempt. */
static dd_status
try_append(dd_store *store, const dd_store_request *request, const dd_wait *wait, bool *is_done,
           dd_error *err)
{
    dd_bytes key = request->keys[0];
    dd_bytes value = request->values[0];
    dd_blob old = {0};
    dd_blob desired = {0};
    dd_blob stored = {0};
    bool is_found = false;
    dd_status status = request->number != 0
                           ? dd_store_compare_set(store, key, (dd_bytes){0}, (dd_bytes){0}, &old, wait, err)
                           : dd_store_try_get(store, key, &old, &is_found, wait, err);
    if (status == DD_OK) {
        status = dd_blob_append(&desired, old.data, old.len, err);
    }
    if (status == DD_OK) {
        status = dd_blob_append(&desired, value.data, value.len, err);
    }
    if (status == DD_OK) {
        status =
            dd_store_compare_set(store, key, dd_blob_view(&old), dd_blob_view(&desired), &stored, wait, err);
    }
    *is_done = status == DD_OK && dd_bytes_equal(dd_blob_view(&stored), dd_blob_view(&desired));
    dd_blob_fini(&old);
    dd_blob_fini(&desired);
    dd_blob_fini(&stored);
    return status;
}

static dd_status
append_generic(dd_store *store, const dd_store_request *request, const dd_wait *wait, dd_error *err)
{
    for (;;) {
        bool is_done = false;
        dd_status status = try_append(store, request, wait, &is_done, err);
        if (status != DD_OK || is_done) {
            return status;
        }
        if (dd_wait_has_expired(wait)) {
            char shown[128];
            return dd_error_set(
                err, DD_TIMED_OUT,
                "append to key \"%s\" timed out after %.3f s on %s: other clients keep changing it",
                dd_bytes_print(request->keys[0], shown, sizeof shown), dd_wait_elapsed_s(wait),
                store->ops->kind);
        }
        status = dd_wait_check(wait, err);
        if (status != DD_OK) {
            return status;
        }
    }
}

/* ---- other operations */

static dd_status
get_each(dd_store *store, const dd_store_request *request, dd_blob_list *values, const dd_wait *wait,
         dd_error *err)
{
    dd_status status = dd_blob_list_init(values, request->nkeys, err);
    for (size_t i = 0; status == DD_OK && i < request->nkeys; i++) {
        status = dd_store_get(store, request->keys[i], &values->items[i], wait, err);
    }
    return status;
}

/* Read one or more keys into empty `values`. Halve the list of keys until all keys of a part are
 * present, or the part is one missing key: m missing of n keys take O(m log n) requests. */
static dd_status
get_present(dd_store *store, const dd_bytes *keys, size_t nkeys, dd_blob *values, const dd_wait *wait,
            dd_error *err)
{
    dd_store_request step = {.op = DD_STORE_CHECK, .keys = keys, .nkeys = nkeys};
    dd_store_result found = {0};
    dd_status status = dd_store_run(store, &step, &found, wait, err);
    if (status != DD_OK || (!found.flag && nkeys == 1)) {
        return status;
    }
    if (!found.flag) {
        size_t half = nkeys / 2;
        status = get_present(store, keys, half, values, wait, err);
        return status == DD_OK ? get_present(store, keys + half, nkeys - half, values + half, wait, err)
                               : status;
    }
    step.op = DD_STORE_MULTI_GET;
    status = dd_store_run(store, &step, &found, wait, err);
    for (size_t i = 0; status == DD_OK && i < nkeys; i++) {
        values[i] = found.list.items[i];
        found.list.items[i] = (dd_blob){0};
    }
    dd_store_result_fini(&found);
    return status;
}

static dd_status
try_get_each(dd_store *store, const dd_store_request *request, dd_blob_list *values, const dd_wait *wait,
             dd_error *err)
{
    dd_status status = dd_blob_list_init(values, request->nkeys, err);
    return status == DD_OK && request->nkeys > 0
               ? get_present(store, request->keys, request->nkeys, values->items, wait, err)
               : status;
}

static dd_status
set_each(dd_store *store, const dd_store_request *request, const dd_wait *wait, dd_error *err)
{
    dd_status status = DD_OK;
    for (size_t i = 0; status == DD_OK && i < request->nkeys; i++) {
        status = dd_store_set(store, request->keys[i], request->values[i], wait, err);
    }
    return status;
}

static dd_status
check_and_get(dd_store *store, const dd_store_request *request, dd_store_result *result, const dd_wait *wait,
              dd_error *err)
{
    dd_store_request step = *request;
    step.op = DD_STORE_CHECK;
    dd_status status = dd_store_run(store, &step, result, wait, err);
    return status == DD_OK && result->flag ? dd_store_get(store, request->keys[0], &result->value, wait, err)
                                           : status;
}

static dd_status
key_with_suffix(dd_bytes key, const char *suffix, dd_blob *joined, dd_error *err)
{
    dd_status status = dd_blob_assign(joined, key, err);
    return status == DD_OK ? dd_blob_append(joined, suffix, strlen(suffix), err) : status;
}

static dd_status
count_and_wait(dd_store *store, dd_bytes key, int64_t world_size, const dd_wait *wait, dd_error *err)
{
    dd_blob count_key = {0};
    dd_blob last_key = {0};
    int64_t count = 0;
    dd_status status = key_with_suffix(key, "/num_members", &count_key, err);
    if (status == DD_OK) {
        status = key_with_suffix(key, "/last_member", &last_key, err);
    }
    if (status == DD_OK) {
        status = dd_store_add(store, dd_blob_view(&count_key), 1, &count, wait, err);
    }
    dd_bytes last = dd_blob_view(&last_key);
    dd_store_request until = {.op = DD_STORE_WAIT, .keys = &last, .nkeys = 1};
    if (status == DD_OK) {
        status = count >= world_size ? dd_store_set(store, last, dd_bytes_of_string("1"), wait, err)
                                     : dd_store_run(store, &until, &(dd_store_result){0}, wait, err);
    }
    dd_blob_fini(&count_key);
    dd_blob_fini(&last_key);
    return status;
}

dd_status
dd_store_run_generic(dd_store *store, const dd_store_request *request, dd_store_result *result,
                     const dd_wait *wait, dd_error *err)
{
    dd_store_op op = request->op;
    if (op == DD_STORE_APPEND) {
        return append_generic(store, request, wait, err);
    }
    if (op == DD_STORE_MULTI_GET) {
        return request->number == 0 ? get_each(store, request, &result->list, wait, err)
                                    : try_get_each(store, request, &result->list, wait, err);
    }
    if (op == DD_STORE_MULTI_SET) {
        return set_each(store, request, wait, err);
    }
    if (op == DD_STORE_TRY_GET) {
        return check_and_get(store, request, result, wait, err);
    }
    if (op == DD_STORE_BARRIER) {
        return count_and_wait(store, request->keys[0], request->number, wait, err);
    }
    if (op == DD_STORE_MEET) {
        return meeting_join(store, NULL, request, result, wait, err);
    }
    return dd_error_set(err, DD_INTERNAL, "%s cannot be built from other operations", dd_store_op_name(op));
}
