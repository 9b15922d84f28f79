#include "store/request.h"

#include <limits.h>

void
dd_store_result_fini(dd_store_result *result)
{
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

#define MEET_SIZE_SHIFT 31 /* rank and size are below 2^31 */
#define MEET_HEARS_FAILURE (INT64_C(1) << 62)

dd_meet_request
dd_store_meet_request(const dd_store_request *request)
{
    return (dd_meet_request){
        .place = request->keys[0],
        .rank = (int)(request->number & INT_MAX),
        .size = (int)(request->number >> MEET_SIZE_SHIFT & INT_MAX),
        .hears_failure = (request->number & MEET_HEARS_FAILURE) != 0,
        .published = request->values[0],
    };
}

void
dd_store_meet_result(dd_store_result *result, const dd_meet_reply *reply)
{
    result->state = (uint8_t)reply->state;
    result->number = (int64_t)reply->generation;
    result->flag = reply->has_come;
    result->value = reply->value;
}

dd_status
dd_store_run(dd_store *store, const dd_store_request *request, dd_store_result *result, const dd_wait *wait,
             dd_error *err)
{
    return store->ops->run(store->root, request, result, wait, err);
}

/* ---- from an operation of the table to a request */

/* Where the caller wants what; NULL: it wants no such thing. */
typedef struct outputs {
    dd_blob *value;
    dd_blob_list *list;
    int64_t *number;
    bool *flag;
} outputs;

static void
hand_out(dd_store_result *result, const outputs *out)
{
    bool is_found = out->flag == NULL || result->flag;
    if (out->value != NULL && is_found) {
        dd_blob_fini(out->value);
        *out->value = result->value;
        result->value = (dd_blob){0};
    }
    if (out->list != NULL) {
        *out->list = result->list;
        result->list = (dd_blob_list){0};
    }
    if (out->number != NULL) {
        *out->number = result->number;
    }
    if (out->flag != NULL) {
        *out->flag = result->flag;
    }
}

static dd_status
run(dd_store *store, const dd_store_request *request, const outputs *out, const dd_wait *wait, dd_error *err)
{
    dd_store_result result = {0};
    dd_status status = dd_store_run(store, request, &result, wait, err);
    if (status == DD_OK) {
        hand_out(&result, out);
    }
    dd_store_result_fini(&result);
    return status;
}

dd_status
dd_store_run_set(dd_store *store, dd_bytes key, dd_bytes value, const dd_wait *wait, dd_error *err)
{
    dd_store_request request = {.op = DD_STORE_SET, .keys = &key, .nkeys = 1, .values = &value};
    return run(store, &request, &(outputs){0}, wait, err);
}

dd_status
dd_store_run_get(dd_store *store, dd_bytes key, dd_blob *value, const dd_wait *wait, dd_error *err)
{
    dd_store_request request = {.op = DD_STORE_GET, .keys = &key, .nkeys = 1};
    return run(store, &request, &(outputs){.value = value}, wait, err);
}

dd_status
dd_store_run_try_get(dd_store *store, dd_bytes key, dd_blob *value, bool *is_found, const dd_wait *wait,
                     dd_error *err)
{
    dd_store_request request = {.op = DD_STORE_TRY_GET, .keys = &key, .nkeys = 1};
    return run(store, &request, &(outputs){.value = value, .flag = is_found}, wait, err);
}

dd_status
dd_store_run_add(dd_store *store, dd_bytes key, int64_t amount, int64_t *sum, const dd_wait *wait,
                 dd_error *err)
{
    dd_store_request request = {.op = DD_STORE_ADD, .keys = &key, .nkeys = 1, .number = amount};
    return run(store, &request, &(outputs){.number = sum}, wait, err);
}

dd_status
dd_store_run_compare_set(dd_store *store, dd_bytes key, dd_bytes expected, dd_bytes desired, dd_blob *value,
                         const dd_wait *wait, dd_error *err)
{
    dd_bytes values[] = {expected, desired};
    dd_store_request request = {.op = DD_STORE_COMPARE_SET, .keys = &key, .nkeys = 1, .values = values};
    return run(store, &request, &(outputs){.value = value}, wait, err);
}

dd_status
dd_store_run_wait(dd_store *store, const dd_bytes *keys, size_t nkeys, const dd_wait *wait, dd_error *err)
{
    dd_store_request request = {.op = DD_STORE_WAIT, .keys = keys, .nkeys = nkeys};
    return run(store, &request, &(outputs){0}, wait, err);
}

dd_status
dd_store_run_check(dd_store *store, const dd_bytes *keys, size_t nkeys, bool *is_ready, const dd_wait *wait,
                   dd_error *err)
{
    dd_store_request request = {.op = DD_STORE_CHECK, .keys = keys, .nkeys = nkeys};
    return run(store, &request, &(outputs){.flag = is_ready}, wait, err);
}

dd_status
dd_store_run_delete_key(dd_store *store, dd_bytes key, bool *is_deleted, const dd_wait *wait, dd_error *err)
{
    dd_store_request request = {.op = DD_STORE_DELETE_KEY, .keys = &key, .nkeys = 1};
    return run(store, &request, &(outputs){.flag = is_deleted}, wait, err);
}

dd_status
dd_store_run_num_keys(dd_store *store, int64_t *count, const dd_wait *wait, dd_error *err)
{
    dd_store_request request = {.op = DD_STORE_NUM_KEYS};
    return run(store, &request, &(outputs){.number = count}, wait, err);
}

dd_status
dd_store_run_append(dd_store *store, dd_bytes key, dd_bytes value, const dd_wait *wait, dd_error *err)
{
    dd_store_request request = {.op = DD_STORE_APPEND, .keys = &key, .nkeys = 1, .values = &value};
    return run(store, &request, &(outputs){0}, wait, err);
}

dd_status
dd_store_run_multi_get(dd_store *store, const dd_bytes *keys, size_t nkeys, dd_blob_list *values,
                       const dd_wait *wait, dd_error *err)
{
    dd_store_request request = {.op = DD_STORE_MULTI_GET, .keys = keys, .nkeys = nkeys};
    return run(store, &request, &(outputs){.list = values}, wait, err);
}

dd_status
dd_store_run_multi_set(dd_store *store, const dd_bytes *keys, const dd_bytes *values, size_t nkeys,
                       const dd_wait *wait, dd_error *err)
{
    dd_store_request request = {.op = DD_STORE_MULTI_SET, .keys = keys, .nkeys = nkeys, .values = values};
    return run(store, &request, &(outputs){0}, wait, err);
}

dd_status
dd_store_run_queue_push(dd_store *store, dd_bytes key, dd_bytes value, const dd_wait *wait, dd_error *err)
{
    dd_store_request request = {.op = DD_STORE_QUEUE_PUSH, .keys = &key, .nkeys = 1, .values = &value};
    return run(store, &request, &(outputs){0}, wait, err);
}

dd_status
dd_store_run_queue_pop(dd_store *store, dd_bytes key, bool is_blocking, dd_blob *value, const dd_wait *wait,
                       dd_error *err)
{
    dd_store_request request = {.op = DD_STORE_QUEUE_POP, .keys = &key, .nkeys = 1, .number = is_blocking};
    return run(store, &request, &(outputs){.value = value}, wait, err);
}

dd_status
dd_store_run_queue_len(dd_store *store, dd_bytes key, int64_t *count, const dd_wait *wait, dd_error *err)
{
    dd_store_request request = {.op = DD_STORE_QUEUE_LEN, .keys = &key, .nkeys = 1};
    return run(store, &request, &(outputs){.number = count}, wait, err);
}

dd_status
dd_store_run_list_keys(dd_store *store, dd_blob_list *keys, const dd_wait *wait, dd_error *err)
{
    dd_store_request request = {.op = DD_STORE_LIST_KEYS};
    return run(store, &request, &(outputs){.list = keys}, wait, err);
}

dd_status
dd_store_run_barrier(dd_store *store, dd_bytes key, int64_t world_size, const dd_wait *wait, dd_error *err)
{
    dd_store_request request = {.op = DD_STORE_BARRIER, .keys = &key, .nkeys = 1, .number = world_size};
    return run(store, &request, &(outputs){0}, wait, err);
}

dd_status
dd_store_meet(dd_store *store, const dd_meet_request *request, dd_meet_reply *reply, const dd_wait *wait,
              dd_error *err)
{
    dd_store_request arrival = {.op = DD_STORE_MEET,
                                .keys = &request->place,
                                .nkeys = 1,
                                .values = &request->published,
                                .number = request->rank | (int64_t)request->size << MEET_SIZE_SHIFT |
                                          (request->hears_failure ? MEET_HEARS_FAILURE : 0)};
    dd_store_result result = {0};
    dd_status status = dd_store_run(store, &arrival, &result, wait, err);
    reply->state = (dd_meet_state)result.state;
    reply->generation = (uint64_t)result.number;
    reply->has_come = status == DD_OK ? reply->state <= DD_MEET_ENDED : result.flag;
    reply->value = result.value;
    return status;
}
