/* Collectives end to end: ranks as threads, with real links and arenas. */
#include "check.h"
#include "collective/run_internal.h"
#include "core/clock.h"
#include "core/mem.h"
#include "faults/faults.h"
#include "run_team.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- every collective, repeatedly, in a team */

typedef struct arithmetic {
    dd_dtype dtype;
    dd_redop op;
} arithmetic;

static const arithmetic arithmetics[] = {
    {DD_DTYPE_FLOAT32, DD_REDOP_SUM},
    {DD_DTYPE_BFLOAT16, DD_REDOP_AVG},
    {DD_DTYPE_INT64, DD_REDOP_MAX},
};

#define NARITHMETICS (sizeof arithmetics / sizeof arithmetics[0])

typedef struct sweep {
    const size_t *counts;
    size_t ncounts;
    coll_world world; /* rank 0 creates it, all ranks use their parts */
    const char *ways; /* of all_reduce; NULL for any */
} sweep;

static const char *
name_way(const dd_run *run, char *text, size_t size)
{
    const char *prefix = run->route == DD_ROUTE_HIERARCHY ? "arena+" : "";
    (void)snprintf(text, size, "%s%s", prefix, run->algorithm != NULL ? run->algorithm->name : "no plan");
    return run->route == DD_ROUTE_LOCAL ? (run->env.arena != NULL ? "arena" : "copy") : text;
}

static void
play(run_member *self, const coll_case *test_case)
{
    sweep *all = self->arg;
    if (self->rank == 0) {
        coll_world_init(&all->world, test_case);
    }
    run_team_meet(self);
    dd_signature signature = coll_world_signature(test_case);
    /* Twice: the second call reuses a plan. */
    for (int turn = 0; turn < 2; turn++) {
        if (CHECK_OK(run_team_call(self, &all->world.ranks[self->rank].args, &signature)) &&
            test_case->coll != DD_COLL_BARRIER) {
            (void)coll_world_check_rank(&all->world, self->rank);
        }
        run_team_meet(self);
        coll_world_fill_rank(&all->world, self->rank);
        run_team_meet(self);
    }
    if (self->rank == 0 && test_case->coll == DD_COLL_ALL_REDUCE && all->ways != NULL &&
        test_case->count > 0) {
        char way[40];
        CHECK_CONTAINS(name_way(self->run, way, sizeof way), all->ways);
    }
    if (self->rank == 0) {
        coll_world_fini(&all->world);
    }
    run_team_meet(self);
}

/* Return a smaller count if every rank has a block for each rank. */
static size_t
scale(dd_coll coll, size_t count, int nranks)
{
    return dd_coll_is_array(coll) ? count : (count + (size_t)nranks - 1) / (size_t)nranks;
}

static void
play_all(run_member *self)
{
    const sweep *all = self->arg;
    for (int coll = 0; coll < DD_COLL_COUNT; coll++) {
        for (size_t i = 0; i < all->ncounts; i++) {
            size_t which = (size_t)coll + i;
            coll_case test_case = {.coll = (dd_coll)coll,
                                   .nranks = self->topology.nranks,
                                   .root = (int)(i % (size_t)self->topology.nranks),
                                   .dtype = arithmetics[which % NARITHMETICS].dtype,
                                   .op = arithmetics[which % NARITHMETICS].op,
                                   .count = scale((dd_coll)coll, all->counts[i], self->topology.nranks),
                                   .is_uneven = i % 3 == 2,
                                   .is_in_place = i % 2 == 1};
            play(self, &test_case);
        }
    }
}

static const size_t few_counts[] = {1, 0, 77, 3000, 40000, 5};

static void
check_team(run_team_options options, const char *ways)
{
    sweep all = {.counts = few_counts, .ncounts = sizeof few_counts / sizeof few_counts[0], .ways = ways};
    run_team_do(&options, play_all, &all);
}

TEST(collectives_of_one_rank_are_correct)
{
    check_team((run_team_options){.nranks = 1},
               NULL); /* small arrays are copied immediately, large ones by plans */
}

TEST(two_ranks_of_one_host_use_shared_memory)
{
    check_team((run_team_options){.nranks = 2}, "arena");
}

