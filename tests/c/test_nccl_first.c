/* The first calls on a communicator wait on the host for the other ranks: they have a deadline, and
 * can be aborted. Also NCCL's calls that affect or wait for the whole device, while other streams
 * are busy. */
#include "check.h"
#include "core/thread.h"
#include "nccl_rig.h"

#include <dlfcn.h>

typedef struct first_call {
    int *data;
    dd_block block;
    dd_nccl_op op;
    dd_nccl_call call;
} first_call;

/* Prepare the call. `is_message`: a message from rank 1 to rank 0; else an all_reduce. */
static void
prepare(nccl_rig_rank *self, first_call *first, bool is_message)
{
    first->data = nccl_rig_alloc(self, sizeof *first->data);
    *first->data = self->rank + 1;
    first->block = (dd_block){first->data, sizeof *first->data};
    first->op = nccl_rig_all_reduce(DD_DTYPE_INT32, DD_REDOP_SUM, &first->block);
    if (is_message) {
        first->op = (dd_nccl_op){.kind = self->rank == 0 ? DD_NCCL_OP_RECV : DD_NCCL_OP_SEND,
                                 .block = first->block,
                                 .dtype = DD_DTYPE_INT32,
                                 .peer = !self->rank};
    }
    first->call = nccl_rig_call(self, is_message ? "message" : "all_reduce", &first->op, 1);
}

/* Create the rank's communicator without calling anything on it. */
static bool
make_communicator(nccl_rig_rank *self)
{
    dd_wait wait = nccl_rig_patience();
    dd_nccl_comm *comm = NULL;
    if (!CHECK_OK(dd_nccl_group_connect(self->group, self->rank, &comm, &wait, check_err()))) {
        return false;
    }
    dd_nccl_comm_release(comm);
    return true;
}

static void
wait_for_all_reduce(nccl_rig_rank *self)
{
    dd_wait wait = nccl_rig_patience();
    while (self->rig->nccl_stub.calls("ncclAllReduce") == 0 && !dd_wait_has_expired(&wait)) {
        (void)!dd_wait_sleep(&wait, DD_NS_PER_MS, NULL);
    }
}

static void
close_failed(nccl_rig_rank *self)
{
    dd_wait wait = nccl_rig_patience();
    CHECK_OK(dd_nccl_group_close(self->group, &wait, check_err()));
}

/* ---- late ranks */

static void *
start_it(void *arg)
{
    nccl_rig_rank *self = arg;
    dd_cuda_guard guard;
    CHECK_OK(dd_cuda_enter(self->rig->cuda, self->rank, &guard, check_err()));
    first_call first;
    prepare(self, &first, false);
    CHECK_OK(nccl_rig_do(self, &first.call, check_err()));
    CHECK_INT(*first.data, 3);
    nccl_rig_free(self, first.data);
    dd_cuda_leave(&guard);
    return NULL;
}

static void
late_body(nccl_rig_rank *self)
{
    REQUIRE(make_communicator(self));
    nccl_rig_meet(self);
    if (self->rank == 0) {
        pthread_t thread;
        REQUIRE_OK(dd_thread_start(&thread, "early", start_it, self, check_err()));
        wait_for_all_reduce(self);
        nccl_rig_meet(self);
        pthread_join(thread, NULL);
    } else {
        nccl_rig_meet(self);
        (void)start_it(self);
    }
    nccl_rig_check_sum(self);
}

TEST(the_first_collective_completes_even_if_the_other_rank_is_late)
{
    nccl_rig_run(&(nccl_rig_options){.size = 2}, late_body, NULL);
    nccl_rig_run(&(nccl_rig_options){.size = 2, .is_nonblocking = true}, late_body, NULL);
    nccl_rig_run(&(nccl_rig_options){.size = 2, .version = "2.18.1"}, late_body, NULL);
}

/* ---- missing ranks */

/* Both ranks create the communicator; then only rank 0 calls, which fails its group. */
static void
call_alone(nccl_rig_rank *self, void (*call)(nccl_rig_rank *self, first_call *first))
{
    const bool *is_message = self->arg;
    REQUIRE(make_communicator(self));
    first_call first;
    prepare(self, &first, *is_message);
    nccl_rig_meet(self);
    if (self->rank == 0) {
        call(self, &first);
        close_failed(self);
    }
    nccl_rig_meet(self);
    if (self->rank == 1) {
        close_failed(self);
    }
    nccl_rig_free(self, first.data);
}

