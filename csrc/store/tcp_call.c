#include "store/tcp_client_internal.h"

#include <inttypes.h>

dd_status
tcp_store_check_dead_locked(const tcp_store *store, dd_error *err)
{
    if (store->dead.code == DD_OK) {
        return DD_OK;
    }
    return dd_error_set(err, store->dead.code, "the server is gone since an earlier call: %s",
                        store->dead.message);
}

void
tcp_store_note_dead_locked(tcp_store *store, const dd_error *why)
{
    if (store->dead.code == DD_OK) {
        (void)dd_error_set(&store->dead, DD_NETWORK, "%s",
                           why != NULL ? why->message : "the connection was lost");
    }
}

/* ---- beginning */

static dd_wait
long_enough_for_an_answer(const dd_wait *wait)
{
    dd_wait longer = *wait;
    int64_t least_ns = dd_clock_now_ns() + TCP_ANSWER_NS;
    if (longer.deadline_ns < least_ns) {
        longer.deadline_ns = least_ns;
    }
    return longer;
}

bool
tcp_call_is_extended(const tcp_call *call)
{
    return call->operation->store->target.is_extended;
}

void
tcp_call_next(tcp_call *call, dd_tcp_op op)
{
    call->op = op;
    if (call->writer.status != DD_OK) {
        return;
    }
    dd_blob_clear(&call->request, 0);
    dd_tcp_writer_init(&call->writer, &call->request, call->operation->err);
    if (tcp_call_is_extended(call)) {
        dd_tcp_write_u32(&call->writer, 0); /* the tag, when it is sent */
    }
    dd_tcp_write_u8(&call->writer, (uint8_t)op);
}

void
tcp_call_begin(tcp_call *call, const tcp_operation *operation, dd_tcp_op op)
{
    *call = (tcp_call){.operation = operation,
                       .answer_wait = long_enough_for_an_answer(operation->wait),
                       .writer = {.status = DD_OK, .err = operation->err}};
    if (!tcp_call_is_extended(call)) {
        tcp_plain_begin(call);
    }
    tcp_call_next(call, op);
}

/* ---- the fields of a request */

static const dd_tcp_limits *
limits_of(const tcp_call *call)
{
    return &call->operation->store->target.limits;
}

static void
check_limit(tcp_call *call, uint64_t size, uint64_t limit, const char *what)
{
    if (tcp_call_is_extended(call) && size > limit && call->writer.status == DD_OK) {
        call->writer.status =
            dd_error_set(call->operation->err, DD_INVALID_ARGUMENT,
                         "%s of %" PRIu64 " is over the server's limit of %" PRIu64, what, size, limit);
    }
}

void
tcp_call_write_key(tcp_call *call, dd_bytes key)
{
    check_limit(call, (uint64_t)key.len + 1, limits_of(call)->max_key_bytes, "key length");
    dd_tcp_write_user_key(&call->writer, key);
}

void
tcp_call_write_value(tcp_call *call, dd_bytes value)
{
    check_limit(call, value.len, limits_of(call)->max_value_bytes, "value length");
    dd_tcp_write_bytes(&call->writer, value);
}

void
tcp_call_write_count(tcp_call *call, size_t nkeys)
{
    check_limit(call, nkeys, limits_of(call)->max_keys, "number of keys");
    dd_tcp_write_u64(&call->writer, nkeys);
}

void
tcp_call_write_keys(tcp_call *call, const dd_bytes *keys, size_t nkeys)
{
    tcp_call_write_count(call, nkeys);
    for (size_t i = 0; i < nkeys; i++) {
        tcp_call_write_key(call, keys[i]);
    }
}

/* ---- asking */

/* Gives the request to its connection. */
static dd_status
send_request(tcp_call *call)
{
    if (call->writer.status == DD_OK) {
        check_limit(call, call->request.len - (tcp_call_is_extended(call) ? DD_TCP_TAG_BYTES : 0),
                    limits_of(call)->max_request_bytes, "request length");
    }
    if (call->writer.status != DD_OK) {
        return call->writer.status;
    }
    return tcp_call_is_extended(call) ? tcp_tagged_send(call)
                                      : tcp_link_send(call->link, dd_blob_view(&call->request),
                                                      &call->answer_wait, call->operation->err);
}

static dd_status
receive_answer(tcp_call *call, uint64_t repeats, dd_tcp_reader *reader, const dd_wait *wait, dd_error *err)
{
    if (!tcp_call_is_extended(call)) {
        return tcp_link_receive(call->link, call->op, repeats, reader, wait, err);
    }
    dd_status status = tcp_tagged_await(call, wait, err);
    return status == DD_OK ? tcp_answer_read(dd_blob_view(&call->answer), call->op, repeats, reader, err)
                           : status;
}

