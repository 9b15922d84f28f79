/* Failures of windows. */
#include "check.h"
#include "core/mem.h"
#include "failure_notices.h"
#include "faults/faults.h"
#include "group/internal.h"
#include "store/file_store.h"
#include "window_team.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static void
sleep_for(int64_t duration_ns)
{
    dd_wait wait = dd_wait_after(duration_ns);
    CHECK_OK(dd_wait_sleep(&wait, duration_ns, check_err()));
}

/* ---- arguments */

static void
pass_invalid_arguments(team_rank *self)
{
    const bool *is_plain = self->arg;
    test_window test;
    REQUIRE(window_open(self, 100 + (size_t)self->rank, *is_plain, &test));
    uint8_t bytes[200] = {0};
    int other = 1 - self->rank;
    size_t room = 100 + (size_t)other;
    CHECK_INT(dd_window_nbytes(test.window, other), room);
    CHECK_STATUS(window_put(&test, bytes, room + 1, (dd_window_target){.rank = other}, 0),
                 DD_INVALID_ARGUMENT);
    CHECK_CONTAINS(check_message(), "put on window 1 of group \"team\"");
    CHECK_STATUS(window_get(&test, bytes, 1, (dd_window_target){other, room}), DD_INVALID_ARGUMENT);
    CHECK_STATUS(window_get(&test, bytes, 2, (dd_window_target){other, SIZE_MAX}), DD_INVALID_ARGUMENT);
    CHECK_STATUS(window_put(&test, bytes, 1, (dd_window_target){.rank = 2}, 0), DD_INVALID_ARGUMENT);
    CHECK_STATUS(window_put(&test, bytes, 1, (dd_window_target){.rank = -1}, 0), DD_INVALID_ARGUMENT);
    CHECK_STATUS(window_signal(&test, other, dd_window_nchannels(test.window)), DD_INVALID_ARGUMENT);
    CHECK_STATUS(window_signal(&test, other, DD_NO_CHANNEL), DD_INVALID_ARGUMENT);
    CHECK_STATUS(window_take(&test, other, DD_NO_CHANNEL), DD_INVALID_ARGUMENT);
    CHECK_OK(window_put(&test, bytes, room, (dd_window_target){.rank = other}, DD_NO_CHANNEL));
    CHECK_OK(window_put(&test, NULL, 0, (dd_window_target){other, room}, DD_NO_CHANNEL));
    dd_wait wait = window_plenty();
    dd_window *none = NULL;
    dd_window_options options = {.data = bytes, .nbytes = sizeof bytes, .region = test.region};
    if (test.region != NULL) {
        CHECK_STATUS(dd_window_open(self->group, &options, &none, &wait, check_err()), DD_INVALID_ARGUMENT);
    }
    options = (dd_window_options){.pad_nbytes = 4};
    CHECK_STATUS(dd_window_open(self->group, &options, &none, &wait, check_err()), DD_INVALID_ARGUMENT);
    options = (dd_window_options){.pad_nbytes = self->rank == 0 ? 64 : 128};
    CHECK_STATUS(dd_window_open(self->group, &options, &none, &wait, check_err()), DD_MISMATCH);
    CHECK_CONTAINS(check_message(), "ranks disagree on the signal pad: rank 0 has 64 bytes, rank 1 (");
    CHECK_CONTAINS(check_message(), "has 128");
    options = (dd_window_options){.pad_nbytes = self->rank == 0 ? 4 : 0};
    CHECK_STATUS(dd_window_open(self->group, &options, &none, &wait, check_err()), DD_INVALID_ARGUMENT);
    CHECK_CONTAINS(check_message(), self->rank == 0 ? "got 4 bytes" : "rank 0 (");
    options = (dd_window_options){.obstacle = self->rank == 0 ? DD_OK : DD_OUT_OF_MEMORY};
    CHECK_STATUS(dd_window_open(self->group, &options, &none, &wait, check_err()), DD_OUT_OF_MEMORY);
    CHECK_CONTAINS(check_message(), self->rank == 0 ? "rank 1 (" : "this rank");
    CHECK_CONTAINS(check_message(), "cannot open its part");
    window_close(&test); /* none of this has damaged the window */
}

