/* An operation that may have to wait asks over the main link first, in order with everything that was sent
 * before; only if a key is not there yet does it wait, on a side link, where it holds up nobody. */
#include "store/tcp_client_internal.h"

#define MAX_KEYS_NAMED 64
#define TRY_AGAIN_NS DD_NS_PER_MS

/* ---- asking what is there */

/* The rest of a CHECK; the call may go on with another request. */
static dd_status
ask_check(tcp_call *call, const dd_bytes *keys, size_t nkeys, bool *is_ready)
{
    tcp_call_write_keys(call, keys, nkeys);
    dd_tcp_reader reader;
    dd_status status = tcp_call_ask(call, &reader);
    if (status == DD_OK) {
        *is_ready = dd_tcp_read_u8(&reader) == DD_TCP_READY;
    }
    return status;
}

static dd_status
check(const tcp_operation *operation, const dd_bytes *keys, size_t nkeys, bool *is_ready)
{
    tcp_call call;
    tcp_call_begin(&call, operation, DD_TCP_CHECK);
    return tcp_call_end(&call, ask_check(&call, keys, nkeys, is_ready));
}

dd_status
tcp_check(dd_store *head, const dd_bytes *keys, size_t nkeys, bool *is_ready, const dd_wait *wait,
          dd_error *err)
{
    tcp_operation operation = {tcp_store_of(head), "check", wait, err};
    return check(&operation, keys, nkeys, is_ready);
}

static dd_status
try_get_extended(const tcp_operation *operation, dd_bytes key, dd_blob *value, bool *is_found)
{
    tcp_call call;
    tcp_call_begin(&call, operation, DD_TCP_TRY_GET);
    return tcp_call_end(&call, tcp_call_ask_maybe(&call, key, value, is_found));
}

/* PyTorch's protocol answers a GET of a missing key as if it were empty, so it is asked for first. */
static dd_status
try_get_plain(const tcp_operation *operation, dd_bytes key, dd_blob *value, bool *is_found)
{
    tcp_call call;
    tcp_call_begin(&call, operation, DD_TCP_CHECK);
    dd_status status = ask_check(&call, &key, 1, is_found);
    if (status == DD_OK && *is_found) {
        tcp_call_next(&call, DD_TCP_GET);
        tcp_call_write_key(&call, key);
        dd_tcp_reader reader;
        status = tcp_call_ask(&call, &reader);
        if (status == DD_OK) {
            status = tcp_call_take_value(&call, &reader, value);
        }
    }
    return tcp_call_end(&call, status);
}

static dd_status
try_get(const tcp_operation *operation, dd_bytes key, dd_blob *value, bool *is_found)
{
    return operation->store->target.is_extended ? try_get_extended(operation, key, value, is_found)
                                                : try_get_plain(operation, key, value, is_found);
}

dd_status
tcp_try_get(dd_store *head, dd_bytes key, dd_blob *value, bool *is_found, const dd_wait *wait, dd_error *err)
{
    tcp_operation operation = {tcp_store_of(head), "try_get", wait, err};
    return try_get(&operation, key, value, is_found);
}

/* ---- time-outs name what is missing */

/* The keys that a time-out names, as many as there is room for. */
typedef struct missing_keys {
    dd_bytes keys[MAX_KEYS_NAMED];
    size_t count;
} missing_keys;

static void
note_if_missing(missing_keys *missing, dd_bytes key, bool is_there)
{
    if (!is_there && missing->count < MAX_KEYS_NAMED) {
        missing->keys[missing->count++] = key;
    }
}

/* All in one request, where the server knows how. */
static dd_status
find_missing_at_once(const tcp_operation *operation, const dd_bytes *keys, size_t nkeys,
                     missing_keys *missing)
{
    tcp_call call;
    tcp_call_begin(&call, operation, DD_TCP_CHECK_EACH);
    tcp_call_write_keys(&call, keys, nkeys);
    dd_tcp_reader reader;
    dd_status status = tcp_call_ask(&call, &reader);
    if (status == DD_OK) {
        dd_bytes flags = dd_tcp_read_bytes(&reader);
        for (size_t i = 0; i < nkeys; i++) {
            note_if_missing(missing, keys[i], i < flags.len && flags.data[i] != 0);
        }
    }
    return tcp_call_end(&call, status);
}

static dd_status
find_missing_one_by_one(const tcp_operation *operation, const dd_bytes *keys, size_t nkeys,
                        missing_keys *missing)
{
    dd_status status = DD_OK;
    for (size_t i = 0; i < nkeys && missing->count < MAX_KEYS_NAMED && status == DD_OK; i++) {
        bool is_there = false;
        status = check(operation, &keys[i], 1, &is_there);
        note_if_missing(missing, keys[i], is_there);
    }
    return status;
}

