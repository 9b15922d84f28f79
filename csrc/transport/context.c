#include "transport/engine_internal.h"

#include "core/mem.h"

#include <string.h>

#define FLUSH_STEP_NS DD_NS_PER_MS
/* A caller that hears of a failure is kept so long, until the other ranks can hear of it, too. */
#define TELLING_NS (200 * DD_NS_PER_MS)

dd_context *
engine_find_context(dd_engine *engine, uint64_t id, uint32_t rank)
{
    context_key key = {.id = id, .rank = rank};
    dd_map_node *node = dd_map_find(&engine->contexts, dd_bytes_of(&key, sizeof key));
    return node != NULL ? DD_CONTAINER_OF(node, dd_context, node) : NULL;
}

static size_t
nkept(const dd_engine *engine)
{
    return engine->nclosed < CLOSED_CONTEXTS_KEPT ? engine->nclosed : CLOSED_CONTEXTS_KEPT;
}

bool
engine_has_closed(const dd_engine *engine, uint64_t id, uint32_t rank)
{
    for (size_t i = 0; i < nkept(engine); i++) {
        if (engine->closed[i].id == id && engine->closed[i].rank == rank) {
            return true;
        }
    }
    return false;
}

static void
forget_closed(dd_engine *engine, const context_key *key)
{
    for (size_t i = 0; i < nkept(engine); i++) {
        if (engine->closed[i].id == key->id && engine->closed[i].rank == key->rank) {
            engine->closed[i] = (context_key){.rank = UINT64_MAX};
        }
    }
}

/* ---- frames */

bool
context_check_source(const dd_context *context, const dd_frame *frame, dd_peer *peer)
{
    if (frame->source < (uint32_t)context->nranks && context->ranks[frame->source].peer == peer) {
        return true;
    }
    peer_protocol_error(peer, "%s from rank %lu, which it is not", dd_frame_type_name(frame->type),
                        (unsigned long)frame->source);
    return false;
}

/* Receives that were posted and have met no message. */
static void
fail_posted(context_rank *rank, void (*fail)(dd_message *message))
{
    while (!dd_list_is_empty(&rank->posted)) {
        fail(DD_CONTAINER_OF(rank->posted.next, dd_message, link));
    }
}

static void
on_goodbye(dd_context *context, int source)
{
    context_rank *rank = &context->ranks[source];
    if (rank->has_said_goodbye) {
        return;
    }
    rank->has_said_goodbye = true;
    fail_posted(rank, message_fail_closed);
    if (context->handler.on_goodbye != NULL) {
        context->handler.on_goodbye(context->handler.ctx, source);
    }
}

/* DD_PROTOCOL: the bytes are no cause. */
static dd_status
on_abort(dd_context *context, int source, dd_bytes payload, dd_error *fault)
{
    dd_cause cause;
    dd_status status = dd_cause_decode(payload, context->nranks, &cause, fault);
    if (status != DD_OK) {
        return status;
    }
    if (cause.kind == DD_CAUSE_LOST) {
        context->ranks[cause.culprit.rank].peer->is_said_lost = true;
    }
    if (context->handler.on_abort != NULL) {
        context->handler.on_abort(context->handler.ctx, source, &cause);
    }
    return DD_OK;
}

static void
add_loss(const dd_context *context, dd_frame *frame)
{
    dd_path_loss loss;
    for (int rank = 0; rank < context->nranks; rank++) {
        if (dd_peer_find_loss_locked(context->ranks[rank].peer, &loss)) {
            frame->id = (uint64_t)rank + 1;
            frame->nbytes = loss.nbytes;
            return;
        }
    }
}

static void
answer(dd_context *context, int source)
{
    bool is_inside = false;
    dd_frame frame = {
        .type = DD_FRAME_ANSWER,
        .context = context->key.id,
        .source = (uint32_t)context->rank,
        .target = (uint32_t)source,
    };
    if (context->handler.on_asked != NULL) {
        context->handler.on_asked(context->handler.ctx, &frame.tag, &frame.signature, &is_inside);
        frame.offset = is_inside ? 1 : 0;
        add_loss(context, &frame);
        peer_post_reply(context->ranks[source].peer, &frame);
    }
}

