/* Windows over messages: malformed commands, late data, more gets than can be answered, and memory
 * that must be returned. */
#include "check.h"
#include "group/internal.h"
#include "window/window_internal.h"
#include "window_team.h"

#include <stdlib.h>
#include <string.h>

static window_hub *
hub_of(const dd_group *group)
{
    return (window_hub *)group->extension;
}

/* Receive no more commands from this rank: its answers stay on the other side. */
static void
stop_taking(team_rank *self, int rank)
{
    dd_engine_lock(self->engine);
    hub_of(self->group)->sources[rank].is_busy = true;
    dd_engine_unlock(self->engine);
}

/* ---- malformed commands */

typedef struct malformed_command {
    const char *label; /* part of the message with which the receiver's group fails */
    dd_window_command command;
    dd_signature numbers; /* sent instead of the command's numbers, unless coll is 0 */
    size_t nextra;        /* extra bytes, with a command that should have none */
} malformed_command;

#define BAD_NOTE_NBYTES ((size_t)100)

static const malformed_command malformed_commands[] = {
    {.label = "a window that was never opened", .command = {.type = DD_WINDOW_PUT, .window = 77}},
    {.label = "a put out of range",
     .command = {.type = DD_WINDOW_PUT, .window = 1, .offset = 99, .nbytes = 2}},
    {.label = "a put out of range",
     .command = {.type = DD_WINDOW_PUT, .window = 1, .nbytes = (uint64_t)1 << 62}},
    {.label = "a put out of range",
     .command = {.type = DD_WINDOW_PUT, .window = 1, .offset = UINT64_MAX - 5000, .nbytes = 5000}},
    {.label = "a put out of range", .command = {.type = DD_WINDOW_PUT, .window = 1, .channel = 100000}},
    {.label = "a get out of range",
     .command = {.type = DD_WINDOW_GET, .id = 1, .window = 1, .nbytes = (uint64_t)1 << 62}},
    {.label = "a get out of range", .command = {.type = DD_WINDOW_GET, .id = 1, .window = 1, .offset = 101}},
    {.label = "a channel out of range",
     .command = {.type = DD_WINDOW_SIGNAL_ALONE, .id = 1, .window = 1, .channel = 100000}},
    {.label = "a channel out of range",
     .command = {.type = DD_WINDOW_SIGNAL_ALONE, .id = 1, .window = 1, .channel = DD_WINDOW_NO_CHANNEL}},
    {.label = "unknown type", .command = {.type = DD_WINDOW_CLOSED, .window = 1}, .numbers = {.coll = 200}},
    {.label = "reserved fields are not zero",
     .command = {.type = DD_WINDOW_PUT, .window = 1},
     .numbers = {.coll = DD_WINDOW_PUT, .flags = 1}},
    {.label = "wrong id", .command = {.type = DD_WINDOW_GET, .window = 1}},
    {.label = "wrong offset or size",
     .command = {.type = DD_WINDOW_PUT, .window = 1, .offset = UINT64_MAX, .nbytes = 5000}},
    {.label = "unexpected data", .command = {.type = DD_WINDOW_CLOSED, .window = 1}, .nextra = 5000},
};

static void
note_sent(dd_message *message, const dd_error *error)
{
    (void)error;
    atomic_store_explicit((atomic_bool *)message->owner, true, memory_order_release);
}

/* Return a message about windows that no window sends. */
static dd_message
raw_message(const team_rank *self, const dd_request *head, void *bytes, atomic_bool *is_sent)
{
    return (dd_message){.kind = DD_MESSAGE_WINDOW,
                        .rank = 1 - self->rank,
                        .tag = head->tag,
                        .channel = head->channel,
                        .data = bytes,
                        .nbytes = (size_t)head->nbytes,
                        .signature = &head->signature,
                        .on_done = note_sent,
                        .owner = is_sent};
}

