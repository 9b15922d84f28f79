/* Making links: one thread for a process listens, dials and goes through all hand-shakes at once, so that nobody who is
 * slow holds up another.
 *
 * There is one first link between two engines. Both may dial at once; which dial makes the link then is the owner's to
 * say, who refuses the other one as BUSY. A dialler that hears BUSY comes again for as long as its owner wants. */
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
    bool is_shm_disabled; /* never use shared memory */
    int nlanes; /* TCP connections a peer, >= 1: lane 0 is the first link, the others are made after it */
    size_t ring_nbytes;     /* of a shared memory link, a direction; a power of two */
    const char *congestion; /* TCP_CONGESTION, "" for the system's */
    dd_bytes secret;        /* both sides prove that they know it; empty for none */
    bool is_encryption_off; /* otherwise TCP is encrypted where there is a secret */
    int64_t timeout_ns;     /* of one hand-shake with somebody who has connected to us */
    dd_spin_policy waiting; /* of those who drive the engine */
} dd_connect_options;

/* What the owner is told, on the connector's thread, without its lock held. */
typedef struct dd_connect_handler {
    void *ctx;
    /* Somebody wants a link (lane 0) with us, and has shown that he knows the secret; that is his uid.
     * True: on_accepted or on_accept_failed follows, unless the connector is closed before. False: refuse as BUSY. */
    bool (*may_accept)(void *ctx, const dd_uid *peer);
    /* It was welcome, and came to nothing: on_accepted will not be called for it. */
    void (*on_accept_failed)(void *ctx, const dd_uid *peer);
    /* A link that another process has dialled; the receiver owns it. `peer` is the uid that the other side claimed: any
     * process that knows the secret can claim one (without a secret, any process at all). 0 <= lane < nlanes. Links come
     * as often as the peer likes, lanes also without lane 0: close the ones that are not wanted. */
    void (*on_accepted)(void *ctx, const dd_uid *peer, int lane, dd_link *link);
    /* Whether a dial of lane 0 is still wanted: called before the hello is sent, and with is_busy each time that the peer
     * has answered BUSY. False: the dial ends, and has no other outcome. */
    bool (*wants_dial)(void *ctx, const dd_uid *peer, uint64_t number, bool is_busy);
    /* A dial has made a link; the receiver owns it. The peer is the one of the card in the sense of on_accepted. */
    void (*on_dialled)(void *ctx, const dd_uid *peer, int lane, uint64_t number, dd_link *link);
    /* A dial has come to nothing: `error` names the addresses that were tried and what each said, and the
     * culprit's host and pid. DD_AUTH, DD_PROTOCOL, DD_NETWORK_TIMED_OUT at the deadline, or DD_NETWORK. */
    void (*on_dial_failed)(void *ctx, const dd_uid *peer, int lane, uint64_t number, const dd_error *error);
} dd_connect_handler;

/* Listens: fills in card's has_unix and *addrs (`first`: see dd_card_find_addrs). The card, and what the options point to, must stay as they are until close. Its thread calls the handler, from before this
 * returns. DD_INVALID_ARGUMENT, or DD_NETWORK naming the ports. */
dd_status dd_connector_open(const dd_connect_options *options, dd_card *card, const dd_addr *first,
                            const dd_connect_handler *handler, dd_addr_list *addrs, dd_connector **connector,
                            dd_error *err) DD_MUST_CHECK;

/* Starts a dial to a peer, lane by lane number; the outcome comes by on_dialled, on_dial_failed or an answer of false to
 * wants_dial, never from within this call: one of them, once, unless the connector is closed before. The handler receives
 * `number` back. Same host, lane 0:
 * the Unix socket first; if that or its memory fails, TCP, and a log record says so. Addresses are tried in quick
 * succession, the first that answers is taken; a peer that refuses everywhere fails after a second try, in a tenth of a
 * second, one that is silent at the deadline. */
dd_status dd_connector_dial(dd_connector *connector, const dd_card *peer, const dd_addr_list *addrs, int lane,
                            uint64_t number, int64_t deadline_ns, dd_error *err) DD_MUST_CHECK;

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

/* errno of the last hand-shake that has come to nothing for want of something in this process, and when that was; 0: there was none. */
int dd_connector_last_shortage(const dd_connector *connector, int64_t *when_ns);

/* Stops listening and drops all hand-shakes: after it the handler is not called any more. Hold no lock that the handler
 * takes. NULL is fine. In a forked child: frees memory only. */
void dd_connector_close(dd_connector *connector);

#endif
