/* Groups of threads that UCC carries: its functions are the test's own (plain_ucc.h). */
#include "carry_team.h"
#include "check.h"
#include "core/mem.h"
#include "faults/faults.h"
#include "plain_ucc.h"
#include "ucc/ucc.h"
#include "ucc/ucc_internal.h"

#include <stdio.h>
#include <string.h>

static dd_carrier_library *library;

static dd_status
conversion(team_rank *self, const dd_wait *wait)
{
    return dd_group_set_carrier(self->group, library, wait, check_err());
}

static bool
carry_well(team_rank *self)
{
    dd_wait wait = dd_wait_after(20 * DD_NS_PER_S * check_slow());
    bool is_good = CHECK_OK(conversion(self, &wait));
    team_rendezvous(self, "all are carried");
    return is_good;
}

static void
run(int size, void (*body)(team_rank *self), void *arg)
{
    team_options options = {.size = size};
    if (library == NULL) {
        REQUIRE_OK(plain_ucc_open(&library, check_err()));
    }
    team_run(&options, body, arg);
}

/* ---- success */

static void
call_some(team_rank *self)
{
    REQUIRE(carry_well(self));
    for (int i = 0; i < 20; i++) {
        CHECK_OK(carry_sum_call(self, check_err()));
        CHECK_OK(team_barrier(self->group));
    }
    CHECK_INT(dd_group_count_carried(self->group), 40);
    CHECK(team_check_sum(self->group)); /* the sum of FLOAT32 also uses the library */
}

TEST(a_group_that_is_closed_releases_all_its_ucc_objects)
{
    plain_ucc_reset();
    plain_ucc.nlooks_at_end = 3;
    run(3, call_some, NULL);
    CHECK_INT(plain_ucc_live.nconfigs, 0);
    CHECK_INT(plain_ucc_live.ncontexts, 0);
    CHECK_INT(plain_ucc_live.nteams, 0);
    CHECK_INT(plain_ucc_live.nrequests, 0);
    CHECK_INT(plain_ucc_live.nlibs, 1); /* kept until the process exits */
}

/* ---- failures to open the library */

static void
check_unopened(const char *words)
{
    long before = dd_mem_count_blocks();
    CHECK_STATUS(plain_ucc_open(&library, check_err()), DD_NOT_SUPPORTED);
    CHECK_CONTAINS(check_message(), words);
    CHECK_INT(plain_ucc_live.nlibs, 0);
    CHECK_INT(plain_ucc_live.nconfigs, 0);
    CHECK_INT(dd_mem_count_blocks(), before);
}

TEST(libraries_that_are_not_ucc_or_too_old_are_refused)
{
    dd_dylib_search offset = {.explicit_path = DD_STUBS_DIR "/libcuda.so.1"};
    CHECK_STATUS(dd_ucc_open(&offset, &library, check_err()), DD_NOT_SUPPORTED);
    CHECK_CONTAINS(check_message(), "libcuda.so.1 is too old: it lacks ucc_get_version");
    plain_ucc_reset();
    plain_ucc.minor = 1;
    check_unopened("libcarriers.so: got UCC 1.1.7, expected 1.2 or a newer 1.x");
    plain_ucc_reset();
    plain_ucc.thread_mode = (dd_ucc_thread_mode)0;
    check_unopened("UCC 1.4.7 (");
    check_unopened("was built without support for several threads: got thread mode 0, expected 2");
}

TEST(a_ucc_library_that_cannot_be_initialised_is_refused)
{
    static const char *const functions[] = {"ucc_lib_config_read", "ucc_init_version", "ucc_lib_get_attr"};
    static const char *const names[] = {"ucc_lib_config_read", "ucc_init", "ucc_lib_get_attr"};
    for (size_t i = 0; i < 3; i++) {
        char words[80];
        plain_ucc_reset();
        plain_ucc.failing = functions[i];
        plain_ucc.failure = DD_UCC_ERR_NOT_SUPPORTED;
        snprintf(words, sizeof words, "%s: it does not go (-1), reported by UCC 1.4.7 (", names[i]);
        check_unopened(words);
    }
}

TEST(opening_ucc_leaks_nothing_when_allocations_fail)
{
    dd_status status = DD_OUT_OF_MEMORY;
    long count = 0;
    plain_ucc_reset();
    for (; status == DD_OUT_OF_MEMORY && count < 100; count++) {
        long before = dd_mem_count_blocks();
        dd_mem_fail_after(count);
        status = plain_ucc_open(&library, check_err());
        dd_mem_fail_after(-1);
        CHECK(status == DD_OK || dd_mem_count_blocks() == before);
    }
    CHECK_OK(status);
    CHECK(count > 2);
}

/* ---- failed creation of a team */

static void
fail_to_be_carried(team_rank *self)
{
    char words[128];
    dd_wait wait = dd_wait_after(20 * DD_NS_PER_S * check_slow());
    CHECK_STATUS(conversion(self, &wait), DD_BACKEND);
    snprintf(words, sizeof words, "%s of rank ", (const char *)self->arg);
    CHECK_CONTAINS(check_message(), words);
    CHECK_CONTAINS(check_message(), "of 2: no memory (-4), reported by UCC 1.4.7 (");
    CHECK(dd_group_carrier(self->group) == NULL);
    team_rendezvous(self, "failed");
}

