/* Messages within groups of threads, and the monitored barrier. */
#include "check.h"
#include "core/mem.h"
#include "core/thread.h"
#include "faults/faults.h"
#include "group_team.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

static uint8_t
byte_at(uint64_t seed, size_t i)
{
    return (uint8_t)(seed * 31 + i * 7 + i / 256);
}

static uint8_t *
make_bytes(uint64_t seed, size_t nbytes)
{
    uint8_t *bytes = malloc(nbytes + 1);
    for (size_t i = 0; i < nbytes; i++) {
        bytes[i] = byte_at(seed, i);
    }
    return bytes;
}

static void
check_bytes_of(const uint8_t *bytes, uint64_t seed, size_t nbytes)
{
    size_t nwrong = 0;
    for (size_t i = 0; i < nbytes; i++) {
        nwrong += bytes[i] != byte_at(seed, i);
    }
    CHECK_INT(nwrong, 0);
}

/* ---- sizes */

static void
pass_around(team_rank *self)
{
    static const size_t sizes[] = {0,     1,      63,     64,     1023,    1024,   1025,
                                   8104,  8191,   8192,   16384,  32768,   65535,  65536,
                                   65537, 200000, 262144, 262145, 1048576, 3000001};
    int next = (self->rank + 1) % self->size;
    int previous = (self->rank + self->size - 1) % self->size;
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        size_t nbytes = sizes[i];
        uint8_t *out = make_bytes(i + (size_t)self->rank, nbytes);
        uint8_t *in = calloc(nbytes + 1, 1);
        dd_work *send = start(self, true, out, nbytes, next, 7);
        dd_work *recv = start(self, false, in, nbytes, previous, 7);
        REQUIRE(send != NULL && recv != NULL);
        dd_work_acquire(recv);
        CHECK_OK(team_wait(self->group, recv));
        CHECK_OK(team_wait(self->group, send));
        CHECK_INT(recv->source_rank, previous);
        CHECK_INT(recv->nbytes, nbytes);
        dd_work_release(recv);
        check_bytes_of(in, i + (size_t)previous, nbytes);
        check_bytes_of(out, i + (size_t)self->rank, nbytes);
        CHECK_INT(in[nbytes], 0);
        free(out);
        free(in);
    }
}

TEST(messages_of_all_sizes_arrive)
{
    for (int size = 1; size <= 4; size++) {
        team_options options = {.size = size};
        team_run_both(&options, pass_around, NULL);
    }
    team_options options = {.size = 3, .is_shm_disabled = true, .nlanes = 3};
    team_run(&options, pass_around, NULL);
    options = (team_options){.size = 4, .single_ranks = 6};
    team_run(&options, pass_around, NULL);
}

/* ---- tags */

#define NTAGS 60

static void
cross_tags(team_rank *self)
{
    int other = 1 - self->rank;
    uint64_t tags[NTAGS];
    int64_t out[NTAGS];
    int64_t in[NTAGS];
    dd_work *works[2 * NTAGS];
    for (int i = 0; i < NTAGS; i++) {
        tags[i] = i % 3 == 0 ? UINT64_MAX - (uint64_t)i : (uint64_t)(i / 2);
        out[i] = i;
        works[i] = start(self, true, &out[i], sizeof out[i], other, tags[i]);
    }
    /* all messages have arrived before any receive is posted */
    CHECK_OK(team_barrier(self->group));
    for (int i = NTAGS - 1; i >= 0; i--) {
        works[NTAGS + i] = start(self, false, &in[i], sizeof in[i], other, tags[i]);
    }
    for (int i = 0; i < 2 * NTAGS; i++) {
        REQUIRE(works[i] != NULL);
        CHECK_OK(team_wait(self->group, works[i]));
    }
    for (int i = 0; i < NTAGS; i++) {
        /* Messages of one tag match receives in order; the receives were posted in reverse. */
        bool is_paired = i % 3 != 0 && (i ^ 1) % 3 != 0 && (i ^ 1) < NTAGS;
        CHECK_INT(in[i], is_paired ? i ^ 1 : i);
    }
}

