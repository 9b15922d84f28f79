/* Endpoints: address records that processes publish in the store. Other processes use an endpoint
 * to connect to its process and to name the process in messages.
 *
 * Two processes are on the same host if their boot ids and network namespaces are equal. They then
 * connect over an abstract Unix socket; others over TCP, at the first address that answers. */
#ifndef DD_TRANSPORT_ENDPOINT_H
#define DD_TRANSPORT_ENDPOINT_H

#include "core/bytes.h"
#include "core/status.h"
#include "core/wait.h"
#include "net/addr.h"

#include <stdbool.h>
#include <stdint.h>

/* Version of all formats that the processes of a group exchange: endpoints, hellos, frames,
 * doorbells. It must be increased with any change of these formats: processes of different builds
 * then reject each other's endpoints before they exchange anything else. */
#define DD_ENDPOINT_VERSION 6

#define DD_UID_BYTES 16
#define DD_HOST_ID_BYTES 32

typedef struct dd_uid {
    uint8_t bytes[DD_UID_BYTES];
} dd_uid;

typedef struct dd_endpoint {
    dd_uid uid;                        /* random; unique to each engine */
    uint8_t host_id[DD_HOST_ID_BYTES]; /* hash of the host's boot id and network namespace */
    char host[DD_HOST_NAME_MAX];       /* host name, for error messages */
    long long pid;
    bool has_unix; /* true if the process listens on dd_endpoint_unix_addr */
} dd_endpoint;

/* Set the fields that do not depend on the engine: a new uid, host_id, host and pid. */
dd_status dd_endpoint_init(dd_endpoint *endpoint, dd_error *err) DD_MUST_CHECK;

/* Return the endpoint's abstract Unix address, which is derived from its uid. */
dd_addr dd_endpoint_unix_addr(const dd_endpoint *endpoint);

bool dd_endpoint_is_same_host(const dd_endpoint *a, const dd_endpoint *b);

/* Encode an endpoint with the process's TCP addresses, IPv4 or IPv6. `addrs` is empty if the process
 * listens only on its Unix socket. */
dd_status dd_endpoint_encode(const dd_endpoint *endpoint, const dd_addr_list *addrs, dd_blob *out,
                             dd_error *err) DD_MUST_CHECK;
/* Decode a peer's endpoint, or return DD_PROTOCOL if it is malformed. `addrs` may be NULL. */
dd_status dd_endpoint_decode(dd_bytes bytes, dd_endpoint *endpoint, dd_addr_list *addrs,
                             dd_error *err) DD_MUST_CHECK;

/* Write a text such as "node-b, pid 7712", for error messages. Returns `out`. */
const char *dd_endpoint_print(const dd_endpoint *endpoint, char out[96]);

typedef enum dd_presence {
    DD_PRESENCE_UNKNOWN,
    DD_PRESENCE_RUNNING,
    /* All addresses of the endpoint refuse connections. The process may still run, because on this
     * host the addresses may belong to other machines. */
    DD_PRESENCE_REFUSED,
    DD_PRESENCE_NONE, /* the endpoint's process has ended */
} dd_presence;

/* Check whether the endpoint's process is running, as far as this host can detect. `own_endpoint`
 * may be the endpoint of any process of this host. Fails only with DD_INTERRUPTED. */
dd_status dd_endpoint_check_presence(const dd_endpoint *endpoint, const dd_addr_list *addrs,
                                     const dd_endpoint *own_endpoint, dd_presence *presence,
                                     const dd_wait *wait, dd_error *err) DD_MUST_CHECK;

/* List this host's usable addresses. `ifnames` selects network interfaces by comma-separated
 * prefixes: "eth,ib" selects any of these, "=eth0" exactly this interface, "^docker" all except
 * these, "" all. Loopback is included only if it is named or if there is no other interface.
 * `first` (may be NULL; its port is ignored) becomes the first item if it is in the list; if
 * `ifnames` is "" and `first` is a loopback address, the list contains only `first`. If no
 * interface matches, returns DD_INVALID_ARGUMENT with a list of the interfaces. */
dd_status dd_endpoint_find_addrs(const char *ifnames, const dd_addr *first, dd_addr_list *list,
                                 dd_error *err) DD_MUST_CHECK;

#endif
