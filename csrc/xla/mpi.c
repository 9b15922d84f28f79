#include "xla/mpi.h"

#include "core/mem.h"

#include <stdio.h>
#include <string.h>

typedef struct comm {
    dd_group *group; /* owned; NULL if the communicator could not be created */
    int rank;
    int size;
    dd_error cause; /* error that all calls return; set only if group is NULL */
} comm;

typedef struct request {
    dd_group *group; /* owned reference */
    dd_work *work;   /* owned reference */
} request;

/* The error of this thread's last failed call, which XLA reads by Error_string. */
static _Thread_local dd_error last_error;

static int
mpi_code(dd_status status)
{
    return status == DD_OK ? DD_MPI_SUCCESS : DD_MPI_ERR_OTHER;
}

static dd_status
invalid_argument(const char *text)
{
    return dd_error_set(&last_error, DD_INVALID_ARGUMENT, "%s", text);
}

/* ---- communicators */

static dd_mpi_handle
comm_create(const comm *init)
{
    comm *made = dd_mem_alloc(sizeof *made);
    if (made == NULL) {
        return DD_MPI_NULL;
    }
    *made = *init;
    return (dd_mpi_handle)made;
}

dd_mpi_handle
dd_mpi_comm_create(dd_group *group)
{
    comm init = {.rank = dd_group_rank(group), .size = dd_group_size(group)};
    init.group = dd_group_acquire(group);
    dd_mpi_handle made = comm_create(&init);
    if (made == DD_MPI_NULL) {
        dd_group_release(group);
    }
    return made;
}

dd_mpi_handle
dd_mpi_comm_create_broken(int rank, int size, const char *reason)
{
    comm init = {.rank = rank, .size = size};
    (void)!dd_error_set(&init.cause, DD_INVALID_ARGUMENT, "%s", reason);
    return comm_create(&init);
}

static _Atomic(comm *) world;

void
dd_mpi_set_world(dd_mpi_handle handle)
{
    world = (comm *)handle;
}

/* Return a handle's communicator; NULL if there was no memory when XLA created it. */
static const comm *
comm_of_handle(dd_mpi_handle handle)
{
    return handle == DD_MPI_COMM_WORLD ? world : (const comm *)handle;
}

static dd_status
find_comm(dd_mpi_handle handle, const comm **found)
{
    *found = comm_of_handle(handle);
    if (*found == NULL) {
        return dd_error_set(&last_error, DD_OUT_OF_MEMORY,
                            "out of memory when this communicator was created");
    }
    return (*found)->group != NULL ? DD_OK : dd_error_copy(&last_error, &(*found)->cause);
}

static int
comm_rank(dd_mpi_handle handle, int *rank)
{
    const comm *found = comm_of_handle(handle);
    *rank = found != NULL ? found->rank : 0;
    return DD_MPI_SUCCESS;
}

static int
comm_size(dd_mpi_handle handle, int *size)
{
    const comm *found = comm_of_handle(handle);
    *size = found != NULL ? found->size : 1;
    return DD_MPI_SUCCESS;
}

static int
comm_free(dd_mpi_handle *handle)
{
    if (*handle == DD_MPI_COMM_WORLD) {
        (void)dd_error_set(&last_error, DD_INVALID_ARGUMENT, "MPI_Comm_free: MPI_COMM_WORLD cannot be freed");
        return DD_MPI_ERR_OTHER;
    }
    comm *found = (comm *)*handle;
    *handle = DD_MPI_NULL;
    if (found != NULL) {
        dd_group_release(found->group);
        dd_mem_free(found);
    }
    return DD_MPI_SUCCESS;
}

/* ---- collectives */

static dd_status
find_type(dd_mpi_handle type, dd_dtype *dtype)
{
    dd_mpi_handle number = type - DD_MPI_TYPE;
    if (number < 0 || number >= DD_DTYPE_COUNT) {
        return invalid_argument("dldist has no such MPI datatype");
    }
    *dtype = (dd_dtype)number;
    return DD_OK;
}

