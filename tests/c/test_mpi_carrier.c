/* Failures in an MPI communicator. The MPI functions are stubs; each rank is a thread with its own
 * library. Data movement is tested with real MPIs (tests/py/carriers/test_carriers.py). */
#include "check.h"
#include "core/mem.h"
#include "faults/faults.h"
#include "group_team.h"
#include "mpi/mpi_internal.h"

#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define FAILURE 13

/* Set only while no rank runs. */
static const char *failing; /* the function that fails; NULL if none fails */
static bool is_truncation;  /* it fails because the buffer is too small */
static bool is_slow;        /* creating a communicator takes a while */
static int received;        /* size that a received message reports */
static atomic_int ngroups;  /* open groups */
static atomic_int ncomms;

static int
outcome(const char *function)
{
    return failing != NULL && strcmp(failing, function) == 0 ? FAILURE : DD_MPI_OK;
}

static int
MPI_Error_string(int code, char *text, int *len)
{
    *len = snprintf(text, DD_MPI_TEXT_MAX, "no way %d\nand more", code);
    return DD_MPI_OK;
}

static int
MPI_Error_class(int code, int *class)
{
    *class = is_truncation ? 15 : code;
    return DD_MPI_OK;
}

static int
MPI_Finalized(int *flag)
{
    *flag = 0;
    return DD_MPI_OK;
}

static int
MPI_Comm_group(mpi_word comm, mpi_word *group)
{
    (void)comm;
    *group = 1;
    ngroups += outcome(__func__) == DD_MPI_OK;
    return outcome(__func__);
}

static int
MPI_Group_incl(mpi_word group, int n, const int *ranks, mpi_word *made)
{
    CHECK(group == 1 && n > 0 && ranks[0] == 0);
    *made = 2;
    ngroups += outcome(__func__) == DD_MPI_OK;
    return outcome(__func__);
}

static int
MPI_Group_free(mpi_word *group)
{
    *group = 0;
    ngroups--;
    return DD_MPI_OK;
}

static int
MPI_Comm_create_group(mpi_word comm, mpi_word group, int tag, mpi_word *made)
{
    (void)comm;
    CHECK(group == 2 && tag >= 0);
    usleep(is_slow ? 300000 : 0);
    *made = 3;
    ncomms += outcome(__func__) == DD_MPI_OK;
    return outcome(__func__);
}

static int
MPI_Comm_set_errhandler(mpi_word comm, mpi_word handler)
{
    (void)handler;
    CHECK(comm == 3);
    return outcome(__func__);
}

static int
MPI_Comm_free(mpi_word *comm)
{
    *comm = 0;
    ncomms--;
    return DD_MPI_OK;
}

static int
MPI_Isend(const void *data, int n, mpi_word type, int to, int tag, mpi_word comm, mpi_word *request)
{
    (void)data, (void)n, (void)type, (void)to, (void)tag, (void)comm;
    *request = 4;
    return outcome(__func__);
}

static int
MPI_Irecv(void *data, int n, mpi_word type, int from, int tag, mpi_word comm, mpi_word *request)
{
    (void)data, (void)n, (void)type, (void)from, (void)tag, (void)comm;
    *request = 4;
    return outcome(__func__);
}

static int
MPI_Ibarrier(mpi_word comm, mpi_word *request)
{
    (void)comm;
    *request = 5;
    return outcome(__func__);
}

static int
MPI_Test(mpi_word *request, int *flag, mpi_status *status)
{
    CHECK(*request == 4 || *request == 5);
    *flag = outcome(__func__) == DD_MPI_OK;
    status->words[0] = 0;
    return outcome(__func__);
}

static int
MPI_Cancel(mpi_word *request)
{
    CHECK(*request == 4);
    return outcome(__func__);
}

static int
MPI_Get_count(const mpi_status *status, mpi_word type, int *count)
{
    (void)status, (void)type;
    *count = received;
    return outcome(__func__);
}

static mpi_status ignored;

