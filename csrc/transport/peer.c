#include "transport/engine_internal.h"

#include "core/assert.h"
#include "core/fork.h"
#include "core/mem.h"
#include "core/system.h"
#include "transport/doorbell.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define DIAL_TIMEOUT_NS (30 * DD_NS_PER_S)
/* When a new endpoint arrives, dial again if the dial in progress is older than this. That dial may
 * go to closed ports, or into a network that was cut: the system retries only after 1, 3, 7 and 15
 * s, even if packets get through earlier. */
#define PROMPT_NS (1 * DD_NS_PER_S)
#define GRACE_NS (200 * DD_NS_PER_MS) /* maximum time from another lane's end to lane 0's */
#define EARLY_HELD_NS (60 * DD_NS_PER_S)
/* Time that dd_engine_check_links_locked reports a failure; all ranks know the failure earlier. */
#define SHORTAGE_COUNTS_NS (5 * DD_NS_PER_S)

/* Error of a lost peer for which no memory for an error was available. */
static const dd_error no_memory = {.code = DD_OUT_OF_MEMORY,
                                   .blamed = {.rank = -1},
                                   .message = "the connection broke, and no memory is left for the reason"};

/* Allocate a peer that is not in engine->peers yet. */
static dd_status
make_peer(dd_engine *engine, const dd_uid *uid, dd_peer **peer, dd_error *err)
{
    dd_peer *self = dd_mem_zalloc(sizeof *self);
    if (self == NULL) {
        return dd_error_no_memory(err, sizeof *self);
    }
    self->engine = engine;
    self->endpoint.uid = *uid;
    (void)snprintf(self->endpoint.host, sizeof self->endpoint.host, "unknown");
    dd_timer_init(&self->timer, peer_on_timer);
    self->eager_max = SHM_EAGER_MAX < TCP_EAGER_MAX ? SHM_EAGER_MAX : TCP_EAGER_MAX;
    self->credit = CREDIT_NBYTES;
    dd_list *lists[] = {&self->out,       &self->awaiting, &self->sending,     &self->flushing,
                        &self->receiving, &self->early,    &self->held_aborts, &self->breaking};
    for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++) {
        dd_list_init(lists[i]);
    }
    self->node.key = dd_bytes_of(&self->endpoint.uid, sizeof self->endpoint.uid);
    *peer = self;
    return DD_OK;
}

dd_status
peer_create(dd_engine *engine, const dd_uid *uid, dd_peer **peer, dd_error *err)
{
    dd_peer *self = NULL;
    dd_status status = make_peer(engine, uid, &self, err);
    if (status == DD_OK) {
        status = dd_map_insert(&engine->peers, &self->node, err);
    }
    if (status == DD_OK) {
        *peer = self;
    } else {
        dd_mem_free(self);
    }
    return status;
}

static void
destroy_lane(dd_lane *lane)
{
    dd_engine *engine = lane->peer->engine;
    dd_list_remove(&lane->link);
    engine->lane_generation++;
    engine->ntcp_lanes -= lane->stream->is_shared_memory ? 0 : 1;
    if (engine->generation == dd_fork_generation()) {
        (void)dd_sys_epoll_ctl(engine->epoll_fd, EPOLL_CTL_DEL, lane->stream->fd, NULL);
    }
    if (lane->collected != NULL) {
        engine_destroy_held(engine, lane->collected);
    }
    dd_link_close(lane->stream);
    dd_mem_free(lane->current.owned);
    dd_mem_free(lane);
}

void
peer_destroy_lanes(dd_peer *peer)
{
    for (int i = 0; i < peer->nlanes; i++) {
        destroy_lane(peer->lanes[i]);
        peer->lanes[i] = NULL;
    }
    peer->nlanes = 0;
}

void
peer_discard_output(dd_peer *peer)
{
    memset(peer->nreplies, 0, sizeof peer->nreplies);
    while (!dd_list_is_empty(&peer->out)) {
        out_frame *out = DD_CONTAINER_OF(peer->out.next, out_frame, link);
        dd_list_remove(&out->link);
        dd_mem_free(out->owned);
        engine_destroy_out(peer->engine, out);
    }
}

