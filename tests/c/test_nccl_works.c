/* Works of NCCL groups: their order with other streams, and the resources that they leave. */
#include "check.h"
#include "core/thread.h"
#include "nccl_rig.h"

#include <dlfcn.h>
#include <string.h>

/* ---- order */

static void
producer_body(nccl_rig_rank *self)
{
    float *data = nccl_rig_alloc(self, 8);
    data[0] = -1;
    float late = (float)self->rank + 1;
    CHECK_INT(self->rig->slow_write(self->stream, data, &late, sizeof late, 20), 0);
    dd_block block = {data, sizeof *data};
    dd_nccl_op op = nccl_rig_all_reduce(DD_DTYPE_FLOAT32, DD_REDOP_SUM, &block);
    dd_nccl_call call = nccl_rig_call(self, "all_reduce", &op, 1);
    dd_nccl_work *work;
    REQUIRE_OK(nccl_rig_start(self, &call, &work, check_err()));
    /* Later operations on the caller's stream run after the sum. */
    CHECK_OK(dd_nccl_work_wait_stream(work, self->stream, check_err()));
    CHECK_INT(self->rig->cuda->api.cuMemcpyAsync((dd_cuda_ptr)(uintptr_t)(data + 1),
                                                 (dd_cuda_ptr)(uintptr_t)data, 4, self->stream),
              DD_CUDA_SUCCESS);
    CHECK_INT(self->rig->cuda->api.cuStreamSynchronize(self->stream), DD_CUDA_SUCCESS);
    CHECK_INT((int)data[1], self->size * (self->size + 1) / 2);
    CHECK(dd_nccl_work_poll(work));
    CHECK(dd_nccl_work_memory_is_free(work));
    dd_work_release(&work->base);
    nccl_rig_free(self, data);
}

TEST(operations_run_in_order_with_the_callers_stream)
{
    nccl_rig_run_all(producer_body, NULL);
}

/* ---- a work that a gate blocks */

typedef struct held_call {
    float *data;
    dd_block block;
    dd_nccl_op op;
    dd_nccl_call call;
    dd_nccl_work *work;
    int gate;
} held_call;

/* Each gate can be used once. */
static atomic_int last_gate = 100;

static bool
hold(nccl_rig_rank *self, held_call *held)
{
    held->data = nccl_rig_alloc(self, sizeof *held->data);
    *held->data = 1;
    held->block = (dd_block){held->data, sizeof *held->data};
    held->op = nccl_rig_all_reduce(DD_DTYPE_FLOAT32, DD_REDOP_SUM, &held->block);
    held->call = nccl_rig_call(self, "all_reduce", &held->op, 1);
    held->gate = atomic_fetch_add(&last_gate, 1);
    CHECK_INT(self->rig->gate(self->stream, held->gate), 0);
    return CHECK_OK(nccl_rig_start(self, &held->call, &held->work, check_err()));
}

static void
release_call(nccl_rig_rank *self, held_call *held)
{
    self->rig->open_gate(held->gate);
    CHECK_OK(nccl_rig_wait(held->work, check_err()));
    CHECK_INT((int)*held->data, self->size);
    dd_work_release(&held->work->base);
    nccl_rig_free(self, held->data);
}

static void
wait_body(nccl_rig_rank *self)
{
    held_call held;
    REQUIRE(hold(self, &held));
    CHECK(!dd_nccl_work_poll(held.work));
    CHECK(!dd_nccl_work_memory_is_free(held.work));
    dd_wait brief = dd_wait_after(20 * DD_NS_PER_MS);
    CHECK_STATUS(dd_nccl_work_wait(held.work, &brief, check_err()), DD_OP_TIMED_OUT);
    CHECK_CONTAINS(check_message(), "all_reduce #1 of rank ");
    CHECK_CONTAINS(check_message(), "on group \"rig\" has not ended");
    CHECK_OK(dd_nccl_group_check(self->group, check_err()));
    nccl_rig_meet(self);
    release_call(self, &held);
}

