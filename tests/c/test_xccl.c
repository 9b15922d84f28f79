/* Groups of processes that oneCCL carries: its functions are the test's own (plain_oneccl.h). */
#include "carry_team.h"
#include "check.h"
#include "core/mem.h"
#include "faults/faults.h"
#include "group_case.h"
#include "plain_oneccl.h"
#include "xccl/xccl.h"
#include "xccl/xccl_internal.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static dd_carrier_library *library;

/* ---- processes with one group each */

static _Noreturn void
be_rank(const char *path, int rank, int size, void (*body)(team_rank *self))
{
    team_process member;
    alarm((unsigned)(CHECK_TIMEOUT_S * check_slow()));
    plain_oneccl_be(rank);
    if (team_process_open(path, rank, size, false, &member)) {
        team_rank self = {.rank = rank,
                          .size = size,
                          .group = member.group,
                          .engine = member.engine,
                          .store = member.store};
        body(&self);
        member.group = self.group;
    }
    team_process_close(&member);
    _exit(check_failures() > 0);
}

static void
run_processes(int size, void (*body)(team_rank *self))
{
    pid_t pids[PLAIN_ONECCL_MAX_RANKS];
    char path[] = "/tmp/dldist-xccl-XXXXXX";
    int fd = mkstemp(path);
    REQUIRE(fd >= 0);
    close(fd);
    if (library == NULL) {
        REQUIRE_OK(plain_oneccl_open(&library, check_err()));
    }
    for (int rank = 0; rank < size; rank++) {
        pids[rank] = fork();
        if (pids[rank] == 0) {
            be_rank(path, rank, size, body);
        }
    }
    for (int rank = 0; rank < size; rank++) {
        int status = -1;
        CHECK(waitpid(pids[rank], &status, 0) == pids[rank]);
        CHECK_INT(status, 0);
    }
    unlink(path);
}

static dd_status
conversion(team_rank *self, int64_t timeout_ns)
{
    dd_wait wait = dd_wait_after(timeout_ns);
    return dd_group_set_carrier(self->group, library, &wait, check_err());
}

static bool
carry_well(team_rank *self)
{
    bool is_good = CHECK_OK(conversion(self, 20 * DD_NS_PER_S * check_slow()));
    team_rendezvous(self, "all are carried");
    return is_good;
}

/* ---- calls */

/* Return true if oneCCL folds the case, in the type that reaches it: sums and products of all types
 * that it knows, and minimum and maximum of integers. */
static bool
has(const coll_case *test)
{
    bool is_bool = test->dtype == DD_DTYPE_BOOL;
    dd_dtype dtype = is_bool ? DD_DTYPE_UINT8 : dd_reduce_accumulator(test->dtype);
    if (!dd_coll_is_folding(test->coll) || !dd_coll_traits_of[test->coll].is_common) {
        return dd_coll_traits_of[test->coll].is_common;
    }
    if (is_bool) {
        return test->op != DD_REDOP_BXOR;
    }
    if (dd_reduce_partial_size(test->dtype, test->op) != dd_dtype_size(dd_reduce_accumulator(test->dtype))) {
        return false; /* AVG of integers */
    }
    switch ((int)test->op) {
    case DD_REDOP_SUM:
    case DD_REDOP_AVG:
    case DD_REDOP_PREMUL_SUM:
        return dtype != DD_DTYPE_INT16 && dtype != DD_DTYPE_UINT16;
    case DD_REDOP_PRODUCT:
        return dtype != DD_DTYPE_INT16 && dtype != DD_DTYPE_UINT16 &&
               dd_dtype_kind_of(dtype) != DD_KIND_COMPLEX;
    case DD_REDOP_MIN:
    case DD_REDOP_MAX:
        return dtype != DD_DTYPE_INT16 && dtype != DD_DTYPE_UINT16 && dtype != DD_DTYPE_FLOAT32 &&
               dtype != DD_DTYPE_FLOAT64;
    default:
        return false;
    }
}

#define CASES_OF_EACH 30

static void
run_cases(team_rank *self)
{
    static const size_t sizes[] = {0, 8, 100, 4096, 20001};
    uint64_t ncarried = 0;
    uint64_t nplain = 0;
    uint64_t hash;
    REQUIRE(carry_well(self));
    for (int coll = 0; coll < DD_COLL_COUNT; coll++) {
        for (uint64_t number = 0; number < CASES_OF_EACH && check_failures() == 0; number++) {
            coll_case test = case_sample(number, (dd_coll)coll, sizes[number % 5], self->size);
            test.has_small_values = true;
            case_run(self, &test, true, &hash);
            ncarried += has(&test);
            nplain += !has(&test);
        }
    }
    CHECK_INT(dd_group_count_carried(self->group), ncarried);
    CHECK(nplain > 0);
    static const char *const functions[] = {"onecclBroadcast",    "onecclReduce",    "onecclAllReduce",
                                            "onecclAllGather",    "onecclAllToAllV", "onecclReduceScatter",
                                            "onecclCommInitRank", "onecclSend",      "onecclRecv"};
    for (size_t i = 0; i < sizeof functions / sizeof functions[0]; i++) {
        if (!CHECK(plain_oneccl_calls(functions[i]) > 0)) {
            fprintf(stderr, "    %s\n", functions[i]);
        }
    }
    dd_group_release(self->group);
    self->group = NULL;
}

