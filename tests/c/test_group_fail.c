/* Failures in groups of threads, and of a process that dies. */
#include "check.h"
#include "core/thread.h"
#include "failure_notices.h"
#include "group_team.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static double
seconds_since(int64_t start_ns)
{
    return (double)(dd_clock_now_ns() - start_ns) * 1e-9;
}

static void
sleep_for(int64_t duration_ns)
{
    dd_wait wait = dd_wait_after(duration_ns);
    CHECK_OK(dd_wait_sleep(&wait, duration_ns, check_err()));
}

/* Call barriers until one fails. A rank that has already entered the current barrier may complete
 * it after the failure. */
static dd_status
next_failure(dd_group *group)
{
    dd_status status = DD_OK;
    for (int i = 0; i < 4 && status == DD_OK; i++) {
        status = team_barrier(group);
    }
    return status;
}

/* ---- ranks that disagree */

typedef struct disagreement {
    dd_coll coll;
    dd_coll odd_coll;
    dd_dtype odd_dtype;
    dd_redop odd_op;
    int odd_root;
    size_t odd_nbytes;
    double odd_factor;
    const char *texts[2];
    int odd_rank;
    /* No rank leaves before all have failed: that would be another failure. NULL in the table. */
    pthread_barrier_t *all_are_notified;
} disagreement;

/* The other ranks call with int32, SUM, root 0, 48 bytes per block and factor 1. */
#define ODD(one, other, dtype, op, root, nbytes, text, other_text)                          \
    {                                                                                       \
        DD_COLL_##one, DD_COLL_##other, DD_DTYPE_##dtype, DD_REDOP_##op, root, nbytes, 2.5, \
            {text, other_text}, 0, NULL                                                     \
    }

static const disagreement disagreements[] = {
    ODD(ALL_REDUCE, BARRIER, INT32, SUM, 0, 48, "all_reduce(int32, 12 elements, SUM)", "called barrier"),
    ODD(BARRIER, ALL_GATHER, INT32, SUM, 0, 48, "called barrier", "called all_gather(int32)"),
    ODD(ALL_TO_ALL, REDUCE_SCATTER, INT32, SUM, 0, 48, "all_to_all(int32)", "reduce_scatter(int32, SUM)"),
    ODD(ALL_REDUCE, ALL_REDUCE, UINT32, SUM, 0, 48, "all_reduce(int32,", "all_reduce(uint32,"),
    ODD(ALL_GATHER, ALL_GATHER, FLOAT32, SUM, 0, 48, "all_gather(int32)", "all_gather(float32)"),
    ODD(ALL_REDUCE, ALL_REDUCE, INT32, MAX, 0, 48, "SUM)", "MAX)"),
    ODD(REDUCE_SCATTER, REDUCE_SCATTER, INT32, MIN, 0, 48, "SUM)", "MIN)"),
    ODD(BROADCAST, BROADCAST, INT32, SUM, 1, 48, "root 0)", "root 1)"),
    ODD(GATHER, GATHER, INT32, SUM, 1, 48, "root 0)", "root 1)"),
    ODD(ALL_REDUCE, ALL_REDUCE, INT32, SUM, 0, 44, "12 elements", "11 elements"),
    ODD(BROADCAST, BROADCAST, INT32, SUM, 0, 52, "12 elements", "13 elements"),
    ODD(REDUCE, REDUCE, INT32, SUM, 0, 0, "12 elements", "0 elements"),
    ODD(ALL_GATHER, ALL_GATHER, INT32, SUM, 0, 40, "48", "40"),
    ODD(ALL_GATHER, ALL_GATHER, INT32, SUM, 0, 200000, "48", "bytes"),
    ODD(REDUCE_SCATTER, REDUCE_SCATTER, INT32, SUM, 0, 56, "48", "56"),
    ODD(ALL_TO_ALL, ALL_TO_ALL, INT32, SUM, 0, 4, "48", "4"),
    ODD(SCATTER, SCATTER, INT32, SUM, 0, 24, "48", "24"),
    ODD(GATHER, GATHER, INT32, SUM, 0, 64, "48", "64"),
    ODD(ALL_REDUCE, ALL_REDUCE, INT32, PREMUL_SUM, 0, 48, "PREMUL_SUM by 2.5", "SUM)"),
};

