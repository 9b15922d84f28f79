/* Attacks of two ranks on the windows of a third. One rank has its memory mapped here and can write
 * to all memory shared with it at any time; the other is on another host. Both send commands and
 * answers, while this side puts, gets, signals, waits with expired deadlines, abandons calls, and
 * closes. The input is a sequence of steps (enum step). Links are memory, and no call waits.
 *
 * Memory outside a window must never be accessed, nor a window's memory after its end. The same
 * holds for sources and targets of calls that have ended. Each of these is a separate block, which
 * is then freed. Counters must match the objects that they count. */
#include "core/mem.h"
#include "fuzz.h"
#include "group/internal.h"
#include "memory_link.h"
#include "window/window_internal.h"

#include <string.h>

#define MAX_INPUT_BYTES 2048u
#define NRANKS 3
#define OWN 0
#define LOCAL 1
#define REMOTE 2
#define NWINDOWS 2
#define NCALLS 6
#define NCHANNELS 2
/* Larger than one piece, so that a get of the second window is answered in pieces. */
static const size_t window_nbytes[NWINDOWS] = {1000, 2 * WINDOW_PIECE_NBYTES + 5};

enum step {
    STEP_COMMAND, /* a rank sends a command with fields from the input, mostly valid */
    STEP_ANSWER,  /* a rank answers a request */
    /* A rank sends the rest of a message, takes one, rejects one, or exits. */
    STEP_FRAME,
    STEP_SHARED, /* the near rank writes to shared memory */
    STEP_RUN,    /* make a call with an expired deadline */
    STEP_POST,   /* start a call without waiting */
    STEP_CLOSE,  /* close a window */
    STEP_LINK,   /* a link is full, empty or broken, or time passes */
    STEP_COUNT,
    WITHOUT_ROUND = 0x80, /* the engine does not poll before the next step */
};

/* A pending put or get. */
typedef struct posted_call {
    dd_work *work; /* NULL if there is none */
    void *memory;
} posted_call;

/* A window and its memory. */
typedef struct fuzzed_window {
    dd_window *window;
    uint8_t *data[NRANKS]; /* of ranks mapped here */
    _Atomic uint32_t *words[NRANKS];
    window_control *controls[NRANKS];
    bool is_closed;
} fuzzed_window;

static struct {
    dd_engine *engine;
    dd_group *group;
    window_hub *hub;
    memory_link links[MEMORY_LINKS_MAX];
    fuzzed_window windows[NWINDOWS];
    posted_call calls[NCALLS];
} world;

static uint8_t pattern[DD_FRAME_FRAGMENT_MAX];

/* ---- choices */

static size_t
take_size(dd_bytes *input)
{
    static const size_t sizes[] = {
        0, 1, 8, 1000, WINDOW_SMALL_NBYTES, WINDOW_SMALL_NBYTES + 1, 70000, 2 * WINDOW_PIECE_NBYTES + 5};
    unsigned choice = take_byte(input);
    return choice < 8 ? sizes[choice] : choice < 0xf0 ? choice * 5 : (size_t)take_number(input, 3);
}

/* Take an offset for nbytes in a window: the start, the last possible one, one byte later, or any
 * number. */
static size_t
take_offset(dd_bytes *input, unsigned window, size_t nbytes)
{
    unsigned choice = take_byte(input);
    size_t room = window_nbytes[window % NWINDOWS];
    switch (choice % 4) {
    case 0:
        return 0;
    case 1:
        return room - nbytes;
    case 2:
        return room - nbytes + 1;
    default:
        return take_size(input);
    }
}

static uint64_t
take_window_id(unsigned choice)
{
    return choice % 8 < 7 ? 1 + choice % NWINDOWS : choice >> 3 & 3;
}

static dd_wait
at_once(void)
{
    /* there is no reader */
    world.engine->notices_until_ns = world.engine->notices_until_ns != 0 ? 1 : 0;
    return dd_wait_after(0);
}

/* ---- messages of the other ranks */

static memory_link *
link_of(unsigned choice)
{
    return &world.links[choice % 2];
}

static void
put_frame(memory_link *link, const dd_frame *frame)
{
    uint8_t header[DD_FRAME_NBYTES];
    memory_link_put(link, header, dd_frame_encode(frame, header));
    memory_link_put(link, pattern, frame->payload <= sizeof pattern ? frame->payload : 0);
}