TEST(a_wait_that_times_out_leaves_the_operation_pending)
{
    nccl_rig_run_all(wait_body, NULL);
}

static bool
is_interrupted(void *ctx)
{
    return ++*(int *)ctx > 2;
}

static void
interrupt_body(nccl_rig_rank *self)
{
    held_call held;
    REQUIRE(hold(self, &held));
    int nasked = 0;
    dd_wait wait = nccl_rig_patience();
    wait.is_interrupted = is_interrupted;
    wait.ctx = &nasked;
    CHECK_STATUS(dd_nccl_work_wait(held.work, &wait, check_err()), DD_INTERRUPTED);
    nccl_rig_meet(self);
    release_call(self, &held);
}

TEST(a_wait_for_an_operation_can_be_interrupted)
{
    nccl_rig_run(&(nccl_rig_options){.size = 2}, interrupt_body, NULL);
}

/* ---- the watchdog completes works that no caller polls, once, and in order */

#define MANY 50

typedef struct end_notes {
    atomic_int ncalled;
    uint64_t sequences[MANY];
} end_notes;

static void
note_end(dd_work *work, void *ctx)
{
    end_notes *notes = ctx;
    int i = atomic_fetch_add(&notes->ncalled, 1);
    notes->sequences[i % MANY] = work->sequence;
}

static void
many_body(nccl_rig_rank *self)
{
    end_notes notes = {.ncalled = 0};
    float *data = nccl_rig_alloc(self, MANY * sizeof *data);
    dd_nccl_work *works[MANY];
    for (int i = 0; i < MANY; i++) {
        data[i] = 1;
        dd_block block = {data + i, sizeof *data};
        dd_nccl_op op = nccl_rig_all_reduce(DD_DTYPE_FLOAT32, DD_REDOP_SUM, &block);
        dd_nccl_call call = nccl_rig_call(self, "all_reduce", &op, 1);
        call.on_done = note_end;
        call.ctx = &notes;
        REQUIRE_OK(nccl_rig_start(self, &call, &works[i], check_err()));
        if (i % 3 == 0) {
            (void)dd_nccl_work_poll(works[i]); /* races with the watchdog */
        }
    }
    dd_nccl_watchdog_hurry(self->rig->watchdog);
    dd_wait wait = nccl_rig_patience();
    while (!dd_work_is_done(&works[MANY - 1]->base) && !dd_wait_has_expired(&wait)) {
        (void)!dd_wait_sleep(&wait, DD_NS_PER_MS, NULL);
    }
    CHECK_INT(atomic_load(&notes.ncalled), MANY);
    for (int i = 0; i < MANY; i++) {
        CHECK_INT(notes.sequences[i], i + 1);
        CHECK_INT((int)data[i], self->size);
        dd_work_release(&works[i]->base);
    }
    nccl_rig_free(self, data);
}

TEST(each_operation_completes_once_and_in_order)
{
    nccl_rig_run_all(many_body, NULL);
}

/* ---- time on the device */

static void *
ask_duration(void *arg)
{
    float ms = -1;
    CHECK_OK(dd_nccl_work_duration(arg, &ms, check_err()));
    CHECK(ms >= 0);
    return NULL;
}

static void
timing_body(nccl_rig_rank *self)
{
    held_call held;
    float ms = -1;
    REQUIRE(hold(self, &held));
    CHECK_STATUS(dd_nccl_work_duration(held.work, &ms, check_err()), DD_INVALID_ARGUMENT);
    nccl_rig_meet(self);
    self->rig->open_gate(held.gate);
    CHECK_OK(nccl_rig_wait(held.work, check_err()));
    CHECK_OK(dd_nccl_work_duration(held.work, &ms, check_err()));
    pthread_t thread; /* this thread has no current context */
    REQUIRE_OK(dd_thread_start(&thread, "ask", ask_duration, held.work, check_err()));
    pthread_join(thread, NULL);
    CHECK(ms >= 0 && ms < 10000);
    release_call(self, &held);
}

