#include "watch/signal.h"

#include "core/little_endian.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

dd_status
dd_signal_decode_dump(dd_bytes value, int *rank, dd_error *err)
{
    uint64_t number = value.len == 4 ? dd_get_number(value.data, 4) : UINT64_MAX;
    if (number > INT32_MAX) {
        return dd_error_set(err, DD_PROTOCOL,
                            "malformed dump request: got %zu bytes, expected a rank in 4 bytes", value.len);
    }
    *rank = (int)number;
    return DD_OK;
}

size_t
dd_signal_encode_error(int rank, const dd_error *cause, uint8_t out[DD_SIGNAL_ERROR_MAX_NBYTES])
{
    size_t len = strnlen(cause->message, DD_SIGNAL_TEXT_MAX);
    dd_put_number(out, (uint32_t)rank, 4);
    dd_put_number(out + 4, (uint32_t)cause->code, 4);
    dd_put_number(out + 8, len, 4);
    memcpy(out + 12, cause->message, len);
    return 12 + len;
}

/* Return the status that a signal has for a failed group. An unknown number becomes DD_BACKEND. */
static dd_status
status_of(uint64_t code)
{
    bool is_of_group =
        code == DD_OP_TIMED_OUT || code == DD_PEER_LOST || code == DD_MISMATCH || code == DD_ABORTED;
    return is_of_group ? (dd_status)code : DD_BACKEND;
}

dd_status
dd_signal_decode_error(dd_bytes value, dd_bytes group, int size, dd_error *cause, dd_error *err)
{
    bool has_reason = value.len >= 12;
    size_t len = has_reason ? (size_t)dd_get_number(value.data + 8, 4) : 0;
    bool is_whole = value.len == 4 || (has_reason && len == value.len - 12 && len <= DD_SIGNAL_TEXT_MAX);
    uint64_t rank = is_whole ? dd_get_number(value.data, 4) : UINT64_MAX;
    if (rank >= (uint64_t)size) {
        return dd_error_set(err, DD_PROTOCOL, "malformed failure signal of group \"%.*s\" (%zu bytes)",
                            (int)group.len, (const char *)group.data, value.len);
    }
    char text[DD_SIGNAL_TEXT_MAX + 1] = "no reason given";
    if (len > 0) {
        dd_bytes_print(dd_bytes_of(value.data + 12, len), text, sizeof text);
    }
    dd_status status = has_reason ? status_of(dd_get_number(value.data + 4, 4)) : DD_BACKEND;
    status = dd_error_set(cause, status, "rank %d failed: %s", (int)rank, text);
    dd_error_blame(cause, (int)rank, NULL, 0);
    (void)status;
    return DD_OK;
}

/* ---- the progress of a rank */

#define PROGRESS_MAX (DD_SIGNAL_NAME_MAX + 22)

static const char *
print_progress(const dd_progress *progress, char out[PROGRESS_MAX])
{
    if (progress->number < 0) {
        return "none";
    }
    snprintf(out, PROGRESS_MAX, "%" PRId64 " %.*s", progress->number, DD_SIGNAL_NAME_MAX, progress->name);
    return out;
}

void
dd_signal_state_of(const dd_recorder_status *status, dd_signal_state *state)
{
    char called[PROGRESS_MAX];
    char started[PROGRESS_MAX];
    char completed[PROGRESS_MAX];
    state->called = status->called.number;
    snprintf(state->name, sizeof state->name, "%s", status->called.name);
    snprintf(state->text, sizeof state->text, "last called %s, started %s, completed %s",
             print_progress(&status->called, called), print_progress(&status->started, started),
             print_progress(&status->completed, completed));
}

dd_status
dd_signal_decode_state(dd_bytes value, dd_signal_state *state, dd_error *err)
{
    static const char begin[] = "last called ";
    *state = (dd_signal_state){.called = -1};
    dd_bytes_print(value, state->text, sizeof state->text);
    char *rest = state->text;
    if (value.len < sizeof state->text && strncmp(rest, begin, sizeof begin - 1) == 0) {
        rest += sizeof begin - 1;
        int64_t number = strtoll(rest, &rest, 10);
        int len = (int)strcspn(rest, ",");
        if (strncmp(rest, "none", 4) != 0 && len > 0) {
            state->called = number;
            snprintf(state->name, sizeof state->name, "%.*s", len - 1, rest + 1);
        }
        rest += len;
    }
    if (state->called < -1 || strncmp(rest, ", started ", 10) != 0 || strstr(rest, ", completed ") == NULL) {
        return dd_error_set(err, DD_PROTOCOL, "malformed progress of a rank (%zu bytes)", value.len);
    }
    return DD_OK;
}
