/* A client's handling of replies of a TCPStore server. The first byte of the input selects the
 * operation, the second one the kind of test. Either the rest is pieces, each preceded by its
 * length: a server with one connection sends all of them, and a link receives the reply piece by
 * piece. Or the rest is one answer with its tag. Or a server on a thread sends a piece for each
 * request, and a whole store makes one call. */
#include "core/mem.h"
#include "net/sock.h"
#include "store/tcp_link.h"
#include "store/tcp_store.h"

#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/fork.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define MAX_INPUT_BYTES 4096u

enum second_byte {
    IS_EXTENDED = 1,
    IS_ANSWER = 4,
    /* Only without higher bits. Tests a whole store, which is far slower and therefore rarer. */
    IS_STORE = 2,
};

static const uint8_t ops_with_reply[] = {
#define OP_NUMBER(name, number, ...) number,
    DD_TCP_OP_LIST(OP_NUMBER)
#undef OP_NUMBER
};

static void
require(bool holds)
{
    if (!holds) {
        abort();
    }
}

/* Take the next piece. Return false at the end. */
static bool
next_piece(dd_bytes *rest, dd_bytes *piece)
{
    if (rest->len < 1) {
        return false;
    }
    size_t len = rest->data[0] < rest->len - 1 ? rest->data[0] : rest->len - 1;
    *piece = dd_bytes_of(rest->data + 1, len);
    *rest = dd_bytes_of(rest->data + 1 + len, rest->len - 1 - len);
    return true;
}

/* --- one link ------------------------------------------------------------------------------------------------ */

static volatile uint8_t sink;

/* Read every byte that a reply announces. */
static void
touch(dd_bytes bytes)
{
    for (size_t i = 0; i < bytes.len; i++) {
        sink = bytes.data[i];
    }
}

static void
read_fields(const char *pattern, uint64_t repeats, dd_tcp_reader *reader)
{
    for (const char *at = pattern; *at != '\0' && repeats > 0; at++) {
        switch (*at) {
        case 'k':
        case 'v':
            touch(dd_tcp_read_bytes(reader));
            break;
        case '?':
            if (dd_tcp_read(reader, '#') > 0) {
                read_fields(at + 1, 1, reader);
            }
            return;
        case '#':
            for (uint64_t count = dd_tcp_read(reader, '#'); count > 0; count--) {
                read_fields(at + 1, 1, reader);
            }
            return;
        case 'i':
            (void)dd_tcp_read(reader, 'i');
            break;
        case 'u':
            (void)dd_tcp_read(reader, 'u');
            break;
        default:
            sink = (uint8_t)dd_tcp_read(reader, 'b');
        }
        if (at[1] == '\0') {
            repeats--;
            at = repeats > 0 ? pattern - 1 : at;
        }
    }
}

/* Read the same bytes as the result of a store. */
static void
read_result(dd_tcp_op op, uint64_t nkeys, dd_tcp_reader reader)
{
    dd_store_result result = {0};
    dd_error err;
    if (dd_tcp_find_op(op)->store_op != DD_TCP_NO_STORE_OP) {
        require(dd_tcp_read_result(&reader, op, nkeys, &result, &err) == DD_OK);
        touch(dd_blob_view(&result.value));
        for (size_t i = 0; i < result.list.count; i++) {
            touch(dd_blob_view(&result.list.items[i]));
        }
        dd_store_result_fini(&result);
    }
}

/* Send each piece as a packet, so that they stay separate. */
static void
fuzz_link(dd_tcp_op op, bool is_extended, dd_bytes rest)
{
    int ends[2];
    require(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) == 0);
    uint64_t repeats = op == DD_TCP_MULTI_GET ? 3 : 1;
    for (dd_bytes piece; next_piece(&rest, &piece);) {
        if (piece.len > 0 && send(ends[1], piece.data, piece.len, MSG_NOSIGNAL) < 0) {
            break;
        }
    }
    close(ends[1]);
    tcp_link *link = dd_mem_zalloc(sizeof *link);
    require(link != NULL);
    tcp_link_init(link);
    link->fd = dd_fork_register(ends[0]);
    dd_wait wait = dd_wait_after(DD_NS_PER_S);
    tcp_reply reply = {.op = op, .repeats = repeats, .head = is_extended ? 1 : 0};
    dd_error err;
    dd_status status = tcp_link_exchange(link, (dd_bytes){0}, &reply, &wait, &err);
    if (status == DD_OK) {
        read_result(op, repeats, reply.reader);
        read_fields(dd_tcp_find_op(op)->reply, repeats, &reply.reader);
        size_t used = (size_t)(reply.reader.at - link->in.data);
        require(used == link->in.len);
    } else {
        require(err.code == status && memchr(err.message, '\0', sizeof err.message) != NULL);
    }
    tcp_link_destroy(link, false);
}

