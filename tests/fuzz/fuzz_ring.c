/* A malicious peer of a link through shared memory: its offers, its answers to offers, and its
 * writes to the rings and to their socket.
 *
 * The rings are filled with a pattern, which reveals accesses outside the current position. */
#include "core/fork.h"
#include "core/shared_memory.h"
#include "fuzz.h"
#include "transport/link.h"

#include <fcntl.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#define MAX_INPUT_BYTES 1024u
#define RING_NBYTES ((size_t)4096)
#define HEADER_NBYTES ((size_t)4096)
#define MEMORY_NBYTES (2 * (HEADER_NBYTES + RING_NBYTES))

/* The first byte of the input. */
enum input_kind {
    INPUT_OFFER,  /* receive an offer */
    INPUT_ANSWER, /* receive an answer to an offer */
    INPUT_RINGS,
    INPUT_COUNT,
};

/* The low bits of a step's first byte. */
enum step {
    STEP_HEAD,   /* the peer writes a word of a ring's head */
    STEP_SOCKET, /* the peer writes bytes to the socket */
    STEP_CLOSE,  /* the peer closes the socket */
    STEP_TAKE,   /* the peer reads from the socket */
    STEP_SEND,   /* write */
    STEP_RECV,   /* read */
    STEP_EVENT,  /* poll the socket */
    STEP_SLEEP,  /* go to sleep */
    STEP_COUNT,
};

/* The offsets of the words of a head (ring_words in link_shm.c). */
static const size_t word_offsets[] = {0, 8, 64, 128, 132};

static void
make_pair(int ends[2])
{
    require(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) == 0);
    (void)dd_fork_register(ends[0]);
}

/* ---- link creation */

