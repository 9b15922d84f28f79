/* What goes wrong with windows. */
#include "check.h"
#include "core/mem.h"
#include "group/group_internal.h"
#include "store/file_store.h"
#include "window/window_internal.h"
#include "window_team.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static window_hub *
hub_of(const dd_group *group)
{
    return (window_hub *)group->guest;
}

static void
doze(int64_t duration_ns)
{
    dd_wait wait = dd_wait_after(duration_ns);
    CHECK_OK(dd_wait_sleep(&wait, duration_ns, check_err()));
}

/* ---- arguments */

static void
ask_for_nonsense(team_rank *self)
{
    const bool *is_plain = self->arg;
    test_window test;
    REQUIRE(window_open(self, 100 + (size_t)self->rank, *is_plain, &test));
    uint8_t bytes[200] = {0};
    int other = 1 - self->rank;
    size_t room = 100 + (size_t)other;
    CHECK_INT(dd_window_nbytes(test.window, other), room);
    CHECK_STATUS(window_put(&test, bytes, room + 1, (dd_window_place){.rank = other}, 0),
                 DD_INVALID_ARGUMENT);
    CHECK_CONTAINS(check_message(), "put on window 1 of group \"team\"");
    CHECK_STATUS(window_get(&test, bytes, 1, (dd_window_place){other, room}), DD_INVALID_ARGUMENT);
    CHECK_STATUS(window_get(&test, bytes, 2, (dd_window_place){other, SIZE_MAX}), DD_INVALID_ARGUMENT);
    CHECK_STATUS(window_put(&test, bytes, 1, (dd_window_place){.rank = 2}, 0), DD_INVALID_ARGUMENT);
    CHECK_STATUS(window_put(&test, bytes, 1, (dd_window_place){.rank = -1}, 0), DD_INVALID_ARGUMENT);
    CHECK_STATUS(window_signal(&test, other, dd_window_nchannels(test.window)), DD_INVALID_ARGUMENT);
    CHECK_STATUS(window_signal(&test, other, DD_NO_CHANNEL), DD_INVALID_ARGUMENT);
    CHECK_STATUS(window_take(&test, other, DD_NO_CHANNEL), DD_INVALID_ARGUMENT);
    CHECK_OK(window_put(&test, bytes, room, (dd_window_place){.rank = other}, DD_NO_CHANNEL));
    CHECK_OK(window_put(&test, NULL, 0, (dd_window_place){other, room}, DD_NO_CHANNEL));
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
    CHECK_CONTAINS(check_message(), "rank 0 asks for a pad of 64 bytes, rank 1 (");
    CHECK_CONTAINS(check_message(), "for one of 128");
    options = (dd_window_options){.pad_nbytes = self->rank == 0 ? 4 : 0};
    CHECK_STATUS(dd_window_open(self->group, &options, &none, &wait, check_err()), DD_INVALID_ARGUMENT);
    CHECK_CONTAINS(check_message(), self->rank == 0 ? "a pad of 4 bytes" : "rank 0 (");
    options = (dd_window_options){.obstacle = self->rank == 0 ? DD_OK : DD_OUT_OF_MEMORY};
    CHECK_STATUS(dd_window_open(self->group, &options, &none, &wait, check_err()), DD_OUT_OF_MEMORY);
    CHECK_CONTAINS(check_message(), self->rank == 0 ? "rank 1 (" : "this rank");
    CHECK_CONTAINS(check_message(), "cannot open its part");
    window_close(&test); /* which nothing of this has done any harm */
}