/* Send the message; the other side checks the result. */
static void
send_raw(team_rank *self, const dd_request *head, void *bytes)
{
    atomic_bool is_sent = false;
    dd_message message = raw_message(self, head, bytes, &is_sent);
    dd_engine_lock(self->engine);
    dd_context_post_send_locked(self->group->context, &message);
    dd_engine_unlock(self->engine);
    dd_wait wait = window_plenty();
    CHECK_OK(dd_engine_wait(self->engine, &is_sent, &wait, check_err()));
}

/* Send a command that no dldist rank sends. */
static void
send_bad_note(team_rank *self, const malformed_command *bad)
{
    uint8_t bytes[5000] = {0};
    dd_request head = dd_window_command_encode(&bad->command);
    head.nbytes += bad->nextra;
    if (bad->numbers.coll != 0) {
        head.signature = bad->numbers;
    }
    send_raw(self, &head, bytes);
}

static void
receive_bad_note(team_rank *self)
{
    const malformed_command *bad = self->arg;
    test_window test;
    REQUIRE(window_open(self, BAD_NOTE_NBYTES, true, &test));
    window_fill(test.data, 3, BAD_NOTE_NBYTES);
    team_rendezvous(self, "filled");
    if (self->rank == 1) {
        send_bad_note(self, bad);
    }
    dd_wait wait = window_plenty();
    dd_error error = {.code = DD_OK};
    CHECK_INT(dd_window_wait_signal(test.window, 1 - self->rank, 1, &wait, &error), DD_PROTOCOL);
    CHECK_INT(error.blamed.rank, 1);
    CHECK_CONTAINS(error.message, "broke the protocol of windows");
    CHECK_CONTAINS(error.message, bad->label);
    window_check_filled(test.data, 3, BAD_NOTE_NBYTES);
    window_drop(&test);
}

TEST(both_ranks_report_a_malformed_window_command_as_a_protocol_error)
{
    for (size_t i = 0; i < sizeof malformed_commands / sizeof malformed_commands[0]; i++) {
        malformed_command bad = malformed_commands[i];
        team_options options = {.size = 2, .is_shm_disabled = i % 2 == 1};
        team_run(&options, receive_bad_note, &bad);
    }
}

/* ---- late data */

/* Return true once the command of a put has arrived, but not its data. */
static bool
is_awaiting_data(void *ctx)
{
    const window_source *source = &hub_of(ctx)->sources[1];
    return source->is_busy && source->command.type == DD_WINDOW_PUT && source->command.window == 1;
}

static void
close_before_data(team_rank *self)
{
    enum { NBYTES = 200000 };
    uint8_t *bytes = malloc(NBYTES);
    dd_wait wait = window_plenty();
    test_window first;
    test_window second;
    REQUIRE(bytes != NULL && window_open(self, NBYTES, true, &first));
    REQUIRE(window_open(self, NBYTES, true, &second));
    if (self->rank == 1) {
        atomic_bool is_sent = false;
        dd_request head = dd_window_command_encode(&(dd_window_command){
            .type = DD_WINDOW_PUT, .channel = DD_WINDOW_NO_CHANNEL, .window = 1, .nbytes = NBYTES});
        dd_message message = raw_message(self, &head, bytes, &is_sent);
        memset(bytes, 0xee, NBYTES);
        /* creates a link */
        CHECK_OK(window_put(&second, bytes, 1, (dd_window_target){.rank = 0}, 1));
        team_rendezvous(self, "linked");
        dd_engine_lock(self->engine); /* the head is sent, and the data waits */
        dd_context_post_send_locked(self->group->context, &message);
        team_rendezvous(self, "closed");
        dd_engine_unlock(self->engine);
        CHECK_OK(dd_engine_wait(self->engine, &is_sent, &wait, check_err()));
        window_fill(bytes, 5, NBYTES);
        CHECK_OK(window_put(&second, bytes, NBYTES, (dd_window_target){.rank = 0}, 1));
    } else {
        CHECK_OK(window_take(&second, 1, 1));
        team_rendezvous(self, "linked");
        CHECK_OK(dd_group_await(self->group, is_awaiting_data, self->group, &wait, check_err()));
        dd_window_close(first.window);
        team_rendezvous(self, "closed");
        CHECK_OK(window_take(&second, 1, 1));
        window_check_filled(second.data, 5, NBYTES);
        CHECK_INT(first.data[0], 0);
    }
    window_close(&second);
    window_drop(&first);
    free(bytes);
}

