/* Failures of NCCL, the driver, or another thread: every call must end soon, with the reason, and
 * without leaks. */
#include "check.h"
#include "core/mem.h"
#include "core/thread.h"
#include "faults/faults.h"
#include "nccl_rig.h"

#include <string.h>

/* A call of which only the result is checked. */
typedef struct one_attempt {
    float *data;
    dd_block block;
    dd_block blocks[4];
    dd_nccl_op op;
    dd_nccl_call call;
} one_attempt;

static void
prepare(nccl_rig_rank *self, one_attempt *attempt, dd_coll coll)
{
    attempt->data = nccl_rig_alloc(self, 64);
    memset(attempt->data, 0, 64);
    attempt->block = (dd_block){attempt->data, 4};
    for (int k = 0; k < 4; k++) {
        attempt->blocks[k] = (dd_block){attempt->data + 4 + k, 4};
    }
    bool is_each_in = dd_coll_traits_of[coll].is_split;
    bool is_each_out = dd_coll_traits_of[coll].is_collected;
    attempt->op = nccl_rig_coll(coll, DD_DTYPE_FLOAT32, is_each_in ? attempt->blocks : &attempt->block,
                                is_each_out ? attempt->blocks : &attempt->block);
    attempt->call = nccl_rig_call(self, dd_coll_name(coll), &attempt->op, 1);
}

static void
forget(nccl_rig_rank *self, one_attempt *attempt)
{
    nccl_rig_free(self, attempt->data);
}

static void
end_rank(nccl_rig_rank *self)
{
    dd_wait wait = nccl_rig_patience();
    CHECK_OK(dd_nccl_group_close(self->group, &wait, check_err()));
}

static void
wait_until_free(dd_nccl_work *work)
{
    dd_wait wait = nccl_rig_patience();
    while (!dd_nccl_work_memory_is_free(work) && !dd_wait_has_expired(&wait)) {
        (void)!dd_wait_sleep(&wait, DD_NS_PER_MS, NULL);
    }
    CHECK(dd_nccl_work_memory_is_free(work));
}

/* ---- NCCL's asynchronous errors */

static void
async_error_body(nccl_rig_rank *self)
{
    nccl_rig_check_sum(self);
    nccl_rig_meet(self);
    if (self->rank == 0) {
        self->rig->hang_kernel(-1, 0);
        self->rig->async_error(-1, DD_NCCL_REMOTE_ERROR, 0, "the cable was pulled");
    }
    nccl_rig_meet(self);
    one_attempt attempt;
    prepare(self, &attempt, DD_COLL_ALL_REDUCE);
    dd_nccl_work *work;
    dd_error error;
    dd_status status = nccl_rig_start(self, &attempt.call, &work, &error);
    if (status == DD_OK) {
        status = nccl_rig_wait(work, &error);
        CHECK_CONTAINS(error.message, "all_reduce #2 on group \"rig\" (rank ");
        wait_until_free(work);
        dd_work_release(&work->base);
    }
    CHECK_INT(status, DD_BACKEND);
    CHECK_CONTAINS(error.message, "ncclRemoteError");
    CHECK_CONTAINS(error.message, "the cable was pulled");
    CHECK_STATUS(nccl_rig_do(self, &attempt.call, check_err()), DD_BACKEND);
    CHECK_CONTAINS(check_message(), "has failed: ");
    end_rank(self);
    forget(self, &attempt);
}

TEST(an_asynchronous_nccl_error_fails_the_group)
{
    nccl_rig_run(&(nccl_rig_options){.size = 2, .is_not_closed = true}, async_error_body, NULL);
    nccl_rig_run(&(nccl_rig_options){.size = 2, .is_not_closed = true, .is_nonblocking = true},
                 async_error_body, NULL);
}

/* ---- timeouts */

