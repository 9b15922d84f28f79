/* Failures in groups with a carrier. */
#include "carry_team.h"
#include "check.h"
#include "core/mem.h"
#include "faults/faults.h"
#include "group/extension.h"
#include "transport/engine.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- ranks that disagree */

typedef struct two_calls {
    dd_coll colls[2]; /* of rank 0, and of the other ranks */
    dd_dtype dtypes[2];
    dd_redop ops[2];
    int roots[2];
    size_t nbytes[2];
} two_calls;

static const two_calls pairs[] = {
    {{DD_COLL_ALL_REDUCE, DD_COLL_BARRIER}, {DD_DTYPE_INT32, DD_DTYPE_INT32}, {0, 0}, {0, 0}, {48, 48}},
    {{DD_COLL_BROADCAST, DD_COLL_ALL_TO_ALL}, {DD_DTYPE_INT32, DD_DTYPE_INT32}, {0, 0}, {0, 0}, {48, 48}},
    {{DD_COLL_ALL_REDUCE, DD_COLL_ALL_REDUCE}, {DD_DTYPE_INT32, DD_DTYPE_UINT32}, {0, 0}, {0, 0}, {48, 48}},
    {{DD_COLL_REDUCE_SCATTER, DD_COLL_REDUCE_SCATTER},
     {DD_DTYPE_INT32, DD_DTYPE_INT32},
     {DD_REDOP_SUM, DD_REDOP_MAX},
     {0, 0},
     {48, 48}},
    {{DD_COLL_BROADCAST, DD_COLL_BROADCAST}, {DD_DTYPE_INT32, DD_DTYPE_INT32}, {0, 0}, {0, 1}, {48, 48}},
    {{DD_COLL_GATHER, DD_COLL_GATHER}, {DD_DTYPE_INT32, DD_DTYPE_INT32}, {0, 0}, {1, 0}, {48, 48}},
    {{DD_COLL_ALL_REDUCE, DD_COLL_ALL_REDUCE}, {DD_DTYPE_INT32, DD_DTYPE_INT32}, {0, 0}, {0, 0}, {48, 52}},
    {{DD_COLL_ALL_GATHER, DD_COLL_ALL_GATHER}, {DD_DTYPE_INT32, DD_DTYPE_INT32}, {0, 0}, {0, 0}, {48, 44}},
    {{DD_COLL_REDUCE_SCATTER, DD_COLL_REDUCE_SCATTER},
     {DD_DTYPE_INT32, DD_DTYPE_INT32},
     {0, 0},
     {0, 0},
     {4, 0}},
};

static void
disagree(team_rank *self)
{
    const two_calls *pair = self->arg;
    int side = self->rank == 0 ? 0 : 1;
    uint8_t memory[2][3][64] = {{{0}}};
    dd_block inputs[3];
    dd_block outputs[3];
    for (int i = 0; i < 3; i++) {
        inputs[i] = (dd_block){memory[0][i], pair->nbytes[side]};
        outputs[i] = (dd_block){memory[1][i], pair->nbytes[side]};
    }
    dd_coll_args args = {.coll = pair->colls[side],
                         .root = pair->roots[side],
                         .reduction = {.dtype = pair->dtypes[side], .op = pair->ops[side]},
                         .inputs = inputs,
                         .outputs = outputs};
    REQUIRE(carry_team_begin(self));
    if (!CHECK_STATUS(team_call(self, &args), DD_MISMATCH)) {
        fprintf(stderr, "    rank %d of %d: %s and %s\n", self->rank, self->size,
                dd_coll_name(pair->colls[0]), dd_coll_name(pair->colls[1]));
    }
    CHECK_CONTAINS(check_message(), "on group \"team\"");
    CHECK_CONTAINS(check_message(), "rank 0 (");
    CHECK_STATUS(team_barrier(self->group), DD_MISMATCH);
    CHECK_INT(carry_library.counts[self->rank].nstarts, 0);
    CHECK_INT(dd_group_count_carried(self->group), 0);
    team_rendezvous(self, "all notified");
}

