/* Signals between ranks in the store. Pure functions of untrusted bytes; little endian. */
#ifndef DD_WATCH_SIGNAL_H
#define DD_WATCH_SIGNAL_H

#include "core/bytes.h"
#include "core/status.h"
#include "observe/recorder.h"

#include <stddef.h>
#include <stdint.h>

/* Decode "exception_dump": the requesting rank, 4 bytes. DD_PROTOCOL if it is malformed. */
dd_status dd_signal_decode_dump(dd_bytes value, int *rank, dd_error *err) DD_MUST_CHECK;

/* "remote_error:<group>": the rank, the status and the length of the text, 4 bytes each, and the
 * text. A value of four bytes is only a rank. */
#define DD_SIGNAL_TEXT_MAX 900
#define DD_SIGNAL_ERROR_MAX_NBYTES (12 + DD_SIGNAL_TEXT_MAX)
size_t dd_signal_encode_error(int rank, const dd_error *cause, uint8_t out[DD_SIGNAL_ERROR_MAX_NBYTES]);
/* Decode the error for a member of a group of `size`: it names the rank and the reason. */
dd_status dd_signal_decode_error(dd_bytes value, dd_bytes group, int size, dd_error *cause,
                                 dd_error *err) DD_MUST_CHECK;

/* Progress in a report: "last called 3 all_reduce, started 3 all_reduce, completed none". */
#define DD_SIGNAL_NAME_MAX 63
#define DD_SIGNAL_STATE_MAX (3 * (DD_SIGNAL_NAME_MAX + 21) + 48)
typedef struct dd_signal_state {
    int64_t called;                    /* -1 if there was none */
    char name[DD_SIGNAL_NAME_MAX + 1]; /* of the last call */
    char text[DD_SIGNAL_STATE_MAX];
} dd_signal_state;

void dd_signal_state_of(const dd_recorder_status *status, dd_signal_state *state);
/* Decode the text of a state. DD_PROTOCOL if it is malformed. */
dd_status dd_signal_decode_state(dd_bytes value, dd_signal_state *state, dd_error *err) DD_MUST_CHECK;

#endif
