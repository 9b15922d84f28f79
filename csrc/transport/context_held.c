/* Frames for contexts, from peers and from this process: each is passed to its receive, or held. */
#include "transport/engine_internal.h"

#include "core/assert.h"
#include "core/mem.h"

#include <string.h>

/* Limit of held ABORT frames per peer, for contexts that may still be opened here. */
#define HELD_ABORTS_MAX 64

/* ---- held entries */

/* Copy a small message from this process to itself, so that its send ends. Large ones wait. */
static void
copy_own(held *entry)
{
    dd_peer *self = entry->peer;
    dd_message *send = entry->sender;
    size_t cost = eager_cost(send->nbytes);
    if (send->nbytes > self->eager_max || cost > self->credit || !held_alloc_payload(entry, send->nbytes)) {
        entry->data = entry->small;
        return;
    }
    self->credit -= cost;
    entry->frame.type = DD_FRAME_EAGER;
    entry->frame.payload = (uint32_t)send->nbytes;
    self->engine->stats.held_nbytes += send->nbytes;
    if (send->nbytes > 0) {
        memcpy(entry->data, send->data, send->nbytes);
    }
    entry->sender = NULL;
    message_end(send, NULL);
}

static void
hold_entry(held *entry, dd_list *list)
{
    dd_list_push_back(list, &entry->link);
    if (entry->sender != NULL) {
        copy_own(entry);
    }
}

/* Free an entry that no receive will match. Returns the credit of EAGER, and refuses RTS. */
static void
release_held(held *entry)
{
    dd_peer *peer = entry->peer;
    if (entry->sender != NULL) {
        message_fail_closed(entry->sender);
    } else if (entry->frame.type == DD_FRAME_EAGER) {
        peer_return_credit(peer, entry->frame.payload);
    } else if (entry->frame.type == DD_FRAME_RTS) {
        peer_post_refusal(peer, &entry->frame, DD_REFUSED_CLOSED, NULL);
    }
    engine_destroy_held(peer->engine, entry);
}

static held *
find_entry(const dd_list *list, bool (*matches)(const held *entry, const void *ctx), const void *ctx)
{
    for (dd_list *node = list->next; node != list; node = node->next) {
        held *entry = DD_CONTAINER_OF(node, held, link);
        if (matches(entry, ctx)) {
            return entry;
        }
    }
    return NULL;
}

static held *
find_in_contexts(dd_engine *engine, const dd_peer *peer, bool (*matches)(const held *entry, const void *ctx),
                 const void *ctx)
{
    held *entry = find_entry(&peer->early, matches, ctx);
    for (dd_list *node = engine->context_list.next; entry == NULL && node != &engine->context_list;
         node = node->next) {
        const dd_context *context = DD_CONTAINER_OF(node, dd_context, link);
        for (int rank = 0; rank < context->nranks && entry == NULL; rank++) {
            if (context->ranks[rank].peer == peer) {
                entry = find_entry(&context->ranks[rank].held, matches, ctx);
            }
        }
    }
    return entry;
}

static bool
is_rts(const held *entry, const void *id)
{
    return entry->frame.type == DD_FRAME_RTS && entry->frame.id == *(const uint64_t *)id;
}

static bool
is_from(const held *entry, const void *sender)
{
    return entry->sender == sender;
}

void
peer_cancel_rts(dd_peer *peer, uint64_t id)
{
    held *entry = find_in_contexts(peer->engine, peer, is_rts, &id);
    if (entry != NULL) {
        engine_destroy_held(peer->engine, entry);
    }
}

/* Free the held entry of a message that this process sends to itself. */
static void
self_cancel_send(dd_peer *self, const dd_message *message)
{
    held *entry = find_in_contexts(self->engine, self, is_from, message);
    if (entry != NULL) {
        engine_destroy_held(self->engine, entry);
    }
}

