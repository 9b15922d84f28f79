/* The cause of a group's failure, as its ranks exchange it: facts, which each rank words by itself.
 *
 * Pure functions. A peer's bytes are untrusted: dd_cause_decode checks them for the group size. */
#ifndef DD_TRANSPORT_CAUSE_H
#define DD_TRANSPORT_CAUSE_H

#include "core/bytes.h"
#include "core/status.h"
#include "transport/signature.h"

/* The numbers are part of the wire format. */
typedef enum dd_cause_kind {
    DD_CAUSE_OTHER = 1, /* only `text` describes it; there may be no blamed rank */
    DD_CAUSE_LOST,      /* the blamed rank is unreachable; `text`: the symptom */
    DD_CAUSE_LEFT,      /* the blamed rank has closed the group; `text`: in what state, or empty */
    DD_CAUSE_ABORTED,   /* the blamed rank has aborted on purpose; `text`: its reason */
    DD_CAUSE_CALLS,     /* the blamed rank and `other` called different operations as `sequence` */
    /* they disagree on a block's size: blamed_nbytes, other_nbytes; if both are 0, see `text` */
    DD_CAUSE_SIZES,
    DD_CAUSE_MISFIT, /* a message of the blamed rank does not fit the call of `other`; `text`: why */
    /* the origin's `sequence` timed out after elapsed_ns; `text`: late ranks, progress of all */
    DD_CAUSE_TIMED_OUT,
    DD_CAUSE_REVOKED, /* the blamed rank ends all calls; new groups may follow; `text`: its reason */
} dd_cause_kind;

typedef struct dd_cause {
    dd_cause_kind kind;
    dd_status code;
    int origin;            /* rank that has found the failure */
    dd_blamed_rank blamed; /* rank -1 if there is none, or it is not a rank of the group */
    /* The second rank of a disagreement. After a timeout, the rank whose data to the blamed rank is
     * lost, or -1. Otherwise -1. */
    int other;
    uint64_t sequence; /* number of the collective concerned; 0 if there is none */
    int64_t elapsed_ns;
    uint64_t blamed_nbytes, other_nbytes;
    dd_signature blamed_signature; /* of the blamed rank's call */
    dd_signature other_signature;  /* of `other`'s call; after a timeout, of the origin's */
    char text[1024];
} dd_cause;

#define DD_CAUSE_HEAD_NBYTES ((size_t)176)
#define DD_CAUSE_MAX_NBYTES (DD_CAUSE_HEAD_NBYTES + sizeof((dd_cause *)0)->text - 1)

/* Return a cause of kind OTHER that holds the error of rank `origin`. */
dd_cause dd_cause_of_error(const dd_error *error, int origin);

/* Encode a cause and return its size. */
size_t dd_cause_encode(const dd_cause *cause, uint8_t out[DD_CAUSE_MAX_NBYTES]);
/* Decode a cause of a group of `nranks` ranks. DD_PROTOCOL names the invalid field. */
dd_status dd_cause_decode(dd_bytes bytes, int nranks, dd_cause *cause, dd_error *err) DD_MUST_CHECK;

#endif
