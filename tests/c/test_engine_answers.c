/* Answers to frames that a peer cannot have received, because they have not been written yet. */
#include "check.h"
#include "test_engine_rig.h"
#include "transport/engine_internal.h"

enum { SMALL_NBYTES = 32 << 10, NSMALL = 16, LARGE_NBYTES = 128 << 10 };

/* Rank 0 has more small messages for rank 1 than the ring holds, followed by a large message. Rank
 * 1 receives none. */
typedef struct backlog {
    rig_group rig;
    rig_hold receiver;
    rig_message small[NSMALL];
    rig_message large;
    uint8_t bytes[LARGE_NBYTES];
} backlog;

static bool
open_backlog(backlog *self)
{
    rig_group *rig = &self->rig;
    if (!rig_open(rig, 2, true)) {
        return false;
    }
    rig_message hello = rig_p2p(1, 99, NULL, 0);
    rig_post_send(rig, 0, &hello);
    rig_message received = rig_p2p(0, 99, NULL, 0);
    rig_post_recv(rig, 1, &received);
    if (!rig_wait(rig, 0, &hello, DD_OK) || !rig_wait(rig, 1, &received, DD_OK) ||
        !rig_hold_begin(&self->receiver, rig, 1)) {
        return false;
    }
    for (int i = 0; i < NSMALL; i++) {
        self->small[i] = rig_p2p(1, 1, self->bytes, SMALL_NBYTES);
        rig_post_send(rig, 0, &self->small[i]);
    }
    self->large = rig_p2p(1, 2, self->bytes, LARGE_NBYTES);
    rig_post_send(rig, 0, &self->large);
    return true;
}

/* Check that no posted message waits for ever. */
static void
close_backlog(backlog *self, const char *words)
{
    CHECK(rig_wait(&self->rig, 0, &self->large, DD_PROTOCOL));
    CHECK_CONTAINS(self->large.error.message, words);
    CHECK(rig_wait(&self->rig, 0, &self->small[NSMALL - 1], DD_PROTOCOL));
    rig_hold_end(&self->receiver);
    rig_close(&self->rig);
}

static void
deliver_frame(backlog *self, void (*handler)(dd_peer *peer, const dd_frame *frame), dd_frame_type type)
{
    const dd_frame frame = {.type = (uint8_t)type, .reason = DD_REFUSED_CLOSED, .id = 1};
    dd_engine_lock(self->rig.ranks[0].engine);
    handler(self->rig.ranks[0].peers[1], &frame);
    dd_engine_unlock(self->rig.ranks[0].engine);
}

TEST(refusing_a_message_before_its_announcement_is_a_protocol_error)
{
    static backlog self;
    REQUIRE(open_backlog(&self));
    deliver_frame(&self, peer_on_refuse, DD_FRAME_REFUSE);
    close_backlog(&self, "REFUSE for unknown message: got 1, expected 1 to 0");
}

TEST(clearing_a_message_before_its_announcement_is_a_protocol_error)
{
    static backlog self;
    REQUIRE(open_backlog(&self));
    deliver_frame(&self, peer_on_cts, DD_FRAME_CTS);
    close_backlog(&self, "CTS for unknown message: got 1, expected 1 to 0");
}

/* Credit may be returned for frames in the ring or being written; this side owns the rest. */
TEST(credit_counts_as_used_only_for_frames_that_were_sent)
{
    static backlog self;
    REQUIRE(open_backlog(&self));
    dd_engine_lock(self.rig.ranks[0].engine);
    const dd_peer *peer = self.rig.ranks[0].peers[1];
    size_t used = CREDIT_NBYTES - peer->credit;
    CHECK_INT(used, NSMALL * eager_cost(SMALL_NBYTES) + eager_cost(0));
    CHECK(peer->lent > 0 && peer->lent < used);
    dd_engine_unlock(self.rig.ranks[0].engine);
    deliver_frame(&self, peer_on_cts, DD_FRAME_CTS);
    close_backlog(&self, "CTS for unknown message: got 1, expected 1 to 0");
}