TEST(window_calls_with_invalid_arguments_are_refused)
{
    window_run_everywhere(2, pass_invalid_arguments);
}

/* ---- closed windows */

static void
use_closed(team_rank *self)
{
    const bool *is_plain = self->arg;
    test_window test;
    uint8_t bytes[8000] = {1};
    REQUIRE(window_open(self, sizeof bytes, *is_plain, &test));
    if (self->rank == 1) {
        CHECK_OK(window_signal(&test, 0, 0));
        dd_window_close(test.window);
        memset(test.data, 7, test.nbytes);
        CHECK_STATUS(window_put(&test, bytes, 1, (dd_window_target){.rank = 0}, 0), DD_CLOSED);
        CHECK_STATUS(window_take(&test, 0, 0), DD_CLOSED);
        CHECK_CONTAINS(check_message(), "this rank has closed the window");
        team_rendezvous(self, "closed");
        team_rendezvous(self, "tried");
        CHECK_INT(test.data[0], 7);
    } else {
        team_rendezvous(self, "closed");
        CHECK_OK(window_take(&test, 1, 0)); /* signalled before the close */
        dd_window_target to = {.rank = 1};
        CHECK_STATUS(window_get(&test, bytes, 10, to), DD_CLOSED);
        CHECK_CONTAINS(check_message(), "rank 1 (");
        CHECK_CONTAINS(check_message(), "has closed the window");
        CHECK_STATUS(window_put(&test, bytes, sizeof bytes, to, 0), DD_CLOSED);
        CHECK_STATUS(window_signal(&test, 1, 0), DD_CLOSED);
        CHECK_STATUS(window_take(&test, 1, 0), DD_CLOSED);
        CHECK_CONTAINS(check_message(), "rank 1 (");
        team_rendezvous(self, "tried");
    }
    CHECK_OK(team_barrier(self->group)); /* the group is not affected */
    window_drop(&test);
}

TEST(calls_to_a_closed_window_fail)
{
    window_run_everywhere(2, use_closed);
}

/* Rank 1 aborts, and closes its window. Rank 0 sees that in shared memory before the reason. */
static void
close_and_abort(team_rank *self)
{
    const bool *is_plain = self->arg;
    test_window test;
    REQUIRE(window_open(self, 100, *is_plain, &test));
    dd_engine *engine = dd_group_engine(self->group);
    if (self->rank == 0) {
        dd_engine_lock(engine); /* so that rank 0 receives nothing */
        team_rendezvous(self, "held");
        team_rendezvous(self, "timed out");
        dd_engine_unlock(engine);
        /* else a message carries the signal, and may still be sent */
        if (dd_window_data(test.window, 1) != NULL) {
            CHECK_STATUS(window_signal(&test, 1, 0), DD_ABORTED);
            CHECK_CONTAINS(check_message(), "aborted the group: no more");
        }
        CHECK_STATUS(window_take(&test, 1, 0), DD_ABORTED);
        CHECK_CONTAINS(check_message(), "aborted the group: no more");
    } else {
        team_rendezvous(self, "held");
        if (self->rank == 1) {
            dd_window_close(test.window);
            dd_group_abort(self->group, "no more");
        }
        team_rendezvous(self, "timed out");
    }
    team_rendezvous(self, "through");
    window_drop(&test);
}

TEST(calls_on_a_window_report_an_abort_even_if_the_peer_closed_it_before)
{
    window_run_everywhere(2, close_and_abort);
}

/* ---- waits that fail */

static bool
is_tired(void *ctx)
{
    int *nlooks = ctx;
    return ++*nlooks > 2;
}

