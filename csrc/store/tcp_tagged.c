#include "store/tcp_client_internal.h"

#include "core/lock.h"
#include "core/log.h"
#include "core/mem.h"
#include "core/thread.h"
#include "net/sock.h"

#include <poll.h>
#include <string.h>

/* Maximum length of an answer in bytes. A longer answer is a protocol error. */
#define ANSWER_MAX_BYTES (UINT64_C(1) << 42)
#define RETAINED_MAX_BYTES ((size_t)64 << 10)

static void
swap(dd_blob *a, dd_blob *b)
{
    dd_blob shared = *a;
    *a = *b;
    *b = shared;
}

/* ---- sending requests */

static dd_status
flush_locked(tcp_store *store, dd_error *err)
{
    dd_status status =
        tcp_link_try_send(store->link, dd_blob_view(&store->backlog), &store->backlog_nsent, err);
    if (store->backlog_nsent == store->backlog.len) {
        dd_blob_clear(&store->backlog, RETAINED_MAX_BYTES);
        store->backlog_nsent = 0;
    }
    if (status != DD_OK) {
        tcp_store_note_dead_locked(store, err);
    }
    return status;
}

/* Send a request after the unsent bytes of earlier requests (the backlog). Bytes that cannot be
 * sent now become the backlog, which may take over the memory of `request`. */
static dd_status
send_request_locked(tcp_store *store, dd_blob *request, dd_error *err)
{
    dd_status status = DD_OK;
    if (store->backlog.len > 0) {
        status = dd_blob_append(&store->backlog, request->data, request->len, err);
    } else {
        swap(&store->backlog, request);
    }
    return status == DD_OK ? flush_locked(store, err) : status;
}

static uint32_t
next_tag(tcp_store *store)
{
    store->last_tag = store->last_tag + 1 != DD_TCP_NO_TAG ? store->last_tag + 1 : DD_TCP_NO_TAG + 1;
    return store->last_tag;
}

static dd_status
send_request(tcp_store *store, tcp_exchange *exchange, dd_error *err)
{
    dd_lock_take(&store->mu);
    dd_status status = tcp_store_check_dead_locked(store, err);
    if (status == DD_OK) {
        exchange->tag = next_tag(store);
        memcpy(exchange->request.data, &exchange->tag, sizeof exchange->tag);
        dd_list_push_back(&store->unanswered, &exchange->unanswered);
        status = send_request_locked(store, &exchange->request, err);
    }
    dd_lock_release(&store->mu);
    return status;
}

/* Send a request to cancel `exchange`, unless it has been answered. */
static dd_status
send_cancel(tcp_store *store, const tcp_exchange *exchange)
{
    dd_blob request = {0};
    uint8_t bytes[] = {0, 0, 0, 0, DD_TCP_CANCEL_WAIT};
    memcpy(bytes, &exchange->tag, sizeof exchange->tag);
    dd_status status = dd_blob_assign(&request, dd_bytes_of(bytes, sizeof bytes), NULL);
    dd_lock_take(&store->mu);
    if (status == DD_OK && store->dead.code == DD_OK && !exchange->is_answered) {
        status = send_request_locked(store, &request, NULL);
    }
    dd_lock_release(&store->mu);
    dd_blob_fini(&request);
    return status;
}

/* ---- receiving answers */

static tcp_exchange *
find_locked(tcp_store *store, uint32_t tag)
{
    for (dd_list *link = store->unanswered.next; link != &store->unanswered; link = link->next) {
        tcp_exchange *exchange = DD_CONTAINER_OF(link, tcp_exchange, unanswered);
        if (exchange->tag == tag) {
            return exchange;
        }
    }
    return NULL;
}

static dd_status
read_answer(tcp_exchange *exchange, dd_error *err)
{
    bool is_whole = false;
    exchange->reply.head = DD_TCP_HEAD_BYTES;
    dd_status status = tcp_reply_read(&exchange->reply, dd_blob_view(&exchange->answer), &is_whole, err);
    if (status == DD_OK && !is_whole) {
        status = dd_error_set(err, DD_PROTOCOL, "malformed reply of the store: it ends too early");
    }
    exchange->reply.reader.at = status == DD_OK ? exchange->reply.reader.at : NULL;
    return status;
}

void
tcp_tagged_free(tcp_exchange *pop)
{
    dd_list_remove(&pop->unanswered);
    dd_blob_fini(&pop->request);
    dd_blob_fini(&pop->answer);
    dd_mem_free(pop);
}

