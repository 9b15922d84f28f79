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

/* ---- a request */

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

void
tcp_call_begin(tcp_call *call, const tcp_operation *operation)
{
    *call = (tcp_call){.operation = operation,
                       .answer_wait = long_enough_for_an_answer(operation->wait),
                       .writer = {.status = DD_OK, .err = operation->err}};
    if (!tcp_call_is_extended(call)) {
        tcp_plain_begin(call);
    }
}

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

static void
write_key(tcp_call *call, const tcp_fields *fields, dd_bytes key)
{
    if (fields->is_internal) {
        dd_tcp_write_bytes(&call->writer, key);
        return;
    }
    check_limit(call, (uint64_t)key.len + 1, limits_of(call)->max_key_bytes, "key length");
    dd_tcp_write_user_key(&call->writer, key);
}

static void
write_value(tcp_call *call, dd_bytes value)
{
    check_limit(call, value.len, limits_of(call)->max_value_bytes, "value length");
    dd_tcp_write_bytes(&call->writer, value);
}

/* In a request a count, if there is one, comes first. */
static void
write_fields(tcp_call *call, const tcp_fields *fields, const char *pattern)
{
    const dd_bytes *key = fields->keys;
    const dd_bytes *value = fields->values;
    size_t repeats = 1;
    if (*pattern == '#') {
        pattern++;
        repeats = fields->count;
        check_limit(call, repeats, limits_of(call)->max_keys, "number of keys");
        dd_tcp_write_u64(&call->writer, repeats);
    }
    for (; repeats > 0 && call->writer.status == DD_OK; repeats--) {
        for (const char *field = pattern; *field != '\0'; field++) {
            if (*field == 'k') {
                write_key(call, fields, *key++);
            } else if (*field == 'v') {
                write_value(call, *value++);
            } else {
                dd_tcp_write_u64(&call->writer, (uint64_t)fields->number);
            }
        }
    }
}

/* PyTorch's servers do not answer every request, but the PING that is put behind it. */
static void
write_request(tcp_call *call, dd_tcp_op op, const tcp_fields *fields)
{
    call->op = op;
    call->repeats = op == DD_TCP_MULTI_GET ? fields->count : 1;
    if (call->writer.status != DD_OK) {
        return;
    }
    dd_blob_clear(&call->request, 0);
    dd_tcp_writer_init(&call->writer, &call->request, call->operation->err);
    if (tcp_call_is_extended(call)) {
        dd_tcp_write_u32(&call->writer, 0); /* the tag, when it is sent */
    }
    dd_tcp_write_u8(&call->writer, (uint8_t)op);
    write_fields(call, fields, dd_tcp_request_pattern((uint8_t)op));
    if (call->writer.status == DD_OK) {
        check_limit(call, call->request.len - DD_TCP_TAG_BYTES, limits_of(call)->max_request_bytes,
                    "request length");
    }
    if (!tcp_call_is_extended(call) && dd_tcp_reply_pattern(op) == NULL) {
        dd_tcp_write_u8(&call->writer, DD_TCP_PING);
        dd_tcp_write_u32(&call->writer, 0);
    }
}

static dd_status
send_request(tcp_call *call, dd_tcp_op op, const tcp_fields *fields)
{
    write_request(call, op, fields);
    if (call->writer.status != DD_OK) {
        return call->writer.status;
    }
    return tcp_call_is_extended(call) ? tcp_tagged_send(call)
                                      : tcp_link_send(call->link, dd_blob_view(&call->request),
                                                      &call->answer_wait, call->operation->err);
}

/* ---- its answer */

static dd_status
receive_answer(tcp_call *call, dd_tcp_reader *reader, const dd_wait *wait, dd_error *err)
{
    if (!tcp_call_is_extended(call)) {
        dd_tcp_op answered = dd_tcp_reply_pattern(call->op) != NULL ? call->op : DD_TCP_PING;
        return tcp_link_receive(call->link, answered, call->repeats, reader, wait, err);
    }
    dd_status status = tcp_tagged_await(call, wait, err);
    return status == DD_OK
               ? tcp_answer_read(dd_blob_view(&call->answer), call->op, call->repeats, reader, err)
               : status;
}

dd_status
tcp_call_ask(tcp_call *call, dd_tcp_op op, const tcp_fields *fields, dd_tcp_reader *reader)
{
    dd_status status = send_request(call, op, fields);
    return status == DD_OK ? receive_answer(call, reader, &call->answer_wait, call->operation->err) : status;
}

/* Calls off the request and receives what the server answers to it. */
static dd_status
cancel(tcp_call *call, dd_tcp_reader *reader)
{
    dd_wait patience = dd_wait_after(TCP_ANSWER_NS);
    dd_status status = tcp_tagged_cancel(call);
    return status == DD_OK ? receive_answer(call, reader, &patience, NULL) : status;
}

dd_status
tcp_call_wait(tcp_call *call, dd_tcp_op op, const tcp_fields *fields, dd_tcp_reader *reader)
{
    reader->at = NULL;
    dd_status status = send_request(call, op, fields);
    if (status != DD_OK) {
        return status;
    }
    status = receive_answer(call, reader, call->operation->wait, call->operation->err);
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

/* ---- operations of one request */

dd_status
tcp_tell(const tcp_operation *operation, dd_tcp_op op, const tcp_fields *fields)
{
    tcp_call call;
    dd_tcp_reader reader;
    tcp_call_begin(&call, operation);
    return tcp_call_end(&call, tcp_call_ask(&call, op, fields, &reader));
}

dd_status
tcp_ask_number(const tcp_operation *operation, dd_tcp_op op, const tcp_fields *fields, int64_t *number)
{
    tcp_call call;
    dd_tcp_reader reader;
    tcp_call_begin(&call, operation);
    dd_status status = tcp_call_ask(&call, op, fields, &reader);
    if (status == DD_OK) {
        *number = dd_tcp_read_i64(&reader);
    }
    return tcp_call_end(&call, status);
}

dd_status
tcp_take_maybe(dd_tcp_reader *reader, dd_blob *value, bool *is_found, dd_error *err)
{
    *is_found = dd_tcp_read_count(reader) > 0;
    return *is_found ? dd_blob_assign(value, dd_tcp_read_bytes(reader), err) : DD_OK;
}

dd_status
tcp_ask_maybe(const tcp_operation *operation, dd_tcp_op op, const tcp_fields *fields, dd_blob *value,
              bool *is_found)
{
    tcp_call call;
    dd_tcp_reader reader;
    tcp_call_begin(&call, operation);
    dd_status status = tcp_call_ask(&call, op, fields, &reader);
    if (status == DD_OK) {
        status = tcp_take_maybe(&reader, value, is_found, operation->err);
    }
    return tcp_call_end(&call, status);
}
