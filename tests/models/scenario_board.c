/* csrc/collective/arena/board.c: the boards of ranks, and the bells rung for them. */
#include "models/checker.h"

#include "collective/arena/arena.h"
#include "collective/arena/board.h"

#include <string.h>

static dd_arena *arenas[2];
static checker_bell bells[2];

static void
open_board(void)
{
    dd_error err;
    int fd = -1;
    memset(bells, 0, sizeof bells);
    REQUIRE(dd_arena_create(2, false, &fd, &err) == DD_OK);
    for (int k = 0; k < 2; k++) {
        checker_allocate_for(k);
        REQUIRE(dd_arena_attach(fd, 2, k, &arenas[k], &err) == DD_OK);
    }
    checker_allocate_for(-1);
}

static void
rest(int self)
{
    checker_sleep(&bells[self]);
    (void)checker_take_rings(&bells[self]);
}

/* ---- places */

/* Return a position whose words are all derived from the sequence. */
static dd_arena_position
place_of(uint64_t sequence)
{
    return (dd_arena_position){
        .sequence = sequence,
        .signature = {.root = (uint32_t)sequence, .count = sequence, .extra_bits = sequence},
        .is_inside = true};
}

static void
note_and_read(int self)
{
    if (self == 0) {
        for (uint64_t i = 1; i <= 2; i++) {
            dd_arena_position place = place_of(i);
            dd_arena_post_position(arenas[0], &place);
        }
        return;
    }
    dd_arena_position read = dd_arena_read_position(arenas[1], 0);
    /* The signature is written first. It may already be the next one, but it must not mix two. */
    dd_arena_position whole = place_of(read.signature.count);
    REQUIRE(memcmp(&read.signature, &whole.signature, sizeof whole.signature) == 0);
    REQUIRE(read.signature.count >= read.sequence);
}

SCENARIO(board_places, .label = "a place that is read while it changes", .nthreads = 2, .setup = open_board,
         .thread = note_and_read, .max_same = 3)

static void
await_place(int self)
{
    if (self == 0) {
        dd_arena_position place = place_of(1);
        dd_arena_post_position(arenas[0], &place);
        dd_arena_fence_position();
        if (dd_arena_is_position_awaited(arenas[0], 1)) {
            checker_ring(&bells[1], 1);
        }
        return;
    }
    while (dd_arena_read_sequence(arenas[1], 0) == 0) {
        dd_arena_await_positions(arenas[1]);
        if (dd_arena_read_sequence(arenas[1], 0) == 0) {
            rest(1);
        }
    }
}

SCENARIO(board_awaits, .label = "a rank that sleeps until another posts", .nthreads = 2, .setup = open_board,
         .thread = await_place)

/* ---- news */

static const uint8_t words[] = "why";

static void
ring_if_due(int from, int to)
{
    if (dd_arena_is_bell_due(arenas[from], to)) {
        checker_ring(&bells[to], 1);
    }
}

/* Sleep until the other rank has posted everything. */
static void
await_posts(int self, bool expects_leaving)
{
    bool has_cause = false;
    bool has_left = false;
    while (!has_cause || has_left != expects_leaving) {
        if (!dd_arena_take_posts(arenas[self])) {
            rest(self);
            continue;
        }
        uint8_t cause[DD_ARENA_CAUSE_MAX];
        has_cause = dd_arena_has_posted_cause(arenas[self], 1 - self);
        REQUIRE(!has_cause || (dd_arena_read_cause(arenas[self], 1 - self, cause) == sizeof words &&
                               memcmp(cause, words, sizeof words) == 0));
        has_left = expects_leaving && dd_arena_has_left(arenas[self], 1 - self);
    }
}

static void
post_twice(int self)
{
    if (self == 0) {
        dd_arena_post_cause(arenas[0], dd_bytes_of(words, sizeof words));
        ring_if_due(0, 1);
        dd_arena_post_leaving(arenas[0]);
        ring_if_due(0, 1);
        return;
    }
    await_posts(1, true);
}

SCENARIO(board_news, .label = "two posts, and a rank that sleeps until it knows", .nthreads = 2,
         .setup = open_board, .thread = post_twice)

static void
post_both(int self)
{
    dd_arena_post_cause(arenas[self], dd_bytes_of(words, sizeof words));
    ring_if_due(self, 1 - self);
    await_posts(self, false);
}

SCENARIO(board_news_of_both, .label = "both post and hear", .nthreads = 2, .setup = open_board,
         .thread = post_both)

/* Read without a check for news, which would order the accesses by itself. */
static void
post_and_read(int self)
{
    uint8_t cause[DD_ARENA_CAUSE_MAX];
    if (self == 0) {
        dd_arena_post_cause(arenas[0], dd_bytes_of(words, sizeof words));
    } else if (dd_arena_read_cause(arenas[1], 0, cause) != 0) {
        REQUIRE(memcmp(cause, words, sizeof words) == 0);
    }
}

SCENARIO(board_cause, .label = "a cause that is read while it is posted", .nthreads = 2, .setup = open_board,
         .thread = post_and_read)
