/* Windows of groups of threads: data and signals, over shared memory and over messages. */
#include "check.h"
#include "core/thread.h"
#include "leftovers.h"
#include "window_team.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- sizes */

#define LARGEST ((size_t)3000001)

/* Put to the next rank, with a signal; read from the previous rank. */
static void
pass_around(team_rank *self)
{
    static const size_t sizes[] = {0,    1,    7,    63,    64,    4055,  4056,   4095,   4096,
                                   4097, 8191, 8193, 32768, 65536, 65537, 262145, LARGEST};
    const bool *is_plain = self->arg;
    int next = (self->rank + 1) % self->size;
    int previous = (self->rank + self->size - 1) % self->size;
    test_window test;
    REQUIRE(window_open(self, LARGEST + 16, *is_plain, &test));
    uint8_t *bytes = malloc(LARGEST + 1);
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        size_t nbytes = sizes[i];
        size_t offset = i % 16;
        window_fill(bytes, i + (size_t)self->rank, nbytes);
        CHECK_OK(window_put(&test, bytes, nbytes, (dd_window_target){.rank = next, .offset = offset}, 1));
        CHECK_OK(window_take(&test, previous, 1));
        window_check_filled(test.data + offset, i + (size_t)previous, nbytes);
        /* The next rank also has the data now; read it back here. */
        CHECK_OK(window_signal(&test, previous, 2));
        CHECK_OK(window_take(&test, next, 2));
        memset(bytes, 0xee, nbytes + 1);
        CHECK_OK(window_get(&test, bytes, nbytes, (dd_window_target){.rank = next, .offset = offset}));
        window_check_filled(bytes, i + (size_t)self->rank, nbytes);
        CHECK_INT(bytes[nbytes], 0xee);
        CHECK_OK(window_signal(&test, next, 3));
        CHECK_OK(window_take(&test, previous, 3));
    }
    free(bytes);
    window_close(&test);
}

TEST(puts_and_gets_of_two_ranks_are_correct)
{
    window_run_everywhere(1, pass_around);
    window_run_everywhere(2, pass_around);
}

TEST(puts_and_gets_of_three_ranks_are_correct)
{
    window_run_everywhere(3, pass_around);
}

TEST(puts_and_gets_of_five_ranks_are_correct)
{
    window_run_everywhere(5, pass_around);
}

TEST(puts_and_gets_of_eight_ranks_are_correct)
{
    bool is_plain = false;
    team_options options = {.size = 8, .single_ranks = 0x18};
    team_run(&options, pass_around, &is_plain);
    options.nlanes = 3;
    options.is_shm_disabled = true;
    team_run(&options, pass_around, &is_plain);
}

/* ---- order */

/* When a signal arrives, all data that was put before it must be in place, for any sizes. */
static void
press(team_rank *self)
{
    enum { ROUNDS = 120, NSIZES = 4 };
    static const size_t sizes[NSIZES] = {8, 4097, 100000, 1};
    const bool *is_plain = self->arg;
    test_window test;
    int next = (self->rank + 1) % self->size;
    int previous = (self->rank + self->size - 1) % self->size;
    REQUIRE(window_open(self, 2 * sizes[2], *is_plain, &test));
    uint8_t *bytes = malloc(sizes[2]);
    for (unsigned i = 0; i < ROUNDS; i++) {
        size_t nbytes = sizes[i % NSIZES];
        window_fill(bytes, i, nbytes);
        CHECK_OK(
            window_put(&test, bytes, nbytes, (dd_window_target){.rank = next, .offset = 3}, DD_NO_CHANNEL));
        CHECK_OK(window_put(&test, bytes, 1, (dd_window_target){.rank = next, .offset = sizes[2] + 9}, 1));
        CHECK_OK(window_take(&test, previous, 1));
        window_check_filled(test.data + 3, i, nbytes);
        window_check_filled(test.data + sizes[2] + 9, i, 1);
        CHECK_OK(window_signal(&test, previous, 2)); /* the data may now be overwritten */
        CHECK_OK(window_take(&test, next, 2));
    }
    free(bytes);
    window_close(&test);
}

TEST(signals_arrive_after_puts)
{
    window_run_everywhere(3, press);
}

