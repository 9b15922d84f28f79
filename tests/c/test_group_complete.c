/* Calls that are complete on a rank must succeed there, whatever it receives next. Some ranks hold
 * their engine's lock while the others finish and fail, so that they receive the failure before
 * they check the data. */
#include "check.h"
#include "group/extension.h"
#include "group_team.h"
#include "transport/engine.h"
#include "window_team.h"

#include "core/thread.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* ---- collectives */

#define NCALLS_MAX 3

typedef struct held_case {
    dd_coll coll;
    int root;
    size_t count; /* of float32 */
    int ncalls;   /* in flight at the same time */
    bool is_own;  /* the rank that holds its lock fails the group itself */
} held_case;

typedef struct float_call {
    float *data;
    dd_block block, outputs[3];
    dd_coll_args args;
} float_call;

/* Each element is rank + 1. In place, except for all_gather. */
static void
make_call(const team_rank *self, const held_case *which, float_call *call)
{
    size_t nbytes = which->count * sizeof *call->data;
    call->data = calloc(4 * which->count, sizeof *call->data);
    REQUIRE(call->data != NULL);
    call->block = (dd_block){.data = call->data, .nbytes = nbytes};
    for (int rank = 0; rank < 3; rank++) {
        bool is_apart = which->coll == DD_COLL_ALL_GATHER;
        call->outputs[rank] = (dd_block){
            .data = call->data + (is_apart ? (size_t)(rank + 1) * which->count : 0), .nbytes = nbytes};
    }
    for (size_t i = 0; i < which->count; i++) {
        call->data[i] = (float)(self->rank + 1);
    }
    call->args = (dd_coll_args){.coll = which->coll,
                                .root = which->root,
                                .reduction = {.dtype = DD_DTYPE_FLOAT32, .op = DD_REDOP_SUM},
                                .inputs = &call->block,
                                .outputs = call->outputs};
}

static void
check_result(const team_rank *self, const held_case *which, const float_call *call)
{
    size_t last = which->count - 1;
    if (which->coll == DD_COLL_ALL_REDUCE) {
        float sum = self->size == 2 ? 3 : 6;
        CHECK(call->data[0] == sum && call->data[last] == sum);
    } else if (which->coll == DD_COLL_BROADCAST) {
        CHECK(call->data[0] == (float)(which->root + 1) && call->data[last] == (float)(which->root + 1));
    } else {
        for (int rank = 0; rank < self->size; rank++) {
            const float *part = call->outputs[rank].data;
            CHECK(part[0] == (float)(rank + 1) && part[last] == (float)(rank + 1));
        }
    }
}

/* The last rank completes its calls and aborts the group. The other ranks have called, and receive
 * the abort before they check the data. */
static void
hold_and_receive_an_abort(team_rank *self)
{
    const held_case *which = self->arg;
    float_call calls[NCALLS_MAX];
    dd_work *works[NCALLS_MAX];
    CHECK(team_check_sum(self->group)); /* creates the links */
    for (int i = 0; i < which->ncalls; i++) {
        make_call(self, which, &calls[i]);
    }
    if (self->rank == self->size - 1) {
        team_rendezvous(self, "called");
        for (int i = 0; i < which->ncalls; i++) {
            CHECK_OK(team_call(self, &calls[i].args));
        }
        if (!which->is_own) {
            dd_group_abort(self->group, "that was all");
        }
        team_rendezvous(self, "over");
    } else {
        for (int i = 0; i < which->ncalls; i++) {
            REQUIRE_OK(
                dd_group_collective(self->group, &calls[i].args, &team_no_options, &works[i], check_err()));
        }
        dd_engine_lock(self->engine);
        team_rendezvous(self, "called");
        team_rendezvous(self, "over");
        if (which->is_own) {
            dd_error error;
            (void)dd_error_set(&error, DD_ABORTED, "that was all");
            dd_group_fail_locked(self->group, &error);
        } else {
            dd_engine_receive_locked(self->engine);
        }
        dd_engine_unlock(self->engine);
        for (int i = 0; i < which->ncalls; i++) {
            CHECK_OK(team_wait(self->group, works[i]));
        }
    }
    CHECK_STATUS(team_barrier(self->group), DD_ABORTED);
    CHECK_CONTAINS(check_message(), "that was all");
    for (int i = 0; i < which->ncalls; i++) {
        check_result(self, which, &calls[i]);
        free(calls[i].data);
    }
}

static void
run_held(const team_options *options, const held_case *cases, size_t ncases)
{
    for (size_t i = 0; i < ncases; i++) {
        held_case which = cases[i];
        team_run(options, hold_and_receive_an_abort, &which);
    }
}

#define NCASES(cases) (sizeof(cases) / sizeof((cases)[0]))

/* Calls of two ranks that the last rank completes without the help of the other rank, once both
 * have called: the data is in the arena or in messages. */
