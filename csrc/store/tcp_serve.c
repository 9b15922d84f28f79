#include "store/tcp_server_internal.h"

#include "core/log.h"
#include "core/mem.h"
#include "net/sock.h"
#include "store/store.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

/* --- replies ------------------------------------------------------------------------------------------------- */

/* Begins the answer to conn->tag. Within the handshake an extended client gets the status alone before it. */
static dd_tcp_writer
begin_answer(tcp_conn *conn, dd_status code)
{
    dd_tcp_writer writer;
    dd_tcp_writer_init(&writer, &conn->out, NULL);
    conn->reply_at = conn->out.len;
    if (conn->is_tagged) {
        dd_tcp_write_u32(&writer, conn->tag);
    }
    if (conn->is_extended) {
        dd_tcp_write_u8(&writer, (uint8_t)code);
    }
    if (conn->is_tagged) {
        dd_tcp_write_u64(&writer, 0);
    }
    return writer;
}

static dd_tcp_writer
begin_reply(tcp_conn *conn)
{
    return begin_answer(conn, DD_OK);
}

static void
end_reply(tcp_conn *conn, const dd_tcp_writer *writer)
{
    if (writer->status != DD_OK) {
        /* Half a reply may be in `out`: nothing can follow it. */
        tcp_conn_doom(conn, "no memory for its reply");
    } else if (conn->is_tagged) {
        uint64_t len = conn->out.len - conn->reply_at - DD_TCP_HEAD_BYTES;
        memcpy(conn->out.data + conn->reply_at + DD_TCP_HEAD_BYTES - sizeof len, &len, sizeof len);
    }
}

static void
reply_u8(tcp_conn *conn, uint8_t value)
{
    dd_tcp_writer writer = begin_reply(conn);
    dd_tcp_write_u8(&writer, value);
    end_reply(conn, &writer);
}

static void
reply_i64(tcp_conn *conn, int64_t value)
{
    dd_tcp_writer writer = begin_reply(conn);
    dd_tcp_write_u64(&writer, (uint64_t)value);
    end_reply(conn, &writer);
}

static void
reply_bytes(tcp_conn *conn, dd_bytes bytes)
{
    dd_tcp_writer writer = begin_reply(conn);
    dd_tcp_write_bytes(&writer, bytes);
    end_reply(conn, &writer);
}

/* The first of `count` values, of which there may be none. */
static void
reply_maybe(tcp_conn *conn, uint64_t count, dd_bytes value)
{
    dd_tcp_writer writer = begin_reply(conn);
    dd_tcp_write_u64(&writer, count);
    if (count > 0) {
        dd_tcp_write_bytes(&writer, value);
    }
    end_reply(conn, &writer);
}

/* PyTorch's protocol has no word for failure but closing the connection. */
static void
reply_error(tcp_conn *conn, const dd_error *error)
{
    if (!conn->is_extended) {
        tcp_conn_doom(conn, error->message);
        return;
    }
    dd_tcp_writer writer = begin_answer(conn, error->code);
    dd_tcp_write_bytes(&writer, dd_bytes_of_string(error->message));
    end_reply(conn, &writer);
}

/* For operations that have nothing to say: PyTorch's clients get no answer. */
static void
reply_done(tcp_conn *conn, dd_status status, const dd_error *error)
{
    if (status != DD_OK) {
        reply_error(conn, error);
    } else if (conn->is_tagged) {
        dd_tcp_writer writer = begin_reply(conn);
        end_reply(conn, &writer);
    }
}

/* --- opening a connection ------------------------------------------------------------------------------------ */

static void
open_conn(tcp_conn *conn)
{
    tcp_stranger_end(conn);
    conn->state = TCP_CONN_OPEN;
}

static void
serve_validate(tcp_conn *conn, dd_tcp_reader *reader)
{
    if (dd_tcp_read_u32(reader) != DD_TCP_MAGIC) {
        tcp_conn_doom(conn, "it showed a wrong magic number");
    } else if (conn->server->secret.len > 0 || conn->is_surplus) {
        tcp_stranger_greet(conn);
    } else {
        open_conn(conn);
    }
}