static void
time_out(nccl_rig_rank *self, first_call *first)
{
    first->call.timeout_ns = 200 * DD_NS_PER_MS;
    CHECK_STATUS(nccl_rig_do(self, &first->call, check_err()), DD_OP_TIMED_OUT);
    CHECK_CONTAINS(check_message(), "timed out after 0.2");
    CHECK_STATUS(nccl_rig_do(self, &first->call, check_err()), DD_OP_TIMED_OUT);
}

static void
alone_body(nccl_rig_rank *self)
{
    call_alone(self, time_out);
}

TEST(the_first_call_times_out_if_the_other_ranks_do_not_call)
{
    for (int i = 0; i < 8; i++) {
        bool is_message = i % 2 == 1;
        nccl_rig_run(&(nccl_rig_options){.size = 2,
                                         .is_not_closed = true,
                                         .version = i < 4 ? "2.22.3" : NULL,
                                         .is_nonblocking = i / 2 % 2 == 1},
                     alone_body, &is_message);
    }
}

/* No work is created, so no caller waits for one. */
static void
time_out_in_call(nccl_rig_rank *self, first_call *first)
{
    const bool *is_message = self->arg;
    first->call.timeout_ns = 200 * DD_NS_PER_MS;
    dd_nccl_work *work = NULL;
    int64_t start_ns = dd_clock_now_ns();
    CHECK_STATUS(nccl_rig_start(self, &first->call, &work, check_err()), DD_OP_TIMED_OUT);
    int64_t took_ns = dd_clock_now_ns() - start_ns;
    CHECK(took_ns >= 200 * DD_NS_PER_MS && took_ns < 5 * DD_NS_PER_S * check_slow());
    CHECK_CONTAINS(check_message(), "timed out after 0.2");
    CHECK_CONTAINS(check_message(), *is_message ? "message" : "all_reduce");
    CHECK(work == NULL);
}

static void
call_raises_body(nccl_rig_rank *self)
{
    call_alone(self, time_out_in_call);
}

TEST(the_first_call_returns_its_own_timeout_as_an_error)
{
    for (int i = 0; i < 4; i++) {
        bool is_message = i % 2 == 1;
        nccl_rig_run(
            &(nccl_rig_options){.size = 2, .is_not_closed = true, .version = i < 2 ? "2.22.3" : NULL},
            call_raises_body, &is_message);
    }
}

static void *
abort_soon(void *arg)
{
    nccl_rig_rank *self = arg;
    wait_for_all_reduce(self);
    dd_wait wait = nccl_rig_patience();
    CHECK_OK(dd_nccl_group_abort(self->group, "enough", &wait, check_err()));
    return NULL;
}

static void
aborted_body(nccl_rig_rank *self)
{
    REQUIRE(make_communicator(self));
    nccl_rig_meet(self);
    if (self->rank == 0) {
        first_call first;
        prepare(self, &first, false);
        pthread_t thread;
        REQUIRE_OK(dd_thread_start(&thread, "aborter", abort_soon, self, check_err()));
        CHECK_STATUS(nccl_rig_do(self, &first.call, check_err()), DD_ABORTED);
        CHECK_CONTAINS(check_message(), "aborted the group: enough");
        pthread_join(thread, NULL);
        nccl_rig_free(self, first.data);
    }
    nccl_rig_meet(self);
    close_failed(self);
}

TEST(the_first_call_can_be_aborted_if_the_other_ranks_do_not_call)
{
    nccl_rig_run(&(nccl_rig_options){.size = 2, .is_not_closed = true}, aborted_body, NULL);
    nccl_rig_run(&(nccl_rig_options){.size = 2, .is_not_closed = true, .is_nonblocking = true}, aborted_body,
                 NULL);
}

/* ---- the caller is interrupted */

static bool
is_called(void *ctx)
{
    const nccl_rig *rig = ctx;
    return rig->nccl_stub.calls("ncclAllReduce") + rig->nccl_stub.calls("ncclRecv") > 0;
}

/* The call cannot be cancelled: the group fails. */
static void
interrupt(nccl_rig_rank *self, first_call *first)
{
    dd_nccl_work *work = NULL;
    dd_wait wait = nccl_rig_patience();
    wait.is_interrupted = is_called;
    wait.ctx = self->rig;
    CHECK_STATUS(dd_nccl_group_start(self->group, &first->call, &work, &wait, check_err()), DD_ABORTED);
    CHECK_CONTAINS(check_message(), "was interrupted while NCCL connected the ranks");
    CHECK(!dd_wait_has_expired(&wait));
    CHECK_STATUS(nccl_rig_do(self, &first->call, check_err()), DD_ABORTED);
}

