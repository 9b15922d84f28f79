/* The lifetime of a group, besides its operations: forked children, several devices, communicators
 * created elsewhere, reused names, and closes and aborts during other calls. */
#include "check.h"
#include "core/thread.h"
#include "nccl/group/internal.h"
#include "nccl_rig.h"

#include <sys/wait.h>
#include <unistd.h>

/* A sum of one float on a device that may differ from the rank's. The caller frees it. */
typedef struct sum_on {
    float *data;
    dd_block block;
    dd_nccl_op op;
    dd_nccl_call call;
} sum_on;

static void
prepare_sum(nccl_rig_rank *self, sum_on *sum, int device)
{
    dd_cuda_guard guard;
    CHECK_OK(dd_cuda_enter(self->rig->cuda, device, &guard, check_err()));
    sum->data = nccl_rig_alloc(self, sizeof *sum->data);
    *sum->data = 1;
    dd_cuda_leave(&guard);
    sum->block = (dd_block){sum->data, sizeof *sum->data};
    sum->op = nccl_rig_all_reduce(DD_DTYPE_FLOAT32, DD_REDOP_SUM, &sum->block);
    sum->call = nccl_rig_call(self, "all_reduce", &sum->op, 1);
    sum->call.device = device;
    sum->call.nstreams = 0;
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

static void
hang_next_kernels(nccl_rig_rank *self)
{
    nccl_rig_meet(self);
    if (self->rank == 0) {
        self->rig->hang_kernel(-1, 0);
    }
    nccl_rig_meet(self);
}

/* ---- concurrent closes */

#define SLOW_END_NS (300 * DD_NS_PER_MS)

/* Send a message between each two ranks, which creates a communicator for each pair, and run a sum,
 * which creates a communicator of all ranks. */
static void
connect_all_ways(nccl_rig_rank *self)
{
    int *data = nccl_rig_alloc(self, sizeof *data);
    for (int a = 0; a < self->size; a++) {
        for (int b = a + 1; b < self->size; b++) {
            if (self->rank != a && self->rank != b) {
                continue;
            }
            bool is_sender = self->rank == a;
            dd_nccl_op op = {.kind = is_sender ? DD_NCCL_OP_SEND : DD_NCCL_OP_RECV,
                             .block = {data, sizeof *data},
                             .dtype = DD_DTYPE_INT32,
                             .peer = is_sender ? b : a};
            dd_nccl_call call = nccl_rig_call(self, "message", &op, 1);
            CHECK_OK(nccl_rig_do(self, &call, check_err()));
        }
    }
    nccl_rig_free(self, data);
    nccl_rig_check_sum(self);
}

static void
close_pairs_body(nccl_rig_rank *self)
{
    connect_all_ways(self);
    nccl_rig_meet(self);
    if (self->rank == 0) {
        CHECK_INT(self->rig->nccl_stub.live("comm"), 4 + 2 * 6);
        self->rig->end_apart(1);
        self->rig->slow_ends((int)(SLOW_END_NS / DD_NS_PER_MS));
    }
    nccl_rig_meet(self);
    int64_t began_ns = dd_clock_now_ns();
    dd_wait wait = nccl_rig_patience();
    CHECK_OK(dd_nccl_group_close(self->group, &wait, check_err()));
    /* four closes in sequence would take longer */
    CHECK(dd_clock_now_ns() - began_ns < 3 * SLOW_END_NS * check_slow());
    CHECK_OK(dd_nccl_group_close(self->group, &wait, check_err()));
    nccl_rig_meet(self);
    if (self->rank == 0) {
        self->rig->slow_ends(0);
        self->rig->end_apart(0);
    }
}

TEST(communicators_of_a_group_are_ended_at_the_same_time)
{
    nccl_rig_run(&(nccl_rig_options){.size = 4}, close_pairs_body, NULL);
    nccl_rig_run(&(nccl_rig_options){.size = 4, .is_nonblocking = true}, close_pairs_body, NULL);
}

static void
close_some_body(nccl_rig_rank *self)
{
    connect_all_ways(self);
    nccl_rig_meet(self);
    if (self->rank == 0) {
        self->rig->nccl_stub.fail("ncclCommFinalize", 0, DD_NCCL_INTERNAL_ERROR, "it does not end");
        self->rig->nccl_stub.fail("ncclCommFinalize", 0, DD_NCCL_INTERNAL_ERROR, "it does not end");
        dd_wait wait = nccl_rig_patience();
        long nbefore = self->rig->nccl_stub.calls("ncclCommFinalize");
        CHECK_STATUS(dd_nccl_group_close(self->group, &wait, check_err()), DD_BACKEND);
        /* none is finalized twice */
        CHECK_INT(self->rig->nccl_stub.calls("ncclCommFinalize") - nbefore, 3);
        CHECK_CONTAINS(check_message(),
                       "closing the group: 2 communicators failed to close, the first of them: ");
        CHECK_CONTAINS(check_message(), "it does not end");
    }
    nccl_rig_meet(self);
}

TEST(all_communicators_end_even_if_some_fail)
{
    nccl_rig_run(&(nccl_rig_options){.size = 3}, close_some_body, NULL);
}

static void
post_close_body(nccl_rig_rank *self)
{
    nccl_rig_check_sum(self);
    dd_nccl_group *groups[3] = {self->group};
    for (int i = 1; i < 3; i++) {
        CHECK(nccl_rig_open_group(self, i == 1 ? "second" : "third"));
        nccl_rig_check_sum(self);
        groups[i] = self->group;
    }
    (void)dd_nccl_group_acquire(self->group); /* the rig also releases it */
    nccl_rig_meet(self);
    if (self->rank == 0) {
        self->rig->nccl_stub.hang("ncclCommDestroy", 0, -1);
    }
    nccl_rig_meet(self);
    dd_nccl_groups_post_close(groups, 3);
    dd_wait soon = dd_wait_after(DD_NS_PER_S / 2);
    int nlate = 0;
    for (int i = 0; i < 3; i++) { /* the others must not wait for the one that hangs */
        dd_status status = dd_nccl_group_close(groups[i], &soon, check_err());
        CHECK(status == DD_OK || status == DD_OP_TIMED_OUT);
        nlate += status == DD_OP_TIMED_OUT;
    }
    CHECK(nlate <= 1);
    nccl_rig_meet(self);
    if (self->rank == 0) {
        self->rig->nccl_stub.release();
    }
    for (int i = 0; i < 3; i++) {
        dd_nccl_group_release(groups[i]);
    }
}

TEST(several_groups_are_closed_at_the_same_time)
{
    nccl_rig_run(&(nccl_rig_options){.size = 2, .is_not_closed = true}, post_close_body, NULL);
}

/* ---- forks */

static void
use_in_child(nccl_rig_rank *self, dd_nccl_work *work, const sum_on *sum)
{
    dd_wait wait = nccl_rig_patience();
    long nevents = self->rig->cuda_stub.live("event");
    dd_nccl_work *another;
    dd_nccl_comm *comm;
    dd_cuda_stream stream;
    void *scratch;
    CHECK_STATUS(dd_nccl_group_check(self->group, check_err()), DD_FORKED);
    CHECK_STATUS(nccl_rig_start(self, &sum->call, &another, check_err()), DD_FORKED);
    CHECK_CONTAINS(check_message(), "group \"rig\" belongs to the process before the fork");
    CHECK_STATUS(dd_nccl_group_connect(self->group, self->rank, &comm, &wait, check_err()), DD_FORKED);
    CHECK(dd_nccl_group_find_comm(self->group, self->rank) == NULL);
    CHECK_STATUS(dd_nccl_group_stream(self->group, self->rank, &stream, check_err()), DD_FORKED);
    CHECK_STATUS(dd_nccl_group_alloc_scratch(self->group, self->rank, 1, &scratch, check_err()), DD_FORKED);
    CHECK_STATUS(nccl_rig_wait(work, check_err()), DD_FORKED);
    CHECK_STATUS(dd_nccl_work_wait_stream(work, self->stream, check_err()), DD_FORKED);
    CHECK(!dd_nccl_work_poll(work));
    CHECK_STATUS(dd_nccl_group_abort(self->group, "in the child", &wait, check_err()), DD_FORKED);
    CHECK_STATUS(dd_nccl_group_close(self->group, &wait, check_err()), DD_FORKED);
    dd_work_release(&work->base);
    dd_nccl_group_release(self->group);
    CHECK_INT(self->rig->cuda_stub.live("event"), nevents);
    CHECK_INT(self->rig->nccl_stub.live("comm"), 1);
    CHECK_INT(self->rig->nccl_stub.calls("ncclCommAbort"), 0);
}

static void
fork_body(nccl_rig_rank *self)
{
    nccl_rig_check_sum(self);
    sum_on sum;
    prepare_sum(self, &sum, self->rank);
    dd_nccl_work *work;
    int gate = nccl_rig_new_gate();
    /* the work is pending when the process forks */
    CHECK_INT(self->rig->gate(self->stream, gate), 0);
    sum.call.nstreams = 1;
    REQUIRE_OK(nccl_rig_start(self, &sum.call, &work, check_err()));
    pid_t child = fork();
    REQUIRE(child >= 0);
    if (child == 0) {
        use_in_child(self, work, &sum);
        _exit(check_failures() > 0);
    }
    int how = 0;
    CHECK(waitpid(child, &how, 0) == child && WIFEXITED(how) && WEXITSTATUS(how) == 0);
    self->rig->open_gate(gate);
    CHECK_OK(nccl_rig_wait(work, check_err()));
    dd_work_release(&work->base);
    nccl_rig_check_sum(self);
    nccl_rig_free(self, sum.data);
}

TEST(a_forked_child_calls_no_function_of_nccl_or_cuda)
{
    nccl_rig_run(&(nccl_rig_options){.size = 1}, fork_body, NULL);
}

/* ---- several devices */

static void
devices_body(nccl_rig_rank *self)
{
    sum_on sums[3];
    dd_nccl_work *works[3];
    for (int i = 0; i < 3; i++) { /* ranks use devices 0, 2, 4 and 1, 3, 5 */
        prepare_sum(self, &sums[i], self->rank + i * self->size);
        REQUIRE_OK(nccl_rig_start(self, &sums[i].call, &works[i], check_err()));
    }
    for (int i = 0; i < 3; i++) {
        CHECK_OK(nccl_rig_wait(works[i], check_err()));
        CHECK_INT((int)*sums[i].data, self->size);
        dd_work_release(&works[i]->base);
        dd_nccl_comm *comm = dd_nccl_group_find_comm(self->group, self->rank + i * self->size);
        REQUIRE(comm != NULL);
        CHECK_INT(dd_nccl_comm_device(comm), self->rank + i * self->size);
        dd_nccl_comm_release(comm);
        int device = -1;
        CHECK_OK(dd_cuda_current_device(self->rig->cuda, &device, check_err()));
        CHECK_INT(device, self->rank);
        nccl_rig_free(self, sums[i].data);
    }
    CHECK_INT(dd_nccl_group_sequence(self->group), 3);
    CHECK_STATUS(
        nccl_rig_do(self, &(dd_nccl_call){.label = "none", .device = 99, .timeout_ns = -1}, check_err()),
        DD_INVALID_ARGUMENT);
}

TEST(a_rank_may_use_several_devices)
{
    nccl_rig_run(&(nccl_rig_options){.size = 2}, devices_body, NULL);
    nccl_rig_run(&(nccl_rig_options){.size = 2, .is_nonblocking = true}, devices_body, NULL);
}

/* ---- communicators created elsewhere */

static dd_nccl_comm *
split_off(nccl_rig_rank *self)
{
    dd_wait wait = nccl_rig_patience();
    dd_nccl_comm *whole = NULL;
    dd_nccl_comm *part = NULL;
    CHECK_OK(dd_nccl_group_connect(self->group, self->rank, &whole, &wait, check_err()));
    CHECK_OK(dd_nccl_comm_split(whole, 0, self->rank, NULL, &part, NULL, &wait, check_err()));
    dd_nccl_comm_release(whole);
    return part;
}

static void
adopt_body(nccl_rig_rank *self)
{
    dd_nccl_comm *part = split_off(self);
    nccl_rig_rank child = *self;
    REQUIRE(part != NULL && nccl_rig_open_group(&child, "child"));
    dd_wait wait = nccl_rig_patience();
    CHECK_OK(dd_nccl_group_adopt(child.group, self->rank, part, check_err()));
    nccl_rig_check_sum(&child);
    nccl_rig_check_sum(self);
    nccl_rig_meet(self);
    CHECK_INT(self->rig->nccl_stub.made("comm"), 2 * self->size);
    CHECK_STATUS(dd_nccl_group_adopt(child.group, self->rank, split_off(self), check_err()),
                 DD_INVALID_ARGUMENT);
    CHECK_OK(dd_nccl_group_close(child.group, &wait, check_err()));
    CHECK_STATUS(dd_nccl_group_adopt(child.group, self->rank, split_off(self), check_err()), DD_CLOSED);
    dd_nccl_group_release(child.group);
    nccl_rig_check_sum(self);
}

TEST(a_group_can_adopt_an_existing_communicator)
{
    nccl_rig_run(&(nccl_rig_options){.size = 2}, adopt_body, NULL);
}

/* ---- reused names */

static void
again_body(nccl_rig_rank *self)
{
    dd_wait wait = nccl_rig_patience();
    for (int i = 0; i < 4; i++) {
        nccl_rig_rank again = *self;
        REQUIRE(nccl_rig_open_group(&again, "again"));
        nccl_rig_check_sum(&again);
        CHECK_OK(dd_nccl_group_close(again.group, &wait, check_err()));
        dd_nccl_group_release(again.group);
    }
}

TEST(the_name_of_a_closed_group_can_be_used_again)
{
    nccl_rig_run(&(nccl_rig_options){.size = 2}, again_body, NULL);
    nccl_rig_run(&(nccl_rig_options){.size = 4, .is_nonblocking = true}, again_body, NULL);
}

/* One rank joins and times out, the other joins too late; then both try again. */
static void
again_after_failure_body(nccl_rig_rank *self)
{
    dd_wait wait = nccl_rig_patience();
    for (int i = 0; i < 3; i++) {
        nccl_rig_rank again = *self;
        REQUIRE(nccl_rig_open_group(&again, "again"));
        dd_nccl_comm *comm;
        for (int turn = 0; turn < 2; turn++) {
            if (self->rank == (i + turn) % 2) {
                dd_wait brief = dd_wait_after(30 * DD_NS_PER_MS);
                CHECK_STATUS(dd_nccl_group_connect(again.group, self->rank, &comm, &brief, check_err()),
                             DD_OP_TIMED_OUT);
            }
            nccl_rig_meet(self);
        }
        dd_nccl_group_release(again.group);
        again = *self;
        REQUIRE(nccl_rig_open_group(&again, "again"));
        dd_status status = dd_nccl_group_connect(again.group, self->rank, &comm, &wait, check_err());
        if (status == DD_OK) {
            dd_nccl_comm_release(comm);
            nccl_rig_check_sum(&again);
            CHECK_OK(dd_nccl_group_close(again.group, &wait, check_err()));
        }
        CHECK_OK(status);
        dd_nccl_group_release(again.group);
        nccl_rig_meet(self);
    }
}

TEST(the_name_of_a_failed_group_can_be_used_again)
{
    nccl_rig_run(&(nccl_rig_options){.size = 2}, again_after_failure_body, NULL);
}

/* ---- aborts during messages */

typedef struct abort_case {
    bool has_all;  /* use a communicator of all ranks, else the pair's own */
    bool is_batch; /* both directions in one call */
} abort_case;

static void *
abort_when_sent(void *arg)
{
    nccl_rig_rank *self = arg;
    dd_wait wait = nccl_rig_patience();
    while (self->rig->nccl_stub.calls("ncclSend") + self->rig->nccl_stub.calls("ncclRecv") < 2 &&
           !dd_wait_has_expired(&wait)) {
        (void)!dd_wait_sleep(&wait, DD_NS_PER_MS / 10, NULL);
    }
    CHECK_OK(dd_nccl_group_abort(self->group, "enough", &wait, check_err()));
    return NULL;
}

static void
abort_message_body(nccl_rig_rank *self)
{
    const abort_case *which = self->arg;
    if (which->has_all) {
        nccl_rig_check_sum(self);
    }
    hang_next_kernels(self);
    int *data = nccl_rig_alloc(self, 8);
    dd_nccl_op ops[] = {
        {.kind = DD_NCCL_OP_SEND, .block = {data, 4}, .dtype = DD_DTYPE_INT32, .peer = !self->rank},
        {.kind = DD_NCCL_OP_RECV, .block = {data + 1, 4}, .dtype = DD_DTYPE_INT32, .peer = !self->rank},
    };
    dd_nccl_call call = which->is_batch ? nccl_rig_call(self, "batch", ops, 2)
                                        : nccl_rig_call(self, "message", &ops[self->rank], 1);
    pthread_t other;
    REQUIRE_OK(dd_thread_start(&other, "other", abort_when_sent, self, check_err()));
    dd_nccl_work *work;
    dd_status status = nccl_rig_start(self, &call, &work, check_err());
    if (status == DD_OK) {
        status = nccl_rig_wait(work, check_err());
        pthread_join(other, NULL);
        wait_until_free(work);
        dd_work_release(&work->base);
    } else {
        pthread_join(other, NULL);
    }
    CHECK_INT(status, DD_ABORTED);
    CHECK_CONTAINS(check_message(), "aborted the group: enough");
    dd_wait wait = nccl_rig_patience();
    CHECK_OK(dd_nccl_group_close(self->group, &wait, check_err()));
    nccl_rig_free(self, data);
}

TEST(an_abort_ends_pending_messages)
{
    for (int i = 0; i < 8; i++) {
        abort_case which = {.has_all = i % 2 == 1, .is_batch = i / 2 % 2 == 1};
        nccl_rig_run(&(nccl_rig_options){.size = 2, .is_not_closed = true, .is_nonblocking = i >= 4},
                     abort_message_body, &which);
    }
}

/* ---- works that are complete */

/* The watchdog runs once a minute. */
static void
abort_after_kernel_body(nccl_rig_rank *self)
{
    sum_on sum;
    dd_nccl_work *work;
    dd_wait wait = nccl_rig_patience();
    nccl_rig_check_sum(self);
    prepare_sum(self, &sum, self->rank);
    REQUIRE_OK(nccl_rig_start(self, &sum.call, &work, check_err()));
    dd_cuda_event end = ((nccl_work *)work)->end;
    while (self->rig->cuda->api.cuEventQuery(end) != DD_CUDA_SUCCESS && !dd_wait_has_expired(&wait)) {
        (void)!dd_wait_sleep(&wait, DD_NS_PER_MS / 10, NULL);
    }
    CHECK_OK(dd_nccl_group_abort(self->group, "that was all", &wait, check_err()));
    CHECK_OK(nccl_rig_wait(work, check_err()));
    dd_work_release(&work->base);
    CHECK_OK(dd_nccl_group_close(self->group, &wait, check_err()));
    nccl_rig_free(self, sum.data);
}

TEST(an_abort_does_not_fail_an_operation_whose_kernel_has_ended)
{
    nccl_rig_run(&(nccl_rig_options){.size = 1, .is_not_closed = true, .interval_ns = 60 * DD_NS_PER_S},
                 abort_after_kernel_body, NULL);
}

/* ---- aborts during a close */

static void *
abort_when_closing(void *arg)
{
    nccl_rig_rank *self = arg;
    dd_wait wait = nccl_rig_patience();
    while (dd_nccl_group_check(self->group, NULL) == DD_OK && !dd_wait_has_expired(&wait)) {
        (void)!dd_wait_sleep(&wait, DD_NS_PER_MS / 10, NULL);
    }
    CHECK_OK(dd_nccl_group_abort(self->group, "enough", &wait, check_err()));
    return NULL;
}

static void
close_and_abort(nccl_rig_rank *self)
{
    pthread_t other;
    REQUIRE_OK(dd_thread_start(&other, "other", abort_when_closing, self, check_err()));
    dd_wait wait = nccl_rig_patience();
    CHECK_OK(dd_nccl_group_close(self->group, &wait, check_err()));
    CHECK(!dd_wait_has_expired(&wait));
    pthread_join(other, NULL);
}

static void
abort_closing_works_body(nccl_rig_rank *self)
{
    nccl_rig_check_sum(self);
    hang_next_kernels(self);
    sum_on sum;
    prepare_sum(self, &sum, self->rank);
    dd_nccl_work *work;
    REQUIRE_OK(nccl_rig_start(self, &sum.call, &work, check_err()));
    close_and_abort(self);
    CHECK_STATUS(nccl_rig_wait(work, check_err()), DD_ABORTED);
    wait_until_free(work);
    dd_work_release(&work->base);
    nccl_rig_free(self, sum.data);
}

static void
abort_finalizing_body(nccl_rig_rank *self)
{
    nccl_rig_check_sum(self);
    self->rig->nccl_stub.hang("ncclCommFinalize", 0, -1);
    close_and_abort(self);
    self->rig->nccl_stub.release();
}

TEST(an_abort_ends_a_pending_close_of_the_group)
{
    nccl_rig_run(&(nccl_rig_options){.size = 2, .is_not_closed = true}, abort_closing_works_body, NULL);
    /* After its hang, the stub looks the communicator up, and does not find it. */
    nccl_rig_run(&(nccl_rig_options){.size = 1, .is_not_closed = true, .leaves_some = true},
                 abort_finalizing_body, NULL);
}

/* ---- groups that are released after a failure without an abort */

static void
release_failed_body(nccl_rig_rank *self)
{
    nccl_rig_check_sum(self);
    hang_next_kernels(self);
    sum_on sum;
    prepare_sum(self, &sum, self->rank);
    sum.call.timeout_ns = 20 * DD_NS_PER_MS;
    dd_nccl_work *work;
    REQUIRE_OK(nccl_rig_start(self, &sum.call, &work, check_err()));
    CHECK_STATUS(nccl_rig_wait(work, check_err()), DD_OP_TIMED_OUT);
    CHECK_INT(self->rig->nccl_stub.calls("ncclCommAbort"), 0);
    nccl_rig_meet(self);
    dd_nccl_group_release(self->group);
    self->group = NULL;
    wait_until_free(work);
    dd_work_release(&work->base);
    nccl_rig_free(self, sum.data);
}

TEST(a_failed_group_can_be_released_if_aborts_are_off)
{
    nccl_rig_run(&(nccl_rig_options){.size = 2, .is_not_closed = true, .is_abort_off = true},
                 release_failed_body, NULL);
}

/* ---- the watchdog's sleep */

static uint64_t
await_heartbeat(const dd_nccl_watchdog *watchdog, uint64_t other_than)
{
    dd_wait wait = nccl_rig_patience();
    uint64_t beat;
    while ((beat = dd_nccl_watchdog_heartbeat(watchdog)) == other_than && !dd_wait_has_expired(&wait)) {
        (void)!dd_wait_sleep(&wait, DD_NS_PER_MS / 10, NULL);
    }
    return beat;
}

static void
note_end(dd_work *work, void *ctx)
{
    (void)work;
    atomic_store((atomic_bool *)ctx, true);
}

static void
sleep_body(nccl_rig_rank *self)
{
    const dd_nccl_watchdog *watchdog = self->rig->watchdog;
    nccl_rig_check_sum(self);
    dd_wait wait = nccl_rig_patience();
    while (dd_nccl_watchdog_heartbeat(watchdog) != 0 && !dd_wait_has_expired(&wait)) {
        (void)!dd_wait_sleep(&wait, 10 * DD_NS_PER_MS, NULL);
    }
    CHECK_INT(dd_nccl_watchdog_heartbeat(watchdog), 0);
    CHECK(dd_nccl_watchdog_activity(watchdog) != NULL);
    sum_on sum;
    prepare_sum(self, &sum, self->rank);
    atomic_bool has_ended = false;
    sum.call.on_done = note_end;
    sum.call.ctx = &has_ended;
    sum.call.nstreams = 1;
    int gate = nccl_rig_new_gate();
    CHECK_INT(self->rig->gate(self->stream, gate), 0);
    dd_nccl_work *work;
    REQUIRE_OK(nccl_rig_start(self, &sum.call, &work, check_err()));
    uint64_t first = await_heartbeat(watchdog, 0);
    CHECK(first > 0);
    CHECK(await_heartbeat(watchdog, first) > first); /* it continues while works are pending */
    CHECK(!atomic_load(&has_ended));
    self->rig->open_gate(gate);
    while (!atomic_load(&has_ended) && !dd_wait_has_expired(&wait)) { /* only the watchdog polls */
        (void)!dd_wait_sleep(&wait, DD_NS_PER_MS, NULL);
    }
    CHECK(atomic_load(&has_ended));
    dd_work_release(&work->base);
    nccl_rig_free(self, sum.data);
}

TEST(the_watchdog_sleeps_when_idle_and_is_woken_by_a_new_operation)
{
    nccl_rig_run(&(nccl_rig_options){.size = 1}, sleep_body, NULL);
}

/* ---- dumps */

static void
look_for_version(nccl_rig_rank *self)
{
    dd_dump_options options = {.format = DD_DUMP_JSON};
    dd_blob dump = {0};
    CHECK_OK(dd_recorder_dump(self->rig->recorder, &options, &dump, check_err()));
    CHECK_OK(dd_blob_append(&dump, "", 1, check_err()));
    CHECK_CONTAINS((const char *)dump.data, "\"comm_lib_version\":\"2.31.2\"");
    dd_blob_fini(&dump);
}

TEST(flight_recorder_dumps_have_the_version_of_nccl)
{
    nccl_rig_run(&(nccl_rig_options){.size = 1, .version = "2.31.2"}, look_for_version, NULL);
}
