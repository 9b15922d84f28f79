#include "store/tcp_client_internal.h"

#include "core/lock.h"
#include "core/thread.h"
#include "net/sock.h"

#include <poll.h>
#include <string.h>

/* No answer is so long. */
#define ANSWER_MAX_BYTES (UINT64_C(1) << 42)
#define KEEP_BYTES ((size_t)64 << 10)

/* A request under way; guarded by the store's mu once it is sent. */
typedef struct tcp_call {
    dd_list unanswered;
    uint32_t tag; /* 0: it was not sent */
    uint64_t end; /* sent when the store's nsent is so much */
    bool is_answered;
    dd_blob answer;
} tcp_call;

static void
swap(dd_blob *a, dd_blob *b)
{
    dd_blob kept = *a;
    *a = *b;
    *b = kept;
}

/* ---- sending */

static dd_status
flush_locked(tcp_store *store, dd_error *err)
{
    size_t before = store->backlog_nsent;
    dd_status status =
        tcp_link_try_send(store->link, dd_blob_view(&store->backlog), &store->backlog_nsent, err);
    store->nsent += store->backlog_nsent - before;
    if (store->backlog_nsent == store->backlog.len) {
        dd_blob_clear(&store->backlog, KEEP_BYTES);
        store->backlog_nsent = 0;
    }
    return status;
}

/* What the socket does not take at once goes behind the backlog; the blob may be taken for it. */
static dd_status
queue_locked(tcp_store *store, dd_blob *request, dd_error *err)
{
    uint64_t len = request->len;
    dd_status status = DD_OK;
    if (store->backlog.len > 0) {
        status = dd_blob_append(&store->backlog, request->data, request->len, err);
    } else {
        swap(&store->backlog, request);
    }
    if (status != DD_OK) {
        return status;
    }
    store->nqueued += len;
    status = flush_locked(store, err);
    if (store->backlog.len == 0 && request->capacity == 0) {
        swap(&store->backlog, request);
    }
    if (status != DD_OK) {
        tcp_store_note_dead_locked(store, err);
    }
    return status;
}

static dd_status
send_request(tcp_store *store, tcp_call *call, dd_blob *request, dd_error *err)
{
    dd_lock_take(&store->mu);
    dd_status status = tcp_store_check_dead_locked(store, err);
    if (status == DD_OK) {
        call->tag = ++store->last_tag;
        memcpy(request->data, &call->tag, sizeof call->tag);
        dd_list_push_back(&store->unanswered, &call->unanswered);
        status = queue_locked(store, request, err);
        call->end = store->nqueued;
    }
    dd_lock_release(&store->mu);
    return status;
}

/* Asks the server to call the request off, if it waits still. */
static dd_status
send_cancel(tcp_store *store, tcp_call *call)
{
    dd_blob request = {0};
    dd_tcp_writer writer;
    dd_tcp_writer_init(&writer, &request, NULL);
    dd_tcp_write_u32(&writer, call->tag);
    dd_tcp_write_u8(&writer, DD_TCP_CANCEL_WAIT);
    dd_status status = writer.status;
    dd_lock_take(&store->mu);
    if (status == DD_OK && store->dead.code == DD_OK && !call->is_answered) {
        status = queue_locked(store, &request, NULL);
    }
    dd_lock_release(&store->mu);
    dd_blob_fini(&request);
    return status;
}

/* ---- receiving */

static tcp_call *
find_locked(tcp_store *store, uint32_t tag)
{
    for (dd_list *link = store->unanswered.next; link != &store->unanswered; link = link->next) {
        tcp_call *call = DD_CONTAINER_OF(link, tcp_call, unanswered);
        if (call->tag == tag) {
            return call;
        }
    }
    return NULL;
}

/* Hands the answer at the front of `in` to its call: most are all there is, and are handed on without a
 * copy. Without memory for the copy the call finds nothing. */
static void
hand_over_locked(dd_blob *in, size_t at, size_t len, tcp_call *call)
{
    if (at == 0 && len == in->len) {
        dd_blob_fini(&call->answer);
        swap(&call->answer, in);
    } else {
        dd_blob_clear(&call->answer, 0);
        (void)!dd_blob_assign(&call->answer, dd_bytes_of(in->data + at, len), NULL);
    }
    dd_list_remove(&call->unanswered);
    call->is_answered = true;
}

/* Hands on the whole answers that have come. Nobody waits any more for one whose tag is not found. */
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
            return dd_error_set(err, DD_PROTOCOL, "the server announced an answer of %llu bytes",
                                (unsigned long long)len);
        }
        size_t whole = DD_TCP_HEAD_BYTES + (size_t)len;
        if (in->len - at < whole) {
            break;
        }
        tcp_call *call = find_locked(store, tag);
        if (call != NULL) {
            hand_over_locked(in, at, whole, call);
        }
        at += in->len > 0 ? whole : 0;
    }
    dd_blob_consume(in, at);
    if (in->len == 0) {
        dd_blob_clear(in, KEEP_BYTES);
    }
    return DD_OK;
}