static void
disagree(team_rank *self)
{
    const disagreement *which = self->arg;
    bool is_odd = self->rank == which->odd_rank;
    size_t nbytes = is_odd ? which->odd_nbytes : 48;
    uint8_t *memory = calloc(6, 200000);
    dd_block inputs[3];
    dd_block outputs[3];
    for (int i = 0; i < 3; i++) {
        inputs[i] = (dd_block){memory + i * 200000, nbytes};
        outputs[i] = (dd_block){memory + (i + 3) * 200000, nbytes};
    }
    dd_coll_args args = {.coll = is_odd ? which->odd_coll : which->coll,
                         .root = is_odd ? which->odd_root : 0,
                         .reduction = {.dtype = is_odd ? which->odd_dtype : DD_DTYPE_INT32,
                                       .op = is_odd ? which->odd_op : DD_REDOP_SUM,
                                       .factor = is_odd ? which->odd_factor : 1},
                         .inputs = inputs,
                         .outputs = outputs};
    dd_status status = team_call(self, &args);
    if (status == DD_OK) {
        /* Its part was complete before the other ranks called. The next call fails: in shared
         * memory, the first one. */
        bool is_rooted = dd_coll_has_root(args.coll);
        bool is_by_messages = self->options->is_shm_disabled || self->options->algorithms != NULL;
        CHECK(is_rooted || is_by_messages);
        status = is_by_messages ? next_failure(self->group) : team_barrier(self->group);
    }
    bool is_right = CHECK_STATUS(status, DD_MISMATCH);
    is_right = CHECK_CONTAINS(check_message(), which->texts[0]) && is_right;
    is_right = CHECK_CONTAINS(check_message(), which->texts[1]) && is_right;
    is_right = CHECK_CONTAINS(check_message(), "on group \"team\"") && is_right;
    is_right = CHECK_CONTAINS(check_message(), which->odd_rank == 0   ? "rank 0 ("
                                               : which->odd_rank == 1 ? "rank 1 ("
                                                                      : "rank 2 (") &&
               is_right;
    if (!is_right) {
        fprintf(stderr, "    %s against %s of rank %d, on rank %d, shm %d: %s\n", dd_coll_name(which->coll),
                dd_coll_name(which->odd_coll), which->odd_rank, self->rank, !self->options->is_shm_disabled,
                check_message());
    }
    CHECK_STATUS(team_barrier(self->group), DD_MISMATCH);
    CHECK_CONTAINS(check_message(), "the group has failed before");
    dd_error error;
    CHECK_STATUS(dd_group_check(self->group, &error), DD_MISMATCH);
    CHECK(error.blamed.rank >= 0 && error.blamed.rank != self->rank);
    (void)pthread_barrier_wait(which->all_are_notified);
    free(memory);
}

static void
run_disagreements(bool is_shm_disabled)
{
    for (size_t i = 0; i < sizeof disagreements / sizeof disagreements[0]; i++) {
        for (int odd = 0; odd < 3; odd++) {
            pthread_barrier_t all_are_notified;
            disagreement which = disagreements[i];
            which.odd_rank = odd;
            which.all_are_notified = &all_are_notified;
            bool is_scatter = which.coll == DD_COLL_SCATTER || which.coll == DD_COLL_GATHER;
            if (is_scatter && odd == 0 && which.odd_root == 0) {
                continue; /* the root's own block is also compared: see below */
            }
            team_options options = {.size = 3, .is_shm_disabled = is_shm_disabled};
            REQUIRE(pthread_barrier_init(&all_are_notified, NULL, 3) == 0);
            team_run(&options, disagree, &which);
            (void)pthread_barrier_destroy(&all_are_notified);
        }
    }
}

TEST(different_calls_are_a_mismatch_by_shared_memory)
{
    run_disagreements(false);
}

TEST(different_calls_are_a_mismatch_by_tcp)
{
    run_disagreements(true);
}

/* All messages have one length, but one rank has more of them. */
static void
disagree_on_many(team_rank *self)
{
    uint8_t *memory = calloc(4, 262144);
    size_t nbytes = self->rank == 0 ? 131072 : 65536;
    dd_block inputs[2] = {{memory, nbytes}, {memory + 262144, nbytes}};
    dd_block outputs[2] = {{memory + 2 * 262144, nbytes}, {memory + 3 * 262144, nbytes}};
    dd_coll_args args = {.coll = *(dd_coll *)self->arg,
                         .reduction = {.dtype = DD_DTYPE_UINT8},
                         .inputs = inputs,
                         .outputs = outputs};
    dd_status status = team_call(self, &args);
    status = status == DD_OK ? next_failure(self->group) : status;
    CHECK_STATUS(status, DD_MISMATCH);
    CHECK_CONTAINS(check_message(), "rank 0 (");
    CHECK_CONTAINS(check_message(), "rank 1 (");
    free(memory);
}

TEST(blocks_of_different_sizes_are_a_mismatch_even_if_each_message_fits)
{
    static const dd_coll colls[] = {DD_COLL_ALL_GATHER, DD_COLL_REDUCE_SCATTER, DD_COLL_ALL_TO_ALL};
    for (size_t i = 0; i < 3; i++) {
        dd_coll coll = colls[i];
        team_options options = {.size = 2};
        team_run_both(&options, disagree_on_many, &coll);
    }
}