TEST(three_ranks_of_one_host_use_shared_memory)
{
    check_team((run_team_options){.nranks = 3}, "arena");
}

TEST(collectives_of_two_hosts_with_one_rank_each_are_correct)
{
    check_team((run_team_options){.nranks = 2, .host_of = {0, 1}}, "");
}

TEST(two_hosts_with_two_ranks_each_use_shared_memory_and_messages)
{
    check_team((run_team_options){.nranks = 4, .host_of = {0, 0, 1, 1}}, "arena+");
}

TEST(ranks_that_alternate_between_hosts_use_shared_memory_and_messages)
{
    check_team((run_team_options){.nranks = 4, .host_of = {0, 1, 0, 1}, .segment_nbytes = 1024}, "arena+");
}

TEST(hosts_with_different_numbers_of_ranks_use_shared_memory)
{
    check_team((run_team_options){.nranks = 6, .host_of = {0, 1, 1, 0, 2, 1}}, "arena");
}

TEST(flat_algorithms_over_shared_memory_are_correct)
{
    check_team((run_team_options){.nranks = 3, .selection = "flat", .segment_nbytes = 4096}, "");
}

TEST(flat_algorithms_over_two_hosts_use_the_chosen_ring)
{
    check_team((run_team_options){.nranks = 4, .host_of = {0, 1, 0, 1}, .selection = "flat,all_reduce=ring"},
               "ring");
}

TEST(flat_algorithms_of_eight_ranks_are_correct)
{
    check_team((run_team_options){.nranks = 8, .host_of = {0, 0, 1, 1, 2, 2, 3, 3}, .selection = "flat"}, "");
}

static const size_t large_counts[] = {700001, 2500000};

/* Several pieces and segments, and rendezvous messages. */
TEST(collectives_of_large_arrays_between_hosts_are_correct)
{
    sweep all = {.counts = large_counts, .ncounts = 2, .ways = "arena+"};
    run_team_options options = {.nranks = 4, .host_of = {0, 0, 1, 1}};
    run_team_do(&options, play_all, &all);
}

/* ---- many calls in a row */

static void
add_many(run_member *self)
{
    enum { NCALLS = 300 };
    double input = self->rank + 1;
    double output = 0;
    dd_block in = {&input, sizeof input};
    dd_block out = {&output, sizeof output};
    dd_coll_args args = {.coll = DD_COLL_ALL_REDUCE,
                         .reduction = {.dtype = DD_DTYPE_FLOAT64, .op = DD_REDOP_SUM, .divisor = 1},
                         .inputs = &in,
                         .outputs = &out};
    dd_signature signature = {.coll = DD_COLL_ALL_REDUCE, .dtype = DD_DTYPE_FLOAT64, .count = 1};
    int nranks = self->topology.nranks;
    bool is_good = true;
    for (int i = 0; i < NCALLS && is_good; i++) {
        output = -1;
        is_good =
            CHECK_OK(run_team_call(self, &args, &signature)) && CHECK(output == nranks * (nranks + 1) / 2.0);
    }
}

TEST(many_small_collectives_in_a_row_are_correct)
{
    run_team_do(&(run_team_options){.nranks = 2, .host_of = {0, 1}}, add_many, NULL);
    run_team_do(&(run_team_options){.nranks = 2}, add_many, NULL);
    run_team_do(&(run_team_options){.nranks = 4, .host_of = {0, 0, 1, 1}}, add_many, NULL);
}

/* ---- calls in sequence, each started when the last has ended */

typedef struct chain {
    run_member *self;
    const dd_coll_args *args;
    int left;
    int depth;
    int deepest;
} chain;

static void
start_next(void *ctx, const dd_error *error)
{
    chain *links = ctx;
    links->depth++;
    links->deepest = links->depth > links->deepest ? links->depth : links->deepest;
    if (error != NULL || --links->left == 0) {
        links->self->outcome.code = error != NULL ? error->code : DD_OK;
        atomic_store_explicit(&links->self->is_done, true, memory_order_release);
    } else {
        dd_run_call call = {.args = *links->args,
                            .signature = {.coll = DD_COLL_BARRIER},
                            .sequence = ++links->self->sequence,
                            .on_done = start_next,
                            .ctx = links};
        dd_run_start_locked(links->self->run, &call);
    }
    links->depth--;
}

