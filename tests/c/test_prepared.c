/* Calls that are created once and started repeatedly. */
#include "check.h"
#include "core/mem.h"
#include "core/thread.h"
#include "faults/faults.h"
#include "group_case.h"
#include "observe/recorder.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void
doze(int64_t duration_ns)
{
    dd_wait wait = dd_wait_after(duration_ns);
    CHECK_OK(dd_wait_sleep(&wait, duration_ns, check_err()));
}

static dd_status
wait_for(dd_prepared_call *call)
{
    dd_wait wait = dd_wait_after(60 * DD_NS_PER_S * check_slow());
    return dd_prepared_wait(call, &wait, check_err());
}

static dd_status
run(dd_prepared_call *call)
{
    dd_status status = team_start(call);
    return status == DD_OK ? wait_for(call) : status;
}

/* A sum of float32, in place. */
typedef struct sum {
    float *values;
    size_t count;
    dd_prepared_call *call;
} sum;

static dd_coll_args
args_of(const dd_block *block)
{
    return (dd_coll_args){.coll = DD_COLL_ALL_REDUCE,
                          .reduction = {.dtype = DD_DTYPE_FLOAT32, .op = DD_REDOP_SUM},
                          .inputs = block,
                          .outputs = block};
}

static bool
sum_init_with(sum *self, dd_group *group, size_t count, const dd_call_options *options)
{
    self->values = calloc(count, sizeof(float));
    self->count = count;
    dd_block block = {.data = self->values, .nbytes = count * sizeof(float)};
    dd_coll_args args = args_of(&block); /* it goes out of scope before the call is started */
    return CHECK_OK(dd_group_prepare_call(group, &args, options, &self->call, check_err()));
}

static bool
sum_init(sum *self, dd_group *group, size_t count)
{
    return sum_init_with(self, group, count, &team_no_options);
}

static void
sum_fini(sum *self)
{
    CHECK(!dd_prepared_destroy(self->call, NULL, NULL));
    free(self->values);
}

static void
sum_fill(sum *self, float value)
{
    for (size_t i = 0; i < self->count; i++) {
        self->values[i] = value + (float)(i % 5);
    }
}

static bool
sum_check(const sum *self, const team_rank *rank, float total)
{
    bool is_right = true;
    for (size_t i = 0; i < self->count; i++) {
        is_right = is_right && self->values[i] == total + (float)rank->size * (float)(i % 5);
    }
    return CHECK(is_right);
}

/* ---- behaviour common to all calls */

typedef struct matrix_arg {
    unsigned prepared_ranks;
    bool is_linear;
} matrix_arg;

static void
run_matrix(team_rank *self)
{
    static const size_t sizes[] = {0, 8, 96, 4096, 70001};
    const matrix_arg *arg = self->arg;
    for (int coll = 0; coll < DD_COLL_COUNT && check_failures() == 0; coll++) {
        for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
            coll_case test = case_sample(4000 + i, (dd_coll)coll, sizes[i], self->size);
            test.prepared_ranks = arg->prepared_ranks;
            uint64_t hash;
            case_run(self, &test, arg->is_linear, &hash);
        }
    }
}

static void
run_matrices(team_options options, bool is_linear)
{
    static const int teams[] = {1, 2, 3, 4, 5, 8};
    for (size_t i = 0; i < sizeof teams / sizeof teams[0]; i++) {
        options.size = teams[i];
        matrix_arg all = {.prepared_ranks = ~0U, .is_linear = is_linear};
        team_run(&options, run_matrix, &all);
        if (teams[i] <= 4) {
            matrix_arg some = {.prepared_ranks = 0x5, .is_linear = is_linear};
            team_run(&options, run_matrix, &some);
        }
    }
}

TEST(every_prepared_collective_by_shared_memory_is_correct)
{
    run_matrices((team_options){0}, true);
}

TEST(every_prepared_collective_by_messages_is_correct)
{
    run_matrices((team_options){.algorithms = "flat"}, false);
}

TEST(every_prepared_collective_between_hosts_is_correct)
{
    run_matrices((team_options){.single_ranks = 0x52}, false);
}

/* ---- repeated starts */

