/* Links. Both kinds pass the same tests where their contracts agree. */
#include "check.h"
#include "core/fork.h"
#include "core/mem.h"
#include "core/shared_memory.h"
#include "core/thread.h"
#include "faults/faults.h"
#include "leftovers.h"
#include "sealed_pair.h"
#include "transport/link.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#define RING_NBYTES ((size_t)65536)

typedef enum kind {
    SHM,
    TCP,
    SEALED,
} kind;
static const kind kinds[] = {SHM, TCP, SEALED};
#define FOR_EACH_KIND(k) for (const kind *k = kinds; k < kinds + 3; k++)

static bool
make_sockets(kind k, int fds[2])
{
    if (k == SHM) {
        bool is_made = CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds) == 0);
        (void)dd_fork_register(fds[0]);
        (void)dd_fork_register(fds[1]);
        return is_made;
    }
    dd_addr addr = {.len = sizeof(struct sockaddr_in)};
    struct sockaddr_in *in = (struct sockaddr_in *)&addr.storage;
    in->sin_family = AF_INET;
    in->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int listener = -1;
    dd_wait wait = dd_wait_after(3 * DD_NS_PER_S);
    if (!CHECK_OK(dd_sock_listen(&addr, &listener, check_err()))) {
        return false;
    }
    addr = dd_sock_local_addr(listener);
    bool is_made = CHECK_OK(dd_sock_connect(&addr, &fds[0], &wait, check_err())) &&
                   CHECK_OK(dd_sock_wait(listener, POLLIN, &wait, check_err())) &&
                   CHECK(dd_sock_try_accept(listener, &fds[1]) == DD_IO_OK);
    dd_sock_close(listener);
    return is_made;
}

static bool
open_shm_pair(size_t ring_nbytes, dd_link *links[2])
{
    int fds[2] = {-1, -1};
    if (!make_sockets(SHM, fds)) {
        return false;
    }
    dd_wait wait = dd_wait_after(3 * DD_NS_PER_S * check_slow());
    return CHECK_OK(dd_link_offer_shm(fds[0], ring_nbytes, &links[0], check_err())) &&
           CHECK_OK(dd_link_take_shm(fds[1], &links[1], &wait, check_err())) &&
           CHECK_OK(dd_link_receive_taken(links[0], &wait, check_err()));
}

static bool
open_links(kind k, dd_link *links[2])
{
    if (k == SHM) {
        return open_shm_pair(RING_NBYTES, links);
    }
    int fds[2] = {-1, -1};
    dd_seal *seals[2] = {NULL, NULL};
    return make_sockets(TCP, fds) &&
           (k == TCP || sealed_pair_make(DD_CIPHER_AES_256_GCM, DD_SEAL_BULK, seals)) &&
           CHECK_OK(dd_link_open_tcp(fds[0], seals[0], &links[0], check_err())) &&
           CHECK_OK(dd_link_open_tcp(fds[1], seals[1], &links[1], check_err()));
}

static void
close_links(dd_link *links[2])
{
    dd_link_close(links[0]);
    dd_link_close(links[1]);
}

/* Sleep until the link has an event, if the link permits. */
static bool
sleep_on(dd_link *link, bool wants_room)
{
    if (!link->ops->fall_asleep(link, wants_room)) {
        return true;
    }
    short room = wants_room && !link->is_shared_memory ? POLLOUT : 0;
    struct pollfd pollfd = {.fd = link->fd, .events = (short)(POLLIN | room)};
    /* The limit turns a lost bell into a failure. */
    int rc = poll(&pollfd, 1, 2000 * check_slow());
    return CHECK(rc == 1) && CHECK(link->ops->on_event(link) != DD_IO_FAILED);
}

static uint8_t
byte_at(size_t position)
{
    return (uint8_t)(position * 31 + position / 257);
}

typedef struct side {
    dd_link *link;
    size_t nbytes;  /* to send and to receive */
    size_t refused; /* in the last attempt; the same bytes must be sent again */
    unsigned seed;
    size_t max_part;
    bool sleeps;
    bool pauses;
    bool is_right;
} side;

