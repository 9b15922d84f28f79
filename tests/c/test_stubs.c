/* The stubs of libcuda and libnccl that the tests of the NCCL backend use (tests/stubs). */
#include "check.h"
#include "nccl/driver/cuda_nan.h"
#include "stubs/stub_rig.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* ---- libcuda */

TEST(a_stream_runs_while_the_host_continues)
{
    load_cuda();
    use_device(0);
    dd_cuda_stream stream = make_stream(DD_CUDA_STREAM_NON_BLOCKING);
    dd_cuda_event event = make_event(DD_CUDA_EVENT_DISABLE_TIMING);
    char *data = make_memory(64);
    CU(cuEventQuery(event)); /* never recorded */
    CU(dd_stub_gate(stream, 0));
    CU(cuMemsetD8Async((dd_cuda_ptr)(uintptr_t)data, 7, 64, stream));
    CU(cuEventRecord(event, stream));
    CHECK_INT(cuda.cuEventQuery(event), DD_CUDA_NOT_READY);
    CHECK_INT(cuda.cuStreamQuery(stream), DD_CUDA_NOT_READY);
    cuda.dd_stub_open_gate(0);
    CU(cuEventSynchronize(event));
    CHECK_INT(data[63], 7);
    CU(cuEventQuery(event));
    CU(cuStreamSynchronize(stream));
    free_memory(data);
    CU(cuEventDestroy(event));
    CU(cuStreamDestroy(stream));
    check_no_cuda_left();
}

TEST(an_event_covers_work_enqueued_before_its_record)
{
    load_cuda();
    use_device(0);
    dd_cuda_stream first = make_stream(DD_CUDA_STREAM_NON_BLOCKING);
    dd_cuda_stream second = make_stream(DD_CUDA_STREAM_NON_BLOCKING);
    dd_cuda_event event = make_event(0);
    dd_cuda_event later = make_event(0);
    CU(cuEventRecord(event, first));
    CU(dd_stub_gate(first, 1));
    /* waits for the record before the gate, not for the gate */
    CU(cuStreamWaitEvent(second, event, 0));
    CU(cuStreamSynchronize(second));
    CU(cuEventRecord(later, first));
    CU(cuStreamWaitEvent(second, later, 0));
    CU(cuEventRecord(later, second)); /* the wait still applies to the first record */
    CHECK_INT(cuda.cuStreamQuery(second), DD_CUDA_NOT_READY);
    float ms = -1;
    CHECK_INT(cuda.cuEventElapsedTime(&ms, event, later), DD_CUDA_NOT_READY);
    cuda.dd_stub_open_gate(1);
    CU(cuStreamSynchronize(second));
    CU(cuEventElapsedTime(&ms, event, later));
    CHECK(ms >= 0);
    CU(cuEventDestroy(event));
    CHECK_INT(cuda.cuEventDestroy(event), DD_CUDA_INVALID_HANDLE);
    CHECK_INT(cuda.dd_stub_bad_uses(), 1);
    CU(cuEventDestroy(later));
    CU(cuStreamDestroy(first));
    CU(cuStreamDestroy(second));
}

TEST(the_legacy_stream_and_blocking_streams_wait_for_each_other)
{
    load_cuda();
    use_device(0);
    dd_cuda_stream blocking = make_stream(0);
    dd_cuda_stream apart = make_stream(DD_CUDA_STREAM_NON_BLOCKING);
    char *data = make_memory(1);
    dd_cuda_ptr at = (dd_cuda_ptr)(uintptr_t)data;
    CU(dd_stub_gate(blocking, 2));
    CU(cuMemsetD8Async(at, 1, 1, NULL));
    CU(cuMemsetD8Async(at, 2, 1, blocking));
    CU(cuMemsetD8Async(at, 3, 1, DD_CUDA_STREAM_LEGACY));
    CU(cuStreamSynchronize(apart));
    CHECK_INT(cuda.cuStreamQuery(DD_CUDA_STREAM_LEGACY), DD_CUDA_NOT_READY);
    cuda.dd_stub_open_gate(2);
    CU(cuStreamSynchronize(NULL));
    CHECK_INT(data[0], 3);
    free_memory(data);
    CU(cuStreamDestroy(blocking));
    CU(cuStreamDestroy(apart));
}

TEST(copies_are_exact_and_injected_errors_are_returned)
{
    load_cuda();
    use_device(3);
    dd_cuda_stream stream = make_stream(DD_CUDA_STREAM_NON_BLOCKING);
    char *data = make_memory(12);
    CU(cuMemcpyHtoDAsync((dd_cuda_ptr)(uintptr_t)data, "abcdefghijkl", 12, stream));
    char square[7] = "";
    dd_cuda_copy_2d copy = {.srcMemoryType = DD_CUDA_MEMORY_DEVICE,
                            .srcDevice = (dd_cuda_ptr)(uintptr_t)data,
                            .srcPitch = 4,
                            .srcXInBytes = 1,
                            .dstMemoryType = DD_CUDA_MEMORY_HOST,
                            .dstHost = square,
                            .dstPitch = 2,
                            .WidthInBytes = 2,
                            .Height = 3};
    CU(cuMemcpy2DAsync(&copy, stream));
    CHECK(strcmp(square, "bcfgjk") == 0);
    cuda.dd_stub_limit_memory(100);
    dd_cuda_ptr more = 0;
    CHECK_INT(cuda.cuMemAlloc(&more, 200), DD_CUDA_ERROR_OUT_OF_MEMORY);
    cuda.dd_stub_reset();
    cuda.dd_stub_shut_down(1);
    CHECK_INT(cuda.cuStreamQuery(stream), DD_CUDA_DEINITIALIZED);
    cuda.dd_stub_reset();
    free_memory(data);
    CU(cuStreamDestroy(stream));
    check_no_cuda_left();
}