TEST(mismatches_are_found_before_the_library_starts)
{
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++) {
        for (int size = 2; size <= 3; size++) {
            two_calls pair = pairs[i];
            fake_library_init(&carry_library);
            carry_team_run(size, disagree, &pair);
            CHECK_INT(CARRY_TOTAL(nstarts), 0);
            CHECK_INT(CARRY_TOTAL(nclosed_after_failure), size);
        }
    }
}

/* The library offers the collective of one rank, but not the collective of the other. */
TEST(different_collectives_are_a_mismatch_even_if_the_library_lacks_one)
{
    static const dd_coll refused[] = {DD_COLL_ALL_REDUCE, DD_COLL_BARRIER, DD_COLL_ALL_TO_ALL};
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        two_calls pair = {.colls = {refused[i], DD_COLL_ALL_GATHER},
                          .dtypes = {DD_DTYPE_INT32, DD_DTYPE_INT32},
                          .nbytes = {16, 16}};
        fake_library_init(&carry_library);
        atomic_store(&carry_library.script.refused, 1u << refused[i]);
        carry_team_run(2, disagree, &pair);
        CHECK_INT(CARRY_TOTAL(nstarts), 0);
    }
}

/* ---- ranks that are late */

/* The rank has not yet received the abort of the other ranks. */
static void
join_after_the_end(team_rank *self)
{
    dd_work *work = NULL;
    carry_sum sum;
    carry_sum_init(&sum, 1);
    REQUIRE(carry_team_begin(self));
    if (self->rank == 1) {
        dd_engine_lock(self->engine);
        team_rendezvous(self, "locked");
        team_rendezvous(self, "timed out");
        dd_engine_unlock(self->engine);
        if (dd_group_collective(self->group, &sum.args, &team_no_options, &work, check_err()) == DD_OK) {
            CHECK_STATUS(team_wait(self->group, work), DD_OP_TIMED_OUT);
        }
    } else {
        dd_group_set_timeout_ns(self->group, 30 * DD_NS_PER_MS);
        team_rendezvous(self, "locked");
        CHECK_STATUS(carry_sum_call(self, check_err()), DD_OP_TIMED_OUT);
        team_rendezvous(self, "timed out");
    }
    team_rendezvous(self, "end");
    CHECK_INT(carry_library.counts[self->rank].nstarts, 0);
}

TEST(a_rank_that_calls_after_the_others_timed_out_does_not_call_the_library)
{
    for (int i = 0; i < 10; i++) {
        fake_library_init(&carry_library);
        carry_team_run(2, join_after_the_end, NULL);
    }
}

static void
be_late(team_rank *self)
{
    REQUIRE(carry_team_begin(self));
    CHECK(team_check_sum(self->group));
    team_rendezvous(self, "begin");
    dd_group_set_timeout_ns(self->group, 60 * DD_NS_PER_MS);
    if (self->rank != 1) {
        dd_error *err = check_err();
        int64_t start_ns = dd_clock_now_ns();
        CHECK_STATUS(carry_sum_call(self, err), DD_OP_TIMED_OUT);
        CHECK(carry_seconds_since(start_ns) < 1.0 * check_slow());
        CHECK_CONTAINS(check_message(), "all_reduce #");
        CHECK_CONTAINS(check_message(), "rank 1 has not arrived");
        CHECK(!err->keeps_memory);
        dd_error error;
        CHECK_STATUS(dd_group_check(self->group, &error), DD_OP_TIMED_OUT);
        CHECK_INT(error.blamed.rank, 1);
    }
    team_rendezvous(self, "late");
    if (self->rank == 1) {
        CHECK_STATUS(carry_sum_call(self, check_err()), DD_OP_TIMED_OUT);
        CHECK_CONTAINS(check_message(), " waiting for this rank, which ");
    }
    team_rendezvous(self, "end");
    CHECK_INT(carry_library.counts[self->rank].nstarts, 1);
    CHECK_INT(carry_library.counts[self->rank].nleaves, 0);
}

TEST(late_ranks_are_named_before_the_library_starts)
{
    for (int size = 2; size <= 3; size++) {
        fake_library_init(&carry_library);
        carry_team_run(size, be_late, NULL);
        CHECK_INT(CARRY_TOTAL(nclosed_after_failure), size);
    }
}

