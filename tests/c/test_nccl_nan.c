/* The check for NaN: the kernels, which the stub executes, calls that are rejected, and graphs that
 * fail their group. */
#include "check.h"
#include "core/thread.h"
#include "nccl_rig.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* Some values of a dtype, as the bits of a float. */
typedef struct nan_values {
    dd_dtype dtype;
    unsigned width;
    unsigned nfloats; /* per element */
    uint64_t nans[4];
    uint64_t others[4]; /* infinities, the largest and the smallest value */
} nan_values;

static const nan_values values_of[] = {
    {DD_DTYPE_FLOAT16, 2, 1, {0x7e00, 0x7c01, 0xfc01, 0xffff}, {0x7c00, 0xfc00, 0x7bff, 0x8001}},
    {DD_DTYPE_BFLOAT16, 2, 1, {0x7fc0, 0x7f81, 0xff81, 0xffff}, {0x7f80, 0xff80, 0x7f7f, 0x8001}},
    {DD_DTYPE_FLOAT8_E4M3FN, 1, 1, {0x7f, 0xff, 0x7f, 0xff}, {0x7e, 0xfe, 0x01, 0x80}},
    {DD_DTYPE_FLOAT8_E5M2, 1, 1, {0x7e, 0x7d, 0xfd, 0xff}, {0x7c, 0xfc, 0x7b, 0x80}},
    {DD_DTYPE_FLOAT32,
     4,
     1,
     {0x7fc00000, 0x7f800001, 0xff800001, 0xffffffff},
     {0x7f800000, 0xff800000, 0x7f7fffff, 0x80000001}},
    {DD_DTYPE_COMPLEX64,
     4,
     2,
     {0x7fc00000, 0x7f800001, 0xff800001, 0xffffffff},
     {0x7f800000, 0xff800000, 0x7f7fffff, 0x80000001}},
    {DD_DTYPE_FLOAT64,
     8,
     1,
     {0x7ff8000000000000, 0x7ff0000000000001, 0xfff0000000000001, 0xffffffffffffffff},
     {0x7ff0000000000000, 0xfff0000000000000, 0x7fefffffffffffff, 0x8000000000000001}},
    {DD_DTYPE_COMPLEX128,
     8,
     2,
     {0x7ff8000000000000, 0x7ff0000000000001, 0xfff0000000000001, 0xffffffffffffffff},
     {0x7ff0000000000000, 0xfff0000000000000, 0x7fefffffffffffff, 0x8000000000000001}},
};
#define NVALUES (sizeof values_of / sizeof values_of[0])

/* ---- the kernels */

typedef struct kernel_rig {
    nccl_rig_rank *self;
    dd_cuda_nan_report *report;
    uint8_t *memory;
    size_t nbytes;
} kernel_rig;

static bool
kernel_rig_open(kernel_rig *kernels, nccl_rig_rank *self, size_t nbytes)
{
    *kernels = (kernel_rig){.self = self, .memory = nccl_rig_alloc(self, nbytes), .nbytes = nbytes};
    dd_cuda_nan *nan = self->rig->cuda->nan;
    return CHECK(dd_cuda_nan_is_ready(nan, self->rank)) &&
           CHECK_INT(dd_cuda_nan_report_create(nan, &kernels->report), DD_CUDA_SUCCESS);
}

static void
kernel_rig_close(kernel_rig *kernels)
{
    CHECK_INT(kernels->self->rig->cuda->api.cuMemFreeHost((void *)(uintptr_t)kernels->report),
              DD_CUDA_SUCCESS);
    nccl_rig_free(kernels->self, kernels->memory);
}

/* Return the report of a kernel for the floats that start `at` bytes into the memory. */
static uint64_t
reported(kernel_rig *kernels, unsigned width, uint64_t limit, size_t at, uint64_t nfloats)
{
    const dd_cuda *cuda = kernels->self->rig->cuda;
    dd_cuda_nan_search search = {.data = kernels->memory + at,
                                 .nfloats = nfloats,
                                 .width = width,
                                 .limit = limit,
                                 .key = 1000,
                                 .report = kernels->report};
    atomic_store(kernels->report, DD_CUDA_NAN_NONE);
    CHECK_INT(dd_cuda_nan_enqueue(cuda->nan, kernels->self->rank, &search, kernels->self->stream),
              DD_CUDA_SUCCESS);
    CHECK_INT(cuda->api.cuStreamSynchronize(kernels->self->stream), DD_CUDA_SUCCESS);
    return atomic_load(kernels->report);
}

