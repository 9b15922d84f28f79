/* The encoding of failure causes that ranks send to each other. */
#include "check.h"
#include "transport/cause.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NRANKS 5

static dd_cause
sample(dd_cause_kind kind)
{
    bool names_two = kind == DD_CAUSE_CALLS || kind == DD_CAUSE_SIZES || kind == DD_CAUSE_MISFIT;
    dd_cause cause = {
        .kind = kind,
        .code = DD_MISMATCH,
        .origin = 4,
        .blamed = {.rank = 2, .pid = INT64_MAX},
        .other = names_two ? 3 : -1,
        .sequence = UINT64_MAX,
        .elapsed_ns = INT64_MAX,
        .blamed_nbytes = 48,
        .other_nbytes = UINT64_MAX,
        .blamed_signature = {1, 2, 3, 4, 5, 6, 7},
        .other_signature = {8, 9, 10, 11, UINT32_MAX, UINT64_MAX, UINT64_MAX},
    };
    snprintf(cause.blamed.host, sizeof cause.blamed.host, "node-b");
    snprintf(cause.text, sizeof cause.text, "connection closed");
    return cause;
}

static dd_status
decode(const uint8_t *bytes, size_t nbytes, dd_cause *out)
{
    /* A copy of exactly this size, so that a sanitizer detects overreads. */
    uint8_t *copy = malloc(nbytes > 0 ? nbytes : 1);
    memcpy(copy, bytes, nbytes);
    dd_status status = dd_cause_decode(dd_bytes_of(copy, nbytes), NRANKS, out, check_err());
    free(copy);
    return status;
}

static void
check_same(const dd_cause *in, const dd_cause *out)
{
    CHECK_INT(out->kind, in->kind);
    CHECK_INT(out->code, in->code);
    CHECK_INT(out->origin, in->origin);
    CHECK_INT(out->blamed.rank, in->blamed.rank);
    CHECK_INT(out->blamed.pid, in->blamed.pid);
    CHECK(strcmp(out->blamed.host, in->blamed.host) == 0);
    CHECK_INT(out->other, in->other);
    CHECK(out->sequence == in->sequence && out->elapsed_ns == in->elapsed_ns);
    CHECK(out->blamed_nbytes == in->blamed_nbytes && out->other_nbytes == in->other_nbytes);
    CHECK(memcmp(&out->blamed_signature, &in->blamed_signature, sizeof in->blamed_signature) == 0);
    CHECK(memcmp(&out->other_signature, &in->other_signature, sizeof in->other_signature) == 0);
    CHECK(strcmp(out->text, in->text) == 0);
}

TEST(every_cause_of_failure_is_decoded_as_it_was_encoded)
{
    for (int kind = DD_CAUSE_OTHER; kind <= DD_CAUSE_REVOKED; kind++) {
        dd_cause in = sample((dd_cause_kind)kind);
        dd_cause out;
        uint8_t bytes[DD_CAUSE_MAX_NBYTES];
        size_t nbytes = dd_cause_encode(&in, bytes);
        REQUIRE_OK(decode(bytes, nbytes, &out));
        check_same(&in, &out);
    }
}

TEST(a_cause_of_failure_with_the_longest_text_is_decoded_as_it_was_encoded)
{
    dd_cause in = sample(DD_CAUSE_OTHER);
    dd_cause out;
    uint8_t bytes[DD_CAUSE_MAX_NBYTES];
    in.blamed = (dd_blamed_rank){.rank = -1};
    memset(in.text, 'x', sizeof in.text - 1);
    size_t nbytes = dd_cause_encode(&in, bytes);
    CHECK_INT(nbytes, sizeof bytes);
    REQUIRE_OK(decode(bytes, nbytes, &out));
    check_same(&in, &out);
}

/* Truncation in the fields makes a cause invalid; truncation in the text makes the text shorter. */
TEST(a_cause_of_failure_truncated_before_its_text_is_refused)
{
    dd_cause in = sample(DD_CAUSE_LOST);
    uint8_t bytes[DD_CAUSE_MAX_NBYTES + 1] = {0};
    size_t nbytes = dd_cause_encode(&in, bytes);
    for (size_t len = 0; len <= nbytes; len++) {
        dd_cause out;
        dd_status status = decode(bytes, len, &out);
        CHECK_STATUS(status, len < DD_CAUSE_HEAD_NBYTES ? DD_PROTOCOL : DD_OK);
        CHECK(status != DD_OK || strlen(out.text) == len - DD_CAUSE_HEAD_NBYTES);
    }
    dd_cause out;
    CHECK_STATUS(decode(bytes, sizeof bytes, &out), DD_PROTOCOL);
}