static void
wait_in_vain(team_rank *self)
{
    const bool *is_plain = self->arg;
    test_window test;
    REQUIRE(window_open(self, 8, *is_plain, &test));
    dd_wait wait = dd_wait_after(30 * DD_NS_PER_MS);
    CHECK_STATUS(dd_window_wait_signal(test.window, 1 - self->rank, 2, &wait, check_err()), DD_OP_TIMED_OUT);
    CHECK_CONTAINS(check_message(), self->rank == 0 ? "rank 1 (" : "rank 0 (");
    CHECK_CONTAINS(check_message(), "has not signalled on channel 2");
    int nlooks = 0;
    wait = window_plenty();
    wait.is_interrupted = is_tired;
    wait.ctx = &nlooks;
    CHECK_STATUS(dd_window_wait_signal(test.window, 1 - self->rank, 2, &wait, check_err()), DD_INTERRUPTED);
    CHECK_OK(team_barrier(self->group));
    window_close(&test);
}

TEST(waits_for_signals_end_at_their_timeout_or_an_interrupt)
{
    window_run_everywhere(2, wait_in_vain);
}

static void
be_aborted(team_rank *self)
{
    const bool *is_plain = self->arg;
    test_window test;
    REQUIRE(window_open(self, 8, *is_plain, &test));
    team_rendezvous(self, "open"); /* also on the other rank */
    if (self->rank == 1) {
        sleep_for(50 * DD_NS_PER_MS);
        dd_group_abort(self->group, "enough");
    }
    CHECK_STATUS(window_take(&test, self->rank == 0 ? 2 : 0, 0), DD_ABORTED);
    CHECK_CONTAINS(check_message(), "enough");
    uint8_t byte = 0;
    CHECK_STATUS(window_put(&test, &byte, 1, (dd_window_target){.rank = 0}, 0), DD_ABORTED);
    window_drop(&test);
}

TEST(an_abort_ends_waits_for_signals)
{
    window_run_everywhere(3, be_aborted);
}

static void
leave_early(team_rank *self)
{
    const bool *is_plain = self->arg;
    test_window test;
    REQUIRE(window_open(self, 8, *is_plain, &test));
    dd_wait wait = window_plenty();
    if (self->rank == 1) {
        CHECK_OK(window_signal(&test, 0, 0));
        CHECK_OK(dd_group_close(self->group, &wait, check_err()));
        CHECK_STATUS(window_take(&test, 0, 0), DD_CLOSED);
        team_rendezvous(self, "left");
    } else {
        int64_t start_ns = dd_clock_now_ns();
        CHECK_OK(window_take(&test, 1, 0));
        CHECK_STATUS(window_take(&test, 1, 0), DD_PEER_LOST);
        CHECK_CONTAINS(check_message(), "rank 1 (");
        CHECK(dd_clock_now_ns() - start_ns < 2 * DD_NS_PER_S * check_slow());
        team_rendezvous(self, "left");
        if (dd_window_data(test.window, 1) != NULL) {
            *(volatile uint8_t *)dd_window_data(test.window, 1) = 1; /* still mapped */
        }
    }
    window_drop(&test);
}

TEST(waits_for_signals_end_when_the_other_rank_leaves)
{
    window_run_everywhere(2, leave_early);
}

/* A put that cannot complete fails the close of the group; background sends must not. */
static void
leave_in_the_middle(team_rank *self)
{
    enum { NBYTES = 3000000 };
    test_window test;
    uint8_t *bytes = calloc(1, NBYTES);
    dd_wait wait = window_plenty();
    REQUIRE(bytes != NULL && window_open(self, NBYTES, true, &test));
    if (self->rank == 1) {
        team_rendezvous(self, "begin");
        dd_engine_lock(self->engine);
        team_rendezvous(self, "held");
        team_rendezvous(self, "closed");
        dd_engine_unlock(self->engine);
        CHECK_STATUS(window_take(&test, 0, 1), DD_PEER_LOST);
        CHECK_CONTAINS(check_message(), "rank 0 (");
    } else {
        dd_work *work = NULL;
        dd_error error = {.code = DD_OK};
        team_rendezvous(self, "begin");
        team_rendezvous(self, "held");
        CHECK_OK(dd_window_post_put(test.window, (dd_block){bytes, NBYTES}, (dd_window_target){.rank = 1}, 1,
                                    &team_no_options, &work, check_err()));
        wait = dd_wait_after(50 * DD_NS_PER_MS);
        CHECK_STATUS(dd_group_close(self->group, &wait, check_err()), DD_OP_TIMED_OUT);
        CHECK_INT(dd_work_result(work, &error), DD_CLOSED);
        CHECK_CONTAINS(error.message, "put on window 1 of group \"team\"");
        dd_work_release(work);
        team_rendezvous(self, "closed");
    }
    window_drop(&test);
    free(bytes);
}