TEST(every_collective_over_oneccl_is_correct)
{
    for (int size = 2; size <= PLAIN_ONECCL_MAX_RANKS; size++) {
        run_processes(size, run_cases);
    }
}

/* ---- failures to open the library */

TEST(a_oneccl_library_without_a_usable_plug_in_is_refused)
{
    plain_oneccl_fail("onecclGetVersion", XCCL_PLUGIN_EXCEPTION, "nothing\nfits");
    CHECK_STATUS(plain_oneccl_open(&library, check_err()), DD_NOT_SUPPORTED);
    CHECK_CONTAINS(
        check_message(),
        "libcarriers.so loaded no plug-in for its devices: onecclPluginException (11): unknown to this "
        "oneCCL: nothing fits");
    plain_oneccl_fail("onecclGetVersion", 99, "");
    CHECK_STATUS(plain_oneccl_open(&library, check_err()), DD_NOT_SUPPORTED);
    CHECK_CONTAINS(check_message(), "onecclResult_t (99): it does not go");
    CHECK_LACKS(check_message(), "it does not go:");
}

TEST(opening_oneccl_leaks_nothing_when_allocations_fail)
{
    dd_status status = DD_OUT_OF_MEMORY;
    long count = 0;
    for (; status == DD_OUT_OF_MEMORY && count < 100; count++) {
        long before = dd_mem_count_blocks();
        dd_mem_fail_after(count);
        status = plain_oneccl_open(&library, check_err());
        dd_mem_fail_after(-1);
        CHECK(status == DD_OK || dd_mem_count_blocks() == before);
    }
    CHECK_OK(status);
    CHECK(count > 2);
    CHECK(strcmp(library->name, "xccl") == 0 && strcmp(library->version, "2.2.15") == 0);
}

/* ---- failed creation of a communicator */

static void
fail_to_make_an_id(team_rank *self)
{
    plain_oneccl_fail("onecclGetUniqueId", XCCL_SYSTEM_ERROR, "no network");
    CHECK_STATUS(conversion(self, 20 * DD_NS_PER_S), DD_BACKEND);
    CHECK_CONTAINS(check_message(),
                   "onecclGetUniqueId of rank 0 of 2: onecclSystemError (2): it does not go: no network");
    CHECK_INT(plain_oneccl_calls("onecclCommInitRank"), 0);
    CHECK(xccl_try_turn());
}

TEST(all_ranks_fail_if_rank_0_cannot_create_the_unique_id)
{
    run_processes(2, fail_to_make_an_id);
}

static void
fail_to_join(team_rank *self)
{
    if (self->rank == 1) {
        plain_oneccl_fail("onecclCommInitRank", XCCL_INTERNAL_ERROR, NULL);
    }
    CHECK_STATUS(conversion(self, 20 * DD_NS_PER_S * check_slow()), DD_BACKEND);
    CHECK_CONTAINS(check_message(),
                   "onecclCommInitRank of rank 1 of 2: onecclInternalError (3): it does not go");
    team_rendezvous(self, "failed");
}

/* The other rank is inside the library, which waits for this one, and is notified by the group. */
TEST(all_ranks_fail_if_one_rank_cannot_join)
{
    run_processes(2, fail_to_join);
}

static void
join_too_late(team_rank *self)
{
    plain_oneccl_hang("onecclCommInitRank");
    CHECK_STATUS(conversion(self, 200 * DD_NS_PER_MS), DD_OP_TIMED_OUT);
    CHECK_CONTAINS(check_message(), "onecclCommInitRank of rank ");
    CHECK_CONTAINS(check_message(), "of 2 did not return within 0.");
    CHECK(!xccl_try_turn()); /* the library is still busy */
    plain_oneccl_release();
    dd_wait wait = dd_wait_after(5 * DD_NS_PER_S * check_slow());
    CHECK_OK(xccl_take_turn(&wait, check_err())); /* the turn is released in the end */
    CHECK_INT(plain_oneccl_calls("onecclCommDestroy"), 0);
}

