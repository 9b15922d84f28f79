/* Making links: a listener for a process, and dialling. Hand-shakes run on threads that end with the last of
 * them; whoever is slow holds up the others for a moment at most.
 *
 * There is one first link between two engines. Both may dial at once: then the dial of the smaller uid (as
 * bytes) wins, and the other side is told BUSY, waits for it, and dials again if it does not come. The
 * connector sees to all of that: of a dial and whatever comes in from the same peer meanwhile, one makes
 * the link, and the owner is told of one. */
#ifndef DD_TRANSPORT_CONNECT_H
#define DD_TRANSPORT_CONNECT_H

#include "core/spin.h"
#include "core/wait.h"
#include "transport/card.h"
#include "transport/link.h"

typedef struct dd_connector dd_connector;

typedef struct dd_connect_options {
    const char *ifnames; /* see dd_card_find_addrs; "" for any */
    uint16_t first_port; /* listen on a port of this range; 0, 0 for any */
    uint16_t last_port;
    bool is_shm_disabled; /* never use shared memory */
    int nlanes; /* TCP connections a peer, >= 1: lane 0 is the first link, the others are made after it */
    size_t ring_nbytes;     /* of a shared memory link, a direction; a power of two */
    const char *congestion; /* TCP_CONGESTION, "" for the system's */
    dd_bytes secret;        /* both sides prove that they know it; empty for none */
    int64_t timeout_ns;     /* of one hand-shake with somebody who has connected to us */
    dd_spin_policy waiting; /* of those who drive the engine */
} dd_connect_options;

/* What the owner is told, on threads of the connector, without locks of the connector held. */
typedef struct dd_connect_handler {
    void *ctx;
    /* Somebody wants a link (lane 0) with us, and has shown that he knows the secret; that is his uid.
     * False: refuse as BUSY, because we have one already. That ours is under way is no reason: the
     * connector knows. */
    bool (*may_accept)(void *ctx, const dd_uid *peer);
    /* It was welcome, and came to nothing: on_link will not be called for it. */
    void (*on_accept_failed)(void *ctx, const dd_uid *peer);
    /* A link is there; the receiver owns it. `peer` is the uid that the other side claimed, which whoever
     * knows the secret (without one: anybody) can; a dialled peer is the one of the card in the same
     * sense. 0 <= lane < nlanes. Lanes come as often as the peer likes, also without lane 0: close what is
     * not wanted. */
    void (*on_link)(void *ctx, const dd_uid *peer, int lane, dd_link *link);
    /* A dial has come to nothing: `error` names the addresses that were tried and what each said, and the
     * culprit's host and pid. DD_AUTH, DD_PROTOCOL, DD_NETWORK_TIMED_OUT at the deadline, or DD_NETWORK. */
    void (*on_dial_failed)(void *ctx, const dd_uid *peer, int lane, const dd_error *error);
} dd_connect_handler;

/* Listens: fills in card's unix_name and addrs (`first`: see dd_card_find_addrs). But for addrs the card
 * must stay as it is until close. Copies the options. The threads call the handler, from before this
 * returns. DD_INVALID_ARGUMENT, or DD_NETWORK naming the ports. */
dd_status dd_connector_open(const dd_connect_options *options, dd_card *card, const dd_addr *first,
                            const dd_connect_handler *handler, dd_connector **connector,
                            dd_error *err) DD_MUST_CHECK;

/* Starts a dial to a peer, lane by lane number; the outcome comes by on_link or on_dial_failed, never from
 * within this call: one of them, once, unless the connector is closed before. When the peer's own dial
 * makes the link first, its on_link is the outcome. Same host, lane 0: the Unix socket first; if that or
 * its memory fails, TCP, and a log record says so. Addresses are tried in quick succession, the first that
 * answers is taken; a peer that refuses everywhere fails at once, one that is silent at the deadline. Dial
 * a lane of a peer once at a time, and lane 0 only without a link: looking whether there is one, and this
 * call, belong under the lock under which on_link notes links, or a dial may find the peer busy with the
 * very link that has just been made. One made before on_link has returned counts as answered by that. */
dd_status dd_connector_dial(dd_connector *connector, const dd_card *peer, int lane, int64_t deadline_ns,
                            dd_error *err) DD_MUST_CHECK;

/* Listens on TCP again after dd_connector_close_ports; and listens on all addresses if so far it did on a
 * loopback address only and `first` is none. *addrs becomes where it listens, and is left alone if nothing
 * has to be done. One caller at a time. */
dd_status dd_connector_open_ports(dd_connector *connector, const dd_addr *first, dd_addr_list *addrs,
                                  dd_error *err) DD_MUST_CHECK;
/* No more connections over TCP are wanted: the ports close soon. The Unix socket stays, and dialling. */
void dd_connector_close_ports(dd_connector *connector);
/* DD_OK, or DD_SYSTEM: this process has not been able to accept connections for some time, for want of
 * descriptors or memory. */
dd_status dd_connector_check(dd_connector *connector, dd_error *err) DD_MUST_CHECK;

/* Stops listening, calls all hand-shakes off and waits for their threads: after it the handler is not
 * called any more. Hold no lock that the handler takes. NULL is fine. In a forked child: frees memory
 * only. */
void dd_connector_close(dd_connector *connector);

#endif
