/* Messages of ranks about windows. Pure functions; a peer's bytes are user input.
 *
 * A *card* describes a rank's part while a window is opened: one for each rank, by all_gather.
 *
 * A *note* is a message of kind WINDOW. The head of the message is the note; its bytes are the
 * note's data, which go straight to their place. The notes of one rank to another are taken one at
 * a time, each after the previous one's data. So all earlier puts are in place when a note is
 * taken.
 *
 * A note that is a question has an id. Its *answer* is a message of kind WINDOW on a channel of
 * its own, with the id as tag and the requested size; another size is a refusal: the window is
 * closed. */
#ifndef DD_WINDOW_WINDOW_WIRE_H
#define DD_WINDOW_WINDOW_WIRE_H

#include "core/bytes.h"
#include "transport/context.h"

#define DD_WINDOW_CARD_NBYTES ((size_t)48)
#define DD_WINDOW_NO_CHANNEL UINT32_MAX
#define DD_WINDOW_ANSWERS (UINT32_MAX - 1) /* the channel of answers */
#define DD_WINDOW_REFUSAL_NBYTES(wanted) ((wanted) == 0 ? (size_t)1 : (size_t)0)

/* Memory inside a region; id 0 if it is in none. */
typedef struct dd_window_location {
    uint32_t region;
    uint64_t offset;
} dd_window_location;

typedef struct dd_window_card {
    dd_status status; /* DD_OK, or why this rank cannot open a window */
    int sys_errno;    /* of the system call that failed, or 0 */
    uint32_t pad_region;
    uint64_t window; /* id at this rank, not 0; rank 0's is used */
    uint64_t pad_nbytes;
    uint64_t nbytes;
    dd_window_location data;
} dd_window_card;

void dd_window_card_encode(const dd_window_card *card, uint8_t out[DD_WINDOW_CARD_NBYTES]);
/* DD_PROTOCOL if the card is malformed; the error names the field. */
dd_status dd_window_card_decode(const uint8_t in[DD_WINDOW_CARD_NBYTES], dd_window_card *card,
                                dd_error *err) DD_MUST_CHECK;

/* The order is part of the wire format. */
typedef enum dd_window_note_type {
    DD_WINDOW_NOTHING,
    DD_WINDOW_PUT,    /* data for offset, then a signal on channel */
    DD_WINDOW_GET,    /* answer with nbytes from offset, once earlier puts are in place */
    DD_WINDOW_ALONE,  /* signal once the sender's earlier ones are taken, then answer */
    DD_WINDOW_DROP,   /* withdraw the ALONE with this id */
    DD_WINDOW_CLOSED, /* the sender has closed the window */
} dd_window_note_type;

typedef struct dd_window_note {
    dd_window_note_type type;
    uint32_t channel; /* ALONE, and PUT unless DD_WINDOW_NO_CHANNEL */
    uint32_t id;      /* GET, ALONE, DROP; not 0 */
    uint64_t window;
    uint64_t offset; /* PUT, GET */
    uint64_t nbytes; /* GET: requested; PUT: size of data */
} dd_window_note;

/* Fields that the type does not use must be zero. */
dd_request dd_window_note_encode(const dd_window_note *note);
/* DD_PROTOCOL if the note is malformed; the error names the fault. */
dd_status dd_window_note_decode(const dd_request *request, dd_window_note *note, dd_error *err) DD_MUST_CHECK;

#endif
