/* Handshakes of links, as a listener that receives from unauthenticated peers and as a dialer that
 * receives from any listener. The connector has no thread here: it handles events once after every
 * step of its peers. The input is a sequence of steps (enum step). Some of them send the message
 * that is right at that moment, with or without an error.
 *
 * With a secret, a peer that has not proved it gets no link. An accepted peer gets a link or is
 * reported as failed. A dial has exactly one outcome. No descriptor is leaked. */
#include "core/fork.h"
#include "core/mem.h"
#include "fuzz.h"
#include "net/auth.h"
#include "pass_descriptors.h"
#include "transport/connect_internal.h"

#include <netinet/in.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>

#define MAX_INPUT_BYTES 1024u
#define NOTHERS 3
#define RING_NBYTES ((size_t)4096)
#define DIAL_NS (20 * DD_NS_PER_MS)
#define DIAL_NUMBER UINT64_C(7)

/* The first byte of the input. */
enum first {
    IS_DIALLER = 1,
    IS_UNIX = 2,
    HAS_SECRET = 4,
    IS_BUSY = 8, /* no peer is accepted */
    HAS_ONE_LANE = 16,
    IS_CLEAR = 32, /* no encryption even with a secret */
};

/* The low bits of a step's first byte; the next bits select the peer. */
enum step {
    STEP_RIGHT, /* sends the next message of a handshake, with at most one byte changed */
    STEP_BYTES,
    STEP_RECEIVE,
    STEP_CLOSE, /* closes; a new connection replaces it */
    STEP_LATE,  /* time passes */
    STEP_COUNT,
};

/* The messages that the peer has sent so far. */
typedef enum progress {
    HAS_SENT_NOTHING,
    HAS_GREETED, /* hello or answer */
    HAS_PROVED,
    HAS_ENDED,
} progress;

typedef struct other {
    int fd; /* -1 if not connected */
    progress progress;
    connect_hello hello;   /* sent or received */
    connect_answer answer; /* sent or received */
    dd_noise noise;        /* if the link is encrypted */
    dd_seal *seal;
} other;

static struct {
    dd_connector *connector;
    dd_endpoint endpoint;
    unsigned first;
    other others[NOTHERS];
    int listener;   /* the listener that is dialed */
    bool has_shown; /* a peer has proved that it knows the secret */
    int nwelcome;   /* accepted peers without an outcome */
    int noutcomes;  /* of the dial */
} table;

static const dd_uid their_uid = {.bytes = {9}};

static bool
has(enum first label)
{
    return (table.first & label) != 0;
}

static dd_bytes
secret(void)
{
    return dd_bytes_of("a secret", has(HAS_SECRET) ? 8 : 0);
}

/* ---- the owner of the connector */

static bool
may_accept(void *ctx, const dd_uid *peer)
{
    (void)ctx;
    (void)peer;
    require(table.has_shown || !has(HAS_SECRET));
    table.nwelcome += !has(IS_BUSY);
    return !has(IS_BUSY);
}

static void
on_accept_failed(void *ctx, const dd_uid *peer)
{
    (void)ctx;
    (void)peer;
    require(table.nwelcome > 0);
    table.nwelcome--;
}

static bool
wants_dial(void *ctx, const dd_uid *peer, uint64_t number, bool is_busy)
{
    (void)ctx;
    (void)peer;
    require(number == DIAL_NUMBER);
    bool is_over = is_busy && has(IS_BUSY);
    table.noutcomes += is_over;
    return !is_over;
}

static void
check_link(int lane, dd_link *link)
{
    require(lane >= 0 && lane < table.connector->options.nlanes && link != NULL);
    require(table.has_shown || !has(HAS_SECRET));
    dd_link_close(link);
}

static void
on_accepted(void *ctx, const dd_uid *peer, int lane, dd_link *link)
{
    (void)ctx;
    (void)peer;
    require(!has(IS_DIALLER));
    if (lane == 0) {
        require(table.nwelcome > 0);
        table.nwelcome--;
    }
    check_link(lane, link);
}

static void
on_dialled(void *ctx, const dd_uid *peer, int lane, uint64_t number, dd_link *link)
{
    (void)ctx;
    (void)peer;
    require(has(IS_DIALLER) && number == DIAL_NUMBER);
    table.noutcomes++;
    check_link(lane, link);
}

static void
on_dial_failed(void *ctx, const dd_uid *peer, int lane, uint64_t number, const dd_error *error)
{
    (void)ctx;
    (void)peer;
    require(number == DIAL_NUMBER && lane >= 0 && error->code != DD_OK && error->message[0] != '\0');
    table.noutcomes++;
}

