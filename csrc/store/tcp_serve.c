#include "store/tcp_server_internal.h"

#include "core/log.h"
#include "core/mem.h"
#include "net/sock.h"
#include "store/store.h"

#include <stdio.h>
#include <string.h>

/* --- replies ------------------------------------------------------------------------------------------------- */

/* Start the answer to request conn->tag. During the handshake, only dldist clients get a status. */
static dd_tcp_writer
begin_answer(tcp_conn *conn, dd_status code)
{
    dd_tcp_writer writer;
    dd_tcp_writer_init(&writer, &conn->out, NULL);
    conn->reply_at = conn->out.len;
    if (conn->is_tagged) {
        dd_tcp_write(&writer, 'u', conn->tag);
    }
    if (conn->is_extended) {
        dd_tcp_write(&writer, 'b', code);
    }
    if (conn->is_tagged) {
        dd_tcp_write(&writer, 'i', 0);
    }
    return writer;
}

static void
end_reply(tcp_conn *conn, const dd_tcp_writer *writer)
{
    if (writer->status != DD_OK) {
        /* `out` may end with part of a reply, so nothing may follow it */
        tcp_conn_close(conn, "no memory for the reply");
    } else if (conn->is_tagged) {
        uint64_t len = conn->out.len - conn->reply_at - DD_TCP_HEAD_BYTES;
        memcpy(conn->out.data + conn->reply_at + DD_TCP_HEAD_BYTES - sizeof len, &len, sizeof len);
    }
}

/* Send an error. PyTorch's protocol has no errors, so its clients' connections are closed. */
static void
reply_error(tcp_conn *conn, const dd_error *error)
{
    if (!conn->is_extended) {
        tcp_conn_close(conn, error->message);
        return;
    }
    dd_tcp_writer writer = begin_answer(conn, error->code);
    dd_tcp_write_bytes(&writer, dd_bytes_of_string(error->message));
    end_reply(conn, &writer);
}

/* Fail if the reply to MULTI_GET is too large, since many short keys may name one large value. */
static dd_status
check_reply(const dd_tcp_server *server, const dd_store_result *result, dd_error *err)
{
    uint64_t nbytes = 0;
    for (size_t i = 0; i < result->list.count; i++) {
        nbytes += 8 + (uint64_t)result->list.items[i].len;
    }
    if (nbytes <= server->limits.max_request_bytes) {
        return DD_OK;
    }
    return dd_error_set(err, DD_STORE,
                        "values too large: got %llu bytes, expected at most %llu (the server's limit)",
                        (unsigned long long)nbytes, (unsigned long long)server->limits.max_request_bytes);
}

/* Send a result. For an operation without a reply, a PyTorch client gets no answer. */
static void
reply_result(tcp_conn *conn, dd_tcp_op op, const dd_store_result *result)
{
    const dd_tcp_op_row *row = dd_tcp_find_op(op);
    dd_error error;
    if (row->store_op == DD_STORE_MULTI_GET && check_reply(conn->server, result, &error) != DD_OK) {
        reply_error(conn, &error);
    } else if (conn->is_tagged || row->reply != NULL) {
        dd_tcp_writer writer = begin_answer(conn, DD_OK);
        dd_tcp_write_result(&writer, op, result);
        end_reply(conn, &writer);
    }
}

/* --- opening a connection ------------------------------------------------------------------------------------ */

static void
open_conn(tcp_conn *conn)
{
    dd_admission_end(&conn->server->admission, &conn->admission);
    conn->state = TCP_CONN_OPEN;
}

static void
serve_validate(tcp_conn *conn, dd_tcp_reader *reader)
{
    if (dd_tcp_read(reader, 'u') != DD_TCP_MAGIC) {
        tcp_conn_close(conn, "wrong magic number");
    } else if (conn->server->secret.len > 0 || conn->is_surplus) {
        conn->state = TCP_CONN_GREETED;
        dd_admission_continue(&conn->server->admission, &conn->admission, conn->server->handshake_timeout_ns);
    } else {
        open_conn(conn);
    }
}

static const char no_descriptors[] =
    "the store's process has reached its limit of open files; raise it there with ulimit -n";

