/* The board: the state that ranks of a host can read from each other. */
#include "check.h"
#include "collective/arena/board.h"
#include "core/fork.h"

#include <string.h>

typedef struct boards {
    dd_arena *ranks[3];
} boards;

static bool
open_boards(boards *self)
{
    int fd = -1;
    bool is_ok = CHECK_OK(dd_arena_create(3, false, &fd, check_err()));
    for (int k = 0; k < 3 && is_ok; k++) {
        is_ok = CHECK_OK(dd_arena_attach(fd, 3, k, &self->ranks[k], check_err()));
    }
    dd_fork_close(fd);
    return is_ok;
}

static void
close_boards(boards *self)
{
    for (int k = 0; k < 3; k++) {
        dd_arena_close(self->ranks[k]);
    }
}

TEST(other_ranks_read_a_ranks_progress_as_it_was_published)
{
    boards all;
    REQUIRE(open_boards(&all));
    dd_arena_position offset = dd_arena_read_position(all.ranks[0], 2);
    CHECK(offset.sequence == 0 && !offset.is_inside);
    for (uint64_t i = 1; i < 100; i++) {
        offset = (dd_arena_position){
            .sequence = i, .signature = {.coll = 3, .count = i / 10}, .is_inside = i % 3 == 0};
        dd_arena_post_position(all.ranks[2], &offset);
        dd_arena_position found = dd_arena_read_position(all.ranks[0], 2);
        CHECK(found.sequence == i && found.is_inside == (i % 3 == 0));
        CHECK(memcmp(&found.signature, &offset.signature, sizeof offset.signature) == 0);
    }
    CHECK_INT(dd_arena_read_position(all.ranks[0], 1).sequence, 0);
    close_boards(&all);
}

/* A rank that awaits positions is rung once, by any rank that posts one. */
TEST(a_rank_that_waits_for_progress_is_woken_once_by_any_rank_that_posts_some)
{
    boards all;
    REQUIRE(open_boards(&all));
    dd_arena_position offset = {.sequence = 7, .is_inside = true};
    dd_arena_post_position(all.ranks[1], &offset);
    CHECK(!dd_arena_is_position_awaited(all.ranks[1], 0) && !dd_arena_is_position_awaited(all.ranks[1], 2));
    dd_arena_await_positions(all.ranks[0]);
    CHECK_INT((long long)dd_arena_read_sequence(all.ranks[0], 1), 7);
    CHECK_INT((long long)dd_arena_read_sequence(all.ranks[0], 2), 0);
    CHECK(!dd_arena_is_position_awaited(all.ranks[0], 0)); /* a rank does not await itself */
    CHECK(dd_arena_is_position_awaited(all.ranks[2], 0));
    CHECK(!dd_arena_is_position_awaited(all.ranks[1], 0)); /* it has already been rung */
    dd_arena_await_positions(all.ranks[0]);
    CHECK(dd_arena_is_position_awaited(all.ranks[1], 0));
    close_boards(&all);
}

TEST(only_the_first_cause_of_failure_that_a_rank_publishes_is_read)
{
    boards all;
    uint8_t cause[DD_ARENA_CAUSE_MAX];
    static const uint8_t large[DD_ARENA_CAUSE_MAX + 1];
    REQUIRE(open_boards(&all));
    CHECK(!dd_arena_take_posts(all.ranks[0]));
    dd_arena_post_cause(all.ranks[1], dd_bytes_of(large, sizeof large));
    CHECK(!dd_arena_take_posts(all.ranks[0]));
    dd_arena_post_cause(all.ranks[1], dd_bytes_of_string("why"));
    dd_arena_post_cause(all.ranks[1], dd_bytes_of_string("no more"));
    CHECK(dd_arena_take_posts(all.ranks[0]));
    CHECK(!dd_arena_take_posts(all.ranks[0]));
    CHECK_INT(dd_arena_read_cause(all.ranks[0], 1, cause), 3);
    CHECK(memcmp(cause, "why", 3) == 0);
    CHECK_INT(dd_arena_read_cause(all.ranks[0], 2, cause), 0);
    CHECK(!dd_arena_has_left(all.ranks[0], 2));
    dd_arena_post_leaving(all.ranks[2]);
    CHECK(dd_arena_take_posts(all.ranks[0]));
    CHECK(dd_arena_has_left(all.ranks[0], 2) && !dd_arena_has_left(all.ranks[0], 1));
    close_boards(&all);
}

TEST(a_rank_is_woken_at_most_once_until_it_has_read_what_was_published)
{
    boards all;
    REQUIRE(open_boards(&all));
    CHECK(!dd_arena_is_bell_due(all.ranks[0], 0));
    CHECK(dd_arena_has_taken_posts(all.ranks[0], 1));
    CHECK(dd_arena_is_bell_due(all.ranks[0], 1));
    CHECK(!dd_arena_is_bell_due(all.ranks[2], 1));
    CHECK(!dd_arena_has_taken_posts(all.ranks[2], 1));
    (void)dd_arena_take_posts(all.ranks[1]);
    CHECK(dd_arena_has_taken_posts(all.ranks[0], 1));
    CHECK(dd_arena_is_bell_due(all.ranks[2], 1));
    close_boards(&all);
}

TEST(a_rank_publishes_the_bytes_that_its_network_path_has_lost)
{
    boards all;
    REQUIRE(open_boards(&all));
    CHECK_INT((long long)dd_arena_read_loss(all.ranks[0], 1).nbytes, 0);
    CHECK(!dd_arena_is_rung(all.ranks[1]));
    CHECK(dd_arena_is_bell_due(all.ranks[0], 1));
    CHECK(dd_arena_is_rung(all.ranks[1]) && !dd_arena_is_rung(all.ranks[2]));
    dd_arena_note_loss(all.ranks[1], (dd_arena_loss){.to = 2, .nbytes = 5000});
    (void)dd_arena_take_posts(all.ranks[1]);
    CHECK(dd_arena_has_taken_posts(all.ranks[0], 1) && !dd_arena_is_rung(all.ranks[1]));
    dd_arena_loss loss = dd_arena_read_loss(all.ranks[0], 1);
    CHECK(loss.to == 2 && loss.nbytes == 5000);
    dd_arena_note_loss(all.ranks[1], (dd_arena_loss){.nbytes = 0});
    CHECK_INT((long long)dd_arena_read_loss(all.ranks[0], 1).nbytes, 0);
    close_boards(&all);
}