static size_t
next_random(side *self, size_t below)
{
    return (size_t)rand_r(&self->seed) % below;
}

/* Send up to three parts of random sizes, some empty. If the last attempt was refused, send the
 * same bytes again, which a sealed link has already encrypted. */
static size_t
send_some(side *self, size_t sent, uint8_t *scratch)
{
    struct iovec parts[3];
    size_t at = 0;
    for (int i = 0; i < 3; i++) {
        size_t len = next_random(self, self->max_part);
        len = len < self->nbytes - sent - at ? len : self->nbytes - sent - at;
        if (self->refused > 0) {
            len = i == 0 ? self->refused : 0;
        }
        for (size_t k = 0; k < len; k++) {
            scratch[at + k] = byte_at(sent + at + k);
        }
        parts[i] = (struct iovec){.iov_base = scratch + at, .iov_len = len};
        at += len;
    }
    size_t moved = 0;
    if (at == 0) {
        return 0;
    }
    dd_io io = self->link->ops->try_send(self->link, parts, 3, &moved);
    self->is_right = self->is_right && CHECK(io == DD_IO_OK || io == DD_IO_AGAIN) && CHECK(moved <= at);
    self->refused = io == DD_IO_OK ? 0 : at;
    return io == DD_IO_OK ? moved : 0;
}

static size_t
recv_some(side *self, size_t got, uint8_t *scratch)
{
    size_t moved = 0;
    size_t len = 1 + next_random(self, 2 * self->max_part);
    dd_io io = self->link->ops->try_recv(self->link, scratch, len, &moved);
    if (io != DD_IO_OK) {
        self->is_right = self->is_right && CHECK(io == DD_IO_AGAIN);
        return 0;
    }
    bool is_same = moved > 0 && moved <= len;
    for (size_t i = 0; i < moved && is_same; i++) {
        is_same = scratch[i] == byte_at(got + i);
    }
    self->is_right = self->is_right && CHECK(is_same);
    return moved;
}

static void *
run_side(void *arg)
{
    side *self = arg;
    size_t sent = 0;
    size_t got = 0;
    uint8_t *scratch = malloc(3 * self->max_part + 1);
    while ((sent < self->nbytes || got < self->nbytes) && self->is_right) {
        size_t out = sent < self->nbytes ? send_some(self, sent, scratch) : 0;
        sent += out;
        size_t in = got < self->nbytes ? recv_some(self, got, scratch) : 0;
        got += in;
        if (self->pauses && next_random(self, 64) == 0) {
            usleep((useconds_t)next_random(self, 200));
        }
        if (out == 0 && in == 0 && self->sleeps) {
            bool wants_room = sent < self->nbytes;
            self->is_right = self->is_right && sleep_on(self->link, wants_room);
        }
    }
    free(scratch);
    return NULL;
}

static void
stream_both_ways(kind k, side shape)
{
    dd_link *links[2] = {0};
    REQUIRE(open_links(k, links));
    side sides[2] = {shape, shape};
    for (int i = 0; i < 2; i++) {
        sides[i].link = links[i];
        sides[i].is_right = true;
        sides[i].seed += (unsigned)i;
    }
    pthread_t thread;
    REQUIRE(pthread_create(&thread, NULL, run_side, &sides[1]) == 0);
    run_side(&sides[0]);
    pthread_join(thread, NULL);
    CHECK(sides[0].is_right && sides[1].is_right);
    close_links(links);
}

TEST(data_sent_in_small_pieces_arrives_in_order)
{
    FOR_EACH_KIND(k)
    {
        stream_both_ways(*k, (side){.nbytes = 300000, .max_part = 40, .seed = 7});
    }
}

TEST(data_sent_in_large_pieces_arrives_in_order)
{
    FOR_EACH_KIND(k)
    {
        stream_both_ways(*k,
                         (side){.nbytes = 20000000 / (size_t)check_slow(), .max_part = 200000, .seed = 3});
    }
}

