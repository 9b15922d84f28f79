#include "check.h"

#include "core/clock.h"
#include "net/admission.h"

#include <errno.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#define MOST ((size_t)8)
#define NPEERS 12
#define TIMEOUT_NS (60 * DD_NS_PER_S)

typedef struct port {
    dd_admission admission;
    dd_admission_peer peers[NPEERS];
} port;

/* The numbers of the peers closed since port_init, in order, and the reason for the last one. */
static int closed[NPEERS];
static int nclosed;
static const char *reason;

static void
close_peer(dd_admission_peer *peer, const char *why)
{
    port *self = DD_CONTAINER_OF(peer->admission, port, admission);
    dd_admission_end(peer->admission, peer);
    closed[nclosed++] = (int)(peer - self->peers);
    reason = why;
}

static void
port_init(port *self)
{
    memset(self, 0, sizeof *self);
    nclosed = 0;
    dd_admission_init(&self->admission, MOST, TIMEOUT_NS, close_peer);
}

static void
begin(port *self, int first, int count)
{
    for (int i = first; i < first + count; i++) {
        dd_admission_begin(&self->admission, &self->peers[i], false, TIMEOUT_NS);
    }
}

static void
greet(port *self, int first, int count)
{
    for (int i = first; i < first + count; i++) {
        dd_admission_continue(&self->admission, &self->peers[i], TIMEOUT_NS);
    }
}

static void
let_grace_pass(port *self, int first, int count)
{
    for (int i = first; i < first + count; i++) {
        self->peers[i].since_ns -= 2 * TIMEOUT_NS;
    }
}

TEST(silent_peers_above_the_limit_are_evicted_at_random)
{
    bool is_evicted[NPEERS] = {false};
    int nevicted = 0;
    for (int round = 0; round < 500; round++) {
        port self;
        port_init(&self);
        begin(&self, 0, (int)MOST);
        CHECK(dd_admission_evict_surplus(&self.admission, false));
        CHECK_INT(nclosed, 0);
        begin(&self, (int)MOST, 1);
        CHECK(dd_admission_evict_surplus(&self.admission, false));
        REQUIRE(nclosed == 1);
        CHECK_CONTAINS(reason, "too many unauthenticated connections");
        nevicted += is_evicted[closed[0]] ? 0 : 1;
        is_evicted[closed[0]] = true;
    }
    CHECK_INT(nevicted, MOST + 1);
}

TEST(all_silent_peers_above_the_limit_are_evicted_together)
{
    port self;
    port_init(&self);
    begin(&self, 0, NPEERS);
    CHECK(dd_admission_evict_surplus(&self.admission, true));
    CHECK_INT(nclosed, NPEERS - MOST);
    CHECK(dd_admission_evict_surplus(&self.admission, false));
    CHECK_INT(nclosed, NPEERS - MOST);
}

TEST(peers_that_have_sent_a_hello_are_not_evicted_during_their_grace_period)
{
    port self;
    port_init(&self);
    begin(&self, 0, (int)MOST + 2);
    greet(&self, 0, (int)MOST + 2);
    CHECK(!dd_admission_evict_surplus(&self.admission, false));
    CHECK(dd_admission_evict_surplus(&self.admission, true));
    CHECK_INT(nclosed, 0);
    let_grace_pass(&self, 0, 3);
    CHECK(dd_admission_evict_surplus(&self.admission, false));
    REQUIRE(nclosed == 2);
    CHECK(closed[0] == 0 && closed[1] == 1);
}

/* Accept one of three pending connections, with this limit on the process's descriptors. */
static void
accept_within(port *self, int listener, rlim_t limit, dd_io expected, int expected_shortage)
{
    struct rlimit old;
    REQUIRE(getrlimit(RLIMIT_NOFILE, &old) == 0);
    struct rlimit few = {limit, old.rlim_max};
    REQUIRE(setrlimit(RLIMIT_NOFILE, &few) == 0);
    int fd = -1;
    int shortage = -1;
    CHECK_INT(dd_admission_accept(&self->admission, listener, &fd, &shortage), expected);
    CHECK_INT(shortage, expected_shortage);
    REQUIRE(setrlimit(RLIMIT_NOFILE, &old) == 0);
    dd_sock_close(fd);
}