/* Send a message, eagerly or after a request. */
static void
put_message(unsigned who, unsigned how, const dd_request *head)
{
    dd_frame frame = {
        .type = (how & 1) == 0 && head->nbytes <= SHM_EAGER_MAX ? DD_FRAME_EAGER : DD_FRAME_RTS,
        .kind = DD_MESSAGE_WINDOW,
        .channel = head->channel,
        .context = world.group->id,
        .source = (uint16_t)(1 + who % 2),
        .target = OWN,
        .tag = head->tag,
        .nbytes = head->nbytes,
        .signature = head->signature,
    };
    if (frame.type == DD_FRAME_EAGER) {
        frame.payload = (uint32_t)head->nbytes;
    } else {
        frame.id = 1 + (how >> 1 & 7);
    }
    put_frame(link_of(who), &frame);
}

static void
put_note(dd_bytes *input)
{
    static const uint32_t channels[] = {
        0, 1, 0, 1, NCHANNELS, DD_WINDOW_NO_CHANNEL, DD_WINDOW_NO_CHANNEL, DD_WINDOW_ANSWERS};
    unsigned who = take_byte(input);
    unsigned kind = take_byte(input);
    unsigned where = take_byte(input);
    dd_window_command command = {.type = (dd_window_command_type)(1 + kind % 5),
                                 .window = take_window_id(where)};
    if (command.type == DD_WINDOW_PUT || command.type == DD_WINDOW_GET) {
        command.nbytes = take_size(input);
        command.offset = take_offset(input, (unsigned)command.window - 1, command.nbytes);
    }
    if (command.type == DD_WINDOW_PUT || command.type == DD_WINDOW_SIGNAL_ALONE) {
        command.channel = channels[where >> 5];
    }
    if (command.type == DD_WINDOW_GET || command.type == DD_WINDOW_SIGNAL_ALONE ||
        command.type == DD_WINDOW_WITHDRAW) {
        command.id = 1 + (kind >> 5);
    }
    dd_request head = dd_window_command_encode(&command);
    if (kind == 0xff) { /* an invalid kind */
        head.signature.coll = (uint8_t)where;
    }
    put_message(who, who >> 1, &head);
}

static void
put_answer(dd_bytes *input)
{
    unsigned who = take_byte(input);
    unsigned id = take_byte(input);
    bool is_last = id % 2 == 0;
    dd_request head = {.tag = is_last ? world.hub->last_id : id / 2,
                       .channel = DD_WINDOW_ANSWERS,
                       .nbytes = take_size(input)};
    put_message(who, who >> 1, &head);
}

static void
put_other_frame(dd_bytes *input)
{
    static const uint8_t types[] = {DD_FRAME_DATA,   DD_FRAME_CTS,     DD_FRAME_REFUSE, DD_FRAME_CANCEL,
                                    DD_FRAME_CREDIT, DD_FRAME_GOODBYE, DD_FRAME_BYE};
    unsigned who = take_byte(input);
    unsigned kind = take_byte(input);
    unsigned id = take_byte(input);
    dd_frame frame = {
        .type = types[kind % sizeof types],
        .kind = DD_MESSAGE_WINDOW,
        .context = world.group->id,
        .source = (uint16_t)(1 + who % 2),
        .target = OWN,
        .id = id < 0x80 ? 1 + id % 8 : id, /* as in requests, from both sides */
    };
    if (frame.type == DD_FRAME_DATA) {
        frame.nbytes = take_size(input);
        frame.offset = (kind & 0x80) != 0 ? take_size(input) : 0;
        size_t left = frame.offset < frame.nbytes ? frame.nbytes - frame.offset : 0;
        left = (kind & 0x40) != 0 ? left / 2 : left;
        frame.payload = (uint32_t)(left < sizeof pattern ? left : sizeof pattern);
    } else if (frame.type == DD_FRAME_REFUSE) {
        frame.reason = (uint8_t)(1 + (kind >> 6));
    } else if (frame.type == DD_FRAME_CREDIT) {
        frame.credit = id * 400;
    }
    put_frame(link_of(who), &frame);
}

/* ---- writes of the near rank: words of its pad, of this rank's pad, and beyond them */

static void
write_shared(dd_bytes *input)
{
    unsigned where = take_byte(input);
    uint32_t value = take_byte(input);
    const fuzzed_window *self = &world.windows[where % NWINDOWS];
    int rank = where >> 1 & 1;
    if (self->window == NULL) {
        return;
    }
    value = value < 0xf0 ? value % 3 : UINT32_MAX - (value & 15);
    switch (where >> 2 & 3) {
    case 0:
        atomic_store(&self->controls[rank]->sleeper, value);
        break;
    case 1:
        atomic_store(&self->controls[rank]->is_closed, value);
        break;
    default:
        atomic_store(&self->words[rank][(where >> 3) % (NCHANNELS * NRANKS)], value);
    }
}

