/* Using and closing communicators, with the stubs. */
#include "core/mem.h"
#include "faults/faults.h"
#include "test_nccl_comm_rig.h"

#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define NEWEST "2.32.3"

TEST(repeated_aborts_end_a_communicator_once)
{
    comm_rig rig;
    REQUIRE(comm_rig_open(&rig, NEWEST));
    comm_rig_rank rank;
    REQUIRE(comm_rig_connect(&rig, &rank, 1, false));
    CHECK(!dd_nccl_comm_has_ended(rank.comm));
    CHECK_OK(dd_nccl_comm_abort(rank.comm, "the first reason", check_err()));
    CHECK_OK(dd_nccl_comm_abort(rank.comm, "the second reason", check_err()));
    CHECK(dd_nccl_comm_has_ended(rank.comm));
    CHECK_INT(rig.on_nccl.calls("ncclCommAbort"), 1);
    dd_nccl_comm_handle handle;
    CHECK_STATUS(comm_rig_enter(rank.comm, &handle), DD_ABORTED);
    CHECK_CONTAINS(check_message(), "rank 0 of 1 on device 0 was aborted: the first reason");
    CHECK_OK(dd_nccl_comm_check(rank.comm, check_err()));
    CHECK_OK(dd_nccl_comm_destroy(rank.comm, check_err()));
    CHECK_INT(rig.on_nccl.calls("ncclCommDestroy"), 0);
    dd_nccl_comm *kept = dd_nccl_comm_acquire(rank.comm);
    comm_rig_release(&rank, 1);
    CHECK_OK(dd_nccl_comm_abort(kept, "long after", check_err()));
    dd_nccl_comm_release(kept);
    comm_rig_close(&rig);
}

static void *
abort_it(void *comm)
{
    CHECK_OK(dd_nccl_comm_abort(comm, "one of many", check_err()));
    return NULL;
}

TEST(many_threads_abort_a_communicator_while_others_use_it)
{
    comm_rig rig;
    REQUIRE(comm_rig_open(&rig, NEWEST));
    comm_rig_rank rank;
    REQUIRE(comm_rig_connect(&rig, &rank, 1, true));
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) {
        CHECK_OK(dd_thread_start(&threads[i], "aborter", abort_it, rank.comm, check_err()));
    }
    dd_status status = DD_OK;
    while (status == DD_OK) {
        dd_nccl_comm_handle handle;
        status = comm_rig_enter(rank.comm, &handle);
        if (status == DD_OK) {
            int size;
            CHECK_INT(rig.lib->api.ncclCommCount(handle, &size), DD_NCCL_SUCCESS);
            dd_nccl_comm_leave(rank.comm);
            status = dd_nccl_comm_check(rank.comm, check_err());
        }
    }
    CHECK_INT(status, DD_ABORTED);
    for (int i = 0; i < 4; i++) {
        pthread_join(threads[i], NULL);
    }
    CHECK_INT(rig.on_nccl.calls("ncclCommAbort"), 1);
    comm_rig_release(&rank, 1);
    comm_rig_close(&rig);
}

/* A thread that hangs inside a communicator is notified immediately, and the communicator is freed
 * only after it leaves. */
TEST(an_abort_does_not_wait_for_ever_for_a_thread_that_hangs_in_nccl)
{
    comm_rig rig;
    REQUIRE(comm_rig_open(&rig, NEWEST));
    comm_rig_rank rank;
    REQUIRE(comm_rig_connect(&rig, &rank, 1, false));
    dd_nccl_comm_handle handle;
    REQUIRE_OK(comm_rig_enter(rank.comm, &handle));
    CHECK_STATUS(dd_nccl_comm_abort(rank.comm, "it hangs", check_err()), DD_OP_TIMED_OUT);
    CHECK_CONTAINS(check_message(), "a thread is still in a call on it");
    CHECK_INT(rig.on_nccl.calls("ncclCommAbort"), 1);
    CHECK_INT(rig.on_nccl.calls("ncclGroupEnd"), 0);
    CHECK_INT(rig.on_nccl.live("comm"), 1);
    dd_nccl_comm_leave(rank.comm);
    dd_wait wait = dd_wait_after(60 * DD_NS_PER_S * check_slow());
    while (rig.on_nccl.calls("ncclGroupEnd") == 0 && !dd_wait_has_expired(&wait)) {
        (void)!dd_wait_sleep(&wait, DD_NS_PER_MS, NULL);
    }
    CHECK_INT(rig.on_nccl.calls("ncclGroupEnd"), 1);
    comm_rig_release(&rank, 1);
    comm_rig_close(&rig);
}

