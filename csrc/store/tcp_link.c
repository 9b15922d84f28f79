#include "store/tcp_link.h"

#include "core/log.h"
#include "core/mem.h"
#include "core/system.h"
#include "net/auth.h"
#include "net/sock.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define CONNECT_TRY_NS (5 * DD_NS_PER_S)
#define FIRST_RETRY_NS (250 * DD_NS_PER_US)
/* A server that is slow to come is found so soon after it has; thousands of clients still leave it time to. */
#define LAST_RETRY_NS (20 * DD_NS_PER_MS)
#define RECV_BYTES ((size_t)4096)
#define KEEP_BYTES ((size_t)64 << 10)
/* Longer than it takes to wake the server. */
#define SPIN_NS (200 * DD_NS_PER_US)

/* What a server may send us. A reply is as large as what others have stored; memory is taken only as it
 * arrives. */
static const dd_tcp_limits reply_limits = {UINT64_C(1) << 20, UINT64_C(1) << 40, UINT64_C(1) << 32,
                                           UINT64_C(1) << 42};

void
tcp_link_init(tcp_link *link)
{
    *link = (tcp_link){.fd = -1, .spin = dd_spin_make(SPIN_NS)};
    dd_list_init(&link->list);
}

void
tcp_link_close(tcp_link *link)
{
    dd_sock_close(link->fd);
    link->fd = -1;
}

void
tcp_link_destroy(tcp_link *link, bool is_forked)
{
    if (link == NULL) {
        return;
    }
    if (!is_forked) {
        tcp_link_close(link);
    }
    dd_blob_fini(&link->in);
    dd_mem_free(link);
}

/* ---- bytes */

static dd_status
lost(dd_error *err, dd_io io)
{
    return io == DD_IO_CLOSED
               ? dd_error_set(err, DD_NETWORK, "the server closed the connection (did it stop or crash?)")
               : dd_error_set_errno(err, DD_NETWORK, errno, "the connection failed");
}

dd_status
tcp_link_try_send(tcp_link *link, dd_bytes bytes, size_t *nsent, dd_error *err)
{
    while (*nsent < bytes.len) {
        size_t moved = 0;
        dd_io io = dd_sock_try_send(link->fd, bytes.data + *nsent, bytes.len - *nsent, &moved);
        if (io == DD_IO_AGAIN) {
            return DD_OK;
        }
        if (io != DD_IO_OK) {
            return lost(err, io);
        }
        *nsent += moved;
    }
    return DD_OK;
}

/* Between two looks for a reply. False: it is time to sleep. */
static bool
poll_on(tcp_link *link, int64_t began_ns)
{
    if (link->waits_since_ns == 0) {
        link->waits_since_ns = began_ns;
    }
    if (dd_clock_now_ns() - began_ns >= link->spin.budget_ns) {
        return false;
    }
    (void)dd_sys_sched_yield(); /* the server may need this core */
    return true;
}

dd_status
tcp_link_try_receive(tcp_link *link, bool is_eager, bool *is_any, dd_error *err)
{
    dd_status status = dd_blob_reserve(&link->in, RECV_BYTES, err);
    if (status != DD_OK) {
        return status;
    }
    int64_t began_ns = dd_clock_now_ns();
    size_t moved = 0;
    dd_io io;
    do {
        io = dd_sock_try_recv(link->fd, link->in.data + link->in.len, link->in.capacity - link->in.len,
                              &moved);
    } while (io == DD_IO_AGAIN && is_eager && poll_on(link, began_ns));
    *is_any = io == DD_IO_OK;
    if (io == DD_IO_AGAIN) {
        return DD_OK;
    }
    if (io != DD_IO_OK) {
        return lost(err, io);
    }
    link->in.len += moved;
    if (link->waits_since_ns != 0) {
        dd_spin_note_wait(&link->spin, dd_clock_now_ns() - link->waits_since_ns);
        link->waits_since_ns = 0;
    }
    return DD_OK;
}

/* ---- replies */

