#include "core/dtype.h"
#include "insight.h"
#include "leftovers.h"
#include "test_engine_rig.h"
#include "transport/engine_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* Every test runs over shared memory and over TCP. */
#define TEST_BOTH(name)            \
    static void name(bool is_shm); \
    TEST(name##_shm)               \
    {                              \
        name(true);                \
    }                              \
    TEST(name##_tcp)               \
    {                              \
        name(false);               \
    }                              \
    static void name(bool is_shm)

static const size_t sizes[] = {
    0,
    1,
    8,
    127,
    128,
    129,
    4096,
    (32 << 10) - 1,
    32 << 10,
    (32 << 10) + 1,
    (64 << 10) - 1,
    64 << 10,
    (64 << 10) + 1,
    1 << 20,
    (1 << 20) + 3,
    20 << 20,
};
#define NSIZES (sizeof sizes / sizeof sizes[0])

static void
exchange_sizes(rig_group *self, int rank)
{
    size_t largest = sizes[NSIZES - 1];
    uint8_t *out = malloc(largest);
    uint8_t *in = malloc(largest);
    int other = (rank + 1) % self->nranks;
    int before = (rank + self->nranks - 1) % self->nranks;
    for (size_t i = 0; i < NSIZES; i++) {
        rig_fill(out, sizes[i], (unsigned)(i + (size_t)rank));
        memset(in, 0, sizes[i]);
        rig_message recv = rig_p2p(before, i, in, sizes[i]);
        rig_message send = rig_p2p(other, i, out, sizes[i]);
        rig_post_recv(self, rank, &recv);
        rig_post_send(self, rank, &send);
        rig_wait(self, rank, &send, DD_OK);
        rig_wait(self, rank, &recv, DD_OK);
        CHECK_INT(recv.message.received, sizes[i]);
        CHECK_INT(recv.message.source, before);
        rig_is_filled(in, sizes[i], (unsigned)(i + (size_t)before));
    }
    free(out);
    free(in);
}

TEST_BOTH(messages_of_every_size_arrive_both_ways)
{
    rig_group rig;
    REQUIRE(rig_open(&rig, 2, is_shm));
    rig_run(&rig, exchange_sizes);
    dd_engine_lock(rig.ranks[0].engine);
    CHECK_INT(dd_peer_has_shm_locked(rig.ranks[0].peers[1]), is_shm);
    dd_engine_unlock(rig.ranks[0].engine);
    rig_close(&rig);
}

TEST_BOTH(messages_of_every_size_arrive_in_a_ring_of_three_ranks)
{
    rig_group rig;
    REQUIRE(rig_open(&rig, 3, is_shm));
    rig_run(&rig, exchange_sizes);
    rig_close(&rig);
}

TEST(messages_of_every_size_to_self_use_no_connection)
{
    rig_group rig;
    REQUIRE(rig_open(&rig, 1, true));
    rig_run(&rig, exchange_sizes);
    dd_engine_stats stats;
    stats = read_engine_stats(rig.ranks[0].engine);
    CHECK_INT(stats.shm_sent_nbytes + stats.tcp_sent_nbytes, 0);
    CHECK(stats.self_sent_nbytes > 20 << 20);
    rig_close(&rig);
}

/* Small and large messages of one tag overtake each other on the wire, but match in order. */
TEST_BOTH(messages_with_the_same_tag_are_received_in_order)
{
    enum { COUNT = 40, LARGE = 200000 };
    rig_group rig;
    REQUIRE(rig_open(&rig, 2, is_shm));
    static rig_message sends[COUNT];
    static rig_message recvs[COUNT];
    static uint32_t out[COUNT][LARGE / 4];
    static uint32_t in[COUNT][LARGE / 4];
    for (int i = 0; i < COUNT; i++) {
        out[i][0] = (uint32_t)i;
        sends[i] = rig_p2p(1, 5, out[i], i % 3 == 0 ? LARGE : 4);
        rig_post_send(&rig, 0, &sends[i]);
    }
    rig_drive(&rig, 5 * DD_NS_PER_MS);
    for (int i = 0; i < COUNT; i++) {
        recvs[i] = rig_p2p(i % 2 == 0 ? 0 : DD_ANY_RANK, 5, in[i], LARGE);
        rig_post_recv(&rig, 1, &recvs[i]);
    }
    for (int i = 0; i < COUNT; i++) {
        rig_wait(&rig, 1, &recvs[i], DD_OK);
        CHECK_INT(in[i][0], i);
        CHECK_INT(recvs[i].message.received, i % 3 == 0 ? LARGE : 4);
        rig_wait(&rig, 0, &sends[i], DD_OK);
    }
    rig_close(&rig);
}

TEST_BOTH(messages_are_matched_by_tag_and_channel)
{
    rig_group rig;
    REQUIRE(rig_open(&rig, 2, is_shm));
    int out[3] = {10, 11, 12};
    int in[3] = {0};
    dd_signature signature = {.coll = 1, .count = 1};
    rig_message sends[3] = {rig_p2p(1, 1, &out[0], 4), rig_p2p(1, 2, &out[1], 4),
                            rig_coll(1, 2, 7, &signature, &out[2], 4)};
    rig_message recvs[3] = {rig_coll(0, 2, 7, &signature, &in[2], 4), rig_p2p(0, 2, &in[1], 4),
                            rig_p2p(DD_ANY_RANK, 1, &in[0], 4)};
    for (int i = 0; i < 3; i++) {
        rig_post_send(&rig, 0, &sends[i]);
    }
    for (int i = 0; i < 3; i++) {
        rig_post_recv(&rig, 1, &recvs[i]);
        rig_wait(&rig, 1, &recvs[i], DD_OK);
    }
    for (int i = 0; i < 3; i++) {
        CHECK_INT(in[i], 10 + i);
        rig_wait(&rig, 0, &sends[i], DD_OK);
    }
    CHECK_INT(atomic_load(&rig.ranks[1].news.ncolls), 1);
    CHECK_INT(rig.ranks[1].news.last_signature.count, 1);
    rig_close(&rig);
}

static void
flood(rig_group *self, int rank)
{
    enum { COUNT = 300, NBYTES = 50000 };
    rig_message *messages = calloc(2 * COUNT, sizeof *messages);
    uint8_t *in = malloc((size_t)COUNT * NBYTES);
    uint8_t *out = malloc(NBYTES);
    int other = 1 - rank;
    rig_fill(out, NBYTES, (unsigned)rank);
    for (size_t i = 0; i < COUNT; i++) {
        messages[i] = rig_p2p(other, i % 7, out, i % 5 == 0 ? NBYTES : 100);
        rig_post_send(self, rank, &messages[i]);
    }
    for (size_t i = 0; i < COUNT; i++) {
        messages[COUNT + i] = rig_p2p(other, i % 7, in + i * NBYTES, NBYTES);
        rig_post_recv(self, rank, &messages[COUNT + i]);
    }
    for (size_t i = 0; i < 2 * COUNT; i++) {
        rig_wait(self, rank, &messages[i], DD_OK);
    }
    for (size_t i = 0; i < COUNT; i++) {
        size_t wanted = i % 5 == 0 ? NBYTES : 100;
        CHECK_INT(messages[COUNT + i].message.received, wanted);
        rig_is_filled(in + i * NBYTES, wanted, (unsigned)other);
    }
    free(messages);
    free(in);
    free(out);
}

TEST_BOTH(hundreds_of_messages_in_flight_arrive_both_ways)
{
    rig_group rig;
    REQUIRE(rig_open(&rig, 2, is_shm));
    rig_run(&rig, flood);
    rig_close(&rig);
}

TEST_BOTH(unreceived_small_messages_use_at_most_their_limit_of_memory)
{
    enum { COUNT = 500, NBYTES = 10000 };
    rig_group rig;
    REQUIRE(rig_open(&rig, 2, is_shm));
    static rig_message sends[COUNT];
    static rig_message recvs[COUNT];
    static uint8_t out[NBYTES];
    static uint8_t in[NBYTES];
    for (int i = 0; i < COUNT; i++) {
        sends[i] = rig_p2p(1, 0, out, NBYTES);
        rig_post_send(&rig, 0, &sends[i]);
    }
    rig_drive(&rig, 100 * DD_NS_PER_MS);
    dd_engine_stats stats;
    stats = read_engine_stats(rig.ranks[1].engine);
    CHECK(stats.held_nbytes > 500000);
    CHECK(stats.held_nbytes <= 1 << 20);
    for (int i = 0; i < COUNT; i++) {
        recvs[i] = rig_p2p(0, 0, in, NBYTES);
        rig_post_recv(&rig, 1, &recvs[i]);
        rig_wait(&rig, 1, &recvs[i], DD_OK);
    }
    for (int i = 0; i < COUNT; i++) {
        rig_wait(&rig, 0, &sends[i], DD_OK);
    }
    stats = read_engine_stats(rig.ranks[1].engine);
    CHECK_INT(stats.held_nbytes, 0);
    rig_close(&rig);
}

static void
too_large(bool is_shm, size_t sent, size_t room, bool is_posted_first)
{
    rig_group rig;
    REQUIRE(rig_open(&rig, 2, is_shm));
    uint8_t *out = calloc(1, sent);
    uint8_t *in = calloc(1, sent);
    rig_message send = rig_p2p(1, 3, out, sent);
    rig_message recv = rig_p2p(0, 3, in, room);
    rig_message small_send = rig_p2p(1, 4, out, 8);
    rig_message small_recv = rig_p2p(0, 4, in, 8);
    if (is_posted_first) {
        rig_post_recv(&rig, 1, &recv);
    }
    rig_post_send(&rig, 0, &send);
    rig_post_send(&rig, 0, &small_send);
    rig_drive(&rig, 5 * DD_NS_PER_MS);
    if (!is_posted_first) {
        rig_post_recv(&rig, 1, &recv);
    }
    rig_wait(&rig, 1, &recv, DD_INVALID_ARGUMENT);
    char number[32];
    (void)snprintf(number, sizeof number, "%zu", sent);
    CHECK_CONTAINS(recv.error.message, number);
    (void)snprintf(number, sizeof number, "%zu", room);
    CHECK_CONTAINS(recv.error.message, number);
    rig_wait_flag(&rig, 0, &send.is_done);
    CHECK(send.error.code == DD_OK || send.error.code == DD_INVALID_ARGUMENT);
    rig_post_recv(&rig, 1, &small_recv);
    rig_wait(&rig, 1, &small_recv, DD_OK);
    rig_close(&rig);
    free(out);
    free(in);
}

TEST_BOTH(a_message_larger_than_its_buffer_fails_only_its_receive)
{
    too_large(is_shm, 1000, 999, true);
    too_large(is_shm, 1000, 999, false);
    too_large(is_shm, 30000, 0, true);
    too_large(is_shm, 300000, 299999, true);
    too_large(is_shm, 300000, 20, false);
}

static const dd_signature four_floats = {.dtype = DD_DTYPE_FLOAT32, .flags = DD_SIGNATURE_TYPED, .count = 4};
static const dd_signature two_doubles = {.dtype = DD_DTYPE_FLOAT64, .flags = DD_SIGNATURE_TYPED, .count = 2};

static void
other_dtype(rig_group *rig, int from, int to, size_t nbytes, bool is_posted_first)
{
    uint8_t *out = calloc(1, nbytes);
    uint8_t *in = calloc(1, nbytes);
    rig_message send = rig_p2p(to, 3, out, nbytes);
    rig_message recv = rig_p2p(is_posted_first ? from : DD_ANY_RANK, 3, in, nbytes);
    send.message.signature = &four_floats;
    recv.message.signature = &two_doubles;
    if (is_posted_first) {
        rig_post_recv(rig, to, &recv);
    }
    memset(out, 1, nbytes);
    rig_post_send(rig, from, &send);
    rig_drive(rig, 5 * DD_NS_PER_MS);
    if (!is_posted_first) {
        rig_post_recv(rig, to, &recv);
    }
    rig_wait(rig, to, &recv, DD_MISMATCH);
    CHECK_CONTAINS(recv.error.message, "has sent 4 elements of float32 (tag 3), expected 2 of float64");
    CHECK_INT(recv.error.blamed.rank, from);
    CHECK_INT(in[0], 0);
    /* A small message may have been sent before the mismatch was detected. */
    rig_wait_flag(rig, from, &send.is_done);
    if (send.error.code != DD_OK || nbytes > (64 << 10)) {
        CHECK_STATUS(send.error.code, DD_MISMATCH);
        CHECK_CONTAINS(send.error.message, "expects 2 elements of float64 (tag 3), got 4 of float32");
        CHECK_INT(send.error.blamed.rank, to);
    }
    free(out);
    free(in);
}

/* The pair stays usable, and bytes match every dtype, on either side. */
static void
any_bytes(rig_group *rig, int from, int to, size_t nbytes)
{
    const dd_signature *sides[][2] = {
        {&four_floats, NULL}, {NULL, &two_doubles}, {&four_floats, &four_floats}};
    uint8_t *out = malloc(nbytes);
    uint8_t *in = malloc(nbytes);
    for (unsigned i = 0; i < 3; i++) {
        rig_fill(out, nbytes, i);
        rig_message send = rig_p2p(to, 3, out, nbytes);
        rig_message recv = rig_p2p(from, 3, in, nbytes);
        send.message.signature = sides[i][0];
        recv.message.signature = sides[i][1];
        rig_post_send(rig, from, &send);
        rig_post_recv(rig, to, &recv);
        rig_wait(rig, to, &recv, DD_OK);
        rig_wait(rig, from, &send, DD_OK);
        rig_is_filled(in, nbytes, i);
    }
    free(out);
    free(in);
}

TEST_BOTH(a_message_of_another_dtype_is_a_mismatch)
{
    static const size_t lengths[] = {16, 30000, 300000};
    rig_group rig;
    REQUIRE(rig_open(&rig, 2, is_shm));
    for (size_t i = 0; i < 3; i++) {
        for (int to = 0; to < 2; to++) {
            other_dtype(&rig, 0, to, lengths[i], true);
            other_dtype(&rig, 0, to, lengths[i], false);
            any_bytes(&rig, 0, to, lengths[i]);
        }
    }
    rig_close(&rig);
}

TEST_BOTH(a_message_of_another_collective_is_a_mismatch)
{
    static uint8_t out[100000];
    static uint8_t in[100000];
    static const size_t lengths[] = {16, 100000};
    for (int i = 0; i < 2; i++) {
        rig_group rig;
        REQUIRE(rig_open(&rig, 2, is_shm));
        dd_signature signatures[2] = {{.coll = 1, .count = 4}, {.coll = 2, .count = 4}};
        rig_message send = rig_coll(1, 9, 0, &signatures[0], out, lengths[i]);
        rig_message recv = rig_coll(0, 9, 0, &signatures[1], in, lengths[i]);
        rig_post_recv(&rig, 1, &recv);
        rig_post_send(&rig, 0, &send);
        rig_wait(&rig, 1, &recv, DD_MISMATCH);
        rig_wait_flag(&rig, 0, &send.is_done);
        CHECK(send.error.code == DD_OK || send.error.code == DD_MISMATCH);
        rig_close(&rig);
    }
}

static int nvisits;

static void
visit(void *ctx, int rank, const dd_signature *signature)
{
    CHECK_INT(rank, 0);
    CHECK_INT(signature->count, 5);
    CHECK(ctx == &nvisits);
    nvisits++;
}

TEST_BOTH(the_collective_of_an_unreceived_message_can_be_queried)
{
    rig_group rig;
    REQUIRE(rig_open(&rig, 2, is_shm));
    dd_signature signature = {.coll = 1, .count = 5};
    char byte = 'x';
    rig_message send = rig_coll(1, 9, 0, &signature, &byte, 1);
    rig_post_send(&rig, 0, &send);
    rig_wait(&rig, 0, &send, DD_OK);
    REQUIRE(rig_wait_count(&rig, 1, &rig.ranks[1].news.ncolls, 1));
    dd_engine_lock(rig.ranks[1].engine);
    dd_context_visit_held_locked(rig.ranks[1].context, 8, visit, &nvisits);
    CHECK_INT(nvisits, 0);
    dd_context_visit_held_locked(rig.ranks[1].context, 9, visit, &nvisits);
    CHECK_INT(nvisits, 1);
    dd_engine_unlock(rig.ranks[1].engine);
    rig_close(&rig);
}

/* Check that later messages arrive, whatever was cancelled in the middle. */
static void
check_stream(rig_group *self, size_t nbytes)
{
    uint8_t *out = malloc(nbytes);
    uint8_t *in = calloc(1, nbytes);
    rig_fill(out, nbytes, 5);
    rig_message send = rig_p2p(1, 1000, out, nbytes);
    rig_message recv = rig_p2p(0, 1000, in, nbytes);
    rig_post_send(self, 0, &send);
    rig_post_recv(self, 1, &recv);
    dd_engine_kick(self->ranks[0].engine);
    rig_wait(self, 1, &recv, DD_OK);
    rig_wait(self, 0, &send, DD_OK);
    rig_is_filled(in, nbytes, 5);
    free(out);
    free(in);
}

TEST_BOTH(messages_cancelled_at_any_stage_do_not_affect_later_messages)
{
    enum { NBYTES = 8 << 20 };
    static const size_t lengths[] = {100, 30000, NBYTES};
    rig_group rig;
    REQUIRE(rig_open(&rig, 2, is_shm));
    uint8_t *out = calloc(1, NBYTES);
    uint8_t *in = calloc(1, NBYTES);
    check_stream(&rig, 8);
    for (int i = 0; i < 3 * 2 * 12; i++) {
        size_t nbytes = lengths[i % 3];
        bool is_send_first = i / 3 % 2 == 0;
        rig_message send = rig_p2p(1, 1, out, nbytes);
        rig_message recv = rig_p2p(0, 1, in, nbytes);
        rig_post_send(&rig, 0, &send);
        if (i % 4 != 3) {
            rig_post_recv(&rig, 1, &recv);
        }
        /* Cancel after a different number of rounds each time. */
        for (int round = 0; round < i / 6; round++) {
            atomic_bool never = false;
            dd_wait now = dd_wait_after(0);
            (void)!dd_engine_wait(rig.ranks[round % 2].engine, &never, &now, NULL);
        }
        rig_cancel(&rig, is_send_first ? 0 : 1, is_send_first ? &send : (i % 4 != 3 ? &recv : &send));
        if (i % 4 == 3) {
            if (!send.message.is_posted) {
                rig_cancel(&rig, 0, &send);
            }
            rig_post_recv(&rig, 1, &recv);
            rig_drive(&rig, DD_NS_PER_MS);
        }
        rig_cancel(&rig, 1, &recv);
        rig_cancel(&rig, 0, &send);
        check_stream(&rig, i % 2 == 0 ? 8 : 100000);
        /* Receive data that was left unmatched. */
        rig_message rest = rig_p2p(0, 1, in, NBYTES);
        rig_post_recv(&rig, 1, &rest);
        rig_drive(&rig, DD_NS_PER_MS);
        rig_cancel(&rig, 1, &rest);
    }
    rig_close(&rig);
    free(out);
    free(in);
}

TEST_BOTH(messages_sent_before_the_receiver_opens_its_group_arrive)
{
    rig_group rig;
    static uint8_t out[100000];
    static uint8_t in[100000];
    REQUIRE(rig_open_engines(&rig, 2, is_shm, 1));
    REQUIRE(rig_open_context(&rig, 0));
    dd_signature signature = {.coll = 4};
    rig_message small = rig_p2p(1, 1, out, 300);
    rig_message large = rig_p2p(1, 2, out, sizeof out);
    rig_message coll = rig_coll(1, 1, 0, &signature, NULL, 0);
    rig_fill(out, sizeof out, 1);
    rig_post_send(&rig, 0, &small);
    rig_post_send(&rig, 0, &large);
    rig_post_send(&rig, 0, &coll);
    rig_wait(&rig, 0, &small, DD_OK);
    rig_wait(&rig, 0, &coll, DD_OK);
    rig_drive(&rig, 10 * DD_NS_PER_MS);
    REQUIRE(rig_open_context(&rig, 1));
    CHECK_INT(atomic_load(&rig.ranks[1].news.ncolls), 1);
    rig_message recv = rig_p2p(0, 2, in, sizeof in);
    rig_post_recv(&rig, 1, &recv);
    dd_engine_kick(rig.ranks[0].engine);
    rig_wait(&rig, 1, &recv, DD_OK);
    rig_is_filled(in, sizeof in, 1);
    rig_wait(&rig, 0, &large, DD_OK);
    recv = rig_p2p(0, 1, in, sizeof in);
    rig_post_recv(&rig, 1, &recv);
    rig_wait(&rig, 1, &recv, DD_OK);
    CHECK_INT(recv.message.received, 300);
    rig_close(&rig);
}

/* Open and abort a group that only one side creates, as after a failure of the other side. Nothing
 * of it may be left. */
static void
send_and_abort(rig_group *rig, uint64_t id)
{
    static uint8_t out[8000];
    rig_rank *self = &rig->ranks[0];
    dd_context *before = self->context;
    dd_error error;
    REQUIRE(rig_open_context_of(rig, 0, id));
    rig_message send = rig_p2p(1, 1, out, sizeof out);
    rig_post_send(rig, 0, &send);
    dd_engine_lock(self->engine);
    (void)dd_error_set(&error, DD_ABORTED, "it is not to be");
    dd_cause cause = dd_cause_of_error(&error, 0);
    dd_context_post_abort_locked(self->context, DD_ANY_RANK, false, &cause);
    dd_engine_unlock(self->engine);
    rig_wait(rig, 0, &send, DD_OK);
    dd_wait moment = dd_wait_after(DD_NS_PER_S);
    dd_context_close(self->context, &moment);
    self->context = before;
}

TEST_BOTH(groups_aborted_before_the_other_rank_opens_them_leak_nothing)
{
    rig_group rig;
    REQUIRE(rig_open(&rig, 2, is_shm));
    check_stream(&rig, 8);
    int nfds = count_fds();
    for (uint64_t id = 1000; id < 1300; id++) { /* more than a peer's credit */
        send_and_abort(&rig, id);
        check_stream(&rig, 8);
    }
    rig_drive(&rig, 5 * DD_NS_PER_MS);
    dd_engine_lock(rig.ranks[1].engine);
    dd_peer *peer = engine_find_peer(rig.ranks[1].engine, &dd_peer_endpoint(rig.ranks[1].peers[0])->uid);
    CHECK(peer->nheld <= 64);
    dd_engine_unlock(rig.ranks[1].engine);
    /* fewer if sockets of the handshake were still open at the first count */
    CHECK(count_fds() <= nfds);
    /* A rank that opens such a group later must still be notified. */
    dd_context *group = rig.ranks[1].context;
    REQUIRE(rig_open_context_of(&rig, 1, 1299));
    CHECK_INT(atomic_load(&rig.ranks[1].news.naborts), 1);
    CHECK_CONTAINS(rig.ranks[1].news.abort_cause.text, "it is not to be");
    rig_close_context(&rig, 1);
    rig.ranks[1].context = group;
    rig_close(&rig);
}

/* A group may have several ranks in one process: each of them is notified. */
TEST_BOTH(all_ranks_of_a_process_receive_an_abort_sent_before_they_opened)
{
    rig_group rig;
    dd_error error;
    REQUIRE(rig_open(&rig, 2, is_shm));
    check_stream(&rig, 8);
    const dd_context_handler nothing = {.ctx = NULL};
    dd_context_handler counting = rig_handler(&rig, 1);
    dd_context *contexts[3] = {NULL};
    dd_peer *theirs[3] = {rig.ranks[0].peers[0], rig.ranks[0].peers[1], rig.ranks[0].peers[1]};
    dd_peer *ours[3] = {rig.ranks[1].peers[0], rig.ranks[1].peers[1], rig.ranks[1].peers[1]};
    REQUIRE_OK(dd_context_open(rig.ranks[0].engine, 5000, 0, 3, theirs, &nothing, &contexts[0], check_err()));
    (void)dd_error_set(&error, DD_ABORTED, "it is not to be");
    dd_cause cause = dd_cause_of_error(&error, 0);
    dd_engine_lock(rig.ranks[0].engine);
    dd_context_post_abort_locked(contexts[0], DD_ANY_RANK, false, &cause);
    dd_engine_unlock(rig.ranks[0].engine);
    check_stream(&rig, 8);
    for (int rank = 1; rank < 3; rank++) {
        REQUIRE_OK(dd_context_open(rig.ranks[1].engine, 5000, rank, 3, ours, &counting, &contexts[rank],
                                   check_err()));
        CHECK_INT(atomic_load(&rig.ranks[1].news.naborts), rank);
    }
    dd_wait moment = dd_wait_after(DD_NS_PER_S);
    for (int rank = 0; rank < 3; rank++) {
        dd_context_close(contexts[rank], &moment);
    }
    rig_close(&rig);
}

/* A rank joined, sent and left before the other rank opened its context. */
TEST_BOTH(messages_of_a_rank_that_left_before_the_receiver_opened_arrive)
{
    rig_group rig;
    int out = 42;
    int in = 0;
    REQUIRE(rig_open_engines(&rig, 2, is_shm, 1));
    REQUIRE(rig_open_context(&rig, 0));
    rig_message send = rig_p2p(1, 1, &out, sizeof out);
    rig_post_send(&rig, 0, &send);
    rig_wait(&rig, 0, &send, DD_OK);
    rig_close_rank(&rig, 0);
    rig_drive(&rig, 20 * DD_NS_PER_MS);
    REQUIRE(rig_open_context(&rig, 1));
    CHECK_INT(atomic_load(&rig.ranks[1].news.ngoodbyes), 1);
    CHECK_INT(atomic_load(&rig.ranks[1].news.nlosts), 0);
    rig_message recv = rig_p2p(0, 1, &in, sizeof in);
    rig_post_recv(&rig, 1, &recv);
    rig_wait(&rig, 1, &recv, DD_OK);
    CHECK_INT(in, 42);
    rig_post_recv(&rig, 1, &recv);
    rig_wait(&rig, 1, &recv, DD_PEER_LOST);
    rig_close(&rig);
}

TEST_BOTH(receives_from_a_rank_that_has_left_end_and_sends_to_it_are_refused)
{
    static uint8_t large[200000];
    rig_group rig;
    REQUIRE(rig_open(&rig, 2, is_shm));
    check_stream(&rig, 8);
    rig_message recv = rig_p2p(1, 1, large, sizeof large);
    rig_message send = rig_p2p(1, 1, large, sizeof large);
    rig_post_recv(&rig, 0, &recv);
    rig_post_send(&rig, 0, &send);
    rig_drive(&rig, 5 * DD_NS_PER_MS);
    rig_close_context(&rig, 1);
    rig_wait(&rig, 0, &recv, DD_PEER_LOST);
    CHECK_CONTAINS(recv.error.message, "rank 1 ");
    CHECK_CONTAINS(recv.error.message, "has closed the group");
    rig_wait(&rig, 0, &send, DD_PEER_LOST);
    CHECK_INT(atomic_load(&rig.ranks[0].news.ngoodbyes), 1);
    CHECK_INT(atomic_load(&rig.ranks[0].news.nlosts), 0);
    rig_close(&rig);
}

TEST_BOTH(an_abort_message_carries_code_text_and_blamed_rank)
{
    rig_group rig;
    REQUIRE(rig_open(&rig, 3, is_shm));
    for (int i = 0; i < 2; i++) {
        rig_message send = rig_p2p(2, 0, NULL, 0);
        rig_message recv = rig_p2p(i, 0, NULL, 0);
        rig_post_send(&rig, i, &send);
        rig_post_recv(&rig, 2, &recv);
        rig_wait(&rig, i, &send, DD_OK);
        rig_wait(&rig, 2, &recv, DD_OK);
    }
    dd_error error;
    (void)dd_error_set(&error, DD_OP_TIMED_OUT, "all_reduce #4: timed out after 3 s");
    dd_error_blame(&error, 1, "node-x", 4711);
    dd_cause cause = dd_cause_of_error(&error, 2);
    cause.kind = DD_CAUSE_TIMED_OUT;
    cause.sequence = 4;
    cause.elapsed_ns = 3 * DD_NS_PER_S;
    cause.other_signature = (dd_signature){.coll = 1, .count = 7};
    dd_engine_lock(rig.ranks[2].engine);
    dd_context_post_abort_locked(rig.ranks[2].context, 1, false, &cause);
    dd_engine_unlock(rig.ranks[2].engine);
    dd_engine_kick(rig.ranks[2].engine);
    REQUIRE(rig_wait_count(&rig, 0, &rig.ranks[0].news.naborts, 1));
    const dd_cause *received_cause = &rig.ranks[0].news.abort_cause;
    CHECK_INT(received_cause->kind, DD_CAUSE_TIMED_OUT);
    CHECK_INT(received_cause->code, DD_OP_TIMED_OUT);
    CHECK_INT(received_cause->origin, 2);
    CHECK_INT(received_cause->sequence, 4);
    CHECK_INT(received_cause->elapsed_ns, 3 * DD_NS_PER_S);
    CHECK(memcmp(&received_cause->other_signature, &cause.other_signature, sizeof cause.other_signature) ==
          0);
    CHECK_CONTAINS(received_cause->text, "all_reduce #4: timed out after 3 s");
    CHECK_INT(received_cause->blamed.rank, 1);
    CHECK_INT(received_cause->blamed.pid, 4711);
    CHECK_CONTAINS(received_cause->blamed.host, "node-x");
    rig_drive(&rig, 10 * DD_NS_PER_MS);
    CHECK_INT(atomic_load(&rig.ranks[1].news.naborts), 0);
    rig_close(&rig);
}

TEST_BOTH(a_query_for_another_ranks_progress_is_answered)
{
    rig_group rig;
    REQUIRE(rig_open(&rig, 2, is_shm));
    check_stream(&rig, 8);
    dd_engine_lock(rig.ranks[0].engine);
    CHECK(dd_context_is_connected_locked(rig.ranks[0].context, 1));
    dd_context_post_question_locked(rig.ranks[0].context, 1);
    dd_engine_unlock(rig.ranks[0].engine);
    REQUIRE(rig_wait_count(&rig, 0, &rig.ranks[0].news.nanswers, 1));
    CHECK_INT(rig.ranks[0].news.answer_sequence, 1234);
    rig_close(&rig);
}

TEST_BOTH(groups_over_one_connection_do_not_mix_their_messages)
{
    rig_group rig;
    REQUIRE(rig_open(&rig, 2, is_shm));
    check_stream(&rig, 100000);
    /* The same id can be used again after it was closed on both sides. */
    rig_close_context(&rig, 0);
    rig_close_context(&rig, 1);
    rig_drive(&rig, 5 * DD_NS_PER_MS);
    REQUIRE(rig_open_context(&rig, 0));
    REQUIRE(rig_open_context(&rig, 1));
    check_stream(&rig, 100000);
    dd_engine_stats stats;
    stats = read_engine_stats(rig.ranks[0].engine);
    CHECK_INT(stats.nconnections, 1);
    rig_close(&rig);
}