/* Both sides sleep whenever they can do nothing: a lost bell appears as an endless sleep. */
TEST(two_sides_that_sleep_whenever_they_must_wait_miss_no_wakeup)
{
    FOR_EACH_KIND(k)
    {
        side shape = {.nbytes = 6000000 / (size_t)check_slow(), .max_part = 3000, .seed = 11, .sleeps = true};
        stream_both_ways(*k, shape);
        shape.pauses = true;
        shape.nbytes /= 4;
        stream_both_ways(*k, shape);
        shape.max_part = 200000;
        stream_both_ways(*k, shape);
    }
}

typedef struct player {
    dd_link *link;
    int nrounds;
    bool serves;
    bool is_right;
} player;

static bool
hit(player *self, uint32_t ball)
{
    struct iovec part = {.iov_base = &ball, .iov_len = sizeof ball};
    size_t moved = 0;
    return CHECK(self->link->ops->try_send(self->link, &part, 1, &moved) == DD_IO_OK) && CHECK(moved == 4);
}

static bool
await_ball(player *self, uint32_t expected)
{
    for (;;) {
        uint32_t ball = 0;
        size_t moved = 0;
        dd_io io = self->link->ops->try_recv(self->link, &ball, sizeof ball, &moved);
        if (io == DD_IO_OK) {
            return CHECK(moved == 4) && CHECK_INT(ball, expected);
        }
        if (!CHECK(io == DD_IO_AGAIN) || !sleep_on(self->link, false)) {
            return false;
        }
    }
}

static void *
play(void *arg)
{
    player *self = arg;
    self->is_right = true;
    for (int i = 0; i < self->nrounds && self->is_right; i++) {
        if (self->serves) {
            self->is_right = hit(self, (uint32_t)i) && await_ball(self, (uint32_t)i);
        } else {
            self->is_right = await_ball(self, (uint32_t)i) && hit(self, (uint32_t)i);
        }
    }
    return NULL;
}

/* Each ball reaches a side that is asleep or about to sleep. */
TEST(a_sleeping_receiver_is_woken_for_each_message)
{
    FOR_EACH_KIND(k)
    {
        dd_link *links[2] = {0};
        REQUIRE(open_links(*k, links));
        player players[2] = {{.link = links[0], .nrounds = 20000 / check_slow(), .serves = true},
                             {.link = links[1], .nrounds = 20000 / check_slow()}};
        pthread_t thread;
        REQUIRE(pthread_create(&thread, NULL, play, &players[1]) == 0);
        play(&players[0]);
        pthread_join(thread, NULL);
        CHECK(players[0].is_right && players[1].is_right);
        close_links(links);
    }
}

static bool
send_text(dd_link *link, const char *text)
{
    struct iovec part = {.iov_base = (void *)(uintptr_t)text, .iov_len = strlen(text)};
    size_t moved = 0;
    return CHECK(link->ops->try_send(link, &part, 1, &moved) == DD_IO_OK) && CHECK_INT(moved, strlen(text));
}

static bool
is_readable(const dd_link *link, int timeout_ms)
{
    struct pollfd pollfd = {.fd = link->fd, .events = POLLIN};
    return poll(&pollfd, 1, timeout_ms) == 1;
}

TEST(receiving_reports_no_data_until_it_arrives_and_the_end_after_the_last_byte)
{
    FOR_EACH_KIND(k)
    {
        dd_link *links[2] = {0};
        REQUIRE(open_links(*k, links));
        char text[8] = "";
        size_t moved = 0;
        CHECK_INT(links[1]->ops->try_recv(links[1], text, sizeof text, &moved), DD_IO_AGAIN);
        REQUIRE(send_text(links[0], "last"));
        dd_link_close(links[0]);
        REQUIRE(is_readable(links[1], 2000));
        CHECK_INT(links[1]->ops->on_event(links[1]), DD_IO_OK);
        REQUIRE(links[1]->ops->try_recv(links[1], text, sizeof text, &moved) == DD_IO_OK);
        CHECK_TEXT(dd_bytes_of(text, moved), "last");
        CHECK_INT(links[1]->ops->try_recv(links[1], text, sizeof text, &moved), DD_IO_CLOSED);
        if (*k == SHM) {
            CHECK_INT(links[1]->ops->on_event(links[1]), DD_IO_CLOSED);
            CHECK(!links[1]->ops->fall_asleep(links[1], false));
            struct iovec part = {.iov_base = text, .iov_len = 4};
            CHECK_INT(links[1]->ops->try_send(links[1], &part, 1, &moved), DD_IO_CLOSED);
        }
        dd_link_close(links[1]);
    }
}

