#include "check.h"
#include "net/addr.h"
#include "net/ring.h"
#include "net/sock.h"
#include "store/tcp_link.h"
#include "store/tcp_store.h"
#include "tcp_raw.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define SIZE ((size_t)4096)

typedef struct pair {
    dd_ring reader;
    dd_ring writer;
} pair;

static bool
open_pair(pair *both)
{
    *both = (pair){0};
    int fd = -1;
    bool is_open = CHECK_OK(dd_ring_create(&both->reader, SIZE, &fd, check_err())) &&
                   CHECK_OK(dd_ring_attach(&both->writer, SIZE, fd, check_err()));
    dd_sock_close(fd);
    return is_open;
}

static void
close_pair(pair *both)
{
    dd_ring_close(&both->reader);
    dd_ring_close(&both->writer);
    CHECK(!dd_ring_is_open(&both->reader));
}

TEST(bytes_come_out_in_order_over_the_edge)
{
    pair both;
    REQUIRE(open_pair(&both));
    uint8_t next_in = 0;
    uint8_t next_out = 0;
    for (size_t round = 0; round < 5000; round++) {
        uint8_t in[300];
        uint8_t out[400];
        size_t len = (round * 7919) % sizeof in;
        for (size_t i = 0; i < len; i++) {
            in[i] = next_in++;
        }
        REQUIRE(dd_ring_write(&both.writer, in, len) == len);
        size_t moved = 0;
        REQUIRE(dd_ring_read(&both.reader, out, sizeof out, &moved));
        REQUIRE(moved == len);
        for (size_t i = 0; i < moved; i++) {
            REQUIRE(out[i] == next_out++);
        }
    }
    close_pair(&both);
}

TEST(full_ring_takes_no_more)
{
    pair both;
    REQUIRE(open_pair(&both));
    uint8_t block[3000] = {1};
    uint8_t out[SIZE];
    size_t moved = 0;
    CHECK_INT(dd_ring_write(&both.writer, block, sizeof block), 3000);
    CHECK_INT(dd_ring_write(&both.writer, block, sizeof block), SIZE - 3000);
    CHECK_INT(dd_ring_write(&both.writer, block, sizeof block), 0);
    CHECK(dd_ring_read(&both.reader, out, 100, &moved));
    CHECK_INT(moved, 100);
    CHECK_INT(dd_ring_write(&both.writer, block, sizeof block), 100);
    CHECK(dd_ring_read(&both.reader, out, sizeof out, &moved));
    CHECK_INT(moved, SIZE);
    CHECK(dd_ring_read(&both.reader, out, sizeof out, &moved));
    CHECK_INT(moved, 0);
    close_pair(&both);
}

TEST(bell_is_due_once_for_each_sleep)
{
    pair both;
    REQUIRE(open_pair(&both));
    CHECK(!dd_ring_is_bell_due(&both.writer));
    CHECK(dd_ring_fall_asleep(&both.reader));
    CHECK_INT(dd_ring_write(&both.writer, "x", 1), 1);
    CHECK(dd_ring_is_bell_due(&both.writer));
    CHECK(!dd_ring_is_bell_due(&both.writer));
    /* There is a byte: the reader may not sleep, and then needs no bell. */
    CHECK(!dd_ring_fall_asleep(&both.reader));
    CHECK(!dd_ring_is_bell_due(&both.writer));
    close_pair(&both);
}

/* Positions far off in either direction: no byte outside the ring is touched, which the sanitizers watch. */
TEST(positions_that_make_no_sense)
{
    static const uint64_t wrong[] = {SIZE + 1, UINT64_MAX - SIZE, UINT64_C(1) << 63};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        pair both;
        REQUIRE(open_pair(&both));
        uint8_t out[SIZE];
        size_t moved = 0;
        uint64_t *words = (uint64_t *)both.reader.shared;
        words[0] = wrong[i]; /* written */
        CHECK(!dd_ring_read(&both.reader, out, sizeof out, &moved));
        words[8] = wrong[i]; /* read */
        CHECK_INT(dd_ring_write(&both.writer, out, sizeof out), 0);
        close_pair(&both);
    }
}

