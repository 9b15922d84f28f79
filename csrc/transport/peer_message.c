#include "transport/engine_internal.h"

#include "core/mem.h"

#include <stdarg.h>
#include <stdio.h>

#define FREE_HELD_MAX 256

/* Ends a message when there is no memory for the reason. */
static const dd_error no_memory_error = {
    .code = DD_OUT_OF_MEMORY,
    .culprit = {.rank = -1},
    .message = "out of memory, also for the error of a message",
};

/* ---- ends of messages */

void
message_unpost(dd_message *message)
{
    if (message->peer != NULL) {
        message->peer->nexpected--;
    } else {
        message->context->engine->nany--;
    }
    dd_list_remove(&message->link);
}

void
message_end(dd_message *message, const dd_error *error)
{
    dd_engine *engine = message->context->engine;
    if (message->stage == STAGE_POSTED) {
        message_unpost(message);
    }
    dd_list_remove(&message->link);
    message->stage = STAGE_DONE;
    if (error != NULL) {
        message->failure = dd_mem_alloc(sizeof *message->failure);
        if (message->failure == NULL) {
            message->failure = (dd_error *)(uintptr_t)&no_memory_error;
        } else {
            *message->failure = *error;
        }
    }
    dd_list_push_back(&engine->done, &message->link);
}

static int
other_rank(const dd_message *message)
{
    return message->is_send ? message->rank : message->source;
}

void
message_fail(dd_message *message, dd_status code, const char *format, ...)
{
    char what[512];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(what, sizeof what, format, args);
    va_end(args);
    const dd_card *card = &message->peer->card;
    dd_error error;
    (void)dd_error_set(&error, code, "%s", what);
    dd_error_blame(&error, other_rank(message), card->host, card->pid);
    message_end(message, &error);
}

void
message_fail_closed(dd_message *message)
{
    const dd_card *card = &message->peer->card;
    int rank = other_rank(message);
    if (message->peer->is_self) {
        message_fail(message, DD_PEER_LOST, "rank %d of this process has closed the group", rank);
    } else {
        message_fail(message, DD_PEER_LOST, "rank %d (%s, pid %lld) has closed the group", rank, card->host,
                     card->pid);
    }
}

void
message_fail_lost(dd_message *message)
{
    dd_error error = *message->peer->error;
    error.culprit.rank = other_rank(message);
    message_end(message, &error);
}

void
message_fail_memory(dd_message *message, size_t nbytes)
{
    dd_error error;
    (void)dd_error_no_memory(&error, nbytes);
    message_end(message, &error);
}

void
message_tell(dd_message *message)
{
    dd_error *failure = message->failure;
    dd_list_remove(&message->link);
    message->context->engine->nposted--;
    message->stage = STAGE_IDLE;
    message->is_posted = false;
    message->failure = NULL;
    message->on_done(message, failure);
    if (failure != &no_memory_error) {
        dd_mem_free(failure);
    }
}

void
engine_tell_done(dd_engine *engine)
{
    while (!dd_list_is_empty(&engine->done)) {
        message_tell(DD_CONTAINER_OF(engine->done.next, dd_message, link));
    }
}

bool
dd_context_tell_locked(dd_message *message)
{
    if (message->stage == STAGE_DONE) {
        message_tell(message);
    }
    return !message->is_posted;
}

/* ---- looking for the end of one */

/* A round of everything counts as so many looks at one peer. */
#define LOOKS_PER_ROUND 16

/* NULL: not linked by shared memory. */
static dd_lane *
shm_lane(const dd_peer *peer)
{
    return peer->nlanes > 0 && peer->lanes[0]->stream->is_shared_memory ? peer->lanes[0] : NULL;
}

static void
look_at(dd_peer *peer)
{
    dd_lane *lane = shm_lane(peer);
    if (lane == NULL) {
        (void)self_pump(peer->engine);
        return;
    }
    if (!lane->is_ended) {
        (void)lane_receive(lane);
    }
    if (lane_has_output(lane)) {
        (void)lane_pump(lane);
    }
}

