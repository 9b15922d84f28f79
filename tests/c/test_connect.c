#include "check.h"

#include "core/lock.h"
#include "core/log.h"
#include "core/mem.h"
#include "core/thread.h"
#include "faults/faults.h"
#include "handshake.h"
#include "leftovers.h"
#include "transport/connect.h"
#include "transport/connect_internal.h"

#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define DIAL_NUMBER UINT64_C(7)

/* ---- the part of a process that makes links */

typedef struct node {
    dd_endpoint endpoint;
    dd_addr_list addrs;
    dd_connector *connector;
    dd_lock mu;
    pthread_cond_t cond;
    /* guarded by mu */
    dd_link *links[8];
    int lanes[8];
    dd_uid peers[8];
    int nlinks;
    int nfailed;
    int nrefusals; /* number of dials still to answer with BUSY */
    int nasked;
    int nwelcome_failed;
    bool is_refusing; /* rejects dials that received BUSY */
    int nunwanted;    /* number of dials rejected so */
    dd_error error;
} node;

static bool
on_may_accept(void *ctx, const dd_uid *peer)
{
    node *self = ctx;
    (void)peer;
    dd_lock_take(&self->mu);
    self->nasked++;
    bool is_refused = self->nrefusals > 0 || self->nlinks > 0;
    self->nrefusals -= self->nrefusals > 0 ? 1 : 0;
    dd_lock_release(&self->mu);
    return !is_refused;
}

static void
on_accept_failed(void *ctx, const dd_uid *peer)
{
    node *self = ctx;
    (void)peer;
    dd_lock_take(&self->mu);
    self->nwelcome_failed++;
    pthread_cond_broadcast(&self->cond);
    dd_lock_release(&self->mu);
}

static bool
on_wants_dial(void *ctx, const dd_uid *peer, uint64_t number, bool is_busy)
{
    node *self = ctx;
    (void)peer;
    (void)number;
    dd_lock_take(&self->mu);
    bool is_wanted = !is_busy || !self->is_refusing;
    self->nunwanted += is_wanted ? 0 : 1;
    pthread_cond_broadcast(&self->cond);
    dd_lock_release(&self->mu);
    return is_wanted;
}

static void
on_accepted(void *ctx, const dd_uid *peer, int lane, dd_link *link)
{
    node *self = ctx;
    dd_lock_take(&self->mu);
    if (CHECK(self->nlinks < 8)) {
        self->links[self->nlinks] = link;
        self->lanes[self->nlinks] = lane;
        self->peers[self->nlinks++] = *peer;
    }
    pthread_cond_broadcast(&self->cond);
    dd_lock_release(&self->mu);
}

static void
on_dialled(void *ctx, const dd_uid *peer, int lane, uint64_t number, dd_link *link)
{
    node *self = ctx;
    CHECK_INT(number, DIAL_NUMBER);
    on_accepted(self, peer, lane, link);
}

static void
on_dial_failed(void *ctx, const dd_uid *peer, int lane, uint64_t number, const dd_error *error)
{
    node *self = ctx;
    (void)peer;
    (void)lane;
    CHECK_INT(number, DIAL_NUMBER);
    dd_lock_take(&self->mu);
    self->nfailed++;
    self->error = *error;
    pthread_cond_broadcast(&self->cond);
    dd_lock_release(&self->mu);
}

static dd_connect_options
default_options(void)
{
    return (dd_connect_options){
        .ifnames = "=lo",
        .nlanes = 2,
        .ring_nbytes = 65536,
        .congestion = "",
        .timeout_ns = 5 * DD_NS_PER_S * check_slow(),
    };
}

static dd_status
try_open_node(node *self, const dd_connect_options *options)
{
    *self = (node){0};
    dd_lock_init(&self->mu, DD_LOCK_TEST);
    dd_cond_init(&self->cond);
    dd_status status = dd_endpoint_init(&self->endpoint, check_err());
    dd_connect_handler handler = {.ctx = self,
                                  .may_accept = on_may_accept,
                                  .on_accept_failed = on_accept_failed,
                                  .on_accepted = on_accepted,
                                  .wants_dial = on_wants_dial,
                                  .on_dialled = on_dialled,
                                  .on_dial_failed = on_dial_failed};
    if (status == DD_OK) {
        status = dd_connector_open(options, &self->endpoint, NULL, &handler, &self->addrs, &self->connector,
                                   check_err());
    }
    return status;
}

static bool
open_node(node *self, const dd_connect_options *options)
{
    return CHECK_OK(try_open_node(self, options));
}

static void
drop_links(node *self)
{
    for (int i = 0; i < self->nlinks; i++) {
        dd_link_close(self->links[i]);
    }
    self->nlinks = 0;
}

static void
close_node(node *self)
{
    dd_connector_close(self->connector);
    drop_links(self);
    dd_lock_fini(&self->mu);
    pthread_cond_destroy(&self->cond);
}

static bool
await(node *self, int nlinks, int nfailed)
{
    dd_wait wait = dd_wait_after(6 * DD_NS_PER_S * check_slow());
    dd_lock_take(&self->mu);
    while ((self->nlinks < nlinks || self->nfailed < nfailed) && !dd_wait_has_expired(&wait)) {
        dd_cond_wait_slice(&self->cond, &self->mu, &wait);
    }
    bool is_there = CHECK_INT(self->nlinks, nlinks) && CHECK_INT(self->nfailed, nfailed);
    dd_lock_release(&self->mu);
    return is_there;
}

static bool
dial(node *from, const node *to, int lane)
{
    int64_t deadline_ns = dd_deadline_after(5 * DD_NS_PER_S * check_slow());
    return CHECK_OK(dd_connector_dial(from->connector, &to->endpoint, &to->addrs, lane, DIAL_NUMBER,
                                      deadline_ns, check_err()));
}

