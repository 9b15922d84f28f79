/* Ranks that run ahead of the others: how many operations they complete, that all data arrives, and
 * how they detect a mismatch. One thread plays all ranks, so that every rank stops exactly where a
 * test requires. */
#include "check.h"
#include "collective/arena/state.h"
#include "core/fork.h"
#include "core/mem.h"
#include "test_arena_team.h"

#include <string.h>

#define NRANKS 3
#define MAX_NBYTES ((size_t)700000)

typedef struct ahead_rank {
    dd_arena *arena;
    dd_coll_args args;
    dd_block inputs[NRANKS];
    dd_block outputs[NRANKS];
    uint8_t *in[NRANKS];
    uint8_t *out[NRANKS];
} ahead_rank;

typedef struct ahead_team {
    ahead_rank ranks[NRANKS];
    int fd;
} ahead_team;

static void
open_team(ahead_team *team, bool is_crowded)
{
    memset(team, 0, sizeof(*team));
    REQUIRE_OK(dd_arena_create(NRANKS, is_crowded, &team->fd, check_err()));
    for (int rank = 0; rank < NRANKS; rank++) {
        ahead_rank *self = &team->ranks[rank];
        dd_arena *first = team->ranks[0].arena;
        REQUIRE_OK(rank == 0 ? dd_arena_attach(team->fd, NRANKS, 0, &self->arena, check_err())
                             : dd_arena_join(first, rank, &self->arena, check_err()));
        for (int k = 0; k < NRANKS; k++) {
            self->in[k] = dd_mem_zalloc(MAX_NBYTES);
            self->out[k] = dd_mem_zalloc(MAX_NBYTES);
            REQUIRE(self->in[k] != NULL && self->out[k] != NULL);
        }
    }
}

static void
close_team(ahead_team *team)
{
    for (int rank = NRANKS - 1; rank >= 0; rank--) {
        dd_arena_close(team->ranks[rank].arena);
        for (int k = 0; k < NRANKS; k++) {
            dd_mem_free(team->ranks[rank].in[k]);
            dd_mem_free(team->ranks[rank].out[k]);
        }
    }
    dd_fork_close(team->fd);
}

/* Return the byte that fills the data from one rank to another in operation `sequence`. Root is
 * rank 0. */
static uint8_t
value_of(uint64_t sequence, int from, int to)
{
    return (uint8_t)(1 + sequence % 7 + 10 * (uint64_t)from + 40 * (uint64_t)to);
}

static bool
is_all(const uint8_t *data, size_t nbytes, uint8_t value)
{
    return nbytes == 0 || (data[0] == value && memcmp(data, data + 1, nbytes - 1) == 0);
}

static void
start(ahead_team *team, int rank, dd_coll coll, size_t nbytes, uint64_t sequence)
{
    ahead_rank *self = &team->ranks[rank];
    for (int k = 0; k < NRANKS; k++) {
        self->inputs[k] = (dd_block){self->in[k], nbytes};
        self->outputs[k] = (dd_block){self->out[k], nbytes};
        if (k == 0 || coll == DD_COLL_SCATTER) {
            memset(self->in[k], value_of(sequence, rank, coll == DD_COLL_SCATTER ? k : 0), nbytes);
        }
    }
    self->args = (dd_coll_args){.coll = coll,
                                .reduction = {.dtype = DD_DTYPE_UINT8, .op = DD_REDOP_SUM},
                                .inputs = self->inputs,
                                .outputs = self->outputs};
    dd_arena_op_options options = {.signature = arena_team_signature(&self->args, nbytes),
                                   .sequence = sequence};
    dd_arena_start(self->arena, &self->args, &options);
}

/* No other rank runs between the two calls, so they must agree. */
static dd_arena_state
go_on(ahead_team *team, int rank)
{
    dd_arena *arena = team->ranks[rank].arena;
    dd_arena_state state = DD_ARENA_MOVED;
    while (state == DD_ARENA_MOVED) {
        bool is_blocked = dd_arena_is_blocked(arena);
        state = dd_arena_progress(arena);
        CHECK(!is_blocked || state == DD_ARENA_BLOCKED);
    }
    return state;
}