/* Late data must not be taken for the data of the next put. */
TEST(data_that_arrives_after_a_window_is_closed_is_dropped)
{
    team_options options = {.size = 2};
    team_run_both(&options, close_before_data, NULL);
}

/* ---- more gets than are answered at a time */

enum { NMANY = 4 * WINDOW_ANSWERS_MAX, MANY_NBYTES = 24 };

typedef struct many_gets {
    test_window test;
    int peer;
    dd_work *works[NMANY];
    uint8_t back[NMANY][MANY_NBYTES];
} many_gets;

static unsigned
count_answers(dd_group *group, int rank)
{
    dd_engine_lock(group->engine);
    unsigned nanswers = hub_of(group)->sources[rank].nanswers;
    dd_engine_unlock(group->engine);
    return nanswers;
}

static void
post_many_gets(many_gets *many, const dd_call_options *options)
{
    for (size_t i = 0; i < NMANY; i++) {
        dd_window_target from = {.rank = many->peer, .offset = i};
        dd_block target = {many->back[i], MANY_NBYTES};
        CHECK_OK(dd_window_post_get(many->test.window, target, from, options, &many->works[i], check_err()));
        CHECK_INT(count_answers(many->test.window->group, many->peer) <= WINDOW_ANSWERS_MAX, true);
    }
}

static bool
open_many_gets(team_rank *self, many_gets *many)
{
    enum { NBYTES = NMANY + MANY_NBYTES };
    many->peer = 1 - self->rank;
    if (!window_open(self, NBYTES, true, &many->test)) {
        return false;
    }
    window_fill(many->test.data, (uint64_t)self->rank, NBYTES);
    team_rendezvous(self, "filled");
    return true;
}

/* Both ranks get at the same time: neither may block the other's answers. */
static void
get_many(team_rank *self)
{
    many_gets *many = calloc(1, sizeof *many);
    uint8_t *expected = calloc(1, NMANY + MANY_NBYTES);
    REQUIRE(many != NULL && expected != NULL && open_many_gets(self, many));
    window_fill(expected, (uint64_t)many->peer, NMANY + MANY_NBYTES);
    post_many_gets(many, &team_no_options);
    dd_wait wait = window_plenty();
    CHECK_OK(dd_window_flush(many->test.window, &wait, check_err()));
    for (size_t i = 0; i < NMANY; i++) {
        CHECK_OK(team_wait(self->group, many->works[i]));
        CHECK_INT(memcmp(many->back[i], expected + i, MANY_NBYTES), 0);
    }
    window_close(&many->test);
    free(expected);
    free(many);
}

TEST(many_more_gets_complete_than_are_answered_at_the_same_time)
{
    team_options options = {.size = 2};
    team_run_both(&options, get_many, NULL);
}

/* The gets time out, and later answers are discarded; the window must stay usable. */
static void
get_many_until_timeout(team_rank *self)
{
    many_gets *many = calloc(1, sizeof *many);
    REQUIRE(many != NULL && open_many_gets(self, many));
    if (self->rank == 1) {
        dd_engine_lock(self->engine); /* blocks all answers */
        team_rendezvous(self, "deaf");
        team_rendezvous(self, "over");
        dd_engine_unlock(self->engine);
    } else {
        team_rendezvous(self, "deaf");
        dd_call_options options = team_no_options;
        options.timeout_ns = 100 * DD_NS_PER_MS;
        post_many_gets(many, &options);
        for (size_t i = 0; i < NMANY; i++) {
            dd_error error = {.code = DD_OK};
            dd_wait wait = window_plenty();
            CHECK_INT(dd_group_wait(self->group, many->works[i], &wait, &error), DD_OP_TIMED_OUT);
            dd_work_release(many->works[i]);
        }
        memset(many->back, 0, sizeof many->back);
        team_rendezvous(self, "over");
        uint8_t back[MANY_NBYTES];
        uint8_t expected[MANY_NBYTES];
        window_fill(expected, 1, MANY_NBYTES);
        CHECK_OK(window_get(&many->test, back, MANY_NBYTES, (dd_window_target){.rank = 1}));
        CHECK_INT(memcmp(back, expected, MANY_NBYTES), 0);
        for (size_t i = 0; i < sizeof many->back; i++) {
            CHECK_INT(((const uint8_t *)many->back)[i], 0);
        }
    }
    window_close(&many->test);
    free(many);
}

