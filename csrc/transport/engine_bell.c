/* The engine's doorbell: rings, and requests for descriptors with their answers. */
#include "core/system.h"
#include "transport/doorbell.h"
#include "transport/engine_internal.h"

#include <errno.h>

/* Limit of datagrams per round, so that a peer that rings without end does not delay other work. */
#define DATAGRAMS_PER_ROUND 256

/* Number of consecutive failures before an error is reported: about 0.25 s of requests, since
 * requests are repeated after growing pauses. */
#define DATAGRAMS_FAILED_MAX 6

dd_status
engine_open_bell(dd_engine *engine, dd_error *err)
{
    int fd = -1;
    dd_status status = dd_doorbell_open(&engine->endpoint.uid, &fd, err);
    if (status != DD_OK) {
        return status;
    }
    dd_engine_lock(engine);
    engine->bell_fd = fd;
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = &engine->bell_fd};
    if (dd_sys_epoll_ctl(engine->epoll_fd, EPOLL_CTL_ADD, fd, &event) != 0) {
        status = dd_error_set_errno(err, DD_SYSTEM, errno, "cannot watch the doorbell");
    }
    dd_engine_unlock(engine);
    return status;
}

void
dd_peer_ring_bell_locked(dd_peer *peer)
{
    if (peer->engine->bell_fd >= 0 && !peer->is_self) {
        dd_doorbell_ring(peer->engine->bell_fd, &peer->endpoint.uid);
    }
}

void
dd_peer_check_process_locked(dd_peer *peer)
{
    dd_error error;
    if (peer->is_near && !peer->is_self && peer->state == PEER_IDLE &&
        dd_doorbell_is_closed(&peer->endpoint.uid)) {
        (void)dd_error_set(&error, DD_PEER_LOST, "its process exited");
        peer->is_final = true;
        peer_break(peer, &error);
        engine_wake(peer->engine);
    }
}

static void
count_sent_datagram(dd_engine *engine, dd_io io, int sys_errno)
{
    dd_error error;
    (void)dd_error_set_errno(&error, DD_NETWORK, sys_errno, "%s", "");
    if (io == DD_IO_OK) {
        engine->ndatagrams_failed = 0;
    } else if (io == DD_IO_FAILED && dd_error_is_local(&error)) {
        engine->ndatagrams_failed++;
        engine->datagrams_errno = sys_errno;
    }
}

static bool
send_datagram(dd_context *context, int rank, dd_bell_datagram *datagram)
{
    dd_engine *engine = context->engine;
    datagram->context = context->key.id;
    datagram->source = (uint32_t)context->rank;
    datagram->target = (uint32_t)rank;
    if (engine->bell_fd < 0) {
        return false;
    }
    dd_io io = dd_doorbell_send(engine->bell_fd, &context->ranks[rank].peer->endpoint.uid, datagram);
    count_sent_datagram(engine, io, errno);
    return io == DD_IO_OK;
}

dd_status
dd_context_check_datagrams_locked(const dd_context *context, dd_error *err)
{
    const dd_engine *engine = context->engine;
    if (engine->ndatagrams_failed < DATAGRAMS_FAILED_MAX) {
        return DD_OK;
    }
    return dd_error_set_errno(err, DD_SYSTEM, engine->datagrams_errno,
                              "cannot send descriptors to other processes of this host");
}

bool
dd_context_want_fd_locked(dd_context *context, int rank, uint64_t fd_key)
{
    dd_bell_datagram datagram = {.kind = DD_BELL_WANT, .fd_key = fd_key, .fd = -1};
    return send_datagram(context, rank, &datagram);
}

bool
dd_context_pass_fd_locked(dd_context *context, int rank, uint64_t fd_key, int fd)
{
    dd_bell_datagram datagram = {
        .kind = fd == DD_FD_DENIED ? DD_BELL_NONE : DD_BELL_PASS, .fd_key = fd_key, .fd = fd};
    return send_datagram(context, rank, &datagram);
}

static void
deliver_datagram(dd_engine *engine, const dd_bell_datagram *datagram)
{
    dd_context *context = engine_find_context(engine, datagram->context, datagram->target);
    bool is_known = context != NULL && datagram->source < (uint32_t)context->nranks;
    bool is_taken = false;
    if (is_known && datagram->kind == DD_BELL_WANT && context->handler.on_fd_wanted != NULL) {
        context->handler.on_fd_wanted(context->handler.ctx, (int)datagram->source, datagram->fd_key);
    } else if (is_known && context->handler.on_fd != NULL &&
               (datagram->kind == DD_BELL_PASS || datagram->kind == DD_BELL_NONE)) {
        int fd = datagram->kind == DD_BELL_PASS ? datagram->fd : DD_FD_DENIED;
        is_taken = context->handler.on_fd(context->handler.ctx, (int)datagram->source, datagram->fd_key, fd);
    }
    if (!is_taken) {
        dd_sock_close(datagram->fd);
    }
}

void
engine_answer_bell(dd_engine *engine)
{
    dd_bell_datagram datagram;
    for (int i = 0; i < DATAGRAMS_PER_ROUND && dd_doorbell_take(engine->bell_fd, &datagram) == DD_IO_OK;
         i++) {
        if (datagram.kind != DD_BELL_RING) {
            deliver_datagram(engine, &datagram);
        }
    }
    engine->has_rung = true;
    /* The ring may be meant for a thread that sleeps, so wake the driver. */
    engine_wake_driver(engine);
}

void
engine_notify_rung(dd_engine *engine)
{
    engine->has_rung = false;
    for (dd_list *node = engine->context_list.next; node != &engine->context_list;) {
        dd_context *context = DD_CONTAINER_OF(node, dd_context, link);
        node = node->next;
        context_read_posts(context);
    }
}