/* Before 2.22.3, only freeing the communicator ends the wait of such a thread. */
TEST(before_nccl_2_22_3_an_abort_frees_a_communicator_despite_a_hanging_thread)
{
    comm_rig rig;
    REQUIRE(comm_rig_open(&rig, "2.18.1"));
    comm_rig_rank rank;
    REQUIRE(comm_rig_connect(&rig, &rank, 1, false));
    dd_nccl_comm_handle handle;
    REQUIRE_OK(comm_rig_enter(rank.comm, &handle));
    int64_t start_ns = dd_clock_now_ns();
    CHECK_OK(dd_nccl_comm_abort(rank.comm, "it hangs", check_err()));
    CHECK(dd_clock_now_ns() - start_ns > 900 * DD_NS_PER_MS);
    CHECK_INT(rig.on_nccl.calls("ncclGroupStart"), 0);
    dd_nccl_comm_leave(rank.comm);
    comm_rig_release(&rank, 1);
    comm_rig_close(&rig);
}

static void *
enter_it(void *comm)
{
    dd_nccl_comm_handle handle;
    CHECK_STATUS(comm_rig_enter(comm, &handle), DD_ABORTED);
    return NULL;
}

TEST(an_abort_wakes_a_thread_that_waits_to_use_the_communicator)
{
    comm_rig rig;
    REQUIRE(comm_rig_open(&rig, NEWEST));
    comm_rig_rank rank;
    REQUIRE(comm_rig_connect(&rig, &rank, 1, false));
    dd_nccl_comm_handle handle;
    REQUIRE_OK(comm_rig_enter(rank.comm, &handle));
    pthread_t waiter;
    pthread_t aborter;
    CHECK_OK(dd_thread_start(&waiter, "waiter", enter_it, rank.comm, check_err()));
    CHECK_OK(dd_thread_start(&aborter, "aborter", abort_it, rank.comm, check_err()));
    pthread_join(waiter, NULL); /* while this thread is inside */
    dd_nccl_comm_leave(rank.comm);
    pthread_join(aborter, NULL);
    comm_rig_release(&rank, 1);
    comm_rig_close(&rig);
}

TEST(asynchronous_nccl_errors_are_reported)
{
    comm_rig rig;
    REQUIRE(comm_rig_open(&rig, NEWEST));
    comm_rig_rank ranks[2];
    REQUIRE(comm_rig_connect(&rig, ranks, 2, false));
    rig.on_nccl.async_error(1, DD_NCCL_REMOTE_ERROR, 0, "NET/IB : Got completion with error 12");
    CHECK_OK(dd_nccl_comm_check(ranks[0].comm, check_err()));
    CHECK_STATUS(dd_nccl_comm_check(ranks[1].comm, check_err()), DD_BACKEND);
    CHECK_CONTAINS(check_message(), "rank 1 of 2 on device 1");
    CHECK_CONTAINS(check_message(), "ncclRemoteError (6): ");
    /* It is aborted, not destroyed: a destroy would wait for the other rank. */
    comm_rig_release(ranks, 2);
    CHECK_INT(rig.on_nccl.calls("ncclCommAbort"), 1);
    CHECK_INT(rig.on_nccl.calls("ncclCommDestroy"), 1);
    comm_rig_close(&rig);
}

static void
finalize(comm_rig_rank *rank)
{
    dd_wait wait = dd_wait_after(rank->timeout_ns);
    rank->status = dd_nccl_comm_finalize(rank->comm, NULL, &wait, &rank->error);
}

