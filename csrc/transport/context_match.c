#include "transport/engine_internal.h"

#include "core/assert.h"

#include <string.h>

static bool
is_match(const dd_message *recv, const dd_frame *frame)
{
    return (recv->is_any_tag || recv->tag == frame->tag) && recv->kind == frame->kind &&
           recv->channel == frame->channel;
}

static void
set_results(dd_message *recv, const dd_context *context, const dd_frame *frame)
{
    recv->source = (int)frame->source;
    recv->sent_tag = frame->tag;
    recv->received = frame->nbytes;
    recv->peer = context->ranks[frame->source].peer;
}

static dd_message *
find_posted(const dd_list *posted, const dd_frame *frame)
{
    for (dd_list *node = posted->next; node != posted; node = node->next) {
        dd_message *recv = DD_CONTAINER_OF(node, dd_message, link);
        if (!recv->is_peek && is_match(recv, frame)) {
            return recv;
        }
    }
    return NULL;
}

static void
end_peeks_in(dd_list *posted, dd_context *context, const dd_frame *frame)
{
    for (dd_list *node = posted->next, *next; node != posted; node = next) {
        next = node->next;
        dd_message *recv = DD_CONTAINER_OF(node, dd_message, link);
        if (recv->is_peek && is_match(recv, frame)) {
            message_unpost(recv);
            recv->stage = STAGE_IDLE;
            set_results(recv, context, frame);
            message_end(recv, NULL);
        }
    }
}

void
context_end_peeks(dd_context *context, const dd_frame *frame)
{
    end_peeks_in(&context->ranks[frame->source].posted, context, frame);
    end_peeks_in(&context->posted_any, context, frame);
}

static void
match_begin(dd_context *context, dd_message *message, bool is_send)
{
    dd_list_init(&message->link);
    message->stage = STAGE_IDLE;
    message->is_send = is_send;
    message->is_posted = true;
    message->id = 0;
    message->order = context->engine->next_order++;
    message->cut = 0;
    message->moved = 0;
    message->failure = NULL;
    message->context = context;
    message->peer = message->rank == DD_ANY_RANK ? NULL : context->ranks[message->rank].peer;
    message->source = message->rank;
    message->sent_tag = message->tag;
    message->received = 0;
    context->engine->nposted++;
}

static dd_message *
request_receive(dd_context *context, const dd_frame *frame)
{
    if (frame->kind != DD_MESSAGE_WINDOW || context->handler.on_request == NULL) {
        return NULL;
    }
    dd_request request = {
        .tag = frame->tag, .channel = frame->channel, .nbytes = frame->nbytes, .signature = frame->signature};
    dd_message *recv = context->handler.on_request(context->handler.ctx, (int)frame->source, &request);
    if (recv != NULL) {
        match_begin(context, recv, false);
    }
    return recv;
}

dd_message *
context_match(dd_context *context, const dd_frame *frame, bool is_notified)
{
    int source = (int)frame->source;
    if (!is_notified && frame->kind == DD_MESSAGE_COLL && context->handler.on_coll != NULL) {
        context->handler.on_coll(context->handler.ctx, source, frame->tag, &frame->signature);
    }
    dd_message *recv = find_posted(&context->ranks[source].posted, frame);
    if (frame->kind == DD_MESSAGE_P2P && !dd_list_is_empty(&context->posted_any)) {
        dd_message *any = find_posted(&context->posted_any, frame);
        if (any != NULL && (recv == NULL || any->order < recv->order)) {
            recv = any;
        }
    }
    if (recv != NULL) {
        message_unpost(recv);
        recv->stage = STAGE_IDLE;
    } else {
        recv = request_receive(context, frame);
    }
    if (recv != NULL) {
        set_results(recv, context, frame);
    }
    return recv;
}

static bool
has_other_dtype(const dd_message *recv, const dd_signature *sent)
{
    const dd_signature *wanted = recv->signature;
    return recv->kind == DD_MESSAGE_P2P && wanted != NULL &&
           (wanted->flags & sent->flags & DD_SIGNATURE_TYPED) != 0 &&
           (wanted->dtype != sent->dtype || wanted->extra_bits != sent->extra_bits);
}

static int
find_misfit(const dd_message *recv, const dd_frame *frame)
{
    if (has_other_dtype(recv, &frame->signature)) {
        return DD_REFUSED_MISMATCH;
    }
    if (recv->kind == DD_MESSAGE_COLL && recv->signature != NULL &&
        memcmp(recv->signature, &frame->signature, sizeof frame->signature) != 0) {
        return DD_REFUSED_MISMATCH;
    }
    if (frame->nbytes > recv->nbytes) {
        return DD_REFUSED_TOO_LARGE;
    }
    return recv->kind == DD_MESSAGE_COLL && frame->nbytes != recv->nbytes ? DD_REFUSED_MISMATCH : 0;
}

int
context_check_fit(dd_message *recv, const dd_frame *frame, dd_peer *peer)
{
    int reason = find_misfit(recv, frame);
    if (reason != 0) {
        recv->received = 0;
        if (frame->type == DD_FRAME_RTS && !peer->is_self) {
            peer_post_refusal(peer, frame, (dd_refusal)reason, recv);
        }
        message_fail_misfit(recv, reason, &frame->signature, frame->nbytes);
    }
    return reason;
}