static dd_arena_state
call(ahead_team *team, int rank, dd_coll coll, size_t nbytes, uint64_t sequence)
{
    start(team, rank, coll, nbytes, sequence);
    return go_on(team, rank);
}

static void
check_outputs(ahead_team *team, int rank, dd_coll coll, size_t nbytes, uint64_t sequence)
{
    const ahead_rank *self = &team->ranks[rank];
    if (coll == DD_COLL_BROADCAST || coll == DD_COLL_SCATTER) {
        int to = coll == DD_COLL_SCATTER ? rank : 0;
        CHECK(is_all(self->out[0], nbytes, value_of(sequence, 0, to)));
    } else if (coll == DD_COLL_REDUCE && rank == 0) {
        int sum = value_of(sequence, 0, 0) + value_of(sequence, 1, 0) + value_of(sequence, 2, 0);
        CHECK(is_all(self->out[0], nbytes, (uint8_t)sum));
    } else if (coll == DD_COLL_GATHER && rank == 0) {
        for (int k = 0; k < NRANKS; k++) {
            CHECK(is_all(self->out[k], nbytes, value_of(sequence, k, 0)));
        }
    }
}

/* Run the ranks that need nothing from other ranks as far as possible. Return the lowest number of
 * operations that one of them completed. */
static int
run_ahead(ahead_team *team, dd_coll coll, size_t nbytes)
{
    bool is_from_root = coll == DD_COLL_BROADCAST || coll == DD_COLL_SCATTER;
    int first = is_from_root ? 0 : 1;
    int last = is_from_root ? 0 : NRANKS - 1;
    int fewest = ARENA_WINDOW + 1;
    for (int rank = first; rank <= last; rank++) {
        int ndone = 0;
        while (ndone <= ARENA_WINDOW &&
               call(team, rank, coll, nbytes, (uint64_t)ndone + 1) == DD_ARENA_DONE) {
            check_outputs(team, rank, coll, nbytes, (uint64_t)ndone + 1);
            ndone++;
        }
        fewest = ndone < fewest ? ndone : fewest;
    }
    return fewest;
}

/* Run all ranks to the end of operation `last`; at[rank] is the operation of each rank. */
static void
catch_up(ahead_team *team, dd_coll coll, size_t nbytes, uint64_t last, uint64_t at[NRANKS])
{
    for (int idle = 0; idle < 50 * NRANKS;) {
        for (int rank = 0; rank < NRANKS; rank++, idle++) {
            if (at[rank] <= last && go_on(team, rank) == DD_ARENA_DONE) {
                check_outputs(team, rank, coll, nbytes, at[rank]);
                at[rank]++;
                idle = 0;
                if (at[rank] <= last) {
                    start(team, rank, coll, nbytes, at[rank]);
                }
            }
        }
    }
    for (int rank = 0; rank < NRANKS; rank++) {
        CHECK_INT(at[rank], last + 1);
    }
}

static const dd_coll rooted[] = {DD_COLL_BROADCAST, DD_COLL_SCATTER, DD_COLL_REDUCE, DD_COLL_GATHER};

/* A rank can be ahead by as many operations as there are headers, if the buffer holds their
 * data. */
