/* Plans built by hand, run over real contexts. test_run.c runs the plans of builders. */
#include "check.h"
#include "collective/plan_internal.h"
#include "core/lock.h"
#include "core/mem.h"
#include "faults/faults.h"
#include "run_team.h"

#include <stdlib.h>
#include <string.h>

typedef struct outcome {
    int nnotified;
    dd_error error; /* its code is DD_OK on success */
} outcome;

static void
on_done(void *ctx, const dd_error *error)
{
    outcome *end = ctx;
    end->nnotified++;
    end->error.code = DD_OK;
    if (error != NULL) {
        end->error = *error;
    }
}

static dd_plan_range
range(dd_plan_buffer buffer, size_t offset, size_t nbytes)
{
    return (dd_plan_range){.buffer = buffer, .block = 0, .offset = offset, .nbytes = nbytes};
}

static dd_builder
start_plan(const dd_coll_args *args, int rank, dd_plan *plan, dd_error *err)
{
    dd_plan_task task = {.rank = rank, .nranks = 3, .args = args, .segment_nbytes = 64};
    return dd_builder_start(&task, plan, err);
}

/* Compute out = (in -> scratch) + in, then double it in place: three dependent steps. */
static dd_status
build_doubling(dd_plan *plan, size_t nbytes, dd_error *err)
{
    dd_coll_args args = {.coll = DD_COLL_ALL_REDUCE, .reduction = {.dtype = DD_DTYPE_INT32}};
    dd_builder builder = start_plan(&args, 0, plan, err);
    dd_plan_range in = range(DD_PLAN_INPUT, 0, nbytes);
    dd_plan_range out = range(DD_PLAN_OUTPUT, 0, nbytes);
    dd_plan_range aside = dd_builder_add_scratch(&builder, nbytes);
    dd_builder_copy(&builder, in, aside);
    dd_builder_fold(&builder, DD_STAGE_MIDDLE, out);
    dd_builder_add_source(&builder, aside);
    dd_builder_add_source(&builder, in);
    dd_builder_fold(&builder, DD_STAGE_MIDDLE, out);
    dd_builder_add_source(&builder, out);
    dd_builder_add_source(&builder, out);
    return dd_builder_finish(&builder);
}

/* Stands for the engine's lock in tests without an engine. */
static dd_lock lock = DD_LOCK_INITIALIZER(DD_LOCK_ENGINE);

/* Run one of the waiting steps. */
static bool
do_a_step(dd_plan_run *run)
{
    uint32_t step;
    if (!dd_plan_run_take_step_locked(run, &step)) {
        return false;
    }
    dd_plan_run_do_step(run, step);
    dd_plan_run_end_step_locked(run, step);
    return true;
}

/* Run the plan on `count` numbers, and return the number of steps that were waiting. */
static int
run_doubling(dd_plan_run *run, size_t count)
{
    int32_t *in = calloc(count, sizeof *in);
    int32_t *out = calloc(count, sizeof *out);
    void *scratch = malloc(dd_plan_run_scratch_nbytes(run));
    for (size_t i = 0; i < count; i++) {
        in[i] = (int32_t)i;
    }
    dd_block blocks[] = {{in, count * sizeof *in}, {out, count * sizeof *out}};
    dd_coll_args args = {.coll = DD_COLL_ALL_REDUCE,
                         .reduction = {.dtype = DD_DTYPE_INT32, .op = DD_REDOP_SUM, .divisor = 1},
                         .inputs = &blocks[0],
                         .outputs = &blocks[1]};
    outcome end = {0};
    dd_plan_run_options options = {.scratch = scratch, .on_done = on_done, .ctx = &end};
    dd_plan_run_start_locked(run, &args, &options);
    int ncalls = 0;
    while (end.nnotified == 0 && ncalls < 10) {
        CHECK(dd_plan_run_is_busy_locked(run));
        CHECK(do_a_step(run));
        ncalls++;
    }
    CHECK(!do_a_step(run));
    CHECK_INT(end.nnotified, 1);
    CHECK_INT(end.error.code, DD_OK);
    CHECK_INT(out[0], 0);
    CHECK_INT(out[count - 1], 4 * ((int32_t)count - 1));
    free(scratch);
    free(in);
    free(out);
    return ncalls;
}

TEST(local_steps_of_a_plan_run_after_the_steps_that_they_depend_on)
{
    dd_plan plan = {0};
    dd_plan_run *run = NULL;
    REQUIRE_OK(build_doubling(&plan, 400, check_err()));
    REQUIRE_OK(dd_plan_run_create(&plan, &run, check_err()));
    CHECK(plan.steps == NULL && plan.nsteps == 0);
    CHECK_INT(dd_plan_run_scratch_nbytes(run), 448); /* whole cache lines */
    CHECK(dd_plan_run_nbytes(run) > 400);
    dd_lock_take(&lock);
    CHECK_INT(run_doubling(run, 100), 0);
    CHECK_INT(run_doubling(run, 100), 0);
    dd_lock_release(&lock);
    dd_plan_run_destroy(run);
}