void
context_on_control(dd_context *context, const dd_frame *frame, dd_bytes payload)
{
    int source = (int)frame->source;
    const dd_context_handler *handler = &context->handler;
    if (frame->type == DD_FRAME_ABORT) {
        dd_error fault;
        if (on_abort(context, source, payload, &fault) != DD_OK) {
            peer_protocol_error(context->ranks[source].peer, "%s", fault.message);
        }
    } else if (frame->type == DD_FRAME_GOODBYE) {
        on_goodbye(context, source);
    } else if (frame->type == DD_FRAME_QUESTION) {
        answer(context, source);
    } else if (frame->type == DD_FRAME_ANSWER && handler->on_answer != NULL) {
        if (handler->on_loss != NULL && frame->id <= (uint64_t)context->nranks) {
            handler->on_loss(handler->ctx, source, (int)frame->id - 1, frame->nbytes);
        }
        handler->on_answer(handler->ctx, source, frame->tag, &frame->signature, frame->offset == 1);
    }
}

void
context_on_peer_lost(dd_context *context, dd_peer *peer)
{
    for (int number = 0; number < context->nranks; number++) {
        context_rank *rank = &context->ranks[number];
        if (rank->peer != peer || rank->is_lost || rank->has_said_goodbye) {
            continue;
        }
        if (rank->is_leaving) {
            on_goodbye(context, number);
            continue;
        }
        rank->is_lost = true;
        fail_posted(rank, message_fail_lost);
        if (context->handler.on_lost != NULL) {
            dd_error own = *peer->error;
            dd_error_blame(&own, number, peer->card.host, peer->card.pid);
            context->handler.on_lost(context->handler.ctx, number, &own);
        }
    }
}

/* ---- what is posted in shared memory */

bool
dd_context_hear_abort_locked(dd_context *context, int rank, dd_bytes cause)
{
    const dd_peer *peer = context->ranks[rank].peer;
    if (peer->state == PEER_CONNECTED && !peer->is_breaking) {
        return false;
    }
    (void)!on_abort(context, rank, cause, NULL);
    return true;
}

void
dd_context_hear_goodbye_locked(dd_context *context, int rank)
{
    context_rank *from = &context->ranks[rank];
    if (from->has_said_goodbye || from->is_leaving) {
        return;
    }
    if (from->peer->state == PEER_IDLE || from->peer->state == PEER_LOST) {
        on_goodbye(context, rank);
        return;
    }
    /* It may have left before it knew of the link, and have said nothing there: it is asked, behind what it has sent. */
    from->is_leaving = true;
    dd_context_post_question_locked(context, rank);
}

/* ---- opening */

static dd_context *
create(dd_engine *engine, uint64_t id, int rank, int nranks, dd_peer *const *peers)
{
    size_t nbytes = sizeof(dd_context) + (size_t)nranks * sizeof(context_rank);
    dd_context *self = dd_mem_zalloc(nbytes);
    if (self == NULL) {
        return NULL;
    }
    self->engine = engine;
    self->key = (context_key){.id = id, .rank = (uint64_t)rank};
    self->node.key = dd_bytes_of(&self->key, sizeof self->key);
    self->rank = rank;
    self->nranks = nranks;
    dd_list_init(&self->link);
    dd_list_init(&self->posted_any);
    for (int i = 0; i < nranks; i++) {
        self->ranks[i].peer = peers[i];
        dd_list_init(&self->ranks[i].posted);
        dd_list_init(&self->ranks[i].held);
    }
    return self;
}

/* A frame that came before the context was open. The entry is in no list. */
static void
deliver(dd_context *context, held *entry)
{
    dd_engine *engine = context->engine;
    const dd_frame *frame = &entry->frame;
    if (!context_check_source(context, frame, entry->peer)) {
        context_drop_held(entry);
    } else if (frame->type == DD_FRAME_EAGER || frame->type == DD_FRAME_RTS) {
        dd_message *recv = context_match(context, frame);
        if (recv != NULL) {
            context_take_held(recv, entry);
        } else {
            dd_list_push_back(&context->ranks[frame->source].held, &entry->link);
        }
    } else {
        context_on_control(context, frame, dd_bytes_of(entry->data, frame->payload));
        engine_give_held(engine, entry);
    }
}

