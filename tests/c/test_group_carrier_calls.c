/* Groups of threads with a carrier whose library is the test's own: the calls that it receives, and
 * the results. */
#include "carry_team.h"
#include "check.h"
#include "group_case.h"

/* ---- calls to the library, and their results */

#define CASES_OF_EACH 12

static coll_case
sample(uint64_t number, dd_coll coll, int nranks)
{
    static const size_t sizes[] = {0, 8, 100, 4096, 70001};
    coll_case test = case_sample(number, coll, sizes[number % 5], nranks);
    test.has_small_values = true; /* no NaN: the library need not choose a particular one */
    test.prepared_ranks = number % 3 == 0 ? (unsigned)number : 0;
    return test;
}

/* No library computes the mean of integers in wider ones, as dldist does. */
static bool
is_exact_mean(const coll_case *test)
{
    return dd_coll_is_folding(test->coll) && dd_reduce_is_exact_mean(test->dtype, test->op);
}

/* With an argument, ranks compare each call by a call of the library. */
static void
run_cases(team_rank *self)
{
    uint64_t ncompared = 0;
    REQUIRE(carry_team_begin(self));
    CHECK(dd_group_carrier(self->group) == &carry_library.base);
    CHECK_INT(dd_group_count_carried(self->group), 0);
    uint64_t ncarried = 0;
    unsigned refused = atomic_load(&carry_library.script.refused);
    for (int coll = 0; coll < DD_COLL_COUNT; coll++) {
        for (uint64_t number = 0; number < CASES_OF_EACH && check_failures() == 0; number++) {
            coll_case test = sample(number, (dd_coll)coll, self->size);
            uint64_t hash;
            case_run(self, &test, true, &hash);
            ncarried +=
                dd_coll_traits_of[coll].is_common && (refused >> coll & 1) == 0 && !is_exact_mean(&test);
            ncompared += self->arg != NULL;
        }
    }
    CHECK_INT(dd_group_count_carried(self->group), ncarried);
    CHECK_INT(carry_library.counts[self->rank].nstarts, ncarried + ncompared);
    CHECK_INT(carry_library.counts[self->rank].nends, ncarried + ncompared);
}

TEST(every_collective_is_passed_to_the_library_once)
{
    for (int size = 2; size <= 3; size++) {
        fake_library_init(&carry_library);
        carry_team_run(size, run_cases, NULL);
        CHECK_INT(CARRY_TOTAL(nclosed_cleanly), size);
        CHECK_INT(CARRY_TOTAL(nclosed_after_failure) + CARRY_TOTAL(nleaves), 0);
    }
}

TEST(collectives_that_the_library_lacks_use_messages)
{
    static const unsigned refused[] = {0x1ff, 1u << DD_COLL_ALL_REDUCE | 1u << DD_COLL_ALL_GATHER, 0x155};
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        fake_library_init(&carry_library);
        atomic_store(&carry_library.script.refused, refused[i]);
        carry_team_run(2 + (int)i % 2, run_cases, NULL);
    }
}

/* Ranks on separate hosts cannot synchronise first: the library's own calls wait for each other. */
TEST(ranks_that_share_no_memory_use_the_library)
{
    fake_library_init(&carry_library);
    team_options options = {.size = 3, .single_ranks = 4};
    bool is_apart = true;
    team_run(&options, run_cases, &is_apart);
    fake_library_fini(&carry_library);
    fake_library_init(&carry_library);
    options = (team_options){.size = 2, .is_shm_disabled = true};
    team_run(&options, run_cases, &is_apart);
    fake_library_fini(&carry_library);
}

static void
use_one_rank(team_rank *self)
{
    REQUIRE(carry_team_begin(self));
    CHECK(team_check_sum(self->group));
    CHECK_INT(dd_group_count_carried(self->group), 0);
}

TEST(a_group_of_one_rank_does_not_call_the_library)
{
    fake_library_init(&carry_library);
    carry_team_run(1, use_one_rank, NULL);
    CHECK_INT(CARRY_TOTAL(nclosed_cleanly), 1);
}

/* ---- many collectives in flight */

#define NFLIGHTS 100

