/* Every collective and message of an NCCL group, with the stubs. */
#include "check.h"
#include "nccl_rig.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_RANKS 4
#define MAX_BLOCK 64u

/* ---- contents of blocks: every rank can compute the expected data of any sender and receiver */

static uint8_t
pattern(int from, int to, size_t at)
{
    return (uint8_t)((size_t)from * 61 + (size_t)to * 17 + at * 3 + 1);
}

static void
fill(const dd_block *block, int from, int to)
{
    for (size_t at = 0; at < block->nbytes; at++) {
        ((uint8_t *)block->data)[at] = pattern(from, to, at);
    }
}

static bool
holds(const dd_block *block, int from, int to)
{
    for (size_t at = 0; at < block->nbytes; at++) {
        if (((const uint8_t *)block->data)[at] != pattern(from, to, at)) {
            return false;
        }
    }
    return true;
}

/* ---- shapes of a collective that moves bytes */

typedef struct case_shape {
    bool is_in_place;
    bool is_apart;  /* blocks have gaps on odd ranks; on even ranks they are adjacent */
    bool is_uneven; /* some blocks are empty */
    bool is_flat;
} case_shape;

typedef struct case_memory {
    char *memory;
    dd_block blocks[MAX_RANKS];
} case_memory;

/* Return the size of the block from one rank to another. */
static size_t
size_of_block(const case_shape *shape, int from, int to)
{
    return shape->is_uneven ? (size_t)((from * 3 + to * 5) % 4) * 8 : 24;
}

static case_memory
make_blocks(nccl_rig_rank *self, const case_shape *shape, bool is_output, bool is_by_one)
{
    case_memory made = {.memory = nccl_rig_alloc(self, MAX_RANKS * 2 * MAX_BLOCK)};
    bool is_apart = shape->is_apart && self->rank % 2 == 1;
    size_t offset = 0;
    for (int k = 0; k < self->size; k++) {
        int from = is_output ? k : self->rank;
        int to = is_by_one ? 0 : is_output ? self->rank : k;
        size_t nbytes = size_of_block(shape, from, to);
        made.blocks[k] = (dd_block){made.memory + offset, nbytes};
        offset += nbytes + (is_apart ? 8 : 0);
    }
    return made;
}

static void
run_op(nccl_rig_rank *self, const dd_nccl_op *op, bool is_flat)
{
    dd_nccl_op flat = *op;
    flat.is_flat = is_flat;
    dd_nccl_call call = nccl_rig_call(self, dd_coll_name(op->args.coll), &flat, 1);
    CHECK_OK(nccl_rig_do(self, &call, check_err()));
}

static void
check_all_gather(nccl_rig_rank *self, const case_shape *shape)
{
    case_memory out = make_blocks(self, shape, true, true);
    dd_block own = out.blocks[self->rank];
    dd_block input = shape->is_in_place ? own : (dd_block){nccl_rig_alloc(self, MAX_BLOCK), own.nbytes};
    fill(&input, self->rank, 0);
    dd_nccl_op op = nccl_rig_coll(DD_COLL_ALL_GATHER, DD_DTYPE_INT16, &input, out.blocks);
    run_op(self, &op, false);
    for (int k = 0; k < self->size; k++) {
        CHECK(holds(&out.blocks[k], k, 0));
    }
    CHECK(holds(&input, self->rank, 0));
    if (!shape->is_in_place) {
        nccl_rig_free(self, input.data);
    }
    nccl_rig_free(self, out.memory);
}

static void
check_gather(nccl_rig_rank *self, const case_shape *shape, int root)
{
    bool is_root = self->rank == root;
    case_memory out = make_blocks(self, shape, true, true);
    dd_block own = out.blocks[self->rank];
    bool is_in_place = shape->is_in_place && is_root;
    dd_block input = is_in_place ? own : (dd_block){nccl_rig_alloc(self, MAX_BLOCK), own.nbytes};
    fill(&input, self->rank, 0);
    dd_nccl_op op = nccl_rig_coll(DD_COLL_GATHER, DD_DTYPE_BOOL, &input, is_root ? out.blocks : NULL);
    op.args.root = root;
    run_op(self, &op, shape->is_flat);
    for (int k = 0; k < self->size && is_root; k++) {
        CHECK(holds(&out.blocks[k], k, 0));
    }
    CHECK(holds(&input, self->rank, 0));
    if (!is_in_place) {
        nccl_rig_free(self, input.data);
    }
    nccl_rig_free(self, out.memory);
}