/* ---- ranks without shared memory, which compare their calls by a call of the library */

/* Two small calls identify the mismatching rank; the collective does not reach the library. */
static void
compare_apart(team_rank *self)
{
    carry_sum sum;
    carry_sum_init(&sum, 1);
    sum.args.reduction.op = self->rank == 0 ? DD_REDOP_MAX : DD_REDOP_SUM;
    REQUIRE(carry_team_begin(self));
    dd_wait wait = dd_wait_after(20 * DD_NS_PER_S);
    CHECK_STATUS(dd_group_collective_and_wait(self->group, &sum.args, &team_no_options, &wait, check_err()),
                 DD_MISMATCH);
    CHECK_CONTAINS(check_message(), "MAX");
    CHECK_CONTAINS(check_message(), "SUM");
    CHECK(!check_err()->keeps_memory);
    CHECK_INT(dd_group_count_carried(self->group), 0);
    CHECK(carry_library.counts[self->rank].nstarts <= 2);
    team_rendezvous(self, "failed");
}

TEST(ranks_without_shared_memory_detect_mismatches_by_calls_of_the_library)
{
    for (int size = 2; size <= 3; size++) {
        team_options options = {.size = size, .is_shm_disabled = true};
        fake_library_init(&carry_library);
        team_run(&options, compare_apart, NULL);
        CHECK_INT(CARRY_TOTAL(nclosed_after_failure), size);
        fake_library_fini(&carry_library);
    }
}

static void
run_apart(int size, void (*body)(team_rank *self), void *arg)
{
    team_options options = {.size = size, .is_shm_disabled = true};
    fake_library_init(&carry_library);
    atomic_store(&carry_library.script.is_stuck, true);
    team_run(&options, body, arg);
    fake_library_fini(&carry_library);
}

static void
disagree_apart(team_rank *self)
{
    carry_sum sum;
    carry_sum_init(&sum, 1);
    sum.args.reduction.op = self->rank == 0 ? DD_REDOP_MAX : DD_REDOP_SUM;
    REQUIRE(carry_team_begin(self));
    dd_group_set_timeout_ns(self->group, 60 * DD_NS_PER_MS);
    dd_wait wait = dd_wait_after(20 * DD_NS_PER_S);
    CHECK_STATUS(dd_group_collective_and_wait(self->group, &sum.args, &team_no_options, &wait, check_err()),
                 DD_MISMATCH);
    CHECK_CONTAINS(check_message(), "MAX");
    CHECK_CONTAINS(check_message(), "SUM");
    CHECK_INT(carry_library.counts[self->rank].nleaves, 1);
    team_rendezvous(self, "failed");
}

TEST(a_mismatch_is_reported_even_if_the_library_hangs)
{
    run_apart(2, disagree_apart, NULL);
    CHECK_INT(CARRY_TOTAL(nclosed_after_failure), 2);
    run_apart(3, disagree_apart, NULL);
    CHECK_INT(CARRY_TOTAL(nclosed_after_failure), 3);
}

static void
miss_one_apart(team_rank *self)
{
    bool has_exited = *(bool *)self->arg;
    dd_wait wait = dd_wait_after(10 * DD_NS_PER_S * check_slow());
    REQUIRE(carry_team_begin(self));
    if (self->rank == 0) {
        if (has_exited) {
            CHECK_OK(dd_group_close(self->group, &wait, check_err()));
        }
        team_rendezvous(self, "begin");
    } else {
        team_rendezvous(self, "begin");
        dd_group_set_timeout_ns(self->group, 60 * DD_NS_PER_MS);
        CHECK_STATUS(carry_sum_call(self, check_err()), DD_OP_TIMED_OUT);
        CHECK_CONTAINS(check_message(), "rank 0 has not arrived");
        CHECK_CONTAINS(check_message(), has_exited ? "has left the group" : "is done with #2 broadcast(");
        CHECK_INT(carry_library.counts[self->rank].nleaves, 1);
    }
    team_rendezvous(self, "end");
    if (self->rank == 0 && !has_exited) {
        CHECK_STATUS(carry_sum_call(self, check_err()), DD_OP_TIMED_OUT);
    }
}

