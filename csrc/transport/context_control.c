/* Control frames between ranks (ABORT, GOODBYE, QUESTION, ANSWER), and the loss of ranks. */
#include "transport/engine_internal.h"

#include "core/assert.h"

#include <string.h>

/* Maximum time that callers are delayed until failure notices have left this process. */
#define NOTICES_NS (200 * DD_NS_PER_MS)

/* ---- sending control frames */

static bool
is_reachable(const dd_context *context, int rank)
{
    const context_rank *to = &context->ranks[rank];
    return rank != context->rank && to->peer->state == PEER_CONNECTED && !to->has_sent_goodbye;
}

void
context_send_control(dd_context *context, int rank, dd_frame_type type, dd_bytes payload)
{
    dd_peer *peer = context->ranks[rank].peer;
    if (is_reachable(context, rank)) {
        dd_frame frame = context_frame(context, type, rank);
        peer_post_frame(peer, &frame, payload);
        if (type == DD_FRAME_ABORT && !peer->is_self) {
            (void)lane_pump(peer->lanes[0]);
        }
    }
    if (type == DD_FRAME_ABORT && !peer->is_self && peer->state != PEER_LOST) {
        peer->has_notice_pending = true;
        context->engine->notices_until_ns = dd_deadline_after(NOTICES_NS);
    }
}

void
dd_context_post_abort_locked(dd_context *context, int except, bool spares_near, const dd_cause *cause)
{
    dd_assert_holds(ENGINE);
    uint8_t bytes[DD_CAUSE_MAX_NBYTES];
    dd_bytes payload = dd_bytes_of(bytes, dd_cause_encode(cause, bytes));
    for (int rank = 0; rank < context->nranks; rank++) {
        const dd_peer *peer = context->ranks[rank].peer;
        bool is_spared = spares_near && peer->is_near && !peer->is_self;
        if (rank != except && !is_spared) {
            context_send_control(context, rank, DD_FRAME_ABORT, payload);
        }
    }
    dd_blob_clear(&context->abort, sizeof bytes);
    /* Ignore an error: the copy is needed only for links that are created later. */
    dd_status ignored = dd_blob_append(&context->abort, payload.data, payload.len, NULL);
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
            context_send_control(context, rank, DD_FRAME_ABORT, dd_blob_view(&context->abort));
        }
        if (context->ranks[rank].is_leaving) {
            context_send_control(context, rank, DD_FRAME_QUESTION, (dd_bytes){0});
        }
    }
}

void
dd_context_post_question_locked(dd_context *context, int rank)
{
    dd_assert_holds(ENGINE);
    context_send_control(context, rank, DD_FRAME_QUESTION, (dd_bytes){0});
}

bool
dd_context_is_connected_locked(const dd_context *context, int rank)
{
    return context->ranks[rank].peer->state == PEER_CONNECTED;
}

/* ---- receiving control frames */

bool
context_knows_predecessor(const dd_context *context, const dd_frame *frame, const dd_peer *peer)
{
    if (frame->source >= (uint32_t)context->nranks) {
        return false;
    }
    const dd_peer *member = context->ranks[frame->source].peer;
    return member != peer &&
           memcmp(&member->endpoint.uid, &peer->endpoint.uid, sizeof peer->endpoint.uid) == 0;
}

bool
context_check_source(const dd_context *context, const dd_frame *frame, dd_peer *peer)
{
    if (frame->source < (uint32_t)context->nranks && context->ranks[frame->source].peer == peer) {
        return true;
    }
    peer_protocol_error(peer, "%s in the name of rank %lu, which is another process",
                        dd_frame_type_name((dd_frame_type)frame->type), (unsigned long)frame->source);
    return false;
}

/* Fail all posted receives from a rank for which no message has arrived. */
static void
fail_posted(context_rank *rank, void (*fail)(dd_message *message))
{
    while (!dd_list_is_empty(&rank->posted)) {
        fail(DD_CONTAINER_OF(rank->posted.next, dd_message, link));
    }
}

void
context_read_posts(dd_context *context)
{
    if (context->handler.on_bell != NULL) {
        context->handler.on_bell(context->handler.ctx);
    }
}

static void
control_on_goodbye(dd_context *context, int source)
{
    context_rank *rank = &context->ranks[source];
    if (rank->has_sent_goodbye) {
        return;
    }
    rank->has_sent_goodbye = true;
    context_read_posts(context);
    fail_posted(rank, message_fail_closed);
    if (context->handler.on_goodbye != NULL) {
        context->handler.on_goodbye(context->handler.ctx, source);
    }
}

/* Record that the rank which detected a failure has lost its link to this rank. At this end, the
 * link may look intact until the network reports the loss. */
static void
note_lost_remotely(const dd_context *context, const dd_cause *cause)
{
    bool is_of_this_rank = cause->blamed.rank == context->rank && cause->origin != context->rank;
    if (is_of_this_rank && cause->origin >= 0) {
        context->ranks[cause->origin].peer->is_lost_remotely = true;
    }
}