static void
chain_barriers(run_member *self)
{
    dd_coll_args args = {.coll = DD_COLL_BARRIER};
    chain links = {.self = self, .args = &args, .left = 200};
    dd_run_call call = {.args = args,
                        .signature = {.coll = DD_COLL_BARRIER},
                        .sequence = ++self->sequence,
                        .on_done = start_next,
                        .ctx = &links};
    atomic_store(&self->is_done, false);
    dd_engine_lock(self->engine);
    dd_run_start_locked(self->run, &call);
    dd_engine_unlock(self->engine);
    CHECK_OK(run_team_wait(self));
    CHECK_INT(links.left, 0);
    CHECK_INT(links.deepest, 1);
    CHECK(self->run->phase == DD_RUN_IDLE);
}

TEST(a_collective_can_be_started_from_the_completion_callback_of_another)
{
    run_team_do(&(run_team_options){.nranks = 1}, chain_barriers, NULL);
    run_team_do(&(run_team_options){.nranks = 2}, chain_barriers, NULL);
    run_team_do(&(run_team_options){.nranks = 2, .host_of = {0, 1}}, chain_barriers, NULL);
    run_team_do(&(run_team_options){.nranks = 3, .host_of = {0, 0, 1}}, chain_barriers, NULL);
}

/* ---- memory */

static void
run_short_of_memory(run_member *self)
{
    enum { COUNT = 3000 };
    static uint16_t data[2][COUNT];
    dd_block block = {data[self->rank], sizeof data[0]};
    dd_coll_args args = {.coll = DD_COLL_ALL_REDUCE,
                         .reduction = {.dtype = DD_DTYPE_BFLOAT16, .op = DD_REDOP_SUM, .divisor = 1},
                         .inputs = &block,
                         .outputs = &block};
    dd_signature signature = {.coll = DD_COLL_ALL_REDUCE, .dtype = DD_DTYPE_BFLOAT16, .count = COUNT};
    CHECK_OK(run_team_call(self, &(dd_coll_args){.coll = DD_COLL_BARRIER},
                           &(dd_signature){.coll = DD_COLL_BARRIER}));
    run_team_meet(self);
    if (self->rank == 0) {
        /* The lock keeps the engine from allocating; no peer needs an answer yet. */
        dd_engine_lock(self->engine);
        int nfailures = 0;
        dd_status status = DD_OUT_OF_MEMORY;
        while (status == DD_OUT_OF_MEMORY && nfailures < 50) {
            dd_run_call call = {.args = args,
                                .signature = signature,
                                .sequence = self->sequence + 1,
                                .on_done = run_team_on_done,
                                .ctx = self};
            atomic_store(&self->is_done, false);
            (void)dd_mem_fail_after(nfailures++);
            dd_run_start_locked(self->run, &call);
            (void)dd_mem_fail_after(-1);
            status = atomic_load(&self->is_done) ? self->outcome.code : DD_OK;
        }
        self->sequence++;
        CHECK_INT(status, DD_OK);
        CHECK(nfailures > 4);
        dd_engine_unlock(self->engine);
    }
    run_team_meet(self);
    if (self->rank == 0) {
        CHECK_OK(run_team_wait(self));
    } else {
        CHECK_OK(run_team_call(self, &args, &signature));
    }
    run_team_meet(self);
}

TEST(a_collective_completes_after_attempts_whose_allocations_failed)
{
    run_team_do(&(run_team_options){.nranks = 2, .host_of = {0, 1}}, run_short_of_memory, NULL);
}

