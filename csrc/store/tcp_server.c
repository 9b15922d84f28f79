#include "store/tcp_server_internal.h"

#include "core/fork.h"
#include "core/lock.h"
#include "core/log.h"
#include "core/mem.h"
#include "core/system.h"
#include "core/thread.h"
#include "net/sock.h"

#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>

#define EVENTS_MAX 128
#define ACCEPTS_PER_EVENT 64
#define ACCEPT_RETRY_NS (100 * DD_NS_PER_MS)
#define CURB_RETRY_NS (10 * DD_NS_PER_MS)
#define PORT_ATTEMPTS 16
#define UNAUTHENTICATED_MAX ((size_t)512)
#define UNAUTHENTICATED_GRACE_NS (100 * DD_NS_PER_MS)

struct dd_tcp_registry {
    dd_lock mu;
    dd_list servers; /* guarded by mu */
};

dd_status
dd_tcp_registry_create(dd_tcp_registry **registry, dd_error *err)
{
    dd_tcp_registry *created = dd_mem_zalloc(sizeof *created);
    if (created == NULL) {
        return dd_error_no_memory(err, sizeof *created);
    }
    dd_lock_init(&created->mu, DD_LOCK_STORE_SERVERS);
    dd_list_init(&created->servers);
    *registry = created;
    return DD_OK;
}

void
dd_tcp_registry_destroy(dd_tcp_registry *registry)
{
    if (registry != NULL) {
        dd_lock_fini(&registry->mu);
        dd_mem_free(registry);
    }
}

/* --- the loop ------------------------------------------------------------------------------------------------ */

bool
tcp_server_turn(dd_tcp_server *server, int timeout_ms)
{
    struct epoll_event events[EVENTS_MAX];
    int count = dd_sys_epoll_wait(server->epoll_fd, events, EVENTS_MAX, timeout_ms);
    for (int i = 0; i < count; i++) {
        tcp_handler *handler = events[i].data.ptr;
        handler->on_event(handler, events[i].events);
    }
    tcp_server_reap(server);
    return count > 0;
}

/* --- listening ----------------------------------------------------------------------------------------------- */

/* Stop watching a listening socket for duration_ns: otherwise the loop would spin on its event. */
static void
pause_listener(tcp_listener *listener, int64_t duration_ns)
{
    tcp_server_unwatch(listener->server, &listener->handler);
    listener->retry_ns = dd_deadline_after(duration_ns);
}

/* Watch the listening sockets whose pause has ended. Return the time when the next pause ends. */
static int64_t
resume_listeners(dd_tcp_server *server)
{
    int64_t next_ns = DD_NEVER_NS;
    for (size_t i = 0; i < server->nlisteners; i++) {
        tcp_listener *listener = &server->listeners[i];
        if (listener->retry_ns != 0 && dd_deadline_left_ns(listener->retry_ns) <= 0) {
            bool is_watched = tcp_server_watch(server, &listener->handler, EPOLLIN, NULL) == DD_OK;
            listener->retry_ns = is_watched ? 0 : dd_deadline_after(ACCEPT_RETRY_NS);
        }
        if (listener->retry_ns != 0 && listener->retry_ns < next_ns) {
            next_ns = listener->retry_ns;
        }
    }
    return next_ns;
}

/* Minimum time between two log records of connections that were not accepted. */
#define ACCEPT_LOG_NS DD_NS_PER_S

/* Record an attempt to accept. `reason` is its errno, EMFILE for a surplus connection, else 0. */
static void
note_accept(dd_tcp_server *server, int reason)
{
    char text[128];
    server->accept_errno = reason;
    if (reason != 0 && dd_deadline_left_ns(server->may_log_ns) <= 0) {
        server->may_log_ns = dd_deadline_after(ACCEPT_LOG_NS);
        DD_LOG(DD_LOG_INFO, "store server: port %u: cannot accept connections: %s (errno %d)", server->port,
               strerror_r(reason, text, sizeof text), reason);
    }
    if (reason == EMFILE || reason == ENFILE) {
        tcp_server_note_rejected(server);
    }
}

static void
close_unauthenticated(dd_admission_peer *peer, const char *why)
{
    tcp_conn_close(DD_CONTAINER_OF(peer, tcp_conn, admission), why);
}

