/* Windows and one-sided operations of the stub of libnccl. */
#include "check.h"
#include "stubs/stub_rig.h"

#include <sys/wait.h>

#define COUNT 100000 /* more than a ring of the wire holds */

/* Registered memory from ncclMemAlloc, on all ranks. */
typedef struct registered {
    int *data;
    dd_nccl_window window;
} registered;

static registered
make_window(const member *self, size_t nbytes)
{
    registered made = {.data = NULL};
    void *data = NULL;
    NC(ncclMemAlloc(&data, nbytes));
    memset(data, 0, nbytes); /* before any rank can put */
    NC(ncclCommWindowRegister(self->comm, data, nbytes, &made.window, DD_NCCL_WIN_COLL_SYMMETRIC));
    CHECK(made.window != NULL);
    made.data = data;
    return made;
}

static void
free_window(const member *self, const registered *made)
{
    NC(ncclCommWindowDeregister(self->comm, made->window));
    NC(ncclMemFree(made->data));
}

static dd_nccl_result
put(const member *self, const registered *from, const registered *to, int peer)
{
    size_t offset = (size_t)self->rank * COUNT * sizeof(int);
    return nccl.ncclPutSignal(from->data + offset / sizeof(int), COUNT, DD_NCCL_DTYPE_INT32, peer, to->window,
                              offset, 0, 0, 0, self->comm, self->stream);
}

static void
wait_for(const member *self, int peer, int count)
{
    dd_nccl_signal_wait wait = {.opCnt = count, .peer = peer};
    NC(ncclWaitSignal(1, &wait, self->comm, self->stream));
}

/* Put every rank's block to all ranks. */
static void
run_puts(member *self)
{
    int size = self->team != NULL ? self->team->size : 2;
    size_t nbytes = (size_t)size * COUNT * sizeof(int);
    registered from = make_window(self, nbytes);
    registered to = make_window(self, nbytes);
    void *data = NULL;
    NC(ncclWinGetUserPtr(self->comm, to.window, &data));
    CHECK(data == to.data);
    int *own = from.data + (ptrdiff_t)self->rank * COUNT;
    for (int round = 1; round <= 3; round++) {
        own[0] = own[COUNT - 1] = 100 * round + self->rank;
        for (int peer = 0; peer < size; peer++) {
            CHECK_INT(put(self, &from, &to, peer), DD_NCCL_SUCCESS);
            NC(ncclSignal(peer, 0, 0, 0, self->comm, self->stream));
        }
        for (int peer = 0; peer < size; peer++) {
            wait_for(self, peer, 2);
        }
        CU(cuStreamSynchronize(self->stream));
        for (int peer = 0; peer < size; peer++) {
            CHECK_INT(to.data[peer * COUNT], 100 * round + peer);
            CHECK_INT(to.data[peer * COUNT + COUNT - 1], 100 * round + peer);
        }
        /* No rank puts again before all have checked. */
        for (int peer = 0; peer < size; peer++) {
            NC(ncclSignal(peer, 0, 0, 0, self->comm, self->stream));
        }
        for (int peer = 0; peer < size; peer++) {
            wait_for(self, peer, 1);
        }
        CU(cuStreamSynchronize(self->stream));
    }
    free_window(self, &from);
    free_window(self, &to);
}

TEST(puts_between_threads_arrive)
{
    load_nccl("2.32.3");
    run_team(3, 1, run_puts);
    CHECK_INT(nccl.dd_stub_live("window"), 0);
}

static int
run_process(int rank, const dd_nccl_unique_id *id)
{
    use_device(rank);
    member self = {.rank = rank, .stream = make_stream(DD_CUDA_STREAM_NON_BLOCKING)};
    NC(ncclCommInitRank(&self.comm, 2, *id, rank));
    run_puts(&self);
    NC(ncclCommDestroy(self.comm));
    return check_failures() > 0;
}