/* Find a call's communicator and data type. On failure, last_error is set. */
static dd_status
find_typed(dd_mpi_handle handle, dd_mpi_handle type, const comm **on, dd_dtype *dtype)
{
    dd_status status = find_comm(handle, on);
    return status == DD_OK ? find_type(type, dtype) : status;
}

/* Find a call's communicator and reduction. On failure, last_error is set. */
static dd_status
find_reduction(dd_mpi_handle handle, dd_mpi_handle type, dd_mpi_handle operation, const comm **on,
               dd_reduction *reduction)
{
    dd_status status = find_comm(handle, on);
    if (status != DD_OK) {
        return status;
    }
    dd_mpi_handle number = operation - DD_MPI_OPERATION;
    if (number < 0 || number >= DD_REDOP_COUNT) {
        return invalid_argument("dldist has no such MPI operation");
    }
    *reduction = (dd_reduction){.op = (dd_redop)number, .factor = 1.0, .divisor = (*on)->size};
    return find_type(type, &reduction->dtype);
}

static dd_block
block_of(const void *data, int count, dd_dtype dtype)
{
    return (dd_block){.data = (void *)(uintptr_t)data, .nbytes = (size_t)count * dd_dtype_size(dtype)};
}

/* The flight recorder's entry of a call: its arrays as one-dimensional, with `counts` elements. */
typedef struct mpi_record {
    dd_record_call call;
    dd_record_tensor tensors[2];
    int64_t counts[2];
} mpi_record;

static void
record_call(mpi_record *record, const char *name, dd_dtype dtype, dd_block in, dd_block out)
{
    record->counts[0] = (int64_t)(in.nbytes / dd_dtype_size(dtype));
    record->counts[1] = (int64_t)(out.nbytes / dd_dtype_size(dtype));
    for (int i = 0; i < 2; i++) {
        record->tensors[i] = (dd_record_tensor){.dtype = dtype, .ndim = 1, .shape = &record->counts[i]};
    }
    record->call = (dd_record_call){.name = name,
                                    .inputs = &record->tensors[0],
                                    .outputs = &record->tensors[1],
                                    .ninputs = 1,
                                    .noutputs = 1};
}

/* Run a collective and block until it ends: XLA has no other wait, and cannot interrupt threads. */
static dd_status
run_recorded(const comm *on, const dd_coll_args *args, mpi_record *record)
{
    dd_wait wait = dd_wait_after(DD_NEVER_NS);
    dd_call_options options = {.timeout_ns = -1, .record = &record->call};
    return dd_group_collective_and_wait(on->group, args, &options, &wait, &last_error);
}

static int
mpi_all_reduce(const void *in, void *out, int count, dd_mpi_handle type, dd_mpi_handle operation,
               dd_mpi_handle handle)
{
    const comm *on;
    dd_coll_args args = {.coll = DD_COLL_ALL_REDUCE};
    dd_status status = find_reduction(handle, type, operation, &on, &args.reduction);
    if (status == DD_OK) {
        bool is_in_place = (dd_mpi_handle)in == DD_MPI_IN_PLACE;
        dd_block input = block_of(is_in_place ? out : in, count, args.reduction.dtype);
        dd_block output = block_of(out, count, args.reduction.dtype);
        args.inputs = &input;
        args.outputs = &output;
        dd_mem_expect_writes(output.data, output.nbytes);
        mpi_record record;
        record_call(&record, "all_reduce", args.reduction.dtype, input, output);
        status = run_recorded(on, &args, &record);
    }
    return mpi_code(status);
}

/* Divide an array into blocks, one for each rank, of counts[i] elements, or of `count` elements if
 * `counts` is NULL. Return the whole array as one block. */
