#include "net/ring.h"

#include "core/fork.h"
#include "core/shared_memory.h"
#include "core/system.h"

#include <errno.h>
#include <stdatomic.h>
#include <string.h>

#define HEADER_BYTES ((size_t)4096)

/* Each word has a cache line of its own: the sides write different ones. */
struct dd_ring_shared {
    _Alignas(64) _Atomic uint64_t written; /* by the writer: bytes ever written */
    _Atomic uint32_t is_room_wanted; /* set by the writer, cleared by either; where the reader looks anyway */
    _Alignas(64) _Atomic uint64_t read;      /* by the reader: bytes ever read */
    _Alignas(64) _Atomic uint32_t is_asleep; /* set by the reader, cleared by either */
};

/* The two lie one after the other; each is unmapped by itself. */
static size_t
memory_nbytes(size_t size)
{
    return 2 * (HEADER_BYTES + size);
}

static dd_status
map_rings(dd_ring *first, dd_ring *second, size_t size, int fd, dd_error *err)
{
    uint8_t *memory = dd_sys_mmap(NULL, memory_nbytes(size), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (memory == MAP_FAILED) {
        return dd_error_set_errno(err, DD_SYSTEM, errno, "cannot map a ring of %zu bytes", size);
    }
    /* A forked child has no business in it. */
    (void)dd_sys_madvise(memory, memory_nbytes(size), MADV_DONTFORK);
    uint8_t *middle = memory + HEADER_BYTES + size;
    *first =
        (dd_ring){.shared = (dd_ring_shared *)(void *)memory, .data = memory + HEADER_BYTES, .size = size};
    *second =
        (dd_ring){.shared = (dd_ring_shared *)(void *)middle, .data = middle + HEADER_BYTES, .size = size};
    return DD_OK;
}

dd_status
dd_ring_create_two(dd_ring *in, dd_ring *out, size_t size, int *fd, dd_error *err)
{
    int new_fd = -1;
    dd_status status = dd_shared_memory_create("dldist-ring", memory_nbytes(size), &new_fd, err);
    if (status != DD_OK) {
        dd_error_prepend(err, "cannot make a ring of %zu bytes", size);
        return status;
    }
    status = map_rings(in, out, size, new_fd, err);
    if (status != DD_OK) {
        dd_fork_close(new_fd);
        return status;
    }
    *fd = new_fd;
    return DD_OK;
}

dd_status
dd_ring_attach_two(dd_ring *in, dd_ring *out, size_t size, int fd, dd_error *err)
{
    if (dd_shared_memory_nbytes(fd) != memory_nbytes(size)) {
        return dd_error_set(err, DD_PROTOCOL, "descriptor %d is not a sealed ring of %zu bytes", fd, size);
    }
    return map_rings(out, in, size, fd, err);
}

void
dd_ring_close(dd_ring *ring)
{
    if (ring->shared != NULL) {
        (void)dd_sys_munmap(ring->shared, HEADER_BYTES + ring->size);
    }
    *ring = (dd_ring){0};
}

static size_t
smaller(size_t a, size_t b)
{
    return a < b ? a : b;
}

bool
dd_ring_is_bell_due(dd_ring *ring)
{
    /* Pairs with the fence in dd_ring_fall_asleep: either the reader sees the new bytes before it sleeps,
     * or the writer sees that it sleeps. */
    atomic_thread_fence(memory_order_seq_cst);
    return atomic_load_explicit(&ring->shared->is_asleep, memory_order_relaxed) != 0 &&
           atomic_exchange_explicit(&ring->shared->is_asleep, 0, memory_order_relaxed) != 0;
}

bool
dd_ring_fall_asleep(dd_ring *ring)
{
    atomic_store_explicit(&ring->shared->is_asleep, 1, memory_order_relaxed);
    atomic_thread_fence(memory_order_seq_cst);
    ring->is_asleep = atomic_load_explicit(&ring->shared->written, memory_order_relaxed) == ring->position;
    if (!ring->is_asleep) {
        atomic_store_explicit(&ring->shared->is_asleep, 0, memory_order_relaxed);
    }
    return ring->is_asleep;
}

void
dd_ring_wake_up(dd_ring *ring)
{
    if (ring->is_asleep) {
        ring->is_asleep = false;
        atomic_store_explicit(&ring->shared->is_asleep, 0, memory_order_relaxed);
    }
}

bool
dd_ring_free_run(dd_ring *ring, uint8_t **run, size_t *len)
{
    if (ring->position - ring->known >= ring->size) {
        /* Acquire: the reader is done with the bytes it says it has read. */
        ring->known = atomic_load_explicit(&ring->shared->read, memory_order_acquire);
    }
    uint64_t used = ring->position - ring->known;
    if (used > ring->size) {
        return false;
    }
    size_t start = (size_t)(ring->position & (ring->size - 1));
    *run = ring->data + start;
    *len = smaller(ring->size - (size_t)used, ring->size - start);
    return true;
}

bool
dd_ring_filled_run(dd_ring *ring, const uint8_t **run, size_t *len)
{
    uint64_t count = ring->known - ring->position;
    if ((count == 0 || count > ring->size) && !ring->is_limited) {
        /* Acquire: pairs with the release in dd_ring_publish. */
        ring->known = atomic_load_explicit(&ring->shared->written, memory_order_acquire);
        count = ring->known - ring->position;
    }
    if (count > ring->size) {
        return false;
    }
    size_t start = (size_t)(ring->position & (ring->size - 1));
    *run = ring->data + start;
    *len = smaller((size_t)count, ring->size - start);
    return true;
}

void
dd_ring_publish(dd_ring *ring)
{
    /* Release: the bytes are there before the position that covers them. */
    atomic_store_explicit(&ring->shared->written, ring->position, memory_order_release);
}

void
dd_ring_release(dd_ring *ring)
{
    /* Release: the bytes are copied before the writer may write over them. */
    atomic_store_explicit(&ring->shared->read, ring->position, memory_order_release);
    ring->is_unfenced = true;
}

bool
dd_ring_wait_for_room(dd_ring *ring)
{
    atomic_store_explicit(&ring->shared->is_room_wanted, 1, memory_order_relaxed);
    atomic_thread_fence(memory_order_seq_cst);
    if (ring->position - atomic_load_explicit(&ring->shared->read, memory_order_relaxed) >= ring->size) {
        return true;
    }
    atomic_store_explicit(&ring->shared->is_room_wanted, 0, memory_order_relaxed);
    return false;
}

bool
dd_ring_is_room_bell_due(dd_ring *ring, bool is_sure)
{
    if (is_sure && ring->is_unfenced) {
        /* Pairs with the fence in dd_ring_wait_for_room: either the writer sees the room before it sleeps,
         * or the reader sees that it waits. Until the ring is empty a look without it will do: there will
         * be another. */
        atomic_thread_fence(memory_order_seq_cst);
        ring->is_unfenced = false;
    }
    return atomic_load_explicit(&ring->shared->is_room_wanted, memory_order_relaxed) != 0 &&
           atomic_exchange_explicit(&ring->shared->is_room_wanted, 0, memory_order_relaxed) != 0;
}

bool
dd_ring_limit(dd_ring *ring)
{
    ring->is_limited = true;
    ring->known = atomic_load_explicit(&ring->shared->written, memory_order_acquire);
    return ring->known - ring->position <= ring->size;
}