TEST(finalizing_a_communicator_succeeds_or_ends_at_its_deadline)
{
    static comm_rig rig;
    REQUIRE(comm_rig_open(&rig, NEWEST));
    for (int is_nonblocking = 0; is_nonblocking < 2; is_nonblocking++) {
        comm_rig_rank ranks[2];
        REQUIRE(comm_rig_connect(&rig, ranks, 2, is_nonblocking));
        comm_rig_run(ranks, 2, finalize);
        CHECK_INT(ranks[0].status, DD_OK);
        CHECK_INT(ranks[1].status, DD_OK);
        CHECK_OK(dd_nccl_comm_destroy(ranks[0].comm, check_err()));
        dd_nccl_comm_handle handle;
        CHECK_STATUS(comm_rig_enter(ranks[0].comm, &handle), DD_CLOSED);
        comm_rig_release(ranks, 2);
    }
    comm_rig_rank rank;
    REQUIRE(comm_rig_connect(&rig, &rank, 1, false));
    rig.on_nccl.hang("ncclCommFinalize", 0, -1);
    rank.timeout_ns = 100 * DD_NS_PER_MS;
    finalize(&rank);
    CHECK_INT(rank.status, DD_OP_TIMED_OUT);
    CHECK_CONTAINS(rank.error.message, "ncclCommFinalize of rank 0 of 1 on device 0 timed out");
    /* Another thread that wants to enter must also time out. */
    dd_wait brief = dd_wait_after(20 * DD_NS_PER_MS);
    CHECK_STATUS(dd_nccl_comm_suspend(rank.comm, &brief, check_err()), DD_OP_TIMED_OUT);
    CHECK_CONTAINS(check_message(), "another thread's call");
    rig.on_nccl.release();
    dd_nccl_comm_handle handle;
    CHECK_OK(comm_rig_enter(rank.comm, &handle)); /* succeeds once the thread has left */
    dd_nccl_comm_leave(rank.comm);
    comm_rig_release(&rank, 1);
    comm_rig_leave_open(&rig);
}

/* The ranks of a device wait for each other there: if one does not call, the call must time out. */
TEST(suspending_a_communicator_ends_at_its_deadline)
{
    static comm_rig rig;
    REQUIRE(comm_rig_open(&rig, NEWEST));
    for (int is_nonblocking = 0; is_nonblocking < 2; is_nonblocking++) {
        comm_rig_rank rank;
        REQUIRE(comm_rig_connect(&rig, &rank, 1, is_nonblocking));
        rig.on_nccl.hang("ncclCommSuspend", 0, -1);
        dd_wait brief = dd_wait_after(50 * DD_NS_PER_MS);
        CHECK_STATUS(dd_nccl_comm_suspend(rank.comm, &brief, check_err()), DD_OP_TIMED_OUT);
        CHECK_CONTAINS(check_message(), "ncclCommSuspend of rank 0 of 1 on device 0 timed out");
        rig.on_nccl.release();
        rig.on_nccl.hang("ncclCommResume", 0, -1);
        brief = dd_wait_after(50 * DD_NS_PER_MS);
        CHECK_STATUS(dd_nccl_comm_resume(rank.comm, &brief, check_err()), DD_OP_TIMED_OUT);
        CHECK_CONTAINS(check_message(), "ncclCommResume of rank 0 of 1 on device 0 timed out");
        rig.on_nccl.release();
        dd_nccl_comm_handle handle;
        CHECK_OK(comm_rig_enter(rank.comm, &handle)); /* succeeds once the thread has left */
        dd_nccl_comm_leave(rank.comm);
        comm_rig_release(&rank, 1);
        comm_rig_leave_open(&rig);
    }
}