/* Return true if the two links are the ends of one connection. */
static bool
are_ends(dd_link *a, dd_link *b)
{
    uint64_t token = 0;
    uint64_t got = 0;
    size_t moved = 0;
    memcpy(&token, &a, sizeof token);
    struct iovec part = {.iov_base = &token, .iov_len = sizeof token};
    if (!CHECK(a->ops->try_send(a, &part, 1, &moved) == DD_IO_OK)) {
        return false;
    }
    struct pollfd pollfd = {.fd = b->fd, .events = POLLIN};
    if (!b->is_shared_memory) {
        (void)poll(&pollfd, 1, 1000 * check_slow());
    }
    return b->ops->try_recv(b, &got, sizeof got, &moved) == DD_IO_OK && got == token;
}

/* ---- dialling */

static void
check_links(const dd_connect_options *options)
{
    node a;
    node b;
    REQUIRE(open_node(&a, options) && open_node(&b, options));
    REQUIRE(dial(&a, &b, 0) && await(&a, 1, 0) && await(&b, 1, 0));
    CHECK(memcmp(&a.peers[0], &b.endpoint.uid, sizeof(dd_uid)) == 0);
    CHECK(memcmp(&b.peers[0], &a.endpoint.uid, sizeof(dd_uid)) == 0);
    CHECK_INT(a.links[0]->is_shared_memory, !options->is_shm_disabled);
    CHECK(are_ends(a.links[0], b.links[0]) && are_ends(b.links[0], a.links[0]));
    /* Further lanes use TCP. */
    REQUIRE(dial(&a, &b, 1) && await(&a, 2, 0) && await(&b, 2, 0));
    bool is_encrypted = options->secret.len > 0 && !options->is_encryption_off;
    CHECK_INT(strcmp(a.links[1]->ops->name, "encrypted TCP") == 0, is_encrypted);
    CHECK_INT(strcmp(b.links[1]->ops->name, "encrypted TCP") == 0, is_encrypted);
    CHECK(!a.links[1]->is_shared_memory && b.lanes[1] == 1);
    CHECK(are_ends(b.links[1], a.links[1]));
    CHECK_INT(b.nasked, 1);
    dd_error err;
    CHECK_STATUS(dd_connector_dial(a.connector, &b.endpoint, &b.addrs, 2, DIAL_NUMBER, DD_NEVER_NS, &err),
                 DD_INVALID_ARGUMENT);
    close_node(&a);
    close_node(&b);
}

static void
check_dial(bool is_shm, dd_bytes secret)
{
    dd_connect_options options = default_options();
    options.is_shm_disabled = !is_shm;
    options.secret = secret;
    check_links(&options);
}

TEST(dialling_over_shared_memory_connects_two_processes)
{
    check_dial(true, BYTES(""));
}

TEST(dialling_over_tcp_connects_two_processes)
{
    check_dial(false, BYTES(""));
}

TEST(dialling_with_a_common_secret_connects)
{
    check_dial(true, BYTES("sesame"));
    check_dial(false, BYTES("sesame"));
}

TEST(a_process_without_a_chosen_interface_can_be_dialled_over_tcp)
{
    dd_connect_options options = default_options();
    options.ifnames = "";
    options.is_shm_disabled = true;
    node a;
    node b;
    REQUIRE(open_node(&a, &options) && open_node(&b, &options));
    CHECK(b.addrs.count > 0 && !b.endpoint.has_unix);
    REQUIRE(dial(&a, &b, 0) && await(&a, 1, 0) && await(&b, 1, 0));
    CHECK(are_ends(a.links[0], b.links[0]));
    close_node(&a);
    close_node(&b);
}

TEST(a_peer_that_answers_busy_is_dialled_again)
{
    dd_connect_options options = default_options();
    for (int is_shm = 0; is_shm < 2; is_shm++) {
        options.is_shm_disabled = is_shm == 0;
        node a;
        node b;
        REQUIRE(open_node(&a, &options) && open_node(&b, &options));
        b.nrefusals = 5;
        REQUIRE(dial(&a, &b, 0) && await(&a, 1, 0) && await(&b, 1, 0));
        CHECK_INT(b.nasked, 6);
        close_node(&a);
        close_node(&b);
    }
}

TEST(a_peer_that_answers_busy_is_not_dialled_again_once_a_connection_exists)
{
    dd_connect_options options = default_options();
    node a;
    node b;
    REQUIRE(open_node(&a, &options) && open_node(&b, &options));
    a.is_refusing = true;
    b.nrefusals = 1;
    REQUIRE(dial(&a, &b, 0));
    dd_wait wait = dd_wait_after(6 * DD_NS_PER_S * check_slow());
    dd_lock_take(&a.mu);
    while (a.nunwanted == 0 && !dd_wait_has_expired(&wait)) {
        dd_cond_wait_slice(&a.cond, &a.mu, &wait);
    }
    dd_lock_release(&a.mu);
    /* The dial has ended: the next one is independent. */
    REQUIRE(dial(&a, &b, 0) && await(&a, 1, 0) && await(&b, 1, 0));
    CHECK_INT(a.nunwanted, 1);
    CHECK_INT(b.nasked, 2);
    close_node(&a);
    close_node(&b);
}