TEST(missing_ranks_are_named_even_without_shared_memory)
{
    for (int variant = 0; variant < 4; variant++) {
        int size = 2 + variant / 2;
        bool has_exited = variant % 2 == 1;
        run_apart(size, miss_one_apart, &has_exited);
        CHECK_INT(CARRY_TOTAL(nclosed_cleanly), has_exited);
        CHECK_INT(CARRY_TOTAL(nclosed_after_failure), size - has_exited);
    }
}

/* ---- a library that fails */

static void
call_and_fail(team_rank *self)
{
    const char *text = self->arg;
    REQUIRE(carry_team_begin(self));
    dd_error *err = check_err();
    CHECK_STATUS(carry_sum_call(self, err), DD_BACKEND);
    CHECK_CONTAINS(check_message(), text);
    CHECK_CONTAINS(check_message(), "all_reduce #");
    CHECK(!err->keeps_memory);
    CHECK_STATUS(team_barrier(self->group), DD_BACKEND);
    CHECK_CONTAINS(check_message(), text);
    team_rendezvous(self, "failed");
}

TEST(a_library_call_that_fails_to_start_on_one_rank_fails_the_group)
{
    for (int size = 2; size <= 3; size++) {
        fake_library_init(&carry_library);
        carry_library.script.failing_starts = 1u << (size - 1);
        carry_team_run(size, call_and_fail, "the library does not feel like it");
        CHECK_INT(CARRY_TOTAL(nclosed_after_failure), size);
    }
}

TEST(a_library_call_that_fails_after_its_start_on_one_rank_fails_the_group)
{
    for (int size = 2; size <= 3; size++) {
        fake_library_init(&carry_library);
        carry_library.script.failing_looks = 1;
        atomic_store(&carry_library.script.is_stuck, true);
        carry_team_run(size, call_and_fail, "the library has lost its thread");
        CHECK_INT(carry_library.counts[0].nleaves, 0); /* it has completed there */
        CHECK_INT(CARRY_TOTAL(nclosed_after_failure), size);
    }
}

/* ---- no memory for the library's buffers */

/* The next allocation of the process fails, so the other rank must not allocate. */
static void
wait_without_allocating(atomic_int *turn)
{
    atomic_store(turn, 1);
    while (atomic_load(turn) == 1) {
        carry_sleep(DD_NS_PER_MS);
    }
}

/* There are gaps between rank 0's blocks, so it needs a buffer once both ranks have called. */
static void
run_short_of_memory(team_rank *self)
{
    atomic_int *turn = self->arg;
    int32_t values[4] = {0};
    int32_t own = self->rank;
    dd_work *work = NULL;
    dd_block input = {&own, sizeof own};
    dd_block outputs[2] = {{&values[0], sizeof own}, {&values[self->rank == 0 ? 2 : 1], sizeof own}};
    dd_coll_args args = {.coll = DD_COLL_ALL_GATHER,
                         .reduction = {.dtype = DD_DTYPE_INT32},
                         .inputs = &input,
                         .outputs = outputs};
    REQUIRE(carry_team_begin(self));
    CHECK_OK(team_barrier(self->group));
    if (self->rank == 0) {
        dd_error *err = check_err();
        dd_wait wait = dd_wait_after(20 * DD_NS_PER_S * check_slow());
        while (atomic_load(turn) == 0) {
            carry_sleep(DD_NS_PER_MS);
        }
        (void)dd_mem_fail_after(0);
        dd_status status = dd_group_collective_and_wait(self->group, &args, &team_no_options, &wait, err);
        (void)dd_mem_fail_after(-1);
        atomic_store(turn, 2);
        CHECK_STATUS(status, DD_OUT_OF_MEMORY);
        CHECK(!err->keeps_memory);
        CHECK_INT(carry_library.counts[0].nstarts, 1);
    } else {
        CHECK_OK(dd_group_collective(self->group, &args, &team_no_options, &work, check_err()));
        wait_without_allocating(turn);
        CHECK_STATUS(team_wait(self->group, work), DD_OUT_OF_MEMORY);
    }
    team_rendezvous(self, "failed");
}

