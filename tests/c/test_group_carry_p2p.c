/* Messages of groups with a carrier. */
#include "carry_team.h"
#include "check.h"

#include <stdlib.h>
#include <string.h>

#define LARGE_TAG 5000 /* the library cannot tell the tag apart from others */

static dd_work *
start(team_rank *self, bool is_send, void *data, size_t nbytes, int rank, uint64_t tag)
{
    dd_work *work = NULL;
    dd_block block = {.data = data, .nbytes = nbytes};
    if (is_send) {
        CHECK_OK(team_send(self->group, block, rank, tag, &team_no_options, &work, check_err()));
    } else {
        CHECK_OK(team_recv(self->group, block, rank, tag, &team_no_options, &work, check_err()));
    }
    return work;
}

static dd_status
await(team_rank *self, dd_work *work, dd_error *err)
{
    dd_wait wait = dd_wait_after(20 * DD_NS_PER_S * check_slow());
    dd_status status = dd_group_wait(self->group, work, &wait, err);
    dd_work_release(work);
    return status;
}

/* ---- messages that arrive */

/* Send to the next rank and receive from the previous one, over the library and the group at the
 * same time. */
static void
pass_around(team_rank *self)
{
    static const size_t sizes[] = {0, 1, 1000, 70001};
    int next = (self->rank + 1) % self->size;
    int previous = (self->rank + self->size - 1) % self->size;
    REQUIRE(carry_team_begin(self));
    for (size_t i = 0; i < 8; i++) {
        size_t nbytes = sizes[i % 4];
        uint64_t tag = i < 4 ? i : LARGE_TAG + i;
        uint8_t *there = malloc(nbytes + 1);
        uint8_t *back = malloc(nbytes + 1);
        memset(there, (int)i + self->rank, nbytes + 1);
        dd_work *recv = start(self, false, back, nbytes + 1, i % 2 == 0 ? previous : DD_ANY_RANK, tag);
        CHECK_OK(team_wait(self->group, start(self, true, there, nbytes, next, tag)));
        dd_wait wait = dd_wait_after(20 * DD_NS_PER_S * check_slow());
        CHECK_OK(dd_group_wait(self->group, recv, &wait, check_err()));
        CHECK_INT(recv->source_rank, previous);
        CHECK_INT(recv->nbytes, nbytes);
        CHECK(nbytes == 0 || (back[0] == i + (size_t)previous && back[nbytes - 1] == i + (size_t)previous));
        dd_work_release(recv);
        free(there);
        free(back);
    }
    CHECK_INT(dd_group_count_carried(self->group), 8);
    CHECK_INT(carry_library.counts[self->rank].nmessages, 8);
}

TEST(messages_of_all_sizes_and_tags_use_the_library)
{
    for (int size = 2; size <= 3; size++) {
        fake_library_init(&carry_library);
        carry_team_run(size, pass_around, NULL);
        CHECK_INT(CARRY_TOTAL(nleft_messages), 0);
    }
}

static void
send_to_self(team_rank *self)
{
    int there = 7;
    int back = 0;
    int source = -1;
    dd_wait wait = dd_wait_after(20 * DD_NS_PER_S * check_slow());
    REQUIRE(carry_team_begin(self));
    dd_work *send = start(self, true, &there, sizeof there, self->rank, 3);
    dd_block block = {&back, sizeof back};
    CHECK_OK(
        team_recv_and_wait(self->group, block, self->rank, 3, &team_no_options, &source, &wait, check_err()));
    CHECK_OK(team_wait(self->group, send));
    CHECK(back == 7 && source == self->rank);
}

TEST(messages_of_a_rank_to_itself_arrive_over_a_library)
{
    fake_library_init(&carry_library);
    carry_team_run(2, send_to_self, NULL);
}