static void
fly_many(team_rank *self)
{
    dd_work *works[NFLIGHTS] = {NULL};
    carry_sum sums[NFLIGHTS];
    REQUIRE(carry_team_begin(self));
    for (int i = 0; i < NFLIGHTS; i++) {
        carry_sum_init(&sums[i], i + self->rank);
        if (i % 5 == 4) {
            sums[i].args.coll = DD_COLL_BROADCAST; /* the library does not offer it, see below */
        }
        REQUIRE_OK(dd_group_collective(self->group, &sums[i].args, &team_no_options, &works[i], check_err()));
    }
    dd_engine_kick(dd_group_engine(self->group));
    for (int i = 0; i < NFLIGHTS; i++) {
        int which = i % 2 == 0 ? i : NFLIGHTS - i;
        CHECK_OK(team_wait(self->group, works[which]));
    }
    for (int i = 0; i < NFLIGHTS; i++) {
        CHECK_INT(sums[i].value, i % 5 == 4 ? i : self->size * i + self->size * (self->size - 1) / 2);
    }
    CHECK_INT(dd_group_count_carried(self->group), NFLIGHTS / 5 * 4);
}

TEST(many_library_calls_in_flight_complete)
{
    for (int size = 2; size <= 3; size++) {
        fake_library_init(&carry_library);
        atomic_store(&carry_library.script.refused, 1u << DD_COLL_BROADCAST);
        carry_team_run(size, fly_many, NULL);
    }
}

static void
fly_unattended(team_rank *self)
{
    dd_work *work = NULL;
    carry_sum sum;
    carry_sum_init(&sum, 1);
    REQUIRE(carry_team_begin(self));
    atomic_store(&carry_library.script.is_stuck, true);
    team_rendezvous(self, "stuck");
    REQUIRE_OK(dd_group_collective(self->group, &sum.args, &team_no_options, &work, check_err()));
    dd_engine_kick(dd_group_engine(self->group));
    carry_sleep(20 * DD_NS_PER_MS);
    CHECK(!dd_work_is_done(work));
    team_rendezvous(self, "no rank is done");
    atomic_store(&carry_library.script.is_stuck, false);
    dd_wait wait = dd_wait_after(5 * DD_NS_PER_S * check_slow());
    while (!dd_work_is_done(work) && !dd_wait_has_expired(&wait)) {
        carry_sleep(DD_NS_PER_MS);
    }
    CHECK(dd_work_is_done(work));
    CHECK_INT(sum.value, self->size);
    CHECK_OK(team_wait(self->group, work));
}

TEST(library_calls_progress_while_no_thread_waits)
{
    fake_library_init(&carry_library);
    carry_team_run(2, fly_unattended, NULL);
}

#define NSTARTS 20

static void
start_again_and_again(team_rank *self)
{
    carry_sum sums[3];
    dd_prepared_call *calls[3] = {NULL};
    REQUIRE(carry_team_begin(self));
    for (int i = 0; i < 3; i++) {
        carry_sum_init(&sums[i], 0);
        REQUIRE_OK(
            dd_group_prepare_call(self->group, &sums[i].args, &team_no_options, &calls[i], check_err()));
    }
    for (int turn = 0; turn < NSTARTS; turn++) {
        dd_wait wait = dd_wait_after(20 * DD_NS_PER_S * check_slow());
        for (int i = 0; i < 3; i++) {
            sums[i].value = turn + i;
        }
        CHECK_OK(dd_prepared_start(calls, 3, false, &wait, check_err()));
        for (int i = 2; i >= 0; i--) {
            CHECK_OK(dd_prepared_wait(calls[i], &wait, check_err()));
            CHECK_INT(sums[i].value, self->size * (turn + i));
        }
    }
    CHECK_INT(dd_group_count_carried(self->group), 3 * NSTARTS);
    for (int i = 0; i < 3; i++) {
        CHECK(!dd_prepared_destroy(calls[i], NULL, NULL));
    }
}

TEST(prepared_calls_use_the_library_at_every_start)
{
    for (int size = 2; size <= 3; size++) {
        fake_library_init(&carry_library);
        carry_team_run(size, start_again_and_again, NULL);
    }
}

/* ---- several groups */

static void
use_several(team_rank *self)
{
    static const int ranks[2][2] = {{0, 1}, {2, 0}};
    dd_group *groups[2] = {NULL};
    dd_wait wait = dd_wait_after(20 * DD_NS_PER_S * check_slow());
    REQUIRE(carry_team_begin(self));
    for (int i = 0; i < 2; i++) {
        dd_group_options options = team_group_options(i == 0 ? "one" : "two");
        if (self->rank == ranks[i][0] || self->rank == ranks[i][1]) {
            REQUIRE_OK(dd_group_split(self->group, ranks[i], 2, 0, &options, &groups[i], &wait, check_err()));
            CHECK(dd_group_carrier(groups[i]) == NULL);
            CHECK(team_check_sum(groups[i]));
            CHECK_OK(carry_group(groups[i], check_err()));
            CHECK(dd_group_carrier(groups[i]) == &carry_library.base);
        }
    }
    for (int turn = 0; turn < 10; turn++) {
        for (int i = 0; i < 2; i++) {
            CHECK(groups[i] == NULL || team_check_sum(groups[i]));
        }
        CHECK(team_check_sum(self->group));
    }
    CHECK_INT(dd_group_count_carried(self->group), 10);
    for (int i = 0; i < 2; i++) {
        CHECK(groups[i] == NULL || CHECK_INT(dd_group_count_carried(groups[i]), 10));
        CHECK(groups[i] == NULL || CHECK_OK(dd_group_close(groups[i], &wait, check_err())));
        dd_group_release(groups[i]);
    }
}

