/* A pipe in shared memory between two processes of one host: one writer, one reader, bytes in order.
 *
 * Moving bytes costs no system call. The reader polls while the writer is busy; before it stops polling it
 * falls asleep, and the writer that finds it so rings a bell of its own choosing (a byte on a socket). So
 * does, where the two agree on it, a reader that finds the writer waiting for room. The memory is a sealed
 * memfd, which leaves no name behind and cannot shrink under anybody. What the
 * other side writes into it is a peer's word: positions that make no sense are an error, never an access
 * out of bounds. */
#ifndef DD_NET_RING_H
#define DD_NET_RING_H

#include "core/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct dd_ring_shared dd_ring_shared;

/* One side's view. A zeroed one is closed. */
typedef struct dd_ring {
    dd_ring_shared *shared; /* NULL: closed */
    uint8_t *data;
    size_t size;       /* of data; a power of two */
    uint64_t position; /* own: of the next byte to read or write */
    uint64_t known;    /* the other side's position as last seen */
    bool is_limited;   /* reader: goes no further than `known` */
    bool is_unfenced;  /* reader: has released since it last made sure of seeing a writer that waits */
    bool is_asleep;    /* reader: has said so, and not taken it back */
} dd_ring;

/* Two rings of one size in one piece of memory: `in` is read on this side and written on the other. Each
 * is closed by itself. *fd is for the other side and the caller's to close. Attaching it is DD_PROTOCOL
 * when it is not two rings of that size. */
dd_status dd_ring_create_two(dd_ring *in, dd_ring *out, size_t size, int *fd, dd_error *err) DD_MUST_CHECK;
dd_status dd_ring_attach_two(dd_ring *in, dd_ring *out, size_t size, int fd, dd_error *err) DD_MUST_CHECK;
void dd_ring_close(dd_ring *ring);
static inline bool
dd_ring_is_open(const dd_ring *ring)
{
    return ring->shared != NULL;
}

/* Writer, after writing: whether the reader has to be woken. True once for each time it fell asleep. */
bool dd_ring_is_bell_due(dd_ring *ring);

/* Reader. False when bytes have come after all: then it must read on. */
bool dd_ring_fall_asleep(dd_ring *ring);
/* Reader, awake again: spares the writer bells that nobody needs. Costs nothing when it has not been
 * asleep. */
void dd_ring_wake_up(dd_ring *ring);

/* Each side looks at the other's position only when what it knew of is used up, works on runs of memory
 * that end at the edge of the ring, and says when the other side may see how far it has come. */

/* Writer. Where the next bytes go; *len is 0 when the ring is full. False when the reader's position makes
 * no sense. */
bool dd_ring_free_run(dd_ring *ring, uint8_t **run, size_t *len);
/* Reader. Where the next bytes are; *len is 0 when there are none. False when the writer's position makes
 * no sense. */
bool dd_ring_filled_run(dd_ring *ring, const uint8_t **run, size_t *len);
/* len bytes of the run are done with: own view only. */
static inline void
dd_ring_advance(dd_ring *ring, size_t len)
{
    ring->position += len;
}
/* Writer: the reader may see what has been advanced over. */
void dd_ring_publish(dd_ring *ring);
/* Reader: the writer may write over what has been advanced over. */
void dd_ring_release(dd_ring *ring);

/* Writer, before it sleeps until there is room. False when there is some. */
bool dd_ring_wait_for_room(dd_ring *ring);
/* Reader, after releasing (a cheap look that may come too early) and when it has read all (`is_sure`: a
 * look that does not): whether the writer has to be told that there is room. True once for each time it
 * waited. */
bool dd_ring_is_room_bell_due(dd_ring *ring, bool is_sure);

/* Reader: from now on only what the writer has published up to now; for after its end. False when the
 * writer's position makes no sense. */
bool dd_ring_limit(dd_ring *ring);

#endif