/* ---- ranks that time out */

static void
be_late(team_rank *self)
{
    dd_group_set_timeout_ns(self->group, 30 * DD_NS_PER_S);
    bool has_called = *(bool *)self->arg;
    if (has_called) {
        CHECK(team_check_sum(self->group));
    }
    team_rendezvous(self, "begin");
    dd_group_set_timeout_ns(self->group, 60 * DD_NS_PER_MS);
    if (self->rank != 1) {
        int64_t start_ns = dd_clock_now_ns();
        CHECK_STATUS(team_barrier(self->group), DD_OP_TIMED_OUT);
        CHECK(seconds_since(start_ns) < 1.0 * check_slow());
        CHECK_CONTAINS(check_message(), has_called ? "barrier #2 on group \"team\"" : "barrier #1 on group");
        CHECK_CONTAINS(check_message(), "rank 1 has not arrived");
        CHECK_CONTAINS(check_message(), has_called ? "is done with #1 all_reduce(float32, 1 elements, SUM)"
                                                   : "has called no collective yet");
        CHECK_CONTAINS(check_message(), "pid ");
        dd_error error;
        CHECK_STATUS(dd_group_check(self->group, &error), DD_OP_TIMED_OUT);
        CHECK_INT(error.blamed.rank, 1);
        CHECK_INT(error.blamed.pid, getpid());
    }
    team_rendezvous(self, "late");
    if (self->rank == 1) {
        CHECK_STATUS(team_barrier(self->group), DD_OP_TIMED_OUT);
        CHECK_CONTAINS(check_message(), " waiting for this rank, which ");
        CHECK_CONTAINS(check_message(), has_called ? "barrier #2 of rank " : "barrier #1 of rank ");
    }
}

TEST(a_timeout_names_the_late_ranks)
{
    for (int i = 0; i < 2; i++) {
        bool has_called = i == 1;
        team_options options = {.size = 3};
        team_run_both(&options, be_late, &has_called);
    }
}

static void
wait_shortly(team_rank *self)
{
    float x = 1;
    dd_block block = {.data = &x, .nbytes = sizeof x};
    dd_coll_args args = {.coll = DD_COLL_ALL_REDUCE,
                         .reduction = {.dtype = DD_DTYPE_FLOAT32, .op = DD_REDOP_SUM},
                         .inputs = &block,
                         .outputs = &block};
    dd_work *work = NULL;
    if (self->rank == 0) {
        REQUIRE_OK(dd_group_collective(self->group, &args, &team_no_options, &work, check_err()));
        dd_wait wait = dd_wait_after(20 * DD_NS_PER_MS);
        CHECK_STATUS(dd_group_wait(self->group, work, &wait, check_err()), DD_OP_TIMED_OUT);
        CHECK_CONTAINS(check_message(), "is still under way");
        CHECK(!dd_work_is_done(work));
    }
    team_rendezvous(self, "waited");
    if (self->rank == 0) {
        CHECK_OK(team_wait(self->group, work));
        CHECK_INT(x, 2);
    } else {
        CHECK_OK(team_call(self, &args));
    }
}

TEST(a_wait_that_times_out_leaves_the_operation_pending)
{
    team_options options = {.size = 2};
    team_run_both(&options, wait_shortly, NULL);
}

/* ---- abort */

static void *
abort_soon(void *arg)
{
    team_rank *self = arg;
    sleep_for(30 * DD_NS_PER_MS);
    dd_group_abort(self->group, "the reactor is hot");
    dd_group_abort(self->group, "another reason");
    return NULL;
}

static void
be_aborted(team_rank *self)
{
    pthread_t thread;
    bool is_aborter = self->rank == 1;
    if (is_aborter) {
        CHECK_OK(dd_thread_start(&thread, "abort", abort_soon, self, check_err()));
    }
    int x;
    dd_work *recv = NULL;
    dd_block block = {.data = &x, .nbytes = sizeof x};
    REQUIRE_OK(team_recv(self->group, block, DD_ANY_RANK, 1, &team_no_options, &recv, check_err()));
    int64_t start_ns = dd_clock_now_ns();
    if (self->rank != 2) { /* rank 2 only waits for a message */
        CHECK_STATUS(team_barrier(self->group), DD_ABORTED);
        CHECK_CONTAINS(check_message(), "rank 1 (");
        CHECK_CONTAINS(check_message(), "aborted the group: the reactor is hot");
    }
    CHECK_STATUS(team_wait(self->group, recv), DD_ABORTED);
    CHECK_CONTAINS(check_message(), "the reactor is hot");
    CHECK(seconds_since(start_ns) < 1.0 * check_slow());
    CHECK_STATUS(team_barrier(self->group), DD_ABORTED);
    dd_error error;
    CHECK_STATUS(dd_group_check(self->group, &error), DD_ABORTED);
    CHECK_INT(error.blamed.rank, 1);
    CHECK_CONTAINS(error.message, "the reactor is hot");
    CHECK_LACKS(error.message, "another reason");
    if (is_aborter) {
        pthread_join(thread, NULL);
    }
}