static void
check_scatter(nccl_rig_rank *self, const case_shape *shape, int root)
{
    bool is_root = self->rank == root;
    case_shape mine = *shape;
    case_memory in = {.memory = nccl_rig_alloc(self, MAX_RANKS * 2 * MAX_BLOCK)};
    size_t offset = 0;
    for (int k = 0; k < self->size; k++) {
        in.blocks[k] = (dd_block){in.memory + offset, size_of_block(&mine, root, k)};
        offset += in.blocks[k].nbytes + (mine.is_apart ? 8 : 0);
        fill(&in.blocks[k], root, k);
    }
    bool is_in_place = shape->is_in_place && is_root;
    dd_block output =
        is_in_place ? in.blocks[self->rank]
                    : (dd_block){nccl_rig_alloc(self, MAX_BLOCK), size_of_block(&mine, root, self->rank)};
    dd_nccl_op op = nccl_rig_coll(DD_COLL_SCATTER, DD_DTYPE_COMPLEX64, is_root ? in.blocks : NULL, &output);
    op.args.root = root;
    run_op(self, &op, shape->is_flat);
    CHECK(holds(&output, root, self->rank));
    for (int k = 0; k < self->size && is_root; k++) {
        CHECK(holds(&in.blocks[k], root, k));
    }
    if (!is_in_place) {
        nccl_rig_free(self, output.data);
    }
    nccl_rig_free(self, in.memory);
}

static void
check_all_to_all(nccl_rig_rank *self, const case_shape *shape)
{
    case_memory in = make_blocks(self, shape, false, false);
    case_memory out = make_blocks(self, shape, true, false);
    for (int k = 0; k < self->size; k++) {
        fill(&in.blocks[k], self->rank, k);
    }
    dd_nccl_op op = nccl_rig_coll(DD_COLL_ALL_TO_ALL, DD_DTYPE_FLOAT64, in.blocks, out.blocks);
    run_op(self, &op, shape->is_flat);
    for (int k = 0; k < self->size; k++) {
        CHECK(holds(&out.blocks[k], k, self->rank));
        CHECK(holds(&in.blocks[k], self->rank, k));
    }
    nccl_rig_free(self, in.memory);
    nccl_rig_free(self, out.memory);
}

static void
check_broadcast(nccl_rig_rank *self, const case_shape *shape, int root)
{
    bool is_root = self->rank == root;
    dd_block output = {nccl_rig_alloc(self, MAX_BLOCK), 40};
    dd_block input =
        is_root && !shape->is_in_place ? (dd_block){nccl_rig_alloc(self, MAX_BLOCK), 40} : output;
    if (is_root) {
        fill(&input, root, 0);
    }
    dd_nccl_op op = nccl_rig_coll(DD_COLL_BROADCAST, DD_DTYPE_FLOAT8_E5M2, is_root ? &input : NULL, &output);
    op.args.root = root;
    run_op(self, &op, false);
    CHECK(holds(&output, root, 0));
    if (input.data != output.data) {
        nccl_rig_free(self, input.data);
    }
    nccl_rig_free(self, output.data);
}

static const case_shape shapes[] = {
    {0},
    {.is_in_place = true},
    {.is_apart = true},
    {.is_uneven = true},
    {.is_flat = true},
    {.is_uneven = true, .is_apart = true, .is_in_place = true},
};

static void
movement_body(nccl_rig_rank *self)
{
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        check_all_gather(self, &shapes[i]);
        check_all_to_all(self, &shapes[i]);
        for (int root = 0; root < self->size; root += 3) {
            check_gather(self, &shapes[i], root);
            check_scatter(self, &shapes[i], root);
            check_broadcast(self, &shapes[i], root);
        }
    }
}

TEST(every_collective_moves_the_right_bytes)
{
    nccl_rig_run_all(movement_body, NULL);
}

/* ---- reductions */

#define COUNT 6

