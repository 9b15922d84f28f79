/* New links: the handler that the engine passes to the connector. */
#include "transport/engine_internal.h"

#include "core/assert.h"
#include "core/mem.h"
#include "core/system.h"

#include <errno.h>
#include <string.h>

/* Limit of links with processes whose endpoints are unknown: they may have this process's endpoint
 * from a meeting, or be unrelated. More processes receive BUSY until endpoints are known. */
#define UNKNOWN_MAX 64

static unsigned
count_unknown(const dd_engine *engine)
{
    unsigned count = 0;
    for (dd_map_node *node = dd_map_next(&engine->peers, NULL); node != NULL;
         node = dd_map_next(&engine->peers, node)) {
        const dd_peer *peer = DD_CONTAINER_OF(node, dd_peer, node);
        count += !peer->is_endpoint_known && (peer->state == PEER_ACCEPTING || peer->state == PEER_CONNECTED);
    }
    return count;
}

static bool
may_accept_locked(dd_engine *engine, const dd_uid *uid)
{
    dd_peer *peer = engine_find_peer(engine, uid);
    if (engine->is_closing || (peer == NULL && (count_unknown(engine) >= UNKNOWN_MAX ||
                                                peer_create(engine, uid, &peer, NULL) != DD_OK))) {
        return false;
    }
    /* If both processes dial, the dial of the smaller uid creates the link; the other one waits. */
    bool is_peer_first = memcmp(uid, &engine->endpoint.uid, sizeof *uid) < 0;
    if (peer->is_breaking || !(peer->state == PEER_IDLE || (peer->state == PEER_DIALLING && is_peer_first))) {
        return false;
    }
    peer->state = PEER_ACCEPTING;
    return true;
}

bool
engine_may_accept(void *ctx, const dd_uid *uid)
{
    dd_engine *engine = ctx;
    dd_engine_lock(engine);
    bool is_accepted = may_accept_locked(engine, uid);
    dd_engine_unlock(engine);
    return is_accepted;
}

/* An accepted link could not be created. If a link is wanted, dial, to learn the outcome. */
void
engine_on_accept_failed(void *ctx, const dd_uid *uid)
{
    dd_engine *engine = ctx;
    dd_engine_lock(engine);
    dd_peer *peer = engine_find_peer(engine, uid);
    if (peer != NULL && peer->state == PEER_ACCEPTING) {
        peer->state = PEER_IDLE;
        if (peer->wants_link) {
            dd_peer_connect_locked(peer);
        }
        peer_reap(peer);
        engine_wake(engine);
    }
    dd_engine_unlock(engine);
}

static dd_status
attach_lane(dd_peer *peer, int number, dd_link *stream, dd_error *err)
{
    dd_engine *engine = peer->engine;
    dd_lane *self = dd_mem_alloc(sizeof *self);
    if (self == NULL) {
        return dd_error_no_memory(err, sizeof *self);
    }
    memset(self, 0, offsetof(dd_lane, buf));
    self->stream = stream;
    self->peer = peer;
    self->number = number;
    self->watched = EPOLLIN;
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = self};
    if (dd_sys_epoll_ctl(engine->epoll_fd, EPOLL_CTL_ADD, stream->fd, &event) != 0) {
        int sys_errno = errno;
        engine_note_link_failure(engine, sys_errno);
        dd_mem_free(self);
        return dd_error_set_errno(err, DD_SYSTEM, sys_errno, "cannot watch the connection to %s, pid %lld",
                                  peer->endpoint.host, peer->endpoint.pid);
    }
    dd_list_push_back(stream->is_shared_memory ? &engine->shm_lanes : &engine->tcp_lanes, &self->link);
    engine->ntcp_lanes += stream->is_shared_memory ? 0 : 1;
    peer->lanes[peer->nlanes++] = self;
    engine->stats.nconnections++;
    return DD_OK;
}

static void
accept_first_lane(dd_peer *peer, dd_link *stream)
{
    dd_error error;
    if (attach_lane(peer, 0, stream, &error) != DD_OK) {
        dd_link_close(stream);
        peer_break(peer, &error);
        return;
    }
    if (peer->is_endpoint_known) {
        dd_timer_clear(&peer->timer);
    } else {
        peer_start_timer(peer, UNKNOWN_LINK_NS);
    }
    peer->state = PEER_CONNECTED;
    peer->eager_max = stream->is_shared_memory ? SHM_EAGER_MAX : TCP_EAGER_MAX;
    dd_list *contexts = &peer->engine->context_list;
    for (dd_list *node = contexts->next; node != contexts; node = node->next) {
        context_on_peer_connected(DD_CONTAINER_OF(node, dd_context, link), peer);
    }
}