TEST(an_abort_ends_all_pending_calls_on_all_ranks)
{
    team_options options = {.size = 3};
    team_run_both(&options, be_aborted, NULL);
    options.size = 4;
    options.single_ranks = 8;
    team_run(&options, be_aborted, NULL);
}

static void *
close_slowly(void *arg)
{
    team_rank *self = arg;
    dd_wait wait = dd_wait_after(20 * DD_NS_PER_S);
    CHECK_OK(dd_group_close(self->group, &wait, check_err()));
    return NULL;
}

/* An abort also ends the wait of a close. */
static void
abort_during_close(team_rank *self)
{
    dd_work *work = NULL;
    if (self->rank == 0) {
        dd_coll_args args = {.coll = DD_COLL_BARRIER};
        REQUIRE_OK(dd_group_collective(self->group, &args, &team_no_options, &work, check_err()));
        pthread_t thread;
        int64_t start_ns = dd_clock_now_ns();
        CHECK_OK(dd_thread_start(&thread, "close", close_slowly, self, check_err()));
        sleep_for(20 * DD_NS_PER_MS);
        dd_group_abort(self->group, "no patience");
        CHECK_STATUS(team_wait(self->group, work), DD_ABORTED);
        pthread_join(thread, NULL);
        CHECK(seconds_since(start_ns) < 1.0 * check_slow());
    }
    team_rendezvous(self, "aborted");
}

TEST(an_abort_ends_a_close_that_waits_for_pending_operations)
{
    team_options options = {.size = 2};
    team_run_both(&options, abort_during_close, NULL);
}

/* ---- interrupts */

static bool
is_late_enough(void *ctx)
{
    return dd_clock_now_ns() > *(int64_t *)ctx;
}

static void
be_interrupted(team_rank *self)
{
    int64_t moment_ns = dd_clock_now_ns() + 30 * DD_NS_PER_MS;
    dd_wait wait = dd_wait_after(30 * DD_NS_PER_S);
    if (self->rank == 0) {
        wait.is_interrupted = is_late_enough;
        wait.ctx = &moment_ns;
    }
    dd_coll_args args = {.coll = DD_COLL_BARRIER};
    if (self->rank != 1) {
        dd_status status =
            dd_group_collective_and_wait(self->group, &args, &team_no_options, &wait, check_err());
        CHECK_STATUS(status, self->rank == 0 ? DD_INTERRUPTED : DD_ABORTED);
        CHECK(seconds_since(moment_ns) < 1.0 * check_slow());
    }
    team_rendezvous(self, "interrupted");
    CHECK_STATUS(next_failure(self->group), DD_ABORTED);
    CHECK_CONTAINS(check_message(), "interrupted in barrier");
}

TEST(an_interrupted_collective_aborts_the_group_on_all_ranks)
{
    team_options options = {.size = 3};
    team_run_both(&options, be_interrupted, NULL);
}

static void
interrupt_monitored(team_rank *self)
{
    int64_t moment_ns = dd_clock_now_ns() + 20 * DD_NS_PER_MS;
    dd_wait wait = dd_wait_after(30 * DD_NS_PER_S);
    wait.is_interrupted = is_late_enough;
    wait.ctx = &moment_ns;
    if (self->rank == *(int *)self->arg) {
        CHECK_STATUS(dd_group_monitored_barrier(self->group, 20 * DD_NS_PER_S, true, &wait, check_err()),
                     DD_INTERRUPTED);
    }
    team_rendezvous(self, "interrupted");
    CHECK_STATUS(next_failure(self->group), DD_ABORTED);
    CHECK_CONTAINS(check_message(), "interrupted in monitored_barrier");
}

TEST(an_interrupted_monitored_barrier_aborts_the_group)
{
    for (int rank = 0; rank < 2; rank++) {
        team_options options = {.size = 2};
        team_run_both(&options, interrupt_monitored, &rank);
    }
}

static void
interrupt_wait(team_rank *self)
{
    dd_coll_args args = {.coll = DD_COLL_BARRIER};
    dd_work *work = NULL;
    REQUIRE_OK(dd_group_collective(self->group, &args, &team_no_options, &work, check_err()));
    if (self->rank == 0) {
        int64_t at_once = 0;
        dd_wait wait = dd_wait_after(30 * DD_NS_PER_S);
        wait.is_interrupted = is_late_enough;
        wait.ctx = &at_once;
        dd_status status = dd_group_wait(self->group, work, &wait, check_err());
        CHECK(status == DD_INTERRUPTED || status == DD_OK);
    }
    CHECK_OK(team_wait(self->group, work));
    CHECK(team_check_sum(self->group));
}