TEST(messages_are_matched_by_tag_in_any_order)
{
    team_options options = {.size = 2};
    team_run_both(&options, cross_tags, NULL);
}

/* ---- any source */

static void
gather_any(team_rank *self)
{
    enum { EACH = 40 };
    int value = self->rank * 1000;
    if (self->rank != 0) {
        for (int i = 0; i < EACH; i++, value++) {
            CHECK_OK(team_wait(self->group, start(self, true, &value, sizeof value, 0, 5)));
        }
        CHECK_OK(team_barrier(self->group));
        return;
    }
    int seen[8] = {0};
    for (int i = 0; i < EACH * (self->size - 1); i++) {
        int got = -1;
        dd_work *work = start(self, false, &got, sizeof got, DD_ANY_RANK, 5);
        REQUIRE(work != NULL);
        dd_work_acquire(work);
        CHECK_OK(team_wait(self->group, work));
        int source = work->source_rank;
        dd_work_release(work);
        REQUIRE(source > 0 && source < self->size);
        CHECK_INT(got, source * 1000 + seen[source]++);
    }
    CHECK_OK(team_barrier(self->group));
}

TEST(receives_from_any_rank_keep_the_order_of_each_sender)
{
    for (int size = 2; size <= 5; size++) {
        team_options options = {.size = size};
        team_run_both(&options, gather_any, NULL);
    }
}

static void
send_to_self(team_rank *self)
{
    int out = 41;
    int in = 0;
    dd_work *recv = start(self, false, &in, sizeof in, DD_ANY_RANK, 9);
    dd_work *send = start(self, true, &out, sizeof out, self->rank, 9);
    CHECK_OK(team_wait(self->group, recv));
    CHECK_OK(team_wait(self->group, send));
    CHECK_INT(in, 41);
    uint8_t *large = make_bytes(1, 500000);
    uint8_t *copy = calloc(500000, 1);
    send = start(self, true, large, 500000, self->rank, 10);
    recv = start(self, false, copy, 500000, self->rank, 10);
    CHECK_OK(team_wait(self->group, send));
    CHECK_OK(team_wait(self->group, recv));
    check_bytes_of(copy, 1, 500000);
    free(large);
    free(copy);
    /* when all other ranks have left, a receive from any rank must fail */
    CHECK_OK(team_barrier(self->group));
}

TEST(messages_of_a_rank_to_itself_arrive)
{
    for (int size = 1; size <= 2; size++) {
        team_options options = {.size = size};
        team_run_both(&options, send_to_self, NULL);
    }
}

/* ---- many messages in flight */

#define NMANY 400

static void
exchange_many(team_rank *self)
{
    static int data[4][2][NMANY]; /* first index: rank */
    dd_work *works[2][NMANY];
    int next = (self->rank + 1) % self->size;
    int previous = (self->rank + self->size - 1) % self->size;
    for (int i = 0; i < NMANY; i++) {
        data[self->rank][0][i] = self->rank * NMANY + i;
        works[0][i] = start(self, true, &data[self->rank][0][i], sizeof(int), next, (uint64_t)(i % 10));
        works[1][i] = start(self, false, &data[self->rank][1][i], sizeof(int), previous, (uint64_t)(i % 10));
    }
    for (int i = 0; i < NMANY; i++) {
        CHECK_OK(team_wait(self->group, works[1][NMANY - 1 - i]));
        CHECK_OK(team_wait(self->group, works[0][i]));
    }
    for (int i = 0; i < NMANY; i++) {
        CHECK_INT(data[self->rank][1][i], previous * NMANY + i);
    }
}

TEST(hundreds_of_messages_in_flight_arrive)
{
    for (int size = 2; size <= 4; size++) {
        team_options options = {.size = size};
        team_run_both(&options, exchange_many, NULL);
    }
}

