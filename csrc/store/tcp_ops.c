/* The operations of a TCPStore: what each asks of a server of ours and of one of PyTorch. */
#include "store/tcp_client_internal.h"

#include "core/log.h"

#include <inttypes.h>

#define MAX_KEYS_NAMED 64
#define TRY_AGAIN_NS DD_NS_PER_MS

/* ---- one request each */

static dd_status
tcp_set(dd_store *head, dd_bytes key, dd_bytes value, const dd_wait *wait, dd_error *err)
{
    tcp_operation operation = {tcp_store_of(head), "set", wait, err};
    return tcp_tell(&operation, DD_TCP_SET, &(tcp_fields){.keys = &key, .values = &value});
}

static dd_status
tcp_append(dd_store *head, dd_bytes key, dd_bytes value, const dd_wait *wait, dd_error *err)
{
    tcp_operation operation = {tcp_store_of(head), "append", wait, err};
    return tcp_tell(&operation, DD_TCP_APPEND, &(tcp_fields){.keys = &key, .values = &value});
}

static dd_status
tcp_queue_push(dd_store *head, dd_bytes key, dd_bytes value, const dd_wait *wait, dd_error *err)
{
    tcp_operation operation = {tcp_store_of(head), "queue_push", wait, err};
    return tcp_tell(&operation, DD_TCP_QUEUE_PUSH, &(tcp_fields){.keys = &key, .values = &value});
}

static dd_status
tcp_multi_set(dd_store *head, const dd_bytes *keys, const dd_bytes *values, size_t nkeys, const dd_wait *wait,
              dd_error *err)
{
    tcp_operation operation = {tcp_store_of(head), "multi_set", wait, err};
    return tcp_tell(&operation, DD_TCP_MULTI_SET,
                    &(tcp_fields){.keys = keys, .values = values, .count = nkeys});
}

static dd_status
tcp_add(dd_store *head, dd_bytes key, int64_t amount, int64_t *sum, const dd_wait *wait, dd_error *err)
{
    tcp_operation operation = {tcp_store_of(head), "add", wait, err};
    return tcp_ask_number(&operation, DD_TCP_ADD, &(tcp_fields){.keys = &key, .number = amount}, sum);
}

static dd_status
tcp_num_keys(dd_store *head, int64_t *count, const dd_wait *wait, dd_error *err)
{
    tcp_operation operation = {tcp_store_of(head), "num_keys", wait, err};
    return tcp_ask_number(&operation, DD_TCP_NUM_KEYS, &(tcp_fields){0}, count);
}

static dd_status
tcp_queue_len(dd_store *head, dd_bytes key, int64_t *count, const dd_wait *wait, dd_error *err)
{
    tcp_operation operation = {tcp_store_of(head), "queue_len", wait, err};
    return tcp_ask_number(&operation, DD_TCP_QUEUE_LEN, &(tcp_fields){.keys = &key}, count);
}

static dd_status
tcp_delete_key(dd_store *head, dd_bytes key, bool *is_deleted, const dd_wait *wait, dd_error *err)
{
    tcp_operation operation = {tcp_store_of(head), "delete_key", wait, err};
    int64_t ndeleted = 0;
    dd_status status = tcp_ask_number(&operation, DD_TCP_DELETE_KEY, &(tcp_fields){.keys = &key}, &ndeleted);
    if (status == DD_OK) {
        *is_deleted = ndeleted > 0;
    }
    return status;
}

static dd_status
tcp_compare_set(dd_store *head, dd_bytes key, dd_bytes expected, dd_bytes desired, dd_blob *value,
                const dd_wait *wait, dd_error *err)
{
    tcp_operation operation = {tcp_store_of(head), "compare_set", wait, err};
    const dd_bytes values[] = {expected, desired};
    tcp_call call;
    dd_tcp_reader reader;
    tcp_call_begin(&call, &operation);
    dd_status status =
        tcp_call_ask(&call, DD_TCP_COMPARE_SET, &(tcp_fields){.keys = &key, .values = values}, &reader);
    if (status == DD_OK) {
        status = dd_blob_assign(value, dd_tcp_read_bytes(&reader), err);
    }
    return tcp_call_end(&call, status);
}

