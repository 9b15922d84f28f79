/* Input from links. Headers and small payloads are read into the lane's buffer, large payloads
 * directly to their destination. */
#include "transport/engine_internal.h"

#include <string.h>

/* Limit of bytes that are read per lane and round, so that other lanes are served too. */
#define ROUND_NBYTES ((size_t)2 << 20)
/* Size of the smallest payload that is read without the buffer, in bytes. */
#define DIRECT_NBYTES ((size_t)1024)

/* Create a held entry for a frame. Returns NULL if there is no room: the peer then breaks. */
static held *
take_held(dd_lane *lane, const dd_frame *frame)
{
    dd_peer *peer = lane->peer;
    if (peer->nheld >= PEER_HELD_MAX) {
        peer_protocol_error(peer, "too many unexpected messages: got %zu, expected at most %zu",
                            peer->nheld + 1, PEER_HELD_MAX);
        return NULL;
    }
    held *entry = engine_create_held(peer, frame);
    if (entry == NULL) {
        lane_end_input(lane);
        peer_break_for_memory(peer, "for a received message", frame->payload);
    }
    return entry;
}

/* ---- frames of messages */

static dd_context *
find_context(dd_lane *lane, const dd_frame *frame)
{
    dd_context *cached = lane->cached;
    if (cached != NULL && cached->key.id == frame->context && cached->key.rank == frame->target) {
        return cached;
    }
    dd_context *found = engine_find_context(lane->peer->engine, frame->context, frame->target);
    if (found != NULL && context_knows_predecessor(found, frame, lane->peer)) {
        return NULL; /* must not be cached: closing this context would not clear the cache */
    }
    lane->cached = found;
    return found;
}

static bool
take_credit(dd_lane *lane, const dd_frame *frame)
{
    dd_peer *peer = lane->peer;
    peer->unreturned += eager_cost(frame->payload);
    if (peer->unreturned > CREDIT_NBYTES) {
        peer_protocol_error(peer, "too many unconfirmed small messages: got %zu bytes, expected at most %zu",
                            peer->unreturned, CREDIT_NBYTES);
        return false;
    }
    return true;
}

/* Handle the header of an EAGER or RTS frame. */
static void
on_message(dd_lane *lane, const dd_frame *frame)
{
    dd_peer *peer = lane->peer;
    if (frame->type == DD_FRAME_RTS) {
        if (frame->id <= peer->last_rts_id) {
            peer_protocol_error(peer, "announcement out of order: got message %llu, expected more than %llu",
                                (unsigned long long)frame->id, (unsigned long long)peer->last_rts_id);
            return;
        }
        peer->last_rts_id = frame->id;
    } else if (!take_credit(lane, frame)) {
        return;
    }
    dd_context *context = find_context(lane, frame);
    if (context != NULL && !context_check_source(context, frame, peer)) {
        return;
    }
    dd_message *recv = context != NULL ? context_match(context, frame, false) : NULL;
    if (recv == NULL) {
        held *entry = take_held(lane, frame);
        if (entry == NULL) {
            return;
        }
        entry->is_notified = context != NULL;
        if (frame->type == DD_FRAME_RTS) {
            engine_deliver(entry);
        } else { /* finish_payload delivers the entry */
            lane->collected = entry;
            lane->destination = entry->data;
        }
    } else if (context_check_fit(recv, frame, peer) != 0) {
        /* The receive has ended with an error, so the payload is dropped. */
    } else if (frame->type == DD_FRAME_RTS) {
        context_begin_rendezvous(recv, frame, peer);
    } else {
        recv->stage = STAGE_MOVING;
        dd_list_push_back(&peer->receiving, &recv->link);
        lane->recv = recv;
        lane->destination = recv->data;
    }
}

