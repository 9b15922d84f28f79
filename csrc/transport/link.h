/* A stream of bytes to a peer process, both ways: shared memory with a Unix socket beside it, or TCP.
 *
 * A link belongs to one owner, which serialises all calls. Nothing here blocks. */
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

    /* Moves what there is room for of the parts, which are not all empty; AGAIN: no room; then the next parts begin with
     * the same bytes. It may move less than there is room for (a ring's worth at a time). CLOSED or FAILED (errno tells) end the link for
     * sending; what has come in meanwhile is still to be had. */
    dd_io (*try_send)(dd_link *link, const struct iovec *parts, int nparts, size_t *moved);

    /* Whether all that was sent is on its way: then it is lost at most if the network loses it, and this process may end. Or, if
     * `is_sure`, whether the peer's host has it: nothing is lost then, whatever becomes of this side. */
    bool (*has_left)(dd_link *link, bool is_sure);

    /* Bytes that do not get to the peer although it has room for them: sent again at least twice (*nresends),
     * or dropped by this host's own interface (then *nresends is 0). 0: nothing is known to be lost. */
    size_t (*count_lost)(dd_link *link, unsigned *nresends);

    /* Moves what there is, up to nbytes >= 1; AGAIN: nothing; the end of the stream, after its last byte,
     * is CLOSED. Looks at shared memory only: what the socket beside it has to say comes by on_event.
     * A caller that stops before AGAIN has to come back. */
    dd_io (*try_recv)(dd_link *link, void *data, size_t nbytes, size_t *moved);

    /* The descriptor in fd is readable (EPOLLIN, EPOLLHUP, EPOLLERR): takes bells off a Unix socket, and notices
     * its end: CLOSED, once all bytes before it have been received. OK otherwise: the bytes are try_recv's. */
    dd_io (*on_event)(dd_link *link);

    /* Before the owner sleeps on fd: from here on the peer makes fd readable when there is input (and,
     * where `wants_room`, when there is room after try_send has said AGAIN). False when there is something
     * to do already: do not sleep. The first try_recv or on_event ends it. TCP: true, epoll does it. */
    bool (*fall_asleep)(dd_link *link, bool wants_room);

    /* In a forked child: frees memory only. */
    void (*destroy)(dd_link *link);
} dd_link_ops;

struct dd_link {
    const dd_link_ops *ops;
    int fd; /* for epoll: EPOLLIN and, of TCP, EPOLLOUT: room for output */
    bool is_shared_memory;
    bool has_input;      /* try_recv has more, whatever fd says: it is in this process already */
    uint64_t generation; /* of the process (dd_fork_generation) */
};

/* Takes a connected socket (on success) that has been through the hand-shake, and what has come of that: a seal, or NULL. */
dd_status dd_link_open_tcp(int fd, dd_seal *seal, dd_link **link, dd_error *err) DD_MUST_CHECK;

/* Two rings, one a direction, in one piece of memory, which one side makes and hands over the Unix socket.
 * `ring_nbytes` is of each: a power of two from 4096 to 2^30. The side that offers must hear whether the other has taken
 * it before it uses the link; it closes the link if not. Taking waits until there is an offer, hearing until there is an
 * answer, at most until the deadline. `socket_fd` is taken on success; on failure it is no good for another attempt. */
dd_status dd_link_offer_shm(int socket_fd, size_t ring_nbytes, dd_link **link, dd_error *err) DD_MUST_CHECK;
dd_status dd_link_hear_taken(const dd_link *link, const dd_wait *wait, dd_error *err) DD_MUST_CHECK;
dd_status dd_link_take_shm(int socket_fd, dd_link **link, const dd_wait *wait, dd_error *err) DD_MUST_CHECK;

/* NULL is fine. */
static inline void
dd_link_close(dd_link *link)
{
    if (link != NULL) {
        link->ops->destroy(link);
    }
}

#endif
