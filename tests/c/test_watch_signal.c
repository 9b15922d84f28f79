/* The bytes of the monitor's signals. */
#include "check.h"

#include "watch/signal.h"

#include <stdlib.h>
#include <string.h>

TEST(a_rank_there_and_back)
{
    uint8_t bytes[DD_SIGNAL_DUMP_NBYTES];
    int rank = -1;
    dd_signal_encode_dump(0x01020304, bytes);
    CHECK_TEXT(dd_bytes_of(bytes, sizeof bytes), "\4\3\2\1");
    CHECK_OK(dd_signal_decode_dump(dd_bytes_of(bytes, sizeof bytes), &rank, check_err()));
    CHECK_INT(rank, 0x01020304);
    CHECK_STATUS(dd_signal_decode_dump(BYTES("\1\0\0\200"), &rank, check_err()), DD_PROTOCOL);
    CHECK_STATUS(dd_signal_decode_dump(BYTES(""), &rank, check_err()), DD_PROTOCOL);
    CHECK_STATUS(dd_signal_decode_dump(BYTES("\1\0\0\0\0"), &rank, check_err()), DD_PROTOCOL);
}

TEST(an_error_there_and_back)
{
    uint8_t bytes[DD_SIGNAL_ERROR_MAX_NBYTES];
    dd_error cause;
    dd_error heard;
    CHECK_STATUS(dd_error_set(&cause, DD_PEER_LOST, "rank 2 is\tgone"), DD_PEER_LOST);
    size_t len = dd_signal_encode_error(1, &cause, bytes);
    CHECK_OK(dd_signal_decode_error(dd_bytes_of(bytes, len), BYTES("g"), 3, &heard, check_err()));
    CHECK_INT(heard.code, DD_PEER_LOST);
    CHECK_INT(heard.culprit.rank, 1);
    CHECK_CONTAINS(heard.message, "rank 1 failed: rank 2 is\\x09gone");
    for (size_t cut = 0; cut < len; cut++) {
        dd_status wanted = cut == 4 ? DD_OK : DD_PROTOCOL; /* a rank alone */
        CHECK_STATUS(dd_signal_decode_error(dd_bytes_of(bytes, cut), BYTES("g"), 3, &heard, check_err()),
                     wanted);
    }
    CHECK_STATUS(dd_signal_decode_error(dd_bytes_of(bytes, len), BYTES("g"), 1, &heard, check_err()),
                 DD_PROTOCOL);
}

TEST(an_error_of_the_longest_text)
{
    uint8_t bytes[DD_SIGNAL_ERROR_MAX_NBYTES];
    dd_error cause = {.code = DD_INTERNAL};
    dd_error heard;
    memset(cause.message, 'x', sizeof cause.message - 1);
    size_t len = dd_signal_encode_error(0, &cause, bytes);
    CHECK_INT(len, sizeof bytes);
    CHECK_OK(dd_signal_decode_error(dd_bytes_of(bytes, len), BYTES("g"), 1, &heard, check_err()));
    CHECK_INT(heard.code, DD_BACKEND); /* no code that a peer may choose */
}

TEST(a_state_there_and_back)
{
    uint8_t bytes[DD_SIGNAL_STATE_MAX_NBYTES];
    dd_recorder_status status = {
        .called = {7, "all_reduce"}, .started = {6, "barrier"}, .completed = {-1, ""}};
    dd_signal_state state;
    dd_signal_state heard;
    dd_signal_state_of(&status, &state);
    size_t len = dd_signal_encode_state(&state, bytes);
    CHECK_OK(dd_signal_decode_state(dd_bytes_of(bytes, len), &heard, check_err()));
    CHECK_INT(heard.called.number, 7);
    CHECK(strcmp(heard.called.name, "all_reduce") == 0);
    CHECK(strcmp(heard.started.name, "barrier") == 0);
    CHECK_INT(heard.completed.number, -1);
    for (size_t cut = 0; cut < len; cut++) {
        CHECK_STATUS(dd_signal_decode_state(dd_bytes_of(bytes, cut), &heard, check_err()), DD_PROTOCOL);
    }
}

/* Any bytes: refused or made sense of, and never read beyond. */
TEST(noise)
{
    srand(5);
    for (int round = 0; round < 20000; round++) {
        size_t len = (size_t)rand() % 300;
        uint8_t *bytes = malloc(len + 1); /* exactly as long, for the sanitizer */
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
            CHECK(cause.culprit.rank >= 0 && cause.culprit.rank < 4);
        }
        if (dd_signal_decode_state(value, &state, NULL) == DD_OK) {
            CHECK(strlen(state.called.name) <= DD_SIGNAL_NAME_MAX && state.called.number >= -1);
        }
        free(bytes);
    }
}
