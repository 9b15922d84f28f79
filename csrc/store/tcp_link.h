/* One connection of a TCPStore client: opening, sending and receiving. It is not thread-safe. */
#ifndef DD_STORE_TCP_LINK_H
#define DD_STORE_TCP_LINK_H

#include "core/wait_policy.h"
#include "net/addr.h"
#include "net/seal.h"
#include "store/tcp_protocol.h"

/* Facts about a server that all connections of a client share. */
typedef struct tcp_target {
    /* the next fields are const after init */
    const char *host;
    uint16_t port;
    dd_bytes secret;
    bool is_encryption_off;
    dd_addr_list addrs;
    /* The first connection sets the following fields, which are const afterwards. */
    bool is_known;
    bool is_extended;     /* true for a dldist server, to which there is one connection with tags */
    dd_addr own_addr;     /* this end's address, which other hosts may be able to reach */
    dd_tcp_limits limits; /* limits of a dldist server */
} tcp_target;

typedef struct tcp_link {
    int fd;           /* -1 if the connection is closed */
    dd_seal *seal;    /* NULL if the connection is not encrypted */
    dd_spin spin;     /* adaptive polling for a reply, before the thread sleeps */
    bool is_extended; /* true for a dldist server, whose replies begin with a status */
    /* true if the server closed the connection during the handshake because of too many clients */
    bool is_rejected;
    dd_blob in; /* bytes that were received and not consumed yet */
} tcp_link;

void tcp_link_init(tcp_link *link);
/* Close and free a connection. In a forked child (is_forked), only free it, because the descriptor
 * is already closed. NULL is ignored. */
void tcp_link_destroy(tcp_link *link, bool is_forked);

/* Connect and do the handshake; while no server answers, retry until the deadline. The error of
 * DD_NETWORK_TIMED_OUT has the last reason. DD_AUTH and DD_PROTOCOL are not retried. */
dd_status tcp_link_open(tcp_link *link, tcp_target *target, const dd_wait *wait, dd_error *err) DD_MUST_CHECK;

/* Send as many bytes as the socket accepts without blocking, and add their number to *nsent. */
dd_status tcp_link_try_send(tcp_link *link, dd_bytes bytes, size_t *nsent, dd_error *err) DD_MUST_CHECK;

/* Append received bytes to link->in, and set *is_any to true if there were any. Polls for a short
 * time first: an answer that arrives during the poll saves two context switches. */
dd_status tcp_link_try_receive(tcp_link *link, bool *is_any, dd_error *err) DD_MUST_CHECK;

/* The state of a reply that is being received. */
typedef struct tcp_reply {
    dd_tcp_op op;
    uint64_t repeats;     /* how often the pattern of the reply is repeated */
    size_t head;          /* length of the head: of tag, status and length; of a status; or 0 */
    dd_tcp_scan scan;     /* must be zeroed initially */
    dd_tcp_reader reader; /* reads the fields of the reply; set once the reply is complete */
} tcp_reply;

/* Check whether `in`, which must contain nothing else, has the complete reply; if not, call it with
 * more bytes. An error reported by the server is returned unchanged; DD_PROTOCOL if malformed. */
dd_status tcp_reply_read(tcp_reply *reply, dd_bytes in, bool *is_whole, dd_error *err) DD_MUST_CHECK;

/* Send a request without a tag and receive its reply, which points into link->in until the next
 * call. Any failure, except an error that the server reports, closes the connection. */
dd_status tcp_link_exchange(tcp_link *link, dd_bytes request, tcp_reply *reply, const dd_wait *wait,
                            dd_error *err) DD_MUST_CHECK;

#endif
