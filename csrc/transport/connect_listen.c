#include "transport/connect_internal.h"

#include "core/lock.h"
#include "core/log.h"
#include "core/system.h"
#include "net/auth.h"
#include "net/sock.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>

dd_status
connect_set_congestion(const dd_connector *connector, int fd, dd_error *err)
{
    const char *name = connector->options.congestion;
    if (*name == '\0' ||
        dd_sys_setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, name, (socklen_t)strlen(name)) == 0) {
        return DD_OK;
    }
    return dd_error_set_errno(err, DD_INVALID_ARGUMENT, errno, "cannot use the TCP congestion control \"%s\"",
                              name);
}

/* Listen on the first free port of the range in the options. */
static dd_status
listen_in_range(const dd_connect_options *options, dd_addr *addr, int *fd, dd_error *err)
{
    unsigned first = options->first_port;
    unsigned last = options->last_port;
    dd_error why = {0};
    for (unsigned port = first; port <= last; port++) {
        dd_addr_set_port(addr, (uint16_t)port);
        dd_status status = dd_sock_listen(addr, fd, &why);
        if (status == DD_OK) {
            return DD_OK;
        }
        if (why.sys_errno != EADDRINUSE || first == 0) {
            return dd_error_copy(err, &why);
        }
    }
    char text[DD_ADDR_TEXT_MAX];
    dd_addr_set_port(addr, 0);
    return dd_error_set_errno(err, DD_NETWORK, EADDRINUSE,
                              "cannot listen on %s: none of the ports %u to %u is free",
                              dd_addr_print(addr, text), first, last);
}

/* Open a listening socket at an address, and write its port to the address. */
static dd_status
connect_add_listener(const dd_connector *connector, connect_ports *ports, dd_addr *addr, dd_error *err)
{
    int fd = -1;
    dd_status status = listen_in_range(&connector->options, addr, &fd, err);
    if (status != DD_OK) {
        return status;
    }
    status = connect_set_congestion(connector, fd, err);
    uint16_t port = 0;
    if (status == DD_OK) {
        status = dd_sock_find_port(fd, &port, err);
    }
    if (status != DD_OK) {
        dd_sock_close(fd);
        return status;
    }
    dd_addr_set_port(addr, port);
    ports->fds[ports->count++] = fd;
    return DD_OK;
}

static dd_addr
wildcard(int family)
{
    dd_addr addr = {.len = family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6)};
    addr.storage.ss_family = (sa_family_t)family;
    return addr;
}

static void
remove_family(dd_addr_list *list, int family)
{
    size_t nlisteners = 0;
    for (size_t i = 0; i < list->count; i++) {
        if (list->items[i].storage.ss_family != family) {
            list->items[nlisteners++] = list->items[i];
        }
    }
    list->count = nlisteners;
}

static bool
has_family(const dd_addr_list *list, int family)
{
    for (size_t i = 0; i < list->count; i++) {
        if (list->items[i].storage.ss_family == family) {
            return true;
        }
    }
    return false;
}

/* Open one socket that listens on all addresses. A socket at "::" also accepts IPv4. */
static dd_status
listen_everywhere(const dd_connector *connector, connect_ports *ports, dd_addr_list *addrs, dd_error *err)
{
    dd_error why = {0};
    dd_status status = DD_OK;
    dd_addr addr;
    bool wants_v6 = has_family(addrs, AF_INET6);
    if (wants_v6) {
        addr = wildcard(AF_INET6);
        status = connect_add_listener(connector, ports, &addr, &why);
    }
    if (wants_v6 && status != DD_OK && why.sys_errno != EADDRINUSE && has_family(addrs, AF_INET)) {
        DD_LOG(DD_LOG_INFO, "IPv6 is not used: %s", why.message);
        remove_family(addrs, AF_INET6);
        wants_v6 = false;
    }
    if (!wants_v6) {
        addr = wildcard(AF_INET);
        status = connect_add_listener(connector, ports, &addr, &why);
    }
    for (size_t i = 0; i < addrs->count && status == DD_OK; i++) {
        dd_addr_set_port(&addrs->items[i], dd_addr_port(&addr));
    }
    return status == DD_OK ? DD_OK : dd_error_copy(err, &why);
}