static const held_case of_two[] = {
    {.coll = DD_COLL_ALL_REDUCE, .count = 1, .ncalls = 1},
    {.coll = DD_COLL_ALL_GATHER, .count = 5, .ncalls = 1},
    {.coll = DD_COLL_BROADCAST, .root = 1, .count = 1, .ncalls = 1},
    {.coll = DD_COLL_BROADCAST, .root = 1, .count = 1, .ncalls = 3},
    {.coll = DD_COLL_ALL_REDUCE, .count = 1, .ncalls = 1, .is_own = true},
    {.coll = DD_COLL_BROADCAST, .root = 1, .count = 100, .ncalls = 3, .is_own = true},
};
/* The same, only through the arena: more data than is moved with the lock held. */
static const held_case large[] = {
    {.coll = DD_COLL_BROADCAST, .root = 1, .count = 25000, .ncalls = 1},
    {.coll = DD_COLL_BROADCAST, .root = 1, .count = 8000, .ncalls = 3},
    {.coll = DD_COLL_BROADCAST, .root = 1, .count = 25000, .ncalls = 1, .is_own = true},
};

TEST(an_abort_does_not_fail_a_completed_collective_in_shared_memory)
{
    team_options options = {.size = 2};
    run_held(&options, of_two, NCASES(of_two));
    run_held(&options, large, NCASES(large));
    options.size = 3;
    static const held_case of_three[] = {
        {.coll = DD_COLL_ALL_REDUCE, .count = 1, .ncalls = 1},
        {.coll = DD_COLL_BROADCAST, .root = 2, .count = 25000, .ncalls = 1},
        {.coll = DD_COLL_BROADCAST, .root = 2, .count = 1, .ncalls = 3},
    };
    run_held(&options, of_three, NCASES(of_three));
}

TEST(an_abort_does_not_fail_a_completed_collective_over_messages)
{
    team_options options = {.size = 2, .is_shm_disabled = true};
    run_held(&options, of_two, NCASES(of_two));
    options.nlanes = 3;
    run_held(&options, of_two, 1);
    team_options flat = {.size = 2, .algorithms = "flat"};
    run_held(&flat, of_two, NCASES(of_two));
}

/* Rank 2 calls a different collective, and detects the mismatch. The broadcast of rank 0 to rank 1
 * is complete. */
static void
hold_and_receive_a_mismatch(team_rank *self)
{
    float value = self->rank == 0 ? 5 : 0;
    dd_block block = {.data = &value, .nbytes = sizeof value};
    dd_coll_args args = {.coll = DD_COLL_BROADCAST,
                         .reduction = {.dtype = DD_DTYPE_FLOAT32},
                         .inputs = &block,
                         .outputs = &block};
    dd_work *work = NULL;
    CHECK(team_check_sum(self->group));
    if (self->rank == 1) {
        REQUIRE_OK(dd_group_collective(self->group, &args, &team_no_options, &work, check_err()));
        dd_engine_lock(self->engine);
        team_rendezvous(self, "called");
        team_rendezvous(self, "over");
        dd_engine_receive_locked(self->engine);
        dd_engine_unlock(self->engine);
        CHECK_OK(team_wait(self->group, work));
        CHECK(value == 5);
    } else {
        team_rendezvous(self, "called");
        if (self->rank == 0) {
            CHECK_OK(team_call(self, &args));
        } else {
            CHECK_STATUS(team_barrier(self->group), DD_MISMATCH);
        }
        team_rendezvous(self, "over");
    }
    CHECK_STATUS(team_barrier(self->group), DD_MISMATCH);
}

TEST(a_mismatch_of_other_ranks_does_not_fail_a_completed_collective)
{
    team_options options = {.size = 3};
    team_run(&options, hold_and_receive_a_mismatch, NULL);
}

/* ---- messages */

static void
make_links_to_rank_0(team_rank *self)
{
    CHECK(team_check_sum(self->group));
    for (int rank = 1; rank < 3; rank++) {
        dd_block nothing = {.data = NULL};
        if (self->rank == rank) {
            CHECK_OK(
                team_send_and_wait(self->group, nothing, 0, 1, &team_no_options, &team_no_wait, check_err()));
        } else if (self->rank == 0) {
            int source;
            CHECK_OK(team_recv_and_wait(self->group, nothing, rank, 1, &team_no_options, &source,
                                        &team_no_wait, check_err()));
        }
    }
}

