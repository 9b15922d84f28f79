/* A failure is sent to other ranks before any caller here acts on it: the process may exit then. */
#include "check.h"
#include "failure_notices.h"
#include "test_engine_rig.h"
#include "transport/engine_internal.h"

#include <string.h>
#include <sys/socket.h>

#define TEST_BOTH(name)                  \
    static void run_##name(bool is_shm); \
    TEST(name##_shm)                     \
    {                                    \
        run_##name(true);                \
    }                                    \
    TEST(name##_tcp)                     \
    {                                    \
        run_##name(false);               \
    }                                    \
    static void run_##name(bool is_shm)

static bool
connect_all(rig_group *rig)
{
    bool is_good = true;
    for (int i = 0; i < rig->nranks; i++) {
        for (int k = 0; k < i; k++) {
            rig_message send = rig_p2p(k, 0, NULL, 0);
            rig_message recv = rig_p2p(i, 0, NULL, 0);
            rig_post_send(rig, i, &send);
            rig_post_recv(rig, k, &recv);
            is_good = is_good && rig_wait(rig, i, &send, DD_OK) && rig_wait(rig, k, &recv, DD_OK);
        }
    }
    return is_good;
}

static dd_cause
loss_of(int rank, int origin)
{
    dd_cause cause = {
        .kind = DD_CAUSE_LOST, .code = DD_PEER_LOST, .origin = origin, .blamed = {.rank = rank}, .other = -1};
    strcpy(cause.text, "connection closed");
    return cause;
}

static void
post_abort(rig_group *rig, int rank, const dd_cause *cause)
{
    dd_engine_lock(rig->ranks[rank].engine);
    dd_context_post_abort_locked(rig->ranks[rank].context, DD_ANY_RANK, false, cause);
    dd_engine_unlock(rig->ranks[rank].engine);
}

/* ---- an engine that no thread drives */

typedef struct last_notice {
    rig_group *rig;
    sem_t is_posted, is_over;
} last_notice;

static void
wait_for(sem_t *semaphore)
{
    while (sem_wait(semaphore) != 0) {
    }
}

/* Rank 0 posts an abort, and does nothing else. */
static void *
post_abort_and_block(void *arg)
{
    last_notice *self = arg;
    dd_cause cause = loss_of(2, 0);
    dd_engine_lock(self->rig->ranks[0].engine);
    dd_context_post_abort_locked(self->rig->ranks[0].context, DD_ANY_RANK, false, &cause);
    (void)sem_post(&self->is_posted);
    wait_for(&self->is_over);
    dd_engine_unlock(self->rig->ranks[0].engine);
    return NULL;
}

TEST_BOTH(an_abort_is_sent_even_if_the_aborting_thread_then_blocks)
{
    rig_group rig;
    pthread_t thread;
    REQUIRE(rig_open(&rig, 3, is_shm) && connect_all(&rig));
    last_notice words = {.rig = &rig};
    REQUIRE(sem_init(&words.is_posted, 0, 0) == 0 && sem_init(&words.is_over, 0, 0) == 0);
    REQUIRE(pthread_create(&thread, NULL, post_abort_and_block, &words) == 0);
    wait_for(&words.is_posted);
    (void)rig_wait_count(&rig, 1, &rig.ranks[1].news.naborts, 1);
    CHECK_INT(rig.ranks[1].news.abort_cause.blamed.rank, 2);
    (void)sem_post(&words.is_over);
    (void)pthread_join(thread, NULL);
    (void)sem_destroy(&words.is_posted);
    (void)sem_destroy(&words.is_over);
    rig_close(&rig);
}

/* ---- ranks that exit because another rank failed */

static dd_peer *
peer_of(rig_group *rig, int rank, int other)
{
    return rig->ranks[rank].peers[other];
}

/* Cut the connection, as when a process exits. */
static void
cut(rig_group *rig, int rank, int other)
{
    dd_engine_lock(rig->ranks[rank].engine);
    CHECK(shutdown(peer_of(rig, rank, other)->lanes[0]->stream->fd, SHUT_RDWR) == 0);
    dd_engine_unlock(rig->ranks[rank].engine);
}

/* Rank 2 dies. Rank 1 notices, reports it and exits. Rank 0 sees rank 1's connection end first. */
TEST_BOTH(a_rank_that_exits_because_of_a_failure_is_not_blamed_for_it)
{
    rig_group rig;
    rig_hold busy;
    REQUIRE(rig_open(&rig, 3, is_shm) && connect_all(&rig));
    REQUIRE(rig_hold_begin(&busy, &rig, 0));
    cut(&rig, 2, 1);
    REQUIRE(rig_wait_count(&rig, 1, &rig.ranks[1].news.nlosts, 1));
    dd_cause cause = loss_of(2, 1);
    post_abort(&rig, 1, &cause);
    cut(&rig, 1, 0);
    cut(&rig, 2, 0);
    rig_hold_end(&busy);
    REQUIRE(rig_wait_count(&rig, 0, &rig.ranks[0].news.nlosts, 2));
    CHECK_INT(rig.ranks[0].news.naborts_before_loss, 1);
    CHECK_INT(rig.ranks[0].news.abort_cause.blamed.rank, 2);
    rig_close(&rig);
}

/* Store the first lost rank of a group in which no rank has sent a notice. */
static void
note_first_lost(void *ctx, int rank, const dd_error *error)
{
    atomic_int *first = ctx;
    int none = -1;
    (void)error;
    (void)atomic_compare_exchange_strong(first, &none, rank);
}

/* The same, but rank 1 has aborted another group before it could send the notice in this one. */
TEST_BOTH(a_rank_that_exits_because_of_a_failure_is_not_blamed_in_other_groups)
{
    rig_group rig;
    rig_hold busy;
    dd_context *other = NULL;
    atomic_int first = -1;
    dd_context_handler handler = {.ctx = &first, .on_lost = note_first_lost};
    REQUIRE(rig_open(&rig, 3, is_shm) && connect_all(&rig));
    REQUIRE_OK(dd_context_open(rig.ranks[0].engine, RIG_GROUP + 1, 0, 3, rig.ranks[0].peers, &handler, &other,
                               check_err()));
    REQUIRE(rig_hold_begin(&busy, &rig, 0));
    dd_cause cause = loss_of(2, 1);
    post_abort(&rig, 1, &cause);
    cut(&rig, 1, 0);
    cut(&rig, 2, 0);
    rig_hold_end(&busy);
    REQUIRE(rig_wait_count(&rig, 0, &rig.ranks[0].news.nlosts, 2));
    CHECK_INT(atomic_load(&first), 2);
    dd_wait at_once = dd_wait_after(0);
    dd_context_close(other, &at_once);
    rig_close(&rig);
}

/* ---- full connections */

enum { NSENDS = 30 };

typedef struct full_way {
    rig_message sends[NSENDS];
    rig_message recvs[NSENDS];
    uint8_t sent[32 << 10];
    uint8_t received[32 << 10];
} full_way;

/* Send more than fits to a rank that does not read. */
static void
fill(rig_group *rig, full_way *way)
{
    int small = 64 << 10;
    dd_peer *peer = peer_of(rig, 0, 1);
    dd_engine_lock(rig->ranks[0].engine);
    (void)setsockopt(peer->lanes[0]->stream->fd, SOL_SOCKET, SO_SNDBUF, &small, sizeof small);
    dd_engine_unlock(rig->ranks[0].engine);
    for (int i = 0; i < NSENDS; i++) {
        way->sends[i] = rig_p2p(1, 1, way->sent, sizeof way->sent);
        rig_post_send(rig, 0, &way->sends[i]);
    }
    dd_cause cause = loss_of(2, 0);
    post_abort(rig, 0, &cause);
    dd_engine_lock(rig->ranks[0].engine);
    CHECK(peer_has_queued(peer));
    dd_engine_unlock(rig->ranks[0].engine);
}

static void
empty(rig_group *rig, full_way *way)
{
    for (int i = 0; i < NSENDS; i++) {
        way->recvs[i] = rig_p2p(0, 1, way->received, sizeof way->received);
        rig_post_recv(rig, 1, &way->recvs[i]);
        (void)rig_wait(rig, 1, &way->recvs[i], DD_OK);
        (void)rig_wait(rig, 0, &way->sends[i], DD_OK);
    }
}

static void
small_buffers(rig_group *rig)
{
    int small = 64 << 10;
    dd_engine_lock(rig->ranks[1].engine);
    (void)setsockopt(peer_of(rig, 1, 0)->lanes[0]->stream->fd, SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
    dd_engine_unlock(rig->ranks[1].engine);
}

/* Release the rank after a while: it can receive, but starts late. */
static void *
be_released(void *arg)
{
    dd_wait wait = dd_wait_after(20 * DD_NS_PER_MS);
    (void)!dd_wait_sleep(&wait, 20 * DD_NS_PER_MS, NULL);
    rig_hold_end(arg);
    return NULL;
}

TEST_BOTH(a_wait_fails_only_after_the_failure_was_sent_to_the_other_ranks)
{
    static full_way way;
    rig_group rig;
    rig_hold busy;
    pthread_t thread;
    atomic_bool never = false;
    REQUIRE(rig_open(&rig, 3, is_shm) && connect_all(&rig));
    small_buffers(&rig);
    REQUIRE(rig_hold_begin(&busy, &rig, 1));
    fill(&rig, &way);
    REQUIRE(pthread_create(&thread, NULL, be_released, &busy) == 0);
    int64_t start_ns = dd_clock_now_ns();
    dd_wait at_once = dd_wait_after(0);
    CHECK_STATUS(dd_engine_wait(rig.ranks[0].engine, &never, &at_once, check_err()), DD_OP_TIMED_OUT);
    /* true on a slow machine */
    bool has_timed_out = dd_clock_now_ns() - start_ns > 100 * DD_NS_PER_MS;
    dd_engine_lock(rig.ranks[0].engine);
    CHECK(has_timed_out || !peer_has_queued(peer_of(&rig, 0, 1)));
    dd_engine_unlock(rig.ranks[0].engine);
    (void)pthread_join(thread, NULL);
    REQUIRE(rig_wait_count(&rig, 1, &rig.ranks[1].news.naborts, 1));
    empty(&rig, &way);
    rig_close(&rig);
}

/* The same for a thread that has not waited, and whose next call reports the group's failure. */
TEST_BOTH(a_new_call_fails_only_after_the_failure_was_sent_to_the_other_ranks)
{
    static full_way way;
    rig_group rig;
    rig_hold busy;
    pthread_t thread;
    REQUIRE(rig_open(&rig, 3, is_shm) && connect_all(&rig));
    small_buffers(&rig);
    REQUIRE(rig_hold_begin(&busy, &rig, 1));
    fill(&rig, &way);
    REQUIRE(pthread_create(&thread, NULL, be_released, &busy) == 0);
    int64_t start_ns = dd_clock_now_ns();
    dd_engine_lock(rig.ranks[0].engine);
    dd_engine_finish_notices_locked(rig.ranks[0].engine);
    bool has_timed_out = dd_clock_now_ns() - start_ns > 100 * DD_NS_PER_MS;
    CHECK(has_timed_out || !peer_has_queued(peer_of(&rig, 0, 1)));
    dd_engine_unlock(rig.ranks[0].engine);
    (void)pthread_join(thread, NULL);
    REQUIRE(rig_wait_count(&rig, 1, &rig.ranks[1].news.naborts, 1));
    empty(&rig, &way);
    rig_close(&rig);
}

/* A rank that does not read must not delay the failure for long. */
TEST_BOTH(a_rank_that_does_not_read_delays_a_failure_only_briefly)
{
    static full_way way;
    rig_group rig;
    rig_hold busy;
    atomic_bool never = false;
    REQUIRE(rig_open(&rig, 3, is_shm) && connect_all(&rig));
    small_buffers(&rig);
    REQUIRE(rig_hold_begin(&busy, &rig, 1));
    fill(&rig, &way);
    int64_t start_ns = dd_clock_now_ns();
    for (int i = 0; i < 10; i++) {
        dd_wait at_once = dd_wait_after(0);
        CHECK_STATUS(dd_engine_wait(rig.ranks[0].engine, &never, &at_once, check_err()), DD_OP_TIMED_OUT);
    }
    CHECK(dd_clock_now_ns() - start_ns < DD_NS_PER_S * check_slow());
    rig_hold_end(&busy);
    empty(&rig, &way);
    rig_close(&rig);
}

/* ---- a rank that has broken the protocol */

/* Rank 2 sends rank 0 a frame that no rank may send. */
static void
break_protocol(rig_group *rig)
{
    dd_frame frame = {.type = DD_FRAME_CTS, .id = 1000};
    dd_engine_lock(rig->ranks[2].engine);
    peer_post_frame(peer_of(rig, 2, 0), &frame, (dd_bytes){0});
    dd_engine_unlock(rig->ranks[2].engine);
    dd_engine_kick(rig->ranks[2].engine);
}

/* Otherwise rank 2 would consider the healthy rank lost, and might report that first. */
TEST_BOTH(a_rank_that_breaks_the_protocol_receives_the_reason)
{
    rig_group rig;
    REQUIRE(rig_open(&rig, 3, is_shm) && connect_all(&rig));
    break_protocol(&rig);
    REQUIRE(rig_wait_count(&rig, 0, &rig.ranks[0].news.nlosts, 1));
    CHECK_INT(rig.ranks[0].news.lost_rank, 2);
    CHECK_INT(rig.ranks[0].news.lost_error.code, DD_PROTOCOL);
    REQUIRE(rig_wait_count(&rig, 2, &rig.ranks[2].news.nlosts, 1));
    CHECK_INT(rig.ranks[2].news.naborts_before_loss, 1);
    CHECK_INT(rig.ranks[2].news.abort_cause.kind, DD_CAUSE_LOST);
    CHECK_INT(rig.ranks[2].news.abort_cause.blamed.rank, 2);
    CHECK_INT(rig.ranks[2].news.abort_cause.origin, 0);
    CHECK_CONTAINS(rig.ranks[2].news.abort_cause.text, "protocol error: CTS for unknown message: got 1000");
    rig_close(&rig);
}

/* A rank that does not read the reason is also lost. */
TEST_BOTH(a_rank_that_breaks_the_protocol_and_does_not_read_is_lost)
{
    static full_way way;
    rig_group rig;
    rig_hold busy;
    REQUIRE(rig_open(&rig, 3, is_shm) && connect_all(&rig));
    small_buffers(&rig);
    REQUIRE(rig_hold_begin(&busy, &rig, 1));
    fill(&rig, &way);
    dd_engine_lock(rig.ranks[0].engine);
    peer_protocol_error(peer_of(&rig, 0, 1), "it was a test");
    dd_engine_unlock(rig.ranks[0].engine);
    int64_t start_ns = dd_clock_now_ns();
    REQUIRE(rig_wait_count(&rig, 0, &rig.ranks[0].news.nlosts, 1));
    CHECK(dd_clock_now_ns() - start_ns < DD_NS_PER_S * check_slow());
    CHECK_INT(rig.ranks[0].news.lost_rank, 1);
    rig_hold_end(&busy);
    rig_close(&rig);
}

bool
engine_has_pending_notices(dd_engine *engine)
{
    dd_engine_lock(engine);
    bool has_more = engine->notices_until_ns != 0;
    dd_engine_unlock(engine);
    return has_more;
}