/* Return a small number, so that every type holds every result exactly. */
static double
operand(int rank, int k, size_t at)
{
    return (double)((size_t)rank + (size_t)k + at % 3 + 1);
}

static double
fold(dd_redop op, int size, int k, size_t at)
{
    double result = operand(0, k, at);
    for (int rank = 1; rank < size; rank++) {
        double next = operand(rank, k, at);
        result = op == DD_REDOP_PRODUCT ? result * next
                 : op == DD_REDOP_MIN   ? (next < result ? next : result)
                 : op == DD_REDOP_MAX   ? (next > result ? next : result)
                                        : result + next;
    }
    return op == DD_REDOP_PREMUL_SUM ? result * 2 : op == DD_REDOP_AVG ? result / size : result;
}

/* Convert a double to a dtype; types that C lacks are converted by the kernels. */
static void
put(dd_dtype dtype, void *out, double value)
{
    float narrow = (float)value;
    const void *source = &narrow;
    if (dtype == DD_DTYPE_FLOAT64) {
        memcpy(out, &value, sizeof value);
    } else if (dtype == DD_DTYPE_FLOAT32) {
        memcpy(out, &narrow, sizeof narrow);
    } else if (dd_dtype_kind_of(dtype) != DD_KIND_FLOAT) { /* not negative, and little-endian */
        memcpy(out, &(uint64_t){(uint64_t)value}, dd_dtype_size(dtype));
    } else {
        dd_reduction round = {.dtype = dtype, .op = DD_REDOP_SUM};
        dd_reduce(&round, DD_STAGE_LAST, out, &source, 1, 1);
    }
}

static void
fill_operands(dd_dtype dtype, char *data, int rank, int k)
{
    for (size_t at = 0; at < COUNT; at++) {
        put(dtype, data + at * dd_dtype_size(dtype), operand(rank, k, at));
    }
}

static bool
holds_fold(const dd_reduction *reduction, const char *data, int size, int k)
{
    size_t element = dd_dtype_size(reduction->dtype);
    for (size_t at = 0; at < COUNT; at++) {
        double value = fold(reduction->op, size, k, at);
        bool is_int = dd_dtype_kind_of(reduction->dtype) != DD_KIND_FLOAT;
        char expected[8];
        put(reduction->dtype, expected, is_int ? (double)(int64_t)value : value);
        if (memcmp(data + at * element, expected, element) != 0) {
            return false;
        }
    }
    return true;
}

static void
check_reduction(nccl_rig_rank *self, const dd_reduction *reduction, const void *factor)
{
    size_t nbytes = COUNT * dd_dtype_size(reduction->dtype);
    char *memory = nccl_rig_alloc(self, (MAX_RANKS + 2) * (nbytes + 8));
    dd_block inputs[MAX_RANKS];
    for (int k = 0; k < self->size; k++) { /* with gaps on odd ranks */
        inputs[k] = (dd_block){memory + (size_t)k * (nbytes + (self->rank % 2 == 1 ? 8 : 0)), nbytes};
        fill_operands(reduction->dtype, inputs[k].data, self->rank, k);
    }
    dd_block output = {memory + (MAX_RANKS + 1) * (nbytes + 8), nbytes};
    dd_nccl_op op = nccl_rig_coll(DD_COLL_REDUCE_SCATTER, reduction->dtype, inputs, &output);
    op.args.reduction = *reduction;
    op.factor = factor;
    run_op(self, &op, false);
    CHECK(holds_fold(reduction, output.data, self->size, self->rank));
    int root = self->size - 1;
    op.args.coll = DD_COLL_REDUCE;
    op.args.root = root;
    memset(output.data, 0x77, nbytes);
    run_op(self, &op, false);
    CHECK(self->rank != root || holds_fold(reduction, output.data, self->size, 0));
    CHECK(self->rank == root || ((char *)output.data)[0] == 0x77);
    op.args.coll = DD_COLL_ALL_REDUCE;
    run_op(self, &op, false);
    CHECK(holds_fold(reduction, output.data, self->size, 0));
    op.args.outputs = inputs; /* in place */
    run_op(self, &op, false);
    CHECK(holds_fold(reduction, inputs[0].data, self->size, 0));
    nccl_rig_free(self, memory);
}