TEST(a_rank_that_needs_no_data_runs_a_limited_number_of_operations_ahead)
{
    static const struct {
        size_t nbytes;
        int at_least;
    } cases[] = {{0, ARENA_WINDOW},  {8, ARENA_WINDOW},    {80, ARENA_WINDOW},
                 {81, ARENA_WINDOW}, {4096, ARENA_WINDOW}, {20000, 4},
                 {86016, 2},         {300000, 0},          {MAX_NBYTES, 0}};
    for (size_t i = 0; i < 8 * sizeof(cases) / sizeof(cases[0]); i++) {
        size_t nbytes = cases[i / 8].nbytes;
        dd_coll coll = rooted[i % 4];
        ahead_team team;
        open_team(&team, i % 8 >= 4);
        int ndone = run_ahead(&team, coll, nbytes);
        CHECK(ndone <= ARENA_WINDOW);
        CHECK(ndone >= cases[i / 8].at_least || (coll == DD_COLL_SCATTER && 2 * nbytes > 65536));
        bool is_from_root = coll == DD_COLL_BROADCAST || coll == DD_COLL_SCATTER;
        dd_arena_ranks missing = dd_arena_missing(team.ranks[is_from_root ? 0 : 1].arena);
        CHECK(dd_arena_ranks_have(&missing, is_from_root ? 1 : 0));
        uint64_t at[NRANKS];
        for (int rank = 0; rank < NRANKS; rank++) {
            bool is_ahead = is_from_root == (rank == 0);
            at[rank] = is_ahead ? (uint64_t)ndone + 1 : 1;
            if (!is_ahead) {
                start(&team, rank, coll, nbytes, 1);
            }
        }
        catch_up(&team, coll, nbytes, nbytes < 5000 ? 3 * ARENA_WINDOW : (uint64_t)ndone + 3, at);
        close_team(&team);
    }
}

/* 8 operations fit, and 8 more when the others have reached the first 8. No rank waits for a rank
 * that it does not need. */
TEST(receivers_of_a_broadcast_do_not_wait_for_each_other)
{
    ahead_team team;
    open_team(&team, false);
    for (uint64_t i = 1; i <= ARENA_WINDOW; i++) {
        CHECK_INT(call(&team, 0, DD_COLL_BROADCAST, 8, i), DD_ARENA_DONE);
        CHECK_INT(call(&team, 2, DD_COLL_BROADCAST, 8, i), DD_ARENA_DONE);
        check_outputs(&team, 2, DD_COLL_BROADCAST, 8, i);
    }
    CHECK_INT(call(&team, 0, DD_COLL_BROADCAST, 8, ARENA_WINDOW + 1), DD_ARENA_BLOCKED);
    CHECK_INT(call(&team, 2, DD_COLL_BROADCAST, 8, ARENA_WINDOW + 1), DD_ARENA_BLOCKED);
    dd_arena_ranks missing = dd_arena_missing(team.ranks[0].arena);
    CHECK_INT(dd_arena_ranks_pop(&missing), 1);
    CHECK_INT(dd_arena_ranks_pop(&missing), -1);
    CHECK_INT(call(&team, 1, DD_COLL_BROADCAST, 8, 1), DD_ARENA_DONE);
    CHECK_INT(go_on(&team, 0), DD_ARENA_DONE);
    CHECK_INT(go_on(&team, 2), DD_ARENA_DONE);
    close_team(&team);
}

static void
check_blamed_rank(ahead_team *team, int rank, uint64_t sequence, dd_coll theirs)
{
    dd_arena_mismatch mismatch = dd_arena_get_mismatch(team->ranks[rank].arena);
    CHECK_INT(mismatch.sequence, sequence);
    CHECK_INT(mismatch.rank, rank == 1 ? 0 : 1);
    CHECK_INT(mismatch.other, rank);
    CHECK_INT(mismatch.signature.coll, theirs);
}

/* Rank 1 calls a different collective: it fails immediately, and the others fail in the next
 * one. */
