/* Meeting a process again whose link was lost: which processes get a new dd_peer, and the effect on
 * older groups. */
#include "check.h"

#include "core/mem.h"
#include "faults/faults.h"
#include "insight.h"
#include "net/sock.h"
#include "test_engine_rig.h"
#include "transport/engine_internal.h"

#include <stdio.h>
#include <string.h>

#define NEW_GROUP UINT64_C(78)

/* Encode the endpoint of a rank, without addresses unless `is_reachable`: a dial to it then fails, as
 * in a cut network. */
static bool
get_endpoint(rig_group *rig, int rank, bool is_reachable, dd_blob *bytes)
{
    const dd_addr_list nowhere = {.count = 0};
    dd_endpoint endpoint;
    return CHECK_OK(dd_engine_endpoint(rig->ranks[rank].engine, NULL, bytes, check_err())) &&
           (is_reachable ||
            (CHECK_OK(dd_endpoint_decode(dd_blob_view(bytes), &endpoint, NULL, check_err())) &&
             (endpoint.has_unix = false, true) &&
             CHECK_OK(dd_endpoint_encode(&endpoint, &nowhere, bytes, check_err()))));
}

/* Pass the endpoint of `other` to the engine of `rank`, as a meeting does. */
static dd_peer *
meet(rig_group *rig, int rank, int other, bool is_reachable)
{
    dd_blob bytes = {0};
    dd_peer *peer = NULL;
    if (get_endpoint(rig, other, is_reachable, &bytes)) {
        CHECK_OK(dd_engine_peer(rig->ranks[rank].engine, dd_blob_view(&bytes), &peer, check_err()));
    }
    dd_blob_fini(&bytes);
    return peer;
}

static void
dial(rig_group *rig, int rank)
{
    dd_engine_lock(rig->ranks[rank].engine);
    dd_peer_connect_locked(rig->ranks[rank].peers[1 - rank]);
    dd_engine_unlock(rig->ranks[rank].engine);
}

/* Open RIG_GROUP on two engines. The ranks in `lost` (a bit mask) failed to dial the other rank. */
static bool
open_parted(rig_group *rig, unsigned lost, bool is_shm)
{
    const dd_connect_options options = rig_options(is_shm, 1);
    *rig = (rig_group){.nranks = 2, .is_shm = is_shm};
    bool is_ok = true;
    for (int rank = 0; rank < 2; rank++) {
        is_ok = is_ok && CHECK_OK(dd_engine_open(&options, &rig->ranks[rank].engine, check_err()));
    }
    for (int rank = 0; rank < 2 && is_ok; rank++) {
        rig->ranks[rank].peers[rank] = meet(rig, rank, rank, true);
        rig->ranks[rank].peers[1 - rank] = meet(rig, rank, 1 - rank, (lost >> rank & 1) == 0);
        is_ok = CHECK(rig->ranks[rank].peers[1 - rank] != NULL) && rig_open_context(rig, rank);
    }
    for (int rank = 0; rank < 2 && is_ok; rank++) {
        if ((lost >> rank & 1) != 0) {
            dial(rig, rank);
            is_ok = rig_wait_count(rig, rank, &rig->ranks[rank].news.nlosts, 1);
        }
    }
    return is_ok;
}

/* RIG_GROUP on one rank, after that rank has opened the new group. */
typedef struct before {
    dd_context *context;
    dd_peer *peer;
} before;

/* Meet the other rank again, and open the new group with it. */
static before
meet_again(rig_group *rig, int rank)
{
    rig_rank *own = &rig->ranks[rank];
    before old = {.context = own->context, .peer = own->peers[1 - rank]};
    own->context = NULL;
    own->peers[1 - rank] = meet(rig, rank, 1 - rank, true);
    CHECK(rig_open_context_of(rig, rank, NEW_GROUP));
    return old;
}

static void
close_before(before *old)
{
    dd_wait wait = dd_wait_after(2 * DD_NS_PER_S);
    dd_context_close(old->context, &wait);
    dd_peer_release(old->peer);
}

static void
send_and_recv(rig_group *rig, int rank)
{
    int number = rank;
    int got = -1;
    rig_message send = rig_p2p(1 - rank, 1, &number, sizeof number);
    rig_message recv = rig_p2p(1 - rank, 1, &got, sizeof got);
    rig_post_send(rig, rank, &send);
    rig_post_recv(rig, rank, &recv);
    CHECK(rig_wait(rig, rank, &send, DD_OK) && rig_wait(rig, rank, &recv, DD_OK));
    CHECK_INT(got, 1 - rank);
}