/* Find the receive of the message `id`. Returns NULL if it was cancelled or never existed. */
static dd_message *
find_receiving(const dd_peer *peer, uint64_t id)
{
    for (dd_list *node = peer->receiving.next; node != &peer->receiving; node = node->next) {
        dd_message *recv = DD_CONTAINER_OF(node, dd_message, link);
        if (recv->id == id && id != 0) {
            return recv;
        }
    }
    return NULL;
}

static void
on_data(dd_lane *lane, const dd_frame *frame)
{
    dd_peer *peer = lane->peer;
    dd_message *recv = find_receiving(peer, frame->id);
    if (frame->id == 0 || frame->id > peer->last_rts_id) {
        peer_protocol_error(peer, "data of unknown message: got %llu, expected 1 to %llu",
                            (unsigned long long)frame->id, (unsigned long long)peer->last_rts_id);
    } else if (recv != NULL &&
               /* `received` is the announced size, which limits the data of all lanes together. */
               (frame->nbytes != recv->received || frame->payload > recv->received - recv->cut)) {
        peer_protocol_error(peer, "data out of range: got %llu bytes at %llu, expected at most %zu in all",
                            (unsigned long long)frame->payload, (unsigned long long)frame->offset,
                            recv->received);
    } else if (recv != NULL) {
        recv->cut += frame->payload;
        lane->recv = recv;
        lane->destination = recv->data != NULL ? (uint8_t *)recv->data + frame->offset : NULL;
    }
}

/* Handle CANCEL: the sender has cancelled a message. */
static void
on_cancel(dd_lane *lane, const dd_frame *frame)
{
    dd_peer *peer = lane->peer;
    dd_message *recv = find_receiving(peer, frame->id);
    if (recv == NULL) {
        peer_cancel_rts(peer, frame->id);
        return;
    }
    context_read_posts(recv->context); /* on_bell may end the receive, with its group's cause */
    if (find_receiving(peer, frame->id) != recv) {
        return;
    }
    peer_detach_recv(peer, recv);
    message_fail(recv, DD_ABORTED, "cancelled its send after %zu of %zu bytes", recv->moved, recv->received);
}

static void
on_bye(dd_lane *lane)
{
    dd_peer *peer = lane->peer;
    dd_error error;
    (void)dd_error_set(&error, DD_PEER_LOST, "its process has closed its groups");
    peer->is_final = true;
    for (int i = 0; i < peer->nlanes; i++) {
        lane_end_input(peer->lanes[i]);
    }
    peer_break(peer, &error);
}

/* Handle ABORT, QUESTION, ANSWER or GOODBYE. Its payload must be in the buffer. */
static void
on_control(dd_lane *lane, const dd_frame *frame, dd_bytes payload)
{
    dd_context *context = find_context(lane, frame);
    if (context != NULL) {
        if (context_check_source(context, frame, lane->peer)) {
            context_on_control(context, frame, payload);
        }
        return;
    }
    held *entry = take_held(lane, frame);
    if (entry != NULL) {
        if (payload.len > 0) {
            memcpy(entry->data, payload.data, payload.len);
        }
        engine_deliver(entry);
    }
}

static void
on_credit(dd_peer *peer, uint32_t credit)
{
    if (credit > peer->lent) {
        peer_protocol_error(peer, "credit too large: got %lu bytes, expected at most %zu of %zu",
                            (unsigned long)credit, peer->lent, CREDIT_NBYTES);
        return;
    }
    peer->lent -= credit;
    peer->credit += credit;
}

static void
on_first_lane_frame(dd_lane *lane, const dd_frame *frame, dd_bytes payload)
{
    switch ((dd_frame_type)frame->type) {
    case DD_FRAME_EAGER:
    case DD_FRAME_RTS:
        on_message(lane, frame);
        break;
    case DD_FRAME_CTS:
        peer_on_cts(lane->peer, frame);
        break;
    case DD_FRAME_DATA:
        on_data(lane, frame);
        break;
    case DD_FRAME_REFUSE:
        peer_on_refuse(lane->peer, frame);
        break;
    case DD_FRAME_CANCEL:
        on_cancel(lane, frame);
        break;
    case DD_FRAME_CREDIT:
        break;
    case DD_FRAME_ABORT:
    case DD_FRAME_QUESTION:
    case DD_FRAME_ANSWER:
    case DD_FRAME_GOODBYE:
        on_control(lane, frame, payload);
        break;
    case DD_FRAME_BYE:
        on_bye(lane);
        break;
    }
}