TEST(memory_statistics_report_that_a_communicator_is_suspended)
{
    comm_rig rig;
    REQUIRE(comm_rig_open(&rig, NEWEST));
    comm_rig_rank rank;
    REQUIRE(comm_rig_connect(&rig, &rank, 1, false));
    uint64_t value = 7;
    dd_wait wait = dd_wait_after(5 * DD_NS_PER_S);
    CHECK_OK(dd_nccl_comm_mem_stat(rank.comm, DD_NCCL_MEM_STAT_SUSPENDED, &value, check_err()));
    CHECK_INT(value, 0);
    CHECK_OK(dd_nccl_comm_suspend(rank.comm, &wait, check_err()));
    CHECK_OK(dd_nccl_comm_mem_stat(rank.comm, DD_NCCL_MEM_STAT_SUSPENDED, &value, check_err()));
    CHECK_INT(value, 1);
    CHECK_STATUS(dd_nccl_comm_suspend(rank.comm, &wait, check_err()), DD_BACKEND);
    CHECK_CONTAINS(check_message(), "ncclCommSuspend of rank 0 of 1 on device 0: ncclInvalidUsage");
    CHECK_OK(dd_nccl_comm_resume(rank.comm, &wait, check_err()));
    CHECK_STATUS(dd_nccl_comm_mem_stat(rank.comm, 99, &value, check_err()), DD_BACKEND);

    CHECK_OK(dd_nccl_comm_revoke(rank.comm, check_err()));
    finalize(&rank); /* NCCL forbids the call then, so it is skipped */
    CHECK_INT(rank.status, DD_OK);
    CHECK_INT(rig.on_nccl.calls("ncclCommFinalize"), 0);
    comm_rig_release(&rank, 1);
    comm_rig_close(&rig);
}

TEST(memory_registrations_and_windows_can_be_released)
{
    comm_rig rig;
    REQUIRE(comm_rig_open(&rig, NEWEST));
    comm_rig_rank rank;
    REQUIRE(comm_rig_connect(&rig, &rank, 1, false));
    void *data = NULL;
    CHECK_OK(
        dd_nccl_check(rig.lib, NULL, rig.lib->api.ncclMemAlloc(&data, 8192), check_err(), "ncclMemAlloc"));
    dd_wait wait = dd_wait_after(5 * DD_NS_PER_S * check_slow());
    for (int is_window = 0; is_window < 2; is_window++) {
        void *registration = NULL;
        CHECK_OK(dd_nccl_comm_register(rank.comm, data, 8192, is_window, &registration, &wait, check_err()));
        CHECK(registration != NULL);
        CHECK_OK(dd_nccl_comm_deregister(rank.comm, registration, is_window, check_err()));
    }
    CHECK_OK(dd_nccl_comm_deregister(rank.comm, NULL, true, check_err()));
    CHECK_OK(dd_nccl_check(rig.lib, NULL, rig.lib->api.ncclMemFree(data), check_err(), "ncclMemFree"));
    CHECK_INT(rig.on_nccl.live("registration"), 0);
    CHECK_INT(rig.on_nccl.live("window"), 0);
    comm_rig_release(&rank, 1);
    comm_rig_close(&rig);
}

TEST(calls_that_this_nccl_lacks_name_the_required_version)
{
    comm_rig rig;
    REQUIRE(comm_rig_open(&rig, "2.18.1"));
    comm_rig_rank rank;
    REQUIRE(comm_rig_connect(&rig, &rank, 1, false));
    uint64_t value;
    void *registration;
    dd_nccl_exclusion excluded = {.ranks = &(int){0}, .nranks = 1};
    dd_nccl_unique_id id;
    dd_wait wait = dd_wait_after(DD_NS_PER_S);
    dd_nccl_comm_spec spec = {.lib = rig.lib, .cuda = rig.cuda, .size = 2};
    CHECK_STATUS(dd_nccl_comm_revoke(rank.comm, check_err()), DD_NOT_SUPPORTED);
    CHECK_CONTAINS(check_message(), "ncclCommRevoke needs NCCL 2.28.7 or newer, this is 2.18.1");
    CHECK_STATUS(dd_nccl_comm_suspend(rank.comm, &wait, check_err()), DD_NOT_SUPPORTED);
    CHECK_CONTAINS(check_message(), "ncclCommSuspend needs NCCL 2.29.7 or newer, this is 2.18.1");
    CHECK_STATUS(dd_nccl_comm_resume(rank.comm, &wait, check_err()), DD_NOT_SUPPORTED);
    CHECK_CONTAINS(check_message(), "ncclCommResume needs NCCL 2.29.7 or newer");
    CHECK_STATUS(dd_nccl_comm_mem_stat(rank.comm, 0, &value, check_err()), DD_NOT_SUPPORTED);
    CHECK_CONTAINS(check_message(), "ncclCommMemStats needs NCCL 2.29.7 or newer");
    CHECK_STATUS(dd_nccl_comm_grow_id(rank.comm, &id, check_err()), DD_NOT_SUPPORTED);
    CHECK_CONTAINS(check_message(), "ncclCommGetUniqueId needs NCCL 2.29.2 or newer");
    CHECK_STATUS(dd_nccl_comm_grow(rank.comm, &spec, &id, &rank.child, NULL, &wait, check_err()),
                 DD_NOT_SUPPORTED);
    CHECK_CONTAINS(check_message(), "ncclCommGrow needs NCCL 2.29.2 or newer");
    CHECK_STATUS(dd_nccl_comm_shrink(rank.comm, &excluded, NULL, &rank.child, NULL, &wait, check_err()),
                 DD_NOT_SUPPORTED);
    CHECK_CONTAINS(check_message(), "2.27.3");
    CHECK_STATUS(dd_nccl_comm_register(rank.comm, &value, 8, false, &registration, &wait, check_err()),
                 DD_NOT_SUPPORTED);
    CHECK_STATUS(dd_nccl_comm_register(rank.comm, &value, 8, true, &registration, &wait, check_err()),
                 DD_NOT_SUPPORTED);
    CHECK_CONTAINS(check_message(), "ncclCommWindowRegister needs NCCL 2.27.3 or newer");
    comm_rig_release(&rank, 1);
    comm_rig_close(&rig);
}