TEST(descriptors_that_are_no_ring)
{
    dd_ring ring = {0};
    int plain = memfd_create("plain", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    REQUIRE(ftruncate(plain, (off_t)(4096 + SIZE)) == 0);
    /* Not sealed: its maker could shrink it under us. */
    CHECK_STATUS(dd_ring_attach(&ring, SIZE, plain, check_err()), DD_PROTOCOL);
    close(plain);
    CHECK_STATUS(dd_ring_attach(&ring, SIZE, -1, check_err()), DD_PROTOCOL);
    int fd = -1;
    REQUIRE_OK(dd_ring_create(&ring, SIZE, &fd, check_err()));
    dd_ring other = {0};
    CHECK_STATUS(dd_ring_attach(&other, 2 * SIZE, fd, check_err()), DD_PROTOCOL);
    CHECK(ftruncate(fd, 0) != 0);
    dd_sock_close(fd);
    dd_ring_close(&ring);
}

#define STREAM_BYTES 2000000u

static void *
write_stream(void *arg)
{
    dd_ring *ring = arg;
    for (uint32_t i = 0; i < STREAM_BYTES;) {
        uint8_t byte = (uint8_t)(i * 31);
        i += (uint32_t)dd_ring_write(ring, &byte, 1);
    }
    return NULL;
}

TEST(stream_between_threads)
{
    pair both;
    REQUIRE(open_pair(&both));
    pthread_t thread;
    REQUIRE(pthread_create(&thread, NULL, write_stream, &both.writer) == 0);
    uint8_t out[1000];
    uint32_t got = 0;
    bool is_right = true;
    while (got < STREAM_BYTES && is_right) {
        size_t moved = 0;
        is_right = dd_ring_read(&both.reader, out, sizeof out, &moved);
        for (size_t i = 0; i < moved; i++) {
            is_right = is_right && out[i] == (uint8_t)(got++ * 31);
        }
    }
    CHECK(is_right);
    pthread_join(thread, NULL);
    close_pair(&both);
}

/* --- in the store -------------------------------------------------------------------------------------------- */

static dd_store *
open_local(dd_tcp_server *server)
{
    dd_tcp_store_options options = {
        .host = "127.0.0.1", .timeout_ns = DD_NS_PER_S, .world_size = -1, .server = server};
    dd_wait wait = dd_wait_after(5 * DD_NS_PER_S * check_slow());
    dd_store *store = NULL;
    CHECK_OK(dd_tcp_store_open(&store, &options, &wait, check_err()));
    return store;
}

static int64_t
sum_at(dd_store *store, dd_bytes key)
{
    int64_t sum = -1;
    dd_wait wait = dd_wait_after(5 * DD_NS_PER_S);
    CHECK_OK(store->ops->add(store, key, 0, &sum, &wait, check_err()));
    return sum;
}

static int64_t
queue_len(dd_store *store)
{
    int64_t count = -1;
    dd_wait wait = dd_wait_after(5 * DD_NS_PER_S);
    CHECK_OK(store->ops->queue_len(store, BYTES("q"), &count, &wait, check_err()));
    return count;
}

/* Requests that nobody waits for are in the ring when their client leaves. */
TEST(what_a_client_leaves_in_its_ring_is_served)
{
    dd_tcp_server_options options = raw_options();
    dd_tcp_server *server = raw_server(&options);
    dd_store *watcher = open_local(server);
    REQUIRE(watcher != NULL);
    for (int round = 1; round <= 50; round++) {
        dd_store *store = open_local(server);
        REQUIRE(store != NULL);
        dd_wait wait = dd_wait_after(5 * DD_NS_PER_S * check_slow());
        for (int i = 0; i < 300; i++) {
            REQUIRE_OK(store->ops->queue_push(store, BYTES("q"), BYTES("item"), &wait, check_err()));
        }
        dd_store_release(store);
        while (queue_len(watcher) < 300 * round && !dd_wait_is_over(&wait)) {
        }
        CHECK_INT(queue_len(watcher), 300 * round);
    }
    dd_store_release(watcher);
    dd_tcp_server_release(server);
}

TEST(values_larger_than_the_ring)
{
    dd_tcp_server_options options = raw_options();
    dd_tcp_server *server = raw_server(&options);
    dd_store *store = open_local(server);
    REQUIRE(store != NULL);
    size_t len = 20 * DD_TCP_RING_BYTES + 13;
    uint8_t *data = malloc(len);
    for (size_t i = 0; i < len; i++) {
        data[i] = (uint8_t)(i * 7 + i / 999);
    }
    dd_wait wait = dd_wait_after(8 * DD_NS_PER_S * check_slow());
    dd_blob value = {0};
    CHECK_OK(store->ops->set(store, BYTES("k"), dd_bytes_of(data, len), &wait, check_err()));
    CHECK_OK(store->ops->get(store, BYTES("k"), &value, &wait, check_err()));
    CHECK(dd_bytes_equal(dd_blob_view(&value), dd_bytes_of(data, len)));
    dd_blob_fini(&value);
    free(data);
    dd_store_release(store);
    dd_tcp_server_release(server);
}

/* The server falls asleep between the rounds, and every round has to wake it. */
TEST(quiet_ring_wakes_the_server)
{
    dd_tcp_server_options options = raw_options();
    dd_tcp_server *server = raw_server(&options);
    dd_store *store = open_local(server);
    REQUIRE(store != NULL);
    for (int i = 1; i <= 100; i++) {
        usleep(1000);
        int64_t sum = 0;
        dd_wait wait = dd_wait_after(5 * DD_NS_PER_S * check_slow());
        REQUIRE_OK(store->ops->add(store, BYTES("n"), 1, &sum, &wait, check_err()));
        REQUIRE(sum == i);
    }
    CHECK_INT(sum_at(store, BYTES("n")), 100);
    dd_store_release(store);
    dd_tcp_server_release(server);
}

/* A client that only sets never reads a reply that would tell it. */
TEST(setting_into_a_dead_servers_ring_fails_soon)
{
    dd_tcp_server_options options = raw_options();
    dd_tcp_server *server = raw_server(&options);
    uint16_t port = dd_tcp_server_port(server);
    dd_tcp_store_options client = {
        .host = "127.0.0.1", .port = port, .timeout_ns = DD_NS_PER_S, .world_size = -1};
    dd_wait wait = dd_wait_after(5 * DD_NS_PER_S * check_slow());
    dd_store *store = NULL;
    REQUIRE_OK(dd_tcp_store_open(&store, &client, &wait, check_err()));
    CHECK_OK(store->ops->set(store, BYTES("k"), BYTES("v"), &wait, check_err()));
    dd_tcp_server_release(server);
    int64_t began_ns = dd_clock_now_ns();
    dd_status status = DD_OK;
    while (status == DD_OK && dd_clock_now_ns() - began_ns < DD_NS_PER_S) {
        dd_wait one = dd_wait_after(5 * DD_NS_PER_S);
        status = store->ops->set(store, BYTES("k"), BYTES("v"), &one, check_err());
    }
    CHECK_INT(status, DD_NETWORK);
    CHECK_CONTAINS(check_message(), "set on TCPStore at 127.0.0.1");
    dd_store_release(store);
}

/* Faster than the server reads: the ring fills again and again, each time in the middle of another request. */
TEST(full_ring_cuts_requests_anywhere)
{
    dd_tcp_server_options options = raw_options();
    dd_tcp_server *server = raw_server(&options);
    dd_store *store = open_local(server);
    REQUIRE(store != NULL);
    const uint8_t value[64] = {0};
    for (int i = 0; i < 200000 / check_slow(); i++) {
        dd_wait wait = dd_wait_after(5 * DD_NS_PER_S * check_slow());
        dd_bytes part = dd_bytes_of(value, (size_t)(i * 7 % 61));
        REQUIRE_OK(store->ops->set(store, BYTES("k"), part, &wait, check_err()));
    }
    CHECK_INT(sum_at(store, BYTES("n")), 0);
    dd_store_release(store);
    dd_tcp_server_release(server);
}

/* Opens a raw connection with a ring of its own. */
static int
open_with_ring(dd_tcp_server *server, dd_ring *ring)
{
    tcp_target target = {.host = "127.0.0.1", .port = dd_tcp_server_port(server)};
    dd_wait wait = dd_wait_after(5 * DD_NS_PER_S * check_slow());
    tcp_link link;
    tcp_link_init(&link);
    if (!CHECK_OK(dd_addr_resolve(target.host, target.port, &target.addrs, &wait, check_err())) ||
        !CHECK_OK(tcp_link_open(&link, &target, &wait, check_err()))) {
        return -1;
    }
    tcp_link_add_ring(&link, &wait);
    *ring = link.ring;
    link.ring = (dd_ring){0};
    int fd = link.fd;
    link.fd = -1;
    tcp_link_fini(&link, false);
    CHECK(dd_ring_is_open(ring));
    return fd;
}

TEST(server_survives_a_ring_of_nonsense)
{
    dd_tcp_server_options options = raw_options();
    dd_tcp_server *server = raw_server(&options);
    dd_store *store = open_local(server);
    REQUIRE(store != NULL);
    for (int kind = 0; kind < 3; kind++) {
        dd_ring ring;
        int fd = open_with_ring(server, &ring);
        REQUIRE(fd >= 0);
        (void)fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) & ~O_NONBLOCK);
        uint64_t *words = (uint64_t *)ring.shared;
        int64_t now_ns = dd_clock_now_ns();
        CHECK_INT(dd_ring_write(&ring, &now_ns, sizeof now_ns), 8);
        if (kind == 0) {
            words[0] = UINT64_MAX; /* a position from nowhere */
        } else if (kind == 1) {
            CHECK_INT(dd_ring_write(&ring, "\xff garbage", 9), 9);
        } else {
            /* A length field of 2^64 - 1. */
            CHECK_INT(dd_ring_write(&ring, "\x01\xff\xff\xff\xff\xff\xff\xff\xff", 9), 9);
        }
        CHECK(write(fd, "", 1) == 1);
        CHECK(raw_is_closed(fd));
        dd_sock_close(fd);
        dd_ring_close(&ring);
        CHECK_INT(sum_at(store, BYTES("n")), 0);
    }
    dd_store_release(store);
    dd_tcp_server_release(server);
}

