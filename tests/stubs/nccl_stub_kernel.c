/* Kernels: every rank sends to the ranks that need its bytes, and each reduces in rank order, so
 * that all get identical bits. Simple, but with n times the traffic of a ring. */
#include "nccl_stub.h"

#include "kernels/reduce.h"

#include <stdlib.h>
#include <string.h>

/* Maximum number of elements in one step of a reduction. */
#define STEP_COUNT 16384

static const dd_dtype our_dtypes[] = {
    [DD_NCCL_DTYPE_INT8] = DD_DTYPE_INT8,
    [DD_NCCL_DTYPE_UINT8] = DD_DTYPE_UINT8,
    [DD_NCCL_DTYPE_INT32] = DD_DTYPE_INT32,
    [DD_NCCL_DTYPE_UINT32] = DD_DTYPE_UINT32,
    [DD_NCCL_DTYPE_INT64] = DD_DTYPE_INT64,
    [DD_NCCL_DTYPE_UINT64] = DD_DTYPE_UINT64,
    [DD_NCCL_DTYPE_FLOAT16] = DD_DTYPE_FLOAT16,
    [DD_NCCL_DTYPE_FLOAT32] = DD_DTYPE_FLOAT32,
    [DD_NCCL_DTYPE_FLOAT64] = DD_DTYPE_FLOAT64,
    [DD_NCCL_DTYPE_BFLOAT16] = DD_DTYPE_BFLOAT16,
    [DD_NCCL_DTYPE_FLOAT8_E4M3] = DD_DTYPE_FLOAT8_E4M3FN,
    [DD_NCCL_DTYPE_FLOAT8_E5M2] = DD_DTYPE_FLOAT8_E5M2,
};

size_t
nccl_dtype_size(dd_nccl_dtype dtype)
{
    return dd_dtype_size(our_dtypes[dtype]);
}

double
nccl_read_scalar(const void *scalar, dd_nccl_dtype dtype)
{
    dd_dtype ours = our_dtypes[dtype];
    unsigned char wide[DD_DTYPE_MAX_SIZE];
    dd_reduction as_is = {.dtype = ours, .op = DD_REDOP_SUM, .divisor = 1};
    dd_reduce(&as_is, DD_STAGE_FIRST, wide, &scalar, 1, 1);
    union {
        int8_t i8;
        uint8_t u8;
        int32_t i32;
        uint32_t u32;
        int64_t i64;
        uint64_t u64;
        float f32;
        double f64;
    } value;
    memcpy(&value, wide, sizeof value);
    switch (dtype) {
    case DD_NCCL_DTYPE_INT8:
        return value.i8;
    case DD_NCCL_DTYPE_UINT8:
        return value.u8;
    case DD_NCCL_DTYPE_INT32:
        return value.i32;
    case DD_NCCL_DTYPE_UINT32:
        return value.u32;
    case DD_NCCL_DTYPE_INT64:
        return (double)value.i64;
    case DD_NCCL_DTYPE_UINT64:
        return (double)value.u64;
    case DD_NCCL_DTYPE_FLOAT64:
        return value.f64;
    case DD_NCCL_DTYPE_FLOAT16:
    case DD_NCCL_DTYPE_FLOAT32:
    case DD_NCCL_DTYPE_BFLOAT16:
    case DD_NCCL_DTYPE_FLOAT8_E4M3:
    case DD_NCCL_DTYPE_FLOAT8_E5M2:
        break;
    }
    return value.f32;
}

/* Both sides of a collective must have the same tag; otherwise they wait forever. */
static uint64_t
tag_of(const nccl_op *op)
{
    uint64_t redop = op->scalar.is_live ? 7 : (uint64_t)op->redop;
    return (uint64_t)op->kind | (uint64_t)op->dtype << 8 | redop << 16 | (uint64_t)op->peer << 24 |
           (uint64_t)op->count << 32;
}

/* ---- transfers */

typedef struct stub_moves {
    nccl_comm *comm;
    uint64_t tag;
    wire_transfer transfers[2 * WIRE_MAX_RANKS];
    size_t n;
} stub_moves;