/* Handle the answer to an abandoned QUEUE_POP: return its item to the end of the queue. */
static void
return_item_locked(tcp_store *store, tcp_exchange *pop)
{
    dd_store_result result = {0};
    dd_error error;
    if (read_answer(pop, &error) == DD_OK &&
        dd_tcp_read_result(&pop->reply.reader, pop->row->op, 1, &result, &error) == DD_OK && result.flag) {
        dd_bytes key = dd_blob_view(&pop->request);
        dd_bytes item = dd_blob_view(&result.value);
        dd_store_request push = {.op = DD_STORE_QUEUE_PUSH, .keys = &key, .nkeys = 1, .values = &item};
        dd_blob message = {0};
        dd_tcp_writer writer;
        dd_tcp_writer_init(&writer, &message, &error);
        dd_tcp_write(&writer, 'u', next_tag(store));
        dd_tcp_write_request(&writer, DD_TCP_QUEUE_PUSH, &push, true, NULL);
        if (writer.status != DD_OK || send_request_locked(store, &message, &error) != DD_OK) {
            DD_LOG(DD_LOG_INFO, "store client: lost an item of a queue: %s", error.message);
        }
        dd_blob_fini(&message);
    }
    dd_store_result_fini(&result);
    tcp_tagged_free(pop);
}

/* Read the reason why the server closes the connection; DD_OK if the message is not understood. */
static dd_status
read_close_reason(dd_bytes answer, dd_error *err)
{
    dd_error reason;
    bool is_whole = false;
    tcp_reply reply = {.op = DD_TCP_PING, .head = DD_TCP_HEAD_BYTES};
    dd_status status = tcp_reply_read(&reply, answer, &is_whole, &reason);
    return status != DD_OK && is_whole ? dd_error_set(err, DD_NETWORK, "%s", reason.message) : DD_OK;
}

/* Pass complete answers to their requests, and drop unknown tags. Usually one answer is all that
 * was received, and is not copied. If there is no memory for a copy, the answer stays empty. */
static dd_status
deliver_locked(tcp_store *store, dd_error *err)
{
    dd_blob *in = &store->link->in;
    size_t at = 0;
    while (in->len - at >= DD_TCP_HEAD_BYTES) {
        uint32_t tag;
        uint64_t len;
        memcpy(&tag, in->data + at, sizeof tag);
        memcpy(&len, in->data + at + DD_TCP_HEAD_BYTES - sizeof len, sizeof len);
        if (len > ANSWER_MAX_BYTES) {
            return dd_error_set(err, DD_PROTOCOL, "reply too large: got %llu bytes, expected at most 2^42",
                                (unsigned long long)len);
        }
        size_t length = DD_TCP_HEAD_BYTES + (size_t)len;
        if (in->len - at < length) {
            break;
        }
        tcp_exchange *exchange = find_locked(store, tag);
        dd_bytes answer = dd_bytes_of(in->data + at, length);
        at += length;
        if (tag == DD_TCP_NO_TAG) {
            dd_status status = read_close_reason(answer, err);
            if (status != DD_OK) {
                return status;
            }
        }
        if (exchange == NULL) {
            continue;
        }
        dd_list_remove(&exchange->unanswered);
        exchange->is_answered = true;
        bool is_all = length == in->len;
        if (is_all) {
            swap(&exchange->answer, in);
        } else {
            (void)!dd_blob_assign(&exchange->answer, answer, NULL);
        }
        if (exchange->is_cancelled) {
            return_item_locked(store, exchange);
        }
        if (is_all) {
            return DD_OK;
        }
    }
    dd_blob_consume(in, at);
    if (in->len == 0) {
        dd_blob_clear(in, RETAINED_MAX_BYTES);
    }
    return DD_OK;
}

/* Receive bytes, or wait for an event. Only for the thread that has set is_read; unlocked. */
static dd_status
receive_or_wait(tcp_store *store, short events, const dd_wait *wait, dd_error *err)
{
    bool is_any = false;
    dd_status status = tcp_link_try_receive(store->link, &is_any, err);
    return status != DD_OK || is_any ? status : dd_sock_wait(store->link->fd, events, wait, err);
}

/* Help to send the backlog while another thread reads. Must be called without the lock. */
static dd_status
help_to_send(tcp_store *store, bool is_behind, const dd_wait *wait, dd_error *err)
{
    dd_status status = DD_OK;
    if (is_behind) {
        /* Wait for only one slice: the other thread may stop reading, and a server reads requests
         * only while its answers are received. */
        dd_wait slice = dd_wait_at_most(wait, DD_WAIT_SLICE_NS);
        status = dd_sock_wait(store->link->fd, POLLOUT, &slice, err);
        status = status == DD_NETWORK_TIMED_OUT ? DD_OK : status;
    } else {
        status = dd_wait_check(wait, err);
    }
    return status == DD_OK && dd_wait_has_expired(wait)
               ? dd_error_set(err, DD_NETWORK_TIMED_OUT, "timed out after %.3f s", dd_wait_elapsed_s(wait))
               : status;
}