TEST(a_full_connection_accepts_data_again_once_some_is_read)
{
    FOR_EACH_KIND(k)
    {
        dd_link *links[2] = {0};
        REQUIRE(open_links(*k, links));
        static uint8_t block[100000];
        struct iovec part = {.iov_base = block, .iov_len = sizeof block};
        size_t sent = 0;
        size_t moved = 0;
        dd_io io = DD_IO_OK;
        for (int i = 0; i < 10000 && io == DD_IO_OK; i++) {
            io = links[0]->ops->try_send(links[0], &part, 1, &moved);
            sent += io == DD_IO_OK ? moved : 0;
        }
        CHECK_INT(io, DD_IO_AGAIN);
        if (*k == SHM) {
            CHECK_INT(sent, RING_NBYTES);
        }
        size_t got = 0;
        while (got < sent) {
            io = links[1]->ops->try_recv(links[1], block, sizeof block, &moved);
            REQUIRE(io == DD_IO_OK || (*k != SHM && io == DD_IO_AGAIN));
            got += io == DD_IO_OK ? moved : 0;
        }
        CHECK_INT(got, sent);
        if (*k == SEALED) { /* the bytes that did not fit must be sent first */
            CHECK_INT(links[0]->ops->try_send(links[0], &part, 1, &moved), DD_IO_OK);
        }
        CHECK(send_text(links[0], "more"));
        close_links(links);
    }
}

TEST(a_shared_memory_ring_has_the_offered_size)
{
    dd_link *links[2] = {0};
    REQUIRE(open_shm_pair(16384, links));
    uint8_t block[20000] = {0};
    struct iovec part = {.iov_base = block, .iov_len = sizeof block};
    for (int k = 0; k < 2; k++) {
        size_t moved = 0;
        CHECK_INT(links[k]->ops->try_send(links[k], &part, 1, &moved), DD_IO_OK);
        CHECK_INT(moved, 16384);
    }
    close_links(links);
}

/* ---- bells */

TEST(a_wakeup_is_sent_only_to_a_sleeping_receiver)
{
    dd_link *links[2] = {0};
    REQUIRE(open_links(SHM, links));
    CHECK(send_text(links[0], "x"));
    CHECK(!is_readable(links[1], 0));
    CHECK(!links[1]->ops->fall_asleep(links[1], false));
    char text[4];
    size_t moved = 0;
    CHECK_INT(links[1]->ops->try_recv(links[1], text, sizeof text, &moved), DD_IO_OK);
    CHECK(links[1]->ops->fall_asleep(links[1], false));
    CHECK(send_text(links[0], "y"));
    CHECK(send_text(links[0], "z"));
    CHECK(is_readable(links[1], 1000));
    CHECK_INT(links[1]->ops->on_event(links[1]), DD_IO_OK);
    CHECK(!is_readable(links[1], 0));
    /* A receive ends the sleep: no more bells ring. */
    CHECK_INT(links[1]->ops->try_recv(links[1], text, sizeof text, &moved), DD_IO_OK);
    CHECK(links[1]->ops->fall_asleep(links[1], false));
    CHECK_INT(links[1]->ops->try_recv(links[1], text, sizeof text, &moved), DD_IO_AGAIN);
    CHECK(send_text(links[0], "y"));
    CHECK(!is_readable(links[1], 0));
    close_links(links);
}