/* Without the lock: only whoever has set is_read reads. */
static dd_status
receive(tcp_store *store, short events, const dd_wait *wait, dd_error *err)
{
    bool is_any = false;
    dd_status status = tcp_link_try_receive(store->link, true, &is_any, err);
    if (status != DD_OK || is_any) {
        return status;
    }
    return dd_sock_wait(store->link->fd, events, wait, err);
}

static bool
is_fatal(dd_status status)
{
    return status == DD_NETWORK || status == DD_PROTOCOL;
}

/* Reads for all until the call has its answer; then somebody else has to. */
static dd_status
read_for_all_locked(tcp_store *store, const tcp_call *call, const dd_wait *wait, dd_error *err)
{
    dd_status status = DD_OK;
    store->is_read = true;
    while (status == DD_OK && !call->is_answered) {
        short events = (short)(POLLIN | (store->backlog.len > 0 ? POLLOUT : 0));
        dd_lock_release(&store->mu);
        status = receive(store, events, wait, err);
        dd_lock_take(&store->mu);
        if (status == DD_OK) {
            status = deliver_locked(store, err);
            dd_cond_broadcast(&store->cond);
        }
        if (status == DD_OK) {
            status = flush_locked(store, err);
        }
    }
    store->is_read = false;
    if (is_fatal(status)) {
        tcp_store_note_dead_locked(store, err);
    }
    dd_cond_broadcast(&store->cond);
    return call->is_answered ? DD_OK : status;
}

/* Another thread reads. What the socket has not taken of the request is for this one to send. */
static dd_status
wait_for_reader_locked(tcp_store *store, const tcp_call *call, const dd_wait *wait, dd_error *err)
{
    bool is_sent = store->nsent >= call->end;
    if (is_sent) {
        dd_cond_wait_slice(&store->cond, &store->mu, wait);
        if (call->is_answered || !store->is_read) {
            return DD_OK;
        }
    }
    dd_lock_release(&store->mu);
    dd_status status;
    if (is_sent) {
        status = dd_wait_check(wait, err);
    } else {
        /* A slice: who reads may leave meanwhile, and a server whose answers nobody takes does not read. */
        dd_wait slice = dd_wait_at_most(wait, DD_WAIT_SLICE_NS);
        status = dd_sock_wait(store->link->fd, POLLOUT, &slice, err);
        status = status == DD_NETWORK_TIMED_OUT ? DD_OK : status;
    }
    if (status == DD_OK && dd_wait_is_over(wait)) {
        status = dd_error_set(err, DD_NETWORK_TIMED_OUT, "timed out after %.3f s", dd_wait_elapsed_s(wait));
    }
    dd_lock_take(&store->mu);
    if (status == DD_OK) {
        status = flush_locked(store, err);
    }
    return call->is_answered ? DD_OK : status;
}

/* On any failure it can be waited for again. */
static dd_status
await_answer(tcp_store *store, tcp_call *call, const dd_wait *wait, dd_error *err)
{
    dd_status status = DD_OK;
    dd_lock_take(&store->mu);
    while (!call->is_answered && status == DD_OK) {
        if (store->dead.code != DD_OK) {
            status = dd_error_copy(err, &store->dead);
        } else if (store->is_read) {
            status = wait_for_reader_locked(store, call, wait, err);
        } else {
            status = read_for_all_locked(store, call, wait, err);
        }
    }
    dd_lock_release(&store->mu);
    if (status == DD_OK && call->answer.len == 0) {
        return dd_error_no_memory(err, DD_TCP_HEAD_BYTES);
    }
    return status;
}

static void
forget(tcp_store *store, tcp_call *call)
{
    dd_lock_take(&store->mu);
    if (call->tag != 0 && !call->is_answered) {
        dd_list_remove(&call->unanswered);
    }
    dd_lock_release(&store->mu);
}

dd_status
tcp_tagged_ask(tcp_store *store, tcp_exchange *exchange, const dd_wait *wait, dd_error *err)
{
    tcp_call call = {.tag = 0};
    dd_status status = send_request(store, &call, &exchange->request, err);
    if (status == DD_OK) {
        status = await_answer(store, &call, wait, err);
    }
    bool is_late = status == DD_NETWORK_TIMED_OUT || status == DD_INTERRUPTED;
    if (is_late && dd_tcp_op_waits(exchange->row)) {
        dd_wait patience = dd_wait_after(TCP_ANSWER_NS);
        bool is_answered =
            send_cancel(store, &call) == DD_OK && await_answer(store, &call, &patience, NULL) == DD_OK;
        status = status == DD_NETWORK_TIMED_OUT && is_answered ? DD_OK : status;
    }
    forget(store, &call);
    exchange->answer = call.answer;
    if (call.answer.len > 0) {
        dd_status reported = tcp_answer_read(dd_blob_view(&call.answer), exchange->row->op, exchange->repeats,
                                             &exchange->reply, status == DD_OK ? err : NULL);
        exchange->reply.at = reported == DD_OK ? exchange->reply.at : NULL;
        status = status == DD_OK ? reported : status;
    }
    return status;
}