static void
move(stub_moves *moves, bool is_send, int peer, const void *data, size_t nbytes)
{
    moves->transfers[moves->n++] = (wire_transfer){
        .is_send = is_send,
        .lane = WIRE_COLLECTIVE,
        .peer = peer,
        .tag = moves->tag,
        .data = (void *)(uintptr_t)data,
        .nbytes = nbytes,
    };
}

static wire_result
carry(stub_moves *moves)
{
    return wire_carry(moves->comm->wire, moves->transfers, moves->n, &moves->comm->is_stopped);
}

static const char *
block_of(const void *base, int index, size_t nbytes)
{
    return (const char *)base + (size_t)index * nbytes;
}

static void
copy_own(void *dst, const void *src, size_t nbytes)
{
    if (dst != src) {
        memmove(dst, src, nbytes);
    }
}

/* Each block is sent to one rank or received from one. */
static wire_result
run_moves(nccl_comm *comm, const nccl_op *op)
{
    stub_moves moves = {.comm = comm, .tag = tag_of(op)};
    size_t nbytes = op->count * nccl_dtype_size(op->dtype);
    int own = comm->rank;
    bool is_root = own == op->peer;
    bool is_many_out = op->kind == NCCL_ALL_TO_ALL || op->kind == NCCL_SCATTER;
    bool is_many_in = op->kind == NCCL_ALL_TO_ALL || op->kind == NCCL_GATHER || op->kind == NCCL_ALL_GATHER;
    for (int peer = 0; peer < comm->nranks; peer++) {
        bool is_all = op->kind == NCCL_ALL_GATHER || op->kind == NCCL_ALL_TO_ALL;
        bool is_from_root = op->kind == NCCL_BROADCAST || op->kind == NCCL_SCATTER;
        bool does_send = is_all || (is_from_root ? is_root : peer == op->peer);
        bool does_receive = is_all || (is_from_root ? peer == op->peer : is_root);
        const char *out = is_many_out ? block_of(op->send, peer, nbytes) : op->send;
        char *in = (char *)(uintptr_t)(is_many_in ? block_of(op->recv, peer, nbytes) : op->recv);
        if (peer == own) {
            if (does_send && does_receive) {
                copy_own(in, out, nbytes);
            }
            continue;
        }
        if (does_send) {
            move(&moves, true, peer, out, nbytes);
        }
        if (does_receive) {
            move(&moves, false, peer, in, nbytes);
        }
    }
    return carry(&moves);
}

/* ---- reductions */

typedef struct stub_fold {
    const nccl_op *op;
    dd_reduction reduction;
    bool is_scaled; /* ranks send their own elements, multiplied, as accumulators */
    size_t size;    /* of a sent element */
    size_t step;    /* elements per step */
    char *scratch;  /* one step for each rank */
    char *outgoing; /* same */
} stub_fold;

static const dd_redop our_redops[] = {
    [DD_NCCL_SUM] = DD_REDOP_SUM, [DD_NCCL_PROD] = DD_REDOP_PRODUCT, [DD_NCCL_MAX] = DD_REDOP_MAX,
    [DD_NCCL_MIN] = DD_REDOP_MIN, [DD_NCCL_AVG] = DD_REDOP_AVG,
};

static void
init_fold(stub_fold *fold, const nccl_comm *comm, const nccl_op *op)
{
    dd_dtype dtype = our_dtypes[op->dtype];
    bool is_scaled = op->scalar.is_live;
    fold->op = op;
    fold->is_scaled = is_scaled;
    fold->reduction = (dd_reduction){
        .dtype = dtype,
        .op = is_scaled ? DD_REDOP_PREMUL_SUM : our_redops[op->redop],
        .divisor = comm->nranks,
    };
    if (is_scaled) {
        const void *at = op->scalar.device_scalar;
        fold->reduction.factor = at != NULL ? nccl_read_scalar(at, op->dtype) : op->scalar.factor;
    }
    fold->size = dd_dtype_size(is_scaled ? dd_reduce_accumulator(dtype) : dtype);
    fold->step = op->count < STEP_COUNT ? op->count : STEP_COUNT;
    fold->scratch = stub_zalloc((size_t)comm->nranks * fold->step * fold->size);
    fold->outgoing = stub_zalloc((size_t)comm->nranks * fold->step * fold->size);
}