TEST(dialling_a_peer_that_stays_busy_times_out)
{
    dd_connect_options options = default_options();
    node a;
    node b;
    REQUIRE(open_node(&a, &options) && open_node(&b, &options));
    b.nrefusals = 1000000;
    int64_t deadline_ns = dd_deadline_after(500 * DD_NS_PER_MS * check_slow());
    REQUIRE_OK(
        dd_connector_dial(a.connector, &b.endpoint, &b.addrs, 0, DIAL_NUMBER, deadline_ns, check_err()));
    REQUIRE(await(&a, 0, 1));
    CHECK_INT(a.error.code, DD_NETWORK_TIMED_OUT);
    CHECK_CONTAINS(a.error.message, "busy");
    close_node(&a);
    close_node(&b);
}

TEST(only_a_limited_number_of_dials_runs_at_the_same_time)
{
    enum { COUNT = 90 };
    dd_connect_options options = default_options();
    options.is_shm_disabled = true;
    node *hub = calloc(1, sizeof *hub);
    node *spokes = calloc(COUNT, sizeof *spokes);
    REQUIRE(open_node(hub, &options));
    /* The other ends never answer: more dials are wanted than may run at a time. */
    int silent = -1;
    dd_addr addr = {.len = sizeof(struct sockaddr_in)};
    addr.storage.ss_family = AF_INET;
    ((struct sockaddr_in *)&addr.storage)->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    REQUIRE_OK(dd_sock_listen(&addr, &silent, check_err()));
    dd_endpoint endpoint;
    REQUIRE_OK(dd_endpoint_init(&endpoint, check_err()));
    dd_addr_list addrs = {.items = {dd_sock_local_addr(silent)}, .count = 1};
    int64_t deadline_ns = dd_deadline_after(300 * DD_NS_PER_MS * check_slow());
    for (int i = 0; i < COUNT; i++) {
        endpoint.uid.bytes[0] = (uint8_t)i;
        REQUIRE_OK(
            dd_connector_dial(hub->connector, &endpoint, &addrs, 0, DIAL_NUMBER, deadline_ns, check_err()));
    }
    REQUIRE(await(hub, 0, COUNT));
    CHECK_INT(hub->error.code, DD_NETWORK_TIMED_OUT);
    dd_sock_close(silent);
    close_node(hub);
    free(spokes);
    free(hub);
}

/* ---- failures */

static void
check_failed_dial(const dd_connect_options *ours, const dd_connect_options *theirs, dd_status code,
                  const char *text)
{
    node a;
    node b;
    REQUIRE(open_node(&a, ours) && open_node(&b, theirs));
    REQUIRE(dial(&a, &b, 0) && await(&a, 0, 1));
    CHECK_INT(a.error.code, code);
    CHECK_CONTAINS(a.error.message, text);
    CHECK_CONTAINS(a.error.message, "cannot connect to ");
    CHECK_INT(a.error.blamed.pid, getpid());
    close_node(&b);
    CHECK_INT(b.nlinks, 0);
    CHECK_INT(b.nasked, 0);
    close_node(&a);
}

TEST(dialling_with_another_secret_fails)
{
    for (int is_shm = 0; is_shm < 2; is_shm++) {
        dd_connect_options none = default_options();
        none.is_shm_disabled = is_shm == 0;
        dd_connect_options one = none;
        one.secret = BYTES("one");
        dd_connect_options other = none;
        other.secret = BYTES("other");
        check_failed_dial(&one, &other, DD_AUTH, "the secrets differ");
        check_failed_dial(&one, &none, DD_AUTH, "the peer has no secret");
        check_failed_dial(&none, &one, DD_AUTH, "the peer has a secret, and this process has none");
    }
}

TEST(dialling_fails_if_only_one_side_encrypts)
{
    dd_connect_options on = default_options();
    on.is_shm_disabled = true;
    on.secret = BYTES("sesame");
    dd_connect_options off = on;
    off.is_encryption_off = true;
    check_failed_dial(&on, &off, DD_AUTH, "the peer does not encrypt connections, and this process does");
    check_failed_dial(&off, &on, DD_AUTH, "the peer encrypts connections, and this process does not");
    check_links(&off);
    check_links(&on);
}

/* Return a listener's result on a sealed hello in which these bits of a byte are flipped. */
static connect_result
verdict_on(size_t changed_byte, uint8_t bits)
{
    dd_connect_options options = default_options();
    options.is_shm_disabled = true;
    options.secret = BYTES("sesame");
    node a;
    node b;
    connect_answer answer = {.result = CONNECT_RESULT_COUNT};
    if (!open_node(&a, &options) || !open_node(&b, &options)) {
        return CONNECT_RESULT_COUNT;
    }
    dd_noise noise;
    connect_hello hello = {
        .from = a.endpoint.uid, .to = b.endpoint.uid, .has_secret = true, .is_sealed = true};
    dd_wait wait = dd_wait_after(5 * DD_NS_PER_S * check_slow());
    uint8_t bytes[CONNECT_ANSWER_BYTES];
    int fd = -1;
    if (CHECK_OK(connect_seal_begin(&noise, &hello, check_err())) &&
        CHECK_OK(dd_sock_connect(&b.addrs.items[0], &fd, &wait, check_err()))) {
        hello.bytes[changed_byte] ^= bits;
        CHECK_OK(connect_send(fd, NULL, hello.bytes, CONNECT_SEALED_HELLO_BYTES, check_err()));
        CHECK(handshake_receive_all(fd, bytes, sizeof bytes, &wait) && connect_answer_read(bytes, &answer));
    }
    dd_noise_wipe(&noise);
    dd_sock_close(fd);
    close_node(&a);
    close_node(&b);
    return answer.result;
}

