/* Links over shared memory. Two rings, one per direction, are in memory that both processes map.
 * Each ring has one writer and one reader, and carries bytes in order. Moving bytes needs no system
 * call: the reader polls while the writer is busy. Before it stops polling, the reader marks itself
 * asleep; a writer that finds the mark sends a bell, a byte on the Unix socket beside the rings. In
 * the same way, a reader rings for a writer that waits for room. The memory is a sealed memfd,
 * which leaves no name behind and cannot shrink. An invalid position from the peer is an error, and
 * never leads to an access out of bounds. */
#include "transport/link.h"

#include "core/clock.h"
#include "core/fork.h"
#include "core/mem.h"
#include "core/park.h"
#include "core/shared_memory.h"
#include "core/system.h"
#include "kernels/copy.h"
#include "kernels/copy_trial.h"

#include <errno.h>
#include <poll.h>
#include <stdatomic.h>
#include <string.h>

/* The byte of a bell. After the handshake the socket carries only bells; several count as one. */
#define BELL 'b'

/* Number of bytes after which the writer publishes, so that writer and reader copy in parallel. */
#define PUBLISH_BYTES ((size_t)32768)

/* Size of the smallest read whose duration is measured, in bytes. */
#define JUDGED_MIN_BYTES ((size_t)8192)
/* Size of the smallest write that may bypass the writer's caches, in bytes. */
#define PAST_MIN_BYTES ((size_t)4096)

/* Maximum number of bytes per read of the socket. */
#define SOCKET_BATCH 256

#define HEADER_BYTES ((size_t)4096)

/* Head of a ring in shared memory. Writer and reader store to different cache lines. */
typedef struct ring_words {
    /* stored by the writer: number of bytes written so far */
    _Alignas(64) _Atomic uint64_t written;
    dd_park_bits writer;                /* mark of a writer that waits for room */
    _Alignas(64) _Atomic uint64_t read; /* stored by the reader: number of bytes read so far */
    _Alignas(64) dd_park_bits reader;   /* mark of a reader that waits for bytes */
    /* Hint by the reader: not 0 if reads are faster when the writer bypasses the writer's
     * caches. */
    _Atomic uint32_t is_past_wanted;
} ring_words;

/* One side's state of a ring. The other side's position is read only when `known` is used up. */
typedef struct shm_ring {
    ring_words *shared;  /* NULL if closed; the ring's bytes follow after HEADER_BYTES */
    size_t size;         /* size of the ring in bytes, a power of two */
    uint64_t position;   /* position of this side: the next byte to read or write */
    uint64_t known;      /* position of the other side, as last read */
    bool is_unfenced;    /* reader: true if room was freed since its last fence */
    bool is_asleep;      /* reader: true while its mark is set in shared->reader */
    dd_copy_trial trial; /* reader: compares the writer's two ways of copying */
} shm_ring;

typedef struct shm_link {
    dd_link base;
    shm_ring in;
    shm_ring out;
    bool is_ended;  /* true once the socket has ended; in.known is then the end of input */
    bool is_broken; /* true if the peer broke the protocol, or the socket failed */
    int sys_errno;  /* errno of the failure, if is_broken is true */
} shm_link;