TEST(puts_between_processes_arrive)
{
    load_nccl("2.29.2");
    dd_nccl_unique_id id;
    NC(ncclGetUniqueId(&id));
    pid_t child = fork();
    REQUIRE(child >= 0);
    if (child == 0) {
        _exit(run_process(1, &id));
    }
    CHECK_INT(run_process(0, &id), 0);
    int status = -1;
    CHECK_INT(waitpid(child, &status, 0), child);
    CHECK_INT(status, 0);
}

/* Wait before the signal, on a nonblocking communicator; an abort ends a wait without a signal. */
static void
run_early_wait(member *self)
{
    registered made = {.data = NULL};
    void *data = NULL;
    NC(ncclMemAlloc(&data, 64));
    CHECK_INT(nccl.ncclCommWindowRegister(self->comm, data, 64, &made.window, DD_NCCL_WIN_COLL_SYMMETRIC),
              DD_NCCL_IN_PROGRESS);
    CHECK_INT(wait_until_ready(self->comm), DD_NCCL_SUCCESS);
    REQUIRE(made.window != NULL);
    made.data = data;
    if (self->rank == 0) {
        dd_nccl_signal_wait wait = {.opCnt = 1, .peer = 1};
        CHECK_INT(nccl.ncclWaitSignal(1, &wait, self->comm, self->stream), DD_NCCL_IN_PROGRESS);
        CHECK_INT(wait_until_ready(self->comm), DD_NCCL_SUCCESS);
        CHECK_INT(cuda.cuStreamQuery(self->stream), DD_CUDA_NOT_READY);
    }
    pthread_barrier_wait(&self->team->barrier);
    if (self->rank == 1) {
        made.data[0] = 7;
        CHECK_INT(nccl.ncclPutSignal(made.data, 1, DD_NCCL_DTYPE_INT32, 0, made.window, 60, 0, 0, 0,
                                     self->comm, self->stream),
                  DD_NCCL_IN_PROGRESS);
        CHECK_INT(wait_until_ready(self->comm), DD_NCCL_SUCCESS);
    }
    CU(cuStreamSynchronize(self->stream));
    if (self->rank == 0) {
        CHECK_INT(made.data[15], 7);
        dd_nccl_signal_wait wait = {.opCnt = 1, .peer = 1};
        (void)nccl.ncclWaitSignal(1, &wait, self->comm, self->stream);
        CHECK_INT(wait_until_ready(self->comm), DD_NCCL_SUCCESS);
        CHECK_INT(cuda.cuStreamQuery(self->stream), DD_CUDA_NOT_READY);
        NC(ncclCommAbort(self->comm));
        self->comm = NULL;
        CU(cuStreamSynchronize(self->stream));
    }
    pthread_barrier_wait(&self->team->barrier);
    NC(ncclMemFree(data));
}

TEST(a_wait_for_a_signal_ends_with_the_signal_or_with_an_abort)
{
    load_nccl("2.30.7");
    run_team(2, 0, run_early_wait);
    CHECK_INT(nccl.dd_stub_live("window"), 0);
}

/* In graphs a put waits until the previous one was received, and does not share signals with calls
 * outside of graphs. */
static void
run_captured(member *self)
{
    registered made = make_window(self, 2 * sizeof(int));
    dd_cuda_ptr at = (dd_cuda_ptr)(uintptr_t)made.data;
    void *graph = NULL;
    void *exec = NULL;
    CU(cuStreamBeginCapture(self->stream, DD_CUDA_CAPTURE_MODE_THREAD_LOCAL));
    if (self->rank == 0) {
        CU(cuMemsetD8Async(at, 1, sizeof(int), self->stream));
        NC(ncclPutSignal(made.data, 1, DD_NCCL_DTYPE_INT32, 1, made.window, sizeof(int), 0, 0, 0, self->comm,
                         self->stream));
    } else {
        wait_for(self, 0, 1);
    }
    CU(cuStreamEndCapture(self->stream, &graph));
    CU(cuGraphInstantiate(&exec, graph, 0));
    CU(cuGraphDestroy(graph));
    if (self->rank == 0) {
        NC(ncclSignal(1, 0, 0, 0, self->comm, self->stream));
        CU(cuGraphLaunch(exec, self->stream));
        CU(cuStreamSynchronize(self->stream));
        CU(cuGraphLaunch(exec, self->stream));
        CHECK_INT(cuda.cuStreamQuery(self->stream), DD_CUDA_NOT_READY);
    }
    pthread_barrier_wait(&self->team->barrier);
    for (int i = 0; self->rank == 1 && i < 2; i++) {
        CU(cuGraphLaunch(exec, self->stream));
        CU(cuStreamSynchronize(self->stream));
        CHECK_INT(made.data[1], 0x01010101);
    }
    if (self->rank == 1) {
        wait_for(self, 0, 1);
    }
    CU(cuStreamSynchronize(self->stream));
    CU(cuGraphExecDestroy(exec));
    free_window(self, &made);
}