static void
repeat(team_rank *self)
{
    static const size_t counts[] = {1, 20, 1000, 40000};
    sum sums[4];
    for (size_t i = 0; i < 4; i++) {
        REQUIRE(sum_init(&sums[i], self->group, counts[i]));
        CHECK(dd_work_is_done(dd_prepared_work(sums[i].call)));
        CHECK_OK(wait_for(sums[i].call)); /* returns immediately */
    }
    float total = (float)(self->size * (self->size - 1)) / 2;
    for (int round = 0; round < 50 && check_failures() == 0; round++) {
        sum *each = &sums[round % 4];
        sum_fill(each, (float)(self->rank + round));
        CHECK_OK(run(each->call));
        sum_check(each, self, total + (float)(self->size * round));
        if (round % 7 == 0) {
            CHECK(team_check_sum(self->group));
        }
    }
    CHECK_INT(dd_group_sequence(self->group), 50 + 8);
    for (size_t i = 0; i < 4; i++) {
        sum_fini(&sums[i]);
    }
}

TEST(a_prepared_call_can_be_started_many_times)
{
    for (int size = 1; size <= 4; size++) {
        team_options options = {.size = size};
        team_run_both(&options, repeat, NULL);
    }
}

static void
count_block(void *ctx)
{
    ++*(int *)ctx;
}

/* Start calls as an interpreter does. */
static void
start_and_poll(team_rank *self)
{
    sum small;
    sum large;
    int nblocked = 0;
    int nslow = 0;
    dd_wait wait = dd_wait_after(60 * DD_NS_PER_S * check_slow());
    wait.on_block = count_block;
    wait.ctx = &nblocked;
    REQUIRE(sum_init(&small, self->group, 2));
    REQUIRE(sum_init(&large, self->group, 100000));
    sum_fill(&large, 1);
    CHECK_OK(dd_prepared_start(&large.call, 1, true, &wait, check_err()));
    CHECK(nblocked > 0); /* takes longer */
    CHECK_OK(dd_prepared_wait(large.call, &wait, check_err()));
    sum_check(&large, self, (float)self->size);
    bool is_quick = !self->options->is_shm_disabled || self->size == 1;
    for (int round = 0; round < 300 && check_failures() == 0; round++) {
        nblocked = 0;
        sum_fill(&small, (float)round);
        CHECK_OK(dd_prepared_start(&small.call, 1, round % 2 == 0, &wait, check_err()));
        CHECK(is_quick || nblocked > 0);
        if (!dd_prepared_poll(small.call)) {
            nblocked = 0;
            CHECK_OK(dd_prepared_wait(small.call, &wait, check_err()));
        } else {
            nslow += nblocked > 0;
        }
        CHECK(dd_prepared_poll(small.call));
        sum_check(&small, self, (float)(round * self->size));
    }
    CHECK(self->size > 1 ||
          nslow < 150); /* a single rank waits for no other rank, but sometimes for a lock */
    sum_fini(&small);
    sum_fini(&large);
}

TEST(small_prepared_calls_complete_without_blocking)
{
    for (int size = 1; size <= 3; size++) {
        team_options options = {.size = size};
        team_run_both(&options, start_and_poll, NULL);
    }
}

/* ---- several calls */

#define NSUMS 16

static void
start_several(team_rank *self)
{
    sum sums[NSUMS];
    dd_prepared_call *calls[NSUMS + 1];
    for (int i = 0; i < NSUMS; i++) {
        REQUIRE(sum_init(&sums[i], self->group, i % 4 == 3 ? 20000 : 3));
        calls[i] = sums[i].call;
    }
    for (int round = 0; round < 5 && check_failures() == 0; round++) {
        for (int i = 0; i < NSUMS; i++) {
            sum_fill(&sums[i], (float)i);
        }
        CHECK_OK(dd_prepared_start(calls, NSUMS, false, &team_no_wait, check_err()));
        for (int i = NSUMS - 1; i >= 0; i--) { /* in any order */
            CHECK_OK(wait_for(calls[i]));
            sum_check(&sums[i], self, (float)(i * self->size));
        }
    }
    uint64_t before = dd_group_sequence(self->group);
    calls[NSUMS] = calls[3];
    CHECK_STATUS(dd_prepared_start(calls, NSUMS + 1, false, &team_no_wait, check_err()), DD_INVALID_ARGUMENT);
    CHECK_CONTAINS(check_message(), "all_reduce: appears twice");
    CHECK_INT(dd_group_sequence(self->group), before);
    CHECK_OK(dd_prepared_start(calls, 0, false, &team_no_wait, check_err()));
    CHECK_OK(dd_prepared_start(calls, NSUMS, false, &team_no_wait, check_err()));
    for (int i = 0; i < NSUMS; i++) {
        CHECK_OK(wait_for(calls[i]));
        sum_fini(&sums[i]);
    }
}

TEST(several_prepared_calls_can_be_started_together)
{
    for (int size = 1; size <= 3; size++) {
        team_options options = {.size = size};
        team_run_both(&options, start_several, NULL);
    }
}