static const char no_descriptors[] =
    "the process that serves the store has as many files and connections open as it may (ulimit -n there)";

static void
serve_ping(tcp_conn *conn, dd_tcp_reader *reader)
{
    uint32_t nonce = dd_tcp_read_u32(reader);
    bool is_offer = (nonce & DD_TCP_OFFER_MASK) == DD_TCP_OFFER;
    if (conn->state != TCP_CONN_OPEN && !is_offer) {
        tcp_conn_doom(conn, conn->is_surplus ? no_descriptors
                                             : "it speaks PyTorch's protocol, which cannot show the secret");
        return;
    }
    dd_tcp_writer writer = begin_reply(conn);
    dd_tcp_write_u32(&writer, is_offer ? ~nonce : nonce);
    end_reply(conn, &writer);
}

static void
refuse(tcp_conn *conn, dd_status code, const char *why)
{
    dd_error error;
    (void)dd_error_set(&error, code, "%s", why);
    reply_error(conn, &error);
    conn->is_last_words = true;
    char who[TCP_WHO_MAX];
    DD_LOG(DD_LOG_INFO, "store server: port %u: refused %s: %s", conn->server->port, tcp_conn_who(conn, who),
           why);
}

static void
refuse_version(tcp_conn *conn, uint32_t version)
{
    char why[160];
    snprintf(
        why, sizeof why,
        "the client speaks version %u of dldist's store protocol and the server version %d: install the same "
        "version of dldist on both",
        version, DD_TCP_VERSION);
    refuse(conn, DD_PROTOCOL, why);
}

static tcp_hello *
read_hello(dd_tcp_reader *reader, dd_bytes *client_nonce)
{
    tcp_hello *hello = dd_mem_zalloc(sizeof *hello);
    if (hello == NULL) {
        return NULL;
    }
    int64_t pid = dd_tcp_read_i64(reader);
    char host[80];
    dd_bytes_print(dd_tcp_read_bytes(reader), host, sizeof host);
    snprintf(hello->who, sizeof hello->who, "%s (pid %lld)", host, (long long)pid);
    *client_nonce = dd_tcp_read_bytes(reader);
    return hello;
}

/* Fills the nonces and answers the client's challenge; empty bytes where the store has no secret. */
static dd_status
answer_challenge(tcp_conn *conn, dd_bytes client_nonce, uint8_t proof[DD_SHA256_BYTES], dd_error *err)
{
    dd_auth_nonces *nonces = &conn->hello->nonces;
    memcpy(nonces->client, client_nonce.data, sizeof nonces->client);
    dd_status status = dd_auth_random(nonces->server, sizeof nonces->server, err);
    if (status == DD_OK) {
        dd_auth_prove(dd_blob_view(&conn->server->secret), DD_AUTH_SERVER, nonces, proof);
    }
    return status;
}

static void
reply_hello(tcp_conn *conn, dd_bytes nonce, dd_bytes proof)
{
    const dd_tcp_server *server = conn->server;
    dd_tcp_writer writer = begin_reply(conn);
    dd_tcp_write_u32(&writer, DD_TCP_VERSION);
    dd_tcp_write_u64(&writer, server->limits.max_key_bytes);
    dd_tcp_write_u64(&writer, server->limits.max_value_bytes);
    dd_tcp_write_u64(&writer, server->limits.max_keys);
    dd_tcp_write_u64(&writer, server->limits.max_request_bytes);
    dd_tcp_write_bytes(&writer, (dd_bytes){0}); /* version 1 had the name of its Unix socket here */
    dd_tcp_write_bytes(&writer, nonce);
    dd_tcp_write_bytes(&writer, proof);
    end_reply(conn, &writer);
}