/* All lengths around the number of floats in one step, all alignments of the memory, and a NaN
 * before, after, at the ends of and within the floats. The surrounding bytes are NaN. */
static void
layouts_body(nccl_rig_rank *self)
{
    static const unsigned widths[] = {1, 2, 4, 8};
    static const uint64_t limits[] = {0x7f, 0x7c01, 0x7f800001, UINT64_C(0x7ff0000000000001)};
    kernel_rig kernels;
    REQUIRE(kernel_rig_open(&kernels, self, 1024));
    for (int w = 0; w < 4; w++) {
        for (size_t at = 16; at < 33; at++) {
            for (uint64_t nfloats = 1; nfloats < 70; nfloats++) {
                uint64_t places[] = {0, nfloats / 2, nfloats - 1, nfloats};
                for (int p = 0; p < 4; p++) {
                    memset(kernels.memory, 0xff, kernels.nbytes);
                    memset(kernels.memory + at, 0, nfloats * widths[w]);
                    memset(kernels.memory + at + places[p] * widths[w], 0xff, widths[w]);
                    uint64_t found = reported(&kernels, widths[w], limits[w], at, nfloats);
                    bool is_in = places[p] < nfloats;
                    if (found != (is_in ? 1000 + places[p] : DD_CUDA_NAN_NONE)) {
                        CHECK_INT(found, is_in ? 1000 + (long long)places[p] : -1);
                        fprintf(stderr, "    width %u at %zu of %llu\n", widths[w], at,
                                (unsigned long long)nfloats);
                    }
                }
            }
        }
    }
    kernel_rig_close(&kernels);
}

TEST(the_gpu_kernels_find_a_nan_at_any_position)
{
    nccl_rig_run(&(nccl_rig_options){.size = 1}, layouts_body, NULL);
}

/* More floats than all threads of a launch read in one step. */
static void
large_body(nccl_rig_rank *self)
{
    kernel_rig kernels;
    size_t nfloats = ((size_t)9 << 20) / sizeof(float) - 1;
    REQUIRE(kernel_rig_open(&kernels, self, nfloats * sizeof(float)));
    memset(kernels.memory, 0, kernels.nbytes);
    CHECK(reported(&kernels, 4, 0x7f800001, 0, nfloats) == DD_CUDA_NAN_NONE);
    const size_t places[] = {nfloats - 1, nfloats - 2, nfloats - 4000, nfloats / 2, 1};
    /* the first of several NaNs is reported */
    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
        memset(kernels.memory + places[i] * sizeof(float), 0xff, sizeof(float));
        CHECK_INT(reported(&kernels, 4, 0x7f800001, 0, nfloats), 1000 + places[i]);
    }
    kernel_rig_close(&kernels);
}

TEST(the_gpu_kernels_search_all_of_a_large_input_for_nan)
{
    nccl_rig_run(&(nccl_rig_options){.size = 1}, large_body, NULL);
}

/* ---- calls that are rejected */

static dd_nccl_call
sum_call(nccl_rig_rank *self, dd_nccl_op *op, dd_block *block, dd_dtype dtype)
{
    *op = nccl_rig_all_reduce(dtype, DD_REDOP_SUM, block);
    return nccl_rig_call(self, "all_reduce", op, 1);
}

static void
check_place(nccl_rig_rank *self, const nan_values *values, const dd_block *block, size_t element, size_t turn)
{
    unsigned width = values->width;
    for (size_t i = 0; i < block->nbytes / width; i++) {
        memcpy((char *)block->data + i * width, &values->others[i % 4], width);
    }
    dd_block own = *block;
    dd_nccl_op op;
    dd_nccl_call call = sum_call(self, &op, &own, values->dtype);
    op.args.coll = DD_COLL_BROADCAST; /* a broadcast moves floats of every type unchanged */
    op.args.root = self->rank;
    call.label = "broadcast";
    size_t at = element * values->nfloats + turn % values->nfloats;
    memcpy((char *)block->data + at * width, &values->nans[turn % 4], width);
    CHECK_STATUS(nccl_rig_do(self, &call, check_err()), DD_INVALID_ARGUMENT);
    char expected[80];
    snprintf(expected, sizeof expected, "broadcast: the input has a NaN at element %zu", element);
    CHECK_CONTAINS(check_message(), expected);
}