/* Handle the end of a frame's payload. */
static void
finish_payload(dd_lane *lane)
{
    dd_peer *peer = lane->peer;
    dd_message *recv = lane->recv;
    held *entry = lane->collected;
    const dd_frame *frame = &lane->frame;
    lane->recv = NULL;
    lane->collected = NULL;
    lane->destination = NULL;
    if (entry != NULL) {
        engine_deliver(entry);
    } else if (frame->type == DD_FRAME_EAGER) {
        peer_return_credit(peer, frame->payload);
        if (recv != NULL) {
            message_end(recv, NULL);
        }
    } else if (frame->type == DD_FRAME_DATA && recv != NULL) {
        recv->moved += frame->payload;
        if (recv->moved == recv->received) {
            message_end(recv, NULL);
        }
    }
}

static bool
has_header(const dd_lane *lane)
{
    size_t available = lane->end - lane->begin;
    return available > 0 && available >= dd_frame_header_nbytes(lane->buf[lane->begin]);
}

/* Return true if the frame can be handled: ABORT (with a long header) needs its whole payload. */
static bool
is_whole(const dd_lane *lane)
{
    return lane->frame.type != DD_FRAME_ABORT ||
           lane->end - lane->begin >= DD_FRAME_NBYTES + lane->frame.payload;
}

/* Return true for a GOODBYE or BYE that must wait for data of messages on other lanes, because
 * lanes are not ordered with each other. */
static bool
overtakes_data(const dd_lane *lane, const dd_frame *frame)
{
    const dd_peer *peer = lane->peer;
    bool has_others = false;
    for (int i = 0; i < peer->nlanes; i++) {
        has_others = has_others || (peer->lanes[i] != lane && !peer->lanes[i]->is_ended);
    }
    if (!has_others || (frame->type != DD_FRAME_GOODBYE && frame->type != DD_FRAME_BYE)) {
        return false;
    }
    for (const dd_list *node = peer->receiving.next; node != &peer->receiving; node = node->next) {
        const dd_message *recv = DD_CONTAINER_OF(node, dd_message, link);
        const context_key *key = &recv->context->key;
        if (frame->type == DD_FRAME_BYE || (key->id == frame->context && key->rank == frame->target &&
                                            (uint32_t)recv->source == frame->source)) {
            return true;
        }
    }
    return false;
}

bool
engine_postpones(const dd_engine *engine, const dd_frame *frame)
{
    bool fails_messages = frame->type == DD_FRAME_GOODBYE || frame->type == DD_FRAME_BYE ||
                          frame->type == DD_FRAME_CANCEL ||
                          (frame->type == DD_FRAME_REFUSE && frame->reason == DD_REFUSED_CLOSED);
    return engine->is_reading_links && fails_messages;
}

static bool
is_postponed(const dd_lane *lane, const dd_frame *frame)
{
    dd_engine *engine = lane->peer->engine;
    bool is_postponed = engine_postpones(engine, frame);
    engine->has_postponed = engine->has_postponed || is_postponed;
    return is_postponed;
}