TEST(modified_encrypted_hello_messages_are_refused)
{
    CHECK_INT(verdict_on(0, 0), CONNECT_GO_ON);         /* unchanged */
    CHECK_INT(verdict_on(44, 64), CONNECT_NO_CIPHER);   /* an unknown cipher */
    CHECK_INT(verdict_on(10, 99), CONNECT_DENIED);      /* another uid */
    CHECK_INT(verdict_on(95, 99), CONNECT_DENIED);      /* the tag */
    CHECK_INT(verdict_on(40, 7), CONNECT_NO_SUCH_LANE); /* checked first */
    CHECK_INT(verdict_on(40, 1), CONNECT_DENIED);       /* a valid lane */
}

TEST(dialling_fails_if_another_process_uses_the_address)
{
    for (int is_shm = 0; is_shm < 2; is_shm++) {
        dd_connect_options options = default_options();
        options.is_shm_disabled = is_shm == 0;
        node a;
        node b;
        REQUIRE(open_node(&a, &options) && open_node(&b, &options));
        dd_endpoint old = b.endpoint;
        old.uid.bytes[3] ^= 1;
        int64_t deadline_ns = dd_deadline_after(3 * DD_NS_PER_S * check_slow());
        REQUIRE_OK(dd_connector_dial(a.connector, &old, &b.addrs, 0, DIAL_NUMBER, deadline_ns, check_err()));
        REQUIRE(await(&a, 0, 1));
        CHECK_INT(a.error.code, DD_NETWORK);
        CHECK_CONTAINS(a.error.message, "another process uses this address");
        CHECK_INT(b.nasked, 0);
        close_node(&a);
        close_node(&b);
    }
}

TEST(dialling_an_exited_process_fails)
{
    dd_connect_options options = default_options();
    node a;
    node b;
    REQUIRE(open_node(&a, &options) && open_node(&b, &options));
    close_node(&b);
    int64_t began_ns = dd_clock_now_ns();
    REQUIRE(dial(&a, &b, 0) && await(&a, 0, 1));
    int64_t took_ns = dd_clock_now_ns() - began_ns;
    /* The wait is long enough for other ranks to report why the process has exited. */
    CHECK(took_ns >= 100 * DD_NS_PER_MS && took_ns < DD_NS_PER_S * check_slow());
    CHECK_INT(a.error.code, DD_NETWORK);
    CHECK_CONTAINS(a.error.message, "unix:@dldist-");
    CHECK_CONTAINS(a.error.message, "127.0.0.1:");
    CHECK_CONTAINS(a.error.message, "refused");
    b.addrs.count = 0;
    b.endpoint.has_unix = false;
    REQUIRE(dial(&a, &b, 0) && await(&a, 0, 2));
    CHECK_CONTAINS(a.error.message, "no address");
    close_node(&a);
}

/* The endpoint has a Unix socket, but there is none: the dial uses TCP and logs a message. */
TEST(a_dial_uses_tcp_if_the_peers_unix_socket_does_not_exist)
{
    dd_log_set_level(DD_LOG_INFO);
    dd_connect_options options = default_options();
    dd_connect_options without = options;
    without.is_shm_disabled = true;
    node a;
    node b;
    REQUIRE(open_node(&a, &options) && open_node(&b, &without));
    b.endpoint.has_unix = true;
    REQUIRE(dial(&a, &b, 0));
    REQUIRE(await(&a, 1, 0) && await(&b, 1, 0));
    CHECK(!a.links[0]->is_shared_memory);
    dd_log_record record = {.message = ""};
    dd_wait wait = dd_wait_after(DD_NS_PER_S);
    CHECK_OK(dd_log_take(&record, &wait, check_err()));
    CHECK_CONTAINS(record.message, "no shared memory with");
    close_node(&a);
    close_node(&b);
}

/* The first address belongs to another process, the second to none, and the third never answers. */
TEST(a_dial_tries_the_peers_addresses_until_one_is_reachable)
{
    dd_connect_options options = default_options();
    options.is_shm_disabled = true;
    node a;
    node b;
    node other;
    node gone;
    REQUIRE(open_node(&a, &options) && open_node(&b, &options) && open_node(&other, &options) &&
            open_node(&gone, &options));
    close_node(&gone);
    dd_addr silent_addr = b.addrs.items[0];
    dd_addr_set_port(&silent_addr, 0);
    int silent = -1;
    REQUIRE_OK(dd_sock_listen(&silent_addr, &silent, check_err()));
    dd_addr_list addrs = {.count = 0};
    dd_addr_list_add(&addrs, &other.addrs.items[0]);
    dd_addr_list_add(&addrs, &gone.addrs.items[0]);
    silent_addr = dd_sock_local_addr(silent);
    dd_addr_list_add(&addrs, &silent_addr);
    dd_addr_list_add(&addrs, &b.addrs.items[0]);
    int64_t deadline_ns = dd_deadline_after(8 * DD_NS_PER_S * check_slow());
    REQUIRE_OK(dd_connector_dial(a.connector, &b.endpoint, &addrs, 0, DIAL_NUMBER, deadline_ns, check_err()));
    REQUIRE(await(&a, 1, 0) && await(&b, 1, 0));
    CHECK(are_ends(a.links[0], b.links[0]));
    dd_sock_close(silent);
    close_node(&a);
    close_node(&b);
    close_node(&other);
}

/* ---- malformed data on the port */

static int
connect_raw(const node *self)
{
    dd_wait wait = dd_wait_after(3 * DD_NS_PER_S);
    int fd = -1;
    CHECK_OK(dd_sock_connect(&self->addrs.items[0], &fd, &wait, check_err()));
    return fd;
}

static bool
is_closed_soon(int fd)
{
    uint8_t bytes[256];
    for (int i = 0; i < 100; i++) {
        struct pollfd pollfd = {.fd = fd, .events = POLLIN};
        if (poll(&pollfd, 1, 3000 * check_slow()) != 1) {
            return false;
        }
        ssize_t rc = read(fd, bytes, sizeof bytes);
        if (rc <= 0) {
            return true;
        }
    }
    return false;
}

