/* Frames: what travels over a link. A header, and a payload for some types. The header of a whole small message is short: where it has no
 * signature, or that of a message from rank to rank, all that is missing is zero or follows from the rest.
 *
 * Pure functions. What comes from a peer is user input: dd_frame_decode accepts only frames whose fields
 * make sense by themselves; whether they make sense now (an id that is known, a credit that is kept) is the
 * receiver's to decide. */
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
    DD_FRAME_RTS,       /* a message that waits at its sender under `id` */
    DD_FRAME_CTS,       /* its bytes may come */
    DD_FRAME_DATA,      /* some of them, from `offset` */
    DD_FRAME_REFUSE,    /* they may not: `reason` says why, nbytes and signature what would have been fine */
    DD_FRAME_CANCEL,    /* they will not come, or no more of them */
    DD_FRAME_CREDIT,    /* nothing but the credit */
    DD_FRAME_ABORT,     /* a rank has given up; the payload is its dd_cause */
    DD_FRAME_QUESTION,  /* how far are you? */
    /* At collective `tag` with this signature; `offset` is 1 inside of it, 0 after it. Where the network loses what this rank sends to
     * another: `id` is that rank and one, `nbytes` how many bytes; else both are 0. */
    DD_FRAME_ANSWER,
    DD_FRAME_GOODBYE, /* a rank has closed its context */
    DD_FRAME_BYE,     /* a process closes its engine */
} dd_frame_type;

typedef enum dd_refusal {
    DD_REFUSED_TOO_LARGE = 1, /* the receive has less room */
    DD_REFUSED_MISMATCH,      /* the receive belongs to another operation; of P2P: it has another dtype */
    DD_REFUSED_CLOSED,        /* the receiver has closed its context */
} dd_refusal;

/* As it is on the wire with a long header: numbers are little endian, as this host's are. */
typedef struct dd_frame {
    uint8_t magic;  /* the codec's own */
    uint8_t type;   /* dd_frame_type */
    uint8_t kind;   /* dd_message_kind */
    uint8_t reason; /* dd_refusal; REFUSE */
    uint32_t channel;
    uint64_t context;
    uint64_t tag;
    uint64_t id;      /* RTS and what follows it */
    uint64_t offset;  /* DATA; ANSWER */
    uint64_t nbytes;  /* of the whole message; REFUSE: room */
    uint32_t payload; /* bytes that follow the header */
    uint32_t credit;  /* bytes of eager messages that the sender of this frame has got rid of */
    uint32_t source;  /* rank of the sender */
    uint32_t target;  /* rank of the receiver */
    dd_signature signature;
} dd_frame;

/* Every field of a type that has no use for it is zero. Returns how many bytes the header has. */
size_t dd_frame_encode(const dd_frame *frame, uint8_t out[DD_FRAME_NBYTES]);
/* How many bytes the header has that begins with this one. */
size_t dd_frame_header_nbytes(uint8_t first);
/* `in` has as many bytes as its header. DD_PROTOCOL, naming the field. */
dd_status dd_frame_decode(const uint8_t *in, dd_frame *frame, dd_error *err) DD_MUST_CHECK;

/* "EAGER"; never NULL. */
const char *dd_frame_type_name(dd_frame_type type);

#endif