static void
reductions_body(nccl_rig_rank *self)
{
    static const dd_dtype dtypes[] = {DD_DTYPE_INT8,     DD_DTYPE_INT32,   DD_DTYPE_UINT64, DD_DTYPE_FLOAT16,
                                      DD_DTYPE_BFLOAT16, DD_DTYPE_FLOAT32, DD_DTYPE_FLOAT64};
    static const dd_redop ops[] = {DD_REDOP_SUM, DD_REDOP_PRODUCT, DD_REDOP_MIN, DD_REDOP_MAX, DD_REDOP_AVG};
    for (size_t d = 0; d < sizeof dtypes / sizeof dtypes[0]; d++) {
        for (size_t o = 0; o < sizeof ops / sizeof ops[0]; o++) {
            bool is_inexact = ops[o] == DD_REDOP_PRODUCT && dd_dtype_size(dtypes[d]) < 4;
            if (!is_inexact) {
                check_reduction(self, &(dd_reduction){.dtype = dtypes[d], .op = ops[o]}, NULL);
            }
        }
        if (dd_dtype_kind_of(dtypes[d]) == DD_KIND_FLOAT) {
            char *factor = nccl_rig_alloc(self, 8);
            put(dtypes[d], factor, 2);
            check_reduction(self, &(dd_reduction){dtypes[d], DD_REDOP_PREMUL_SUM, 2, 1, false}, NULL);
            check_reduction(self, &(dd_reduction){dtypes[d], DD_REDOP_PREMUL_SUM, 77, 1, false}, factor);
            nccl_rig_free(self, factor);
        }
    }
}

TEST(reductions_of_every_type_are_correct)
{
    nccl_rig_run_all(reductions_body, NULL);
}

static void
bool_and_complex_body(nccl_rig_rank *self)
{
    uint8_t *truth = nccl_rig_alloc(self, 2);
    dd_block block = {truth, 2};
    static const dd_redop ops[] = {DD_REDOP_SUM, DD_REDOP_MAX,     DD_REDOP_BOR,
                                   DD_REDOP_MIN, DD_REDOP_PRODUCT, DD_REDOP_BAND};
    for (size_t i = 0; i < 6; i++) {
        truth[0] = self->rank == 0;
        truth[1] = 1;
        dd_nccl_op op = nccl_rig_all_reduce(DD_DTYPE_BOOL, ops[i], &block);
        run_op(self, &op, false);
        CHECK_INT(truth[0], i < 3 || self->size == 1);
        CHECK_INT(truth[1], 1);
    }
    nccl_rig_free(self, truth);
    double *pair = nccl_rig_alloc(self, 4 * sizeof *pair);
    dd_block complex = {pair, 4 * sizeof *pair};
    static const dd_redop sums[] = {DD_REDOP_SUM, DD_REDOP_AVG, DD_REDOP_PREMUL_SUM};
    for (size_t i = 0; i < 3; i++) {
        for (int k = 0; k < 4; k++) {
            pair[k] = (self->rank + 1) * (k + 1);
        }
        dd_nccl_op op = nccl_rig_all_reduce(DD_DTYPE_COMPLEX128, sums[i], &complex);
        op.args.reduction.factor = 0.5;
        run_op(self, &op, false);
        int sum = self->size * (self->size + 1) / 2;
        double scale = i == 0 ? 1 : i == 1 ? 1.0 / self->size : 0.5;
        for (int k = 0; k < 4; k++) {
            CHECK(pair[k] == scale * sum * (k + 1));
        }
    }
    nccl_rig_free(self, pair);
}

TEST(reductions_of_bool_and_complex_are_correct)
{
    nccl_rig_run_all(bool_and_complex_body, NULL);
}