static void
send_shorter_and_longer(team_rank *self)
{
    size_t sizes[] = {4, 100000, 2000000};
    uint8_t *memory = calloc(2000008, 1);
    for (size_t i = 0; i < 3; i++) {
        if (self->rank == 0) {
            memset(memory, 3, sizes[i] + 1);
            CHECK_OK(team_wait(self->group, start(self, true, memory, sizes[i], 1, 1)));
            dd_work *send = start(self, true, memory, sizes[i] + 1, 1, 2);
            /* it may be complete before the receiver checks */
            dd_status status = team_wait(self->group, send);
            CHECK(status == DD_OK || status == DD_INVALID_ARGUMENT);
        } else {
            memset(memory, 9, sizes[i] + 5);
            dd_work *recv = start(self, false, memory, sizes[i] + 5, 0, 1);
            REQUIRE(recv != NULL);
            dd_work_acquire(recv);
            CHECK_OK(team_wait(self->group, recv));
            CHECK_INT(recv->nbytes, sizes[i]);
            CHECK_INT(memory[sizes[i] - 1], 3);
            CHECK_INT(memory[sizes[i]], 9);
            dd_work_release(recv);
            recv = start(self, false, memory, sizes[i], 0, 2);
            CHECK_STATUS(team_wait(self->group, recv), DD_INVALID_ARGUMENT);
            char text[64];
            snprintf(text, sizeof text, "%zu bytes", sizes[i] + 1);
            CHECK_CONTAINS(check_message(), text);
            snprintf(text, sizeof text, "expected at most %zu", sizes[i]);
            CHECK_CONTAINS(check_message(), text);
        }
    }
    CHECK(team_check_sum(self->group)); /* the group stays usable */
    free(memory);
}

TEST(only_a_message_longer_than_its_buffer_fails)
{
    team_options options = {.size = 2};
    team_run_both(&options, send_shorter_and_longer, NULL);
}

static void
send_wrongly(team_rank *self)
{
    int x = 0;
    dd_block block = {.data = &x, .nbytes = sizeof x};
    dd_work *work = NULL;
    CHECK_STATUS(team_send(self->group, block, self->size, 0, &team_no_options, &work, check_err()),
                 DD_INVALID_ARGUMENT);
    CHECK_CONTAINS(check_message(), "send: invalid rank: got 2, expected 0 to 1");
    CHECK_STATUS(team_send(self->group, block, DD_ANY_RANK, 0, &team_no_options, &work, check_err()),
                 DD_INVALID_ARGUMENT);
    CHECK_STATUS(team_recv(self->group, block, -2, 0, &team_no_options, &work, check_err()),
                 DD_INVALID_ARGUMENT);
    CHECK(work == NULL);
}

TEST(messages_to_invalid_ranks_are_refused)
{
    team_options options = {.size = 2};
    team_run_both(&options, send_wrongly, NULL);
}

/* ---- calls that are used again */

#define NWORKS 100

static void
start_again_and_again(team_rank *self)
{
    int other = 1 - self->rank;
    dd_work *works[2 * NWORKS];
    uint64_t out[NWORKS];
    uint64_t in[NWORKS];
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < NWORKS; i++) {
            out[i] = (uint64_t)(1000 * round + i);
            works[2 * i] = start(self, true, &out[i], sizeof out[i], other, (uint64_t)i);
            works[2 * i + 1] = start(self, false, &in[i], sizeof in[i], other, (uint64_t)i);
        }
        for (int i = 2 * NWORKS - 1; i >= 0; i--) {
            REQUIRE(works[i] != NULL);
            CHECK_OK(team_wait(self->group, works[i]));
        }
        for (int i = 0; i < NWORKS; i++) {
            CHECK_INT(in[i], 1000 * round + i);
        }
    }
    if (self->rank == 0) {
        (void)dd_mem_fail_after(-1);
    }
    for (int i = 0; i < NWORKS; i++) {
        dd_work *send = start(self, true, out, sizeof out[0], other, 1);
        dd_work *recv = start(self, false, in, sizeof in[0], other, 1);
        REQUIRE(send != NULL && recv != NULL);
        CHECK_OK(team_wait(self->group, recv));
        CHECK_OK(team_wait(self->group, send));
    }
    if (self->rank == 0) {
        CHECK(dd_mem_fail_after(-1) < NWORKS / 2); /* of both ranks together */
    }
}

TEST(sends_and_receives_reuse_the_memory_of_completed_ones)
{
    team_options options = {.size = 2};
    team_run(&options, start_again_and_again, NULL);
}