/* Every rank sends to each of the others. */
static void
send_around(rig_group *rig, int rank)
{
    int numbers[RIG_MAX];
    rig_message sends[RIG_MAX];
    rig_message recvs[RIG_MAX];
    for (int other = 0; other < rig->nranks; other++) {
        sends[other] = rig_p2p(other, 1, &rank, sizeof rank);
        recvs[other] = rig_p2p(other, 1, &numbers[other], sizeof numbers[other]);
        rig_post_send(rig, rank, &sends[other]);
        rig_post_recv(rig, rank, &recvs[other]);
    }
    for (int other = 0; other < rig->nranks; other++) {
        CHECK(rig_wait(rig, rank, &sends[other], DD_OK) && rig_wait(rig, rank, &recvs[other], DD_OK));
        CHECK_INT(numbers[other], other);
    }
}

static const dd_error *
error_of(rig_group *rig, int rank, const dd_peer *peer)
{
    dd_engine_lock(rig->ranks[rank].engine);
    const dd_error *error = dd_peer_error_locked(peer);
    dd_engine_unlock(rig->ranks[rank].engine);
    return error;
}

/* ---- new peers */

static void
check_met_again(unsigned lost, bool is_shm)
{
    rig_group rig;
    before old[2];
    REQUIRE(open_parted(&rig, lost, is_shm));
    for (int rank = 0; rank < 2; rank++) {
        old[rank] = meet_again(&rig, rank);
        CHECK((old[rank].peer != rig.ranks[rank].peers[1 - rank]) == (lost >> rank & 1));
        CHECK((error_of(&rig, rank, old[rank].peer) != NULL) == (lost >> rank & 1));
        CHECK(error_of(&rig, rank, rig.ranks[rank].peers[1 - rank]) == NULL);
    }
    rig_run(&rig, send_and_recv);
    for (int rank = 0; rank < 2; rank++) {
        dd_engine_stats stats;
        stats = read_engine_stats(rig.ranks[rank].engine);
        CHECK_INT(stats.nconnections, 1);
        CHECK_INT(rig.ranks[rank].news.nlosts, lost >> rank & 1); /* not a second time */
        if ((lost >> rank & 1) != 0) {
            CHECK_CONTAINS(rig.ranks[rank].news.lost_error.message, "the peer has published no address");
            CHECK_CONTAINS(error_of(&rig, rank, old[rank].peer)->message,
                           "the peer has published no address");
        }
        close_before(&old[rank]);
    }
    rig_close(&rig);
}

TEST(a_new_group_can_connect_to_a_peer_whose_dial_failed)
{
    for (unsigned lost = 1; lost < 4; lost++) {
        check_met_again(lost, false);
        check_met_again(lost, true);
    }
}

TEST(two_ranks_that_lost_each_other_connect_again_if_both_dial)
{
    for (int round = 0; round < 20; round++) {
        check_met_again(3, round % 2 == 0);
    }
}

/* Until the other process has met this one again, it answers BUSY. */
TEST(a_new_dial_waits_until_the_other_rank_has_also_joined_the_new_group)
{
    rig_group rig;
    before old[2];
    REQUIRE(open_parted(&rig, 3, false));
    old[0] = meet_again(&rig, 0);
    dial(&rig, 0);
    rig_drive(&rig, 100 * DD_NS_PER_MS);
    CHECK(error_of(&rig, 0, rig.ranks[0].peers[1]) == NULL);
    old[1] = meet_again(&rig, 1);
    rig_run(&rig, send_and_recv);
    for (int rank = 0; rank < 2; rank++) {
        close_before(&old[rank]);
    }
    rig_close(&rig);
}

/* Both processes run, and one of them, or its kernel, has closed the connection. */
TEST(a_new_group_can_connect_to_a_peer_whose_connection_was_lost)
{
    rig_group rig;
    before old[2];
    REQUIRE(rig_open(&rig, 2, false));
    rig_run(&rig, send_and_recv);
    dd_error cut;
    (void)dd_error_set(&cut, DD_PEER_LOST, "cannot receive by TCP: Connection timed out");
    dd_engine_lock(rig.ranks[0].engine);
    peer_break(rig.ranks[0].peers[1], &cut);
    dd_engine_unlock(rig.ranks[0].engine);
    REQUIRE(rig_wait_count(&rig, 0, &rig.ranks[0].news.nlosts, 1) &&
            rig_wait_count(&rig, 1, &rig.ranks[1].news.nlosts, 1));
    for (int rank = 0; rank < 2; rank++) {
        old[rank] = meet_again(&rig, rank);
        CHECK(old[rank].peer != rig.ranks[rank].peers[1 - rank]);
    }
    rig_run(&rig, send_and_recv);
    for (int rank = 0; rank < 2; rank++) {
        CHECK_INT(rig.ranks[rank].news.nlosts, 1);
        close_before(&old[rank]);
    }
    rig_close(&rig);
}