TEST(ranks_that_ran_ahead_report_a_mismatch_in_their_next_operation)
{
    for (uint64_t wrong = 1; wrong <= ARENA_WINDOW; wrong++) {
        for (uint64_t nahead = wrong; nahead <= ARENA_WINDOW; nahead++) {
            ahead_team team;
            open_team(&team, nahead % 2 == 0);
            for (uint64_t i = 1; i <= nahead; i++) {
                CHECK_INT(call(&team, 0, DD_COLL_BROADCAST, 8, i), DD_ARENA_DONE);
                CHECK_INT(call(&team, 2, DD_COLL_BROADCAST, 8, i), DD_ARENA_DONE);
            }
            for (uint64_t i = 1; i < wrong; i++) {
                CHECK_INT(call(&team, 1, DD_COLL_BROADCAST, 8, i), DD_ARENA_DONE);
            }
            CHECK_INT(call(&team, 1, DD_COLL_ALL_REDUCE, 8, wrong), DD_ARENA_MISMATCH);
            check_blamed_rank(&team, 1, wrong, DD_COLL_BROADCAST);
            CHECK_INT(call(&team, 0, DD_COLL_BROADCAST, 8, nahead + 1), DD_ARENA_MISMATCH);
            check_blamed_rank(&team, 0, wrong, DD_COLL_ALL_REDUCE);
            CHECK_INT(call(&team, 2, DD_COLL_BARRIER, 0, nahead + 1), DD_ARENA_MISMATCH);
            check_blamed_rank(&team, 2, wrong, DD_COLL_ALL_REDUCE);
            close_team(&team);
        }
    }
}

/* The mismatching rank arrives when the operation after that is already waiting. */
TEST(a_mismatch_ends_the_wait_of_a_rank_that_is_one_operation_ahead)
{
    static const dd_coll waits[] = {DD_COLL_BARRIER, DD_COLL_ALL_REDUCE, DD_COLL_GATHER};
    for (size_t i = 0; i < sizeof(waits) / sizeof(waits[0]); i++) {
        ahead_team team;
        open_team(&team, false);
        CHECK_INT(call(&team, 0, DD_COLL_BROADCAST, 8, 1), DD_ARENA_DONE);
        CHECK_INT(call(&team, 0, waits[i], 8, 2), DD_ARENA_BLOCKED);
        CHECK_INT(call(&team, 2, DD_COLL_BROADCAST, 8, 1), DD_ARENA_DONE);
        CHECK_INT(call(&team, 1, DD_COLL_BARRIER, 0, 1), DD_ARENA_MISMATCH);
        CHECK_INT(go_on(&team, 0), DD_ARENA_MISMATCH);
        check_blamed_rank(&team, 0, 1, DD_COLL_BARRIER);
        close_team(&team);
    }
}

/* Each of two ranks acts as the root, and may send more than the buffer holds. */
TEST(two_ranks_that_both_act_as_the_root_report_a_mismatch)
{
    for (size_t nbytes = 8; nbytes <= MAX_NBYTES; nbytes = nbytes == 8 ? MAX_NBYTES : MAX_NBYTES + 1) {
        ahead_team team;
        open_team(&team, false);
        start(&team, 0, DD_COLL_BROADCAST, nbytes, 1);
        dd_arena_state first = go_on(&team, 0);
        CHECK_INT(first, nbytes == 8 ? DD_ARENA_DONE : DD_ARENA_BLOCKED);
        ahead_rank *self = &team.ranks[1];
        self->inputs[0] = (dd_block){self->in[0], nbytes};
        self->outputs[0] = (dd_block){self->out[0], nbytes};
        self->args = (dd_coll_args){.coll = DD_COLL_BROADCAST,
                                    .root = 1,
                                    .reduction = {.dtype = DD_DTYPE_UINT8},
                                    .inputs = self->inputs,
                                    .outputs = self->outputs};
        dd_arena_op_options options = {.signature = arena_team_signature(&self->args, nbytes), .sequence = 1};
        dd_arena_start(self->arena, &self->args, &options);
        CHECK_INT(go_on(&team, 1), first);
        (void)call(&team, 2, DD_COLL_BROADCAST, nbytes, 1); /* rank 2 matches one of the two */
        for (int rank = 0; rank < 2; rank++) {
            dd_arena_state state = nbytes == 8 ? DD_ARENA_DONE : go_on(&team, rank);
            state = state == DD_ARENA_DONE ? call(&team, rank, DD_COLL_BARRIER, 0, 2) : state;
            CHECK_INT(state, DD_ARENA_MISMATCH);
            dd_arena_mismatch mismatch = dd_arena_get_mismatch(team.ranks[rank].arena);
            CHECK(mismatch.sequence == 1 && mismatch.rank == 1 - rank && mismatch.other == rank);
        }
        close_team(&team);
    }
}