TEST(every_failed_step_of_creating_a_ucc_team_is_reported)
{
    static const char *const functions[] = {"ucc_context_config_read", "ucc_context_config_modify",
                                            "ucc_context_create", "ucc_team_create_post",
                                            "ucc_team_create_test"};
    for (size_t i = 0; i < sizeof functions / sizeof functions[0]; i++) {
        plain_ucc_reset();
        plain_ucc.failing = functions[i];
        plain_ucc.failure = DD_UCC_ERR_NO_MEMORY;
        run(2, fail_to_be_carried, (void *)(uintptr_t)functions[i]);
        CHECK_INT(plain_ucc_live.nconfigs, 0);
        plain_ucc_end_contexts(); /* these need a last exchange */
        CHECK_INT(plain_ucc_live.ncontexts, 0);
    }
}

/* The other rank is inside an exchange of UCC, and reports the failure that the group has sent. */
TEST(a_rank_that_waits_in_ucc_reports_the_failure_of_the_other_rank)
{
    static const char name[] = "ucc_context_create";
    plain_ucc_reset();
    plain_ucc.failing = name;
    plain_ucc.failure = DD_UCC_ERR_NO_MEMORY;
    plain_ucc.failing_ranks = 2;
    run(2, fail_to_be_carried, (void *)(uintptr_t)name);
}

static void
wait_in_vain(team_rank *self)
{
    dd_wait wait = dd_wait_after(100 * DD_NS_PER_MS);
    CHECK_STATUS(conversion(self, &wait), DD_OP_TIMED_OUT);
    CHECK_CONTAINS(check_message(), "UCC did not create a team of 2 ranks within 0.");
    team_rendezvous(self, "too late");
}

TEST(creating_a_ucc_team_that_never_completes_times_out)
{
    plain_ucc_reset();
    plain_ucc.has_no_end = true;
    run(2, wait_in_vain, NULL);
}

/* ---- the caller interrupts, while the other rank does not join the exchange */

static atomic_bool is_enough;

static bool
wants_out(void *ctx)
{
    (void)ctx;
    return atomic_load(&is_enough);
}

/* The data for a context: the rank's own number, and the numbers of all ranks. */
typedef struct lone_exchange {
    uint32_t own;
    uint32_t all[2];
} lone_exchange;

static void
leave_an_exchange(team_rank *self)
{
    dd_wait wait = dd_wait_after(20 * DD_NS_PER_S * check_slow());
    wait.is_interrupted = wants_out;
    dd_ucc_oob oob = {.group = self->group, .wait = &wait};
    dd_ucc_oob_coll calls = dd_ucc_oob_calls(&oob, self->rank, self->size);
    lone_exchange exchange = {0};
    void *request = NULL;
    if (self->rank == 0) {
        REQUIRE(calls.allgather(&exchange.own, exchange.all, sizeof exchange.own, calls.coll_info,
                                &request) == DD_UCC_OK);
        CHECK_INT(calls.req_test(request), DD_UCC_INPROGRESS);
        CHECK_INT(oob.error.code, DD_OK);
        atomic_store(&is_enough, true);
        CHECK_INT(calls.req_test(request), DD_UCC_ERR_NO_MESSAGE);
        CHECK_INT(oob.error.code, DD_INTERRUPTED);
        CHECK_INT(calls.req_free(request), DD_UCC_OK);
    }
    team_rendezvous(self, "left");
    /* Its memory is no longer used: the group has ended. */
    CHECK_STATUS(team_barrier(self->group), DD_ABORTED);
    CHECK_CONTAINS(check_message(), "interrupted while UCC created a team");
}

TEST(interrupting_the_creation_of_a_ucc_team_aborts_the_group)
{
    atomic_store(&is_enough, false);
    plain_ucc_reset();
    run(2, leave_an_exchange, NULL);
}

/* ---- failed allocations */

static void
exchange_without_memory(team_rank *self)
{
    dd_wait wait = dd_wait_after(20 * DD_NS_PER_S * check_slow());
    dd_carrier *carrier = NULL;
    dd_status status = DD_OUT_OF_MEMORY;
    long count = 0;
    /* the group keeps buffers */
    REQUIRE_OK(dd_ucc_make(library, self->group, &carrier, &wait, check_err()));
    dd_ucc_close(carrier, true);
    long before = dd_mem_count_blocks();
    for (; status == DD_OUT_OF_MEMORY && count < 200; count++) {
        dd_mem_fail_after(count);
        status = dd_ucc_make(library, self->group, &carrier, &wait, check_err());
        dd_mem_fail_after(-1);
    }
    CHECK_OK(status);
    CHECK(count > 3);
    if (status == DD_OK) {
        dd_ucc_close(carrier, true);
    }
    CHECK_INT(plain_ucc_live.nconfigs, 0);
    /* Each context keeps its callback data. The group's pool may keep a second call. */
    CHECK(dd_mem_count_blocks() <= before + plain_ucc_live.ncontexts + 1);
    plain_ucc_end_contexts();
}