static void
serve_hello(tcp_conn *conn, dd_tcp_reader *reader)
{
    uint32_t version = dd_tcp_read_u32(reader);
    dd_bytes client_nonce;
    conn->hello = read_hello(reader, &client_nonce);
    if (conn->hello == NULL) {
        tcp_conn_doom(conn, "no memory for its hello");
        return;
    }
    conn->is_extended = true;
    if (conn->is_surplus) {
        refuse(conn, DD_NETWORK, no_descriptors);
        return;
    }
    if (version != DD_TCP_VERSION) {
        refuse_version(conn, version);
        return;
    }
    if (conn->server->secret.len == 0) {
        reply_hello(conn, (dd_bytes){0}, (dd_bytes){0});
        conn->is_tagged = true;
        return;
    }
    if (client_nonce.len != DD_AUTH_NONCE_BYTES) {
        refuse(conn, DD_AUTH, "the store needs a secret and the client has none");
        return;
    }
    uint8_t proof[DD_SHA256_BYTES];
    dd_error error;
    if (answer_challenge(conn, client_nonce, proof, &error) != DD_OK) {
        reply_error(conn, &error);
        conn->is_last_words = true;
        return;
    }
    conn->state = TCP_CONN_CHALLENGED;
    reply_hello(conn, dd_bytes_of(conn->hello->nonces.server, DD_AUTH_NONCE_BYTES),
                dd_bytes_of(proof, sizeof proof));
}

static void
serve_auth(tcp_conn *conn, dd_tcp_reader *reader)
{
    dd_bytes proof = dd_tcp_read_bytes(reader);
    if (!dd_auth_check(dd_blob_view(&conn->server->secret), DD_AUTH_CLIENT, &conn->hello->nonces, proof)) {
        refuse(conn, DD_AUTH, "the client's secret is not the store's");
        return;
    }
    open_conn(conn);
    dd_tcp_writer writer = begin_reply(conn);
    end_reply(conn, &writer);
    conn->is_tagged = true;
}

/* --- values -------------------------------------------------------------------------------------------------- */

static void
serve_set(tcp_conn *conn, dd_tcp_reader *reader)
{
    dd_bytes key = dd_tcp_read_bytes(reader);
    dd_error error;
    dd_status status = dd_keyspace_set(&conn->server->ks, key, dd_tcp_read_bytes(reader), &error);
    reply_done(conn, status, &error);
}

static void
serve_compare_set(tcp_conn *conn, dd_tcp_reader *reader)
{
    dd_bytes key = dd_tcp_read_bytes(reader);
    dd_bytes expected = dd_tcp_read_bytes(reader);
    dd_bytes desired = dd_tcp_read_bytes(reader);
    dd_bytes value;
    dd_error error;
    if (dd_keyspace_compare_set(&conn->server->ks, key, expected, desired, &value, &error) == DD_OK) {
        reply_bytes(conn, value);
    } else {
        reply_error(conn, &error);
    }
}

/* A missing key reads as empty, as torch's server has it: its clients wait for the key before they ask. */
static void
serve_get(tcp_conn *conn, dd_tcp_reader *reader)
{
    dd_bytes value = {0};
    (void)dd_keyspace_get(&conn->server->ks, dd_tcp_read_bytes(reader), &value);
    reply_bytes(conn, value);
}

/* "node-b (pid 77), node-c (pid 5)" */
static dd_bytes
list_refused(const dd_tcp_server *server, char out[TCP_REFUSED_MAX * (TCP_WHO_MAX + 2)])
{
    size_t used = 0;
    for (int i = 0; i < TCP_REFUSED_MAX && server->refused[i][0] != '\0'; i++) {
        used += (size_t)snprintf(out + used, TCP_WHO_MAX + 2, "%s%s", i > 0 ? ", " : "", server->refused[i]);
    }
    return dd_bytes_of(out, used);
}

