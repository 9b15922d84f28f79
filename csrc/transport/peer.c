#include "transport/engine_internal.h"

#include "core/fork.h"
#include "core/mem.h"
#include "core/system.h"

#include <stdio.h>
#include <string.h>

#define DIAL_TIMEOUT_NS (30 * DD_NS_PER_S)
#define GRACE_NS (200 * DD_NS_PER_MS) /* between the ends of two lanes */
/* Links of processes whose cards are not known here: they may have read ours in a meeting before we have
 * read theirs, or be strangers. More of them than that are told BUSY until their cards are known. */
#define UNKNOWN_MAX 64
#define UNKNOWN_KEPT_NS (5 * DD_NS_PER_S)
#define EARLY_KEPT_NS (60 * DD_NS_PER_S)

/* Why a peer is lost, where there is no memory to say it. */
static const dd_error no_memory = {.code = DD_OUT_OF_MEMORY,
                                   .culprit = {.rank = -1},
                                   .message = "the connection broke, and there is no memory to tell why"};

dd_status
peer_create(dd_engine *engine, const dd_uid *uid, dd_peer **peer, dd_error *err)
{
    dd_peer *self = dd_mem_zalloc(sizeof *self);
    if (self == NULL) {
        return dd_error_no_memory(err, sizeof *self);
    }
    self->engine = engine;
    self->card.uid = *uid;
    (void)snprintf(self->card.host, sizeof self->card.host, "unknown");
    self->timer_ns = DD_NEVER_NS;
    self->eager_max = SHM_EAGER_MAX < TCP_EAGER_MAX ? SHM_EAGER_MAX : TCP_EAGER_MAX;
    self->credit = CREDIT_NBYTES;
    dd_list *lists[] = {&self->out,       &self->awaiting, &self->sending,  &self->flushing,
                        &self->receiving, &self->early,    &self->given_up, &self->breaking};
    for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++) {
        dd_list_init(lists[i]);
    }
    self->node.key = dd_bytes_of(&self->card.uid, sizeof self->card.uid);
    dd_status status = dd_map_insert(&engine->peers, &self->node, err);
    if (status != DD_OK) {
        dd_mem_free(self);
        return status;
    }
    *peer = self;
    return DD_OK;
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
        engine_give_held(engine, lane->collected);
    }
    dd_link_close(lane->stream);
    dd_mem_free(lane->current.owned);
    dd_mem_free(lane);
}

static void
destroy_lanes(dd_peer *peer)
{
    for (int i = 0; i < peer->nlanes; i++) {
        destroy_lane(peer->lanes[i]);
        peer->lanes[i] = NULL;
    }
    peer->nlanes = 0;
}

static void
drop_output(dd_peer *peer)
{
    while (!dd_list_is_empty(&peer->out)) {
        out_frame *out = peer_take_out(peer);
        dd_mem_free(out->owned);
        engine_give_out(peer->engine, out);
    }
}

void
peer_destroy(dd_peer *peer)
{
    dd_engine *engine = peer->engine;
    dd_map_remove(&engine->peers, &peer->node);
    destroy_lanes(peer);
    drop_output(peer);
    dd_list *lists[] = {&peer->early, &peer->given_up};
    for (int i = 0; i < 2; i++) {
        while (!dd_list_is_empty(lists[i])) {
            engine_give_held(engine, DD_CONTAINER_OF(lists[i]->next, held, link));
        }
    }
    dd_list_remove(&peer->breaking);
    dd_blob_fini(&peer->published);
    if (peer->error != &no_memory) {
        dd_mem_free((void *)(uintptr_t)peer->error);
    }
    dd_mem_free(peer);
}

static void
set_timer(dd_peer *peer, int64_t timer_ns)
{
    dd_engine *engine = peer->engine;
    engine->ntimers -= peer->timer_ns != DD_NEVER_NS ? 1 : 0;
    peer->timer_ns = timer_ns;
    engine->ntimers += peer->timer_ns != DD_NEVER_NS ? 1 : 0;
}

void
peer_reap(dd_peer *peer)
{
    bool is_idle = peer->state == PEER_IDLE || peer->state == PEER_LOST;
    if (peer->refs > 0 || peer->is_self || !is_idle || peer->is_breaking) {
        return;
    }
    if (!dd_list_is_empty(&peer->early) || !dd_list_is_empty(&peer->given_up)) {
        /* It came, spoke and went before we had opened the context that it spoke to. */
        if (peer->timer_ns == DD_NEVER_NS) {
            set_timer(peer, dd_deadline_after(EARLY_KEPT_NS));
        }
        return;
    }
    set_timer(peer, DD_NEVER_NS);
    peer_destroy(peer);
}