/* The whole input is one answer of a tagged connection. */
static void
fuzz_answer(dd_tcp_op op, dd_bytes answer)
{
    uint64_t repeats = op == DD_TCP_MULTI_GET ? 3 : 1;
    const char *pattern = dd_tcp_find_op(op)->reply;
    tcp_reply reply = {.op = op, .repeats = repeats, .head = DD_TCP_HEAD_BYTES};
    bool is_whole = false;
    dd_error err;
    if (answer.len < DD_TCP_HEAD_BYTES) {
        return;
    }
    dd_status status = tcp_reply_read(&reply, answer, &is_whole, &err);
    if (status == DD_OK && is_whole) {
        read_result(op, repeats, reply.reader);
        read_fields(pattern != NULL ? pattern : "", repeats, &reply.reader);
        require(reply.reader.at == answer.data + answer.len);
    } else if (status != DD_OK) {
        require(err.code == status && memchr(err.message, '\0', sizeof err.message) != NULL);
    }
}

/* --- a whole store ------------------------------------------------------------------------------------------- */

/* The server, shared by all inputs. */
typedef struct fake {
    pthread_t thread;
    int listen_fd;
    uint16_t port;
    pthread_mutex_t mu;
    /* guarded by mu */
    bool is_extended;
    dd_bytes rest;
} fake;

/* Copy the next piece, because the input may be freed before it is sent. Return its length, or -1
 * at the end. */
static ssize_t
take_piece(fake *self, uint8_t copy[UINT8_MAX])
{
    dd_bytes piece = {0};
    pthread_mutex_lock(&self->mu);
    bool is_there = next_piece(&self->rest, &piece);
    if (is_there && piece.len > 0) {
        memcpy(copy, piece.data, piece.len);
    }
    pthread_mutex_unlock(&self->mu);
    return is_there ? (ssize_t)piece.len : -1;
}

/* Answer the magic number and the hello. */
static bool
greet(fake *self, int fd)
{
    uint8_t request[10];
    if (recv(fd, request, sizeof request, MSG_WAITALL) != (ssize_t)sizeof request) {
        return false;
    }
    pthread_mutex_lock(&self->mu);
    uint8_t flip = self->is_extended ? 0xff : 0;
    pthread_mutex_unlock(&self->mu);
    for (size_t i = 6; i < sizeof request; i++) {
        request[i] ^= flip;
    }
    return send(fd, request + 6, 4, MSG_NOSIGNAL) == 4;
}

/* Send one piece per request. If no request arrives, send another one: the last piece may have been
 * a part of a reply. */
static void
serve(fake *self, int fd)
{
    char request[8192];
    uint8_t piece[UINT8_MAX];
    if (!greet(self, fd)) {
        return;
    }
    for (;;) {
        struct pollfd pollfd = {.fd = fd, .events = POLLIN};
        struct timespec pause = {.tv_nsec = 200 * DD_NS_PER_US};
        if (ppoll(&pollfd, 1, &pause, NULL) > 0 && recv(fd, request, sizeof request, MSG_DONTWAIT) <= 0) {
            return;
        }
        ssize_t len = take_piece(self, piece);
        if (len < 0 || send(fd, piece, (size_t)len, MSG_NOSIGNAL) < 0) {
            return;
        }
    }
}

static void *
fake_main(void *arg)
{
    fake *self = arg;
    for (;;) {
        int fd = accept4(self->listen_fd, NULL, NULL, SOCK_CLOEXEC);
        require(fd >= 0);
        serve(self, fd);
        close(fd);
    }
    return NULL;
}

