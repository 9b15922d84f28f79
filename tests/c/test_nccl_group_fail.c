/* Failures around the operations of an NCCL group: opening, memory, launch order, the driver. */
#include "check.h"
#include "clock_counter.h"
#include "core/mem.h"
#include "core/thread.h"
#include "faults/faults.h"
#include "nccl/group/internal.h"
#include "nccl_rig.h"

#include <semaphore.h>
#include <sys/wait.h>
#include <unistd.h>

/* ---- opening */

static dd_status
open_group(const dd_nccl_base *base, dd_store *store, int rank, int size, dd_nccl_group **group)
{
    dd_nccl_group_options options = {.name = BYTES("another"), .timeout_ns = DD_NS_PER_S};
    dd_nccl_config_init(&options.config);
    return dd_nccl_group_open(base, store, rank, size, &options, NULL, group, check_err());
}

/* Wait for the first iteration of the watchdog's thread, which frees a block when it starts. The
 * rig's group starts that thread; its heartbeat starts at 1. */
static void
await_thread_of_watchdog(const dd_nccl_watchdog *watchdog)
{
    dd_wait wait = nccl_rig_patience();
    while (dd_nccl_watchdog_heartbeat(watchdog) == 1 && !dd_wait_has_expired(&wait)) {
        (void)!dd_wait_sleep(&wait, DD_NS_PER_MS, NULL);
    }
}

static void
open_without_memory(const dd_nccl_base *base)
{
    dd_nccl_group *group = NULL;
    await_thread_of_watchdog(base->watchdog);
    long before = dd_mem_count_blocks();
    for (long count = 0; count < 2; count++) {
        dd_mem_fail_after(count);
        CHECK_STATUS(open_group(base, NULL, 0, 1, &group), DD_OUT_OF_MEMORY);
        dd_mem_fail_after(-1);
        CHECK_INT(dd_mem_count_blocks(), before);
    }
    dd_mem_fail_after(0);
    dd_nccl_watchdog_options options = {0};
    dd_nccl_watchdog *watchdog = NULL;
    CHECK_STATUS(dd_nccl_watchdog_create(base->cuda, &options, &watchdog, check_err()), DD_OUT_OF_MEMORY);
    dd_mem_fail_after(-1);
    CHECK(watchdog == NULL);
}

static void
open_in_child(const dd_nccl_base *base)
{
    dd_nccl_group *group = NULL;
    pid_t child = fork();
    REQUIRE(child >= 0);
    if (child == 0) {
        CHECK_STATUS(open_group(base, NULL, 0, 1, &group), DD_FORKED);
        CHECK_CONTAINS(check_message(), "the watchdog of NCCL groups belongs to the process before the fork");
        _exit(check_failures() > 0);
    }
    int how = -1;
    CHECK(waitpid(child, &how, 0) == child);
    CHECK_INT(how, 0);
}

static void
open_body(nccl_rig_rank *self)
{
    nccl_rig *rig = self->rig;
    dd_nccl_base base = {rig->lib, rig->cuda, rig->watchdog};
    dd_nccl_base no_device = {rig->lib, NULL, rig->watchdog};
    dd_nccl_group *group = NULL;
    CHECK_STATUS(open_group(&no_device, NULL, 0, 1, &group), DD_NOT_SUPPORTED);
    CHECK_CONTAINS(check_message(), "needs a CUDA device: got none");
    CHECK_STATUS(open_group(&base, rig->store, 2, 2, &group), DD_INVALID_ARGUMENT);
    CHECK_CONTAINS(check_message(), "got rank 2 of 2, expected");
    CHECK_STATUS(open_group(&base, NULL, 0, 2, &group), DD_INVALID_ARGUMENT);
    CHECK_CONTAINS(check_message(), "a group of 2 ranks needs a store: got none");
    open_without_memory(&base);
    open_in_child(&base);
    CHECK(group == NULL);
}

TEST(invalid_groups_are_refused)
{
    nccl_rig_run(&(nccl_rig_options){.size = 1}, open_body, NULL);
}

/* ---- one call at a time */