TEST(a_completed_operation_has_a_duration_if_timing_is_on)
{
    nccl_rig_run(&(nccl_rig_options){.size = 2, .has_timing = true}, timing_body, NULL);
}

static void
no_timing_body(nccl_rig_rank *self)
{
    held_call held;
    float ms;
    REQUIRE(hold(self, &held));
    nccl_rig_meet(self);
    self->rig->open_gate(held.gate);
    CHECK_OK(nccl_rig_wait(held.work, check_err()));
    CHECK_STATUS(dd_nccl_work_duration(held.work, &ms, check_err()), DD_NOT_SUPPORTED);
    release_call(self, &held);
}

TEST(an_operation_has_no_duration_if_timing_is_off)
{
    nccl_rig_run(&(nccl_rig_options){.size = 2}, no_timing_body, NULL);
}

/* ---- reuse of events */

static void
reuse_body(nccl_rig_rank *self)
{
    for (int i = 0; i < 3; i++) {
        nccl_rig_check_sum(self);
    }
    nccl_rig_meet(self);
    long made = self->rig->cuda_stub.made("event");
    nccl_rig_meet(self);
    for (int i = 0; i < 20; i++) {
        nccl_rig_check_sum(self);
    }
    nccl_rig_meet(self);
    bool is_cached = !self->rig->options.has_no_event_cache;
    CHECK_INT(self->rig->cuda_stub.made("event") - made, is_cached ? 0 : 20 * self->size);
    nccl_rig_meet(self);
}

TEST(cuda_events_are_reused)
{
    nccl_rig_run(&(nccl_rig_options){.size = 2, .interval_ns = 60 * DD_NS_PER_S}, reuse_body, NULL);
    nccl_rig_run(&(nccl_rig_options){.size = 2, .interval_ns = 60 * DD_NS_PER_S, .has_no_event_cache = true},
                 reuse_body, NULL);
}

/* ---- works may outlive their group */

static void
outlive_body(nccl_rig_rank *self)
{
    float *data = nccl_rig_alloc(self, sizeof *data);
    dd_block block = {data, sizeof *data};
    dd_nccl_op op = nccl_rig_all_reduce(DD_DTYPE_FLOAT32, DD_REDOP_SUM, &block);
    dd_nccl_call call = nccl_rig_call(self, "all_reduce", &op, 1);
    dd_nccl_work *work;
    REQUIRE_OK(nccl_rig_start(self, &call, &work, check_err()));
    dd_wait wait = nccl_rig_patience();
    CHECK_OK(dd_nccl_group_close(self->group, &wait, check_err()));
    CHECK_OK(dd_nccl_group_close(self->group, &wait, check_err()));
    CHECK_STATUS(nccl_rig_do(self, &call, check_err()), DD_CLOSED);
    CHECK_OK(nccl_rig_wait(work, check_err()));
    CHECK_OK(dd_nccl_work_wait_stream(work, self->stream, check_err()));
    dd_nccl_group_acquire(self->group);
    dd_nccl_group_release(self->group);
    CHECK(dd_nccl_work_memory_is_free(work));
    dd_work_release(&work->base);
    nccl_rig_free(self, data);
}

TEST(closing_a_group_waits_for_pending_operations)
{
    nccl_rig_run_all(outlive_body, NULL);
}

/* ---- ephemeral timeouts */

