/* Argument checks of operations, and custom reduction operators. */
#include "nccl_stub.h"

#include <stdlib.h>
#include <string.h>

bool
nccl_is_message(nccl_op_kind kind)
{
    return kind == NCCL_SEND || kind == NCCL_RECV;
}

static bool
has_root(nccl_op_kind kind)
{
    return kind == NCCL_REDUCE || kind == NCCL_BROADCAST || kind == NCCL_GATHER || kind == NCCL_SCATTER ||
           nccl_is_message(kind);
}

static bool
is_reduction(nccl_op_kind kind)
{
    return kind == NCCL_ALL_REDUCE || kind == NCCL_REDUCE || kind == NCCL_REDUCE_SCATTER;
}

static int
dtype_count(void)
{
    int count = 0;
#define COUNT_DTYPE(name, value, theirs, since) count += nccl_stub_version >= (since);
    DD_NCCL_DTYPE_LIST(COUNT_DTYPE)
#undef COUNT_DTYPE
    return count;
}

bool
nccl_is_dtype(dd_nccl_dtype dtype)
{
    return (unsigned)dtype < (unsigned)dtype_count();
}

/* Return true for another rank of this process on another device, which reads this rank's buffers
 * directly. */
static bool
has_near_peer(const nccl_comm *comm)
{
    wire_card own = wire_card_of(comm->wire, comm->rank);
    for (int rank = 0; rank < comm->nranks; rank++) {
        wire_card card = wire_card_of(comm->wire, rank);
        if (card.pid == own.pid && card.device != own.device) {
            return true;
        }
    }
    return false;
}

/* NCCL does not check buffers, and its kernel crashes. The stub counts a bad use instead and does
 * not run the kernel. */
static dd_nccl_result
check_buffer(const nccl_comm *comm, nccl_op *op, const char *which, const void *data, size_t nblocks)
{
    if (nblocks == 0) {
        return DD_NCCL_SUCCESS;
    }
    int device =
        data == NULL ? -2 : dd_stub_memory_device(data, nblocks * op->count * nccl_dtype_size(op->dtype));
    if (device == -2 || (device >= 0 && device != comm->device)) {
        stub_count_bad_use();
        op->would_crash = true;
        return DD_NCCL_SUCCESS;
    }
    if (has_near_peer(comm) && dd_stub_is_private(data)) {
        return nccl_fail(
            DD_NCCL_UNHANDLED_CUDA_ERROR,
            "%s: %s is memory that other devices of this process cannot read (an illegal address on "
            "a real one)",
            op->name, which);
    }
    return DD_NCCL_SUCCESS;
}

/* Set the numbers of blocks of `count` elements that this rank sends and receives. */
static void
count_blocks(const nccl_comm *comm, const nccl_op *op, size_t *nsent, size_t *nreceived)
{
    size_t all = (size_t)comm->nranks;
    bool is_root = comm->rank == op->peer;
    *nsent = 1;
    *nreceived = 1;
    switch (op->kind) {
    case NCCL_ALL_REDUCE:
        break;
    case NCCL_REDUCE:
        *nreceived = is_root;
        break;
    case NCCL_REDUCE_SCATTER:
        *nsent = all;
        break;
    case NCCL_BROADCAST:
        *nsent = is_root;
        break;
    case NCCL_ALL_GATHER:
        *nreceived = all;
        break;
    case NCCL_ALL_TO_ALL:
        *nsent = all;
        *nreceived = all;
        break;
    case NCCL_GATHER:
        *nreceived = is_root ? all : 0;
        break;
    case NCCL_SCATTER:
        *nsent = is_root ? all : 0;
        break;
    case NCCL_SEND:
        *nreceived = 0;
        break;
    case NCCL_RECV:
        *nsent = 0;
        break;
    case NCCL_PUT:
    case NCCL_SIGNAL:
    case NCCL_WAIT_SIGNAL:
        break;
    }
}

/* "ncclAllReduce" -> "AllReduce", as in warnings. */
static const char *
short_name(const nccl_op *op)
{
    return op->name + strlen("nccl");
}

/* Mix a hash of the communicator into operator numbers, so that another communicator usually
 * rejects them. */
static int
redop_mask(const nccl_comm *comm)
{
    uint64_t hash = (uint64_t)(uintptr_t)comm->base.handle * 0x9e3779b97f4a7c13ull;
    return (int)(hash >> 33) | 1 << 29;
}

static dd_nccl_redop
redop_number(const nccl_comm *comm, int index)
{
    return (dd_nccl_redop)((DD_NCCL_AVG + 1 + index) ^ redop_mask(comm));
}

static int
redop_index(const nccl_comm *comm, dd_nccl_redop number)
{
    return ((int)number ^ redop_mask(comm)) - (int)DD_NCCL_AVG - 1;
}

static dd_nccl_result
check_redop(nccl_comm *comm, nccl_op *op)
{
    if ((int)op->redop < 0) {
        return nccl_fail(DD_NCCL_INVALID_ARGUMENT, "%s : invalid reduction operation %d", short_name(op),
                         (int)op->redop);
    }
    if (op->redop <= DD_NCCL_AVG) {
        return DD_NCCL_SUCCESS;
    }
    int index = redop_index(comm, op->redop);
    pthread_mutex_lock(&nccl_lock);
    bool is_known = index >= 0 && index < comm->nredops && comm->redops[index].is_live;
    if (is_known) {
        op->scalar = comm->redops[index];
    }
    pthread_mutex_unlock(&nccl_lock);
    if (!is_known) {
        return nccl_fail(DD_NCCL_INVALID_ARGUMENT, "%s : reduction operation %d unknown to this communicator",
                         short_name(op), (int)op->redop);
    }
    if (op->scalar.dtype != op->dtype) {
        return nccl_fail(DD_NCCL_INVALID_ARGUMENT,
                         "Data type supplied to user-created ncclRedOp_t does not match type given to "
                         "reduction operation");
    }
    return DD_NCCL_SUCCESS;
}