static void
uneven_reduce_scatter_body(nccl_rig_rank *self)
{
    float *memory = nccl_rig_alloc(self, 64 * sizeof *memory);
    dd_block inputs[MAX_RANKS];
    size_t offset = 0;
    for (int k = 0; k < self->size; k++) { /* k elements for rank k, so none for the first */
        inputs[k] = (dd_block){memory + offset, (size_t)k * sizeof *memory};
        for (int at = 0; at < k; at++) {
            memory[offset + (size_t)at] = (float)((self->rank + 1) * 10 + at);
        }
        offset += (size_t)k;
    }
    dd_block output = {memory + 32, inputs[self->rank].nbytes};
    dd_nccl_op op = nccl_rig_coll(DD_COLL_REDUCE_SCATTER, DD_DTYPE_FLOAT32, inputs, &output);
    run_op(self, &op, false);
    for (int at = 0; at < self->rank; at++) {
        CHECK_INT(memory[32 + at], 5 * self->size * (self->size + 1) + self->size * at);
    }
    nccl_rig_free(self, memory);
}

TEST(an_uneven_reduce_scatter_is_correct)
{
    nccl_rig_run_all(uneven_reduce_scatter_body, NULL);
}

/* ---- calls that NCCL does not support are rejected before any data is sent */

typedef struct refusal {
    dd_dtype dtype;
    dd_redop op;
    const char *text;
} refusal;

static void
refusals_body(nccl_rig_rank *self)
{
    static const refusal refusals[] = {
        {DD_DTYPE_INT32, DD_REDOP_BAND, "Cannot use ReduceOp.BAND with NCCL"},
        {DD_DTYPE_INT32, DD_REDOP_BXOR, "Cannot use ReduceOp.BXOR with NCCL"},
        {DD_DTYPE_BOOL, DD_REDOP_AVG, "ReduceOp.AVG with bool"},
        {DD_DTYPE_BOOL, DD_REDOP_BXOR, "ReduceOp.BXOR with bool"},
        {DD_DTYPE_INT16, DD_REDOP_SUM, "cannot reduce int16"},
        {DD_DTYPE_COMPLEX64, DD_REDOP_MAX, "no complex numbers"},
        {DD_DTYPE_COMPLEX64, DD_REDOP_PRODUCT, "no complex numbers"},
        {DD_DTYPE_INT64, DD_REDOP_PREMUL_SUM, "half, float, bfloat16 or double"},
        {DD_DTYPE_FLOAT8_E4M3FN, DD_REDOP_SUM, "needs NCCL 2.24.3 or newer, this is 2.18.1"},
    };
    char *data = nccl_rig_alloc(self, 64);
    dd_block block = {data, 64};
    for (size_t i = 0; i < sizeof refusals / sizeof refusals[0]; i++) {
        dd_nccl_op op = nccl_rig_all_reduce(refusals[i].dtype, refusals[i].op, &block);
        dd_nccl_call call = nccl_rig_call(self, "all_reduce", &op, 1);
        dd_error error = {.code = DD_OK};
        CHECK(nccl_rig_do(self, &call, &error) != DD_OK);
        CHECK_CONTAINS(error.message, refusals[i].text);
        CHECK_CONTAINS(error.message, "all_reduce: ");
    }
    dd_nccl_op op = nccl_rig_all_reduce(DD_DTYPE_FLOAT32, DD_REDOP_SUM, &block);
    dd_nccl_call call = nccl_rig_call(self, "all_reduce", &op, 1);
    block.nbytes = 63;
    CHECK_STATUS(nccl_rig_do(self, &call, check_err()), DD_INVALID_ARGUMENT);
    block = (dd_block){NULL, 64};
    CHECK_STATUS(nccl_rig_do(self, &call, check_err()), DD_INVALID_ARGUMENT);
    block.data = data;
    op.args.root = 7;
    op.args.coll = DD_COLL_BROADCAST;
    CHECK_STATUS(nccl_rig_do(self, &call, check_err()), DD_INVALID_ARGUMENT);
    CHECK_CONTAINS(check_message(), "invalid root rank: got 7");
    op.args.coll = DD_COLL_SCAN;
    CHECK_STATUS(nccl_rig_do(self, &call, check_err()), DD_NOT_SUPPORTED);
    CHECK_CONTAINS(check_message(), "NCCL has no scan: move the tensors to the CPU");
    call.device = 99;
    CHECK_STATUS(nccl_rig_do(self, &call, check_err()), DD_INVALID_ARGUMENT);
    dd_nccl_op message = {.kind = DD_NCCL_OP_SEND, .block = block, .peer = self->rank};
    call = nccl_rig_call(self, "send", &message, 1);
    CHECK_STATUS(nccl_rig_do(self, &call, check_err()), DD_INVALID_ARGUMENT);
    CHECK_CONTAINS(check_message(), "one batch");
    nccl_rig_free(self, data);
    CHECK_INT(dd_nccl_group_sequence(self->group), 0);
    nccl_rig_check_sum(self); /* the ranks still agree */
}