static void
accept_conn(tcp_listener *listener, int fd, bool is_surplus)
{
    dd_tcp_server *server = listener->server;
    if (listener->is_unix && !dd_sock_is_same_user(fd)) {
        /* Users can connect to any abstract Unix socket of this host. Over TCP, only the secret
         * keeps other users out. */
        DD_LOG(DD_LOG_INFO, "store server: port %u: refused another user on its Unix socket", server->port);
        dd_sock_close(fd);
        return;
    }
    tcp_conn_open(server, fd, listener->is_unix, is_surplus);
}

static void
on_listener_event(tcp_handler *handler, uint32_t events)
{
    (void)events;
    tcp_listener *listener = DD_CONTAINER_OF(handler, tcp_listener, handler);
    for (int i = 0; i < ACCEPTS_PER_EVENT; i++) {
        if (!dd_admission_evict_surplus(&listener->server->admission, false)) {
            pause_listener(listener, CURB_RETRY_NS);
            return;
        }
        int fd;
        int shortage;
        dd_io io = dd_admission_accept(&listener->server->admission, listener->handler.fd, &fd, &shortage);
        if (io == DD_IO_AGAIN) {
            return;
        }
        note_accept(listener->server, shortage);
        if (io != DD_IO_OK) {
            pause_listener(listener, ACCEPT_RETRY_NS);
            return;
        }
        accept_conn(listener, fd, shortage != 0);
    }
}

static dd_status
server_add_listener(dd_tcp_server *server, int fd, dd_error *err)
{
    tcp_listener *listener = &server->listeners[server->nlisteners];
    *listener = (tcp_listener){
        .handler = {.fd = fd, .on_event = on_listener_event},
        .server = server,
    };
    dd_status status = tcp_server_watch(server, &listener->handler, EPOLLIN, err);
    if (status == DD_OK) {
        server->nlisteners++;
    }
    return status;
}

static void
close_listeners(dd_tcp_server *server)
{
    while (server->nlisteners > 0) {
        tcp_listener *listener = &server->listeners[--server->nlisteners];
        tcp_server_unwatch(server, &listener->handler);
        dd_sock_close(listener->handler.fd);
    }
}

static dd_status
listen_on_addr(dd_tcp_server *server, const dd_addr *addr, dd_error *err)
{
    int fd;
    dd_status status = dd_sock_listen(addr, &fd, err);
    if (status != DD_OK) {
        return status;
    }
    uint16_t port = 0;
    status = dd_sock_find_port(fd, &port, err);
    if (status == DD_OK) {
        status = server_add_listener(server, fd, err);
    }
    if (status != DD_OK) {
        dd_sock_close(fd);
        return status;
    }
    if (server->port == 0) {
        server->port = port;
    }
    return DD_OK;
}

/* Return true if the address, or its family, does not exist on this machine. */
static bool
is_address_absent(const dd_error *error)
{
    return error->sys_errno == EADDRNOTAVAIL || error->sys_errno == EAFNOSUPPORT;
}

/* Listen with one port on all addresses of the list that exist on this machine; at least one must.
 * With port 0 the first address chooses the port; if another address has it in use, start again. */
static dd_status
listen_on_list(dd_tcp_server *server, const dd_addr_list *list, uint16_t port, dd_error *err)
{
    for (int attempt = 1;; attempt++) {
        dd_error failure = {.code = DD_NETWORK, .message = "the host has no address"};
        bool is_well = true;
        server->port = port;
        for (size_t i = 0; i < list->count && is_well; i++) {
            dd_addr addr = list->items[i];
            dd_addr_set_port(&addr, server->port);
            is_well = listen_on_addr(server, &addr, &failure) == DD_OK || is_address_absent(&failure);
        }
        if (is_well && server->nlisteners > 0) {
            return DD_OK;
        }
        close_listeners(server);
        if (port != 0 || failure.sys_errno != EADDRINUSE || attempt == PORT_ATTEMPTS) {
            return dd_error_copy(err, &failure);
        }
    }
}

