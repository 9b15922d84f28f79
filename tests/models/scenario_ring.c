/* csrc/transport/link_shm.c: bytes through the rings, with a sleeping reader, a writer that waits
 * for space, a wrap-around, and an end.
 *
 * Setup creates the two ends with their own handshake. A socket is a bell for each side. */
#include "models/checker.h"

#include "transport/link.h"

#include <errno.h>
#include <string.h>

#define RING_NBYTES ((size_t)4096)
/* A bell's value if the other side has closed its socket. */
#define HANG_UP 0x10000u

static dd_link *ends[2];
static checker_bell bells[2];
static bool is_hung_up[2]; /* seen by this side */

/* ---- the sockets */

static uint8_t mail[2][64];
static size_t mail_nbytes[2];

dd_io
dd_sock_try_send(int fd, const void *data, size_t nbytes, size_t *moved)
{
    if (checker_self() >= 0) {
        checker_ring(&bells[1 - fd], 1);
    } else {
        memcpy(mail[1 - fd], data, nbytes);
        mail_nbytes[1 - fd] = nbytes;
    }
    *moved = nbytes;
    return DD_IO_OK;
}

dd_io
dd_sock_try_send_fd(int fd, const dd_addr *to, const void *data, size_t nbytes, int passed_fd, size_t *moved)
{
    (void)to;
    (void)passed_fd;
    return dd_sock_try_send(fd, data, nbytes, moved);
}

dd_io
dd_sock_try_recv(int fd, void *data, size_t nbytes, size_t *moved)
{
    uint32_t rings = checker_take_rings(&bells[fd]);
    is_hung_up[fd] = is_hung_up[fd] || rings >= HANG_UP;
    rings %= HANG_UP;
    if (rings == 0) {
        return is_hung_up[fd] ? DD_IO_CLOSED : DD_IO_AGAIN;
    }
    *moved = rings < nbytes ? rings : nbytes;
    memset(data, 'b', *moved);
    return DD_IO_OK;
}

dd_io
dd_sock_try_recv_fd(int fd, void *data, size_t nbytes, int *passed_fd, bool *is_same_user, size_t *moved)
{
    (void)is_same_user;
    *moved = nbytes < mail_nbytes[fd] ? nbytes : mail_nbytes[fd];
    memcpy(data, mail[fd], *moved);
    *passed_fd = fd == 1 ? CHECKER_MEMORY_FD : -1;
    return DD_IO_OK;
}

dd_status
dd_sock_wait(int fd, short events, const dd_wait *wait, dd_error *err)
{
    (void)fd;
    (void)events;
    (void)wait;
    return dd_error_set(err, DD_SYSTEM, "nothing to wait for");
}

void
dd_sock_close(int fd)
{
    (void)fd;
}

/* ---- setups */

static void
move_in_setup(size_t nbytes, bool is_read)
{
    uint8_t bytes[RING_NBYTES] = {0};
    size_t moved = 0;
    struct iovec part = {bytes, nbytes};
    REQUIRE(ends[0]->ops->try_send(ends[0], &part, 1, &moved) == DD_IO_OK && moved == nbytes);
    if (is_read) {
        REQUIRE(ends[1]->ops->try_recv(ends[1], bytes, nbytes, &moved) == DD_IO_OK && moved == nbytes);
    }
}

static void
open_link(void)
{
    dd_error err;
    memset(bells, 0, sizeof bells);
    memset(is_hung_up, 0, sizeof is_hung_up);
    checker_allocate_for(0);
    REQUIRE(dd_link_offer_shm(0, RING_NBYTES, &ends[0], &err) == DD_OK);
    checker_allocate_for(1);
    REQUIRE(dd_link_take_shm(1, &ends[1], NULL, &err) == DD_OK);
    REQUIRE(dd_link_receive_taken(ends[0], NULL, &err) == DD_OK);
}

/* The next bytes wrap around the end of the ring. */
static void
open_near_edge(void)
{
    open_link();
    move_in_setup(RING_NBYTES - 3, true);
}

/* Leave space for two bytes. */
static void
open_nearly_full(void)
{
    open_link();
    move_in_setup(RING_NBYTES - 2, false);
}

/* ---- threads that use an end as the engine does */

static void
rest(dd_link *link, bool wants_room)
{
    if (link->ops->fall_asleep(link, wants_room)) {
        checker_sleep(&bells[link->fd]);
        dd_io io = link->ops->on_event(link);
        REQUIRE(io == DD_IO_OK || (io == DD_IO_CLOSED && is_hung_up[link->fd]));
    }
}