/* Nothing that others wait for. */
static bool
is_alone(const dd_engine *engine)
{
    return engine->nposted == 1 && dd_list_is_empty(&engine->tasks) &&
           atomic_load_explicit(&engine->nattentive, memory_order_relaxed) == 0;
}

bool
dd_context_look_locked(dd_message *message, int nlooks)
{
    dd_engine *engine = message->context->engine;
    dd_peer *peer = message->peer; /* NULL: any */
    if (peer != NULL && !peer->is_self && shm_lane(peer) == NULL) {
        return false;
    }
    if (engine->spin.most_ns == 0) {
        nlooks = 1;
    }
    bool is_due = engine_note_caller(engine);
    bool is_narrow = peer != NULL && !is_due && is_alone(engine);
    for (int look = 0; look < nlooks; look += is_narrow ? 1 : LOOKS_PER_ROUND) {
        if (is_narrow) {
            look_at(peer);
        } else {
            (void)engine_run_round(engine);
        }
        if (dd_context_tell_locked(message) ||
            atomic_load_explicit(&engine->nlockers, memory_order_relaxed) > 0) {
            break;
        }
        dd_spin_pause();
    }
    engine_tell_done(engine); /* what else has ended meanwhile */
    dd_engine_settle_driver_locked(engine);
    return !message->is_posted;
}

/* ---- pools */

out_frame *
engine_take_out(dd_engine *engine, const out_frame *out)
{
    out_frame *copy = engine->free_out;
    if (copy != NULL) {
        engine->free_out = (out_frame *)copy->link.next;
    } else {
        copy = dd_mem_alloc(sizeof *copy);
        if (copy == NULL) {
            return NULL;
        }
    }
    *copy = *out;
    dd_list_init(&copy->link);
    return copy;
}

void
engine_give_out(dd_engine *engine, out_frame *out)
{
    out->link.next = (dd_list *)engine->free_out;
    engine->free_out = out;
}

held *
engine_take_held(dd_peer *peer, const dd_frame *frame)
{
    dd_engine *engine = peer->engine;
    held *entry = engine->free_held;
    if (entry != NULL) {
        engine->free_held = (held *)entry->link.next;
        engine->nfree_held--;
    } else {
        entry = dd_mem_alloc(sizeof *entry);
        if (entry == NULL) {
            return NULL;
        }
    }
    entry->data = entry->small;
    if (frame->payload > HELD_INLINE_NBYTES) {
        entry->data = dd_mem_alloc(frame->payload);
        if (entry->data == NULL) {
            dd_mem_free(entry);
            return NULL;
        }
    }
    dd_list_init(&entry->link);
    entry->frame = *frame;
    entry->peer = peer;
    entry->collecting = NULL;
    entry->taker = NULL;
    entry->sender = NULL;
    entry->order = engine->next_order++;
    peer->nheld++;
    engine->stats.held_nbytes += frame->payload;
    return entry;
}

void
engine_give_held(dd_engine *engine, held *entry)
{
    dd_list_remove(&entry->link);
    entry->peer->nheld--;
    engine->stats.held_nbytes -= entry->frame.payload;
    if (entry->data != entry->small) {
        dd_mem_free(entry->data);
    }
    if (engine->nfree_held >= FREE_HELD_MAX) {
        dd_mem_free(entry);
        return;
    }
    entry->link.next = (dd_list *)engine->free_held;
    engine->free_held = entry;
    engine->nfree_held++;
}

void
engine_drop_unfinished(dd_engine *engine, dd_list *list)
{
    for (dd_list *node = list->next; node != list;) {
        held *entry = DD_CONTAINER_OF(node, held, link);
        node = node->next;
        if (entry->frame.type == DD_FRAME_RTS || entry->collecting != NULL) {
            if (entry->collecting != NULL) {
                entry->collecting->collected = NULL;
                entry->collecting->sink = NULL;
            }
            engine_give_held(engine, entry);
        }
    }
}
