/* What comes in. Headers and small payloads are read into the lane's buffer; large payloads go straight to
 * where they belong. */
#include "transport/engine_internal.h"

#include "core/mem.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* Read in one round before others have their turn. */
#define ROUND_NBYTES ((size_t)2 << 20)
/* From here on a payload is read without the buffer. */
#define DIRECT_NBYTES ((size_t)1024)

static void
end_input(dd_lane *lane)
{
    lane->is_ended = true;
    lane->payload_left = 0;
    lane->begin = lane->end = 0;
}

void
peer_protocol_error(dd_peer *peer, const char *format, ...)
{
    char what[256];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(what, sizeof what, format, args);
    va_end(args);
    dd_error error;
    (void)dd_error_set(&error, DD_PROTOCOL, "it broke the protocol: %s", what);
    for (int i = 0; i < peer->nlanes; i++) {
        end_input(peer->lanes[i]);
        peer->lanes[i]->is_output_dead = true;
    }
    peer_break(peer, &error);
}

static void
break_for_memory(dd_lane *lane, size_t nbytes)
{
    dd_peer *peer = lane->peer;
    dd_error error;
    (void)dd_error_set(&error, DD_OUT_OF_MEMORY, "no memory for a message from it (%zu bytes)", nbytes);
    end_input(lane);
    peer_break(peer, &error);
}

void
peer_post_refusal(dd_peer *peer, const dd_frame *rts, dd_refusal reason, const dd_message *recv)
{
    dd_frame frame = {
        .type = DD_FRAME_REFUSE,
        .id = rts->id,
        .context = rts->context,
        .nbytes = recv != NULL ? recv->nbytes : 0,
        .reason = reason,
        .source = rts->target,
        .target = rts->source,
    };
    if (recv != NULL && recv->signature != NULL) {
        frame.signature = *recv->signature;
    }
    peer_post_reply(peer, &frame);
}

/* Starts an entry in the list. NULL: there is no room, and the connection breaks. */
static held *
hold_frame(dd_lane *lane, const dd_frame *frame, dd_list *list)
{
    dd_peer *peer = lane->peer;
    if (peer->nheld >= PEER_HELD_MAX) {
        peer_protocol_error(peer, "%zu messages that nobody wants", peer->nheld);
        return NULL;
    }
    held *entry = engine_take_held(peer, frame);
    if (entry == NULL) {
        break_for_memory(lane, frame->payload);
        return NULL;
    }
    dd_list_push_back(list, &entry->link);
    return entry;
}

static void
collect(dd_lane *lane, held *entry)
{
    entry->collecting = lane;
    lane->collected = entry;
    lane->sink = entry->data;
}

/* ---- frames for contexts that are not open */

/* Contexts of a peer that it has given up and that may still be opened here. */
#define GIVEN_UP_KEPT 64

static bool
is_for(const held *entry, const context_key *key)
{
    return entry->frame.context == key->id && entry->frame.target == key->rank;
}

/* What says so is kept, for the case that the context is opened here after all. */
static held *
find_given_up(const dd_peer *peer, const context_key *key)
{
    for (dd_list *node = peer->given_up.next; node != &peer->given_up; node = node->next) {
        held *entry = DD_CONTAINER_OF(node, held, link);
        if (is_for(entry, key)) {
            return entry;
        }
    }
    return NULL;
}

held *
peer_take_given_up(dd_peer *peer, const context_key *key)
{
    held *entry = find_given_up(peer, key);
    if (entry != NULL) {
        dd_list_remove(&entry->link);
        peer->ngiven_up--;
    }
    return entry;
}

/* The oldest of many: a context that has not been opened by now never will be. Frames that still come for
 * it are treated as if it had been closed here. */
