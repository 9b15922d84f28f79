#include "nccl_stub_wire.h"

#include "stub_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define RING_NBYTES 65536u
/* Check the abort flag at least this often, although wire_wake should make it unnecessary. */
#define SLICE_NS 5000000

typedef struct stub_ring {
    _Atomic uint64_t nwritten;
    char apart[56];
    _Atomic uint64_t nread;
    char apart_too[56];
    unsigned char bytes[RING_NBYTES];
} stub_ring;

typedef struct exchange_slot {
    _Atomic uint64_t turn;
    unsigned char payload[WIRE_PAYLOAD_MAX];
} exchange_slot;

typedef struct signal_count {
    _Atomic uint64_t nsent;
    _Atomic uint64_t ntaken;
} signal_count;

typedef struct seat {
    atomic_uint doorbell;
    atomic_bool is_here;
    wire_card card;
    /* Two slots, because a rank may be one exchange ahead of another that is still reading. */
    exchange_slot slots[2];
    signal_count signals[WIRE_MAX_RANKS][WIRE_MAX_SIGNALS]; /* to this rank: [source][index] */
} seat;

typedef struct shared {
    atomic_int nhere;
    seat seats[WIRE_MAX_RANKS];
    stub_ring rings[]; /* [from][to][lane] */
} shared;

struct stub_wire {
    int nranks;
    int rank;
    uint64_t turn; /* of exchanges */
    size_t nbytes;
    shared *shared;
};

typedef struct stub_header {
    uint64_t tag;
    uint64_t nbytes;
} stub_header;

static stub_ring *
ring_of(const stub_wire *wire, int from, int to, wire_lane lane)
{
    return &wire->shared->rings[(from * wire->nranks + to) * WIRE_LANES + (int)lane];
}

/* ---- doorbells */