static void
serve_ping(tcp_conn *conn, dd_tcp_reader *reader)
{
    uint32_t nonce = (uint32_t)dd_tcp_read(reader, 'u');
    bool is_offer = (nonce & DD_TCP_OFFER_MASK) == DD_TCP_OFFER;
    if (conn->state != TCP_CONN_OPEN && !is_offer) {
        bool may_open = conn->server->is_open_to_own_torch && !conn->is_surplus;
        if (!may_open || !(conn->is_unix || dd_sock_is_tcp_of_same_user(conn->handler.fd))) {
            tcp_conn_close(conn, conn->is_surplus
                                     ? no_descriptors
                                     : "the client uses PyTorch's protocol, which cannot prove the secret");
            return;
        }
        open_conn(conn);
    }
    dd_tcp_writer writer = begin_answer(conn, DD_OK);
    dd_tcp_write(&writer, 'u', is_offer ? ~nonce : nonce);
    end_reply(conn, &writer);
}

static void
refuse(tcp_conn *conn, dd_status code, const char *why)
{
    dd_error error;
    (void)dd_error_set(&error, code, "%s", why);
    reply_error(conn, &error);
    conn->closes_after_send = true;
    char client[TCP_CLIENT_NAME_MAX];
    DD_LOG(DD_LOG_INFO, "store server: port %u: refused %s: %s", conn->server->port,
           tcp_conn_print_name(conn, client), why);
}

void
tcp_serve_forged(tcp_conn *conn)
{
    dd_error error;
    (void)dd_seal_error_forged(conn->handler.fd, DD_NETWORK, &error);
    if (conn->is_tagged) {
        conn->tag = DD_TCP_NO_TAG;
        refuse(conn, error.code, error.message);
    } else {
        tcp_conn_close(conn, error.message);
    }
}

/* Start the answer to HELLO, and write all its fields before the nonce. */
static dd_tcp_writer
begin_hello_reply(tcp_conn *conn)
{
    const dd_tcp_server *server = conn->server;
    dd_tcp_writer writer = begin_answer(conn, DD_OK);
    dd_tcp_write(&writer, 'u', DD_TCP_VERSION);
    dd_tcp_write(&writer, 'i', server->limits.max_key_bytes);
    dd_tcp_write(&writer, 'i', server->limits.max_value_bytes);
    dd_tcp_write(&writer, 'i', server->limits.max_keys);
    dd_tcp_write(&writer, 'i', server->limits.max_request_bytes);
    dd_tcp_write_bytes(&writer, (dd_bytes){0}); /* in version 1, the Unix socket's name */
    return writer;
}

static void
reply_hello(tcp_conn *conn, dd_bytes nonce, dd_bytes proof)
{
    dd_tcp_writer writer = begin_hello_reply(conn);
    dd_tcp_write_bytes(&writer, nonce);
    dd_tcp_write_bytes(&writer, proof);
    end_reply(conn, &writer);
}

static bool
must_be_sealed(const tcp_conn *conn)
{
    const dd_tcp_server *server = conn->server;
    return dd_seal_is_wanted(dd_blob_view(&server->secret), server->is_encryption_off, conn->is_unix);
}

/* Create the seal, and answer HELLO with Noise message 2. `fields` is the start of HELLO's fields,
 * `offer` the last field. */
static void
reply_sealed_hello(tcp_conn *conn, const uint8_t *fields, dd_bytes offer)
{
    uint8_t second[DD_NOISE_SECOND_BYTES(DD_TCP_REPLY_CLEAR_BYTES)];
    dd_error error;
    dd_cipher cipher = (dd_cipher)offer.data[0];
    const uint8_t *first = offer.data + 1;
    if (!dd_seal_knows(cipher)) {
        refuse(conn, DD_NOT_SUPPORTED,
               "the server's process has no library with the client's cipher: install OpenSSL's libcrypto "
               "(libssl3) there");
        return;
    }
    dd_tcp_writer writer = begin_hello_reply(conn);
    if (writer.status != DD_OK) {
        end_reply(conn, &writer);
        return;
    }
    dd_bytes clear =
        dd_bytes_of(conn->out.data + conn->out.len - DD_TCP_REPLY_CLEAR_BYTES, DD_TCP_REPLY_CLEAR_BYTES);
    dd_noise_offer peer_offer = {cipher, dd_bytes_of(fields, (size_t)(first - fields)), first};
    dd_status status = dd_seal_answer(&peer_offer, dd_blob_view(&conn->server->secret), DD_SEAL_SPARSE, clear,
                                      second, &conn->seal, &error);
    if (status != DD_OK) {
        conn->out.len = conn->reply_at; /* drop this answer, since refuse() writes another */
        refuse(conn, status, error.message);
        return;
    }
    dd_tcp_write_bytes(&writer, dd_bytes_of(second, sizeof second));
    dd_tcp_write_bytes(&writer, (dd_bytes){0});
    end_reply(conn, &writer);
    conn->is_reply_clear = true;
    conn->state = TCP_CONN_CHALLENGED;
}

