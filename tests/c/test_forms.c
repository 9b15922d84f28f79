/* Forms of collectives: checked once, and then run with any data and in any way. */
#include "check.h"
#include "clock_counter.h"
#include "group_team.h"

#include <stdio.h>

#define NCALLS 50

/* A rank with a recorder, and the form of a sum of one float. */
typedef struct member {
    team_rank *rank;
    dd_recorder *recorder;
    dd_coll_form *form;
    float value;
    dd_block block;
    dd_coll_args args;
} member;

static void
member_init(member *self, team_rank *rank)
{
    dd_recorder_group *group = NULL;
    dd_recorder_group_info info = {.name = BYTES("0"),
                                   .desc = BYTES("default_pg"),
                                   .kind = "gloo",
                                   .rank = rank->rank,
                                   .size = rank->size};
    const int64_t shape[] = {1};
    dd_record_tensor tensor = {.dtype = DD_DTYPE_FLOAT32, .ndim = 1, .shape = shape};
    dd_record_call record = {
        .name = "all_reduce", .inputs = &tensor, .outputs = &tensor, .ninputs = 1, .noutputs = 1};
    *self = (member){.rank = rank};
    REQUIRE_OK(dd_recorder_create(1000, &self->recorder, check_err()));
    REQUIRE_OK(dd_recorder_add_group(self->recorder, &info, &group, check_err()));
    dd_group_set_recorder(rank->group, group);
    dd_recorder_group_release(group);
    self->block = (dd_block){.data = &self->value, .nbytes = sizeof self->value};
    self->args = (dd_coll_args){.coll = DD_COLL_ALL_REDUCE,
                                .reduction = {.dtype = DD_DTYPE_FLOAT32, .op = DD_REDOP_SUM},
                                .inputs = &self->block,
                                .outputs = &self->block};
    REQUIRE_OK(dd_coll_form_create(rank->group, &self->args, &record, &self->form, check_err()));
}

static void
member_call(member *self)
{
    dd_call_options options = {.timeout_ns = 20 * DD_NS_PER_S, .form = self->form};
    dd_wait wait = {.deadline_ns = DD_NEVER_NS};
    CHECK_OK(dd_group_collective_and_wait(self->rank->group, &self->args, &options, &wait, check_err()));
}

static dd_work *
member_begin(member *self)
{
    dd_call_options options = {.timeout_ns = 20 * DD_NS_PER_S, .form = self->form};
    dd_work *work = NULL;
    CHECK_OK(dd_group_collective(self->rank->group, &self->args, &options, &work, check_err()));
    return work;
}

/* Call after the team and its group are closed. */
static void
check_records(member *self, int64_t ncalls)
{
    dd_recorder_status status;
    dd_recorder_group *group = dd_group_recorder_group(self->rank->group);
    dd_recorder_group_status(group, &status);
    CHECK_INT(status.called.number, ncalls);
    CHECK_INT(status.started.number, ncalls);
    CHECK_INT(status.completed.number, ncalls);
    CHECK_CONTAINS(status.completed.name, "all_reduce");
}

static void
call_in_all_ways(team_rank *rank)
{
    member *self = &((member *)rank->arg)[rank->rank];
    member_init(self, rank);
    for (int i = 0; i < NCALLS; i++) {
        self->value = (float)(i + rank->rank);
        if (i % 2 == 0) {
            member_call(self);
        } else {
            CHECK_OK(team_wait(rank->group, member_begin(self)));
        }
        CHECK(self->value == (float)(2 * i + 1));
    }
    check_records(self, NCALLS);
    dd_coll_form_destroy(self->form);
}

TEST(a_repeated_call_is_correct_both_blocking_and_asynchronous)
{
    member members[2];
    team_run(&(team_options){.size = 2}, call_in_all_ways, members);
    dd_recorder_destroy(members[0].recorder);
    dd_recorder_destroy(members[1].recorder);
}

static void
make_wrong_forms(team_rank *rank)
{
    float value = 0;
    dd_block block = {.data = &value, .nbytes = 3};
    dd_coll_form *form = NULL;
    dd_coll_args args = {.coll = DD_COLL_ALL_REDUCE,
                         .reduction = {.dtype = DD_DTYPE_FLOAT32, .op = DD_REDOP_SUM},
                         .inputs = &block,
                         .outputs = &block};
    CHECK_STATUS(dd_coll_form_create(rank->group, &args, NULL, &form, check_err()), DD_INVALID_ARGUMENT);
    CHECK_CONTAINS(check_message(), "invalid block size: got 3 bytes, expected a multiple of 4 (float32)");
    dd_coll_form_destroy(form); /* no effect */
}

TEST(a_repeated_call_with_an_invalid_block_size_is_refused)
{
    team_run(&(team_options){.size = 1}, make_wrong_forms, NULL);
}

/* ---- the clock is read only if a result needs the time */

/* The rank that calls last completes immediately. One thread makes all calls, so none waits. */
static void
count_reads(team_rank *rank)
{
    member *members = rank->arg;
    member_init(&members[rank->rank], rank);
    team_rendezvous(rank, "all are here");
    long nreads = 0;
    for (int i = 0; rank->rank == 0 && i < NCALLS; i++) {
        dd_work *other = rank->size > 1 ? member_begin(&members[1]) : NULL;
        long before = clock_counter_nreads();
        member_call(&members[0]);
        nreads += clock_counter_nreads() - before;
        if (other != NULL) {
            CHECK_OK(team_wait(members[1].rank->group, other));
        }
    }
    CHECK(nreads <= NCALLS + 2); /* the links are sometimes checked */
    team_rendezvous(rank, "all is done");
    dd_coll_form_destroy(members[rank->rank].form);
}

TEST(a_small_collective_reads_the_clock_once)
{
    if (!clock_counter_works()) {
        printf("    skipped: this build does not count\n");
        return;
    }
    for (int size = 1; size <= 2; size++) {
        member members[2];
        team_run(&(team_options){.size = size}, count_reads, members);
        for (int rank = 0; rank < size; rank++) {
            dd_recorder_destroy(members[rank].recorder);
        }
    }
}