/* Handle an ABORT frame. Returns DD_PROTOCOL if its payload is not a valid cause. */
static dd_status
control_on_abort(dd_context *context, int source, dd_bytes payload, dd_error *fault)
{
    dd_cause cause;
    dd_status status = dd_cause_decode(payload, context->nranks, &cause, fault);
    if (status != DD_OK) {
        return status;
    }
    if (cause.kind == DD_CAUSE_LOST) {
        context->ranks[cause.blamed.rank].peer->is_reported_lost = true;
        note_lost_remotely(context, &cause);
    }
    if (context->handler.on_abort != NULL) {
        context->handler.on_abort(context->handler.ctx, source, &cause);
    }
    return DD_OK;
}

bool
dd_context_find_loss_locked(const dd_context *context, int *rank, dd_path_loss *loss)
{
    dd_assert_holds(ENGINE);
    for (*rank = 0; *rank < context->nranks; (*rank)++) {
        if (*rank != context->rank && dd_peer_find_loss_locked(context->ranks[*rank].peer, loss)) {
            return true;
        }
    }
    return false;
}

static void
control_answer(dd_context *context, int source)
{
    int rank;
    dd_path_loss loss;
    bool is_inside = false;
    dd_frame frame = context_frame(context, DD_FRAME_ANSWER, source);
    if (context->handler.on_query != NULL) {
        context->handler.on_query(context->handler.ctx, &frame.tag, &frame.signature, &is_inside);
        frame.offset = is_inside ? 1 : 0;
        if (dd_context_find_loss_locked(context, &rank, &loss)) {
            frame.id = (uint64_t)rank + 1;
            frame.nbytes = loss.nbytes;
        }
        peer_post_answer(context->ranks[source].peer, &frame);
    }
}

void
context_on_control(dd_context *context, const dd_frame *frame, dd_bytes payload)
{
    int source = (int)frame->source;
    const dd_context_handler *handler = &context->handler;
    if (frame->type == DD_FRAME_ABORT) {
        dd_error fault;
        if (control_on_abort(context, source, payload, &fault) != DD_OK) {
            peer_protocol_error(context->ranks[source].peer, "%s", fault.message);
        }
    } else if (frame->type == DD_FRAME_GOODBYE) {
        control_on_goodbye(context, source);
    } else if (frame->type == DD_FRAME_QUESTION) {
        control_answer(context, source);
    } else if (frame->type == DD_FRAME_ANSWER && handler->on_answer != NULL) {
        if (handler->on_loss != NULL && frame->id <= (uint64_t)context->nranks) {
            handler->on_loss(handler->ctx, source, (int)frame->id - 1, frame->nbytes);
        }
        handler->on_answer(handler->ctx, source, frame->tag, &frame->signature, frame->offset == 1);
    }
}

void
context_post_farewell(dd_context *context, dd_peer *peer)
{
    for (int rank = 0; rank < context->nranks; rank++) {
        if (context->ranks[rank].peer != peer || context->ranks[rank].has_sent_goodbye) {
            continue;
        }
        dd_error error = *peer->error;
        error.blamed.rank = rank;
        dd_cause cause = dd_cause_of_error(&error, context->rank);
        cause.kind = DD_CAUSE_LOST;
        cause.code = DD_PEER_LOST;
        uint8_t bytes[DD_CAUSE_MAX_NBYTES];
        dd_frame frame = context_frame(context, DD_FRAME_ABORT, rank);
        peer_post_farewell(peer, &frame, dd_bytes_of(bytes, dd_cause_encode(&cause, bytes)));
    }
}

void
context_on_peer_lost(dd_context *context, dd_peer *peer)
{
    for (int number = 0; number < context->nranks; number++) {
        context_rank *rank = &context->ranks[number];
        if (rank->peer != peer || rank->is_lost || rank->has_sent_goodbye) {
            continue;
        }
        if (rank->is_leaving) {
            control_on_goodbye(context, number);
            continue;
        }
        rank->is_lost = true;
        fail_posted(rank, message_fail_lost);
        if (context->handler.on_lost != NULL) {
            dd_error own_error = *peer->error;
            dd_error_blame(&own_error, number, peer->endpoint.host, peer->endpoint.pid);
            context->handler.on_lost(context->handler.ctx, number, &own_error);
        }
    }
}

/* ---- causes and departures in shared memory */

void
dd_context_handle_abort_locked(dd_context *context, int rank, dd_bytes cause)
{
    (void)!control_on_abort(context, rank, cause, NULL);
}

void
dd_context_handle_goodbye_locked(dd_context *context, int rank)
{
    context_rank *from = &context->ranks[rank];
    if (from->has_sent_goodbye || from->is_leaving) {
        return;
    }
    if (from->peer->state == PEER_IDLE || from->peer->state == PEER_LOST) {
        control_on_goodbye(context, rank);
        return;
    }
    /* The rank may have left without sending GOODBYE on this link, if its process did not know the
     * link yet. So send a QUESTION, whose answer arrives after all data that the rank has sent. */
    from->is_leaving = true;
    dd_context_post_question_locked(context, rank);
}