TEST(a_capture_includes_streams_ordered_after_it)
{
    load_cuda();
    use_device(0);
    dd_cuda_stream origin = make_stream(DD_CUDA_STREAM_NON_BLOCKING);
    dd_cuda_stream side = make_stream(DD_CUDA_STREAM_NON_BLOCKING);
    dd_cuda_event fork = make_event(DD_CUDA_EVENT_DISABLE_TIMING);
    dd_cuda_event join = make_event(DD_CUDA_EVENT_DISABLE_TIMING);
    char *data = make_memory(2);
    dd_cuda_ptr at = (dd_cuda_ptr)(uintptr_t)data;
    CU(cuMemsetD8Async(at, 0, 2, origin));
    CU(cuStreamSynchronize(origin));
    CU(cuStreamBeginCapture(origin, DD_CUDA_CAPTURE_MODE_THREAD_LOCAL));
    CU(cuMemsetD8Async(at, 5, 1, origin));
    CU(cuEventRecord(fork, origin));
    CU(cuStreamWaitEvent(side, fork, 0));
    dd_cuda_capture_status status = DD_CUDA_CAPTURE_NONE;
    CU(cuStreamIsCapturing(side, &status));
    CHECK_INT(status, DD_CUDA_CAPTURE_ACTIVE);
    CU(cuMemcpyAsync(at + 1, at, 1, side));
    CU(cuEventRecord(join, side));
    CU(cuStreamWaitEvent(origin, join, 0));
    void *graph = NULL;
    CU(cuStreamEndCapture(origin, &graph));
    CHECK_INT(data[0], 0); /* nothing has run */
    void *exec = NULL;
    CU(cuGraphInstantiate(&exec, graph, 0));
    CU(cuGraphDestroy(graph));
    for (int i = 0; i < 3; i++) {
        CU(cuMemsetD8Async(at, 0, 2, origin));
        CU(cuGraphLaunch(exec, origin));
        CU(cuStreamSynchronize(origin));
        CHECK_INT(data[0], 5);
        CHECK_INT(data[1], 5);
    }
    CU(cuGraphExecDestroy(exec));
    CU(cuEventDestroy(fork));
    CU(cuEventDestroy(join));
    CU(cuStreamDestroy(origin));
    CU(cuStreamDestroy(side));
    free_memory(data);
    check_no_cuda_left();
}

TEST(querying_an_event_invalidates_a_stream_capture_in_global_mode)
{
    load_cuda();
    use_device(0);
    dd_cuda_stream stream = make_stream(DD_CUDA_STREAM_NON_BLOCKING);
    dd_cuda_event event = make_event(0);
    void *graph = NULL;
    CU(cuStreamBeginCapture(stream, DD_CUDA_CAPTURE_MODE_GLOBAL));
    dd_cuda_capture_mode mode = DD_CUDA_CAPTURE_MODE_RELAXED;
    CU(cuThreadExchangeStreamCaptureMode(&mode));
    CU(cuEventQuery(event));
    CU(cuThreadExchangeStreamCaptureMode(&mode));
    CU(cuStreamEndCapture(stream, &graph));
    CU(cuGraphDestroy(graph));

    CU(cuStreamBeginCapture(stream, DD_CUDA_CAPTURE_MODE_GLOBAL));
    CHECK_INT(cuda.cuEventQuery(event), DD_CUDA_STREAM_CAPTURE_UNSUPPORTED);
    dd_cuda_capture_status status = DD_CUDA_CAPTURE_NONE;
    CU(cuStreamIsCapturing(stream, &status));
    CHECK_INT(status, DD_CUDA_CAPTURE_INVALIDATED);
    CHECK_INT(cuda.cuStreamEndCapture(stream, &graph), 901);

    CU(cuStreamBeginCapture(stream, DD_CUDA_CAPTURE_MODE_RELAXED));
    CU(cuEventRecord(event, stream));
    CHECK_INT(cuda.cuEventQuery(event), DD_CUDA_CAPTURED_EVENT);
    CHECK_INT(cuda.cuStreamEndCapture(stream, &graph), 901);
    CU(cuEventDestroy(event));
    CU(cuStreamDestroy(stream));
}

/* ---- invalid modules and launches */

#define INVALID_PTX 218
#define NOT_FOUND 500

