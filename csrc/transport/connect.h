/* The connector creates links: one thread per process listens, dials and runs all handshakes in
 * parallel, so that a slow process does not delay the handshakes of other processes.
 *
 * Two engines share one first link (lane 0). If both dial, the owner of each connector chooses the
 * same dial to create the link, and refuses the other dial as BUSY. A dialler that receives BUSY
 * retries while its owner wants the link. */
#ifndef DD_TRANSPORT_CONNECT_H
#define DD_TRANSPORT_CONNECT_H

#include "core/wait.h"
#include "core/wait_policy.h"
#include "transport/endpoint.h"
#include "transport/link.h"

typedef struct dd_connector dd_connector;

typedef struct dd_connect_options {
    const char *ifnames; /* network interfaces, as for dd_endpoint_find_addrs; "" for all */
    uint16_t first_port; /* first port of the range to listen on; 0 in both port fields: any port */
    uint16_t last_port;
    bool is_shm_disabled;   /* true if links must not use shared memory */
    int nlanes;             /* number of TCP connections per peer, at least 1 (lane 0) */
    size_t ring_nbytes;     /* size in bytes of each ring of a shared memory link; a power of two */
    const char *congestion; /* value of TCP_CONGESTION for sockets; "" keeps the system's default */
    dd_bytes secret;        /* shared secret that both sides prove they know; empty if none */
    bool is_encryption_off; /* if true, TCP is not encrypted even if there is a secret */
    int64_t timeout_ns;     /* timeout of a handshake that another process began, in nanoseconds */
    dd_spin_policy waiting; /* how long threads that drive the engine poll before they sleep */
} dd_connect_options;

/* Callbacks to the connector's owner. They run on the connector's thread, without its lock. */
typedef struct dd_connect_handler {
    void *ctx;
    /* A process that claims the uid `peer` wants to create the first link (lane 0); if there is a
     * secret, it has proved that it knows it. Return false to refuse it as BUSY, true to accept it:
     * on_accepted or on_accept_failed then follows, unless the connector is closed first. */
    bool (*may_accept)(void *ctx, const dd_uid *peer);
    /* A link that may_accept has accepted could not be created: on_accepted will not follow. */
    void (*on_accept_failed)(void *ctx, const dd_uid *peer);
    /* Another process has dialled this one. The callee must take ownership of `link`, which is
     * ready, and close it if unwanted: a peer can open any number. `peer` is only a claim: a
     * process that knows the secret (without a secret, any process) can claim any uid. */
    void (*on_accepted)(void *ctx, const dd_uid *peer, int lane, dd_link *link);
    /* Return true if a dial of lane 0 is still wanted; if false, the dial ends without another
     * callback. Called before the hello is sent, and with is_busy after each BUSY of the peer. */
    bool (*wants_dial)(void *ctx, const dd_uid *peer, uint64_t number, bool is_busy);
    /* A dial by this process has created `link`, which the callee owns. `peer` is only a claim. */
    void (*on_dialled)(void *ctx, const dd_uid *peer, int lane, uint64_t number, dd_link *link);
    /* A dial by this process has failed. `error` lists each address tried with its failure, and
     * blames the peer's host and pid. Its code is DD_AUTH, DD_PROTOCOL, DD_NETWORK_TIMED_OUT (at
     * the deadline), or DD_NETWORK. */
    void (*on_dial_failed)(void *ctx, const dd_uid *peer, int lane, uint64_t number, const dd_error *error);
} dd_connect_handler;

/* Open a connector and listen. Sets endpoint->has_unix and *addrs (for `first`, see
 * dd_endpoint_find_addrs). `endpoint` and the data that `options` points to must not change until
 * dd_connector_close. The handler may be called before this function returns. Fails with
 * DD_INVALID_ARGUMENT, or with DD_NETWORK, whose message names the ports. */
dd_status dd_connector_open(const dd_connect_options *options, dd_endpoint *endpoint, const dd_addr *first,
                            const dd_connect_handler *handler, dd_addr_list *addrs, dd_connector **connector,
                            dd_error *err) DD_MUST_CHECK;

/* Start to dial a lane of a peer; must be called only once per lane. Each dial ends once, and never
 * within this call: on_dialled or on_dial_failed is called, or wants_dial returns false; each
 * callback receives `number`. dd_connector_close drops the dial without a callback.
 *
 * On the same host, lane 0 tries the Unix socket first; if the socket or the shared memory fails,
 * the dial logs that and continues with TCP. The addresses are tried in quick succession, and the
 * first that answers is used. A dial that is refused at all addresses is repeated once, 0.1 s
 * later, and then fails. If the peer does not answer, the dial fails at the deadline. */
dd_status dd_connector_dial(dd_connector *connector, const dd_endpoint *peer, const dd_addr_list *addrs,
                            int lane, uint64_t number, int64_t deadline_ns, dd_error *err) DD_MUST_CHECK;

/* Open TCP ports again after dd_connector_close_ports. Also listens on all addresses if the
 * connector listens only on a loopback address and `first` is not a loopback address. Sets *addrs
 * to the new addresses; leaves *addrs unchanged if nothing had to be opened. Not thread-safe. */
dd_status dd_connector_open_ports(dd_connector *connector, const dd_addr *first, dd_addr_list *addrs,
                                  dd_error *err) DD_MUST_CHECK;
/* Request that the connector's thread close the TCP ports. The Unix socket and dials stay open. */
void dd_connector_close_ports(dd_connector *connector);
/* Return DD_OK, or DD_SYSTEM if this process has not been able to accept connections for at least
 * 500 ms, for lack of file descriptors or memory. */
dd_status dd_connector_check(dd_connector *connector, dd_error *err) DD_MUST_CHECK;

/* Return the errno of the last handshake that failed for lack of a local resource, or 0 if there
 * was none. Sets *when_ns to the time of that failure. */
int dd_connector_last_shortage(const dd_connector *connector, int64_t *when_ns);

/* Stop listening and drop all handshakes. The handler is not called afterwards. The caller must not
 * hold a lock that the handler takes. NULL is ignored. In a forked child, only frees memory. */
void dd_connector_close(dd_connector *connector);

#endif