TEST(creating_a_ucc_team_leaks_nothing_when_allocations_fail)
{
    plain_ucc_reset();
    run(1, exchange_without_memory, NULL);
}

/* ---- calls */

static void
fail_in_a_call(team_rank *self)
{
    const plain_ucc_script *script = self->arg;
    REQUIRE(carry_well(self));
    if (self->rank == 0) {
        plain_ucc.failing = script->failing;
        plain_ucc.failure = DD_UCC_ERR_NO_MEMORY;
        plain_ucc.outcome = script->outcome;
    }
    team_rendezvous(self, "fails from now on");
    CHECK_STATUS(carry_sum_call(self, check_err()), DD_BACKEND);
    CHECK_CONTAINS(check_message(), "all_reduce");
    CHECK_CONTAINS(check_message(), "no memory (-4), reported by UCC");
    CHECK_CONTAINS(check_message(), script->failing != NULL ? script->failing : "UCC's all_reduce");
    team_rendezvous(self, "failed");
    CHECK_STATUS(carry_sum_call(self, check_err()), DD_BACKEND);
}

TEST(a_failed_ucc_call_fails_the_group)
{
    static const plain_ucc_script scripts[] = {{.failing = "ucc_collective_init"},
                                               {.failing = "ucc_collective_post"},
                                               {.outcome = DD_UCC_ERR_NO_MEMORY}};
    for (size_t i = 0; i < sizeof scripts / sizeof scripts[0]; i++) {
        plain_ucc_reset();
        run(2, fail_in_a_call, (void *)(uintptr_t)&scripts[i]);
        CHECK_INT(plain_ucc_live.nrequests, 0);
        CHECK_INT(plain_ucc_live.ncontexts, 2); /* not destroyed: other ranks may be using them */
    }
}

static void
abandon_call(team_rank *self)
{
    dd_error *err = check_err();
    REQUIRE(carry_well(self));
    dd_group_set_timeout_ns(self->group, 100 * DD_NS_PER_MS);
    CHECK_STATUS(carry_sum_call(self, err), DD_OP_TIMED_OUT);
    CHECK(err->keeps_memory);
    team_rendezvous(self, "too late");
}

TEST(a_ucc_call_that_does_not_end_is_not_freed)
{
    plain_ucc_reset();
    plain_ucc.is_stuck = true;
    run(2, abandon_call, NULL);
    CHECK_INT(plain_ucc_live.nrequests, 2);
    CHECK_INT(plain_ucc_live.nteams, 2);
    CHECK_INT(plain_ucc_live.ncontexts, 2);
}

static void
leave_finished_call(team_rank *self)
{
    dd_wait wait = dd_wait_after(20 * DD_NS_PER_S * check_slow());
    dd_carried_call barrier = {.coll = DD_COLL_BARRIER};
    dd_carrier *carrier = NULL;
    dd_carried carried;
    REQUIRE_OK(dd_ucc_make(library, self->group, &carrier, &wait, check_err()));
    REQUIRE_OK(carrier->ops->start(carrier, &barrier, &carried, check_err()));
    CHECK_INT(plain_ucc_live.nrequests, 1);
    /* Progress made by another caller has completed it. */
    const dd_ucc_carrier *ours = (const dd_ucc_carrier *)carrier;
    CHECK_INT(ours->lib->api.ucc_context_progress(ours->context), DD_UCC_OK);
    CHECK(carrier->ops->abandon(carrier, &carried));
    CHECK_INT(plain_ucc_live.nrequests, 0);
    carrier->ops->close(carrier, true);
    CHECK_INT(plain_ucc_live.ncontexts, 0);
}

TEST(abandoning_a_completed_ucc_call_frees_it)
{
    plain_ucc_reset();
    run(1, leave_finished_call, NULL);
}

static void
end_with_an_error(team_rank *self)
{
    REQUIRE(carry_well(self));
    CHECK_OK(carry_sum_call(self, check_err()));
    team_rendezvous(self, "has been used");
    if (self->rank == 0) {
        plain_ucc.failing = self->arg;
        plain_ucc.failure = DD_UCC_ERR_NO_MEMORY;
    }
    team_rendezvous(self, "fails from now on");
}

/* Destroying the context would close connections that other ranks still use. */
TEST(the_context_of_a_ucc_team_that_cannot_be_destroyed_is_kept)
{
    static const char *const functions[] = {"ucc_collective_post", "ucc_team_destroy"};
    for (size_t i = 0; i < sizeof functions / sizeof functions[0]; i++) {
        plain_ucc_reset();
        run(2, end_with_an_error, (void *)(uintptr_t)functions[i]);
        CHECK_INT(plain_ucc_live.nrequests, 0);
        CHECK_INT(plain_ucc_live.ncontexts, 2);
    }
}
