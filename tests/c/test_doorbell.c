/* Doorbells: rings and descriptors between processes without a connection. */
#include "check.h"

#include "core/fork.h"
#include "failure_notices.h"
#include "insight.h"
#include "leftovers.h"
#include "net/auth.h"
#include "pass_descriptors.h"
#include "test_engine_rig.h"
#include "transport/doorbell.h"
#include "transport/engine_internal.h"

#include <errno.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

typedef struct bells {
    dd_uid uids[2];
    int fds[2];
} bells;

static bool
open_bells(bells *self)
{
    for (int i = 0; i < 2; i++) {
        self->fds[i] = -1;
        if (!CHECK_OK(dd_auth_random(self->uids[i].bytes, DD_UID_BYTES, check_err())) ||
            !CHECK_OK(dd_doorbell_open(&self->uids[i], &self->fds[i], check_err()))) {
            return false;
        }
    }
    return true;
}

static void
close_bells(bells *self)
{
    dd_sock_close(self->fds[0]);
    dd_sock_close(self->fds[1]);
}

static bool
is_rung(int fd)
{
    struct pollfd pollfd = {.fd = fd, .events = POLLIN};
    return poll(&pollfd, 1, 0) == 1;
}

TEST(a_doorbell_that_was_rung_stays_readable_until_the_ring_is_read)
{
    int nfds_before = count_fds();
    bells pair;
    REQUIRE(open_bells(&pair));
    CHECK(!is_rung(pair.fds[1]));
    for (int i = 0; i < 5000; i++) { /* more than the queue holds */
        dd_doorbell_ring(pair.fds[0], &pair.uids[1]);
    }
    CHECK(is_rung(pair.fds[1]));
    CHECK(!is_rung(pair.fds[0]));
    dd_bell_datagram datagram;
    while (dd_doorbell_take(pair.fds[1], &datagram) == DD_IO_OK) {
        CHECK_INT(datagram.kind, DD_BELL_RING);
        CHECK_INT(datagram.fd, -1);
    }
    CHECK(!is_rung(pair.fds[1]));
    dd_doorbell_ring(pair.fds[0], &pair.uids[1]);
    CHECK(is_rung(pair.fds[1]));
    dd_uid unknown = {{1}};
    dd_doorbell_ring(pair.fds[0], &unknown);
    int second = -1;
    CHECK_STATUS(dd_doorbell_open(&pair.uids[0], &second, check_err()), DD_NETWORK);
    CHECK_CONTAINS(check_message(), "doorbell");
    close_bells(&pair);
    CHECK_INT(count_fds(), nfds_before);
}

TEST(descriptors_sent_to_a_doorbell_arrive_with_their_keys)
{
    int nfds_before = count_fds();
    bells pair;
    REQUIRE(open_bells(&pair));
    int fd = memfd_create("passed", MFD_CLOEXEC);
    REQUIRE(write(fd, "12345", 5) == 5);
    dd_bell_datagram sent = {
        .kind = DD_BELL_WANT, .context = 1, .fd_key = 2, .source = 3, .target = 4, .fd = -1};
    CHECK_INT(dd_doorbell_send(pair.fds[0], &pair.uids[1], &sent), DD_IO_OK);
    sent =
        (dd_bell_datagram){.kind = DD_BELL_PASS, .context = ~UINT64_C(5), .fd_key = 6, .source = 7, .fd = fd};
    CHECK_INT(dd_doorbell_send(pair.fds[0], &pair.uids[1], &sent), DD_IO_OK);
    close(fd);
    dd_bell_datagram datagram;
    REQUIRE(dd_doorbell_take(pair.fds[1], &datagram) == DD_IO_OK);
    CHECK(datagram.kind == DD_BELL_WANT && datagram.context == 1 && datagram.fd_key == 2);
    CHECK(datagram.source == 3 && datagram.target == 4 && datagram.fd == -1);
    REQUIRE(dd_doorbell_take(pair.fds[1], &datagram) == DD_IO_OK);
    CHECK(datagram.kind == DD_BELL_PASS && datagram.context == ~UINT64_C(5) && datagram.fd_key == 6 &&
          datagram.source == 7);
    char text[5];
    CHECK_INT(pread(datagram.fd, text, 5, 0), 5);
    CHECK(memcmp(text, "12345", 5) == 0);
    dd_sock_close(datagram.fd);
    CHECK_INT(dd_doorbell_take(pair.fds[1], &datagram), DD_IO_AGAIN);
    close_bells(&pair);
    CHECK_INT(count_fds(), nfds_before);
}

