/* Frames: the units sent over a link. A header, and a payload for some types. The header of a small
 * whole message is short if its signature is empty or a point-to-point message's: the missing
 * fields are zero or follow from the others.
 *
 * Pure functions. Bytes of a peer are untrusted: dd_frame_decode accepts only frames with
 * consistent fields; the receiver checks them against its state (known ids, enough credit). */
#ifndef DD_TRANSPORT_FRAME_H
#define DD_TRANSPORT_FRAME_H

#include "core/bytes.h"
#include "core/status.h"
#include "transport/context.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define DD_FRAME_SHORT_NBYTES 40u
#define DD_FRAME_NBYTES 88u                       /* the long header */
#define DD_FRAME_EAGER_MAX ((size_t)64 << 10)     /* payload of EAGER */
#define DD_FRAME_FRAGMENT_MAX ((size_t)256 << 10) /* payload of DATA */

/* The order is part of the wire format. */
typedef enum dd_frame_type {
    DD_FRAME_EAGER = 1, /* a whole message; the payload is its bytes */
    DD_FRAME_RTS,       /* request to send: the message waits at its sender under `id` */
    DD_FRAME_CTS,       /* clear to send: its bytes may be sent */
    DD_FRAME_DATA,      /* a part of it, from `offset` on */
    DD_FRAME_REFUSE,    /* refused for `reason`; nbytes and signature are the receive's */
    DD_FRAME_CANCEL,    /* its sender has cancelled it */
    DD_FRAME_CREDIT,    /* nothing except credit */
    DD_FRAME_ABORT,     /* a rank has aborted; the payload is its dd_cause */
    DD_FRAME_QUESTION,  /* a query for a rank's progress */
    /* Progress: inside collective `tag` with this signature if `offset` is 1, after it if 0. If
     * data to another rank is lost, `id` is that rank plus 1, `nbytes` the size; else both are
     * 0. */
    DD_FRAME_ANSWER,
    DD_FRAME_GOODBYE, /* a rank has closed its context */
    DD_FRAME_BYE,     /* a process closes its engine */
} dd_frame_type;

typedef enum dd_refusal {
    DD_REFUSED_TOO_LARGE = 1, /* the receive has less room */
    DD_REFUSED_MISMATCH,      /* the receive is of another operation, or P2P of another dtype */
    DD_REFUSED_CLOSED,        /* the receiver has closed its context */
} dd_refusal;

/* The wire format of the long header. Numbers are little-endian, as on this host. */
typedef struct dd_frame {
    uint8_t magic;  /* set by the codec */
    uint8_t type;   /* dd_frame_type */
    uint8_t kind;   /* dd_message_kind */
    uint8_t reason; /* dd_refusal, for REFUSE */
    uint32_t channel;
    uint64_t context;
    uint64_t tag;
    uint64_t id;      /* rendezvous id: RTS and its later frames */
    uint64_t offset;  /* of DATA; see ANSWER */
    uint64_t nbytes;  /* size of the whole message; for REFUSE, the room */
    uint32_t payload; /* bytes that follow the header */
    uint32_t credit;  /* bytes of eager messages that the sender of this frame no longer holds */
    uint32_t source;  /* rank of the sender */
    uint32_t target;  /* rank of the receiver */
    dd_signature signature;
} dd_frame;

/* Encode a header and return its size. Fields that the frame's type does not use must be zero. */
size_t dd_frame_encode(const dd_frame *frame, uint8_t out[DD_FRAME_NBYTES]);
/* Return the size of the header with this first byte. */
size_t dd_frame_header_nbytes(uint8_t first);
/* Decode a header, all of which must be at `in`. DD_PROTOCOL names the invalid field. */
dd_status dd_frame_decode(const uint8_t *in, dd_frame *frame, dd_error *err) DD_MUST_CHECK;

/* Return a name such as "EAGER"; never NULL. */
const char *dd_frame_type_name(dd_frame_type type);

#endif
