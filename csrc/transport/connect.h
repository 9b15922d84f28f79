/* Making links: one thread per process listens, dials and runs all handshakes side by side, so that
 * slow processes delay no others.
 *
 * Two engines have one first link. If both dial, the connector's owner chooses which dial makes it,
 * and refuses the other as BUSY. A dialler that receives BUSY retries while its owner wants. */
#ifndef DD_TRANSPORT_CONNECT_H
#define DD_TRANSPORT_CONNECT_H

#include "core/wait.h"
#include "core/wait_policy.h"
#include "transport/card.h"
#include "transport/link.h"

typedef struct dd_connector dd_connector;

typedef struct dd_connect_options {
    const char *ifnames; /* see dd_card_find_addrs; "" for any */
    uint16_t first_port; /* listen on a port of this range; 0, 0 for any */
    uint16_t last_port;
    bool is_shm_disabled;   /* never use shared memory */
    int nlanes;             /* TCP connections per peer, >= 1: lane 0 is the first link */
    size_t ring_nbytes;     /* size of each ring of a shared memory link; a power of two */
    const char *congestion; /* TCP_CONGESTION, "" for the system's */
    dd_bytes secret;        /* both sides prove that they know it; empty for none */
    bool is_encryption_off; /* otherwise TCP is encrypted if there is a secret */
    int64_t timeout_ns;     /* of a handshake with a process that has connected to this one */
    dd_spin_policy waiting; /* of the threads that drive the engine */
} dd_connect_options;

/* Callbacks to the owner, on the connector's thread, without its lock held. */
typedef struct dd_connect_handler {
    void *ctx;
    /* A process that claims uid `peer`, and has proved that it knows the secret if there is one,
     * wants a link (lane 0). Return true to accept it: on_accepted or on_accept_failed follows,
     * unless the connector is closed before. Return false to refuse it as BUSY. */
    bool (*may_accept)(void *ctx, const dd_uid *peer);
    /* An accepted link could not be made: on_accepted will not be called for it. */
    void (*on_accept_failed)(void *ctx, const dd_uid *peer);
    /* Another process has dialled a link, which the callee owns. `peer` is a claim: any process
     * with the secret can claim any uid (without a secret, any process can). 0 <= lane < nlanes. A
     * peer can make any number of links, also without lane 0: close the unwanted ones. */
    void (*on_accepted)(void *ctx, const dd_uid *peer, int lane, dd_link *link);
    /* Return true if a dial of lane 0 is still wanted. Called before the hello is sent, and with
     * is_busy after each BUSY of the peer. If false, the dial ends without another callback. */
    bool (*wants_dial)(void *ctx, const dd_uid *peer, uint64_t number, bool is_busy);
    /* A dial has made a link; the callee owns it. The uid is a claim, as in on_accepted. */
    void (*on_dialled)(void *ctx, const dd_uid *peer, int lane, uint64_t number, dd_link *link);
    /* A dial has failed. `error` has each address tried with its failure, and the blamed rank's host
     * and pid. DD_AUTH, DD_PROTOCOL, DD_NETWORK_TIMED_OUT at the deadline, or DD_NETWORK. */
    void (*on_dial_failed)(void *ctx, const dd_uid *peer, int lane, uint64_t number, const dd_error *error);
} dd_connect_handler;

/* Open a connector and listen. Sets card->has_unix and *addrs (`first`: see dd_card_find_addrs).
 * `card` and what `options` points to must not change until close. The handler may be called before
 * this returns. DD_INVALID_ARGUMENT, or DD_NETWORK naming the ports. */
dd_status dd_connector_open(const dd_connect_options *options, dd_card *card, const dd_addr *first,
                            const dd_connect_handler *handler, dd_addr_list *addrs, dd_connector **connector,
                            dd_error *err) DD_MUST_CHECK;

/* Start to dial a lane of a peer; call it for each lane. on_dialled, on_dial_failed or a false from
 * wants_dial ends the dial, once, never from within this call, unless the connector is closed
 * before; `number` is passed to them. Lane 0 on the same host: the Unix socket first; if that or
 * its memory fails, TCP and a log record. Addresses are tried in quick succession, and the first
 * that answers is used. A peer that refuses at all addresses fails after a second try 0.1 s later,
 * a silent one at the deadline. */
dd_status dd_connector_dial(dd_connector *connector, const dd_card *peer, const dd_addr_list *addrs, int lane,
                            uint64_t number, int64_t deadline_ns, dd_error *err) DD_MUST_CHECK;

/* Listen on TCP again after dd_connector_close_ports, or on all addresses if it listens only on a
 * loopback address and `first` is not one. Sets *addrs to the addresses; leaves it unchanged if
 * nothing needs to be opened. One caller at a time. */
dd_status dd_connector_open_ports(dd_connector *connector, const dd_addr *first, dd_addr_list *addrs,
                                  dd_error *err) DD_MUST_CHECK;
/* Close the TCP ports soon. The Unix socket stays open, and dialling goes on. */
void dd_connector_close_ports(dd_connector *connector);
/* Return DD_OK, or DD_SYSTEM if this process has not been able to accept connections for 500 ms,
 * for lack of descriptors or memory. */
dd_status dd_connector_check(dd_connector *connector, dd_error *err) DD_MUST_CHECK;

/* Return errno and time of the last handshake that failed for lack of a local resource; 0 if
 * none. */
int dd_connector_last_shortage(const dd_connector *connector, int64_t *when_ns);

/* Stop listening and drop all handshakes; the handler is not called afterwards. The caller must
 * hold no lock that the handler takes. NULL is ignored. In a forked child: frees memory only. */
void dd_connector_close(dd_connector *connector);

#endif