/* Send consecutive values, so that the reader can check them. */
static void
send_bytes(dd_link *link, uint8_t first, size_t nbytes)
{
    uint8_t bytes[8];
    for (size_t i = 0; i < nbytes; i++) {
        bytes[i] = (uint8_t)(first + i);
    }
    size_t done = 0;
    while (done < nbytes) {
        checker_forget((uint64_t)first << 8 | done);
        size_t moved = 0;
        struct iovec part = {bytes + done, nbytes - done};
        dd_io io = link->ops->try_send(link, &part, 1, &moved);
        REQUIRE(io == DD_IO_OK || io == DD_IO_AGAIN);
        done += moved;
        if (io == DD_IO_AGAIN) {
            rest(link, true);
        }
    }
}

static void
recv_bytes(dd_link *link, uint8_t first, size_t nbytes)
{
    size_t done = 0;
    while (done < nbytes) {
        checker_forget((uint64_t)first << 8 | done | 1u << 16);
        uint8_t bytes[8];
        size_t moved = 0;
        dd_io io = link->ops->try_recv(link, bytes, nbytes - done, &moved);
        REQUIRE(io == DD_IO_OK || io == DD_IO_AGAIN);
        for (size_t i = 0; i < moved; i++) {
            REQUIRE(bytes[i] == (uint8_t)(first + done + i));
        }
        done += moved;
        if (io == DD_IO_AGAIN) {
            rest(link, false);
        }
    }
}

static void
pass(int self)
{
    for (uint8_t i = 0; i < 3; i++) {
        if (self == 0) {
            send_bytes(ends[0], (uint8_t)(2 * i + 1), 2);
        } else {
            recv_bytes(ends[1], (uint8_t)(2 * i + 1), 2);
        }
    }
}

SCENARIO(ring_passes, .label = "three writes over the edge, a reader that sleeps", .nthreads = 2,
         .setup = open_near_edge, .thread = pass)

/* The reader takes the old bytes in two pieces, and then the new ones. */
static void
pass_when_full(int self)
{
    if (self == 0) {
        send_bytes(ends[0], 1, 3);
        return;
    }
    size_t left = RING_NBYTES - 2;
    while (left > 0) {
        static uint8_t bytes[RING_NBYTES];
        size_t moved = 0;
        REQUIRE(ends[1]->ops->try_recv(ends[1], bytes, left < RING_NBYTES - 4 ? left : RING_NBYTES - 4,
                                       &moved) == DD_IO_OK);
        left -= moved;
    }
    recv_bytes(ends[1], 1, 3);
}

SCENARIO(ring_is_full, .label = "a writer that waits for room", .nthreads = 2, .setup = open_nearly_full,
         .thread = pass_when_full)

/* The reader finds no more bytes and does not return. The writer must still learn of the free
 * space. */
static void
read_and_go(int self)
{
    if (self == 0) {
        send_bytes(ends[0], 1, 3);
        return;
    }
    static uint8_t bytes[RING_NBYTES];
    size_t moved = 0;
    dd_io io = DD_IO_OK;
    while (io == DD_IO_OK) {
        io = ends[1]->ops->try_recv(ends[1], bytes, sizeof bytes, &moved);
    }
    REQUIRE(io == DD_IO_AGAIN);
}

SCENARIO(ring_has_room, .label = "a writer that waits, a reader that goes", .nthreads = 2,
         .setup = open_nearly_full, .thread = read_and_go)

static void
answer_each_other(int self)
{
    dd_link *link = ends[self];
    for (uint8_t i = 0; i < 2; i++) {
        if (self == 0) {
            send_bytes(link, i, 1);
            recv_bytes(link, i, 1);
        } else {
            recv_bytes(link, i, 1);
            send_bytes(link, i, 1);
        }
    }
}

SCENARIO(ring_answers, .label = "both directions alternate, both sides sleep", .nthreads = 2,
         .setup = open_link, .thread = answer_each_other)

static void
cross(int self)
{
    for (uint8_t i = 0; i < 2; i++) {
        send_bytes(ends[self], i, 1);
        recv_bytes(ends[self], i, 1);
    }
}

SCENARIO(ring_crosses, .label = "both directions together, both sides sleep", .nthreads = 2,
         .setup = open_link, .thread = cross)

/* Bytes written before the end must still be readable. */
static void
write_and_go(int self)
{
    if (self == 0) {
        send_bytes(ends[0], 1, 2);
        checker_ring(&bells[1], HANG_UP);
        return;
    }
    size_t done = 0;
    dd_io io = DD_IO_OK;
    while (io != DD_IO_CLOSED) {
        uint8_t bytes[2] = {0};
        size_t moved = 0;
        io = ends[1]->ops->try_recv(ends[1], bytes, 2, &moved);
        done += moved;
        REQUIRE(moved == 0 || bytes[moved - 1] == done);
        if (io == DD_IO_AGAIN) {
            rest(ends[1], false);
        }
    }
    REQUIRE(done == 2);
}

SCENARIO(ring_ends, .label = "data written before the end", .nthreads = 2, .setup = open_link,
         .thread = write_and_go)