TEST(unsupported_calls_are_refused_before_they_start)
{
    nccl_rig_run(&(nccl_rig_options){.size = 2, .version = "2.18.1"}, refusals_body, NULL);
}

static void
fp8_body(nccl_rig_rank *self)
{
    uint8_t *data = nccl_rig_alloc(self, 8);
    dd_block block = {data, 8};
    for (int i = 0; i < 8; i++) {
        put(DD_DTYPE_FLOAT8_E4M3FN, data + i, self->rank + 1);
    }
    dd_nccl_op op = nccl_rig_all_reduce(DD_DTYPE_FLOAT8_E4M3FN, DD_REDOP_SUM, &block);
    run_op(self, &op, false);
    uint8_t expected;
    put(DD_DTYPE_FLOAT8_E4M3FN, &expected, 3);
    CHECK_INT(data[7], expected);
    nccl_rig_free(self, data);
}

TEST(float8_is_reduced_since_nccl_2_24)
{
    nccl_rig_run(&(nccl_rig_options){.size = 2, .version = "2.24.3"}, fp8_body, NULL);
}

/* ---- messages */

static void
messages_body(nccl_rig_rank *self)
{
    int *data = nccl_rig_alloc(self, 16);
    int next = (self->rank + 1) % self->size;
    int previous = (self->rank + self->size - 1) % self->size;
    data[0] = self->rank + 100;
    /* In one batch, with messages to itself. */
    dd_nccl_op ops[] = {
        {.kind = DD_NCCL_OP_SEND, .block = {data, 4}, .dtype = DD_DTYPE_INT32, .peer = next},
        {.kind = DD_NCCL_OP_RECV, .block = {data + 1, 4}, .dtype = DD_DTYPE_INT32, .peer = previous},
        {.kind = DD_NCCL_OP_SEND, .block = {NULL, 0}, .dtype = DD_DTYPE_INT32, .peer = next},
    };
    dd_nccl_call call = nccl_rig_call(self, "batch", ops, 3);
    CHECK_OK(nccl_rig_do(self, &call, check_err()));
    CHECK_INT(data[1], previous + 100);
    nccl_rig_free(self, data);
    CHECK_INT(dd_nccl_group_sequence(self->group), 0);
}

TEST(messages_in_a_batch_arrive)
{
    nccl_rig_run_all(messages_body, NULL);
}

static void
pair_body(nccl_rig_rank *self)
{
    int *data = nccl_rig_alloc(self, 16);
    data[0] = 7;
    data[1] = 0;
    bool is_sender = self->rank == 1;
    if (self->rank < 2) { /* the other ranks are not needed: the pair has its own communicator */
        for (int i = 0; i < 3; i++) {
            dd_nccl_op op = {.kind = is_sender ? DD_NCCL_OP_SEND : DD_NCCL_OP_RECV,
                             .block = {is_sender ? data : data + 1, 4},
                             .dtype = DD_DTYPE_INT32,
                             .peer = !self->rank};
            dd_nccl_call call = nccl_rig_call(self, is_sender ? "send" : "recv", &op, 1);
            CHECK_OK(nccl_rig_do(self, &call, check_err()));
        }
        CHECK_INT(data[!is_sender], 7);
        CHECK(dd_nccl_group_find_comm(self->group, self->rank) == NULL);
    }
    nccl_rig_check_sum(self);
    dd_nccl_comm *comm = dd_nccl_group_find_comm(self->group, self->rank);
    CHECK(comm != NULL && dd_nccl_comm_size(comm) == self->size);
    dd_nccl_comm_release(comm);
    nccl_rig_meet(self);
    long made = self->rig->nccl_stub.made("comm");
    nccl_rig_meet(self);
    if (self->rank >= 2) { /* first message of these ranks, which already have a communicator */
        bool sends = self->rank == 2;
        dd_nccl_op op = {.kind = sends ? DD_NCCL_OP_SEND : DD_NCCL_OP_RECV,
                         .block = {data, 4},
                         .dtype = DD_DTYPE_INT32,
                         .peer = sends ? 3 : 2};
        dd_nccl_call call = nccl_rig_call(self, sends ? "send" : "recv", &op, 1);
        CHECK_OK(nccl_rig_do(self, &call, check_err()));
    }
    nccl_rig_meet(self);
    CHECK_INT(self->rig->nccl_stub.made("comm"), made);
    nccl_rig_free(self, data);
}