TEST(connections_that_send_garbage_are_closed)
{
    dd_connect_options options = default_options();
    options.is_shm_disabled = true;
    options.secret = BYTES("sesame");
    node a;
    node b;
    REQUIRE(open_node(&a, &options) && open_node(&b, &options));
    static const char http[] = "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n";
    int fd = connect_raw(&b);
    CHECK(write(fd, http, sizeof http) > 0);
    CHECK(is_closed_soon(fd));
    dd_sock_close(fd);
    unsigned seed = 1;
    for (int round = 0; round < 300; round++) {
        connect_hello hello = {.from = a.endpoint.uid, .to = b.endpoint.uid, .has_secret = true};
        REQUIRE_OK(connect_hello_write(&hello, check_err()));
        /* A hello with some wrong bytes, and an invalid proof. */
        for (int i = 0; i < round % 4; i++) {
            hello.bytes[rand_r(&seed) % CONNECT_HELLO_BYTES] = (uint8_t)rand_r(&seed);
        }
        fd = connect_raw(&b);
        CHECK(write(fd, hello.bytes, CONNECT_HELLO_BYTES) == CONNECT_HELLO_BYTES);
        (void)!sendto(fd, http, 32, MSG_NOSIGNAL, NULL, 0);
        if (round % 2 == 0) {
            CHECK(is_closed_soon(fd));
        }
        dd_sock_close(fd);
    }
    REQUIRE(dial(&a, &b, 0) && await(&a, 1, 0) && await(&b, 1, 0));
    CHECK_INT(b.nasked, 1);
    close_node(&a);
    close_node(&b);
}

TEST(a_dialler_of_another_version_receives_the_listeners_version)
{
    dd_connect_options options = default_options();
    node b;
    REQUIRE(open_node(&b, &options));
    connect_hello hello = {.to = b.endpoint.uid};
    REQUIRE_OK(connect_hello_write(&hello, check_err()));
    hello.bytes[4] = 7;
    int fd = connect_raw(&b);
    CHECK(write(fd, hello.bytes, CONNECT_HELLO_BYTES) == CONNECT_HELLO_BYTES);
    uint8_t bytes[CONNECT_ANSWER_BYTES];
    dd_wait wait = dd_wait_after(3 * DD_NS_PER_S * check_slow());
    REQUIRE(handshake_receive_all(fd, bytes, sizeof bytes, &wait));
    connect_answer answer;
    REQUIRE(connect_answer_read(bytes, &answer));
    CHECK_INT(answer.result, CONNECT_OTHER_VERSION);
    CHECK_INT(answer.version, DD_ENDPOINT_VERSION);
    dd_sock_close(fd);
    close_node(&b);
}

/* An older version of dldist answers with its version. */
TEST(a_dial_to_a_listener_of_another_version_fails)
{
    dd_connect_options options = default_options();
    options.is_shm_disabled = true;
    node a;
    REQUIRE(open_node(&a, &options));
    int listener = -1;
    int fd = -1;
    dd_addr addr = {.len = sizeof(struct sockaddr_in)};
    addr.storage.ss_family = AF_INET;
    ((struct sockaddr_in *)&addr.storage)->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    REQUIRE_OK(dd_sock_listen(&addr, &listener, check_err()));
    dd_endpoint endpoint;
    REQUIRE_OK(dd_endpoint_init(&endpoint, check_err()));
    dd_addr_list addrs = {.items = {dd_sock_local_addr(listener)}, .count = 1};
    dd_wait wait = dd_wait_after(5 * DD_NS_PER_S * check_slow());
    REQUIRE_OK(
        dd_connector_dial(a.connector, &endpoint, &addrs, 0, DIAL_NUMBER, wait.deadline_ns, check_err()));
    REQUIRE_OK(dd_sock_wait(listener, POLLIN, &wait, check_err()));
    REQUIRE(dd_sock_try_accept(listener, &fd) == DD_IO_OK);
    uint8_t bytes[CONNECT_HELLO_BYTES];
    REQUIRE(handshake_receive_all(fd, bytes, CONNECT_HELLO_BYTES, &wait));
    CHECK_INT(bytes[4], DD_ENDPOINT_VERSION);
    connect_answer answer = {.result = CONNECT_OTHER_VERSION};
    connect_answer_write(&answer, bytes);
    bytes[4] = 1;
    REQUIRE_OK(connect_send(fd, NULL, bytes, CONNECT_ANSWER_BYTES, check_err()));
    REQUIRE(await(&a, 0, 1));
    CHECK_INT(a.error.code, DD_PROTOCOL);
    CHECK_CONTAINS(
        a.error.message,
        "another link protocol version: got 1, expected 6; all ranks need the same version of dldist");
    dd_sock_close(fd);
    dd_sock_close(listener);
    close_node(&a);
}

/* With more silent connections than the limit, some are evicted for new ones. */
TEST(silent_connections_above_the_limit_do_not_prevent_new_connections)
{
    enum { COUNT = CONNECT_INCOMING_MAX + 10 };
    dd_connect_options options = default_options();
    options.is_shm_disabled = true;
    options.timeout_ns = 60 * DD_NS_PER_S;
    node a;
    node b;
    REQUIRE(open_node(&a, &options) && open_node(&b, &options));
    int fds[COUNT];
    for (int i = 0; i < COUNT; i++) {
        fds[i] = connect_raw(&b);
        CHECK(i % 2 == 0 || write(fds[i], "DDlh", 4) == 4);
    }
    int64_t deadline_ns = dd_deadline_after(6 * DD_NS_PER_S * check_slow());
    REQUIRE_OK(
        dd_connector_dial(a.connector, &b.endpoint, &b.addrs, 0, DIAL_NUMBER, deadline_ns, check_err()));
    REQUIRE(await(&a, 1, 0) && await(&b, 1, 0));
    close_node(&b);
    for (int i = 0; i < COUNT; i++) {
        CHECK(is_closed_soon(fds[i]));
        dd_sock_close(fds[i]);
    }
    close_node(&a);
}

