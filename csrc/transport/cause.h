/* Why a group has failed, as its ranks tell each other: facts. Each rank puts them in words as it sees them.
 *
 * Pure functions. What comes from a peer is user input: dd_cause_decode accepts only causes whose fields
 * make sense for a group of that size. */
#ifndef DD_TRANSPORT_CAUSE_H
#define DD_TRANSPORT_CAUSE_H

#include "core/bytes.h"
#include "core/status.h"
#include "transport/signature.h"

/* The numbers are part of the wire format. */
typedef enum dd_cause_kind {
    DD_CAUSE_OTHER = 1, /* `text` says it all; there may be no culprit */
    DD_CAUSE_LOST,      /* the culprit cannot be reached any more; `text`: how that showed */
    DD_CAUSE_LEFT,      /* the culprit has closed the group; `text`: in what state, or nothing */
    DD_CAUSE_ABORTED,   /* the culprit has given up on purpose; `text`: its reason */
    DD_CAUSE_CALLS,     /* the culprit and `other` have called different things as collective `sequence` */
    /* ... disagree on the size of a block: how many bytes each of them has; both 0: `text` says how */
    DD_CAUSE_SIZES,
    DD_CAUSE_MISFIT, /* a message of the culprit does not fit what `other` has called; `text`: why */
    /* collective `sequence` of the origin, after elapsed_ns; `text`: who is late, and where all ranks are */
    DD_CAUSE_TIMED_OUT,
    DD_CAUSE_REVOKED, /* the culprit wants what is under way to end, and the group to have offspring; `text`: its reason */
} dd_cause_kind;

typedef struct dd_cause {
    dd_cause_kind kind;
    dd_status code;
    int origin;         /* the rank that has found it out */
    dd_culprit culprit; /* rank -1: a process that is not in the group, or nobody */
    int other; /* of two that disagree; of a time-out: the rank that sends to the culprit in vain, or -1; else -1 */
    uint64_t sequence; /* of the collective that it is about; 0: none */
    int64_t elapsed_ns;
    uint64_t culprit_nbytes, other_nbytes;
    dd_signature culprit_signature; /* of what the culprit has called */
    dd_signature other_signature;   /* of what `other` has called; of a time-out: what the origin has */
    char text[1024];
} dd_cause;

#define DD_CAUSE_HEAD_NBYTES ((size_t)176)
#define DD_CAUSE_MAX_NBYTES (DD_CAUSE_HEAD_NBYTES + sizeof((dd_cause *)0)->text - 1)

/* A cause of which only the error is known; `origin` is the rank that has it. */
dd_cause dd_cause_of_error(const dd_error *error, int origin);

/* Returns the number of bytes. */
size_t dd_cause_encode(const dd_cause *cause, uint8_t out[DD_CAUSE_MAX_NBYTES]);
/* DD_PROTOCOL, naming what makes no sense. Ranks are those of a group of nranks. */
dd_status dd_cause_decode(dd_bytes bytes, int nranks, dd_cause *cause, dd_error *err) DD_MUST_CHECK;

#endif