/* Scans what there is of a reply that nothing follows. */
static dd_tcp_scan_result
scan_reply(dd_tcp_scan *scan, dd_bytes bytes, dd_error *err)
{
    dd_tcp_scan_result result = dd_tcp_scan_run(scan, bytes, &reply_limits, err);
    if (result == DD_TCP_SCAN_DONE && bytes.len != scan->at) {
        (void)dd_error_set(err, DD_PROTOCOL, "the server sent more than its reply");
        return DD_TCP_SCAN_BAD;
    }
    return result;
}

/* What the server says of a request that has failed: a status and a message. */
static dd_status
reported_error(uint8_t code, dd_tcp_reader *reader, dd_error *err)
{
    dd_bytes message = dd_tcp_read_bytes(reader);
    /* Some failures can only be our own: another's word does not make a call interrupted. */
    bool is_credible = code < DD_STATUS_COUNT && code != DD_INTERRUPTED && code != DD_FORKED;
    return dd_error_set(err, is_credible ? (dd_status)code : DD_STORE, "%.*s",
                        (int)(message.len < 1000 ? message.len : 1000), (const char *)message.data);
}

dd_status
tcp_answer_read(dd_bytes answer, dd_tcp_op op, uint64_t repeats, dd_tcp_reader *reader, dd_error *err)
{
    uint8_t code = answer.data[DD_TCP_TAG_BYTES];
    const char *pattern = dd_tcp_find_op(op)->reply;
    dd_tcp_scan scan;
    if (code != DD_OK) {
        dd_tcp_scan_begin(&scan, "v", 1, DD_TCP_HEAD_BYTES);
    } else {
        dd_tcp_scan_begin(&scan, pattern != NULL ? pattern : "", repeats, DD_TCP_HEAD_BYTES);
    }
    dd_tcp_scan_result result = scan_reply(&scan, answer, err);
    if (result != DD_TCP_SCAN_DONE) {
        return result == DD_TCP_SCAN_BAD ? DD_PROTOCOL
                                         : dd_error_set(err, DD_PROTOCOL, "the server sent half a reply");
    }
    reader->at = answer.data + DD_TCP_HEAD_BYTES;
    return code == DD_OK ? DD_OK : reported_error(code, reader, err);
}

dd_status
tcp_link_send(tcp_link *link, dd_bytes request, const dd_wait *wait, dd_error *err)
{
    size_t nsent = 0;
    dd_status status = tcp_link_try_send(link, request, &nsent, err);
    while (status == DD_OK && nsent < request.len) {
        status = dd_sock_wait(link->fd, POLLOUT, wait, err);
        if (status == DD_OK) {
            status = tcp_link_try_send(link, request, &nsent, err);
        }
    }
    if (status != DD_OK) {
        tcp_link_close(link);
    }
    return status;
}

/* Receives until the scan is done, the status of an extended reply included. */
static dd_status
receive_all(tcp_link *link, dd_tcp_scan *scan, const dd_wait *wait, dd_error *err)
{
    bool is_status_due = link->is_extended;
    for (;;) {
        if (is_status_due && link->in.len > 0) {
            is_status_due = false;
            if (link->in.data[0] != DD_OK) {
                dd_tcp_scan_begin(scan, "v", 1, 1);
            }
        }
        dd_tcp_scan_result result =
            is_status_due ? DD_TCP_SCAN_MORE : scan_reply(scan, dd_blob_view(&link->in), err);
        if (result != DD_TCP_SCAN_MORE) {
            return result == DD_TCP_SCAN_DONE ? DD_OK : DD_PROTOCOL;
        }
        bool is_any = false;
        dd_status status = tcp_link_try_receive(link, true, &is_any, err);
        if (status == DD_OK && !is_any) {
            status = dd_sock_wait(link->fd, POLLIN, wait, err);
        }
        if (status != DD_OK) {
            return status;
        }
    }
}

dd_status
tcp_link_receive(tcp_link *link, dd_tcp_op op, uint64_t repeats, dd_tcp_reader *reader, const dd_wait *wait,
                 dd_error *err)
{
    dd_blob_clear(&link->in, KEEP_BYTES);
    dd_tcp_scan scan;
    dd_tcp_scan_begin(&scan, dd_tcp_find_op(op)->reply, repeats, link->is_extended ? 1 : 0);
    dd_status status = receive_all(link, &scan, wait, err);
    if (status != DD_OK) {
        tcp_link_close(link);
        return status;
    }
    reader->at = link->in.data;
    uint8_t code = link->is_extended ? dd_tcp_read_u8(reader) : DD_OK;
    return code == DD_OK ? DD_OK : reported_error(code, reader, err);
}

