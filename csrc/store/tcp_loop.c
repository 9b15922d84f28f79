#include "store/tcp_server_internal.h"

#include "core/system.h"

#include <errno.h>

bool
tcp_server_turn(dd_tcp_server *server, int timeout_ms)
{
    int count = dd_sys_epoll_wait(server->epoll_fd, server->events, TCP_EVENTS_MAX, timeout_ms);
    server->nevents = count > 0 ? count : 0;
    for (server->next_event = 0; server->next_event < server->nevents;) {
        struct epoll_event *event = &server->events[server->next_event++];
        tcp_handler *handler = event->data.ptr;
        if (handler != NULL) {
            handler->on_event(handler, event->events);
        }
    }
    return count > 0;
}

dd_status
tcp_server_watch(dd_tcp_server *server, tcp_handler *handler, uint32_t events, dd_error *err)
{
    struct epoll_event event = {.events = events, .data.ptr = handler};
    if (dd_sys_epoll_ctl(server->epoll_fd, EPOLL_CTL_ADD, handler->fd, &event) != 0) {
        return dd_error_set_errno(err, DD_SYSTEM, errno, "cannot watch fd %d", handler->fd);
    }
    return DD_OK;
}

void
tcp_server_unwatch(dd_tcp_server *server, tcp_handler *handler)
{
    (void)dd_sys_epoll_ctl(server->epoll_fd, EPOLL_CTL_DEL, handler->fd, NULL);
    for (int i = server->next_event; i < server->nevents; i++) {
        if (server->events[i].data.ptr == handler) {
            server->events[i].data.ptr = NULL;
        }
    }
}