TEST(peers_are_evicted_when_the_process_runs_out_of_descriptors)
{
    port self;
    port_init(&self);
    dd_addr name = dd_addr_unix_abstract("dldist-test-admission");
    int listener = -1;
    int fds[64]; /* three clients, then fillers: with this many descriptors, some are spared */
    int nfds = 0;
    REQUIRE_OK(dd_sock_listen(&name, &listener, check_err()));
    for (; nfds < 3; nfds++) {
        REQUIRE_OK(dd_sock_begin_connect(&name, &fds[nfds], check_err()));
    }
    for (; fds[nfds - 1] < 40; nfds++) {
        fds[nfds] = dup(listener);
        REQUIRE(fds[nfds] >= 0);
    }
    rlim_t next_fd = (rlim_t)fds[nfds - 1] + 1;
    begin(&self, 0, 3);
    greet(&self, 0, 2);
    let_grace_pass(&self, 0, 1);
    /* The silent peer is evicted first. Peers of this test have no descriptors, so a failed accept
     * evicts every peer that may be evicted. */
    accept_within(&self, listener, next_fd + 1, DD_IO_OK, 0);
    REQUIRE(nclosed == 1 && CHECK_INT(closed[0], 2));
    accept_within(&self, listener, next_fd, DD_IO_FAILED, EMFILE);
    REQUIRE(nclosed == 2 && CHECK_INT(closed[1], 0));
    accept_within(&self, listener, next_fd + 1, DD_IO_OK, EMFILE);
    accept_within(&self, listener, next_fd + 64, DD_IO_OK, 0);
    accept_within(&self, listener, next_fd + 64, DD_IO_AGAIN, 0);
    CHECK_INT(nclosed, 2);
    while (nfds > 0) {
        dd_sock_close(fds[--nfds]);
    }
    dd_sock_close(listener);
}

TEST(trusted_peers_are_never_evicted)
{
    port self;
    port_init(&self);
    for (int i = 0; i < (int)MOST; i++) {
        CHECK(dd_admission_evict_surplus(&self.admission, true));
        dd_admission_begin(&self.admission, &self.peers[i], true, TIMEOUT_NS);
    }
    CHECK(!dd_admission_evict_surplus(&self.admission, true));
    CHECK(dd_admission_evict_surplus(&self.admission, false));
    greet(&self, 0, 2);
    let_grace_pass(&self, 0, (int)MOST);
    CHECK(!dd_admission_evict_surplus(&self.admission, true));
    CHECK_INT(nclosed, 0);
}

TEST(each_peer_is_late_after_its_own_deadline)
{
    port self;
    port_init(&self);
    const dd_timer_set *timers = &self.admission.timers;
    CHECK(dd_timer_set_next_ns(timers) == DD_NEVER_NS);
    int64_t now_ns = dd_clock_now_ns();
    begin(&self, 0, 3);
    /* The first message must arrive within 2 s. */
    CHECK(dd_timer_set_next_ns(timers) <= now_ns + 10 * DD_NS_PER_S);
    greet(&self, 0, 3);
    CHECK(dd_timer_set_next_ns(timers) >= now_ns + TIMEOUT_NS);
    dd_admission_begin(&self.admission, &self.peers[3], true, TIMEOUT_NS);
    dd_timer_set_run(&self.admission.timers, now_ns + TIMEOUT_NS / 2);
    REQUIRE(nclosed == 1 && CHECK_INT(closed[0], 3));
    CHECK_CONTAINS(reason, "handshake");
    begin(&self, 4, 1);
    dd_timer_set_run(&self.admission.timers, now_ns + TIMEOUT_NS / 2);
    REQUIRE(nclosed == 2 && CHECK_INT(closed[1], 4));
    CHECK_CONTAINS(reason, "no message");
    dd_admission_end(&self.admission, &self.peers[1]);
    dd_timer_set_run(&self.admission.timers, dd_clock_now_ns() + TIMEOUT_NS);
    REQUIRE(nclosed == 4);
    CHECK(closed[2] == 0 && closed[3] == 2);
    CHECK_CONTAINS(reason, "handshake");
}

TEST(silent_peers_may_use_an_eighth_of_the_descriptors)
{
    struct rlimit old;
    REQUIRE(getrlimit(RLIMIT_NOFILE, &old) == 0);
    struct rlimit few = {48, old.rlim_max};
    REQUIRE(setrlimit(RLIMIT_NOFILE, &few) == 0);
    port self;
    port_init(&self);
    begin(&self, 0, 6);
    CHECK(dd_admission_evict_surplus(&self.admission, false));
    CHECK_INT(nclosed, 0);
    begin(&self, 6, 1);
    CHECK(dd_admission_evict_surplus(&self.admission, false));
    CHECK_INT(nclosed, 1);
    REQUIRE(setrlimit(RLIMIT_NOFILE, &old) == 0);
    begin(&self, 7, 1);
    CHECK(dd_admission_evict_surplus(&self.admission, false));
    CHECK_INT(nclosed, 1);
}