dd_peer *
engine_find_peer(dd_engine *engine, const dd_uid *uid)
{
    dd_map_node *node = dd_map_find(&engine->peers, dd_bytes_of(uid, sizeof *uid));
    return node != NULL ? DD_CONTAINER_OF(node, dd_peer, node) : NULL;
}

dd_status
peer_note_card(dd_peer *peer, const dd_card *card, dd_bytes published, dd_error *err)
{
    /* It may have opened other ports since the last one. */
    dd_status status = dd_blob_assign(&peer->published, published, err);
    if (status == DD_OK && !peer->is_card_known) {
        peer->card = *card;
        peer->is_card_known = true;
        if (peer->state == PEER_CONNECTED) {
            set_timer(peer, DD_NEVER_NS);
        }
    }
    return status;
}

static unsigned
count_unknown(const dd_engine *engine)
{
    unsigned count = 0;
    for (dd_map_node *node = dd_map_next(&engine->peers, NULL); node != NULL;
         node = dd_map_next(&engine->peers, node)) {
        const dd_peer *peer = DD_CONTAINER_OF(node, dd_peer, node);
        count += !peer->is_card_known && (peer->state == PEER_ACCEPTING || peer->state == PEER_CONNECTED);
    }
    return count;
}

dd_peer *
dd_peer_acquire(dd_peer *peer)
{
    dd_engine *engine = peer->engine;
    dd_engine_lock(engine);
    if (peer->refs++ == 0) {
        dd_engine_acquire(engine);
    }
    dd_engine_unlock(engine);
    return peer;
}

void
dd_peer_release(dd_peer *peer)
{
    if (peer == NULL) {
        return;
    }
    dd_engine *engine = peer->engine;
    if (engine->generation != dd_fork_generation()) {
        /* The lock may be in any state; a child has one thread. */
        if (--peer->refs == 0) {
            dd_engine_release(engine);
        }
        return;
    }
    dd_engine_lock(engine);
    bool is_last = --peer->refs == 0;
    if (is_last) {
        peer_reap(peer);
    }
    dd_engine_unlock(engine);
    if (is_last) {
        dd_engine_release(engine);
    }
}

const dd_card *
dd_peer_card(const dd_peer *peer)
{
    return &peer->card;
}