TEST(several_groups_use_the_library_at_the_same_time)
{
    fake_library_init(&carry_library);
    carry_team_run(3, use_several, NULL);
    CHECK_INT(CARRY_TOTAL(nclosed_cleanly), 3 + 2 + 2);
    CHECK_INT(CARRY_TOTAL(nclosed_after_failure), 0);
}

/* ---- other operations of a group */

static void
suspend_and_resume(team_rank *self)
{
    dd_wait wait = dd_wait_after(20 * DD_NS_PER_S * check_slow());
    REQUIRE(carry_team_begin(self));
    for (int turn = 0; turn < 3; turn++) {
        CHECK(team_check_sum(self->group));
        CHECK_OK(dd_group_suspend(self->group, &wait, check_err()));
        CHECK_STATUS(carry_sum_call(self, check_err()), DD_INVALID_ARGUMENT);
        CHECK_OK(dd_group_resume(self->group, check_err()));
        CHECK_OK(dd_group_monitored_barrier(self->group, 10 * DD_NS_PER_S * check_slow(), true, &wait,
                                            check_err()));
    }
    /* the messages of a monitored barrier are the group's own */
    CHECK_INT(carry_library.counts[self->rank].nmessages, 0);
}

TEST(suspension_and_monitored_barriers_work_with_a_library)
{
    fake_library_init(&carry_library);
    carry_team_run(3, suspend_and_resume, NULL);
    CHECK_INT(CARRY_TOTAL(nclosed_cleanly), 3);
}

/* ---- creation */

static void
fail_to_carry(team_rank *self)
{
    int failing = *(int *)self->arg;
    dd_status status = carry_group(self->group, check_err());
    if (self->rank == failing) {
        CHECK_INT(status, DD_BACKEND);
        CHECK_CONTAINS(check_message(), "cannot use fake");
        CHECK_CONTAINS(check_message(), "the library cannot be started");
    } else if (status != DD_OK) { /* else the rank was done before it received the failure */
        CHECK_INT(status, DD_BACKEND);
    }
    dd_status later = status;
    for (int i = 0; i < 100 && later == DD_OK; i++) {
        later = team_barrier(self->group);
    }
    CHECK_STATUS(team_barrier(self->group), DD_BACKEND);
    CHECK_CONTAINS(check_message(), "the library cannot be started");
    CHECK(carry_library.counts[self->rank].nmakes == 1 || self->rank != failing);
    team_rendezvous(self, "failed");
}

TEST(a_library_that_cannot_start_on_one_rank_fails_the_group)
{
    for (int size = 2; size <= 3; size++) {
        for (int failing = 0; failing < size; failing++) {
            fake_library_init(&carry_library);
            carry_library.script.failing_makes = 1u << failing;
            carry_team_run(size, fail_to_carry, &failing);
            CHECK_INT(CARRY_TOTAL(nclosed_cleanly), 0);
        }
    }
}

static void
attach_twice(team_rank *self)
{
    REQUIRE(carry_team_begin(self));
    CHECK_STATUS(carry_group(self->group, check_err()), DD_INVALID_ARGUMENT);
    CHECK_CONTAINS(check_message(), "already uses a library");
    CHECK_INT(carry_library.counts[self->rank].nmakes, 1);
    CHECK(team_check_sum(self->group));
    CHECK_INT(dd_group_count_carried(self->group), 1);
    dd_wait wait = dd_wait_after(20 * DD_NS_PER_S * check_slow());
    CHECK_OK(dd_group_close(self->group, &wait, check_err()));
    CHECK_STATUS(carry_group(self->group, check_err()), DD_CLOSED);
}

TEST(a_second_library_for_a_group_is_refused)
{
    fake_library_init(&carry_library);
    carry_team_run(2, attach_twice, NULL);
    CHECK_INT(CARRY_TOTAL(nclosed_cleanly), 2);
}
