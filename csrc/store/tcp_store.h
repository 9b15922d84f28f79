/* The client of a TCPStore, and the store made of a client and perhaps its server.
 *
 * To a server of ours it has one connection, by Unix socket when both are on one host. The requests of all threads
 * go over it with tags: one that has to wait for a key holds up no other. Against PyTorch's server it keeps to
 * PyTorch's protocol, and each call has a connection to itself until it is answered. When a call returns, the
 * server has done what it asked for. */
#ifndef DD_STORE_TCP_STORE_H
#define DD_STORE_TCP_STORE_H

#include "net/addr.h"
#include "store/store.h"
#include "store/tcp_server.h"

typedef struct dd_tcp_store_options {
    const char *host;
    uint16_t port;
    int64_t timeout_ns;
    int64_t world_size; /* < 0: not counted */
    bool is_wait_for_workers;
    dd_bytes secret;        /* empty: none */
    bool is_encryption_off; /* otherwise the connection is encrypted where there is a secret and it is TCP */
    dd_tcp_server *server;  /* NULL, or the server in this process (borrowed); port is then the server's */
} dd_tcp_store_options;

/* Connects, trying again while the server is not there yet; joins when world_size is given and waiting is on, and then
 * waits for the others if the server is here. */
dd_status dd_tcp_store_open(dd_store **store, const dd_tcp_store_options *options, const dd_wait *wait,
                            dd_error *err) DD_MUST_CHECK;

const char *dd_tcp_store_host(dd_store *store); /* borrowed */
uint16_t dd_tcp_store_port(dd_store *store);
bool dd_tcp_store_is_server(dd_store *store);

/* The address by which this process has reached the server, of any kind of store: of length 0 when it is
 * not a TCPStore, nor one under prefixes. A loopback address only if the store's host names one: then all
 * who meet in it are on this machine. If a host name leads to loopback, or the server listens on all
 * addresses, ranks of other machines may meet there, too. */
dd_addr dd_tcp_store_own_addr(dd_store *store);

/* The secret of the store, of any kind, borrowed; empty: none. */
dd_bytes dd_tcp_store_secret(dd_store *store);

/* Which clients have lately tried to connect to the server without its secret, of any kind of store:
 * "node-b (pid 77)", as they call themselves. Empty: none, or it is not known. */
dd_status dd_tcp_store_refused(dd_store *store, dd_blob *who, const dd_wait *wait,
                               dd_error *err) DD_MUST_CHECK;
/* The reason why the server accepts no connections at the moment, of any kind of store: "Too many open files (errno 24)".
 * Empty if it does, or if that is not known. */
dd_status dd_tcp_store_accept_error(dd_store *store, dd_blob *why, const dd_wait *wait,
                                    dd_error *err) DD_MUST_CHECK;

#endif