TEST(joining_a_oneccl_communicator_times_out)
{
    run_processes(2, join_too_late);
}

static void
wait_for_a_turn(team_rank *self)
{
    if (self->rank == 1) {
        CHECK(xccl_try_turn());
    }
    CHECK_STATUS(conversion(self, 200 * DD_NS_PER_MS), DD_OP_TIMED_OUT);
    CHECK_CONTAINS(check_message(),
                   "oneCCL creates one communicator at a time: this process, or another rank's, was "
                   "busy with another one for 0.");
    CHECK_INT(plain_oneccl_calls("onecclCommInitRank"), 0);
    team_rendezvous(self, "too late");
    CHECK(xccl_try_turn() == (self->rank == 0)); /* the rank that had the turn has released it */
}

TEST(waiting_until_another_communicator_is_created_times_out)
{
    run_processes(2, wait_for_a_turn);
}

static void
create_without_memory(team_rank *self)
{
    xccl_carrier *carrier = NULL;
    long before = dd_mem_count_blocks();
    for (long count = 0; count < 2; count++) {
        dd_mem_fail_after(count);
        CHECK_STATUS(xccl_create((xccl_library *)library, self->group, &carrier, check_err()),
                     DD_OUT_OF_MEMORY);
        dd_mem_fail_after(-1);
        CHECK(carrier == NULL);
        CHECK_INT(dd_mem_count_blocks(), before);
    }
}

TEST(using_oneccl_for_a_group_leaks_nothing_when_allocations_fail)
{
    run_processes(1, create_without_memory);
}

/* ---- calls that fail */

static void
fail_in_a_call(team_rank *self)
{
    REQUIRE(carry_well(self));
    plain_oneccl_fail("onecclAllReduce", XCCL_INVALID_USAGE, "wrong");
    CHECK_STATUS(carry_sum_call(self, check_err()), DD_BACKEND);
    CHECK_CONTAINS(check_message(), "onecclAllReduce of rank ");
    CHECK_CONTAINS(check_message(), "of 2: onecclInvalidUsage (5): it does not go: wrong");
    team_rendezvous(self, "failed");
    dd_group_release(self->group);
    self->group = NULL;
    CHECK_INT(plain_oneccl_calls("onecclCommDestroy"), 0);
}

TEST(a_failed_call_reports_the_text_of_the_oneccl_error)
{
    run_processes(2, fail_in_a_call);
}

static void
close_cleanly(team_rank *self)
{
    dd_wait wait = dd_wait_after(5 * DD_NS_PER_S * check_slow());
    REQUIRE(carry_well(self));
    CHECK_OK(carry_sum_call(self, check_err()));
    CHECK_OK(dd_group_close(self->group, &wait, check_err()));
    dd_group_release(self->group);
    self->group = NULL;
    CHECK_INT(plain_oneccl_calls("onecclCommDestroy"), 1);
    CHECK(xccl_try_turn());
}

TEST(closing_a_group_destroys_its_oneccl_communicator)
{
    run_processes(2, close_cleanly);
}

/* Rank r's block has r + 1 numbers: one broadcast for each. */
static dd_status
gather_blocks(team_rank *self, dd_error *err)
{
    static uint8_t numbers[2][2];
    dd_block input = {numbers[0], (size_t)self->rank + 1};
    dd_block outputs[2] = {{numbers[0], 1}, {numbers[1], 2}};
    dd_coll_args args = {.coll = DD_COLL_ALL_GATHER,
                         .reduction = {.dtype = DD_DTYPE_UINT8},
                         .inputs = &input,
                         .outputs = outputs};
    dd_call_options options = {.timeout_ns = 200 * DD_NS_PER_MS};
    dd_wait wait = dd_wait_after(20 * DD_NS_PER_S * check_slow());
    return dd_group_collective_and_wait(self->group, &args, &options, &wait, err);
}

static void
leave_a_call(team_rank *self)
{
    REQUIRE(carry_well(self));
    plain_oneccl_hang("onecclBroadcast");
    dd_error *err = check_err();
    CHECK_STATUS(gather_blocks(self, err), DD_OP_TIMED_OUT);
    CHECK(err->keeps_memory);
    team_rendezvous(self, "too late");
    plain_oneccl_release();
    carry_sleep(50 * DD_NS_PER_MS);
    /* the broadcast that had started, and no further one */
    CHECK_INT(plain_oneccl_calls("onecclBroadcast"), 1);
    dd_group_release(self->group);
    self->group = NULL;
    CHECK_INT(plain_oneccl_calls("onecclCommDestroy"), 0);
}

TEST(an_abandoned_call_stops_after_its_current_library_call)
{
    run_processes(2, leave_a_call);
}