static void
dtypes_body(nccl_rig_rank *self)
{
    const size_t nelements = 5003; /* several blocks of threads, and a remainder */
    void *data = nccl_rig_alloc(self, nelements * 16);
    for (size_t v = 0; v < NVALUES; v++) {
        const nan_values *values = &values_of[v];
        dd_block block = {data, nelements * values->width * values->nfloats};
        const size_t places[] = {0, nelements / 2, nelements - 1, 4096};
        for (size_t i = 0; i < 4; i++) {
            check_place(self, values, &block, places[i], i + v);
        }
        for (size_t i = 0; i < block.nbytes / values->width; i++) {
            memcpy((char *)data + i * values->width, &values->others[i % 4], values->width);
        }
        dd_nccl_op op = nccl_rig_coll(DD_COLL_BROADCAST, values->dtype, &block, &block);
        dd_nccl_call call = nccl_rig_call(self, "broadcast", &op, 1);
        CHECK_OK(nccl_rig_do(self, &call, check_err()));
        nccl_rig_meet(self);
    }
    nccl_rig_free(self, data);
}

TEST(the_nan_check_finds_a_nan_of_every_dtype)
{
    nccl_rig_run(&(nccl_rig_options){.size = 2, .is_nan_check = true}, dtypes_body, NULL);
}

static void
inputs_body(nccl_rig_rank *self)
{
    uint8_t *data = nccl_rig_alloc(self, 256);
    memset(data, 0xff, 256);
    memset(data, 0, 64);
    dd_block blocks[] = {{data, 64}, {data + 64, 64}};
    dd_block output = {data, 64};
    dd_nccl_op op = nccl_rig_coll(DD_COLL_REDUCE_SCATTER, DD_DTYPE_FLOAT32, blocks, &output);
    dd_nccl_call call = nccl_rig_call(self, "reduce_scatter", &op, 1);
    CHECK_STATUS(nccl_rig_do(self, &call, check_err()), DD_INVALID_ARGUMENT);
    CHECK_CONTAINS(check_message(), "reduce_scatter: input 1 has a NaN at element 0");

    int peer = 1 - self->rank;
    dd_nccl_op batch[] = {
        {.kind = DD_NCCL_OP_RECV, .block = {data + 192, 64}, .dtype = DD_DTYPE_FLOAT32, .peer = peer},
        {.kind = DD_NCCL_OP_SEND, .block = {data + 128, 0}, .dtype = DD_DTYPE_FLOAT32, .peer = peer},
        {.kind = DD_NCCL_OP_SEND, .block = {data + 56, 16}, .dtype = DD_DTYPE_FLOAT32, .peer = peer},
    };
    dd_nccl_call messages = nccl_rig_call(self, "batch_isend_irecv", batch, 3);
    CHECK_STATUS(nccl_rig_do(self, &messages, check_err()), DD_INVALID_ARGUMENT);
    CHECK_CONTAINS(check_message(), "operation 2 of 3: batch_isend_irecv: the input has a NaN at element 2");

    CHECK_INT(dd_nccl_group_sequence(self->group), 0);
    CHECK_INT(self->rig->cuda_stub.calls("cuMemcpyDtoHAsync"), 0);
    nccl_rig_meet(self);
    long nlaunches = self->rig->cuda_stub.calls("cuLaunchKernel");
    CHECK_INT(nlaunches, 2 * (2 + 1)); /* none for an empty message or for a receive */
    nccl_rig_meet(self);
    dd_block block = {data + 64, 64};
    dd_nccl_op sum;
    dd_nccl_call of_ints = sum_call(self, &sum, &block, DD_DTYPE_INT32);
    CHECK_OK(nccl_rig_do(self, &of_ints, check_err()));
    dd_nccl_group_set_nan_check(self->group, false);
    CHECK_OK(nccl_rig_do(self, &call, check_err()));
    nccl_rig_meet(self);
    CHECK_INT(self->rig->cuda_stub.calls("cuLaunchKernel"), nlaunches);
    nccl_rig_free(self, data);
}