static void
deliver_early(dd_context *context, dd_peer *peer)
{
    for (dd_list *node = peer->early.next; node != &peer->early;) {
        held *entry = DD_CONTAINER_OF(node, held, link);
        node = node->next;
        if (entry->frame.context == context->key.id && entry->frame.target == context->key.rank) {
            dd_list_remove(&entry->link);
            deliver(context, entry);
        }
    }
    held *abort = peer_take_given_up(peer, &context->key);
    if (abort != NULL) {
        deliver(context, abort);
    }
}

static dd_status
open_locked(dd_context *context, dd_error *err)
{
    dd_engine *engine = context->engine;
    if (engine_find_context(engine, context->key.id, (uint32_t)context->rank) != NULL) {
        return dd_error_set(err, DD_INVALID_ARGUMENT, "group %llx is open already as rank %d",
                            (unsigned long long)context->key.id, context->rank);
    }
    dd_status status = dd_map_insert(&engine->contexts, &context->node, err);
    if (status != DD_OK) {
        return status;
    }
    forget_closed(engine, &context->key);
    dd_list_push_back(&engine->context_list, &context->link);
    for (int i = 0; i < context->nranks; i++) {
        context->ranks[i].peer->refs++;
    }
    return DD_OK;
}

dd_status
dd_context_open(dd_engine *engine, uint64_t id, int rank, int nranks, dd_peer *const *peers,
                const dd_context_handler *handler, dd_context **context, dd_error *err)
{
    dd_status status = dd_engine_check_fork(engine, err);
    if (status != DD_OK) {
        return status;
    }
    dd_context *self = create(engine, id, rank, nranks, peers);
    if (self == NULL) {
        return dd_error_no_memory(err, sizeof *self + (size_t)nranks * sizeof self->ranks[0]);
    }
    self->handler = *handler;
    dd_engine_lock(engine);
    status = open_locked(self, err);
    if (status == DD_OK) {
        dd_engine_acquire(engine);
        *context = self;
        for (int i = 0; i < nranks; i++) {
            deliver_early(self, peers[i]);
        }
        for (int i = 0; i < nranks; i++) {
            if (peers[i]->state == PEER_LOST) {
                context_on_peer_lost(self, peers[i]);
            }
        }
    }
    dd_engine_unlock(engine);
    if (status != DD_OK) {
        dd_mem_free(self);
    }
    return status;
}

/* ---- telling the other ranks */

static bool
is_reachable(const dd_context *context, int rank)
{
    const context_rank *to = &context->ranks[rank];
    return rank != context->rank && to->peer->state == PEER_CONNECTED && !to->has_said_goodbye;
}

static void
tell(dd_context *context, int rank, dd_frame_type type, dd_bytes payload)
{
    dd_peer *peer = context->ranks[rank].peer;
    if (is_reachable(context, rank)) {
        dd_frame frame = {
            .type = type,
            .context = context->key.id,
            .source = (uint32_t)context->rank,
            .target = (uint32_t)rank,
        };
        peer_post_frame(peer, &frame, payload);
        if (type == DD_FRAME_ABORT && !peer->is_self) {
            (void)lane_pump(peer->lanes[0]);
        }
    }
    if (type == DD_FRAME_ABORT && !peer->is_self && peer->state != PEER_LOST) {
        peer->is_being_told = true;
        context->engine->telling_until_ns = dd_deadline_after(TELLING_NS);
    }
}

void
dd_context_post_abort_locked(dd_context *context, int except, const dd_cause *cause)
{
    uint8_t bytes[DD_CAUSE_MAX_NBYTES];
    dd_bytes payload = dd_bytes_of(bytes, dd_cause_encode(cause, bytes));
    for (int rank = 0; rank < context->nranks; rank++) {
        if (rank != except) {
            tell(context, rank, DD_FRAME_ABORT, payload);
        }
    }
    dd_blob_clear(&context->abort, sizeof bytes);
    dd_status ignored =
        dd_blob_append(&context->abort, payload.data, payload.len, NULL); /* best effort: it was told */
    (void)ignored;
}