dd_status
tcp_call_ask_many(tcp_call *call, uint64_t repeats, dd_tcp_reader *reader)
{
    dd_status status = send_request(call);
    return status == DD_OK ? receive_answer(call, repeats, reader, &call->answer_wait, call->operation->err)
                           : status;
}

/* PyTorch's servers do not answer such a request, but the PING behind it. */
dd_status
tcp_call_tell(tcp_call *call)
{
    dd_tcp_reader reader;
    if (tcp_call_is_extended(call)) {
        return tcp_call_ask(call, &reader);
    }
    dd_tcp_write_u8(&call->writer, DD_TCP_PING);
    dd_tcp_write_u32(&call->writer, 0);
    dd_status status = send_request(call);
    return status == DD_OK ? tcp_link_receive(call->link, DD_TCP_PING, 1, &reader, &call->answer_wait,
                                              call->operation->err)
                           : status;
}

dd_status
tcp_call_ask(tcp_call *call, dd_tcp_reader *reader)
{
    return tcp_call_ask_many(call, 1, reader);
}

dd_status
tcp_call_ask_number(tcp_call *call, int64_t *number)
{
    dd_tcp_reader reader;
    dd_status status = tcp_call_ask(call, &reader);
    if (status == DD_OK) {
        *number = dd_tcp_read_i64(&reader);
    }
    return status;
}

dd_status
tcp_call_ask_maybe(tcp_call *call, dd_bytes key, dd_blob *value, bool *is_found)
{
    tcp_call_write_key(call, key);
    dd_tcp_reader reader;
    dd_status status = tcp_call_ask(call, &reader);
    return status == DD_OK ? tcp_call_take_maybe(call, &reader, value, is_found) : status;
}

/* Calls off the request and receives what the server answers to it. */
static dd_status
cancel(tcp_call *call, dd_tcp_reader *reader)
{
    dd_wait patience = dd_wait_after(TCP_ANSWER_NS);
    dd_status status = tcp_tagged_cancel(call);
    return status == DD_OK ? receive_answer(call, 1, reader, &patience, NULL) : status;
}

dd_status
tcp_call_wait(tcp_call *call, dd_tcp_reader *reader)
{
    reader->at = NULL;
    dd_status status = send_request(call);
    if (status != DD_OK) {
        return status;
    }
    status = receive_answer(call, 1, reader, call->operation->wait, call->operation->err);
    if (status != DD_NETWORK_TIMED_OUT && status != DD_INTERRUPTED) {
        return status;
    }
    bool is_answered = tcp_call_is_extended(call) && cancel(call, reader) == DD_OK;
    if (!is_answered) {
        reader->at = NULL;
    }
    if (status == DD_INTERRUPTED) {
        return DD_INTERRUPTED;
    }
    return is_answered ? DD_OK : DD_TIMED_OUT;
}

dd_status
tcp_call_wait_to_stop(tcp_call *call)
{
    dd_tcp_reader reader;
    dd_status status = tcp_call_wait(call, &reader);
    bool is_called_off = status == DD_OK && dd_tcp_read_u8(&reader) != DD_TCP_STOP_WAITING;
    return is_called_off ? DD_TIMED_OUT : status;
}

/* ---- taking and ending */

dd_status
tcp_call_take_value(tcp_call *call, dd_tcp_reader *reader, dd_blob *value)
{
    return dd_blob_assign(value, dd_tcp_read_bytes(reader), call->operation->err);
}

dd_status
tcp_call_take_maybe(tcp_call *call, dd_tcp_reader *reader, dd_blob *value, bool *is_found)
{
    *is_found = dd_tcp_read_count(reader) > 0;
    return *is_found ? tcp_call_take_value(call, reader, value) : DD_OK;
}

dd_status
tcp_call_take_awaited(tcp_call *call, dd_tcp_reader *reader, dd_blob *value)
{
    bool is_found = false;
    dd_status status = tcp_call_take_maybe(call, reader, value, &is_found);
    return status == DD_OK && !is_found ? DD_TIMED_OUT : status;
}

dd_status
tcp_call_end(tcp_call *call, dd_status status)
{
    const tcp_operation *operation = call->operation;
    if (tcp_call_is_extended(call)) {
        tcp_tagged_end(call);
    } else {
        status = tcp_plain_end(call, status);
    }
    dd_blob_fini(&call->request);
    if (status != DD_OK && status != DD_INTERRUPTED && status != DD_TIMED_OUT && status != DD_QUEUE_EMPTY) {
        dd_error_prepend(operation->err, "%s on %s", operation->what, operation->store->where);
    }
    return status;
}