static void
start_twice(team_rank *self)
{
    sum first;
    sum second;
    REQUIRE(sum_init(&first, self->group, 1) && sum_init(&second, self->group, 1));
    dd_prepared_call *both[] = {second.call, first.call};
    if (self->rank == 0) {
        CHECK_OK(team_start(first.call));
        CHECK_STATUS(team_start(first.call), DD_INVALID_ARGUMENT);
        CHECK_CONTAINS(check_message(),
                       "all_reduce #1 is still running: wait for it before you start it again");
        CHECK_STATUS(dd_prepared_start(both, 2, false, &team_no_wait, check_err()), DD_INVALID_ARGUMENT);
        CHECK(dd_work_is_done(dd_prepared_work(second.call))); /* not started */
    }
    team_rendezvous(self, "tried");
    CHECK_OK(self->rank == 0 ? wait_for(first.call) : run(first.call));
    CHECK_OK(run(second.call));
    sum_fini(&first);
    sum_fini(&second);
}

TEST(a_pending_prepared_call_cannot_be_started_again)
{
    team_options options = {.size = 2};
    team_run_both(&options, start_twice, NULL);
}

/* ---- failures */

static void
disagree(team_rank *self)
{
    sum several[3];
    dd_prepared_call *calls[3];
    for (int i = 0; i < 3; i++) {
        REQUIRE(sum_init(&several[i], self->group, i == 1 && self->rank == 1 ? 2 : 1));
        calls[i] = several[i].call;
    }
    CHECK_OK(dd_prepared_start(calls, 3, false, &team_no_wait, check_err()));
    CHECK_OK(wait_for(calls[0]));
    for (int i = 1; i < 3; i++) {
        CHECK_STATUS(wait_for(calls[i]), DD_MISMATCH);
        CHECK_CONTAINS(check_message(), "1 elements");
        CHECK_CONTAINS(check_message(), "2 elements");
        CHECK_STATUS(team_start(calls[i]), DD_MISMATCH);
        CHECK_CONTAINS(check_message(), "the group has failed before");
    }
    team_rendezvous(self, "notified");
    for (int i = 0; i < 3; i++) {
        sum_fini(&several[i]);
    }
}

TEST(different_prepared_calls_are_a_mismatch)
{
    team_options options = {.size = 2};
    team_run_both(&options, disagree, NULL);
}

static void
be_late(team_rank *self)
{
    sum late;
    dd_call_options options = {.timeout_ns = 60 * DD_NS_PER_MS};
    REQUIRE(sum_init_with(&late, self->group, 1, &options));
    if (self->rank == 0) {
        CHECK_OK(team_start(late.call));
        dd_wait shortly = dd_wait_after(5 * DD_NS_PER_MS);
        CHECK_STATUS(dd_prepared_wait(late.call, &shortly, check_err()), DD_OP_TIMED_OUT);
        CHECK_CONTAINS(check_message(), "is still under way");
        CHECK_STATUS(wait_for(late.call), DD_OP_TIMED_OUT);
        CHECK_CONTAINS(check_message(), "rank 1 has not arrived");
    }
    team_rendezvous(self, "late");
    sum_fini(&late);
}

TEST(every_start_of_a_prepared_call_has_a_timeout)
{
    team_options options = {.size = 2};
    team_run_both(&options, be_late, NULL);
}

static void *
abort_soon(void *arg)
{
    team_rank *self = arg;
    doze(20 * DD_NS_PER_MS);
    dd_group_abort(self->group, "enough");
    return NULL;
}

static void
be_aborted(team_rank *self)
{
    sum aborted;
    REQUIRE(sum_init(&aborted, self->group, 1));
    team_rendezvous(self, "made");
    if (self->rank == 0) {
        pthread_t thread;
        CHECK_OK(dd_thread_start(&thread, "abort", abort_soon, self, check_err()));
        CHECK_STATUS(run(aborted.call), DD_ABORTED);
        CHECK_CONTAINS(check_message(), "enough");
        CHECK_STATUS(wait_for(aborted.call), DD_ABORTED); /* still fails */
        CHECK_STATUS(team_start(aborted.call), DD_ABORTED);
        pthread_join(thread, NULL);
        dd_block block = {.data = aborted.values, .nbytes = sizeof(float)};
        dd_coll_args args = args_of(&block);
        dd_prepared_call *more = NULL;
        CHECK_STATUS(dd_group_prepare_call(self->group, &args, &team_no_options, &more, check_err()),
                     DD_ABORTED);
    }
    team_rendezvous(self, "aborted");
    sum_fini(&aborted);
}