static void
open_connector(void)
{
    dd_connector *self = dd_mem_zalloc(sizeof *self);
    require(self != NULL && dd_endpoint_init(&table.endpoint, NULL) == DD_OK);
    table.endpoint.has_unix = true;
    self->options = (dd_connect_options){.nlanes = has(HAS_ONE_LANE) ? 1 : 3,
                                         .is_shm_disabled = !has(IS_UNIX),
                                         .ring_nbytes = RING_NBYTES,
                                         .congestion = "",
                                         .secret = secret(),
                                         .is_encryption_off = has(IS_CLEAR),
                                         .timeout_ns = DD_NS_PER_S};
    self->handler = (dd_connect_handler){.may_accept = may_accept,
                                         .on_accept_failed = on_accept_failed,
                                         .on_accepted = on_accepted,
                                         .wants_dial = wants_dial,
                                         .on_dialled = on_dialled,
                                         .on_dial_failed = on_dial_failed};
    self->endpoint = &table.endpoint;
    self->uid = table.endpoint.uid;
    self->generation = dd_fork_generation();
    self->unix_fd = -1;
    self->wake_fd = dd_fork_register(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    dd_lock_init(&self->mu, DD_LOCK_CONNECTOR);
    dd_list_init(&self->dials);
    dd_list_init(&self->queue);
    connect_init_incoming(self);
    table.connector = self;
}

static void
look(void)
{
    dd_connector *self = table.connector;
    connect_begin_round(self);
    connect_poll_incoming(self);
    connect_poll_dials(self);
    connect_sleep_until(self, 0);
    connect_sleep(self);
    connect_advance_incoming(self);
    connect_run_dials(self);
    require(self->npolled <= CONNECT_POLLED_MAX && table.noutcomes <= 1);
}

static void
close_connector(void)
{
    connect_close_incoming(table.connector);
    connect_destroy_dials(table.connector);
    dd_sock_close(table.connector->wake_fd);
    dd_lock_fini(&table.connector->mu);
    dd_mem_free(table.connector);
}

/* ---- connections, none of which stays in the kernel's memory */

static int
listen_somewhere(dd_addr *addr)
{
    int fd = -1;
    if (has(IS_UNIX)) {
        dd_endpoint theirs = table.endpoint;
        theirs.uid = their_uid;
        memcpy(theirs.uid.bytes + 1, table.endpoint.uid.bytes, 8); /* unlike any other process's */
        *addr = dd_endpoint_unix_addr(&theirs);
        require(dd_sock_listen(addr, &fd, NULL) == DD_OK);
        return fd;
    }
    struct sockaddr_in in = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    memset(addr, 0, sizeof *addr);
    memcpy(&addr->storage, &in, sizeof in);
    addr->len = sizeof in;
    require(dd_sock_listen(addr, &fd, NULL) == DD_OK);
    *addr = dd_sock_local_addr(fd);
    return fd;
}

static void
forget_at_close(int fd)
{
    const struct linger at_once = {.l_onoff = 1};
    require(setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once) == 0);
}

/* Connect the peer, or accept a dial. */
static void
connect_other(other *self)
{
    const dd_wait wait = dd_wait_after(DD_NS_PER_S);
    *self = (other){.fd = -1};
    if (has(IS_DIALLER)) {
        int fd = -1;
        if (dd_sock_try_accept(table.listener, &fd) == DD_IO_OK) {
            self->fd = fd;
        }
    } else {
        dd_addr addr = dd_sock_local_addr(table.listener);
        int theirs = -1;
        require(dd_sock_connect(&addr, &self->fd, &wait, NULL) == DD_OK);
        require(dd_sock_try_accept(table.listener, &theirs) == DD_IO_OK);
        connect_add_incoming(table.connector, theirs, false);
    }
    if (self->fd >= 0) {
        forget_at_close(self->fd);
    }
}

static void
disconnect_other(other *self)
{
    dd_sock_close(self->fd);
    dd_noise_wipe(&self->noise);
    dd_seal_destroy(self->seal);
    *self = (other){.fd = -1};
}

/* Send data, with one byte changed if `change` is at least 0x40. Its low bits select the byte. */
static void
send_changed(const other *self, const void *data, size_t nbytes, unsigned change)
{
    uint8_t bytes[CONNECT_SEALED_HELLO_BYTES];
    memcpy(bytes, data, nbytes);
    if (change >= 0x40) {
        bytes[change % nbytes] ^= (uint8_t)(1u << (change >> 6));
    }
    (void)!send(self->fd, bytes, nbytes, MSG_DONTWAIT | MSG_NOSIGNAL);
}

static bool
receive(const other *self, void *data, size_t nbytes)
{
    return recv(self->fd, data, nbytes, MSG_DONTWAIT) == (ssize_t)nbytes;
}