dd_nccl_result
nccl_check_stream(const nccl_comm *comm, const nccl_op *op)
{
    int device = comm->device;
    int cuda = dd_stub_stream_device(op->stream, &device);
    if (cuda != 0 || device != comm->device) {
        return nccl_fail(DD_NCCL_UNHANDLED_CUDA_ERROR, "Cuda failure %d 'invalid resource handle'",
                         cuda != 0 ? cuda : 400);
    }
    return DD_NCCL_SUCCESS;
}

static dd_nccl_result
check_op(nccl_comm *comm, nccl_op *op)
{
    if (has_root(op->kind) && (op->peer < 0 || op->peer >= comm->nranks)) {
        return nccl_fail(DD_NCCL_INVALID_ARGUMENT, "%s : invalid root %d (root should be in the 0..%d range)",
                         short_name(op), op->peer, comm->nranks);
    }
    if (!nccl_is_dtype(op->dtype)) {
        return nccl_fail(DD_NCCL_INVALID_ARGUMENT, "%s : invalid type %d", short_name(op), (int)op->dtype);
    }
    dd_nccl_result result = is_reduction(op->kind) ? check_redop(comm, op) : DD_NCCL_SUCCESS;
    if (result == DD_NCCL_SUCCESS) {
        result = nccl_check_stream(comm, op);
    }
    size_t nsent;
    size_t nreceived;
    count_blocks(comm, op, &nsent, &nreceived);
    if (result == DD_NCCL_SUCCESS && op->count > 0) {
        result = check_buffer(comm, op, "sendbuff", op->send, nsent);
    }
    if (result == DD_NCCL_SUCCESS && op->count > 0) {
        result = check_buffer(comm, op, "recvbuff", op->recv, nreceived);
    }
    return result;
}

dd_nccl_result
nccl_do(const nccl_op *op, dd_nccl_comm_handle handle)
{
    dd_nccl_result result;
    nccl_comm *comm = nccl_comm_find_ready(handle, NCCL_NEED_UNREVOKED, &result);
    if (comm == NULL) {
        return nccl_group_fail(result);
    }
    nccl_op checked = *op;
    result = check_op(comm, &checked);
    if (result != DD_NCCL_SUCCESS) {
        result = nccl_comm_fail(comm, result);
    }
    if (result == DD_NCCL_SUCCESS && (op->count > 0 || nccl_is_message(op->kind))) {
        nccl_group_start();
        result = nccl_group_add_op(comm, &checked);
        dd_nccl_result ended = nccl_group_end();
        result = result == DD_NCCL_SUCCESS ? ended : result;
    }
    nccl_comm_release(comm);
    return result == DD_NCCL_SUCCESS || result == DD_NCCL_IN_PROGRESS ? result : nccl_group_fail(result);
}

dd_nccl_result
nccl_redop_create(dd_nccl_redop *made, void *scalar, dd_nccl_dtype dtype, dd_nccl_scalar_residence residence,
                  dd_nccl_comm_handle handle)
{
    dd_nccl_result result;
    nccl_comm *comm = nccl_comm_find_ready(handle, NCCL_NEED_UNREVOKED, &result);
    if (comm == NULL) {
        return result;
    }
    bool is_host = residence != DD_NCCL_SCALAR_DEVICE;
    if (made == NULL || (is_host && (scalar == NULL || !nccl_is_dtype(dtype)))) {
        if (made == NULL || scalar == NULL) {
            stub_count_bad_use(); /* the real library crashes */
        }
        nccl_comm_release(comm);
        return DD_NCCL_INTERNAL_ERROR; /* without a warning */
    }
    nccl_redop redop = {.is_live = true, .dtype = dtype};
    if (!is_host) {
        redop.device_scalar = scalar;
    } else {
        redop.factor = nccl_read_scalar(scalar, dtype);
    }
    pthread_mutex_lock(&nccl_lock);
    comm->redops = realloc(comm->redops, (size_t)(comm->nredops + 1) * sizeof *comm->redops);
    if (comm->redops == NULL) {
        abort();
    }
    comm->redops[comm->nredops++] = redop;
    *made = redop_number(comm, comm->nredops - 1);
    pthread_mutex_unlock(&nccl_lock);
    stub_count_add(&nccl_redop_count);
    nccl_comm_release(comm);
    return DD_NCCL_SUCCESS;
}

dd_nccl_result
nccl_redop_destroy(dd_nccl_redop op, dd_nccl_comm_handle handle)
{
    dd_nccl_result result;
    nccl_comm *comm = nccl_comm_find(handle, &result);
    if (comm == NULL) {
        return result;
    }
    int index = redop_index(comm, op);
    pthread_mutex_lock(&nccl_lock);
    bool is_live = index >= 0 && index < comm->nredops && comm->redops[index].is_live;
    if (is_live) {
        comm->redops[index].is_live = false;
    }
    pthread_mutex_unlock(&nccl_lock);
    nccl_comm_release(comm);
    if (!is_live) {
        stub_count_bad_use();
        return nccl_fail(DD_NCCL_INVALID_ARGUMENT, "ncclRedOpDestroy : operator %s",
                         (int)op >= 0 && op <= DD_NCCL_AVG ? "is a NCCL builtin."
                                                           : "unknown to this communicator.");
    }
    stub_count_remove(&nccl_redop_count);
    return DD_NCCL_SUCCESS;
}