/* After a sum that succeeds, the kernels of all ranks hang. */
static void
hang_all(nccl_rig_rank *self)
{
    nccl_rig_check_sum(self);
    nccl_rig_meet(self);
    if (self->rank == 0) {
        self->rig->hang_kernel(-1, 0);
    }
    nccl_rig_meet(self);
}

static void
hang_body(nccl_rig_rank *self)
{
    hang_all(self);
    one_attempt first;
    one_attempt second;
    prepare(self, &first, DD_COLL_ALL_REDUCE);
    prepare(self, &second, DD_COLL_BROADCAST);
    first.call.timeout_ns = 100 * DD_NS_PER_MS;
    dd_nccl_work *works[2];
    int64_t began_ns = dd_clock_now_ns();
    REQUIRE_OK(nccl_rig_start(self, &first.call, &works[0], check_err()));
    REQUIRE_OK(nccl_rig_start(self, &second.call, &works[1], check_err()));
    CHECK_STATUS(nccl_rig_wait(works[0], check_err()), DD_OP_TIMED_OUT);
    CHECK_CONTAINS(check_message(), "all_reduce #2 on group \"rig\"");
    CHECK_CONTAINS(check_message(), "): timed out after 0.1 s (enqueued 0.");
    CHECK_CONTAINS(check_message(), "sequence 2; last completed 1");
    CHECK_STATUS(nccl_rig_wait(works[1], check_err()), DD_OP_TIMED_OUT);
    CHECK_CONTAINS(check_message(), "broadcast #3 on group \"rig\"");
    CHECK_CONTAINS(check_message(), "): all_reduce #2 of rank ");
    CHECK(dd_clock_now_ns() - began_ns < 5 * DD_NS_PER_S * check_slow());
    for (int i = 0; i < 2; i++) {
        wait_until_free(works[i]);
        dd_work_release(&works[i]->base);
    }
    end_rank(self);
    forget(self, &first);
    forget(self, &second);
    nccl_rig_meet(self);
    if (self->rank == 0) {
        dd_alarm alarm;
        dd_wait wait = nccl_rig_patience();
        while (!dd_recorder_take_alarm(self->rig->recorder, &alarm)) {
            REQUIRE_OK(dd_wait_sleep(&wait, DD_NS_PER_MS, check_err()));
            REQUIRE(!dd_wait_has_expired(&wait));
        }
        CHECK_INT(alarm.error.code, DD_OP_TIMED_OUT);
    }
}

static void
first_deadline_body(nccl_rig_rank *self)
{
    hang_all(self);
    one_attempt long_wait;
    one_attempt hasty;
    prepare(self, &long_wait, DD_COLL_ALL_REDUCE);
    prepare(self, &hasty, DD_COLL_BROADCAST);
    long_wait.call.timeout_ns = 600 * DD_NS_PER_S;
    hasty.call.timeout_ns = 50 * DD_NS_PER_MS;
    dd_nccl_work *works[2];
    REQUIRE_OK(nccl_rig_start(self, &long_wait.call, &works[0], check_err()));
    REQUIRE_OK(nccl_rig_start(self, &hasty.call, &works[1], check_err()));
    CHECK_STATUS(nccl_rig_wait(works[0], check_err()), DD_OP_TIMED_OUT);
    CHECK_CONTAINS(check_message(), "): broadcast #3 of rank ");
    CHECK_CONTAINS(check_message(), " timed out after 0.05 s");
    for (int i = 0; i < 2; i++) {
        wait_until_free(works[i]);
        dd_work_release(&works[i]->base);
    }
    end_rank(self);
    forget(self, &long_wait);
    forget(self, &hasty);
}

TEST(a_later_call_with_an_earlier_deadline_times_out_first)
{
    nccl_rig_run(&(nccl_rig_options){.size = 2, .is_not_closed = true}, first_deadline_body, NULL);
}

TEST(a_hanging_kernel_times_out)
{
    nccl_rig_run(&(nccl_rig_options){.size = 2, .is_not_closed = true}, hang_body, NULL);
}

