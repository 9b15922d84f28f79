#include "store/tcp_link.h"

#include "core/log.h"
#include "net/auth.h"
#include "net/sock.h"

#include <errno.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define CONNECT_TRY_NS (5 * DD_NS_PER_S)
#define FIRST_RETRY_NS (250 * DD_NS_PER_US)
#define LAST_RETRY_NS (100 * DD_NS_PER_MS)
#define RECV_BYTES ((size_t)4096)
#define KEEP_BYTES ((size_t)64 << 10)
/* Longer than it takes to wake the server. */
#define SPIN_NS (200 * DD_NS_PER_US)
#define RING_NAP_NS (100 * DD_NS_PER_US)
#define RING_LOOK_NS (1 * DD_NS_PER_MS)

/* What a server may send us. A reply is as large as what others have stored; memory is taken only as it
 * arrives. */
static const dd_tcp_limits reply_limits = {UINT64_C(1) << 20, UINT64_C(1) << 40, UINT64_C(1) << 32,
                                           UINT64_C(1) << 42};

void
tcp_link_init(tcp_link *link)
{
    *link = (tcp_link){.fd = -1, .passed_fd = -1, .spin = dd_spin_make(SPIN_NS)};
    dd_list_init(&link->list);
}

void
tcp_link_close(tcp_link *link)
{
    dd_ring_close(&link->ring);
    dd_sock_close(link->fd);
    link->fd = -1;
    link->nunanswered = 0;
    link->is_receiving = false;
}

void
tcp_link_fini(tcp_link *link, bool is_forked)
{
    if (!is_forked) {
        tcp_link_close(link);
    }
    dd_blob_fini(&link->out);
    dd_blob_fini(&link->in);
}

/* ---- one request */

dd_tcp_writer
tcp_link_begin(tcp_link *link, dd_tcp_op op, dd_error *err)
{
    dd_tcp_writer writer;
    dd_blob_clear(&link->out, KEEP_BYTES);
    dd_tcp_writer_init(&writer, &link->out, err);
    if (dd_ring_is_open(&link->ring)) {
        dd_tcp_write_u64(&writer, (uint64_t)dd_clock_now_ns());
    }
    dd_tcp_write_u8(&writer, (uint8_t)op);
    return writer;
}

size_t
tcp_link_request_len(const tcp_link *link)
{
    return link->out.len - (dd_ring_is_open(&link->ring) ? sizeof(int64_t) : 0);
}

static dd_status
lost(dd_error *err, dd_io io)
{
    return io == DD_IO_CLOSED
               ? dd_error_set(err, DD_NETWORK, "the server closed the connection (did it stop or crash?)")
               : dd_error_set_errno(err, DD_NETWORK, errno, "the connection failed");
}

static dd_status
send_by_socket(tcp_link *link, const dd_wait *wait, dd_error *err)
{
    dd_status status = DD_OK;
    for (size_t sent = 0; sent < link->out.len && status == DD_OK;) {
        size_t moved = 0;
        dd_io io = dd_sock_try_send(link->fd, link->out.data + sent, link->out.len - sent, &moved);
        if (io == DD_IO_AGAIN) {
            status = dd_sock_wait(link->fd, POLLOUT, wait, err);
        } else if (io != DD_IO_OK) {
            status = lost(err, io);
        }
        sent += moved;
    }
    return status;
}

/* No reply is due while a request is sent: all that can be read then is the end. */
static dd_status
look_whether_lost(tcp_link *link, int64_t now_ns, dd_error *err)
{
    link->looked_at_ns = now_ns;
    uint8_t byte;
    size_t moved = 0;
    dd_io io = dd_sock_try_recv(link->fd, &byte, 1, &moved);
    if (io == DD_IO_OK) {
        return dd_error_set(err, DD_PROTOCOL, "the server sent what nobody asked for");
    }
    return io == DD_IO_AGAIN ? DD_OK : lost(err, io);
}

/* The ring is full. The server empties it in less time than it takes to sleep and wake; if it does not, it is
 * looked after whether it is there at all. */
static dd_status
wait_for_room(tcp_link *link, const dd_wait *wait, dd_error *err)
{
    int64_t until_ns = dd_clock_now_ns() + dd_spin_start(&link->spin);
    while (dd_clock_now_ns() < until_ns) {
        if (dd_ring_has_room(&link->ring)) {
            return DD_OK;
        }
        dd_spin_yield(&link->spin);
    }
    dd_wait nap = dd_wait_at_most(wait, RING_NAP_NS);
    dd_status status = dd_sock_wait(link->fd, POLLIN, &nap, err);
    if (status == DD_OK) {
        return look_whether_lost(link, dd_clock_now_ns(), err);
    }
    return status == DD_NETWORK_TIMED_OUT && !dd_wait_is_over(wait) ? DD_OK : status;
}