/* Messages of one tag arrive in order, each at its receiver. */
static void
send_to_each_rank(team_rank *self)
{
    enum { NQUESTIONS = 20 };
    REQUIRE(carry_team_begin(self));
    for (int i = 0; i < NQUESTIONS; i++) {
        int number = self->rank * 100 + i;
        if (self->rank != 0) {
            CHECK_OK(team_wait(self->group, start(self, true, &number, sizeof number, 0, 9)));
            continue;
        }
        for (int rank = 1; rank < self->size; rank++) {
            CHECK_OK(await(self, start(self, false, &number, sizeof number, rank, 9), check_err()));
            CHECK_INT(number, rank * 100 + i);
        }
    }
    CHECK(team_check_sum(self->group));
}

TEST(messages_over_a_library_stay_in_order)
{
    fake_library_init(&carry_library);
    carry_team_run(3, send_to_each_rank, NULL);
}

static void
without_messages(team_rank *self)
{
    REQUIRE(carry_team_begin(self));
    int number = 5;
    if (self->rank == 0) {
        CHECK_OK(team_wait(self->group, start(self, true, &number, sizeof number, 1, 0)));
    } else {
        number = 0;
        CHECK_OK(team_wait(self->group, start(self, false, &number, sizeof number, 0, 0)));
        CHECK_INT(number, 5);
    }
    CHECK_INT(dd_group_count_carried(self->group), 0);
}

TEST(messages_use_dldists_connections_if_the_library_has_no_messages)
{
    fake_library_init(&carry_library);
    carry_library.script.has_messages = false;
    carry_team_run(2, without_messages, NULL);
}

static void
send_too_much(team_rank *self)
{
    char bytes[64] = "";
    REQUIRE(carry_team_begin(self));
    if (self->rank == 0) {
        CHECK_OK(team_wait(self->group, start(self, true, bytes, sizeof bytes, 1, 2)));
    } else {
        CHECK_STATUS(team_wait(self->group, start(self, false, bytes, 10, 0, 2)), DD_INVALID_ARGUMENT);
        CHECK_CONTAINS(check_message(), "recv on group \"team\"");
        CHECK_CONTAINS(check_message(), "too large for its box");
    }
    CHECK(team_check_sum(self->group)); /* a failed message does not fail the group */
}

TEST(a_message_larger_than_its_buffer_fails_only_its_receive)
{
    fake_library_init(&carry_library);
    carry_team_run(2, send_too_much, NULL);
}

static void
fail_to_send(team_rank *self)
{
    int number = 0;
    REQUIRE(carry_team_begin(self));
    if (self->rank == 0) {
        dd_error *err = check_err();
        CHECK_STATUS(await(self, start(self, true, &number, sizeof number, 1, 2), err), DD_BACKEND);
        CHECK_CONTAINS(check_message(), "the library takes no messages");
        CHECK(!err->keeps_memory);
    }
    team_rendezvous(self, "failed");
    CHECK_OK(dd_group_check(self->group, check_err()));
}

TEST(a_message_that_the_library_cannot_start_does_not_fail_the_group)
{
    fake_library_init(&carry_library);
    carry_library.script.failing_starts = 1;
    carry_team_run(2, fail_to_send, NULL);
}

/* ---- uninterrupted waits: a library wakes no thread */

/* Wait for the work without driving the engine. */
static void
await_unattended(team_rank *self, dd_work *work)
{
    dd_wait wait = dd_wait_after(2 * DD_NS_PER_S * check_slow());
    dd_engine_kick(dd_group_engine(self->group));
    while (!dd_work_is_done(work) && !dd_wait_has_expired(&wait)) {
        carry_sleep(DD_NS_PER_MS);
    }
    CHECK(dd_work_is_done(work));
    CHECK_OK(team_wait(self->group, work));
}