static void
abort_off_body(nccl_rig_rank *self)
{
    hang_all(self);
    one_attempt attempt;
    prepare(self, &attempt, DD_COLL_ALL_REDUCE);
    attempt.call.timeout_ns = 50 * DD_NS_PER_MS;
    dd_nccl_work *work;
    REQUIRE_OK(nccl_rig_start(self, &attempt.call, &work, check_err()));
    CHECK_STATUS(nccl_rig_wait(work, check_err()), DD_OP_TIMED_OUT);
    nccl_rig_meet(self);
    CHECK(!dd_nccl_work_memory_is_free(work)); /* the kernel still runs */
    CHECK_INT(self->rig->nccl_stub.calls("ncclCommAbort"), 0);
    nccl_rig_meet(self);
    dd_wait wait = nccl_rig_patience();
    CHECK_OK(dd_nccl_group_abort(self->group, "the end of the test", &wait, check_err()));
    wait_until_free(work);
    dd_work_release(&work->base);
    end_rank(self);
    forget(self, &attempt);
}

TEST(errors_are_reported_without_an_abort_if_aborts_are_off)
{
    nccl_rig_run(&(nccl_rig_options){.size = 2, .is_not_closed = true, .is_abort_off = true}, abort_off_body,
                 NULL);
}

/* ---- communicators that cannot be created */

static void
init_failure_body(nccl_rig_rank *self)
{
    if (self->rank == 1) {
        self->rig->nccl_stub.fail("(init)", 0, DD_NCCL_SYSTEM_ERROR, "no socket for you");
    }
    nccl_rig_meet(self);
    one_attempt attempt;
    prepare(self, &attempt, DD_COLL_ALL_REDUCE);
    dd_status status = nccl_rig_do(self, &attempt.call, check_err());
    CHECK(status == DD_BACKEND || status == DD_OP_TIMED_OUT);
    bool is_victim = status == DD_BACKEND;
    CHECK_CONTAINS(check_message(), "creating a communicator for group \"rig\"");
    if (is_victim) {
        CHECK_CONTAINS(check_message(), "no socket for you");
    }
    CHECK_INT(nccl_rig_do(self, &attempt.call, NULL), status);
    end_rank(self);
    forget(self, &attempt);
}

TEST(an_init_that_fails_on_one_rank_fails_on_all_ranks)
{
    nccl_rig_options options = {.size = 2, .is_not_closed = true, .timeout_ns = 500 * DD_NS_PER_MS};
    options.is_nonblocking = true;
    nccl_rig_run(&options, init_failure_body, NULL);
}

static void *
abort_soon(void *arg)
{
    nccl_rig_rank *self = arg;
    dd_wait wait = nccl_rig_patience();
    while (self->rig->nccl_stub.hanging() == 0 && !dd_wait_has_expired(&wait)) {
        (void)!dd_wait_sleep(&wait, DD_NS_PER_MS, NULL);
    }
    CHECK_OK(dd_nccl_group_abort(self->group, "enough", &wait, check_err()));
    return NULL;
}

static void
abort_in_init_body(nccl_rig_rank *self)
{
    self->rig->nccl_stub.hang("(init)", 0, -1);
    pthread_t other;
    REQUIRE_OK(dd_thread_start(&other, "other", abort_soon, self, check_err()));
    one_attempt attempt;
    prepare(self, &attempt, DD_COLL_ALL_REDUCE);
    CHECK_STATUS(nccl_rig_do(self, &attempt.call, check_err()), DD_ABORTED);
    CHECK_CONTAINS(check_message(), "aborted the group: enough");
    pthread_join(other, NULL);
    self->rig->nccl_stub.release();
    end_rank(self);
    forget(self, &attempt);
}

TEST(an_abort_ends_the_creation_of_a_communicator)
{
    nccl_rig_run(&(nccl_rig_options){.size = 1, .is_not_closed = true, .is_nonblocking = true},
                 abort_in_init_body, NULL);
}

