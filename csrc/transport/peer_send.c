/* Output: frames go to lane 0 in the order of posting, fragments of large messages to all lanes. */
#include "transport/engine_internal.h"

#include "core/mem.h"

#include <string.h>

/* Any frame can return credit; from this amount of credit, a CREDIT frame returns it. */
#define CREDIT_ALONE_NBYTES (CREDIT_NBYTES / 4)
/* Limit of bytes that are written per lane and round, so that other lanes are served too. */
#define ROUND_NBYTES ((size_t)2 << 20)
/* Size of the smallest message for which further lanes are opened, in bytes. */
#define LANES_NBYTES ((size_t)4 << 20)

static void
count_sent(dd_lane *lane, size_t nbytes)
{
    dd_engine_stats *stats = &lane->peer->engine->stats;
    stats->nframes_sent++;
    if (lane->stream->is_shared_memory) {
        stats->shm_sent_nbytes += nbytes;
    } else {
        stats->tcp_sent_nbytes += nbytes;
    }
}

/* Stop output on a lane. Frames that the peer has already sent can still be read. */
static void
kill_output(dd_lane *lane, dd_io io)
{
    lane->is_output_dead = true;
    lane->is_writing = false;
    lane_break_for_io(lane, io, "cannot send");
    dd_mem_free(lane->current.owned);
    lane->current.owned = NULL;
}

/* Return the payload of a frame, which must have one. */
static uint8_t *
payload_of(const out_frame *out)
{
    return out->message != NULL ? (uint8_t *)out->message->data + out->frame.offset : out->owned;
}

/* Set `parts` to the unwritten parts of the current frame. Returns their number, at most 2. */
static int
rest_of_current(const dd_lane *lane, struct iovec parts[2])
{
    const out_frame *current = &lane->current;
    int nparts = 0;
    size_t data_at = 0;
    if (lane->written < lane->header_nbytes) {
        parts[nparts++] = (struct iovec){.iov_base = (void *)(uintptr_t)(lane->header + lane->written),
                                         .iov_len = lane->header_nbytes - lane->written};
    } else {
        data_at = lane->written - lane->header_nbytes;
    }
    size_t left = current->frame.payload - data_at;
    if (left > 0) {
        parts[nparts++] = (struct iovec){.iov_base = payload_of(current) + data_at, .iov_len = left};
    }
    return nparts;
}

static void
finish_current(dd_lane *lane)
{
    out_frame *current = &lane->current;
    dd_message *message = current->message;
    lane->is_writing = false;
    count_sent(lane, current->frame.payload);
    dd_mem_free(current->owned);
    current->owned = NULL;
    if (message == NULL || current->frame.type == DD_FRAME_RTS) {
        return;
    }
    message->moved += current->frame.payload;
    if (message->moved == message->nbytes) {
        message_end(message, NULL);
    }
}

/* Write the current frame. Returns true once all of it is written. */
static bool
write_current(dd_lane *lane, size_t *moved)
{
    size_t total = lane->header_nbytes + lane->current.frame.payload;
    while (lane->written < total) {
        struct iovec parts[2];
        size_t step = 0;
        int nparts = rest_of_current(lane, parts);
        dd_io io = lane->stream->ops->try_send(lane->stream, parts, nparts, &step);
        if (io == DD_IO_AGAIN) {
            return false;
        }
        if (io != DD_IO_OK) {
            kill_output(lane, io);
            return false;
        }
        lane->written += step;
        *moved += step;
    }
    finish_current(lane);
    return true;
}

/* Begin to write the lane's current frame: encode its header, with the credit it returns. */
static void
begin_current(dd_lane *lane)
{
    dd_peer *peer = lane->peer;
    lane->current.frame.credit = (uint32_t)peer->owed;
    peer->unreturned -= peer->owed;
    peer->owed = 0;
    if (lane->current.frame.type == DD_FRAME_EAGER) {
        peer->lent += eager_cost(lane->current.frame.payload);
    } else if (lane->current.frame.type == DD_FRAME_RTS) {
        peer->begun_id = lane->current.frame.id;
    }
    lane->header_nbytes = dd_frame_encode(&lane->current.frame, lane->header);
    lane->written = 0;
    lane->is_writing = true;
}

