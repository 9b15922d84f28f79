/* Which dial becomes a link, and the state that is left when a dial fails. */
#include "check.h"
#include "core/fork.h"
#include "core/mem.h"
#include "core/system.h"
#include "faults/faults.h"
#include "handshake.h"
#include "insight.h"
#include "net/sock.h"
#include "test_engine_rig.h"
#include "transport/connect_internal.h"
#include "transport/engine_internal.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* ---- both sides dial */

static void
connect_from(rig_group *self, int rank)
{
    dd_engine_lock(self->ranks[rank].engine);
    dd_peer_connect_locked(self->ranks[rank].peers[1 - rank]);
    dd_engine_unlock(self->ranks[rank].engine);
}

static void
send_and_recv(rig_group *self, int rank)
{
    int number = rank;
    int got = -1;
    rig_message send = rig_p2p(1 - rank, 1, &number, sizeof number);
    rig_message recv = rig_p2p(1 - rank, 1, &got, sizeof got);
    rig_post_send(self, rank, &send);
    rig_post_recv(self, rank, &recv);
    CHECK(rig_wait(self, rank, &send, DD_OK) && rig_wait(self, rank, &recv, DD_OK));
    CHECK_INT(got, 1 - rank);
}

/* The second dial starts at every point of the handshake of the first. The smaller uid is random,
 * so both outcomes occur. */
static void
check_both_dial(bool is_shm, int nrounds)
{
    for (int round = 0; round < nrounds; round++) {
        rig_group self;
        REQUIRE(rig_open(&self, 2, is_shm));
        connect_from(&self, round % 2);
        usleep((useconds_t)(round / 2 * 10));
        connect_from(&self, 1 - round % 2);
        rig_run(&self, send_and_recv);
        for (int rank = 0; rank < 2; rank++) {
            dd_engine_stats stats;
            stats = read_engine_stats(self.ranks[rank].engine);
            CHECK_INT(stats.nconnections, 1);
            CHECK_INT(self.ranks[rank].news.nlosts, 0);
        }
        rig_close(&self);
    }
}

TEST(two_peers_that_dial_each_other_get_one_connection_over_shared_memory)
{
    check_both_dial(true, 100);
}

TEST(two_peers_that_dial_each_other_get_one_connection_over_tcp)
{
    check_both_dial(false, 100);
}

/* ---- a process that dies during the handshake, as seen by the process that has accepted it */

typedef struct victim {
    dd_engine *engine;
    dd_endpoint own;      /* the engine's endpoint */
    dd_endpoint endpoint; /* the endpoint of the process that dies; no process uses it */
    dd_peer *peer;
    int fd;
} victim;

static bool
open_victim(victim *self)
{
    dd_connect_options options = rig_options(true, 1);
    dd_blob bytes = {0};
    *self = (victim){.fd = -1};
    bool is_ok = CHECK_OK(dd_engine_open(&options, &self->engine, check_err())) &&
                 CHECK_OK(dd_engine_endpoint(self->engine, NULL, &bytes, check_err())) &&
                 CHECK_OK(dd_endpoint_decode(dd_blob_view(&bytes), &self->own, NULL, check_err())) &&
                 CHECK_OK(dd_endpoint_init(&self->endpoint, check_err()));
    const dd_addr_list nowhere = {.count = 0};
    self->endpoint.has_unix = true;
    is_ok = is_ok && CHECK_OK(dd_endpoint_encode(&self->endpoint, &nowhere, &bytes, check_err())) &&
            CHECK_OK(dd_engine_peer(self->engine, dd_blob_view(&bytes), &self->peer, check_err()));
    dd_blob_fini(&bytes);
    return is_ok;
}

/* Run the handshake up to the result, a welcome. */
static bool
begin_hand_shake(victim *self)
{
    dd_wait wait = dd_wait_after(10 * DD_NS_PER_S * check_slow());
    dd_addr addr = dd_endpoint_unix_addr(&self->own);
    connect_hello hello = {.from = self->endpoint.uid, .to = self->own.uid};
    uint8_t answer[CONNECT_ANSWER_BYTES];
    uint8_t result = 0;
    return CHECK_OK(dd_sock_connect(&addr, &self->fd, &wait, check_err())) &&
           CHECK_OK(connect_hello_write(&hello, check_err())) &&
           CHECK_OK(connect_send(self->fd, NULL, hello.bytes, CONNECT_HELLO_BYTES, check_err())) &&
           handshake_receive_all(self->fd, answer, sizeof answer, &wait) &&
           handshake_receive_all(self->fd, &result, 1, &wait) && CHECK_INT(result, CONNECT_OK);
}