TEST(the_nan_check_finds_a_nan_in_every_input)
{
    nccl_rig_run(&(nccl_rig_options){.size = 2, .is_nan_check = true}, inputs_body, NULL);
}

static void
unchecked_body(nccl_rig_rank *self)
{
    static const char *const functions[] = {"cuModuleLoadData", "cuLaunchKernel", "cuMemHostAlloc",
                                            "cuStreamQuery", "cuMemcpyDtoHAsync"};
    nccl_rig_check_sum(self);
    nccl_rig_check_sum(self);
    for (size_t i = 0; i < sizeof functions / sizeof functions[0]; i++) {
        CHECK_INT(self->rig->cuda_stub.calls(functions[i]), 0);
    }
}

TEST(without_the_nan_check_a_call_makes_no_additional_cuda_calls)
{
    nccl_rig_run(&(nccl_rig_options){.size = 1}, unchecked_body, NULL);
}

/* The NaN found by a call that timed out must not be attributed to the next call. */
static void
late_body(nccl_rig_rank *self)
{
    nccl_rig_check_sum(self);
    float *data = nccl_rig_alloc(self, 2 * sizeof *data);
    memset(data, 0xff, sizeof *data);
    data[1] = 1;
    dd_block block = {data, sizeof *data};
    dd_nccl_op op;
    dd_nccl_call call = sum_call(self, &op, &block, DD_DTYPE_FLOAT32);
    int gate = nccl_rig_new_gate();
    CHECK_INT(self->rig->gate(self->stream, gate), 0);
    dd_wait wait = dd_wait_after(20 * DD_NS_PER_MS);
    dd_nccl_work *work;
    CHECK_STATUS(dd_nccl_group_start(self->group, &call, &work, &wait, check_err()), DD_OP_TIMED_OUT);
    CHECK_CONTAINS(check_message(), "the search for NaN did not finish");
    self->rig->open_gate(gate);
    block.data = data + 1;
    CHECK_OK(nccl_rig_do(self, &call, check_err()));
    nccl_rig_free(self, data);
}

TEST(a_nan_found_by_a_call_that_timed_out_does_not_fail_the_next_call)
{
    nccl_rig_run(&(nccl_rig_options){.size = 1, .is_nan_check = true}, late_body, NULL);
}

/* ---- drivers that cannot load the kernels */

static void
host_body(nccl_rig_rank *self)
{
    const nccl_rig_stub *stub = &self->rig->cuda_stub;
    stub->fail("cuModuleLoadData", 0, 222, NULL); /* CUDA_ERROR_UNSUPPORTED_PTX_VERSION */
    size_t nbytes = ((size_t)1 << 19) + 16;       /* three pieces */
    uint8_t *data = nccl_rig_alloc(self, nbytes);
    for (size_t v = 0; v < NVALUES; v++) {
        const nan_values *values = &values_of[v];
        unsigned width = values->width;
        size_t nfloats = nbytes / width;
        const size_t places[] = {0, nfloats / 2, nfloats - 1};
        for (size_t i = 0; i < 3; i++) {
            memset(data, 0, nbytes);
            memcpy(data + (places[i] > 0 ? 0 : nbytes - width), &values->others[i], width);
            memcpy(data + places[i] * width, &values->nans[i], width);
            dd_block block = {data, nbytes};
            dd_nccl_op op;
            dd_nccl_call call = sum_call(self, &op, &block, values->dtype);
            CHECK_STATUS(nccl_rig_do(self, &call, check_err()), DD_INVALID_ARGUMENT);
            char expected[80];
            snprintf(expected, sizeof expected, "all_reduce: the input has a NaN at element %zu",
                     places[i] / values->nfloats);
            CHECK_CONTAINS(check_message(), expected);
        }
    }
    long ncopies = stub->calls("cuMemcpyDtoHAsync");
    memset(data, 0, nbytes);
    nccl_rig_check_sum(self);
    CHECK_INT(stub->calls("cuMemcpyDtoHAsync"), ncopies + 1);
    CHECK_INT(stub->calls("cuModuleLoadData"), 1); /* it is not loaded again */
    CHECK_INT(stub->calls("cuLaunchKernel"), 0);
    CHECK(!dd_nccl_group_take_nan_missed(self->group));
    nccl_rig_free(self, data);
}