static dd_status
ring_bell(tcp_link *link, dd_error *err)
{
    uint8_t bell = 0;
    size_t moved = 0;
    dd_io io = dd_sock_try_send(link->fd, &bell, 1, &moved);
    /* A socket full of bells wakes the server as well as one more would. */
    return io == DD_IO_OK || io == DD_IO_AGAIN ? DD_OK : lost(err, io);
}

static dd_status
send_by_ring(tcp_link *link, const dd_wait *wait, dd_error *err)
{
    dd_status status = DD_OK;
    if (wait->start_ns - link->looked_at_ns > RING_LOOK_NS) {
        status = look_whether_lost(link, wait->start_ns, err);
    }
    for (size_t sent = 0; sent < link->out.len && status == DD_OK;) {
        size_t moved = dd_ring_write(&link->ring, link->out.data + sent, link->out.len - sent);
        sent += moved;
        if (dd_ring_is_bell_due(&link->ring)) {
            status = ring_bell(link, err);
        } else if (moved == 0) {
            status = wait_for_room(link, wait, err);
        }
    }
    return status;
}

dd_status
tcp_link_send(tcp_link *link, const dd_wait *wait, dd_error *err)
{
    dd_status status =
        dd_ring_is_open(&link->ring) ? send_by_ring(link, wait, err) : send_by_socket(link, wait, err);
    if (status != DD_OK) {
        tcp_link_close(link);
        return status;
    }
    link->nunanswered++;
    return DD_OK;
}

static dd_io
try_receive(tcp_link *link, void *into, size_t len, size_t *moved)
{
    if (!link->is_fd_expected) {
        return dd_sock_try_recv(link->fd, into, len, moved);
    }
    int fd;
    dd_io io = dd_sock_try_recv_fd(link->fd, into, len, &fd, moved);
    if (io == DD_IO_OK && fd >= 0) {
        dd_sock_close(link->passed_fd);
        link->passed_fd = fd;
    }
    return io;
}

/* Polls for bytes for a while before it gives up with DD_IO_AGAIN: a reply that comes meanwhile saves two context
 * switches. */
static dd_io
recv_spinning(tcp_link *link, void *into, size_t len, size_t *moved)
{
    int64_t began_ns = dd_clock_now_ns();
    int64_t budget_ns = dd_spin_start(&link->spin);
    dd_io io = DD_IO_AGAIN;
    int64_t waited_ns = 0;
    while (io == DD_IO_AGAIN && waited_ns < budget_ns) {
        /* The ring tells without a system call that the server has not come to the request yet. */
        if (!dd_ring_is_open(&link->ring) || dd_ring_is_all_read(&link->ring)) {
            io = try_receive(link, into, len, moved);
        }
        if (io == DD_IO_AGAIN) {
            dd_spin_yield(&link->spin);
        }
        waited_ns = dd_clock_now_ns() - began_ns;
    }
    if (io == DD_IO_AGAIN) {
        return try_receive(link, into, len, moved);
    }
    return io;
}

/* Adds at least one byte to `in`. */
static dd_status
receive_more(tcp_link *link, const dd_wait *wait, dd_error *err)
{
    dd_status status = dd_blob_reserve(&link->in, RECV_BYTES, err);
    while (status == DD_OK) {
        size_t moved = 0;
        dd_io io =
            recv_spinning(link, link->in.data + link->in.len, link->in.capacity - link->in.len, &moved);
        if (io == DD_IO_OK) {
            link->in.len += moved;
            return DD_OK;
        }
        status = io == DD_IO_AGAIN ? dd_sock_wait(link->fd, POLLIN, wait, err) : lost(err, io);
    }
    return status;
}

static dd_status
reported_error(const tcp_link *link, dd_error *err)
{
    dd_tcp_reader reader = {link->in.data};
    uint8_t code = dd_tcp_read_u8(&reader);
    dd_bytes message = dd_tcp_read_bytes(&reader);
    /* Some failures can only be our own: another's word does not make a call interrupted. */
    bool is_credible = code < DD_STATUS_COUNT && code != DD_INTERRUPTED && code != DD_FORKED;
    return dd_error_set(err, is_credible ? (dd_status)code : DD_STORE, "%.*s",
                        (int)(message.len < 1000 ? message.len : 1000), (const char *)message.data);
}