static void
keep_works(team_rank *self)
{
    dd_work **kept = self->arg;
    static uint64_t numbers[4];
    int other = 1 - self->rank;
    kept[self->rank] = start(self, true, &numbers[self->rank], 8, other, 1);
    kept[2 + self->rank] = start(self, false, &numbers[2 + self->rank], 8, other, 1);
    for (int i = 0; i < 4; i += 2) {
        dd_work_acquire(kept[i + self->rank]);
        CHECK_OK(team_wait(self->group, kept[i + self->rank]));
    }
}

TEST(results_of_operations_can_be_read_after_their_group_is_released)
{
    dd_work *kept[4];
    team_options options = {.size = 2};
    team_run(&options, keep_works, kept);
    for (int i = 0; i < 4; i++) {
        CHECK_OK(dd_work_result(kept[i], check_err()));
        dd_work_release(kept[i]);
    }
}

/* ---- messages of any tag, and messages that are found without being received */

static dd_status
probe(team_rank *self, int rank, int64_t tag, dd_p2p_result *result)
{
    dd_wait wait = dd_wait_after(20 * DD_NS_PER_S);
    dd_p2p p2p = {.is_peek = true, .rank = rank, .tag = (uint64_t)tag, .is_any_tag = tag < 0};
    return dd_group_p2p_and_wait(self->group, &p2p, &team_no_options, result, &wait, check_err());
}

static bool
probe_once(team_rank *self, int rank, uint64_t tag)
{
    bool is_found = false;
    dd_p2p_result result;
    dd_p2p p2p = {.is_peek = true, .rank = rank, .tag = tag};
    CHECK_OK(dd_group_probe(self->group, &p2p, &is_found, &result, check_err()));
    return is_found;
}

static void
check_result(const dd_p2p_result *result, int source, uint64_t tag, size_t nbytes)
{
    CHECK_INT(result->source, source);
    CHECK_INT(result->tag, tag);
    CHECK_INT(result->nbytes, nbytes);
}

static const size_t probed_sizes[] = {0, 24, 3000001};

static void
find_messages(team_rank *self)
{
    int other = 1 - self->rank;
    uint8_t *own = make_bytes((uint64_t)self->rank, 3000001);
    uint8_t *got = calloc(3000001, 1);
    CHECK(!probe_once(self, other, 5));
    team_rendezvous(self, "probed");
    for (uint64_t i = 0; i < 3; i++) {
        dd_p2p_result result;
        dd_work *send = start(self, true, own, probed_sizes[i], other, 5 + i);
        REQUIRE_OK(probe(self, DD_ANY_RANK, -1, &result)); /* the message may have arrived already */
        check_result(&result, other, 5 + i, probed_sizes[i]);
        REQUIRE_OK(probe(self, other, (int64_t)(5 + i), &result));
        check_result(&result, other, 5 + i, probed_sizes[i]);
        CHECK(probe_once(self, other, 5 + i));
        CHECK(!probe_once(self, other, 4));
        dd_p2p p2p = {.rank = other, .is_any_tag = true, .block = {.data = got, .nbytes = 3000001}};
        dd_wait wait = dd_wait_after(20 * DD_NS_PER_S);
        REQUIRE_OK(dd_group_p2p_and_wait(self->group, &p2p, &team_no_options, &result, &wait, check_err()));
        check_result(&result, other, 5 + i, probed_sizes[i]);
        check_bytes_of(got, (uint64_t)other, probed_sizes[i]);
        CHECK(!probe_once(self, other, 5 + i));
        CHECK_OK(team_wait(self->group, send));
    }
    free(own);
    free(got);
    team_rendezvous(self, "found");
    CHECK(team_check_sum(self->group));
}

TEST(a_probe_finds_a_message_without_receiving_it)
{
    team_options options = {.size = 2};
    team_run_both(&options, find_messages, NULL);
}

