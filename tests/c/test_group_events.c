/* The events that a rank receives when another rank has detected a failure. */
#include "check.h"
#include "group/internal.h"
#include "group_team.h"
#include "transport/engine_internal.h"

#include <semaphore.h>
#include <string.h>
#include <unistd.h>

/* ---- ranks that disagree */

static void
exchange_byte(team_rank *self, int from, int to)
{
    uint8_t byte = 0;
    dd_block block = {.data = &byte, .nbytes = 1};
    dd_work *work = NULL;
    if (self->rank == from) {
        REQUIRE_OK(team_send(self->group, block, to, 1, &team_no_options, &work, check_err()));
    } else if (self->rank == to) {
        REQUIRE_OK(team_recv(self->group, block, from, 1, &team_no_options, &work, check_err()));
    }
    if (work != NULL) {
        CHECK_OK(team_wait(self->group, work));
    }
}

/* The odd rank calls last and detects the mismatch, because the other ranks' data has arrived. The
 * other ranks are notified. */
static void
receive_mismatch(team_rank *self)
{
    int odd = *(int *)self->arg;
    dd_coll_args args = {.coll = DD_COLL_BARRIER};
    dd_work *work = NULL;
    for (int rank = 0; rank < self->size; rank++) {
        if (rank != odd) {
            exchange_byte(self, rank, (rank + 1) % self->size); /* links all ranks */
        }
    }
    if (self->rank != odd) {
        REQUIRE_OK(dd_group_collective(self->group, &args, &team_no_options, &work, check_err()));
    }
    for (int rank = 0; rank < self->size; rank++) {
        if (rank != odd) {
            exchange_byte(self, rank, odd); /* after the barrier's data */
        }
    }
    team_rendezvous(self, "called");
    float x = 0;
    dd_block block = {.data = &x, .nbytes = sizeof x};
    if (self->rank != odd) {
        CHECK_STATUS(team_wait(self->group, work), DD_MISMATCH);
    } else {
        args.coll = DD_COLL_ALL_REDUCE;
        args.reduction = (dd_reduction){.dtype = DD_DTYPE_FLOAT32, .op = DD_REDOP_SUM};
        args.inputs = args.outputs = &block;
        CHECK_STATUS(team_call(self, &args), DD_MISMATCH);
    }
    CHECK_CONTAINS(check_message(), "called barrier");
    CHECK_CONTAINS(check_message(), "called all_reduce(float32, 1 elements, SUM)");
    dd_error error;
    CHECK_STATUS(dd_group_check(self->group, &error), DD_MISMATCH);
    if (self->rank != odd) {
        CHECK_INT(error.blamed.rank, odd);
    } else {
        CHECK(error.blamed.rank != odd && error.blamed.rank >= 0);
    }
    CHECK_INT(error.blamed.pid, getpid());
}

TEST(after_a_mismatch_each_rank_blames_a_rank_with_a_different_call)
{
    for (int size = 2; size <= 4; size++) {
        for (int odd = 0; odd < size; odd++) {
            team_options options = {.size = size};
            team_run_both(&options, receive_mismatch, &odd);
        }
    }
}

/* ---- ranks that time out */

/* Rank 0 times out waiting for rank 1, which waits for rank 0. All ranks receive the name of the
 * rank that timed out. */
static void
be_late_in_recv(team_rank *self)
{
    uint8_t byte;
    dd_block block = {.data = &byte, .nbytes = 1};
    dd_coll_args args = {.coll = DD_COLL_BARRIER};
    dd_call_options shortly = {.timeout_ns = 60 * DD_NS_PER_MS};
    dd_work *recv = NULL;
    dd_work *barrier = NULL;
    int source = self->rank == 1 ? 0 : 1;
    REQUIRE_OK(team_recv(self->group, block, source, 7, &team_no_options, &recv, check_err()));
    if (self->rank == 2) {
        REQUIRE_OK(dd_group_collective(self->group, &args, &team_no_options, &barrier, check_err()));
    }
    team_rendezvous(self, "begin");
    if (self->rank == 0) {
        REQUIRE_OK(dd_group_collective(self->group, &args, &shortly, &barrier, check_err()));
        CHECK_STATUS(team_wait(self->group, barrier), DD_OP_TIMED_OUT);
        CHECK_CONTAINS(check_message(), "barrier #1 on group \"team\" (rank 0 of 3): timed out after ");
        CHECK_CONTAINS(check_message(), "; rank 1 has not arrived; 1 (");
    } else if (self->rank == 2) {
        CHECK_STATUS(team_wait(self->group, barrier), DD_OP_TIMED_OUT);
        CHECK_CONTAINS(check_message(), "(rank 2 of 3): barrier #1 of rank 0 (");
        CHECK_CONTAINS(check_message(), "; rank 1 has not arrived; 1 (");
    }
    CHECK_STATUS(team_wait(self->group, recv), DD_OP_TIMED_OUT);
    CHECK_CONTAINS(check_message(), "recv on group \"team\" (rank ");
    CHECK_CONTAINS(check_message(), "): barrier #1 of rank 0 (");
    CHECK_CONTAINS(check_message(), ") timed out after ");
    if (self->rank == 1) {
        CHECK_CONTAINS(check_message(),
                       " s waiting for this rank, which had called no collective yet and had a "
                       "recv from rank 0 (tag 7) under way");
        CHECK_LACKS(check_message(), "has not arrived");
    }
    CHECK_STATUS(team_barrier(self->group), DD_OP_TIMED_OUT);
    CHECK_CONTAINS(check_message(), "the group has failed before: barrier #1 of rank 0 (");
}