void
engine_destroy_unfinished(dd_engine *engine, dd_list *list)
{
    for (dd_list *node = list->next; node != list;) {
        held *entry = DD_CONTAINER_OF(node, held, link);
        node = node->next;
        if (entry->frame.type == DD_FRAME_RTS) {
            engine_destroy_held(engine, entry);
        }
    }
}

/* ---- frames for contexts that are not open */

static bool
is_for(const held *entry, const void *ctx)
{
    const context_key *key = ctx;
    return entry->frame.context == key->id && entry->frame.target == key->rank;
}

bool
dd_peer_has_aborted_locked(const dd_peer *peer, uint64_t context, int rank)
{
    context_key key = {.id = context, .rank = (uint64_t)rank};
    return find_entry(&peer->held_aborts, is_for, &key) != NULL;
}

held *
peer_pop_early(dd_peer *peer, const context_key *key)
{
    held *entry = find_entry(&peer->early, is_for, key);
    if (entry == NULL) {
        entry = find_entry(&peer->held_aborts, is_for, key);
        peer->nheld_aborts -= entry != NULL ? 1 : 0;
    }
    if (entry != NULL) {
        dd_list_remove(&entry->link);
    }
    return entry;
}

/* Hold the ABORT of a group that this process has not opened, and may never open if creating the
 * group fails here too. Drop the group's other frames, which would hold credit forever. */
static void
hold_abort(dd_peer *peer, held *abort)
{
    context_key key = {.id = abort->frame.context, .rank = abort->frame.target};
    held *other;
    while ((other = find_entry(&peer->early, is_for, &key)) != NULL) {
        release_held(other);
    }
    dd_list_push_back(&peer->held_aborts, &abort->link);
    if (++peer->nheld_aborts > HELD_ABORTS_MAX) {
        /* Drop the oldest ABORT: its context will probably never be opened. Mark that context as
         * closed, which decides how later frames for it are handled. */
        held *oldest = DD_CONTAINER_OF(peer->held_aborts.next, held, link);
        engine_note_closed(peer->engine,
                           &(context_key){.id = oldest->frame.context, .rank = oldest->frame.target});
        peer->nheld_aborts--;
        engine_destroy_held(peer->engine, oldest);
    }
}

/* Hold a frame until its context is opened. Drop the frame if the context has been closed, or if
 * the open context knows only the dd_peer that this peer replaced (is_earlier). */
static void
hold_early(held *entry, bool is_earlier)
{
    dd_peer *peer = entry->peer;
    const dd_frame *frame = &entry->frame;
    context_key key = {.id = frame->context, .rank = frame->target};
    bool has_closed = is_earlier || engine_has_closed(peer->engine, frame->context, frame->target);
    if (frame->type == DD_FRAME_QUESTION && has_closed) {
        dd_frame goodbye = reply_frame(frame, DD_FRAME_GOODBYE);
        peer_post_answer(peer, &goodbye);
    }
    if (frame->type == DD_FRAME_QUESTION || frame->type == DD_FRAME_ANSWER || has_closed ||
        find_entry(&peer->held_aborts, is_for, &key) != NULL) {
        release_held(entry);
    } else if (frame->type == DD_FRAME_ABORT) {
        hold_abort(peer, entry);
    } else {
        hold_entry(entry, &peer->early);
    }
}

/* ---- delivering frames */

void
engine_deliver(held *entry)
{
    const dd_frame *frame = &entry->frame;
    dd_engine *engine = entry->peer->engine;
    dd_context *context = engine_find_context(engine, frame->context, frame->target);
    bool is_earlier = context != NULL && context_knows_predecessor(context, frame, entry->peer);
    if (context == NULL || is_earlier) {
        hold_early(entry, is_earlier);
    } else if (!context_check_source(context, frame, entry->peer)) {
        release_held(entry);
    } else if (frame->type != DD_FRAME_EAGER && frame->type != DD_FRAME_RTS) {
        context_on_control(context, frame, dd_bytes_of(entry->data, frame->payload));
        engine_destroy_held(engine, entry);
    } else {
        dd_message *recv = context_match(context, frame, entry->is_notified);
        if (recv != NULL) {
            context_take_held(recv, entry);
        } else {
            hold_entry(entry, &context->ranks[frame->source].held);
            context_end_peeks(context, frame);
        }
    }
}

