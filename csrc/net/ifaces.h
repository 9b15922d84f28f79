/* The machine's network interfaces, and names that select among them. */
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

/* What there is of addresses that another host could use: link-local IPv6 is left out, since it means
 * something only together with an interface. */
dd_status dd_ifaces_find(dd_iface_list *list, dd_error *err) DD_MUST_CHECK;

/* Whether `name` is among those that `names` asks for: prefixes, comma-separated; "=" before them: whole
 * names; "^" before that: all but those. "" asks for all. */
bool dd_iface_is_wanted(const char *names, const char *name);

/* Chooses addresses, the best first, into `addrs`: those of the interfaces asked for, loopback only if
 * there is nothing else or it is asked for by name; `first` (may be NULL; its port does not matter) before
 * all others when it is among them, bridges of containers and virtual machines, which look the same on
 * every host, last. False when there are none. */
bool dd_ifaces_choose(const dd_iface_list *list, const char *names, const dd_addr *first,
                      dd_addr_list *addrs);

#endif