static void
ring_doorbell(stub_wire *wire, int rank)
{
    atomic_uint *doorbell = &wire->shared->seats[rank].doorbell;
    atomic_fetch_add(doorbell, 1);
    syscall(SYS_futex, doorbell, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

static unsigned
look_at_doorbell(const stub_wire *wire)
{
    return atomic_load(&wire->shared->seats[wire->rank].doorbell);
}

static void
wait_for_doorbell(stub_wire *wire, unsigned seen)
{
    struct timespec slice = {.tv_nsec = SLICE_NS};
    syscall(SYS_futex, &wire->shared->seats[wire->rank].doorbell, FUTEX_WAIT, seen, &slice, NULL, 0);
}

void
wire_wake(stub_wire *wire)
{
    ring_doorbell(wire, wire->rank);
}

wire_result
wire_sleep(const atomic_bool *is_aborted, int ms)
{
    int64_t end_ns = ms < 0 ? INT64_MAX : stub_now_ns() + (int64_t)ms * 1000000;
    while (!atomic_load(is_aborted)) {
        int64_t left_ns = end_ns - stub_now_ns();
        if (left_ns <= 0) {
            return WIRE_OK;
        }
        stub_sleep_ns(left_ns < 2000000 ? left_ns : 2000000);
    }
    return WIRE_ABORTED;
}

/* ---- rendezvous */

static void
path_of(const char *name, char *path, size_t size)
{
    const char *folder = getenv("DLDIST_STUB_DIR");
    snprintf(path, size, "%s/dldist-nccl-stub-%s", folder != NULL ? folder : "/dev/shm", name);
}

static shared *
map_file(const char *path, size_t nbytes)
{
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0) {
        return NULL;
    }
    /* All ranks set the same size. New bytes are zero, which is the initial state of everything. */
    void *memory = ftruncate(fd, (off_t)nbytes) == 0
                       ? mmap(NULL, nbytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0)
                       : MAP_FAILED;
    int failure = errno;
    close(fd);
    if (memory == MAP_FAILED) {
        unlink(path);
        errno = failure;
        return NULL;
    }
    return memory;
}

/* Names of files that are in use for a rendezvous. They are removed when the process exits. */
#define MAX_OPEN 64
static pthread_mutex_t open_lock = PTHREAD_MUTEX_INITIALIZER;
static char open_paths[MAX_OPEN][512];

static int
remember_path(const char *path)
{
    int place = 0;
    pthread_mutex_lock(&open_lock);
    while (place < MAX_OPEN && open_paths[place][0] != '\0') {
        place++;
    }
    if (place < MAX_OPEN) {
        snprintf(open_paths[place], sizeof open_paths[place], "%s", path);
    }
    pthread_mutex_unlock(&open_lock);
    return place;
}

static void
forget_path(int place)
{
    pthread_mutex_lock(&open_lock);
    if (place < MAX_OPEN) {
        open_paths[place][0] = '\0';
    }
    pthread_mutex_unlock(&open_lock);
}

__attribute__((destructor)) static void
unlink_open_paths(void)
{
    for (int place = 0; place < MAX_OPEN; place++) {
        pthread_mutex_lock(&open_lock);
        if (open_paths[place][0] != '\0') {
            unlink(open_paths[place]);
        }
        pthread_mutex_unlock(&open_lock);
    }
}

static bool
wait_for_all(stub_wire *wire, const atomic_bool *is_aborted)
{
    for (;;) {
        unsigned seen = look_at_doorbell(wire);
        if (atomic_load(&wire->shared->nhere) >= wire->nranks) {
            return true;
        }
        if (atomic_load(is_aborted)) {
            return false;
        }
        wait_for_doorbell(wire, seen);
    }
}

wire_result
wire_open(const wire_spec *spec, const atomic_bool *is_aborted, stub_wire **made)
{
    char path[512];
    path_of(spec->name, path, sizeof path);
    stub_wire *wire = stub_zalloc(sizeof *wire);
    wire->nranks = spec->nranks;
    wire->rank = spec->rank;
    wire->nbytes = sizeof(shared) + sizeof(stub_ring) * (size_t)(spec->nranks * spec->nranks * WIRE_LANES);
    int place = remember_path(path); /* before the file exists */
    wire->shared = map_file(path, wire->nbytes);
    if (wire->shared == NULL) {
        forget_path(place);
        free(wire);
        return WIRE_SYSTEM_ERROR;
    }
    seat *own = &wire->shared->seats[spec->rank];
    if (atomic_exchange(&own->is_here, true)) {
        /* The rank number is in use. As in the real library, there is no answer. */
        forget_path(place);
        (void)wire_sleep(is_aborted, -1);
        wire_close(wire);
        return WIRE_ABORTED;
    }
    own->card = spec->card;
    bool is_last = atomic_fetch_add(&wire->shared->nhere, 1) + 1 == spec->nranks;
    for (int rank = 0; is_last && rank < spec->nranks; rank++) {
        ring_doorbell(wire, rank);
    }
    bool is_complete = wait_for_all(wire, is_aborted);
    if (is_last || !is_complete) {
        unlink(path);
    }
    forget_path(place);
    if (!is_complete) {
        wire_close(wire);
        return WIRE_ABORTED;
    }
    *made = wire;
    return WIRE_OK;
}

void
wire_close(stub_wire *wire)
{
    if (wire != NULL) {
        munmap(wire->shared, wire->nbytes);
        free(wire);
    }
}

wire_card
wire_card_of(const stub_wire *wire, int rank)
{
    return wire->shared->seats[rank].card;
}

wire_result
wire_exchange(stub_wire *wire, const wire_exchange_args *args, const atomic_bool *is_aborted)
{
    uint64_t turn = ++wire->turn;
    exchange_slot *own = &wire->shared->seats[wire->rank].slots[turn % 2];
    memcpy(own->payload, args->mine, args->nbytes);
    atomic_store(&own->turn, turn);
    for (int rank = 0; rank < wire->nranks; rank++) {
        ring_doorbell(wire, rank);
    }
    for (int rank = 0; rank < wire->nranks; rank++) {
        exchange_slot *slot = &wire->shared->seats[rank].slots[turn % 2];
        for (;;) {
            unsigned seen = look_at_doorbell(wire);
            if (atomic_load(&slot->turn) >= turn) {
                break;
            }
            if (atomic_load(is_aborted)) {
                return WIRE_ABORTED;
            }
            wait_for_doorbell(wire, seen);
        }
        memcpy((char *)args->all + (size_t)rank * args->nbytes, slot->payload, args->nbytes);
    }
    return WIRE_OK;
}

/* ---- signals */

static signal_count *
signals_of(const stub_wire *wire, int to, int from, int index)
{
    return &wire->shared->seats[to].signals[from][index];
}

/* Wait until between `least` and `most` signals have arrived and have not been taken. */
static wire_result
await_signals(stub_wire *wire, signal_count *count, uint64_t least, uint64_t most,
              const atomic_bool *is_aborted)
{
    for (;;) {
        unsigned seen = look_at_doorbell(wire);
        uint64_t there = atomic_load(&count->nsent) - atomic_load(&count->ntaken);
        if (there >= least && there <= most) {
            return WIRE_OK;
        }
        if (atomic_load(is_aborted)) {
            return WIRE_ABORTED;
        }
        wait_for_doorbell(wire, seen);
    }
}

void
wire_send_signal(stub_wire *wire, wire_signal to)
{
    atomic_fetch_add(&signals_of(wire, to.peer, wire->rank, to.index)->nsent, 1);
    ring_doorbell(wire, to.peer);
}

wire_result
wire_take_signals(stub_wire *wire, wire_signal from, uint64_t n, const atomic_bool *is_aborted)
{
    signal_count *count = signals_of(wire, wire->rank, from.peer, from.index);
    wire_result result = await_signals(wire, count, n, UINT64_MAX, is_aborted);
    if (result == WIRE_OK) {
        atomic_fetch_add(&count->ntaken, n);
        ring_doorbell(wire, from.peer);
    }
    return result;
}

wire_result
wire_await_taken(stub_wire *wire, wire_signal to, const atomic_bool *is_aborted)
{
    return await_signals(wire, signals_of(wire, to.peer, wire->rank, to.index), 0, 0, is_aborted);
}

/* ---- bytes */

static size_t
smaller(size_t a, size_t b)
{
    return a < b ? a : b;
}

static void
ring_write(stub_ring *ring, const void *data, size_t nbytes)
{
    uint64_t at = atomic_load(&ring->nwritten);
    size_t first = smaller(nbytes, RING_NBYTES - (size_t)(at % RING_NBYTES));
    memcpy(ring->bytes + at % RING_NBYTES, data, first);
    memcpy(ring->bytes, (const char *)data + first, nbytes - first);
    atomic_store(&ring->nwritten, at + nbytes);
}

static void
ring_read(stub_ring *ring, void *data, size_t nbytes)
{
    uint64_t at = atomic_load(&ring->nread);
    size_t first = smaller(nbytes, RING_NBYTES - (size_t)(at % RING_NBYTES));
    memcpy(data, ring->bytes + at % RING_NBYTES, first);
    memcpy((char *)data + first, ring->bytes, nbytes - first);
    atomic_store(&ring->nread, at + nbytes);
}

static bool
push_send(stub_wire *wire, wire_transfer *transfer)
{
    stub_ring *ring = ring_of(wire, wire->rank, transfer->peer, transfer->lane);
    size_t room = RING_NBYTES - (size_t)(atomic_load(&ring->nwritten) - atomic_load(&ring->nread));
    if (!transfer->has_header) {
        if (room < sizeof(stub_header)) {
            return false;
        }
        stub_header head = {.tag = transfer->tag, .nbytes = transfer->nbytes};
        ring_write(ring, &head, sizeof head);
        transfer->has_header = true;
        room -= sizeof head;
    } else if (room == 0) {
        return false;
    }
    size_t nbytes = smaller(room, transfer->nbytes - transfer->ndone);
    if (nbytes > 0) {
        ring_write(ring, (const char *)transfer->data + transfer->ndone, nbytes);
        transfer->ndone += nbytes;
    }
    return true;
}

static bool
push_receive(stub_wire *wire, wire_transfer *transfer)
{
    stub_ring *ring = ring_of(wire, transfer->peer, wire->rank, transfer->lane);
    size_t there = (size_t)(atomic_load(&ring->nwritten) - atomic_load(&ring->nread));
    if (transfer->is_stuck || there == 0) {
        return false;
    }
    if (!transfer->has_header) {
        if (there < sizeof(stub_header)) {
            return false;
        }
        stub_header head;
        ring_read(ring, &head, sizeof head);
        there -= sizeof head;
        transfer->has_header = true;
        transfer->is_stuck = head.tag != transfer->tag || head.nbytes != transfer->nbytes;
        if (transfer->is_stuck) {
            return false;
        }
    }
    size_t nbytes = smaller(there, transfer->nbytes - transfer->ndone);
    if (nbytes > 0) {
        ring_read(ring, (char *)transfer->data + transfer->ndone, nbytes);
        transfer->ndone += nbytes;
    }
    return true;
}

static bool
is_done(const wire_transfer *transfer)
{
    return transfer->has_header && !transfer->is_stuck && transfer->ndone == transfer->nbytes;
}

/* Poll all transfers once. Return true if any has moved data. */
static bool
push_all(stub_wire *wire, wire_transfer *transfers, size_t n, size_t *nleft)
{
    bool is_taken[2][WIRE_LANES][WIRE_MAX_RANKS] = {0};
    bool has_moved = false;
    *nleft = 0;
    for (size_t i = 0; i < n; i++) {
        wire_transfer *transfer = &transfers[i];
        bool *taken = &is_taken[transfer->is_send][transfer->lane][transfer->peer];
        if (is_done(transfer)) {
            continue;
        }
        if (!*taken && (transfer->is_send ? push_send : push_receive)(wire, transfer)) {
            has_moved = true;
            ring_doorbell(wire, transfer->peer);
        }
        if (!is_done(transfer)) {
            *taken = true;
            ++*nleft;
        }
    }
    return has_moved;
}

wire_result
wire_carry(stub_wire *wire, wire_transfer *transfers, size_t n, const atomic_bool *is_aborted)
{
    for (;;) {
        unsigned seen = look_at_doorbell(wire);
        if (atomic_load(is_aborted)) {
            return WIRE_ABORTED;
        }
        size_t nleft;
        bool has_moved = push_all(wire, transfers, n, &nleft);
        if (nleft == 0) {
            return WIRE_OK;
        }
        if (!has_moved) {
            wait_for_doorbell(wire, seen);
        }
    }
}
