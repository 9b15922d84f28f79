/* The client of a TCPStore, and the store that combines it with an optional server.
 *
 * A dldist server gets one connection, by Unix socket on the same host. Requests of all threads
 * share it, with tags, so one that waits for a key does not delay others. With a PyTorch server
 * each call uses one connection until it is answered. When a call returns, the server has completed
 * it. */
#ifndef DD_STORE_TCP_STORE_H
#define DD_STORE_TCP_STORE_H

#include "net/addr.h"
#include "store/store.h"
#include "store/tcp_server.h"

typedef struct dd_tcp_store_options {
    const char *host;
    uint16_t port;
    int64_t timeout_ns;
    int64_t world_size; /* < 0 if clients are not counted */
    bool is_wait_for_workers;
    dd_bytes secret;        /* empty if there is none */
    bool is_encryption_off; /* otherwise a TCP connection is encrypted if there is a secret */
    dd_tcp_server *server;  /* NULL, or this process's server (borrowed), whose port is used */
} dd_tcp_store_options;

/* Connect, retrying until the server exists. If world_size >= 0 and is_wait_for_workers is true,
 * join; the process of the server then waits for the other clients. */
dd_status dd_tcp_store_open(dd_store **store, const dd_tcp_store_options *options, const dd_wait *wait,
                            dd_error *err) DD_MUST_CHECK;

const char *dd_tcp_store_host(dd_store *store); /* borrowed */
uint16_t dd_tcp_store_port(dd_store *store);
bool dd_tcp_store_is_server(dd_store *store);

/* Return this process's address on its connection to the server; of length 0 unless the store is a
 * TCPStore, or one under prefixes. A loopback address is returned only if the store's host names
 * one: all ranks are then on this machine. If the host name only resolves to loopback, or the
 * server listens on all addresses, ranks of other machines may meet in the store as well. */
dd_addr dd_tcp_store_own_addr(dd_store *store);

/* Return the secret of a store of any kind, borrowed; empty if it has none. */
dd_bytes dd_tcp_store_secret(dd_store *store);

/* Get the clients that recently tried to connect without the server's secret, such as "node-b (pid
 * 77)", by the names that they gave. Any kind of store; empty if none or unknown. */
dd_status dd_tcp_store_refused(dd_store *store, dd_blob *who, const dd_wait *wait,
                               dd_error *err) DD_MUST_CHECK;
/* Get the reason why the server accepts no connections, such as "Too many open files (errno 24)".
 * Any kind of store; empty if it does, or if the reason is unknown. */
dd_status dd_tcp_store_accept_error(dd_store *store, dd_blob *why, const dd_wait *wait,
                                    dd_error *err) DD_MUST_CHECK;

#endif