TEST(a_message_between_two_ranks_needs_no_other_rank)
{
    nccl_rig_run(&(nccl_rig_options){.size = 4}, pair_body, NULL);
    nccl_rig_run(&(nccl_rig_options){.size = 4, .is_nonblocking = true}, pair_body, NULL);
}

/* ---- ways to create the communicator of all ranks, which messages then use */

static void
begin_by_barrier(nccl_rig_rank *self)
{
    dd_nccl_op op = {.kind = DD_NCCL_OP_COLL, .args = {.coll = DD_COLL_BARRIER}};
    dd_nccl_call call = nccl_rig_call(self, "barrier", &op, 1);
    CHECK_OK(nccl_rig_do(self, &call, check_err()));
}

/* Send a message between each two neighbours: outside a batch it would use their communicator. */
static void
begin_by_batch(nccl_rig_rank *self)
{
    char *data = nccl_rig_alloc(self, 4);
    dd_nccl_op op = {.kind = self->rank % 2 == 0 ? DD_NCCL_OP_SEND : DD_NCCL_OP_RECV,
                     .block = {data, 4},
                     .dtype = DD_DTYPE_INT32,
                     .peer = self->rank ^ 1};
    dd_nccl_call call = nccl_rig_call(self, "batch", &op, 1);
    call.is_batch = true;
    CHECK_OK(nccl_rig_do(self, &call, check_err()));
    nccl_rig_free(self, data);
}

static void
begin_by_connecting(nccl_rig_rank *self)
{
    dd_nccl_comm *comm = NULL;
    dd_wait wait = nccl_rig_patience();
    CHECK_OK(dd_nccl_group_connect(self->group, self->rank, &comm, &wait, check_err()));
    dd_nccl_comm_release(comm);
}

static void
check_message_between(nccl_rig_rank *self, int from, int to)
{
    int *data = nccl_rig_alloc(self, sizeof *data);
    *data = self->rank == from ? 7 : 0;
    bool is_sender = self->rank == from;
    dd_nccl_op op = {.kind = is_sender ? DD_NCCL_OP_SEND : DD_NCCL_OP_RECV,
                     .block = {data, sizeof *data},
                     .dtype = DD_DTYPE_INT32,
                     .peer = is_sender ? to : from};
    dd_nccl_call call = nccl_rig_call(self, is_sender ? "send" : "recv", &op, 1);
    if (is_sender || self->rank == to) {
        CHECK_OK(nccl_rig_do(self, &call, check_err()));
        CHECK_INT(*data, 7);
    }
    nccl_rig_free(self, data);
}

typedef struct beginning {
    void (*begin)(nccl_rig_rank *self);
} beginning;

static void
beginning_body(nccl_rig_rank *self)
{
    const beginning *way = self->arg;
    long made = self->rig->nccl_stub.made("comm");
    nccl_rig_meet(self);
    way->begin(self);
    nccl_rig_meet(self);
    made += self->size; /* one communicator, created by all ranks */
    CHECK_INT(self->rig->nccl_stub.made("comm"), made);
    dd_nccl_comm *comm = dd_nccl_group_find_comm(self->group, self->rank);
    CHECK(comm != NULL && dd_nccl_comm_size(comm) == self->size);
    dd_nccl_comm_release(comm);
    nccl_rig_meet(self);
    check_message_between(self, 2, 1); /* a pair without messages so far */
    nccl_rig_meet(self);
    CHECK_INT(self->rig->nccl_stub.made("comm"), made);
}

