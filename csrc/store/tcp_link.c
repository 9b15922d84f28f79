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
#define SHORTEST_RETRY_NS (250 * DD_NS_PER_US)
/* Longest pause between attempts: short for a late server, long enough for thousands of clients. */
#define LONGEST_RETRY_NS (20 * DD_NS_PER_MS)
#define RECV_BYTES ((size_t)4096)
#define RETAINED_MAX_BYTES ((size_t)64 << 10)

/* Limits of messages from a server. A reply may be as large as the values that clients have stored;
 * memory is allocated only as bytes arrive. */
static const dd_tcp_limits reply_limits = {UINT64_C(1) << 20, UINT64_C(1) << 40, UINT64_C(1) << 32,
                                           UINT64_C(1) << 42};

void
tcp_link_init(tcp_link *link)
{
    *link = (tcp_link){.fd = -1, .spin = dd_spin_create(DD_POLL_STORE_NS)};
}

static void
close_link(tcp_link *link)
{
    dd_sock_close(link->fd);
    link->fd = -1;
    dd_seal_destroy(link->seal);
    link->seal = NULL;
}

void
tcp_link_destroy(tcp_link *link, bool is_forked)
{
    if (link == NULL) {
        return;
    }
    if (!is_forked) {
        close_link(link);
    }
    dd_seal_destroy(link->seal);
    dd_blob_fini(&link->in);
    dd_mem_free(link);
}

/* ---- sending and receiving bytes */

static dd_status
lost(const tcp_link *link, dd_io io, dd_error *err)
{
    if (io == DD_IO_FORGED) {
        return dd_seal_error_forged(link->fd, DD_NETWORK, err);
    }
    return io == DD_IO_CLOSED
               ? dd_error_set(err, DD_NETWORK, "the server closed the connection (did it stop or crash?)")
               : dd_error_set_errno(err, DD_NETWORK, errno, "the connection failed");
}

dd_status
tcp_link_try_send(tcp_link *link, dd_bytes bytes, size_t *nsent, dd_error *err)
{
    while (*nsent < bytes.len) {
        size_t moved = 0;
        dd_io io = dd_sealed_try_send(link->seal, link->fd, bytes.data + *nsent, bytes.len - *nsent, &moved);
        if (io == DD_IO_AGAIN) {
            return DD_OK;
        }
        if (io != DD_IO_OK) {
            return lost(link, io, err);
        }
        *nsent += moved;
    }
    return DD_OK;
}

dd_status
tcp_link_try_receive(tcp_link *link, bool *is_any, dd_error *err)
{
    dd_status status = dd_blob_reserve(&link->in, RECV_BYTES, err);
    if (status != DD_OK) {
        return status;
    }
    size_t moved = 0;
    dd_io io;
    do {
        io = dd_sealed_try_recv(link->seal, link->fd, link->in.data + link->in.len,
                                link->in.capacity - link->in.len, &moved);
    } while (io == DD_IO_AGAIN && dd_spin_may_continue(&link->spin));
    *is_any = io == DD_IO_OK;
    if (io == DD_IO_AGAIN) {
        return DD_OK;
    }
    if (io != DD_IO_OK) {
        return lost(link, io, err);
    }
    link->in.len += moved;
    dd_spin_end_wait(&link->spin);
    return DD_OK;
}

/* ---- replies */

/* Set the status and the message that the server reports for a failed request. */
static dd_status
reported_error(uint8_t code, dd_tcp_reader *reader, dd_error *err)
{
    dd_bytes message = dd_tcp_read_bytes(reader);
    /* Some statuses can come only from this process: no server interrupts or forks a call. */
    bool is_valid_code = code < DD_STATUS_COUNT && code != DD_INTERRUPTED && code != DD_FORKED;
    return dd_error_set(err, is_valid_code ? (dd_status)code : DD_STORE, "%.*s",
                        (int)(message.len < 1000 ? message.len : 1000), (const char *)message.data);
}

