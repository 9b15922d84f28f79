/* The server of a TCPStore: one thread, one epoll loop, one keyspace.
 *
 * It serves PyTorch's TCPStore protocol and, to dldist clients, dldist's extensions
 * (docs/contributing/wire.md). A request that waits is parked, never polled. A client that violates
 * the protocol loses only its connection. Memory grows only with received bytes, up to the limits.
 * The number of unauthenticated connections is limited, and some descriptors are kept free for the
 * rest of the process (net/admission.h). */
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
    uint64_t max_key_bytes;     /* most bytes of one key */
    uint64_t max_value_bytes;   /* most bytes of one value */
    uint64_t max_keys;          /* most keys in one request */
    uint64_t max_request_bytes; /* most bytes of one request */
} dd_tcp_limits;

/* The default limits, well above the limits of torch's server (8 KiB, 8 MiB, 128 Ki keys). */
#define DD_TCP_LIMITS_DEFAULT \
    ((dd_tcp_limits){UINT64_C(64) << 10, UINT64_C(256) << 20, UINT64_C(1) << 20, UINT64_C(1) << 30})

typedef struct dd_tcp_server_options {
    const char *host;       /* address to listen on; "", "*", "0.0.0.0" or "::" for all */
    uint16_t port;          /* 0 for any free port */
    int listen_fd;          /* -1, or a bound socket, which the server owns on success */
    dd_bytes secret;        /* empty if clients need no authentication */
    bool is_encryption_off; /* if false and there is a secret, TCP connections are encrypted */
    dd_tcp_limits limits;
    /* Time for a connection to prove the secret. Its first bytes must arrive sooner. */
    int64_t handshake_timeout_ns;
    /* If not NULL, the server is shared with callers that open the same port with this registry. */
    dd_tcp_registry *registry;
} dd_tcp_server_options;

/* Create a registry of the process's shared servers, by port. It must outlive the servers. */
dd_status dd_tcp_registry_create(dd_tcp_registry **registry, dd_error *err) DD_MUST_CHECK;
void dd_tcp_registry_destroy(dd_tcp_registry *registry);

/* Listen and start the thread or, with a registry, share a running server at the port. The caller
 * owns a reference. DD_NETWORK, with the address and the port, if the port is in use. */
dd_status dd_tcp_server_open(dd_tcp_server **server, const dd_tcp_server_options *options,
                             const dd_wait *wait, dd_error *err) DD_MUST_CHECK;
dd_tcp_server *dd_tcp_server_acquire(dd_tcp_server *server);
/* The last release stops the thread, closes all connections and frees the data. */
void dd_tcp_server_release(dd_tcp_server *server);

uint16_t dd_tcp_server_port(const dd_tcp_server *server);

/* Get the n-th name of a Unix socket on which a server with the TCP address `addr` of this machine
 * may listen: a name for this address, then names for all. Return false if there is none. */
bool dd_tcp_unix_name(const dd_addr *addr, int n, dd_addr *name);

/* Wait until `world_size` clients have joined (incremented "init/"). DD_TIMED_OUT lists them. */
dd_status dd_tcp_server_wait_joined(dd_tcp_server *server, int64_t world_size, const dd_wait *wait,
                                    dd_error *err) DD_MUST_CHECK;

#endif
