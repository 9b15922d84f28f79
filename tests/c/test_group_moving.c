/* Data is moved without holding a lock that other groups need. An input whose pages cannot be read
 * blocks the copy in the middle for as long as a test needs. */
#include "check.h"
#include "group/internal.h"
#include "group_team.h"

#include "core/mem.h"
#include "core/thread.h"

#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#define NBYTES ((size_t)1 << 20)

/* ---- pages that block any thread that reads them */

static uint8_t *trap;
static atomic_bool is_trapped;
static atomic_bool is_open;

static void
nap(void)
{
    struct timespec moment = {.tv_nsec = 1000000};
    nanosleep(&moment, NULL);
}

/* Wait for the flag, at most 20 s. */
static bool
wait_for(const atomic_bool *flag)
{
    for (int i = 0; i < 20000 && !atomic_load(flag); i++) {
        nap();
    }
    return atomic_load(flag);
}

static void
on_fault(int number, siginfo_t *info, void *context)
{
    (void)context;
    uintptr_t offset = (uintptr_t)info->si_addr - (uintptr_t)trap;
    if (offset >= NBYTES) {
        signal(number, SIG_DFL); /* a genuine fault */
        return;
    }
    atomic_store(&is_trapped, true);
    (void)wait_for(&is_open);
    (void)mprotect(trap, NBYTES, PROT_READ | PROT_WRITE);
}

static void
set_trap(struct sigaction *before)
{
    struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO};
    sigemptyset(&action.sa_mask);
    REQUIRE(sigaction(SIGSEGV, &action, before) == 0);
    trap = mmap(NULL, NBYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    REQUIRE(trap != MAP_FAILED);
    atomic_store(&is_trapped, false);
    atomic_store(&is_open, false);
}

static void
remove_trap(const struct sigaction *before)
{
    (void)sigaction(SIGSEGV, before, NULL);
    (void)munmap(trap, NBYTES);
}

/* ---- a second thread of every rank, next to the one that moves data */

typedef struct companion {
    team_rank *self;
    dd_group *other; /* has the same ranks */
    void (*body)(struct companion *companion);
    pthread_t thread;
} companion;

static void *
run_companion(void *arg)
{
    companion *own = arg;
    CHECK(wait_for(&is_trapped));
    own->body(own);
    atomic_store(&is_open, true);
    return NULL;
}

static void
start_companion(team_rank *self, dd_group *other, companion *own, void (*body)(companion *own))
{
    *own = (companion){.self = self, .other = other, .body = body};
    REQUIRE_OK(dd_thread_start(&own->thread, "companion", run_companion, own, check_err()));
}

static void
serve_faults(void)
{
    sigset_t faults; /* blocked in the library's threads */
    sigemptyset(&faults);
    sigaddset(&faults, SIGSEGV);
    (void)pthread_sigmask(SIG_UNBLOCK, &faults, NULL);
}

/* Reduce float32 zeros. Rank 0's input is the trap. */
static dd_status
reduce_trapped(team_rank *self, uint8_t *output)
{
    serve_faults();
    dd_block input = {.data = self->rank == 0 ? trap : output, .nbytes = NBYTES};
    dd_block result = {.data = output, .nbytes = NBYTES};
    dd_coll_args args = {.coll = DD_COLL_ALL_REDUCE,
                         .inputs = &input,
                         .outputs = &result,
                         .reduction = {.dtype = DD_DTYPE_FLOAT32, .op = DD_REDOP_SUM}};
    return team_call(self, &args);
}

/* Gather to rank 0, whose input is also the trap: its own block is copied, and not sent. */
static dd_status
gather_trapped(team_rank *self, uint8_t *output)
{
    serve_faults();
    dd_block input = {.data = self->rank == 0 ? trap : output, .nbytes = NBYTES};
    dd_block results[] = {{.data = output, .nbytes = NBYTES}, {.data = output + NBYTES, .nbytes = NBYTES}};
    dd_coll_args args = {.coll = DD_COLL_GATHER, .inputs = &input, .outputs = results};
    return team_call(self, &args);
}

static void
run_trapped_with(const team_options *options, void (*body)(team_rank *self))
{
    struct sigaction before;
    set_trap(&before);
    team_run(options, body, NULL);
    remove_trap(&before);
}

/* Run two ranks, with the trap set. */
static void
run_trapped(void (*body)(team_rank *self))
{
    team_options options = {.size = 2};
    run_trapped_with(&options, body);
}

/* ---- tests */

static void
work_in_other_group(companion *own)
{
    for (int i = 0; i < 10; i++) {
        CHECK(team_check_sum(own->other));
    }
    dd_region *region = NULL;
    CHECK_OK(dd_group_alloc(own->other, NBYTES, &region, check_err()));
    dd_region_release(region);
    CHECK(!atomic_load(&is_open)); /* the copy was blocked all the time */
    team_rendezvous(own->self, "worked");
}

static void
be_stopped_in(team_rank *self, dd_status (*run)(team_rank *self, uint8_t *output))
{
    int ranks[] = {0, 1};
    dd_group *other = NULL;
    dd_group_options options = team_group_options("other");
    dd_wait wait = dd_wait_after(20 * DD_NS_PER_S);
    REQUIRE_OK(dd_group_split(self->group, ranks, self->size, 0, &options, &other, &wait, check_err()));
    uint8_t *output = dd_mem_zalloc(2 * NBYTES);
    REQUIRE(output != NULL);
    companion own;
    start_companion(self, other, &own, work_in_other_group);
    CHECK_OK(run(self, output));
    pthread_join(own.thread, NULL);
    dd_mem_free(output);
    CHECK_OK(dd_group_close(other, &wait, check_err()));
    dd_group_release(other);
}

