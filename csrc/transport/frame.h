/* Frames: the units of data on a link. A frame is a header and, for some types, a payload. A
 * complete message that is small has a short header if its signature is empty or belongs to a
 * point-to-point message: the omitted fields are zero or follow from the others.
 *
 * All functions are pure. A peer's bytes are untrusted: dd_frame_decode accepts only headers with
 * consistent fields; the receiver must check them against its state (known ids, credit). */
#ifndef DD_TRANSPORT_FRAME_H
#define DD_TRANSPORT_FRAME_H

#include "core/bytes.h"
#include "core/status.h"
#include "transport/context.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define DD_FRAME_SHORT_NBYTES 40u
#define DD_FRAME_NBYTES 88u                       /* size of a long header in bytes */
#define DD_FRAME_EAGER_MAX ((size_t)64 << 10)     /* limit of an EAGER frame's payload in bytes */
#define DD_FRAME_FRAGMENT_MAX ((size_t)256 << 10) /* limit of a DATA frame's payload in bytes */

/* Types of frames. The values are part of the wire format. */
typedef enum dd_frame_type {
    DD_FRAME_EAGER = 1, /* a complete message, which is the payload */
    DD_FRAME_RTS,       /* request to send: message `id` waits at its sender */
    DD_FRAME_CTS,       /* clear to send: the receiver of message `id` is ready for DATA */
    DD_FRAME_DATA,      /* a part of message `id`; `offset` is its position in the message */
    DD_FRAME_REFUSE,    /* message `id` is refused for `reason`; nbytes, signature: the receive's */
    DD_FRAME_CANCEL,    /* the sender has cancelled message `id` */
    DD_FRAME_CREDIT,    /* a frame that only returns credit */
    DD_FRAME_ABORT,     /* a rank has aborted its group; the payload is an encoded dd_cause */
    DD_FRAME_QUESTION,  /* a query for the receiving rank's progress */
    /* The answer to a QUESTION. If `offset` is 1, the rank is inside collective `tag` with this
     * signature; if 0, it has finished that collective. If the network loses its data to a rank,
     * `id` is that rank plus 1 and `nbytes` the size of the data; otherwise both fields are 0. */
    DD_FRAME_ANSWER,
    DD_FRAME_GOODBYE, /* a rank has closed its context */
    DD_FRAME_BYE,     /* a process has closed its engine */
} dd_frame_type;

typedef enum dd_refusal {
    DD_REFUSED_TOO_LARGE = 1, /* the message is larger than the memory of the receive */
    DD_REFUSED_MISMATCH,      /* the receive has another operation or point-to-point dtype */
    DD_REFUSED_CLOSED,        /* the receiver has closed its context */
} dd_refusal;

/* A frame's header, as the long header on the wire. Numbers are little-endian, as on this host. */
typedef struct dd_frame {
    uint8_t magic;  /* set by dd_frame_encode */
    uint8_t type;   /* a dd_frame_type */
    uint8_t kind;   /* a dd_message_kind */
    uint8_t reason; /* in REFUSE: a dd_refusal; otherwise 0 */
    uint32_t channel;
    uint64_t context;
    uint64_t tag;
    uint64_t id;      /* in RTS and later frames: id of a message that is sent on request */
    uint64_t offset;  /* in DATA: position in the message; in ANSWER: 1 if inside a collective */
    uint64_t nbytes;  /* size of the whole message; in REFUSE: size of the receive's memory */
    uint32_t payload; /* number of payload bytes after the header */
    uint32_t credit;  /* credit that this frame returns: eager bytes that the sender released */
    uint32_t source;  /* number of the rank that sends this frame */
    uint32_t target;  /* number of the rank that receives this frame */
    dd_signature signature;
} dd_frame;

/* Encode a header and return its size in bytes. Fields that its type does not use must be zero. */
size_t dd_frame_encode(const dd_frame *frame, uint8_t out[DD_FRAME_NBYTES]);
/* Return the size in bytes of a header whose first byte is `first`. */
size_t dd_frame_header_nbytes(uint8_t first);
/* Decode a header, which must be complete. DD_PROTOCOL names the invalid field. */
dd_status dd_frame_decode(const uint8_t *in, dd_frame *frame, dd_error *err) DD_MUST_CHECK;

/* Return the name of a frame type, such as "EAGER"; never NULL. */
const char *dd_frame_type_name(dd_frame_type type);

#endif