TEST(large_local_steps_of_a_plan_run_one_after_another)
{
    dd_plan plan = {0};
    dd_plan_run *run = NULL;
    REQUIRE_OK(build_doubling(&plan, (size_t)1 << 20, check_err()));
    REQUIRE_OK(dd_plan_run_create(&plan, &run, check_err()));
    dd_lock_take(&lock);
    CHECK_INT(run_doubling(run, (size_t)1 << 18), 3);
    CHECK_INT(run_doubling(run, (size_t)1 << 18), 3);
    dd_lock_release(&lock);
    dd_plan_run_destroy(run);
}

TEST(an_empty_plan_completes_immediately)
{
    dd_plan plan = {0};
    dd_plan_run *run = NULL;
    outcome end = {0};
    REQUIRE_OK(dd_plan_run_create(&plan, &run, check_err()));
    dd_plan_run_options options = {.on_done = on_done, .ctx = &end};
    dd_coll_args args = {.coll = DD_COLL_BARRIER};
    dd_lock_take(&lock);
    dd_plan_run_start_locked(run, &args, &options);
    CHECK_INT(end.nnotified, 1);
    dd_error error;
    (void)dd_error_set(&error, DD_ABORTED, "too late");
    dd_plan_run_cancel_locked(run, &error);
    CHECK_INT(end.nnotified, 1);
    CHECK_INT(dd_plan_run_missing_locked(run, NULL, 0), 0);
    dd_lock_release(&lock);
    dd_plan_run_destroy(run);
    dd_plan_run_destroy(NULL);
}

TEST(a_plan_cancelled_between_two_steps_ends_once)
{
    dd_plan plan = {0};
    dd_plan_run *run = NULL;
    size_t nbytes = (size_t)1 << 18;
    REQUIRE_OK(build_doubling(&plan, nbytes, check_err()));
    REQUIRE_OK(dd_plan_run_create(&plan, &run, check_err()));
    dd_block block = {calloc(1, nbytes), nbytes};
    dd_coll_args args = {.coll = DD_COLL_ALL_REDUCE,
                         .reduction = {.dtype = DD_DTYPE_INT32, .op = DD_REDOP_SUM, .divisor = 1},
                         .inputs = &block,
                         .outputs = &block};
    outcome end = {0};
    dd_plan_run_options options = {.scratch = calloc(1, nbytes), .on_done = on_done, .ctx = &end};
    dd_lock_take(&lock);
    dd_plan_run_start_locked(run, &args, &options);
    CHECK(do_a_step(run));
    CHECK_INT(end.nnotified, 0);
    dd_error error;
    (void)dd_error_set(&error, DD_ABORTED, "had enough");
    dd_plan_run_cancel_locked(run, &error);
    CHECK_INT(end.nnotified, 1);
    CHECK_INT(end.error.code, DD_ABORTED);
    CHECK(!dd_plan_run_is_busy_locked(run));
    CHECK(!do_a_step(run));
    dd_lock_release(&lock);
    free(options.scratch);
    free(block.data);
    dd_plan_run_destroy(run);
}

TEST(preparing_to_run_a_plan_returns_an_error_when_allocations_fail)
{
    dd_plan plan = {0};
    REQUIRE_OK(build_doubling(&plan, 400, check_err()));
    dd_status status = DD_OUT_OF_MEMORY;
    int nfailures = 0;
    dd_plan_run *run = NULL;
    for (; status == DD_OUT_OF_MEMORY && nfailures < 10; nfailures++) {
        (void)dd_mem_fail_after(nfailures);
        status = dd_plan_run_create(&plan, &run, NULL);
        (void)dd_mem_fail_after(-1);
        CHECK(status == DD_OK || plan.nsteps == 3);
    }
    CHECK_INT(status, DD_OK);
    CHECK_INT(nfailures, 2);
    dd_plan_run_destroy(run);
}

/* ---- messages */

typedef struct letterbox {
    run_member *self;
    atomic_bool is_done;
    dd_status status;
} letterbox;

static void
on_messages_done(void *ctx, const dd_error *error)
{
    letterbox *box = ctx;
    box->status = error != NULL ? error->code : DD_OK;
    atomic_store_explicit(&box->is_done, true, memory_order_release);
}

/* Send back and forth between ranks 0 and 1 of the plan, many times: received data is sent back,
 * one step after the other. */
static dd_status
build_ping_pong(dd_plan *plan, int rank, size_t nbytes, dd_error *err)
{
    enum { NTURNS = 20 };
    dd_coll_args args = {.coll = DD_COLL_BROADCAST};
    dd_builder builder = start_plan(&args, rank, plan, err);
    uint32_t before = DD_NO_STEP;
    for (uint32_t turn = 0; turn < NTURNS; turn++) {
        dd_plan_range label = range(turn == 0 && rank == 0 ? DD_PLAN_INPUT : DD_PLAN_OUTPUT, 0, nbytes);
        bool is_sender = (int)(turn % 2) == rank;
        uint32_t step = (is_sender ? dd_builder_send : dd_builder_recv)(&builder, 1 - rank, turn, label);
        dd_builder_after(&builder, step, before);
        before = step;
    }
    return dd_builder_finish(&builder);
}

