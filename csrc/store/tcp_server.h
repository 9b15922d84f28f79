/* The server of a TCPStore: one thread, one epoll loop, one keyspace.
 *
 * It speaks PyTorch's TCPStore protocol and, to clients that ask, our extensions (docs/wire.md). Waiters
 * are parked, never polled. A client that sends what the protocol does not allow loses its connection and
 * nothing else happens; memory grows only with bytes that have arrived, up to the limits. Connections that
 * have not shown that they are of the job are few at any time, and some descriptors are left to the rest
 * of the process (net/admission.h). */
#ifndef DD_STORE_TCP_SERVER_H
#define DD_STORE_TCP_SERVER_H

#include "core/bytes.h"
#include "core/status.h"
#include "core/wait.h"
#include "net/addr.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct dd_tcp_server dd_tcp_server;
typedef struct dd_tcp_registry dd_tcp_registry;

typedef struct dd_tcp_limits {
    uint64_t max_key_bytes;     /* of one key */
    uint64_t max_value_bytes;   /* of one value */
    uint64_t max_keys;          /* in one request */
    uint64_t max_request_bytes; /* of one whole request */
} dd_tcp_limits;

/* Well above what torch's server takes (8 KiB, 8 MiB, 128 Ki keys). */
#define DD_TCP_LIMITS_DEFAULT \
    ((dd_tcp_limits){UINT64_C(64) << 10, UINT64_C(256) << 20, UINT64_C(1) << 20, UINT64_C(1) << 30})

typedef struct dd_tcp_server_options {
    const char *host;       /* address to listen on; "", "*", "0.0.0.0" or "::" for all */
    uint16_t port;          /* 0: any */
    int listen_fd;          /* -1, or a bound socket, taken over on success */
    dd_bytes secret;        /* empty: no authentication */
    bool is_encryption_off; /* otherwise connections over TCP are encrypted where there is a secret */
    dd_tcp_limits limits;
    /* a connection that has not shown the secret by then is closed; the first word is due sooner */
    int64_t handshake_timeout_ns;
    dd_tcp_registry *registry; /* not NULL: share the server with those who ask for the same port here */
} dd_tcp_server_options;

/* Servers of this process that let themselves be shared, by port. Outlives them. */
dd_status dd_tcp_registry_create(dd_tcp_registry **registry, dd_error *err) DD_MUST_CHECK;
void dd_tcp_registry_destroy(dd_tcp_registry *registry);

/* Listens and starts the thread; with a registry, may return a running server of that port. Returned owned. A port in
 * use is DD_NETWORK and names the address and the port. */
dd_status dd_tcp_server_open(dd_tcp_server **server, const dd_tcp_server_options *options,
                             const dd_wait *wait, dd_error *err) DD_MUST_CHECK;
dd_tcp_server *dd_tcp_server_acquire(dd_tcp_server *server);
/* The last release stops the thread, closes every connection and frees the data. */
void dd_tcp_server_release(dd_tcp_server *server);

uint16_t dd_tcp_server_port(const dd_tcp_server *server);

/* The names of Unix sockets at which a server that is reached at the TCP address `addr` of this machine
 * may listen, too: one for each address that it listens on, those for all addresses included. False: there
 * is no n-th name. */
bool dd_tcp_unix_name(const dd_addr *addr, int n, dd_addr *name);

/* Waits until `world_size` clients have joined (added to "init/"); DD_TIMED_OUT tells how many, and who. */
dd_status dd_tcp_server_wait_joined(dd_tcp_server *server, int64_t world_size, const dd_wait *wait,
                                    dd_error *err) DD_MUST_CHECK;

#endif