dd_status
tcp_reply_read(tcp_reply *reply, dd_bytes in, bool *is_whole, dd_error *err)
{
    *is_whole = false;
    if (in.len < reply->head) {
        return DD_OK;
    }
    uint8_t code = reply->head > 0 ? in.data[reply->head == DD_TCP_HEAD_BYTES ? DD_TCP_TAG_BYTES : 0] : DD_OK;
    if (reply->scan.step == NULL) {
        const char *pattern = dd_tcp_find_op(reply->op)->reply;
        dd_tcp_scan_begin(&reply->scan,
                          code != DD_OK     ? "v"
                          : pattern != NULL ? pattern
                                            : "",
                          code != DD_OK ? 1 : reply->repeats, reply->head);
    }
    dd_tcp_scan_result result = dd_tcp_scan_run(&reply->scan, in, &reply_limits, err);
    if (result != DD_TCP_SCAN_DONE) {
        return result == DD_TCP_SCAN_BAD ? DD_PROTOCOL : DD_OK;
    }
    if (in.len != reply->scan.at) {
        return dd_error_set(err, DD_PROTOCOL,
                            "malformed reply of the store: got more bytes than the reply has");
    }
    *is_whole = true;
    reply->reader.at = reply->head > 0 ? in.data + reply->head : in.data; /* in.data may be NULL */
    return code == DD_OK ? DD_OK : reported_error(code, &reply->reader, err);
}

dd_status
tcp_link_exchange(tcp_link *link, dd_bytes request, tcp_reply *reply, const dd_wait *wait, dd_error *err)
{
    size_t nsent = 0;
    bool is_whole = false;
    dd_blob_clear(&link->in, RETAINED_MAX_BYTES);
    dd_status status = tcp_link_try_send(link, request, &nsent, err);
    while (status == DD_OK && nsent < request.len) {
        status = dd_sock_wait(link->fd, POLLOUT, wait, err);
        if (status == DD_OK) {
            status = tcp_link_try_send(link, request, &nsent, err);
        }
    }
    while (status == DD_OK) {
        bool is_any = false;
        status = tcp_reply_read(reply, dd_blob_view(&link->in), &is_whole, err);
        if (is_whole) {
            return status;
        }
        if (status == DD_OK) {
            status = tcp_link_try_receive(link, &is_any, err);
        }
        if (status == DD_OK && !is_any) {
            status = dd_sock_wait(link->fd, POLLIN, wait, err);
        }
    }
    close_link(link);
    return status;
}

/* ---- opening a connection */

typedef struct handshake {
    tcp_link *link;
    tcp_target *target;
    bool is_sealed; /* true if the reply to HELLO and all later bytes are sealed */
    dd_noise noise; /* used from HELLO to its reply, if is_sealed is true */
    dd_blob request;
    dd_tcp_writer writer;
    dd_tcp_reader reply;
    const dd_wait *wait;
    dd_error *err;
} handshake;

/* Send the request that was written to `request`, and wait for its reply. */
static dd_status
exchange_messages(handshake *shake, dd_tcp_op op)
{
    tcp_reply reply = {.op = op, .repeats = 1, .head = shake->link->is_extended ? 1 : 0};
    dd_status status = shake->writer.status;
    if (status == DD_OK) {
        status =
            tcp_link_exchange(shake->link, dd_blob_view(&shake->request), &reply, shake->wait, shake->err);
    }
    shake->reply = reply.reader;
    shake->link->is_rejected = status == DD_NETWORK;
    dd_blob_clear(&shake->request, RETAINED_MAX_BYTES);
    return status;
}

static void
write_magic(handshake *shake)
{
    dd_tcp_write(&shake->writer, 'b', DD_TCP_VALIDATE);
    dd_tcp_write(&shake->writer, 'u', DD_TCP_MAGIC);
}