/* The transport of the first message has no events until its deadline. */
static void
wait_by_both_ways(team_rank *self)
{
    int numbers[2] = {0, 0};
    REQUIRE(carry_team_begin(self));
    if (self->rank == 0) {
        dd_work *first = start(self, false, &numbers[0], sizeof numbers[0], 1, LARGE_TAG);
        dd_engine_kick(dd_group_engine(self->group));
        carry_sleep(20 * DD_NS_PER_MS);
        dd_work *second = start(self, false, &numbers[1], sizeof numbers[1], 1, 1);
        await_unattended(self, second);
        CHECK_INT(numbers[1], 6);
        team_rendezvous(self, "second");
        CHECK_OK(team_wait(self->group, first));
        CHECK_INT(numbers[0], 5);
    } else {
        numbers[0] = 5;
        numbers[1] = 6;
        carry_sleep(100 * DD_NS_PER_MS);
        CHECK_OK(team_wait(self->group, start(self, true, &numbers[1], sizeof numbers[1], 0, 1)));
        team_rendezvous(self, "second");
        CHECK_OK(team_wait(self->group, start(self, true, &numbers[0], sizeof numbers[0], 0, LARGE_TAG)));
    }
}

TEST(waiting_advances_messages_both_over_the_library_and_without_it)
{
    fake_library_init(&carry_library);
    team_options options = {.size = 2, .timeout_ns = 20 * DD_NS_PER_S * check_slow()};
    team_run(&options, wait_by_both_ways, NULL);
    fake_library_fini(&carry_library);
}

static void
wait_unattended(team_rank *self)
{
    int number = self->rank;
    REQUIRE(carry_team_begin(self));
    dd_work *work = start(self, self->rank == 0, &number, sizeof number, 1 - self->rank, 1);
    await_unattended(self, work);
    CHECK_INT(number, 0);
}

TEST(messages_over_a_library_progress_while_no_thread_waits)
{
    fake_library_init(&carry_library);
    carry_team_run(2, wait_unattended, NULL);
}

/* ---- timeouts */

static void
run_out_of_time(team_rank *self)
{
    bool is_send = *(bool *)self->arg;
    bool holds_on = atomic_load(&carry_library.script.holds_on);
    int number = 0;
    REQUIRE(carry_team_begin(self));
    if (self->rank == 0) {
        dd_group_set_timeout_ns(self->group, 50 * DD_NS_PER_MS);
        dd_error *err = check_err();
        int64_t start_ns = dd_clock_now_ns();
        CHECK_STATUS(await(self, start(self, is_send, &number, sizeof number, 1, 4), err), DD_OP_TIMED_OUT);
        CHECK(carry_seconds_since(start_ns) < 1.0 * check_slow());
        CHECK_CONTAINS(check_message(), is_send ? "has not received (tag 4)" : "has not sent (tag 4)");
        CHECK_CONTAINS(check_message(), "rank 1 (");
        CHECK_INT(err->blamed.rank, 1);
        CHECK_INT(err->keeps_memory, holds_on);
    }
    team_rendezvous(self, "late");
    dd_group_set_timeout_ns(self->group, 20 * DD_NS_PER_S);
    CHECK(team_check_sum(self->group)); /* the group is usable */
}

TEST(messages_over_a_library_that_time_out_leave_the_group_usable)
{
    for (int variant = 0; variant < 4; variant++) {
        bool is_send = variant % 2 == 1;
        fake_library_init(&carry_library);
        atomic_store(&carry_library.script.holds_on, variant / 2 == 1);
        carry_team_run(2, run_out_of_time, &is_send);
        CHECK_INT(CARRY_TOTAL(nleft_messages), 1);
        CHECK_INT(CARRY_TOTAL(nclosed_cleanly), 2);
    }
}

/* ---- ranks that leave */