TEST(a_library_call_fails_when_its_buffer_cannot_be_allocated)
{
    atomic_int turn = 0;
    fake_library_init(&carry_library);
    carry_team_run(2, run_short_of_memory, &turn);
    CHECK_INT(CARRY_TOTAL(nclosed_after_failure), 2);
}

/* ---- a library that never completes */

/* An average of bfloat16: the library works in dldist's buffers, not in the caller's memory. */
static uint16_t numbers[FAKE_MAX_RANKS][2][100];

static void
wait_for_ever(team_rank *self)
{
    bool is_packed = *(bool *)self->arg;
    bool holds_on = atomic_load(&carry_library.script.holds_on);
    bool ends = atomic_load(&carry_library.script.ends_when_left);
    dd_block input = {numbers[self->rank][0], sizeof numbers[0][0]};
    dd_block output = {numbers[self->rank][1], sizeof numbers[0][1]};
    dd_coll_args args = {.coll = DD_COLL_ALL_REDUCE,
                         .reduction = {.dtype = is_packed ? DD_DTYPE_BFLOAT16 : DD_DTYPE_UINT16,
                                       .op = is_packed ? DD_REDOP_AVG : DD_REDOP_SUM},
                         .inputs = &input,
                         .outputs = &output};
    REQUIRE(carry_team_begin(self));
    dd_group_set_timeout_ns(self->group, self->rank == 0 ? 60 * DD_NS_PER_MS : 20 * DD_NS_PER_S);
    dd_error *err = check_err();
    dd_wait wait = dd_wait_after(60 * DD_NS_PER_S);
    int64_t start_ns = dd_clock_now_ns();
    dd_work *work = NULL;
    if (self->rank == 1) { /* a work also knows that the memory is kept */
        REQUIRE_OK(dd_group_collective(self->group, &args, &team_no_options, &work, check_err()));
        err = check_err();
        CHECK_STATUS(dd_group_wait(self->group, work, &wait, err), DD_OP_TIMED_OUT);
        dd_work_release(work);
    } else {
        CHECK_STATUS(dd_group_collective_and_wait(self->group, &args, &team_no_options, &wait, err),
                     DD_OP_TIMED_OUT);
    }
    CHECK(carry_seconds_since(start_ns) < 2.0 * check_slow());
    CHECK_CONTAINS(check_message(), "all ranks have arrived, but their data have not");
    CHECK_INT(err->keeps_memory, holds_on && !ends);
    CHECK_INT(carry_library.counts[self->rank].nstarts, 1);
    CHECK_INT(carry_library.counts[self->rank].nleaves, !ends);
    CHECK_STATUS(carry_sum_call(self, check_err()), DD_OP_TIMED_OUT);
    CHECK_CONTAINS(check_message(), "the group has failed before");
    CHECK(!err->keeps_memory); /* the memory was never passed on */
    if (holds_on && !ends) {
        fake_library_touch_held(&carry_library, self->rank);
    }
    team_rendezvous(self, "all timed out");
}

static void
run_for_ever(int size, bool holds_on, bool ends, bool is_packed)
{
    fake_library_init(&carry_library);
    atomic_store(&carry_library.script.is_stuck, true);
    atomic_store(&carry_library.script.holds_on, holds_on);
    atomic_store(&carry_library.script.ends_when_left, ends);
    carry_team_run(size, wait_for_ever, &is_packed);
    CHECK_INT(CARRY_TOTAL(nclosed_after_failure), size);
    if (holds_on && !ends) {
        fake_library_touch_held(&carry_library, 0); /* the group is closed */
    }
}

TEST(a_stuck_library_call_fails_the_group_and_releases_its_buffers)
{
    run_for_ever(2, false, false, false);
    run_for_ever(3, false, false, true);
}

TEST(buffers_that_a_stuck_library_call_still_uses_are_not_freed)
{
    run_for_ever(2, true, false, false);
}

/* The memory leaks, except for the part that the library still references. */
TEST(packed_buffers_that_a_stuck_library_call_still_uses_are_not_freed)
{
    run_for_ever(2, true, false, true);
}

TEST(buffers_are_released_if_the_library_call_ends_soon_after_an_abort)
{
    run_for_ever(2, true, true, false);
    run_for_ever(3, true, true, true);
}

