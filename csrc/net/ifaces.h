/* The machine's network interfaces, and how to select some of them by name. */
#ifndef DD_NET_IFACES_H
#define DD_NET_IFACES_H

#include "core/status.h"
#include "net/addr.h"

#include <stdbool.h>
#include <stddef.h>

#define DD_IFACE_NAME_MAX 16
#define DD_IFACES_MAX 64

/* One address of a network interface. The interface is up. */
typedef struct dd_iface {
    char name[DD_IFACE_NAME_MAX];
    dd_addr addr; /* IPv4 or IPv6 address; its port is 0 */
    bool is_loopback;
} dd_iface;

typedef struct dd_iface_list {
    dd_iface items[DD_IFACES_MAX];
    size_t count;
} dd_iface_list;

/* List the addresses that another host can use. Link-local IPv6 addresses are omitted, because they
 * are valid only together with an interface. */
dd_status dd_ifaces_find(dd_iface_list *list, dd_error *err) DD_MUST_CHECK;

/* Return true if the selection `names` includes the interface `name`. The selection is a list of
 * comma-separated prefixes; after a leading "=", of whole names; a leading "^" excludes the listed
 * names instead. "" includes all interfaces. */
bool dd_iface_is_wanted(const char *names, const char *name);

/* Write the addresses of the selected interfaces to `addrs`, the best first. Loopback is included
 * only if there is no other address, or if it is selected by name. If `first` (may be NULL) is one
 * of the addresses, except for its port, it comes first. Bridges of containers and virtual machines
 * come last: they have the same addresses on every host. Return false if `addrs` is empty. */
bool dd_ifaces_choose(const dd_iface_list *list, const char *names, const dd_addr *first,
                      dd_addr_list *addrs);

#endif
