/* A stream of bytes to a peer process, both ways: shared memory with a Unix socket beside it, or
 * TCP. A link has one owner, which serialises all calls. Only dd_link_receive_taken and
 * dd_link_take_shm block. */
#ifndef DD_TRANSPORT_LINK_H
#define DD_TRANSPORT_LINK_H

#include "core/status.h"
#include "net/seal.h"
#include "net/sock.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

typedef struct dd_link dd_link;

typedef struct dd_link_ops {
    const char *name; /* "shared memory", "TCP" */

    /* Send as much of `parts`, which must not all be empty, as there is room for; possibly less (at
     * most a ring's size). AGAIN if there is no room: the next call must begin with the same bytes.
     * CLOSED or FAILED (errno is set) end sending; bytes that were received can still be read. */
    dd_io (*try_send)(dd_link *link, const struct iovec *parts, int nparts, size_t *moved);

    /* Return true if all sent bytes are on their way: this process may exit, and only the network
     * can lose them. With `is_sure`, return true if the peer's host has them: none can be lost. */
    bool (*has_left)(dd_link *link, bool is_sure);

    /* Return how many bytes do not reach a peer that has room: resent at least twice (*nresends),
     * or dropped by this host's interface (*nresends is 0). 0 if no loss is known. */
    size_t (*count_lost)(dd_link *link, unsigned *nresends);

    /* Receive up to nbytes >= 1 bytes. AGAIN if there are none, CLOSED after the last byte of the
     * stream. In shared memory this reads only the ring; on_event reads the socket. A caller that
     * stops before AGAIN must call again without waiting for fd. */
    dd_io (*try_recv)(dd_link *link, void *data, size_t nbytes, size_t *moved);

    /* Handle a readable fd (EPOLLIN, EPOLLHUP, EPOLLERR): take bells off a Unix socket, and detect
     * its end. CLOSED once all bytes before the end have been received; else OK: call try_recv. */
    dd_io (*on_event)(dd_link *link);

    /* Call before sleeping on fd: from then on the peer makes fd readable when there is input and,
     * with `wants_room`, when there is room after AGAIN from try_send. Returns false if there is
     * work: stay awake. Lasts until the next try_recv or on_event. TCP leaves this to epoll. */
    bool (*fall_asleep)(dd_link *link, bool wants_room);

    /* Free the link; in a forked child, only memory. */
    void (*destroy)(dd_link *link);
} dd_link_ops;

struct dd_link {
    const dd_link_ops *ops;
    int fd; /* for epoll: EPOLLIN and, for TCP, EPOLLOUT (room for output) */
    bool is_shared_memory;
    bool has_input;      /* try_recv has bytes that this process has read from fd already */
    uint64_t generation; /* dd_fork_generation of the process that opened it */
};

/* Open a link on a connected socket after the handshake, with the seal that it made, or NULL. On
 * success the link owns both. */
dd_status dd_link_open_tcp(int fd, dd_seal *seal, dd_link **link, dd_error *err) DD_MUST_CHECK;

/* Open a link of two rings, one per direction, in memory that one side offers over the Unix socket.
 * Each has `ring_nbytes`: a power of two from 4096 to 2^30. After an offer, call hear_taken, and
 * close the link if it fails. take_shm waits for the offer, hear_taken for the answer, until the
 * deadline. On success the link owns `socket_fd`; after a failure it is unusable. */
dd_status dd_link_offer_shm(int socket_fd, size_t ring_nbytes, dd_link **link, dd_error *err) DD_MUST_CHECK;
dd_status dd_link_receive_taken(const dd_link *link, const dd_wait *wait, dd_error *err) DD_MUST_CHECK;
dd_status dd_link_take_shm(int socket_fd, dd_link **link, const dd_wait *wait, dd_error *err) DD_MUST_CHECK;

static inline void
dd_link_close(dd_link *link)
{
    if (link != NULL) {
        link->ops->destroy(link);
    }
}

#endif
