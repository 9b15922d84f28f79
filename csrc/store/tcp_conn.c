#include "store/tcp_server_internal.h"

#include "core/log.h"
#include "core/mem.h"
#include "core/system.h"
#include "net/sock.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

/* Number of unsent bytes of replies above which the server stops reading from a connection. */
#define THROTTLE_BYTES ((size_t)1 << 20)
/* Capacity of `out` kept between messages; more is freed, because most connections are idle. */
#define RETAINED_OUT_MAX_BYTES ((size_t)256)

/* The limits until a handshake is complete: small fields, and no lists of keys. */
static const dd_tcp_limits handshake_limits = {256, 256, 0, 1024};

static const dd_tcp_limits *
limits_of(const tcp_conn *conn)
{
    return conn->state == TCP_CONN_OPEN ? &conn->server->limits : &handshake_limits;
}

const char *
tcp_conn_print_name(const tcp_conn *conn, char out[TCP_CLIENT_NAME_MAX])
{
    if (conn->client[0] != '\0') {
        snprintf(out, TCP_CLIENT_NAME_MAX, "%s", conn->client);
    } else {
        char text[DD_ADDR_TEXT_MAX];
        dd_addr addr = dd_sock_peer_addr(conn->handler.fd);
        snprintf(out, TCP_CLIENT_NAME_MAX, "%.100s", dd_addr_print(&addr, text));
    }
    return out;
}

dd_status
tcp_server_watch(dd_tcp_server *server, tcp_handler *handler, uint32_t events, dd_error *err)
{
    struct epoll_event event = {.events = events, .data.ptr = handler};
    if (dd_sys_epoll_ctl(server->epoll_fd, EPOLL_CTL_ADD, handler->fd, &event) != 0) {
        return dd_error_set_errno(err, DD_SYSTEM, errno, "cannot watch fd %d", handler->fd);
    }
    return DD_OK;
}

void
tcp_server_unwatch(dd_tcp_server *server, tcp_handler *handler)
{
    (void)dd_sys_epoll_ctl(server->epoll_fd, EPOLL_CTL_DEL, handler->fd, NULL);
}

/* Record a client that failed to prove the secret, by the name that it gave, which is not verified.
 * Ranks that wait for this client can query the list. */
static void
record_refused(dd_tcp_server *server, const char *client)
{
    size_t last = 0;
    while (last < TCP_REFUSED_MAX - 1 && server->refused[last][0] != '\0' &&
           strcmp(server->refused[last], client) != 0) {
        last++;
    }
    memmove(server->refused[1], server->refused[0], last * sizeof server->refused[0]);
    snprintf(server->refused[0], sizeof server->refused[0], "%s", client);
}

void
tcp_conn_close(tcp_conn *conn, const char *why)
{
    if (conn->is_closing) {
        return;
    }
    char client[TCP_CLIENT_NAME_MAX];
    DD_LOG(DD_LOG_DEBUG, "store server: port %u: connection of %s closed: %s", conn->server->port,
           tcp_conn_print_name(conn, client), why);
    bool is_refused = conn->state != TCP_CONN_OPEN && conn->client[0] != '\0' && !conn->is_surplus;
    if (is_refused && conn->server->secret.len > 0) {
        record_refused(conn->server, conn->client);
    }
    conn->is_closing = true;
    dd_admission_end(&conn->server->admission, &conn->admission);
    tcp_server_unwatch(conn->server, &conn->handler);
    dd_sock_close(conn->handler.fd);
    conn->handler.fd = -1;
    dd_list_remove(&conn->link);
    dd_list_push_back(&conn->server->closed, &conn->link);
}

static void
free_conn(tcp_conn *conn)
{
    dd_tcp_server *server = conn->server;
    dd_list_remove(&conn->link);
    while (!dd_list_is_empty(&conn->parked)) {
        tcp_parked_end(DD_CONTAINER_OF(conn->parked.next, tcp_parked, link));
    }
    dd_seal_destroy(conn->seal);
    dd_blob_fini(&conn->in);
    dd_blob_fini(&conn->out);
    dd_mem_free(conn);
    atomic_fetch_sub_explicit(&server->nconns, 1, memory_order_relaxed);
}

void
tcp_server_reap(dd_tcp_server *server)
{
    while (!dd_list_is_empty(&server->closed)) {
        free_conn(DD_CONTAINER_OF(server->closed.next, tcp_conn, link));
    }
    atomic_store_explicit(&server->nentries, server->ks.entries.count, memory_order_relaxed);
}

