/* The machine's network interfaces, and their selection by name. */
#ifndef DD_NET_IFACES_H
#define DD_NET_IFACES_H

#include "core/status.h"
#include "net/addr.h"

#include <stdbool.h>
#include <stddef.h>

#define DD_IFACE_NAME_MAX 16
#define DD_IFACES_MAX 64

/* One address of an interface that is up. */
typedef struct dd_iface {
    char name[DD_IFACE_NAME_MAX];
    dd_addr addr; /* IPv4 or IPv6, port 0 */
    bool is_loopback;
} dd_iface;

typedef struct dd_iface_list {
    dd_iface items[DD_IFACES_MAX];
    size_t count;
} dd_iface_list;

/* List addresses that another host can use. Link-local IPv6 is left out, since it is valid only
 * with an interface. */
dd_status dd_ifaces_find(dd_iface_list *list, dd_error *err) DD_MUST_CHECK;

/* Return true if `names` selects `name`. `names` has comma-separated prefixes; after "=" they are
 * whole names; after "^" they are excluded. "" selects all. */
bool dd_iface_is_wanted(const char *names, const char *name);

/* Choose addresses of the selected interfaces into `addrs`, the best first. Loopback is chosen only
 * if nothing else is, or if it is selected by name. If `first` is among them, it is put first (it
 * may be NULL; its port is ignored). Bridges of containers and virtual machines, which look the
 * same on every host, are put last. Return false if there is no address. */
bool dd_ifaces_choose(const dd_iface_list *list, const char *names, const dd_addr *first,
                      dd_addr_list *addrs);

#endif
