/* Creating communicators, with the stubs: success, failure, timeout, and abort. */
#include "test_nccl_comm_rig.h"

#include <string.h>

#define NEWEST "2.32.3"

static double
seconds_since(int64_t start_ns)
{
    return (double)(dd_clock_now_ns() - start_ns) / (double)DD_NS_PER_S;
}

static void
check_made(comm_rig *rig, bool is_nonblocking)
{
    comm_rig_rank ranks[3];
    REQUIRE(comm_rig_connect(rig, ranks, 3, is_nonblocking));
    for (int i = 0; i < 3; i++) {
        CHECK_INT(dd_nccl_comm_rank(ranks[i].comm), i);
        CHECK_INT(dd_nccl_comm_size(ranks[i].comm), 3);
        CHECK_INT(dd_nccl_comm_device(ranks[i].comm), i);
        CHECK_INT(dd_nccl_comm_is_blocking(ranks[i].comm), !is_nonblocking);
        CHECK_OK(dd_nccl_comm_check(ranks[i].comm, check_err()));
    }
    CHECK_INT(rig->on_nccl.live("comm"), 3);
    comm_rig_release(ranks, 3);
}

TEST(blocking_and_nonblocking_communicators_work)
{
    static const char *const VERSIONS[] = {"2.18.1", "2.27.3", NEWEST};
    for (int i = 0; i < 3; i++) {
        comm_rig rig;
        REQUIRE(comm_rig_open(&rig, VERSIONS[i]));
        check_made(&rig, false);
        check_made(&rig, true);
        int device;
        CHECK_OK(dd_cuda_current_device(rig.cuda, &device, check_err()));
        CHECK_INT(device, DD_CUDA_NO_CURRENT);
        comm_rig_close(&rig);
    }
}

TEST(scalable_init_needs_nccl_2_23_4)
{
    comm_rig rig;
    REQUIRE(comm_rig_open(&rig, "2.23.4"));
    comm_rig_rank ranks[4];
    dd_nccl_unique_id ids[2];
    comm_rig_ranks(&rig, ranks, 4, &ids[0]);
    CHECK_OK(dd_nccl_make_unique_id(rig.lib, &ids[1], check_err()));
    for (int i = 0; i < 4; i++) {
        ranks[i].nids = 2;
    }
    comm_rig_run(ranks, 4, comm_rig_init);
    for (int i = 0; i < 4; i++) {
        CHECK_INT(ranks[i].status, DD_OK);
    }
    CHECK_INT(rig.on_nccl.calls("ncclCommInitRankScalable"), 4);
    comm_rig_release(ranks, 4);
    comm_rig_close(&rig);

    REQUIRE(comm_rig_open(&rig, "2.22.3"));
    comm_rig_ranks(&rig, ranks, 2, &ids[0]);
    ranks[0].nids = 2;
    comm_rig_init(&ranks[0]);
    CHECK_INT(ranks[0].status, DD_NOT_SUPPORTED);
    CHECK_CONTAINS(ranks[0].error.message, "ncclCommInitRankScalable needs NCCL 2.23.4");
    comm_rig_close(&rig);
}

TEST(invalid_arguments_are_refused_before_nccl_is_called)
{
    comm_rig rig;
    REQUIRE(comm_rig_open(&rig, NEWEST));
    comm_rig_rank ranks[2];
    dd_nccl_unique_id id;
    comm_rig_ranks(&rig, ranks, 2, &id);
    ranks[1].rank = 2;
    comm_rig_init(&ranks[1]);
    CHECK_INT(ranks[1].status, DD_INVALID_ARGUMENT);
    CHECK_CONTAINS(ranks[1].error.message, "invalid rank of an NCCL communicator: got 2, expected 0 to 1");
    ranks[0].nids = 3;
    comm_rig_init(&ranks[0]);
    CHECK_INT(ranks[0].status, DD_INVALID_ARGUMENT);
    CHECK_INT(rig.on_nccl.calls("ncclCommInitRankConfig"), 0);
    comm_rig_close(&rig);
}