/* When the process exits, the driver may be unloaded first. */
TEST(ending_a_communicator_after_the_driver_has_shut_down_is_no_error)
{
    comm_rig rig;
    REQUIRE(comm_rig_open(&rig, NEWEST));
    comm_rig_rank rank;
    REQUIRE(comm_rig_connect(&rig, &rank, 1, false));
    rig.on_cuda.shut_down(1);
    finalize(&rank);
    CHECK_INT(rank.status, DD_OK);
    CHECK_OK(dd_nccl_comm_destroy(rank.comm, check_err()));
    comm_rig_release(&rank, 1);
    CHECK_INT(rig.on_nccl.calls("ncclCommDestroy"), 0);
    CHECK_INT(rig.on_nccl.calls("ncclCommAbort"), 0);
    dd_nccl_lib_close(rig.lib);
    dd_cuda_close(rig.cuda);
}

TEST(a_forked_child_does_not_use_the_communicator)
{
    comm_rig rig;
    REQUIRE(comm_rig_open(&rig, NEWEST));
    comm_rig_rank rank;
    REQUIRE(comm_rig_connect(&rig, &rank, 1, false));
    pid_t pid = fork();
    if (pid == 0) {
        dd_nccl_comm_handle handle;
        CHECK_STATUS(comm_rig_enter(rank.comm, &handle), DD_FORKED);
        CHECK_STATUS(dd_nccl_comm_abort(rank.comm, "in the child", check_err()), DD_FORKED);
        dd_nccl_comm_release(rank.comm);
        CHECK_INT(rig.on_nccl.live("comm"), 1);
        _exit(check_failures() > 0);
    }
    int how = 0;
    CHECK(waitpid(pid, &how, 0) == pid && WIFEXITED(how) && WEXITSTATUS(how) == 0);
    comm_rig_release(&rank, 1);
    comm_rig_close(&rig);
}