/* Return true if HELLO has the required field (a nonce or an offer); if not, refuse the client. */
static bool
is_right_kind(tcp_conn *conn, dd_bytes offer)
{
    bool is_sealed = must_be_sealed(conn);
    if (offer.len == (is_sealed ? DD_TCP_OFFER_BYTES : DD_AUTH_NONCE_BYTES)) {
        return true;
    }
    bool has_other = offer.len == (is_sealed ? DD_AUTH_NONCE_BYTES : DD_TCP_OFFER_BYTES);
    refuse(conn, DD_AUTH,
           !has_other ? "the store needs a secret and the client has none"
           : is_sealed
               ? "the store's connections are encrypted, and the client does not encrypt: "
                 "DLDIST_ENCRYPTION must be the same on both sides"
               : "the client encrypts its connections, and the store does not: DLDIST_ENCRYPTION must "
                 "be the same on both sides");
    return false;
}

static void
serve_hello(tcp_conn *conn, dd_tcp_reader *reader)
{
    const uint8_t *fields = reader->at;
    uint32_t version = (uint32_t)dd_tcp_read(reader, 'u');
    int64_t pid = (int64_t)dd_tcp_read(reader, 'i');
    char host[80];
    dd_bytes_print(dd_tcp_read_bytes(reader), host, sizeof host);
    dd_bytes offer = dd_tcp_read_bytes(reader);
    snprintf(conn->client, sizeof conn->client, "%s (pid %lld)", host, (long long)pid);
    conn->is_extended = true;
    if (conn->is_surplus) {
        refuse(conn, DD_NETWORK, no_descriptors);
        return;
    }
    if (version != DD_TCP_VERSION) {
        char why[160];
        snprintf(
            why, sizeof why,
            "the client has version %u of dldist's store protocol, expected %d; install the same version of "
            "dldist on both",
            version, DD_TCP_VERSION);
        refuse(conn, DD_PROTOCOL, why);
        return;
    }
    if (conn->server->secret.len == 0) {
        reply_hello(conn, (dd_bytes){0}, (dd_bytes){0});
        conn->is_tagged = true;
        return;
    }
    if (!is_right_kind(conn, offer)) {
        return;
    }
    if (must_be_sealed(conn)) {
        reply_sealed_hello(conn, fields, offer);
        return;
    }
    uint8_t proof[DD_SHA256_BYTES];
    dd_error error;
    memcpy(conn->opening, offer.data, sizeof conn->opening);
    if (dd_auth_random(conn->nonce, sizeof conn->nonce, &error) != DD_OK) {
        reply_error(conn, &error);
        conn->closes_after_send = true;
        return;
    }
    dd_auth_prove(dd_blob_view(&conn->server->secret), DD_AUTH_STORE_SERVER, offer, conn->nonce, proof);
    conn->state = TCP_CONN_CHALLENGED;
    reply_hello(conn, dd_bytes_of(conn->nonce, sizeof conn->nonce), dd_bytes_of(proof, sizeof proof));
}

static void
serve_auth(tcp_conn *conn, dd_tcp_reader *reader)
{
    dd_bytes proof = dd_tcp_read_bytes(reader);
    /* A sealed record proves that the client has the secret; unsealed bytes do not. */
    bool is_proven =
        conn->seal != NULL
            ? !conn->is_reply_clear
            : dd_auth_check(dd_blob_view(&conn->server->secret), DD_AUTH_STORE_CLIENT,
                            dd_bytes_of(conn->opening, sizeof conn->opening), conn->nonce, proof);
    if (!is_proven) {
        refuse(conn, DD_AUTH, "the client's secret differs from the store's");
        return;
    }
    open_conn(conn);
    dd_tcp_writer writer = begin_answer(conn, DD_OK);
    end_reply(conn, &writer);
    conn->is_tagged = true;
}

/* --- requests that wait -------------------------------------------------------------------------------------- */

