/* Two malicious peers that send anything at any time, and an engine with two groups that sends,
 * receives, cancels and closes. The input is a sequence of steps (enum step). Links are memory: no
 * call waits, and runs are reproducible.
 *
 * In every run, counters must match the contents and credit must stay within its limits. Every
 * message must end exactly once, and its memory must not be accessed afterwards. The handler must
 * only receive possible events, and the engine's output must be valid. */
#include "core/mem.h"
#include "fuzz.h"
#include "memory_link.h"
#include "transport/engine_internal.h"

#include <string.h>

#define MAX_INPUT_BYTES 2048u
#define NPEERS 2
#define NSLOTS 6
#define NCONTEXTS 2
#define NRANKS 3

/* The low bits of a step's first byte; the functions read the rest. */
enum step {
    STEP_FRAME,   /* a frame with fields from the input, mostly valid */
    STEP_BYTES,   /* raw bytes */
    STEP_SEND,    /* post a message */
    STEP_RECV,    /* post a receive */
    STEP_CANCEL,  /* cancel one of them */
    STEP_CONTEXT, /* open or close a group */
    STEP_LINK,    /* a link ends, fails, is full, or connects */
    STEP_CONTROL, /* send another frame, or let time pass */
    STEP_COUNT,
    WITHOUT_ROUND = 0x80, /* the engine does not poll before the next step */
};

typedef struct slot {
    dd_message message;
    dd_signature signature;
    dd_context *context;
    bool is_posted;
} slot;

typedef struct group {
    dd_context *context; /* NULL if not open */
    int rank;
    bool has_left[NRANKS];
    bool is_lost[NRANKS];
} group;

static struct {
    dd_engine *engine;
    dd_peer *own;
    dd_peer *peers[NPEERS];
    memory_link links[MEMORY_LINKS_MAX];
    group groups[NCONTEXTS];
    slot slots[NSLOTS];
    bool has_requests; /* a receive is posted for every window note */
    bool is_shm;
} world;

static uint8_t trash[DD_FRAME_FRAGMENT_MAX];

/* ---- events of the groups */

static void
on_coll(void *ctx, int rank, uint64_t sequence, const dd_signature *signature)
{
    const group *self = ctx;
    (void)sequence;
    (void)signature;
    require(rank >= 0 && rank < NRANKS && !self->is_lost[rank]);
}

static void
on_abort(void *ctx, int rank, const dd_cause *cause)
{
    (void)ctx;
    require(rank >= 0 && rank < NRANKS);
    require(cause->blamed.rank < NRANKS && memchr(cause->text, '\0', sizeof cause->text) != NULL);
}

static void
on_lost(void *ctx, int rank, const dd_error *error)
{
    group *self = ctx;
    require(rank >= 0 && rank < NRANKS && !self->is_lost[rank] && !self->has_left[rank]);
    require(error->code != DD_OK && error->message[0] != '\0');
    self->is_lost[rank] = true;
}

static void
on_goodbye(void *ctx, int rank)
{
    group *self = ctx;
    require(rank >= 0 && rank < NRANKS && !self->is_lost[rank] && !self->has_left[rank]);
    self->has_left[rank] = true;
}

static void
on_query(void *ctx, uint64_t *sequence, dd_signature *signature, bool *is_inside)
{
    (void)ctx;
    *sequence = 5;
    *signature = (dd_signature){.coll = 1};
    *is_inside = true;
}

static void
on_answer(void *ctx, int rank, uint64_t sequence, const dd_signature *signature, bool is_inside)
{
    (void)ctx;
    (void)sequence;
    (void)signature;
    (void)is_inside;
    require(rank >= 0 && rank < NRANKS);
}

static void
on_loss(void *ctx, int rank, int to, uint64_t nbytes)
{
    (void)ctx;
    (void)nbytes;
    require(rank >= 0 && rank < NRANKS && to >= -1 && to < NRANKS);
}

static dd_message *on_request(void *ctx, int rank, const dd_request *request);

/* ---- messages: their slots are reused, and their memory is freed when they have ended */

static void
on_done(dd_message *message, const dd_error *error)
{
    slot *self = message->owner;
    require(self->is_posted && (error == NULL || (error->code != DD_OK && error->message[0] != '\0')));
    require(message->is_send || error != NULL || message->received <= message->nbytes);
    self->is_posted = false;
    free(message->data);
    message->data = NULL;
}