TEST(closing_the_group_ends_a_pending_put)
{
    team_options options = {.size = 2};
    team_run_both(&options, leave_in_the_middle, NULL);
}

/* ---- a process that dies */

#define NMORTALS 2

typedef struct mortals {
    const char *path;
    bool is_shm_disabled;
    pid_t victim;
} mortals;

static void
outlive(team_rank *self, const test_window *test, const mortals *shared)
{
    int64_t start_ns = dd_clock_now_ns();
    kill(shared->victim, SIGKILL);
    CHECK_STATUS(window_take(test, 1, 1), DD_PEER_LOST);
    CHECK_CONTAINS(check_message(), "rank 1 (");
    CHECK(dd_clock_now_ns() - start_ns < DD_NS_PER_S * check_slow());
    CHECK_STATUS(window_signal(test, 1, 0), DD_PEER_LOST);
    CHECK_STATUS(dd_group_check(self->group, check_err()), DD_PEER_LOST);
}

static void
live(const mortals *shared, int rank)
{
    team_rank self = {.rank = rank, .size = NMORTALS};
    dd_connect_options connect = team_connect_options(shared->is_shm_disabled);
    dd_group_options options = team_group_options("mortals");
    dd_file_store_options file = {
        .path = shared->path, .world_size = NMORTALS, .timeout_ns = 10 * DD_NS_PER_S * check_slow()};
    dd_wait wait = window_plenty();
    test_window test;
    REQUIRE_OK(dd_file_store_open(&self.store, &file, &wait, check_err()));
    REQUIRE_OK(dd_engine_open(&connect, &self.engine, check_err()));
    REQUIRE_OK(
        dd_group_open(self.engine, self.store, rank, NMORTALS, &options, &self.group, &wait, check_err()));
    REQUIRE(window_open(&self, 100, false, &test));
    CHECK_OK(window_signal(&test, 1 - rank, 0));
    CHECK_OK(window_take(&test, 1 - rank, 0));
    if (rank == 1) {
        CHECK_OK(window_take(&test, 0, 1)); /* blocks until the process is killed */
        _exit(1);
    }
    outlive(&self, &test, shared);
    window_drop(&test);
    dd_group_release(self.group);
    dd_engine_release(self.engine);
    dd_store_release(self.store);
}

static void
kill_one(bool is_shm_disabled)
{
    char path[] = "/tmp/dldist-window-XXXXXX";
    int fd = mkstemp(path);
    REQUIRE(fd >= 0);
    close(fd);
    mortals shared = {.path = path, .is_shm_disabled = is_shm_disabled};
    shared.victim = fork();
    if (shared.victim == 0) {
        live(&shared, 1);
        _exit(1);
    }
    live(&shared, 0);
    kill(shared.victim, SIGKILL);
    waitpid(shared.victim, NULL, 0);
    unlink(path);
}

TEST(waits_for_signals_end_when_the_other_process_dies)
{
    kill_one(false);
    kill_one(true);
}

/* ---- a group that fails while a window is opened */

typedef struct robbed {
    dd_group *group;
    int64_t began_ns;
    int64_t aborted_ns; /* 0 until the abort */
} robbed;

/* Abort once the parts have been exchanged, and descriptors are awaited. */
static bool
abort_during_calls(void *ctx)
{
    robbed *self = ctx;
    dd_engine_lock(self->group->engine);
    bool is_waiting = self->group->nstarted > 0 && !self->group->is_active;
    dd_engine_unlock(self->group->engine);
    if (is_waiting && self->aborted_ns == 0) {
        self->aborted_ns = dd_clock_now_ns();
        dd_group_abort(self->group, "over");
    }
    return false;
}

