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

/* All stream addresses of host, each once (a number, "localhost", or a name for the resolver), IPv6 and IPv4 in the resolver's
 * order. Numbers and "localhost" are answered at once; a name is looked up on a thread of its own, since the resolver
 * knows no deadline. DD_NETWORK with the resolver's reason, DD_NETWORK_TIMED_OUT at the deadline. */
dd_status dd_addr_resolve(const char *host, uint16_t port, dd_addr_list *list, const dd_wait *wait,
                          dd_error *err) DD_MUST_CHECK;

/* Adds an address that is not in the list yet, while there is room. */
void dd_addr_list_add(dd_addr_list *list, const dd_addr *addr);

/* Whether host asks for every address of the machine: "", "*", "0.0.0.0", "::". */
bool dd_addr_is_wildcard(const char *host);

bool dd_addr_is_loopback(const dd_addr *addr);
/* Whether host is "localhost" or a numeric loopback address, which mean this machine everywhere. A name
 * may mean another address elsewhere. */
bool dd_addr_names_loopback(const char *host);

/* "@name" in the abstract namespace: no file, gone with its last descriptor. `name` is cut to fit. */
dd_addr dd_addr_unix_abstract(const char *name);

/* The port, or 0 for a Unix address. */
uint16_t dd_addr_port(const dd_addr *addr);
void dd_addr_set_port(dd_addr *addr, uint16_t port);

/* "127.0.0.1:29500", "[::1]:29500", "unix:@name"; returns out. */
const char *dd_addr_print(const dd_addr *addr, char out[DD_ADDR_TEXT_MAX]);

#endif