static mpi_library
make_library(int rank, int size)
{
    return (mpi_library){
        .base = {.name = "mpi", .version = "Fake 1", .path = "", .make = mpi_make_carrier},
        .api = {.MPI_Error_string = MPI_Error_string,
                .MPI_Error_class = MPI_Error_class,
                .MPI_Finalized = MPI_Finalized,
                .MPI_Comm_group = MPI_Comm_group,
                .MPI_Group_incl = MPI_Group_incl,
                .MPI_Group_free = MPI_Group_free,
                .MPI_Comm_create_group = MPI_Comm_create_group,
                .MPI_Comm_set_errhandler = MPI_Comm_set_errhandler,
                .MPI_Comm_free = MPI_Comm_free,
                .MPI_Isend = MPI_Isend,
                .MPI_Irecv = MPI_Irecv,
                .MPI_Ibarrier = MPI_Ibarrier,
                .MPI_Test = MPI_Test,
                .MPI_Cancel = MPI_Cancel,
                .MPI_Get_count = MPI_Get_count},
        .constants = {.status_ignore = &ignored, .err_truncate = 15},
        .version = "Fake 1",
        .rank = rank,
        .size = size,
        .tag_max = 100,
    };
}

static void
reset(void)
{
    failing = NULL;
    is_truncation = false;
    is_slow = false;
    received = 0;
}

static void
run(int size, void (*body)(team_rank *self), void *arg)
{
    team_options options = {.size = size};
    team_run(&options, body, arg);
}

/* ---- ranks that are not processes of one mpirun */

typedef struct identities {
    int ranks[2];
    int sizes[2];
    dd_status status;
    const char *words;
} identities;

static void
fail_to_meet(team_rank *self)
{
    const identities *all = self->arg;
    mpi_library library = make_library(all->ranks[self->rank], all->sizes[self->rank]);
    dd_wait wait = dd_wait_after(20 * DD_NS_PER_S * check_slow());
    CHECK_STATUS(dd_group_set_carrier(self->group, &library.base, &wait, check_err()), all->status);
    CHECK_CONTAINS(check_message(), all->words);
    team_rendezvous(self, "refused");
}

TEST(ranks_of_different_mpi_worlds_are_refused)
{
    identities worlds = {
        {0, 1}, {2, 5}, DD_MISMATCH, "rank 1 is in a world of 5 processes, and rank 0 in one of 2"};
    identities threads = {
        {0, 0}, {2, 2}, DD_INVALID_ARGUMENT, "ranks 0 and 1 are both process 0 of MPI's world (Fake 1)"};
    reset();
    run(2, fail_to_meet, &worlds);
    run(2, fail_to_meet, &threads);
    CHECK_INT(ngroups, 0);
}

/* ---- creation of a communicator */

static void
fail_to_make(team_rank *self)
{
    mpi_library library = make_library(self->rank, self->size);
    char words[128];
    dd_wait wait = dd_wait_after(20 * DD_NS_PER_S * check_slow());
    CHECK_STATUS(dd_group_set_carrier(self->group, &library.base, &wait, check_err()), DD_BACKEND);
    snprintf(words, sizeof words, "%s: no way 13 (code 13 of Fake 1)", failing);
    CHECK_CONTAINS(check_message(), words);
    team_rendezvous(self, "failed");
}

TEST(every_failed_step_of_creating_an_mpi_communicator_is_reported)
{
    static const char *const steps[] = {"MPI_Comm_group", "MPI_Group_incl", "MPI_Comm_create_group",
                                        "MPI_Comm_set_errhandler"};
    reset();
    for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++) {
        failing = steps[i];
        run(2, fail_to_make, NULL);
        CHECK_INT(ngroups, 0);
    }
}

static void
make_too_slowly(team_rank *self)
{
    static mpi_library libraries[2]; /* a late rank still uses its library */
    libraries[self->rank] = make_library(self->rank, self->size);
    dd_wait wait = dd_wait_after(100 * DD_NS_PER_MS);
    CHECK_STATUS(dd_group_set_carrier(self->group, &libraries[self->rank].base, &wait, check_err()),
                 DD_OP_TIMED_OUT);
    CHECK_CONTAINS(check_message(), "MPI_Comm_create_group of 2 ranks did not return within 0.1");
    team_rendezvous(self, "too late");
}

TEST(creating_an_mpi_communicator_times_out)
{
    reset();
    is_slow = true;
    run(2, make_too_slowly, NULL);
    for (int i = 0; ncomms < 2 && i < 500 * check_slow(); i++) {
        usleep(10000);
    }
    CHECK_INT(ncomms, 2);
}

