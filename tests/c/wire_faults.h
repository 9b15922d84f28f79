/* Somebody on the way: changes what this process sends over TCP, at one place of all its bytes. The sender notices nothing. */
#ifndef DD_TESTS_WIRE_FAULTS_H
#define DD_TESTS_WIRE_FAULTS_H

#include "core/status.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

typedef enum mischief_kind {
    MISCHIEF_FLIP,   /* one bit is another */
    MISCHIEF_DROP,   /* the rest of this send is lost */
    MISCHIEF_REPEAT, /* this send comes twice */
    MISCHIEF_INSERT, /* a few bytes of somebody else's come before it */
    MISCHIEF_CUT,    /* the stream ends */
    MISCHIEF_COUNT,
} mischief_kind;

/* From now on; once, at the byte `after` so many that are sent over TCP. `bit` says which, and what is inserted. */
void mischief_arm(mischief_kind kind, size_t after, unsigned bit);
/* Turns it off. Whether it has been done; *nbytes: how many bytes have been sent meanwhile. */
bool mischief_disarm(size_t *nbytes);

/* What has come of one run of a program, which may have threads. */
typedef struct mischief_outcome {
    atomic_int nfailed;  /* calls that have failed */
    atomic_int nunnamed; /* whose errors do not say between whom it was */
    atomic_int nwrong;   /* values that are wrong, without an error */
    atomic_int nlate;    /* programs that took much longer than they may */
    char unnamed[256];   /* one of these errors */
} mischief_outcome;

typedef void mischief_program(mischief_outcome *out);

void mischief_note_error(mischief_outcome *out, const dd_error *err, bool is_named);
void mischief_add_outcome(mischief_outcome *sum, const mischief_outcome *part);

/* Nothing may fail then. How many bytes it sends over TCP. */
size_t mischief_run_unharmed(mischief_program *run);

/* Runs it `usual_count` times, each with a mischief of this kind at another random place of all that it sends, half of them early, where
 * hand-shakes are, and checks what comes of it. DLDIST_TEST_MISCHIEFS says how often instead, DLDIST_TEST_SEED where. */
void mischief_check(mischief_program *run, mischief_kind kind, unsigned usual_count);

/* A test for each kind. */
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