static void
be_stopped_in_a_reduction(team_rank *self)
{
    be_stopped_in(self, reduce_trapped);
}

static void
be_stopped_in_a_gather(team_rank *self)
{
    be_stopped_in(self, gather_trapped);
}

TEST(other_groups_work_while_a_group_copies_in_shared_memory)
{
    run_trapped(be_stopped_in_a_reduction);
}

TEST(other_groups_work_while_a_group_of_one_rank_copies)
{
    team_options options = {.size = 1};
    run_trapped_with(&options, be_stopped_in_a_reduction);
}

TEST(other_groups_work_while_a_collective_over_messages_copies)
{
    team_options options = {.size = 2, .algorithms = "flat"};
    run_trapped_with(&options, be_stopped_in_a_gather);
}

static void
call_for_some_time(companion *own)
{
    (void)own;
    for (int i = 0; i < 50; i++) {
        nap();
    }
}

static void *
abort_group(void *arg)
{
    CHECK(wait_for(&is_trapped));
    dd_group_abort(((team_rank *)arg)->group, "enough");
    return NULL;
}

/* An aborted call must end when no thread accesses its memory any longer, and not earlier. */
static void
abort_while_stopped(team_rank *self, dd_status (*run)(team_rank *self, uint8_t *output), uint8_t *output)
{
    companion own;
    pthread_t aborter;
    start_companion(self, NULL, &own, call_for_some_time);
    REQUIRE_OK(dd_thread_start(&aborter, "aborter", abort_group, self, check_err()));
    /* A group of one rank has all its data: the abort lets the copy end, and the call succeeds. */
    CHECK_STATUS(run(self, output), self->size == 1 ? DD_OK : DD_ABORTED);
    CHECK(atomic_load(&is_open));
    pthread_join(own.thread, NULL);
    pthread_join(aborter, NULL);
}

static void
be_aborted_while_stopped(team_rank *self)
{
    uint8_t *output = dd_mem_zalloc(NBYTES);
    REQUIRE(output != NULL);
    if (self->rank == 0) {
        abort_while_stopped(self, reduce_trapped, output);
    } else {
        CHECK_STATUS(reduce_trapped(self, output), DD_ABORTED);
    }
    dd_mem_free(output);
}

TEST(an_abort_waits_until_a_copy_in_progress_ends)
{
    run_trapped(be_aborted_while_stopped);
}

TEST(an_abort_of_a_group_of_one_rank_waits_until_its_copy_ends)
{
    team_options options = {.size = 1};
    run_trapped_with(&options, be_aborted_while_stopped);
}

/* Rank 1 sends all its data, and aborts while rank 0 copies it. A thread of rank 0 that copies
 * nothing receives the abort. */
static atomic_bool has_aborted;

static void *
receive_the_abort(void *arg)
{
    const team_rank *self = arg;
    CHECK(wait_for(&has_aborted));
    dd_engine_lock(self->engine);
    dd_engine_receive_locked(self->engine);
    dd_engine_unlock(self->engine);
    return NULL;
}

static void
be_aborted_while_it_copies(team_rank *self)
{
    size_t nbytes = (size_t)64 << 10;
    uint8_t *data = dd_mem_zalloc(nbytes);
    dd_block block = {.data = self->rank == 0 ? trap : data, .nbytes = nbytes};
    dd_coll_args args = {.coll = DD_COLL_BROADCAST, .root = 1, .inputs = &block, .outputs = &block};
    serve_faults();
    if (self->rank == 0) {
        companion own;
        pthread_t receiver;
        start_companion(self, NULL, &own, call_for_some_time);
        REQUIRE_OK(dd_thread_start(&receiver, "receiver", receive_the_abort, self, check_err()));
        CHECK_OK(team_call(self, &args));
        CHECK(atomic_load(&is_open));
        CHECK(trap[0] == 5 && trap[nbytes - 1] == 5);
        pthread_join(own.thread, NULL);
        pthread_join(receiver, NULL);
    } else {
        memset(data, 5, nbytes);
        CHECK_OK(team_call(self, &args));
        CHECK(wait_for(&is_trapped));
        dd_group_abort(self->group, "enough");
        atomic_store(&has_aborted, true);
    }
    CHECK_STATUS(team_barrier(self->group), DD_ABORTED);
    dd_mem_free(data);
}

TEST(an_abort_does_not_fail_a_call_that_is_copying_its_last_piece)
{
    atomic_store(&has_aborted, false);
    run_trapped(be_aborted_while_it_copies);
}

static void
be_aborted_in_a_plan(team_rank *self)
{
    uint8_t *output = dd_mem_zalloc(2 * NBYTES);
    REQUIRE(output != NULL);
    if (self->rank == 0) {
        abort_while_stopped(self, gather_trapped, output);
    } else {
        /* its data may have arrived before the abort */
        dd_status status = gather_trapped(self, output);
        CHECK(status == DD_OK || status == DD_ABORTED);
    }
    dd_mem_free(output);
}

TEST(an_abort_waits_until_a_copy_of_a_collective_over_messages_ends)
{
    team_options options = {.size = 2, .algorithms = "flat"};
    run_trapped_with(&options, be_aborted_in_a_plan);
}
