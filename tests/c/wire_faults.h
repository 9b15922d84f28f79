/* Change the bytes that this process sends over TCP, once, unnoticed by the sender. */
#ifndef DD_TESTS_WIRE_FAULTS_H
#define DD_TESTS_WIRE_FAULTS_H

#include "core/status.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

typedef enum wire_fault_kind {
    WIRE_FAULT_FLIP,   /* one bit is flipped */
    WIRE_FAULT_DROP,   /* the rest of this send is lost */
    WIRE_FAULT_REPEAT, /* this send arrives twice */
    WIRE_FAULT_INSERT, /* a few foreign bytes precede it */
    WIRE_FAULT_CUT,    /* the stream ends */
    WIRE_FAULT_COUNT,
} wire_fault_kind;

/* Inject one fault when byte number `after` from now is sent over TCP. `bit` selects the bit to
 * flip, or the bytes to insert. */
void wire_fault_arm(wire_fault_kind kind, size_t after, unsigned bit);
/* Disable the fault. Return true if it was injected; *nbytes receives the number of bytes sent
 * since wire_fault_arm. */
bool wire_fault_disarm(size_t *nbytes);

/* The results of one run of a program, which may have threads. */
typedef struct wire_fault_outcome {
    atomic_int nfailed;  /* failed calls */
    atomic_int nunnamed; /* failed calls whose errors do not name the connection */
    atomic_int nwrong;   /* wrong values without an error */
    atomic_int nlate;    /* programs that far exceeded their time limit */
    char unnamed[256];   /* one of the unnamed errors */
} wire_fault_outcome;

typedef void wire_fault_program(wire_fault_outcome *out);

void wire_fault_note_error(wire_fault_outcome *out, const dd_error *err, bool is_named);
void wire_fault_add_outcome(wire_fault_outcome *sum, const wire_fault_outcome *part);

/* Run without faults; no call may fail. Return the number of bytes sent over TCP. */
size_t wire_fault_run_without(wire_fault_program *run);

/* Run the program `usual_count` times, each with a fault of this kind at another random byte of all
 * that it sends, half of them early, during handshakes, and check the results.
 * DLDIST_TEST_WIRE_FAULTS overrides the count, DLDIST_TEST_SEED the positions. */
void wire_fault_check(wire_fault_program *run, wire_fault_kind kind, unsigned usual_count);

/* Define a test for each kind of fault. */
#define WIRE_FAULT_TESTS(run, usual_count)                               \
    TEST(a_flipped_bit_on_the_wire_gives_an_error_or_the_correct_result) \
    {                                                                    \
        wire_fault_check(run, WIRE_FAULT_FLIP, usual_count);             \
    }                                                                    \
    TEST(bytes_lost_on_the_wire_give_an_error_or_the_correct_result)     \
    {                                                                    \
        wire_fault_check(run, WIRE_FAULT_DROP, usual_count);             \
    }                                                                    \
    TEST(bytes_repeated_on_the_wire_give_an_error_or_the_correct_result) \
    {                                                                    \
        wire_fault_check(run, WIRE_FAULT_REPEAT, usual_count);           \
    }                                                                    \
    TEST(bytes_inserted_on_the_wire_give_an_error_or_the_correct_result) \
    {                                                                    \
        wire_fault_check(run, WIRE_FAULT_INSERT, usual_count);           \
    }                                                                    \
    TEST(a_cut_connection_gives_an_error_or_the_correct_result)          \
    {                                                                    \
        wire_fault_check(run, WIRE_FAULT_CUT, usual_count);              \
    }

#endif
