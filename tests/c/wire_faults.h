/* Change the bytes that this process sends over TCP, once, unnoticed by the sender. */
#ifndef DD_TESTS_WIRE_FAULTS_H
#define DD_TESTS_WIRE_FAULTS_H

#include "core/status.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

typedef enum mischief_kind {
    MISCHIEF_FLIP,   /* one bit is flipped */
    MISCHIEF_DROP,   /* the rest of this send is lost */
    MISCHIEF_REPEAT, /* this send arrives twice */
    MISCHIEF_INSERT, /* a few foreign bytes precede it */
    MISCHIEF_CUT,    /* the stream ends */
    MISCHIEF_COUNT,
} mischief_kind;

/* Inject one fault when byte number `after` from now is sent over TCP. `bit` selects the bit to
 * flip, or the bytes to insert. */
void mischief_arm(mischief_kind kind, size_t after, unsigned bit);
/* Disable the fault. Return true if it was injected; *nbytes receives the number of bytes sent
 * since mischief_arm. */
bool mischief_disarm(size_t *nbytes);

/* The results of one run of a program, which may have threads. */
typedef struct mischief_outcome {
    atomic_int nfailed;  /* failed calls */
    atomic_int nunnamed; /* failed calls whose errors do not name the connection */
    atomic_int nwrong;   /* wrong values without an error */
    atomic_int nlate;    /* programs that far exceeded their time limit */
    char unnamed[256];   /* one of the unnamed errors */
} mischief_outcome;

typedef void mischief_program(mischief_outcome *out);

void mischief_note_error(mischief_outcome *out, const dd_error *err, bool is_named);
void mischief_add_outcome(mischief_outcome *sum, const mischief_outcome *part);

/* Run without faults; no call may fail. Return the number of bytes sent over TCP. */
size_t mischief_run_unharmed(mischief_program *run);

/* Run the program `usual_count` times, each with a fault of this kind at another random byte of all
 * that it sends, half of them early, during handshakes, and check the results.
 * DLDIST_TEST_MISCHIEFS overrides the count, DLDIST_TEST_SEED the positions. */
void mischief_check(mischief_program *run, mischief_kind kind, unsigned usual_count);

/* Define a test for each kind of fault. */
#define MISCHIEF_TESTS(run, usual_count)                   \
    TEST(a_bit_is_flipped)                                 \
    {                                                      \
        mischief_check(run, MISCHIEF_FLIP, usual_count);   \
    }                                                      \
    TEST(bytes_are_dropped)                                \
    {                                                      \
        mischief_check(run, MISCHIEF_DROP, usual_count);   \
    }                                                      \
    TEST(bytes_are_repeated)                               \
    {                                                      \
        mischief_check(run, MISCHIEF_REPEAT, usual_count); \
    }                                                      \
    TEST(bytes_are_inserted)                               \
    {                                                      \
        mischief_check(run, MISCHIEF_INSERT, usual_count); \
    }                                                      \
    TEST(the_stream_is_cut)                                \
    {                                                      \
        mischief_check(run, MISCHIEF_CUT, usual_count);    \
    }

#endif