static size_t
smaller(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* ---- positions in the rings */

/* Return the address of this side's position. Of `count` bytes from there, *len are contiguous. */
static uint8_t *
run_at(const shm_ring *ring, uint64_t count, size_t *len)
{
    size_t start = (size_t)(ring->position & (ring->size - 1));
    *len = smaller((size_t)count, ring->size - start);
    return (uint8_t *)ring->shared + HEADER_BYTES + start;
}

/* For the writer: return where to write the next bytes. *len is 0 if the ring is full. Returns NULL
 * if the reader's position is invalid. */
static uint8_t *
free_run(shm_ring *ring, size_t *len)
{
    if (ring->position - ring->known >= ring->size) {
        /* Acquire: the reader has finished reading the bytes before its position. */
        ring->known = atomic_load_explicit(&ring->shared->read, memory_order_acquire);
    }
    uint64_t used = ring->position - ring->known;
    return used <= ring->size ? run_at(ring, ring->size - used, len) : NULL;
}

/* For the reader: return the next bytes. *len is 0 if there are none. Returns NULL if the writer's
 * position is invalid. With `is_limited`, after the end of the stream, do not read the writer's
 * position again, since the peer can still write to the ring. */
static uint8_t *
filled_run(shm_ring *ring, bool is_limited, size_t *len)
{
    uint64_t count = ring->known - ring->position;
    if ((count == 0 || count > ring->size) && !is_limited) {
        /* Acquire: the bytes before the writer's position are visible. */
        ring->known = atomic_load_explicit(&ring->shared->written, memory_order_acquire);
        count = ring->known - ring->position;
    }
    return count <= ring->size ? run_at(ring, count, len) : NULL;
}

static void
wake_up(shm_ring *in)
{
    if (in->is_asleep) { /* clear the mark, so that the writer sends no needless bell */
        in->is_asleep = false;
        (void)dd_park_take(&in->shared->reader, DD_PARK_SOLE);
    }
}

/* Mark the reader as asleep. Returns false, without the mark, if bytes have arrived. */
static bool
reader_falls_asleep(shm_ring *in)
{
    dd_park(&in->shared->reader, DD_PARK_SOLE);
    in->is_asleep = true;
    if (atomic_load_explicit(&in->shared->written, memory_order_acquire) != in->position) {
        wake_up(in);
    }
    return in->is_asleep;
}

/* Mark the writer as waiting for room. Returns false, without the mark, if there is room. */
static bool
writer_waits_for_room(shm_ring *out)
{
    dd_park(&out->shared->writer, DD_PARK_SOLE);
    if (out->position - atomic_load_explicit(&out->shared->read, memory_order_acquire) >= out->size) {
        return true;
    }
    (void)dd_park_take(&out->shared->writer, DD_PARK_SOLE);
    return false;
}

static dd_io
shm_fail(shm_link *self, int sys_errno)
{
    if (!self->is_broken) {
        self->is_broken = true;
        self->sys_errno = sys_errno;
    }
    errno = self->sys_errno;
    return DD_IO_FAILED;
}

/* ---- the socket beside the rings */

/* Send a bell. A full socket contains unread bells, which suffice. The end of the stream is
 * ignored: reads detect it after all bytes that were sent before the end. */
static void
send_bell(shm_link *self)
{
    const uint8_t bell = BELL;
    size_t moved = 0;
    if (dd_sock_try_send(self->base.fd, &bell, 1, &moved) == DD_IO_FAILED) {
        (void)shm_fail(self, errno);
    }
}

static dd_io
read_socket(shm_link *self)
{
    uint8_t bytes[SOCKET_BATCH];
    size_t moved = 0;
    dd_io io = dd_sock_try_recv(self->base.fd, bytes, sizeof bytes, &moved);
    for (size_t i = 0; io == DD_IO_OK && i < moved; i++) {
        if (bytes[i] != BELL) {
            errno = EPROTO;
            return DD_IO_FAILED;
        }
    }
    return io;
}

static dd_io
note_end(shm_link *self)
{
    size_t len = 0;
    if (!self->is_ended) {
        self->is_ended = true;
        self->in.known = atomic_load_explicit(&self->in.shared->written, memory_order_acquire);
    }
    if (filled_run(&self->in, true, &len) == NULL) {
        return shm_fail(self, EPROTO);
    }
    return len == 0 ? DD_IO_CLOSED : DD_IO_OK;
}

static dd_io
shm_on_event(dd_link *link)
{
    shm_link *self = (shm_link *)link;
    wake_up(&self->in);
    dd_io io = self->is_broken ? shm_fail(self, 0) : DD_IO_OK;
    while (io == DD_IO_OK && !self->is_ended) {
        io = read_socket(self);
    }
    if (io == DD_IO_FAILED) {
        return shm_fail(self, errno);
    }
    return self->is_ended || io == DD_IO_CLOSED ? note_end(self) : DD_IO_OK;
}

/* ---- sending and receiving bytes */

static void
publish(shm_link *self)
{
    /* Release: the reader's acquire in filled_run then sees the bytes. */
    atomic_store_explicit(&self->out.shared->written, self->out.position, memory_order_release);
    atomic_thread_fence(memory_order_seq_cst);
    if (dd_park_take(&self->out.shared->reader, DD_PARK_SOLE)) {
        send_bell(self);
    }
}

static void
copy_in(const shm_ring *out, uint8_t *run, const uint8_t *data, size_t nbytes)
{
    if (nbytes >= PAST_MIN_BYTES &&
        atomic_load_explicit(&out->shared->is_past_wanted, memory_order_relaxed) != 0) {
        dd_copy_streaming(run, data, nbytes);
    } else {
        dd_copy(run, data, nbytes);
    }
}

/* Copy as much of a part as there is room for. *unpublished: bytes not visible to the reader. */
static bool
write_part(shm_link *self, const uint8_t *data, size_t nbytes, size_t *unpublished, size_t *written)
{
    *written = 0;
    while (*written < nbytes) {
        size_t room = 0;
        uint8_t *run = free_run(&self->out, &room);
        if (run == NULL || room == 0) {
            return run != NULL;
        }
        size_t step = smaller(smaller(nbytes - *written, room), PUBLISH_BYTES - *unpublished);
        copy_in(&self->out, run, data + *written, step);
        self->out.position += step;
        *written += step;
        *unpublished += step;
        if (*unpublished == PUBLISH_BYTES) {
            publish(self);
            *unpublished = 0;
        }
    }
    return true;
}

static dd_io
shm_try_send(dd_link *link, const struct iovec *parts, int nparts, size_t *moved)
{
    shm_link *self = (shm_link *)link;
    if (self->is_broken || self->is_ended) {
        return self->is_broken ? shm_fail(self, 0) : DD_IO_CLOSED;
    }
    size_t total = 0;
    size_t unpublished = 0;
    /* Write at most a ring's size per call: if the reader keeps pace there is always room, but the
     * caller has other work to do. */
    for (int i = 0; i < nparts && total < self->out.size; i++) {
        size_t written = 0;
        size_t nbytes = smaller(parts[i].iov_len, self->out.size - total);
        if (!write_part(self, parts[i].iov_base, nbytes, &unpublished, &written)) {
            return shm_fail(self, EPROTO);
        }
        total += written;
        if (written < parts[i].iov_len) {
            break;
        }
    }
    if (unpublished > 0) {
        publish(self);
    }
    if (total == 0) {
        return DD_IO_AGAIN;
    }
    *moved = total;
    return DD_IO_OK;
}

/* No data can be lost: the ring outlives the process that wrote to it. */
static size_t
shm_count_lost(dd_link *link, unsigned *nresends)
{
    (void)link;
    *nresends = 0;
    return 0;
}

static bool
shm_has_left(dd_link *link, bool is_sure)
{
    (void)link;
    (void)is_sure;
    return true;
}

/* Send a bell if the writer waits for room. Without `is_sure`, the cheap check may miss a writer
 * that is about to wait. With `is_sure`, which is for an empty ring, it misses none. */
static void
ring_for_room(shm_link *self, bool is_sure)
{
    if (is_sure && self->in.is_unfenced) {
        /* A fence is needed only once the ring is empty: until then, a later read checks again. */
        atomic_thread_fence(memory_order_seq_cst);
        self->in.is_unfenced = false;
    }
    if (dd_park_take(&self->in.shared->writer, DD_PARK_SOLE)) {
        send_bell(self);
    }
}

/* Copy from the ring and measure the time, to choose how the writer copies: the choice affects the
 * reader most. Each way is used for a whole ring before its copies are measured. */
static void
copy_out(shm_ring *in, uint8_t *data, const uint8_t *run, size_t nbytes)
{
    if (nbytes < JUDGED_MIN_BYTES) {
        dd_copy(data, run, nbytes);
        return;
    }
    int64_t began_ns = dd_clock_now_ns();
    dd_copy(data, run, nbytes);
    int64_t now_ns = dd_clock_now_ns();
    dd_copy_trial_choose(&in->trial, (int)(in->size / (PUBLISH_BYTES / 2)) + 1, now_ns);
    if (in->trial.is_open) {
        int64_t ns_per_mib = (now_ns - began_ns) * ((int64_t)1 << 20) / (int64_t)nbytes;
        bool is_past = false;
        if (!dd_copy_trial_note(&in->trial, ns_per_mib, now_ns, &is_past)) {
            is_past = dd_copy_trial_is_past(&in->trial);
        }
        atomic_store_explicit(&in->shared->is_past_wanted, is_past, memory_order_relaxed);
    }
}

static dd_io
shm_try_recv(dd_link *link, void *data, size_t nbytes, size_t *moved)
{
    shm_link *self = (shm_link *)link;
    if (self->is_broken) {
        return shm_fail(self, 0);
    }
    wake_up(&self->in);
    size_t total = 0;
    while (total < nbytes) {
        size_t count = 0;
        const uint8_t *run = filled_run(&self->in, self->is_ended, &count);
        if (run == NULL) {
            return shm_fail(self, EPROTO);
        }
        if (count == 0) {
            break;
        }
        size_t step = smaller(smaller(nbytes - total, count), PUBLISH_BYTES);
        copy_out(&self->in, (uint8_t *)data + total, run, step);
        self->in.position += step;
        /* Release: the bytes are copied before the writer can overwrite them. */
        atomic_store_explicit(&self->in.shared->read, self->in.position, memory_order_release);
        self->in.is_unfenced = true;
        total += step;
        ring_for_room(self, false);
    }
    if (total > 0 || nbytes == 0) {
        *moved = total;
        return DD_IO_OK;
    }
    ring_for_room(self, true);
    return self->is_ended ? DD_IO_CLOSED : DD_IO_AGAIN;
}

static bool
shm_fall_asleep(dd_link *link, bool wants_room)
{
    shm_link *self = (shm_link *)link;
    if (self->is_broken || self->is_ended || !reader_falls_asleep(&self->in)) {
        return false;
    }
    /* The ring is empty, but the last check may have preceded the writer's wait for room. */
    ring_for_room(self, true);
    return !wants_room || writer_waits_for_room(&self->out);
}

/* ---- opening and closing */

/* Size of the memory in bytes. It contains two adjacent rings. */
static size_t
memory_nbytes(size_t size)
{
    return 2 * (HEADER_BYTES + size);
}

/* Map the rings. The side that offers the memory reads from the first ring. */
static dd_status
map_rings(shm_link *self, size_t size, int fd, bool is_offering, dd_error *err)
{
    uint8_t *memory = dd_sys_mmap(NULL, memory_nbytes(size), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (memory == MAP_FAILED) {
        return dd_error_set_errno(err, DD_SYSTEM, errno, "mmap of %zu bytes of shared memory failed", size);
    }
    /* The mapping must not be inherited by forked children. */
    (void)dd_sys_madvise(memory, memory_nbytes(size), MADV_DONTFORK);
    shm_ring *first = is_offering ? &self->in : &self->out;
    shm_ring *second = is_offering ? &self->out : &self->in;
    *first = (shm_ring){.shared = (ring_words *)(void *)memory, .size = size};
    *second = (shm_ring){.shared = (ring_words *)(void *)(memory + HEADER_BYTES + size), .size = size};
    return DD_OK;
}

static void
unmap_rings(const shm_link *self)
{
    ring_words *memory = self->in.shared < self->out.shared ? self->in.shared : self->out.shared;
    if (memory != NULL) {
        (void)dd_sys_munmap(memory, memory_nbytes(self->in.size));
    }
}

static void
shm_destroy(dd_link *link)
{
    shm_link *self = (shm_link *)link;
    bool is_forked = link->generation != dd_fork_generation();
    /* In a forked child, the descriptor is closed and the rings are unmapped already, so the number
     * and the addresses may have been reused. */
    if (!is_forked) {
        unmap_rings(self);
        dd_sock_close(self->base.fd);
    }
    dd_mem_free(self);
}

static const dd_link_ops shm_ops = {
    .name = "shared memory",
    .try_send = shm_try_send,
    .has_left = shm_has_left,
    .count_lost = shm_count_lost,
    .try_recv = shm_try_recv,
    .on_event = shm_on_event,
    .fall_asleep = shm_fall_asleep,
    .destroy = shm_destroy,
};

/* ---- the offer: one side sends the rings (a magic number, the size of a ring, the descriptor),
 * and the other side answers with one byte whether it has mapped them */

#define OFFER_BYTES 16
#define OFFER_MAGIC "ddring02"
#define ANSWER_TAKEN 'y'
#define ANSWER_REFUSED 'n'
#define RING_MIN_BYTES ((uint64_t)4096)
#define RING_MAX_BYTES ((uint64_t)1 << 30)

static bool
is_ring_size(uint64_t nbytes)
{
    return nbytes >= RING_MIN_BYTES && nbytes <= RING_MAX_BYTES && (nbytes & (nbytes - 1)) == 0;
}

static dd_status
socket_error(dd_io io, const char *label, dd_error *err)
{
    if (io == DD_IO_CLOSED) {
        return dd_error_set(err, DD_NETWORK, "%s: the peer closed the connection", label);
    }
    return dd_error_set_errno(err, DD_NETWORK, errno, "%s", label);
}

static dd_status
send_offer(int fd, uint64_t size, int ring_fd, dd_error *err)
{
    uint8_t offer[OFFER_BYTES] = OFFER_MAGIC;
    memcpy(offer + 8, &size, sizeof size);
    size_t moved = 0;
    /* The socket has room: these are the first bytes after the handshake. */
    dd_io io = dd_sock_try_send_fd(fd, NULL, offer, sizeof offer, ring_fd, &moved);
    if (io == DD_IO_OK && moved == sizeof offer) {
        return DD_OK;
    }
    return socket_error(io, "cannot send a ring to the peer", err);
}

static dd_status
recv_some(int fd, uint8_t *bytes, size_t nbytes, int *passed_fd, const dd_wait *wait, dd_error *err)
{
    for (size_t done = 0; done < nbytes;) {
        size_t moved = 0;
        int new_fd = -1;
        dd_io io = dd_sock_try_recv_fd(fd, bytes + done, nbytes - done, &new_fd, NULL, &moved);
        if (io == DD_IO_OK) {
            done += moved;
            if (new_fd != -1) {
                dd_sock_close(*passed_fd);
                *passed_fd = new_fd;
            }
        } else if (io == DD_IO_AGAIN) {
            dd_status status = dd_sock_wait(fd, POLLIN, wait, err);
            if (status != DD_OK) {
                dd_error_prepend(err, "waiting for the peer's reply about shared memory");
                return status;
            }
        } else {
            return socket_error(io, "cannot receive the peer's shared memory", err);
        }
    }
    return DD_OK;
}

static dd_status
take_rings(shm_link *self, size_t size, int ring_fd, dd_error *err)
{
    size_t nbytes = 0;
    dd_status status = dd_shared_memory_measure(ring_fd, &nbytes, err);
    if (status == DD_SYSTEM) {
        return status;
    }
    return status == DD_OK && nbytes == memory_nbytes(size)
               ? map_rings(self, size, ring_fd, false, err)
               : dd_error_set(err, DD_PROTOCOL, "descriptor %d is not sealed shared memory of %zu bytes",
                              ring_fd, size);
}

static dd_status
recv_offer(shm_link *self, int fd, const dd_wait *wait, dd_error *err)
{
    uint8_t offer[OFFER_BYTES];
    int ring_fd = -1;
    dd_status status = recv_some(fd, offer, sizeof offer, &ring_fd, wait, err);
    if (status == DD_OK) {
        uint64_t size;
        memcpy(&size, offer + 8, sizeof size);
        if (memcmp(offer, OFFER_MAGIC, 8) != 0 || !is_ring_size(size)) {
            status = dd_error_set(err, DD_PROTOCOL, "malformed offer of shared memory by the peer");
        } else if (ring_fd == DD_SOCK_FD_REFUSED) {
            status = dd_error_set_errno(err, DD_SYSTEM, EMFILE, "cannot receive the peer's shared memory");
        } else {
            status = take_rings(self, (size_t)size, ring_fd, err);
        }
    }
    dd_sock_close(ring_fd);
    return status;
}

static dd_status
send_answer(int fd, uint8_t answer, dd_error *err)
{
    size_t moved = 0;
    dd_io io = dd_sock_try_send(fd, &answer, 1, &moved);
    return io == DD_IO_OK ? DD_OK : socket_error(io, "cannot confirm the peer's ring", err);
}

dd_status
dd_link_receive_taken(const dd_link *link, const dd_wait *wait, dd_error *err)
{
    uint8_t answer = 0;
    int unwanted_fd = -1;
    dd_status status = recv_some(link->fd, &answer, 1, &unwanted_fd, wait, err);
    dd_sock_close(unwanted_fd);
    if (status == DD_OK && (answer != ANSWER_TAKEN || unwanted_fd != -1)) {
        status = dd_error_set(err, DD_NETWORK, "the peer could not map this process's shared memory");
    }
    return status;
}

static shm_link *
create_link(void)
{
    shm_link *self = dd_mem_zalloc(sizeof *self);
    if (self != NULL) {
        self->base = (dd_link){
            .ops = &shm_ops, .fd = -1, .is_shared_memory = true, .generation = dd_fork_generation()};
    }
    return self;
}

static dd_status
finish(shm_link *self, int socket_fd, dd_status status, dd_link **link)
{
    if (status != DD_OK) {
        shm_destroy(&self->base);
        return status;
    }
    self->base.fd = socket_fd;
    *link = &self->base;
    return DD_OK;
}

dd_status
dd_link_offer_shm(int socket_fd, size_t ring_nbytes, dd_link **link, dd_error *err)
{
    if (!is_ring_size(ring_nbytes)) {
        return dd_error_set(err, DD_INVALID_ARGUMENT,
                            "invalid ring size: got %zu bytes, expected a power of two from 4096 to 2^30",
                            ring_nbytes);
    }
    shm_link *self = create_link();
    if (self == NULL) {
        return dd_error_no_memory(err, sizeof *self);
    }
    int ring_fd = -1;
    dd_status status = dd_shared_memory_create("dldist-ring", memory_nbytes(ring_nbytes), &ring_fd, err);
    if (status == DD_OK) {
        status = map_rings(self, ring_nbytes, ring_fd, true, err);
        if (status == DD_OK) {
            status = send_offer(socket_fd, ring_nbytes, ring_fd, err);
        }
        dd_sock_close(ring_fd);
    } else {
        dd_error_prepend(err, "cannot create %zu bytes of shared memory for a connection", ring_nbytes);
    }
    return finish(self, socket_fd, status, link);
}

dd_status
dd_link_take_shm(int socket_fd, dd_link **link, const dd_wait *wait, dd_error *err)
{
    shm_link *self = create_link();
    if (self == NULL) {
        return dd_error_no_memory(err, sizeof *self);
    }
    dd_status status = recv_offer(self, socket_fd, wait, err);
    if (status == DD_OK) {
        status = send_answer(socket_fd, ANSWER_TAKEN, err);
    } else {
        (void)!send_answer(socket_fd, ANSWER_REFUSED, NULL);
    }
    return finish(self, socket_fd, status, link);
}