TEST(loading_an_invalid_cuda_module_fails)
{
    load_cuda();
    dd_cuda_module module;
    CHECK_INT(cuda.cuModuleLoadData(&module, dd_nan_ptx), DD_CUDA_INVALID_CONTEXT);
    use_device(0);
    CHECK_INT(cuda.cuModuleLoadData(&module, "no PTX"), INVALID_PTX);
    dd_cuda_function function;
    CU(cuModuleLoadData(&module, ".version 7.0\n.visible .entry dd_find_nan_8(\n"));
    CU(cuModuleGetFunction(&function, module, "dd_find_nan_8"));
    CHECK_INT(cuda.cuModuleGetFunction(&function, module, "dd_find_nan_16"), NOT_FOUND);
    CU(cuModuleUnload(module));
    CHECK_INT(cuda.cuModuleUnload(module), DD_CUDA_INVALID_HANDLE);
    CHECK_INT(cuda.cuModuleGetFunction(&function, module, "dd_find_nan_8"), DD_CUDA_INVALID_HANDLE);
}

/* Launch the kernel that reads bytes. */
static dd_cuda_result
launch_kernel(dd_cuda_function function, unsigned grid, unsigned block, dd_cuda_stream stream,
              const void *data, uint64_t n, const void *report)
{
    uint64_t limit = 0x7f;
    uint64_t key = 0;
    void *params[] = {&data, &n, &limit, &key, &report};
    return cuda.cuLaunchKernel(function, grid, 1, 1, block, 1, 1, 0, stream, params, NULL);
}

TEST(launching_a_kernel_with_wrong_arguments_fails)
{
    load_cuda();
    use_device(1);
    dd_cuda_stream elsewhere = make_stream(DD_CUDA_STREAM_NON_BLOCKING);
    use_device(0);
    dd_cuda_stream stream = make_stream(DD_CUDA_STREAM_NON_BLOCKING);
    dd_cuda_module module;
    dd_cuda_function function;
    CU(cuModuleLoadData(&module, dd_nan_ptx));
    CU(cuModuleGetFunction(&function, module, "dd_find_nan_8"));
    char *data = make_memory(64);
    uint64_t *report = (uint64_t *)(void *)make_memory(8);
    memset(data, 0, 64);
    memset(report, 0xff, 8);
    data[40] = 0x7f;
    CHECK_INT(launch_kernel(function, 0, 32, stream, data, 64, report), DD_CUDA_INVALID_VALUE);
    CHECK_INT(launch_kernel(function, 1, 2048, stream, data, 64, report), DD_CUDA_INVALID_VALUE);
    CHECK_INT(launch_kernel(function, 1, 32, elsewhere, data, 64, report), DD_CUDA_INVALID_HANDLE);
    CHECK_INT(launch_kernel(function, 1, 32, stream, data, 64, report), DD_CUDA_SUCCESS);
    CU(cuStreamSynchronize(stream));
    CHECK_INT(*report, 40);
    CHECK_INT(cuda.dd_stub_bad_uses(), 0);
    /* one byte out of bounds */
    CHECK_INT(launch_kernel(function, 1, 32, stream, data, 65, report), DD_CUDA_SUCCESS);
    CU(cuStreamSynchronize(stream));
    CHECK_INT(cuda.dd_stub_bad_uses(), 1);
    CU(dd_stub_gate(stream, 1));
    CHECK_INT(launch_kernel(function, 1, 32, stream, data, 64, report), DD_CUDA_SUCCESS);
    CU(cuModuleUnload(module)); /* before the kernel has run */
    cuda.dd_stub_open_gate(1);
    CU(cuStreamSynchronize(stream));
    CHECK_INT(cuda.dd_stub_bad_uses(), 2);
    CHECK_INT(launch_kernel(function, 1, 32, stream, data, 64, report), DD_CUDA_INVALID_HANDLE);
}

/* ---- libnccl, between threads */

#define COUNT 20000

static void
run_collectives(member *self)
{
    int size = self->team->size;
    int rank = self->rank;
    float *in = make_memory(COUNT * sizeof(float) * MAX_RANKS);
    float *out = make_memory(COUNT * sizeof(float) * MAX_RANKS);
    for (int i = 0; i < COUNT * size; i++) {
        in[i] = (float)(rank * 10 + i / COUNT);
    }
    int sum = 10 * (size * (size - 1) / 2);
    NC(ncclAllReduce(in, out, COUNT, DD_NCCL_DTYPE_FLOAT32, DD_NCCL_AVG, self->comm, self->stream));
    CU(cuStreamSynchronize(self->stream));
    CHECK(out[COUNT - 1] == (float)sum / (float)size);
    NC(ncclReduceScatter(in, out, COUNT, DD_NCCL_DTYPE_FLOAT32, DD_NCCL_SUM, self->comm, self->stream));
    CU(cuStreamSynchronize(self->stream));
    CHECK(out[COUNT - 1] == (float)(sum + rank * size));
    NC(ncclReduce(in, out, COUNT, DD_NCCL_DTYPE_FLOAT32, DD_NCCL_MAX, size - 1, self->comm, self->stream));
    CU(cuStreamSynchronize(self->stream));
    CHECK(rank != size - 1 || out[0] == (float)(10 * (size - 1)));
    NC(ncclAllGather(in, out, COUNT, DD_NCCL_DTYPE_FLOAT32, self->comm, self->stream));
    CU(cuStreamSynchronize(self->stream));
    CHECK(out[COUNT * size - 1] == (float)(10 * (size - 1)));
    NC(ncclAlltoAll(in, out, COUNT, DD_NCCL_DTYPE_FLOAT32, self->comm, self->stream));
    CU(cuStreamSynchronize(self->stream));
    CHECK(out[COUNT * size - 1] == (float)(10 * (size - 1) + rank));
    NC(ncclScatter(in, out, COUNT, DD_NCCL_DTYPE_FLOAT32, 0, self->comm, self->stream));
    NC(ncclGather(out, in, COUNT, DD_NCCL_DTYPE_FLOAT32, 0, self->comm, self->stream));
    CU(cuStreamSynchronize(self->stream));
    CHECK(out[5] == (float)rank);
    CHECK(rank != 0 || in[COUNT * (size - 1)] == (float)(size - 1));
    NC(ncclBroadcast(in, in, COUNT, DD_NCCL_DTYPE_FLOAT32, size - 1, self->comm, self->stream));
    dd_nccl_redop half = DD_NCCL_SUM;
    float factor = 0.5f;
    NC(ncclRedOpCreatePreMulSum(&half, &factor, DD_NCCL_DTYPE_FLOAT32, DD_NCCL_SCALAR_HOST, self->comm));
    NC(ncclAllReduce(out, out, COUNT, DD_NCCL_DTYPE_FLOAT32, half, self->comm, self->stream));
    NC(ncclRedOpDestroy(half, self->comm));
    CHECK_INT(nccl.ncclAllReduce(out, out, 1, DD_NCCL_DTYPE_FLOAT32, half, self->comm, self->stream),
              DD_NCCL_INVALID_ARGUMENT);
    CU(cuStreamSynchronize(self->stream));
    CHECK(out[7] == 0.5f * (float)(size * (size - 1) / 2));
    free_memory(in);
    free_memory(out);
}

