/* The shared state of the ranks of a communicator: a mapped file with a ring of bytes for each
 * ordered pair of ranks. It is named after the unique id and unlinked once all ranks have mapped
 * it. It replaces the bootstrap and the transports of the real library.
 *
 * A waiting rank sleeps on its doorbell (a futex in the file), which peers ring. An abort of its
 * own communicator also rings it. */
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

/* Data that each rank sends to the other ranks when it joins. */
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
    WIRE_SYSTEM_ERROR, /* errno has the cause */
} wire_result;

/* Wait for all ranks. The file is removed in any case. */
wire_result wire_open(const wire_spec *spec, const atomic_bool *is_aborted, stub_wire **made);
void wire_close(stub_wire *wire); /* accepts NULL */
wire_card wire_card_of(const stub_wire *wire, int rank);
/* Wake waiting threads after is_aborted was set. */
void wire_wake(stub_wire *wire);

/* Every rank passes nbytes <= WIRE_PAYLOAD_MAX and receives the bytes of all ranks, `stride` apart.
 * All ranks must make these calls in the same order. */
typedef struct wire_exchange_args {
    const void *mine;
    size_t nbytes;
    void *all;
} wire_exchange_args;
wire_result wire_exchange(stub_wire *wire, const wire_exchange_args *args, const atomic_bool *is_aborted);

/* Collectives and messages use separate lanes. */
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
    /* must match on both sides, as must nbytes; otherwise the receiver waits forever */
    uint64_t tag;
    void *data; /* sends only read it */
    size_t nbytes;
    /* used by wire_carry */
    bool has_header;
    bool is_stuck;
    size_t ndone;
} wire_transfer;

/* Carry all transfers concurrently. Those with the same direction, lane and two ranks are carried
 * in the given order. */
wire_result wire_carry(stub_wire *wire, wire_transfer *transfers, size_t n, const atomic_bool *is_aborted);

/* Signals to a rank are counted by source rank and index. The receiver takes them. */
typedef struct wire_signal {
    int peer;
    int index; /* less than WIRE_MAX_SIGNALS */
} wire_signal;
void wire_send_signal(stub_wire *wire, wire_signal to);
/* Wait for n signals and take them. */
wire_result wire_take_signals(stub_wire *wire, wire_signal from, uint64_t n, const atomic_bool *is_aborted);
/* Wait until the peer has taken all signals that this rank sent. */
wire_result wire_await_taken(stub_wire *wire, wire_signal to, const atomic_bool *is_aborted);

/* Sleep for ms, or until an abort if ms < 0. Return WIRE_ABORTED after an abort. */
wire_result wire_sleep(const atomic_bool *is_aborted, int ms);

#endif