/* Return false if too many replies are unsent, or if the connection is about to be closed. */
static bool
is_readable(const tcp_conn *conn)
{
    return conn->out.len - conn->out_sent <= THROTTLE_BYTES && !conn->closes_after_send;
}

static void
update_watched_events(tcp_conn *conn)
{
    uint32_t events =
        (is_readable(conn) ? (uint32_t)EPOLLIN : 0) | (conn->out.len > 0 ? (uint32_t)EPOLLOUT : 0);
    if (events != conn->watched) {
        conn->watched = events;
        struct epoll_event event = {.events = events, .data.ptr = &conn->handler};
        if (dd_sys_epoll_ctl(conn->server->epoll_fd, EPOLL_CTL_MOD, conn->handler.fd, &event) != 0) {
            dd_error why;
            (void)dd_error_set_errno(&why, DD_SYSTEM, errno, "epoll_ctl failed");
            tcp_conn_close(conn, why.message);
        }
    }
}

/* Return the seal for output. The answer to HELLO is not sealed, because the client can open sealed
 * records only after it has received this answer. */
static dd_seal *
seal_for_output(const tcp_conn *conn)
{
    return conn->is_reply_clear ? NULL : conn->seal;
}

static void
send_out(tcp_conn *conn)
{
    while (conn->out_sent < conn->out.len) {
        size_t moved = 0;
        dd_io io =
            dd_sealed_try_send(seal_for_output(conn), conn->handler.fd, conn->out.data + conn->out_sent,
                               conn->out.len - conn->out_sent, &moved);
        if (io == DD_IO_AGAIN) {
            break;
        }
        if (io != DD_IO_OK) {
            tcp_conn_close(conn, "sending a reply failed");
            return;
        }
        conn->out_sent += moved;
    }
    /* Drop sent bytes by halves: moving the rest after every send would take quadratic time. */
    if (conn->out_sent >= conn->out.len / 2) {
        dd_blob_consume(&conn->out, conn->out_sent);
        conn->out_sent = 0;
    }
    if (conn->out.len == 0) {
        dd_blob_clear(&conn->out, RETAINED_OUT_MAX_BYTES);
    }
}

void
tcp_conn_flush(tcp_conn *conn)
{
    if (!conn->is_closing && conn->out.len > 0) {
        send_out(conn);
    }
    if (!conn->is_closing && conn->out.len == 0 && conn->closes_after_send) {
        tcp_conn_close(conn, "refused");
    }
    if (!conn->is_closing) {
        update_watched_events(conn);
    }
}

/* Return the size of a request's head: a tag, if the connection has tags, and the operation. */
static size_t
head_bytes(const tcp_conn *conn)
{
    return conn->is_tagged ? DD_TCP_TAG_BYTES + 1 : 1;
}

/* Start to scan a request. Return false if its head is incomplete or its operation not allowed. */
static bool
begin_request(tcp_conn *conn, dd_bytes bytes)
{
    size_t head = head_bytes(conn);
    if (bytes.len < head) {
        return false;
    }
    if (conn->is_tagged) {
        memcpy(&conn->tag, bytes.data, sizeof conn->tag);
    }
    conn->op = bytes.data[head - 1];
    const dd_tcp_op_row *row = dd_tcp_find_op(conn->op);
    if (row == NULL || !tcp_serve_is_allowed(conn, conn->op)) {
        tcp_conn_close(conn, "operation not allowed");
        return false;
    }
    dd_tcp_scan_begin(&conn->scan, row->request, 1, head);
    return true;
}

/* Serve the request at the start of `bytes`, and set *used to its length. Return false if the
 * request is incomplete (the next call then continues its scan), or if the connection is
 * closing. */
static bool
serve_next(tcp_conn *conn, dd_bytes bytes, size_t *used)
{
    if (conn->scan.step == NULL && !begin_request(conn, bytes)) {
        return false;
    }
    dd_error err;
    dd_tcp_scan_result result = dd_tcp_scan_run(&conn->scan, bytes, limits_of(conn), &err);
    if (result == DD_TCP_SCAN_BAD) {
        tcp_conn_close(conn, err.message);
    }
    if (result != DD_TCP_SCAN_DONE) {
        return false;
    }
    *used = conn->scan.at;
    conn->scan = (dd_tcp_scan){0};
    size_t head = head_bytes(conn);
    tcp_serve(conn, conn->op, dd_bytes_of(bytes.data + head, *used - head));
    if (conn->is_reply_clear && *used < bytes.len) {
        /* An attacker on the path could have inserted these bytes before the sealed ones. */
        tcp_conn_close(conn, "unencrypted bytes after the handshake");
    }
    return true;
}