TEST(an_abort_ends_a_prepared_call)
{
    team_options options = {.size = 2};
    team_run_both(&options, be_aborted, NULL);
}

static bool
is_late_enough(void *ctx)
{
    return dd_clock_now_ns() > *(int64_t *)ctx;
}

static void
be_interrupted(team_rank *self)
{
    sum one;
    REQUIRE(sum_init(&one, self->group, 1));
    one.values[0] = 1;
    if (self->rank == 0) {
        int64_t moment_ns = dd_clock_now_ns() + 20 * DD_NS_PER_MS;
        dd_wait wait = dd_wait_after(30 * DD_NS_PER_S);
        wait.is_interrupted = is_late_enough;
        wait.ctx = &moment_ns;
        CHECK_OK(team_start(one.call));
        CHECK_STATUS(dd_prepared_wait(one.call, &wait, check_err()), DD_INTERRUPTED);
    }
    team_rendezvous(self, "interrupted");
    CHECK_OK(self->rank == 0 ? wait_for(one.call) : run(one.call)); /* the call has continued */
    CHECK_INT(one.values[0], 2);
    sum_fini(&one);
}

TEST(a_prepared_call_can_be_waited_for_again_after_an_interrupt)
{
    team_options options = {.size = 2};
    team_run_both(&options, be_interrupted, NULL);
}

typedef struct sleeper {
    pthread_t thread;
    dd_prepared_call *call;
    int64_t end_ns;
} sleeper;

static void *
sleep_until_done(void *arg)
{
    sleeper *self = arg;
    CHECK_OK(wait_for(self->call));
    self->end_ns = dd_clock_now_ns();
    return NULL;
}

/* Rank 0 polls once while another of its threads sleeps; then rank 1 starts, and the sleeping
 * thread must wake. */
static void
look_past_sleeper(team_rank *self)
{
    _Atomic int64_t *started_ns = self->arg;
    int nlate = 0;
    sum one;
    REQUIRE(sum_init(&one, self->group, 1));
    for (int round = 0; round < 3; round++) {
        const char *const names[] = {"looked 0", "looked 1", "looked 2"};
        sleeper waiting = {.call = one.call};
        if (self->rank == 0) {
            CHECK_OK(team_start(one.call));
            REQUIRE_OK(dd_thread_start(&waiting.thread, "sleeper", sleep_until_done, &waiting, check_err()));
            doze(5 * DD_NS_PER_MS);
            CHECK(!dd_prepared_poll(one.call));
        }
        team_rendezvous(self, names[round]);
        if (self->rank == 1) {
            atomic_store(started_ns, dd_clock_now_ns());
            CHECK_OK(run(one.call));
        } else {
            pthread_join(waiting.thread, NULL);
            nlate += waiting.end_ns - atomic_load(started_ns) > 20 * DD_NS_PER_MS * check_slow();
        }
    }
    CHECK(nlate <= 1); /* the machine may be busy once */
    sum_fini(&one);
}

TEST(polling_a_prepared_call_does_not_keep_a_sleeping_thread_from_waking)
{
    _Atomic int64_t started_ns = 0;
    team_options options = {.size = 2};
    team_run(&options, look_past_sleeper, &started_ns);
}

static void
close_under_way(team_rank *self)
{
    sum one;
    REQUIRE(sum_init(&one, self->group, 1));
    if (self->rank == 0) {
        CHECK_OK(team_start(one.call));
        dd_wait wait = dd_wait_after(20 * DD_NS_PER_MS);
        CHECK_STATUS(dd_group_close(self->group, &wait, check_err()), DD_OP_TIMED_OUT);
        CHECK_STATUS(wait_for(one.call), DD_CLOSED);
        CHECK_STATUS(team_start(one.call), DD_CLOSED);
    }
    team_rendezvous(self, "closed");
    sum_fini(&one);
}

TEST(closing_the_group_ends_a_prepared_call)
{
    team_options options = {.size = 2};
    team_run_both(&options, close_under_way, NULL);
}

/* ---- completion */

static void
note_done(dd_work *work, void *ctx)
{
    CHECK_INT(work->error.code, DD_OK);
    atomic_store((atomic_bool *)ctx, true);
}