static void
serve_try_get(tcp_conn *conn, dd_tcp_reader *reader)
{
    dd_bytes key = dd_tcp_read_bytes(reader);
    dd_bytes value = {0};
    char text[TCP_REFUSED_MAX * (TCP_WHO_MAX + 2)];
    bool is_there = dd_bytes_equal(key, dd_bytes_of_string(DD_TCP_REFUSED_KEY));
    if (is_there) {
        value = list_refused(conn->server, text);
    } else {
        is_there = dd_keyspace_get(&conn->server->ks, key, &value);
    }
    reply_maybe(conn, is_there, value);
}

static void
serve_add(tcp_conn *conn, dd_tcp_reader *reader)
{
    dd_bytes key = dd_tcp_read_bytes(reader);
    int64_t amount = dd_tcp_read_i64(reader);
    int64_t sum;
    dd_error error;
    if (dd_keyspace_add(&conn->server->ks, key, amount, &sum, &error) != DD_OK) {
        reply_error(conn, &error);
        return;
    }
    reply_i64(conn, sum);
    if (dd_bytes_equal(key, dd_bytes_of_string(DD_TCP_JOIN_KEY))) {
        char who[TCP_WHO_MAX];
        tcp_server_note_joined(conn->server, tcp_conn_who(conn, who), sum);
    }
}

static void
serve_check(tcp_conn *conn, dd_tcp_reader *reader)
{
    bool is_ready = true;
    for (uint64_t left = dd_tcp_read_count(reader); left > 0 && is_ready; left--) {
        is_ready = dd_keyspace_has(&conn->server->ks, dd_tcp_read_bytes(reader));
    }
    reply_u8(conn, is_ready ? DD_TCP_READY : DD_TCP_NOT_READY);
}

static void
serve_check_each(tcp_conn *conn, dd_tcp_reader *reader)
{
    uint64_t count = dd_tcp_read_count(reader);
    dd_tcp_writer writer = begin_reply(conn);
    dd_tcp_write_u64(&writer, count);
    for (; count > 0; count--) {
        dd_tcp_write_u8(&writer, dd_keyspace_has(&conn->server->ks, dd_tcp_read_bytes(reader)));
    }
    end_reply(conn, &writer);
}

static void
serve_num_keys(tcp_conn *conn, dd_tcp_reader *reader)
{
    (void)reader;
    reply_i64(conn, conn->server->ks.nvalues);
}

static void
serve_delete_key(tcp_conn *conn, dd_tcp_reader *reader)
{
    reply_i64(conn, dd_keyspace_delete(&conn->server->ks, dd_tcp_read_bytes(reader)));
}

static void
serve_append(tcp_conn *conn, dd_tcp_reader *reader)
{
    dd_bytes key = dd_tcp_read_bytes(reader);
    dd_error error;
    dd_status status = dd_keyspace_append(&conn->server->ks, key, dd_tcp_read_bytes(reader), &error);
    reply_done(conn, status, &error);
}

/* How large a reply to MULTI_GET would be; many short keys may name one large value. */
static uint64_t
multi_get_bytes(const dd_keyspace *ks, dd_tcp_reader reader)
{
    uint64_t nbytes = 0;
    for (uint64_t left = dd_tcp_read_count(&reader); left > 0; left--) {
        dd_bytes value = {0};
        (void)dd_keyspace_get(ks, dd_tcp_read_bytes(&reader), &value);
        nbytes += 8 + (uint64_t)value.len;
    }
    return nbytes;
}

static void
serve_multi_get(tcp_conn *conn, dd_tcp_reader *reader)
{
    uint64_t nbytes = multi_get_bytes(&conn->server->ks, *reader);
    if (nbytes > conn->server->limits.max_request_bytes) {
        dd_error error;
        (void)dd_error_set(
            &error, DD_STORE, "the values have %llu bytes, which is over the server's limit of %llu",
            (unsigned long long)nbytes, (unsigned long long)conn->server->limits.max_request_bytes);
        reply_error(conn, &error);
        return;
    }
    dd_tcp_writer writer = begin_reply(conn);
    for (uint64_t left = dd_tcp_read_count(reader); left > 0; left--) {
        dd_bytes value = {0};
        (void)dd_keyspace_get(&conn->server->ks, dd_tcp_read_bytes(reader), &value);
        dd_tcp_write_bytes(&writer, value);
    }
    end_reply(conn, &writer);
}