/* Another thread that is inside a call. */
typedef struct other_caller {
    dd_nccl_group *group;
    pthread_t thread;
    sem_t is_in;
    sem_t is_over;
} other_caller;

static void *
stay_in_a_call(void *arg)
{
    other_caller *self = arg;
    dd_wait wait = nccl_rig_patience();
    CHECK_OK(nccl_group_enter_launch(self->group, &wait, check_err()));
    sem_post(&self->is_in);
    sem_wait(&self->is_over);
    nccl_group_leave_launch(self->group);
    return NULL;
}

static bool
wants_out(void *ctx)
{
    (void)ctx;
    return true;
}

static void
turn_body(nccl_rig_rank *self)
{
    other_caller other = {.group = self->group};
    sem_init(&other.is_in, 0, 0);
    sem_init(&other.is_over, 0, 0);
    nccl_rig_check_sum(self);
    REQUIRE_OK(dd_thread_start(&other.thread, "other", stay_in_a_call, &other, check_err()));
    sem_wait(&other.is_in);
    dd_wait wait = dd_wait_after(50 * DD_NS_PER_MS);
    CHECK_STATUS(nccl_group_enter_launch(self->group, &wait, check_err()), DD_OP_TIMED_OUT);
    CHECK_CONTAINS(check_message(), "another call of group \"rig\" has not been enqueued within 0.0");
    wait = nccl_rig_patience();
    wait.is_interrupted = wants_out;
    CHECK_STATUS(nccl_group_enter_launch(self->group, &wait, check_err()), DD_INTERRUPTED);
    /* A call that waits for its turn must fail when the group is aborted. */
    dd_wait patience = nccl_rig_patience();
    CHECK_OK(dd_nccl_group_abort(self->group, "enough", &patience, check_err()));
    CHECK_STATUS(nccl_group_enter_launch(self->group, &patience, check_err()), DD_ABORTED);
    CHECK_CONTAINS(check_message(), "enough");
    sem_post(&other.is_over);
    pthread_join(other.thread, NULL);
    sem_destroy(&other.is_in);
    sem_destroy(&other.is_over);
    CHECK_OK(dd_nccl_group_close(self->group, &patience, check_err()));
}

TEST(a_call_that_waits_for_another_threads_call_times_out)
{
    nccl_rig_run(&(nccl_rig_options){.size = 1, .is_not_closed = true}, turn_body, NULL);
}

TEST(a_call_times_out_even_if_the_system_clock_is_set_back)
{
    clock_counter_set_calendar_ahead(3600 * DD_NS_PER_S);
    nccl_rig_run(&(nccl_rig_options){.size = 1, .is_not_closed = true}, turn_body, NULL);
}

static void
closed_body(nccl_rig_rank *self)
{
    dd_cuda_stream stream;
    void *scratch = NULL;
    void *kept = NULL;
    dd_wait wait = nccl_rig_patience();
    nccl_rig_check_sum(self);
    REQUIRE_OK(dd_nccl_group_alloc_scratch(self->group, self->rank, 8, &kept, check_err()));
    dd_nccl_group_free_scratch(self->group, self->rank, kept);
    CHECK_OK(dd_nccl_group_close(self->group, &wait, check_err()));
    CHECK_STATUS(dd_nccl_group_stream(self->group, self->rank, &stream, check_err()), DD_CLOSED);
    CHECK_STATUS(dd_nccl_group_order(self->group, self->rank, &self->stream, 1, check_err()), DD_CLOSED);
    CHECK_STATUS(dd_nccl_group_alloc_scratch(self->group, self->rank, 8, &scratch, check_err()), DD_CLOSED);
    CHECK(scratch == NULL);
    dd_nccl_group_free_scratch(self->group, self->rank,
                               kept); /* the driver no longer knows the memory: no effect */
}

TEST(a_closed_group_refuses_requests_for_its_stream_and_memory)
{
    nccl_rig_run(&(nccl_rig_options){.size = 1, .is_not_closed = true}, closed_body, NULL);
}

/* ---- device memory on devices without memory pools */

static void *
alloc_scratch(nccl_rig_rank *self)
{
    void *data = NULL;
    CHECK_OK(dd_nccl_group_alloc_scratch(self->group, self->rank, 64, &data, check_err()));
    return data;
}