TEST(arguments_that_make_no_sense)
{
    window_run_everywhere(2, ask_for_nonsense);
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
        CHECK_STATUS(window_put(&test, bytes, 1, (dd_window_place){.rank = 0}, 0), DD_CLOSED);
        CHECK_STATUS(window_take(&test, 0, 0), DD_CLOSED);
        CHECK_CONTAINS(check_message(), "this rank has closed the window");
        team_rendezvous(self, "closed");
        team_rendezvous(self, "tried");
        CHECK_INT(test.data[0], 7);
    } else {
        team_rendezvous(self, "closed");
        CHECK_OK(window_take(&test, 1, 0)); /* said before */
        dd_window_place to = {.rank = 1};
        CHECK_STATUS(window_get(&test, bytes, 10, to), DD_CLOSED);
        CHECK_CONTAINS(check_message(), "rank 1 (");
        CHECK_CONTAINS(check_message(), "has closed the window");
        CHECK_STATUS(window_put(&test, bytes, sizeof bytes, to, 0), DD_CLOSED);
        CHECK_STATUS(window_signal(&test, 1, 0), DD_CLOSED);
        CHECK_STATUS(window_take(&test, 1, 0), DD_CLOSED);
        CHECK_CONTAINS(check_message(), "rank 1 (");
        team_rendezvous(self, "tried");
    }
    CHECK_OK(team_barrier(self->group)); /* the group does not mind */
    window_drop(&test);
}

TEST(a_window_that_is_closed)
{
    window_run_everywhere(2, use_closed);
}

/* Rank 1 gives up, and closes what it has. That shows in shared memory before rank 0 has heard why. */
static void
close_and_give_up(team_rank *self)
{
    const bool *is_plain = self->arg;
    test_window test;
    REQUIRE(window_open(self, 100, *is_plain, &test));
    dd_engine *engine = dd_group_engine(self->group);
    if (self->rank == 0) {
        dd_engine_lock(engine); /* nobody listens */
        team_rendezvous(self, "deaf");
        team_rendezvous(self, "given up");
        dd_engine_unlock(engine);
        if (dd_window_data(test.window, 1) != NULL) { /* else it goes by a note, which may still be sent */
            CHECK_STATUS(window_signal(&test, 1, 0), DD_ABORTED);
            CHECK_CONTAINS(check_message(), "aborted the group: no more");
        }
        CHECK_STATUS(window_take(&test, 1, 0), DD_ABORTED);
        CHECK_CONTAINS(check_message(), "aborted the group: no more");
    } else {
        team_rendezvous(self, "deaf");
        if (self->rank == 1) {
            dd_window_close(test.window);
            dd_group_abort(self->group, "no more");
        }
        team_rendezvous(self, "given up");
    }
    team_rendezvous(self, "through");
    window_drop(&test);
}

TEST(a_window_that_is_closed_for_a_reason)
{
    window_run_everywhere(2, close_and_give_up);
}

/* ---- waiting in vain */

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

TEST(waits_end_in_time)
{
    window_run_everywhere(2, wait_in_vain);
}

static void
be_aborted(team_rank *self)
{
    const bool *is_plain = self->arg;
    test_window test;
    REQUIRE(window_open(self, 8, *is_plain, &test));
    team_rendezvous(self, "open"); /* on the other rank, too */
    if (self->rank == 1) {
        doze(50 * DD_NS_PER_MS);
        dd_group_abort(self->group, "enough");
    }
    CHECK_STATUS(window_take(&test, self->rank == 0 ? 2 : 0, 0), DD_ABORTED);
    CHECK_CONTAINS(check_message(), "enough");
    uint8_t byte = 0;
    CHECK_STATUS(window_put(&test, &byte, 1, (dd_window_place){.rank = 0}, 0), DD_ABORTED);
    window_drop(&test);
}

TEST(an_abort_ends_waits)
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
            *(volatile uint8_t *)dd_window_data(test.window, 1) = 1; /* it is still there */
        }
    }
    window_drop(&test);
}

TEST(a_rank_that_leaves_ends_waits)
{
    window_run_everywhere(2, leave_early);
}