static dd_status
listen_on_host(dd_tcp_server *server, const dd_tcp_server_options *options, const dd_wait *wait,
               dd_error *err)
{
    /* On a machine without IPv6, "::" does not exist: then listen on "0.0.0.0". */
    bool is_all = dd_addr_is_wildcard(options->host) && strcmp(options->host, "0.0.0.0") != 0;
    const char *hosts[] = {is_all ? "::" : options->host, "0.0.0.0"};
    dd_error failure = {0};
    dd_status status = DD_OK;
    for (int i = 0; i < (is_all ? 2 : 1); i++) {
        dd_addr_list list;
        status = dd_addr_resolve(hosts[i], options->port, &list, wait, err);
        if (status != DD_OK) {
            return status;
        }
        status = listen_on_list(server, &list, options->port, &failure);
        if (status == DD_OK || !is_address_absent(&failure)) {
            break;
        }
    }
    if (status != DD_OK) {
        (void)dd_error_copy(err, &failure);
        bool is_other_host = failure.sys_errno == EADDRNOTAVAIL;
        /* The first words are those of torch.distributed, because scripts search for them. */
        dd_error_prepend(
            err, "The server socket has failed to listen on any local network address%s. port: %u",
            is_other_host ? " (the host is not this machine; \"0.0.0.0\" listens on all its addresses)" : "",
            options->port);
    }
    return status;
}

static dd_status
listen_on_fd(dd_tcp_server *server, const dd_tcp_server_options *options, dd_error *err)
{
    dd_addr bound = dd_sock_local_addr(options->listen_fd);
    if (bound.len > 0 && bound.storage.ss_family != AF_INET && bound.storage.ss_family != AF_INET6) {
        return dd_error_set(err, DD_INVALID_ARGUMENT, "listen fd %d is not a TCP socket", options->listen_fd);
    }
    if (bound.len > 0 && options->port != 0 && dd_addr_port(&bound) != options->port) {
        return dd_error_set(err, DD_INVALID_ARGUMENT,
                            "listen fd %d is bound to port %u, expected to be bound to port %u",
                            options->listen_fd, dd_addr_port(&bound), options->port);
    }
    dd_status status = dd_sock_listen_on(options->listen_fd, err);
    if (status != DD_OK) {
        return status;
    }
    /* If the socket was not bound to a port, listen() has assigned one. */
    status = dd_sock_find_port(options->listen_fd, &server->port, err);
    if (status != DD_OK) {
        return status;
    }
    return server_add_listener(server, options->listen_fd, err);
}

bool
dd_tcp_unix_name(const dd_addr *addr, int n, dd_addr *name)
{
    bool is_v4 = addr->storage.ss_family == AF_INET;
    if (n > (is_v4 ? 2 : 1)) {
        return false;
    }
    char listening[DD_ADDR_TEXT_MAX];
    (void)dd_addr_print(addr, listening);
    if (n > 0) {
        snprintf(listening, sizeof listening, "%s:%u", is_v4 && n == 1 ? "0.0.0.0" : "[::]",
                 dd_addr_port(addr));
    }
    char text[DD_ADDR_TEXT_MAX + 16];
    snprintf(text, sizeof text, "dldist-store-%s", listening);
    *name = dd_addr_unix_abstract(text);
    return true;
}

/* Return true if the caller's socket listens on all IPv6 addresses but not on IPv4: a Unix socket
 * must not have a name for all addresses then. */
static bool
is_for_v6_alone(const dd_addr *addr, int fd)
{
    const struct sockaddr_in6 *in6 = (const struct sockaddr_in6 *)&addr->storage;
    int is_alone = 0;
    socklen_t len = sizeof is_alone;
    return addr->storage.ss_family == AF_INET6 && IN6_IS_ADDR_UNSPECIFIED(&in6->sin6_addr) &&
           dd_sys_getsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &is_alone, &len) == 0 && is_alone;
}

/* For clients on this host, listen on a Unix socket beside each TCP socket. Only logs failures. */
static void
listen_on_unix(dd_tcp_server *server)
{
    size_t ntcp = server->nlisteners;
    for (size_t i = 0; i < ntcp; i++) {
        int tcp_fd = server->listeners[i].handler.fd;
        dd_addr bound = dd_sock_local_addr(tcp_fd);
        dd_addr name;
        dd_error error;
        if (is_for_v6_alone(&bound, tcp_fd) || !dd_tcp_unix_name(&bound, 0, &name)) {
            continue;
        }
        if (listen_on_addr(server, &name, &error) == DD_OK) {
            server->listeners[server->nlisteners - 1].is_unix = true;
        } else {
            DD_LOG(DD_LOG_INFO, "store server: port %u: no Unix socket: %s", server->port, error.message);
        }
    }
}