static void
open_in_vain(team_rank *self)
{
    robbed state = {.group = self->group};
    dd_wait wait = window_plenty();
    dd_window *window = NULL;
    dd_window_options options = {.pad_nbytes = 64};
    if (self->rank == 0) {
        engine_lose_descriptors(self->engine);
        wait.is_interrupted = abort_during_calls;
        wait.ctx = &state;
    }
    state.began_ns = dd_clock_now_ns();
    CHECK_STATUS(dd_window_open(self->group, &options, &window, &wait, check_err()), DD_ABORTED);
    int64_t now_ns = dd_clock_now_ns();
    /* The open must fail without waiting for descriptors until its timeout. If this thread ran
     * late, the times prove nothing. */
    if (self->rank == 0 && CHECK(state.aborted_ns != 0) &&
        state.aborted_ns - state.began_ns < 150 * DD_NS_PER_MS) {
        CHECK(now_ns - state.aborted_ns < 250 * DD_NS_PER_MS * check_slow());
    }
}

TEST(opening_a_window_ends_when_the_group_fails)
{
    team_options options = {.size = 2};
    team_run(&options, open_in_vain, NULL);
}

/* ---- a rank that does not answer */

static void
time_out_and_retry(team_rank *self)
{
    enum { NBYTES = 3000000 };
    const bool *is_plain = self->arg;
    test_window test;
    REQUIRE(window_open(self, NBYTES, *is_plain, &test));
    bool is_direct = dd_window_data(test.window, 1 - self->rank) != NULL;
    if (self->rank == 1) {
        window_fill(test.data, 9, 100);
        team_rendezvous(self, "begin");
        dd_engine_lock(self->engine);
        team_rendezvous(self, "held");
        team_rendezvous(self, "tried");
        dd_engine_unlock(self->engine);
        CHECK_OK(window_take(&test, 0, 1));
        window_check_filled(test.data, 4, NBYTES); /* the abandoned data arrived */
    } else {
        uint8_t *bytes = malloc(NBYTES);
        team_rendezvous(self, "begin");
        team_rendezvous(self, "held");
        dd_status wanted = is_direct ? DD_OK : DD_OP_TIMED_OUT;
        dd_window_target there = {.rank = 1};
        dd_wait wait = dd_wait_after(50 * DD_NS_PER_MS);
        CHECK_STATUS(dd_window_get(test.window, (dd_block){bytes, NBYTES}, there, &wait, check_err()),
                     wanted);
        window_fill(bytes, 4, NBYTES);
        wait = dd_wait_after(50 * DD_NS_PER_MS);
        CHECK_STATUS(dd_window_put(test.window, (dd_block){bytes, NBYTES}, there, 1, &wait, check_err()),
                     wanted);
        memset(bytes, 0, NBYTES);
        team_rendezvous(self, "tried");
        CHECK_OK(window_get(&test, bytes, NBYTES, there));
        window_check_filled(bytes, 4, NBYTES);
        free(bytes);
    }
    window_close(&test);
}

TEST(window_calls_that_time_out_leave_the_window_usable)
{
    window_run_everywhere(2, time_out_and_retry);
}

/* An interrupt must not change the window; the put continues. */
static void
wait_until_timeout(team_rank *self)
{
    enum { NBYTES = 3000000 };
    test_window test;
    REQUIRE(window_open(self, NBYTES, true, &test));
    if (self->rank == 1) {
        team_rendezvous(self, "begin");
        dd_engine_lock(self->engine);
        team_rendezvous(self, "held");
        team_rendezvous(self, "tried");
        dd_engine_unlock(self->engine);
        CHECK_OK(window_take(&test, 0, 1));
        window_check_filled(test.data, 4, NBYTES);
    } else {
        uint8_t *bytes = malloc(NBYTES);
        int nlooks = 0;
        dd_wait wait = window_plenty();
        wait.is_interrupted = is_tired;
        wait.ctx = &nlooks;
        team_rendezvous(self, "begin");
        team_rendezvous(self, "held");
        window_fill(bytes, 4, NBYTES);
        CHECK_STATUS(dd_window_put(test.window, (dd_block){bytes, NBYTES}, (dd_window_target){.rank = 1}, 1,
                                   &wait, check_err()),
                     DD_INTERRUPTED);
        memset(bytes, 0, NBYTES);
        team_rendezvous(self, "tried");
        free(bytes);
    }
    window_close(&test);
}

