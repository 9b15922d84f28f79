/* One connection of a TCPStore client: opening it, and its bytes. Not thread-safe. */
#ifndef DD_STORE_TCP_LINK_H
#define DD_STORE_TCP_LINK_H

#include "core/wait_policy.h"
#include "net/addr.h"
#include "net/seal.h"
#include "store/tcp_protocol.h"

/* The server as a client knows it; shared by its links. */
typedef struct tcp_target {
    /* const after init */
    const char *host;
    uint16_t port;
    dd_bytes secret;
    bool is_encryption_off;
    dd_addr_list addrs;
    /* learned by the first link that opens, const from then on */
    bool is_known;
    bool is_extended; /* the server is ours: its one link is tagged */
    dd_addr own_addr; /* our end of the connection: an address of this machine that others may reach, too */
    dd_tcp_limits limits; /* extended: what it takes */
} tcp_target;

typedef struct tcp_link {
    int fd;           /* -1: closed */
    dd_seal *seal;    /* NULL: what goes over it is not sealed */
    dd_spin spin;     /* for polling for a reply before sleeping */
    bool is_extended; /* the server is ours: in the hand-shake its replies begin with a status */
    /* the server took the connection and closed it during the hand-shake: there were too many */
    bool is_turned_away;
    dd_blob in; /* what has come and is not taken yet */
} tcp_link;

void tcp_link_init(tcp_link *link);
/* Closes and frees; in a forked child (is_forked) only frees, since the descriptor is closed already. NULL
 * is fine. */
void tcp_link_destroy(tcp_link *link, bool is_forked);

/* Connects and shakes hands, trying again until the deadline while nobody answers. DD_NETWORK_TIMED_OUT names
 * host, port and the last reason; DD_AUTH and DD_PROTOCOL come at once. */
dd_status tcp_link_open(tcp_link *link, tcp_target *target, const dd_wait *wait, dd_error *err) DD_MUST_CHECK;

/* Sends what the socket takes at once; *nsent counts on. */
dd_status tcp_link_try_send(tcp_link *link, dd_bytes bytes, size_t *nsent, dd_error *err) DD_MUST_CHECK;

/* Adds to `in` what has come; *is_any tells whether there was anything. Before it says no it polls for a while: an answer
 * that comes meanwhile saves two context switches. */
dd_status tcp_link_try_receive(tcp_link *link, bool *is_any, dd_error *err) DD_MUST_CHECK;

/* How far a reply has come. */
typedef struct tcp_reply {
    dd_tcp_op op;
    uint64_t repeats;     /* how often its pattern comes */
    size_t head;          /* bytes before it: a tag, a status and a length; a status; or none */
    dd_tcp_scan scan;     /* zeroed at first */
    dd_tcp_reader reader; /* when it is whole: at its fields */
} tcp_reply;

/* Looks for a whole reply in `in`, which holds nothing else; call again when more has come. When it is whole, what the
 * server reports is returned as it is. DD_PROTOCOL when it is something else. */
dd_status tcp_reply_read(tcp_reply *reply, dd_bytes in, bool *is_whole, dd_error *err) DD_MUST_CHECK;

/* Without tags: a request and its reply, which borrows from `in` until the next. On any failure but an error that the
 * server reports the link is closed: only a new one starts clean. */
dd_status tcp_link_ask(tcp_link *link, dd_bytes request, tcp_reply *reply, const dd_wait *wait,
                       dd_error *err) DD_MUST_CHECK;

#endif