TEST(collectives_of_one_rank_are_correct)
{
    load_nccl("2.32.3");
    run_team(1, 1, run_collectives);
}

TEST(collectives_of_two_ranks_are_correct)
{
    load_nccl("2.28.3");
    run_team(2, 1, run_collectives);
}

TEST(collectives_of_four_ranks_are_correct)
{
    load_nccl("2.32.3");
    run_team(4, 1, run_collectives);
}

/* Send messages around a ring in one group, on a nonblocking communicator. */
static void
run_messages(member *self)
{
    int size = self->team->size;
    int *data = make_memory(2 * COUNT * sizeof(int));
    for (int i = 0; i < COUNT; i++) {
        data[i] = self->rank;
    }
    NC(ncclGroupStart());
    NC(ncclSend(data, COUNT, DD_NCCL_DTYPE_INT32, (self->rank + 1) % size, self->comm, self->stream));
    NC(ncclRecv(data + COUNT, COUNT, DD_NCCL_DTYPE_INT32, (self->rank + size - 1) % size, self->comm,
                self->stream));
    CHECK_INT(nccl.ncclGroupEnd(), DD_NCCL_IN_PROGRESS);
    CHECK_INT(wait_until_ready(self->comm), DD_NCCL_SUCCESS);
    CU(cuStreamSynchronize(self->stream));
    CHECK_INT(data[2 * COUNT - 1], (self->rank + size - 1) % size);
    free_memory(data);
}

TEST(messages_between_group_start_and_group_end_are_sent_together)
{
    load_nccl("2.27.3");
    nccl.dd_stub_slow_launches(20);
    run_team(3, 0, run_messages);
}

static void
check_sum_of_ranks(member *self, dd_nccl_comm_handle comm, int expected)
{
    int *data = make_memory(sizeof(int));
    *data = self->rank;
    NC(ncclAllReduce(data, data, 1, DD_NCCL_DTYPE_INT32, DD_NCCL_SUM, comm, self->stream));
    CU(cuStreamSynchronize(self->stream));
    CHECK_INT(*data, expected);
    free_memory(data);
}

static void
run_children(member *self)
{
    dd_nccl_comm_handle child = NULL;
    NC(ncclCommSplit(self->comm, self->rank == 3 ? DD_NCCL_NO_COLOR : self->rank % 2, -self->rank, &child,
                     NULL));
    CHECK((child == NULL) == (self->rank == 3));
    if (child != NULL) {
        int rank = -1;
        NC(ncclCommUserRank(child, &rank));
        CHECK_INT(rank, self->rank == 0); /* the keys reverse the order */
        check_sum_of_ranks(self, child, self->rank == 1 ? 1 : 2);
        NC(ncclCommDestroy(child));
    }
    int excluded[] = {1};
    dd_nccl_unique_id id = {""};
    if (self->rank != 1) {
        NC(ncclCommShrink(self->comm, excluded, 1, &child, NULL, DD_NCCL_SHRINK_DEFAULT));
        check_sum_of_ranks(self, child, 5);
        dd_nccl_comm_handle grown = NULL;
        if (self->rank == 0) {
            NC(ncclCommGetUniqueId(child, &self->team->id));
            id = self->team->id;
        }
        pthread_barrier_wait(&self->team->barrier);
        NC(ncclCommGrow(child, 4, self->rank == 0 ? &id : NULL, -1, &grown, NULL));
        check_sum_of_ranks(self, grown, 6);
        NC(ncclCommDestroy(grown));
        NC(ncclCommDestroy(child));
    } else {
        pthread_barrier_wait(&self->team->barrier);
        id = self->team->id;
        NC(ncclCommGrow(NULL, 4, &id, 3, &child, NULL));
        check_sum_of_ranks(self, child, 6);
        NC(ncclCommDestroy(child));
    }
}

