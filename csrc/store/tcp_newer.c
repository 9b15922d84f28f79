/* Operations that came to PyTorch's protocol late or that not all of its servers have: queues, list_keys,
 * barrier. */
#include "store/tcp_client_internal.h"

#include "core/log.h"

#include <inttypes.h>

/* ---- queues */

dd_status
tcp_queue_push(dd_store *head, dd_bytes key, dd_bytes value, const dd_wait *wait, dd_error *err)
{
    tcp_operation operation = {tcp_store_of(head), "queue_push", wait, err};
    tcp_call call;
    tcp_call_begin_newer(&call, &operation, DD_TCP_QUEUE_PUSH);
    tcp_call_write_key(&call, key);
    tcp_call_write_value(&call, value);
    dd_status status = tcp_call_send(&call);
    if (status == DD_OK && !tcp_call_is_extended(&call)) {
        /* Nothing else would tell whether the server knows queues. */
        status = tcp_call_ping(&call);
    }
    return tcp_call_end(&call, status);
}

static dd_status
try_pop(const tcp_operation *operation, dd_bytes key, dd_blob *value, bool *is_found)
{
    tcp_call call;
    tcp_call_begin_newer(&call, operation, DD_TCP_QUEUE_POP);
    return tcp_call_end(&call, tcp_call_ask_maybe(&call, key, value, is_found));
}

/* The item that came while the caller was on his way out goes back, to the end of the queue: nothing is lost.
 * */
static void
give_item_back(dd_store *head, dd_bytes key, dd_tcp_reader *reader)
{
    if (dd_tcp_read_count(reader) > 0) {
        dd_wait patience = dd_wait_after(TCP_ANSWER_NS);
        dd_error error;
        if (tcp_queue_push(head, key, dd_tcp_read_bytes(reader), &patience, &error) != DD_OK) {
            DD_LOG(DD_LOG_INFO, "store client: an item of a queue is lost: %s", error.message);
        }
    }
}

/* The item comes with the answer to the wait. */
static dd_status
wait_and_pop_extended(const tcp_operation *operation, dd_bytes key, dd_blob *value)
{
    tcp_call call;
    tcp_call_begin_side(&call, operation, DD_TCP_WAIT_POP);
    tcp_call_write_key(&call, key);
    dd_tcp_reader reader;
    dd_status status = tcp_call_wait(&call, &reader);
    if (status == DD_OK) {
        status = tcp_call_take_awaited(&call, &reader, value);
    } else if (status == DD_INTERRUPTED && reader.at != NULL) {
        give_item_back(&operation->store->head, key, &reader);
    }
    status = tcp_call_end(&call, status);
    return status == DD_TIMED_OUT ? tcp_error_missing(operation, &key, 1) : status;
}

dd_status
tcp_queue_pop(dd_store *head, dd_bytes key, bool is_blocking, dd_blob *value, const dd_wait *wait,
              dd_error *err)
{
    tcp_operation operation = {tcp_store_of(head), "queue_pop", wait, err};
    bool is_found = false;
    dd_status status = try_pop(&operation, key, value, &is_found);
    if (status != DD_OK || is_found) {
        return status;
    }
    if (!is_blocking) {
        return dd_error_set(err, DD_QUEUE_EMPTY, "queue is empty");
    }
    if (dd_wait_is_over(wait)) {
        return tcp_error_missing(&operation, &key, 1);
    }
    return operation.store->target.is_extended ? wait_and_pop_extended(&operation, key, value)
                                               : tcp_wait_and_try(&operation, key, value, try_pop);
}

dd_status
tcp_queue_len(dd_store *head, dd_bytes key, int64_t *count, const dd_wait *wait, dd_error *err)
{
    tcp_operation operation = {tcp_store_of(head), "queue_len", wait, err};
    tcp_call call;
    tcp_call_begin_newer(&call, &operation, DD_TCP_QUEUE_LEN);
    tcp_call_write_key(&call, key);
    return tcp_call_end(&call, tcp_call_ask_number(&call, count));
}

/* ---- list_keys */

/* The keys of users begin with "/"; others, as the join key, are not shown. */
static dd_status
take_user_keys(tcp_call *call, dd_tcp_reader *reader, dd_blob_list *keys)
{
    dd_error *err = call->operation->err;
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

dd_status
tcp_list_keys(dd_store *head, dd_blob_list *keys, const dd_wait *wait, dd_error *err)
{
    tcp_operation operation = {tcp_store_of(head), "list_keys", wait, err};
    tcp_call call;
    tcp_call_begin_newer(&call, &operation, DD_TCP_LIST_KEYS);
    dd_tcp_reader reader;
    dd_status status = tcp_call_ask(&call, &reader);
    if (status == DD_OK) {
        status = take_user_keys(&call, &reader, keys);
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

dd_status
tcp_barrier(dd_store *head, dd_bytes key, int64_t world_size, const dd_wait *wait, dd_error *err)
{
    tcp_operation operation = {tcp_store_of(head), "barrier", wait, err};
    tcp_call call;
    tcp_call_begin_fenced(&call, &operation, DD_TCP_BARRIER);
    tcp_call_write_key(&call, key);
    dd_tcp_write_u64(&call.writer, (uint64_t)world_size);
    dd_status status = tcp_call_end(&call, tcp_call_wait_to_stop(&call));
    return status == DD_TIMED_OUT ? settle_late_barrier(&operation, key, world_size) : status;
}