/* --- lifecycle ------------------------------------------------------------------------------ */

static void
on_wake(tcp_handler *handler, uint32_t events)
{
    (void)events;
    DD_CONTAINER_OF(handler, dd_tcp_server, wake)->is_stopping = true;
}

/* Run the expired timers. Return the milliseconds that the loop may sleep; -1 for no limit. */
static int
expire(dd_tcp_server *server)
{
    dd_timer_set *handshakes = &server->admission.timers;
    dd_timer_set_run(handshakes, dd_clock_now_ns());
    tcp_server_reap(server);
    int64_t listener_ns = resume_listeners(server);
    int64_t handshake_ns = dd_timer_set_next_ns(handshakes);
    int64_t next_ns = handshake_ns < listener_ns ? handshake_ns : listener_ns;
    if (next_ns == DD_NEVER_NS) {
        return -1;
    }
    int64_t left_ms = (dd_deadline_left_ns(next_ns) + DD_NS_PER_MS - 1) / DD_NS_PER_MS;
    return left_ms < 60000 ? (int)left_ms : 60000;
}

static void *
server_main(void *arg)
{
    dd_tcp_server *server = arg;
    int timeout_ms = 0;
    while (!server->is_stopping) {
        bool is_input = tcp_server_turn(server, timeout_ms);
        int sleep_ms = expire(server);
        if (is_input) {
            dd_spin_end_wait(&server->spin);
        }
        timeout_ms = is_input || dd_spin_may_continue(&server->spin) ? 0 : sleep_ms;
    }
    return NULL;
}

void
tcp_server_free(dd_tcp_server *server)
{
    close_listeners(server);
    while (!dd_list_is_empty(&server->conns)) {
        tcp_conn_close(DD_CONTAINER_OF(server->conns.next, tcp_conn, link), "the server stopped");
    }
    tcp_server_reap(server);
    dd_keyspace_fini(&server->ks);
    dd_fork_close(server->wake.fd);
    dd_fork_close(server->epoll_fd);
    dd_lock_fini(&server->joined_mu);
    dd_cond_fini(&server->joined_cond);
    dd_blob_fini(&server->secret);
    dd_mem_free(server);
}