static bool
is_lost_soon(const victim *self)
{
    dd_wait wait = dd_wait_after(10 * DD_NS_PER_S * check_slow());
    bool is_lost = false;
    while (!is_lost && !dd_wait_has_expired(&wait)) {
        dd_engine_lock(self->engine);
        is_lost = dd_peer_error_locked(self->peer) != NULL;
        dd_engine_unlock(self->engine);
        CHECK_OK(dd_wait_sleep(&wait, DD_NS_PER_MS, check_err()));
    }
    return is_lost;
}

static void
note_end(dd_message *message, const dd_error *error)
{
    *(dd_status *)message->owner = error != NULL ? error->code : DD_OK;
}

static void
exit_before_sending(victim *self)
{
    REQUIRE(open_victim(self));
    dd_peer *peers[2] = {NULL, self->peer};
    dd_context *context = NULL;
    dd_context_handler nothing = {0};
    dd_wait wait = dd_wait_after(DD_NS_PER_S);
    dd_status end = DD_OK;
    uint8_t byte;
    dd_message recv = {
        .kind = DD_MESSAGE_P2P, .rank = 1, .data = &byte, .nbytes = 1, .on_done = note_end, .owner = &end};
    REQUIRE(CHECK_OK(dd_engine_self(self->engine, &peers[0], check_err())) &&
            CHECK_OK(dd_context_open(self->engine, 1, 0, 2, peers, &nothing, &context, check_err())) &&
            begin_hand_shake(self));
    dd_engine_lock(self->engine);
    dd_context_post_recv_locked(context, &recv);
    dd_engine_unlock(self->engine);
    dd_sock_close(self->fd);
    CHECK(is_lost_soon(self));
    dd_context_close(context, &wait);
    CHECK_STATUS(end, DD_NETWORK);
    dd_peer_release(peers[0]);
    dd_peer_release(self->peer);
    dd_engine_release(self->engine);
}

TEST(a_receive_fails_if_the_dialler_exits_during_the_handshake)
{
    victim self;
    exit_before_sending(&self);
}

static void
exit_in_handshake(victim *self, bool is_wanted_before)
{
    REQUIRE(open_victim(self) && begin_hand_shake(self));
    for (int i = 0; i < 2; i++) {
        if (is_wanted_before == (i == 0)) {
            dd_engine_lock(self->engine);
            dd_peer_connect_locked(self->peer);
            dd_engine_unlock(self->engine);
        } else {
            dd_sock_close(self->fd);
        }
    }
    CHECK(is_lost_soon(self));
    dd_peer_release(self->peer);
    dd_engine_release(self->engine);
}

TEST(a_peer_is_lost_if_its_connection_ends_during_the_handshake)
{
    victim self;
    exit_in_handshake(&self, true);
    exit_in_handshake(&self, false);
}

/* ---- a process that cannot accept connections, and needs the peer that dials it */

TEST(a_dial_to_a_process_that_does_not_accept_fails)
{
    victim self;
    int listener = -1;
    REQUIRE(open_victim(&self));
    dd_addr addr = dd_endpoint_unix_addr(&self.endpoint); /* nothing accepts at this address */
    REQUIRE_OK(dd_sock_listen(&addr, &listener, check_err()));
    CHECK(!engine_wants_dial(self.engine, &self.endpoint.uid, self.peer->dial, true));
    dd_engine_lock(self.engine);
    dd_peer_connect_locked(self.peer);
    dd_engine_unlock(self.engine);
    CHECK(engine_wants_dial(self.engine, &self.endpoint.uid, self.peer->dial, true));
    dd_connector *connector = self.engine->connector;
    atomic_store(&connector->failing_since_ns, 1);
    atomic_store(&connector->accept_errno, EMFILE);
    CHECK(!engine_wants_dial(self.engine, &self.endpoint.uid, self.peer->dial, true));
    CHECK(is_lost_soon(&self));
    dd_engine_lock(self.engine);
    CHECK_CONTAINS(dd_peer_error_locked(self.peer)->message, "cannot accept the connections of other ranks");
    dd_engine_unlock(self.engine);
    dd_sock_close(listener);
    dd_peer_release(self.peer);
    dd_engine_release(self.engine);
}

/* ---- links that the test creates */

static dd_link *
make_link(int *other_end)
{
    int fds[2];
    dd_link *link = NULL;
    if (CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds) == 0)) {
        (void)dd_fork_register(fds[0]);
        *other_end = fds[1];
        CHECK_OK(dd_link_open_tcp(fds[0], NULL, &link, check_err()));
    }
    return link;
}