TEST(a_writer_that_waits_for_space_is_woken_by_the_reader)
{
    dd_link *links[2] = {0};
    REQUIRE(open_links(SHM, links));
    static uint8_t block[RING_NBYTES];
    struct iovec part = {.iov_base = block, .iov_len = sizeof block};
    size_t moved = 0;
    CHECK(links[0]->ops->fall_asleep(links[0], false));
    CHECK(!links[0]->ops->fall_asleep(links[0], true));
    CHECK_INT(links[0]->ops->try_send(links[0], &part, 1, &moved), DD_IO_OK);
    CHECK_INT(moved, RING_NBYTES);
    CHECK_INT(links[0]->ops->try_send(links[0], &part, 1, &moved), DD_IO_AGAIN);
    CHECK(links[0]->ops->fall_asleep(links[0], true));
    CHECK(!is_readable(links[0], 0));
    CHECK_INT(links[1]->ops->try_recv(links[1], block, 1, &moved), DD_IO_OK);
    CHECK(is_readable(links[0], 1000));
    CHECK_INT(links[0]->ops->on_event(links[0]), DD_IO_OK);
    CHECK(!links[0]->ops->fall_asleep(links[0], true));
    close_links(links);
}

/* ---- peers that send malformed data */

TEST(unexpected_bytes_on_the_wakeup_socket_break_the_connection)
{
    static const char *const cases[] = {"x", "bbx"};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        dd_link *links[2] = {0};
        REQUIRE(open_links(SHM, links));
        size_t moved = 0;
        REQUIRE(write(links[0]->fd, cases[i], strlen(cases[i])) == (ssize_t)strlen(cases[i]));
        CHECK_INT(links[1]->ops->on_event(links[1]), DD_IO_FAILED);
        CHECK_INT(errno, EPROTO);
        char byte;
        CHECK_INT(links[1]->ops->try_recv(links[1], &byte, 1, &moved), DD_IO_FAILED);
        close_links(links);
    }
}

/* The kernel must close an unexpected descriptor. */
TEST(descriptors_that_a_peer_sends_unexpectedly_are_closed)
{
    dd_link *links[2] = {0};
    REQUIRE(open_links(SHM, links));
    int nfds_before = count_fds();
    size_t moved = 0;
    REQUIRE(dd_sock_try_send_fd(links[0]->fd, NULL, "b", 1, 0, &moved) == DD_IO_OK);
    CHECK_INT(links[1]->ops->on_event(links[1]), DD_IO_OK);
    CHECK_INT(count_fds(), nfds_before);
    close_links(links);
}

/* Play the other side of the handover by hand. */
static void
offer(const char *magic, uint64_t size, int ring_fd, dd_status expected)
{
    int fds[2] = {-1, -1};
    REQUIRE(make_sockets(SHM, fds));
    uint8_t bytes[16];
    memcpy(bytes, magic, 8);
    memcpy(bytes + 8, &size, 8);
    size_t moved = 0;
    if (ring_fd >= 0) {
        CHECK_INT(dd_sock_try_send_fd(fds[0], NULL, bytes, sizeof bytes, ring_fd, &moved), DD_IO_OK);
    } else {
        CHECK_INT(dd_sock_try_send(fds[0], bytes, sizeof bytes, &moved), DD_IO_OK);
    }
    dd_wait wait = dd_wait_after(DD_NS_PER_S);
    dd_link *link = NULL;
    CHECK_STATUS(dd_link_take_shm(fds[1], &link, &wait, check_err()), expected);
    /* The other side must be notified. */
    uint8_t reply[2];
    CHECK_INT(recv(fds[0], reply, sizeof reply, 0), 1);
    CHECK_INT(reply[0], 'n');
    dd_sock_close(fds[0]);
    dd_sock_close(fds[1]);
}