static void
check_refused(const dd_cause *cause, const char *why)
{
    dd_cause out;
    uint8_t bytes[DD_CAUSE_MAX_NBYTES];
    size_t nbytes = dd_cause_encode(cause, bytes);
    CHECK_STATUS(decode(bytes, nbytes, &out), DD_PROTOCOL);
    CHECK_CONTAINS(check_message(), why);
}

TEST(encoded_causes_of_failure_with_impossible_values_are_refused)
{
    static const int bad_ranks[] = {NRANKS, -2, INT32_MAX, INT32_MIN};
    for (size_t i = 0; i < sizeof bad_ranks / sizeof bad_ranks[0]; i++) {
        dd_cause cause = sample(DD_CAUSE_CALLS);
        cause.origin = bad_ranks[i];
        check_refused(&cause, "unknown origin rank");
        cause = sample(DD_CAUSE_OTHER);
        cause.blamed.rank = bad_ranks[i];
        check_refused(&cause, "unknown blamed rank");
        cause = sample(DD_CAUSE_CALLS);
        cause.other = bad_ranks[i];
        check_refused(&cause, "unknown other rank");
    }
    for (int kind = DD_CAUSE_LOST; kind <= DD_CAUSE_MISFIT; kind++) {
        dd_cause cause = sample((dd_cause_kind)kind);
        cause.blamed.rank = -1;
        check_refused(&cause, "unknown blamed rank");
    }
    dd_cause cause = sample(DD_CAUSE_SIZES);
    cause.other = -1;
    check_refused(&cause, "unknown other rank");
    cause = sample(DD_CAUSE_LOST);
    cause.other = 1;
    check_refused(&cause, "unknown other rank");
    cause = sample(DD_CAUSE_TIMED_OUT);
    cause.blamed.rank = 0;
    cause.other = 1; /* its send to the blamed rank fails */
    uint8_t bytes[DD_CAUSE_MAX_NBYTES];
    dd_cause out;
    CHECK_OK(decode(bytes, dd_cause_encode(&cause, bytes), &out));
    CHECK_INT(out.other, 1);
    cause.other = 1000;
    check_refused(&cause, "unknown other rank");
    cause = sample(DD_CAUSE_TIMED_OUT);
    cause.elapsed_ns = -1;
    check_refused(&cause, "negative");
    cause = sample(DD_CAUSE_LOST);
    cause.code = DD_OK;
    check_refused(&cause, "code");
    cause.code = (dd_status)DD_STATUS_COUNT;
    check_refused(&cause, "code");
    cause = sample((dd_cause_kind)0);
    check_refused(&cause, "kind");
    cause = sample((dd_cause_kind)(DD_CAUSE_REVOKED + 1));
    check_refused(&cause, "kind");
}

/* Bytes that the encoder never writes. */
TEST(encoded_causes_of_failure_with_bytes_that_are_never_written_are_refused)
{
    dd_cause cause = sample(DD_CAUSE_LOST);
    dd_cause out;
    uint8_t bytes[DD_CAUSE_MAX_NBYTES];
    size_t nbytes = dd_cause_encode(&cause, bytes);
    REQUIRE_OK(decode(bytes, nbytes, &out));
    static const size_t zeros[] = {5, 6, 7, 20, 21, 22, 23, 119, 175};
    for (size_t i = 0; i < sizeof zeros / sizeof zeros[0]; i++) {
        bytes[zeros[i]] ^= 1;
        CHECK_STATUS(decode(bytes, nbytes, &out), DD_PROTOCOL);
        bytes[zeros[i]] ^= 1;
    }
    bytes[nbytes - 2] = 0;
    CHECK_STATUS(decode(bytes, nbytes, &out), DD_PROTOCOL);
    memset(bytes, 0xff, sizeof bytes);
    CHECK_STATUS(decode(bytes, sizeof bytes, &out), DD_PROTOCOL);
    memset(bytes, 0, sizeof bytes);
    CHECK_STATUS(decode(bytes, sizeof bytes, &out), DD_PROTOCOL);
}