/* Read for all threads; if another thread reads, sleep until it delivers this answer or stops. */
static dd_status
step_locked(tcp_store *store, const tcp_exchange *exchange, const dd_wait *wait, dd_error *err)
{
    bool is_reader = !store->is_read;
    bool is_behind = store->backlog.len > 0;
    if (!is_reader && !is_behind) {
        dd_cond_wait_slice(&store->cond, &store->mu, wait);
        if (exchange->is_answered || !store->is_read) {
            return DD_OK;
        }
    }
    store->is_read = true;
    dd_lock_release(&store->mu);
    dd_status status = is_reader
                           ? receive_or_wait(store, (short)(POLLIN | (is_behind ? POLLOUT : 0)), wait, err)
                           : help_to_send(store, is_behind, wait, err);
    dd_lock_take(&store->mu);
    if (is_reader) {
        store->is_read = false;
        status = status == DD_OK ? deliver_locked(store, err) : status;
        dd_cond_broadcast(&store->cond);
    }
    if (status == DD_NETWORK || status == DD_PROTOCOL) {
        tcp_store_note_dead_locked(store, err);
    }
    return status == DD_OK ? flush_locked(store, err) : status;
}

/* Wait for the answer. If this fails, the caller may call it again. */
static dd_status
await_answer(tcp_store *store, const tcp_exchange *exchange, const dd_wait *wait, dd_error *err)
{
    dd_status status = DD_OK;
    dd_lock_take(&store->mu);
    while (!exchange->is_answered && status == DD_OK) {
        status = store->dead.code != DD_OK ? dd_error_copy(err, &store->dead)
                                           : step_locked(store, exchange, wait, err);
    }
    status = exchange->is_answered ? DD_OK : status;
    dd_lock_release(&store->mu);
    if (status == DD_OK && exchange->answer.len == 0) {
        return dd_error_no_memory(err, DD_TCP_HEAD_BYTES);
    }
    return status;
}

/* Keep the tag and the key of an abandoned QUEUE_POP, whose answer may have an item to return. */
static void
keep_cancelled_pop_locked(tcp_store *store, const tcp_exchange *exchange)
{
    tcp_exchange *pop = dd_mem_zalloc(sizeof *pop);
    if (pop == NULL || dd_blob_assign(&pop->request, exchange->key, NULL) != DD_OK) {
        dd_mem_free(pop);
        return;
    }
    pop->row = exchange->row;
    pop->reply = (tcp_reply){.op = exchange->row->op, .repeats = 1};
    pop->tag = exchange->tag;
    pop->is_cancelled = true;
    dd_list_push_back(&store->unanswered, &pop->unanswered);
}

static void
remove_exchange(tcp_store *store, tcp_exchange *exchange)
{
    dd_lock_take(&store->mu);
    if (exchange->tag != 0 && !exchange->is_answered) {
        dd_list_remove(&exchange->unanswered);
        if (exchange->row->store_op == DD_STORE_QUEUE_POP && store->dead.code == DD_OK) {
            keep_cancelled_pop_locked(store, exchange);
        }
    }
    dd_lock_release(&store->mu);
}

dd_status
tcp_tagged_exchange(tcp_store *store, tcp_exchange *exchange, const dd_wait *wait, dd_error *err)
{
    dd_status status = send_request(store, exchange, err);
    if (status == DD_OK) {
        status = await_answer(store, exchange, wait, err);
    }
    bool is_late = status == DD_NETWORK_TIMED_OUT || status == DD_INTERRUPTED;
    if (is_late && dd_tcp_op_waits(exchange->row)) {
        dd_wait patience = dd_wait_after(TCP_ANSWER_NS);
        bool is_answered =
            send_cancel(store, exchange) == DD_OK && await_answer(store, exchange, &patience, NULL) == DD_OK;
        status = status == DD_NETWORK_TIMED_OUT && is_answered ? DD_OK : status;
    }
    remove_exchange(store, exchange);
    if (exchange->answer.len == 0) {
        return status;
    }
    dd_status reported = read_answer(exchange, status == DD_OK ? err : NULL);
    return status == DD_OK ? reported : status;
}