static void
forget_oldest_given_up(dd_peer *peer)
{
    dd_engine *engine = peer->engine;
    held *oldest = DD_CONTAINER_OF(peer->given_up.next, held, link);
    engine->closed[engine->nclosed++ % CLOSED_CONTEXTS_KEPT] =
        (context_key){.id = oldest->frame.context, .rank = oldest->frame.target};
    peer->ngiven_up--;
    context_drop_held(oldest);
}

/* The peer has given up a group that this process may never open, because making it, or something before
 * it, has failed here as well. What else has come for it is of no use, and would hold the peer's credit for ever. */
static void
note_given_up(dd_peer *peer, const held *abort)
{
    context_key key = {.id = abort->frame.context, .rank = abort->frame.target};
    for (dd_list *node = peer->early.next, *next; node != &peer->early; node = next) {
        next = node->next;
        held *entry = DD_CONTAINER_OF(node, held, link);
        if (is_for(entry, &key)) {
            context_drop_held(entry);
        }
    }
    if (++peer->ngiven_up > GIVEN_UP_KEPT) {
        forget_oldest_given_up(peer);
    }
}

/* Keeps a frame until its context is opened; its payload, if any, is still to come. NULL: dropped. */
static held *
keep_early(dd_lane *lane, const dd_frame *frame)
{
    dd_peer *peer = lane->peer;
    bool has_closed = engine_has_closed(peer->engine, frame->context, frame->target);
    if (frame->type == DD_FRAME_QUESTION && has_closed) {
        dd_frame goodbye = {.type = DD_FRAME_GOODBYE,
                            .context = frame->context,
                            .source = frame->target,
                            .target = frame->source};
        peer_post_reply(peer, &goodbye);
    }
    if (frame->type == DD_FRAME_QUESTION || frame->type == DD_FRAME_ANSWER) {
        return NULL;
    }
    context_key key = {.id = frame->context, .rank = frame->target};
    if (has_closed || find_given_up(peer, &key) != NULL) {
        if (frame->type == DD_FRAME_RTS) {
            peer_post_refusal(peer, frame, DD_REFUSED_CLOSED, NULL);
        }
        return NULL;
    }
    return hold_frame(lane, frame, frame->type == DD_FRAME_ABORT ? &peer->given_up : &peer->early);
}

/* ---- messages */

static dd_context *
find_context(dd_lane *lane, const dd_frame *frame)
{
    dd_context *cached = lane->cached;
    if (cached == NULL || cached->key.id != frame->context || cached->key.rank != frame->target) {
        cached = engine_find_context(lane->peer->engine, frame->context, frame->target);
        lane->cached = cached;
    }
    return cached;
}

static bool
take_credit(dd_lane *lane, const dd_frame *frame)
{
    dd_peer *peer = lane->peer;
    peer->unreturned += eager_cost(frame->payload);
    if (peer->unreturned > CREDIT_NBYTES) {
        peer_protocol_error(peer, "%zu bytes of small messages, where %zu may come", peer->unreturned,
                            CREDIT_NBYTES);
        return false;
    }
    return true;
}