/* ---- abort from another thread during each operation */

static void *
abort_when_under_way(void *arg)
{
    nccl_rig_rank *self = arg;
    dd_wait wait = nccl_rig_patience();
    while (dd_nccl_group_sequence(self->group) < 2 && !dd_wait_has_expired(&wait)) {
        (void)!dd_wait_sleep(&wait, DD_NS_PER_MS / 10, NULL);
    }
    CHECK_OK(dd_nccl_group_abort(self->group, "enough", &wait, check_err()));
    CHECK_OK(dd_nccl_group_abort(self->group, "more than enough", &wait, check_err()));
    return NULL;
}

static void
abort_body(nccl_rig_rank *self)
{
    dd_coll coll = *(const dd_coll *)self->arg;
    hang_all(self);
    dd_cuda_stream stream;
    REQUIRE_OK(dd_nccl_group_stream(self->group, self->rank, &stream, check_err()));
    pthread_t other;
    REQUIRE_OK(dd_thread_start(&other, "other", abort_when_under_way, self, check_err()));
    one_attempt attempt;
    prepare(self, &attempt, coll);
    dd_nccl_work *work;
    dd_status status = nccl_rig_start(self, &attempt.call, &work, check_err());
    if (status == DD_OK) {
        status = nccl_rig_wait(work, check_err());
        pthread_join(other, NULL);
        wait_until_free(work);
        dd_work_release(&work->base);
    } else {
        pthread_join(other, NULL);
        /* There is no work to query, and a kernel may have been enqueued. */
        CHECK_INT(self->rig->cuda->api.cuStreamSynchronize(stream), DD_CUDA_SUCCESS);
    }
    CHECK_INT(status, DD_ABORTED);
    CHECK_CONTAINS(check_message(), "aborted the group: enough");
    end_rank(self);
    forget(self, &attempt);
}

TEST(an_abort_ends_each_operation)
{
    for (int coll = 0; coll < DD_COLL_COUNT; coll++) {
        if (!dd_coll_traits_of[coll].is_common) {
            continue;
        }
        dd_coll which = (dd_coll)coll;
        nccl_rig_run(&(nccl_rig_options){.size = 2, .is_not_closed = true, .is_nonblocking = coll % 2 == 1},
                     abort_body, &which);
    }
}

/* ---- an abort that hangs */

static void
hanging_abort_body(nccl_rig_rank *self)
{
    nccl_rig_check_sum(self);
    self->rig->hang_kernel(0, 0);
    self->rig->nccl_stub.hang("ncclCommAbort", 0, -1);
    one_attempt attempt;
    prepare(self, &attempt, DD_COLL_ALL_REDUCE);
    dd_nccl_work *work;
    REQUIRE_OK(nccl_rig_start(self, &attempt.call, &work, check_err()));
    dd_error cause;
    dd_error_set(&cause, DD_BACKEND, "another thread has noticed");
    dd_nccl_group_fail(self->group, &cause);
    CHECK_STATUS(nccl_rig_wait(work, check_err()), DD_BACKEND);
    CHECK_CONTAINS(check_message(), "another thread has noticed");
    CHECK(!dd_nccl_work_memory_is_free(work));
    dd_wait brief = dd_wait_after(50 * DD_NS_PER_MS);
    CHECK_STATUS(dd_nccl_group_abort(self->group, "enough", &brief, check_err()), DD_OP_TIMED_OUT);
    brief = dd_wait_after(50 * DD_NS_PER_MS);
    CHECK_OK(dd_nccl_group_close(self->group, &brief, check_err()));
    self->rig->nccl_stub.release();
    wait_until_free(work);
    dd_work_release(&work->base);
    forget(self, &attempt);
}

TEST(an_abort_that_hangs_does_not_delay_waiting_threads)
{
    nccl_rig_run(&(nccl_rig_options){.size = 1, .is_not_closed = true}, hanging_abort_body, NULL);
}

