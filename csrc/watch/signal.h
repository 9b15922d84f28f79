/* The encoding of signals that ranks send through the store. Pure functions; bytes from a peer are
 * not trusted. Numbers are little-endian. */
#ifndef DD_WATCH_SIGNAL_H
#define DD_WATCH_SIGNAL_H

#include "core/bytes.h"
#include "core/status.h"
#include "observe/recorder.h"

#include <stddef.h>
#include <stdint.h>

/* Decode a value of "exception_dump": the requesting rank, 4 bytes. DD_PROTOCOL if malformed. */
dd_status dd_signal_decode_dump(dd_bytes value, int *rank, dd_error *err) DD_MUST_CHECK;

/* The value of "remote_error:<group>": the rank, the status and the length of the text, 4 bytes
 * each, then the text. A value of only four bytes is a rank without a reason. */
#define DD_SIGNAL_TEXT_MAX 900
#define DD_SIGNAL_ERROR_MAX_NBYTES (12 + DD_SIGNAL_TEXT_MAX)
size_t dd_signal_encode_error(int rank, const dd_error *cause, uint8_t out[DD_SIGNAL_ERROR_MAX_NBYTES]);
/* Decode a value of "remote_error:<group>" for a group of `size` ranks. `cause` names the failed
 * rank and its reason. Return DD_PROTOCOL if the value is malformed. */
dd_status dd_signal_decode_error(dd_bytes value, dd_bytes group, int size, dd_error *cause,
                                 dd_error *err) DD_MUST_CHECK;

/* A rank's progress as text, "last called 3 all_reduce, started 3 all_reduce, completed none". */
#define DD_SIGNAL_NAME_MAX 63
#define DD_SIGNAL_STATE_MAX (3 * (DD_SIGNAL_NAME_MAX + 21) + 48)
typedef struct dd_signal_state {
    int64_t called;                    /* number of the last call; -1 if there was none */
    char name[DD_SIGNAL_NAME_MAX + 1]; /* name of the last call */
    char text[DD_SIGNAL_STATE_MAX];
} dd_signal_state;

void dd_signal_state_of(const dd_recorder_status *status, dd_signal_state *state);
/* Decode a published progress text. Return DD_PROTOCOL if it is malformed. */
dd_status dd_signal_decode_state(dd_bytes value, dd_signal_state *state, dd_error *err) DD_MUST_CHECK;

#endif
