/* Ranks of a group that complete a rooted collective before the others have started it. */
#include "check.h"
#include "group_team.h"

#include <stdio.h>

#define NAHEAD 8

static dd_status
broadcast(team_rank *self, int root, int32_t *value)
{
    dd_block block = {.data = value, .nbytes = sizeof *value};
    dd_coll_args args = {.coll = DD_COLL_BROADCAST,
                         .root = root,
                         .reduction = {.dtype = DD_DTYPE_INT32},
                         .inputs = &block,
                         .outputs = &block};
    return team_call(self, &args);
}

static void
go_ahead(team_rank *self)
{
    int32_t value = 0;
    for (int i = 0; i < NAHEAD && self->rank == 0; i++) {
        value = i;
        CHECK_OK(broadcast(self, 0, &value));
    }
    team_rendezvous(self, "ahead"); /* the other ranks have not called yet */
    for (int i = 0; i < NAHEAD && self->rank != 0; i++) {
        CHECK_OK(broadcast(self, 0, &value));
        CHECK_INT(value, i);
    }
    CHECK_OK(team_barrier(self->group));
}

TEST(a_broadcast_root_may_return_before_the_other_ranks_call)
{
    for (int size = 2; size <= 4; size++) {
        team_options options = {.size = size};
        team_run(&options, go_ahead, NULL);
    }
}

/* Post more than fit: works stay pending until the other ranks call, and complete in order. */
static void
post_many(team_rank *self)
{
    int32_t values[5 * NAHEAD];
    dd_work *works[5 * NAHEAD];
    for (int i = 0; i < 5 * NAHEAD; i++) {
        values[i] = self->rank == 0 ? i : -1;
        dd_block block = {.data = &values[i], .nbytes = sizeof values[i]};
        dd_coll_args args = {.coll = DD_COLL_BROADCAST,
                             .reduction = {.dtype = DD_DTYPE_INT32},
                             .inputs = &block,
                             .outputs = &block};
        if (i % (NAHEAD + 1) == 0 && self->rank == 1) {
            team_rendezvous(self, i == 0                ? "first"
                                  : i == NAHEAD + 1     ? "second"
                                  : i == 2 * NAHEAD + 2 ? "third"
                                                        : "fourth");
        }
        REQUIRE_OK(dd_group_collective(self->group, &args, &team_no_options, &works[i], check_err()));
    }
    static const char *const names[] = {"first", "second", "third", "fourth"};
    for (int i = 0; i < 4 && self->rank != 1; i++) {
        team_rendezvous(self, names[i]);
    }
    for (int i = 0; i < 5 * NAHEAD; i++) {
        CHECK_OK(team_wait(self->group, works[i]));
        CHECK_INT(values[i], i);
    }
}

TEST(more_operations_than_a_rank_may_run_ahead_complete_once_others_call)
{
    team_options options = {.size = 3};
    team_run(&options, post_many, NULL);
}

/* Rank 1 acts as the root of one call, and so completes it like rank 0. All ranks receive the
 * mismatch by the barrier. */
static void
disagree_ahead(team_rank *self)
{
    const int *wrong = self->arg;
    int32_t value = 0;
    char expected[64];
    dd_status status = DD_OK;
    snprintf(expected, sizeof expected, "collective #%d: ", *wrong);
    if (self->rank == 1) {
        team_rendezvous(self, "ahead");
    }
    for (int i = 1; i <= NAHEAD && status == DD_OK; i++) {
        status = broadcast(self, self->rank == 1 && i == *wrong ? 1 : 0, &value);
        CHECK(self->rank != 0 || status == DD_OK);
    }
    if (self->rank != 1) {
        team_rendezvous(self, "ahead");
    }
    status = status == DD_OK ? team_barrier(self->group) : status;
    CHECK_STATUS(status, DD_MISMATCH);
    CHECK_CONTAINS(check_message(), expected);
    CHECK_CONTAINS(check_message(), "root 0)");
    CHECK_CONTAINS(check_message(), "root 1)");
    CHECK_CONTAINS(check_message(), "rank 1 (");
}

TEST(a_mismatch_in_a_call_that_has_returned_is_reported_by_a_barrier)
{
    for (int wrong = 1; wrong <= NAHEAD; wrong++) {
        team_options options = {.size = 3};
        team_run(&options, disagree_ahead, &wrong);
    }
}

/* Rank 1 aborts the group after the first of two broadcasts of rank 0. The first one is also
 * complete on rank 2, and may succeed there if rank 2 has not received the abort. The second one is
 * not opened. */
static void
abort_behind(team_rank *self)
{
    int32_t value = 7;
    if (self->rank == 0) {
        CHECK_OK(broadcast(self, 0, &value));
        CHECK_OK(broadcast(self, 0, &value));
    }
    team_rendezvous(self, "ahead");
    if (self->rank == 1) {
        CHECK_OK(broadcast(self, 0, &value));
        dd_group_abort(self->group, "that is enough");
    }
    team_rendezvous(self, "aborted");
    if (self->rank == 2 && broadcast(self, 0, &value) == DD_OK) {
        CHECK_INT(value, 7);
    }
    CHECK_STATUS(self->rank == 0 ? team_barrier(self->group) : broadcast(self, 0, &value), DD_ABORTED);
    CHECK_CONTAINS(check_message(), "that is enough");
}

TEST(an_abort_ends_calls_that_are_ahead_of_other_ranks)
{
    team_options options = {.size = 3};
    team_run(&options, abort_behind, NULL);
}