/* A datagram is treated as a ring if it is malformed, lacks a descriptor, or has an unexpected one.
 * No descriptor stays open. */
/* Any process on the host can send to a doorbell. */
TEST(excess_descriptors_sent_to_a_doorbell_are_closed)
{
    bells pair;
    struct sockaddr_storage name = {0};
    socklen_t len = sizeof name;
    REQUIRE(open_bells(&pair));
    const dd_bell_datagram said = {.kind = DD_BELL_PASS, .context = 5, .fd_key = 7};
    const int passed[PASSED_MAX] = {pair.fds[0], pair.fds[1], pair.fds[0], pair.fds[1]};
    REQUIRE(getsockname(pair.fds[1], (struct sockaddr *)&name, &len) == 0);
    REQUIRE(connect(pair.fds[0], (struct sockaddr *)&name, len) == 0);
    int nfds = count_fds();
    for (size_t count = 1; count <= PASSED_MAX; count++) {
        dd_bell_datagram datagram;
        REQUIRE(pass_descriptors(pair.fds[0], &said, 32, passed, count) == 32);
        REQUIRE(dd_doorbell_take(pair.fds[1], &datagram) == DD_IO_OK);
        CHECK_INT(datagram.kind, DD_BELL_PASS);
        dd_sock_close(datagram.fd);
        CHECK_INT(count_fds(), nfds);
    }
    close_bells(&pair);
}

TEST(a_malformed_datagram_only_rings_the_doorbell)
{
    bells pair;
    REQUIRE(open_bells(&pair));
    int nfds_before = count_fds();
    dd_bell_datagram sent = {.kind = DD_BELL_PASS, .fd = 0};
    dd_bell_datagram datagram;
    char name[64] = "dldist-bell-";
    for (int i = 0; i < DD_UID_BYTES; i++) {
        snprintf(name + strlen(name), 3, "%02x", pair.uids[1].bytes[i]);
    }
    dd_addr addr = dd_addr_unix_abstract(name);
    static const struct {
        uint8_t first;
        size_t nbytes;
    } cases[] = {{0, 0},           {DD_BELL_PASS, 32}, {99, 32}, {DD_BELL_WANT, 31}, {DD_BELL_WANT, 33},
                 {DD_BELL_PASS, 1}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        uint8_t bytes[64] = {cases[i].first};
        CHECK_INT(
            sendto(pair.fds[0], bytes, cases[i].nbytes, 0, (const struct sockaddr *)&addr.storage, addr.len),
            (long long)cases[i].nbytes);
        REQUIRE(dd_doorbell_take(pair.fds[1], &datagram) == DD_IO_OK);
        CHECK_INT(datagram.kind, DD_BELL_RING);
        CHECK_INT(datagram.fd, -1);
    }
    /* Report an error if this process has no free descriptor number. */
    REQUIRE(dd_doorbell_send(pair.fds[0], &pair.uids[1], &sent) == DD_IO_OK);
    int next = dup(0);
    close(next);
    struct rlimit before;
    REQUIRE(getrlimit(RLIMIT_NOFILE, &before) == 0);
    struct rlimit none = {(rlim_t)next, before.rlim_max};
    REQUIRE(setrlimit(RLIMIT_NOFILE, &none) == 0);
    dd_io io = dd_doorbell_take(pair.fds[1], &datagram);
    REQUIRE(setrlimit(RLIMIT_NOFILE, &before) == 0);
    CHECK_INT(io, DD_IO_OK);
    CHECK_INT(datagram.kind, DD_BELL_PASS);
    CHECK_INT(datagram.fd, DD_SOCK_FD_REFUSED);
    CHECK_INT(count_fds(), nfds_before);
    close_bells(&pair);
}

