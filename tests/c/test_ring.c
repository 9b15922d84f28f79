#include "check.h"
#include "net/ring.h"
#include "net/sock.h"

#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define SIZE ((size_t)4096)

/* One direction of two, and the ends of the other one. */
typedef struct pair {
    dd_ring reader;
    dd_ring writer;
    dd_ring others[2];
} pair;

static bool
open_pair(pair *both)
{
    *both = (pair){0};
    int fd = -1;
    bool is_open = CHECK_OK(dd_ring_create_two(&both->reader, &both->others[0], SIZE, &fd, check_err())) &&
                   CHECK_OK(dd_ring_attach_two(&both->others[1], &both->writer, SIZE, fd, check_err()));
    dd_sock_close(fd);
    return is_open;
}

static void
close_pair(pair *both)
{
    dd_ring_close(&both->reader);
    dd_ring_close(&both->writer);
    dd_ring_close(&both->others[0]);
    dd_ring_close(&both->others[1]);
    CHECK(!dd_ring_is_open(&both->reader));
}

/* Copies in what there is room for. */
static size_t
put(dd_ring *ring, const void *data, size_t len)
{
    uint8_t *run;
    size_t room;
    size_t done = 0;
    while (done < len && dd_ring_free_run(ring, &run, &room) && room > 0) {
        size_t part = room < len - done ? room : len - done;
        memcpy(run, (const uint8_t *)data + done, part);
        dd_ring_advance(ring, part);
        done += part;
    }
    dd_ring_publish(ring);
    return done;
}

/* Copies out what there is; false when that makes no sense. */
static bool
take(dd_ring *ring, void *data, size_t len, size_t *moved)
{
    const uint8_t *run;
    size_t count;
    bool is_right = true;
    *moved = 0;
    while (*moved < len && (is_right = dd_ring_filled_run(ring, &run, &count)) && count > 0) {
        size_t part = count < len - *moved ? count : len - *moved;
        memcpy((uint8_t *)data + *moved, run, part);
        dd_ring_advance(ring, part);
        *moved += part;
    }
    dd_ring_release(ring);
    return is_right;
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
        REQUIRE(put(&both.writer, in, len) == len);
        size_t moved = 0;
        REQUIRE(take(&both.reader, out, sizeof out, &moved));
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
    CHECK_INT(put(&both.writer, block, sizeof block), 3000);
    CHECK_INT(put(&both.writer, block, sizeof block), SIZE - 3000);
    CHECK_INT(put(&both.writer, block, sizeof block), 0);
    CHECK(take(&both.reader, out, 100, &moved));
    CHECK_INT(moved, 100);
    CHECK_INT(put(&both.writer, block, sizeof block), 100);
    CHECK(take(&both.reader, out, sizeof out, &moved));
    CHECK_INT(moved, SIZE);
    CHECK(take(&both.reader, out, sizeof out, &moved));
    CHECK_INT(moved, 0);
    close_pair(&both);
}

TEST(bell_is_due_once_for_each_sleep)
{
    pair both;
    REQUIRE(open_pair(&both));
    CHECK(!dd_ring_is_bell_due(&both.writer));
    CHECK(dd_ring_fall_asleep(&both.reader));
    CHECK_INT(put(&both.writer, "x", 1), 1);
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
        CHECK(!take(&both.reader, out, sizeof out, &moved));
        words[8] = wrong[i]; /* read */
        uint8_t *run;
        size_t len;
        CHECK_INT(put(&both.writer, out, sizeof out), SIZE); /* which it knew to be free */
        CHECK(!dd_ring_free_run(&both.writer, &run, &len));
        close_pair(&both);
    }
}

TEST(descriptors_that_are_no_ring)
{
    dd_ring rings[2] = {{0}};
    int plain = memfd_create("plain", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    REQUIRE(ftruncate(plain, (off_t)(2 * (4096 + SIZE))) == 0);
    /* Not sealed: its maker could shrink it under us. */
    CHECK_STATUS(dd_ring_attach_two(&rings[0], &rings[1], SIZE, plain, check_err()), DD_PROTOCOL);
    close(plain);
    CHECK_STATUS(dd_ring_attach_two(&rings[0], &rings[1], SIZE, -1, check_err()), DD_PROTOCOL);
    int fd = -1;
    REQUIRE_OK(dd_ring_create_two(&rings[0], &rings[1], SIZE, &fd, check_err()));
    dd_ring others[2] = {{0}};
    CHECK_STATUS(dd_ring_attach_two(&others[0], &others[1], 2 * SIZE, fd, check_err()), DD_PROTOCOL);
    CHECK(ftruncate(fd, 0) != 0);
    dd_sock_close(fd);
    dd_ring_close(&rings[0]);
    dd_ring_close(&rings[1]);
}

#define STREAM_BYTES 2000000u

static void *
write_stream(void *arg)
{
    dd_ring *ring = arg;
    for (uint32_t i = 0; i < STREAM_BYTES;) {
        uint8_t byte = (uint8_t)(i * 31);
        i += (uint32_t)put(ring, &byte, 1);
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
        is_right = take(&both.reader, out, sizeof out, &moved);
        for (size_t i = 0; i < moved; i++) {
            is_right = is_right && out[i] == (uint8_t)(got++ * 31);
        }
    }
    CHECK(is_right);
    pthread_join(thread, NULL);
    close_pair(&both);
}