/* Send the magic number, and detect whether the server is a dldist server or PyTorch's. */
static dd_status
detect_server(handshake *shake)
{
    uint16_t salt;
    dd_status status = dd_auth_random(&salt, sizeof salt, shake->err);
    if (status != DD_OK) {
        return status;
    }
    uint32_t offer = DD_TCP_OFFER | salt;
    write_magic(shake);
    dd_tcp_write(&shake->writer, 'b', DD_TCP_PING);
    dd_tcp_write(&shake->writer, 'u', offer);
    status = exchange_messages(shake, DD_TCP_PING);
    uint32_t answer = status == DD_OK ? (uint32_t)dd_tcp_read(&shake->reply, 'u') : offer;
    if (status == DD_PROTOCOL || (answer != offer && answer != ~offer)) {
        return dd_error_set(shake->err, DD_PROTOCOL, "not a TCPStore; another program may use this address");
    }
    shake->link->is_extended = answer == ~offer;
    return status;
}

/* Write the last field of HELLO. For a sealed connection: the cipher and Noise message 1, which
 * protects all fields from `fields_at` on. Otherwise: a nonce, empty if there is no secret. */
static dd_status
write_offer(handshake *shake, size_t fields_at, dd_bytes nonce)
{
    if (!shake->is_sealed) {
        dd_tcp_write_bytes(&shake->writer, shake->target->secret.len > 0 ? nonce : (dd_bytes){0});
        return DD_OK; /* callers check writer.status later */
    }
    uint8_t first[DD_NOISE_FIRST_BYTES];
    dd_cipher cipher = DD_CIPHER_NONE;
    dd_status status = dd_seal_choose(&cipher, shake->err);
    if (status != DD_OK) {
        return status;
    }
    dd_tcp_write(&shake->writer, '#', DD_TCP_OFFER_BYTES);
    dd_tcp_write(&shake->writer, 'b', cipher);
    if (shake->writer.status != DD_OK) {
        return shake->writer.status;
    }
    dd_bytes prologue = dd_bytes_of(shake->request.data + fields_at, shake->request.len - fields_at);
    status = dd_seal_begin(&shake->noise, cipher, prologue, first, shake->err);
    return status == DD_OK ? dd_blob_append(&shake->request, first, sizeof first, shake->err) : status;
}

/* Append the message HELLO to the request. */
static dd_status
write_hello(handshake *shake, dd_bytes nonce)
{
    char host[80] = "?";
    (void)dd_sys_gethostname(host, sizeof host - 1);
    dd_tcp_write(&shake->writer, 'b', DD_TCP_HELLO);
    size_t fields_at = shake->request.len;
    dd_tcp_write(&shake->writer, 'u', DD_TCP_VERSION);
    dd_tcp_write(&shake->writer, 'i', (uint64_t)dd_sys_getpid());
    dd_tcp_write_bytes(&shake->writer, dd_bytes_of_string(host));
    return write_offer(shake, fields_at, nonce);
}

/* Read the server's version and limits from its reply to HELLO. */
static dd_status
note_server(tcp_target *target, dd_tcp_reader *reader, dd_error *err)
{
    uint32_t version = (uint32_t)dd_tcp_read(reader, 'u');
    if (version != DD_TCP_VERSION) {
        return dd_error_set(
            err, DD_PROTOCOL,
            "the server has version %" PRIu32
            " of dldist's store protocol, expected %d; install the same version of dldist on both",
            version, DD_TCP_VERSION);
    }
    target->limits.max_key_bytes = dd_tcp_read(reader, '#');
    target->limits.max_value_bytes = dd_tcp_read(reader, '#');
    target->limits.max_keys = dd_tcp_read(reader, '#');
    target->limits.max_request_bytes = dd_tcp_read(reader, '#');
    (void)dd_tcp_read_bytes(reader); /* in version 1, the name of the server's Unix socket */
    return DD_OK;
}

/* Read Noise message 2, create the seal, and prove by a sealed AUTH that this side has the keys.
 * `clear` is the reply's bytes before message 2. */
static dd_status
finish_seal(handshake *shake, const uint8_t *clear)
{
    dd_bytes second = dd_tcp_read_bytes(&shake->reply);
    if (second.len == 0) {
        return dd_error_set(shake->err, DD_AUTH, "the client has a secret and the server has none");
    }
    dd_status status =
        dd_seal_finish(&shake->noise, shake->target->secret, DD_SEAL_SPARSE, second,
                       dd_bytes_of(clear, DD_TCP_REPLY_CLEAR_BYTES), &shake->link->seal, shake->err);
    if (status != DD_OK) {
        return status;
    }
    dd_tcp_write(&shake->writer, 'b', DD_TCP_AUTH);
    dd_tcp_write_bytes(&shake->writer, (dd_bytes){0});
    return exchange_messages(shake, DD_TCP_AUTH);
}