/* A put that does not get through is of the group's business when it closes; what is sent in the background is not held against it. */
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
        team_rendezvous(self, "deaf");
        team_rendezvous(self, "closed");
        dd_engine_unlock(self->engine);
        CHECK_STATUS(window_take(&test, 0, 1), DD_PEER_LOST);
        CHECK_CONTAINS(check_message(), "rank 0 (");
    } else {
        dd_work *work = NULL;
        dd_error error = {.code = DD_OK};
        team_rendezvous(self, "begin");
        team_rendezvous(self, "deaf");
        CHECK_OK(dd_window_post_put(test.window, (dd_block){bytes, NBYTES}, (dd_window_place){.rank = 1}, 1,
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

TEST(a_group_that_is_closed_while_a_put_is_under_way)
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
        CHECK_OK(window_take(&test, 0, 1)); /* until it is killed */
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

TEST(a_process_that_dies_ends_waits)
{
    kill_one(false);
    kill_one(true);
}

/* ---- a group that fails while a window is being opened */

typedef struct robbed {
    dd_group *group;
    int64_t began_ns;
    int64_t aborted_ns; /* 0: not yet */
} robbed;

/* Descriptors of the other rank are lost on the way. */
static void
steal_descriptor(dd_group *group)
{
    int fd = -1;
    dd_wait wait = window_plenty();
    while (fd < 0 && !dd_wait_is_over(&wait)) {
        dd_engine_lock(group->engine);
        for (uint64_t id = 1; id < 8 && fd < 0; id++) {
            uint64_t key[2] = {group->id, id};
            fd = dd_peer_take_fd_locked(group->peers[1 - group->rank], key);
        }
        dd_engine_unlock(group->engine);
        doze(DD_NS_PER_MS);
    }
    CHECK(fd >= 0);
    close(fd);
}

/* Once the cards have been exchanged, and descriptors are awaited. */
static bool
abort_meanwhile(void *ctx)
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
        steal_descriptor(self->group);
        wait.is_interrupted = abort_meanwhile;
        wait.ctx = &state;
    }
    state.began_ns = dd_clock_now_ns();
    CHECK_STATUS(dd_window_open(self->group, &options, &window, &wait, check_err()), DD_ABORTED);
    int64_t now_ns = dd_clock_now_ns();
    /* Nobody waits for descriptors until they are late; where this thread did not run in time, that cannot be told. */
    if (self->rank == 0 && CHECK(state.aborted_ns != 0) &&
        state.aborted_ns - state.began_ns < 150 * DD_NS_PER_MS) {
        CHECK(now_ns - state.aborted_ns < 250 * DD_NS_PER_MS * check_slow());
    }
}

TEST(a_group_that_fails_while_a_window_is_opened)
{
    team_options options = {.size = 2};
    team_run(&options, open_in_vain, NULL);
}

/* ---- a rank that does not answer */

static void
be_patient(team_rank *self)
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
        team_rendezvous(self, "deaf");
        team_rendezvous(self, "tried");
        dd_engine_unlock(self->engine);
        CHECK_OK(window_take(&test, 0, 1));
        window_check_filled(test.data, 4, NBYTES); /* what was given up has come all the same */
    } else {
        uint8_t *bytes = malloc(NBYTES);
        team_rendezvous(self, "begin");
        team_rendezvous(self, "deaf");
        dd_status wanted = is_direct ? DD_OK : DD_OP_TIMED_OUT;
        dd_window_place there = {.rank = 1};
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

TEST(calls_that_are_given_up)
{
    window_run_everywhere(2, be_patient);
}

/* An interrupt leaves the window as it was; what was being put goes on. */
static void
be_impatient(team_rank *self)
{
    enum { NBYTES = 3000000 };
    test_window test;
    REQUIRE(window_open(self, NBYTES, true, &test));
    if (self->rank == 1) {
        team_rendezvous(self, "begin");
        dd_engine_lock(self->engine);
        team_rendezvous(self, "deaf");
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
        team_rendezvous(self, "deaf");
        window_fill(bytes, 4, NBYTES);
        CHECK_STATUS(dd_window_put(test.window, (dd_block){bytes, NBYTES}, (dd_window_place){.rank = 1}, 1,
                                   &wait, check_err()),
                     DD_INTERRUPTED);
        memset(bytes, 0, NBYTES);
        team_rendezvous(self, "tried");
        free(bytes);
    }
    window_close(&test);
}

TEST(puts_that_are_interrupted)
{
    team_options options = {.size = 2};
    team_run_both(&options, be_impatient, NULL);
}

/* ---- memory that is wanted back */

static const window_letter *
first_letter(const window_hub *hub)
{
    return DD_CONTAINER_OF(hub->letters.next, window_letter, link);
}

/* Nobody who wants the lock waits for more than a piece, of a put that is late and of a window that is closed while it answers. */
static void
take_back(team_rank *self)
{
    enum { NBYTES = 5 * WINDOW_PIECE_NBYTES };
    uint8_t *bytes = malloc(NBYTES);
    test_window test;
    dd_work *work = NULL;
    dd_window_place there = {.rank = 1 - self->rank};
    REQUIRE(bytes != NULL && window_open(self, NBYTES, true, &test));
    window_hub *hub = hub_of(self->group);
    if (self->rank == 1) {
        window_fill(test.data, 6, NBYTES);
        team_rendezvous(self, "filled");
        dd_engine_lock(self->engine); /* answers nobody, and is looked into */
        team_rendezvous(self, "deaf");
        team_rendezvous(self, "late");
        dd_engine_unlock(self->engine);
        CHECK_OK(window_take(&test, 0, 1));
        window_check_filled(test.data, 7, NBYTES);
        team_rendezvous(self, "arrived");
        CHECK_OK(window_take(&test, 0, 2));
    } else {
        dd_call_options options = team_no_options;
        team_rendezvous(self, "filled");
        team_rendezvous(self, "deaf");
        window_fill(bytes, 7, NBYTES);
        CHECK_OK(dd_window_post_put(test.window, (dd_block){bytes, NBYTES}, there, 1, &options, &work,
                                    check_err()));
        dd_engine_lock(self->engine);
        window_call *put = first_letter(hub)->put;
        REQUIRE(put != NULL);
        put->deadline_ns = 0;
        hub->task.on_deadline(&hub->task);
        for (size_t npieces = 1; npieces <= 5; npieces++) {
            CHECK(!dd_work_is_done(work));
            CHECK(hub->task.progress(&hub->task));
            CHECK_INT(first_letter(hub)->ncopied, npieces * WINDOW_PIECE_NBYTES);
        }
        CHECK(dd_work_is_done(work));
        dd_engine_unlock(self->engine);
        memset(bytes, 0, NBYTES);
        dd_error error = {.code = DD_OK};
        dd_wait wait = window_plenty();
        CHECK_INT(dd_group_wait(self->group, work, &wait, &error), DD_OP_TIMED_OUT);
        CHECK_CONTAINS(error.message, "rank 1 (");
        dd_work_release(work);
        team_rendezvous(self, "late");
        team_rendezvous(self, "arrived");
        CHECK_OK(window_signal(&test, 1, 2));
    }
    window_close(&test);
    free(bytes);
}

TEST(memory_is_taken_back_in_pieces)
{
    team_options options = {.size = 2};
    team_run_both(&options, take_back, NULL);
}

/* Takes no notes from now on: answers stay with whoever gives them. */
static void
stop_taking(team_rank *self, int rank)
{
    dd_engine_lock(self->engine);
    hub_of(self->group)->sources[rank].is_busy = true;
    dd_engine_unlock(self->engine);
}

/* Rank 0 has asked for all that rank 1 has, and takes none of the answer before rank 1 has closed the window and wiped its memory. */
static bool
has_lent(void *ctx)
{
    const window_hub *hub = hub_of(ctx);
    return !dd_list_is_empty(&hub->letters) && first_letter(hub)->lender == 1;
}

static void
close_and_answer(team_rank *self)
{
    enum { NBYTES = 5 * WINDOW_PIECE_NBYTES };
    uint8_t *bytes = malloc(NBYTES);
    dd_work *work = NULL;
    dd_wait wait = window_plenty();
    test_window test;
    REQUIRE(bytes != NULL && window_open(self, NBYTES, true, &test));
    if (self->rank == 1) {
        window_fill(test.data, 6, NBYTES);
        team_rendezvous(self, "filled");
        CHECK_OK(dd_group_await(self->group, has_lent, self->group, &wait, check_err()));
        dd_window_close(test.window);
        memset(test.data, 0, NBYTES);
        team_rendezvous(self, "closed");
    } else {
        team_rendezvous(self, "filled");
        stop_taking(self, 1);
        CHECK_OK(dd_window_post_get(test.window, (dd_block){bytes, NBYTES}, (dd_window_place){.rank = 1},
                                    &team_no_options, &work, check_err()));
        dd_engine_kick(self->engine);
        team_rendezvous(self, "closed");
        dd_engine_lock(self->engine);
        hub_of(self->group)->sources[1].is_busy = false;
        dd_context_take_request_locked(self->group->context, 1);
        dd_engine_unlock(self->engine);
        CHECK_OK(team_wait(self->group, work));
        window_check_filled(bytes, 6, NBYTES);
    }
    CHECK_OK(team_barrier(self->group));
    window_drop(&test);
    free(bytes);
}

TEST(a_window_that_is_closed_while_it_answers)
{
    team_options options = {.size = 2};
    team_run_both(&options, close_and_answer, NULL);
}

/* ---- forks */

static void
fork_away(team_rank *self)
{
    const bool *is_plain = self->arg;
    test_window test;
    REQUIRE(window_open(self, 8, *is_plain, &test));
    if (self->rank == 0) {
        dd_engine_lock(self->engine); /* as another thread may have it: for ever, in the child */
        pid_t pid = fork();
        if (pid == 0) {
            uint8_t byte = 0;
            (void)alarm(20);
            CHECK(dd_group_find_region(self->group, test.data, test.nbytes) == NULL);
            CHECK_STATUS(window_put(&test, &byte, 1, (dd_window_place){.rank = 1}, 0), DD_FORKED);
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

TEST(a_forked_child)
{
    bool is_plain = false;
    team_options options = {.size = 2};
    team_run(&options, fork_away, &is_plain);
}

/* ---- no memory */

typedef struct shortage {
    bool is_plain;
    long count;
} shortage;

static void
go_without(team_rank *self)
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
    dd_window_place to = {.rank = 1 - self->rank};
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

TEST(no_memory)
{
    for (long count = 0; count < 24; count++) {
        shortage how = {.is_plain = count % 2 == 1, .count = count / 2};
        team_options options = {.size = 2};
        team_run(&options, go_without, &how);
    }
}

/* ---- notes that make no sense */

typedef struct bad_note {
    const char *what; /* of the message that the receiver's group fails with */
    dd_window_note note;
    dd_signature numbers; /* instead of the note's; coll 0: none */
    size_t nextra;        /* bytes with a note that has none */
} bad_note;

#define NONSENSE_NBYTES ((size_t)100)

static const bad_note bad_notes[] = {
    {.what = "a window that was never opened", .note = {.type = DD_WINDOW_PUT, .window = 77}},
    {.what = "a put out of range", .note = {.type = DD_WINDOW_PUT, .window = 1, .offset = 99, .nbytes = 2}},
    {.what = "a put out of range", .note = {.type = DD_WINDOW_PUT, .window = 1, .nbytes = (uint64_t)1 << 62}},
    {.what = "a put out of range",
     .note = {.type = DD_WINDOW_PUT, .window = 1, .offset = UINT64_MAX - 5000, .nbytes = 5000}},
    {.what = "a put out of range", .note = {.type = DD_WINDOW_PUT, .window = 1, .channel = 100000}},
    {.what = "a get out of range", .note = {.type = DD_WINDOW_GET, .window = 1, .nbytes = (uint64_t)1 << 62}},
    {.what = "a get out of range", .note = {.type = DD_WINDOW_GET, .window = 1, .offset = 101}},
    {.what = "an answer that nobody has asked for", .note = {.type = DD_WINDOW_GOT, .window = 1}},
    {.what = "an answer that nobody has asked for", .note = {.type = DD_WINDOW_DONE, .window = 1}},
    {.what = "a channel out of range", .note = {.type = DD_WINDOW_ASK, .window = 1, .channel = 100000}},
    {.what = "its type is unknown",
     .note = {.type = DD_WINDOW_CLOSED, .window = 1},
     .numbers = {.coll = 200}},
    {.what = "it has no zeros where they belong",
     .note = {.type = DD_WINDOW_PUT, .window = 1},
     .numbers = {.coll = DD_WINDOW_PUT, .root = 1}},
    {.what = "its place is wrong",
     .note = {.type = DD_WINDOW_PUT, .window = 1, .offset = UINT64_MAX, .nbytes = 5000}},
    {.what = "it has data", .note = {.type = DD_WINDOW_CLOSED, .window = 1}, .nextra = 5000},
};

static void
note_sent(dd_message *message, const dd_error *error)
{
    (void)error;
    atomic_store_explicit((atomic_bool *)message->owner, true, memory_order_release);
}

/* A message about windows that no window sends. */
static dd_message
raw_message(const team_rank *self, const dd_request *head, void *bytes, atomic_bool *is_sent)
{
    return (dd_message){.kind = DD_MESSAGE_WINDOW,
                        .rank = 1 - self->rank,
                        .tag = head->tag,
                        .channel = head->channel,
                        .data = bytes,
                        .nbytes = (size_t)head->nbytes,
                        .signature = &head->signature,
                        .on_done = note_sent,
                        .owner = is_sent};
}

/* How it ends is for the other side to judge. */
static void
send_raw(team_rank *self, const dd_request *head, void *bytes)
{
    atomic_bool is_sent = false;
    dd_message message = raw_message(self, head, bytes, &is_sent);
    dd_engine_lock(self->engine);
    dd_context_post_send_locked(self->group->context, &message);
    dd_engine_unlock(self->engine);
    dd_wait wait = window_plenty();
    CHECK_OK(dd_engine_wait(self->engine, &is_sent, &wait, check_err()));
}

/* What only a rank that is not one of ours would send. */
static void
send_bad_note(team_rank *self, const bad_note *bad)
{
    uint8_t bytes[5000] = {0};
    dd_request head = dd_window_note_encode(&bad->note);
    head.nbytes += bad->nextra;
    if (bad->numbers.coll != 0) {
        head.signature = bad->numbers;
    }
    send_raw(self, &head, bytes);
}

static void
be_lied_to(team_rank *self)
{
    const bad_note *bad = self->arg;
    test_window test;
    REQUIRE(window_open(self, NONSENSE_NBYTES, true, &test));
    window_fill(test.data, 3, NONSENSE_NBYTES);
    team_rendezvous(self, "filled");
    if (self->rank == 1) {
        send_bad_note(self, bad);
    }
    dd_wait wait = window_plenty();
    dd_error error = {.code = DD_OK};
    CHECK_INT(dd_window_wait_signal(test.window, 1 - self->rank, 1, &wait, &error), DD_PROTOCOL);
    CHECK_INT(error.culprit.rank, 1);
    CHECK_CONTAINS(error.message, "broke the protocol of windows");
    CHECK_CONTAINS(error.message, bad->what);
    window_check_filled(test.data, 3, NONSENSE_NBYTES);
    window_drop(&test);
}

TEST(notes_that_make_no_sense)
{
    for (size_t i = 0; i < sizeof bad_notes / sizeof bad_notes[0]; i++) {
        bad_note bad = bad_notes[i];
        team_options options = {.size = 2, .is_shm_disabled = i % 2 == 1};
        team_run(&options, be_lied_to, &bad);
    }
}

/* ---- data that come late */

/* The note of a put is here, and its data are not. */
static bool
is_awaiting_data(void *ctx)
{
    const window_source *source = &hub_of(ctx)->sources[1];
    return source->is_busy && source->note.type == DD_WINDOW_PUT && source->note.window == 1;
}

static void
close_before_data(team_rank *self)
{
    enum { NBYTES = 200000 };
    uint8_t *bytes = malloc(NBYTES);
    dd_wait wait = window_plenty();
    test_window first;
    test_window second;
    REQUIRE(bytes != NULL && window_open(self, NBYTES, true, &first));
    REQUIRE(window_open(self, NBYTES, true, &second));
    if (self->rank == 1) {
        atomic_bool is_sent = false;
        dd_request head = dd_window_note_encode(&(dd_window_note){
            .type = DD_WINDOW_PUT, .channel = DD_WINDOW_NO_CHANNEL, .window = 1, .nbytes = NBYTES});
        dd_message message = raw_message(self, &head, bytes, &is_sent);
        memset(bytes, 0xee, NBYTES);
        CHECK_OK(window_put(&second, bytes, 1, (dd_window_place){.rank = 0}, 1)); /* there is a link now */
        team_rendezvous(self, "linked");
        dd_engine_lock(self->engine); /* the head goes, and the data wait */
        dd_context_post_send_locked(self->group->context, &message);
        team_rendezvous(self, "closed");
        dd_engine_unlock(self->engine);
        CHECK_OK(dd_engine_wait(self->engine, &is_sent, &wait, check_err()));
        window_fill(bytes, 5, NBYTES);
        CHECK_OK(window_put(&second, bytes, NBYTES, (dd_window_place){.rank = 0}, 1));
    } else {
        CHECK_OK(window_take(&second, 1, 1));
        team_rendezvous(self, "linked");
        CHECK_OK(dd_group_await(self->group, is_awaiting_data, self->group, &wait, check_err()));
        dd_window_close(first.window);
        team_rendezvous(self, "closed");
        CHECK_OK(window_take(&second, 1, 1));
        window_check_filled(second.data, 5, NBYTES);
        CHECK_INT(first.data[0], 0);
    }
    window_close(&second);
    window_drop(&first);
    free(bytes);
}

/* They are not taken for those of the next put. */
TEST(data_of_a_window_that_was_closed_before_they_came)
{
    team_options options = {.size = 2};
    team_run_both(&options, close_before_data, NULL);
}

/* ---- more gets than are asked at a time */

enum { NMANY = 4 * WINDOW_GETS_MAX, MANY_NBYTES = 24 };

typedef struct many_gets {
    test_window test;
    int peer;
    dd_work *works[NMANY];
    uint8_t back[NMANY][MANY_NBYTES];
} many_gets;

static unsigned
count_asked(dd_group *group, int rank)
{
    dd_engine_lock(group->engine);
    unsigned nasked = hub_of(group)->sources[rank].nasked;
    dd_engine_unlock(group->engine);
    return nasked;
}

static void
post_many_gets(many_gets *many, const dd_call_options *options)
{
    for (size_t i = 0; i < NMANY; i++) {
        dd_window_place from = {.rank = many->peer, .offset = i};
        dd_block target = {many->back[i], MANY_NBYTES};
        CHECK_OK(dd_window_post_get(many->test.window, target, from, options, &many->works[i], check_err()));
        CHECK_INT(count_asked(many->test.window->group, many->peer) <= WINDOW_GETS_MAX, true);
    }
}

static bool
open_many_gets(team_rank *self, many_gets *many)
{
    enum { NBYTES = NMANY + MANY_NBYTES };
    many->peer = 1 - self->rank;
    if (!window_open(self, NBYTES, true, &many->test)) {
        return false;
    }
    window_fill(many->test.data, (uint64_t)self->rank, NBYTES);
    team_rendezvous(self, "filled");
    return true;
}

/* Both at once: neither keeps the other from being answered. */
static void
get_many(team_rank *self)
{
    many_gets *many = calloc(1, sizeof *many);
    uint8_t *expected = calloc(1, NMANY + MANY_NBYTES);
    REQUIRE(many != NULL && expected != NULL && open_many_gets(self, many));
    window_fill(expected, (uint64_t)many->peer, NMANY + MANY_NBYTES);
    post_many_gets(many, &team_no_options);
    dd_wait wait = window_plenty();
    CHECK_OK(dd_window_flush(many->test.window, &wait, check_err()));
    for (size_t i = 0; i < NMANY; i++) {
        CHECK_OK(team_wait(self->group, many->works[i]));
        CHECK_INT(memcmp(many->back[i], expected + i, MANY_NBYTES), 0);
    }
    CHECK_INT(count_asked(self->group, many->peer), 0);
    window_close(&many->test);
    free(expected);
    free(many);
}

TEST(more_gets_than_are_asked_at_a_time)
{
    team_options options = {.size = 2};
    team_run_both(&options, get_many, NULL);
}

/* Those that were not asked end when their time is over, as all others do, and what is left is as good as new. */
static void
get_many_in_vain(team_rank *self)
{
    many_gets *many = calloc(1, sizeof *many);
    REQUIRE(many != NULL && open_many_gets(self, many));
    if (self->rank == 1) {
        dd_engine_lock(self->engine); /* answers nobody */
        team_rendezvous(self, "deaf");
        team_rendezvous(self, "over");
        dd_engine_unlock(self->engine);
    } else {
        team_rendezvous(self, "deaf");
        dd_call_options options = team_no_options;
        options.timeout_ns = 100 * DD_NS_PER_MS;
        post_many_gets(many, &options);
        for (size_t i = 0; i < NMANY; i++) {
            dd_error error = {.code = DD_OK};
            dd_wait wait = window_plenty();
            CHECK_INT(dd_group_wait(self->group, many->works[i], &wait, &error), DD_OP_TIMED_OUT);
            dd_work_release(many->works[i]);
        }
        CHECK_INT(count_asked(self->group, 1), WINDOW_GETS_MAX);
        team_rendezvous(self, "over");
        uint8_t back[MANY_NBYTES];
        uint8_t expected[MANY_NBYTES];
        window_fill(expected, 1, MANY_NBYTES);
        CHECK_OK(window_get(&many->test, back, MANY_NBYTES, (dd_window_place){.rank = 1}));
        CHECK_INT(memcmp(back, expected, MANY_NBYTES), 0);
        CHECK_INT(count_asked(self->group, 1), 0);
    }
    window_close(&many->test);
    free(many);
}

TEST(gets_that_were_never_asked)
{
    team_options options = {.size = 2};
    team_run_both(&options, get_many_in_vain, NULL);
}

/* ---- questions without end */

enum { FLOOD_NBYTES = 4096, NFLOOD = 8 * WINDOW_ANSWERS_MAX };

static dd_status
cause_of(dd_group *group)
{
    dd_engine_lock(group->engine);
    dd_status code = group->cause.code;
    dd_engine_unlock(group->engine);
    return code;
}

/* Returns when the group has failed: messages end with it. */
static void
ask_without_end(team_rank *self)
{
    dd_request head =
        dd_window_note_encode(&(dd_window_note){.type = DD_WINDOW_GET, .window = 1, .nbytes = FLOOD_NBYTES});
    for (int i = 0; i < NFLOOD && cause_of(self->group) == DD_OK; i++) {
        send_raw(self, &head, NULL);
    }
}

static void
be_flooded(team_rank *self)
{
    test_window test;
    REQUIRE(window_open(self, FLOOD_NBYTES, true, &test));
    team_rendezvous(self, "open"); /* on the other rank, too */
    if (self->rank == 1) {
        stop_taking(self, 0);
        ask_without_end(self);
    }
    dd_wait wait = window_plenty();
    dd_error error = {.code = DD_OK};
    CHECK_INT(dd_window_wait_signal(test.window, 1 - self->rank, 1, &wait, &error), DD_PROTOCOL);
    CHECK_INT(error.culprit.rank, 1);
    CHECK_CONTAINS(error.message, "question after question, and no answer taken");
    window_drop(&test);
}

TEST(questions_without_end)
{
    team_options options = {.size = 2};
    team_run_both(&options, be_flooded, NULL);
}