/* ---- opening */

/* What is said in the hand-shake, and how. */
typedef struct handshake {
    tcp_link *link;
    tcp_target *target;
    dd_blob request;
    dd_tcp_writer writer;
    const dd_wait *wait;
    dd_error *err;
} handshake;

static void
begin(handshake *shake, dd_tcp_op op)
{
    dd_blob_clear(&shake->request, KEEP_BYTES);
    dd_tcp_writer_init(&shake->writer, &shake->request, shake->err);
    dd_tcp_write_u8(&shake->writer, (uint8_t)op);
}

static dd_status
exchange(handshake *shake, dd_tcp_op op, dd_tcp_reader *reader)
{
    dd_status status = shake->writer.status;
    if (status == DD_OK) {
        status = tcp_link_send(shake->link, dd_blob_view(&shake->request), shake->wait, shake->err);
    }
    if (status == DD_OK) {
        status = tcp_link_receive(shake->link, op, 1, reader, shake->wait, shake->err);
    }
    shake->link->is_turned_away = status == DD_NETWORK;
    return status;
}

static void
show_magic(handshake *shake)
{
    begin(shake, DD_TCP_VALIDATE);
    dd_tcp_write_u32(&shake->writer, DD_TCP_MAGIC);
}

/* Shows the magic number and finds out whether the server is one of ours. */
static dd_status
greet(handshake *shake)
{
    uint16_t salt;
    dd_status status = dd_auth_random(&salt, sizeof salt, shake->err);
    if (status != DD_OK) {
        return status;
    }
    uint32_t offer = DD_TCP_OFFER | salt;
    show_magic(shake);
    dd_tcp_write_u8(&shake->writer, DD_TCP_PING);
    dd_tcp_write_u32(&shake->writer, offer);
    dd_tcp_reader reader;
    status = exchange(shake, DD_TCP_PING, &reader);
    uint32_t answer = status == DD_OK ? dd_tcp_read_u32(&reader) : offer;
    if (status == DD_PROTOCOL || (answer != offer && answer != ~offer)) {
        return dd_error_set(shake->err, DD_PROTOCOL, "what answers there is not a TCPStore");
    }
    shake->link->is_extended = answer == ~offer;
    return status;
}

/* Appended to what is said already. */
static void
write_hello(handshake *shake, const dd_auth_nonces *nonces)
{
    char host[80] = "?";
    (void)dd_sys_gethostname(host, sizeof host - 1);
    bool has_secret = shake->target->secret.len > 0;
    dd_tcp_write_u8(&shake->writer, DD_TCP_HELLO);
    dd_tcp_write_u32(&shake->writer, DD_TCP_VERSION);
    dd_tcp_write_u64(&shake->writer, (uint64_t)dd_sys_getpid());
    dd_tcp_write_bytes(&shake->writer, dd_bytes_of_string(host));
    dd_tcp_write_bytes(&shake->writer, dd_bytes_of(nonces->client, has_secret ? sizeof nonces->client : 0));
}

/* Takes what the server says of itself. */
static dd_status
note_server(tcp_target *target, dd_tcp_reader *reader, dd_error *err)
{
    uint32_t version = dd_tcp_read_u32(reader);
    if (version != DD_TCP_VERSION) {
        return dd_error_set(err, DD_PROTOCOL,
                            "the server speaks version %" PRIu32
                            " of dldist's store protocol and the client version "
                            "%d: install the same version of dldist on both",
                            version, DD_TCP_VERSION);
    }
    target->limits.max_key_bytes = dd_tcp_read_count(reader);
    target->limits.max_value_bytes = dd_tcp_read_count(reader);
    target->limits.max_keys = dd_tcp_read_count(reader);
    target->limits.max_request_bytes = dd_tcp_read_count(reader);
    (void)dd_tcp_read_bytes(reader); /* version 1 had the name of its Unix socket here */
    return DD_OK;
}

