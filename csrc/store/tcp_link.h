/* One connection of a TCPStore client: opening, sending and receiving. Not thread-safe. */
#ifndef DD_STORE_TCP_LINK_H
#define DD_STORE_TCP_LINK_H

#include "core/wait_policy.h"
#include "net/addr.h"
#include "net/seal.h"
#include "store/tcp_protocol.h"

/* The client's data about a server, which its connections share. */
typedef struct tcp_target {
    /* const after init */
    const char *host;
    uint16_t port;
    dd_bytes secret;
    bool is_encryption_off;
    dd_addr_list addrs;
    /* The following fields are set by the first connection, and const after that. */
    bool is_known;
    bool is_extended;     /* true for a dldist server, whose one connection has tags */
    dd_addr own_addr;     /* this end's address, which other hosts may be able to reach */
    dd_tcp_limits limits; /* limits of a dldist server */
} tcp_target;

typedef struct tcp_link {
    int fd;           /* -1 if it is closed */
    dd_seal *seal;    /* NULL if the connection is not encrypted */
    dd_spin spin;     /* adaptive polling for a reply before the thread sleeps */
    bool is_extended; /* a dldist server: in the handshake its replies begin with a status */
    /* the server closed the connection during the handshake because it has too many clients */
    bool is_rejected;
    dd_blob in; /* received bytes that were not consumed */
} tcp_link;

void tcp_link_init(tcp_link *link);
/* Close the connection and free it. In a forked child (is_forked) only free it, because the
 * descriptor is already closed. NULL is allowed. */
void tcp_link_destroy(tcp_link *link, bool is_forked);

/* Connect and do the handshake, retrying until the deadline while no server answers.
 * DD_NETWORK_TIMED_OUT has the last reason; DD_AUTH and DD_PROTOCOL are not retried. */
dd_status tcp_link_open(tcp_link *link, tcp_target *target, const dd_wait *wait, dd_error *err) DD_MUST_CHECK;

/* Send as many bytes as the socket accepts without waiting, and add their number to *nsent. */
dd_status tcp_link_try_send(tcp_link *link, dd_bytes bytes, size_t *nsent, dd_error *err) DD_MUST_CHECK;

/* Append received bytes to `in`; *is_any is true if there were any. This polls first: an answer
 * that arrives during the poll saves two context switches. */
dd_status tcp_link_try_receive(tcp_link *link, bool *is_any, dd_error *err) DD_MUST_CHECK;

/* The progress of receiving a reply. */
typedef struct tcp_reply {
    dd_tcp_op op;
    uint64_t repeats;     /* number of repeats of the reply's pattern */
    size_t head;          /* length of the head: tag, status and length; or status; or 0 */
    dd_tcp_scan scan;     /* must be zeroed initially */
    dd_tcp_reader reader; /* reader of the reply's fields, set once the reply is complete */
} tcp_reply;

/* Check whether `in`, which must contain nothing else, has the complete reply; call this again with
 * more bytes. An error that the server reports is returned unchanged; DD_PROTOCOL if malformed. */
dd_status tcp_reply_read(tcp_reply *reply, dd_bytes in, bool *is_whole, dd_error *err) DD_MUST_CHECK;

/* Send a request without a tag and receive its reply, which borrows from `in` until the next call.
 * Any failure, except an error that the server reports, closes the connection. */
dd_status tcp_link_exchange(tcp_link *link, dd_bytes request, tcp_reply *reply, const dd_wait *wait,
                            dd_error *err) DD_MUST_CHECK;

#endif
