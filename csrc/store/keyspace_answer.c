#include "store/keyspace_answer.h"

/* Whether a key is there, as far as the request cares. */
static bool
is_key_ready(const dd_keyspace *ks, const dd_store_request *request, dd_bytes key)
{
    dd_bytes value;
    dd_store_op op = request->op;
    if (op == DD_STORE_GET || op == DD_STORE_MULTI_GET) {
        return dd_keyspace_get(ks, key, &value);
    }
    if (op == DD_STORE_WAIT || op == DD_STORE_CHECK) {
        return dd_keyspace_has(ks, key);
    }
    return op != DD_STORE_QUEUE_POP || dd_keyspace_queue_len(ks, key) > 0;
}

static bool
are_keys_ready(const dd_keyspace *ks, const dd_store_request *request)
{
    size_t i = 0;
    while (i < request->nkeys && is_key_ready(ks, request, request->keys[i])) {
        i++;
    }
    return i == request->nkeys;
}

static dd_status
answer_value(const dd_keyspace *ks, dd_bytes key, dd_store_result *result, dd_error *err)
{
    dd_bytes value = {0};
    result->flag = dd_keyspace_get(ks, key, &value);
    return dd_blob_assign(&result->value, value, err);
}

static dd_status
answer_values(const dd_keyspace *ks, const dd_store_request *request, dd_store_result *result, dd_error *err)
{
    dd_status status = dd_blob_list_init(&result->list, request->nkeys, err);
    for (size_t i = 0; status == DD_OK && i < request->nkeys; i++) {
        dd_bytes value = {0};
        (void)dd_keyspace_get(ks, request->keys[i], &value);
        status = dd_blob_assign(&result->list.items[i], value, err);
    }
    return status;
}

static dd_status
answer_keys(const dd_keyspace *ks, dd_store_result *result, dd_error *err)
{
    dd_status status = dd_blob_list_init(&result->list, (size_t)ks->nvalues, err);
    const dd_map_node *cursor = NULL;
    dd_bytes key;
    for (size_t i = 0; status == DD_OK && dd_keyspace_next_key(ks, &cursor, &key); i++) {
        status = dd_blob_assign(&result->list.items[i], key, err);
    }
    return status;
}

static dd_status
set_all(dd_keyspace *ks, const dd_store_request *request, dd_error *err)
{
    dd_status status = DD_OK;
    for (size_t i = 0; status == DD_OK && i < request->nkeys; i++) {
        status = dd_keyspace_set(ks, request->keys[i], request->values[i], err);
    }
    return status;
}

static dd_status
compare_set(dd_keyspace *ks, const dd_store_request *request, dd_store_result *result, dd_error *err)
{
    const dd_bytes *values = request->values;
    dd_bytes now;
    /* Room for the desired value first: once the key is set, nothing may fail any more. */
    dd_status status = dd_blob_reserve(&result->value, values[1].len, err);
    if (status == DD_OK) {
        status = dd_keyspace_compare_set(ks, request->keys[0], values[0], values[1], &now, err);
    }
    return status == DD_OK ? dd_blob_assign(&result->value, now, err) : status;
}

static dd_status
check_each(const dd_keyspace *ks, const dd_store_request *request, dd_store_result *result, dd_error *err)
{
    dd_status status = dd_blob_reserve(&result->value, request->nkeys, err);
    for (size_t i = 0; status == DD_OK && i < request->nkeys; i++) {
        result->value.data[result->value.len++] = dd_keyspace_has(ks, request->keys[i]);
    }
    return status;
}

static dd_status
meet(dd_keyspace *ks, const dd_store_request *request, dd_store_result *result, dd_error *err)
{
    dd_meet_request arrival = dd_store_meet_request(request);
    dd_meet_reply reply = {0};
    dd_status status = dd_keyspace_meet(ks, &arrival, &reply, err);
    dd_store_meet_result(result, &reply);
    return status;
}

static dd_status
pop(dd_keyspace *ks, const dd_store_request *request, dd_store_result *result, bool *is_answered,
    dd_error *err)
{
    result->number = dd_keyspace_queue_len(ks, request->keys[0]);
    result->flag = *is_answered = dd_keyspace_queue_pop(ks, request->keys[0], &result->value);
    if (*is_answered || request->number != 0) {
        return DD_OK;
    }
    char shown[128];
    return dd_error_set(err, DD_QUEUE_EMPTY, "queue \"%s\" is empty",
                        dd_bytes_print(request->keys[0], shown, sizeof shown));
}