TEST(preparing_to_run_collectives_returns_an_error_when_allocations_fail)
{
    dd_topology topology;
    REQUIRE_OK(dd_topology_init(&topology, 0, 3, (const int[]){0, 1, 1}, check_err()));
    dd_run_env env = {.topology = &topology};
    dd_status status = DD_OUT_OF_MEMORY;
    for (int i = 0; i < 5 && status == DD_OUT_OF_MEMORY; i++) {
        dd_run *run = NULL;
        (void)dd_mem_fail_after(i);
        status = dd_run_create(&env, &run, NULL);
        (void)dd_mem_fail_after(-1);
        dd_run_destroy(run);
    }
    CHECK_INT(status, DD_OK);
    dd_topology_fini(&topology);
}

/* ---- failures */

static float numbers[RUN_TEAM_MAX][2][64];

static dd_coll_args
small_all_reduce(int rank, dd_block blocks[2])
{
    blocks[0] = (dd_block){numbers[rank][0], sizeof numbers[rank][0]};
    blocks[1] = (dd_block){numbers[rank][1], sizeof numbers[rank][1]};
    return (dd_coll_args){.coll = DD_COLL_ALL_REDUCE,
                          .reduction = {.dtype = DD_DTYPE_FLOAT32, .op = DD_REDOP_SUM, .divisor = 1},
                          .inputs = &blocks[0],
                          .outputs = &blocks[1]};
}

static const dd_signature sum_signature = {
    .coll = DD_COLL_ALL_REDUCE, .dtype = DD_DTYPE_FLOAT32, .count = 64};

static void
wait_for_no_rank(run_member *self)
{
    dd_block blocks[2];
    dd_coll_args args = small_all_reduce(self->rank, blocks);
    if (self->rank == 0) {
        int missing[RUN_TEAM_MAX];
        run_team_start(self, &args, &sum_signature);
        CHECK_INT(run_team_await_missing(self, self->topology.nranks - 1, missing),
                  self->topology.nranks - 1);
        dd_engine_lock(self->engine);
        CHECK_INT(dd_run_missing_locked(self->run, missing, 1), 1);
        dd_error error;
        (void)dd_error_set(&error, DD_ABORTED, "had enough");
        dd_run_cancel_locked(self->run, &error);
        CHECK(self->run->phase == DD_RUN_IDLE);
        CHECK_INT(dd_run_missing_locked(self->run, missing, RUN_TEAM_MAX), 0);
        dd_run_cancel_locked(self->run, &error);
        dd_engine_unlock(self->engine);
        CHECK_STATUS(run_team_wait(self), DD_ABORTED);
        CHECK_CONTAINS(check_message(), "had enough");
    }
    run_team_meet(self);
}

TEST(cancelling_ends_a_collective_that_waits_for_other_ranks)
{
    run_team_do(&(run_team_options){.nranks = 3}, wait_for_no_rank, NULL);
    run_team_do(&(run_team_options){.nranks = 3, .selection = "flat"}, wait_for_no_rank, NULL);
    run_team_do(&(run_team_options){.nranks = 2, .host_of = {0, 1}}, wait_for_no_rank, NULL);
}

static void
wait_for_other_host(run_member *self)
{
    dd_block blocks[2];
    dd_coll_args args = small_all_reduce(self->rank, blocks);
    int other = self->rank == 0 ? 2 : 0;
    if (self->topology.host == 0) {
        int missing[RUN_TEAM_MAX] = {-1};
        run_team_start(self, &args, &sum_signature);
        for (int i = 0; i < 3 && missing[0] != other; i++) {
            CHECK_INT(run_team_await_missing(self, 1, missing), 1);
        }
        CHECK_INT(missing[0], other);
    }
    run_team_meet(self);
    if (self->topology.host == 0) {
        dd_engine_lock(self->engine);
        dd_error error;
        (void)dd_error_set(&error, DD_ABORTED, "had enough");
        dd_run_cancel_locked(self->run, &error);
        dd_engine_unlock(self->engine);
        CHECK_STATUS(run_team_wait(self), DD_ABORTED);
    }
    run_team_meet(self);
}

TEST(cancelling_ends_a_collective_that_waits_for_another_host)
{
    run_team_do(&(run_team_options){.nranks = 4, .host_of = {0, 0, 1, 1}}, wait_for_other_host, NULL);
}