TEST(the_caller_may_reuse_its_memory_after_an_interrupted_put)
{
    team_options options = {.size = 2};
    team_run_both(&options, wait_until_timeout, NULL);
}

/* ---- forks */

static void
fork_and_use(team_rank *self)
{
    const bool *is_plain = self->arg;
    test_window test;
    REQUIRE(window_open(self, 8, *is_plain, &test));
    if (self->rank == 0) {
        dd_engine_lock(self->engine); /* as if another thread held it; in the child, for ever */
        pid_t pid = fork();
        if (pid == 0) {
            uint8_t byte = 0;
            (void)alarm(20);
            CHECK(dd_group_find_region(self->group, test.data, test.nbytes) == NULL);
            CHECK_STATUS(window_put(&test, &byte, 1, (dd_window_target){.rank = 1}, 0), DD_FORKED);
            CHECK_STATUS(window_take(&test, 1, 0), DD_FORKED);
            CHECK_STATUS(window_signal(&test, 1, 0), DD_FORKED);
            dd_window_close(test.window);
            dd_window_release(test.window);
            _exit(check_failures() > 0);
        }
        dd_engine_unlock(self->engine);
        int status = 1;
        CHECK(waitpid(pid, &status, 0) == pid);
        CHECK_INT(status, 0);
    }
    window_close(&test);
}

TEST(a_forked_child_cannot_use_the_window)
{
    bool is_plain = false;
    team_options options = {.size = 2};
    team_run(&options, fork_and_use, &is_plain);
}

/* ---- failed allocations */

typedef struct shortage {
    bool is_plain;
    long count;
} shortage;

static void
open_without_memory(team_rank *self)
{
    const shortage *how = self->arg;
    uint8_t *bytes = calloc(1, 20000);
    uint8_t *data = calloc(1, 20000);
    dd_region *region = NULL;
    REQUIRE(bytes != NULL && data != NULL);
    if (!how->is_plain) {
        REQUIRE_OK(dd_group_alloc(self->group, 20000, &region, check_err()));
    }
    team_rendezvous(self, "begin");
    if (self->rank == 0) {
        (void)dd_mem_fail_after(how->count);
    }
    dd_wait wait = dd_wait_after(2 * DD_NS_PER_S * check_slow());
    dd_window *window = NULL;
    dd_window_options options = {
        .data = region != NULL ? dd_region_data(region) : data, .nbytes = 20000, .region = region};
    dd_error error;
    dd_window_target to = {.rank = 1 - self->rank};
    dd_status status = dd_window_open(self->group, &options, &window, &wait, &error);
    if (status == DD_OK) {
        for (size_t nbytes = 100; nbytes <= 20000 && status == DD_OK; nbytes *= 200) {
            status = dd_window_put(window, (dd_block){bytes, nbytes}, to, 0, &wait, &error);
        }
    }
    if (status == DD_OK) {
        status = dd_window_get(window, (dd_block){bytes, 20000}, to, &wait, &error);
    }
    if (status == DD_OK) {
        status = dd_window_wait_signal(window, to.rank, 0, &wait, &error);
    }
    CHECK(status == DD_OK || (status == error.code && error.message[0] != '\0'));
    if (status != DD_OK) {
        dd_group_abort(self->group, "out of memory");
    }
    (void)dd_mem_fail_after(-1);
    team_rendezvous(self, "end");
    dd_window_release(window);
    dd_region_release(region);
    free(bytes);
    free(data);
}

TEST(window_calls_return_an_error_when_allocations_fail)
{
    for (long count = 0; count < 24; count++) {
        shortage how = {.is_plain = count % 2 == 1, .count = count / 2};
        team_options options = {.size = 2};
        team_run(&options, open_without_memory, &how);
    }
}