TEST(interrupting_a_wait_leaves_the_operation_pending)
{
    team_options options = {.size = 2};
    team_run_both(&options, interrupt_wait, NULL);
}

/* ---- closing */

static void
close_with_work(team_rank *self)
{
    dd_coll_args args = {.coll = DD_COLL_BARRIER};
    if (self->rank == 0) {
        dd_work *work = NULL;
        REQUIRE_OK(dd_group_collective(self->group, &args, &team_no_options, &work, check_err()));
        dd_wait wait = dd_wait_after(30 * DD_NS_PER_MS);
        CHECK_STATUS(dd_group_close(self->group, &wait, check_err()), DD_OP_TIMED_OUT);
        CHECK_CONTAINS(check_message(), " (rank 0 of ");
        CHECK_CONTAINS(check_message(), ") was closed with operations under way after 0.0");
        CHECK_CONTAINS(check_message(), " s: barrier");
        CHECK_STATUS(team_wait(self->group, work), DD_CLOSED);
        CHECK_OK(dd_group_close(self->group, &wait, check_err()));
    }
    team_rendezvous(self, "closed");
    if (self->rank != 0) {
        CHECK_STATUS(next_failure(self->group), DD_PEER_LOST);
        CHECK_CONTAINS(check_message(), "rank 0 (");
        CHECK_CONTAINS(check_message(), "has left the group");
    }
}

TEST(closing_a_group_with_pending_operations_times_out)
{
    team_options options = {.size = 3};
    team_run_both(&options, close_with_work, NULL);
}

/* Rank 0 completes first, and leaves immediately. The other ranks notice only when they need it. */
static void
leave_early(team_rank *self)
{
    uint8_t data[3000];
    memset(data, self->rank == 0 ? 5 : 0, sizeof data);
    dd_block block = {.data = data, .nbytes = sizeof data};
    dd_coll_args args = {.coll = DD_COLL_BROADCAST,
                         .reduction = {.dtype = DD_DTYPE_UINT8},
                         .inputs = &block,
                         .outputs = &block};
    dd_wait wait = dd_wait_after(20 * DD_NS_PER_S);
    if (self->rank == 0) {
        for (int rank = 1; rank < self->size; rank++) {
            dd_work *work = NULL;
            CHECK_OK(team_send(self->group, block, rank, 3, &team_no_options, &work, check_err()));
            CHECK_OK(team_wait(self->group, work));
        }
        for (int i = 0; i < 3; i++) {
            CHECK_OK(team_call(self, &args));
        }
        CHECK_OK(dd_group_close(self->group, &wait, check_err()));
    } else {
        sleep_for(10 * DD_NS_PER_MS * self->rank);
        for (int i = 0; i < 3; i++) {
            memset(data, 0, sizeof data);
            CHECK_OK(team_call(self, &args));
            CHECK_INT(data[2999], 5);
        }
    }
    team_rendezvous(self, "left");
    if (self->rank != 0) {
        dd_work *work = NULL;
        memset(data, 0, sizeof data);
        REQUIRE_OK(team_recv(self->group, block, 0, 3, &team_no_options, &work, check_err()));
        CHECK_OK(team_wait(self->group, work)); /* sent before rank 0 left */
        CHECK_INT(data[2999], 5);
        REQUIRE_OK(team_recv(self->group, block, 0, 3, &team_no_options, &work, check_err()));
        CHECK_STATUS(team_wait(self->group, work), DD_PEER_LOST);
        dd_status status = team_send(self->group, block, 0, 4, &team_no_options, &work, check_err());
        if (status == DD_OK) {
            status = team_wait(self->group, work);
        }
        CHECK_STATUS(status, DD_PEER_LOST);
        team_rendezvous(self, "others"); /* only messages have failed so far */
        CHECK_STATUS(team_barrier(self->group), DD_PEER_LOST);
        CHECK_CONTAINS(check_message(), "rank 0 (");
        CHECK_CONTAINS(check_message(), "the group");
    } else {
        team_rendezvous(self, "others");
    }
}

TEST(messages_sent_before_a_close_arrive_after_it)
{
    team_options options = {.size = 3};
    team_run_both(&options, leave_early, NULL);
}

