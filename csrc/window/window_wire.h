/* What ranks tell each other about windows. Pure functions; what comes from a peer is user input.
 *
 * A *card* is what a rank says of itself while a window is opened: one for each rank, by all_gather.
 *
 * A *note* is a message of kind WINDOW. The head of the message is the note; its bytes are the note's data and go straight to their
 * place. The notes of one rank to another are taken one at a time, each when the data of the one before it are there. So a note finds
 * everything in place that was put before it.
 *
 * A note that asks for something has an id. Its *answer* is a message of kind WINDOW on a channel of its own, with the id as tag and
 * the size that was asked for. An answer of another size is a refusal: the window is closed there. */
#ifndef DD_WINDOW_WINDOW_WIRE_H
#define DD_WINDOW_WINDOW_WIRE_H

#include "core/bytes.h"
#include "transport/context.h"

#define DD_WINDOW_CARD_NBYTES ((size_t)48)
#define DD_WINDOW_NO_CHANNEL UINT32_MAX
#define DD_WINDOW_ANSWERS (UINT32_MAX - 1) /* the channel of answers */
#define DD_WINDOW_REFUSAL_NBYTES(wanted) ((wanted) == 0 ? (size_t)1 : (size_t)0)

/* Memory inside a region; id 0: in none. */
typedef struct dd_window_spot {
    uint32_t region;
    uint64_t offset;
} dd_window_spot;

typedef struct dd_window_card {
    dd_status status; /* DD_OK, or why this rank cannot open a window */
    int sys_errno;    /* of the system call behind that, or 0 */
    uint32_t pad_region;
    uint64_t window; /* what this rank would number it, not 0; rank 0's counts */
    uint64_t pad_nbytes;
    uint64_t nbytes;
    dd_window_spot data;
} dd_window_card;

void dd_window_card_encode(const dd_window_card *card, uint8_t out[DD_WINDOW_CARD_NBYTES]);
/* DD_PROTOCOL, naming the field. */
dd_status dd_window_card_decode(const uint8_t in[DD_WINDOW_CARD_NBYTES], dd_window_card *card,
                                dd_error *err) DD_MUST_CHECK;

/* The order is part of the wire format. */
typedef enum dd_window_note_type {
    DD_WINDOW_NOTHING,
    DD_WINDOW_PUT,    /* data for offset, and then a signal on channel */
    DD_WINDOW_GET,    /* answer with nbytes from offset, when what I have put before is there */
    DD_WINDOW_ALONE,  /* signal on channel when all my signals on it are taken, and answer then */
    DD_WINDOW_DROP,   /* do not do what I have asked for by the ALONE of this id */
    DD_WINDOW_CLOSED, /* this rank has closed the window */
} dd_window_note_type;

typedef struct dd_window_note {
    dd_window_note_type type;
    uint32_t channel; /* PUT: or none; ALONE */
    uint32_t id;      /* GET, ALONE, DROP; not 0 */
    uint64_t window;
    uint64_t offset; /* PUT, GET */
    uint64_t nbytes; /* GET: wanted; PUT: of data */
} dd_window_note;

/* Every field that a type has no use for is zero. */
dd_request dd_window_note_encode(const dd_window_note *note);
/* DD_PROTOCOL, naming the fault. */
dd_status dd_window_note_decode(const dd_request *request, dd_window_note *note, dd_error *err) DD_MUST_CHECK;

#endif