static dd_status
listen_on_each(const dd_connector *connector, connect_ports *ports, dd_addr_list *addrs, dd_error *err)
{
    dd_status status = DD_OK;
    for (size_t i = 0; i < addrs->count && status == DD_OK; i++) {
        status = connect_add_listener(connector, ports, &addrs->items[i], err);
    }
    return status;
}

void
connect_close_ports(connect_ports *ports)
{
    for (size_t i = 0; i < ports->count; i++) {
        dd_sock_close(ports->fds[i]);
    }
    ports->count = 0;
}

static bool
is_for_loopback(const dd_connector *connector, const dd_addr *first)
{
    return *connector->options.ifnames == '\0' && first != NULL && dd_addr_is_loopback(first);
}

dd_status
connect_listen_tcp(const dd_connector *connector, const dd_addr *first, connect_ports *ports,
                   dd_addr_list *addrs, dd_error *err)
{
    const char *ifnames = connector->options.ifnames;
    bool is_loopback = is_for_loopback(connector, first);
    connect_ports opened = {.is_loopback = is_loopback};
    dd_addr_list found;
    dd_status status = dd_endpoint_find_addrs(ifnames, first, &found, err);
    if (status == DD_OK) {
        status = *ifnames == '\0' && !is_loopback ? listen_everywhere(connector, &opened, &found, err)
                                                  : listen_on_each(connector, &opened, &found, err);
    }
    if (status != DD_OK) {
        connect_close_ports(&opened);
        return status;
    }
    *ports = opened;
    *addrs = found;
    return DD_OK;
}

void
connect_listen_unix(dd_connector *connector, dd_endpoint *endpoint)
{
    dd_error why;
    dd_addr addr = dd_endpoint_unix_addr(endpoint);
    endpoint->has_unix =
        !connector->options.is_shm_disabled && dd_sock_listen(&addr, &connector->unix_fd, &why) == DD_OK;
    if (!connector->options.is_shm_disabled && !endpoint->has_unix) {
        DD_LOG(DD_LOG_INFO, "shared memory is not used: %s", why.message);
    }
}

size_t
connect_take_listeners(dd_connector *self, int fds[CONNECT_LISTEN_MAX])
{
    dd_lock_take(&self->mu);
    if (!self->wants_ports) {
        connect_close_ports(&self->ports);
    }
    size_t count = self->ports.count;
    memcpy(fds, self->ports.fds, count * sizeof *fds);
    dd_lock_release(&self->mu);
    if (self->unix_fd >= 0) {
        fds[count++] = self->unix_fd;
    }
    return count;
}

dd_status
dd_connector_open_ports(dd_connector *self, const dd_addr *first, dd_addr_list *addrs, dd_error *err)
{
    bool is_local = is_for_loopback(self, first);
    dd_lock_take(&self->mu);
    self->wants_ports = true;
    bool is_open = self->ports.count > 0 && (is_local || !self->ports.is_loopback);
    dd_lock_release(&self->mu);
    if (is_open) {
        return DD_OK;
    }
    connect_ports more;
    dd_status status = connect_listen_tcp(self, first, &more, addrs, err);
    if (status != DD_OK) {
        return status;
    }
    dd_lock_take(&self->mu);
    memcpy(self->ports.fds + self->ports.count, more.fds, more.count * sizeof *more.fds);
    self->ports.count += more.count;
    self->ports.is_loopback = more.is_loopback;
    dd_lock_release(&self->mu);
    connect_wake(self);
    return DD_OK;
}

void
dd_connector_close_ports(dd_connector *self)
{
    dd_lock_take(&self->mu);
    self->wants_ports = false;
    dd_lock_release(&self->mu);
    connect_wake(self);
}