/* Rank 1 has lost its end of the link. Rank 0 learns this from a third rank, while its own end
 * still appears healthy. */
TEST(a_new_group_replaces_a_connection_that_only_the_other_side_has_lost)
{
    const dd_cause cause = {
        .kind = DD_CAUSE_LOST, .code = DD_PEER_LOST, .origin = 1, .blamed = {.rank = 0}, .other = -1};
    rig_group rig;
    REQUIRE(rig_open(&rig, 3, false));
    rig_run(&rig, send_around);
    dd_engine_lock(rig.ranks[2].engine);
    dd_context_post_abort_locked(rig.ranks[2].context, DD_ANY_RANK, false, &cause);
    dd_engine_unlock(rig.ranks[2].engine);
    CHECK(rig_wait_count(&rig, 0, &rig.ranks[0].news.naborts, 1));
    dd_peer *again[3] = {NULL};
    for (int other = 1; other < 3; other++) {
        again[other] = meet(&rig, 0, other, true);
        CHECK((again[other] != rig.ranks[0].peers[other]) == (other == 1));
        CHECK(error_of(&rig, 0, again[other]) == NULL);
    }
    CHECK(rig_wait_count(&rig, 0, &rig.ranks[0].news.nlosts, 1));
    CHECK_INT(rig.ranks[0].news.lost_rank, 1);
    CHECK_CONTAINS(rig.ranks[0].news.lost_error.message, "the peer lost its connection to this process");
    for (int other = 1; other < 3; other++) {
        dd_peer_release(again[other]);
    }
    rig_close(&rig);
}

/* The link broke, and the engine has not been driven since. */
TEST(a_new_group_replaces_a_connection_whose_loss_was_not_yet_noticed)
{
    rig_group rig;
    REQUIRE(rig_open(&rig, 2, false));
    rig_run(&rig, send_and_recv);
    dd_error cut;
    (void)dd_error_set(&cut, DD_PEER_LOST, "cannot receive by TCP: Connection timed out");
    dd_blob bytes = {0};
    REQUIRE(get_endpoint(&rig, 1, true, &bytes));
    dd_endpoint endpoint;
    REQUIRE_OK(dd_endpoint_decode(dd_blob_view(&bytes), &endpoint, NULL, check_err()));
    dd_engine *engine = rig.ranks[0].engine;
    dd_peer *next = rig.ranks[0].peers[1];
    dd_engine_lock(engine);
    peer_break(next, &cut);
    CHECK_OK(peer_replace(&next, check_err()));
    CHECK(next != rig.ranks[0].peers[1] && engine_find_peer(engine, &endpoint.uid) == next);
    dd_engine_unlock(engine);
    CHECK(rig_wait_count(&rig, 0, &rig.ranks[0].news.nlosts, 1));
    dd_engine_lock(engine);
    CHECK(engine_find_peer(engine, &endpoint.uid) == next && dd_peer_error_locked(next) == NULL);
    dd_engine_unlock(engine);
    dd_blob_fini(&bytes);
    rig_close(&rig);
}

/* ---- earlier dials */

/* Encode the endpoint of rank 1 with the address of a listener that never answers. */
static bool
get_silent_endpoint(rig_group *rig, int *listener, dd_blob *bytes)
{
    dd_endpoint endpoint;
    dd_addr_list addrs = {.count = 0};
    bool is_ok = get_endpoint(rig, 1, true, bytes) &&
                 CHECK_OK(dd_endpoint_decode(dd_blob_view(bytes), &endpoint, &addrs, check_err()));
    addrs.count = 1;
    dd_addr_set_port(&addrs.items[0], 0);
    is_ok = is_ok && CHECK_OK(dd_sock_listen(&addrs.items[0], listener, check_err()));
    addrs.items[0] = dd_sock_local_addr(*listener);
    return is_ok && CHECK_OK(dd_endpoint_encode(&endpoint, &addrs, bytes, check_err()));
}