/* ---- steps of this side */

static dd_window_target
take_place(dd_bytes *input, unsigned window, unsigned choice, size_t nbytes)
{
    return (dd_window_target){.rank = (int)(choice % NRANKS), .offset = take_offset(input, window, nbytes)};
}

static void
check_result(dd_status status, const dd_error *error)
{
    require(status == DD_OK || (error->code == status && error->message[0] != '\0'));
}

/* The choices for both kinds of calls. */
typedef struct call_choice {
    unsigned label; /* the lower bits select the call */
    dd_window *window;
    size_t nbytes;
    dd_window_target target;
    int channel; /* -1 for none */
} call_choice;

static call_choice
take_call(dd_bytes *input)
{
    unsigned kind = take_byte(input);
    unsigned where = take_byte(input);
    size_t nbytes = take_size(input);
    return (call_choice){
        .label = kind,
        .window = world.windows[kind >> 7].window,
        .nbytes = nbytes,
        .target = take_place(input, kind >> 7, where, nbytes),
        .channel = (int)(where >> 2 & 3) - 1,
    };
}

static void
run_call(dd_bytes *input)
{
    const call_choice chosen = take_call(input);
    dd_block block = {.nbytes = chosen.nbytes};
    dd_wait wait = at_once();
    dd_error error = {.code = DD_OK};
    dd_status status;
    block.data = malloc(block.nbytes);
    require(block.data != NULL);
    memset(block.data, 1, block.nbytes);
    switch (chosen.label % 8) {
    case 0:
        status = dd_window_put(chosen.window, block, chosen.target, chosen.channel, &wait, &error);
        break;
    case 1:
        status = dd_window_get(chosen.window, block, chosen.target, &wait, &error);
        break;
    case 2:
        status = dd_window_flush(chosen.window, &wait, &error);
        break;
    case 3:
        status = dd_window_signal(chosen.window, chosen.target.rank, chosen.channel, &wait, &error);
        break;
    case 4:
        status = dd_window_signal_alone(chosen.window, chosen.target.rank, chosen.channel, &wait, &error);
        break;
    case 5:
        status = dd_window_barrier(chosen.window, chosen.channel, &wait, &error);
        break;
    default:
        status = dd_window_wait_signal(chosen.window, chosen.target.rank, chosen.channel, &wait, &error);
    }
    check_result(status, &error);
    free(block.data);
}

static void
post_call(dd_bytes *input)
{
    const call_choice chosen = take_call(input);
    dd_block block = {.nbytes = chosen.nbytes};
    posted_call *call = &world.calls[(chosen.label >> 2) % NCALLS];
    /* Some calls time out when time passes next. */
    dd_call_options options = {.timeout_ns = (chosen.label & 2) != 0 ? 0 : -1};
    dd_error error = {.code = DD_OK};
    if (call->work != NULL) {
        return;
    }
    block.data = call->memory = malloc(block.nbytes);
    require(call->memory != NULL);
    memset(call->memory, 2, block.nbytes);
    dd_status status =
        (chosen.label & 1) != 0
            ? dd_window_post_put(chosen.window, block, chosen.target, chosen.channel, &options, &call->work,
                                 &error)
            : dd_window_post_get(chosen.window, block, chosen.target, &options, &call->work, &error);
    check_result(status, &error);
    if (status != DD_OK) {
        free(call->memory);
        call->work = NULL;
    }
}

/* Free the memory of ended calls. */
static void
end_calls(void)
{
    for (size_t i = 0; i < NCALLS; i++) {
        posted_call *call = &world.calls[i];
        if (call->work != NULL && dd_work_is_done(call->work)) {
            dd_error error = {.code = DD_OK};
            check_result(dd_work_result(call->work, &error), &error);
            dd_work_release(call->work);
            free(call->memory);
            call->work = NULL;
        }
    }
}

static void
close_one(fuzzed_window *self)
{
    dd_window_close(self->window);
    self->is_closed = true;
    free(self->data[OWN]);
    self->data[OWN] = NULL;
}