static slot *
prepare_slot(size_t index, dd_context *context, size_t nbytes)
{
    slot *self = &world.slots[index];
    self->is_posted = true;
    self->context = context;
    self->message = (dd_message){.data = malloc(nbytes),
                                 .nbytes = nbytes,
                                 .on_done = on_done,
                                 .owner = self,
                                 .signature = &self->signature};
    if (nbytes > 0) {
        memset(self->message.data, (int)index, nbytes);
    }
    return self;
}

static dd_message *
on_request(void *ctx, int rank, const dd_request *request)
{
    const group *self = ctx;
    for (size_t i = 0; world.has_requests && i < NSLOTS; i++) {
        if (!world.slots[i].is_posted) {
            slot *found =
                prepare_slot(i, self->context, request->nbytes < 4096 ? (size_t)request->nbytes : 4096);
            found->message.kind = DD_MESSAGE_WINDOW;
            found->message.rank = rank;
            found->message.tag = request->tag;
            found->message.channel = request->channel;
            return &found->message;
        }
    }
    return NULL;
}

static size_t
take_size(dd_bytes *input)
{
    size_t number = (size_t)take_number(input, 2);
    return number < 0xf000 ? number % 0x1000 : (number & 0xfff) << 8;
}

static dd_signature
signature_of(unsigned choice)
{
    if (choice % 4 == 0) {
        return (dd_signature){.coll = 0};
    }
    if (choice % 4 == 1) {
        return (dd_signature){
            .dtype = (uint8_t)(choice >> 4), .flags = DD_SIGNATURE_TYPED, .count = choice >> 3};
    }
    return (dd_signature){.coll = (uint8_t)(choice >> 2 & 7), .count = choice >> 5};
}

static void
post(dd_bytes *input, bool is_send)
{
    unsigned where = take_byte(input);
    unsigned kind = take_byte(input);
    size_t nbytes = take_size(input);
    dd_signature signature = signature_of(take_byte(input));
    dd_context *context = world.groups[where % NCONTEXTS].context;
    size_t index = where / 4 % NSLOTS;
    if (context == NULL || world.slots[index].is_posted) {
        return;
    }
    slot *self = prepare_slot(index, context, nbytes);
    self->signature = signature;
    self->message.kind = (dd_message_kind)(kind % 3);
    self->message.rank = (int)(kind / 4 % NRANKS);
    self->message.tag = kind >> 6;
    if (is_send) {
        dd_context_post_send_locked(context, &self->message);
        return;
    }
    if (self->message.kind == DD_MESSAGE_WINDOW) { /* only on_request receives it */
        self->message.kind = DD_MESSAGE_P2P;
    }
    if (self->message.kind == DD_MESSAGE_P2P && kind / 16 % 4 == 3) {
        self->message.rank = DD_ANY_RANK;
    }
    dd_context_post_recv_locked(context, &self->message);
}

static void
cancel(slot *self)
{
    dd_error error;
    if (self->is_posted) {
        (void)dd_error_set(&error, DD_OP_TIMED_OUT, "it took too long");
        dd_context_cancel_locked(self->context, &self->message, &error);
        require(!self->is_posted);
    }
}

/* ---- groups: in the first, this process is one rank; in the second, a peer is two ranks */

static void
open_group(size_t index)
{
    group *self = &world.groups[index];
    dd_peer *own = world.own;
    dd_peer *const members[NCONTEXTS][NRANKS] = {{own, world.peers[0], world.peers[1]},
                                                 {world.peers[0], own, world.peers[0]}};
    const dd_context_handler handler = {
        .ctx = self,
        .on_coll = on_coll,
        .on_abort = on_abort,
        .on_lost = on_lost,
        .on_goodbye = on_goodbye,
        .on_query = on_query,
        .on_answer = on_answer,
        .on_loss = on_loss,
        .on_request = on_request,
    };
    *self = (group){.rank = (int)index};
    require(dd_context_open(world.engine, index + 1, self->rank, NRANKS, members[index], &handler,
                            &self->context, NULL) == DD_OK);
}

static void
close_group(size_t index)
{
    group *self = &world.groups[index];
    const dd_wait at_once = dd_wait_after(0);
    dd_engine_lock(world.engine);
    for (size_t i = 0; i < NSLOTS; i++) {
        if (world.slots[i].context == self->context) {
            cancel(&world.slots[i]);
        }
    }
    dd_engine_unlock(world.engine);
    dd_context_close(self->context, &at_once);
    self->context = NULL;
}

/* ---- steps of the peers */

static memory_link *
take_link(dd_bytes *input)
{
    return &world.links[take_byte(input) % MEMORY_LINKS_MAX];
}