/* The pair's communicator and the communicator of all ranks. */
static void
one_of_two_aborts_body(nccl_rig_rank *self)
{
    nccl_rig_stub *nccl = &self->rig->nccl_stub;
    int *data = nccl_rig_alloc(self, sizeof *data);
    dd_nccl_op op = {.kind = self->rank == 0 ? DD_NCCL_OP_SEND : DD_NCCL_OP_RECV,
                     .block = {data, sizeof *data},
                     .dtype = DD_DTYPE_INT32,
                     .peer = !self->rank};
    dd_nccl_call call = nccl_rig_call(self, "message", &op, 1);
    CHECK_OK(nccl_rig_do(self, &call, check_err()));
    nccl_rig_free(self, data);
    nccl_rig_check_sum(self);
    nccl_rig_meet(self);
    if (self->rank == 0) {
        nccl->hang("ncclCommAbort", 0, -1);
    }
    nccl_rig_meet(self);
    dd_wait brief = dd_wait_after(50 * DD_NS_PER_MS);
    (void)!dd_nccl_group_abort(self->group, "enough", &brief, check_err());
    dd_wait wait = nccl_rig_patience();
    while (nccl->calls("ncclCommAbort") < 2 * self->size && !dd_wait_has_expired(&wait)) {
        (void)!dd_wait_sleep(&wait, DD_NS_PER_MS, NULL);
    }
    CHECK_INT(nccl->calls("ncclCommAbort"), 2 * self->size);
    nccl_rig_meet(self);
    CHECK_INT(nccl->hanging(), 1);
    nccl_rig_meet(self);
    nccl->release();
    wait = nccl_rig_patience();
    CHECK_OK(dd_nccl_group_abort(self->group, "enough", &wait, check_err()));
    CHECK_OK(dd_nccl_group_close(self->group, &wait, check_err()));
}

TEST(an_abort_that_hangs_does_not_prevent_aborts_of_other_communicators)
{
    nccl_rig_run(&(nccl_rig_options){.size = 2, .is_not_closed = true}, one_of_two_aborts_body, NULL);
}

/* Freeing memory waits for the whole device, and NCCL frees memory when it aborts. A blocked
 * stream, such as the caller's, delays that abort in its thread, but must not delay the group. */
static void
stuck_pair_body(nccl_rig_rank *self)
{
    const nccl_rig_stub *cuda = &self->rig->cuda_stub;
    self->rig->end_apart(1); /* each rank's abort waits for its device */
    int *data = nccl_rig_alloc(self, sizeof *data);
    int gate = nccl_rig_new_gate();
    CHECK_INT(self->rig->gate(self->stream, gate), 0);
    dd_nccl_op op = {.kind = self->rank == 0 ? DD_NCCL_OP_SEND : DD_NCCL_OP_RECV,
                     .block = {data, sizeof *data},
                     .dtype = DD_DTYPE_INT32,
                     .peer = !self->rank};
    dd_nccl_call call = nccl_rig_call(self, "message", &op, 1);
    dd_nccl_work *work;
    REQUIRE_OK(nccl_rig_start(self, &call, &work, check_err()));
    nccl_rig_meet(self);
    long nfrees = cuda->calls("cuMemFree");
    nccl_rig_meet(self);
    dd_wait brief = dd_wait_after(100 * DD_NS_PER_MS);
    CHECK_STATUS(dd_nccl_group_abort(self->group, "enough", &brief, check_err()), DD_OP_TIMED_OUT);
    CHECK_CONTAINS(check_message(), "its thread keeps waiting for it");
    CHECK_STATUS(nccl_rig_wait(work, check_err()), DD_ABORTED);
    CHECK_OK(dd_nccl_group_close(self->group, &brief, check_err()));
    nccl_rig_meet(self);
    CHECK_INT(cuda->calls("cuMemFree"), nfrees);
    nccl_rig_meet(self);
    self->rig->open_gate(gate);
    dd_wait wait = nccl_rig_patience();
    CHECK_OK(dd_nccl_group_abort(self->group, "enough", &wait, check_err()));
    wait_until_free(work);
    dd_work_release(&work->base);
    nccl_rig_free(self, data);
}