dd_status
tcp_error_missing(const tcp_operation *operation, const dd_bytes *keys, size_t nkeys)
{
    tcp_store *store = operation->store;
    dd_wait patience = dd_wait_after(TCP_ANSWER_NS);
    tcp_operation look = {store, "check", &patience, NULL};
    missing_keys missing = {.count = 0};
    dd_status status = store->target.is_extended ? find_missing_at_once(&look, keys, nkeys, &missing)
                                                 : find_missing_one_by_one(&look, keys, nkeys, &missing);
    bool is_known = status == DD_OK && missing.count > 0;
    /* Else the server does not answer any more, or they have come since: all that can be said is what was
     * asked. */
    return dd_store_error_missing(operation->err, operation->what, store->where,
                                  is_known ? missing.keys : keys, is_known ? missing.count : nkeys, nkeys,
                                  operation->wait);
}

/* ---- waiting */

dd_status
tcp_wait_aside(const tcp_operation *operation, const dd_bytes *keys, size_t nkeys)
{
    tcp_call call;
    tcp_call_begin_side(&call, operation, DD_TCP_WAIT);
    tcp_call_write_keys(&call, keys, nkeys);
    dd_status status = tcp_call_end(&call, tcp_call_wait_to_stop(&call));
    return status == DD_TIMED_OUT ? tcp_error_missing(operation, keys, nkeys) : status;
}

dd_status
tcp_wait_and_try(const tcp_operation *operation, dd_bytes key, dd_blob *value, tcp_try_fn try)
{
    for (;;) {
        dd_status status = tcp_wait_aside(operation, &key, 1);
        bool is_found = false;
        if (status == DD_OK) {
            status = try(operation, key, value, &is_found);
        }
        if (status != DD_OK || is_found) {
            return status;
        }
        if (dd_wait_is_over(operation->wait)) {
            return tcp_error_missing(operation, &key, 1);
        }
        status = dd_wait_sleep(operation->wait, TRY_AGAIN_NS, operation->err);
        if (status != DD_OK) {
            return status;
        }
    }
}

static dd_status
wait_for(const tcp_operation *operation, const dd_bytes *keys, size_t nkeys)
{
    bool is_ready = false;
    dd_status status = check(operation, keys, nkeys, &is_ready);
    if (status != DD_OK || is_ready) {
        return status;
    }
    return dd_wait_is_over(operation->wait) ? tcp_error_missing(operation, keys, nkeys)
                                            : tcp_wait_aside(operation, keys, nkeys);
}

dd_status
tcp_wait(dd_store *head, const dd_bytes *keys, size_t nkeys, const dd_wait *wait, dd_error *err)
{
    tcp_operation operation = {tcp_store_of(head), "wait", wait, err};
    return wait_for(&operation, keys, nkeys);
}

/* ---- getting */

/* The value comes with the answer to the wait. */
static dd_status
wait_and_get_extended(const tcp_operation *operation, dd_bytes key, dd_blob *value)
{
    tcp_call call;
    tcp_call_begin_side(&call, operation, DD_TCP_WAIT_GET);
    tcp_call_write_key(&call, key);
    dd_tcp_reader reader;
    dd_status status = tcp_call_wait(&call, &reader);
    if (status == DD_OK) {
        status = tcp_call_take_awaited(&call, &reader, value);
    }
    status = tcp_call_end(&call, status);
    return status == DD_TIMED_OUT ? tcp_error_missing(operation, &key, 1) : status;
}

dd_status
tcp_get(dd_store *head, dd_bytes key, dd_blob *value, const dd_wait *wait, dd_error *err)
{
    tcp_operation operation = {tcp_store_of(head), "get", wait, err};
    bool is_found = false;
    dd_status status = try_get(&operation, key, value, &is_found);
    if (status != DD_OK || is_found) {
        return status;
    }
    if (dd_wait_is_over(wait)) {
        return tcp_error_missing(&operation, &key, 1);
    }
    return operation.store->target.is_extended ? wait_and_get_extended(&operation, key, value)
                                               : tcp_wait_and_try(&operation, key, value, try_get_plain);
}

static dd_status
take_values(tcp_call *call, dd_tcp_reader *reader, size_t count, dd_blob_list *values)
{
    dd_status status = dd_blob_list_init(values, count, call->operation->err);
    for (size_t i = 0; i < count && status == DD_OK; i++) {
        status = tcp_call_take_value(call, reader, &values->items[i]);
    }
    if (status != DD_OK) {
        dd_blob_list_fini(values);
    }
    return status;
}

dd_status
tcp_multi_get(dd_store *head, const dd_bytes *keys, size_t nkeys, dd_blob_list *values, const dd_wait *wait,
              dd_error *err)
{
    dd_status status = tcp_wait(head, keys, nkeys, wait, err);
    if (status != DD_OK) {
        return status;
    }
    tcp_operation operation = {tcp_store_of(head), "multi_get", wait, err};
    tcp_call call;
    tcp_call_begin(&call, &operation, DD_TCP_MULTI_GET);
    tcp_call_write_keys(&call, keys, nkeys);
    dd_tcp_reader reader;
    status = tcp_call_ask_many(&call, nkeys, &reader);
    if (status == DD_OK) {
        status = take_values(&call, &reader, nkeys, values);
    }
    return tcp_call_end(&call, status);
}
