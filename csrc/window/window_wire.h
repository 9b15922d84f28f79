/* Encoding of the messages about windows. Pure functions; bytes from a peer are not trusted.
 *
 * A *window part* describes a rank's part of a window that is being opened. All ranks exchange their
 * window parts by all_gather.
 *
 * A *command* is a message of kind WINDOW. Its header is the command; its bytes are the command's data,
 * which are received directly into their destination. A rank handles the commands of another rank one
 * at a time, each after the previous command's data. So when it handles a command, all earlier puts are
 * in place.
 *
 * A command that is a question has an id. The *answer* is a message of kind WINDOW on a channel of its
 * own, with the id as tag and with the requested size. An answer of another size is a refusal: the
 * window is closed. */
#ifndef DD_WINDOW_WINDOW_WIRE_H
#define DD_WINDOW_WINDOW_WIRE_H

#include "core/bytes.h"
#include "transport/context.h"

#define DD_WINDOW_PART_NBYTES ((size_t)48)
#define DD_WINDOW_NO_CHANNEL UINT32_MAX
#define DD_WINDOW_ANSWERS (UINT32_MAX - 1) /* the channel of answers */
#define DD_WINDOW_REFUSAL_NBYTES(wanted) ((wanted) == 0 ? (size_t)1 : (size_t)0)

/* A position inside a region. If there is none, the region's id is 0. */
typedef struct dd_window_location {
    uint32_t region;
    uint64_t offset;
} dd_window_location;

typedef struct dd_window_part {
    dd_status status; /* DD_OK, or why this rank cannot open a window */
    int sys_errno;    /* errno of the system call that failed, or 0 */
    uint32_t pad_region;
    uint64_t window; /* the id that this rank has allocated, not 0; all ranks use rank 0's */
    uint64_t pad_nbytes;
    uint64_t nbytes;
    dd_window_location data;
    dd_dtype dtype; /* the elements of the memory */
} dd_window_part;

void dd_window_part_encode(const dd_window_part *part, uint8_t out[DD_WINDOW_PART_NBYTES]);
/* Decode a window part. If it is malformed, the error (DD_PROTOCOL) names the field. */
dd_status dd_window_part_decode(const uint8_t in[DD_WINDOW_PART_NBYTES], dd_window_part *part,
                                dd_error *err) DD_MUST_CHECK;

/* The values are part of the wire format. */
typedef enum dd_window_command_type {
    DD_WINDOW_NOTHING,
    DD_WINDOW_PUT,          /* write data at `offset`, then add a signal if `channel` is given */
    DD_WINDOW_GET,          /* question: after earlier puts, answer with nbytes from `offset` */
    DD_WINDOW_SIGNAL_ALONE, /* question: add a signal once the last is taken; then answer */
    DD_WINDOW_WITHDRAW,     /* withdraw the DD_WINDOW_SIGNAL_ALONE that has this id */
    DD_WINDOW_CLOSED,       /* the sender of this command has closed the window */
} dd_window_command_type;

typedef struct dd_window_command {
    dd_window_command_type type;
    uint32_t channel; /* PUT, SIGNAL_ALONE: channel of the signal; a PUT may have NO_CHANNEL */
    uint32_t id;      /* GET, SIGNAL_ALONE, WITHDRAW: id of the question; not 0 */
    uint64_t window;
    uint64_t offset; /* PUT, GET: position in bytes in the receiver's memory */
    uint64_t nbytes; /* PUT: bytes of data; GET: requested bytes */
} dd_window_command;

/* Encode a command. Fields that its type does not use must be zero. */
dd_request dd_window_command_encode(const dd_window_command *command);
/* Decode a command. If it is malformed, the error (DD_PROTOCOL) names the fault. */
dd_status dd_window_command_decode(const dd_request *request, dd_window_command *command,
                                   dd_error *err) DD_MUST_CHECK;

#endif