void
peer_destroy(dd_peer *peer)
{
    dd_engine *engine = peer->engine;
    if (!peer->is_replaced) {
        dd_map_remove(&engine->peers, &peer->node);
    }
    peer_destroy_lanes(peer);
    peer_discard_output(peer);
    dd_list *lists[] = {&peer->early, &peer->held_aborts};
    for (int i = 0; i < 2; i++) {
        while (!dd_list_is_empty(lists[i])) {
            engine_destroy_held(engine, DD_CONTAINER_OF(lists[i]->next, held, link));
        }
    }
    dd_list_remove(&peer->breaking);
    dd_timer_clear(&peer->timer);
    dd_blob_fini(&peer->published);
    if (peer->error != &no_memory) {
        dd_mem_free((void *)(uintptr_t)peer->error);
    }
    dd_mem_free(peer);
}

void
peer_start_timer(dd_peer *peer, int64_t after_ns)
{
    dd_engine_start_timer_locked(peer->engine, &peer->timer, dd_deadline_after(after_ns));
}

void
peer_reap(dd_peer *peer)
{
    bool is_idle = peer->state == PEER_IDLE || peer->state == PEER_LOST;
    if (peer->refs > 0 || peer->is_self || !is_idle || peer->is_breaking) {
        return;
    }
    bool has_early = !dd_list_is_empty(&peer->early) || !dd_list_is_empty(&peer->held_aborts);
    if (has_early && !peer->is_replaced) {
        /* Keep the frames for contexts that are not open yet, for a limited time. */
        if (!dd_timer_is_set(&peer->timer)) {
            peer_start_timer(peer, EARLY_HELD_NS);
        }
        return;
    }
    peer_destroy(peer);
}

/* Return true if the peer's process is on this host and has ended. */
static bool
peer_has_ended(const dd_peer *peer)
{
    bool is_local =
        peer->endpoint.has_unix && dd_endpoint_is_same_host(&peer->endpoint, &peer->engine->endpoint);
    return is_local && dd_doorbell_is_closed(&peer->endpoint.uid);
}

dd_status
peer_replace(dd_peer **peer, dd_error *err)
{
    dd_peer *lost = *peer;
    dd_engine *engine = lost->engine;
    if (lost->state == PEER_CONNECTED && lost->is_lost_remotely) {
        dd_error error;
        (void)dd_error_set(&error, DD_PEER_LOST, "the peer lost its connection to this process");
        peer_break(lost, &error);
        engine_wake(engine);
    }
    bool is_lost = lost->state == PEER_LOST || lost->is_breaking;
    if (!is_lost || lost->is_final || peer_has_ended(lost)) {
        return DD_OK;
    }
    dd_peer *next = NULL;
    dd_status status = make_peer(engine, &lost->endpoint.uid, &next, err);
    if (status != DD_OK) {
        return status;
    }
    dd_map_replace(&engine->peers, &lost->node, &next->node);
    lost->is_replaced = true;
    dd_timer_clear(&lost->timer);
    peer_reap(lost);
    *peer = next;
    return DD_OK;
}

dd_status
peer_dial(dd_peer *peer, int lane, uint64_t number, int64_t deadline_ns, dd_error *err)
{
    dd_addr_list addrs = dd_peer_addrs_locked(peer);
    return dd_connector_dial(peer->engine->connector, &peer->endpoint, &addrs, lane, number, deadline_ns,
                             err);
}

/* Dial lane 0. Any earlier dial no longer counts, except that a link it creates is used. */
static dd_status
dial_first_lane(dd_peer *peer, dd_error *err)
{
    uint64_t number = ++peer->engine->ndials;
    dd_status status = peer_dial(peer, 0, number, dd_deadline_after(DIAL_TIMEOUT_NS), err);
    if (status == DD_OK) {
        peer->dial = number;
        peer->dialled_ns = dd_clock_now_ns();
    }
    return status;
}