static void
change_link(dd_bytes *input)
{
    static const size_t rooms[] = {0, 1, 100, MEMORY_LINK_ROOM_MAX, MEMORY_LINK_ROOM_MAX};
    unsigned how = take_byte(input);
    memory_link *link = link_of(how >> 3);
    if (how % 8 < 5) {
        link->room = rooms[how % 8];
        link->nrefusable = 8; /* a call that ends a group waits until its messages are sent */
    } else if (how == 5) {
        link->is_ended = true;
    } else if (how == 6) {
        link->is_failed = true;
    } else {
        dd_engine_lock(world.engine);
        (void)engine_run_timers(world.engine, DD_NEVER_NS - 1);
        dd_engine_unlock(world.engine);
    }
}

static void
take_step(unsigned step, dd_bytes *input)
{
    unsigned which;
    switch ((enum step)step) {
    case STEP_COMMAND:
        put_note(input);
        break;
    case STEP_ANSWER:
        put_answer(input);
        break;
    case STEP_FRAME:
        put_other_frame(input);
        break;
    case STEP_SHARED:
        write_shared(input);
        break;
    case STEP_RUN:
        run_call(input);
        break;
    case STEP_POST:
        post_call(input);
        break;
    case STEP_CLOSE:
        which = take_byte(input);
        if (which % 16 < NWINDOWS && !world.windows[which % 16].is_closed) {
            close_one(&world.windows[which % 16]);
        }
        break;
    case STEP_LINK:
    case STEP_COUNT:
    case WITHOUT_ROUND:
        change_link(input);
    }
}

/* ---- invariants between steps */

typedef struct sums {
    size_t ncalls;
    size_t nunawaited;
    size_t moving_nbytes;
    unsigned nwanted;
    int ngrants;
    unsigned nanswers[NRANKS];
} sums;

static void
add_call(sums *all, const window_call *call)
{
    int rank = call->args.target.rank;
    bool is_abandoned = dd_work_is_done(&call->work);
    require(rank >= 0 && rank < NRANKS);
    if (call->is_moving) {
        all->ncalls += !is_abandoned;
        all->nunawaited += is_abandoned;
        all->moving_nbytes += sizeof *call + call->data_nbytes;
        all->nwanted += call->is_wanted;
        all->nanswers[rank] += call->args.op == NULL && call->message.channel == DD_WINDOW_ANSWERS;
        require(call->message.is_posted && call->ncopied <= call->message.nbytes);
    } else {
        bool is_grant = call->args.op->word == WINDOW_WORD_OWN_ROOM;
        require(!is_abandoned && call->window != NULL);
        all->ngrants += is_grant;
        all->nanswers[rank] += is_grant;
    }
}

static void
check_counters(void)
{
    const window_hub *hub = world.hub;
    sums all = {.ncalls = 0};
    for (const dd_list *node = hub->moving.next; node != &hub->moving; node = node->next) {
        add_call(&all, DD_CONTAINER_OF(node, window_call, link));
    }
    for (const dd_list *node = hub->waiting.next; node != &hub->waiting; node = node->next) {
        add_call(&all, DD_CONTAINER_OF(node, window_call, link));
    }
    require(hub->extension.ncalls == all.ncalls && hub->extension.nunawaited == all.nunawaited);
    require(hub->moving_nbytes == all.moving_nbytes && hub->nwanted == all.nwanted);
    require(atomic_load(&hub->ngrants) == all.ngrants);
    for (int rank = 0; rank < NRANKS; rank++) {
        const window_source *source = &hub->sources[rank];
        require(source->nanswers == all.nanswers[rank] && source->nanswers <= WINDOW_ANSWERS_MAX);
        require(!source->is_full || source->is_busy);
        require(!source->message.is_posted || source->is_busy || hub->is_ended);
    }
}

static void
check_windows(void)
{
    bool has_failed = world.group->cause.code != DD_OK;
    require(world.hub->is_ended == has_failed);
    for (size_t i = 0; i < NWINDOWS; i++) {
        const dd_window *window = world.windows[i].window;
        int expected = world.windows[i].is_closed ? WINDOW_CLOSED : has_failed ? WINDOW_ENDED : WINDOW_OPEN;
        require(atomic_load(&window->state) == expected || atomic_load(&window->state) == WINDOW_ENDED);
        for (int rank = 0; rank < NRANKS; rank++) {
            require((int32_t)(window->members[rank].nputs - window->members[rank].ninplace) >= 0);
        }
    }
}

/* ---- one run */