static void
scratch_body(nccl_rig_rank *self)
{
    nccl_rig *rig = self->rig;
    rig->cuda_stub.fail("cuMemPoolCreate", 0, DD_CUDA_ERROR_NOT_SUPPORTED, NULL);
    nccl_rig_check_sum(self);
    long before = rig->cuda_stub.live("memory");
    void *first = alloc_scratch(self);
    int gate = nccl_rig_new_gate();
    CHECK_INT(rig->gate(self->stream, gate), 0);
    CHECK_OK(dd_nccl_group_order(self->group, self->rank, &self->stream, 1, check_err()));
    dd_nccl_group_free_scratch(self->group, self->rank, first);
    void *second = alloc_scratch(self);
    /* the device may still use the first one */
    CHECK_INT(rig->cuda_stub.live("memory"), before + 2);
    rig->open_gate(gate);
    dd_cuda_stream stream;
    REQUIRE_OK(dd_nccl_group_stream(self->group, self->rank, &stream, check_err()));
    CHECK_INT(rig->cuda->api.cuStreamSynchronize(stream), DD_CUDA_SUCCESS);
    void *third = alloc_scratch(self);
    CHECK_INT(rig->cuda_stub.live("memory"), before + 2);
    rig->cuda_stub.fail("cuEventRecord", 0, DD_CUDA_ERROR_OUT_OF_MEMORY, NULL);
    dd_nccl_group_free_scratch(self->group, self->rank,
                               /* its last use is not known: it is freed when the group closes */
                               second);
    dd_nccl_group_free_scratch(self->group, self->rank, third);
    CHECK_INT(rig->cuda->api.cuStreamSynchronize(stream), DD_CUDA_SUCCESS);
    void *data = NULL;
    rig->cuda_stub.fail("cuMemAlloc", 0, DD_CUDA_ERROR_OUT_OF_MEMORY, NULL);
    CHECK_STATUS(dd_nccl_group_alloc_scratch(self->group, self->rank, 64, &data, check_err()),
                 DD_OUT_OF_MEMORY);
    CHECK_CONTAINS(check_message(), ": no 64 bytes for staging");
    rig->cuda_stub.fail("cuMemAlloc", 0, 700, NULL);
    CHECK_STATUS(dd_nccl_group_alloc_scratch(self->group, self->rank, 64, &data, check_err()), DD_BACKEND);
    CHECK_CONTAINS(check_message(), "allocating 64 bytes on device 0");
    CHECK(data == NULL);
    CHECK_INT(rig->cuda_stub.live("memory"), before + 1);
}

TEST(scratch_memory_is_reused_once_the_device_no_longer_uses_it)
{
    nccl_rig_run(&(nccl_rig_options){.size = 1}, scratch_body, NULL);
}

static void
keep_body(nccl_rig_rank *self)
{
    self->rig->cuda_stub.fail("cuMemPoolCreate", 0, DD_CUDA_ERROR_NOT_SUPPORTED, NULL);
    nccl_rig_check_sum(self);
    void *data = alloc_scratch(self);
    long before = self->rig->cuda_stub.live("memory");
    dd_mem_fail_after(0);
    dd_nccl_group_free_scratch(self->group, self->rank, data);
    dd_mem_fail_after(-1);
    dd_cuda_stream stream;
    REQUIRE_OK(dd_nccl_group_stream(self->group, self->rank, &stream, check_err()));
    CHECK_INT(self->rig->cuda->api.cuStreamSynchronize(stream), DD_CUDA_SUCCESS);
    CHECK_INT(self->rig->cuda_stub.live("memory"), before);
    nccl_rig_free(self, data);
}

TEST(scratch_memory_is_not_freed_if_its_release_cannot_be_recorded)
{
    nccl_rig_run(&(nccl_rig_options){.size = 1}, keep_body, NULL);
}

/* ---- the driver's shutdown */