static void
begin_reply(tcp_link *link, dd_tcp_op op, uint64_t repeats)
{
    dd_blob_clear(&link->in, KEEP_BYTES);
    dd_tcp_scan_begin(&link->scan, dd_tcp_reply_pattern(op), repeats, link->is_extended ? 1 : 0);
    link->is_error = false;
    link->is_receiving = true;
}

/* Scans what has arrived of a reply; the first byte of an extended one tells which of two patterns it has. */
static dd_tcp_scan_result
scan_reply(tcp_link *link, dd_error *err)
{
    size_t head = link->is_extended ? 1 : 0;
    if (link->in.len < head) {
        return DD_TCP_SCAN_MORE;
    }
    if (head == 1 && link->in.data[0] != DD_OK && !link->is_error) {
        link->is_error = true;
        dd_tcp_scan_begin(&link->scan, "v", 1, head);
    }
    dd_tcp_scan_result result = dd_tcp_scan_run(&link->scan, dd_blob_view(&link->in), &reply_limits, err);
    if (result == DD_TCP_SCAN_DONE && link->in.len != link->scan.at) {
        (void)dd_error_set(err, DD_PROTOCOL, "the server sent more than its reply");
        return DD_TCP_SCAN_BAD;
    }
    return result;
}

/* Whether the reply may still come after this failure. */
static bool
is_only_late(dd_status status)
{
    return status == DD_NETWORK_TIMED_OUT || status == DD_INTERRUPTED;
}

dd_status
tcp_link_receive(tcp_link *link, dd_tcp_op op, uint64_t repeats, dd_tcp_reader *reader, const dd_wait *wait,
                 dd_error *err)
{
    if (!link->is_receiving) {
        begin_reply(link, op, repeats);
    }
    for (;;) {
        dd_tcp_scan_result result = scan_reply(link, err);
        if (result == DD_TCP_SCAN_BAD) {
            tcp_link_close(link);
            return DD_PROTOCOL;
        }
        if (result == DD_TCP_SCAN_DONE) {
            break;
        }
        dd_status status = receive_more(link, wait, err);
        if (status != DD_OK) {
            if (!is_only_late(status)) {
                tcp_link_close(link);
            }
            return status;
        }
    }
    link->nunanswered = 0;
    link->is_receiving = false;
    reader->at = link->in.data;
    if (link->is_extended) {
        reader->at++; /* past the status */
    }
    return link->is_error ? reported_error(link, err) : DD_OK;
}

/* A request and its reply, while the link is being opened. When it fails the reply may still come: the caller
 * closes the link, unless the failure is one that the server reported. */
static dd_status
exchange(tcp_link *link, const dd_tcp_writer *writer, dd_tcp_op op, dd_tcp_reader *reader,
         const dd_wait *wait, dd_error *err)
{
    dd_status status = writer->status;
    if (status == DD_OK) {
        status = tcp_link_send(link, wait, err);
    }
    if (status == DD_OK) {
        status = tcp_link_receive(link, op, 1, reader, wait, err);
    }
    link->is_turned_away = status == DD_NETWORK;
    return status;
}

/* ---- opening */

/* Shows the magic number and finds out whether the server is one of ours. */
static dd_status
greet(tcp_link *link, const dd_wait *wait, dd_error *err)
{
    uint16_t salt;
    dd_status status = dd_auth_random(&salt, sizeof salt, err);
    if (status != DD_OK) {
        return status;
    }
    uint32_t offer = DD_TCP_OFFER | salt;
    dd_tcp_writer writer = tcp_link_begin(link, DD_TCP_VALIDATE, err);
    dd_tcp_write_u32(&writer, DD_TCP_MAGIC);
    dd_tcp_write_u8(&writer, DD_TCP_PING);
    dd_tcp_write_u32(&writer, offer);
    dd_tcp_reader reader;
    status = exchange(link, &writer, DD_TCP_PING, &reader, wait, err);
    if (status == DD_PROTOCOL) {
        return dd_error_set(err, DD_PROTOCOL, "what answers there is not a TCPStore");
    }
    if (status != DD_OK) {
        return status;
    }
    uint32_t answer = dd_tcp_read_u32(&reader);
    if (answer != offer && answer != ~offer) {
        return dd_error_set(err, DD_PROTOCOL, "what answers there is not a TCPStore");
    }
    link->is_extended = answer == ~offer;
    return DD_OK;
}