/* A rank that is ahead also stops after a poison, and later ranks do not use the data that it sent
 * before. */
TEST(no_rank_continues_after_one_marks_the_shared_memory_as_failed)
{
    ahead_team team;
    open_team(&team, false);
    CHECK_INT(call(&team, 0, DD_COLL_BROADCAST, 8, 1), DD_ARENA_DONE);
    CHECK_INT(call(&team, 0, DD_COLL_BROADCAST, 8, 2), DD_ARENA_DONE);
    CHECK_INT(call(&team, 1, DD_COLL_BROADCAST, 8, 1), DD_ARENA_DONE);
    dd_arena_poison(team.ranks[2].arena);
    CHECK_INT(call(&team, 0, DD_COLL_BROADCAST, 8, 3), DD_ARENA_BLOCKED);
    CHECK_INT(call(&team, 1, DD_COLL_BROADCAST, 8, 2), DD_ARENA_BLOCKED);
    CHECK(dd_arena_fall_asleep(team.ranks[0].arena) && dd_arena_fall_asleep(team.ranks[1].arena));
    close_team(&team);
}

/* dd_arena_is_blocked must return false until the operation is opened: only dd_arena_progress
 * checks for a poison. */
TEST(a_rank_that_waits_to_begin_an_operation_stops_after_a_failure)
{
    ahead_team team;
    open_team(&team, false);
    dd_arena *arena = team.ranks[0].arena;
    for (uint64_t i = 1; i <= ARENA_WINDOW; i++) {
        CHECK_INT(call(&team, 0, DD_COLL_BROADCAST, 8, i), DD_ARENA_DONE);
    }
    CHECK_INT(call(&team, 0, DD_COLL_BROADCAST, 8, ARENA_WINDOW + 1), DD_ARENA_BLOCKED);
    CHECK(!arena->op.is_rejected && !dd_arena_is_blocked(arena));
    dd_arena_poison(team.ranks[2].arena);
    CHECK(!dd_arena_is_blocked(arena));
    CHECK_INT(go_on(&team, 0), DD_ARENA_BLOCKED);
    CHECK(arena->op.is_rejected && !dd_arena_is_blocked(arena));
    close_team(&team);
}

/* Rank 2 completes a barrier and then poisons the arena; the other ranks have not noticed yet. */
static void
finish_and_poison(ahead_team *team)
{
    open_team(team, false);
    CHECK_INT(call(team, 0, DD_COLL_BARRIER, 0, 1), DD_ARENA_BLOCKED);
    CHECK_INT(call(team, 1, DD_COLL_BARRIER, 0, 1), DD_ARENA_BLOCKED);
    CHECK_INT(call(team, 2, DD_COLL_BARRIER, 0, 1), DD_ARENA_DONE);
    dd_arena_poison(team->ranks[2].arena);
}

TEST(operations_that_a_rank_finished_before_its_failure_complete_on_all)
{
    ahead_team team;
    finish_and_poison(&team);
    CHECK_INT(go_on(&team, 0), DD_ARENA_DONE);
    CHECK_INT(call(&team, 0, DD_COLL_BARRIER, 0, 2), DD_ARENA_BLOCKED);
    dd_arena_poison(team.ranks[0].arena); /* the second poison */
    CHECK_INT(go_on(&team, 1), DD_ARENA_DONE);
    CHECK_INT(call(&team, 1, DD_COLL_BARRIER, 0, 2), DD_ARENA_BLOCKED);
    close_team(&team);
}