void
tcp_parked_end(tcp_parked *parked)
{
    dd_tcp_server *server = parked->conn->server;
    dd_keyspace_unpark(&server->ks, &parked->waiter);
    dd_list_remove(&parked->link);
    parked->conn->nparked--;
    dd_mem_free(parked);
    atomic_fetch_sub_explicit(&server->nparked, 1, memory_order_relaxed);
}

/* Answer a parked request, possibly while another request of the connection is being served. For a
 * cancelled request, `result` must be empty. `error` is NULL unless the request failed. */
static void
answer_parked(tcp_parked *parked, const dd_store_result *result, const dd_error *error)
{
    tcp_conn *conn = parked->conn;
    uint32_t tag = conn->tag;
    conn->tag = parked->tag;
    if (error == NULL) {
        reply_result(conn, parked->op, result);
    } else {
        reply_error(conn, error);
    }
    conn->tag = tag;
    tcp_parked_end(parked);
}

static void
on_parked_ready(dd_key_waiter *waiter, dd_store_result *result, const dd_error *error)
{
    tcp_parked *parked = DD_CONTAINER_OF(waiter, tcp_parked, waiter);
    tcp_conn *conn = parked->conn;
    answer_parked(parked, result, error);
    tcp_conn_flush(conn);
}

static void
park(tcp_conn *conn, const dd_store_request *request)
{
    tcp_parked *parked = conn->nparked < TCP_PARKED_MAX ? dd_mem_zalloc(sizeof *parked) : NULL;
    dd_error error = {.message = "no memory for a request that waits"};
    if (parked != NULL) {
        *parked = (tcp_parked){.conn = conn, .tag = conn->tag, .op = (dd_tcp_op)conn->op};
        parked->waiter.on_ready = on_parked_ready;
    }
    if (parked == NULL || dd_keyspace_park(&conn->server->ks, &parked->waiter, request, &error) != DD_OK) {
        dd_mem_free(parked);
        tcp_conn_close(conn, error.message);
        return;
    }
    dd_list_push_back(&conn->parked, &parked->link);
    conn->nparked++;
    atomic_fetch_add_explicit(&conn->server->nparked, 1, memory_order_relaxed);
}

/* Find the request that CANCEL_WAIT cancels: with the same tag or, without tags, the only one. */
static tcp_parked *
find_parked(const tcp_conn *conn)
{
    for (dd_list *link = conn->parked.next; link != &conn->parked; link = link->next) {
        tcp_parked *parked = DD_CONTAINER_OF(link, tcp_parked, link);
        if (!conn->is_tagged || parked->tag == conn->tag) {
            return parked;
        }
    }
    return NULL;
}

static void
serve_cancel_wait(tcp_conn *conn, dd_tcp_reader *reader)
{
    (void)reader;
    tcp_parked *parked = find_parked(conn);
    dd_store_result called_off = {0};
    if (conn->is_tagged && parked != NULL) {
        answer_parked(parked, &called_off, NULL);
    } else if (!conn->is_tagged) {
        if (parked != NULL) {
            tcp_parked_end(parked);
        }
        reply_result(conn, DD_TCP_CANCEL_WAIT, &called_off);
    }
}

/* --- store operations ---------------------------------------------------------------------- */

/* List the clients that failed to prove the secret, such as "node-b (pid 77), node-c (pid 5)". */
static dd_status
list_refused(const dd_tcp_server *server, dd_store_result *result, dd_error *err)
{
    dd_status status = DD_OK;
    for (int i = 0; i < TCP_REFUSED_MAX && server->refused[i][0] != '\0' && status == DD_OK; i++) {
        char text[TCP_CLIENT_NAME_MAX + 2];
        int len = snprintf(text, sizeof text, "%s%s", i > 0 ? ", " : "", server->refused[i]);
        status = dd_blob_append(&result->value, text, (size_t)len, err);
    }
    result->flag = true;
    return status;
}

/* Write why the server cannot accept connections: "Too many open files (errno 24)", or "". */
static dd_status
write_accept_error(const dd_tcp_server *server, dd_store_result *result, dd_error *err)
{
    char reason[128];
    char text[160];
    result->flag = true;
    if (server->accept_errno == 0) {
        return DD_OK;
    }
    int len = snprintf(text, sizeof text, "%s (errno %d)",
                       strerror_r(server->accept_errno, reason, sizeof reason), server->accept_errno);
    return dd_blob_append(&result->value, text, (size_t)len, err);
}