/* EAGER or RTS. */
static void
on_message(dd_lane *lane, const dd_frame *frame)
{
    dd_peer *peer = lane->peer;
    if (frame->type == DD_FRAME_RTS) {
        if (frame->id <= peer->last_rts_id) {
            peer_protocol_error(peer, "RTS for message %llu after %llu", (unsigned long long)frame->id,
                                (unsigned long long)peer->last_rts_id);
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
    dd_message *recv = context != NULL ? context_match(context, frame) : NULL;
    if (recv == NULL) {
        held *entry = context != NULL ? hold_frame(lane, frame, &context->ranks[frame->source].held)
                                      : keep_early(lane, frame);
        if (entry != NULL && frame->type == DD_FRAME_EAGER) {
            collect(lane, entry);
        }
    } else if (context_check_fit(recv, frame, peer) != 0) {
        /* Its payload is thrown away. */
    } else if (frame->type == DD_FRAME_RTS) {
        context_begin_rendezvous(recv, frame, peer);
    } else {
        recv->stage = STAGE_TAKING;
        dd_list_push_back(&peer->receiving, &recv->link);
        lane->recv = recv;
        lane->sink = recv->data;
    }
}

static void
on_data(dd_lane *lane, const dd_frame *frame)
{
    dd_peer *peer = lane->peer;
    if (frame->id == 0 || frame->id > peer->last_rts_id) {
        peer_protocol_error(peer, "data of message %llu of %llu", (unsigned long long)frame->id,
                            (unsigned long long)peer->last_rts_id);
        return;
    }
    for (dd_list *node = peer->receiving.next; node != &peer->receiving; node = node->next) {
        dd_message *recv = DD_CONTAINER_OF(node, dd_message, link);
        if (recv->id != frame->id) {
            continue;
        }
        /* `received` is what was announced; the sum may not pass it, whatever the lanes. */
        if (frame->nbytes != recv->received || frame->payload > recv->received - recv->cut) {
            peer_protocol_error(peer, "%llu bytes of data from %llu for a message of %zu",
                                (unsigned long long)frame->payload, (unsigned long long)frame->offset,
                                recv->received);
            return;
        }
        recv->cut += frame->payload;
        lane->recv = recv;
        lane->sink = recv->data != NULL ? (uint8_t *)recv->data + frame->offset : NULL;
        return;
    }
    /* Not there: the receive was cancelled. */
}

/* The sender has given a message up. */
static void
on_cancel(dd_lane *lane, const dd_frame *frame)
{
    dd_peer *peer = lane->peer;
    for (dd_list *node = peer->receiving.next; node != &peer->receiving; node = node->next) {
        dd_message *recv = DD_CONTAINER_OF(node, dd_message, link);
        if (recv->id == frame->id && frame->id != 0) {
            peer_forget_recv(peer, recv);
            message_fail(recv, DD_ABORTED, "rank %d (%s, pid %lld) gave up sending after %zu of %zu bytes",
                         recv->source, peer->card.host, peer->card.pid, recv->moved, recv->received);
            return;
        }
    }
    engine_drop_rts(peer->engine, peer, frame->id);
}

static void
on_bye(dd_lane *lane)
{
    dd_peer *peer = lane->peer;
    dd_error error;
    (void)dd_error_set(&error, DD_PEER_LOST, "it has closed its groups");
    for (int i = 0; i < peer->nlanes; i++) {
        end_input(peer->lanes[i]);
    }
    peer_break(peer, &error);
}

/* ABORT, QUESTION, ANSWER, GOODBYE; the payload is in the buffer. */
static void
on_control(dd_lane *lane, const dd_frame *frame, dd_bytes payload)
{
    dd_context *context = find_context(lane, frame);
    if (context == NULL) {
        held *entry = keep_early(lane, frame);
        if (entry != NULL && payload.len > 0) {
            memcpy(entry->data, payload.data, payload.len);
        }
        if (entry != NULL && frame->type == DD_FRAME_ABORT) {
            note_given_up(lane->peer, entry);
        }
    } else if (context_check_source(context, frame, lane->peer)) {
        context_on_control(context, frame, payload);
    }
}

static void
on_credit(dd_peer *peer, uint32_t credit)
{
    if (credit > CREDIT_NBYTES - peer->credit) {
        peer_protocol_error(peer, "credit for %lu bytes, where %zu of %zu are in use", (unsigned long)credit,
                            CREDIT_NBYTES - peer->credit, CREDIT_NBYTES);
        return;
    }
    peer->credit += credit;
}

static void
on_first_lane_frame(dd_lane *lane, const dd_frame *frame, dd_bytes payload)
{
    switch (frame->type) {
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

/* All of the payload is there. */
static void
finish_payload(dd_lane *lane)
{
    dd_peer *peer = lane->peer;
    dd_message *recv = lane->recv;
    held *entry = lane->collected;
    const dd_frame *frame = &lane->frame;
    lane->recv = NULL;
    lane->collected = NULL;
    lane->sink = NULL;
    if (frame->type == DD_FRAME_EAGER) {
        if (entry != NULL) {
            entry->collecting = NULL;
            if (entry->taker != NULL) {
                dd_message *taker = entry->taker;
                entry->taker = NULL;
                context_take_held(taker, entry);
            }
            return;
        }
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
    size_t there = lane->end - lane->begin;
    return there > 0 && there >= dd_frame_header_nbytes(lane->buf[lane->begin]);
}

/* ABORT's payload has to be in the buffer with its header. */
static bool
is_whole(const dd_lane *lane)
{
    return lane->frame.type != DD_FRAME_ABORT ||
           lane->end - lane->begin >= DD_FRAME_NBYTES + lane->frame.payload; /* its header is long */
}

/* The header at the beginning of the buffer; false when more has to come first, or it was the last one. */
static bool
parse_frame(dd_lane *lane)
{
    dd_error error;
    dd_frame *frame = &lane->frame;
    if (dd_frame_decode(lane->buf + lane->begin, frame, &error) != DD_OK) {
        peer_protocol_error(lane->peer, "%s", error.message);
        return false;
    }
    if (!is_whole(lane)) {
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
        peer_protocol_error(lane->peer, "%s on lane %d", dd_frame_type_name(frame->type), lane->number);
    }
    if (!lane->is_ended && lane->payload_left == 0) {
        finish_payload(lane);
    }
    return !lane->is_ended;
}

static void
copy_payload(dd_lane *lane)
{
    size_t there = lane->end - lane->begin;
    size_t len = there < lane->payload_left ? there : lane->payload_left;
    if (lane->sink != NULL) {
        memcpy(lane->sink, lane->buf + lane->begin, len);
        lane->sink += len;
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
    dd_error error;
    if (io == DD_IO_FAILED) {
        (void)dd_error_set_errno(&error, DD_PEER_LOST, errno, "cannot receive by %s",
                                 lane->stream->ops->name);
    } else {
        (void)dd_error_set(&error, DD_PEER_LOST, "connection closed");
    }
    end_input(lane);
    lane->is_output_dead = lane->is_output_dead || lane->number != 0;
    lane_break(lane, &error);
}

/* One read. False when there is no more for now. */
static bool
read_once(dd_lane *lane, size_t *moved)
{
    bool is_direct = lane->payload_left >= DIRECT_NBYTES && lane->sink != NULL && lane->begin == lane->end;
    if (!is_direct && lane->begin > 0 && lane->end == sizeof lane->buf) {
        memmove(lane->buf, lane->buf + lane->begin, lane->end - lane->begin);
        lane->end -= lane->begin;
        lane->begin = 0;
    }
    uint8_t *data = is_direct ? lane->sink : lane->buf + lane->end;
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
        lane->sink += step;
        lane->payload_left -= step;
        if (lane->payload_left == 0) {
            finish_payload(lane);
        }
    } else {
        lane->end += step;
        parse(lane);
    }
    return step == wanted || (lane->stream->is_shared_memory && step >= DIRECT_NBYTES);
}

bool
lane_receive(dd_lane *lane)
{
    size_t moved = 0;
    while (!lane->is_ended && moved < ROUND_NBYTES && read_once(lane, &moved)) {
    }
    return moved > 0;
}

void
peer_forget_recv(dd_peer *peer, dd_message *message)
{
    for (int i = 0; i < peer->nlanes; i++) {
        dd_lane *lane = peer->lanes[i];
        if (lane->recv == message) {
            lane->recv = NULL;
            lane->sink = NULL;
        }
        if (lane->collected != NULL && lane->collected->taker == message) {
            held *entry = lane->collected;
            lane->collected = NULL;
            lane->sink = NULL;
            engine_give_held(peer->engine, entry);
        }
    }
}
