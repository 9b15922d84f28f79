/* The cause of a group's failure, in the form that ranks exchange: facts without wording. Each rank
 * makes its own error text from the cause.
 *
 * All functions are pure. A peer's bytes are untrusted: dd_cause_decode checks every field, also
 * against the size of the group. */
#ifndef DD_TRANSPORT_CAUSE_H
#define DD_TRANSPORT_CAUSE_H

#include "core/bytes.h"
#include "core/status.h"
#include "transport/signature.h"

/* The kinds of causes. The values are part of the wire format. */
typedef enum dd_cause_kind {
    DD_CAUSE_OTHER = 1, /* any other error, which only `text` describes; may blame no rank */
    DD_CAUSE_LOST,      /* the blamed rank is unreachable; `text` is the symptom */
    DD_CAUSE_LEFT,      /* the blamed rank has closed the group; `text`: the group's state, or "" */
    DD_CAUSE_ABORTED,   /* the blamed rank has aborted the group on purpose; `text`: its reason */
    /* The blamed rank and `other` called different operations as number `sequence`. */
    DD_CAUSE_CALLS,
    /* The blamed rank and `other` disagree on the size of a block: blamed_nbytes and other_nbytes;
     * if both are 0, `text` has the sizes. */
    DD_CAUSE_SIZES,
    DD_CAUSE_MISFIT, /* the blamed rank's message does not fit the call of `other`; see `text` */
    /* The origin's operation number `sequence` timed out after elapsed_ns; `text` lists the late
     * ranks and the progress of all ranks. */
    DD_CAUSE_TIMED_OUT,
    /* The blamed rank has ended all calls of the group, for the reason `text`. */
    DD_CAUSE_REVOKED,
} dd_cause_kind;

typedef struct dd_cause {
    dd_cause_kind kind;
    dd_status code;
    int origin;            /* number of the rank that detected the failure */
    dd_blamed_rank blamed; /* rank that caused the failure; blamed.rank is -1 if there is none */
    /* If ranks disagree: the second rank of the disagreement. After a timeout: the rank whose data
     * to the blamed rank is lost, or -1 if no data is lost. For other kinds: -1. */
    int other;
    uint64_t sequence; /* number of the failed collective; 0 if no collective failed */
    int64_t elapsed_ns;
    uint64_t blamed_nbytes, other_nbytes;
    dd_signature blamed_signature; /* signature of the blamed rank's call */
    dd_signature other_signature;  /* signature of the call of `other` (on timeout: origin) */
    char text[1024];
} dd_cause;

#define DD_CAUSE_HEAD_NBYTES ((size_t)176)
#define DD_CAUSE_MAX_NBYTES (DD_CAUSE_HEAD_NBYTES + sizeof((dd_cause *)0)->text - 1)

/* Return a cause of kind DD_CAUSE_OTHER that contains `error`, which rank `origin` detected. */
dd_cause dd_cause_of_error(const dd_error *error, int origin);

/* Encode a cause and return the encoded size in bytes. */
size_t dd_cause_encode(const dd_cause *cause, uint8_t out[DD_CAUSE_MAX_NBYTES]);
/* Decode a cause received from a rank of a group with `nranks` ranks. Returns DD_PROTOCOL, with the
 * name of the invalid field, if the bytes are not a valid cause. */
dd_status dd_cause_decode(dd_bytes bytes, int nranks, dd_cause *cause, dd_error *err) DD_MUST_CHECK;

#endif