TEST(a_nonblocking_nccl_call_is_waited_for_until_it_completes)
{
    comm_rig rig;
    REQUIRE(comm_rig_open(&rig, NEWEST));
    comm_rig_rank rank;
    REQUIRE(comm_rig_connect(&rig, &rank, 1, true));
    rig.on_nccl.slow_launches(50);
    const dd_nccl_api *api = &rig.lib->api;
    dd_cuda_guard guard;
    dd_nccl_comm_handle handle;
    REQUIRE_OK(dd_cuda_enter(rig.cuda, 0, &guard, check_err()));
    REQUIRE_OK(comm_rig_enter(rank.comm, &handle));
    const dd_cuda_api *driver = &rig.cuda->api;
    dd_cuda_ptr data;
    dd_cuda_stream stream;
    CHECK_INT(driver->cuMemAlloc(&data, 64), DD_CUDA_SUCCESS);
    CHECK_INT(driver->cuStreamCreateWithPriority(&stream, DD_CUDA_STREAM_NON_BLOCKING, 0), DD_CUDA_SUCCESS);
    void *at = (void *)(uintptr_t)data;
    CHECK_INT(api->ncclGroupStart(), DD_NCCL_SUCCESS);
    (void)api->ncclAllReduce(at, at, 16, DD_NCCL_DTYPE_FLOAT32, DD_NCCL_SUM, handle, stream);
    CHECK_INT(api->ncclGroupEnd(), DD_NCCL_IN_PROGRESS);
    dd_wait brief = dd_wait_after(5 * DD_NS_PER_MS);
    CHECK_STATUS(dd_nccl_comm_wait_ready(rank.comm, "ncclAllReduce", NULL, &brief, check_err()),
                 DD_OP_TIMED_OUT);
    CHECK_CONTAINS(check_message(), "ncclAllReduce timed out");
    dd_wait wait = dd_wait_after(5 * DD_NS_PER_S * check_slow());
    CHECK_OK(dd_nccl_comm_wait_ready(rank.comm, "ncclAllReduce", NULL, &wait, check_err()));
    dd_nccl_comm_leave(rank.comm);
    CHECK_INT(driver->cuStreamSynchronize(stream), DD_CUDA_SUCCESS);
    CHECK_INT(driver->cuStreamDestroy(stream), DD_CUDA_SUCCESS);
    CHECK_INT(driver->cuMemFree(data), DD_CUDA_SUCCESS);
    dd_cuda_leave(&guard);
    comm_rig_release(&rank, 1);
    comm_rig_close(&rig);
}

/* If allocations fail, no communicator is lost and nothing leaks. */
TEST(an_init_leaks_no_communicator_when_allocations_fail)
{
    comm_rig rig;
    REQUIRE(comm_rig_open(&rig, NEWEST));
    dd_nccl_unique_id id;
    CHECK_OK(dd_nccl_make_unique_id(rig.lib, &id, check_err()));
    dd_nccl_comm_spec spec = {.lib = rig.lib, .cuda = rig.cuda, .size = 1};
    dd_status status = DD_OUT_OF_MEMORY;
    for (long n = 0; status == DD_OUT_OF_MEMORY && n < 50; n++) {
        dd_nccl_comm *comm = NULL;
        dd_wait wait = dd_wait_after(5 * DD_NS_PER_S * check_slow());
        dd_mem_fail_after(n);
        status = dd_nccl_comm_init(&spec, &id, 1, &comm, NULL, &wait, check_err());
        dd_mem_fail_after(-1);
        dd_nccl_comm_release(comm);
    }
    CHECK_INT(status, DD_OK);
    comm_rig_close(&rig);
}

/* If the thread that closes a communicator cannot be started, the caller must close it. */
TEST(a_communicator_is_closed_by_the_caller_if_no_thread_can_be_started)
{
    for (int is_abort = 0; is_abort < 2; is_abort++) {
        comm_rig rig;
        REQUIRE(comm_rig_open(&rig, NEWEST));
        comm_rig_rank rank;
        REQUIRE(comm_rig_connect(&rig, &rank, 1, false));
        dd_nccl_comm_handle handle;
        if (is_abort) {
            REQUIRE_OK(comm_rig_enter(rank.comm, &handle));
        }
        dd_wait wait = dd_wait_after(5 * DD_NS_PER_S * check_slow());
        dd_mem_fail_after(0);
        dd_status status = is_abort ? dd_nccl_comm_abort(rank.comm, "it hangs", check_err())
                                    : dd_nccl_comm_destroy_within(rank.comm, &wait, check_err());
        dd_mem_fail_after(-1);
        CHECK_OK(status);
        CHECK_INT(rig.on_nccl.calls(is_abort ? "ncclCommAbort" : "ncclCommDestroy"), 1);
        CHECK_INT(rig.on_nccl.live("comm"), 0);
        if (is_abort) {
            dd_nccl_comm_leave(rank.comm);
        }
        comm_rig_release(&rank, 1);
        comm_rig_close(&rig);
    }
}

