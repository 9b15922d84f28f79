#include "store_calls.h"

/* Destinations of the results; NULL if the caller does not need one. */
typedef struct outputs {
    dd_blob *value;
    dd_blob_list *list;
    int64_t *number;
    bool *flag;
} outputs;

static dd_status
run(dd_store *store, dd_store_request request, outputs out, const dd_wait *wait, dd_error *err)
{
    dd_store_result result = {0};
    dd_status status = dd_store_run(store, &request, &result, wait, err);
    if (status == DD_OK && out.value != NULL) {
        dd_blob_fini(out.value);
        *out.value = result.value;
        result.value = (dd_blob){0};
    }
    if (status == DD_OK && out.list != NULL) {
        *out.list = result.list;
        result.list = (dd_blob_list){0};
    }
    if (status == DD_OK && out.number != NULL) {
        *out.number = result.number;
    }
    if (status == DD_OK && out.flag != NULL) {
        *out.flag = result.flag;
    }
    dd_store_result_fini(&result);
    return status;
}

#define REQUEST(OP, ...) ((dd_store_request){.op = DD_STORE_##OP, __VA_ARGS__})
#define KEY .keys = &key, .nkeys = 1
#define KEYS .keys = keys, .nkeys = nkeys

dd_status
dd_store_wait(dd_store *store, const dd_bytes *keys, size_t nkeys, const dd_wait *wait, dd_error *err)
{
    return run(store, REQUEST(WAIT, KEYS), (outputs){0}, wait, err);
}

dd_status
dd_store_check(dd_store *store, const dd_bytes *keys, size_t nkeys, bool *is_ready, const dd_wait *wait,
               dd_error *err)
{
    return run(store, REQUEST(CHECK, KEYS), (outputs){.flag = is_ready}, wait, err);
}

dd_status
dd_store_delete_key(dd_store *store, dd_bytes key, bool *is_deleted, const dd_wait *wait, dd_error *err)
{
    return run(store, REQUEST(DELETE_KEY, KEY), (outputs){.flag = is_deleted}, wait, err);
}

dd_status
dd_store_num_keys(dd_store *store, int64_t *count, const dd_wait *wait, dd_error *err)
{
    return run(store, REQUEST(NUM_KEYS, .nkeys = 0), (outputs){.number = count}, wait, err);
}

dd_status
dd_store_append(dd_store *store, dd_bytes key, dd_bytes value, const dd_wait *wait, dd_error *err)
{
    return run(store, REQUEST(APPEND, KEY, .values = &value), (outputs){0}, wait, err);
}

dd_status
dd_store_multi_get(dd_store *store, const dd_bytes *keys, size_t nkeys, dd_blob_list *values,
                   const dd_wait *wait, dd_error *err)
{
    return run(store, REQUEST(MULTI_GET, KEYS), (outputs){.list = values}, wait, err);
}

dd_status
dd_store_multi_set(dd_store *store, const dd_bytes *keys, const dd_bytes *values, size_t nkeys,
                   const dd_wait *wait, dd_error *err)
{
    return run(store, REQUEST(MULTI_SET, KEYS, .values = values), (outputs){0}, wait, err);
}

dd_status
dd_store_queue_push(dd_store *store, dd_bytes key, dd_bytes value, const dd_wait *wait, dd_error *err)
{
    return run(store, REQUEST(QUEUE_PUSH, KEY, .values = &value), (outputs){0}, wait, err);
}

dd_status
dd_store_queue_pop(dd_store *store, dd_bytes key, bool is_blocking, dd_blob *value, const dd_wait *wait,
                   dd_error *err)
{
    return run(store, REQUEST(QUEUE_POP, KEY, .number = is_blocking), (outputs){.value = value}, wait, err);
}

dd_status
dd_store_queue_len(dd_store *store, dd_bytes key, int64_t *count, const dd_wait *wait, dd_error *err)
{
    return run(store, REQUEST(QUEUE_LEN, KEY), (outputs){.number = count}, wait, err);
}

dd_status
dd_store_list_keys(dd_store *store, dd_blob_list *keys, const dd_wait *wait, dd_error *err)
{
    return run(store, REQUEST(LIST_KEYS, .nkeys = 0), (outputs){.list = keys}, wait, err);
}

dd_status
dd_store_barrier(dd_store *store, dd_bytes key, int64_t world_size, const dd_wait *wait, dd_error *err)
{
    return run(store, REQUEST(BARRIER, KEY, .number = world_size), (outputs){0}, wait, err);
}
