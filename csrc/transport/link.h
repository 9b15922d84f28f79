/* A link: a stream of bytes to a peer process, in both directions. It is either shared memory with
 * a Unix socket beside it, or TCP. Each link has one owner, which must serialise all calls. Only
 * dd_link_receive_taken and dd_link_take_shm block. */
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
    const char *name; /* name for messages: "shared memory" or "TCP" */

    /* Send as many bytes of `parts` as there is room for, or fewer (at most the size of a ring).
     * `parts` must contain at least one byte. DD_IO_AGAIN means that there is no room; the next
     * call must begin with the same bytes. DD_IO_CLOSED or DD_IO_FAILED (which sets errno) means
     * that nothing more can be sent; bytes that have arrived can still be read. */
    dd_io (*try_send)(dd_link *link, const struct iovec *parts, int nparts, size_t *moved);

    /* Return true if all sent bytes have left this process: after its exit, only the network can
     * lose any. With `is_sure`, return true if the peer's host has the bytes: none can be lost. */
    bool (*has_left)(dd_link *link, bool is_sure);

    /* Return the number of bytes that do not reach the peer although it has room for them, or 0 if
     * no loss is known. *nresends is the number of times that the bytes were resent, at least 2; or
     * 0 if this host's interface drops them. */
    size_t (*count_lost)(dd_link *link, unsigned *nresends);

    /* Receive up to `nbytes` bytes, at least 1. DD_IO_AGAIN: there are none. DD_IO_CLOSED: the
     * stream has ended and was read to its end. In shared memory, only the ring is read; on_event
     * reads the socket. A caller that stops before DD_IO_AGAIN must not sleep, but call again. */
    dd_io (*try_recv)(dd_link *link, void *data, size_t nbytes, size_t *moved);

    /* Handle EPOLLIN, EPOLLHUP or EPOLLERR of fd: remove bells from a Unix socket, detect its end.
     * DD_IO_CLOSED if the stream has ended and was read completely; else OK: call try_recv. */
    dd_io (*on_event)(dd_link *link);

    /* Prepare the link for sleeping on fd; must be called before the sleep. From then on, the peer
     * makes fd readable when there is input or, with `wants_room`, when try_send has room after
     * DD_IO_AGAIN. Returns false if there is work: the caller must not sleep. The effect lasts
     * until the next try_recv or on_event. TCP links need no preparation: epoll reports both. */
    bool (*fall_asleep)(dd_link *link, bool wants_room);

    /* Free the link. In a forked child, only memory is freed. */
    void (*destroy)(dd_link *link);
} dd_link_ops;

struct dd_link {
    const dd_link_ops *ops;
    int fd; /* descriptor for epoll: EPOLLIN for input and, only for TCP, EPOLLOUT for room */
    bool is_shared_memory;
    bool has_input;      /* true if input was read from fd but not returned yet: call try_recv */
    uint64_t generation; /* dd_fork_generation when the link was opened */
};

/* Open a link on a TCP socket, after the handshake. `seal` is NULL for a link without encryption.
 * On success, the link owns the socket and the seal. */
dd_status dd_link_open_tcp(int fd, dd_seal *seal, dd_link **link, dd_error *err) DD_MUST_CHECK;

/* Open a shared memory link: two rings of `ring_nbytes` bytes, one per direction, in memory that
 * one side offers over the Unix socket. `ring_nbytes` must be a power of two from 4096 to 2^30.
 *
 * The offering side must call offer_shm, then receive_taken, which waits for the other side's
 * answer; if that fails, it must close the link. The other side must call take_shm, which waits for
 * the offer. On success, the link owns `socket_fd`; after a failure, the socket is unusable. */
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
