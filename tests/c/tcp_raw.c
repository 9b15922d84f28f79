#include "tcp_raw.h"

#include "check.h"
#include "store/tcp_protocol.h"

#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#define PATIENCE_S 5

static void
pack_field(dd_tcp_writer *writer, char letter, va_list *args)
{
    switch (letter) {
    case 'k':
    case 'v':
        dd_tcp_write_bytes(writer, dd_bytes_of_string(va_arg(*args, const char *)));
        break;
    case 'K':
        dd_tcp_write_bytes(writer, va_arg(*args, dd_bytes));
        break;
    case 'u':
        dd_tcp_write(writer, 'u', va_arg(*args, unsigned));
        break;
    case 'b':
        dd_tcp_write(writer, 'b', (uint8_t)va_arg(*args, int));
        break;
    default:
        dd_tcp_write(writer, 'i', (uint64_t)va_arg(*args, long long));
    }
}

static void
pack_all(dd_blob *out, const char *fields, va_list *args)
{
    dd_tcp_writer writer;
    dd_tcp_writer_init(&writer, out, NULL);
    for (; *fields != '\0'; fields++) {
        pack_field(&writer, *fields, args);
    }
    CHECK(writer.status == DD_OK);
}

void
raw_pack(dd_blob *out, const char *fields, ...)
{
    va_list args;
    va_start(args, fields);
    pack_all(out, fields, &args);
    va_end(args);
}

dd_tcp_server_options
raw_options(void)
{
    return (dd_tcp_server_options){
        .host = "127.0.0.1",
        .listen_fd = -1,
        .limits = DD_TCP_LIMITS_DEFAULT,
        .handshake_timeout_ns = 30 * DD_NS_PER_S,
    };
}

dd_tcp_server *
raw_server(const dd_tcp_server_options *options)
{
    dd_tcp_server *server = NULL;
    dd_wait wait = dd_wait_after(5 * DD_NS_PER_S);
    if (!CHECK_OK(dd_tcp_server_open(&server, options, &wait, check_err()))) {
        exit(1);
    }
    return server;
}

int
raw_connect(uint16_t port)
{
    struct sockaddr_in in = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr = {htonl(INADDR_LOOPBACK)}};
    struct timeval patience = {.tv_sec = PATIENCE_S * check_slow()};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(fd >= 0);
    (void)setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    (void)setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
    CHECK(connect(fd, (struct sockaddr *)&in, sizeof in) == 0);
    return fd;
}

int
raw_open(uint16_t port)
{
    int fd = raw_connect(port);
    raw_ask(fd, DD_TCP_VALIDATE, "u", DD_TCP_MAGIC);
    return fd;
}

void
raw_send(int fd, dd_bytes bytes)
{
    while (bytes.len > 0) {
        ssize_t sent = sendto(fd, bytes.data, bytes.len, MSG_NOSIGNAL, NULL, 0);
        if (!CHECK(sent > 0)) {
            return;
        }
        bytes.data += sent;
        bytes.len -= (size_t)sent;
    }
}

void
raw_ask(int fd, int op, const char *fields, ...)
{
    dd_blob out = {0};
    raw_pack(&out, "b", op);
    va_list args;
    va_start(args, fields);
    pack_all(&out, fields, &args);
    va_end(args);
    raw_send(fd, dd_blob_view(&out));
    dd_blob_fini(&out);
}

static size_t
receive(int fd, uint8_t *data, size_t len)
{
    size_t done = 0;
    while (done < len) {
        ssize_t got = recv(fd, data + done, len - done, 0);
        if (got <= 0) {
            break;
        }
        done += (size_t)got;
    }
    return done;
}

static bool
expect_bytes(int fd, dd_bytes expected)
{
    uint8_t *data = malloc(expected.len + 1);
    bool is_equal = CHECK(data != NULL);
    if (data != NULL) {
        size_t len = receive(fd, data, expected.len);
        is_equal = CHECK_BYTES(dd_bytes_of(data, len), expected);
    }
    free(data);
    return is_equal;
}

bool
raw_expect(int fd, const char *fields, ...)
{
    dd_blob expected = {0};
    va_list args;
    va_start(args, fields);
    pack_all(&expected, fields, &args);
    va_end(args);
    bool is_equal = expect_bytes(fd, dd_blob_view(&expected));
    dd_blob_fini(&expected);
    return is_equal;
}

void
raw_ask_tagged(int fd, unsigned tag, int op, const char *fields, ...)
{
    dd_blob out = {0};
    raw_pack(&out, "ub", tag, op);
    va_list args;
    va_start(args, fields);
    pack_all(&out, fields, &args);
    va_end(args);
    raw_send(fd, dd_blob_view(&out));
    dd_blob_fini(&out);
}

bool
raw_expect_answer(int fd, unsigned tag, int status, const char *fields, ...)
{
    dd_blob body = {0};
    dd_blob expected = {0};
    va_list args;
    va_start(args, fields);
    pack_all(&body, fields, &args);
    va_end(args);
    raw_pack(&expected, "ubi", tag, status, (long long)body.len);
    CHECK_OK(dd_blob_append(&expected, body.data, body.len, check_err()));
    bool is_equal = expect_bytes(fd, dd_blob_view(&expected));
    dd_blob_fini(&expected);
    dd_blob_fini(&body);
    return is_equal;
}

bool
raw_is_closed(int fd)
{
    uint8_t data[256];
    ssize_t got;
    while ((got = recv(fd, data, sizeof data, 0)) > 0) {
    }
    return got == 0 || errno == ECONNRESET;
}

bool
raw_is_silent(int fd)
{
    struct pollfd pollfd = {.fd = fd, .events = POLLIN};
    return poll(&pollfd, 1, 30) == 0;
}