TEST(all_ranks_report_which_call_of_which_rank_timed_out)
{
    team_options options = {.size = 3};
    team_run_both(&options, be_late_in_recv, NULL);
}

/* ---- a rank that is stopped */

enum { STOPPED = 2, BROADCAST_NBYTES = 1 << 20 };

typedef struct stopped_rank {
    sem_t is_stopped;
    sem_t is_over;
} stopped_rank;

static void
wait_for(sem_t *semaphore)
{
    while (sem_wait(semaphore) != 0) {
    }
}

/* The rank's thread holds its engine's lock, so that the rank does nothing. */
static void
be_stopped(team_rank *self, stopped_rank *shared)
{
    dd_engine_lock(self->engine);
    for (int i = 0; i < self->size - 1; i++) {
        (void)sem_post(&shared->is_stopped);
    }
    wait_for(&shared->is_over);
    dd_engine_unlock(self->engine);
}

static void
check_names_stopped(const team_rank *self)
{
    dd_error error;
    CHECK_STATUS(dd_group_check(self->group, &error), DD_OP_TIMED_OUT);
    CHECK_INT(error.blamed.rank, STOPPED);
    CHECK_CONTAINS(error.message, "ranks 1, 2 have not arrived");
    CHECK_CONTAINS(error.message, "does not answer");
}

/* Rank 1 waits in its broadcast for the stopped rank, and rank 0 for both in the next barrier. */
static void
wait_for_stopped(team_rank *self)
{
    static uint8_t data[3][BROADCAST_NBYTES];
    stopped_rank *shared = self->arg;
    dd_block block = {.data = data[self->rank], .nbytes = BROADCAST_NBYTES};
    dd_coll_args broadcast = {.coll = DD_COLL_BROADCAST, .root = 1, .inputs = &block, .outputs = &block};
    dd_coll_args barrier = {.coll = DD_COLL_BARRIER};
    dd_call_options shortly = {.timeout_ns = 60 * DD_NS_PER_MS};
    dd_work *work = NULL;
    CHECK_OK(team_barrier(self->group));
    team_rendezvous(self, "linked");
    if (self->rank == STOPPED) {
        be_stopped(self, shared);
        CHECK_STATUS(team_barrier(self->group), DD_OP_TIMED_OUT);
        CHECK_CONTAINS(check_message(), " waiting for this rank, which ");
        return;
    }
    wait_for(&shared->is_stopped);
    REQUIRE_OK(dd_group_collective(self->group, &broadcast, &team_no_options, &work, check_err()));
    if (self->rank != broadcast.root) {
        CHECK_OK(team_wait(self->group, work));
        REQUIRE_OK(dd_group_collective(self->group, &barrier, self->rank == 0 ? &shortly : &team_no_options,
                                       &work, check_err()));
    }
    CHECK_STATUS(team_wait(self->group, work), DD_OP_TIMED_OUT);
    check_names_stopped(self);
    if (self->rank == 0) {
        (void)sem_post(&shared->is_over);
    }
}

static void
run_with_stopped(const team_options *options, void (*body)(team_rank *self))
{
    stopped_rank shared;
    REQUIRE(sem_init(&shared.is_stopped, 0, 0) == 0 && sem_init(&shared.is_over, 0, 0) == 0);
    team_run(options, body, &shared);
    (void)sem_destroy(&shared.is_stopped);
    (void)sem_destroy(&shared.is_over);
}

TEST(a_stopped_rank_is_blamed_and_not_the_root_that_waits_for_it)
{
    team_options options = {.size = 3, .is_shm_disabled = true, .algorithms = "flat,broadcast=binomial"};
    run_with_stopped(&options, wait_for_stopped);
}

/* ---- bytes that the network loses */

static dd_link_ops lossy_ops;

static size_t
count_lost(dd_link *link, unsigned *nresends)
{
    (void)link;
    *nresends = 4;
    return 5000;
}