TEST(the_host_searches_for_nan_if_the_gpu_kernels_cannot_be_loaded)
{
    nccl_rig_run(&(nccl_rig_options){.size = 1, .is_nan_check = true}, host_body, NULL);
}

static void
older_body(nccl_rig_rank *self)
{
    self->rig->cuda->api.cuLaunchKernel = NULL;
    CHECK(!dd_cuda_nan_is_ready(self->rig->cuda->nan, self->rank));
    CHECK_INT(self->rig->cuda_stub.calls("cuModuleLoadData"), 0);
}

TEST(the_gpu_kernels_are_not_loaded_if_the_driver_cannot_launch_them)
{
    nccl_rig_run(&(nccl_rig_options){.size = 1}, older_body, NULL);
}

static void
half_body(nccl_rig_rank *self)
{
    self->rig->cuda_stub.fail("cuModuleGetFunction", 2, 500, NULL);
    CHECK(!dd_cuda_nan_is_ready(self->rig->cuda->nan, self->rank));
}

TEST(a_gpu_module_that_lacks_a_kernel_is_refused)
{
    nccl_rig_run(&(nccl_rig_options){.size = 1}, half_body, NULL); /* and is unloaded */
}

/* ---- graphs */

typedef struct nan_graph {
    nccl_rig_graphs api;
    void *graph;
    void *exec;
} nan_graph;

/* Capture the calls, one after the other. */
static bool
capture(nccl_rig_rank *self, nan_graph *graph, const dd_nccl_call *calls, size_t ncalls)
{
    if (!nccl_rig_find_graphs(&graph->api)) {
        return false;
    }
    CHECK_INT(graph->api.begin(self->stream, DD_CUDA_CAPTURE_MODE_GLOBAL), 0);
    bool is_good = true;
    for (size_t i = 0; i < ncalls && is_good; i++) {
        dd_nccl_work *work;
        is_good = CHECK_OK(nccl_rig_start(self, &calls[i], &work, check_err()));
        if (is_good) {
            CHECK_OK(dd_nccl_work_wait_stream(work, self->stream, check_err()));
            dd_work_release(&work->base);
        }
    }
    return CHECK_INT(graph->api.end(self->stream, &graph->graph), 0) &&
           CHECK_INT(graph->api.instantiate(&graph->exec, graph->graph, 0), 0) && is_good;
}

static void
launch(nccl_rig_rank *self, const nan_graph *graph)
{
    CHECK_INT(graph->api.launch(graph->exec, self->stream), 0);
    CHECK_INT(self->rig->cuda->api.cuStreamSynchronize(self->stream), DD_CUDA_SUCCESS);
}

static void
destroy(const nan_graph *graph)
{
    CHECK_INT(graph->api.destroy_exec(graph->exec), 0);
    CHECK_INT(graph->api.destroy(graph->graph), 0);
}

/* A graph of two calls over four floats, launched with and without NaN. */
typedef struct graph_case {
    nan_graph graph;
    float *data;
    dd_block blocks[3];
    dd_nccl_op ops[3];
} graph_case;

static bool
graph_case_open(graph_case *of, nccl_rig_rank *self)
{
    of->data = nccl_rig_alloc(self, 4 * sizeof *of->data);
    memset(of->data, 0, 4 * sizeof *of->data);
    of->blocks[0] = (dd_block){of->data, 4};
    of->blocks[1] = (dd_block){of->data + 1, 4};
    of->blocks[2] = (dd_block){of->data + 2, 8};
    for (int i = 0; i < 3; i++) {
        of->ops[i] = nccl_rig_all_reduce(DD_DTYPE_FLOAT32, DD_REDOP_SUM, &of->blocks[i]);
    }
    nccl_rig_check_sum(self); /* creates the communicator outside the capture */
    dd_nccl_call calls[] = {nccl_rig_call(self, "all_reduce", &of->ops[0], 1),
                            nccl_rig_call(self, "coalesced", &of->ops[1], 2)};
    return capture(self, &of->graph, calls, 2);
}