static void
start_fake(fake *self)
{
    struct sockaddr_in in = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t in_len = sizeof in;
    require(pthread_mutex_init(&self->mu, NULL) == 0);
    self->listen_fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    require(bind(self->listen_fd, (struct sockaddr *)&in, sizeof in) == 0 &&
            listen(self->listen_fd, 64) == 0);
    require(getsockname(self->listen_fd, (struct sockaddr *)&in, &in_len) == 0);
    self->port = ntohs(in.sin_port);
    require(pthread_create(&self->thread, NULL, fake_main, self) == 0);
}

static dd_bytes
key_at(size_t i)
{
    static const char *const keys[] = {"a", "bb", ""};
    return dd_bytes_of_string(keys[i]);
}

/* Make one call with a short deadline, because a valid reply may never arrive. */
static void
make_call(dd_store *store, uint8_t which)
{
    static const dd_store_op ops[] = {
        DD_STORE_GET,       DD_STORE_TRY_GET,    DD_STORE_ADD,        DD_STORE_COMPARE_SET,
        DD_STORE_WAIT,      DD_STORE_CHECK,      DD_STORE_DELETE_KEY, DD_STORE_NUM_KEYS,
        DD_STORE_MULTI_GET, DD_STORE_QUEUE_PUSH, DD_STORE_QUEUE_POP,  DD_STORE_QUEUE_LEN,
        DD_STORE_LIST_KEYS, DD_STORE_BARRIER,
    };
    const dd_bytes keys[] = {key_at(0), key_at(1), key_at(2)};
    dd_store_op op = ops[which % 14];
    bool has_many = op == DD_STORE_WAIT || op == DD_STORE_CHECK || op == DD_STORE_MULTI_GET;
    bool is_alone = op == DD_STORE_NUM_KEYS || op == DD_STORE_LIST_KEYS;
    dd_store_request request = {
        .op = op,
        .keys = keys,
        .nkeys = has_many   ? 3
                 : is_alone ? 0
                            : 1,
        .values = keys + 1,
        .number = op == DD_STORE_ADD         ? 1
                  : op == DD_STORE_BARRIER   ? 2
                  : op == DD_STORE_QUEUE_POP ? (which & 16) != 0
                                             : 0,
    };
    dd_store_result result = {0};
    dd_wait wait = dd_wait_after(DD_NS_PER_MS);
    dd_error err;
    dd_status status = dd_store_run(store, &request, &result, &wait, &err);
    require(status == DD_OK || (err.code == status && err.message[0] != '\0'));
    touch(dd_blob_view(&result.value));
    for (size_t i = 0; i < result.list.count; i++) {
        touch(dd_blob_view(&result.list.items[i]));
    }
    dd_store_result_fini(&result);
}

static void
fuzz_store(fake *server, uint8_t which, bool is_extended, dd_bytes rest)
{
    pthread_mutex_lock(&server->mu);
    server->is_extended = is_extended;
    server->rest = rest;
    pthread_mutex_unlock(&server->mu);
    dd_tcp_store_options options = {.host = "127.0.0.1", .port = server->port, .world_size = -1};
    dd_wait wait = dd_wait_after(DD_NS_PER_MS);
    dd_store *store = NULL;
    dd_error err;
    if (dd_tcp_store_open(&store, &options, &wait, &err) == DD_OK) {
        make_call(store, which);
    }
    dd_store_release(store);
    pthread_mutex_lock(&server->mu);
    server->rest = (dd_bytes){0};
    pthread_mutex_unlock(&server->mu);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static fake server;
    if (size > MAX_INPUT_BYTES || size < 2) {
        return -1;
    }
    dd_bytes rest = dd_bytes_of(data + 2, size - 2);
    bool is_extended = data[1] & IS_EXTENDED;
    if ((data[1] & ~(unsigned)IS_EXTENDED) == IS_STORE) {
        if (server.port == 0) {
            start_fake(&server);
        }
        fuzz_store(&server, data[0], is_extended, rest);
        return 0;
    }
    dd_tcp_op op = (dd_tcp_op)ops_with_reply[data[0] % sizeof ops_with_reply];
    if (data[1] & IS_ANSWER) {
        fuzz_answer(op, rest);
    } else if (dd_tcp_find_op(op)->reply != NULL) {
        fuzz_link(op, is_extended, rest);
    }
    return 0;
}