/* Make this rank's link to the other rank report lost bytes. */
static void
begin_to_lose(team_rank *self, int other)
{
    dd_engine_lock(self->engine);
    dd_link *link = self->group->peers[other]->lanes[0]->stream;
    lossy_ops = *link->ops;
    lossy_ops.count_lost = count_lost;
    link->ops = &lossy_ops;
    dd_engine_unlock(self->engine);
}

/* Rank 0 times out first. Rank 1, on the same host, loses bytes to the rank that does not
 * answer. */
static void
lose_bytes_beside_the_first(team_rank *self)
{
    stopped_rank *shared = self->arg;
    dd_call_options shortly = {.timeout_ns = 60 * DD_NS_PER_MS};
    dd_coll_args barrier = {.coll = DD_COLL_BARRIER};
    dd_work *work = NULL;
    exchange_byte(self, 1, STOPPED);
    CHECK_OK(team_barrier(self->group));
    if (self->rank == 1) {
        begin_to_lose(self, STOPPED);
    }
    team_rendezvous(self, "linked");
    if (self->rank == STOPPED) {
        be_stopped(self, shared);
        return;
    }
    wait_for(&shared->is_stopped);
    REQUIRE_OK(dd_group_collective(self->group, &barrier, self->rank == 0 ? &shortly : &team_no_options,
                                   &work, check_err()));
    CHECK_STATUS(team_wait(self->group, work), DD_OP_TIMED_OUT);
    CHECK_CONTAINS(check_message(), "rank 1 (");
    CHECK_CONTAINS(check_message(), "has sent 5000 bytes to rank 2 (");
    CHECK_CONTAINS(check_message(), "the network between them loses packets");
    dd_error error;
    CHECK_STATUS(dd_group_check(self->group, &error), DD_OP_TIMED_OUT);
    CHECK_INT(error.blamed.rank, STOPPED);
    if (self->rank == 0) {
        (void)sem_post(&shared->is_over);
    }
}

TEST(a_lossy_network_path_is_blamed_even_if_another_rank_times_out_first)
{
    team_options options = {.size = 3, .single_ranks = 1u << STOPPED};
    run_with_stopped(&options, lose_bytes_beside_the_first);
}

/* ---- a rank that breaks the protocol */

static void
break_protocol(team_rank *self)
{
    uint8_t byte = 0;
    dd_block block = {.data = &byte, .nbytes = 1};
    dd_work *recv = NULL;
    CHECK_OK(team_barrier(self->group));
    exchange_byte(self, 2, 0);
    team_rendezvous(self, "linked");
    if (self->rank == 2) {
        REQUIRE_OK(team_recv(self->group, block, 1, 7, &team_no_options, &recv, check_err()));
        dd_frame frame = {.type = DD_FRAME_CTS, .id = 1000};
        dd_engine_lock(self->engine);
        peer_post_frame(self->group->peers[0], &frame, (dd_bytes){0});
        dd_engine_unlock(self->engine);
        CHECK_STATUS(team_wait(self->group, recv), DD_PEER_LOST);
        CHECK_CONTAINS(check_message(), "rank 0 (");
        CHECK_CONTAINS(check_message(), ") has lost the connection to this rank: protocol error: CTS");
        return;
    }
    CHECK_STATUS(team_barrier(self->group), DD_PEER_LOST);
    CHECK_CONTAINS(check_message(), "lost rank 2 (");
    CHECK_CONTAINS(check_message(), "protocol error: CTS for unknown message: got 1000");
    dd_error error;
    CHECK_STATUS(dd_group_check(self->group, &error), DD_PEER_LOST);
    CHECK_INT(error.blamed.rank, 2);
}

TEST(a_rank_that_breaks_the_protocol_is_named_on_all_ranks)
{
    for (int i = 0; i < 10; i++) {
        team_options options = {.size = 3};
        team_run_both(&options, break_protocol, NULL);
    }
}

/* ---- closing */

/* dd_group_close has taken the context, and the bell rings before the context is closed. */
static void
ring_while_closing(team_rank *self)
{
    dd_group *group = self->group;
    CHECK_OK(team_barrier(group));
    if (self->rank == 0) {
        dd_engine_lock(self->engine); /* else the background thread may handle the bell */
    }
    team_rendezvous(self, "locked");
    if (self->rank == 1) {
        (void)dd_arena_is_bell_due(group->arena, 0);
    }
    team_rendezvous(self, "rung");
    if (self->rank == 0) {
        dd_context *context = group->context;
        group->context = NULL;
        CHECK(dd_arena_is_rung(group->arena));
        group_context_handler.on_bell(group);
        group->context = context;
        dd_engine_unlock(self->engine);
    }
    team_rendezvous(self, "notified");
}

TEST(a_wakeup_may_arrive_while_the_group_is_being_closed)
{
    team_options options = {.size = 2};
    team_run(&options, ring_while_closing, NULL);
}