TEST(communicators_derived_from_another_one_work)
{
    load_nccl("2.32.3");
    run_team(4, 1, run_children);
}

/* One rank does not call: the others block until they abort, and their streams continue. */
static void
run_missing(member *self)
{
    if (self->rank != 0) {
        int *data = make_memory(sizeof(int));
        NC(ncclAllReduce(data, data, 1, DD_NCCL_DTYPE_INT32, DD_NCCL_SUM, self->comm, self->stream));
        CHECK_INT(cuda.cuStreamQuery(self->stream), DD_CUDA_NOT_READY);
        NC(ncclCommAbort(self->comm));
        self->comm = NULL;
        CU(cuStreamSynchronize(self->stream));
        free_memory(data);
    }
}

TEST(a_kernel_that_waits_for_a_missing_rank_hangs_until_the_abort)
{
    load_nccl("2.18.1");
    run_team(3, 1, run_missing);
}

static int64_t
now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static void
sleep_ms(int ms)
{
    struct timespec duration = {.tv_nsec = ms * 1000000L};
    nanosleep(&duration, NULL);
}

static void *
destroy_graph_soon(void *graph)
{
    sleep_ms(100);
    CU(cuGraphDestroy(graph));
    return NULL;
}

/* ---- rules that the real libraries enforce */

static void *
open_soon(void *arg)
{
    sleep_ms(100);
    cuda.dd_stub_open_gate(*(int *)arg);
    return NULL;
}

TEST(freeing_memory_waits_for_the_whole_device)
{
    load_cuda();
    use_device(0);
    dd_cuda_stream stream = make_stream(DD_CUDA_STREAM_NON_BLOCKING);
    void *kept = NULL;
    CU(cuMemHostAlloc(&kept, 8, 0));
    for (int gate = 100; gate < 102; gate++) {
        void *data = make_memory(8);
        pthread_t opener;
        CHECK_INT(cuda.dd_stub_gate(stream, gate), 0);
        pthread_create(&opener, NULL, open_soon, &gate);
        if (gate == 100) {
            free_memory(data);
        } else {
            CU(cuMemFreeHost(kept));
        }
        /* a different stream from the one that used it */
        CHECK_INT(cuda.cuStreamQuery(stream), DD_CUDA_SUCCESS);
        pthread_join(opener, NULL);
        if (gate != 100) {
            free_memory(data);
        }
    }
    CU(cuStreamDestroy(stream));
    CU(cuDevicePrimaryCtxRelease(0));
    check_no_cuda_left();
}

/* One rank is late: the other rank's call must not return before that rank calls. */
static atomic_bool has_arrived;

static void
run_late(member *self)
{
    int *data = make_memory(sizeof(int));
    *data = self->rank + 1;
    if (self->rank == 1) {
        sleep_ms(50);
        atomic_store(&has_arrived, true);
    }
    NC(ncclAllReduce(data, data, 1, DD_NCCL_DTYPE_INT32, DD_NCCL_SUM, self->comm, self->stream));
    CHECK(atomic_load(&has_arrived));
    CU(cuStreamSynchronize(self->stream));
    CHECK_INT(*data, 3);
    free_memory(data);
}

TEST(the_first_collective_blocks_the_host_until_all_ranks_call)
{
    load_nccl("2.22.3");
    run_team(2, 1, run_late);
}

/* The same for messages in each direction: rank 1 is late for its first message. */
static atomic_int ncome;

static void
carry_message(member *self, int to)
{
    int *data = make_memory(sizeof *data);
    *data = self->rank == to ? 0 : 7;
    if (self->rank == to) {
        NC(ncclRecv(data, 1, DD_NCCL_DTYPE_INT32, !to, self->comm, self->stream));
    } else {
        NC(ncclSend(data, 1, DD_NCCL_DTYPE_INT32, to, self->comm, self->stream));
    }
    CHECK(atomic_load(&ncome) > to); /* when the call returns, not only when its kernel ends */
    CU(cuStreamSynchronize(self->stream));
    CHECK_INT(*data, 7);
    free_memory(data);
}

static void
run_late_messages(member *self)
{
    for (int to = 0; to < 2; to++) {
        if (self->rank == 1) {
            sleep_ms(50);
            atomic_fetch_add(&ncome, 1);
        }
        carry_message(self, to);
    }
}

TEST(the_first_message_blocks_the_host_until_the_peer_calls)
{
    load_nccl("2.18.1"); /* any version would do */
    run_team(2, 1, run_late_messages);
}

static void
run_early_message(member *self)
{
    int *data = make_memory(sizeof *data);
    atomic_store(&ncome, 2);
    carry_message(self, 1);
    if (self->rank == 0) {
        NC(ncclSend(data, 1, DD_NCCL_DTYPE_INT32, 1, self->comm, self->stream));
    }
    pthread_barrier_wait(&self->team->barrier); /* not before the call has returned */
    if (self->rank == 1) {
        NC(ncclRecv(data, 1, DD_NCCL_DTYPE_INT32, 0, self->comm, self->stream));
    }
    CU(cuStreamSynchronize(self->stream));
    free_memory(data);
}

