/* The machine's network interfaces, and their selection by name. */
#ifndef DD_NET_IFACES_H
#define DD_NET_IFACES_H

#include "core/status.h"
#include "net/addr.h"

#include <stdbool.h>
#include <stddef.h>

#define DD_IFACE_NAME_MAX 16
#define DD_IFACES_MAX 64

/* One address of a network interface that is up. */
typedef struct dd_iface {
    char name[DD_IFACE_NAME_MAX];
    dd_addr addr; /* IPv4 or IPv6 address; its port is 0 */
    bool is_loopback;
} dd_iface;

typedef struct dd_iface_list {
    dd_iface items[DD_IFACES_MAX];
    size_t count;
} dd_iface_list;

/* List the addresses that another host can use. Link-local IPv6 addresses are left out, because
 * they are valid only together with an interface. */
dd_status dd_ifaces_find(dd_iface_list *list, dd_error *err) DD_MUST_CHECK;

/* Return true if the list `names` selects the interface `name`. The list has comma-separated
 * prefixes of names; after a leading "=" it has whole names; a leading "^" excludes the listed
 * names. "" selects all. */
bool dd_iface_is_wanted(const char *names, const char *name);

/* Choose addresses of the selected interfaces into `addrs`, the best first. Loopback is chosen only
 * if there is no other address, or if it is selected by name. If `first` (which may be NULL) is one
 * of the addresses, except for its port, it comes first. Bridges of containers and virtual machines
 * come last, because they look the same on every host. Return false if there is no address. */
bool dd_ifaces_choose(const dd_iface_list *list, const char *names, const dd_addr *first,
                      dd_addr_list *addrs);

#endif