static void
make_without_memory(team_rank *self)
{
    mpi_library library = make_library(0, 1);
    dd_wait wait = dd_wait_after(20 * DD_NS_PER_S * check_slow());
    dd_carrier *carrier = NULL;
    dd_status status = DD_OUT_OF_MEMORY;
    long count = 0;
    REQUIRE_OK(mpi_make_carrier(&library.base, self->group, &carrier, &wait, check_err()));
    carrier->ops->close(carrier, true);
    long before = dd_mem_count_blocks();
    for (; status == DD_OUT_OF_MEMORY && count < 200; count++) {
        dd_mem_fail_after(count);
        status = mpi_make_carrier(&library.base, self->group, &carrier, &wait, check_err());
        dd_mem_fail_after(-1);
        CHECK(status == DD_OK || dd_mem_count_blocks() == before);
    }
    CHECK_OK(status);
    CHECK(count > 5);
    carrier->ops->close(carrier, true);
    CHECK_INT(ncomms, 0);
}

TEST(using_mpi_for_a_group_leaks_nothing_when_allocations_fail)
{
    reset();
    run(1, make_without_memory, NULL);
}

/* ---- calls and messages */

static dd_carried_message
message_of(bool is_send, size_t nbytes)
{
    static char memory[8];
    return (dd_carried_message){.is_send = is_send, .tag = 1, .data = memory, .nbytes = nbytes};
}

static void
check_message_fails(dd_carrier *carrier, bool is_send, const char *function, dd_status code,
                    const char *words)
{
    dd_carried_message message = message_of(is_send, 8);
    dd_carried carried;
    bool is_done = false;
    failing = function;
    dd_status status = carrier->ops->start_message(carrier, &message, &carried, check_err());
    if (status == DD_OK) {
        status = carrier->ops->poll_message(carrier, &carried, &message, &is_done, check_err());
    }
    failing = NULL;
    CHECK_STATUS(status, code);
    CHECK_CONTAINS(check_message(), words);
}

static void
call_with_failures(team_rank *self)
{
    mpi_library library = make_library(0, 1);
    dd_wait wait = dd_wait_after(20 * DD_NS_PER_S * check_slow());
    dd_carrier *carrier = NULL;
    dd_carried carried;
    bool is_done = false;
    REQUIRE_OK(mpi_make_carrier(&library.base, self->group, &carrier, &wait, check_err()));
    const dd_carrier_ops *ops = carrier->ops;
    dd_carried_call barrier = {.coll = DD_COLL_BARRIER};
    REQUIRE_OK(ops->start(carrier, &barrier, &carried, check_err()));
    CHECK(!ops->abandon(carrier, &carried)); /* MPI uses the memory until the barrier ends */
    failing = "MPI_Test";
    CHECK_STATUS(ops->poll(carrier, &carried, &is_done, check_err()), DD_BACKEND);
    CHECK_CONTAINS(check_message(), "MPI_Test: no way 13");
    CHECK(!is_done);

    check_message_fails(carrier, true, "MPI_Isend", DD_BACKEND, "MPI_Isend: no way 13");
    check_message_fails(carrier, false, "MPI_Irecv", DD_BACKEND, "MPI_Irecv: no way 13");
    check_message_fails(carrier, true, "MPI_Test", DD_BACKEND, "MPI_Isend: no way 13");
    check_message_fails(carrier, false, "MPI_Get_count", DD_BACKEND, "MPI_Get_count: no way 13");
    is_truncation = true;
    check_message_fails(carrier, false, "MPI_Test", DD_INVALID_ARGUMENT,
                        "message too large: expected at most 8 bytes");
    received = -1; /* MPI_UNDEFINED */
    check_message_fails(carrier, false, NULL, DD_NOT_SUPPORTED,
                        "received a message too large for the counts of Fake 1");
    dd_carried_message large = message_of(true, (size_t)INT_MAX + 2);
    CHECK_STATUS(ops->start_message(carrier, &large, &carried, check_err()), DD_NOT_SUPPORTED);
    CHECK_CONTAINS(check_message(), "a message of 2147483649 bytes needs large counts, which Fake 1 lacks");

    dd_carried_message small = message_of(false, 8);
    REQUIRE_OK(ops->start_message(carrier, &small, &carried, check_err()));
    failing = "MPI_Cancel";
    CHECK(!ops->cancel_message(carrier, &carried));
    failing = NULL;
    CHECK(ops->cancel_message(carrier, &carried));
    ops->close(carrier, true);
}

TEST(failed_calls_and_messages_report_the_text_of_the_mpi_error)
{
    reset();
    run(1, call_with_failures, NULL);
    CHECK_INT(ncomms, 0);
}