static void
graph_case_close(graph_case *of, nccl_rig_rank *self)
{
    destroy(&of->graph);
    nccl_rig_free(self, of->data);
}

static bool
await_failure(nccl_rig_rank *self)
{
    dd_wait wait = nccl_rig_patience();
    while (dd_nccl_group_check(self->group, NULL) == DD_OK && !dd_wait_has_expired(&wait)) {
        (void)!dd_wait_sleep(&wait, DD_NS_PER_MS, NULL);
    }
    return CHECK_STATUS(dd_nccl_group_check(self->group, check_err()), DD_INVALID_ARGUMENT);
}

#define FOUND "operation 1 of 2: in a CUDA graph: the input has a NaN at element 1"

static void
watched_body(nccl_rig_rank *self)
{
    graph_case of;
    REQUIRE(graph_case_open(&of, self));
    long nlaunches = self->rig->cuda_stub.calls("cuLaunchKernel");
    for (int i = 0; i < 3; i++) {
        launch(self, &of.graph);
        nccl_rig_check_sum(self);
    }
    /* the kernels of the sums */
    CHECK_INT(self->rig->cuda_stub.calls("cuLaunchKernel"), nlaunches + 3);
    memset(&of.data[3], 0xff, 4);
    launch(self, &of.graph);
    await_failure(self);
    CHECK_CONTAINS(check_message(), "coalesced #3 of rank 0: " FOUND);
    memset(of.data, 0xff, 4 * sizeof *of.data); /* a NaN after the failure has no effect */
    launch(self, &of.graph);
    graph_case_close(&of, self);
}

TEST(a_nan_in_a_cuda_graph_fails_the_group)
{
    nccl_rig_run(&(nccl_rig_options){.size = 1, .is_nan_check = true}, watched_body, NULL);
}

static void
asleep_body(nccl_rig_rank *self)
{
    graph_case of;
    REQUIRE(graph_case_open(&of, self));
    dd_wait wait = nccl_rig_patience();
    while (dd_nccl_watchdog_heartbeat(self->rig->watchdog) != 0 && !dd_wait_has_expired(&wait)) {
        (void)!dd_wait_sleep(&wait, DD_NS_PER_MS, NULL);
    }
    CHECK_INT(dd_nccl_watchdog_heartbeat(self->rig->watchdog), 0);
    memset(&of.data[3], 0xff, 4);
    int64_t start_ns = dd_clock_now_ns();
    launch(self, &of.graph);
    await_failure(self);
    int64_t took_ns = dd_clock_now_ns() - start_ns;
    CHECK(took_ns < 3 * DD_NS_PER_S * check_slow()); /* the watchdog runs once a second */
    CHECK_CONTAINS(check_message(), FOUND);
    graph_case_close(&of, self);
}

TEST(a_sleeping_watchdog_reports_a_nan_within_seconds)
{
    nccl_rig_run(&(nccl_rig_options){.size = 1, .is_nan_check = true}, asleep_body, NULL);
}

/* The watchdog runs once at the start, and then not before the test ends. */
#define NEVER_NS (3600 * DD_NS_PER_S)

static void
next_call_body(nccl_rig_rank *self)
{
    graph_case of;
    REQUIRE(graph_case_open(&of, self));
    memset(&of.data[0], 0xff, 4);
    launch(self, &of.graph);
    dd_nccl_op op;
    dd_block block = {of.data + 1, 4};
    dd_nccl_call call = sum_call(self, &op, &block, DD_DTYPE_FLOAT32);
    CHECK_STATUS(nccl_rig_do(self, &call, check_err()), DD_INVALID_ARGUMENT);
    CHECK_CONTAINS(check_message(),
                   "all_reduce #2 of rank 0: in a CUDA graph: the input has a NaN at element 0");
    graph_case_close(&of, self);
}