/* The keys of users begin with "/"; others, as the join key, are not shown. */
static dd_status
take_user_keys(dd_tcp_reader *reader, dd_blob_list *keys, dd_error *err)
{
    size_t count = (size_t)dd_tcp_read_count(reader);
    dd_status status = dd_blob_list_init(keys, count, err);
    size_t nkept = 0;
    for (size_t i = 0; i < count && status == DD_OK; i++) {
        dd_bytes key = dd_tcp_read_bytes(reader);
        if (key.len > 0 && key.data[0] == '/') {
            status = dd_blob_assign(&keys->items[nkept++], dd_bytes_of(key.data + 1, key.len - 1), err);
        }
    }
    if (status != DD_OK) {
        dd_blob_list_fini(keys);
        return status;
    }
    keys->count = nkept;
    return DD_OK;
}

static dd_status
tcp_list_keys(dd_store *head, dd_blob_list *keys, const dd_wait *wait, dd_error *err)
{
    tcp_operation operation = {tcp_store_of(head), "list_keys", wait, err};
    tcp_call call;
    dd_tcp_reader reader;
    tcp_call_begin(&call, &operation);
    dd_status status = tcp_call_ask(&call, DD_TCP_LIST_KEYS, &(tcp_fields){0}, &reader);
    if (status == DD_OK) {
        status = take_user_keys(&reader, keys, err);
    }
    return tcp_call_end(&call, status);
}

/* ---- asking what is there */

/* The call may go on with another request. */
static dd_status
ask_check(tcp_call *call, const dd_bytes *keys, size_t nkeys, bool *is_ready)
{
    dd_tcp_reader reader;
    dd_status status = tcp_call_ask(call, DD_TCP_CHECK, &(tcp_fields){.keys = keys, .count = nkeys}, &reader);
    if (status == DD_OK) {
        *is_ready = dd_tcp_read_u8(&reader) == DD_TCP_READY;
    }
    return status;
}

static dd_status
check(const tcp_operation *operation, const dd_bytes *keys, size_t nkeys, bool *is_ready)
{
    tcp_call call;
    tcp_call_begin(&call, operation);
    return tcp_call_end(&call, ask_check(&call, keys, nkeys, is_ready));
}

static dd_status
tcp_check(dd_store *head, const dd_bytes *keys, size_t nkeys, bool *is_ready, const dd_wait *wait,
          dd_error *err)
{
    tcp_operation operation = {tcp_store_of(head), "check", wait, err};
    return check(&operation, keys, nkeys, is_ready);
}

/* PyTorch's protocol answers a GET of a missing key as if it were empty, so it is asked for first. */
static dd_status
try_get_plain(const tcp_operation *operation, dd_bytes key, dd_blob *value, bool *is_found)
{
    tcp_call call;
    tcp_call_begin(&call, operation);
    dd_status status = ask_check(&call, &key, 1, is_found);
    if (status == DD_OK && *is_found) {
        dd_tcp_reader reader;
        status = tcp_call_ask(&call, DD_TCP_GET, &(tcp_fields){.keys = &key}, &reader);
        if (status == DD_OK) {
            status = dd_blob_assign(value, dd_tcp_read_bytes(&reader), operation->err);
        }
    }
    return tcp_call_end(&call, status);
}

