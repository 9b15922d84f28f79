/* One connection of a TCPStore client: opening, sending and receiving. Not thread-safe. */
#ifndef DD_STORE_TCP_LINK_H
#define DD_STORE_TCP_LINK_H

#include "core/wait_policy.h"
#include "net/addr.h"
#include "net/seal.h"
#include "store/tcp_protocol.h"

/* A client's view of the server, shared by its links. */
typedef struct tcp_target {
    /* const after init */
    const char *host;
    uint16_t port;
    dd_bytes secret;
    bool is_encryption_off;
    dd_addr_list addrs;
    /* set by the first link, const after that */
    bool is_known;
    bool is_extended;     /* a dldist server: its one link is tagged */
    dd_addr own_addr;     /* local address of the connection, which other hosts may reach as well */
    dd_tcp_limits limits; /* the server's limits, if is_extended */
} tcp_target;

typedef struct tcp_link {
    int fd;           /* -1 if it is closed */
    dd_seal *seal;    /* NULL if the link is not sealed */
    dd_spin spin;     /* for polling for a reply before sleeping */
    bool is_extended; /* a dldist server: in the handshake its replies begin with a status */
    /* the server closed the accepted connection during the handshake: too many clients */
    bool is_turned_away;
    dd_blob in; /* received bytes that are not consumed */
} tcp_link;

void tcp_link_init(tcp_link *link);
/* Close and free. In a forked child (is_forked) only free, since the descriptor is already closed.
 * NULL is allowed. */
void tcp_link_destroy(tcp_link *link, bool is_forked);

/* Connect and do the handshake, retrying until the deadline while no server answers.
 * DD_NETWORK_TIMED_OUT has the last reason; DD_AUTH and DD_PROTOCOL come without a retry. */
dd_status tcp_link_open(tcp_link *link, tcp_target *target, const dd_wait *wait, dd_error *err) DD_MUST_CHECK;

/* Send without waiting as many bytes as the socket takes, and add their number to *nsent. */
dd_status tcp_link_try_send(tcp_link *link, dd_bytes bytes, size_t *nsent, dd_error *err) DD_MUST_CHECK;

/* Append received bytes to `in`; *is_any is true if there were any. It polls first: an answer that
 * arrives during the poll saves two context switches. */
dd_status tcp_link_try_receive(tcp_link *link, bool *is_any, dd_error *err) DD_MUST_CHECK;

/* The state of receiving a reply. */
typedef struct tcp_reply {
    dd_tcp_op op;
    uint64_t repeats;     /* number of repeats of its pattern */
    size_t head;          /* length of the head: a tag, a status and a length; a status; or 0 */
    dd_tcp_scan scan;     /* zeroed initially */
    dd_tcp_reader reader; /* at the fields, once the reply is whole */
} tcp_reply;

/* Look for a whole reply in `in`, which must hold nothing else; call it again with more bytes. An
 * error that the server reports is returned as it is. DD_PROTOCOL for anything else. */
dd_status tcp_reply_read(tcp_reply *reply, dd_bytes in, bool *is_whole, dd_error *err) DD_MUST_CHECK;

/* Send an untagged request and receive its reply, which borrows from `in` until the next call. Any
 * failure, except an error that the server reports, closes the link. */
dd_status tcp_link_exchange(tcp_link *link, dd_bytes request, tcp_reply *reply, const dd_wait *wait,
                            dd_error *err) DD_MUST_CHECK;

#endif