/* ---- engines */

void
engine_lose_descriptors(dd_engine *engine)
{
    dd_engine_lock(engine);
    for (dd_list *node = engine->context_list.next; node != &engine->context_list; node = node->next) {
        DD_CONTAINER_OF(node, dd_context, link)->handler.on_fd = NULL;
    }
    dd_engine_unlock(engine);
}

typedef struct waker {
    dd_task task;
    dd_engine *engine;
    atomic_uint *memory; /* stands for shared memory that both sides read */
    atomic_uint *asleep;
    unsigned wanted;
    atomic_bool is_done;
} waker;

static bool
see(dd_task *task)
{
    waker *self = DD_CONTAINER_OF(task, waker, task);
    if (atomic_load(self->memory) < self->wanted) {
        return false;
    }
    dd_engine_remove_task_locked(self->engine, task);
    atomic_store(&self->is_done, true);
    return true;
}

static bool
announce_sleep(dd_task *task)
{
    waker *self = DD_CONTAINER_OF(task, waker, task);
    atomic_store(self->asleep, 1);
    return atomic_load(self->memory) < self->wanted;
}

typedef struct turns {
    rig_group rig;
    atomic_uint memory[2];
    atomic_uint asleep[2];
    unsigned nrounds;
} turns;

static void
take_turns(turns *self, int who)
{
    rig_rank *own = &self->rig.ranks[who];
    for (unsigned round = 1; round <= self->nrounds; round++) {
        waker wait_here = {.task = {.progress = see, .fall_asleep = announce_sleep},
                           .engine = own->engine,
                           .memory = &self->memory[who],
                           .asleep = &self->asleep[who],
                           .wanted = round};
        dd_list_init(&wait_here.task.link);
        if (who == 0) {
            atomic_store(&self->memory[1], round);
        }
        dd_engine_lock(own->engine);
        if (who == 0 && atomic_exchange(&self->asleep[1], 0) != 0) {
            dd_peer_ring_bell_locked(own->peers[1]);
        }
        dd_engine_add_task_locked(own->engine, &wait_here.task);
        dd_engine_unlock(own->engine);
        dd_wait wait = dd_wait_after(10 * DD_NS_PER_S * check_slow());
        dd_status status = dd_engine_wait(own->engine, &wait_here.is_done, &wait, check_err());
        dd_engine_lock(own->engine);
        dd_engine_remove_task_locked(own->engine, &wait_here.task);
        dd_engine_unlock(own->engine);
        REQUIRE(CHECK_STATUS(status, DD_OK));
        if (who == 1) {
            atomic_store(&self->memory[0], round);
            dd_engine_lock(own->engine);
            if (atomic_exchange(&self->asleep[0], 0) != 0) {
                dd_peer_ring_bell_locked(own->peers[0]);
            }
            dd_engine_unlock(own->engine);
        }
    }
}

static void *
take_second_turns(void *arg)
{
    take_turns(arg, 1);
    return NULL;
}

/* The classic race: one side checks once more and falls asleep, while the other writes and checks
 * whether the first is asleep. No link is used. */
TEST(a_rank_that_falls_asleep_misses_no_wakeup_over_shared_memory)
{
    turns both = {.nrounds = 400 / (unsigned)check_slow()};
    REQUIRE(rig_open_engines(&both.rig, 2, true, 1));
    pthread_t thread;
    REQUIRE(pthread_create(&thread, NULL, take_second_turns, &both) == 0);
    take_turns(&both, 0);
    pthread_join(thread, NULL);
    dd_engine_stats stats;
    stats = read_engine_stats(both.rig.ranks[0].engine);
    CHECK_INT(stats.nconnections, 0);
    rig_close(&both.rig);
}