void
context_on_peer_connected(dd_context *context, const dd_peer *peer)
{
    for (int rank = 0; rank < context->nranks; rank++) {
        if (context->ranks[rank].peer != peer) {
            continue;
        }
        if (context->abort.len > 0) {
            tell(context, rank, DD_FRAME_ABORT, dd_blob_view(&context->abort));
        }
        if (context->ranks[rank].is_leaving) {
            tell(context, rank, DD_FRAME_QUESTION, (dd_bytes){0});
        }
    }
}

void
dd_context_post_question_locked(dd_context *context, int rank)
{
    tell(context, rank, DD_FRAME_QUESTION, (dd_bytes){0});
}

bool
dd_context_is_connected_locked(const dd_context *context, int rank)
{
    return context->ranks[rank].peer->state == PEER_CONNECTED;
}

void
dd_context_visit_held_locked(dd_context *context, uint64_t sequence,
                             void (*visit)(void *ctx, int rank, const dd_signature *signature), void *ctx)
{
    for (int rank = 0; rank < context->nranks; rank++) {
        dd_list *list = &context->ranks[rank].held;
        for (dd_list *node = list->next; node != list;) {
            const held *entry = DD_CONTAINER_OF(node, held, link);
            node = node->next;
            if (entry->frame.kind == DD_MESSAGE_COLL && entry->frame.tag == sequence) {
                visit(ctx, rank, &entry->frame.signature);
            }
        }
    }
}

/* ---- closing */

static void
drop_all_held(dd_context *context)
{
    for (int rank = 0; rank < context->nranks; rank++) {
        dd_list *list = &context->ranks[rank].held;
        while (!dd_list_is_empty(list)) {
            context_drop_held(DD_CONTAINER_OF(list->next, held, link));
        }
    }
}

static void
close_locked(dd_context *context)
{
    dd_engine *engine = context->engine;
    /* What has ended for this context is told before the context is gone. */
    engine_tell_done(engine);
    dd_map_remove(&engine->contexts, &context->node);
    dd_list_remove(&context->link);
    engine->closed[engine->nclosed++ % CLOSED_CONTEXTS_KEPT] = context->key;
    drop_all_held(context);
    for (int rank = 0; rank < context->nranks; rank++) {
        tell(context, rank, DD_FRAME_GOODBYE, (dd_bytes){0});
        dd_peer *peer = context->ranks[rank].peer;
        for (int i = 0; i < peer->nlanes; i++) {
            if (peer->lanes[i]->cached == context) {
                peer->lanes[i]->cached = NULL;
            }
        }
    }
}

static bool
is_flushed(dd_context *context)
{
    bool is_all = true;
    dd_engine_lock(context->engine);
    for (int rank = 0; rank < context->nranks; rank++) {
        is_all = is_all && !peer_has_queued(context->ranks[rank].peer);
    }
    dd_engine_unlock(context->engine);
    return is_all;
}

/* Goodbyes of small groups are on their way after one look; a full connection takes as long as it takes. */
static void
flush(dd_context *context, const dd_wait *wait)
{
    atomic_bool never = false;
    dd_wait step = dd_wait_at_most(wait, 0);
    while (!is_flushed(context) && !dd_wait_is_over(wait)) {
        if (dd_engine_wait(context->engine, &never, &step, NULL) == DD_INTERRUPTED) {
            return;
        }
        step = dd_wait_at_most(wait, FLUSH_STEP_NS);
    }
}

void
dd_context_close(dd_context *context, const dd_wait *wait)
{
    if (context == NULL) {
        return;
    }
    dd_engine *engine = context->engine;
    if (dd_engine_check_fork(engine, NULL) == DD_OK) {
        dd_engine_lock(engine);
        close_locked(context);
        dd_engine_unlock(engine);
        flush(context, wait);
    }
    for (int i = 0; i < context->nranks; i++) {
        dd_peer_release(context->ranks[i].peer);
    }
    dd_blob_fini(&context->abort);
    dd_mem_free(context);
    dd_engine_release(engine);
}
