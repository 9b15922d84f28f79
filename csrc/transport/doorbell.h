/* A doorbell: how processes of one host reach each other without a connection.
 *
 * Every engine has a datagram socket in the abstract Unix namespace, named after its uid, and looks at all memory that it
 * shares with others when something comes. What comes is mostly a ring, which says just that. A rank may also ask another
 * for a descriptor (an arena, a region of memory), and be sent it. Nothing here blocks, and nothing is certain to arrive: a
 * full queue has a ring in it already, and a rank that has asked in vain asks again. */
#ifndef DD_TRANSPORT_DOORBELL_H
#define DD_TRANSPORT_DOORBELL_H

#include "net/sock.h"
#include "transport/card.h"

typedef enum dd_bell_kind {
    DD_BELL_RING, /* also whatever makes no sense, and what processes of other users say */
    DD_BELL_WANT, /* `source` asks `target` for what it calls `word` */
    DD_BELL_PASS, /* ... and gets it */
    DD_BELL_NONE, /* ... and never will */
} dd_bell_kind;

/* Up to `fd` as it is sent, in the order of bytes of this host. */
typedef struct dd_bell_note {
    uint64_t kind;    /* dd_bell_kind */
    uint64_t context; /* id of the group */
    uint64_t word;
    uint32_t source; /* ranks of the group */
    uint32_t target;
    int fd; /* PASS, owned by the receiver; DD_SOCK_FD_REFUSED: this process had no room for it. Else -1 */
} dd_bell_note;

/* The socket of the engine with this uid; to be closed by dd_sock_close. */
dd_status dd_doorbell_open(const dd_uid *own, int *fd, dd_error *err) DD_MUST_CHECK;

/* Whether nobody has a doorbell of that name any more: it goes with its process. */
bool dd_doorbell_is_gone(const dd_uid *whose);

/* `own_fd` is the caller's own doorbell. */
void dd_doorbell_ring(int own_fd, const dd_uid *whose);
/* DD_IO_AGAIN: its queue is full. The descriptor stays the caller's. */
dd_io dd_doorbell_send(int own_fd, const dd_uid *whose, const dd_bell_note *note);
/* The next that has come; DD_IO_AGAIN: there is none. */
dd_io dd_doorbell_take(int own_fd, dd_bell_note *note);

#endif