static bool
is_closed(int fd)
{
    uint8_t byte;
    return recv(fd, &byte, 1, 0) == 0;
}

static int
count_lanes(const victim *self)
{
    dd_engine_lock(self->engine);
    int nlanes = self->peer->nlanes;
    dd_engine_unlock(self->engine);
    return nlanes;
}

/* If the peer is linked, a second lane that cannot be watched or stored has no effect. If the peer
 * is not linked, the link fails. */
static void
accept_link_without_resources(bool is_linked, bool is_memory)
{
    victim self;
    int ends[2] = {-1, -1};
    static const dd_sys_fault fault = {.call = DD_SYS_epoll_ctl, .error_number = ENOSPC};
    REQUIRE(open_victim(&self));
    if (is_linked) {
        engine_on_accepted(self.engine, &self.endpoint.uid, 0, make_link(&ends[0]));
        CHECK_INT(count_lanes(&self), 1);
    }
    dd_link *link = make_link(&ends[1]);
    if (is_memory) {
        dd_mem_fail_after(0);
    } else {
        dd_sys_fail_call(&fault);
    }
    engine_on_accepted(self.engine, &self.endpoint.uid, is_linked ? 1 : 0, link);
    dd_mem_fail_after(-1);
    dd_sys_fail_call(NULL);
    CHECK(is_closed(ends[1]));
    CHECK_INT(count_lanes(&self), is_linked);
    if (is_linked) {
        dd_engine_lock(self.engine);
        CHECK(dd_peer_is_connected_locked(self.peer));
        dd_engine_unlock(self.engine);
    } else {
        CHECK(is_lost_soon(&self));
        dd_engine_lock(self.engine);
        CHECK_CONTAINS(dd_peer_error_locked(self.peer)->message,
                       is_memory ? "out of memory" : "cannot watch the connection to ");
        dd_engine_unlock(self.engine);
    }
    dd_peer_release(self.peer);
    dd_engine_release(self.engine);
    for (int i = 0; i < 2; i++) {
        if (ends[i] >= 0) {
            close(ends[i]);
        }
    }
}

TEST(a_connection_that_cannot_be_accepted_is_an_error_of_its_peer)
{
    for (int i = 0; i < 4; i++) {
        accept_link_without_resources(i % 2 == 1, i / 2 == 1);
    }
}

static dd_peer *
find_peer(victim *self)
{
    dd_engine_lock(self->engine);
    dd_peer *peer = engine_find_peer(self->engine, &self->endpoint.uid);
    dd_engine_unlock(self->engine);
    return peer;
}

/* The other side has accepted the link, and uses it for the group that is created next. */
TEST(a_connection_accepted_after_its_peer_was_lost_serves_the_next_group)
{
    for (int is_dialled = 0; is_dialled < 2; is_dialled++) {
        victim self;
        dd_error error;
        int end = -1;
        dd_error_set(&error, DD_NETWORK, "no way");
        REQUIRE(open_victim(&self));
        dd_engine_lock(self.engine);
        self.peer->endpoint.has_unix = false; /* else the process counts as dead */
        peer_break(self.peer, &error);
        engine_wake(self.engine);
        dd_engine_unlock(self.engine);
        CHECK(is_lost_soon(&self));
        if (is_dialled) {
            engine_on_dialled(self.engine, &self.endpoint.uid, 0, 1, make_link(&end));
        } else {
            engine_on_accepted(self.engine, &self.endpoint.uid, 0, make_link(&end));
        }
        dd_peer *next = find_peer(&self);
        CHECK(next != NULL && next != self.peer && !is_closed(end));
        dd_engine_lock(self.engine);
        CHECK(dd_peer_is_connected_locked(next) && dd_peer_error_locked(self.peer) != NULL);
        dd_engine_unlock(self.engine);
        dd_peer_release(self.peer);
        dd_engine_release(self.engine);
        close(end);
    }
}

TEST(the_failure_of_an_earlier_dial_does_not_end_a_later_one)
{
    victim self;
    dd_error error;
    int listener = -1;
    dd_error_set(&error, DD_NETWORK, "no way");
    REQUIRE(open_victim(&self));
    /* connections to this address are never accepted */
    dd_addr addr = dd_endpoint_unix_addr(&self.endpoint);
    REQUIRE_OK(dd_sock_listen(&addr, &listener, check_err()));
    dd_engine_lock(self.engine);
    dd_peer_connect_locked(self.peer);
    uint64_t dial = self.peer->dial;
    dd_engine_unlock(self.engine);
    CHECK(!engine_wants_dial(self.engine, &self.endpoint.uid, dial - 1, false));
    engine_on_dial_failed(self.engine, &self.endpoint.uid, 0, dial - 1, &error);
    CHECK(engine_wants_dial(self.engine, &self.endpoint.uid, dial, false));
    engine_on_dial_failed(self.engine, &self.endpoint.uid, 0, dial, &error);
    CHECK(is_lost_soon(&self));
    CHECK_INT(self.peer->dial, 0);
    dd_sock_close(listener);
    dd_peer_release(self.peer);
    dd_engine_release(self.engine);
}