/* Check the server's proof of the secret, and send the client's proof. */
static dd_status
exchange_proofs(handshake *shake, dd_bytes opening)
{
    dd_bytes secret = shake->target->secret;
    dd_bytes nonce = dd_tcp_read_bytes(&shake->reply);
    dd_bytes server_proof = dd_tcp_read_bytes(&shake->reply);
    uint8_t proof[DD_SHA256_BYTES];
    if (nonce.len == 0) {
        return dd_error_set(shake->err, DD_AUTH, "the client has a secret and the server has none");
    }
    if (nonce.len != DD_AUTH_NONCE_BYTES) {
        return dd_error_set(shake->err, DD_PROTOCOL, "malformed challenge: got %zu bytes, expected %d",
                            nonce.len, DD_AUTH_NONCE_BYTES);
    }
    if (!dd_auth_check(secret, DD_AUTH_STORE_SERVER, opening, nonce.data, server_proof)) {
        return dd_error_set(shake->err, DD_AUTH, "the server's secret differs from the client's");
    }
    dd_auth_prove(secret, DD_AUTH_STORE_CLIENT, opening, nonce.data, proof);
    dd_tcp_write(&shake->writer, 'b', DD_TCP_AUTH);
    dd_tcp_write_bytes(&shake->writer, dd_bytes_of(proof, sizeof proof));
    return exchange_messages(shake, DD_TCP_AUTH);
}

/* Send HELLO, and authenticate as the reply requires. */
static dd_status
exchange_hello(handshake *shake)
{
    uint8_t nonce[DD_AUTH_NONCE_BYTES];
    dd_status status = dd_auth_random(nonce, sizeof nonce, shake->err);
    if (status != DD_OK) {
        return status;
    }
    status = write_hello(shake, dd_bytes_of(nonce, sizeof nonce));
    if (status == DD_OK) {
        status = exchange_messages(shake, DD_TCP_HELLO);
    }
    const uint8_t *clear = shake->reply.at;
    if (status == DD_OK) {
        status = note_server(shake->target, &shake->reply, shake->err);
    }
    if (status != DD_OK || shake->target->secret.len == 0) {
        return status;
    }
    return shake->is_sealed ? finish_seal(shake, clear)
                            : exchange_proofs(shake, dd_bytes_of(nonce, sizeof nonce));
}

/* Do the handshake. Unix sockets belong to dldist servers, so detection is needed only over TCP. */
static dd_status
do_handshake(handshake *shake, bool is_unix)
{
    dd_status status = DD_OK;
    shake->link->is_extended = is_unix;
    shake->is_sealed = dd_seal_is_wanted(shake->target->secret, shake->target->is_encryption_off, is_unix);
    if (is_unix) {
        write_magic(shake);
    } else {
        status = detect_server(shake);
    }
    if (status == DD_OK && shake->link->is_extended) {
        return exchange_hello(shake);
    }
    if (status == DD_OK && shake->target->secret.len > 0) {
        return dd_error_set(
            shake->err, DD_AUTH,
            "the client has a secret, but the server uses PyTorch's protocol, which has none");
    }
    return status;
}

/* Resolve the host. Must be repeated for each attempt, since a name may become known. */
static dd_status
resolve_target(tcp_target *target, const dd_wait *wait, dd_error *err)
{
    /* a wildcard host means a server on this machine that listens on all its addresses */
    const char *host = dd_addr_is_wildcard(target->host) ? "localhost" : target->host;
    return dd_addr_resolve(host, target->port, &target->addrs, wait, err);
}

/* Connect to the Unix socket of a dldist server on this machine, which halves TCP's latency. Return
 * false if there is none, or if it belongs to another user, who would refuse this one. */
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
        close_link(link);
    }
    return false;
}

