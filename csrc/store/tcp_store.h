/* The client of a TCPStore, and the store that combines the client with an optional server.
 *
 * The client has one connection to a dldist server; on the server's host, that is a Unix socket.
 * Requests of all threads share the connection and are told apart by tags, so a request that waits
 * for a key does not delay others. With a PyTorch server, each call uses one connection until it is
 * answered. When a call returns, the server has completed its request. */
#ifndef DD_STORE_TCP_STORE_H
#define DD_STORE_TCP_STORE_H

#include "net/addr.h"
#include "store/store.h"
#include "store/tcp_server.h"

typedef struct dd_tcp_store_options {
    const char *host;
    uint16_t port;
    int64_t timeout_ns;
    int64_t world_size; /* number of clients; negative if joining clients are not counted */
    bool is_wait_for_workers;
    dd_bytes secret;        /* shared secret that clients must know; empty if there is none */
    bool is_encryption_off; /* if true, TCP is not encrypted even if there is a secret */
    dd_tcp_server *server;  /* this process's server, borrowed; its port is used. NULL if none */
} dd_tcp_store_options;

/* Connect, and retry until the server exists. If world_size >= 0 and is_wait_for_workers is true,
 * join (count this client); in the server's process, then wait until all clients have joined. */
dd_status dd_tcp_store_open(dd_store **store, const dd_tcp_store_options *options, const dd_wait *wait,
                            dd_error *err) DD_MUST_CHECK;

const char *dd_tcp_store_host(dd_store *store); /* borrowed from the store */
uint16_t dd_tcp_store_port(dd_store *store);
bool dd_tcp_store_is_server(dd_store *store);

/* Return this process's address on its connection to the server; its length is 0 if the store is
 * not a TCPStore, or one under prefixes. A loopback address is returned only if the store's host is
 * a loopback name: all ranks are then on this machine. If the host name only resolves to loopback,
 * or the server listens on all addresses, ranks of other machines may use the store as well. */
dd_addr dd_tcp_store_own_addr(dd_store *store);

/* Return the secret of a store of any kind, borrowed from the store; empty if there is none. */
dd_bytes dd_tcp_store_secret(dd_store *store);

/* Get the names of the clients that recently failed to prove that they know the server's secret, as
 * the clients gave their names, such as "node-b (pid 77)". Works for any kind of store; empty if
 * there are none or if they are unknown. */
dd_status dd_tcp_store_refused(dd_store *store, dd_blob *names, const dd_wait *wait,
                               dd_error *err) DD_MUST_CHECK;
/* Get the reason why the server cannot accept connections, such as "Too many open files (errno
 * 24)". For any kind of store; empty if the server can accept, or if the reason is unknown. */
dd_status dd_tcp_store_accept_error(dd_store *store, dd_blob *why, const dd_wait *wait,
                                    dd_error *err) DD_MUST_CHECK;

#endif
