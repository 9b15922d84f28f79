/* A doorbell: datagrams between the processes of one host, without a connection.
 *
 * Every engine has a datagram socket in the abstract Unix namespace, named after its uid. On any
 * datagram it checks all memory shared with other processes; most datagrams are a bare ring. A rank
 * may also request a descriptor (an arena, a region of memory), which the answer carries. Nothing
 * here blocks or is sure to arrive: a full queue has a ring already, and requests are repeated. */
#ifndef DD_TRANSPORT_DOORBELL_H
#define DD_TRANSPORT_DOORBELL_H

#include "net/sock.h"
#include "transport/card.h"

typedef enum dd_bell_kind {
    DD_BELL_RING, /* also stands for malformed datagrams, and any from processes of other users */
    DD_BELL_WANT, /* `source` requests the descriptor that `target` knows as `fd_key` */
    DD_BELL_PASS, /* the answer: the descriptor */
    DD_BELL_NONE, /* the answer: there will be no descriptor */
} dd_bell_kind;

/* Sent as bytes up to `fd`, in this host's byte order. */
typedef struct dd_bell_datagram {
    uint64_t kind;    /* dd_bell_kind */
    uint64_t context; /* id of the group */
    uint64_t fd_key;
    uint32_t source; /* ranks of the group */
    uint32_t target;
    int fd; /* PASS: owned by the receiver; DD_SOCK_FD_REFUSED if it had no room. Else -1 */
} dd_bell_datagram;

/* Open the socket of the engine with this uid. Close it with dd_sock_close. */
dd_status dd_doorbell_open(const dd_uid *own, int *fd, dd_error *err) DD_MUST_CHECK;

/* Return true if no socket has this name: its process has ended. */
bool dd_doorbell_is_closed(const dd_uid *whose);

/* Send a ring. `own_fd` is the caller's own doorbell. */
void dd_doorbell_ring(int own_fd, const dd_uid *whose);
/* Send a note. DD_IO_AGAIN if the receiver's queue is full. The descriptor stays the caller's. */
dd_io dd_doorbell_send(int own_fd, const dd_uid *whose, const dd_bell_datagram *datagram);
/* Receive the next datagram; DD_IO_AGAIN if there is none. */
dd_io dd_doorbell_take(int own_fd, dd_bell_datagram *datagram);

#endif
