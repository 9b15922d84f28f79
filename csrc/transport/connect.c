#include "transport/connect_internal.h"

#include "core/fork.h"
#include "core/lock.h"
#include "core/log.h"
#include "core/mem.h"
#include "core/system.h"
#include "core/thread.h"
#include "net/sock.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

/* Pause in accepting after an accept that failed for lack of descriptors. */
#define FAILING_NAP_NS (50 * DD_NS_PER_MS)
/* Pause in accepting while there are too many unauthenticated connections. */
#define FULL_NAP_NS (50 * DD_NS_PER_MS)
#define LOG_PAUSE_NS DD_NS_PER_S /* minimum time between two log records of failed accepts */
#define ACCEPTS_PER_ROUND 64
/* A failure to accept counts as permanent after this time. Diallers retry longer (REJECTED_TRIES),
 * so this process can report the failure before a dialler treats the process as lost. */
#define ACCEPT_FAILING_NS (500 * DD_NS_PER_MS)

/* ---- accepting connections */

static void
note_accepting(dd_connector *self, int sys_errno)
{
    if (sys_errno != 0 && atomic_load_explicit(&self->accept_errno, memory_order_relaxed) == 0) {
        atomic_store_explicit(&self->failing_since_ns, dd_clock_now_ns(), memory_order_relaxed);
    }
    atomic_store_explicit(&self->accept_errno, sys_errno, memory_order_release);
    self->failed_ns = sys_errno != 0 ? dd_clock_now_ns() : self->failed_ns;
}

/* Call when no connection waits to be accepted. A failure to accept ends ACCEPT_FAILING_NS after it
 * last occurred, since rejected peers dial again earlier. */
static void
note_quiet(dd_connector *self)
{
    if (dd_clock_now_ns() - self->failed_ns > ACCEPT_FAILING_NS) {
        note_accepting(self, 0);
    }
}

dd_status
dd_connector_check(dd_connector *self, dd_error *err)
{
    int sys_errno = atomic_load_explicit(&self->accept_errno, memory_order_acquire);
    int64_t failing_ns =
        dd_clock_now_ns() - (int64_t)atomic_load_explicit(&self->failing_since_ns, memory_order_relaxed);
    if (sys_errno == 0 || failing_ns < ACCEPT_FAILING_NS) {
        return DD_OK;
    }
    return dd_error_set_errno(err, DD_SYSTEM, sys_errno, "cannot accept the connections of other ranks");
}

void
connect_note_shortage(dd_connector *self, const dd_error *err)
{
    if (dd_error_is_local(err)) {
        atomic_store_explicit(&self->shortage_ns, dd_clock_now_ns(), memory_order_relaxed);
        atomic_store_explicit(&self->shortage_errno, err->sys_errno != 0 ? err->sys_errno : ENOMEM,
                              memory_order_release);
    }
}

int
dd_connector_last_shortage(const dd_connector *self, int64_t *when_ns)
{
    int sys_errno = atomic_load_explicit(&self->shortage_errno, memory_order_acquire);
    *when_ns = (int64_t)atomic_load_explicit(&self->shortage_ns, memory_order_relaxed);
    return sys_errno;
}

static void
log_not_accepted(dd_connector *self)
{
    if (dd_deadline_left_ns(self->may_log_ns) <= 0) {
        self->may_log_ns = dd_deadline_after(LOG_PAUSE_NS);
        DD_LOG(DD_LOG_INFO,
               "cannot accept a connection: the limit of %zu open files is reached; raise it with ulimit -n",
               dd_sock_fd_limit());
    }
}

/* Accept the waiting connections. Returns false if the process has no descriptor for them. */
static bool
accept_from(dd_connector *self, int listen_fd)
{
    bool is_unix = listen_fd == self->unix_fd;
    for (int i = 0; i < ACCEPTS_PER_ROUND && dd_admission_evict_surplus(&self->admission, is_unix); i++) {
        int fd = -1;
        int shortage;
        if (dd_admission_accept(&self->admission, listen_fd, &fd, &shortage) == DD_IO_AGAIN) {
            note_quiet(self);
            return true;
        }
        note_accepting(self, shortage);
        if (shortage != 0) {
            log_not_accepted(self);
            dd_sock_close(fd);
            return false;
        }
        connect_add_incoming(self, fd, is_unix);
    }
    return true;
}

/* ---- the connector's thread */

static bool
is_closing(dd_connector *self)
{
    dd_lock_take(&self->mu);
    bool is_so = self->is_closing;
    dd_lock_release(&self->mu);
    return is_so;
}

