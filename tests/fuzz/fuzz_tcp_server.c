/* Two connections of a TCPStore server, without its thread. The input determines which client sends
 * which bytes in which pieces, when it reads its replies and when it closes. Its first byte
 * determines how far the connections are established. Each step has a byte for the action and, if
 * it sends, a byte for the length. */
#include "store/tcp_server_internal.h"

#include "core/fork.h"
#include "net/sock.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define MAX_INPUT_BYTES 4096u
#define NCONNS 2

enum first_byte {
    HAS_SECRET = 1,
    IS_GREETED = 2, /* the magic number was sent */
    /* hello was sent; with HAS_SECRET, the secret was proved: requests have tags */
    IS_EXTENDED = 4,
};

enum step_byte {
    CLIENT_BIT = 1,  /* the client */
    IS_LEAVING = 2,  /* closes, and a new client connects */
    KEEPS_REPLY = 4, /* does not read its replies now */
};

static const uint8_t secret[] = {'s', 'e', 's', 'a', 'm', 'e'};

#define require(condition) require_at((condition), __LINE__, #condition)

static void
require_at(bool holds, int line, const char *condition)
{
    if (!holds) {
        fprintf(stderr, "line %d: not %s (errno %d)\n", line, condition, errno);
        abort();
    }
}

/* Create a server without a thread. */
static dd_tcp_server *
create_server(bool has_secret)
{
    dd_tcp_server_options options = {
        .secret = dd_bytes_of(secret, has_secret ? sizeof secret : 0),
        .limits = {64, 1024, 32, 2048},
        .handshake_timeout_ns = DD_NEVER_NS,
    };
    dd_tcp_server *server = NULL;
    require(tcp_server_create(&server, &options, NULL) == DD_OK);
    return server;
}

static void
destroy_server(dd_tcp_server *server)
{
    require(server->nconns == 0 && server->nparked == 0);
    require(server->ks.nvalues >= 0 && (uint64_t)server->ks.nvalues <= server->ks.entries.count);
    tcp_server_free(server);
}

/* Run the server until it is idle. The number of turns is bounded: a client that does not read must
 * not keep it busy. */
static void
settle(dd_tcp_server *server)
{
    for (int i = 0; tcp_server_turn(server, 0); i++) {
        require(i < 100000);
    }
    uint64_t nparked = 0;
    for (dd_list *link = server->conns.next; link != &server->conns; link = link->next) {
        const tcp_conn *conn = DD_CONTAINER_OF(link, tcp_conn, link);
        for (const dd_list *parked = conn->parked.next; parked != &conn->parked; parked = parked->next) {
            nparked++;
        }
        require(conn->out_sent <= conn->out.len && conn->in.len <= 4 * TCP_RECV_BYTES);
    }
    require(nparked == server->nparked && dd_list_is_empty(&server->closed));
}

/* Send without waiting. A server that does not read, or has closed, receives less. */
static void
send_bytes(int fd, dd_bytes bytes)
{
    (void)!send(fd, bytes.data, bytes.len, MSG_DONTWAIT | MSG_NOSIGNAL);
}

static void
take_replies(dd_tcp_server *server, int fd)
{
    char replies[4096];
    while (recv(fd, replies, sizeof replies, MSG_DONTWAIT) > 0) {
        settle(server);
    }
}

static void
send_hello(dd_tcp_server *server, tcp_conn *conn, int fd)
{
    static const uint8_t nonce[DD_AUTH_NONCE_BYTES] = {1};
    dd_blob out = {0};
    dd_tcp_writer writer;
    dd_tcp_writer_init(&writer, &out, NULL);
    dd_tcp_write(&writer, 'b', DD_TCP_HELLO);
    dd_tcp_write(&writer, 'u', DD_TCP_VERSION);
    dd_tcp_write(&writer, 'i', 7);
    dd_tcp_write_bytes(&writer, dd_bytes_of_string("host"));
    dd_tcp_write_bytes(&writer, dd_bytes_of(nonce, sizeof nonce));
    send_bytes(fd, dd_blob_view(&out));
    settle(server);
    require(conn->is_extended);
    if (server->secret.len > 0) {
        uint8_t proof[DD_SHA256_BYTES];
        dd_auth_prove(dd_blob_view(&server->secret), DD_AUTH_STORE_CLIENT, dd_bytes_of(nonce, sizeof nonce),
                      conn->nonce, proof);
        dd_blob_clear(&out, 0);
        dd_tcp_write(&writer, 'b', DD_TCP_AUTH);
        dd_tcp_write_bytes(&writer, dd_bytes_of(proof, sizeof proof));
        send_bytes(fd, dd_blob_view(&out));
        settle(server);
    }
    require(writer.status == DD_OK && conn->is_tagged);
    dd_blob_fini(&out);
    take_replies(server, fd);
}

static int
connect_client(dd_tcp_server *server, uint8_t first)
{
    static const uint8_t validate[] = {DD_TCP_VALIDATE, 0xce, 0xf7, 0x85, 0x3c};
    int ends[2];
    require(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) == 0);
    tcp_conn_open(server, dd_fork_register(ends[0]), true, false);
    tcp_conn *conn = DD_CONTAINER_OF(server->conns.prev, tcp_conn, link);
    if (first & (IS_GREETED | IS_EXTENDED)) {
        send_bytes(ends[1], dd_bytes_of(validate, sizeof validate));
        settle(server);
    }
    if (first & IS_EXTENDED) {
        send_hello(server, conn, ends[1]);
    }
    return ends[1];
}

static void
disconnect_client(dd_tcp_server *server, int fd)
{
    close(fd);
    settle(server);
}

static void
play(dd_tcp_server *server, uint8_t first, dd_bytes rest)
{
    int clients[NCONNS];
    for (int i = 0; i < NCONNS; i++) {
        clients[i] = connect_client(server, first);
    }
    while (rest.len >= 2) {
        uint8_t step = rest.data[0];
        size_t len = rest.data[1] < rest.len - 2 ? rest.data[1] : rest.len - 2;
        int *who = &clients[step & CLIENT_BIT];
        send_bytes(*who, dd_bytes_of(rest.data + 2, len));
        rest = dd_bytes_of(rest.data + 2 + len, rest.len - 2 - len);
        if (step & IS_LEAVING) {
            disconnect_client(server, *who);
            *who = connect_client(server, first);
        }
        settle(server);
        if (!(step & KEEPS_REPLY)) {
            take_replies(server, *who);
        }
    }
    for (int i = 0; i < NCONNS; i++) {
        disconnect_client(server, clients[i]);
    }
    require(server->nconns == 0);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size > MAX_INPUT_BYTES) {
        return -1;
    }
    uint8_t first = size > 0 ? data[0] : 0;
    dd_tcp_server *server = create_server(first & HAS_SECRET);
    play(server, first, dd_bytes_of(size > 0 ? data + 1 : data, size > 0 ? size - 1 : 0));
    destroy_server(server);
    return 0;
}