static void
check_failure(bool is_nonblocking, const char *function)
{
    comm_rig rig;
    REQUIRE(comm_rig_open(&rig, NEWEST));
    comm_rig_rank rank;
    dd_nccl_unique_id id;
    comm_rig_ranks(&rig, &rank, 1, &id);
    rank.is_nonblocking = is_nonblocking;
    rig.on_nccl.fail(function, 0, DD_NCCL_INVALID_USAGE, "Duplicate GPU detected");
    comm_rig_init(&rank);
    CHECK_INT(rank.status, DD_BACKEND);
    CHECK_CONTAINS(rank.error.message,
                   "ncclCommInitRankConfig of rank 0 of 1 on device 0: ncclInvalidUsage (5): ");
    CHECK_CONTAINS(rank.error.message, "Duplicate GPU detected");
    CHECK(rank.comm == NULL);
    comm_rig_close(&rig);
}

TEST(a_failed_init_reports_the_reason_given_by_nccl)
{
    check_failure(false, "ncclCommInitRankConfig");
    check_failure(true, "ncclCommInitRankConfig");
    check_failure(false, "(init)");
    check_failure(true, "(init)");
}

/* NCCL 2.30.7 leaves a handle after an init with an unknown network, and 2.32.3 after any failed
 * init: the handle must be aborted. */
static void
check_failed_handle(const char *version, bool is_nonblocking, const char *net_name)
{
    comm_rig rig;
    REQUIRE(comm_rig_open(&rig, version));
    dd_nccl_config config;
    dd_nccl_config_init(&config);
    dd_nccl_config_value text = {.is_set = true, .is_text = true, .text = net_name};
    dd_nccl_config_value blocking = {.is_set = true, .number = !is_nonblocking};
    CHECK_OK(dd_nccl_config_set(&config, "blocking", &blocking, check_err()));
    if (net_name != NULL) {
        CHECK_OK(dd_nccl_config_set(&config, "net_name", &text, check_err()));
    } else {
        rig.on_nccl.fail("(init)", 0, DD_NCCL_INVALID_USAGE, "Failed to initialize any NET plugin");
    }
    dd_nccl_unique_id id;
    CHECK_OK(dd_nccl_make_unique_id(rig.lib, &id, check_err()));
    dd_nccl_comm_spec spec = {.lib = rig.lib, .cuda = rig.cuda, .size = 1, .config = &config};
    dd_wait wait = dd_wait_after(8 * DD_NS_PER_S * check_slow());
    dd_nccl_comm *comm = NULL;
    CHECK_STATUS(dd_nccl_comm_init(&spec, &id, 1, &comm, NULL, &wait, check_err()), DD_BACKEND);
    CHECK_CONTAINS(check_message(), "Failed to initialize any NET plugin");
    CHECK(comm == NULL);
    CHECK_INT(rig.on_nccl.calls("ncclCommAbort"), 1);
    comm_rig_close(&rig); /* checks for leaks */
}

TEST(the_nccl_handle_of_a_failed_init_is_aborted)
{
    check_failed_handle("2.30.7", false, "carrier pigeon");
    check_failed_handle("2.30.7", true, "carrier pigeon");
    check_failed_handle("2.32.3", false, "carrier pigeon");
    check_failed_handle("2.32.3", false, NULL);
    check_failed_handle("2.32.3", true, NULL);
}

static void
check_alone(bool is_nonblocking)
{
    comm_rig rig;
    REQUIRE(comm_rig_open(&rig, NEWEST));
    comm_rig_rank ranks[2];
    dd_nccl_unique_id id;
    comm_rig_ranks(&rig, ranks, 2, &id);
    ranks[0].is_nonblocking = is_nonblocking;
    ranks[0].timeout_ns = 200 * DD_NS_PER_MS;
    int64_t start_ns = dd_clock_now_ns();
    comm_rig_init(&ranks[0]);
    CHECK_INT(ranks[0].status, DD_OP_TIMED_OUT);
    CHECK_CONTAINS(ranks[0].error.message,
                   "ncclCommInitRankConfig of rank 0 of 2 on device 0 timed out after ");
    CHECK(seconds_since(start_ns) < 3.0 * check_slow());

    atomic_bool stop = true;
    comm_rig_ranks(&rig, ranks, 2, &id);
    ranks[0].is_nonblocking = is_nonblocking;
    ranks[0].stop = &stop;
    comm_rig_init(&ranks[0]);
    CHECK_INT(ranks[0].status, DD_ABORTED);
    CHECK_CONTAINS(ranks[0].error.message, "cancelled");
    if (is_nonblocking) {
        comm_rig_close(&rig); /* checks for leaks; blocking calls leave threads */
    }
}