static dd_status
tcp_try_get(dd_store *head, dd_bytes key, dd_blob *value, bool *is_found, const dd_wait *wait, dd_error *err)
{
    tcp_operation operation = {tcp_store_of(head), "try_get", wait, err};
    return operation.store->target.is_extended
               ? tcp_ask_maybe(&operation, DD_TCP_TRY_GET, &(tcp_fields){.keys = &key}, value, is_found)
               : try_get_plain(&operation, key, value, is_found);
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
    dd_tcp_reader reader;
    tcp_call_begin(&call, operation);
    dd_status status =
        tcp_call_ask(&call, DD_TCP_CHECK_EACH, &(tcp_fields){.keys = keys, .count = nkeys}, &reader);
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

static dd_status
error_missing(const tcp_operation *operation, const dd_bytes *keys, size_t nkeys)
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

/* Where the answer is STOP_WAITING. DD_TIMED_OUT: that did not come. */
static dd_status
wait_to_stop(const tcp_operation *operation, dd_tcp_op op, const tcp_fields *fields)
{
    tcp_call call;
    dd_tcp_reader reader;
    tcp_call_begin(&call, operation);
    dd_status status = tcp_call_wait(&call, op, fields, &reader);
    bool is_called_off = status == DD_OK && dd_tcp_read_u8(&reader) != DD_TCP_STOP_WAITING;
    return tcp_call_end(&call, is_called_off ? DD_TIMED_OUT : status);
}

/* A request that waits at PyTorch's server costs its connection when the time runs out, so one look is a
 * CHECK. */
static dd_status
look_once(const tcp_operation *operation, const dd_bytes *keys, size_t nkeys)
{
    bool is_ready = false;
    dd_status status = check(operation, keys, nkeys, &is_ready);
    return status == DD_OK && !is_ready ? error_missing(operation, keys, nkeys) : status;
}

static dd_status
wait_for(const tcp_operation *operation, const dd_bytes *keys, size_t nkeys)
{
    if (!operation->store->target.is_extended && dd_wait_is_over(operation->wait)) {
        return look_once(operation, keys, nkeys);
    }
    dd_status status = wait_to_stop(operation, DD_TCP_WAIT, &(tcp_fields){.keys = keys, .count = nkeys});
    return status == DD_TIMED_OUT ? error_missing(operation, keys, nkeys) : status;
}

/* How PyTorch's protocol gets what has to be waited for: waits until the key is there, then tries to take
 * what it holds, and waits again if there was nothing to take: another was faster, or the key has a value and
 * no item. */
typedef dd_status (*try_fn)(const tcp_operation *operation, dd_bytes key, dd_blob *value, bool *is_found);

static dd_status
wait_and_try(const tcp_operation *operation, dd_bytes key, dd_blob *value, try_fn try)
{
    for (;;) {
        dd_status status = wait_for(operation, &key, 1);
        bool is_found = false;
        if (status == DD_OK) {
            status = try(operation, key, value, &is_found);
        }
        if (status != DD_OK || is_found) {
            return status;
        }
        if (dd_wait_is_over(operation->wait)) {
            return error_missing(operation, &key, 1);
        }
        status = dd_wait_sleep(operation->wait, TRY_AGAIN_NS, operation->err);
        if (status != DD_OK) {
            return status;
        }
    }
}

static dd_status
tcp_wait(dd_store *head, const dd_bytes *keys, size_t nkeys, const dd_wait *wait, dd_error *err)
{
    tcp_operation operation = {tcp_store_of(head), "wait", wait, err};
    return wait_for(&operation, keys, nkeys);
}

/* The item that came while the caller was leaving goes back, to the end of the queue: nothing is lost. */
static void
give_item_back(const tcp_operation *operation, dd_bytes key, dd_tcp_reader *reader)
{
    if (dd_tcp_read_count(reader) > 0) {
        dd_wait patience = dd_wait_after(TCP_ANSWER_NS);
        dd_error error;
        if (tcp_queue_push(&operation->store->head, key, dd_tcp_read_bytes(reader), &patience, &error) !=
            DD_OK) {
            DD_LOG(DD_LOG_INFO, "store client: an item of a queue is lost: %s", error.message);
        }
    }
}

/* By WAIT_GET or WAIT_POP: the value comes with the answer. */
static dd_status
wait_for_value(const tcp_operation *operation, dd_tcp_op op, dd_bytes key, dd_blob *value)
{
    tcp_call call;
    dd_tcp_reader reader;
    bool is_found = false;
    tcp_call_begin(&call, operation);
    dd_status status = tcp_call_wait(&call, op, &(tcp_fields){.keys = &key}, &reader);
    if (status == DD_OK) {
        status = tcp_take_maybe(&reader, value, &is_found, operation->err);
        status = status == DD_OK && !is_found ? DD_TIMED_OUT : status;
    } else if (status == DD_INTERRUPTED && op == DD_TCP_WAIT_POP && reader.at != NULL) {
        give_item_back(operation, key, &reader);
    }
    status = tcp_call_end(&call, status);
    return status == DD_TIMED_OUT ? error_missing(operation, &key, 1) : status;
}

static dd_status
tcp_get(dd_store *head, dd_bytes key, dd_blob *value, const dd_wait *wait, dd_error *err)
{
    tcp_operation operation = {tcp_store_of(head), "get", wait, err};
    return operation.store->target.is_extended ? wait_for_value(&operation, DD_TCP_WAIT_GET, key, value)
                                               : wait_and_try(&operation, key, value, try_get_plain);
}

static dd_status
try_pop(const tcp_operation *operation, dd_bytes key, dd_blob *value, bool *is_found)
{
    return tcp_ask_maybe(operation, DD_TCP_QUEUE_POP, &(tcp_fields){.keys = &key}, value, is_found);
}

static dd_status
tcp_queue_pop(dd_store *head, dd_bytes key, bool is_blocking, dd_blob *value, const dd_wait *wait,
              dd_error *err)
{
    tcp_operation operation = {tcp_store_of(head), "queue_pop", wait, err};
    if (is_blocking && operation.store->target.is_extended) {
        return wait_for_value(&operation, DD_TCP_WAIT_POP, key, value);
    }
    bool is_found = false;
    dd_status status = try_pop(&operation, key, value, &is_found);
    if (status != DD_OK || is_found) {
        return status;
    }
    return is_blocking ? wait_and_try(&operation, key, value, try_pop)
                       : dd_error_set(err, DD_QUEUE_EMPTY, "queue is empty");
}

static dd_status
take_values(dd_tcp_reader *reader, size_t count, dd_blob_list *values, dd_error *err)
{
    dd_status status = dd_blob_list_init(values, count, err);
    for (size_t i = 0; i < count && status == DD_OK; i++) {
        status = dd_blob_assign(&values->items[i], dd_tcp_read_bytes(reader), err);
    }
    if (status != DD_OK) {
        dd_blob_list_fini(values);
    }
    return status;
}

static dd_status
tcp_multi_get(dd_store *head, const dd_bytes *keys, size_t nkeys, dd_blob_list *values, const dd_wait *wait,
              dd_error *err)
{
    dd_status status = tcp_wait(head, keys, nkeys, wait, err);
    if (status != DD_OK) {
        return status;
    }
    tcp_operation operation = {tcp_store_of(head), "multi_get", wait, err};
    tcp_call call;
    dd_tcp_reader reader;
    tcp_call_begin(&call, &operation);
    status = tcp_call_ask(&call, DD_TCP_MULTI_GET, &(tcp_fields){.keys = keys, .count = nkeys}, &reader);
    if (status == DD_OK) {
        status = take_values(&reader, nkeys, values, err);
    }
    return tcp_call_end(&call, status);
}

/* ---- barrier */

/* `count` is the number of those who have come, as the server stores it: in decimal. */
static bool
is_complete(dd_bytes count, int64_t world_size)
{
    int64_t ncome = 0;
    for (size_t i = 0; i < count.len && i < 18 && count.data[i] >= '0' && count.data[i] <= '9'; i++) {
        ncome = ncome * 10 + (count.data[i] - '0');
    }
    return ncome >= world_size;
}

/* A deadline that was over before the answer could come says nothing of the barrier: its count does. */
static dd_status
settle_late_barrier(const tcp_operation *operation, dd_bytes key, int64_t world_size)
{
    tcp_store *store = operation->store;
    dd_wait patience = dd_wait_after(TCP_ANSWER_NS);
    dd_blob count = {0};
    bool is_found = false;
    bool is_known = tcp_try_get(&store->head, key, &count, &is_found, &patience, NULL) == DD_OK && is_found;
    dd_status status = DD_OK;
    if (!is_known || !is_complete(dd_blob_view(&count), world_size)) {
        char text[160];
        status = dd_error_set(operation->err, DD_TIMED_OUT,
                              "barrier timed out after %.3f s on %s, key: %s: %.*s of %" PRId64 " have come",
                              dd_wait_elapsed_s(operation->wait), store->where,
                              dd_bytes_print(key, text, sizeof text), is_known ? (int)count.len : 1,
                              is_known ? (const char *)count.data : "?", world_size);
    }
    dd_blob_fini(&count);
    return status;
}

static dd_status
tcp_barrier(dd_store *head, dd_bytes key, int64_t world_size, const dd_wait *wait, dd_error *err)
{
    tcp_operation operation = {tcp_store_of(head), "barrier", wait, err};
    dd_status status =
        wait_to_stop(&operation, DD_TCP_BARRIER, &(tcp_fields){.keys = &key, .number = world_size});
    return status == DD_TIMED_OUT ? settle_late_barrier(&operation, key, world_size) : status;
}

const dd_store_ops tcp_store_ops = {
    .kind = "TCPStore",
    .set = tcp_set,
    .get = tcp_get,
    .try_get = tcp_try_get,
    .add = tcp_add,
    .compare_set = tcp_compare_set,
    .wait = tcp_wait,
    .check = tcp_check,
    .delete_key = tcp_delete_key,
    .num_keys = tcp_num_keys,
    .append = tcp_append,
    .multi_get = tcp_multi_get,
    .multi_set = tcp_multi_set,
    .queue_push = tcp_queue_push,
    .queue_pop = tcp_queue_pop,
    .queue_len = tcp_queue_len,
    .list_keys = tcp_list_keys,
    .barrier = tcp_barrier,
    .meet = tcp_meet,
    .clone = tcp_clone,
    .has_extended_api = dd_store_extended_api_yes,
    .get_timeout_ns = dd_store_head_get_timeout_ns,
    .set_timeout_ns = dd_store_head_set_timeout_ns,
    .destroy = tcp_destroy,
};
