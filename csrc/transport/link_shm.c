#include "transport/link.h"

#include "core/fork.h"
#include "core/mem.h"
#include "kernels/copy.h"
#include "net/ring.h"

#include <errno.h>
#include <poll.h>
#include <string.h>

/* Over the Unix socket travel, once the rings are there, bells alone: a byte, and any number of them is as good as one. */
#define BELL 'b'

/* This far a copy goes before the other side is told, so that both copy at the same time. */
#define PUBLISH_BYTES ((size_t)32768)

/* What on_event reads at a time. */
#define SOCKET_BATCH 256

typedef struct shm_link {
    dd_link base;
    dd_ring in;
    dd_ring out;
    uint64_t generation;
    bool is_ended;  /* the socket's end was seen: what is in the ring by then is the rest */
    bool is_broken; /* the peer makes no sense, or the socket failed */
    int sys_errno;  /* of the failure */
} shm_link;

static dd_io
fail(shm_link *self, int sys_errno)
{
    if (!self->is_broken) {
        self->is_broken = true;
        self->sys_errno = sys_errno;
    }
    errno = self->sys_errno;
    return DD_IO_FAILED;
}

static size_t
smaller(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* ---- the socket */

/* A full socket has something to read in it, which wakes the peer as well as a bell. The end of the stream shows on the way in,
 * where what was sent before it is still there to be read. */
static void
send_bell(shm_link *self)
{
    const uint8_t bell = BELL;
    size_t moved = 0;
    if (dd_sock_try_send(self->base.fd, &bell, 1, &moved) == DD_IO_FAILED) {
        (void)fail(self, errno);
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

static bool
is_drained(shm_link *self)
{
    const uint8_t *run;
    size_t len = 0;
    return !dd_ring_filled_run(&self->in, &run, &len) || len == 0;
}

static dd_io
note_end(shm_link *self)
{
    if (!self->is_ended) {
        self->is_ended = true;
        /* Whoever has the memory can write on; the connection is what makes him the peer. */
        if (!dd_ring_limit(&self->in)) {
            return fail(self, EPROTO);
        }
    }
    return is_drained(self) ? DD_IO_CLOSED : DD_IO_OK;
}

static dd_io
shm_on_event(dd_link *link)
{
    shm_link *self = (shm_link *)link;
    dd_ring_wake_up(&self->in);
    dd_io io = self->is_broken ? fail(self, 0) : DD_IO_OK;
    while (io == DD_IO_OK && !self->is_ended) {
        io = read_socket(self);
    }
    if (io == DD_IO_FAILED) {
        return fail(self, errno);
    }
    return self->is_ended || io == DD_IO_CLOSED ? note_end(self) : DD_IO_OK;
}

/* ---- the rings */

/* Copies as much of one part as there is room for. `unpublished` counts what the reader cannot see yet. */
static bool
write_part(shm_link *self, const uint8_t *data, size_t nbytes, size_t *unpublished, size_t *written)
{
    *written = 0;
    while (*written < nbytes) {
        uint8_t *run;
        size_t room = 0;
        if (!dd_ring_free_run(&self->out, &run, &room)) {
            return false;
        }
        if (room == 0) {
            return true;
        }
        size_t step = smaller(smaller(nbytes - *written, room), PUBLISH_BYTES - *unpublished);
        dd_copy(run, data + *written, step);
        dd_ring_advance(&self->out, step);
        *written += step;
        *unpublished += step;
        if (*unpublished == PUBLISH_BYTES) {
            dd_ring_publish(&self->out);
            *unpublished = 0;
            if (dd_ring_is_bell_due(&self->out)) {
                send_bell(self);
            }
        }
    }
    return true;
}

static dd_io
shm_try_send(dd_link *link, const struct iovec *parts, int nparts, size_t *moved)
{
    shm_link *self = (shm_link *)link;
    if (self->is_broken || self->is_ended) {
        return self->is_broken ? fail(self, 0) : DD_IO_CLOSED;
    }
    size_t total = 0;
    size_t unpublished = 0;
    /* Not more than a ring at a time: with a reader that keeps pace there is always room, and the owner
     * has others to look after. */
    for (int i = 0; i < nparts && total < self->out.size; i++) {
        size_t written = 0;
        size_t nbytes = smaller(parts[i].iov_len, self->out.size - total);
        if (!write_part(self, parts[i].iov_base, nbytes, &unpublished, &written)) {
            return fail(self, EPROTO);
        }
        total += written;
        if (written < parts[i].iov_len) {
            break;
        }
    }
    if (unpublished > 0) {
        dd_ring_publish(&self->out);
        if (dd_ring_is_bell_due(&self->out)) {
            send_bell(self);
        }
    }
    if (total == 0) {
        return DD_IO_AGAIN;
    }
    *moved = total;
    return DD_IO_OK;
}

/* The ring outlives the process that has written to it. */
static size_t
shm_count_lost(dd_link *link, unsigned *nresends)
{
    (void)link;
    *nresends = 0;
    return 0;
}

static bool
shm_is_held_back(dd_link *link)
{
    (void)link;
    return false;
}

static void
release_room(shm_link *self, bool is_sure)
{
    if (dd_ring_is_room_bell_due(&self->in, is_sure)) {
        send_bell(self);
    }
}

static dd_io
shm_try_recv(dd_link *link, void *data, size_t nbytes, size_t *moved)
{
    shm_link *self = (shm_link *)link;
    if (self->is_broken) {
        return fail(self, 0);
    }
    dd_ring_wake_up(&self->in);
    size_t total = 0;
    while (total < nbytes) {
        const uint8_t *run;
        size_t count = 0;
        if (!dd_ring_filled_run(&self->in, &run, &count)) {
            return fail(self, EPROTO);
        }
        if (count == 0) {
            break;
        }
        size_t step = smaller(smaller(nbytes - total, count), PUBLISH_BYTES);
        dd_copy((uint8_t *)data + total, run, step);
        dd_ring_advance(&self->in, step);
        dd_ring_release(&self->in);
        total += step;
        release_room(self, false);
    }
    if (total > 0 || nbytes == 0) {
        *moved = total;
        return DD_IO_OK;
    }
    release_room(self, true);
    return self->is_ended ? DD_IO_CLOSED : DD_IO_AGAIN;
}

static bool
shm_fall_asleep(dd_link *link, bool wants_room)
{
    shm_link *self = (shm_link *)link;
    if (self->is_broken || self->is_ended || !dd_ring_fall_asleep(&self->in)) {
        return false;
    }
    /* All is read, but the last of it perhaps only a moment ago. */
    release_room(self, true);
    return !wants_room || dd_ring_wait_for_room(&self->out);
}

/* ---- life */

static void
shm_destroy(dd_link *link)
{
    shm_link *self = (shm_link *)link;
    bool is_forked = self->generation != dd_fork_generation();
    /* In a child the descriptors are closed and the rings not mapped; what is there now in their places is
     * others'. */
    if (!is_forked) {
        dd_ring_close(&self->in);
        dd_ring_close(&self->out);
        dd_sock_close(self->base.fd);
    }
    dd_mem_free(self);
}

static const dd_link_ops shm_ops = {
    .name = "shared memory",
    .try_send = shm_try_send,
    .is_held_back = shm_is_held_back,
    .count_lost = shm_count_lost,
    .try_recv = shm_try_recv,
    .on_event = shm_on_event,
    .fall_asleep = shm_fall_asleep,
    .destroy = shm_destroy,
};

/* ---- opening: one side offers the rings (a magic number, the size of each, the descriptor), and the other
 * tells, by one byte, whether it could take them */

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
socket_error(dd_io io, const char *what, dd_error *err)
{
    if (io == DD_IO_CLOSED) {
        return dd_error_set(err, DD_NETWORK, "%s: the peer closed the connection", what);
    }
    return dd_error_set_errno(err, DD_NETWORK, errno, "%s", what);
}

static dd_status
send_offer(int fd, uint64_t size, int ring_fd, dd_error *err)
{
    uint8_t offer[OFFER_BYTES] = OFFER_MAGIC;
    memcpy(offer + 8, &size, sizeof size);
    size_t moved = 0;
    /* The first bytes on this socket after the hand-shake: there is room for them. */
    dd_io io = dd_sock_try_send_fd(fd, offer, sizeof offer, ring_fd, &moved);
    if (io == DD_IO_OK && moved == sizeof offer) {
        return DD_OK;
    }
    return socket_error(io, "cannot pass a ring", err);
}

static dd_status
recv_some(int fd, uint8_t *bytes, size_t nbytes, int *passed_fd, const dd_wait *wait, dd_error *err)
{
    for (size_t done = 0; done < nbytes;) {
        size_t moved = 0;
        int new_fd = -1;
        dd_io io = dd_sock_try_recv_fd(fd, bytes + done, nbytes - done, &new_fd, &moved);
        if (io == DD_IO_OK) {
            done += moved;
            if (new_fd != -1) {
                dd_sock_close(*passed_fd);
                *passed_fd = new_fd;
            }
        } else if (io == DD_IO_AGAIN) {
            dd_status status = dd_sock_wait(fd, POLLIN, wait, err);
            if (status != DD_OK) {
                dd_error_prepend(err, "waiting for the peer's part in shared memory");
                return status;
            }
        } else {
            return socket_error(io, "cannot receive a ring", err);
        }
    }
    return DD_OK;
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
            status = dd_error_set(err, DD_PROTOCOL, "the peer offered something that is no ring");
        } else if (ring_fd == DD_SOCK_FD_REFUSED) {
            status = dd_error_set_errno(err, DD_SYSTEM, EMFILE, "cannot take the memory of the link");
        } else {
            status = dd_ring_attach_two(&self->in, &self->out, (size_t)size, ring_fd, err);
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
    return io == DD_IO_OK ? DD_OK : socket_error(io, "cannot answer about a ring", err);
}

dd_status
dd_link_hear_taken(const dd_link *link, const dd_wait *wait, dd_error *err)
{
    uint8_t answer = 0;
    int unwanted_fd = -1;
    dd_status status = recv_some(link->fd, &answer, 1, &unwanted_fd, wait, err);
    dd_sock_close(unwanted_fd);
    if (status == DD_OK && (answer != ANSWER_TAKEN || unwanted_fd != -1)) {
        status = dd_error_set(err, DD_NETWORK, "the peer could not take the rings of this side");
    }
    return status;
}

static shm_link *
create_link(void)
{
    shm_link *self = dd_mem_zalloc(sizeof *self);
    if (self != NULL) {
        self->base = (dd_link){.ops = &shm_ops, .fd = -1, .is_shared_memory = true};
        self->generation = dd_fork_generation();
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
                            "a ring of %zu bytes: wanted is a power of two, 4096 bytes to 1 GiB",
                            ring_nbytes);
    }
    shm_link *self = create_link();
    if (self == NULL) {
        return dd_error_no_memory(err, sizeof *self);
    }
    int ring_fd = -1;
    dd_status status = dd_ring_create_two(&self->in, &self->out, ring_nbytes, &ring_fd, err);
    if (status == DD_OK) {
        status = send_offer(socket_fd, ring_nbytes, ring_fd, err);
        dd_sock_close(ring_fd);
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