static void
cut_fragment(dd_lane *lane)
{
    dd_peer *peer = lane->peer;
    dd_message *message = DD_CONTAINER_OF(peer->sending.next, dd_message, link);
    size_t left = message->nbytes - message->cut;
    size_t len = left < DD_FRAME_FRAGMENT_MAX ? left : DD_FRAME_FRAGMENT_MAX;
    out_frame *current = &lane->current;
    current->frame = context_frame(message->context, DD_FRAME_DATA, message->rank);
    current->frame.kind = (uint8_t)message->kind;
    current->frame.id = message->id;
    current->frame.offset = message->cut;
    current->frame.nbytes = message->nbytes;
    current->frame.payload = (uint32_t)len;
    current->owned = NULL;
    current->message = message;
    message->cut += len;
    if (message->cut == message->nbytes) {
        dd_list_remove(&message->link);
        dd_list_push_back(&peer->flushing, &message->link);
    }
}

out_frame *
peer_pop_out(dd_peer *peer)
{
    out_frame *out = DD_CONTAINER_OF(peer->out.next, out_frame, link);
    dd_list_remove(&out->link);
    peer->nreplies[out->reply]--;
    return out;
}

/* Make the next frame the lane's current frame. Returns false if there is none for the lane. */
static bool
load_next(dd_lane *lane)
{
    dd_peer *peer = lane->peer;
    if (lane->number == 0 && !dd_list_is_empty(&peer->out)) {
        out_frame *out = peer_pop_out(peer);
        lane->current = *out;
        engine_destroy_out(peer->engine, out);
    } else if (!dd_list_is_empty(&peer->sending)) {
        cut_fragment(lane);
    } else {
        return false;
    }
    begin_current(lane);
    return true;
}