TEST(malformed_offers_of_shared_memory_are_refused)
{
    int nfds_before = count_fds();
    int ring_fd = -1;
    REQUIRE_OK(dd_shared_memory_create("ring", 2 * (4096 + 8192), &ring_fd, check_err()));
    offer("ddring02", 8192, -1, DD_PROTOCOL);
    offer("ddring02", 4096, ring_fd, DD_PROTOCOL);
    offer("ddring02", 12288, ring_fd, DD_PROTOCOL);
    offer("ddring02", UINT64_MAX, ring_fd, DD_PROTOCOL);
    offer("ddring02", 0, ring_fd, DD_PROTOCOL);
    offer("ddring99", 8192, ring_fd, DD_PROTOCOL);
    int plain = memfd_create("plain", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    REQUIRE(ftruncate(plain, 2 * (4096 + 8192)) == 0);
    offer("ddring02", 8192, plain, DD_PROTOCOL);
    close(plain);
    dd_sock_close(ring_fd);
    CHECK_INT(count_fds(), nfds_before);
}

TEST(opening_a_shared_memory_connection_fails_without_a_peer)
{
    int nfds_before = count_fds();
    int fds[2] = {-1, -1};
    REQUIRE(make_sockets(SHM, fds));
    dd_link *link = NULL;
    dd_wait wait = dd_wait_after(20 * DD_NS_PER_MS);
    CHECK_STATUS(dd_link_take_shm(fds[1], &link, &wait, check_err()), DD_NETWORK_TIMED_OUT);
    CHECK_STATUS(dd_link_offer_shm(fds[1], 5000, &link, check_err()), DD_INVALID_ARGUMENT);
    REQUIRE_OK(dd_link_offer_shm(fds[1], RING_NBYTES, &link, check_err()));
    CHECK_STATUS(dd_link_receive_taken(link, &wait, check_err()), DD_NETWORK_TIMED_OUT);
    dd_sock_close(fds[0]);
    CHECK_STATUS(dd_link_receive_taken(link, &wait, check_err()), DD_NETWORK);
    dd_link_close(link);
    REQUIRE(make_sockets(SHM, fds));
    dd_sock_close(fds[0]);
    CHECK_STATUS(dd_link_offer_shm(fds[1], RING_NBYTES, &link, check_err()), DD_NETWORK);
    CHECK_STATUS(dd_link_take_shm(fds[1], &link, &wait, check_err()), DD_NETWORK);
    dd_sock_close(fds[1]);
    CHECK_INT(count_fds(), nfds_before);
}

TEST(a_refused_offer_of_shared_memory_fails_and_leaks_no_descriptors)
{
    int nfds_before = count_fds();
    int fds[2] = {-1, -1};
    REQUIRE(make_sockets(SHM, fds));
    dd_link *link = NULL;
    dd_wait wait = dd_wait_after(3 * DD_NS_PER_S * check_slow());
    REQUIRE_OK(dd_link_offer_shm(fds[1], RING_NBYTES, &link, check_err()));
    CHECK(write(fds[0], "n", 1) == 1);
    CHECK_STATUS(dd_link_receive_taken(link, &wait, check_err()), DD_NETWORK);
    CHECK_CONTAINS(check_message(), "could not map");
    dd_link_close(link);
    dd_sock_close(fds[0]);
    CHECK_INT(count_fds(), nfds_before);
}

/* Return the address of a link's rings, which are mapped one after the other. */
static uint64_t *
find_rings(void)
{
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[512];
    uint64_t *found = NULL;
    while (found == NULL && fgets(line, sizeof line, maps) != NULL) {
        if (strstr(line, "memfd:dldist-ring") != NULL) {
            found = (uint64_t *)strtoul(line, NULL, 16);
        }
    }
    fclose(maps);
    return found;
}

TEST(invalid_read_or_write_positions_of_the_peer_break_the_connection)
{
    static const uint64_t wrong[] = {RING_NBYTES + 1, UINT64_MAX - RING_NBYTES, UINT64_C(1) << 63};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        dd_link *links[2] = {0};
        REQUIRE(open_links(SHM, links));
        uint64_t *rings = find_rings();
        REQUIRE(rings != NULL);
        for (unsigned k = 0; k < 2; k++) {
            uint64_t *words = rings + k * (4096 + RING_NBYTES) / sizeof *rings;
            words[0] = wrong[i]; /* written */
            words[8] = wrong[i]; /* read */
        }
        static uint8_t block[2 * RING_NBYTES];
        size_t moved = 0;
        CHECK_INT(links[0]->ops->try_recv(links[0], block, sizeof block, &moved), DD_IO_FAILED);
        struct iovec part = {.iov_base = block, .iov_len = sizeof block};
        dd_io io = DD_IO_OK;
        for (int round = 0; round < 3 && io == DD_IO_OK; round++) {
            io = links[1]->ops->try_send(links[1], &part, 1, &moved);
        }
        CHECK_INT(io, DD_IO_FAILED);
        CHECK(!links[0]->ops->fall_asleep(links[0], true));
        close_links(links);
    }
}