/* Return this rank's contribution to the result that `peer` computes. */
static const void *
contribution(stub_fold *fold, int peer, size_t at, size_t count)
{
    const nccl_op *op = fold->op;
    size_t size = nccl_dtype_size(op->dtype);
    size_t first = op->kind == NCCL_REDUCE_SCATTER ? (size_t)peer * op->count : 0;
    const void *elements = (const char *)op->send + (first + at) * size;
    if (!fold->is_scaled) {
        return elements;
    }
    void *scaled = fold->outgoing + (size_t)peer * fold->step * fold->size;
    dd_reduce(&fold->reduction, DD_STAGE_FIRST, scaled, &elements, 1, count);
    return scaled;
}

static wire_result
run_step(nccl_comm *comm, stub_fold *fold, size_t at, size_t count)
{
    const nccl_op *op = fold->op;
    stub_moves moves = {.comm = comm, .tag = tag_of(op)};
    const void *sources[WIRE_MAX_RANKS];
    bool does_compute = op->kind != NCCL_REDUCE || comm->rank == op->peer;
    for (int peer = 0; peer < comm->nranks; peer++) {
        bool is_own = peer == comm->rank;
        char *scratch = fold->scratch + (size_t)peer * fold->step * fold->size;
        sources[peer] = scratch;
        if (op->kind != NCCL_REDUCE || peer == op->peer) {
            const void *given = contribution(fold, peer, at, count);
            if (is_own) {
                sources[peer] = given;
            } else {
                move(&moves, true, peer, given, count * fold->size);
            }
        }
        if (does_compute && !is_own) {
            move(&moves, false, peer, scratch, count * fold->size);
        }
    }
    wire_result result = carry(&moves);
    if (result == WIRE_OK && does_compute) {
        char *out = (char *)op->recv + at * nccl_dtype_size(op->dtype);
        dd_reduce(&fold->reduction, fold->is_scaled ? DD_STAGE_LAST : DD_STAGE_WHOLE, out, sources,
                  (size_t)comm->nranks, count);
    }
    return result;
}

static wire_result
run_reduction(nccl_comm *comm, const nccl_op *op)
{
    stub_fold fold;
    init_fold(&fold, comm, op);
    wire_result result = WIRE_OK;
    for (size_t at = 0; at < op->count && result == WIRE_OK; at += fold.step) {
        size_t left = op->count - at;
        result = run_step(comm, &fold, at, left < fold.step ? left : fold.step);
    }
    free(fold.scratch);
    free(fold.outgoing);
    return result;
}

wire_result
nccl_run_op(nccl_comm *comm, const nccl_op *op)
{
    bool is_reduction =
        op->kind == NCCL_ALL_REDUCE || op->kind == NCCL_REDUCE || op->kind == NCCL_REDUCE_SCATTER;
    return is_reduction ? run_reduction(comm, op) : run_moves(comm, op);
}

/* ---- messages: all of a group concurrently */

wire_result
nccl_run_messages(nccl_comm *comm, const nccl_op *ops, size_t nops)
{
    wire_transfer *transfers = stub_zalloc(nops * sizeof *transfers);
    size_t n = 0;
    for (size_t i = 0; i < nops; i++) {
        if (!nccl_is_message(ops[i].kind)) {
            continue;
        }
        bool is_send = ops[i].kind == NCCL_SEND;
        transfers[n++] = (wire_transfer){
            .is_send = is_send,
            .lane = WIRE_MESSAGE,
            .peer = ops[i].peer,
            .data = is_send ? (void *)(uintptr_t)ops[i].send : ops[i].recv,
            .nbytes = ops[i].count * nccl_dtype_size(ops[i].dtype),
        };
    }
    wire_result result = wire_carry(comm->wire, transfers, n, &comm->is_stopped);
    free(transfers);
    return result;
}