/* A probe that waits must not end for a message that a receive has been posted for. */
static void
probe_past_a_receive(team_rank *self)
{
    int x = 0;
    dd_p2p_result result;
    if (self->rank == 0) {
        dd_work *recv = start(self, false, &x, sizeof x, 1, 3);
        team_rendezvous(self, "posted");
        REQUIRE_OK(probe(self, 1, -1, &result));
        check_result(&result, 1, 4, sizeof x);
        CHECK_OK(team_wait(self->group, recv));
        CHECK_OK(team_wait(self->group, start(self, false, &x, sizeof x, 1, 4)));
    } else {
        team_rendezvous(self, "posted");
        CHECK_OK(team_wait(self->group, start(self, true, &x, sizeof x, 0, 3)));
        CHECK_OK(team_wait(self->group, start(self, true, &x, sizeof x, 0, 4)));
    }
    team_rendezvous(self, "passed");
}

TEST(a_probe_ignores_a_message_that_a_posted_receive_matches)
{
    team_options options = {.size = 2};
    team_run_both(&options, probe_past_a_receive, NULL);
}

static void
leave_a_probe(team_rank *self)
{
    dd_p2p_result result;
    team_rendezvous(self, "ready");
    if (self->rank == 0) {
        CHECK_STATUS(probe(self, 1, -1, &result), DD_PEER_LOST);
        CHECK_CONTAINS(check_message(), "rank 1");
    }
}

TEST(a_probe_fails_if_the_rank_that_it_waits_for_leaves)
{
    team_options options = {.size = 2};
    team_run_both(&options, leave_a_probe, NULL);
}

/* ---- receives that are taken back */

static void
withdraw_receives(team_rank *self)
{
    int x = 0;
    int other = 1 - self->rank;
    dd_work *taken_back = start(self, false, &x, sizeof x, other, 8);
    dd_work *from_any = start(self, false, &x, sizeof x, DD_ANY_RANK, 9);
    CHECK(dd_group_withdraw(self->group, taken_back));
    CHECK(!dd_group_withdraw(self->group, taken_back));
    CHECK(dd_group_withdraw(self->group, from_any));
    CHECK_STATUS(team_wait(self->group, from_any), DD_ABORTED);
    CHECK_STATUS(team_wait(self->group, taken_back), DD_ABORTED);
    CHECK_CONTAINS(check_message(), "cancelled before a message matched it");
    team_rendezvous(self, "withdrawn");
    int own = 40 + self->rank;
    dd_work *send = start(self, true, &own, sizeof own, other, 8);
    CHECK(!dd_group_withdraw(self->group, send));
    dd_work *recv = start(self, false, &x, sizeof x, other, 8); /* takes what the first did not */
    CHECK_OK(team_wait(self->group, send));
    CHECK_OK(team_wait(self->group, recv));
    CHECK_INT(x, 40 + other);
    CHECK(team_check_sum(self->group));
}

TEST(a_receive_can_be_cancelled_until_a_message_matches_it)
{
    team_options options = {.size = 2};
    team_run_both(&options, withdraw_receives, NULL);
}

/* ---- a message that is never sent */

static void
recv_until_timeout(team_rank *self)
{
    int x = 0;
    dd_block block = {.data = &x, .nbytes = sizeof x};
    dd_call_options options = {.timeout_ns = 30 * DD_NS_PER_MS};
    dd_work *work = NULL;
    int other = 1 - self->rank;
    REQUIRE_OK(team_recv(self->group, block, other, 77, &options, &work, check_err()));
    CHECK_STATUS(team_wait(self->group, work), DD_OP_TIMED_OUT);
    CHECK_CONTAINS(check_message(), "recv on group \"team\"");
    CHECK_CONTAINS(check_message(), "timed out after 0.");
    CHECK_CONTAINS(check_message(), self->rank == 0 ? "rank 1 (" : "rank 0 (");
    CHECK_CONTAINS(check_message(), "has not sent (tag 77)");
    REQUIRE_OK(team_recv(self->group, block, DD_ANY_RANK, 78, &options, &work, check_err()));
    CHECK_STATUS(team_wait(self->group, work), DD_OP_TIMED_OUT);
    CHECK_CONTAINS(check_message(), "no rank has sent (tag 78)");
    uint8_t *large = calloc(3000000, 1);
    block = (dd_block){.data = large, .nbytes = 3000000};
    REQUIRE_OK(team_send(self->group, block, other, 79, &options, &work, check_err()));
    CHECK_STATUS(team_wait(self->group, work), DD_OP_TIMED_OUT);
    CHECK_CONTAINS(check_message(), "has not received (tag 79)");
    free(large);
    team_rendezvous(self, "late");
    CHECK(team_check_sum(self->group));
}