/* The server has proved itself; now the client does. */
static dd_status
prove(handshake *shake, const dd_auth_nonces *nonces)
{
    uint8_t proof[DD_SHA256_BYTES];
    dd_auth_prove(shake->target->secret, DD_AUTH_CLIENT, nonces, proof);
    begin(shake, DD_TCP_AUTH);
    dd_tcp_write_bytes(&shake->writer, dd_bytes_of(proof, sizeof proof));
    dd_tcp_reader reader;
    return exchange(shake, DD_TCP_AUTH, &reader);
}

/* `nonces` has the client's; takes the server's, and its proof. */
static dd_status
check_server(const tcp_target *target, dd_tcp_reader *reader, dd_auth_nonces *nonces, dd_error *err)
{
    dd_bytes nonce = dd_tcp_read_bytes(reader);
    dd_bytes proof = dd_tcp_read_bytes(reader);
    if (nonce.len == 0) {
        return dd_error_set(err, DD_AUTH, "the client has a secret and the server has none");
    }
    if (nonce.len != sizeof nonces->server) {
        return dd_error_set(err, DD_PROTOCOL, "the server's challenge has %zu bytes", nonce.len);
    }
    memcpy(nonces->server, nonce.data, sizeof nonces->server);
    if (!dd_auth_check(target->secret, DD_AUTH_SERVER, nonces, proof)) {
        return dd_error_set(err, DD_AUTH, "the server's secret is not the client's");
    }
    return DD_OK;
}

/* Sends what is written and the hello behind it. */
static dd_status
say_hello(handshake *shake)
{
    dd_auth_nonces nonces;
    dd_status status = dd_auth_random(nonces.client, sizeof nonces.client, shake->err);
    if (status != DD_OK) {
        return status;
    }
    write_hello(shake, &nonces);
    dd_tcp_reader reader;
    status = exchange(shake, DD_TCP_HELLO, &reader);
    if (status == DD_OK) {
        status = note_server(shake->target, &reader, shake->err);
    }
    if (status != DD_OK || shake->target->secret.len == 0) {
        return status;
    }
    status = check_server(shake->target, &reader, &nonces, shake->err);
    return status == DD_OK ? prove(shake, &nonces) : status;
}

/* Who listens at the name of a server's Unix socket is a server of ours: nothing has to be found out
 * first. */
static dd_status
shake_hands(handshake *shake, bool is_unix)
{
    shake->link->is_extended = is_unix;
    if (is_unix) {
        show_magic(shake);
        return say_hello(shake);
    }
    dd_status status = greet(shake);
    if (status != DD_OK) {
        return status;
    }
    if (shake->link->is_extended) {
        dd_blob_clear(&shake->request, KEEP_BYTES);
        return say_hello(shake);
    }
    if (shake->target->secret.len > 0) {
        return dd_error_set(shake->err, DD_AUTH,
                            "the client has a secret and the server speaks PyTorch's protocol, "
                            "which knows none");
    }
    return DD_OK;
}

/* Shakes hands over a connection that has just been made to `addr`. */
static dd_status
begin_at(tcp_link *link, tcp_target *target, const dd_addr *addr, const dd_wait *wait, dd_error *err)
{
    handshake shake = {.link = link, .target = target, .wait = wait, .err = err};
    dd_tcp_writer_init(&shake.writer, &shake.request, err);
    dd_status status = shake_hands(&shake, addr->storage.ss_family == AF_UNIX);
    dd_blob_fini(&shake.request);
    char text[DD_ADDR_TEXT_MAX];
    (void)dd_addr_print(addr, text);
    if (status != DD_OK) {
        tcp_link_close(link);
        dd_error_prepend(err, "opening the store at %s", text);
        return status;
    }
    if (target->is_known && link->is_extended != target->is_extended) {
        tcp_link_close(link);
        return dd_error_set(err, DD_PROTOCOL, "the store at %s speaks another protocol than before", text);
    }
    DD_LOG(DD_LOG_DEBUG, "store client: %s:%u: connected at %s", target->host, target->port, text);
    dd_blob_clear(&link->in, KEEP_BYTES);
    if (!target->is_known) { /* the first link, before any other thread knows the store */
        target->is_known = true;
        target->is_extended = link->is_extended;
    }
    return DD_OK;
}