static dd_status
send_hello(tcp_link *link, const tcp_target *target, const dd_auth_nonces *nonces, dd_tcp_reader *reader,
           const dd_wait *wait, dd_error *err)
{
    char host[80] = "?";
    (void)gethostname(host, sizeof host - 1);
    bool has_secret = target->secret.len > 0;
    dd_tcp_writer writer = tcp_link_begin(link, DD_TCP_HELLO, err);
    dd_tcp_write_u32(&writer, DD_TCP_VERSION);
    dd_tcp_write_u64(&writer, (uint64_t)getpid());
    dd_tcp_write_bytes(&writer, dd_bytes_of_string(host));
    dd_tcp_write_bytes(&writer, dd_bytes_of(nonces->client, has_secret ? sizeof nonces->client : 0));
    return exchange(link, &writer, DD_TCP_HELLO, reader, wait, err);
}

/* Takes what the server says of itself. A server other than the one that was there before is not the same
 * store. */
static dd_status
note_server(tcp_target *target, dd_tcp_reader *reader, dd_error *err)
{
    (void)dd_tcp_read_u32(reader); /* its version: there is only one yet */
    dd_tcp_limits limits = {0};
    limits.max_key_bytes = dd_tcp_read_count(reader);
    limits.max_value_bytes = dd_tcp_read_count(reader);
    limits.max_keys = dd_tcp_read_count(reader);
    limits.max_request_bytes = dd_tcp_read_count(reader);
    char id[sizeof target->server_id];
    dd_bytes_print(dd_tcp_read_bytes(reader), id, sizeof id);
    if (!target->is_known) {
        target->limits = limits;
        memcpy(target->server_id, id, sizeof id);
    } else if (strcmp(target->server_id, id) != 0) {
        return dd_error_set(err, DD_NETWORK, "another server answers there now: the store is gone");
    }
    return DD_OK;
}

/* The server has proved itself; now the client does. */
static dd_status
prove(tcp_link *link, const tcp_target *target, const dd_auth_nonces *nonces, const dd_wait *wait,
      dd_error *err)
{
    uint8_t proof[DD_SHA256_BYTES];
    dd_auth_prove(target->secret, DD_AUTH_CLIENT, nonces, proof);
    dd_tcp_writer writer = tcp_link_begin(link, DD_TCP_AUTH, err);
    dd_tcp_write_bytes(&writer, dd_bytes_of(proof, sizeof proof));
    dd_tcp_reader reader;
    return exchange(link, &writer, DD_TCP_AUTH, &reader, wait, err);
}

static dd_status
say_hello(tcp_link *link, tcp_target *target, const dd_wait *wait, dd_error *err)
{
    dd_auth_nonces nonces;
    dd_status status = dd_auth_random(nonces.client, sizeof nonces.client, err);
    if (status != DD_OK) {
        return status;
    }
    dd_tcp_reader reader;
    status = send_hello(link, target, &nonces, &reader, wait, err);
    if (status == DD_OK) {
        status = note_server(target, &reader, err);
    }
    if (status != DD_OK || target->secret.len == 0) {
        return status;
    }
    dd_bytes nonce = dd_tcp_read_bytes(&reader);
    dd_bytes proof = dd_tcp_read_bytes(&reader);
    if (nonce.len == 0) {
        return dd_error_set(err, DD_AUTH, "the client has a secret and the server has none");
    }
    if (nonce.len != sizeof nonces.server) {
        return dd_error_set(err, DD_PROTOCOL, "the server's challenge has %zu bytes", nonce.len);
    }
    memcpy(nonces.server, nonce.data, sizeof nonces.server);
    if (!dd_auth_check(target->secret, DD_AUTH_SERVER, &nonces, proof)) {
        return dd_error_set(err, DD_AUTH, "the server's secret is not the client's");
    }
    return prove(link, target, &nonces, wait, err);
}

static dd_status
shake_hands(tcp_link *link, tcp_target *target, const dd_wait *wait, dd_error *err)
{
    link->is_extended = false; /* until the server says otherwise: replies carry no status yet */
    dd_status status = greet(link, wait, err);
    if (status != DD_OK) {
        return status;
    }
    if (link->is_extended) {
        return say_hello(link, target, wait, err);
    }
    if (target->secret.len > 0) {
        return dd_error_set(err, DD_AUTH,
                            "the client has a secret and the server speaks PyTorch's protocol, "
                            "which knows none");
    }
    return DD_OK;
}