dd_status
peer_set_endpoint(dd_peer *peer, const dd_endpoint *endpoint, dd_bytes published, dd_error *err)
{
    /* The new endpoint may have ports that were opened after the last endpoint was encoded. */
    dd_status status = dd_blob_assign(&peer->published, published, err);
    if (status == DD_OK && peer->state == PEER_DIALLING && dd_clock_now_ns() - peer->dialled_ns > PROMPT_NS) {
        status = dial_first_lane(peer, err);
    }
    if (status == DD_OK && !peer->is_endpoint_known) {
        peer->endpoint = *endpoint;
        peer->is_endpoint_known = true;
        if (peer->state == PEER_CONNECTED) {
            dd_timer_clear(&peer->timer);
        }
    }
    return status;
}

const dd_endpoint *
dd_peer_endpoint(const dd_peer *peer)
{
    return &peer->endpoint;
}

dd_addr_list
dd_peer_addrs_locked(const dd_peer *peer)
{
    dd_endpoint endpoint;
    dd_addr_list addrs = {.count = 0};
    (void)!dd_endpoint_decode(dd_blob_view(&peer->published), &endpoint, &addrs, NULL);
    return addrs;
}

const char *
dd_peer_transport_locked(const dd_peer *peer)
{
    return peer->nlanes > 0 ? peer->lanes[0]->stream->ops->name : "";
}

bool
dd_peer_has_shm_locked(const dd_peer *peer)
{
    return peer->nlanes > 0 && peer->lanes[0]->stream->is_shared_memory;
}

void
dd_peer_note_near_locked(dd_peer *peer)
{
    peer->is_near = true;
}

bool
dd_peer_is_connected_locked(const dd_peer *peer)
{
    return peer->state == PEER_CONNECTED;
}

const dd_error *
dd_peer_error_locked(const dd_peer *peer)
{
    return peer->state == PEER_LOST ? peer->error : NULL;
}

bool
dd_peer_find_loss_locked(const dd_peer *peer, dd_path_loss *loss)
{
    for (int i = 0; i < peer->nlanes; i++) {
        dd_link *stream = peer->lanes[i]->stream;
        *loss = (dd_path_loss){.nbytes = 0};
        loss->nbytes = stream->ops->count_lost(stream, &loss->nresends);
        if (loss->nbytes > 0) {
            loss->from = dd_sock_local_addr(stream->fd);
            loss->to = dd_sock_peer_addr(stream->fd);
            return true;
        }
    }
    return false;
}

/* ---- connecting to peers */

void
dd_peer_connect_locked(dd_peer *peer)
{
    dd_assert_holds(ENGINE);
    peer->wants_link = true;
    if (peer->state != PEER_IDLE || peer->is_breaking) {
        return;
    }
    dd_engine *engine = peer->engine;
    dd_error error;
    dd_status status = DD_OK;
    if (engine->connector == NULL) {
        status = dd_error_set(&error, DD_INVALID_ARGUMENT,
                              "cannot connect to %s, pid %lld: this process has no endpoint yet",
                              peer->endpoint.host, peer->endpoint.pid);
    } else if (peer->dial == 0) {
        status = dial_first_lane(peer, &error);
    }
    if (status == DD_OK) {
        peer->state = PEER_DIALLING;
    } else {
        peer_break(peer, &error);
    }
}

dd_status
dd_engine_check_links_locked(dd_engine *engine, dd_error *err)
{
    int64_t when_ns = 0;
    dd_status status = dd_engine_check_accepting_locked(engine, err);
    if (status != DD_OK) {
        return status;
    }
    int sys_errno = engine->connector != NULL ? dd_connector_last_shortage(engine->connector, &when_ns) : 0;
    if (engine->link_errno != 0 && (sys_errno == 0 || engine->link_failed_ns > when_ns)) {
        sys_errno = engine->link_errno;
        when_ns = engine->link_failed_ns;
    }
    if (sys_errno == 0 || dd_clock_now_ns() - when_ns > SHORTAGE_COUNTS_NS) {
        return DD_OK;
    }
    return dd_error_set_errno(err, DD_SYSTEM, sys_errno, "cannot accept the connection of another rank");
}

dd_status
dd_engine_check_accepting_locked(dd_engine *engine, dd_error *err)
{
    return engine->connector != NULL ? dd_connector_check(engine->connector, err) : DD_OK;
}

void
engine_note_link_failure(dd_engine *engine, int sys_errno)
{
    engine->link_errno = sys_errno;
    engine->link_failed_ns = dd_clock_now_ns();
}