static void
ephemeral_body(nccl_rig_rank *self)
{
    int64_t plain_ns = dd_nccl_group_get_timeout_ns(self->group);
    int64_t extra_ns = 7 * DD_NS_PER_S;
    held_call first;
    held_call second;
    dd_nccl_group_add_ephemeral_timeout_ns(self->group, extra_ns);
    REQUIRE(hold(self, &first));
    REQUIRE(hold(self, &second));
    CHECK_INT(dd_nccl_work_timeout_ns(first.work), plain_ns + extra_ns);
    CHECK_INT(dd_nccl_work_timeout_ns(second.work), plain_ns + extra_ns);
    nccl_rig_meet(self);
    release_call(self, &first);
    release_call(self, &second);
    dd_nccl_work *work;
    first.data = nccl_rig_alloc(self, sizeof *first.data);
    first.block.data = first.data;
    first.op.args.inputs = first.op.args.outputs = &first.block;
    first.call.ops = &first.op;
    REQUIRE_OK(nccl_rig_start(self, &first.call, &work, check_err()));
    CHECK_INT(dd_nccl_work_timeout_ns(work), plain_ns);
    CHECK_OK(nccl_rig_wait(work, check_err()));
    dd_work_release(&work->base);
    first.call.timeout_ns = 5 * DD_NS_PER_S;
    REQUIRE_OK(nccl_rig_start(self, &first.call, &work, check_err()));
    CHECK_INT(dd_nccl_work_timeout_ns(work), 5 * DD_NS_PER_S);
    CHECK_OK(nccl_rig_wait(work, check_err()));
    dd_work_release(&work->base);
    nccl_rig_free(self, first.data);
}

TEST(an_ephemeral_timeout_extends_only_operations_started_before_it_ends)
{
    nccl_rig_run(&(nccl_rig_options){.size = 2}, ephemeral_body, NULL);
}

/* ---- the group's stream and scratch */

static void
stream_body(nccl_rig_rank *self)
{
    dd_cuda_stream stream;
    REQUIRE_OK(dd_nccl_group_stream(self->group, self->rank, &stream, check_err()));
    void *scratch;
    REQUIRE_OK(dd_nccl_group_alloc_scratch(self->group, self->rank, 0, &scratch, check_err()));
    dd_nccl_group_free_scratch(self->group, self->rank, scratch);
    /* A producer on another stream; the group's stream waits for it. */
    float *data = nccl_rig_alloc(self, sizeof *data);
    float late = 1;
    CHECK_INT(self->rig->slow_write(self->stream, data, &late, sizeof late, 10), 0);
    CHECK_OK(dd_nccl_group_order(self->group, self->rank, &self->stream, 1, check_err()));
    dd_block block = {data, sizeof *data};
    dd_nccl_op op = nccl_rig_all_reduce(DD_DTYPE_FLOAT32, DD_REDOP_SUM, &block);
    dd_nccl_call call = nccl_rig_call(self, "all_reduce", &op, 1);
    call.nstreams = 0;
    CHECK_OK(nccl_rig_do(self, &call, check_err()));
    CHECK_INT((int)*data, self->size);
    nccl_rig_free(self, data);
    CHECK_STATUS(dd_nccl_group_stream(self->group, 99, &stream, check_err()), DD_INVALID_ARGUMENT);
}

TEST(the_stream_of_a_group_waits_for_streams_ordered_before_it)
{
    nccl_rig_run_all(stream_body, NULL);
}

/* ---- two threads on one group */

static void *
sum_often(void *arg)
{
    nccl_rig_rank *self = arg;
    dd_cuda_guard guard;
    CHECK_OK(dd_cuda_enter(self->rig->cuda, self->rank, &guard, check_err()));
    for (int i = 0; i < 20; i++) {
        nccl_rig_check_sum(self);
    }
    dd_cuda_leave(&guard);
    return NULL;
}

static void
threads_body(nccl_rig_rank *self)
{
    pthread_t other;
    REQUIRE_OK(dd_thread_start(&other, "other", sum_often, self, check_err()));
    sum_often(self);
    pthread_join(other, NULL);
    CHECK_INT(dd_nccl_group_sequence(self->group), 40);
}

TEST(several_threads_may_use_one_group)
{
    nccl_rig_run_all(threads_body, NULL);
}

/* ---- CUDA graphs */