TEST(the_second_message_does_not_block_the_host)
{
    load_nccl("2.18.1");
    run_team(2, 1, run_early_message);
}

static void
run_early(member *self)
{
    int *data = make_memory(sizeof(int));
    if (self->rank == 0) {
        NC(ncclAllReduce(data, data, 1, DD_NCCL_DTYPE_INT32, DD_NCCL_SUM, self->comm, self->stream));
        CHECK(!atomic_load(&has_arrived));
    }
    pthread_barrier_wait(&self->team->barrier);
    if (self->rank == 1) {
        NC(ncclAllReduce(data, data, 1, DD_NCCL_DTYPE_INT32, DD_NCCL_SUM, self->comm, self->stream));
    }
    CU(cuStreamSynchronize(self->stream));
    free_memory(data);
}

TEST(the_first_collective_does_not_block_the_host_if_connections_exist)
{
    load_nccl("2.22.3");
    setenv("NCCL_RUNTIME_CONNECT", "0", 1);
    run_team(2, 1, run_early);
}

/* A rank whose call waits is notified of an abort inside a group, and the end of the group frees
 * its resources. */
static atomic_bool has_returned;

static void *
abort_in_group(void *arg)
{
    member *self = arg;
    use_device(self->rank);
    while (nccl.dd_stub_calls("ncclAllReduce") == 0) {
        sched_yield();
    }
    NC(ncclGroupStart());
    NC(ncclCommAbort(self->comm));
    while (!atomic_load(&has_returned)) {
        sched_yield();
    }
    NC(ncclGroupEnd());
    CU(cuDevicePrimaryCtxRelease(self->rank));
    return NULL;
}

static void
run_notified(member *self)
{
    int *data = make_memory(sizeof(int));
    pthread_t aborter;
    pthread_create(&aborter, NULL, abort_in_group, self);
    CHECK_INT(nccl.ncclAllReduce(data, data, 1, DD_NCCL_DTYPE_INT32, DD_NCCL_SUM, self->comm, self->stream),
              DD_NCCL_INTERNAL_ERROR);
    atomic_store(&has_returned, true);
    pthread_join(aborter, NULL);
    self->comm = NULL;
    free_memory(data);
}

static void
run_notified_alone(member *self)
{
    if (self->rank == 0) {
        run_notified(self);
    }
}

TEST(an_abort_between_group_start_and_end_first_ends_a_call_in_progress)
{
    load_nccl("2.32.3");
    run_team(2, 1, run_notified_alone);
}

static void
run_live_graph(member *self)
{
    int *data = make_memory(sizeof(int));
    void *graph = NULL;
    CU(cuStreamBeginCapture(self->stream, DD_CUDA_CAPTURE_MODE_THREAD_LOCAL));
    NC(ncclAllReduce(data, data, 1, DD_NCCL_DTYPE_INT32, DD_NCCL_SUM, self->comm, self->stream));
    CU(cuStreamEndCapture(self->stream, &graph));
    pthread_t destroyer;
    pthread_create(&destroyer, NULL, destroy_graph_soon, graph);
    int64_t began = now_ms();
    NC(ncclCommFinalize(self->comm));
    CHECK(now_ms() - began >= 90);
    pthread_join(destroyer, NULL);
    free_memory(data);
}

TEST(finalizing_a_communicator_waits_until_its_cuda_graphs_are_destroyed)
{
    load_nccl("2.32.3");
    run_team(1, 1, run_live_graph);
}

static void
run_suspend_late(member *self)
{
    pthread_barrier_wait(&self->team->barrier);
    int64_t began = now_ms();
    if (self->rank == 1) {
        sleep_ms(100);
    }
    NC(ncclCommSuspend(self->comm, DD_NCCL_SUSPEND_MEM));
    CHECK(now_ms() - began >= 90);
    NC(ncclCommResume(self->comm));
}

TEST(suspending_a_communicator_waits_for_all_ranks)
{
    load_nccl("2.32.3");
    run_team(2, 1, run_suspend_late);
}

static void
run_spoiling_end(member *self)
{
    void *graph = NULL;
    dd_cuda_stream other = make_stream(DD_CUDA_STREAM_NON_BLOCKING);
    CU(cuStreamBeginCapture(other, DD_CUDA_CAPTURE_MODE_GLOBAL));
    NC(ncclCommDestroy(self->comm));
    self->comm = NULL;
    CHECK_INT(cuda.cuStreamEndCapture(other, &graph), 901);
    CU(cuStreamDestroy(other));
}

TEST(destroying_a_communicator_invalidates_a_stream_capture_in_global_mode)
{
    load_nccl("2.32.3");
    run_team(1, 1, run_spoiling_end);
}

static void
run_private(member *self)
{
    dd_cuda_ptr data = 0;
    CU(cuMemAllocAsync(&data, 8, self->stream));
    CHECK_INT(nccl.ncclAllReduce((void *)(uintptr_t)data, (void *)(uintptr_t)data, 1, DD_NCCL_DTYPE_INT32,
                                 DD_NCCL_SUM, self->comm, self->stream),
              self->team->size == 1 ? DD_NCCL_SUCCESS : DD_NCCL_UNHANDLED_CUDA_ERROR);
    CU(cuMemFreeAsync(data, self->stream));
    CU(cuStreamSynchronize(self->stream));
}