/* ---- breaking peers */

void
peer_break(dd_peer *peer, const dd_error *error)
{
    if (peer->is_breaking || peer->state == PEER_LOST) {
        return;
    }
    peer->is_breaking = true;
    dd_error *own_error = dd_mem_alloc(sizeof *own_error);
    if (own_error != NULL) {
        *own_error = *error;
        dd_error_blame(own_error, -1, peer->endpoint.host, peer->endpoint.pid);
    }
    peer->error = own_error != NULL ? own_error : &no_memory;
    dd_list_push_back(&peer->engine->breaking, &peer->breaking);
}

void
lane_break(dd_lane *lane, const dd_error *error)
{
    dd_peer *peer = lane->peer;
    if (lane->number == 0 || peer->lanes[0]->is_ended || !peer->is_endpoint_known) {
        peer_break(peer, error);
        return;
    }
    /* Wait for lane 0, on which the peer may still send the reason. */
    if (!dd_timer_is_set(&peer->timer)) {
        peer_start_timer(peer, GRACE_NS);
    }
}

static void
end_unknown_peer(dd_peer *peer)
{
    const dd_engine *engine = peer->engine;
    if (engine->nmeetings > 0 || !engine->has_begun_meeting) {
        peer_start_timer(peer, UNKNOWN_LINK_NS);
        return;
    }
    dd_error error;
    (void)dd_error_set(&error, DD_PEER_LOST, "the peer is not in a group of this process");
    peer_break(peer, &error);
}

void
peer_on_timer(dd_timer *timer)
{
    dd_peer *peer = DD_CONTAINER_OF(timer, dd_peer, timer);
    if (peer->state == PEER_CONNECTED && !peer->is_endpoint_known) {
        end_unknown_peer(peer);
    } else if (peer->state == PEER_CONNECTED) {
        dd_error error;
        (void)dd_error_set(&error, DD_PEER_LOST, "one of several connections was closed");
        peer_break(peer, &error);
    } else if (peer->refs == 0) {
        peer_destroy(peer);
    }
}

void
lane_end_input(dd_lane *lane)
{
    lane->is_ended = true;
    lane->payload_left = 0;
    lane->begin = lane->end = 0;
}

void
peer_protocol_error(dd_peer *peer, const char *format, ...)
{
    char text[256];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(text, sizeof text, format, args);
    va_end(args);
    dd_error error;
    (void)dd_error_set(&error, DD_PROTOCOL, "protocol error: %s", text);
    peer->is_final = true;
    for (int i = 0; i < peer->nlanes; i++) {
        lane_end_input(peer->lanes[i]);
    }
    if (!peer->is_breaking) {
        peer->farewell_until_ns = DD_NEVER_NS;
    }
    peer_break(peer, &error);
}

void
peer_break_for_memory(dd_peer *peer, const char *text, size_t nbytes)
{
    dd_error error;
    (void)dd_error_set(&error, DD_OUT_OF_MEMORY, "no memory %s (%zu bytes)", text, nbytes);
    peer_break(peer, &error);
}

void
lane_break_for_io(dd_lane *lane, dd_io io, const char *attempt)
{
    dd_error error;
    if (io == DD_IO_FAILED) {
        (void)dd_error_set_errno(&error, DD_PEER_LOST, errno, "%s by %s", attempt, lane->stream->ops->name);
        if (!lane->peer->is_endpoint_known && dd_error_is_local(&error)) {
            /* The peer's group uses this link and will abort, and then this process's dials to the
             * peer would fail without a reason: record the reason now. */
            engine_note_link_failure(lane->peer->engine, error.sys_errno);
        }
    } else if (io == DD_IO_FORGED) {
        (void)dd_seal_error_forged(lane->stream->fd, DD_PEER_LOST, &error);
    } else {
        (void)dd_error_set(&error, DD_PEER_LOST, "connection closed");
    }
    lane_break(lane, &error);
}

void
peer_detach_recv(dd_peer *peer, dd_message *message)
{
    for (int i = 0; i < peer->nlanes; i++) {
        dd_lane *lane = peer->lanes[i];
        if (lane->recv == message) {
            lane->recv = NULL;
            lane->destination = NULL;
        }
    }
}