static void
shut_down_body(nccl_rig_rank *self)
{
    nccl_rig_check_sum(self);
    float *data = nccl_rig_alloc(self, sizeof *data);
    dd_block block = {data, sizeof *data};
    dd_nccl_op op = nccl_rig_all_reduce(DD_DTYPE_FLOAT32, DD_REDOP_SUM, &block);
    dd_nccl_call call = nccl_rig_call(self, "all_reduce", &op, 1);
    int gate = nccl_rig_new_gate();
    dd_cuda_stream stream;
    REQUIRE_OK(dd_nccl_group_stream(self->group, self->rank, &stream, check_err()));
    CHECK_INT(self->rig->gate(self->stream, gate), 0);
    dd_nccl_work *work;
    REQUIRE_OK(nccl_rig_start(self, &call, &work, check_err()));
    self->rig->shut_down(1);
    dd_wait wait = nccl_rig_patience();
    while (!dd_work_is_done(&work->base) && !dd_wait_has_expired(&wait)) {
        (void)!dd_wait_sleep(&wait, DD_NS_PER_MS, NULL);
    }
    CHECK_STATUS(nccl_rig_wait(work, check_err()), DD_CLOSED);
    CHECK_CONTAINS(check_message(), "the CUDA driver is shutting down");
    CHECK_STATUS(dd_nccl_group_check(self->group, check_err()), DD_CLOSED);
    dd_work_release(&work->base);
    CHECK_OK(dd_nccl_group_close(self->group, &wait, check_err()));
    dd_alarm alarm;
    CHECK(!dd_recorder_take_alarm(self->rig->recorder, &alarm)); /* a shutdown is not a failure */
    self->rig->shut_down(0);
    self->rig->open_gate(gate);
    CHECK_INT(self->rig->cuda->api.cuStreamSynchronize(stream), DD_CUDA_SUCCESS);
    nccl_rig_free(self, data);
}

/* No thread waits for the work. */
TEST(the_watchdog_detects_that_the_cuda_driver_has_shut_down)
{
    nccl_rig_run(&(nccl_rig_options){.size = 1, .is_not_closed = true, .leaves_some = true}, shut_down_body,
                 NULL);
}

/* ---- shutdown of the watchdog */

static dd_nccl_watchdog *left_behind; /* its thread uses it until exit, so it is never freed */

static void
stuck_watchdog_body(nccl_rig_rank *self)
{
    nccl_rig *rig = self->rig;
    float *data = nccl_rig_alloc(self, sizeof *data);
    dd_block block = {data, sizeof *data};
    dd_nccl_op op = nccl_rig_all_reduce(DD_DTYPE_FLOAT32, DD_REDOP_SUM, &block);
    dd_nccl_call call = nccl_rig_call(self, "all_reduce", &op, 1);
    int gate = nccl_rig_new_gate();
    CHECK_INT(rig->gate(self->stream, gate), 0);
    dd_nccl_work *work;
    REQUIRE_OK(nccl_rig_start(self, &call, &work, check_err()));
    rig->cuda_stub.hang("cuEventQuery", 0, -1);
    dd_wait wait = nccl_rig_patience();
    while (rig->cuda_stub.hanging() == 0 && !dd_wait_has_expired(&wait)) {
        (void)!dd_wait_sleep(&wait, DD_NS_PER_MS, NULL);
    }
    CHECK_INT(rig->cuda_stub.hanging(), 1);
    left_behind = rig->watchdog;
    rig->watchdog = NULL;
    int64_t start_ns = dd_clock_now_ns();
    clock_counter_set_calendar_ahead(3600 * DD_NS_PER_S);
    dd_nccl_watchdog_destroy(left_behind);
    clock_counter_set_calendar_ahead(0);
    CHECK(dd_clock_now_ns() - start_ns >= 2 * DD_NS_PER_S);
    rig->cuda_stub.release();
    rig->open_gate(gate);
    CHECK_OK(nccl_rig_wait(work, check_err()));
    dd_work_release(&work->base);
    nccl_rig_free(self, data);
}

/* The shutdown is limited by the monotonic clock: the calendar may be set back during it. */
TEST(stopping_does_not_wait_for_a_watchdog_that_hangs_in_the_driver)
{
    nccl_rig_run(&(nccl_rig_options){.size = 1}, stuck_watchdog_body, NULL);
}