static void
interrupted_body(nccl_rig_rank *self)
{
    call_alone(self, interrupt);
}

TEST(the_first_call_can_be_interrupted_if_the_other_ranks_do_not_call)
{
    static const char *const VERSIONS[] = {NULL, "2.22.3"};
    for (int i = 0; i < 4; i++) {
        bool is_message = i % 2 == 1;
        nccl_rig_run(&(nccl_rig_options){.size = 2, .is_not_closed = true, .version = VERSIONS[i / 2]},
                     interrupted_body, &is_message);
    }
}

static bool
is_never(void *ctx)
{
    (void)ctx;
    return false;
}

/* An interruptible caller gets the same result. A thread is used only for the first call of each
 * kind and size. */
static void
undisturbed_body(nccl_rig_rank *self)
{
    first_call first;
    prepare(self, &first, false);
    for (int i = 0; i < 3; i++) {
        dd_nccl_work *work = NULL;
        dd_wait wait = nccl_rig_patience();
        wait.is_interrupted = is_never;
        if (CHECK_OK(dd_nccl_group_start(self->group, &first.call, &work, &wait, check_err()))) {
            CHECK_OK(dd_nccl_work_wait(work, &wait, check_err()));
            dd_work_release(&work->base);
        }
    }
    CHECK_INT(*first.data, 12);
    nccl_rig_free(self, first.data);
}

TEST(an_interruptible_first_call_gives_the_correct_result)
{
    nccl_rig_run(&(nccl_rig_options){.size = 2}, undisturbed_body, NULL);
}

/* ---- captures and graphs */

typedef struct graph_calls {
    int (*begin)(dd_cuda_stream stream, int mode);
    int (*end)(dd_cuda_stream stream, void **graph);
    int (*destroy)(void *graph);
} graph_calls;

static bool
find_graph_calls(graph_calls *found)
{
    void *cuda = dlopen(DD_STUBS_DIR "/libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    if (!CHECK(cuda != NULL)) {
        return false;
    }
    *(void **)&found->begin = dlsym(cuda, "cuStreamBeginCapture_v2");
    *(void **)&found->end = dlsym(cuda, "cuStreamEndCapture");
    *(void **)&found->destroy = dlsym(cuda, "cuGraphDestroy");
    dlclose(cuda);
    return CHECK(found->begin != NULL && found->end != NULL && found->destroy != NULL);
}

static void
live_graph_body(nccl_rig_rank *self)
{
    graph_calls calls;
    REQUIRE(find_graph_calls(&calls));
    nccl_rig_check_sum(self);
    first_call first;
    prepare(self, &first, false);
    CHECK_INT(calls.begin(self->stream, DD_CUDA_CAPTURE_MODE_THREAD_LOCAL), 0);
    dd_nccl_work *work;
    REQUIRE_OK(nccl_rig_start(self, &first.call, &work, check_err()));
    CHECK_OK(dd_nccl_work_wait_stream(work, self->stream, check_err()));
    dd_work_release(&work->base);
    void *graph = NULL;
    CHECK_INT(calls.end(self->stream, &graph), 0);
    dd_wait brief = dd_wait_after(100 * DD_NS_PER_MS);
    CHECK_STATUS(dd_nccl_group_close(self->group, &brief, check_err()), DD_OP_TIMED_OUT);
    CHECK_CONTAINS(check_message(), "a CUDA graph may still hold some");
    /* the close that was left to a thread then completes: the rig checks */
    CHECK_INT(calls.destroy(graph), 0);
    nccl_rig_free(self, first.data);
}

TEST(a_communicator_does_not_end_before_the_cuda_graphs_that_use_it)
{
    nccl_rig_run(&(nccl_rig_options){.size = 2, .is_not_closed = true}, live_graph_body, NULL);
    nccl_rig_run(&(nccl_rig_options){.size = 2, .is_not_closed = true, .version = "2.18.1"}, live_graph_body,
                 NULL);
}

/* Another caller captures, in the mode in which a call by any thread can invalidate the capture,
 * while a group is used and closed. */
