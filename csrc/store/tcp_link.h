/* One connection of a TCPStore client: opening it, and one request at a time over it. Not thread-safe. */
#ifndef DD_STORE_TCP_LINK_H
#define DD_STORE_TCP_LINK_H

#include "core/list.h"
#include "core/spin.h"
#include "net/addr.h"
#include "net/ring.h"
#include "store/tcp_protocol.h"

/* The server as a client knows it; shared by its links. */
typedef struct tcp_target {
    /* const after init */
    const char *host;
    uint16_t port;
    dd_bytes secret;
    dd_addr_list addrs;
    /* learned by the first link that opens, const from then on */
    bool is_known;
    bool is_extended;
    bool is_local; /* the server's Unix socket can be reached */
    dd_addr
        own_addr; /* our end of the first connection: an address of this machine that others may reach, too */
    char server_id[64];   /* extended: what it calls itself, the name of its Unix socket; "" if it has none */
    dd_tcp_limits limits; /* extended: what it takes */
} tcp_target;

typedef struct tcp_link {
    int fd;               /* -1: closed */
    dd_list list;         /* the owner's */
    unsigned nunanswered; /* requests sent since the last reply: the server may not have got to them */
    dd_spin spin;         /* for polling for a reply before sleeping */
    bool is_extended;     /* the server is ours: replies begin with a status */
    /* the server took the connection and closed it during the handshake: there were too many */
    bool is_turned_away;
    dd_ring ring;         /* open: requests go through it */
    int64_t looked_at_ns; /* when the socket was last asked whether the server lives; rings do not tell */
    bool is_fd_expected;  /* the reply to come may bring a descriptor */
    int passed_fd;        /* that came with a reply, -1 for none */
    dd_blob out;          /* the request */
    dd_blob in;           /* the reply, as far as it has come */
    /* the reply that is being received, perhaps in several calls */
    bool is_receiving;
    bool is_error; /* it reports one */
    dd_tcp_scan scan;
} tcp_link;

void tcp_link_init(tcp_link *link);
void tcp_link_close(tcp_link *link);
/* Closes and frees; in a forked child (is_forked) only frees, since the descriptor is closed already. */
void tcp_link_fini(tcp_link *link, bool is_forked);

/* Connects and shakes hands, trying again until the deadline while nobody answers. DD_NETWORK_TIMED_OUT names
 * host, port and the last reason; DD_AUTH and DD_PROTOCOL come at once. */
dd_status tcp_link_open(tcp_link *link, tcp_target *target, const dd_wait *wait, dd_error *err) DD_MUST_CHECK;

/* Asks the server of this host for a ring. A server that has none to give leaves the link as it was; on any
 * other failure the link is closed. */
void tcp_link_add_ring(tcp_link *link, const dd_wait *wait);

/* Starts a request in `out`. */
dd_tcp_writer tcp_link_begin(tcp_link *link, dd_tcp_op op, dd_error *err);

/* The length of the request in `out` so far, without the time that stands before it in a ring. */
size_t tcp_link_request_len(const tcp_link *link);

/* Sends `out`. On any failure the link is closed. */
dd_status tcp_link_send(tcp_link *link, const dd_wait *wait, dd_error *err) DD_MUST_CHECK;

/* Receives the reply to `op`, whose pattern comes `repeats` times, and lets `reader` take it apart; it stays
 * valid until the next request. An error that the server reports is returned as it is and leaves the link
 * open. At the deadline, DD_NETWORK_TIMED_OUT, or on DD_INTERRUPTED the reply is still to come and the link
 * stays open: the same call takes it up again, with what has arrived of it. Any other failure closes it. */
dd_status tcp_link_receive(tcp_link *link, dd_tcp_op op, uint64_t repeats, dd_tcp_reader *reader,
                           const dd_wait *wait, dd_error *err) DD_MUST_CHECK;

#endif