/* On a failure some are set and the rest are not, as if they had been set one by one. */
static void
serve_multi_set(tcp_conn *conn, dd_tcp_reader *reader)
{
    dd_status status = DD_OK;
    dd_error error;
    for (uint64_t left = dd_tcp_read_count(reader); left > 0 && status == DD_OK; left--) {
        dd_bytes key = dd_tcp_read_bytes(reader);
        status = dd_keyspace_set(&conn->server->ks, key, dd_tcp_read_bytes(reader), &error);
    }
    reply_done(conn, status, &error);
}

static void
serve_list_keys(tcp_conn *conn, dd_tcp_reader *reader)
{
    (void)reader;
    const dd_keyspace *ks = &conn->server->ks;
    dd_tcp_writer writer = begin_reply(conn);
    dd_tcp_write_u64(&writer, (uint64_t)ks->nvalues);
    const dd_map_node *cursor = NULL;
    dd_bytes key;
    while (dd_keyspace_next_key(ks, &cursor, &key)) {
        dd_tcp_write_bytes(&writer, key);
    }
    end_reply(conn, &writer);
}

/* A rank's coming is noted here in one step; it then waits for the end of the meeting as for any key. */
static void
serve_meet(tcp_conn *conn, dd_tcp_reader *reader)
{
    dd_meet_request request = {.place = dd_tcp_read_bytes(reader)};
    int64_t who = dd_tcp_read_i64(reader);
    request.rank = (int)(who & INT_MAX);
    request.size = (int)(who >> DD_TCP_MEET_SIZE_SHIFT & INT_MAX);
    request.hears_failure = (who & DD_TCP_MEET_HEARS_FAILURE) != 0;
    request.published = dd_tcp_read_bytes(reader);
    dd_meet_reply reply = {0};
    dd_error error;
    if (dd_keyspace_meet(&conn->server->ks, &request, &reply, &error) != DD_OK) {
        reply_error(conn, &error);
    } else {
        dd_tcp_writer writer = begin_reply(conn);
        dd_tcp_write_u8(&writer, (uint8_t)reply.state);
        dd_tcp_write_u64(&writer, reply.generation);
        dd_tcp_write_bytes(&writer, dd_blob_view(&reply.value));
        end_reply(conn, &writer);
    }
    dd_blob_fini(&reply.value);
}

/* --- queues -------------------------------------------------------------------------------------------------- */

static void
serve_queue_push(tcp_conn *conn, dd_tcp_reader *reader)
{
    dd_bytes key = dd_tcp_read_bytes(reader);
    dd_error error;
    dd_status status = dd_keyspace_queue_push(&conn->server->ks, key, dd_tcp_read_bytes(reader), &error);
    reply_done(conn, status, &error);
}

static void
serve_queue_pop(tcp_conn *conn, dd_tcp_reader *reader)
{
    dd_bytes key = dd_tcp_read_bytes(reader);
    dd_blob value = {0};
    uint64_t count = (uint64_t)dd_keyspace_queue_len(&conn->server->ks, key);
    (void)dd_keyspace_queue_pop(&conn->server->ks, key, &value);
    reply_maybe(conn, count, dd_blob_view(&value));
    if (count > 0 && conn->is_doomed) {
        /* It could not be answered: the item stays for the next who asks, if memory allows. */
        (void)!dd_keyspace_queue_unpop(&conn->server->ks, key, &value, NULL);
    }
    dd_blob_fini(&value);
}

static void
serve_queue_len(tcp_conn *conn, dd_tcp_reader *reader)
{
    reply_i64(conn, dd_keyspace_queue_len(&conn->server->ks, dd_tcp_read_bytes(reader)));
}

/* --- waiting ------------------------------------------------------------------------------------------------- */