static void
capture_beside_body(nccl_rig_rank *self)
{
    static dd_cuda_stream other;
    graph_calls calls;
    REQUIRE(find_graph_calls(&calls));
    const dd_cuda_api *api = &self->rig->cuda->api;
    bool is_failing = *(const bool *)self->arg;
    nccl_rig_check_sum(self);
    nccl_rig_meet(self);
    if (self->rank == 0) {
        CHECK_INT(api->cuStreamCreateWithPriority(&other, DD_CUDA_STREAM_NON_BLOCKING, 0), DD_CUDA_SUCCESS);
        CHECK_INT(calls.begin(other, DD_CUDA_CAPTURE_MODE_GLOBAL), 0);
    }
    nccl_rig_meet(self);
    dd_wait wait = nccl_rig_patience();
    if (is_failing) {
        CHECK_OK(dd_nccl_group_abort(self->group, "enough", &wait, check_err()));
    }
    CHECK_OK(dd_nccl_group_close(self->group, &wait, check_err()));
    nccl_rig_meet(self);
    if (self->rank == 0) {
        void *graph = NULL;
        CHECK_INT(calls.end(other, &graph), 0);
        CHECK_INT(graph != NULL ? calls.destroy(graph) : 0, 0);
        CHECK_INT(api->cuStreamDestroy(other), DD_CUDA_SUCCESS);
    }
    nccl_rig_meet(self);
}

TEST(closing_a_group_does_not_invalidate_another_callers_stream_capture)
{
    for (int i = 0; i < 4; i++) {
        bool is_failing = i % 2 == 1;
        nccl_rig_run(&(nccl_rig_options){.size = 2, .is_not_closed = true, .is_nonblocking = i >= 2},
                     capture_beside_body, &is_failing);
    }
}

/* ---- memory */

/* The caller's stream is busy. Closing the group must not free memory that would wait for it, and
 * must not wait for NCCL, which does wait. */
static void
busy_device_body(nccl_rig_rank *self)
{
    nccl_rig_check_sum(self);
    int gate = nccl_rig_new_gate();
    CHECK_INT(self->rig->gate(self->stream, gate), 0);
    nccl_rig_meet(self);
    long nfrees = self->rig->cuda_stub.calls("cuMemFree");
    nccl_rig_meet(self);
    dd_wait wait = dd_wait_after(200 * DD_NS_PER_MS);
    /* NCCL's close continues on its thread */
    CHECK_OK(dd_nccl_group_close(self->group, &wait, check_err()));
    CHECK_INT(self->rig->cuda_stub.calls("cuMemFree"), nfrees);
    nccl_rig_meet(self);
    self->rig->open_gate(gate);
}

TEST(closing_a_group_frees_no_memory_while_the_device_is_busy)
{
    nccl_rig_run(&(nccl_rig_options){.size = 2, .is_not_closed = true}, busy_device_body, NULL);
}

/* Ranks of one process read each other's buffers: the staging buffer of blocks with gaps must be
 * memory that they can read. */
static void
staging_body(nccl_rig_rank *self)
{
    int *data = nccl_rig_alloc(self, 8 * sizeof *data);
    dd_block input = {data, sizeof *data};
    dd_block outputs[2] = {{data + 2, sizeof *data}, {data + 6, sizeof *data}};
    dd_nccl_op op = nccl_rig_coll(DD_COLL_ALL_GATHER, DD_DTYPE_INT32, &input, outputs);
    dd_nccl_call call = nccl_rig_call(self, "all_gather", &op, 1);
    *data = self->rank + 1;
    CHECK_OK(nccl_rig_do(self, &call, check_err()));
    CHECK(data[2] == 1 && data[6] == 2);
    nccl_rig_free(self, data);
}

static void
no_pools_body(nccl_rig_rank *self)
{
    if (self->rank == 0) {
        self->rig->cuda_stub.fail(*(const char *const *)self->arg, 0, DD_CUDA_ERROR_NOT_SUPPORTED, NULL);
        self->rig->cuda_stub.fail(*(const char *const *)self->arg, 0, DD_CUDA_ERROR_NOT_SUPPORTED, NULL);
    }
    nccl_rig_meet(self);
    staging_body(self);
    CHECK_INT(self->rig->cuda_stub.calls("cuMemAllocFromPoolAsync"), 0);
}

TEST(staging_buffers_are_memory_that_peers_can_read)
{
    nccl_rig_run(&(nccl_rig_options){.size = 2}, staging_body, NULL);
    static const char *const WITHOUT[] = {"cuMemPoolCreate", "cuMemPoolSetAccess"};
    for (int i = 0; i < 2; i++) {
        nccl_rig_run(&(nccl_rig_options){.size = 2}, no_pools_body, (void *)(uintptr_t)&WITHOUT[i]);
    }
}