/* ---- signals */

typedef struct taker {
    const test_window *test;
    int rank;
    int count;
    bool is_sender;
    pthread_t thread;
} taker;

static void *
take_or_send(void *arg)
{
    taker *self = arg;
    for (int i = 0; i < self->count; i++) {
        if (self->is_sender) {
            CHECK_OK(window_signal(self->test, self->rank, 4));
        } else {
            CHECK_OK(window_take(self->test, self->rank, 4));
        }
    }
    return NULL;
}

/* Threads of both sides use one signal word: each signal must be taken exactly once. */
static void
share_a_word(team_rank *self)
{
    enum { NTHREADS = 3, COUNT = 100 };
    const bool *is_plain = self->arg;
    test_window test;
    taker takers[NTHREADS];
    REQUIRE(window_open(self, 16, *is_plain, &test));
    for (int i = 0; i < NTHREADS; i++) {
        takers[i] =
            (taker){.test = &test, .rank = 1 - self->rank, .count = COUNT, .is_sender = self->rank == 0};
        REQUIRE_OK(dd_thread_start(&takers[i].thread, "taker", take_or_send, &takers[i], check_err()));
    }
    for (int i = 0; i < NTHREADS; i++) {
        pthread_join(takers[i].thread, NULL);
    }
    CHECK_INT(atomic_load(&dd_window_pad(test.window, self->rank)[4 * self->size + 1 - self->rank]), 0);
    window_close(&test);
}

TEST(threads_that_wait_for_the_same_signals_receive_each_signal_once)
{
    window_run_everywhere(2, share_a_word);
}

static void
signal_alone(team_rank *self)
{
    enum { COUNT = 40 };
    const bool *is_plain = self->arg;
    test_window test;
    REQUIRE(window_open(self, 16, *is_plain, &test));
    _Atomic uint32_t *own = dd_window_pad(test.window, self->rank);
    for (int i = 0; i < COUNT; i++) {
        dd_wait wait = window_plenty();
        if (self->rank == 0) {
            CHECK_OK(dd_window_signal_alone(test.window, 1, 3, &wait, check_err()));
        } else {
            if (i % 8 == 0) {
                CHECK_OK(dd_wait_sleep(&wait, 2 * DD_NS_PER_MS, check_err()));
            }
            CHECK(atomic_load(&own[3 * self->size]) <= 1);
            CHECK_OK(window_take(&test, 0, 3));
        }
    }
    if (self->rank == 0) { /* the last signal stays until it is taken */
        dd_wait wait = window_plenty();
        CHECK_OK(dd_window_signal_alone(test.window, 1, 5, &wait, check_err()));
        wait = dd_wait_after(20 * DD_NS_PER_MS);
        CHECK_STATUS(dd_window_signal_alone(test.window, 1, 5, &wait, check_err()), DD_OP_TIMED_OUT);
        CHECK_CONTAINS(check_message(), "rank 1 (");
        CHECK_CONTAINS(check_message(), "has not received the signal on channel 5");
        CHECK_OK(window_signal(&test, 1, 6));
    } else {
        CHECK_OK(window_take(&test, 0, 6));
        CHECK_INT(atomic_load(&own[5 * self->size]), 1);
        CHECK_OK(window_take(&test, 0, 5));
    }
    window_close(&test);
}

TEST(a_signal_that_does_not_accumulate_waits_until_the_last_was_received)
{
    window_run_everywhere(2, signal_alone);
}

/* ---- data that is moved within a window */

static void
shift(team_rank *self)
{
    enum { NBYTES = 9000, STEP = 5 };
    const bool *is_plain = self->arg;
    test_window test;
    REQUIRE(window_open(self, NBYTES + STEP, *is_plain, &test));
    dd_window_target offset = {.rank = self->rank, .offset = STEP};
    window_fill(test.data, 1, NBYTES);
    CHECK_OK(window_put(&test, test.data, NBYTES, offset, DD_NO_CHANNEL));
    window_check_filled(test.data + STEP, 1, NBYTES);
    window_fill(test.data, 2, NBYTES);
    CHECK_OK(window_get(&test, test.data + STEP, NBYTES, (dd_window_target){.rank = self->rank}));
    window_check_filled(test.data + STEP, 2, NBYTES);
    window_close(&test);
}