TEST(a_blocked_stream_delays_the_abort_but_not_the_failure_of_the_group)
{
    nccl_rig_run(&(nccl_rig_options){.size = 2, .is_not_closed = true, .leaves_some = true}, stuck_pair_body,
                 NULL);
}

/* ---- the watchdog next to a thread inside NCCL */

static void *
release_after_looks(void *arg)
{
    nccl_rig *rig = arg;
    dd_wait wait = nccl_rig_patience();
    while (rig->nccl_stub.hanging() == 0 && !dd_wait_has_expired(&wait)) {
        (void)!dd_wait_sleep(&wait, DD_NS_PER_MS, NULL);
    }
    uint64_t begun = dd_nccl_watchdog_heartbeat(rig->watchdog);
    while (dd_nccl_watchdog_heartbeat(rig->watchdog) < begun + 3 && !dd_wait_has_expired(&wait)) {
        (void)!dd_wait_sleep(&wait, DD_NS_PER_MS, NULL);
    }
    CHECK(!dd_wait_has_expired(&wait));
    rig->nccl_stub.release();
    return NULL;
}

static void
inside_body(nccl_rig_rank *self)
{
    nccl_rig_check_sum(self);
    float *data = nccl_rig_alloc(self, 2 * sizeof *data);
    data[0] = data[1] = 1;
    dd_block blocks[] = {{data, 4}, {data + 1, 4}};
    dd_nccl_op ops[] = {nccl_rig_all_reduce(DD_DTYPE_FLOAT32, DD_REDOP_SUM, &blocks[0]),
                        nccl_rig_all_reduce(DD_DTYPE_FLOAT32, DD_REDOP_SUM, &blocks[1])};
    dd_nccl_call call = nccl_rig_call(self, "coalesced", ops, 2);
    self->rig->nccl_stub.hang("ncclGroupEnd", 0, -1);
    pthread_t thread;
    REQUIRE_OK(dd_thread_start(&thread, "release", release_after_looks, self->rig, check_err()));
    CHECK_OK(nccl_rig_do(self, &call, check_err()));
    pthread_join(thread, NULL);
    CHECK_INT(self->rig->nccl_stub.bad_uses(), 0);
    nccl_rig_free(self, data);
}

TEST(the_watchdog_skips_a_communicator_in_use)
{
    nccl_rig_run(&(nccl_rig_options){.size = 1, .is_nonblocking = true}, inside_body, NULL);
}

/* ---- groups that are released, launches that fail, the driver's shutdown */

static void
release_body(nccl_rig_rank *self)
{
    nccl_rig_check_sum(self);
    self->rig->hang_kernel(self->rank, 0);
    one_attempt attempt;
    prepare(self, &attempt, DD_COLL_ALL_REDUCE);
    dd_nccl_work *work;
    REQUIRE_OK(nccl_rig_start(self, &attempt.call, &work, check_err()));
    dd_nccl_group_release(self->group);
    self->group = NULL;
    CHECK_STATUS(nccl_rig_wait(work, check_err()), DD_ABORTED);
    wait_until_free(work);
    dd_work_release(&work->base);
    forget(self, &attempt);
}

TEST(a_group_can_be_released_without_closing_it)
{
    nccl_rig_run(&(nccl_rig_options){.size = 1, .is_not_closed = true}, release_body, NULL);
}