static size_t
put_cause(dd_bytes *input, uint8_t out[DD_CAUSE_MAX_NBYTES])
{
    unsigned ranks = take_byte(input);
    dd_cause cause = {
        .kind = (dd_cause_kind)take_byte(input),
        .code = (dd_status)take_byte(input),
        .origin = (int)(ranks & 3),
        .blamed = {.rank = (int)(ranks >> 2 & 7) - 1},
        .other = (int)(ranks >> 5) - 1,
        .sequence = ranks,
    };
    dd_bytes text = take_bytes(input, ranks);
    if (text.len > 0) {
        memcpy(cause.text, text.data, text.len);
    }
    return dd_cause_encode(&cause, out);
}

static void
put_frame(dd_bytes *input)
{
    memory_link *link = take_link(input);
    unsigned kind = take_byte(input);
    unsigned ranks = take_byte(input);
    unsigned credit = take_byte(input);
    dd_frame frame = {
        .type = (uint8_t)(kind % 13),
        .kind = (uint8_t)(ranks >> 6),
        .reason = (uint8_t)(ranks >> 4 & 3),
        .context = 1 + (kind >> 7),
        .source = ranks & 3,
        .target = ranks >> 2 & 3,
        .credit = credit < 0xf0 ? credit * DD_FRAME_NBYTES % 400 : (credit & 15) << 16,
        .tag = take_byte(input) % 8,
        .id = take_byte(input),
        .signature = signature_of(take_byte(input)),
    };
    uint8_t cause[DD_CAUSE_MAX_NBYTES];
    if (frame.type == DD_FRAME_ABORT) {
        frame.payload = (uint32_t)put_cause(input, cause);
    } else if (frame.type == DD_FRAME_EAGER || frame.type == DD_FRAME_DATA) {
        frame.payload = (uint32_t)take_size(input);
        frame.nbytes = frame.payload;
    }
    if (frame.type == DD_FRAME_DATA || frame.type == DD_FRAME_RTS || frame.type == DD_FRAME_REFUSE) {
        frame.offset = frame.type == DD_FRAME_DATA ? take_size(input) : 0;
        frame.nbytes = take_size(input);
    }
    uint8_t header[DD_FRAME_NBYTES];
    memory_link_put(link, header, dd_frame_encode(&frame, header));
    if (frame.type == DD_FRAME_ABORT) {
        memory_link_put(link, cause, frame.payload);
    } else if (frame.payload <= sizeof trash) {
        memory_link_put(link, trash, frame.payload);
    }
}

static void
change_link(dd_bytes *input)
{
    static const size_t rooms[] = {0, 1, DD_FRAME_SHORT_NBYTES, 1000, MEMORY_LINK_ROOM_MAX};
    memory_link *link = take_link(input);
    unsigned how = take_byte(input);
    if (how % 8 < 5) {
        link->room = rooms[how % 8];
    } else if (how % 8 == 5) {
        link->is_ended = true;
    } else if (how % 8 == 6) {
        link->is_failed = true;
    } else {
        dd_engine_unlock(world.engine);
        memory_link_attach(world.links, world.peers[how / 8 % NPEERS], (int)(how / 16 % 4), world.is_shm);
        dd_engine_lock(world.engine);
    }
}

/* ---- steps of this side */

static void
send_control(dd_bytes *input)
{
    unsigned kind = take_byte(input);
    int rank = (int)(kind / 8 % NRANKS);
    dd_context *context = world.groups[kind >> 7].context;
    dd_error error;
    dd_cause cause;
    switch (context != NULL ? kind % 8 : 7) {
    case 0:
        (void)dd_error_set(&error, DD_ABORTED, "by request");
        cause = dd_cause_of_error(&error, rank);
        dd_context_post_abort_locked(context, rank, false, &cause);
        break;
    case 1:
        dd_context_post_question_locked(context, rank);
        break;
    case 2:
        dd_context_take_request_locked(context, rank);
        break;
    case 3:
        dd_engine_receive_locked(world.engine);
        break;
    default:
        (void)engine_run_timers(world.engine, DD_NEVER_NS - 1);
    }
}

static void
take_step(unsigned step, dd_bytes *input)
{
    dd_bytes bytes;
    unsigned index;
    memory_link *link;
    switch ((enum step)step) {
    case STEP_FRAME:
        put_frame(input);
        break;
    case STEP_BYTES:
        link = take_link(input);
        bytes = take_bytes(input, take_byte(input));
        memory_link_put(link, bytes.data, bytes.len);
        break;
    case STEP_SEND:
    case STEP_RECV:
        post(input, step == STEP_SEND);
        break;
    case STEP_CANCEL:
        cancel(&world.slots[take_byte(input) % NSLOTS]);
        break;
    case STEP_CONTEXT:
        index = take_byte(input) % NCONTEXTS;
        dd_engine_unlock(world.engine);
        if (world.groups[index].context != NULL) {
            close_group(index);
        } else {
            open_group(index);
        }
        dd_engine_lock(world.engine);
        break;
    case STEP_LINK:
        change_link(input);
        break;
    case STEP_CONTROL:
    case STEP_COUNT:
    case WITHOUT_ROUND:
        send_control(input);
    }
}