TEST(the_next_call_reports_a_nan_in_a_cuda_graph)
{
    nccl_rig_run(&(nccl_rig_options){.size = 1, .is_nan_check = true, .interval_ns = NEVER_NS},
                 next_call_body, NULL);
}

static void
close_body(nccl_rig_rank *self)
{
    graph_case of;
    REQUIRE(graph_case_open(&of, self));
    memset(&of.data[3], 0xff, 4);
    launch(self, &of.graph);
    dd_wait wait = nccl_rig_patience();
    CHECK_STATUS(dd_nccl_group_close(self->group, &wait, check_err()), DD_INVALID_ARGUMENT);
    CHECK_CONTAINS(check_message(),
                   "closing the group: group \"rig\" (rank 0 of 1) has failed: coalesced #3");
    CHECK_CONTAINS(check_message(), FOUND);
    graph_case_close(&of, self);
}

TEST(closing_a_group_reports_a_nan_in_a_cuda_graph)
{
    nccl_rig_run(
        &(nccl_rig_options){.size = 1, .is_nan_check = true, .interval_ns = NEVER_NS, .is_not_closed = true},
        close_body, NULL);
}

/* The watchdog may see the NaN first: closing the group must report it if no other call has. */
static void
unreported_body(nccl_rig_rank *self)
{
    graph_case of;
    REQUIRE(graph_case_open(&of, self));
    memset(&of.data[3], 0xff, 4);
    launch(self, &of.graph);
    dd_wait wait = nccl_rig_patience();
    while (dd_nccl_group_is_idle(self->group, &(dd_wait){.deadline_ns = 0}) && !dd_wait_has_expired(&wait)) {
        (void)!dd_wait_sleep(&wait, DD_NS_PER_MS, NULL);
    }
    CHECK_STATUS(dd_nccl_group_close(self->group, &wait, check_err()), DD_INVALID_ARGUMENT);
    CHECK_CONTAINS(check_message(), FOUND);
    graph_case_close(&of, self);
}

TEST(closing_a_group_reports_a_nan_that_the_watchdog_has_found)
{
    nccl_rig_run(&(nccl_rig_options){.size = 1, .is_nan_check = true, .is_not_closed = true}, unreported_body,
                 NULL);
}

/* A broadcast by rank 1, in a graph. */
typedef struct broadcast_case {
    nan_graph graph;
    float *data;
} broadcast_case;

static bool
broadcast_case_open(broadcast_case *of, nccl_rig_rank *self)
{
    of->data = nccl_rig_alloc(self, sizeof *of->data);
    *of->data = 0;
    dd_block block = {of->data, sizeof *of->data};
    dd_nccl_op op = nccl_rig_coll(DD_COLL_BROADCAST, DD_DTYPE_FLOAT32, &block, &block);
    op.args.root = 1;
    dd_nccl_call call = nccl_rig_call(self, "broadcast", &op, 1);
    nccl_rig_check_sum(self); /* creates the communicator outside the capture */
    /* during the capture, no thread of the process may allocate memory in the default mode */
    nccl_rig_meet(self);
    bool is_good = capture(self, &of->graph, &call, 1);
    nccl_rig_meet(self);
    return is_good;
}

static void
received_body(nccl_rig_rank *self)
{
    broadcast_case of;
    REQUIRE(broadcast_case_open(&of, self));
    if (self->rank == 0) {
        memset(of.data, 0xff, sizeof *of.data);
    }
    launch(self, &of.graph);
    CHECK(*of.data == 0);
    nccl_rig_check_sum(self);
    destroy(&of.graph);
    nccl_rig_free(self, of.data);
}

TEST(received_data_is_not_checked_for_nan)
{
    nccl_rig_run(&(nccl_rig_options){.size = 2, .is_nan_check = true}, received_body, NULL);
}