static void
time_out_beside_unread_messages(team_rank *self)
{
    int x = 0;
    dd_block block = {.data = &x, .nbytes = sizeof x};
    dd_call_options options = {.timeout_ns = 30 * DD_NS_PER_MS};
    dd_work *work = NULL;
    dd_p2p_result result;
    if (self->rank == 1) {
        for (uint64_t i = 0; i < 11; i++) {
            if (i == 10) {
                team_rendezvous(self, "eight tags");
            }
            CHECK_OK(team_wait(self->group, start(self, true, &x, sizeof x, 0, i < 3 ? 7 : 10 + i)));
        }
    } else {
        REQUIRE_OK(probe(self, 1, 19, &result));
        REQUIRE_OK(team_recv(self->group, block, 1, 77, &options, &work, check_err()));
        CHECK_STATUS(team_wait(self->group, work), DD_OP_TIMED_OUT);
        CHECK_CONTAINS(check_message(),
                       "10 messages of rank 1 are unread (tags 7, 13, 14, 15, 16, 17, 18, 19)");
        team_rendezvous(self, "eight tags");
        REQUIRE_OK(probe(self, 1, 20, &result));
        REQUIRE_OK(team_recv(self->group, block, DD_ANY_RANK, 77, &options, &work, check_err()));
        CHECK_STATUS(team_wait(self->group, work), DD_OP_TIMED_OUT);
        CHECK_CONTAINS(check_message(), "(tag 77); 11 messages of rank 1 are unread (tags 7, 13, 14, 15, 16, "
                                        "17, 18, 19, ...)");
    }
    team_rendezvous(self, "named");
}

TEST(a_receive_that_times_out_lists_the_unread_messages)
{
    team_options options = {.size = 2};
    team_run_both(&options, time_out_beside_unread_messages, NULL);
}

TEST(a_message_that_times_out_does_not_end_other_messages)
{
    team_options options = {.size = 2};
    team_run_both(&options, recv_until_timeout, NULL);
}

/* ---- messages and collectives at the same time, from several threads */

typedef struct pair_thread {
    team_rank *self;
    dd_group *group;
    int number;
    pthread_t thread;
} pair_thread;

static void *
ping_pong(void *arg)
{
    pair_thread *pair = arg;
    team_rank *self = pair->self;
    int other = 1 - self->rank;
    for (int i = 0; i < 200; i++) {
        int x = i * 10 + pair->number;
        int y = -1;
        if (self->rank == 0) {
            CHECK_OK(team_wait(self->group, start(self, true, &x, sizeof x, other, (uint64_t)pair->number)));
            CHECK_OK(team_wait(self->group, start(self, false, &y, sizeof y, other, (uint64_t)pair->number)));
        } else {
            CHECK_OK(team_wait(self->group, start(self, false, &y, sizeof y, other, (uint64_t)pair->number)));
            CHECK_OK(team_wait(self->group, start(self, true, &x, sizeof x, other, (uint64_t)pair->number)));
        }
        CHECK_INT(y, x);
    }
    return NULL;
}

static void
exchange_in_threads(team_rank *self)
{
    pair_thread pairs[3];
    for (int i = 0; i < 3; i++) {
        pairs[i] = (pair_thread){.self = self, .number = i};
        CHECK_OK(dd_thread_start(&pairs[i].thread, "pair", ping_pong, &pairs[i], check_err()));
    }
    for (int i = 0; i < 100; i++) {
        CHECK(team_check_sum(self->group));
    }
    for (int i = 0; i < 3; i++) {
        pthread_join(pairs[i].thread, NULL);
    }
}