static void
graph_body(nccl_rig_rank *self)
{
    nccl_rig_graphs api;
    REQUIRE(nccl_rig_find_graphs(&api));
    nccl_rig_check_sum(self); /* creates the communicators outside the capture */
    end_notes notes = {.ncalled = 0};
    float *data = nccl_rig_alloc(self, 16 * sizeof *data);
    dd_block outputs[4];
    dd_block apart[4]; /* with gaps between blocks, so they use memory of the graph */
    for (int k = 0; k < self->size; k++) {
        outputs[k] = (dd_block){data + 4 + k, sizeof *data};
        apart[k] = (dd_block){data + 8 + 2 * k, sizeof *data};
    }
    dd_block block = {data, sizeof *data};
    dd_nccl_op ops[] = {nccl_rig_all_reduce(DD_DTYPE_FLOAT32, DD_REDOP_SUM, &block),
                        nccl_rig_coll(DD_COLL_ALL_GATHER, DD_DTYPE_FLOAT32, &block, outputs),
                        nccl_rig_coll(DD_COLL_ALL_GATHER, DD_DTYPE_FLOAT32, &block, apart)};
    void *graph = NULL;
    void *exec = NULL;
    dd_nccl_work *earlier; /* pending all the time, so that the watchdog queries it */
    int gate = nccl_rig_new_gate();
    CHECK_INT(self->rig->gate(self->stream, gate), 0);
    dd_nccl_call first = nccl_rig_call(self, "all_reduce", &ops[0], 1);
    REQUIRE_OK(nccl_rig_start(self, &first, &earlier, check_err()));
    nccl_rig_meet(self); /* during the capture, no thread of the process may allocate memory */
    CHECK_INT(api.begin(self->stream, DD_CUDA_CAPTURE_MODE_GLOBAL), 0);
    for (int i = 0; i < 3; i++) {
        dd_nccl_call call = nccl_rig_call(self, i == 0 ? "all_reduce" : "all_gather", &ops[i], 1);
        call.on_done = note_end;
        call.ctx = &notes;
        dd_nccl_work *work;
        REQUIRE_OK(nccl_rig_start(self, &call, &work, check_err()));
        CHECK(dd_nccl_work_poll(work));
        CHECK_OK(nccl_rig_wait(work, check_err()));
        CHECK_OK(dd_nccl_work_wait_stream(work, self->stream, check_err()));
        dd_work_release(&work->base);
    }
    CHECK_INT(atomic_load(&notes.ncalled), 3);
    uint64_t beat = dd_nccl_watchdog_heartbeat(self->rig->watchdog);
    dd_wait wait = nccl_rig_patience();
    while (dd_nccl_watchdog_heartbeat(self->rig->watchdog) < beat + 3 && !dd_wait_has_expired(&wait)) {
        (void)!dd_wait_sleep(&wait, DD_NS_PER_MS, NULL);
    }
    CHECK(!dd_nccl_work_poll(earlier));
    CHECK_INT(api.end(self->stream, &graph), 0);
    nccl_rig_meet(self);
    self->rig->open_gate(gate);
    CHECK_OK(nccl_rig_wait(earlier, check_err()));
    dd_work_release(&earlier->base);
    CHECK_INT(api.instantiate(&exec, graph, 0), 0);
    for (int i = 0; i < 3; i++) {
        *data = (float)(self->rank + i);
        CHECK_INT(api.launch(exec, self->stream), 0);
        CHECK_INT(self->rig->cuda->api.cuStreamSynchronize(self->stream), DD_CUDA_SUCCESS);
        int sum = self->size * (self->size - 1) / 2 + self->size * i;
        CHECK_INT((int)*data, sum);
        for (int k = 0; k < self->size; k++) {
            CHECK_INT((int)data[4 + k], sum);
            CHECK_INT((int)data[8 + 2 * k], sum);
        }
    }
    nccl_rig_check_sum(self);
    CHECK_INT(api.destroy_exec(exec), 0);
    CHECK_INT(api.destroy(graph), 0);
    nccl_rig_free(self, data);
}

TEST(operations_captured_in_a_cuda_graph_run_when_it_is_launched)
{
    nccl_rig_run(&(nccl_rig_options){.size = 1}, graph_body, NULL);
    nccl_rig_run(&(nccl_rig_options){.size = 2}, graph_body, NULL);
    nccl_rig_run(&(nccl_rig_options){.size = 2, .version = "2.18.1"}, graph_body, NULL);
}