static void
one_rank_body(nccl_rig_rank *self)
{
    broadcast_case of;
    self->rig->end_apart(1); /* each rank's abort waits for its graph */
    REQUIRE(broadcast_case_open(&of, self));
    if (self->rank == 1) {
        memset(of.data, 0xff, sizeof *of.data);
    }
    CHECK_INT(of.graph.api.launch(of.graph.exec, self->stream), 0); /* may block until the abort */
    if (self->rank == 1) {
        await_failure(self);
        CHECK_CONTAINS(check_message(),
                       "broadcast #2 of rank 1: in a CUDA graph: the input has a NaN at element 0");
    }
    nccl_rig_meet(self);
    CHECK_STATUS(dd_nccl_group_check(self->group, NULL), self->rank == 1 ? DD_INVALID_ARGUMENT : DD_OK);
    dd_wait wait = dd_wait_after(100 * DD_NS_PER_MS); /* the graph keeps the communicator */
    CHECK_STATUS(dd_nccl_group_abort(self->group, "the test is over", &wait, check_err()), DD_OP_TIMED_OUT);
    CHECK_INT(self->rig->cuda->api.cuStreamSynchronize(self->stream), DD_CUDA_SUCCESS);
    destroy(&of.graph);
    nccl_rig_free(self, of.data);
}

TEST(only_the_rank_whose_input_has_a_nan_fails)
{
    nccl_rig_run(&(nccl_rig_options){.size = 2, .is_nan_check = true, .is_not_closed = true}, one_rank_body,
                 NULL);
}

/* Nothing is aborted here, so that the data that the graph sends can arrive. */
static void
sent_body(nccl_rig_rank *self)
{
    broadcast_case of;
    REQUIRE(broadcast_case_open(&of, self));
    launch(self, &of.graph);
    CHECK(*of.data == 0);
    nccl_rig_meet(self);
    if (self->rank == 1) {
        memset(of.data, 0xff, sizeof *of.data);
    }
    launch(self, &of.graph);
    CHECK(isnan(*of.data));
    if (self->rank == 1) {
        await_failure(self);
    }
    nccl_rig_meet(self);
    CHECK_STATUS(dd_nccl_group_check(self->group, NULL), self->rank == 1 ? DD_INVALID_ARGUMENT : DD_OK);
    destroy(&of.graph);
    dd_wait wait = nccl_rig_patience();
    CHECK_OK(dd_nccl_group_abort(self->group, "the test is over", &wait, check_err()));
    nccl_rig_free(self, of.data);
}

TEST(a_cuda_graph_sends_its_data_even_if_it_has_a_nan)
{
    nccl_rig_run(
        &(nccl_rig_options){.size = 2, .is_nan_check = true, .is_abort_off = true, .is_not_closed = true},
        sent_body, NULL);
}

/* Kernels and reports must live as long as a graph. */
static void
outlives_body(nccl_rig_rank *self)
{
    graph_case of;
    REQUIRE(graph_case_open(&of, self));
    dd_wait wait = dd_wait_after(100 * DD_NS_PER_MS);
    CHECK_STATUS(dd_nccl_group_close(self->group, &wait, check_err()), DD_OP_TIMED_OUT);
    dd_nccl_group_release(self->group);
    REQUIRE(nccl_rig_open_group(self, "later"));
    memset(of.data, 0xff, 4 * sizeof *of.data);
    launch(self, &of.graph);
    CHECK_INT(self->rig->cuda_stub.bad_uses(), 0);
    nccl_rig_check_sum(self);
    graph_case_close(&of, self);
}

TEST(a_cuda_graph_can_be_launched_after_its_group_is_released)
{
    nccl_rig_run(&(nccl_rig_options){.size = 1, .is_nan_check = true}, outlives_body, NULL);
}

static void
missed_body(nccl_rig_rank *self)
{
    self->rig->cuda_stub.fail("cuModuleLoadData", 0, 222, NULL);
    graph_case of;
    REQUIRE(graph_case_open(&of, self));
    CHECK(dd_nccl_group_take_nan_missed(self->group));
    CHECK(!dd_nccl_group_take_nan_missed(self->group));
    memset(of.data, 0xff, 4 * sizeof *of.data);
    launch(self, &of.graph);
    nccl_rig_check_sum(self);
    graph_case_close(&of, self);
}

TEST(cuda_graphs_are_not_checked_for_nan_if_gpu_kernels_cannot_be_loaded)
{
    nccl_rig_run(&(nccl_rig_options){.size = 1, .is_nan_check = true}, missed_body, NULL);
}
