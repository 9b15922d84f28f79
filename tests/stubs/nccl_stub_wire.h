/* What the ranks of a communicator have in common: a mapped file with a ring of bytes for each ordered pair of ranks, named after the
 * unique id and unlinked once all ranks have mapped it. A double for what bootstrap and transports of the real library do.
 *
 * Whoever waits sleeps on its rank's doorbell (a futex in the file), which peers ring; its own abort rings it, too. */
#ifndef DD_TESTS_NCCL_STUB_WIRE_H
#define DD_TESTS_NCCL_STUB_WIRE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define WIRE_MAX_RANKS 16
#define WIRE_NAME_MAX 64
#define WIRE_PAYLOAD_MAX 192
#define WIRE_MAX_SIGNALS 16

typedef struct stub_wire stub_wire;

/* What each rank tells the others when it comes. */
typedef struct wire_card {
    int device;
    int version;
    int pid;
    uint64_t encryption;
} wire_card;

typedef struct wire_spec {
    char name[WIRE_NAME_MAX];
    int nranks;
    int rank;
    wire_card card;
} wire_spec;

typedef enum wire_result {
    WIRE_OK,
    WIRE_ABORTED,
    WIRE_SYSTEM_ERROR, /* errno says which */
} wire_result;

/* Waits for all ranks. Whatever the end, no file stays behind. */
wire_result wire_open(const wire_spec *spec, const atomic_bool *is_aborted, stub_wire **made);
void wire_close(stub_wire *wire); /* NULL is fine */
wire_card wire_card_of(const stub_wire *wire, int rank);
/* Somebody has set is_aborted: the waiting look. */
void wire_wake(stub_wire *wire);

/* Every rank gives nbytes <= WIRE_PAYLOAD_MAX and gets those of all, `stride` bytes apart. Calls
 * of all ranks in the same order. */
typedef struct wire_exchange_args {
    const void *mine;
    size_t nbytes;
    void *all;
} wire_exchange_args;
wire_result wire_exchange(stub_wire *wire, const wire_exchange_args *args, const atomic_bool *is_aborted);

/* Collectives and messages do not see each other's bytes. */
typedef enum wire_lane {
    WIRE_COLLECTIVE,
    WIRE_MESSAGE,
    WIRE_SENDER,   /* "I am ready to send to you", once */
    WIRE_RECEIVER, /* "I am ready to receive from you", once */
    WIRE_LANES,
} wire_lane;

typedef struct wire_transfer {
    bool is_send;
    wire_lane lane;
    int peer;
    uint64_t tag; /* both sides' must be the same, as nbytes: else the receiver waits for ever */
    void *data;   /* of sends only read */
    size_t nbytes;
    /* The carrier's: */
    bool has_header;
    bool is_stuck;
    size_t ndone;
} wire_transfer;

/* All at once; those between two ranks of one direction and lane in the order given. */
wire_result wire_carry(stub_wire *wire, wire_transfer *transfers, size_t n, const atomic_bool *is_aborted);

/* Signals to a rank are counted for each rank that sends them and each index, and taken by the receiver. */
typedef struct wire_signal {
    int peer;
    int index; /* below WIRE_MAX_SIGNALS */
} wire_signal;
void wire_send_signal(stub_wire *wire, wire_signal to);
/* Waits for n of them. */
wire_result wire_take_signals(stub_wire *wire, wire_signal from, uint64_t n, const atomic_bool *is_aborted);
/* Waits until the peer has taken all that this rank has sent. */
wire_result wire_await_taken(stub_wire *wire, wire_signal to, const atomic_bool *is_aborted);

/* Sleeps for ms; WIRE_ABORTED as soon as that happens. ms < 0: until then. */
wire_result wire_sleep(const atomic_bool *is_aborted, int ms);

#endif