static void
use_closed(team_rank *self)
{
    dd_region *region = NULL;
    int ranks[] = {self->rank};
    float x = 0;
    dd_block block = {.data = &x, .nbytes = sizeof x};
    dd_wait wait = dd_wait_after(10 * DD_NS_PER_S * check_slow());
    dd_work *work = NULL;
    dd_group *other = NULL;
    dd_region *late = NULL;
    dd_group_options options = team_group_options("other");
    CHECK_OK(dd_group_alloc(self->group, 10000, &region, check_err()));
    CHECK(team_check_sum(self->group));
    CHECK_OK(dd_group_close(self->group, &wait, check_err()));
    CHECK_OK(dd_group_close(self->group, &wait, check_err()));
    CHECK_STATUS(team_barrier(self->group), DD_CLOSED);
    CHECK_CONTAINS(check_message(), "group \"team\"");
    CHECK_STATUS(team_send(self->group, block, 0, 0, &team_no_options, &work, check_err()), DD_CLOSED);
    CHECK_STATUS(team_recv(self->group, block, 0, 0, &team_no_options, &work, check_err()), DD_CLOSED);
    CHECK_STATUS(dd_group_monitored_barrier(self->group, -1, true, &wait, check_err()), DD_CLOSED);
    CHECK_STATUS(dd_group_alloc(self->group, 10, &late, check_err()), DD_CLOSED);
    CHECK_STATUS(dd_group_check(self->group, check_err()), DD_CLOSED);
    CHECK_STATUS(dd_group_split(self->group, ranks, 1, 0, &options, &other, &wait, check_err()), DD_CLOSED);
    dd_group_abort(self->group, "too late");
    CHECK_STATUS(dd_group_check(self->group, check_err()), DD_CLOSED);
    dd_engine_kick(dd_group_engine(self->group));
    dd_member_info info;
    dd_group_get_member(self->group, self->rank, &info);
    CHECK_INT(info.pid, getpid());
    memset(dd_region_data(region), 1, dd_region_nbytes(region));
    dd_region_release(region);
}

TEST(calls_after_close_fail_and_memory_stays_readable)
{
    for (int size = 1; size <= 2; size++) {
        team_options options = {.size = size};
        team_run_both(&options, use_closed, NULL);
    }
}

/* ---- a process that dies */

typedef struct member_case {
    char path[64];
    pid_t pid;
    bool is_idle; /* no call is pending when it dies */
    bool is_shm_disabled;
} member_case;

#define NMORTALS 3

static void
make_meeting_file(char *path)
{
    strcpy(path, "/tmp/dldist-group-XXXXXX");
    int fd = mkstemp(path);
    REQUIRE(fd >= 0);
    close(fd);
}

static bool
open_member(const member_case *shared, int rank, team_process *self)
{
    return team_process_open(shared->path, rank, NMORTALS, shared->is_shm_disabled, self);
}

static _Noreturn void
call_until_killed(const member_case *shared)
{
    team_process self;
    if (open_member(shared, 2, &self)) {
        pause();
    }
    _exit(1);
}

static void
check_loss(dd_group *group, const member_case *shared, dd_status status)
{
    char text[64];
    dd_error error;
    CHECK_STATUS(status, DD_PEER_LOST);
    snprintf(text, sizeof text, "pid %lld", (long long)shared->pid);
    CHECK_CONTAINS(check_message(), text);
    CHECK_CONTAINS(check_message(), "lost rank 2 (");
    CHECK_STATUS(dd_group_check(group, &error), DD_PEER_LOST);
    CHECK_INT(error.blamed.rank, 2);
    CHECK_INT(error.blamed.pid, shared->pid);
    CHECK(error.blamed.host[0] != '\0');
}

static void
call_until_peer_is_lost(team_rank *self)
{
    const member_case *shared = self->arg;
    team_process own;
    dd_group *pair = NULL;
    static const int both[] = {0, 1};
    dd_group_options options = team_group_options("survivors");
    dd_wait wait = dd_wait_after(10 * DD_NS_PER_S * check_slow());
    if (open_member(shared, self->rank, &own) &&
        CHECK_OK(dd_group_split(own.group, both, 2, 0, &options, &pair, &wait, check_err()))) {
        team_rendezvous(self, "together");
        if (self->rank == 0) {
            sleep_for(20 * DD_NS_PER_MS);
            kill(shared->pid, SIGKILL);
        }
        int64_t start_ns = dd_clock_now_ns();
        if (shared->is_idle) {
            team_rendezvous(self, "killed");
            while (dd_group_check(own.group, NULL) == DD_OK && seconds_since(start_ns) < 1.0 * check_slow()) {
                sleep_for(DD_NS_PER_MS);
            }
        }
        check_loss(own.group, shared, team_barrier(own.group));
        CHECK(seconds_since(start_ns) < 1.0 * check_slow());
        CHECK(team_check_sum(pair));
        CHECK_OK(dd_group_close(pair, &wait, check_err()));
        CHECK_OK(dd_group_close(own.group, &wait, check_err()));
    }
    dd_group_release(pair);
    team_process_close(&own);
}