dd_status
tcp_server_create(dd_tcp_server **out, const dd_tcp_server_options *options, dd_error *err)
{
    dd_tcp_server *server = dd_mem_zalloc(sizeof *server);
    if (server == NULL) {
        return dd_error_no_memory(err, sizeof *server);
    }
    server->epoll_fd = dd_fork_register(dd_sys_epoll_create1(EPOLL_CLOEXEC));
    server->wake = (tcp_handler){.fd = dd_fork_register(dd_sys_eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
                                 .on_event = on_wake};
    int reason = errno;
    server->spin = dd_spin_create(DD_POLL_STORE_NS);
    server->limits = options->limits;
    server->handshake_timeout_ns = options->handshake_timeout_ns;
    server->fork_generation = dd_fork_generation();
    server->registry = options->registry;
    atomic_init(&server->refs, 1);
    dd_list_init(&server->registry_link);
    dd_list_init(&server->conns);
    dd_list_init(&server->closed);
    dd_admission_init(&server->admission, UNAUTHENTICATED_MAX, UNAUTHENTICATED_GRACE_NS,
                      close_unauthenticated);
    dd_keyspace_init(&server->ks);
    dd_lock_init(&server->joined_mu, DD_LOCK_STORE_JOINED);
    dd_cond_init(&server->joined_cond);
    server->is_encryption_off = options->is_encryption_off;
    server->is_open_to_own_torch = options->is_open_to_own_torch;
    dd_status status = dd_blob_assign(&server->secret, options->secret, err);
    if (status == DD_OK && (server->epoll_fd < 0 || server->wake.fd < 0)) {
        status = dd_error_set_errno(err, DD_SYSTEM, reason, "cannot create an event loop");
    }
    if (status == DD_OK) {
        status = tcp_server_watch(server, &server->wake, EPOLLIN, err);
    }
    if (status != DD_OK) {
        tcp_server_free(server);
        return status;
    }
    *out = server;
    return DD_OK;
}

static dd_status
open_alone(dd_tcp_server **out, const dd_tcp_server_options *options, const dd_wait *wait, dd_error *err)
{
    dd_tcp_server *server = NULL;
    dd_status status = tcp_server_create(&server, options, err);
    if (status != DD_OK) {
        return status;
    }
    status = options->listen_fd >= 0 ? listen_on_fd(server, options, err)
                                     : listen_on_host(server, options, wait, err);
    if (status == DD_OK) {
        listen_on_unix(server);
        status = dd_thread_start(&server->thread, "dd-store", server_main, server, err);
    }
    if (status != DD_OK) {
        if (options->listen_fd >= 0 && server->nlisteners > 0) {
            /* after a failure, the caller owns its socket, the first listener's, again */
            tcp_server_unwatch(server, &server->listeners[0].handler);
            server->listeners[0].handler.fd = -1;
        }
        tcp_server_free(server);
        return status;
    }
    (void)dd_fork_register(options->listen_fd);
    DD_LOG(DD_LOG_INFO, "store server: listens on port %u of \"%s\"%s", server->port, options->host,
           server->secret.len > 0 ? ", with a secret" : "");
    *out = server;
    return DD_OK;
}

static dd_tcp_server *
find_shared_locked(dd_tcp_registry *registry, uint16_t port)
{
    for (dd_list *link = registry->servers.next; link != &registry->servers; link = link->next) {
        dd_tcp_server *server = DD_CONTAINER_OF(link, dd_tcp_server, registry_link);
        if (server->port == port && server->fork_generation == dd_fork_generation()) {
            return server;
        }
    }
    return NULL;
}

static dd_status
open_shared(dd_tcp_server **out, const dd_tcp_server_options *options, const dd_wait *wait, dd_error *err)
{
    dd_tcp_registry *registry = options->registry;
    dd_status status = DD_OK;
    dd_lock_take(&registry->mu);
    dd_tcp_server *server = options->port != 0 ? find_shared_locked(registry, options->port) : NULL;
    if (server != NULL) {
        atomic_fetch_add(&server->refs, 1);
    } else {
        status = open_alone(&server, options, wait, err);
        if (status == DD_OK) {
            dd_list_push_back(&registry->servers, &server->registry_link);
        }
    }
    dd_lock_release(&registry->mu);
    if (status == DD_OK) {
        *out = server;
    }
    return status;
}

dd_status
dd_tcp_server_open(dd_tcp_server **server, const dd_tcp_server_options *options, const dd_wait *wait,
                   dd_error *err)
{
    return options->registry != NULL ? open_shared(server, options, wait, err)
                                     : open_alone(server, options, wait, err);
}

dd_tcp_server *
dd_tcp_server_acquire(dd_tcp_server *server)
{
    atomic_fetch_add(&server->refs, 1);
    return server;
}

void
dd_tcp_server_release(dd_tcp_server *server)
{
    /* A forked child has no server thread, its descriptors are closed, and the data may be half
     * changed: leak this copy of the server. */
    if (server == NULL || server->fork_generation != dd_fork_generation()) {
        return;
    }
    /* Hold the registry's lock to the end: otherwise another thread that opens this port could find
     * a server that is stopping, or find the port still in use. */
    dd_tcp_registry *registry = server->registry;
    if (registry != NULL) {
        dd_lock_take(&registry->mu);
    }
    if (atomic_fetch_sub(&server->refs, 1) == 1) {
        dd_list_remove(&server->registry_link);
        uint64_t one = 1;
        /* The write fails only if the counter is full, and then the loop is awake already. */
        (void)!dd_sys_write(server->wake.fd, &one, sizeof one);
        dd_thread_join(server->thread);
        tcp_server_free(server);
    }
    if (registry != NULL) {
        dd_lock_release(&registry->mu);
    }
}

uint16_t
dd_tcp_server_port(const dd_tcp_server *server)
{
    return server->port;
}