/* One rank sends to rank 0, and another aborts the group. Rank 0 may read the abort first. */
static void
hold_and_receive_both(team_rank *self)
{
    int sender = *(const int *)self->arg;
    uint8_t byte = self->rank == sender ? 9 : 0;
    dd_block block = {.data = &byte, .nbytes = 1};
    dd_work *work = NULL;
    make_links_to_rank_0(self);
    if (self->rank == 0) {
        REQUIRE_OK(team_recv(self->group, block, sender, 7, &team_no_options, &work, check_err()));
        dd_engine_lock(self->engine);
    }
    team_rendezvous(self, "called");
    if (self->rank == sender) {
        CHECK_OK(team_send_and_wait(self->group, block, 0, 7, &team_no_options, &team_no_wait, check_err()));
    }
    team_rendezvous(self, "sent");
    if (self->rank == 3 - sender) {
        dd_group_abort(self->group, "that was all");
    }
    team_rendezvous(self, "over");
    if (self->rank == 0) {
        dd_engine_receive_locked(self->engine);
        dd_engine_unlock(self->engine);
        CHECK_OK(team_wait(self->group, work));
        CHECK_INT(byte, 9);
    }
    CHECK_STATUS(team_barrier(self->group), DD_ABORTED);
}

TEST(an_abort_does_not_fail_a_receive_whose_data_has_arrived)
{
    for (int sender = 1; sender < 3; sender++) {
        team_options options = {.size = 3};
        team_run_both(&options, hold_and_receive_both, &sender);
    }
}

/* One rank sends to rank 0, and another aborts the group, which cancels the sender's message. */
static void
hold_and_receive_a_cancel(team_rank *self)
{
    int sender = *(const int *)self->arg;
    size_t nbytes = 3000000;
    dd_block block = {.data = calloc(1, nbytes), .nbytes = nbytes};
    dd_work *work = NULL;
    REQUIRE(block.data != NULL);
    make_links_to_rank_0(self);
    if (self->rank == 0) {
        REQUIRE_OK(team_recv(self->group, block, sender, 7, &team_no_options, &work, check_err()));
        dd_engine_lock(self->engine);
    }
    team_rendezvous(self, "called");
    if (self->rank == sender) {
        REQUIRE_OK(team_send(self->group, block, 0, 7, &team_no_options, &work, check_err()));
    }
    team_rendezvous(self, "sent");
    if (self->rank == 3 - sender) {
        dd_group_abort(self->group, "that was all");
    } else if (self->rank == sender) {
        CHECK_STATUS(team_wait(self->group, work), DD_ABORTED);
    }
    team_rendezvous(self, "over");
    if (self->rank == 0) {
        dd_engine_receive_locked(self->engine);
        dd_engine_unlock(self->engine);
        CHECK_STATUS(team_wait(self->group, work), DD_ABORTED);
        CHECK_CONTAINS(check_message(), "that was all");
    }
    free(block.data);
}

TEST(a_receive_whose_sender_was_aborted_reports_the_reason_of_the_abort)
{
    for (int sender = 1; sender < 3; sender++) {
        team_options options = {.size = 3};
        team_run_both(&options, hold_and_receive_a_cancel, &sender);
    }
}

/* ---- windows */

typedef struct signal_wait {
    test_window *test;
    atomic_bool has_begun;
} signal_wait;

static void *
wait_for_signal(void *arg)
{
    signal_wait *own = arg;
    atomic_store(&own->has_begun, true);
    CHECK_OK(window_take(own->test, 1, 1));
    return NULL;
}

/* Rank 1 puts, with a signal, and aborts the group. Rank 0 waits for the signal, and receives
 * everything in one step. */
static void
hold_and_receive_a_signal(team_rank *self)
{
    test_window test;
    REQUIRE(window_open(self, 64, false, &test));
    if (self->rank == 1) {
        uint8_t bytes[16];
        window_fill(bytes, 3, sizeof bytes);
        team_rendezvous(self, "waits");
        CHECK_OK(window_put(&test, bytes, sizeof bytes, (dd_window_target){.rank = 0}, 1));
        dd_group_abort(self->group, "that was all");
        team_rendezvous(self, "over");
    } else {
        struct timespec moment = {.tv_nsec = 20000000};
        signal_wait wait = {.test = &test};
        pthread_t thread;
        REQUIRE_OK(dd_thread_start(&thread, "waits", wait_for_signal, &wait, check_err()));
        while (!atomic_load(&wait.has_begun)) {
            nanosleep(&moment, NULL);
        }
        nanosleep(&moment, NULL); /* lets the wait start; else the call may be too late */
        dd_engine_lock(self->engine);
        team_rendezvous(self, "waits");
        team_rendezvous(self, "over");
        dd_engine_receive_locked(self->engine);
        dd_engine_unlock(self->engine);
        pthread_join(thread, NULL);
        window_check_filled(test.data, 3, 16);
    }
    CHECK_STATUS(team_barrier(self->group), DD_ABORTED);
    window_drop(&test);
}

TEST(an_abort_does_not_fail_a_wait_whose_signal_has_arrived)
{
    team_options options = {.size = 2};
    team_run_both(&options, hold_and_receive_a_signal, NULL);
}