TEST(the_source_and_target_of_a_put_or_get_may_overlap)
{
    window_run_everywhere(1, shift);
    window_run_everywhere(2, shift);
}

/* ---- works, and data in place */

static void
post_and_flush(team_rank *self)
{
    enum { NBYTES = 70000 };
    const bool *is_plain = self->arg;
    test_window test;
    dd_work *works[2 * 8];
    uint8_t *bytes = malloc(NBYTES);
    uint8_t *back = malloc((size_t)NBYTES * (size_t)self->size);
    REQUIRE(window_open(self, (size_t)NBYTES * (size_t)self->size, *is_plain, &test));
    window_fill(bytes, (uint64_t)self->rank, NBYTES);
    for (int rank = 0; rank < self->size; rank++) {
        dd_window_target to = {.rank = rank, .offset = (size_t)NBYTES * (size_t)self->rank};
        CHECK_OK(dd_window_post_put(test.window, (dd_block){bytes, NBYTES}, to, DD_NO_CHANNEL,
                                    &team_no_options, &works[rank], check_err()));
    }
    for (int rank = 0; rank < self->size; rank++) {
        CHECK_OK(team_wait(self->group, works[rank]));
    }
    dd_wait wait = window_plenty();
    CHECK_OK(dd_window_flush(test.window, &wait, check_err()));
    team_rendezvous(self, "flushed"); /* synchronise without the window */
    /* ThreadSanitizer cannot follow the flush through memory that is mapped twice. It sees that
     * this rank's engine wrote these bytes earlier once this thread has held the engine's lock. */
    CHECK_OK(dd_window_flush(test.window, &wait, check_err()));
    for (int rank = 0; rank < self->size; rank++) {
        window_check_filled(test.data + (size_t)NBYTES * (size_t)rank, (uint64_t)rank, NBYTES);
        dd_window_target from = {.rank = rank, .offset = (size_t)NBYTES * (size_t)rank};
        dd_block target = {back + (size_t)NBYTES * (size_t)rank, NBYTES};
        CHECK_OK(dd_window_post_get(test.window, target, from, &team_no_options, &works[rank], check_err()));
    }
    for (int rank = 0; rank < self->size; rank++) {
        CHECK_OK(team_wait(self->group, works[rank]));
        window_check_filled(back + (size_t)NBYTES * (size_t)rank, (uint64_t)rank, NBYTES);
    }
    free(bytes);
    free(back);
    window_close(&test);
}

TEST(asynchronous_puts_and_gets_complete_by_wait_or_by_flush)
{
    window_run_everywhere(3, post_and_flush);
}

/* ---- many windows */

/* Rank 0 counts while the other rank waits. */
static void
count_alone(team_rank *self, const char *name, int counts[2])
{
    char after[32];
    snprintf(after, sizeof after, "%s after", name);
    team_rendezvous(self, name);
    if (self->rank == 0) {
        counts[0] = count_fds();
        counts[1] = count_shared_mappings();
    }
    team_rendezvous(self, after);
}

static void
open_and_close(team_rank *self)
{
    const bool *is_plain = self->arg;
    int before[2];
    int after[2];
    for (int i = 0; i < 200; i++) {
        test_window tests[3];
        for (int k = 0; k < 3; k++) {
            REQUIRE(window_open(self, (size_t)100 << k, *is_plain, &tests[k]));
        }
        for (int k = 0; k < 3; k++) {
            uint8_t byte = (uint8_t)(i + k);
            CHECK_OK(window_put(&tests[k], &byte, 1, (dd_window_target){.rank = 1 - self->rank}, 1));
        }
        for (int k = 0; k < 3; k++) {
            CHECK_OK(window_take(&tests[k], 1 - self->rank, 1));
            CHECK_INT(tests[k].data[0], (uint8_t)(i + k));
            window_close(&tests[k]);
        }
        if (i == 4) {
            count_alone(self, "warm", before);
        }
    }
    count_alone(self, "done", after);
    if (self->rank == 0) {
        /* at the first count, unused descriptors may still have been open */
        CHECK(after[0] <= before[0]);
        CHECK_INT(after[1], before[1]);
    }
}