/* NCCL fails to open the group in which the communicator would be revoked: it is freed once the
 * thread has left. */
TEST(a_failed_revoke_frees_the_communicator_later)
{
    comm_rig rig;
    REQUIRE(comm_rig_open(&rig, NEWEST));
    comm_rig_rank rank;
    REQUIRE(comm_rig_connect(&rig, &rank, 1, false));
    dd_nccl_comm_handle handle;
    REQUIRE_OK(comm_rig_enter(rank.comm, &handle));
    rig.on_nccl.fail("ncclGroupStart", 0, DD_NCCL_INTERNAL_ERROR, "no group");
    CHECK_STATUS(dd_nccl_comm_abort(rank.comm, "it hangs", check_err()), DD_OP_TIMED_OUT);
    CHECK_INT(rig.on_nccl.calls("ncclCommAbort"), 0);
    dd_nccl_comm_leave(rank.comm);
    dd_wait wait = dd_wait_after(60 * DD_NS_PER_S * check_slow());
    while (rig.on_nccl.live("comm") > 0 && !dd_wait_has_expired(&wait)) {
        (void)!dd_wait_sleep(&wait, DD_NS_PER_MS, NULL);
    }
    CHECK_INT(rig.on_nccl.calls("ncclCommAbort"), 1);
    CHECK_INT(rig.on_nccl.live("comm"), 0);
    comm_rig_release(&rank, 1);
    comm_rig_close(&rig);
}

static bool
is_interrupted_soon(void *ctx)
{
    return ++*(int *)ctx >= 3;
}

/* A thread inside, even in a call of NCCL that hangs, must not delay a deadline or an interrupt. */
TEST(a_destroy_waits_for_a_thread_in_the_communicator_until_its_deadline)
{
    comm_rig rig;
    REQUIRE(comm_rig_open(&rig, NEWEST));
    comm_rig_rank rank;
    REQUIRE(comm_rig_connect(&rig, &rank, 1, false));
    dd_nccl_comm_handle handle;
    REQUIRE_OK(comm_rig_enter(rank.comm, &handle));
    dd_wait brief = dd_wait_after(30 * DD_NS_PER_MS);
    CHECK_STATUS(dd_nccl_comm_destroy_within(rank.comm, &brief, check_err()), DD_OP_TIMED_OUT);
    CHECK_CONTAINS(check_message(), "waiting for another thread's call on the NCCL communicator timed out");
    int nasked = 0;
    dd_wait interrupted = dd_wait_after(DD_NEVER_NS);
    interrupted.is_interrupted = is_interrupted_soon;
    interrupted.ctx = &nasked;
    CHECK_STATUS(dd_nccl_comm_destroy_within(rank.comm, &interrupted, check_err()), DD_INTERRUPTED);
    CHECK(!dd_nccl_comm_has_ended(rank.comm));
    dd_nccl_comm_leave(rank.comm);
    dd_wait wait = dd_wait_after(60 * DD_NS_PER_S * check_slow());
    CHECK_OK(dd_nccl_comm_destroy_within(rank.comm, &wait, check_err()));
    CHECK_INT(rig.on_nccl.calls("ncclCommDestroy"), 1);
    comm_rig_release(&rank, 1);
    comm_rig_close(&rig);
}

/* The call of NCCL continues in the background. */
TEST(a_destroy_that_hangs_in_nccl_can_be_interrupted)
{
    static comm_rig rig;
    REQUIRE(comm_rig_open(&rig, NEWEST));
    comm_rig_rank rank;
    REQUIRE(comm_rig_connect(&rig, &rank, 1, false));
    rig.on_nccl.hang("ncclCommDestroy", 0, -1);
    int nasked = 0;
    dd_wait interrupted = dd_wait_after(DD_NEVER_NS);
    interrupted.is_interrupted = is_interrupted_soon;
    interrupted.ctx = &nasked;
    CHECK_STATUS(dd_nccl_comm_destroy_within(rank.comm, &interrupted, check_err()), DD_INTERRUPTED);
    CHECK(dd_nccl_comm_has_ended(rank.comm));
    rig.on_nccl.release();
    comm_rig_release(&rank, 1);
    comm_rig_leave_open(&rig);
}