TEST(messages_and_collectives_of_several_threads_do_not_mix)
{
    team_options options = {.size = 2};
    team_run_both(&options, exchange_in_threads, NULL);
}

/* ---- monitored_barrier */

static dd_status
monitored(team_rank *self, int64_t timeout_ns, bool is_all)
{
    dd_wait wait = dd_wait_after(30 * DD_NS_PER_S * check_slow());
    return dd_group_monitored_barrier(self->group, timeout_ns, is_all, &wait, check_err());
}

static void
pass_monitored(team_rank *self)
{
    for (int i = 0; i < 20; i++) {
        CHECK_OK(monitored(self, 10 * DD_NS_PER_S * check_slow(), i % 2 == 0));
    }
}

TEST(a_monitored_barrier_of_all_ranks_succeeds)
{
    for (int size = 1; size <= 5; size++) {
        team_options options = {.size = size};
        team_run_both(&options, pass_monitored, NULL);
    }
}

static void
miss_monitored(team_rank *self)
{
    bool is_all = *(bool *)self->arg;
    bool is_missing = self->rank == 1 || self->rank == 3;
    int64_t timeout_ns = 200 * DD_NS_PER_MS * check_slow();
    if (!is_missing) {
        CHECK_STATUS(monitored(self, timeout_ns, is_all), DD_OP_TIMED_OUT);
        CHECK_CONTAINS(check_message(), is_all ? "Ranks 1, 3 failed" : "Rank 1 failed");
        CHECK_CONTAINS(check_message(), self->rank == 0 ? "[Rank 0]" : "Rank 2 successfully reached");
        CHECK_CONTAINS(check_message(),
                       self->rank == 0 ? " ms (group" : "Please check rank 0 logs for faulty rank: rank 0");
    }
    team_rendezvous(self, "missed");
    if (is_missing) {
        /* A rank that calls too late also fails. */
        CHECK_STATUS(monitored(self, timeout_ns, is_all), DD_OP_TIMED_OUT);
        CHECK_CONTAINS(check_message(), "rank 0 reported");
    }
    team_rendezvous(self, "notified");
    CHECK(team_check_sum(self->group));
    CHECK_OK(monitored(self, 10 * DD_NS_PER_S * check_slow(), is_all));
}

TEST(a_monitored_barrier_names_the_missing_ranks)
{
    for (int is_all = 0; is_all < 2; is_all++) {
        bool arg = is_all == 1;
        team_options options = {.size = 4};
        team_run_both(&options, miss_monitored, &arg);
    }
}

static void
barrier_with_zero_timeout(team_rank *self)
{
    if (self->rank == 0) {
        CHECK_STATUS(monitored(self, 0, false), DD_OP_TIMED_OUT);
        CHECK_CONTAINS(check_message(), "Rank 1 failed to pass monitoredBarrier in 0 ms");
        CHECK_CONTAINS(check_message(), "Rank 0 timed out in monitoredBarrier after 0 ms");
    }
    team_rendezvous(self, "over");
    if (self->rank > 0) {
        CHECK_STATUS(monitored(self, 10 * DD_NS_PER_S * check_slow(), false), DD_OP_TIMED_OUT);
    }
    CHECK(team_check_sum(self->group));
}

TEST(a_monitored_barrier_with_a_zero_timeout_names_a_missing_rank)
{
    team_options options = {.size = 2};
    team_run_both(&options, barrier_with_zero_timeout, NULL);
}

static void
miss_rank_zero(team_rank *self)
{
    if (self->rank > 0) {
        CHECK_STATUS(monitored(self, 50 * DD_NS_PER_MS, false), DD_OP_TIMED_OUT);
        CHECK_CONTAINS(check_message(), "successfully reached monitoredBarrier, but received errors");
        CHECK_CONTAINS(check_message(), "from rank 0. Please check rank 0 logs for faulty rank: ");
        CHECK_CONTAINS(check_message(), "rank 0 (");
    }
    team_rendezvous(self, "late");
    CHECK(team_check_sum(self->group));
}

TEST(a_monitored_barrier_without_rank_zero_times_out)
{
    team_options options = {.size = 2};
    team_run_both(&options, miss_rank_zero, NULL);
}