static dd_status
ask_for_ring(tcp_link *link, const dd_wait *wait, dd_error *err)
{
    dd_tcp_writer writer = tcp_link_begin(link, DD_TCP_RING, err);
    dd_tcp_write_u64(&writer, (uint64_t)dd_clock_now_ns());
    dd_tcp_reader reader;
    link->is_fd_expected = true;
    dd_status status = exchange(link, &writer, DD_TCP_RING, &reader, wait, err);
    link->is_fd_expected = false;
    if (status == DD_OK) {
        int64_t size = dd_tcp_read_i64(&reader);
        status = size == (int64_t)DD_TCP_RING_BYTES
                     ? dd_ring_attach(&link->ring, DD_TCP_RING_BYTES, link->passed_fd, err)
                     : dd_error_set(err, DD_PROTOCOL, "the server's ring has %" PRId64 " bytes", size);
    }
    dd_sock_close(link->passed_fd);
    link->passed_fd = -1;
    return status;
}

void
tcp_link_add_ring(tcp_link *link, const dd_wait *wait)
{
    dd_error error;
    dd_status status = ask_for_ring(link, wait, &error);
    if (status == DD_OK) {
        return;
    }
    DD_LOG(DD_LOG_DEBUG, "store client: no ring: %s", error.message);
    if (status != DD_NOT_SUPPORTED) {
        /* The server may listen to a ring that is not there, or may still answer. */
        tcp_link_close(link);
    }
}

static dd_status
open_at(tcp_link *link, tcp_target *target, const dd_addr *addr, const dd_wait *wait, dd_error *err)
{
    link->is_turned_away = false;
    dd_status status = dd_sock_connect(addr, &link->fd, wait, err);
    if (status != DD_OK) {
        return status;
    }
    status = shake_hands(link, target, wait, err);
    if (status != DD_OK) {
        tcp_link_close(link);
        char text[DD_ADDR_TEXT_MAX];
        dd_error_prepend(err, "opening the store at %s", dd_addr_print(addr, text));
    } else if (!target->is_known) {
        target->is_known = true;
        target->is_extended = link->is_extended;
    }
    return status;
}

/* On the host of the server its Unix socket costs half of what TCP does. Elsewhere the name leads nowhere. */
static dd_status
open_unix(tcp_link *link, tcp_target *target, const dd_wait *wait, dd_error *err)
{
    dd_addr addr = dd_addr_unix_abstract(target->server_id);
    return open_at(link, target, &addr, wait, err);
}

static void
upgrade_to_unix(tcp_link *link, tcp_target *target, const dd_wait *wait)
{
    tcp_link local;
    tcp_link_init(&local);
    dd_error error;
    if (open_unix(&local, target, wait, &error) == DD_OK) {
        tcp_link_close(link);
        link->fd = local.fd;
        local.fd = -1;
        target->is_local = true;
    } else {
        DD_LOG(DD_LOG_DEBUG, "store client: %s:%u: stays on TCP: %s", target->host, target->port,
               error.message);
    }
    tcp_link_fini(&local, false);
}

/* A name may come to be known, and a server to its address, while the client tries. */
static dd_status
resolve_target(tcp_target *target, const dd_wait *wait, dd_error *err)
{
    /* A server on all addresses is reached on this machine's own. */
    const char *host = dd_addr_is_wildcard(target->host) ? "localhost" : target->host;
    return dd_addr_resolve(host, target->port, &target->addrs, wait, err);
}

/* One round over all addresses. */
static dd_status
try_addresses(tcp_link *link, tcp_target *target, const dd_wait *wait, dd_error *err)
{
    if (target->is_local) {
        return open_unix(link, target, wait, err);
    }
    bool is_first = !target->is_known;
    dd_status status = is_first ? resolve_target(target, wait, err) : DD_OK;
    if (status != DD_OK) {
        return status;
    }
    status = dd_error_set(err, DD_NETWORK, "the host has no address");
    for (size_t i = 0; i < target->addrs.count; i++) {
        dd_wait one_try = dd_wait_at_most(wait, CONNECT_TRY_NS);
        status = open_at(link, target, &target->addrs.items[i], &one_try, err);
        if (status != DD_NETWORK && status != DD_NETWORK_TIMED_OUT) {
            break;
        }
    }
    if (status == DD_OK && is_first) {
        target->own_addr = dd_sock_local_addr(link->fd);
    }
    if (status == DD_OK && is_first && target->server_id[0] != '\0') {
        upgrade_to_unix(link, target, wait);
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
