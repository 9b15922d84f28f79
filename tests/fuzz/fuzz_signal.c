/* The values that monitors read from stores, to which any process can write. Accepted values have
 * fields within their limits, and own values are read back unchanged. The first byte of the input
 * selects one of these. */
#include "fuzz.h"
#include "watch/signal.h"

#include <string.h>

static void
check_dump(dd_bytes value)
{
    int rank = -1;
    dd_error err;
    if (dd_signal_decode_dump(value, &rank, &err) == DD_OK) {
        require(rank >= 0 && value.len == 4);
    } else {
        require(err.code == DD_PROTOCOL && rank == -1);
    }
}

static bool
is_terminated(const char *text, size_t size)
{
    return memchr(text, '\0', size) != NULL;
}

static void
check_error(int size, dd_bytes value)
{
    dd_error cause;
    dd_error err;
    dd_error again;
    uint8_t bytes[DD_SIGNAL_ERROR_MAX_NBYTES];
    const dd_bytes group = dd_bytes_of("group", 5);
    if (dd_signal_decode_error(value, group, size, &cause, &err) != DD_OK) {
        require(err.code == DD_PROTOCOL);
        return;
    }
    require(cause.code > DD_OK && cause.code < DD_STATUS_COUNT &&
            is_terminated(cause.message, sizeof cause.message));
    require(cause.blamed.rank >= 0 && cause.blamed.rank < size);
    size_t nbytes = dd_signal_encode_error(cause.blamed.rank, &cause, bytes);
    require(nbytes <= sizeof bytes);
    require(dd_signal_decode_error(dd_bytes_of(bytes, nbytes), group, size, &again, NULL) == DD_OK);
    require(again.blamed.rank == cause.blamed.rank && again.code == cause.code);
}

static void
check_state(dd_bytes value)
{
    dd_signal_state state;
    dd_error err;
    dd_status status = dd_signal_decode_state(value, &state, &err);
    require(is_terminated(state.text, sizeof state.text) && is_terminated(state.name, sizeof state.name));
    require(status == DD_OK ? state.called >= -1 : err.code == DD_PROTOCOL);
}

/* Encode and decode a state with arbitrary numbers and names. */
static void
check_own_state(dd_bytes input)
{
    static const char *const names[] = {
        "all_reduce", "send", "a_name_that_is_longer_than_that_of_any_operation_which_there_is_today"};
    dd_signal_state sent;
    dd_signal_state decoded;
    dd_progress called = {.number = (int64_t)(take_number(&input, 8) & INT64_MAX) - 1};
    dd_progress started = {.number = (int64_t)take_number(&input, 1) - 1};
    called.name = started.name = names[take_byte(&input) % 3];
    const dd_recorder_status status = {.called = called, .started = started, .completed = started};
    dd_signal_state_of(&status, &sent);
    require(dd_signal_decode_state(dd_bytes_of(sent.text, strlen(sent.text)), &decoded, NULL) == DD_OK);
    require(decoded.called == sent.called && strcmp(decoded.text, sent.text) == 0);
    require(sent.called < 0 || strncmp(decoded.name, sent.name, sizeof decoded.name) == 0);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    dd_bytes input = dd_bytes_of(data, size);
    switch (take_byte(&input) % 4) {
    case 0:
        check_dump(input);
        break;
    case 1:
        check_error(1 + (int)(take_byte(&input) % 8), input);
        break;
    case 2:
        check_state(input);
        break;
    default:
        check_own_state(input);
    }
    return 0;
}