static void
destroy_under_way(team_rank *self)
{
    atomic_bool is_done = false;
    sum one;
    REQUIRE(sum_init(&one, self->group, *(size_t *)self->arg));
    sum_fill(&one, 1);
    if (self->rank == 0) {
        CHECK_OK(team_start(one.call));
        CHECK(dd_prepared_destroy(one.call, note_done, &is_done));
        CHECK(!atomic_load(&is_done));
    }
    team_rendezvous(self, "destroyed");
    if (self->rank == 0) {
        while (!atomic_load(&is_done)) { /* limited by the test's alarm */
            doze(DD_NS_PER_MS);
        }
        sum_check(&one, self, 2);
        free(one.values);
    } else {
        CHECK_OK(run(one.call));
        sum_fini(&one);
    }
    CHECK(team_check_sum(self->group));
}

TEST(a_prepared_call_destroyed_while_pending_still_completes)
{
    static const size_t counts[] = {1, 50000};
    for (size_t i = 0; i < 2; i++) {
        size_t count = counts[i];
        team_options options = {.size = 2};
        team_run_both(&options, destroy_under_way, &count);
    }
}

static void
refuse(team_rank *self)
{
    float x[2];
    dd_block input = {.data = x, .nbytes = 4};
    dd_block output = {.data = x, .nbytes = 8};
    dd_coll_args args = args_of(&input);
    args.outputs = &output;
    dd_prepared_call *call = NULL;
    CHECK_STATUS(dd_group_prepare_call(self->group, &args, &team_no_options, &call, check_err()),
                 DD_INVALID_ARGUMENT);
    args.outputs = &input;
    dd_record_call record = {.name = "all_reduce"};
    dd_call_options options = {.timeout_ns = -1, .record = &record};
    dd_status status = DD_OUT_OF_MEMORY;
    for (long nth = 0; status != DD_OK && nth < 10; nth++) {
        (void)dd_mem_fail_after(nth);
        status = dd_group_prepare_call(self->group, &args, &options, &call, check_err());
        (void)dd_mem_fail_after(-1);
        CHECK(status == DD_OK || status == DD_OUT_OF_MEMORY);
    }
    CHECK_OK(status);
    CHECK(!dd_prepared_destroy(call, NULL, NULL));
    CHECK(!dd_prepared_destroy(NULL, NULL, NULL));
}

TEST(invalid_prepared_calls_are_refused)
{
    team_options options = {.size = 1};
    team_run(&options, refuse, NULL);
}

/* ---- the recorder */

static void
be_recorded(team_rank *self)
{
    dd_recorder *recorder = ((dd_recorder **)self->arg)[self->rank];
    dd_recorder_group *group = NULL;
    dd_recorder_group_info info = {
        .name = BYTES("0"), .desc = BYTES("default_pg"), .kind = "gloo", .size = 2};
    REQUIRE_OK(dd_recorder_add_group(recorder, &info, &group, check_err()));
    dd_group_set_recorder(self->group, group);
    const int64_t shape[] = {7};
    dd_record_tensor tensor = {.dtype = DD_DTYPE_FLOAT32, .ndim = 1, .shape = shape};
    dd_record_call record = {
        .name = "all_reduce", .inputs = &tensor, .outputs = &tensor, .ninputs = 1, .noutputs = 1};
    dd_call_options options = {.timeout_ns = 5 * DD_NS_PER_S, .record = &record};
    sum one;
    REQUIRE(sum_init_with(&one, self->group, 7, &options));
    memset(&record, 0, sizeof record); /* it was copied */
    for (int i = 0; i < 3; i++) {
        CHECK_OK(run(one.call));
    }
    dd_dump_options dump = {.format = DD_DUMP_JSON, .has_entries = true};
    dd_blob blob = {0};
    CHECK_OK(dd_recorder_dump(recorder, &dump, &blob, check_err()));
    CHECK_OK(dd_blob_append(&blob, "", 1, check_err()));
    const char *text = (const char *)blob.data;
    CHECK_CONTAINS(text, "\"collective_seq_id\":3");
    CHECK_CONTAINS(text, "\"input_sizes\":[[7]]");
    CHECK_CONTAINS(text, "\"state\":\"completed\"");
    CHECK_CONTAINS(text, "\"timeout_ms\":5000");
    dd_recorder_status status;
    dd_recorder_group_status(group, &status);
    CHECK_INT(status.completed.number, 3);
    dd_blob_fini(&blob);
    sum_fini(&one);
    dd_recorder_group_release(group);
}

TEST(every_start_of_a_prepared_call_is_recorded)
{
    dd_recorder *recorders[2];
    for (int i = 0; i < 2; i++) {
        REQUIRE_OK(dd_recorder_create(100, &recorders[i], check_err()));
    }
    team_options options = {.size = 2};
    team_run(&options, be_recorded, recorders);
    for (int i = 0; i < 2; i++) {
        dd_recorder_destroy(recorders[i]);
    }
}