bool
lane_has_output(const dd_lane *lane)
{
    const dd_peer *peer = lane->peer;
    return lane->is_writing || !dd_list_is_empty(&peer->sending) ||
           (lane->number == 0 && !dd_list_is_empty(&peer->out));
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

bool
lane_pump(dd_lane *lane)
{
    size_t moved = 0;
    while (!lane->is_output_dead && moved < ROUND_NBYTES) {
        if (!lane->is_writing && !load_next(lane)) {
            break;
        }
        if (!write_current(lane, &moved)) {
            break;
        }
    }
    return moved > 0;
}

/* ---- posting frames */

static bool
queue(dd_peer *peer, const out_frame *out)
{
    out_frame *queued = engine_create_out(peer->engine, out);
    if (queued == NULL) {
        return false;
    }
    dd_list_push_back(&peer->out, &queued->link);
    peer->nreplies[out->reply]++;
    engine_wake_driver(peer->engine);
    return true;
}

/* Queue a frame with a copy of its payload. Returns false if there is no memory. */
static bool
queue_frame(dd_peer *peer, const dd_frame *frame, dd_bytes payload, reply_kind reply)
{
    out_frame new = {.frame = *frame, .reply = (uint8_t)reply};
    new.frame.payload = (uint32_t)payload.len;
    if (payload.len > 0) {
        new.owned = dd_mem_alloc(payload.len);
        if (new.owned != NULL) {
            memcpy(new.owned, payload.data, payload.len);
        }
    }
    if ((payload.len > 0 && new.owned == NULL) || !queue(peer, &new)) {
        dd_mem_free(new.owned);
        return false;
    }
    return true;
}

static void
post_frame(dd_peer *peer, const dd_frame *frame, dd_bytes payload, reply_kind reply)
{
    if (peer->state != PEER_LOST && !peer->is_breaking && !queue_frame(peer, frame, payload, reply)) {
        peer_break_for_memory(peer, "for a message to send", sizeof(out_frame) + payload.len);
    }
}

void
peer_post_farewell(dd_peer *peer, const dd_frame *frame, dd_bytes payload)
{
    if (queue_frame(peer, frame, payload, REPLY_NONE)) {
        (void)lane_pump(peer->lanes[0]);
    }
}

void
peer_post_frame(dd_peer *peer, const dd_frame *frame, dd_bytes payload)
{
    post_frame(peer, frame, payload, REPLY_NONE);
}

static void
post_reply(dd_peer *peer, const dd_frame *frame, reply_kind reply, size_t nreplies_max)
{
    if (peer->nreplies[reply] < nreplies_max) {
        post_frame(peer, frame, (dd_bytes){0}, reply);
    } else {
        peer_protocol_error(peer, "does not read its replies: got %zu queued, expected at most %zu",
                            peer->nreplies[reply] + 1, nreplies_max);
    }
}

void
peer_post_answer(dd_peer *peer, const dd_frame *frame)
{
    post_reply(peer, frame, REPLY_ANSWER, PEER_ANSWERS_MAX);
}

void
peer_post_refusal(dd_peer *peer, const dd_frame *rts, dd_refusal reason, const dd_message *recv)
{
    dd_frame frame = reply_frame(rts, DD_FRAME_REFUSE);
    frame.reason = (uint8_t)reason;
    frame.nbytes = recv != NULL ? recv->nbytes : 0;
    if (recv != NULL && recv->signature != NULL) {
        frame.signature = *recv->signature;
    }
    post_reply(peer, &frame, REPLY_REFUSAL, PEER_REFUSALS_MAX);
}

/* Write a frame immediately, if no other frame is waiting. An unwritten rest stays the current
 * frame. Returns false if the frame must be queued; otherwise true, also if the lane breaks. */
static bool
write_at_once(dd_peer *peer, const out_frame *out)
{
    if (peer->nlanes == 0 || !dd_list_is_empty(&peer->out) || peer->lanes[0]->is_writing) {
        return false;
    }
    dd_lane *first = peer->lanes[0];
    first->current = *out;
    begin_current(first);
    size_t moved = 0;
    if (!first->is_output_dead && !write_current(first, &moved)) {
        engine_wake_driver(peer->engine);
    }
    return true;
}

/* Open further lanes before the first large message is sent. */
static void
dial_lanes(dd_peer *peer)
{
    dd_engine *engine = peer->engine;
    if (peer->has_tried_lanes || peer->nlanes == 0 || peer->lanes[0]->stream->is_shared_memory ||
        engine->connector == NULL || !peer->is_endpoint_known) {
        return;
    }
    peer->has_tried_lanes = true;
    for (int number = peer->nlanes + peer->ndialling; number < engine->options.nlanes; number++) {
        if (peer_dial(peer, number, 0, dd_deadline_after(5 * DD_NS_PER_S), NULL) == DD_OK) {
            peer->ndialling++;
        }
    }
}

void
peer_post_message(dd_peer *peer, out_frame *out)
{
    dd_message *message = out->message;
    message->stage = STAGE_MOVING;
    size_t cost = eager_cost(message->nbytes);
    if (peer->is_self) {
        dd_list_push_back(&peer->flushing, &message->link);
        if (!queue(peer, out)) {
            message_fail_memory(message, sizeof *out);
        }
        return;
    }
    bool is_eager = message->nbytes <= peer->eager_max && cost <= peer->credit;
    out->frame.type = is_eager ? DD_FRAME_EAGER : DD_FRAME_RTS;
    if (is_eager) {
        peer->credit -= cost;
        out->frame.payload = (uint32_t)message->nbytes;
        dd_list_push_back(&peer->flushing, &message->link);
    } else {
        out->frame.id = message->id = ++peer->last_id;
        dd_list_push_back(&peer->awaiting, &message->link);
        if (message->nbytes >= LANES_NBYTES && peer->engine->options.nlanes > 1) {
            dial_lanes(peer);
        }
    }
    if (!write_at_once(peer, out) && !queue(peer, out)) {
        peer->credit += is_eager ? cost : 0;
        message_fail_memory(message, sizeof *out);
    }
    if (peer->state != PEER_CONNECTED) {
        dd_peer_connect_locked(peer);
    }
}

void
peer_return_credit(dd_peer *peer, size_t nbytes)
{
    size_t cost = eager_cost(nbytes);
    if (peer->is_self) {
        peer->credit += cost;
        return;
    }
    peer->owed += cost;
    if (peer->owed >= CREDIT_ALONE_NBYTES && dd_list_is_empty(&peer->out)) {
        dd_frame frame = {.type = DD_FRAME_CREDIT};
        peer_post_frame(peer, &frame, (dd_bytes){0});
    }
}

/* ---- answers to RTS */

/* Find the send that a CTS or REFUSE answers. Returns NULL if the send was cancelled (a CANCEL
 * frame follows), or if the peer cannot know the send's id: the peer then breaks. */
static dd_message *
find_awaiting(dd_peer *peer, const dd_frame *frame)
{
    if (frame->id == 0 || frame->id > peer->begun_id) {
        peer_protocol_error(peer, "%s for unknown message: got %llu, expected 1 to %llu",
                            dd_frame_type_name((dd_frame_type)frame->type), (unsigned long long)frame->id,
                            (unsigned long long)peer->begun_id);
        return NULL;
    }
    for (dd_list *node = peer->awaiting.next; node != &peer->awaiting; node = node->next) {
        dd_message *message = DD_CONTAINER_OF(node, dd_message, link);
        if (message->id == frame->id) {
            return message;
        }
    }
    return NULL;
}

void
peer_on_cts(dd_peer *peer, const dd_frame *frame)
{
    dd_message *message = find_awaiting(peer, frame);
    if (message != NULL) {
        dd_list_remove(&message->link);
        dd_list_push_back(&peer->sending, &message->link);
    }
}

void
peer_on_refuse(dd_peer *peer, const dd_frame *frame)
{
    dd_message *message = find_awaiting(peer, frame);
    if (message != NULL) {
        message_fail_misfit(message, frame->reason, &frame->signature, frame->nbytes);
    }
}

/* ---- cancelling sends */

/* Copy the rest of a partly written frame, so that it can be finished without its message. If the
 * frame ends a large message, the receiver completes the message before it reads the CANCEL. */
static void
detach_current(dd_lane *lane)
{
    out_frame *current = &lane->current;
    if (current->frame.payload > 0) {
        current->owned = dd_mem_alloc(current->frame.payload);
        if (current->owned == NULL) {
            lane->is_output_dead = true;
            peer_break_for_memory(lane->peer, "for a message to send", current->frame.payload);
        } else {
            memcpy(current->owned, payload_of(current), current->frame.payload);
        }
    }
    current->message = NULL;
}

/* Drop the queued frame of a message. Returns false if no frame of the message is queued. */
static bool
drop_queued(dd_peer *peer, const dd_message *message)
{
    for (dd_list *node = peer->out.next; node != &peer->out; node = node->next) {
        out_frame *out = DD_CONTAINER_OF(node, out_frame, link);
        if (out->message == message) {
            dd_list_remove(&out->link);
            peer->nreplies[out->reply]--;
            engine_destroy_out(peer->engine, out);
            return true;
        }
    }
    return false;
}

void
peer_detach_send(dd_peer *peer, dd_message *message)
{
    if (drop_queued(peer, message)) {
        peer->credit += message->id == 0 && !peer->is_self ? eager_cost(message->nbytes) : 0;
        return;
    }
    for (int i = 0; i < peer->nlanes; i++) {
        if (peer->lanes[i]->is_writing && peer->lanes[i]->current.message == message) {
            detach_current(peer->lanes[i]);
        }
    }
    if (message->id != 0) {
        dd_frame frame = {.type = DD_FRAME_CANCEL, .id = message->id};
        peer_post_frame(peer, &frame, (dd_bytes){0});
    }
}