/* A rank that is notified before it detects the mismatch does not know which rank differs. */
static void
disagree(run_member *self)
{
    dd_block blocks[2];
    dd_coll_args args = small_all_reduce(self->rank, blocks);
    dd_signature signature = sum_signature;
    bool is_odd = self->rank == self->topology.nranks - 1;
    if (is_odd) {
        args.reduction.op = DD_REDOP_MAX;
        signature.redop = DD_REDOP_MAX;
    }
    CHECK_STATUS(run_team_call(self, &args, &signature), DD_MISMATCH);
    dd_arena_mismatch mismatch = dd_run_mismatch(self->run);
    if (mismatch.rank >= 0) {
        CHECK(is_odd ? mismatch.rank != self->rank : mismatch.rank == self->topology.nranks - 1);
        CHECK_INT(mismatch.signature.redop, is_odd ? DD_REDOP_SUM : DD_REDOP_MAX);
        atomic_fetch_add((atomic_int *)self->arg, 1);
    }
    run_team_meet(self);
}

TEST(different_calls_are_a_mismatch)
{
    atomic_int nfound = 0;
    run_team_do(&(run_team_options){.nranks = 2, .host_of = {0, 1}}, disagree, &nfound);
    run_team_do(&(run_team_options){.nranks = 3, .host_of = {0, 0, 1}}, disagree, &nfound);
    CHECK_INT(atomic_load(&nfound), 0);
    run_team_do(&(run_team_options){.nranks = 3}, disagree, &nfound);
    CHECK(atomic_load(&nfound) > 0);
    run_team_do(&(run_team_options){.nranks = 4, .host_of = {0, 0, 1, 1}}, disagree, &nfound);
}

/* Both ranks call with the same signature, but one has a larger block than the other expects. */
static void
send_too_much(run_member *self)
{
    dd_block inputs[2];
    dd_block outputs[2];
    for (int i = 0; i < 2; i++) {
        inputs[i] = (dd_block){numbers[self->rank][0], 16};
        outputs[i] = (dd_block){numbers[self->rank][1] + 32 * i, 16};
    }
    inputs[1 - self->rank].nbytes = self->rank == 0 ? 32 : 16;
    dd_coll_args args = {.coll = DD_COLL_ALL_TO_ALL,
                         .reduction = {.dtype = DD_DTYPE_FLOAT32},
                         .inputs = inputs,
                         .outputs = outputs};
    dd_signature signature = {.coll = DD_COLL_ALL_TO_ALL, .dtype = DD_DTYPE_FLOAT32};
    dd_status status = run_team_call(self, &args, &signature);
    if (self->rank == 1) {
        CHECK_INT(status, DD_MISMATCH);
        CHECK_CONTAINS(check_message(), "32 bytes");
    }
    run_team_meet(self);
}

TEST(blocks_of_different_sizes_are_a_mismatch)
{
    run_team_do(&(run_team_options){.nranks = 2, .host_of = {0, 1}}, send_too_much, NULL);
}

static void
lose_the_last(run_member *self)
{
    dd_block blocks[2];
    dd_coll_args args = small_all_reduce(self->rank, blocks);
    CHECK_OK(run_team_call(self, &args, &sum_signature));
    run_team_meet(self);
    if (self->rank == self->topology.nranks - 1) {
        dd_error error;
        (void)dd_error_set(&error, DD_ABORTED, "out of here");
        dd_cause cause = dd_cause_of_error(&error, self->rank);
        dd_engine_lock(self->engine);
        dd_context_post_abort_locked(self->context, DD_ANY_RANK, false, &cause);
        dd_engine_unlock(self->engine);
        run_team_die(self);
    } else {
        CHECK_STATUS(run_team_call(self, &args, &sum_signature), DD_ABORTED);
        CHECK_CONTAINS(check_message(), "out of here");
    }
}

TEST(an_abort_is_reported_even_if_the_aborting_rank_then_dies)
{
    run_team_do(&(run_team_options){.nranks = 2, .host_of = {0, 1}}, lose_the_last, NULL);
    run_team_do(&(run_team_options){.nranks = 3, .host_of = {0, 1, 2}}, lose_the_last, NULL);
}
