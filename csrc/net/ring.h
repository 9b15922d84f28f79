/* A pipe in shared memory between two processes of one host: one writer, one reader, bytes in order.
 *
 * Moving bytes costs no system call. The reader polls while the writer is busy; before it stops polling it falls
 * asleep, and the writer that finds it so rings a bell of its own choosing (a byte on a socket). The memory is a sealed
 * memfd of the reader's making, which leaves no name behind and cannot shrink under anybody. What the other side
 * writes into it is a peer's word: positions that make no sense are an error, never an access out of bounds. */
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
} dd_ring;

/* The reader makes the ring; *fd is for the writer and the caller's to close. */
dd_status dd_ring_create(dd_ring *ring, size_t size, int *fd, dd_error *err) DD_MUST_CHECK;
/* The writer maps it. DD_PROTOCOL when the descriptor is not a ring of that size. */
dd_status dd_ring_attach(dd_ring *ring, size_t size, int fd, dd_error *err) DD_MUST_CHECK;
void dd_ring_close(dd_ring *ring);
static inline bool
dd_ring_is_open(const dd_ring *ring)
{
    return ring->shared != NULL;
}

/* Writer. Copies in what there is room for; returns how much, 0 when the ring is full. */
size_t dd_ring_write(dd_ring *ring, const void *data, size_t len);
/* Writer. Whether there is room for anything, and whether the reader has read all. */
bool dd_ring_has_room(const dd_ring *ring);
bool dd_ring_is_all_read(const dd_ring *ring);
/* Writer, after writing: whether the reader has to be woken. True once for each time it fell asleep. */
bool dd_ring_is_bell_due(dd_ring *ring);

/* Reader. How many bytes there are; false when the writer's position makes no sense. */
bool dd_ring_count(const dd_ring *ring, size_t *count);
/* Reader. Copies out up to len bytes; *moved is 0 when there are none. False when the writer's position makes no sense. */
bool dd_ring_read(dd_ring *ring, void *data, size_t len, size_t *moved);
/* Reader. False when bytes have come after all: then it must read on. */
bool dd_ring_fall_asleep(dd_ring *ring);

#endif