/* Serve all complete requests in `bytes`. Return the total length of these requests. */
static size_t
serve_complete(tcp_conn *conn, dd_bytes bytes)
{
    size_t done = 0;
    size_t used = 0;
    while (!conn->is_closing && is_readable(conn) &&
           serve_next(conn, dd_bytes_of(bytes.data + done, bytes.len - done), &used)) {
        done += used;
    }
    return done;
}

/* Serve all complete requests in conn->in. Return true if there were any. */
static bool
serve_buffered(tcp_conn *conn)
{
    size_t done = serve_complete(conn, dd_blob_view(&conn->in));
    dd_blob_consume(&conn->in, done);
    return done > 0;
}

/* One receive must get all bytes that a seal can hold: no event would report remaining bytes. */
_Static_assert(TCP_RECV_BYTES >= 4 * DD_SEAL_SPARSE_RECORD, "");

/* Receive and serve requests. Most requests arrive whole and are served from the receive buffer;
 * only the bytes of an incomplete request are kept in conn->in. */
static void
read_and_serve(tcp_conn *conn)
{
    uint8_t room[TCP_RECV_BYTES];
    bool is_rest = conn->in.len > 0;
    if (is_rest && serve_buffered(conn)) {
        /* These requests had waited for unsent replies: reading more would make conn->in grow. */
        return;
    }
    if (is_rest && dd_blob_reserve(&conn->in, sizeof room, NULL) != DD_OK) {
        tcp_conn_close(conn, "no memory for the request");
    }
    if (conn->is_closing) {
        return;
    }
    size_t moved = 0;
    dd_io io = dd_sealed_try_recv(conn->seal, conn->handler.fd, is_rest ? conn->in.data + conn->in.len : room,
                                  sizeof room, &moved);
    if (io == DD_IO_FORGED) {
        tcp_serve_forged(conn);
    } else if (io != DD_IO_OK && io != DD_IO_AGAIN) {
        tcp_conn_close(conn, io == DD_IO_CLOSED ? "closed by the client" : "reading failed");
    }
    if (io != DD_IO_OK) {
        return;
    }
    conn->is_reply_clear = false;
    atomic_fetch_add_explicit(&conn->server->nreads, 1, memory_order_relaxed);
    if (is_rest) {
        conn->in.len += moved;
        (void)serve_buffered(conn);
        return;
    }
    size_t done = serve_complete(conn, dd_bytes_of(room, moved));
    if (!conn->is_closing && dd_blob_append(&conn->in, room + done, moved - done, NULL) != DD_OK) {
        tcp_conn_close(conn, "no memory for the request");
    }
}

/* Read and serve once, and send the replies. Then serve the requests that remained because too many
 * replies were unsent: no event would report these requests. */
static void
serve_socket(tcp_conn *conn, uint32_t events)
{
    if (events & EPOLLIN && is_readable(conn)) {
        read_and_serve(conn);
    } else if (events & (EPOLLERR | EPOLLHUP)) {
        tcp_conn_close(conn, "connection lost");
    }
    tcp_conn_flush(conn);
    while (!conn->is_closing && conn->out.len == 0 && conn->in.len > 0 && serve_buffered(conn)) {
        tcp_conn_flush(conn);
    }
    if (conn->in.len == 0) {
        dd_blob_clear(&conn->in, 0);
    }
}

static void
on_conn_event(tcp_handler *handler, uint32_t events)
{
    tcp_conn *conn = DD_CONTAINER_OF(handler, tcp_conn, handler);
    tcp_conn_flush(conn);
    if (!conn->is_closing) {
        serve_socket(conn, events);
    }
}

void
tcp_conn_open(dd_tcp_server *server, int fd, bool is_unix, bool is_surplus)
{
    tcp_conn *conn = dd_mem_zalloc(sizeof *conn);
    if (conn == NULL) {
        dd_sock_close(fd);
        return;
    }
    conn->server = server;
    conn->is_unix = is_unix;
    conn->is_surplus = is_surplus;
    conn->handler = (tcp_handler){.fd = fd, .on_event = on_conn_event};
    conn->watched = EPOLLIN;
    if (tcp_server_watch(server, &conn->handler, EPOLLIN, NULL) != DD_OK) {
        dd_sock_close(fd);
        dd_mem_free(conn);
        return;
    }
    dd_list_push_back(&server->conns, &conn->link);
    dd_list_init(&conn->parked);
    dd_admission_begin(&server->admission, &conn->admission, false, server->handshake_timeout_ns);
    atomic_fetch_add_explicit(&server->nconns, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&server->naccepted, 1, memory_order_relaxed);
}