dd_addr_list
dd_peer_addrs_locked(const dd_peer *peer)
{
    dd_card card;
    dd_addr_list addrs = {.count = 0};
    (void)!dd_card_decode(dd_blob_view(&peer->published), &card, &addrs, NULL);
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

/* ---- connecting */

dd_status
peer_dial(dd_peer *peer, int lane, int64_t deadline_ns, dd_error *err)
{
    dd_addr_list addrs = dd_peer_addrs_locked(peer);
    return dd_connector_dial(peer->engine->connector, &peer->card, &addrs, lane, deadline_ns, err);
}

void
dd_peer_connect_locked(dd_peer *peer)
{
    peer->wants_link = true;
    if (peer->state != PEER_IDLE || peer->is_breaking) {
        return;
    }
    dd_engine *engine = peer->engine;
    dd_error error;
    dd_status status = DD_OK;
    if (engine->connector == NULL) {
        status = dd_error_set(&error, DD_INVALID_ARGUMENT,
                              "cannot connect to %s, pid %lld: this process has no card yet", peer->card.host,
                              peer->card.pid);
    } else if (!peer->is_dialled) {
        status = peer_dial(peer, 0, dd_deadline_after(DIAL_TIMEOUT_NS), &error);
    }
    if (status == DD_OK) {
        peer->state = PEER_DIALLING;
        peer->is_dialled = true;
    } else {
        peer_break(peer, &error);
    }
}

dd_status
dd_engine_check_accepting_locked(dd_engine *engine, dd_error *err)
{
    return engine->connector != NULL ? dd_connector_check(engine->connector, err) : DD_OK;
}

static bool
may_accept_locked(dd_engine *engine, const dd_uid *uid)
{
    dd_peer *peer = engine_find_peer(engine, uid);
    if (engine->is_closing || (peer == NULL && (count_unknown(engine) >= UNKNOWN_MAX ||
                                                peer_create(engine, uid, &peer, NULL) != DD_OK))) {
        return false;
    }
    /* When both dial, the dial of the smaller uid makes the link, and the other side waits for it. */
    bool is_theirs = memcmp(uid, &engine->card.uid, sizeof *uid) < 0;
    if (peer->is_breaking || !(peer->state == PEER_IDLE || (peer->state == PEER_DIALLING && is_theirs))) {
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
    bool is_welcome = may_accept_locked(engine, uid);
    dd_engine_unlock(engine);
    return is_welcome;
}

bool
engine_wants_dial(void *ctx, const dd_uid *uid)
{
    dd_engine *engine = ctx;
    dd_engine_lock(engine);
    dd_peer *peer = engine_find_peer(engine, uid);
    bool is_wanted = peer != NULL && peer->state == PEER_DIALLING;
    if (peer != NULL && !is_wanted) {
        peer->is_dialled = false;
    }
    dd_engine_unlock(engine);
    return is_wanted;
}

/* If a link is wanted here, this side dials now, and hears what comes of it. */
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
        dd_mem_free(self);
        return dd_error_set(err, DD_SYSTEM, "cannot watch the connection to %s, pid %lld", peer->card.host,
                            peer->card.pid);
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
    set_timer(peer, peer->is_card_known ? DD_NEVER_NS : dd_deadline_after(UNKNOWN_KEPT_NS));
    peer->state = PEER_CONNECTED;
    peer->eager_max = stream->is_shared_memory ? SHM_EAGER_MAX : TCP_EAGER_MAX;
    dd_list *contexts = &peer->engine->context_list;
    for (dd_list *node = contexts->next; node != contexts; node = node->next) {
        context_on_peer_connected(DD_CONTAINER_OF(node, dd_context, link), peer);
    }
}

static void
accept_link_locked(dd_engine *engine, const dd_uid *uid, int number, dd_link *stream)
{
    dd_peer *peer = engine_find_peer(engine, uid);
    if (peer == NULL && number == 0 && !engine->is_closing) {
        (void)!peer_create(engine, uid, &peer, NULL);
    }
    bool is_wanted = peer != NULL && !peer->is_breaking && !engine->is_closing && !peer->is_self;
    if (is_wanted && number == 0 && peer->state < PEER_CONNECTED) {
        accept_first_lane(peer, stream);
        return;
    }
    if (number != 0 && peer != NULL && peer->ndialling > 0) {
        peer->ndialling--;
    }
    if (is_wanted && number != 0 && peer->state == PEER_CONNECTED && peer->nlanes < DD_LANES_MAX &&
        attach_lane(peer, number, stream, NULL) == DD_OK) {
        return;
    }
    dd_link_close(stream);
}

void
engine_on_link(void *ctx, const dd_uid *uid, int number, dd_link *stream)
{
    dd_engine *engine = ctx;
    dd_engine_lock(engine);
    accept_link_locked(engine, uid, number, stream);
    engine_wake(engine);
    dd_engine_unlock(engine);
}

void
engine_on_dial_failed(void *ctx, const dd_uid *uid, int number, const dd_error *error)
{
    dd_engine *engine = ctx;
    dd_engine_lock(engine);
    dd_peer *peer = engine_find_peer(engine, uid);
    if (peer != NULL && number == 0) {
        peer->is_dialled = false;
        if (peer->state == PEER_DIALLING) {
            peer_break(peer, error);
            engine_wake(engine);
        }
    } else if (peer != NULL && number != 0 && peer->ndialling > 0) {
        peer->ndialling--;
    }
    dd_engine_unlock(engine);
}

/* ---- breaking */

void
peer_break(dd_peer *peer, const dd_error *error)
{
    if (peer->is_breaking || peer->state == PEER_LOST) {
        return;
    }
    peer->is_breaking = true;
    dd_error *own = dd_mem_alloc(sizeof *own);
    if (own != NULL) {
        *own = *error;
        dd_error_blame(own, -1, peer->card.host, peer->card.pid);
    }
    peer->error = own != NULL ? own : &no_memory;
    dd_list_push_back(&peer->engine->breaking, &peer->breaking);
}

void
lane_break(dd_lane *lane, const dd_error *error)
{
    dd_peer *peer = lane->peer;
    if (lane->number == 0 || peer->lanes[0]->is_ended || !peer->is_card_known) {
        peer_break(peer, error);
        return;
    }
    /* What lane 0 has to say about it may be on its way. */
    if (peer->timer_ns == DD_NEVER_NS) {
        set_timer(peer, dd_deadline_after(GRACE_NS));
    }
}

static void
lose_peer(dd_peer *peer)
{
    dd_engine *engine = peer->engine;
    /* What it has said before its end still counts; its farewell on lane 0 after what came by the others. */
    for (int i = peer->nlanes - 1; i >= 0; i--) {
        for (int rounds = 0; rounds < 64 && !peer->lanes[i]->is_ended && lane_receive(peer->lanes[i]);
             rounds++) {
        }
    }
    peer->is_breaking = false;
    peer->state = PEER_LOST;
    set_timer(peer, DD_NEVER_NS);
    engine_drop_unfinished(engine, &peer->early);
    for (dd_list *node = engine->context_list.next; node != &engine->context_list; node = node->next) {
        dd_context *context = DD_CONTAINER_OF(node, dd_context, link);
        for (int rank = 0; rank < context->nranks; rank++) {
            if (context->ranks[rank].peer == peer) {
                engine_drop_unfinished(engine, &context->ranks[rank].held);
            }
        }
    }
    dd_list *lists[] = {&peer->awaiting, &peer->sending, &peer->flushing, &peer->receiving};
    for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++) {
        while (!dd_list_is_empty(lists[i])) {
            message_fail_lost(DD_CONTAINER_OF(lists[i]->next, dd_message, link));
        }
    }
    drop_output(peer);
    destroy_lanes(peer);
    for (dd_list *node = engine->context_list.next; node != &engine->context_list;) {
        dd_context *context = DD_CONTAINER_OF(node, dd_context, link);
        node = node->next;
        context_on_peer_lost(context, peer);
    }
    peer_reap(peer);
}