/* ---- invariants between steps */

static size_t
count(const dd_list *list)
{
    size_t n = 0;
    for (const dd_list *node = list->next; node != list; node = node->next) {
        n++;
    }
    return n;
}

static size_t
count_held(const dd_peer *peer)
{
    size_t n = count(&peer->early) + count(&peer->held_aborts);
    for (int i = 0; i < peer->nlanes; i++) {
        n += peer->lanes[i]->collected != NULL;
    }
    for (size_t i = 0; i < NCONTEXTS; i++) {
        const dd_context *context = world.groups[i].context;
        for (int rank = 0; context != NULL && rank < NRANKS; rank++) {
            n += context->ranks[rank].peer == peer ? count(&context->ranks[rank].held) : 0;
        }
    }
    return n;
}

static void
check_peer(const dd_peer *peer)
{
    size_t nreplies[REPLY_KINDS] = {0};
    size_t nposted = 0;
    for (const dd_list *node = peer->out.next; node != &peer->out; node = node->next) {
        nreplies[DD_CONTAINER_OF(node, out_frame, link)->reply]++;
    }
    for (size_t i = 0; i < NSLOTS; i++) {
        const dd_message *message = &world.slots[i].message;
        nposted += message->stage == STAGE_POSTED && message->peer == peer;
    }
    require(peer->nexpected == nposted && memcmp(nreplies, peer->nreplies, sizeof nreplies) == 0 &&
            peer->nheld == count_held(peer));
    require(peer->nheld_aborts == count(&peer->held_aborts) && peer->nlanes <= DD_LANES_MAX);
    require(peer->credit <= CREDIT_NBYTES && peer->lent <= CREDIT_NBYTES - peer->credit &&
            peer->owed <= peer->unreturned);
    require(peer->unreturned <= CREDIT_NBYTES || peer->is_breaking || peer->state == PEER_LOST);
    require(peer->state != PEER_LOST || (peer->nlanes == 0 && peer->error != NULL));
}

static void
check_world(void)
{
    size_t nposted = 0;
    for (size_t i = 0; i < NSLOTS; i++) {
        nposted += world.slots[i].is_posted;
        require(world.slots[i].is_posted == world.slots[i].message.is_posted);
    }
    require(world.engine->nposted == nposted);
    for (int i = 0; i < NPEERS; i++) {
        check_peer(world.peers[i]);
    }
}

/* ---- one run */

static void
open_world(unsigned first)
{
    static const dd_connect_options options = {.nlanes = 1, .is_shm_disabled = true, .ring_nbytes = 4096};
    memset(&world, 0, sizeof world);
    world.is_shm = first & 1;
    world.has_requests = first & 2;
    require(dd_engine_open(&options, &world.engine, NULL) == DD_OK);
    require(dd_engine_self(world.engine, &world.own, NULL) == DD_OK);
    for (int i = 0; i < NPEERS; i++) {
        world.peers[i] = memory_peer_make(world.engine, (uint8_t)(i + 1));
        memory_link_attach(world.links, world.peers[i], 0, world.is_shm);
    }
    for (size_t i = 0; i < NCONTEXTS; i++) {
        if (first & 4u << i) {
            open_group(i);
        }
    }
}

static void
close_world(void)
{
    memory_links_drain(world.links);
    for (size_t i = 0; i < NCONTEXTS; i++) {
        if (world.groups[i].context != NULL) {
            close_group(i);
        }
    }
    for (int i = 0; i < NPEERS; i++) {
        dd_peer_release(world.peers[i]);
    }
    dd_peer_release(world.own);
    dd_engine_release(world.engine);
    memory_links_check_closed(world.links);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size > MAX_INPUT_BYTES) {
        return -1;
    }
    dd_bytes input = dd_bytes_of(data, size);
    open_world(take_byte(&input));
    while (input.len > 0) {
        unsigned step = take_byte(&input);
        dd_engine_lock(world.engine);
        take_step(step % STEP_COUNT, &input);
        if ((step & WITHOUT_ROUND) == 0) {
            (void)engine_run_round(world.engine);
        }
        check_world();
        dd_engine_unlock(world.engine);
    }
    close_world();
    return 0;
}