static dd_block
cut(const comm *on, dd_block *blocks, const void *memory, const int *counts, int count, dd_dtype dtype)
{
    dd_block all = block_of(memory, 0, dtype);
    for (int i = 0; i < on->size; i++) {
        const char *at = (const char *)memory + all.nbytes;
        blocks[i] = block_of(at, counts != NULL ? counts[i] : count, dtype);
        all.nbytes += blocks[i].nbytes;
    }
    return all;
}

/* Run a collective with a single block, `one`, and a divided array: the outputs of all_gather, or
 * the inputs of reduce_scatter. */
static dd_status
run_cut(const comm *on, dd_coll_args *args, dd_block one, const void *memory, const int *counts, int count)
{
    dd_dtype dtype = args->reduction.dtype;
    dd_block *blocks = dd_mem_alloc_array((size_t)on->size, sizeof *blocks);
    if (blocks == NULL) {
        return dd_error_no_memory(&last_error, (size_t)on->size * sizeof *blocks);
    }
    dd_block all = cut(on, blocks, memory, counts, count, dtype);
    mpi_record record;
    if (args->coll == DD_COLL_ALL_GATHER) {
        record_call(&record, "all_gather_single", dtype, one, all);
        dd_mem_expect_writes(all.data, all.nbytes);
        args->inputs = &one;
        args->outputs = blocks;
    } else {
        record_call(&record, "reduce_scatter_single", dtype, all, one);
        dd_mem_expect_writes(one.data, one.nbytes);
        args->inputs = blocks;
        args->outputs = &one;
    }
    dd_status status = run_recorded(on, args, &record);
    dd_mem_free(blocks);
    return status;
}

static int
mpi_all_gather(const void *in, int in_count, dd_mpi_handle in_type, void *out, int out_count,
               dd_mpi_handle out_type, dd_mpi_handle handle)
{
    (void)out_count; /* unused: equal to in_count and in_type, since XLA sends bytes */
    (void)out_type;
    const comm *on;
    dd_coll_args args = {.coll = DD_COLL_ALL_GATHER};
    dd_status status = find_typed(handle, in_type, &on, &args.reduction.dtype);
    if (status == DD_OK) {
        status = run_cut(on, &args, block_of(in, in_count, args.reduction.dtype), out, NULL, in_count);
    }
    return mpi_code(status);
}

static int
mpi_reduce_scatter(const void *in, void *out, const int *counts, dd_mpi_handle type, dd_mpi_handle operation,
                   dd_mpi_handle handle)
{
    const comm *on;
    dd_coll_args args = {.coll = DD_COLL_REDUCE_SCATTER};
    dd_status status = find_reduction(handle, type, operation, &on, &args.reduction);
    if (status == DD_OK) {
        dd_block output = block_of(out, counts[on->rank], args.reduction.dtype);
        status = run_cut(on, &args, output, in, counts, 0);
    }
    return mpi_code(status);
}

/* ---- messages */

static dd_status
post_p2p(const comm *on, const dd_p2p *message, dd_dtype dtype, dd_work **work)
{
    mpi_record record;
    record_call(&record, message->is_send ? "send" : "recv", dtype, message->block, message->block);
    record.call.is_p2p = true;
    record.call.peer = message->rank;
    record.call.ninputs = message->is_send ? 1 : 0;
    record.call.noutputs = message->is_send ? 0 : 1;
    dd_call_options options = {.timeout_ns = -1, .record = &record.call};
    return dd_group_p2p(on->group, message, &options, work, &last_error);
}

/* Wait for a work and release it. */
static dd_status
finish_work(dd_group *group, dd_work *work)
{
    dd_wait wait = dd_wait_after(DD_NEVER_NS);
    dd_status status = dd_group_wait(group, work, &wait, &last_error);
    dd_work_release(work);
    return status;
}