TEST(a_get_that_is_answered_after_its_timeout_writes_nothing)
{
    team_options options = {.size = 2};
    team_run_both(&options, get_many_until_timeout, NULL);
}

/* ---- unlimited requests */

enum { FLOOD_NBYTES = 4096, NFLOOD = 8 * WINDOW_ANSWERS_MAX };

static bool
is_full(void *ctx)
{
    return hub_of(ctx)->sources[1].is_full;
}

/* Rank 1 keeps sending requests, and receives nothing. Only a few answers are stored for it, and
 * its commands stay in order. */
static void
be_flooded(team_rank *self)
{
    test_window test;
    REQUIRE(window_open(self, FLOOD_NBYTES, true, &test));
    dd_wait wait = window_plenty();
    team_rendezvous(self, "open"); /* also on the other rank */
    if (self->rank == 1) {
        stop_taking(self, 0);
        dd_request head = dd_window_command_encode(
            &(dd_window_command){.type = DD_WINDOW_GET, .id = 1u << 30, .window = 1, .nbytes = FLOOD_NBYTES});
        for (int i = 0; i < NFLOOD; i++) {
            send_raw(self, &head, NULL);
        }
        CHECK_OK(window_signal(&test, 0, 1));
        team_rendezvous(self, "flooded");
        dd_engine_lock(self->engine);
        hub_of(self->group)->sources[0].is_busy = false;
        dd_context_take_request_locked(self->group->context, 0);
        dd_engine_unlock(self->engine);
    } else {
        CHECK_OK(dd_group_await(self->group, is_full, self->group, &wait, check_err()));
        team_rendezvous(self, "flooded");
        CHECK_INT(count_answers(self->group, 1) <= WINDOW_ANSWERS_MAX, true);
        CHECK_INT(atomic_load(&dd_window_pad(test.window, 0)[1 * self->size + 1]), 0);
        CHECK_OK(window_take(&test, 1, 1));
    }
    window_close(&test);
}

TEST(few_answers_are_stored_for_a_rank_that_does_not_receive_them)
{
    team_options options = {.size = 2};
    team_run_both(&options, be_flooded, NULL);
}

/* ---- memory that must be returned */

static window_call *
first_call(const window_hub *hub)
{
    return DD_CONTAINER_OF(hub->moving.next, window_call, link);
}

/* A thread that needs the lock waits for at most one piece, of a put that is late, and of a window
 * that is closed while it answers. */