static void
lose_a_process(bool is_idle, bool is_shm_disabled)
{
    member_case shared = {.is_idle = is_idle, .is_shm_disabled = is_shm_disabled};
    make_meeting_file(shared.path);
    shared.pid = fork();
    if (shared.pid == 0) {
        call_until_killed(&shared);
    }
    team_options options = {.size = 2};
    team_run_apart(&options, call_until_peer_is_lost, &shared);
    kill(shared.pid, SIGKILL);
    waitpid(shared.pid, NULL, 0);
    unlink(shared.path);
}

TEST(a_killed_process_is_named_immediately_over_shared_memory)
{
    lose_a_process(false, false);
}

TEST(a_killed_process_is_named_immediately_over_tcp)
{
    lose_a_process(false, true);
}

TEST(an_idle_group_notices_a_killed_process_over_shared_memory)
{
    lose_a_process(true, false);
}

TEST(an_idle_group_notices_a_killed_process_over_tcp)
{
    lose_a_process(true, true);
}

/* ---- a rank that has closed cleanly */

typedef struct early_end {
    char path[64];
    int root;         /* never calls */
    unsigned single;  /* bit mask of ranks without shared memory, each as if on its own host */
    unsigned callers; /* bit mask */
    const char *late;
} early_end;

/* Rank 0 has completed and exited when other ranks query all ranks, after they timed out waiting
 * for the root. */
static void
close_before_queries(team_rank *self)
{
    const early_end *shared = self->arg;
    team_process own;
    float value = 0;
    dd_block block = {.data = &value, .nbytes = sizeof value};
    dd_coll_args broadcast = {.coll = DD_COLL_BROADCAST,
                              .root = shared->root,
                              .reduction = {.dtype = DD_DTYPE_FLOAT32},
                              .outputs = &block};
    dd_call_options options = {.timeout_ns = 100 * DD_NS_PER_MS};
    dd_wait wait = dd_wait_after(10 * DD_NS_PER_S * check_slow());
    bool is_single = (shared->single >> self->rank & 1) != 0;
    REQUIRE(team_process_meet(shared->path, self->rank, self->size, is_single, &own));
    if (self->rank == 0) {
        team_process_close(&own);
    }
    team_rendezvous(self, "first has ended");
    if ((shared->callers >> self->rank & 1) != 0) {
        CHECK_STATUS(dd_group_collective_and_wait(own.group, &broadcast, &options, &wait, check_err()),
                     DD_OP_TIMED_OUT);
        CHECK_CONTAINS(check_message(), shared->late);
    }
    team_rendezvous(self, "others have failed");
    if (self->rank != 0) {
        team_process_close(&own);
    }
}

static void
check_early_end(unsigned single, int root, unsigned callers, const char *late)
{
    early_end shared = {.single = single, .root = root, .callers = callers, .late = late};
    make_meeting_file(shared.path);
    team_options options = {.size = 4};
    team_run_apart(&options, close_before_queries, &shared);
    unlink(shared.path);
}

TEST(a_rank_that_left_cleanly_is_not_reported_as_lost)
{
    check_early_end(0xf, 1, 1U << 2 | 1U << 3,
                    "rank 1 has not arrived"); /* the others receive the goodbye of rank 0 */
    check_early_end(0x5, 2, 1U << 1 | 1U << 3,
                    /* rank 3 has no link to rank 0, and its dial fails */
                    "rank 2 has not arrived");
}

/* ---- a process that dies after its last call */

static _Noreturn void
call_and_die(const member_case *shared, int go)
{
    team_process self;
    char byte;
    bool is_ready = open_member(shared, 2, &self) && CHECK(read(go, &byte, 1) == 1);
    _exit(is_ready && team_barrier(self.group) == DD_OK ? 0 : 1);
}

typedef struct last_call {
    member_case dying;
    int go; /* pipe that receives a byte when the other ranks have called */
} last_call;

/* Both ranks have called, and check again only when the third is dead. */
static void
look_after_its_end(team_rank *self)
{
    const last_call *shared = self->arg;
    team_process own;
    dd_work *work = NULL;
    dd_coll_args barrier = {.coll = DD_COLL_BARRIER};
    REQUIRE(open_member(&shared->dying, self->rank, &own));
    REQUIRE(dd_group_collective(own.group, &barrier, &team_no_options, &work, check_err()) == DD_OK);
    dd_engine_lock(own.engine);
    team_rendezvous(self, "called");
    if (self->rank == 0) {
        siginfo_t end = {.si_status = 1};
        CHECK(write(shared->go, "", 1) == 1);
        CHECK(waitid(P_PID, (id_t)shared->dying.pid, &end, WEXITED | WNOWAIT) == 0 && end.si_status == 0);
    }
    team_rendezvous(self, "dead");
    dd_engine_receive_locked(own.engine); /* before any thread reads the arena */
    dd_engine_unlock(own.engine);
    CHECK_OK(team_wait(own.group, work));
    check_loss(own.group, &shared->dying, team_barrier(own.group));
    team_rendezvous(self, "notified");
    team_process_close(&own);
}

