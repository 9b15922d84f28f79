/* Messages of a process to itself: they wait in the peer's queue until somebody drives, like those of
 * others. */
#include "transport/engine_internal.h"

#include "core/mem.h"

#include <string.h>

void
self_post_message(dd_peer *self, const out_frame *out)
{
    dd_message *message = out->message;
    out_frame *queued = engine_take_out(self->engine, out);
    if (queued == NULL) {
        message_fail_memory(message, sizeof *out);
        return;
    }
    queued->frame.type = DD_FRAME_RTS; /* whatever its size */
    message->stage = STAGE_QUEUED;
    dd_list_push_back(&self->flushing, &message->link);
    dd_list_push_back(&self->out, &queued->link);
    engine_note_output(self->engine);
}

/* Small ones are copied, so that their senders can go on; the others wait for their receivers. */
static void
hold(dd_peer *self, dd_message *message, const dd_frame *frame, dd_list *list)
{
    dd_frame own = *frame;
    size_t cost = eager_cost(message->nbytes);
    bool is_copied = message->nbytes <= self->eager_max && cost <= self->credit;
    own.type = is_copied ? DD_FRAME_EAGER : DD_FRAME_RTS;
    own.payload = is_copied ? (uint32_t)message->nbytes : 0;
    held *entry = engine_take_held(self, &own);
    if (entry == NULL) {
        message_fail_memory(message, sizeof *entry + own.payload);
        return;
    }
    dd_list_push_back(list, &entry->link);
    if (!is_copied) {
        entry->sender = message;
        return;
    }
    self->credit -= cost;
    if (message->nbytes > 0) {
        memcpy(entry->data, message->data, message->nbytes);
    }
    message_end(message, NULL);
}

static void
deliver_message(dd_peer *self, dd_message *message, const dd_frame *frame)
{
    dd_engine *engine = self->engine;
    engine->stats.self_sent_nbytes += message->nbytes;
    dd_context *context = engine_find_context(engine, frame->context, frame->target);
    if (context == NULL && engine_has_closed(engine, frame->context, frame->target)) {
        message_fail_closed(message);
        return;
    }
    if (context == NULL) {
        hold(self, message, frame, &self->early);
        return;
    }
    dd_message *recv = context_match(context, frame);
    if (recv == NULL) {
        hold(self, message, frame, &context->ranks[frame->source].held);
        return;
    }
    held entry = {.frame = *frame, .peer = self, .sender = message};
    context_take_own(recv, &entry);
}

static void
deliver_control(dd_peer *self, const dd_frame *frame, dd_bytes payload)
{
    dd_engine *engine = self->engine;
    dd_context *context = engine_find_context(engine, frame->context, frame->target);
    if (context != NULL) {
        context_on_control(context, frame, payload);
        return;
    }
    bool is_lasting = frame->type == DD_FRAME_ABORT || frame->type == DD_FRAME_GOODBYE;
    if (!is_lasting || engine_has_closed(engine, frame->context, frame->target)) {
        return;
    }
    held *entry = engine_take_held(self, frame);
    if (entry != NULL) {
        if (payload.len > 0) {
            memcpy(entry->data, payload.data, payload.len);
        }
        dd_list_push_back(&self->early, &entry->link);
    }
}

bool
self_pump(dd_engine *engine)
{
    dd_peer *self = engine->self;
    bool is_any = false;
    while (!dd_list_is_empty(&self->out)) {
        out_frame *out = peer_take_out(self);
        out_frame own = *out;
        engine_give_out(engine, out);
        is_any = true;
        if (own.message != NULL) {
            deliver_message(self, own.message, &own.frame);
        } else {
            deliver_control(self, &own.frame, dd_bytes_of(own.data, own.frame.payload));
        }
        dd_mem_free(own.owned);
    }
    return is_any;
}

static bool
drop_sender(dd_list *list, const dd_message *message)
{
    for (dd_list *node = list->next; node != list; node = node->next) {
        held *entry = DD_CONTAINER_OF(node, held, link);
        if (entry->sender == message) {
            engine_give_held(entry->peer->engine, entry);
            return true;
        }
    }
    return false;
}

void
self_forget_send(dd_peer *self, dd_message *message)
{
    for (dd_list *node = self->out.next; node != &self->out; node = node->next) {
        out_frame *out = DD_CONTAINER_OF(node, out_frame, link);
        if (out->message == message) {
            dd_list_remove(&out->link);
            engine_give_out(self->engine, out);
            return;
        }
    }
    dd_context *target = engine_find_context(self->engine, message->context->key.id, (uint32_t)message->rank);
    if (!drop_sender(&self->early, message) && target != NULL) {
        (void)drop_sender(&target->ranks[message->context->rank].held, message);
    }
}