static void
take_back(team_rank *self)
{
    enum { NBYTES = 5 * WINDOW_PIECE_NBYTES };
    uint8_t *bytes = malloc(NBYTES);
    test_window test;
    dd_work *work = NULL;
    dd_window_target there = {.rank = 1 - self->rank};
    REQUIRE(bytes != NULL && window_open(self, NBYTES, true, &test));
    window_hub *hub = hub_of(self->group);
    if (self->rank == 1) {
        window_fill(test.data, 6, NBYTES);
        team_rendezvous(self, "filled");
        dd_engine_lock(self->engine); /* blocks all answers; the test reads the memory */
        team_rendezvous(self, "deaf");
        team_rendezvous(self, "late");
        dd_engine_unlock(self->engine);
        CHECK_OK(window_take(&test, 0, 1));
        window_check_filled(test.data, 7, NBYTES);
        team_rendezvous(self, "arrived");
        CHECK_OK(window_take(&test, 0, 2));
    } else {
        dd_call_options options = team_no_options;
        team_rendezvous(self, "filled");
        team_rendezvous(self, "deaf");
        window_fill(bytes, 7, NBYTES);
        CHECK_OK(dd_window_post_put(test.window, (dd_block){bytes, NBYTES}, there, 1, &options, &work,
                                    check_err()));
        dd_engine_lock(self->engine);
        window_call *put = first_call(hub);
        REQUIRE(&put->work == work);
        put->late.on_due(&put->late);
        for (size_t npieces = 1; npieces <= 5; npieces++) {
            CHECK(!dd_work_is_done(work));
            CHECK(hub->task.progress(&hub->task));
            CHECK_INT(put->ncopied, npieces * WINDOW_PIECE_NBYTES);
        }
        CHECK(dd_work_is_done(work));
        dd_engine_unlock(self->engine);
        memset(bytes, 0, NBYTES);
        dd_error error = {.code = DD_OK};
        dd_wait wait = window_plenty();
        CHECK_INT(dd_group_wait(self->group, work, &wait, &error), DD_OP_TIMED_OUT);
        CHECK_CONTAINS(error.message, "rank 1 (");
        dd_work_release(work);
        team_rendezvous(self, "late");
        team_rendezvous(self, "arrived");
        CHECK_OK(window_signal(&test, 1, 2));
    }
    window_close(&test);
    free(bytes);
}

TEST(reclaiming_memory_of_a_large_put_does_not_hold_the_lock_for_long)
{
    team_options options = {.size = 2};
    team_run_both(&options, take_back, NULL);
}

/* Rank 0 has requested all of rank 1's memory, and receives the answer only after rank 1 has closed
 * the window and cleared that memory. */
static bool
has_lent(void *ctx)
{
    const window_hub *hub = hub_of(ctx);
    return !dd_list_is_empty(&hub->moving) && first_call(hub)->message.channel == DD_WINDOW_ANSWERS;
}

static void
close_and_answer(team_rank *self)
{
    enum { NBYTES = 5 * WINDOW_PIECE_NBYTES };
    uint8_t *bytes = malloc(NBYTES);
    dd_work *work = NULL;
    dd_wait wait = window_plenty();
    dd_window_target there = {.rank = 1 - self->rank};
    test_window test;
    REQUIRE(bytes != NULL && window_open(self, NBYTES, true, &test));
    if (self->rank == 1) {
        window_fill(test.data, 6, NBYTES);
        team_rendezvous(self, "filled");
        team_rendezvous(self, "linked");
        dd_engine_lock(self->engine); /* delays the answer until rank 0 receives nothing */
        team_rendezvous(self, "mute");
        team_rendezvous(self, "deaf");
        dd_engine_unlock(self->engine);
        CHECK_OK(dd_group_await(self->group, has_lent, self->group, &wait, check_err()));
        dd_window_close(test.window);
        memset(test.data, 0, NBYTES);
        team_rendezvous(self, "closed");
    } else {
        team_rendezvous(self, "filled");
        CHECK_OK(window_get(&test, bytes, 1, there)); /* creates a link */
        team_rendezvous(self, "linked");
        team_rendezvous(self, "mute");
        CHECK_OK(dd_window_post_get(test.window, (dd_block){bytes, NBYTES}, there, &team_no_options, &work,
                                    check_err()));
        dd_engine_lock(self->engine);
        team_rendezvous(self, "deaf");
        team_rendezvous(self, "closed");
        dd_engine_unlock(self->engine);
        CHECK_OK(team_wait(self->group, work));
        window_check_filled(bytes, 6, NBYTES);
    }
    CHECK_OK(team_barrier(self->group));
    window_drop(&test);
    free(bytes);
}

TEST(closing_a_window_does_not_change_an_answer_that_is_being_sent)
{
    team_options options = {.size = 2};
    team_run_both(&options, close_and_answer, NULL);
}