static void
open_group(void)
{
    const dd_group_options options = {.name = dd_bytes_of("fuzz", 4), .timeout_ns = 3600 * DD_NS_PER_S};
    const group_params place = {.rank = OWN, .size = NRANKS, .options = &options};
    static const int hosts[NRANKS] = {0, 0, 1};
    dd_context_handler handler = group_context_handler;
    dd_group *group = NULL;
    require(group_create(world.engine, 1, &place, &group, NULL) == DD_OK);
    require(dd_engine_self(world.engine, &group->peers[OWN], NULL) == DD_OK);
    for (int rank = 1; rank < NRANKS; rank++) {
        group->peers[rank] = memory_peer_make(world.engine, (uint8_t)rank);
        memory_link_attach(world.links, group->peers[rank], 0, rank == LOCAL);
    }
    handler.ctx = group;
    require(dd_topology_init(&group->topology, OWN, NRANKS, hosts, NULL) == DD_OK);
    require(dd_context_open(world.engine, group->id, OWN, NRANKS, group->peers, &handler, &group->context,
                            NULL) == DD_OK);
    group->is_set_up = true;
    world.group = group;
}

/* Open a window as if all ranks had taken part. */
static void
open_one(size_t index)
{
    fuzzed_window *self = &world.windows[index];
    dd_window *window = dd_mem_zalloc(sizeof *window + NRANKS * sizeof window->members[0]);
    uint64_t id = 0;
    require(window != NULL && window_find_hub(world.group, &world.hub, &id, NULL) == DD_OK);
    atomic_init(&window->refs, 1);
    atomic_init(&window->state, WINDOW_OPEN);
    window->group = dd_group_acquire(world.group);
    window->hub = world.hub;
    window->id = id;
    window->nchannels = NCHANNELS;
    window->needs_messages = true;
    for (int rank = 0; rank < NRANKS; rank++) {
        window_member *member = &window->members[rank];
        member->nbytes = window_nbytes[index];
        member->is_direct = rank != REMOTE;
        if (member->is_direct) {
            self->data[rank] = member->data = malloc(member->nbytes);
            self->words[rank] = member->words = calloc(NCHANNELS * NRANKS, sizeof *member->words);
            self->controls[rank] = member->control =
                aligned_alloc(_Alignof(window_control), sizeof *member->control);
            require(member->data != NULL && member->words != NULL && member->control != NULL);
            memset(member->data, 3, member->nbytes);
            memset(member->control, 0, sizeof *member->control);
        }
    }
    dd_engine_lock(world.engine);
    dd_list_init(&window->link);
    dd_list_push_back(&world.hub->windows, &window->link);
    dd_engine_set_prompt_locked(world.engine, true);
    dd_engine_unlock(world.engine);
    self->window = window;
}

static void
open_world(void)
{
    static const dd_connect_options options = {.nlanes = 1, .is_shm_disabled = true, .ring_nbytes = 4096};
    memset(&world, 0, sizeof world);
    require(dd_engine_open(&options, &world.engine, NULL) == DD_OK);
    open_group();
    for (size_t i = 0; i < NWINDOWS; i++) {
        open_one(i);
    }
}

static void
close_world(void)
{
    memory_links_drain(world.links);
    for (size_t i = 0; i < NWINDOWS; i++) {
        fuzzed_window *self = &world.windows[i];
        dd_window_release(self->window);
        for (int rank = 0; rank < NRANKS; rank++) {
            free(self->data[rank]);
            free(self->words[rank]);
            free(self->controls[rank]);
        }
    }
    const dd_wait wait = at_once();
    (void)!dd_group_close(world.group, &wait, NULL);
    end_calls();
    for (size_t i = 0; i < NCALLS; i++) {
        require(world.calls[i].work == NULL);
    }
    dd_group_release(world.group);
    dd_engine_release(world.engine);
    memory_links_check_closed(world.links);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size > MAX_INPUT_BYTES) {
        return -1;
    }
    static bool is_warm;
    dd_bytes input = dd_bytes_of(data, size);
    int fd = next_descriptor();
    open_world();
    while (input.len > 0) {
        unsigned step = take_byte(&input);
        take_step(step % STEP_COUNT, &input);
        dd_engine_lock(world.engine);
        if ((step & WITHOUT_ROUND) == 0) {
            (void)engine_run_round(world.engine);
        }
        check_counters();
        check_windows();
        dd_engine_unlock(world.engine);
        end_calls();
    }
    close_world();
    require(next_descriptor() == fd || !is_warm); /* descriptors of links stay open */
    is_warm = true;
    return 0;
}