/* ---- a process to itself: like other processes' frames, its frames wait until a thread drives */

static void
deliver_own(dd_peer *self, const out_frame *out)
{
    dd_frame frame = out->frame;
    /* Use RTS, which allows any size; copy_own changes the type to EAGER for a small message. */
    frame.type = out->message != NULL ? DD_FRAME_RTS : frame.type;
    held *entry = engine_create_held(self, &frame);
    self->engine->stats.self_sent_nbytes += out->message != NULL ? out->message->nbytes : 0;
    if (entry == NULL) {
        if (out->message != NULL) {
            message_fail_memory(out->message, sizeof *entry);
        }
        return;
    }
    entry->sender = out->message;
    if (frame.payload > 0) {
        memcpy(entry->data, out->owned, frame.payload);
    }
    engine_deliver(entry);
}

static bool
is_next_postponed(const dd_engine *engine)
{
    return engine_postpones(engine, &DD_CONTAINER_OF(engine->self->out.next, out_frame, link)->frame);
}

bool
self_deliver(dd_engine *engine)
{
    dd_peer *self = engine->self;
    bool is_any = false;
    if (engine->is_delivering_self) {
        return false; /* a callback has called this: the outer call delivers the rest */
    }
    engine->is_delivering_self = true;
    while (!dd_list_is_empty(&self->out) && !is_next_postponed(engine)) {
        out_frame *out = peer_pop_out(self);
        out_frame copy = *out;
        engine_destroy_out(engine, out);
        is_any = true;
        deliver_own(self, &copy);
        dd_mem_free(copy.owned);
    }
    engine->is_delivering_self = false;
    return is_any;
}

/* ---- messages of open contexts */

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

void
dd_context_visit_unread_locked(const dd_context *context, int rank, uint32_t channel,
                               void (*visit)(void *ctx, uint64_t tag), void *ctx)
{
    const dd_list *list = &context->ranks[rank].held;
    for (const dd_list *node = list->next; node != list; node = node->next) {
        const held *entry = DD_CONTAINER_OF(node, held, link);
        if (entry->frame.kind == DD_MESSAGE_P2P && entry->frame.channel == channel) {
            visit(ctx, entry->frame.tag);
        }
    }
}

void
context_release_all_held(dd_context *context)
{
    for (int rank = 0; rank < context->nranks; rank++) {
        dd_list *list = &context->ranks[rank].held;
        while (!dd_list_is_empty(list)) {
            release_held(DD_CONTAINER_OF(list->next, held, link));
        }
    }
}

void
dd_context_move_send_locked(dd_message *message, void *copy)
{
    if (message->is_posted && message->stage != STAGE_DONE) {
        message->data = copy;
    }
}

void
dd_context_cancel_locked(dd_context *context, dd_message *message, const dd_error *error)
{
    dd_assert_holds(ENGINE);
    if (!message->is_posted) {
        return;
    }
    if (message->stage != STAGE_DONE) {
        if (message->is_send) {
            peer_detach_send(message->peer, message);
            if (message->peer->is_self) {
                self_cancel_send(message->peer, message);
            }
        } else if (message->stage == STAGE_MOVING) {
            peer_detach_recv(message->peer, message);
        }
        message_end(message, error);
    }
    context->engine->is_wake_due = true;
    message_notify(message);
}

bool
dd_context_withdraw_locked(dd_message *message, const dd_error *error)
{
    bool is_unmatched = message->is_posted && !message->is_send && message->stage == STAGE_POSTED;
    if (is_unmatched) {
        dd_context_cancel_locked(message->context, message, error);
    }
    return is_unmatched;
}