static dd_status
serve_by_keyspace(tcp_conn *conn, const dd_store_request *request, dd_store_result *result, bool *is_answered,
                  dd_error *err)
{
    dd_tcp_server *server = conn->server;
    if (conn->op == DD_TCP_TRY_GET &&
        dd_bytes_equal(request->keys[0], dd_bytes_of_string(DD_TCP_REFUSED_KEY))) {
        *is_answered = true;
        return list_refused(server, result, err);
    }
    if (conn->op == DD_TCP_TRY_GET &&
        dd_bytes_equal(request->keys[0], dd_bytes_of_string(DD_TCP_ACCEPT_ERROR_KEY))) {
        *is_answered = true;
        return write_accept_error(server, result, err);
    }
    dd_status status = dd_keyspace_answer_borrowed(&server->ks, request, result, is_answered, err);
    *is_answered |= status == DD_QUEUE_EMPTY;
    return status == DD_QUEUE_EMPTY ? DD_OK : status;
}

/* Do what must follow a request's reply: undo a pop, or count a client that has joined. */
static void
complete_request(tcp_conn *conn, const dd_store_request *request, dd_store_result *result)
{
    dd_tcp_server *server = conn->server;
    if (request->op == DD_STORE_QUEUE_POP && result->flag && conn->is_closing) {
        /* The reply was not sent, so return the item to the queue, unless memory is lacking. */
        (void)!dd_keyspace_queue_unpop(&server->ks, request->keys[0], &result->value, NULL);
    }
    if (request->op == DD_STORE_ADD &&
        dd_bytes_equal(request->keys[0], dd_bytes_of_string(DD_TCP_JOIN_KEY))) {
        char client[TCP_CLIENT_NAME_MAX];
        tcp_server_note_joined(server, tcp_conn_print_name(conn, client), result->number);
    }
}

/* Serve a store operation. A MULTI_SET that fails may have set its first keys. */
static void
serve_store(tcp_conn *conn, dd_bytes fields)
{
    dd_tcp_reader reader = {fields.data};
    dd_tcp_op op = (dd_tcp_op)conn->op;
    dd_tcp_request request;
    dd_store_result result = {0};
    dd_error error;
    bool is_answered = false;
    dd_status status = dd_tcp_read_request(&request, op, &reader, &error);
    if (status == DD_OK) {
        status = serve_by_keyspace(conn, &request.request, &result, &is_answered, &error);
    }
    if (status != DD_OK) {
        reply_error(conn, &error);
    } else if (is_answered) {
        reply_result(conn, op, &result);
        complete_request(conn, &request.request, &result);
    } else {
        park(conn, &request.request);
    }
    dd_store_result_fini(&result);
    dd_tcp_request_fini(&request);
}

/* --- dispatch ------------------------------------------------------------------------------------------------ */

/* Handlers of the operations that concern only the connection. */
static void (*const serve_table[])(tcp_conn *conn, dd_tcp_reader *reader) = {
    [DD_TCP_VALIDATE] = serve_validate, [DD_TCP_CANCEL_WAIT] = serve_cancel_wait,
    [DD_TCP_PING] = serve_ping,         [DD_TCP_HELLO] = serve_hello,
    [DD_TCP_AUTH] = serve_auth,
};

bool
tcp_serve_is_allowed(const tcp_conn *conn, uint8_t op)
{
    static const uint8_t at_first[][2] = {
        [TCP_CONN_NEW] = {DD_TCP_VALIDATE, DD_TCP_VALIDATE},
        [TCP_CONN_GREETED] = {DD_TCP_PING, DD_TCP_HELLO},
        [TCP_CONN_CHALLENGED] = {DD_TCP_AUTH, DD_TCP_AUTH},
    };
    if (conn->state != TCP_CONN_OPEN) {
        return op == at_first[conn->state][0] || op == at_first[conn->state][1];
    }
    if (op == DD_TCP_VALIDATE || op == DD_TCP_AUTH) {
        return false;
    }
    if (conn->is_tagged) {
        return op != DD_TCP_HELLO;
    }
    return op < DD_TCP_TRY_GET && (conn->nparked == 0 || op == DD_TCP_CANCEL_WAIT);
}

void
tcp_serve(tcp_conn *conn, uint8_t op, dd_bytes fields)
{
    if (dd_tcp_find_op(op)->store_op != DD_TCP_NO_STORE_OP) {
        serve_store(conn, fields);
    } else {
        dd_tcp_reader reader = {fields.data};
        serve_table[op](conn, &reader);
    }
}