TEST(puts_can_be_captured_in_a_cuda_graph)
{
    load_nccl("2.32.3");
    run_team(2, 1, run_captured);
}

static void
run_checks(member *self)
{
    registered made = make_window(self, 64);
    void *plain = make_memory(64);
    dd_nccl_window window = made.window;
    int rank = self->rank;
    int peer = 1 - rank;
    int *data = made.data;
#define PUT(data_, count_, peer_, window_, offset_, signal_, ctx_)                                    \
    nccl.ncclPutSignal(data_, count_, DD_NCCL_DTYPE_INT32, peer_, window_, offset_, signal_, ctx_, 0, \
                       self->comm, self->stream)
    CHECK_INT(PUT(plain, 1, peer, window, 0, 0, 0), DD_NCCL_INVALID_ARGUMENT);
    CHECK_CONTAINS(nccl.ncclGetLastError(self->comm), "in no window");
    /* both ranks have read the text, which is shared by the process */
    pthread_barrier_wait(&self->team->barrier);
    CHECK_INT(PUT(data, 16, peer, window, 4, 0, 0), DD_NCCL_INVALID_ARGUMENT);
    CHECK_INT(PUT(data, 1, peer, window, 65, 0, 0), DD_NCCL_INVALID_ARGUMENT);
    CHECK_INT(PUT(data, 1, 2, window, 0, 0, 0), DD_NCCL_INVALID_ARGUMENT);
    CHECK_INT(PUT(data, 1, peer, NULL, 0, 0, 0), DD_NCCL_INVALID_ARGUMENT);
    CHECK_INT(PUT(data, 1, peer, window, 0, 1, 0), DD_NCCL_INVALID_ARGUMENT);
    CHECK_INT(PUT(data, 1, peer, window, 0, 0, 1), DD_NCCL_INVALID_ARGUMENT);
#undef PUT
    dd_nccl_signal_wait wait = {.opCnt = 0, .peer = peer};
    CHECK_INT(nccl.ncclWaitSignal(1, &wait, self->comm, self->stream), DD_NCCL_INVALID_ARGUMENT);
    CHECK_INT(nccl.ncclWaitSignal(0, NULL, self->comm, self->stream), DD_NCCL_INVALID_ARGUMENT);
    /* No data was sent. */
    CU(cuStreamSynchronize(self->stream));
    CHECK_INT(data[0], 0);

    /* If one rank's memory is not from ncclMemAlloc, no rank gets a window. */
    void *other = NULL;
    NC(ncclMemAlloc(&other, 64));
    window = made.window;
    CHECK_INT(nccl.ncclCommWindowRegister(self->comm, rank == 0 ? plain : other, 64, &window, 0),
              DD_NCCL_UNHANDLED_CUDA_ERROR);
    CHECK(window == NULL);
    CHECK_INT(nccl.ncclCommWindowRegister(self->comm, other, rank == 0 ? 64 : 32, &window, 0),
              DD_NCCL_INVALID_ARGUMENT);
    CHECK_CONTAINS(nccl.ncclGetLastError(self->comm), "64 bytes on rank 0, and 32 on rank 1");
    NC(ncclMemFree(other));
    free_memory(plain);
    free_window(self, &made);
}

TEST(wrong_arguments_of_one_sided_calls_are_refused)
{
    load_nccl("2.31.2");
    run_team(2, 1, run_checks);
}