static void
launch_failure_body(nccl_rig_rank *self)
{
    nccl_rig_check_sum(self);
    nccl_rig_meet(self);
    one_attempt attempt;
    prepare(self, &attempt, DD_COLL_ALL_REDUCE);
    self->rig->nccl_stub.fail("ncclAllReduce", 0, DD_NCCL_UNHANDLED_CUDA_ERROR, "no kernel image");
    dd_error error;
    CHECK_STATUS(nccl_rig_do(self, &attempt.call, &error), DD_BACKEND);
    CHECK_CONTAINS(error.message, "all_reduce #2 on group \"rig\"");
    CHECK_CONTAINS(error.message, "no kernel image");
    CHECK_STATUS(nccl_rig_do(self, &attempt.call, &error), DD_BACKEND);
    CHECK_CONTAINS(error.message, "has failed: all_reduce #2 of rank 0: ncclAllReduce");
    end_rank(self);
    forget(self, &attempt);
}

TEST(a_failed_launch_fails_the_group)
{
    nccl_rig_run(&(nccl_rig_options){.size = 1, .is_not_closed = true}, launch_failure_body, NULL);
}

static void
shut_down_body(nccl_rig_rank *self)
{
    nccl_rig_check_sum(self);
    one_attempt attempt;
    prepare(self, &attempt, DD_COLL_ALL_REDUCE);
    int gate = 77;
    dd_cuda_stream stream;
    REQUIRE_OK(dd_nccl_group_stream(self->group, self->rank, &stream, check_err()));
    CHECK_INT(self->rig->gate(self->stream, gate), 0);
    dd_nccl_work *work;
    REQUIRE_OK(nccl_rig_start(self, &attempt.call, &work, check_err()));
    self->rig->shut_down(1);
    CHECK_STATUS(nccl_rig_wait(work, check_err()), DD_CLOSED);
    CHECK_CONTAINS(check_message(), "the CUDA driver is shutting down");
    CHECK(dd_nccl_work_memory_is_free(work));
    dd_work_release(&work->base);
    CHECK_STATUS(nccl_rig_do(self, &attempt.call, check_err()), DD_CLOSED);
    end_rank(self);
    dd_nccl_group_release(self->group);
    self->group = NULL;
    dd_alarm alarm;
    CHECK(!dd_recorder_take_alarm(self->rig->recorder, &alarm));
    self->rig->shut_down(0);
    self->rig->open_gate(gate);
    CHECK_INT(self->rig->cuda->api.cuStreamSynchronize(stream), DD_CUDA_SUCCESS);
    forget(self, &attempt);
}

TEST(pending_operations_end_without_an_alarm_when_the_driver_shuts_down)
{
    nccl_rig_run(&(nccl_rig_options){.size = 1, .is_not_closed = true, .leaves_some = true}, shut_down_body,
                 NULL);
}

/* ---- failed allocations */

static void
memory_body(nccl_rig_rank *self)
{
    nccl_rig_check_sum(self);
    one_attempt attempt;
    prepare(self, &attempt, DD_COLL_ALL_REDUCE);
    dd_nccl_work *kept[80]; /* more than the pool keeps */
    int nkept = 0;
    for (int after = 0; nkept < 80; after++) {
        (void)dd_mem_fail_after(after % 3);
        dd_error error;
        dd_nccl_work *work = NULL;
        dd_status status = nccl_rig_start(self, &attempt.call, &work, &error);
        (void)dd_mem_fail_after(-1);
        if (status == DD_OK) {
            kept[nkept++] = work;
        } else if (!CHECK_INT(status, DD_OUT_OF_MEMORY)) {
            break;
        }
    }
    for (int i = 0; i < nkept; i++) {
        CHECK_OK(nccl_rig_wait(kept[i], check_err()));
        dd_work_release(&kept[i]->base);
    }
    nccl_rig_check_sum(self);
    forget(self, &attempt);
}

TEST(a_group_stays_usable_when_allocating_an_operation_fails)
{
    nccl_rig_run(&(nccl_rig_options){.size = 1}, memory_body, NULL);
}
