/* Socket addresses: IPv4, IPv6 and abstract Unix. */
#ifndef DD_NET_ADDR_H
#define DD_NET_ADDR_H

#include "core/status.h"
#include "core/wait.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

#define DD_ADDR_TEXT_MAX 160
#define DD_ADDR_LIST_MAX 16

typedef struct dd_addr {
    struct sockaddr_storage storage;
    socklen_t len;
} dd_addr;

typedef struct dd_addr_list {
    dd_addr items[DD_ADDR_LIST_MAX];
    size_t count;
} dd_addr_list;

/* Resolve `host` (a number, "localhost" or a name) to its stream addresses, each listed once, in
 * the resolver's order. For a name, the resolver runs on a separate thread, because it has no
 * timeout. Return DD_NETWORK with the resolver's reason, or DD_NETWORK_TIMED_OUT. */
dd_status dd_addr_resolve(const char *host, uint16_t port, dd_addr_list *list, const dd_wait *wait,
                          dd_error *err) DD_MUST_CHECK;

/* Add an address to the list. No effect if the list already contains the address or is full. */
void dd_addr_list_add(dd_addr_list *list, const dd_addr *addr);

/* Return true if `host` means all addresses of the machine: "", "*", "0.0.0.0" or "::". */
bool dd_addr_is_wildcard(const char *host);

bool dd_addr_is_loopback(const dd_addr *addr);
/* Return true for "localhost" and for numeric loopback addresses, which mean the local machine on
 * every host. Any other name may resolve differently on other hosts. */
bool dd_addr_names_loopback(const char *host);

/* Return the address "@name" in the abstract namespace of Unix sockets, where sockets have no
 * files. `name` is truncated if it is too long. */
dd_addr dd_addr_unix_abstract(const char *name);

/* Return the port of an address; 0 for a Unix address. */
uint16_t dd_addr_port(const dd_addr *addr);
void dd_addr_set_port(dd_addr *addr, uint16_t port);

/* Write an address as "127.0.0.1:29500", "[::1]:29500" or "unix:@name". Return `out`. */
const char *dd_addr_print(const dd_addr *addr, char out[DD_ADDR_TEXT_MAX]);

#endif