/* Rank 2 fails before the first operation, which rank 1 has opened. The root's data is complete. */
TEST(an_operation_whose_data_is_complete_completes_despite_a_failure)
{
    static const size_t sizes[] = {8, 20000, 100000};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        ahead_team team;
        open_team(&team, false);
        CHECK_INT(call(&team, 1, DD_COLL_BROADCAST, sizes[i], 1), DD_ARENA_BLOCKED);
        CHECK_INT(call(&team, 0, DD_COLL_BROADCAST, sizes[i], 1), DD_ARENA_DONE);
        dd_arena_poison(team.ranks[2].arena);
        CHECK_INT(go_on(&team, 1), DD_ARENA_DONE);
        CHECK_INT(call(&team, 0, DD_COLL_BROADCAST, sizes[i], 2), DD_ARENA_BLOCKED); /* not opened */
        CHECK_INT(call(&team, 1, DD_COLL_BROADCAST, sizes[i], 2), DD_ARENA_BLOCKED);
        close_team(&team);
    }
}

/* Copies bypass the caches until a rank has tried both ways. Only a root that must wait for its
 * readers tries them. */
TEST(a_root_that_waits_for_its_receivers_times_cached_and_uncached_copies)
{
    for (int is_crowded = 0; is_crowded < 2; is_crowded++) {
        ahead_team team;
        open_team(&team, is_crowded == 1);
        CHECK_INT(atomic_load(&team.ranks[0].arena->shared->streaming), is_crowded == 0 ? UINT32_MAX : 0);
        CHECK_INT(call(&team, 0, DD_COLL_BROADCAST, 80000, 1), DD_ARENA_DONE);
        CHECK_INT(team.ranks[0].arena->op.is_streaming, is_crowded == 0);
        for (int rank = 1; rank < NRANKS; rank++) {
            CHECK_INT(call(&team, rank, DD_COLL_BROADCAST, 80000, 1), DD_ARENA_DONE);
        }
        uint64_t at[NRANKS] = {2, 2, 2};
        for (int rank = 0; rank < NRANKS; rank++) {
            CHECK(!team.ranks[rank].arena->trials[DD_COLL_BROADCAST].copies.is_open);
            start(&team, rank, DD_COLL_BROADCAST, MAX_NBYTES, 2);
            CHECK_INT(team.ranks[rank].arena->trials[DD_COLL_BROADCAST].copies.is_open, rank == 0);
        }
        catch_up(&team, DD_COLL_BROADCAST, MAX_NBYTES, 9, at);
        CHECK(!team.ranks[0].arena->trials[DD_COLL_BROADCAST].copies.is_open &&
              team.ranks[0].arena->trials[DD_COLL_BROADCAST].copies.next_ns > 0);
        close_team(&team);
    }
}

/* The operation counter wraps around after 2^32. */
TEST(collectives_are_correct_when_the_32_bit_operation_counter_wraps_around)
{
    ahead_team team;
    open_team(&team, false);
    uint32_t last = UINT32_MAX - 5;
    for (int rank = 0; rank < NRANKS; rank++) {
        dd_arena *arena = team.ranks[rank].arena;
        arena->number = arena->nverified = last;
        arena->floor = dd_arena_mark(last, 0);
        for (int i = 0; i < ARENA_NRECORDS; i++) {
            atomic_store(&arena->slots[rank].control->records[i].mark, arena->floor);
        }
    }
    uint64_t at[NRANKS];
    for (size_t i = 0; i < sizeof(rooted) / sizeof(rooted[0]); i++) {
        for (int rank = 0; rank < NRANKS; rank++) {
            at[rank] = 1;
            start(&team, rank, rooted[i], 2000, 1);
        }
        catch_up(&team, rooted[i], 2000, 3, at);
    }
    CHECK(team.ranks[0].arena->number < 100);
    close_team(&team);
}