static void *
connector_main(void *arg)
{
    dd_connector *self = arg;
    bool is_failing = false;
    while (!is_closing(self)) {
        int fds[CONNECT_LISTEN_MAX];
        size_t polled[CONNECT_LISTEN_MAX] = {0};
        connect_begin_round(self);
        if (is_failing) {
            connect_sleep_until(self, dd_deadline_after(FAILING_NAP_NS));
        }
        size_t nlisten = connect_take_listeners(self, fds);
        for (size_t i = 0; i < nlisten && !is_failing; i++) {
            if (dd_admission_evict_surplus(&self->admission, fds[i] == self->unix_fd)) {
                connect_poll(self, fds[i], POLLIN, &polled[i]);
            } else {
                connect_sleep_until(self, dd_deadline_after(FULL_NAP_NS));
            }
        }
        connect_poll_incoming(self);
        connect_poll_dials(self);
        connect_sleep(self);
        connect_advance_incoming(self);
        connect_run_dials(self);
        is_failing = false;
        for (size_t i = 0; i < nlisten; i++) {
            if (connect_is_ready(self, &polled[i])) {
                is_failing = !accept_from(self, fds[i]) || is_failing;
            }
        }
    }
    return NULL;
}

/* ---- opening and closing */

static dd_status
connect_check_options(const dd_connect_options *options, dd_error *err)
{
    if (options->first_port > options->last_port || (options->first_port == 0 && options->last_port != 0)) {
        return dd_error_set(err, DD_INVALID_ARGUMENT,
                            "invalid port range: got %u to %u, expected first <= last and no 0",
                            options->first_port, options->last_port);
    }
    if (options->nlanes < 1) {
        return dd_error_set(err, DD_INVALID_ARGUMENT,
                            "invalid number of connections per peer: got %d, expected at least 1",
                            options->nlanes);
    }
    return DD_OK;
}

static dd_connector *
create_connector(const dd_connect_options *options, const dd_endpoint *endpoint,
                 const dd_connect_handler *handler)
{
    dd_connector *self = dd_mem_zalloc(sizeof *self);
    if (self != NULL) {
        self->options = *options;
        self->uid = endpoint->uid;
        self->endpoint = endpoint;
        self->handler = *handler;
        self->generation = dd_fork_generation();
        self->unix_fd = -1;
        self->wake_fd = dd_fork_register(dd_sys_eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
        self->wants_ports = true;
        connect_init_incoming(self);
        dd_lock_init(&self->mu, DD_LOCK_CONNECTOR);
        dd_list_init(&self->dials);
        dd_list_init(&self->queue);
    }
    return self;
}

static void
destroy_connector(dd_connector *self)
{
    connect_close_ports(&self->ports);
    dd_sock_close(self->unix_fd);
    connect_close_incoming(self);
    connect_destroy_dials(self);
    dd_sock_close(self->wake_fd);
    dd_lock_fini(&self->mu);
    dd_mem_free(self);
}

dd_status
dd_connector_open(const dd_connect_options *options, dd_endpoint *endpoint, const dd_addr *first,
                  const dd_connect_handler *handler, dd_addr_list *addrs, dd_connector **connector,
                  dd_error *err)
{
    dd_status status = connect_check_options(options, err);
    if (status != DD_OK) {
        return status;
    }
    dd_connector *self = create_connector(options, endpoint, handler);
    if (self == NULL) {
        return dd_error_no_memory(err, sizeof *self);
    }
    if (self->wake_fd < 0) {
        status = dd_error_set_errno(err, DD_SYSTEM, errno, "eventfd failed");
    }
    if (status == DD_OK) {
        status = connect_listen_tcp(self, first, &self->ports, addrs, err);
    }
    if (status == DD_OK) {
        connect_listen_unix(self, endpoint);
        status = dd_thread_start(&self->thread, "dd-connect", connector_main, self, err);
    }
    if (status != DD_OK) {
        destroy_connector(self);
        return status;
    }
    *connector = self;
    return DD_OK;
}

void
dd_connector_close(dd_connector *self)
{
    if (self == NULL) {
        return;
    }
    if (self->generation != dd_fork_generation()) {
        /* The thread may have been running at the fork, so its data may be inconsistent: only free
         * memory. */
        dd_mem_free(self);
        return;
    }
    dd_lock_take(&self->mu);
    self->is_closing = true;
    dd_lock_release(&self->mu);
    connect_wake(self);
    dd_thread_join(self->thread);
    destroy_connector(self);
}