/* ---- abort and interrupt */

/* Return true if all ranks have a call in the library. */
static bool
get_under_way(team_rank *self, carry_sum *sum, dd_work **work)
{
    carry_sum_init(sum, 1);
    if (!carry_team_begin(self) ||
        !CHECK_OK(dd_group_collective(self->group, &sum->args, &team_no_options, work, check_err()))) {
        return false;
    }
    dd_engine_kick(dd_group_engine(self->group));
    carry_await_start(self, 1);
    team_rendezvous(self, "under way");
    return true;
}

static void
be_aborted(team_rank *self)
{
    carry_sum sum;
    dd_work *work = NULL;
    REQUIRE(get_under_way(self, &sum, &work));
    if (self->rank == 1) {
        dd_group_abort(self->group, "the reactor is hot");
    }
    dd_error *err = check_err();
    dd_wait wait = dd_wait_after(20 * DD_NS_PER_S);
    CHECK_STATUS(dd_group_wait(self->group, work, &wait, err), DD_ABORTED);
    CHECK_CONTAINS(check_message(), "the reactor is hot");
    CHECK(err->keeps_memory);
    dd_work_release(work);
    CHECK_INT(carry_library.counts[self->rank].nleaves, 1);
    team_rendezvous(self, "aborted");
}

TEST(an_abort_ends_a_library_call_and_reports_buffers_still_in_use)
{
    for (int size = 2; size <= 3; size++) {
        fake_library_init(&carry_library);
        atomic_store(&carry_library.script.is_stuck, true);
        atomic_store(&carry_library.script.holds_on, true);
        carry_team_run(size, be_aborted, NULL);
        CHECK_INT(CARRY_TOTAL(nclosed_after_failure), size);
    }
}

/* The library completes the calls of both ranks. Rank 1 notices, and aborts the group. Rank 0 has
 * not queried the library when it receives the abort, or when it fails the group itself. */
static void
be_aborted_when_complete(team_rank *self)
{
    bool is_own = *(bool *)self->arg;
    carry_sum sum;
    dd_work *work = NULL;
    REQUIRE(get_under_way(self, &sum, &work));
    if (self->rank == 1) {
        team_rendezvous(self, "held");
        atomic_store(&carry_library.script.is_stuck, false);
        CHECK_OK(team_wait(self->group, work));
        if (!is_own) {
            dd_group_abort(self->group, "that was all");
        }
        team_rendezvous(self, "over");
    } else {
        dd_engine_lock(self->engine);
        team_rendezvous(self, "held");
        team_rendezvous(self, "over");
        if (is_own) {
            dd_error error;
            (void)dd_error_set(&error, DD_ABORTED, "that was all");
            dd_group_fail_locked(self->group, &error);
        } else {
            dd_engine_receive_locked(self->engine);
        }
        dd_engine_unlock(self->engine);
        CHECK_OK(team_wait(self->group, work));
    }
    CHECK_STATUS(carry_sum_call(self, check_err()), DD_ABORTED);
    CHECK_CONTAINS(check_message(), "that was all");
    team_rendezvous(self, "aborted");
}

TEST(an_abort_does_not_fail_a_call_that_the_library_has_completed)
{
    for (int i = 0; i < 2; i++) {
        bool is_own = i == 1;
        fake_library_init(&carry_library);
        atomic_store(&carry_library.script.is_stuck, true);
        carry_team_run(2, be_aborted_when_complete, &is_own);
    }
}

/* Return true once both ranks are in the library. */
static bool
is_time_to_go(void *ctx)
{
    (void)ctx;
    return CARRY_TOTAL(nstarts) + CARRY_TOTAL(nmessages) == 2;
}

static void
be_interrupted(team_rank *self)
{
    bool is_message = *(bool *)self->arg;
    static carry_sum sums[2]; /* the library keeps a reference */
    carry_sum *sum = &sums[self->rank];
    carry_sum_init(sum, 1);
    REQUIRE(carry_team_begin(self));
    dd_wait wait = dd_wait_after(30 * DD_NS_PER_S);
    wait.is_interrupted = self->rank == 0 ? is_time_to_go : NULL;
    dd_error *err = check_err();
    dd_status expected = self->rank == 0 ? DD_INTERRUPTED : DD_ABORTED;
    int source;
    dd_status status =
        is_message ? team_recv_and_wait(self->group, sum->block, DD_ANY_RANK, 1, &team_no_options, &source,
                                        &wait, err)
                   : dd_group_collective_and_wait(self->group, &sum->args, &team_no_options, &wait, err);
    CHECK_STATUS(status, expected);
    CHECK(err->keeps_memory);
    team_rendezvous(self, "interrupted");
}