TEST(collectives_refuse_memory_of_a_pool_that_peers_cannot_read)
{
    load_nccl("2.32.3");
    run_team(1, 1, run_private);
    run_team(2, 1, run_private);
}

static void
run_mismatch(member *self)
{
    int *data = make_memory(64);
    size_t count = self->rank == 0 ? 1 : 2;
    NC(ncclAllReduce(data, data, count, DD_NCCL_DTYPE_INT32, DD_NCCL_SUM, self->comm, self->stream));
    pthread_barrier_wait(&self->team->barrier);
    CHECK_INT(cuda.cuStreamQuery(self->stream), DD_CUDA_NOT_READY);
    NC(ncclCommAbort(self->comm));
    self->comm = NULL;
    CU(cuStreamSynchronize(self->stream));
    free_memory(data);
}

TEST(an_all_reduce_of_different_counts_hangs)
{
    load_nccl("2.30.7");
    run_team(2, 1, run_mismatch);
}

static void
run_captured(member *self)
{
    int *data = make_memory(sizeof(int));
    dd_cuda_ptr at = (dd_cuda_ptr)(uintptr_t)data;
    void *graph = NULL;
    void *exec = NULL;
    CU(cuStreamBeginCapture(self->stream, DD_CUDA_CAPTURE_MODE_THREAD_LOCAL));
    CU(cuMemsetD8Async(at, 1, sizeof(int), self->stream));
    NC(ncclAllReduce(data, data, 1, DD_NCCL_DTYPE_INT32, DD_NCCL_SUM, self->comm, self->stream));
    CU(cuStreamEndCapture(self->stream, &graph));
    CU(cuGraphInstantiate(&exec, graph, 0));
    CU(cuGraphDestroy(graph));
    for (int i = 0; i < 2; i++) {
        CU(cuGraphLaunch(exec, self->stream));
        CU(cuStreamSynchronize(self->stream));
        CHECK_INT(*data, 0x01010101 * self->team->size);
    }
    CU(cuGraphExecDestroy(exec));
    free_memory(data);
}

TEST(collectives_captured_in_a_cuda_graph_run_when_it_is_launched)
{
    load_nccl("2.24.3");
    run_team(2, 1, run_captured);
}

static void
run_faults(member *self)
{
    int *data = make_memory(sizeof(int));
    bool is_first = self->rank == 0;
    if (is_first) {
        nccl.dd_stub_fail("ncclAllGather", 1, DD_NCCL_SYSTEM_ERROR, "the cable is out");
        NC(ncclAllGather(data, data, 0, DD_NCCL_DTYPE_INT32, self->comm, self->stream));
        CHECK_INT(nccl.ncclAllGather(data, data, 0, DD_NCCL_DTYPE_INT32, self->comm, self->stream),
                  DD_NCCL_SYSTEM_ERROR);
        CHECK_CONTAINS(nccl.ncclGetLastError(self->comm), "the cable is out");
        CHECK_INT(nccl.dd_stub_calls("ncclAllGather"), 2);
        nccl.dd_stub_hang_kernel(0, 0);
    }
    pthread_barrier_wait(&self->team->barrier);
    NC(ncclAllReduce(data, data, 1, DD_NCCL_DTYPE_INT32, DD_NCCL_SUM, self->comm, self->stream));
    pthread_barrier_wait(&self->team->barrier);
    if (is_first) {
        nccl.dd_stub_async_error(1, DD_NCCL_REMOTE_ERROR, 0, "a peer has gone");
    }
    pthread_barrier_wait(&self->team->barrier);
    dd_nccl_result state = DD_NCCL_SUCCESS;
    NC(ncclCommGetAsyncError(self->comm, &state));
    CHECK_INT(state, is_first ? DD_NCCL_SUCCESS : DD_NCCL_REMOTE_ERROR);
    CHECK_INT(cuda.cuStreamQuery(self->stream), DD_CUDA_NOT_READY);
    NC(ncclCommAbort(self->comm));
    self->comm = NULL;
    CU(cuStreamSynchronize(self->stream));
    free_memory(data);
}

TEST(injected_faults_fail_and_hang_calls)
{
    load_nccl("2.29.7");
    run_team(2, 1, run_faults);
}

static void *
init_alone(void *arg)
{
    dd_nccl_comm_handle *comm = arg;
    use_device(0);
    dd_nccl_unique_id id;
    NC(ncclGetUniqueId(&id));
    dd_nccl_abi_config config = make_config(0);
    CHECK_INT(nccl.ncclCommInitRankConfig(comm, 2, id, 0, &config), DD_NCCL_IN_PROGRESS);
    NC(ncclCommAbort(*comm)); /* no other rank joins */
    return NULL;
}

TEST(a_call_that_was_told_to_hang_continues_once_it_is_released)
{
    load_nccl("2.23.4");
    dd_nccl_comm_handle comm = NULL;
    pthread_t thread;
    nccl.dd_stub_hang("ncclCommAbort", 0, -1);
    REQUIRE(pthread_create(&thread, NULL, init_alone, &comm) == 0);
    while (nccl.dd_stub_hanging() == 0) {
        sched_yield();
    }
    nccl.dd_stub_release();
    pthread_join(thread, NULL);
    CHECK_INT(nccl.dd_stub_live("comm"), 0);
}