/* Many more silent connections than the limit, before and around a dialler's: the dialler is
 * answered quickly. */
TEST(a_flood_of_silent_connections_does_not_delay_a_dial)
{
    enum { COUNT = 500 };
    dd_connect_options options = default_options();
    options.is_shm_disabled = true;
    options.timeout_ns = 60 * DD_NS_PER_S;
    options.secret = BYTES("sesame");
    node a;
    node b;
    REQUIRE(open_node(&a, &options) && open_node(&b, &options));
    int nfds_before = count_fds();
    int fds[COUNT];
    for (int i = 0; i < COUNT; i++) {
        fds[i] = connect_raw(&b);
        CHECK(i % 2 == 0 || write(fds[i], "DDlh", 4) == 4);
    }
    int64_t began_ns = dd_clock_now_ns();
    REQUIRE(dial(&a, &b, 0) && await(&a, 1, 0) && await(&b, 1, 0));
    CHECK(dd_clock_now_ns() - began_ns < 3 * DD_NS_PER_S * check_slow());
    CHECK(count_fds() <= nfds_before + COUNT + CONNECT_INCOMING_MAX + 2);
    for (int i = 0; i < COUNT; i++) {
        dd_sock_close(fds[i]);
    }
    close_node(&b);
    close_node(&a);
}

/* Peers are evicted when their grace period ends, even if no new connection is accepted. */
TEST(peers_that_stop_after_their_hello_do_not_prevent_new_connections)
{
    enum { COUNT = CONNECT_STAGE_MAX + 10 };
    dd_connect_options options = default_options();
    options.is_shm_disabled = true;
    options.timeout_ns = 60 * DD_NS_PER_S;
    options.secret = BYTES("sesame");
    options.is_encryption_off = true;
    node a;
    node b;
    REQUIRE(open_node(&a, &options) && open_node(&b, &options));
    int fds[COUNT];
    for (int i = 0; i < COUNT; i++) {
        connect_hello hello = {.from = a.endpoint.uid, .to = b.endpoint.uid, .has_secret = true};
        REQUIRE_OK(connect_hello_write(&hello, check_err()));
        fds[i] = connect_raw(&b);
        CHECK(write(fds[i], hello.bytes, CONNECT_HELLO_BYTES) == CONNECT_HELLO_BYTES);
    }
    int64_t deadline_ns = dd_deadline_after(8 * DD_NS_PER_S * check_slow());
    REQUIRE_OK(
        dd_connector_dial(a.connector, &b.endpoint, &b.addrs, 0, DIAL_NUMBER, deadline_ns, check_err()));
    REQUIRE(await(&a, 1, 0) && await(&b, 1, 0));
    for (int i = 0; i < COUNT; i++) {
        dd_sock_close(fds[i]);
    }
    close_node(&b);
    close_node(&a);
}

static void *
close_three_times(void *arg)
{
    const int *listener = arg;
    for (int i = 0; i < 3; i++) {
        struct pollfd pollfd = {.fd = *listener, .events = POLLIN};
        int fd = -1;
        if (CHECK(poll(&pollfd, 1, 5000 * check_slow()) == 1) &&
            CHECK_INT(dd_sock_try_accept(*listener, &fd), DD_IO_OK)) {
            dd_sock_close(fd);
        }
    }
    dd_sock_close(*listener);
    return NULL;
}

/* A listener closes connections early if there are too many. */
TEST(a_dial_whose_connection_is_closed_before_an_answer_is_tried_again)
{
    dd_connect_options options = default_options();
    options.is_shm_disabled = true;
    node a;
    REQUIRE(open_node(&a, &options));
    int listener = -1;
    dd_addr addr = a.addrs.items[0];
    dd_addr_set_port(&addr, 0);
    REQUIRE_OK(dd_sock_listen(&addr, &listener, check_err()));
    dd_endpoint endpoint;
    REQUIRE_OK(dd_endpoint_init(&endpoint, check_err()));
    dd_addr_list addrs = {.items = {dd_sock_local_addr(listener)}, .count = 1};
    pthread_t closer;
    REQUIRE_OK(dd_thread_start(&closer, "closer", close_three_times, &listener, check_err()));
    REQUIRE_OK(dd_connector_dial(a.connector, &endpoint, &addrs, 0, DIAL_NUMBER, DD_NEVER_NS, check_err()));
    CHECK(await(&a, 0, 1));
    pthread_join(closer, NULL);
    CHECK_INT(a.error.code, DD_NETWORK);
    CHECK_CONTAINS(a.error.message, "refused");
    close_node(&a);
}

TEST(silent_connections_are_closed_at_the_handshake_deadline)
{
    dd_connect_options options = default_options();
    options.timeout_ns = 100 * DD_NS_PER_MS;
    node b;
    REQUIRE(open_node(&b, &options));
    int fd = connect_raw(&b);
    CHECK(is_closed_soon(fd));
    dd_sock_close(fd);
    close_node(&b);
}

/* ---- ports */