/* The one answer of a request that waited: it is ready, with its value if it asked for one, or it was cancelled. */
static void
reply_waited(tcp_conn *conn, dd_tcp_op op, bool is_ready, dd_bytes value)
{
    if (op == DD_TCP_WAIT || op == DD_TCP_BARRIER) {
        reply_u8(conn, is_ready ? DD_TCP_STOP_WAITING : DD_TCP_WAIT_CANCELED);
    } else {
        reply_maybe(conn, is_ready, value);
    }
}

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

/* Answers a request that has waited, perhaps in the middle of another one of the same connection. */
static void
answer_parked(tcp_parked *parked, bool is_ready, dd_bytes value)
{
    tcp_conn *conn = parked->conn;
    uint32_t tag = conn->tag;
    conn->tag = parked->tag;
    reply_waited(conn, parked->op, is_ready, value);
    conn->tag = tag;
    tcp_parked_end(parked);
}

static void
on_parked_ready(dd_waiter *waiter, dd_bytes value)
{
    tcp_parked *parked = DD_CONTAINER_OF(waiter, tcp_parked, waiter);
    tcp_conn *conn = parked->conn;
    answer_parked(parked, true, value);
    tcp_conn_flush(conn);
}

static dd_bytes
next_key(void *ctx)
{
    return dd_tcp_read_bytes(ctx);
}

static dd_bytes
same_key(void *ctx)
{
    return *(dd_bytes *)ctx;
}

/* Parks the request; when the keys are there already, nothing is parked. */
static bool
park(tcp_conn *conn, dd_waiter_kind kind, dd_bytes (*get_key)(void *ctx), void *ctx, size_t nkeys)
{
    tcp_parked *parked = conn->nparked < TCP_PARKED_MAX ? dd_mem_zalloc(sizeof *parked) : NULL;
    if (parked == NULL) {
        tcp_conn_doom(conn, "no memory for a request that waits");
        return true;
    }
    *parked = (tcp_parked){.conn = conn,
                           .tag = conn->tag,
                           .op = (dd_tcp_op)conn->op,
                           .waiter = {.kind = kind, .on_ready = on_parked_ready}};
    bool is_parked = false;
    dd_error error;
    bool is_doomed = dd_keyspace_park(&conn->server->ks, &parked->waiter, get_key, ctx, nkeys, &is_parked,
                                      &error) != DD_OK;
    if (is_doomed) {
        tcp_conn_doom(conn, error.message);
    }
    if (!is_parked) {
        dd_mem_free(parked);
        return is_doomed;
    }
    dd_list_push_back(&conn->parked, &parked->link);
    conn->nparked++;
    atomic_fetch_add_explicit(&conn->server->nparked, 1, memory_order_relaxed);
    return true;
}

static void
serve_wait(tcp_conn *conn, dd_tcp_reader *reader)
{
    size_t nkeys = (size_t)dd_tcp_read_count(reader);
    if (!park(conn, DD_WAITER_KEYS, next_key, reader, nkeys)) {
        reply_waited(conn, DD_TCP_WAIT, true, (dd_bytes){0});
    }
}

static void
serve_wait_get(tcp_conn *conn, dd_tcp_reader *reader)
{
    dd_bytes key = dd_tcp_read_bytes(reader);
    if (!park(conn, DD_WAITER_VALUE, same_key, &key, 1)) {
        dd_bytes value = {0};
        (void)dd_keyspace_get(&conn->server->ks, key, &value);
        reply_maybe(conn, 1, value);
    }
}

static void
serve_wait_pop(tcp_conn *conn, dd_tcp_reader *reader)
{
    dd_bytes key = dd_tcp_read_bytes(reader);
    if (!park(conn, DD_WAITER_POP, same_key, &key, 1)) {
        dd_blob value = {0};
        (void)dd_keyspace_queue_pop(&conn->server->ks, key, &value);
        reply_maybe(conn, 1, dd_blob_view(&value));
        dd_blob_fini(&value);
    }
}