/* Create a descriptor that may be the memory of a ring; -1 for none. */
static int
make_descriptor(unsigned kind, size_t nbytes)
{
    static const int seals[] = {F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL,
                                F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL | F_SEAL_WRITE, F_SEAL_SHRINK, 0};
    if (kind % 8 == 7) {
        return -1;
    }
    if (kind % 8 == 6) {
        return eventfd(0, EFD_CLOEXEC);
    }
    int fd = memfd_create("fuzz_ring", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    require(fd >= 0 && ftruncate(fd, (off_t)nbytes) == 0 && fcntl(fd, F_ADD_SEALS, seals[kind % 4]) == 0);
    return fd;
}

static void
send_with_descriptor(int fd, dd_bytes bytes, int passed)
{
    size_t moved;
    if (bytes.len > 0 && passed >= 0) {
        (void)dd_sock_try_send_fd(fd, NULL, bytes.data, bytes.len, passed, &moved);
    } else if (bytes.len > 0) {
        (void)!send(fd, bytes.data, bytes.len, MSG_NOSIGNAL);
    }
}

static void
take_offer(dd_bytes input)
{
    int ends[2];
    dd_link *link = NULL;
    dd_error err;
    make_pair(ends);
    while (input.len > 0) {
        unsigned kind = take_byte(&input);
        size_t nbytes = (size_t)take_number(&input, 3) % (1 << 20);
        int passed = make_descriptor(kind, (kind & 0x10) != 0 ? MEMORY_NBYTES : nbytes);
        uint8_t good[16] = "ddring02";
        dd_put_number(good + 8, (kind & 0x10) != 0 ? RING_NBYTES : nbytes, 8);
        dd_bytes bytes =
            (kind & 0x20) != 0 ? dd_bytes_of(good, sizeof good) : take_bytes(&input, kind >> 3 & 15);
        send_with_descriptor(ends[1], bytes, passed);
        if (passed >= 0) {
            close(passed);
        }
    }
    (void)shutdown(ends[1], SHUT_WR);
    dd_wait wait = dd_wait_after(DD_NS_PER_S);
    if (dd_link_take_shm(ends[0], &link, &wait, &err) == DD_OK) {
        uint8_t byte;
        size_t moved;
        require(link->ops->try_recv(link, &byte, 1, &moved) == DD_IO_AGAIN);
        dd_link_close(link);
    } else {
        require(err.code != DD_NETWORK_TIMED_OUT && err.message[0] != '\0');
        dd_sock_close(ends[0]);
    }
    close(ends[1]);
}

static void
receive_answer(dd_bytes input)
{
    int ends[2];
    dd_link *link = NULL;
    dd_error err;
    make_pair(ends);
    require(dd_link_offer_shm(ends[0], RING_NBYTES, &link, NULL) == DD_OK);
    int passed = make_descriptor(take_byte(&input), 16);
    bool is_good = passed == -1 && input.len > 0 && input.data[0] == 'y';
    send_with_descriptor(ends[1], input, passed);
    (void)shutdown(ends[1], SHUT_WR);
    dd_wait wait = dd_wait_after(DD_NS_PER_S);
    require((dd_link_receive_taken(link, &wait, &err) == DD_OK) == is_good);
    if (passed >= 0) {
        close(passed);
    }
    dd_link_close(link);
    close(ends[1]);
}

/* ---- existing rings */

typedef struct rings {
    dd_link *link;
    int fd; /* the peer's end of the socket */
    uint8_t *memory;
    uint64_t nread, nwritten; /* by this side */
    bool has_failed;
    bool is_closed;
} rings;

static uint8_t *
head_of(const rings *self, bool is_out)
{
    return self->memory + (is_out ? HEADER_NBYTES + RING_NBYTES : 0);
}

static uint8_t
pattern_at(uint64_t position)
{
    return (uint8_t)(position % RING_NBYTES * 7 + 1);
}

static void
open_rings(rings *self)
{
    int ends[2];
    uint8_t offer[16];
    size_t moved = 0;
    int memory = -1;
    make_pair(ends);
    *self = (rings){.fd = ends[1]};
    require(dd_link_offer_shm(ends[0], RING_NBYTES, &self->link, NULL) == DD_OK);
    require(dd_sock_try_recv_fd(ends[1], offer, sizeof offer, &memory, NULL, &moved) == DD_IO_OK &&
            moved == sizeof offer);
    self->memory = mmap(NULL, MEMORY_NBYTES, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
    dd_sock_close(memory);
    require(self->memory != MAP_FAILED);
    for (uint64_t i = 0; i < RING_NBYTES; i++) {
        head_of(self, false)[HEADER_NBYTES + i] = pattern_at(i);
        head_of(self, true)[HEADER_NBYTES + i] = 0;
    }
}

static void
close_rings(rings *self)
{
    dd_link_close(self->link);
    munmap(self->memory, MEMORY_NBYTES);
    if (!self->is_closed) {
        close(self->fd);
    }
}

/* Check the result of a poll: a failed link must stay failed. */
static void
note(rings *self, dd_io io)
{
    require(!self->has_failed || io == DD_IO_FAILED);
    self->has_failed = io == DD_IO_FAILED;
}

/* Write a value near this side's position, or any value. */
static void
write_word(rings *self, dd_bytes *input)
{
    unsigned which = take_byte(input);
    unsigned how = take_byte(input);
    bool is_out = (which & 0x80) != 0;
    size_t offset = word_offsets[which % 5];
    uint64_t base = (how & 3) == 0 ? 0 : is_out ? self->nwritten : self->nread;
    uint64_t value = base + ((how & 1) != 0 ? take_number(input, 2) : -take_number(input, 2));
    value = (how & 4) != 0 ? take_number(input, 8) : value;
    memcpy(head_of(self, is_out) + offset, &value, offset % 8 == 0 && offset != 8 && offset != 128 ? 8 : 4);
}

static void
send_some(rings *self, size_t nbytes)
{
    static uint8_t data[2][2 * RING_NBYTES];
    size_t moved = 0;
    if (nbytes == 0) {
        return;
    }
    for (size_t i = 0; i < nbytes; i++) {
        data[0][i] = pattern_at(self->nwritten + i);
    }
    memcpy(data[1], data[0] + nbytes / 2, nbytes - nbytes / 2);
    const struct iovec parts[2] = {{data[0], nbytes / 2}, {data[1], nbytes - nbytes / 2}};
    dd_io io = self->link->ops->try_send(self->link, parts, 2, &moved);
    if (io != DD_IO_CLOSED) {
        note(self, io);
    }
    if (io != DD_IO_OK) {
        return;
    }
    require(moved > 0 && moved <= nbytes && moved <= RING_NBYTES);
    self->nwritten += moved;
    const uint8_t *out = head_of(self, true) + HEADER_NBYTES;
    for (uint64_t i = 0; i < RING_NBYTES; i++) {
        require(out[i] == (i < self->nwritten ? pattern_at(i) : 0));
    }
}

static void
recv_some(rings *self, size_t nbytes)
{
    size_t moved = 0;
    uint8_t *data = malloc(nbytes);
    dd_io io = self->link->ops->try_recv(self->link, data, nbytes, &moved);
    if (io != DD_IO_CLOSED) {
        note(self, io);
    }
    if (io == DD_IO_OK) {
        require(moved <= nbytes && moved >= (nbytes > 0));
        for (size_t i = 0; i < moved; i++) {
            require(data[i] == pattern_at(self->nread + i));
        }
        self->nread += moved;
    }
    free(data);
}

static void
take_step(rings *self, unsigned step, dd_bytes *input)
{
    static uint8_t taken[4096];
    const struct dd_link_ops *ops = self->link->ops;
    dd_bytes bytes;
    dd_io io;
    switch ((enum step)step) {
    case STEP_HEAD:
        write_word(self, input);
        break;
    case STEP_SOCKET:
        bytes = take_bytes(input, take_byte(input) % 32);
        if (!self->is_closed) {
            (void)!send(self->fd, bytes.data, bytes.len, MSG_NOSIGNAL);
        }
        break;
    case STEP_CLOSE:
        if (!self->is_closed) {
            close(self->fd);
            self->is_closed = true;
        }
        break;
    case STEP_TAKE:
        if (!self->is_closed) {
            (void)!recv(self->fd, taken, sizeof taken, 0);
        }
        break;
    case STEP_SEND:
        send_some(self, (size_t)take_number(input, 2) % (2 * RING_NBYTES));
        break;
    case STEP_RECV:
        recv_some(self, (size_t)take_number(input, 2) % (2 * RING_NBYTES));
        break;
    case STEP_EVENT:
        io = ops->on_event(self->link);
        if (io != DD_IO_CLOSED) {
            note(self, io);
        }
        break;
    case STEP_SLEEP:
    case STEP_COUNT:
        (void)ops->fall_asleep(self->link, take_byte(input) & 1);
    }
}

static void
use_rings(dd_bytes input)
{
    rings self;
    open_rings(&self);
    while (input.len > 0) {
        take_step(&self, take_byte(&input) % STEP_COUNT, &input);
    }
    close_rings(&self);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size > MAX_INPUT_BYTES || size == 0) {
        return -1;
    }
    dd_bytes input = dd_bytes_of(data, size);
    int before = next_descriptor();
    unsigned kind = take_byte(&input);
    if (kind % 8 == INPUT_OFFER) {
        take_offer(input);
    } else if (kind % 8 == INPUT_ANSWER) {
        receive_answer(input);
    } else {
        use_rings(input);
    }
    require(next_descriptor() == before);
    return 0;
}