/* Open a connection to one address. The first one sets the target's kind and own address. */
static dd_status
open_at(tcp_link *link, tcp_target *target, const dd_addr *addr, const dd_wait *wait, dd_error *err)
{
    dd_addr reached = *addr;
    bool is_first = !target->is_known;
    bool is_unix = is_first && dd_sock_is_own_addr(addr) && connect_unix(link, addr, wait, &reached);
    dd_status status = is_unix ? DD_OK : dd_sock_connect(addr, &link->fd, wait, err);
    if (status != DD_OK) {
        return status;
    }
    handshake shake = {.link = link, .target = target, .wait = wait, .err = err};
    dd_tcp_writer_init(&shake.writer, &shake.request, err);
    status = do_handshake(&shake, is_unix);
    dd_noise_wipe(&shake.noise);
    dd_blob_fini(&shake.request);
    if (status == DD_OK && !is_first && link->is_extended != target->is_extended) {
        status =
            dd_error_set(err, DD_PROTOCOL, "the server's protocol has changed since the first connection");
    }
    char text[DD_ADDR_TEXT_MAX];
    (void)dd_addr_print(is_unix ? &reached : addr, text);
    if (status != DD_OK) {
        close_link(link);
        dd_error_prepend(err, "opening the store at %s", text);
        return status;
    }
    DD_LOG(DD_LOG_DEBUG, "store client: %s:%u: connected at %s", target->host, target->port, text);
    dd_blob_clear(&link->in, RETAINED_MAX_BYTES);
    if (is_first) {
        target->is_known = true;
        target->is_extended = link->is_extended;
        target->own_addr = is_unix ? *addr : dd_sock_local_addr(link->fd);
    }
    return DD_OK;
}

static bool
is_worth_retrying(dd_status status)
{
    return status == DD_NETWORK || status == DD_NETWORK_TIMED_OUT;
}

/* Try each address once. *is_own is true if every address failed because of this process. */
static dd_status
try_addresses(tcp_link *link, tcp_target *target, const dd_wait *wait, bool *is_own, dd_error *err)
{
    dd_status status = target->is_known ? DD_OK : resolve_target(target, wait, err);
    if (status != DD_OK) {
        *is_own = dd_error_is_local(err);
        return status;
    }
    link->is_rejected = false;
    status = dd_error_set(err, DD_NETWORK, "the host has no address");
    *is_own = target->addrs.count > 0;
    for (size_t i = 0; i < target->addrs.count && is_worth_retrying(status); i++) {
        dd_wait one_try = dd_wait_at_most(wait, CONNECT_TRY_NS);
        status = open_at(link, target, &target->addrs.items[i], &one_try, err);
        *is_own = *is_own && dd_error_is_local(err);
    }
    return status;
}

dd_status
tcp_link_open(tcp_link *link, tcp_target *target, const dd_wait *wait, dd_error *err)
{
    dd_error reason = {0};
    for (int64_t pause_ns = SHORTEST_RETRY_NS;; pause_ns *= pause_ns < LONGEST_RETRY_NS ? 2 : 1) {
        bool is_own = false;
        dd_status status = try_addresses(link, target, wait, &is_own, &reason);
        /* Do not retry if a known server is lost: it will not return with its data. But retry a
         * server with too many clients. A failure of this process does not depend on a server. */
        if (!is_worth_retrying(status) || (target->is_known && !link->is_rejected) || is_own) {
            return status == DD_OK ? DD_OK : dd_error_copy(err, &reason);
        }
        status = dd_wait_sleep(wait, pause_ns < LONGEST_RETRY_NS ? pause_ns : LONGEST_RETRY_NS, err);
        if (status != DD_OK) {
            return status;
        }
        if (dd_wait_has_expired(wait)) {
            /* The first words are those of torch.distributed, because scripts search for them. */
            return dd_error_set(err, DD_NETWORK_TIMED_OUT,
                                "The client socket has timed out after %" PRId64
                                "ms while trying to connect to "
                                "(%s, %u): %s",
                                (dd_clock_now_ns() - wait->start_ns) / DD_NS_PER_MS, target->host,
                                target->port, reason.message);
        }
    }
}