/* Handle the frame in the buffer. Returns false if more input is needed, or the lane has ended. */
static bool
parse_frame(dd_lane *lane)
{
    dd_error error;
    dd_frame *frame = &lane->frame;
    if (dd_frame_decode(lane->buf + lane->begin, frame, &error) != DD_OK) {
        peer_protocol_error(lane->peer, "%s", error.message);
        return false;
    }
    lane->is_blocked = overtakes_data(lane, frame) || is_postponed(lane, frame);
    if (lane->is_blocked || !is_whole(lane)) {
        return false;
    }
    lane->begin += dd_frame_header_nbytes(lane->buf[lane->begin]);
    if (frame->credit > 0) {
        on_credit(lane->peer, frame->credit);
    }
    dd_bytes payload = dd_bytes_of(lane->buf + lane->begin, frame->payload);
    lane->payload_left = frame->payload;
    if (frame->type == DD_FRAME_ABORT) {
        lane->begin += frame->payload;
        lane->payload_left = 0;
    }
    if (lane->number == 0) {
        on_first_lane_frame(lane, frame, payload);
    } else if (frame->type == DD_FRAME_DATA) {
        on_data(lane, frame);
    } else {
        peer_protocol_error(lane->peer, "unexpected %s on connection %d, expected connection 0",
                            dd_frame_type_name((dd_frame_type)frame->type), lane->number);
    }
    if (!lane->is_ended && lane->payload_left == 0) {
        finish_payload(lane);
    }
    return !lane->is_ended;
}

static void
copy_payload(dd_lane *lane)
{
    size_t available = lane->end - lane->begin;
    size_t len = available < lane->payload_left ? available : lane->payload_left;
    if (lane->destination != NULL) {
        memcpy(lane->destination, lane->buf + lane->begin, len);
        lane->destination += len;
    }
    lane->begin += len;
    lane->payload_left -= len;
    if (lane->payload_left == 0) {
        finish_payload(lane);
    }
}

static void
parse(dd_lane *lane)
{
    for (;;) {
        if (lane->payload_left > 0 && lane->begin < lane->end) {
            copy_payload(lane);
        } else if (lane->payload_left > 0 || !has_header(lane) || !parse_frame(lane)) {
            break;
        }
    }
    if (lane->begin == lane->end) {
        lane->begin = lane->end = 0;
    }
}

static void
on_input_end(dd_lane *lane, dd_io io)
{
    lane_end_input(lane);
    lane->is_output_dead = lane->is_output_dead || lane->number != 0;
    lane_break_for_io(lane, io, "cannot receive");
}

/* Read once from the link. Returns false if there is no more input at present. */
static bool
read_once(dd_lane *lane, size_t *moved)
{
    bool is_direct =
        lane->payload_left >= DIRECT_NBYTES && lane->destination != NULL && lane->begin == lane->end;
    if (!is_direct && lane->begin > 0 && lane->end == sizeof lane->buf) {
        memmove(lane->buf, lane->buf + lane->begin, lane->end - lane->begin);
        lane->end -= lane->begin;
        lane->begin = 0;
    }
    uint8_t *data = is_direct ? lane->destination : lane->buf + lane->end;
    size_t wanted = is_direct ? lane->payload_left : sizeof lane->buf - lane->end;
    size_t step = 0;
    dd_io io = lane->stream->ops->try_recv(lane->stream, data, wanted, &step);
    if (io == DD_IO_AGAIN || (io == DD_IO_OK && step == 0)) {
        return false;
    }
    if (io != DD_IO_OK) {
        on_input_end(lane, io);
        return false;
    }
    *moved += step;
    if (is_direct) {
        lane->destination += step;
        lane->payload_left -= step;
        if (lane->payload_left == 0) {
            finish_payload(lane);
        }
    } else {
        lane->end += step;
        parse(lane);
    }
    return step == wanted || lane->stream->has_input ||
           (lane->stream->is_shared_memory && step >= DIRECT_NBYTES);
}

bool
lane_receive(dd_lane *lane)
{
    size_t moved = 0;
    if (lane->is_receiving) {
        return false; /* called from a callback of this lane (dd_engine_read_links_locked) */
    }
    lane->is_receiving = true;
    if (lane->is_blocked) {
        parse(lane);
    }
    while (!lane->is_ended && !lane->is_blocked && moved < ROUND_NBYTES && read_once(lane, &moved)) {
    }
    lane->is_receiving = false;
    return moved > 0;
}