TEST(an_init_without_the_other_ranks_times_out_and_can_be_cancelled)
{
    check_alone(false);
    check_alone(true);
}

/* A call that returns after its timeout must release all that it created. */
TEST(an_init_that_returns_after_its_timeout_releases_all_that_it_created)
{
    static comm_rig rig;
    REQUIRE(comm_rig_open(&rig, NEWEST));
    comm_rig_rank rank;
    dd_nccl_unique_id id;
    comm_rig_ranks(&rig, &rank, 1, &id);
    rank.timeout_ns = 100 * DD_NS_PER_MS;
    rig.on_nccl.hang("ncclCommInitRankConfig", 0, -1);
    comm_rig_init(&rank);
    CHECK_INT(rank.status, DD_OP_TIMED_OUT);
    CHECK_INT(rig.on_nccl.hanging(), 1);
    long aborts = rig.on_nccl.calls("ncclCommAbort");
    rig.on_nccl.release();
    dd_wait wait = dd_wait_after(5 * DD_NS_PER_S);
    while (rig.on_nccl.calls("ncclCommAbort") == aborts && !dd_wait_has_expired(&wait)) {
        CHECK_OK(dd_wait_sleep(&wait, DD_NS_PER_MS, check_err()));
    }
    CHECK_INT(rig.on_nccl.calls("ncclCommAbort"), aborts + 1);
    comm_rig_leave_open(&rig);
}

static bool
is_interrupted(void *ctx)
{
    (void)ctx;
    return true;
}

TEST(a_signal_ends_the_wait_for_an_init)
{
    comm_rig rig;
    REQUIRE(comm_rig_open(&rig, NEWEST));
    dd_nccl_unique_id id;
    CHECK_OK(dd_nccl_make_unique_id(rig.lib, &id, check_err()));
    dd_nccl_config config;
    dd_nccl_config_init(&config);
    config.values.blocking = 0;
    dd_nccl_comm_spec spec = {.lib = rig.lib, .cuda = rig.cuda, .rank = 0, .size = 2, .config = &config};
    dd_wait wait = dd_wait_after(5 * DD_NS_PER_S);
    wait.is_interrupted = is_interrupted;
    dd_nccl_comm *comm;
    CHECK_STATUS(dd_nccl_comm_init(&spec, &id, 1, &comm, NULL, &wait, check_err()), DD_INTERRUPTED);
    comm_rig_close(&rig);
}

/* ---- children */

typedef struct split_case {
    int colors[4];
    int keys[4];
    int ranks[4]; /* of the children */
    int sizes[4];
} split_case;

static const split_case SPLIT = {{0, 1, 0, DD_NCCL_NO_COLOR}, {9, 0, 3, 0}, {1, 0, 0, -1}, {2, 1, 2, 0}};

static void
split(comm_rig_rank *rank)
{
    dd_wait wait = dd_wait_after(rank->timeout_ns);
    rank->status = dd_nccl_comm_split(rank->comm, SPLIT.colors[rank->rank], SPLIT.keys[rank->rank], rank->arg,
                                      &rank->child, NULL, &wait, &rank->error);
}