TEST(listeners_take_ports_from_the_given_range_until_none_is_free)
{
    /* First find a free range: the port that the kernel chose, and the following ports. */
    dd_connect_options options = default_options();
    node nodes[4];
    bool is_found = false;
    for (int attempt = 0; attempt < 20 && !is_found; attempt++) {
        options.first_port = options.last_port = 0;
        REQUIRE(open_node(&nodes[0], &options));
        uint16_t port = dd_addr_port(&nodes[0].addrs.items[0]);
        close_node(&nodes[0]);
        options.first_port = (uint16_t)(port < 65000 ? port : 40000);
        options.last_port = (uint16_t)(options.first_port + 1);
        is_found = try_open_node(&nodes[0], &options) == DD_OK;
        if (is_found && try_open_node(&nodes[1], &options) != DD_OK) {
            close_node(&nodes[0]);
            is_found = false;
        }
    }
    REQUIRE(is_found);
    CHECK_INT(dd_addr_port(&nodes[0].addrs.items[0]), options.first_port);
    CHECK_INT(dd_addr_port(&nodes[1].addrs.items[0]), options.last_port);
    int nfds_before = count_fds();
    CHECK_STATUS(try_open_node(&nodes[2], &options), DD_NETWORK);
    char expected[64];
    snprintf(expected, sizeof expected, "none of the ports %u to %u is free", options.first_port,
             options.last_port);
    CHECK_CONTAINS(check_message(), expected);
    CHECK_INT(count_fds(), nfds_before);
    close_node(&nodes[0]);
    close_node(&nodes[1]);
}

static bool
is_listener_at(const dd_addr *addr)
{
    dd_wait wait = dd_wait_after(3 * DD_NS_PER_S * check_slow());
    int fd = -1;
    bool is_there = dd_sock_connect(addr, &fd, &wait, check_err()) == DD_OK;
    dd_sock_close(fd);
    return is_there;
}

/* Wait until the listener is closed, which happens asynchronously. */
static void
await_no_listener(const dd_addr *addr)
{
    dd_wait wait = dd_wait_after(6 * DD_NS_PER_S * check_slow());
    while (is_listener_at(addr) && !dd_wait_has_expired(&wait)) {
        usleep(1000);
    }
    CHECK(!is_listener_at(addr));
}

TEST(listening_ports_can_be_closed_and_opened_again)
{
    dd_connect_options options = default_options();
    node a;
    node b;
    REQUIRE(open_node(&a, &options) && open_node(&b, &options));
    dd_addr before = b.addrs.items[0];
    CHECK(is_listener_at(&before));
    dd_connector_close_ports(b.connector);
    await_no_listener(&before);
    REQUIRE(dial(&a, &b, 0) && await(&a, 1, 0) && await(&b, 1, 0));
    CHECK(a.links[0]->is_shared_memory);
    REQUIRE_OK(dd_connector_open_ports(b.connector, NULL, &b.addrs, check_err()));
    CHECK(is_listener_at(&b.addrs.items[0]));
    dd_addr_list addrs = {.count = 0};
    REQUIRE_OK(dd_connector_open_ports(b.connector, NULL, &addrs, check_err()));
    CHECK_INT(addrs.count, 0);
    close_node(&a);
    close_node(&b);
}

TEST(a_loopback_port_stays_open_when_more_ports_are_opened)
{
    dd_connect_options options = default_options();
    options.ifnames = "";
    dd_addr loopback = {.len = sizeof(struct sockaddr_in)};
    struct sockaddr_in *in = (struct sockaddr_in *)&loopback.storage;
    in->sin_family = AF_INET;
    in->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    node self = {0};
    dd_connect_handler handler = {.ctx = &self};
    REQUIRE_OK(dd_endpoint_init(&self.endpoint, check_err()));
    REQUIRE_OK(dd_connector_open(&options, &self.endpoint, &loopback, &handler, &self.addrs, &self.connector,
                                 check_err()));
    REQUIRE(CHECK_INT(self.addrs.count, 1));
    dd_addr only = self.addrs.items[0];
    CHECK(dd_addr_is_loopback(&only) && is_listener_at(&only));
    dd_addr listening = dd_sock_local_addr(self.connector->ports.fds[0]);
    CHECK(dd_addr_is_loopback(&listening));
    REQUIRE_OK(dd_connector_open_ports(self.connector, &loopback, &self.addrs, check_err()));
    CHECK_INT(self.connector->ports.count, 1);
    REQUIRE_OK(dd_connector_open_ports(self.connector, NULL, &self.addrs, check_err()));
    CHECK_INT(self.connector->ports.count, 2);
    /* Processes with the first endpoint can also connect. */
    CHECK(is_listener_at(&self.addrs.items[0]) && is_listener_at(&only));
    dd_connector_close(self.connector);
}

TEST(invalid_connection_options_are_refused)
{
    node a;
    dd_connect_options options = default_options();
    options.last_port = 10;
    CHECK_STATUS(try_open_node(&a, &options), DD_INVALID_ARGUMENT);
    options = default_options();
    options.first_port = 20;
    CHECK_STATUS(try_open_node(&a, &options), DD_INVALID_ARGUMENT);
    options = default_options();
    options.nlanes = 0;
    CHECK_STATUS(try_open_node(&a, &options), DD_INVALID_ARGUMENT);
    options = default_options();
    options.congestion = "no-such-thing";
    CHECK_STATUS(try_open_node(&a, &options), DD_INVALID_ARGUMENT);
    CHECK_CONTAINS(check_message(), "no-such-thing");
    options = default_options();
    options.ifnames = "no-such-interface";
    CHECK_STATUS(try_open_node(&a, &options), DD_INVALID_ARGUMENT);
}