TEST(messages_use_the_communicator_of_all_ranks_if_it_exists)
{
    static const beginning ways[] = {{begin_by_barrier}, {begin_by_batch}, {begin_by_connecting}};
    for (int i = 0; i < 6; i++) {
        nccl_rig_run(&(nccl_rig_options){.size = 4, .is_nonblocking = i >= 3}, beginning_body,
                     (void *)(uintptr_t)&ways[i % 3]);
    }
}

/* ---- several operations in one call, copies around them, barriers */

static void
batch_body(nccl_rig_rank *self)
{
    float *data = nccl_rig_alloc(self, 64 * sizeof *data);
    for (int i = 0; i < 64; i++) {
        data[i] = (float)i;
    }
    dd_block blocks[] = {{data, 16}, {data + 4, 16}, {data + 8, 16}};
    dd_nccl_op ops[] = {nccl_rig_all_reduce(DD_DTYPE_FLOAT32, DD_REDOP_SUM, &blocks[0]),
                        nccl_rig_all_reduce(DD_DTYPE_FLOAT32, DD_REDOP_MAX, &blocks[1]),
                        nccl_rig_coll(DD_COLL_BROADCAST, DD_DTYPE_FLOAT32, &blocks[2], &blocks[2])};
    dd_nccl_call call = nccl_rig_call(self, "coalesced", ops, 3);
    CHECK_OK(nccl_rig_do(self, &call, check_err()));
    CHECK_INT(data[3], 3 * self->size);
    CHECK_INT(data[7], 7);
    CHECK_INT(dd_nccl_group_sequence(self->group), 1);
    nccl_rig_free(self, data);
}

TEST(several_collectives_run_in_one_call)
{
    nccl_rig_run_all(batch_body, NULL);
}

/* Copy rows of a matrix backwards, in and out, by way of scratch memory. */
static void
copies_body(nccl_rig_rank *self)
{
    int32_t *matrix = nccl_rig_alloc(self, 12 * sizeof *matrix);
    void *scratch;
    REQUIRE_OK(dd_nccl_group_alloc_scratch(self->group, self->rank, 24, &scratch, check_err()));
    for (int i = 0; i < 12; i++) {
        matrix[i] = i;
    }
    dd_view strided = {
        .data = matrix + 10, .dtype = DD_DTYPE_INT32, .ndim = 2, .shape = {3, 2}, .strides = {-16, -4}};
    dd_view flat = {.data = scratch, .dtype = DD_DTYPE_INT32, .ndim = 2, .shape = {3, 2}, .strides = {8, 4}};
    REQUIRE(dd_view_finish(&strided) && dd_view_finish(&flat));
    dd_nccl_copy before = {.src = strided, .dst = flat};
    dd_nccl_copy after = {.src = flat, .dst = strided};
    dd_block block = {scratch, 24};
    dd_nccl_op op = nccl_rig_all_reduce(DD_DTYPE_INT32, DD_REDOP_SUM, &block);
    dd_nccl_call call = nccl_rig_call(self, "all_reduce", &op, 1);
    call.before = &before;
    call.after = &after;
    call.nbefore = call.nafter = call.nscratch = 1;
    call.scratch = &scratch;
    CHECK_OK(nccl_rig_do(self, &call, check_err()));
    for (int i = 0; i < 12; i++) { /* columns 1 and 2 of 4 */
        bool is_in = i % 4 == 1 || i % 4 == 2;
        CHECK_INT(matrix[i], is_in ? i * self->size : i);
    }
    nccl_rig_free(self, matrix);
}

TEST(strided_tensors_are_copied_before_and_after_the_operation)
{
    nccl_rig_run_all(copies_body, NULL);
}

static void
barrier_body(nccl_rig_rank *self)
{
    dd_nccl_op op = {.kind = DD_NCCL_OP_COLL, .args = {.coll = DD_COLL_BARRIER}};
    dd_nccl_call call = nccl_rig_call(self, "barrier", &op, 1);
    dd_nccl_work *work;
    REQUIRE_OK(nccl_rig_start(self, &call, &work, check_err()));
    CHECK_OK(nccl_rig_wait(work, check_err()));
    CHECK_INT(work->base.sequence, 1);
    dd_work_release(&work->base);
}

TEST(barriers_have_a_sequence_number)
{
    nccl_rig_run_all(barrier_body, NULL);
}