void
context_begin_rendezvous(dd_message *recv, const dd_frame *frame, dd_peer *peer)
{
    recv->stage = STAGE_MOVING;
    recv->id = frame->id;
    dd_list_push_back(&peer->receiving, &recv->link);
    dd_frame answer = reply_frame(frame, DD_FRAME_CTS);
    peer_post_frame(peer, &answer, (dd_bytes){0});
}

/* ---- held entries */

static void
copy_bytes(void *to, const void *from, size_t nbytes)
{
    if (nbytes > 0) {
        memcpy(to, from, nbytes);
    }
}

/* Copy the data of a message from this process to itself to its receive, and end both messages. */
static void
take_own(dd_message *recv, const held *entry)
{
    dd_message *send = entry->sender;
    int reason = context_check_fit(recv, &entry->frame, entry->peer);
    if (reason == 0) {
        copy_bytes(recv->data, send->data, send->nbytes);
        message_end(recv, NULL);
        message_end(send, NULL);
    } else {
        message_fail_misfit(send, reason, recv->signature, recv->nbytes);
    }
}

void
context_take_held(dd_message *recv, held *entry)
{
    dd_peer *peer = entry->peer;
    dd_list_remove(&entry->link);
    if (entry->sender != NULL) {
        take_own(recv, entry);
    } else if (context_check_fit(recv, &entry->frame, peer) == 0) {
        if (entry->frame.type == DD_FRAME_RTS) {
            context_begin_rendezvous(recv, &entry->frame, peer);
        } else {
            copy_bytes(recv->data, entry->data, entry->frame.payload);
            message_end(recv, NULL);
        }
    }
    if (entry->frame.type == DD_FRAME_EAGER) {
        peer_return_credit(peer, entry->frame.payload);
    }
    engine_destroy_held(peer->engine, entry);
}

/* ---- posting messages */

static held *
find_held(const dd_list *list, const dd_message *recv)
{
    for (dd_list *node = list->next; node != list; node = node->next) {
        held *entry = DD_CONTAINER_OF(node, held, link);
        if (is_match(recv, &entry->frame)) {
            return entry;
        }
    }
    return NULL;
}

static held *
find_held_of_any(const dd_context *context, const dd_message *recv)
{
    held *first = NULL;
    for (int rank = 0; rank < context->nranks; rank++) {
        held *entry = find_held(&context->ranks[rank].held, recv);
        if (entry != NULL && (first == NULL || entry->order < first->order)) {
            first = entry;
        }
    }
    return first;
}

/* End the message if the other rank is unreachable. Returns false if the rank is reachable. */
static bool
end_if_unreachable(dd_context *context, dd_message *message)
{
    const context_rank *rank = &context->ranks[message->rank];
    if (rank->has_sent_goodbye) {
        message_fail_closed(message);
    } else if (rank->peer->state == PEER_LOST) {
        message_fail_lost(message);
    } else {
        return false;
    }
    return true;
}

void
dd_context_post_send_locked(dd_context *context, dd_message *message)
{
    dd_assert_holds(ENGINE);
    match_begin(context, message, true);
    if (end_if_unreachable(context, message)) {
        return;
    }
    out_frame out = {.frame = context_frame(context, DD_FRAME_EAGER, message->rank), .message = message};
    out.frame.kind = (uint8_t)message->kind;
    out.frame.channel = message->channel;
    out.frame.tag = message->tag;
    out.frame.nbytes = message->nbytes;
    if (message->signature != NULL) {
        out.frame.signature = *message->signature;
    }
    dd_peer *peer = context->ranks[message->rank].peer;
    peer_post_message(peer, &out);
}

void
dd_context_post_recv_locked(dd_context *context, dd_message *message)
{
    dd_assert_holds(ENGINE);
    match_begin(context, message, false);
    bool is_any = message->rank == DD_ANY_RANK;
    held *entry =
        is_any ? find_held_of_any(context, message) : find_held(&context->ranks[message->rank].held, message);
    if (entry != NULL) {
        set_results(message, context, &entry->frame);
        if (message->is_peek) {
            message_end(message, NULL);
        } else {
            context_take_held(message, entry);
        }
        return;
    }
    if (!is_any && end_if_unreachable(context, message)) {
        return;
    }
    message->stage = STAGE_POSTED;
    if (is_any) {
        context->engine->nany++;
        dd_list_push_back(&context->posted_any, &message->link);
        return;
    }
    message->peer->nexpected++;
    dd_list_push_back(&context->ranks[message->rank].posted, &message->link);
    dd_peer_connect_locked(message->peer);
}

void
dd_context_expect_locked(dd_context *context, int rank, bool is_expected)
{
    dd_peer *peer = context->ranks[rank].peer;
    peer->nexpected = is_expected ? peer->nexpected + 1 : peer->nexpected - 1;
}

void
dd_context_take_request_locked(dd_context *context, int rank)
{
    dd_assert_holds(ENGINE);
    const dd_list *list = &context->ranks[rank].held;
    for (dd_list *node = list->next; node != list; node = node->next) {
        held *entry = DD_CONTAINER_OF(node, held, link);
        if (entry->frame.kind != DD_MESSAGE_WINDOW) {
            continue;
        }
        dd_message *recv = request_receive(context, &entry->frame);
        if (recv != NULL) {
            set_results(recv, context, &entry->frame);
            context_take_held(recv, entry);
        }
        return;
    }
}