static void
check_split(bool is_nonblocking)
{
    comm_rig rig;
    REQUIRE(comm_rig_open(&rig, NEWEST));
    comm_rig_rank ranks[4];
    REQUIRE(comm_rig_connect(&rig, ranks, 4, is_nonblocking));
    comm_rig_run(ranks, 4, split);
    for (int i = 0; i < 4; i++) {
        CHECK_INT(ranks[i].status, DD_OK);
        CHECK_INT(dd_nccl_comm_nsplits(ranks[i].comm), 1);
        if (SPLIT.colors[i] == DD_NCCL_NO_COLOR) {
            CHECK(ranks[i].child == NULL);
            continue;
        }
        REQUIRE(ranks[i].child != NULL);
        CHECK_INT(dd_nccl_comm_rank(ranks[i].child), SPLIT.ranks[i]);
        CHECK_INT(dd_nccl_comm_size(ranks[i].child), SPLIT.sizes[i]);
        CHECK_INT(dd_nccl_comm_device(ranks[i].child), i);
        CHECK_INT(dd_nccl_comm_is_blocking(ranks[i].child), !is_nonblocking);
    }
    comm_rig_release(ranks, 4);
    comm_rig_close(&rig);
}

TEST(communicators_created_by_a_split_have_the_given_ranks_and_sizes)
{
    check_split(false);
    check_split(true);
}

TEST(a_configuration_field_that_this_nccl_lacks_is_refused)
{
    comm_rig rig;
    REQUIRE(comm_rig_open(&rig, "2.18.1"));
    comm_rig_rank rank;
    REQUIRE(comm_rig_connect(&rig, &rank, 1, false));
    dd_nccl_config config;
    dd_nccl_config_value name = {.is_set = true, .is_text = true, .text = "inner"};
    dd_nccl_config_init(&config);
    CHECK_OK(dd_nccl_config_set(&config, "comm_name", &name, check_err()));
    rank.arg = &config;
    split(&rank);
    CHECK_INT(rank.status, DD_NOT_SUPPORTED);
    CHECK_CONTAINS(rank.error.message, "comm_name needs NCCL 2.27.3");
    comm_rig_release(&rank, 1);
    comm_rig_close(&rig);
}

typedef struct aborter {
    dd_nccl_comm *comm;
    comm_rig *rig;
    const char *function;
    pthread_t thread;
} aborter;

/* Abort once the other thread has called the function. */
static void *
abort_soon(void *arg)
{
    aborter *a = arg;
    dd_wait wait = dd_wait_after(5 * DD_NS_PER_S);
    while (a->rig->on_nccl.calls(a->function) == 0 && !dd_wait_has_expired(&wait)) {
        CHECK_OK(dd_wait_sleep(&wait, DD_NS_PER_MS, check_err()));
    }
    CHECK_OK(dd_nccl_comm_abort(a->comm, "rank 1 is gone", check_err()));
    return NULL;
}

static void
check_abort_during_split(bool is_nonblocking)
{
    comm_rig rig;
    REQUIRE(comm_rig_open(&rig, NEWEST));
    comm_rig_rank ranks[2];
    REQUIRE(comm_rig_connect(&rig, ranks, 2, is_nonblocking));
    aborter a = {.comm = ranks[0].comm, .rig = &rig, .function = "ncclCommSplit"};
    CHECK_OK(dd_thread_start(&a.thread, "aborter", abort_soon, &a, check_err()));
    int64_t start_ns = dd_clock_now_ns();
    split(&ranks[0]); /* the other rank never joins */
    CHECK(seconds_since(start_ns) < 3.0 * check_slow());
    CHECK_INT(ranks[0].status, DD_ABORTED);
    CHECK_CONTAINS(ranks[0].error.message, "rank 1 is gone");
    pthread_join(a.thread, NULL);
    comm_rig_release(ranks, 2);
    comm_rig_close(&rig);
}

TEST(an_abort_by_another_thread_ends_a_split)
{
    check_abort_during_split(false);
    check_abort_during_split(true);
}

static const int LAST_OF_THREE[] = {2};

static void
shrink(comm_rig_rank *rank)
{
    dd_wait wait = dd_wait_after(rank->timeout_ns);
    dd_nccl_exclusion last = {.ranks = LAST_OF_THREE, .nranks = 1, .is_abort = rank->arg != NULL};
    rank->status = dd_nccl_comm_shrink(rank->comm, &last, NULL, &rank->child, NULL, &wait, &rank->error);
}