/* Send one byte, sealed if the handshake is sealed and the byte is not changed. */
static void
send_byte(const other *self, uint8_t byte, unsigned change)
{
    if (self->seal != NULL && change < 0x40) {
        (void)!connect_send(self->fd, self->seal, &byte, 1, NULL);
    } else {
        send_changed(self, &byte, 1, change);
    }
}

/* ---- messages of a peer to the listener */

static void
send_hello(other *self, dd_bytes *input, unsigned change)
{
    bool is_sealed = connect_is_sealed(table.connector, has(IS_UNIX));
    self->hello = (connect_hello){.from = their_uid,
                                  .to = table.endpoint.uid,
                                  .lane = take_byte(input) % 4,
                                  .has_secret = has(HAS_SECRET),
                                  .is_sealed = is_sealed};
    require((is_sealed ? connect_seal_begin(&self->noise, &self->hello, NULL)
                       : connect_hello_write(&self->hello, NULL)) == DD_OK);
    send_changed(self, self->hello.bytes, connect_hello_nbytes(&self->hello), change);
    self->progress = change >= 0x40 ? HAS_ENDED : HAS_GREETED;
}

static void
prove_to_listener(other *self, unsigned change)
{
    uint8_t bytes[CONNECT_ANSWER_BYTES];
    uint8_t proof[DD_SHA256_BYTES];
    self->progress = HAS_PROVED;
    if (!receive(self, bytes, sizeof bytes) || !has(HAS_SECRET)) {
        return;
    }
    require(connect_answer_read(bytes, &self->answer));
    if (self->answer.result != CONNECT_GO_ON) {
        return;
    }
    if (self->hello.is_sealed) {
        require(connect_seal_finish(&self->noise, secret(), bytes, &self->seal, NULL) == DD_OK);
        send_byte(self, 0, change);
    } else {
        dd_bytes opening = connect_hello_opening(&self->hello);
        require(dd_auth_check(secret(), DD_AUTH_LINK_LISTENER, opening, self->answer.nonce,
                              dd_bytes_of(self->answer.proof, sizeof self->answer.proof)));
        dd_auth_prove(secret(), DD_AUTH_LINK_DIALER, opening, self->answer.nonce, proof);
        send_changed(self, proof, sizeof proof, change);
    }
    table.has_shown = table.has_shown || change < 0x40;
}

static void
go_on_as_dialler(other *self, dd_bytes *input, unsigned change)
{
    if (self->progress == HAS_SENT_NOTHING) {
        send_hello(self, input, change);
    } else if (self->progress == HAS_GREETED) {
        prove_to_listener(self, change);
    } else {
        send_changed(self, "y", 1, change);
    }
}

/* ---- messages of a listener to the dialer */

static bool
receive_hello(other *self)
{
    connect_hello *hello = &self->hello;
    if (!receive(self, hello->bytes, CONNECT_HELLO_BYTES)) {
        return false;
    }
    size_t rest = connect_hello_nbytes(hello) - CONNECT_HELLO_BYTES;
    require(rest == 0 || receive(self, hello->bytes + CONNECT_HELLO_BYTES, rest));
    require(connect_hello_read(hello) &&
            hello->is_sealed == connect_is_sealed(table.connector, has(IS_UNIX)));
    return true;
}

/* Return true if a change of the byte has no effect: this byte is unused, or it is padding after
 * the message of a sealed handshake. */
static bool
is_idle_byte(const other *self, size_t index)
{
    return self->hello.is_sealed ? index >= 8 + DD_NOISE_SECOND_BYTES(8) : index == 7;
}

static void
answer_hello(other *self, dd_bytes *input, unsigned change)
{
    uint8_t bytes[CONNECT_ANSWER_BYTES];
    unsigned result = take_byte(input);
    if (!receive_hello(self)) {
        return;
    }
    self->answer = (connect_answer){
        .result = result < 0xc0 ? CONNECT_GO_ON : (connect_result)(result % (CONNECT_RESULT_COUNT + 1))};
    memset(self->answer.nonce, (int)result, sizeof self->answer.nonce);
    dd_auth_prove(secret(), DD_AUTH_LINK_LISTENER, connect_hello_opening(&self->hello), self->answer.nonce,
                  self->answer.proof);
    connect_answer_write(&self->answer, bytes);
    require(!self->hello.is_sealed ||
            connect_seal_answer(secret(), &self->hello, bytes, &self->seal, NULL) == DD_OK);
    send_changed(self, bytes, sizeof bytes, change);
    table.has_shown = table.has_shown || change < 0x40 || is_idle_byte(self, change % sizeof bytes);
    self->progress = HAS_GREETED;
}

