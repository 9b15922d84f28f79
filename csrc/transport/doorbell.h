/* A doorbell: datagrams between the processes of one host, without connections.
 *
 * Every engine has a datagram socket in the abstract Unix namespace, named after its uid. An engine
 * that receives a datagram checks all memory that it shares with other processes. Most datagrams
 * only ring: they carry no data. A rank may also request a file descriptor (of an arena or a region
 * of memory), which the answer carries. No function here blocks. Datagrams may be lost: a receiver
 * whose queue is full has a ring in it, so lost rings do no harm, but requests must be repeated. */
#ifndef DD_TRANSPORT_DOORBELL_H
#define DD_TRANSPORT_DOORBELL_H

#include "net/sock.h"
#include "transport/endpoint.h"

typedef enum dd_bell_kind {
    DD_BELL_RING, /* check all shared memory; malformed and foreign datagrams count as RING too */
    DD_BELL_WANT, /* request: rank `target` must send the descriptor that it knows as `fd_key` */
    DD_BELL_PASS, /* answer to WANT: the datagram carries the descriptor */
    DD_BELL_NONE, /* answer to WANT: the descriptor does not exist */
} dd_bell_kind;

/* A datagram. The fields before `fd` are sent as they are, in the host's byte order. */
typedef struct dd_bell_datagram {
    uint64_t kind;    /* a dd_bell_kind */
    uint64_t context; /* id of the group */
    uint64_t fd_key;
    uint32_t source; /* number of the rank that sends the datagram */
    uint32_t target;
    /* In a received PASS: the descriptor, which the receiver owns, or DD_SOCK_FD_REFUSED if this
     * process had no room for it. In other datagrams: -1. */
    int fd;
} dd_bell_datagram;

/* Open the datagram socket of the engine `own_uid`. The caller must close it with dd_sock_close. */
dd_status dd_doorbell_open(const dd_uid *own_uid, int *fd, dd_error *err) DD_MUST_CHECK;

/* Return true if no doorbell with this uid exists, so the process that owned it has ended. */
bool dd_doorbell_is_closed(const dd_uid *uid);

/* Send a ring to the engine `uid`. `own_fd` must be this engine's own doorbell. */
void dd_doorbell_ring(int own_fd, const dd_uid *uid);
/* Send a datagram. Returns DD_IO_AGAIN if the receiver's queue is full. The caller keeps ownership
 * of the datagram's descriptor. */
dd_io dd_doorbell_send(int own_fd, const dd_uid *uid, const dd_bell_datagram *datagram);
/* Receive the next datagram. Returns DD_IO_AGAIN if there is no datagram. */
dd_io dd_doorbell_take(int own_fd, dd_bell_datagram *datagram);

#endif