typedef struct scribbler {
    dd_ring *ring;
    atomic_bool is_stopping;
} scribbler;

static void *
scribble(void *arg)
{
    scribbler *self = arg;
    /* SETs of an empty value to an empty key. */
    uint8_t requests[17 * 200] = {0};
    for (size_t i = 0; i < sizeof requests; i += 17) {
        requests[i] = DD_TCP_SET;
    }
    for (size_t sent = 0; !atomic_load(&self->is_stopping);) {
        sent += dd_ring_write(self->ring, requests + sent, sizeof requests - sent);
        sent %= sizeof requests;
    }
    return NULL;
}

/* The socket is what keeps a connection: of a client that has closed it and writes on, the server reads what the ring can
 * hold and little more. */
TEST(ring_ends_with_its_socket)
{
    dd_tcp_server_options options = raw_options();
    dd_tcp_server *server = raw_server(&options);
    for (int round = 0; round < 10; round++) {
        dd_ring ring;
        int fd = open_with_ring(server, &ring);
        REQUIRE(fd >= 0);
        const volatile uint64_t *nread = (const uint64_t *)ring.shared + 8;
        scribbler self = {.ring = &ring};
        pthread_t thread;
        REQUIRE(pthread_create(&thread, NULL, scribble, &self) == 0);
        usleep(20000);
        uint64_t nread_before = *nread;
        dd_sock_close(fd);
        dd_tcp_server_stats stats = {.connections = 1};
        for (int i = 0; i < 2000 && stats.connections > 0; i++) {
            usleep(1000);
            dd_tcp_server_get_stats(server, &stats);
        }
        CHECK_INT(stats.connections, 0);
        CHECK(*nread - nread_before <= 4 * DD_TCP_RING_BYTES);
        atomic_store(&self.is_stopping, true);
        pthread_join(thread, NULL);
        dd_ring_close(&ring);
    }
    dd_tcp_server_release(server);
}