/* A name may come to be known, and a server to its address, while the client tries. */
static dd_status
resolve_target(tcp_target *target, const dd_wait *wait, dd_error *err)
{
    /* A server on all addresses is reached on this machine's own. */
    const char *host = dd_addr_is_wildcard(target->host) ? "localhost" : target->host;
    return dd_addr_resolve(host, target->port, &target->addrs, wait, err);
}

static dd_status
open_at(tcp_link *link, tcp_target *target, const dd_addr *addr, const dd_wait *wait, dd_error *err)
{
    dd_status status = dd_sock_connect(addr, &link->fd, wait, err);
    return status == DD_OK ? begin_at(link, target, addr, wait, err) : status;
}

/* A server of ours on this machine is reached by its Unix socket, which costs half of what TCP does.
 * False: there is none, or of another user, who closes it to us. */
static bool
connect_unix(tcp_link *link, const dd_addr *addr, const dd_wait *wait, dd_addr *name)
{
    dd_error error;
    for (int i = 0; dd_tcp_unix_name(addr, i, name); i++) {
        if (dd_sock_connect(name, &link->fd, wait, &error) != DD_OK) {
            continue;
        }
        if (dd_sock_is_same_user(link->fd)) {
            return true;
        }
        tcp_link_close(link);
    }
    return false;
}

/* The first link decides how the server is reached. */
static dd_status
open_first_at(tcp_link *link, tcp_target *target, const dd_addr *addr, const dd_wait *wait, dd_error *err)
{
    dd_addr name;
    dd_status status;
    if (dd_sock_is_own_addr(addr) && connect_unix(link, addr, wait, &name)) {
        status = begin_at(link, target, &name, wait, err);
        target->own_addr = *addr;
    } else {
        status = open_at(link, target, addr, wait, err);
        target->own_addr = dd_sock_local_addr(link->fd);
    }
    return status;
}

/* One round over all addresses. */
static dd_status
try_addresses(tcp_link *link, tcp_target *target, const dd_wait *wait, dd_error *err)
{
    bool is_first = !target->is_known;
    dd_status status = is_first ? resolve_target(target, wait, err) : DD_OK;
    if (status != DD_OK) {
        return status;
    }
    link->is_turned_away = false;
    status = dd_error_set(err, DD_NETWORK, "the host has no address");
    for (size_t i = 0; i < target->addrs.count; i++) {
        const dd_addr *addr = &target->addrs.items[i];
        dd_wait one_try = dd_wait_at_most(wait, CONNECT_TRY_NS);
        status = is_first ? open_first_at(link, target, addr, &one_try, err)
                          : open_at(link, target, addr, &one_try, err);
        if (status != DD_NETWORK && status != DD_NETWORK_TIMED_OUT) {
            break;
        }
    }
    return status;
}

static bool
is_worth_retrying(dd_status status)
{
    return status == DD_NETWORK || status == DD_NETWORK_TIMED_OUT;
}

dd_status
tcp_link_open(tcp_link *link, tcp_target *target, const dd_wait *wait, dd_error *err)
{
    dd_error reason = {0};
    for (int64_t pause_ns = FIRST_RETRY_NS;; pause_ns *= pause_ns < LAST_RETRY_NS ? 2 : 1) {
        dd_status status = try_addresses(link, target, wait, &reason);
        /* A server that was there and is gone will not come back with our data. A server that is full is
         * still there. */
        if (!is_worth_retrying(status) || (target->is_known && !link->is_turned_away)) {
            return status == DD_OK ? DD_OK : dd_error_copy(err, &reason);
        }
        status = dd_wait_sleep(wait, pause_ns < LAST_RETRY_NS ? pause_ns : LAST_RETRY_NS, err);
        if (status != DD_OK) {
            return status;
        }
        if (dd_wait_is_over(wait)) {
            /* The opening words are c10d's: scripts look for them. */
            return dd_error_set(err, DD_NETWORK_TIMED_OUT,
                                "The client socket has timed out after %" PRId64
                                "ms while trying to connect to "
                                "(%s, %u): %s",
                                (dd_clock_now_ns() - wait->start_ns) / DD_NS_PER_MS, target->host,
                                target->port, reason.message);
        }
    }
}
