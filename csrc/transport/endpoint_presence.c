/* Detect whether the process of an endpoint is running, without help of that process. */
#include "transport/endpoint.h"

#include "net/sock.h"

#include <errno.h>

#define ANSWER_NS (100 * DD_NS_PER_MS) /* timeout for each address */

/* Detect the process by connecting to its abstract Unix address, on which it listens until it ends,
 * even while it is stopped. The connection is closed immediately, which the process tolerates. The
 * pid proves nothing: containers may share a network but not pids. */
static dd_presence
check_name(const dd_addr *addr)
{
    int fd = -1;
    dd_error why = {0};
    if (dd_sock_begin_connect(addr, &fd, &why) == DD_OK) {
        dd_sock_close(fd);
        return DD_PRESENCE_RUNNING;
    }
    switch (why.sys_errno) {
    case EAGAIN: /* the listener's queue is full, so a listener exists */
        return DD_PRESENCE_RUNNING;
    case ECONNREFUSED:
        return DD_PRESENCE_NONE;
    default:
        return DD_PRESENCE_UNKNOWN;
    }
}

/* Set *presence to RUNNING if an address accepts, REFUSED if all addresses refuse, else UNKNOWN. */
static dd_status
check_addresses(const dd_addr_list *addrs, bool is_same_host, dd_presence *presence, const dd_wait *wait,
                dd_error *err)
{
    *presence = DD_PRESENCE_UNKNOWN;
    for (size_t i = 0; i < addrs->count; i++) {
        const dd_addr *addr = &addrs->items[i];
        if (!is_same_host && dd_addr_is_loopback(addr)) {
            continue; /* skip loopback: it leads to this host, not to the endpoint's */
        }
        dd_wait moment = dd_wait_at_most(wait, ANSWER_NS);
        dd_error why = {0};
        int fd = -1;
        dd_status status = dd_sock_connect(addr, &fd, &moment, &why);
        dd_sock_close(fd);
        if (status == DD_INTERRUPTED) {
            return dd_error_copy(err, &why);
        }
        if (why.sys_errno != ECONNREFUSED || status == DD_OK) {
            *presence = status == DD_OK ? DD_PRESENCE_RUNNING : DD_PRESENCE_UNKNOWN;
            return DD_OK;
        }
        *presence = DD_PRESENCE_REFUSED;
    }
    return DD_OK;
}

dd_status
dd_endpoint_check_presence(const dd_endpoint *endpoint, const dd_addr_list *addrs,
                           const dd_endpoint *own_endpoint, dd_presence *presence, const dd_wait *wait,
                           dd_error *err)
{
    bool is_same_host = dd_endpoint_is_same_host(endpoint, own_endpoint);
    if (is_same_host && endpoint->has_unix) {
        dd_addr addr = dd_endpoint_unix_addr(endpoint);
        *presence = check_name(&addr);
        return DD_OK;
    }
    dd_status status = check_addresses(addrs, is_same_host, presence, wait, err);
    if (status == DD_OK && is_same_host && *presence == DD_PRESENCE_REFUSED) {
        *presence = DD_PRESENCE_NONE;
    }
    return status;
}