static void
send_verdict(other *self, dd_bytes *input, unsigned change)
{
    uint8_t proof[DD_SHA256_BYTES];
    size_t moved = 0;
    unsigned result = take_byte(input);
    if (self->seal != NULL) {
        dd_io io = dd_sealed_try_recv(self->seal, self->fd, proof, CONNECT_SEALED_PROOF_BYTES, &moved);
        require(io != DD_IO_FORGED);
    } else if (has(HAS_SECRET) && change < 0x40 && receive(self, proof, sizeof proof)) {
        require(dd_auth_check(secret(), DD_AUTH_LINK_DIALER, connect_hello_opening(&self->hello),
                              self->answer.nonce, dd_bytes_of(proof, sizeof proof)));
    }
    send_byte(self, result < 0xc0 ? CONNECT_OK : (uint8_t)(result & 15), change);
    self->progress = HAS_PROVED;
}

static void
go_on_as_listener(other *self, dd_bytes *input, unsigned change)
{
    dd_link *link = NULL;
    if (self->progress == HAS_SENT_NOTHING) {
        answer_hello(self, input, change);
    } else if (self->progress == HAS_GREETED) {
        send_verdict(self, input, change);
    } else if (has(IS_UNIX) &&
               dd_link_offer_shm(self->fd, RING_NBYTES << (change & 3), &link, NULL) == DD_OK) {
        dd_link_close(link); /* also closes the socket */
        self->fd = -1;
        disconnect_other(self);
    }
}

/* ---- one run */

static void
send_any_bytes(const other *self, dd_bytes *input)
{
    unsigned how = take_byte(input);
    dd_bytes bytes = take_bytes(input, how & 0x7f);
    const int fds[PASSED_MAX] = {self->fd, self->fd, self->fd, self->fd};
    (void)!pass_descriptors(self->fd, bytes.data, bytes.len, fds,
                            has(IS_UNIX) && how >= 0x80 ? 1 + how % PASSED_MAX : 0);
}

static void
make_incoming_late(void)
{
    dd_list *incoming_all = &table.connector->incoming_all;
    for (dd_list *link = incoming_all->next; link != incoming_all; link = link->next) {
        dd_timer *timer = &DD_CONTAINER_OF(link, connect_incoming, node)->admission.timer;
        dd_timer_start(&table.connector->admission.timers, timer, 0);
    }
}

static void
take_step(unsigned step, dd_bytes *input)
{
    other *self = &table.others[(step >> 4) % NOTHERS];
    uint8_t received[256];
    if (self->fd < 0) {
        connect_other(self);
    }
    if (self->fd < 0) {
        return;
    }
    switch ((enum step)(step % 8 % STEP_COUNT)) {
    case STEP_RIGHT:
        if (has(IS_DIALLER)) {
            go_on_as_listener(self, input, take_byte(input));
        } else {
            go_on_as_dialler(self, input, take_byte(input));
        }
        break;
    case STEP_BYTES:
        send_any_bytes(self, input);
        break;
    case STEP_RECEIVE:
        (void)!recv(self->fd, received, sizeof received, MSG_DONTWAIT);
        break;
    case STEP_CLOSE:
        disconnect_other(self);
        break;
    case STEP_LATE:
    case STEP_COUNT:
        make_incoming_late();
        break;
    }
}

static void
begin_dial(const dd_addr *addr)
{
    dd_addr_list addrs = {.count = 0};
    dd_endpoint theirs = table.endpoint;
    theirs.uid = their_uid;
    memcpy(theirs.uid.bytes + 1, table.endpoint.uid.bytes, 8);
    if (!has(IS_UNIX)) {
        addrs.items[addrs.count++] = *addr;
    }
    int lane = has(IS_UNIX) || has(HAS_ONE_LANE) ? 0 : 1;
    require(dd_connector_dial(table.connector, &theirs, &addrs, lane, DIAL_NUMBER, dd_deadline_after(DIAL_NS),
                              NULL) == DD_OK);
    look();
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    dd_addr addr;
    if (size > MAX_INPUT_BYTES) {
        return -1;
    }
    int before = next_descriptor();
    dd_bytes input = dd_bytes_of(data, size);
    memset(&table, 0, sizeof table);
    table.first = take_byte(&input);
    open_connector();
    table.listener = listen_somewhere(&addr);
    for (int i = 0; i < NOTHERS; i++) {
        table.others[i].fd = -1;
    }
    if (has(IS_DIALLER)) {
        begin_dial(&addr);
    }
    while (input.len > 0) {
        take_step(take_byte(&input), &input);
        look();
    }
    for (int i = 0; i < NOTHERS; i++) {
        disconnect_other(&table.others[i]);
    }
    look();
    require(table.nwelcome == 0);
    close_connector();
    dd_sock_close(table.listener);
    require(next_descriptor() == before);
    return 0;
}