static int
mpi_start_message(dd_mpi_handle handle, const void *data, int count, dd_mpi_handle type, dd_p2p message,
                  dd_mpi_handle *made)
{
    *made = DD_MPI_NULL;
    const comm *on;
    dd_dtype dtype = DD_DTYPE_UINT8;
    dd_status status = find_typed(handle, type, &on, &dtype);
    if (status != DD_OK) {
        return mpi_code(status);
    }
    request *pending = dd_mem_zalloc(sizeof *pending);
    if (pending == NULL) {
        return mpi_code(dd_error_no_memory(&last_error, sizeof *pending));
    }
    message.block = block_of(data, count, dtype);
    if (!message.is_send) {
        dd_mem_expect_writes(message.block.data, message.block.nbytes);
    }
    status = post_p2p(on, &message, dtype, &pending->work);
    if (status != DD_OK) {
        dd_mem_free(pending);
        return mpi_code(status);
    }
    pending->group = dd_group_acquire(on->group);
    *made = (dd_mpi_handle)pending;
    return DD_MPI_SUCCESS;
}

static int
start_send(const void *data, int count, dd_mpi_handle type, int dst, int tag, dd_mpi_handle handle,
           dd_mpi_handle *made)
{
    dd_p2p message = {.is_send = true, .rank = dst, .tag = (uint64_t)tag};
    return mpi_start_message(handle, data, count, type, message, made);
}

static int
start_recv(void *data, int count, dd_mpi_handle type, int src, int tag, dd_mpi_handle handle,
           dd_mpi_handle *made)
{
    dd_p2p message = {.rank = src, .tag = (uint64_t)tag};
    return mpi_start_message(handle, data, count, type, message, made);
}

static int
mpi_wait_for(dd_mpi_handle *handle, void *status_out)
{
    (void)status_out; /* not set: XLA ignores the status */
    request *pending = (request *)*handle;
    *handle = DD_MPI_NULL;
    if (pending == NULL) {
        return DD_MPI_SUCCESS;
    }
    dd_status status = finish_work(pending->group, pending->work);
    dd_group_release(pending->group);
    dd_mem_free(pending);
    return mpi_code(status);
}

/* NOLINTBEGIN(readability-function-size): these are MPI's parameters */
static int
send_and_recv(const void *out, int out_count, dd_mpi_handle out_type, int dst, int out_tag, void *in,
              int in_count, dd_mpi_handle in_type, int src, int in_tag, dd_mpi_handle handle,
              void *status_out)
{
    dd_mpi_handle receiving;
    dd_mpi_handle sending;
    int code = start_recv(in, in_count, in_type, src, in_tag, handle, &receiving);
    if (code != DD_MPI_SUCCESS) {
        return code;
    }
    int sent = start_send(out, out_count, out_type, dst, out_tag, handle, &sending);
    if (sent == DD_MPI_SUCCESS) {
        sent = mpi_wait_for(&sending, status_out);
    }
    code = mpi_wait_for(&receiving, status_out);
    return sent != DD_MPI_SUCCESS ? sent : code;
}
/* NOLINTEND(readability-function-size) */

/* ---- errors */

static int
error_string(int code, char *text, int *nbytes)
{
    const char *label = code == DD_MPI_SUCCESS ? "success" : last_error.message;
    *nbytes = snprintf(text, DD_MPI_MAX_ERROR_STRING, "%s", label);
    *nbytes = *nbytes < DD_MPI_MAX_ERROR_STRING ? *nbytes : DD_MPI_MAX_ERROR_STRING - 1;
    return DD_MPI_SUCCESS;
}

const dd_mpi_calls dd_mpi_group_calls = {
    .Comm_rank = comm_rank,
    .Comm_size = comm_size,
    .Comm_free = comm_free,
    .Allreduce = mpi_all_reduce,
    .Allgather = mpi_all_gather,
    .Reduce_scatter = mpi_reduce_scatter,
    .Isend = start_send,
    .Irecv = start_recv,
    .Wait = mpi_wait_for,
    .Sendrecv = send_and_recv,
    .Error_string = error_string,
};
