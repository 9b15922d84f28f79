/* A doorbell: datagrams between the processes of one host, without connections.
 *
 * Every engine has a datagram socket in the abstract Unix namespace, named after its uid. An engine
 * that receives a datagram checks all memory that it shares with other processes; most datagrams
 * only ring, and carry no data. A rank may also request a file descriptor (of an arena or a region
 * of memory); the answer carries the descriptor. No function here blocks, and no datagram is sure
 * to arrive: a receiver whose queue is full has a ring in it already, and requests are repeated. */
#ifndef DD_TRANSPORT_DOORBELL_H
#define DD_TRANSPORT_DOORBELL_H

#include "net/sock.h"
#include "transport/endpoint.h"

typedef enum dd_bell_kind {
    DD_BELL_RING, /* check shared memory; also the kind of malformed and foreign datagrams */
    DD_BELL_WANT, /* rank `source` requests the descriptor that rank `target` knows as `fd_key` */
    DD_BELL_PASS, /* answer to a request: carries the descriptor */
    DD_BELL_NONE, /* answer to a request: there will be no descriptor */
} dd_bell_kind;

/* The bytes before `fd` are sent, in this host's byte order. */
typedef struct dd_bell_datagram {
    uint64_t kind;    /* a dd_bell_kind */
    uint64_t context; /* id of the group */
    uint64_t fd_key;
    uint32_t source; /* the group's rank that sends the datagram */
    uint32_t target;
    /* In PASS, the descriptor, owned by the receiver; DD_SOCK_FD_REFUSED if this process had no
     * room for it. Otherwise -1. */
    int fd;
} dd_bell_datagram;

/* Open the datagram socket of the engine with uid `own_uid`. Close it with dd_sock_close. */
dd_status dd_doorbell_open(const dd_uid *own_uid, int *fd, dd_error *err) DD_MUST_CHECK;

/* Return true if no socket has the name of this uid: the process has ended. */
bool dd_doorbell_is_closed(const dd_uid *uid);

/* Send a ring to the engine `uid`. `own_fd` is the caller's own doorbell. */
void dd_doorbell_ring(int own_fd, const dd_uid *uid);
/* Send a datagram. Returns DD_IO_AGAIN if the receiver's queue is full. A descriptor in the
 * datagram stays the caller's. */
dd_io dd_doorbell_send(int own_fd, const dd_uid *uid, const dd_bell_datagram *datagram);
/* Receive the next datagram. Returns DD_IO_AGAIN if there is none. */
dd_io dd_doorbell_take(int own_fd, dd_bell_datagram *datagram);

#endif