TEST(there_is_no_ring_over_tcp)
{
    dd_tcp_server_options options = raw_options();
    dd_tcp_server *server = raw_server(&options);
    int fd = raw_open(dd_tcp_server_port(server));
    raw_ask(fd, DD_TCP_HELLO, "uikv", (unsigned)DD_TCP_VERSION, (long long)1, "host", "");
    uint8_t reply[256];
    CHECK(read(fd, reply, sizeof reply) > 0);
    CHECK_INT(reply[0], DD_OK);
    raw_ask(fd, DD_TCP_RING, "i", (long long)dd_clock_now_ns());
    CHECK(read(fd, reply, sizeof reply) > 9);
    CHECK_INT(reply[0], DD_NOT_SUPPORTED);
    close(fd);
    dd_tcp_server_release(server);
}

/* Nobody answers a set; who learns of it all the same must find it done, and done in order. Pauses of all lengths let the
 * rings fall asleep now and then. */
TEST(rings_keep_the_order_of_calls)
{
    dd_tcp_server_options options = raw_options();
    dd_tcp_server *server = raw_server(&options);
    dd_store *stores[5];
    for (int i = 0; i < 5; i++) {
        stores[i] = open_local(server);
        REQUIRE(stores[i] != NULL);
    }
    dd_wait wait = dd_wait_after(8 * DD_NS_PER_S * check_slow());
    dd_blob value = {0};
    for (uint32_t round = 0; round < 3000 && !dd_wait_is_over(&wait); round++) {
        dd_bytes text = dd_bytes_of(&round, sizeof round);
        dd_store *first = stores[round % 5];
        dd_store *second = stores[(round * 7 + 1) % 5];
        dd_store *reader = stores[(round * 3 + 2) % 5];
        bool is_found = false;
        REQUIRE_OK(first->ops->set(first, BYTES("k"), BYTES("old"), &wait, check_err()));
        if (round % 16 == 0) {
            usleep(round % 500);
        }
        REQUIRE_OK(second->ops->set(second, BYTES("k"), text, &wait, check_err()));
        REQUIRE_OK(reader->ops->try_get(reader, BYTES("k"), &value, &is_found, &wait, check_err()));
        REQUIRE(is_found && dd_bytes_equal(dd_blob_view(&value), text));
    }
    dd_blob_fini(&value);
    for (int i = 0; i < 5; i++) {
        dd_store_release(stores[i]);
    }
    dd_tcp_server_release(server);
}

TEST(ring_that_is_ahead_of_time)
{
    dd_tcp_server_options options = raw_options();
    dd_tcp_server *server = raw_server(&options);
    dd_ring ring;
    int fd = open_with_ring(server, &ring);
    REQUIRE(fd >= 0);
    (void)fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) & ~O_NONBLOCK);
    int64_t tomorrow_ns = dd_clock_now_ns() + 86400 * DD_NS_PER_S;
    CHECK_INT(dd_ring_write(&ring, &tomorrow_ns, sizeof tomorrow_ns), 8);
    CHECK_INT(dd_ring_write(&ring, "\x07", 1), 1);
    CHECK(write(fd, "", 1) == 1);
    CHECK(raw_is_closed(fd));
    dd_sock_close(fd);
    dd_ring_close(&ring);
    dd_tcp_server_release(server);
}