/* ---- between processes, and differences between versions */

static int
run_process(int rank, const dd_nccl_unique_id *id)
{
    use_device(rank);
    member self = {.rank = rank, .stream = make_stream(DD_CUDA_STREAM_NON_BLOCKING)};
    NC(ncclCommInitRank(&self.comm, 2, *id, rank));
    check_sum_of_ranks(&self, self.comm, 1);
    NC(ncclCommDestroy(self.comm));
    return check_failures() > 0;
}

TEST(ranks_of_two_processes_form_a_communicator)
{
    load_nccl("2.19.3");
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

TEST(each_stub_exports_the_functions_of_its_nccl_version)
{
    static const struct {
        const char *text;
        int code;
    } versions[] = {{"2.18.1", 21801}, {"2.19.3", 21903}, {"2.22.3", 22203}, {"2.23.4", 22304},
                    {"2.24.3", 22403}, {"2.27.3", 22703}, {"2.28.3", 22803}, {"2.28.7", 22807},
                    {"2.29.2", 22902}, {"2.29.7", 22907}, {"2.30.7", 23007}, {"2.31.2", 23102},
                    {"2.32.3", 23203}};
    for (size_t i = 0; i < sizeof versions / sizeof versions[0]; i++) {
        load_nccl(versions[i].text);
        int version = 0;
        NC(ncclGetVersion(&version));
        CHECK_INT(version, versions[i].code);
#define CHECK_SINCE(name, since, returns, params, capability) \
    CHECK_INT(dlsym(nccl.library, #name) != NULL, version >= (since));
        DD_NCCL_OPTIONAL(CHECK_SINCE)
    }
}

TEST(invalid_communicator_configurations_are_refused)
{
    load_nccl("2.30.7");
    use_device(0);
    dd_nccl_unique_id id;
    NC(ncclGetUniqueId(&id));
    dd_nccl_comm_handle comm = NULL;
    dd_nccl_abi_config config = make_config(1);
    config.minCTAs = 4;
    CHECK_INT(nccl.ncclCommInitRankConfig(&comm, 1, id, 0, &config), DD_NCCL_INVALID_ARGUMENT);
    config.maxCTAs = 8;
    config.magic++;
    CHECK_INT(nccl.ncclCommInitRankConfig(&comm, 1, id, 0, &config), DD_NCCL_INVALID_ARGUMENT);
    CHECK_CONTAINS(nccl.ncclGetLastError(NULL), "NCCL_CONFIG_INITIALIZER");
    config.magic--;
    NC(ncclCommInitRankConfig(&comm, 1, id, 0, &config));
    NC(ncclCommDestroy(comm));
    CHECK_INT(nccl.ncclCommDestroy(comm), DD_NCCL_INVALID_ARGUMENT);
    int devices[] = {0, 0};
    dd_nccl_comm_handle comms[2] = {NULL, NULL};
    unsetenv("DLDIST_STUB_ALLOW_SAME_GPU");
    CHECK_INT(nccl.ncclCommInitAll(comms, 2, devices), DD_NCCL_INVALID_USAGE);
    setenv("DLDIST_STUB_ALLOW_SAME_GPU", "1", 1);
    NC(ncclCommInitAll(comms, 2, devices));
    NC(ncclCommDestroy(comms[0]));
    NC(ncclCommDestroy(comms[1]));
}

TEST(faults_can_be_injected_by_an_environment_variable)
{
    setenv("DLDIST_STUB_FAULTS", "fail ncclGetUniqueId 1 3 from outside; fail cuInit 0 100", 1);
    load_nccl("2.31.2");
    dd_nccl_unique_id id;
    NC(ncclGetUniqueId(&id));
    CHECK_INT(nccl.ncclGetUniqueId(&id), DD_NCCL_INTERNAL_ERROR);
    CHECK_CONTAINS(nccl.ncclGetLastError(NULL), "from outside");
    CHECK_INT(cuda.cuInit(0), DD_CUDA_NO_DEVICE);
    CU(cuInit(0));
}

/* Exit the process while a communicator waits for a missing rank. */
static void
leave_while_waiting(void)
{
    dd_nccl_unique_id id;
    NC(ncclGetUniqueId(&id));
    use_device(0);
    dd_nccl_comm_handle comm = NULL;
    dd_nccl_abi_config config = make_config(0);
    CHECK_INT(nccl.ncclCommInitRankConfig(&comm, 2, id, 0, &config), DD_NCCL_IN_PROGRESS);
    while (count_files() == 0) {
        sched_yield();
    }
    exit(check_failures() > 0);
}

TEST(a_process_that_exits_while_it_waits_leaves_no_temporary_file)
{
    char folder[] = "/tmp/dldist-stubs-XXXXXX";
    REQUIRE(mkdtemp(folder) != NULL);
    setenv("DLDIST_STUB_DIR", folder, 1);
    load_nccl("2.28.7");
    pid_t child = fork();
    REQUIRE(child >= 0);
    if (child == 0) {
        leave_while_waiting();
    }
    int status = -1;
    CHECK_INT(waitpid(child, &status, 0), child);
    CHECK_INT(status, 0);
    CHECK_INT(count_files(), 0);
    CHECK_INT(rmdir(folder), 0);
}