/* The caller reuses its memory, and must know if it may. */
TEST(an_interrupted_library_call_reports_buffers_still_in_use)
{
    fake_library_init(&carry_library);
    bool is_message = false;
    atomic_store(&carry_library.script.is_stuck, true);
    atomic_store(&carry_library.script.holds_on, true);
    carry_team_run(2, be_interrupted, &is_message);
}

TEST(an_interrupted_message_reports_buffers_still_in_use)
{
    fake_library_init(&carry_library);
    bool is_message = true;
    atomic_store(&carry_library.script.holds_on, true);
    carry_team_run(2, be_interrupted, &is_message);
}

/* ---- ranks that leave */

static void
leave_while_others_wait(team_rank *self)
{
    REQUIRE(carry_team_begin(self));
    dd_wait wait = dd_wait_after(10 * DD_NS_PER_S * check_slow());
    if (self->rank == 0) {
        carry_sleep(20 * DD_NS_PER_MS);
        CHECK_OK(dd_group_close(self->group, &wait, check_err()));
    } else {
        CHECK_STATUS(carry_sum_call(self, check_err()), DD_PEER_LOST);
        CHECK_CONTAINS(check_message(), "rank 0 (");
        CHECK_CONTAINS(check_message(), "has left the group");
    }
    team_rendezvous(self, "left");
    CHECK_INT(carry_library.counts[self->rank].nstarts, 0);
}

TEST(a_rank_that_leaves_before_a_call_is_named_as_lost)
{
    for (int size = 2; size <= 3; size++) {
        fake_library_init(&carry_library);
        carry_team_run(size, leave_while_others_wait, NULL);
    }
}

/* The rank abandons a call in the library. */
static void
leave_in_the_middle(team_rank *self)
{
    carry_sum sum;
    dd_work *work = NULL;
    REQUIRE(get_under_way(self, &sum, &work));
    if (self->rank == 0) {
        dd_wait wait = dd_wait_after(30 * DD_NS_PER_MS);
        CHECK_STATUS(dd_group_close(self->group, &wait, check_err()), DD_OP_TIMED_OUT);
    }
    CHECK_STATUS(team_wait(self->group, work), self->rank == 0 ? DD_CLOSED : DD_PEER_LOST);
    CHECK_INT(carry_library.counts[self->rank].nleaves, 1);
    team_rendezvous(self, "left");
}

TEST(a_rank_that_leaves_during_a_library_call_is_reported_as_lost)
{
    for (int size = 2; size <= 3; size++) {
        fake_library_init(&carry_library);
        atomic_store(&carry_library.script.is_stuck, true);
        carry_team_run(size, leave_in_the_middle, NULL);
        CHECK_INT(CARRY_TOTAL(nclosed_after_failure), size);
    }
}

/* ---- a process that dies: rank 2 of 3, each with a library that no other rank joins */

typedef struct carry_member {
    char path[64];
    pid_t pid;
    bool has_called; /* the other ranks have called, and are in the library */
} carry_member;

#define NMORTALS 3

static bool
open_member(const carry_member *shared, int rank, team_process *member)
{
    return team_process_open(shared->path, rank, NMORTALS, false, member) &&
           CHECK_OK(carry_group(member->group, check_err()));
}

static _Noreturn void
call_until_killed(const carry_member *shared)
{
    carry_sum sum;
    team_process self;
    dd_work *work = NULL;
    carry_sum_init(&sum, 1);
    if (open_member(shared, 2, &self) && shared->has_called) {
        CHECK_OK(dd_group_collective(self.group, &sum.args, &team_no_options, &work, check_err()));
        dd_engine_kick(self.engine);
    }
    pause();
    _exit(1);
}