static void
serve_barrier(tcp_conn *conn, dd_tcp_reader *reader)
{
    dd_bytes key = dd_tcp_read_bytes(reader);
    int64_t world_size = dd_tcp_read_i64(reader);
    bool is_complete = false;
    dd_error error;
    if (dd_keyspace_barrier_arrive(&conn->server->ks, key, world_size, &is_complete, &error) != DD_OK) {
        reply_error(conn, &error);
    } else if (is_complete) {
        reply_u8(conn, DD_TCP_STOP_WAITING);
    } else {
        /* Not complete: it parks, or dooms the connection. */
        (void)park(conn, DD_WAITER_BARRIER, same_key, &key, 1);
    }
}

/* The request that a CANCEL_WAIT means: the one of its tag, or the only one there can be. */
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
    if (conn->is_tagged && parked != NULL) {
        answer_parked(parked, false, (dd_bytes){0});
    } else if (!conn->is_tagged) {
        if (parked != NULL) {
            tcp_parked_end(parked);
        }
        reply_u8(conn, DD_TCP_WAIT_CANCELED);
    }
}

/* --- dispatch ------------------------------------------------------------------------------------------------ */

typedef void (*serve_fn)(tcp_conn *conn, dd_tcp_reader *reader);

static const serve_fn serve_table[] = {
    [DD_TCP_VALIDATE] = serve_validate,
    [DD_TCP_SET] = serve_set,
    [DD_TCP_COMPARE_SET] = serve_compare_set,
    [DD_TCP_GET] = serve_get,
    [DD_TCP_ADD] = serve_add,
    [DD_TCP_CHECK] = serve_check,
    [DD_TCP_WAIT] = serve_wait,
    [DD_TCP_MEET] = serve_meet,
    [DD_TCP_NUM_KEYS] = serve_num_keys,
    [DD_TCP_DELETE_KEY] = serve_delete_key,
    [DD_TCP_APPEND] = serve_append,
    [DD_TCP_MULTI_GET] = serve_multi_get,
    [DD_TCP_MULTI_SET] = serve_multi_set,
    [DD_TCP_CANCEL_WAIT] = serve_cancel_wait,
    [DD_TCP_PING] = serve_ping,
    [DD_TCP_QUEUE_PUSH] = serve_queue_push,
    [DD_TCP_QUEUE_POP] = serve_queue_pop,
    [DD_TCP_QUEUE_LEN] = serve_queue_len,
    [DD_TCP_LIST_KEYS] = serve_list_keys,
    [DD_TCP_BARRIER] = serve_barrier,
    [DD_TCP_HELLO] = serve_hello,
    [DD_TCP_AUTH] = serve_auth,
    [DD_TCP_TRY_GET] = serve_try_get,
    [DD_TCP_WAIT_GET] = serve_wait_get,
    [DD_TCP_WAIT_POP] = serve_wait_pop,
    [DD_TCP_CHECK_EACH] = serve_check_each,
};

static bool
is_allowed_when_open(const tcp_conn *conn, uint8_t op)
{
    if (!conn->is_tagged && conn->nparked > 0 && op != DD_TCP_CANCEL_WAIT) {
        return false;
    }
    switch (op) {
    case DD_TCP_VALIDATE:
    case DD_TCP_AUTH:
        return false;
    case DD_TCP_HELLO:
        return !conn->is_extended;
    default:
        return op < DD_TCP_TRY_GET || conn->is_tagged;
    }
}

bool
tcp_serve_is_allowed(const tcp_conn *conn, uint8_t op)
{
    switch (conn->state) {
    case TCP_CONN_NEW:
        return op == DD_TCP_VALIDATE;
    case TCP_CONN_GREETED:
        return op == DD_TCP_PING || op == DD_TCP_HELLO;
    case TCP_CONN_CHALLENGED:
        return op == DD_TCP_AUTH;
    case TCP_CONN_OPEN:
        return is_allowed_when_open(conn, op);
    }
    return false;
}

void
tcp_serve(tcp_conn *conn, uint8_t op, dd_tcp_reader *reader)
{
    serve_table[op](conn, reader);
}