static dd_status
play(run_member *self, dd_plan_run *run, dd_block blocks[2], const int *ranks, uint64_t sequence)
{
    letterbox box = {.self = self};
    dd_coll_args args = {.coll = DD_COLL_BROADCAST, .inputs = &blocks[0], .outputs = &blocks[1]};
    dd_plan_run_options options = {.context = self->context,
                                   .ranks = ranks,
                                   .sequence = sequence,
                                   .signature = {.coll = DD_COLL_BROADCAST},
                                   .on_done = on_messages_done,
                                   .ctx = &box};
    dd_engine_lock(self->engine);
    dd_plan_run_start_locked(run, &args, &options);
    dd_engine_unlock(self->engine);
    dd_wait wait = dd_wait_after(10 * DD_NS_PER_S * check_slow());
    CHECK_OK(dd_engine_wait(self->engine, &box.is_done, &wait, check_err()));
    return box.status;
}

/* Ranks 2 and 1 of the team are ranks 0 and 1 of the plan. */
static void
ping_pong(run_member *self)
{
    static const int ranks[] = {2, 1};
    size_t nbytes = *(const size_t *)self->arg;
    int rank = self->rank == 2 ? 0 : 1;
    dd_plan plan = {0};
    dd_plan_run *run = NULL;
    if (self->rank > 0 && CHECK_OK(build_ping_pong(&plan, rank, nbytes, check_err())) &&
        CHECK_OK(dd_plan_run_create(&plan, &run, check_err()))) {
        dd_block blocks[2] = {{malloc(nbytes), nbytes}, {calloc(1, nbytes), nbytes}};
        for (int turn = 1; turn < 4; turn++) {
            memset(blocks[0].data, turn, nbytes);
            CHECK_INT(play(self, run, blocks, ranks, (uint64_t)turn), DD_OK);
            const char *bytes = blocks[1].data;
            CHECK(bytes[0] == turn && bytes[nbytes - 1] == turn);
        }
        free(blocks[0].data);
        free(blocks[1].data);
    }
    dd_plan_fini(&plan);
    run_team_meet(self);
    dd_plan_run_destroy(run);
}

TEST(messages_of_a_plan_arrive_in_both_directions)
{
    size_t small = 8;
    size_t large = (size_t)3 << 20;
    run_team_do(&(run_team_options){.nranks = 3, .host_of = {0, 1, 2}}, ping_pong, &small);
    run_team_do(&(run_team_options){.nranks = 3, .host_of = {0, 1, 2}}, ping_pong, &large);
    run_team_do(&(run_team_options){.nranks = 3}, ping_pong, &small);
}

/* Two receives without a send, and a send whose receive is not posted yet. */
static void
wait_in_vain(run_member *self)
{
    static char bytes[3][1 << 20];
    if (self->rank == 0) {
        dd_plan plan = {0};
        dd_plan_run *run = NULL;
        dd_coll_args barrier = {.coll = DD_COLL_BARRIER}; /* its messages may be empty */
        dd_builder builder = start_plan(&barrier, 0, &plan, check_err());
        dd_builder_recv(&builder, 1, 0, range(DD_PLAN_OUTPUT, 0, sizeof bytes[0]));
        dd_builder_recv(&builder, 1, 1, range(DD_PLAN_OUTPUT, 0, 0));
        dd_builder_send(&builder, 2, 0, range(DD_PLAN_INPUT, 0, sizeof bytes[1]));
        CHECK_OK(dd_builder_finish(&builder));
        REQUIRE_OK(dd_plan_run_create(&plan, &run, check_err()));
        outcome end = {0};
        dd_block blocks[] = {{bytes[1], sizeof bytes[1]}, {bytes[0], sizeof bytes[0]}};
        dd_coll_args args = {.coll = DD_COLL_BROADCAST, .inputs = &blocks[0], .outputs = &blocks[1]};
        dd_plan_run_options options = {
            .context = self->context, .sequence = 1, .on_done = on_done, .ctx = &end};
        dd_error error;
        int missing[4] = {-1, -1, -1, -1};
        (void)dd_error_set(&error, DD_ABORTED, "had enough");
        dd_engine_lock(self->engine);
        dd_plan_run_start_locked(run, &args, &options);
        CHECK_INT(dd_plan_run_missing_locked(run, missing, 4), 1);
        CHECK_INT(missing[0], 1);
        dd_plan_run_cancel_locked(run, &error);
        CHECK_INT(end.nnotified, 1);
        CHECK_INT(dd_plan_run_missing_locked(run, missing, 4), 0);
        dd_engine_unlock(self->engine);
        CHECK_INT(end.error.code, DD_ABORTED);
        dd_plan_run_destroy(run);
    }
    run_team_meet(self);
}

TEST(cancelling_a_plan_withdraws_its_pending_messages)
{
    run_team_do(&(run_team_options){.nranks = 3, .host_of = {0, 1, 2}}, wait_in_vain, NULL);
}