static void
check_loss(const team_process *self, dd_work *work, const carry_member *shared, bool keeps_memory)
{
    char pid[64];
    dd_error *err = check_err();
    dd_wait wait = dd_wait_after(10 * DD_NS_PER_S * check_slow());
    CHECK_STATUS(dd_group_wait(self->group, work, &wait, err), DD_PEER_LOST);
    snprintf(pid, sizeof pid, "pid %lld", (long long)shared->pid);
    CHECK_CONTAINS(check_message(), pid);
    CHECK_CONTAINS(check_message(), "lost rank 2 (");
    if (!CHECK_INT(err->keeps_memory, keeps_memory)) {
        fprintf(stderr, "    %s\n", work->label);
    }
    dd_work_release(work);
}

static void
call_until_peer_is_lost(team_rank *rank)
{
    const carry_member *shared = rank->arg;
    static carry_sum sums[2];
    static int received_values[2];
    carry_sum *sum = &sums[rank->rank];
    dd_block block = {&received_values[rank->rank], sizeof received_values[0]};
    dd_work *works[2] = {NULL};
    team_process self;
    carry_sum_init(sum, 1);
    REQUIRE(open_member(shared, rank->rank, &self));
    REQUIRE_OK(dd_group_collective(self.group, &sum->args, &team_no_options, &works[0], check_err()));
    REQUIRE_OK(team_recv(self.group, block, 2, 1, &team_no_options, &works[1], check_err()));
    dd_engine_kick(self.engine);
    if (shared->has_called) {
        carry_await_start(rank, 1);
    }
    team_rendezvous(rank, "called");
    if (rank->rank == 0) {
        carry_sleep(20 * DD_NS_PER_MS);
        kill(shared->pid, SIGKILL);
    }
    check_loss(&self, works[0], shared, shared->has_called);
    check_loss(&self, works[1], shared, true);
    CHECK_INT(carry_library.counts[rank->rank].nstarts, shared->has_called);
    team_rendezvous(rank, "notified");
    team_process_close(&self);
}

static void
lose_a_process(bool has_called)
{
    carry_member shared = {.has_called = has_called};
    fake_library_init(&carry_library);
    carry_library.script.is_alone = true;
    atomic_store(&carry_library.script.holds_on, true);
    strcpy(shared.path, "/tmp/dldist-carry-XXXXXX");
    int fd = mkstemp(shared.path);
    REQUIRE(fd >= 0);
    close(fd);
    shared.pid = fork();
    if (shared.pid == 0) {
        call_until_killed(&shared);
    }
    team_options options = {.size = 2};
    team_run_apart(&options, call_until_peer_is_lost, &shared);
    kill(shared.pid, SIGKILL);
    waitpid(shared.pid, NULL, 0);
    unlink(shared.path);
    fake_library_fini(&carry_library);
    CHECK_INT(CARRY_TOTAL(nclosed_after_failure), 2);
}

TEST(a_killed_process_is_noticed_before_the_library_starts)
{
    lose_a_process(false);
}

TEST(a_killed_process_is_noticed_during_a_library_call)
{
    lose_a_process(true);
}

/* ---- forked children: the library is the parent's */

static void
release_in_child(team_rank *self)
{
    REQUIRE(carry_team_begin(self));
    CHECK(team_check_sum(self->group));
    team_rendezvous(self, "before");
    pid_t pid = self->rank == 0 ? fork() : -1;
    if (pid == 0) {
        alarm(3);
        CHECK_STATUS(carry_group(self->group, check_err()), DD_FORKED);
        dd_group_release(self->group);
        CHECK_INT(carry_library.counts[0].nclosed_after_failure, 0);
        CHECK_INT(carry_library.counts[0].nclosed_cleanly, 0);
        _exit(check_failures() > 0 ? 1 : 0);
    }
    int status = 0;
    CHECK(self->rank != 0 ||
          (waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0));
    CHECK(team_check_sum(self->group));
}

TEST(a_forked_child_does_not_use_the_library)
{
    fake_library_init(&carry_library);
    carry_team_run(2, release_in_child, NULL);
    CHECK_INT(CARRY_TOTAL(nclosed_cleanly), 2);
}