TEST(an_unknown_peer_is_accepted_only_on_its_first_connection)
{
    victim self;
    int ends[2] = {-1, -1};
    dd_endpoint unknown;
    REQUIRE(open_victim(&self) && CHECK_OK(dd_endpoint_init(&unknown, check_err())));
    engine_on_accepted(self.engine, &unknown.uid, 1, make_link(&ends[0])); /* a second lane without a first */
    CHECK(is_closed(ends[0]));
    engine_on_accepted(self.engine, &unknown.uid, 0, make_link(&ends[1]));
    CHECK(!is_closed(ends[1]));
    dd_engine_lock(self.engine);
    dd_peer *peer = engine_find_peer(self.engine, &unknown.uid);
    CHECK(peer != NULL && !peer->is_endpoint_known && dd_peer_is_connected_locked(peer));
    dd_engine_unlock(self.engine);
    dd_peer_release(self.peer);
    dd_engine_release(self.engine);
    close(ends[0]);
    close(ends[1]);
}

TEST(a_peer_does_not_wait_for_a_second_connection_that_could_not_be_dialled)
{
    victim self;
    dd_error error;
    dd_error_set(&error, DD_NETWORK, "no way");
    REQUIRE(open_victim(&self));
    self.peer->ndialling = 1;
    engine_on_dial_failed(self.engine, &self.endpoint.uid, 1, 0, &error);
    engine_on_dial_failed(self.engine, &self.endpoint.uid, 1, 0, &error);
    CHECK_INT(self.peer->ndialling, 0);
    CHECK(dd_peer_error_locked(self.peer) == NULL);
    dd_peer_release(self.peer);
    dd_engine_release(self.engine);
}

/* ---- a link that is lost before a group here knows its peer */

static bool
open_engine(dd_engine **engine, dd_blob *endpoint)
{
    dd_connect_options options = rig_options(false, 1);
    return CHECK_OK(dd_engine_open(&options, engine, check_err())) &&
           CHECK_OK(dd_engine_endpoint(*engine, NULL, endpoint, check_err()));
}

static bool
has_link(dd_engine *engine)
{
    dd_wait wait = dd_wait_after(10 * DD_NS_PER_S * check_slow());
    dd_engine_stats stats = {.nconnections = 0};
    while (stats.nconnections == 0 && !dd_wait_has_expired(&wait)) {
        CHECK_OK(dd_wait_sleep(&wait, DD_NS_PER_MS, check_err()));
        stats = read_engine_stats(engine);
    }
    return CHECK_INT(stats.nconnections, 1);
}

/* The other side then aborts, and dials to it fail: the group must receive the original reason. */
TEST(a_local_error_on_the_connection_of_an_unknown_peer_is_reported_later)
{
    dd_engine *engines[2];
    dd_peer *peer = NULL;
    dd_blob endpoints[2] = {{0}};
    REQUIRE(open_engine(&engines[0], &endpoints[0]) && open_engine(&engines[1], &endpoints[1]));
    dd_engine_begin_meeting(engines[0]);
    REQUIRE_OK(dd_engine_peer(engines[1], dd_blob_view(&endpoints[0]), &peer, check_err()));
    dd_engine_lock(engines[1]);
    dd_peer_connect_locked(peer);
    dd_engine_unlock(engines[1]);
    REQUIRE(has_link(engines[0]));
    dd_engine_lock(engines[0]);
    CHECK_OK(dd_engine_check_links_locked(engines[0], check_err()));
    errno = ENOMEM;
    lane_break_for_io(DD_CONTAINER_OF(engines[0]->tcp_lanes.next, dd_lane, link), DD_IO_FAILED,
                      "cannot receive");
    CHECK_STATUS(dd_engine_check_links_locked(engines[0], check_err()), DD_SYSTEM);
    CHECK_CONTAINS(check_message(), "Cannot allocate memory");
    dd_engine_unlock(engines[0]);
    dd_engine_end_meeting(engines[0]);
    dd_peer_release(peer);
    for (int i = 0; i < 2; i++) {
        dd_engine_release(engines[i]);
        dd_blob_fini(&endpoints[i]);
    }
}
