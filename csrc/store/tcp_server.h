/* The server of a TCPStore: one thread, one epoll loop, one keyspace.
 *
 * The server supports PyTorch's TCPStore protocol and, for dldist clients, dldist's extensions
 * (docs/contributing/wire.md). A request that must wait is parked, never polled. A client that
 * violates the protocol loses only its connection. Memory grows only with received bytes, up to the
 * limits. The number of unauthenticated connections is limited, and some descriptors are kept free
 * for the rest of the process (net/admission.h). */
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
    uint64_t max_key_bytes;     /* maximum size of a key, in bytes */
    uint64_t max_value_bytes;   /* maximum size of a value, in bytes */
    uint64_t max_keys;          /* maximum number of keys in a request */
    uint64_t max_request_bytes; /* maximum size of a request, in bytes */
} dd_tcp_limits;

/* The default limits, well above those of PyTorch's server (8 KiB, 8 MiB, 128 Ki keys). */
#define DD_TCP_LIMITS_DEFAULT \
    ((dd_tcp_limits){UINT64_C(64) << 10, UINT64_C(256) << 20, UINT64_C(1) << 20, UINT64_C(1) << 30})

typedef struct dd_tcp_server_options {
    const char *host;          /* address to listen on; "", "*", "0.0.0.0" or "::" for all addresses */
    uint16_t port;             /* port to listen on; 0 for any free port */
    int listen_fd;             /* a bound socket, which the server owns on success; -1 for none */
    dd_bytes secret;           /* secret that clients must know; empty for no authentication */
    bool is_encryption_off;    /* if true, TCP is not encrypted even if there is a secret */
    bool is_open_to_own_torch; /* true to serve PyTorch's clients of this user and host without a secret */
    dd_tcp_limits limits;
    /* Time for a client to prove that it knows the secret. Its first bytes must arrive sooner. */
    int64_t handshake_timeout_ns;
    /* If not NULL, all callers that open the same port with this registry share the server. */
    dd_tcp_registry *registry;
} dd_tcp_server_options;

/* Create a registry of this process's shared servers, by port. It must outlive the servers. */
dd_status dd_tcp_registry_create(dd_tcp_registry **registry, dd_error *err) DD_MUST_CHECK;
void dd_tcp_registry_destroy(dd_tcp_registry *registry);

/* Start a server or, with a registry, share a running server of the port, and return it with a new
 * reference. DD_NETWORK, with the address and the port, if the port is in use. */
dd_status dd_tcp_server_open(dd_tcp_server **server, const dd_tcp_server_options *options,
                             const dd_wait *wait, dd_error *err) DD_MUST_CHECK;
dd_tcp_server *dd_tcp_server_acquire(dd_tcp_server *server);
/* Release a reference. The last release stops the thread, closes connections and frees the data. */
void dd_tcp_server_release(dd_tcp_server *server);

uint16_t dd_tcp_server_port(const dd_tcp_server *server);

/* Get the n-th name of the Unix sockets on which a server with this machine's TCP address `addr`
 * may listen: names for this address, then for all. Return false if there is no n-th name. */
bool dd_tcp_unix_name(const dd_addr *addr, int n, dd_addr *name);

/* Wait until `world_size` clients joined (incremented "init/"). DD_TIMED_OUT lists those so far. */
dd_status dd_tcp_server_wait_joined(dd_tcp_server *server, int64_t world_size, const dd_wait *wait,
                                    dd_error *err) DD_MUST_CHECK;

#endif