/* A peer that was lost before another one left because of that: it counts as lost first in all groups,
 * also in those in which the other one has said nothing. */
static dd_peer *
first_lost(const dd_engine *engine)
{
    for (dd_list *node = engine->breaking.next; node != &engine->breaking; node = node->next) {
        dd_peer *peer = DD_CONTAINER_OF(node, dd_peer, breaking);
        if (peer->is_said_lost) {
            return peer;
        }
    }
    return DD_CONTAINER_OF(engine->breaking.next, dd_peer, breaking);
}

void
engine_settle(dd_engine *engine)
{
    if (dd_list_is_empty(&engine->breaking)) {
        return;
    }
    /* Of several peers that are gone, one may have left because of another, and have said so; one that
     * lives may say so, too. */
    engine_hear_all(engine);
    while (!dd_list_is_empty(&engine->breaking)) {
        dd_peer *peer = first_lost(engine);
        dd_list_remove(&peer->breaking);
        lose_peer(peer);
    }
}

static void
end_stranger(dd_peer *peer)
{
    const dd_engine *engine = peer->engine;
    if (engine->nmeetings > 0 || !engine->has_met) {
        set_timer(peer, dd_deadline_after(UNKNOWN_KEPT_NS));
        return;
    }
    dd_error error;
    (void)dd_error_set(&error, DD_PEER_LOST, "it is in no group of this process");
    peer_break(peer, &error);
}

void
peer_on_timer(dd_peer *peer)
{
    set_timer(peer, DD_NEVER_NS);
    if (peer->state == PEER_CONNECTED && !peer->is_card_known) {
        end_stranger(peer);
    } else if (peer->state == PEER_CONNECTED) {
        dd_error error;
        (void)dd_error_set(&error, DD_PEER_LOST, "one of its connections was closed");
        peer_break(peer, &error);
    } else if (peer->refs == 0) {
        peer_destroy(peer);
    }
}

void
engine_say_bye(dd_engine *engine)
{
    for (dd_map_node *node = dd_map_next(&engine->peers, NULL); node != NULL;
         node = dd_map_next(&engine->peers, node)) {
        dd_peer *peer = DD_CONTAINER_OF(node, dd_peer, node);
        if (peer->state == PEER_CONNECTED && !peer->is_self) {
            dd_frame frame = {.type = DD_FRAME_BYE};
            peer_post_frame(peer, &frame, (dd_bytes){0});
        }
    }
}

bool
peer_is_flushed(const dd_peer *peer)
{
    if (peer->state != PEER_CONNECTED || peer->is_self) {
        return true;
    }
    for (int i = 0; i < peer->nlanes; i++) {
        const dd_lane *lane = peer->lanes[i];
        if (!lane->is_output_dead &&
            (lane_has_output(lane) || !lane->stream->ops->has_arrived(lane->stream))) {
            return false;
        }
    }
    return true;
}

bool
peer_has_queued(const dd_peer *peer)
{
    if (peer->state != PEER_CONNECTED || peer->is_self) {
        return false;
    }
    const dd_lane *first = peer->lanes[0];
    return !first->is_output_dead && (!dd_list_is_empty(&peer->out) ||
                                      (first->is_writing && first->current.frame.type != DD_FRAME_DATA));
}