static void
leave_early(team_rank *self)
{
    int number = 3;
    REQUIRE(carry_team_begin(self));
    dd_wait wait = dd_wait_after(10 * DD_NS_PER_S * check_slow());
    dd_work *early = NULL;
    if (self->rank == 0) {
        carry_sleep(20 * DD_NS_PER_MS);
        CHECK_OK(dd_group_close(self->group, &wait, check_err()));
    } else {
        early = start(self, false, &number, sizeof number, 0, 4);
        CHECK_STATUS(team_wait(self->group, early), DD_PEER_LOST);
        CHECK_CONTAINS(check_message(), "rank 0 (");
    }
    team_rendezvous(self, "left");
    if (self->rank == 1) {
        dd_block block = {&number, sizeof number};
        dd_work *late = NULL;
        CHECK_STATUS(team_send(self->group, block, 0, 4, &team_no_options, &late, check_err()), DD_PEER_LOST);
    }
    team_rendezvous(self, "end");
}

TEST(messages_to_and_from_a_rank_that_leaves_fail)
{
    for (int size = 2; size <= 3; size++) {
        fake_library_init(&carry_library);
        carry_team_run(size, leave_early, NULL);
    }
}

/* Messages sent before the close arrive; receives posted afterwards fail. */
static void
receive_from_closed(team_rank *self)
{
    int number = 3;
    REQUIRE(carry_team_begin(self));
    dd_wait wait = dd_wait_after(10 * DD_NS_PER_S * check_slow());
    if (self->rank == 0) {
        dd_work *sent = start(self, true, &number, sizeof number, 1, 4);
        team_rendezvous(self, "sent");
        CHECK_OK(team_wait(self->group, sent));
        CHECK_OK(dd_group_close(self->group, &wait, check_err()));
    } else {
        int nothing;
        /* fails when rank 0 has left */
        dd_work *end = start(self, false, &nothing, sizeof nothing, 0, 5);
        team_rendezvous(self, "sent");
        number = 0;
        CHECK_OK(team_wait(self->group, start(self, false, &number, sizeof number, 0, 4)));
        CHECK_INT(number, 3);
        CHECK_STATUS(team_wait(self->group, end), DD_PEER_LOST);
        int rank = *(bool *)self->arg ? DD_ANY_RANK : 0;
        int64_t start_ns = dd_clock_now_ns();
        CHECK_STATUS(team_wait(self->group, start(self, false, &number, sizeof number, rank, 4)),
                     DD_PEER_LOST);
        CHECK(carry_seconds_since(start_ns) < 1.0 * check_slow());
    }
    team_rendezvous(self, "end");
}

TEST(receives_get_all_messages_of_a_rank_that_has_left_and_then_fail)
{
    for (int i = 0; i < 2; i++) {
        bool is_any = i == 0;
        fake_library_init(&carry_library);
        team_options options = {.size = 2, .timeout_ns = 5 * DD_NS_PER_S};
        team_run(&options, receive_from_closed, &is_any);
        fake_library_fini(&carry_library);
    }
}

static void
abort_messages(team_rank *self)
{
    int numbers[2] = {0};
    REQUIRE(carry_team_begin(self));
    dd_work *works[2];
    for (int i = 0; i < 2; i++) {
        works[i] = start(self, false, &numbers[i], sizeof numbers[i], DD_ANY_RANK, (uint64_t)i);
    }
    team_rendezvous(self, "begun");
    if (self->rank == 0) {
        dd_group_abort(self->group, "no more messages");
    }
    for (int i = 0; i < 2; i++) {
        dd_error *err = check_err();
        CHECK_STATUS(await(self, works[i], err), DD_ABORTED);
        CHECK_CONTAINS(check_message(), "no more messages");
        CHECK(err->keeps_memory);
    }
    team_rendezvous(self, "aborted");
}

TEST(an_abort_ends_messages_over_a_library)
{
    fake_library_init(&carry_library);
    atomic_store(&carry_library.script.holds_on, true);
    carry_team_run(3, abort_messages, NULL);
    CHECK_INT(CARRY_TOTAL(nleft_messages), 6);
    CHECK_INT(CARRY_TOTAL(nclosed_after_failure), 3);
}