TEST(opening_and_closing_windows_leaks_nothing)
{
    window_run_everywhere(2, open_and_close);
}

/* ---- a rank outside of calls */

static int
compare_times(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a;
    int64_t y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

/* Rank 1 is in no call, but was in one shortly before. */
static void
answer_from_elsewhere(team_rank *self)
{
    enum { NTIMES = 15 };
    const bool *is_plain = self->arg;
    int64_t times[NTIMES];
    test_window test;
    REQUIRE(window_open(self, 8, *is_plain, &test));
    for (int i = 0; i < NTIMES; i++) {
        char name[32];
        uint8_t byte = 0;
        if (self->rank == 1) {
            CHECK_OK(window_get(&test, &byte, 1, (dd_window_target){.rank = 0}));
        }
        snprintf(name, sizeof name, "begin%d", i);
        team_rendezvous(self, name);
        int64_t start_ns = dd_clock_now_ns();
        if (self->rank == 0) {
            CHECK_OK(window_get(&test, &byte, 1, (dd_window_target){.rank = 1}));
        }
        times[i] = dd_clock_now_ns() - start_ns;
        snprintf(name, sizeof name, "end%d", i);
        team_rendezvous(self, name);
    }
    qsort(times, NTIMES, sizeof times[0], compare_times);
    CHECK(self->rank == 1 || times[NTIMES / 2] < 3 * DD_NS_PER_MS * check_slow());
    window_close(&test);
}

TEST(a_get_from_an_idle_rank_is_answered_quickly)
{
    window_run_everywhere(2, answer_from_elsewhere);
}

/* ---- sleeping waits are woken */

enum { NWAKES = 15 };

typedef struct sleeper {
    const test_window *test;
    pthread_t thread;
    _Atomic int64_t signalled_ns;
    int64_t late_ns[NWAKES];
} sleeper;

static void *
sleep_for_signals(void *arg)
{
    sleeper *self = arg;
    for (int i = 0; i < NWAKES; i++) {
        CHECK_OK(window_take(self->test, 1, 4));
        self->late_ns[i] = dd_clock_now_ns() - atomic_load(&self->signalled_ns);
        CHECK_OK(window_signal(self->test, 1, 4));
    }
    return NULL;
}

/* One thread of rank 0 sleeps; another thread receives its own signals, which must not make the
 * first one miss its signal. */
static void
disturb_a_sleeper(team_rank *self)
{
    static sleeper shared; /* shared with rank 1, which stores the time of its signal */
    const bool *is_plain = self->arg;
    test_window test;
    dd_wait wait = window_plenty();
    REQUIRE(window_open(self, 8, *is_plain, &test));
    if (self->rank == 0) {
        shared.test = &test;
        REQUIRE_OK(dd_thread_start(&shared.thread, "sleeper", sleep_for_signals, &shared, check_err()));
    }
    for (int i = 0; i < NWAKES; i++) {
        char name[32];
        snprintf(name, sizeof name, "asleep%d", i);
        if (self->rank == 0) {
            CHECK_OK(dd_wait_sleep(&wait, 3 * DD_NS_PER_MS, check_err()));
            CHECK_OK(window_signal(&test, 0, 5));
            CHECK_OK(window_take(&test, 0, 5));
        }
        team_rendezvous(self, name);
        if (self->rank == 1) {
            atomic_store(&shared.signalled_ns, dd_clock_now_ns());
            CHECK_OK(window_signal(&test, 0, 4));
            CHECK_OK(window_take(&test, 0, 4));
        }
    }
    if (self->rank == 0) {
        pthread_join(shared.thread, NULL);
        qsort(shared.late_ns, NWAKES, sizeof shared.late_ns[0], compare_times);
        CHECK(shared.late_ns[NWAKES / 2] < 10 * DD_NS_PER_MS * check_slow());
    }
    window_close(&test);
}

TEST(signals_for_another_thread_do_not_delay_a_waiting_thread)
{
    window_run_everywhere(2, disturb_a_sleeper);
}