/* Find the peer of a new link. For lane 0, also create a missing peer, or replace a lost peer.
 * Returns NULL if the link must be closed. */
static dd_peer *
find_taker(dd_engine *engine, const dd_uid *uid, int lane)
{
    dd_peer *peer = engine_find_peer(engine, uid);
    if (engine->is_closing) {
        return NULL;
    }
    if (lane == 0 && peer == NULL) {
        (void)!peer_create(engine, uid, &peer, NULL);
    } else if (lane == 0 && (peer->state == PEER_LOST || peer->is_breaking)) {
        /* The other side has accepted the link for a group that is being created. */
        (void)!peer_replace(&peer, NULL);
    }
    return peer;
}

static void
take_link_locked(dd_engine *engine, const dd_uid *uid, int lane, dd_link *stream)
{
    dd_assert_holds(ENGINE);
    dd_peer *peer = find_taker(engine, uid, lane);
    bool is_wanted = peer != NULL && !peer->is_breaking && !peer->is_self;
    if (is_wanted && lane == 0 && peer->state < PEER_CONNECTED) {
        accept_first_lane(peer, stream);
    } else if (!is_wanted || lane == 0 || peer->state != PEER_CONNECTED || peer->nlanes >= DD_LANES_MAX ||
               attach_lane(peer, lane, stream, NULL) != DD_OK) {
        dd_link_close(stream);
    }
}

void
engine_on_accepted(void *ctx, const dd_uid *uid, int lane, dd_link *stream)
{
    dd_engine *engine = ctx;
    dd_engine_lock(engine);
    take_link_locked(engine, uid, lane, stream);
    engine_wake(engine);
    dd_engine_unlock(engine);
}

/* ---- dials of this process */

/* Handle the end of a dial. Returns its peer, or NULL if the dial no longer counts. */
static dd_peer *
end_dial(dd_engine *engine, const dd_uid *uid, int lane, uint64_t dial)
{
    dd_peer *peer = engine_find_peer(engine, uid);
    if (peer == NULL) {
        return NULL;
    }
    if (lane != 0) {
        peer->ndialling -= peer->ndialling > 0 ? 1 : 0;
        return peer;
    }
    if (peer->dial != dial) {
        return NULL;
    }
    peer->dial = 0;
    return peer;
}

bool
engine_wants_dial(void *ctx, const dd_uid *uid, uint64_t dial, bool is_busy)
{
    dd_engine *engine = ctx;
    dd_engine_lock(engine);
    dd_peer *peer = engine_find_peer(engine, uid);
    bool is_wanted = peer != NULL && peer->state == PEER_DIALLING && peer->dial == dial;
    dd_error accept_error;
    if (is_wanted && is_busy && dd_engine_check_accepting_locked(engine, &accept_error) != DD_OK) {
        /* The peer is busy with its own dial, but this process cannot accept that dial. */
        peer_break(peer, &accept_error);
        engine_wake(engine);
        is_wanted = false;
    }
    if (!is_wanted) {
        (void)end_dial(engine, uid, 0, dial);
    }
    dd_engine_unlock(engine);
    return is_wanted;
}

void
engine_on_dialled(void *ctx, const dd_uid *uid, int lane, uint64_t dial, dd_link *stream)
{
    dd_engine *engine = ctx;
    dd_engine_lock(engine);
    (void)end_dial(engine, uid, lane, dial);
    take_link_locked(engine, uid, lane, stream);
    engine_wake(engine);
    dd_engine_unlock(engine);
}

void
engine_on_dial_failed(void *ctx, const dd_uid *uid, int lane, uint64_t dial, const dd_error *error)
{
    dd_engine *engine = ctx;
    dd_engine_lock(engine);
    dd_peer *peer = end_dial(engine, uid, lane, dial);
    if (peer != NULL && lane == 0 && peer->state == PEER_DIALLING) {
        peer_break(peer, error);
        engine_wake(engine);
    }
    dd_engine_unlock(engine);
}