TEST(a_collective_completes_even_if_a_rank_exits_after_its_own_part)
{
    int go[2];
    last_call shared = {.dying = {.is_idle = false}, .go = -1};
    make_meeting_file(shared.dying.path);
    REQUIRE(pipe(go) == 0);
    shared.go = go[1];
    shared.dying.pid = fork();
    if (shared.dying.pid == 0) {
        call_and_die(&shared.dying, go[0]);
    }
    team_options options = {.size = 2};
    team_run_apart(&options, look_after_its_end, &shared);
    kill(shared.dying.pid, SIGKILL);
    waitpid(shared.dying.pid, NULL, 0);
    unlink(shared.dying.path);
    close(go[0]);
    close(go[1]);
}

/* ---- forked children */

static void
use_in_child(team_rank *self)
{
    if (self->rank != 0) {
        return;
    }
    /* The child may be forked while a thread drives the engine, and no thread there would release
     * the lock. */
    dd_engine_lock(dd_group_engine(self->group));
    pid_t pid = fork();
    if (pid == 0) {
        sigset_t none;
        sigemptyset(&none);
        sigprocmask(SIG_SETMASK, &none, NULL);
        alarm(3);
        dd_member_info info;
        dd_group_get_member(self->group, 1, &info);
        CHECK_INT(dd_group_sequence(self->group), 1);
        dd_group_abort(self->group, "in a child");
        CHECK_STATUS(dd_group_check(self->group, check_err()), DD_FORKED);
        _exit(check_failures() > 0 ? 1 : 0);
    }
    dd_engine_unlock(dd_group_engine(self->group));
    int status = 0;
    CHECK(waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

static void
fork_between_barriers(team_rank *self)
{
    CHECK_OK(team_barrier(self->group));
    use_in_child(self);
    CHECK_OK(team_barrier(self->group));
}

TEST(a_forked_child_can_query_a_group_without_taking_a_lock)
{
    team_options options = {.size = 2};
    team_run(&options, fork_between_barriers, NULL);
}

static void
split_while_the_parent_fails(team_rank *self)
{
    static const int all[] = {0, 1, 2};
    team_rendezvous(self, "begin");
    if (self->rank == 2) {
        dd_group_abort(self->group, "no more of this");
    } else {
        dd_group_options options = {.name = dd_bytes_of_string("part"), .timeout_ns = 60 * DD_NS_PER_S};
        dd_wait wait = dd_wait_after(60 * DD_NS_PER_S);
        dd_group *part = NULL;
        int64_t start_ns = dd_clock_now_ns();
        CHECK_STATUS(dd_group_split(self->group, all, 3, 0, &options, &part, &wait, check_err()), DD_ABORTED);
        CHECK_CONTAINS(check_message(), "no more of this");
        CHECK(seconds_since(start_ns) < 1.0 * check_slow());
    }
    team_rendezvous(self, "end");
}

TEST(splitting_a_group_fails_when_the_group_is_aborted)
{
    team_options options = {.size = 3};
    team_run_both(&options, split_while_the_parent_fails, NULL);
}

/* ---- notifying the other ranks */

static void
disagree_about_the_operation(team_rank *self)
{
    float number = 1;
    dd_block block = {.data = &number, .nbytes = sizeof number};
    dd_coll_args args = {
        .coll = DD_COLL_ALL_REDUCE,
        .reduction = {.dtype = DD_DTYPE_FLOAT32, .op = self->rank == 0 ? DD_REDOP_SUM : DD_REDOP_MAX},
        .inputs = &block,
        .outputs = &block};
    dd_wait wait = dd_wait_after(10 * DD_NS_PER_S * check_slow());
    team_rendezvous(self, "ready");
    CHECK_STATUS(dd_group_collective_and_wait(self->group, &args, &team_no_options, &wait, check_err()),
                 DD_MISMATCH);
    CHECK(!engine_has_pending_notices(self->engine));
    team_rendezvous(self, "failed");
}

/* This also holds if the call ends before it waits. */
TEST(a_call_fails_only_after_the_failure_was_sent_to_the_other_ranks)
{
    team_options options = {.size = 2};
    for (int i = 0; i < 10; i++) {
        team_run_both(&options, disagree_about_the_operation, NULL);
    }
}
