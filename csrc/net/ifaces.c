#include "net/ifaces.h"

#include "core/system.h"

#include <errno.h>
#include <net/if.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>

static bool
is_usable(const struct ifaddrs *item)
{
    if (item->ifa_addr == NULL || (item->ifa_flags & IFF_UP) == 0) {
        return false;
    }
    if (item->ifa_addr->sa_family == AF_INET6) {
        const struct sockaddr_in6 *in6 = (const struct sockaddr_in6 *)(const void *)item->ifa_addr;
        return !IN6_IS_ADDR_LINKLOCAL(&in6->sin6_addr);
    }
    return item->ifa_addr->sa_family == AF_INET;
}

dd_status
dd_ifaces_find(dd_iface_list *list, dd_error *err)
{
    struct ifaddrs *all = NULL;
    if (dd_sys_getifaddrs(&all) != 0) {
        return dd_error_set_errno(err, DD_SYSTEM, errno, "cannot list the network interfaces");
    }
    list->count = 0;
    for (const struct ifaddrs *item = all; item != NULL && list->count < DD_IFACES_MAX;
         item = item->ifa_next) {
        if (!is_usable(item)) {
            continue;
        }
        bool is_v4 = item->ifa_addr->sa_family == AF_INET;
        dd_iface *iface = &list->items[list->count++];
        *iface = (dd_iface){.is_loopback = (item->ifa_flags & IFF_LOOPBACK) != 0};
        snprintf(iface->name, sizeof iface->name, "%s", item->ifa_name);
        iface->addr.len = is_v4 ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6);
        memcpy(&iface->addr.storage, item->ifa_addr, iface->addr.len);
        dd_addr_set_port(&iface->addr, 0);
    }
    dd_sys_freeifaddrs(all);
    return DD_OK;
}

static bool
skip_mark(const char **text, char mark)
{
    if (**text != mark) {
        return false;
    }
    (*text)++;
    return true;
}

bool
dd_iface_is_wanted(const char *names, const char *name)
{
    if (*names == '\0') {
        return true;
    }
    bool is_exclusion = skip_mark(&names, '^');
    bool is_exact = skip_mark(&names, '=');
    bool is_match = false;
    size_t name_len = strlen(name);
    while (!is_match && *names != '\0') {
        size_t len = strcspn(names, ",");
        is_match = len > 0 && (is_exact ? len == name_len : len <= name_len) && memcmp(names, name, len) == 0;
        names += len + (names[len] == ',' ? 1 : 0);
    }
    return is_match != is_exclusion;
}

static bool
is_same_ip(const dd_addr *a, const dd_addr *b)
{
    dd_addr left = *a;
    dd_addr right = *b;
    if (left.storage.ss_family != right.storage.ss_family) {
        return false;
    }
    if (left.storage.ss_family == AF_INET) {
        return ((struct sockaddr_in *)&left.storage)->sin_addr.s_addr ==
               ((struct sockaddr_in *)&right.storage)->sin_addr.s_addr;
    }
    return left.storage.ss_family == AF_INET6 &&
           memcmp(&((struct sockaddr_in6 *)&left.storage)->sin6_addr,
                  &((struct sockaddr_in6 *)&right.storage)->sin6_addr, sizeof(struct in6_addr)) == 0;
}

/* Return the IPv4 form of an IPv4-mapped IPv6 address; any other address is returned unchanged. */
static dd_addr
plain_addr(const dd_addr *addr)
{
    const struct sockaddr_in6 *in6 = (const struct sockaddr_in6 *)&addr->storage;
    if (addr->storage.ss_family != AF_INET6 || !IN6_IS_ADDR_V4MAPPED(&in6->sin6_addr)) {
        return *addr;
    }
    dd_addr plain = {.len = sizeof(struct sockaddr_in)};
    struct sockaddr_in *in = (struct sockaddr_in *)&plain.storage;
    in->sin_family = AF_INET;
    memcpy(&in->sin_addr, in6->sin6_addr.s6_addr + 12, sizeof in->sin_addr);
    return plain;
}

typedef enum iface_rank {
    RANK_FIRST,
    RANK_PLAIN,
    RANK_BRIDGE,
    RANK_LOOPBACK,
    RANK_COUNT,
} iface_rank;

static iface_rank
rank_of(const dd_iface *iface, const dd_addr *first)
{
    static const char *const bridges[] = {"docker", "br-", "virbr",  "veth",
                                          "lxc",    "cni", "podman", "flannel"};
    if (first != NULL && is_same_ip(&iface->addr, first)) {
        return RANK_FIRST;
    }
    if (iface->is_loopback) {
        return RANK_LOOPBACK;
    }
    for (size_t i = 0; i < sizeof bridges / sizeof bridges[0]; i++) {
        if (strncmp(iface->name, bridges[i], strlen(bridges[i])) == 0) {
            return RANK_BRIDGE;
        }
    }
    return RANK_PLAIN;
}

bool
dd_ifaces_choose(const dd_iface_list *list, const char *names, const dd_addr *first, dd_addr_list *addrs)
{
    dd_addr plain_first;
    if (first != NULL) {
        plain_first = plain_addr(first);
        first = &plain_first;
    }
    bool is_named = *names != '\0' && *names != '^';
    bool has_others = false;
    for (size_t i = 0; i < list->count; i++) {
        has_others =
            has_others || (!list->items[i].is_loopback && dd_iface_is_wanted(names, list->items[i].name));
    }
    addrs->count = 0;
    for (int rank = 0; rank < (int)RANK_COUNT; rank++) {
        for (size_t i = 0; i < list->count; i++) {
            const dd_iface *iface = &list->items[i];
            bool is_wanted =
                dd_iface_is_wanted(names, iface->name) && (!iface->is_loopback || is_named || !has_others);
            if (is_wanted && (int)rank_of(iface, first) == rank) {
                dd_addr_list_add(addrs, &iface->addr);
            }
        }
    }
    return addrs->count > 0;
}