dd_status
dd_keyspace_answer(dd_keyspace *ks, const dd_store_request *request, dd_store_result *result,
                   bool *is_answered, dd_error *err)
{
    const dd_bytes *keys = request->keys;
    dd_status status;
    *is_answered = true;
    switch (request->op) {
    case DD_STORE_SET:
    case DD_STORE_MULTI_SET:
        return set_all(ks, request, err);
    case DD_STORE_GET:
        status = answer_value(ks, keys[0], result, err);
        *is_answered = result->flag;
        return status;
    case DD_STORE_TRY_GET:
        return answer_value(ks, keys[0], result, err);
    case DD_STORE_ADD:
        return dd_keyspace_add(ks, keys[0], request->number, &result->number, err);
    case DD_STORE_COMPARE_SET:
        return compare_set(ks, request, result, err);
    case DD_STORE_WAIT:
        result->flag = *is_answered = are_keys_ready(ks, request);
        return DD_OK;
    case DD_STORE_CHECK:
        result->flag = are_keys_ready(ks, request);
        return DD_OK;
    case DD_STORE_DELETE_KEY:
        result->number = result->flag = dd_keyspace_delete(ks, keys[0]);
        return DD_OK;
    case DD_STORE_NUM_KEYS:
        result->number = ks->nvalues;
        return DD_OK;
    case DD_STORE_APPEND:
        return dd_keyspace_append(ks, keys[0], request->values[0], err);
    case DD_STORE_MULTI_GET:
        *is_answered = request->number != 0 || are_keys_ready(ks, request);
        return *is_answered ? answer_values(ks, request, result, err) : DD_OK;
    case DD_STORE_QUEUE_PUSH:
        return dd_keyspace_queue_push(ks, keys[0], request->values[0], err);
    case DD_STORE_QUEUE_POP:
        return pop(ks, request, result, is_answered, err);
    case DD_STORE_QUEUE_LEN:
        result->number = dd_keyspace_queue_len(ks, keys[0]);
        return DD_OK;
    case DD_STORE_LIST_KEYS:
        return answer_keys(ks, result, err);
    case DD_STORE_BARRIER:
        status = dd_keyspace_barrier_arrive(ks, keys[0], request->number, is_answered, err);
        result->flag = *is_answered;
        return status;
    case DD_STORE_MEET:
        return meet(ks, request, result, err);
    case DD_STORE_CHECK_EACH:
        return check_each(ks, request, result, err);
    }
    return dd_error_set(err, DD_INTERNAL, "no keyspace knows operation %d", (int)request->op);
}

dd_status
dd_keyspace_park_request(dd_keyspace *ks, dd_key_waiter *waiter, const dd_store_request *request,
                         bool *is_parked, dd_error *err)
{
    dd_store_op op = request->op;
    waiter->kind = op == DD_STORE_QUEUE_POP ? DD_KEY_WAITER_POP
                   : op == DD_STORE_BARRIER ? DD_KEY_WAITER_BARRIER
                   : op == DD_STORE_WAIT    ? DD_KEY_WAITER_KEYS
                                            : DD_KEY_WAITER_VALUE;
    return dd_keyspace_park(ks, waiter, request->keys, request->nkeys, is_parked, err);
}

static dd_status
error_barrier(const dd_keyspace *ks, const dd_store_request *request, const char *where, const dd_wait *wait,
              dd_error *err)
{
    char shown_key[128];
    char shown_count[32];
    dd_bytes count = {0};
    (void)dd_keyspace_get(ks, request->keys[0], &count);
    return dd_error_set(
        err, DD_TIMED_OUT, "barrier timed out after %.3f s on %s: %s of %lld have come to key \"%s\"",
        dd_wait_elapsed_s(wait), where, dd_bytes_print(count, shown_count, sizeof shown_count),
        (long long)request->number, dd_bytes_print(request->keys[0], shown_key, sizeof shown_key));
}

dd_status
dd_keyspace_error_missing(const dd_keyspace *ks, const dd_store_request *request, const char *where,
                          const dd_wait *wait, dd_error *err)
{
    if (request->op == DD_STORE_BARRIER) {
        return error_barrier(ks, request, where, wait, err);
    }
    dd_bytes missing[DD_STORE_MISSING_SHOWN];
    size_t nmissing = 0;
    for (size_t i = 0; i < request->nkeys; i++) {
        if (!is_key_ready(ks, request, request->keys[i]) && nmissing++ < DD_STORE_MISSING_SHOWN) {
            missing[nmissing - 1] = request->keys[i];
        }
    }
    return dd_store_error_missing(err, dd_store_op_name(request->op), where, missing, nmissing,
                                  request->nkeys, wait);
}
