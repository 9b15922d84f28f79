/* The encoding of the monitor's signals. */
#include "check.h"

#include "watch/signal.h"

#include <stdlib.h>
#include <string.h>

TEST(a_dump_request_carries_the_number_of_a_rank)
{
    int rank = -1;
    CHECK_OK(dd_signal_decode_dump(BYTES("\4\3\2\1"), &rank, check_err()));
    CHECK_INT(rank, 0x01020304);
    CHECK_STATUS(dd_signal_decode_dump(BYTES("\1\0\0\200"), &rank, check_err()), DD_PROTOCOL);
    CHECK_STATUS(dd_signal_decode_dump(BYTES(""), &rank, check_err()), DD_PROTOCOL);
    CHECK_STATUS(dd_signal_decode_dump(BYTES("\1\0\0\0\0"), &rank, check_err()), DD_PROTOCOL);
}

TEST(a_failure_notice_is_decoded_as_it_was_encoded)
{
    uint8_t bytes[DD_SIGNAL_ERROR_MAX_NBYTES];
    dd_error cause;
    dd_error decoded;
    CHECK_STATUS(dd_error_set(&cause, DD_PEER_LOST, "rank 2 is\tgone"), DD_PEER_LOST);
    size_t len = dd_signal_encode_error(1, &cause, bytes);
    CHECK_OK(dd_signal_decode_error(dd_bytes_of(bytes, len), BYTES("g"), 3, &decoded, check_err()));
    CHECK_INT(decoded.code, DD_PEER_LOST);
    CHECK_INT(decoded.blamed.rank, 1);
    CHECK_CONTAINS(decoded.message, "rank 1 failed: rank 2 is\\x09gone");
    for (size_t cut = 0; cut < len; cut++) {
        dd_status wanted = cut == 4 ? DD_OK : DD_PROTOCOL; /* contains only the rank */
        CHECK_STATUS(dd_signal_decode_error(dd_bytes_of(bytes, cut), BYTES("g"), 3, &decoded, check_err()),
                     wanted);
    }
    CHECK_STATUS(dd_signal_decode_error(dd_bytes_of(bytes, len), BYTES("g"), 1, &decoded, check_err()),
                 DD_PROTOCOL);
}

TEST(a_failure_notice_with_the_longest_text_is_decoded)
{
    uint8_t bytes[DD_SIGNAL_ERROR_MAX_NBYTES];
    dd_error cause = {.code = DD_INTERNAL};
    dd_error decoded;
    memset(cause.message, 'x', sizeof cause.message - 1);
    size_t len = dd_signal_encode_error(0, &cause, bytes);
    CHECK_INT(len, sizeof bytes);
    CHECK_OK(dd_signal_decode_error(dd_bytes_of(bytes, len), BYTES("g"), 1, &decoded, check_err()));
    CHECK_INT(decoded.code, DD_BACKEND); /* a peer may not choose this code */
}

TEST(a_progress_report_is_decoded_as_it_was_encoded)
{
    dd_recorder_status status = {
        .called = {7, "all_reduce"}, .started = {6, "barrier"}, .completed = {-1, ""}};
    dd_signal_state state;
    dd_signal_state decoded;
    dd_signal_state_of(&status, &state);
    CHECK(strcmp(state.text, "last called 7 all_reduce, started 6 barrier, completed none") == 0);
    CHECK_OK(dd_signal_decode_state(dd_bytes_of_string(state.text), &decoded, check_err()));
    CHECK_INT(decoded.called, 7);
    CHECK(strcmp(decoded.name, "all_reduce") == 0);
    CHECK(strcmp(decoded.text, state.text) == 0);
    for (size_t cut = 0; cut < strlen(state.text) - strlen("none"); cut++) {
        CHECK_STATUS(dd_signal_decode_state(dd_bytes_of(state.text, cut), &decoded, check_err()),
                     DD_PROTOCOL);
    }
    dd_bytes none = BYTES("last called none, started none, completed none");
    CHECK_OK(dd_signal_decode_state(none, &decoded, check_err()));
    CHECK_INT(decoded.called, -1);
    CHECK(decoded.name[0] == '\0');
    dd_bytes negative = BYTES("last called -7 x, started none, completed none");
    CHECK_STATUS(dd_signal_decode_state(negative, &decoded, check_err()), DD_PROTOCOL);
}

TEST(long_names_in_a_progress_report_are_truncated)
{
    char name[100];
    memset(name, 'x', sizeof name);
    name[sizeof name - 1] = '\0';
    dd_progress last = {INT64_MAX, name};
    dd_recorder_status status = {.called = last, .started = last, .completed = last};
    dd_signal_state state;
    dd_signal_state decoded;
    dd_signal_state_of(&status, &state);
    CHECK_OK(dd_signal_decode_state(dd_bytes_of_string(state.text), &decoded, check_err()));
    CHECK_INT(decoded.called, INT64_MAX);
    CHECK_INT(strlen(decoded.name), DD_SIGNAL_NAME_MAX);
}

/* Arbitrary bytes must be rejected or decoded, without overreads. */
TEST(arbitrary_bytes_of_notices_are_decoded_safely)
{
    srand(5);
    for (int round = 0; round < 20000; round++) {
        size_t len = (size_t)rand() % 300;
        uint8_t *bytes = malloc(len + 1); /* exactly this size, for the sanitizer */
        REQUIRE(bytes != NULL);
        for (size_t i = 0; i < len; i++) {
            bytes[i] = (uint8_t)(rand() % 4 == 0 ? rand() : 0);
        }
        int rank = 0;
        dd_error cause;
        dd_signal_state state;
        dd_bytes value = dd_bytes_of(bytes, len);
        if (dd_signal_decode_dump(value, &rank, NULL) == DD_OK) {
            CHECK(rank >= 0);
        }
        if (dd_signal_decode_error(value, BYTES("g"), 4, &cause, NULL) == DD_OK) {
            CHECK(cause.blamed.rank >= 0 && cause.blamed.rank < 4);
        }
        if (dd_signal_decode_state(value, &state, NULL) == DD_OK) {
            CHECK(strlen(state.name) <= DD_SIGNAL_NAME_MAX && state.called >= -1);
        }
        free(bytes);
    }
}