/* Bytes that a peer writes to the shared memory after its socket is closed must not be read. */
TEST(bytes_written_to_shared_memory_after_the_end_are_not_read)
{
    dd_link *links[2] = {0};
    REQUIRE(open_links(SHM, links));
    REQUIRE(send_text(links[0], "sent"));
    shutdown(links[0]->fd, SHUT_RDWR);
    CHECK_INT(links[1]->ops->on_event(links[1]), DD_IO_OK);
    (void)send_text(links[0], " too late");
    char text[64];
    size_t moved = 0;
    REQUIRE(links[1]->ops->try_recv(links[1], text, sizeof text, &moved) == DD_IO_OK);
    CHECK_TEXT(dd_bytes_of(text, moved), "sent");
    CHECK_INT(links[1]->ops->try_recv(links[1], text, sizeof text, &moved), DD_IO_CLOSED);
    close_links(links);
}

/* ---- lifetime */

TEST(opening_a_connection_leaks_no_descriptors_when_allocations_fail)
{
    int nfds_before = count_fds();
    int fds[2] = {-1, -1};
    REQUIRE(make_sockets(SHM, fds));
    dd_link *link = NULL;
    (void)dd_mem_fail_after(0);
    CHECK_STATUS(dd_link_offer_shm(fds[0], RING_NBYTES, &link, NULL), DD_OUT_OF_MEMORY);
    (void)dd_mem_fail_after(0);
    CHECK_STATUS(dd_link_open_tcp(fds[0], NULL, &link, NULL), DD_OUT_OF_MEMORY);
    (void)dd_mem_fail_after(-1);
    dd_sock_close(fds[0]);
    dd_sock_close(fds[1]);
    CHECK_INT(count_fds(), nfds_before);
}

/* The link must end as closed, not as after malformed data. */
TEST(a_forked_child_does_not_keep_its_parents_connection_open)
{
    FOR_EACH_KIND(k)
    {
        dd_link *links[2] = {0};
        REQUIRE(open_links(*k, links));
        int go[2];
        REQUIRE(pipe(go) == 0);
        pid_t pid = fork();
        if (pid == 0) {
            char byte;
            close(go[1]);
            close_links(links);
            /* The child lives until the parent has seen the end. */
            (void)!read(go[0], &byte, 1);
            _exit(check_failures() > 0);
        }
        close(go[0]);
        CHECK(send_text(links[0], "x"));
        dd_link_close(links[0]);
        char text[4];
        size_t moved = 0;
        REQUIRE(is_readable(links[1], 2000));
        (void)links[1]->ops->on_event(links[1]);
        CHECK_INT(links[1]->ops->try_recv(links[1], text, sizeof text, &moved), DD_IO_OK);
        /* The child closes its copies as soon as it runs. */
        dd_io io = DD_IO_AGAIN;
        for (int i = 0; i < 100 && io == DD_IO_AGAIN; i++) {
            (void)is_readable(links[1], 20);
            (void)links[1]->ops->on_event(links[1]);
            io = links[1]->ops->try_recv(links[1], text, sizeof text, &moved);
        }
        CHECK_INT(io, DD_IO_CLOSED);
        dd_link_close(links[1]);
        close(go[1]);
        int code = -1;
        CHECK(waitpid(pid, &code, 0) == pid && code == 0);
    }
}
