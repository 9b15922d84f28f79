#include "watch/signal.h"

#include "core/little_endian.h"

#include <stdio.h>
#include <string.h>

static uint8_t *
put_number(uint8_t *at, uint64_t value, size_t nbytes)
{
    dd_put_number(at, value, nbytes);
    return at + nbytes;
}

/* Takes a number off the front; false when there are too few bytes. */
static bool
take_number(dd_bytes *rest, size_t nbytes, uint64_t *value)
{
    if (rest->len < nbytes) {
        return false;
    }
    *value = dd_get_number(rest->data, nbytes);
    *rest = dd_bytes_of(rest->data + nbytes, rest->len - nbytes);
    return true;
}

void
dd_signal_encode_dump(int rank, uint8_t out[DD_SIGNAL_DUMP_NBYTES])
{
    put_number(out, (uint32_t)rank, DD_SIGNAL_DUMP_NBYTES);
}

dd_status
dd_signal_decode_dump(dd_bytes value, int *rank, dd_error *err)
{
    uint64_t number;
    dd_bytes rest = value;
    if (value.len != DD_SIGNAL_DUMP_NBYTES || !take_number(&rest, 4, &number) || number > INT32_MAX) {
        return dd_error_set(err, DD_PROTOCOL, "a signal to dump is no rank: it has %zu bytes", value.len);
    }
    *rank = (int)number;
    return DD_OK;
}

size_t
dd_signal_encode_error(int rank, const dd_error *cause, uint8_t out[DD_SIGNAL_ERROR_MAX_NBYTES])
{
    size_t len = strnlen(cause->message, DD_SIGNAL_TEXT_MAX);
    uint8_t *at = put_number(out, (uint32_t)rank, 4);
    at = put_number(at, (uint32_t)cause->code, 4);
    at = put_number(at, len, 4);
    memcpy(at, cause->message, len);
    return (size_t)(at - out) + len;
}

/* What a group may fail with; anything else is a failure of its library. */
static dd_status
status_of(uint64_t code)
{
    switch (code) {
    case DD_OP_TIMED_OUT:
    case DD_PEER_LOST:
    case DD_MISMATCH:
    case DD_ABORTED:
        return (dd_status)code;
    default:
        return DD_BACKEND;
    }
}

dd_status
dd_signal_decode_error(dd_bytes value, dd_bytes group, int size, dd_error *cause, dd_error *err)
{
    uint64_t rank = 0;
    uint64_t code = DD_BACKEND;
    uint64_t len = 0;
    dd_bytes rest = value;
    bool is_whole = take_number(&rest, 4, &rank);
    if (is_whole && rest.len > 0) {
        is_whole = take_number(&rest, 4, &code) && take_number(&rest, 4, &len) && len == rest.len &&
                   len <= DD_SIGNAL_TEXT_MAX;
    }
    if (!is_whole || rank >= (uint64_t)size) {
        return dd_error_set(err, DD_PROTOCOL,
                            "the failure that is told of group \"%.*s\" makes no sense: it has %zu bytes",
                            (int)group.len, (const char *)group.data, value.len);
    }
    char text[DD_SIGNAL_TEXT_MAX + 1];
    dd_bytes_print(len > 0 ? rest : dd_bytes_of_string("no reason is given"), text, sizeof text);
    dd_status status = dd_error_set(cause, status_of(code), "rank %d failed: %s", (int)rank, text);
    dd_error_blame(cause, (int)rank, NULL, 0);
    (void)status;
    return DD_OK;
}

/* ---- how far a rank is */

static void
set_progress(dd_signal_progress *progress, int64_t number, const char *name)
{
    progress->number = number;
    snprintf(progress->name, sizeof progress->name, "%s", name != NULL ? name : "");
}

void
dd_signal_state_of(const dd_recorder_status *status, dd_signal_state *state)
{
    set_progress(&state->called, status->called.number, status->called.name);
    set_progress(&state->started, status->started.number, status->started.name);
    set_progress(&state->completed, status->completed.number, status->completed.name);
}

static uint8_t *
put_progress(uint8_t *at, const dd_signal_progress *progress)
{
    size_t len = strnlen(progress->name, DD_SIGNAL_NAME_MAX);
    at = put_number(at, (uint64_t)progress->number, 8);
    at = put_number(at, len, 1);
    memcpy(at, progress->name, len);
    return at + len;
}

static bool
take_progress(dd_bytes *rest, dd_signal_progress *progress)
{
    uint64_t number;
    uint64_t len;
    if (!take_number(rest, 8, &number) || !take_number(rest, 1, &len) || len > DD_SIGNAL_NAME_MAX ||
        len > rest->len || (int64_t)number < -1) {
        return false;
    }
    char text[4 * DD_SIGNAL_NAME_MAX + 1] = ""; /* every byte may become four */
    progress->number = (int64_t)number;
    dd_bytes_print(dd_bytes_of(rest->data, len), text, sizeof text);
    memcpy(progress->name, text, DD_SIGNAL_NAME_MAX);
    progress->name[DD_SIGNAL_NAME_MAX] = '\0';
    *rest = dd_bytes_of(rest->data + len, rest->len - len);
    return true;
}

size_t
dd_signal_encode_state(const dd_signal_state *state, uint8_t out[DD_SIGNAL_STATE_MAX_NBYTES])
{
    uint8_t *at = put_progress(out, &state->called);
    at = put_progress(at, &state->started);
    at = put_progress(at, &state->completed);
    return (size_t)(at - out);
}

dd_status
dd_signal_decode_state(dd_bytes value, dd_signal_state *state, dd_error *err)
{
    dd_bytes rest = value;
    if (!take_progress(&rest, &state->called) || !take_progress(&rest, &state->started) ||
        !take_progress(&rest, &state->completed) || rest.len > 0) {
        return dd_error_set(err, DD_PROTOCOL, "how far a rank is makes no sense: it has %zu bytes",
                            value.len);
    }
    return DD_OK;
}