TEST(tcp_connections_use_the_configured_congestion_control)
{
    dd_connect_options options = default_options();
    options.is_shm_disabled = true;
    options.congestion = "reno";
    node a;
    node b;
    REQUIRE(open_node(&a, &options) && open_node(&b, &options));
    REQUIRE(dial(&a, &b, 0) && await(&a, 1, 0) && await(&b, 1, 0));
    for (int i = 0; i < 2; i++) {
        char name[16] = "";
        socklen_t len = sizeof name;
        int fd = i == 0 ? a.links[0]->fd : b.links[0]->fd;
        CHECK(getsockopt(fd, IPPROTO_TCP, 13 /* TCP_CONGESTION */, name, &len) == 0);
        CHECK_CONTAINS(name, "reno");
    }
    close_node(&a);
    close_node(&b);
}

/* ---- lifetime */

TEST(closing_at_any_moment_of_a_handshake_leaks_no_descriptors)
{
    int nfds_before = count_fds();
    for (int round = 0; round < 60; round++) {
        dd_connect_options options = default_options();
        options.is_shm_disabled = round % 2 == 0;
        options.secret = round % 3 == 0 ? BYTES("sesame") : BYTES("");
        node a;
        node b;
        REQUIRE(open_node(&a, &options) && open_node(&b, &options));
        int fd = connect_raw(&b);
        REQUIRE(dial(&a, &b, 0) && dial(&b, &a, 0) && dial(&a, &b, 1));
        usleep((useconds_t)(round * 17));
        close_node(&a);
        close_node(&b);
        dd_sock_close(fd);
        CHECK_INT(count_fds(), nfds_before);
    }
}

TEST(closing_does_not_wait_for_a_peer_that_never_answers)
{
    dd_connect_options options = default_options();
    node a;
    REQUIRE(open_node(&a, &options));
    int silent = -1;
    dd_addr addr = a.addrs.items[0];
    dd_addr_set_port(&addr, 0);
    REQUIRE_OK(dd_sock_listen(&addr, &silent, check_err()));
    dd_endpoint endpoint;
    REQUIRE_OK(dd_endpoint_init(&endpoint, check_err()));
    dd_addr_list addrs = {.items = {dd_sock_local_addr(silent)}, .count = 1};
    REQUIRE_OK(dd_connector_dial(a.connector, &endpoint, &addrs, 0, DIAL_NUMBER, DD_NEVER_NS, check_err()));
    usleep(20000);
    int64_t began_ns = dd_clock_now_ns();
    close_node(&a);
    CHECK(dd_clock_now_ns() - began_ns < DD_NS_PER_S * check_slow());
    CHECK_INT(a.nfailed, 0);
    dd_sock_close(silent);
}

TEST(closing_in_a_forked_child_leaves_the_parents_connections_open)
{
    dd_connect_options options = default_options();
    node a;
    node b;
    REQUIRE(open_node(&a, &options) && open_node(&b, &options));
    REQUIRE(dial(&a, &b, 0) && await(&a, 1, 0) && await(&b, 1, 0));
    pid_t pid = fork();
    if (pid == 0) {
        CHECK_STATUS(
            dd_connector_dial(a.connector, &b.endpoint, &b.addrs, 0, DIAL_NUMBER, DD_NEVER_NS, check_err()),
            DD_FORKED);
        dd_connector_close(a.connector);
        dd_connector_close(b.connector);
        _exit(check_failures() > 0);
    }
    int code = -1;
    CHECK(waitpid(pid, &code, 0) == pid && code == 0);
    CHECK(are_ends(a.links[0], b.links[0]));
    close_node(&a);
    close_node(&b);
}

/* Whichever allocation fails: open returns an error, dial returns an error, or the owner is
 * notified that the dial failed. */
TEST(opening_and_dialling_report_every_failed_allocation)
{
    int nfds_before = count_fds();
    dd_connect_options options = default_options();
    dd_status status = DD_OUT_OF_MEMORY;
    for (long n = 0; n < 20 && status != DD_OK; n++) {
        node a;
        (void)dd_mem_fail_after(n);
        status = try_open_node(&a, &options);
        (void)dd_mem_fail_after(-1);
        if (status == DD_OK) {
            close_node(&a);
        }
        CHECK(status == DD_OK || status == DD_OUT_OF_MEMORY);
        CHECK_INT(count_fds(), nfds_before);
    }
    CHECK_INT(status, DD_OK);
}

/* Over TCP, a dialler that receives a welcome has a link: the listener must not send a welcome if
 * it cannot create the link. */
TEST(a_listener_that_cannot_allocate_a_connection_sends_no_welcome)
{
    dd_connect_options options = default_options();
    options.is_shm_disabled = true;
    node b;
    REQUIRE(open_node(&b, &options));
    connect_hello hello = {.to = b.endpoint.uid};
    REQUIRE_OK(connect_hello_write(&hello, check_err()));
    (void)dd_mem_fail_after(1); /* there is memory for the connection, but not for its link */
    int fd = connect_raw(&b);
    CHECK(write(fd, hello.bytes, CONNECT_HELLO_BYTES) == CONNECT_HELLO_BYTES);
    uint8_t bytes[CONNECT_ANSWER_BYTES];
    dd_wait wait = dd_wait_after(3 * DD_NS_PER_S * check_slow());
    REQUIRE(handshake_receive_all(fd, bytes, sizeof bytes, &wait));
    CHECK_OK(dd_sock_wait(fd, POLLIN, &wait, check_err()));
    CHECK_INT(read(fd, bytes, 1), 0);
    CHECK_INT(dd_mem_fail_after(-1), 2);
    dd_sock_close(fd);
    close_node(&b);
    CHECK_INT(b.nwelcome_failed, 1);
    CHECK_INT(b.nlinks, 0);
}