/* Rank 0 dials rank 1 at an address that never answers, and meets it again during that dial. */
static void
check_dials_again(bool is_lost)
{
    const dd_connect_options options = rig_options(false, 1);
    rig_group rig = {.nranks = 2};
    dd_blob bytes = {0};
    int listener = -1;
    dd_error cut;
    (void)dd_error_set(&cut, DD_PEER_LOST, "the network was cut");
    for (int rank = 0; rank < 2; rank++) {
        REQUIRE_OK(dd_engine_open(&options, &rig.ranks[rank].engine, check_err()));
        rig.ranks[rank].peers[rank] = meet(&rig, rank, rank, true);
    }
    REQUIRE(get_silent_endpoint(&rig, &listener, &bytes));
    dd_peer *first = NULL;
    REQUIRE_OK(dd_engine_peer(rig.ranks[0].engine, dd_blob_view(&bytes), &first, check_err()));
    dd_engine_lock(rig.ranks[0].engine);
    dd_peer_connect_locked(first);
    uint64_t dial = first->dial;
    if (is_lost) {
        peer_break(first, &cut);
    } else {
        first->dialled_ns -= 2 * DD_NS_PER_S;
    }
    dd_engine_unlock(rig.ranks[0].engine);

    rig.ranks[0].peers[1] = meet(&rig, 0, 1, true);
    rig.ranks[1].peers[0] = meet(&rig, 1, 0, true);
    CHECK((rig.ranks[0].peers[1] != first) == is_lost);
    REQUIRE(rig_open_context(&rig, 0) && rig_open_context(&rig, 1));
    rig_run(&rig, send_and_recv);
    CHECK(dial != 0 && rig.ranks[0].peers[1]->dial != dial);
    dd_peer_release(first);
    dd_blob_fini(&bytes);
    dd_sock_close(listener);
    rig_close(&rig);
}

TEST(a_new_group_dials_a_peer_again_whose_earlier_dial_got_no_answer)
{
    check_dials_again(true);
    check_dials_again(false);
}

/* ---- older groups */

static dd_status
end_of(rig_group *rig, int rank, rig_message *message)
{
    CHECK(rig_wait_flag(rig, rank, &message->is_done));
    return message->error.code;
}

/* Rank 0 has lost rank 1 and met it again. Rank 1 never lost rank 0: its old group is open and uses
 * the new link. */
TEST(an_old_group_receives_nothing_over_the_connection_of_a_new_group)
{
    static uint8_t large[300000];
    static uint8_t small[64];
    rig_group rig;
    before old[2];
    REQUIRE(open_parted(&rig, 1, false));
    dd_context *earlier = rig.ranks[1].context;
    for (int rank = 0; rank < 2; rank++) {
        old[rank] = meet_again(&rig, rank);
    }
    CHECK(old[1].peer == rig.ranks[1].peers[0]);
    rig_run(&rig, send_and_recv);

    dd_context *later = rig.ranks[1].context;
    rig.ranks[1].context = earlier;
    rig_message one = rig_p2p(0, 5, small, sizeof small);
    rig_message two = rig_p2p(0, 6, large, sizeof large);
    rig_post_send(&rig, 1, &one);
    rig_post_send(&rig, 1, &two);
    dd_engine_lock(rig.ranks[1].engine);
    dd_context_post_question_locked(earlier, 0);
    dd_engine_unlock(rig.ranks[1].engine);
    CHECK_INT(end_of(&rig, 1, &one), DD_OK); /* eager: it was sent */
    CHECK(end_of(&rig, 1, &two) != DD_OK);
    CHECK(rig_wait_count(&rig, 1, &rig.ranks[1].news.ngoodbyes, 1));
    dd_cause cause = {.kind = DD_CAUSE_ABORTED, .code = DD_ABORTED, .origin = 1, .blamed = {.rank = 1}};
    dd_engine_lock(rig.ranks[1].engine);
    dd_context_post_abort_locked(earlier, DD_ANY_RANK, false, &cause);
    dd_engine_unlock(rig.ranks[1].engine);
    rig.ranks[1].context = later;

    rig_drive(&rig, 20 * DD_NS_PER_MS);
    CHECK(rig.ranks[0].peers[1]->lanes[0]->cached !=
          old[0].context); /* the close of that context did not update this lane */
    rig_run(&rig, send_and_recv);
    CHECK_INT(rig.ranks[0].news.naborts, 0);
    CHECK_INT(rig.ranks[0].news.nlosts, 1);
    CHECK_INT(rig.ranks[1].news.nlosts, 0);
    for (int rank = 0; rank < 2; rank++) {
        close_before(&old[rank]);
    }
    dd_engine_stats stats;
    stats = read_engine_stats(rig.ranks[0].engine);
    CHECK_INT(stats.held_nbytes, 0);
    rig_close(&rig);
}

/* ---- processes that stay lost */