static void
check_shrink(bool is_nonblocking, bool is_abort)
{
    comm_rig rig;
    REQUIRE(comm_rig_open(&rig, NEWEST));
    comm_rig_rank ranks[3];
    REQUIRE(comm_rig_connect(&rig, ranks, 3, is_nonblocking));
    for (int i = 0; i < 3; i++) {
        ranks[i].arg = is_abort ? &rig : NULL;
    }
    comm_rig_run(ranks, 2, shrink);
    for (int i = 0; i < 2; i++) {
        CHECK_INT(ranks[i].status, DD_OK);
        CHECK_INT(dd_nccl_comm_size(ranks[i].child), 2);
        CHECK_INT(dd_nccl_comm_rank(ranks[i].child), i);
        /* Both calls would fail after an abort. */
        dd_wait wait = dd_wait_after(5 * DD_NS_PER_S);
        CHECK_OK(is_abort ? dd_nccl_comm_finalize(ranks[i].comm, NULL, &wait, check_err()) : DD_OK);
        CHECK_OK(dd_nccl_comm_destroy(ranks[i].comm, check_err()));
    }
    CHECK_INT(rig.on_nccl.calls("ncclCommAbort"), is_abort ? 2 : 0);
    CHECK_INT(rig.on_nccl.calls("ncclCommDestroy"), is_abort ? 0 : 2);
    CHECK_INT(rig.on_nccl.calls("ncclCommFinalize"), 0);
    comm_rig_release(ranks, 3);
    comm_rig_close(&rig);
}

TEST(shrinking_a_communicator_excludes_a_rank)
{
    check_shrink(false, false);
    check_shrink(true, false);
    check_shrink(false, true);
    check_shrink(true, true);
}

static void
grow(comm_rig_rank *rank)
{
    dd_nccl_comm_spec spec = {
        .lib = rank->rig->lib, .cuda = rank->rig->cuda, .device = rank->rank, .rank = rank->rank, .size = 3};
    /* the root, and the ranks that are added */
    bool has_id = rank->rank == 0 || rank->comm == NULL;
    dd_wait wait = dd_wait_after(rank->timeout_ns);
    rank->status = dd_nccl_comm_grow(rank->comm, &spec, has_id ? rank->arg : NULL, &rank->child, NULL, &wait,
                                     &rank->error);
}

TEST(growing_a_communicator_adds_a_rank)
{
    comm_rig rig;
    REQUIRE(comm_rig_open(&rig, NEWEST));
    comm_rig_rank ranks[3];
    dd_nccl_unique_id id;
    comm_rig_ranks(&rig, ranks, 3, &id);
    REQUIRE(comm_rig_connect(&rig, ranks, 2, false));
    CHECK_OK(dd_nccl_comm_grow_id(ranks[0].comm, &id, check_err()));
    for (int i = 0; i < 3; i++) {
        ranks[i].arg = &id;
    }
    comm_rig_run(ranks, 3, grow);
    for (int i = 0; i < 3; i++) {
        CHECK_INT(ranks[i].status, DD_OK);
        CHECK_INT(dd_nccl_comm_rank(ranks[i].child), i);
        CHECK_INT(dd_nccl_comm_size(ranks[i].child), 3);
    }
    comm_rig_release(ranks, 3);
    comm_rig_close(&rig);
}

TEST(one_call_creates_communicators_for_all_devices)
{
    static const int DEVICES[] = {3, 1};
    static const int BAD[] = {0, 7};
    comm_rig rig;
    REQUIRE(comm_rig_open(&rig, NEWEST));
    dd_nccl_comm *comms[2];
    dd_wait wait = dd_wait_after(5 * DD_NS_PER_S * check_slow());
    CHECK_STATUS(dd_nccl_comm_init_all(rig.lib, rig.cuda, BAD, 2, comms, &wait, check_err()),
                 DD_INVALID_ARGUMENT);
    REQUIRE_OK(dd_nccl_comm_init_all(rig.lib, rig.cuda, DEVICES, 2, comms, &wait, check_err()));
    for (int i = 0; i < 2; i++) {
        CHECK_INT(dd_nccl_comm_rank(comms[i]), i);
        CHECK_INT(dd_nccl_comm_device(comms[i]), DEVICES[i]);
        dd_nccl_comm_release(comms[i]);
    }
    comm_rig_close(&rig);
}