static void
check_stays_lost(rig_group *rig, int rank, int other)
{
    dd_peer *again = meet(rig, rank, other, true);
    CHECK(again == rig->ranks[rank].peers[other]);
    CHECK(error_of(rig, rank, again) != NULL);
    dd_peer_release(again);
}

TEST(a_new_group_cannot_connect_to_a_peer_that_has_closed)
{
    for (int is_shm = 0; is_shm < 2; is_shm++) {
        rig_group rig;
        REQUIRE(rig_open(&rig, 2, is_shm != 0));
        rig_run(&rig, send_and_recv);
        dd_blob bytes = {0};
        REQUIRE(get_endpoint(&rig, 1, true, &bytes));
        rig_close_rank(&rig, 1);
        REQUIRE(rig_wait_count(&rig, 0, &rig.ranks[0].news.ngoodbyes, 1));
        for (int i = 0; i < 100 && error_of(&rig, 0, rig.ranks[0].peers[1]) == NULL; i++) {
            rig_drive(&rig, 10 * DD_NS_PER_MS);
        }
        dd_peer *again = NULL;
        CHECK_OK(dd_engine_peer(rig.ranks[0].engine, dd_blob_view(&bytes), &again, check_err()));
        CHECK(again == rig.ranks[0].peers[1]);
        CHECK_CONTAINS(error_of(&rig, 0, again)->message, "its process has closed its groups");
        dd_peer_release(again);
        dd_blob_fini(&bytes);
        rig_close(&rig);
    }
}

TEST(a_new_group_cannot_connect_to_a_peer_that_broke_the_protocol)
{
    rig_group rig;
    REQUIRE(rig_open(&rig, 2, false));
    rig_run(&rig, send_and_recv);
    dd_engine_lock(rig.ranks[0].engine);
    peer_protocol_error(rig.ranks[0].peers[1], "it was a test");
    dd_engine_unlock(rig.ranks[0].engine);
    REQUIRE(rig_wait_count(&rig, 0, &rig.ranks[0].news.nlosts, 1));
    check_stays_lost(&rig, 0, 1);
    rig_close(&rig);
}

/* No process listens at the name of its Unix socket. */
TEST(a_new_group_cannot_connect_to_a_process_of_this_host_that_has_ended)
{
    rig_group rig;
    dd_endpoint ended;
    dd_blob bytes = {0};
    const dd_addr_list nowhere = {.count = 0};
    REQUIRE(rig_open_engines(&rig, 2, true, 1));
    REQUIRE_OK(dd_endpoint_init(&ended, check_err()));
    ended.has_unix = true;
    REQUIRE_OK(dd_endpoint_encode(&ended, &nowhere, &bytes, check_err()));
    dd_peer_release(rig.ranks[0].peers[1]);
    REQUIRE_OK(
        dd_engine_peer(rig.ranks[0].engine, dd_blob_view(&bytes), &rig.ranks[0].peers[1], check_err()));
    REQUIRE(rig_open_context(&rig, 0));
    dial(&rig, 0);
    REQUIRE(rig_wait_count(&rig, 0, &rig.ranks[0].news.nlosts, 1));
    dd_peer *again = NULL;
    CHECK_OK(dd_engine_peer(rig.ranks[0].engine, dd_blob_view(&bytes), &again, check_err()));
    CHECK(again == rig.ranks[0].peers[1]);
    dd_peer_release(again);
    dd_blob_fini(&bytes);
    rig_close(&rig);
}

/* ---- failed allocations */

TEST(reconnecting_to_a_lost_peer_returns_an_error_when_allocations_fail)
{
    rig_group rig;
    REQUIRE(open_parted(&rig, 1, false));
    dd_blob bytes = {0};
    REQUIRE(get_endpoint(&rig, 1, true, &bytes));
    dd_peer *again = NULL;
    dd_status status = DD_OUT_OF_MEMORY;
    long n = 0;
    for (; n < 20 && status != DD_OK; n++) {
        (void)dd_mem_fail_after(n);
        status = dd_engine_peer(rig.ranks[0].engine, dd_blob_view(&bytes), &again, NULL);
        (void)dd_mem_fail_after(-1);
        CHECK(status == DD_OK || (status == DD_OUT_OF_MEMORY && again == NULL));
    }
    CHECK_INT(status, DD_OK);
    CHECK(n > 1);
    CHECK(again != rig.ranks[0].peers[1] && error_of(&rig, 0, again) == NULL);
    dd_peer_release(again);
    dd_blob_fini(&bytes);
    rig_close(&rig);
}
