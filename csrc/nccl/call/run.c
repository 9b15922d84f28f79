/* Enqueueing one call: the work before NCCL's calls, NCCL's calls, and the work after them. */
#include "nccl/call/internal.h"

static bool
are_adjacent(const dd_block *blocks, int n)
{
    for (int k = 1; k < n; k++) {
        if ((char *)blocks[k].data != (char *)blocks[k - 1].data + blocks[k - 1].nbytes) {
            return false;
        }
    }
    return true;
}

/* ---- staging. If a rank's equal blocks are not adjacent, it copies them through adjacent memory:
 * ranks with adjacent blocks use NCCL's own call, and all ranks must make the same call */

static const dd_block *
blocks_to_stage(const nccl_launch *launch, const dd_nccl_op *op)
{
    if (op->kind != DD_NCCL_OP_COLL) {
        return NULL;
    }
    const dd_block *blocks = op->args.coll == DD_COLL_ALL_GATHER       ? op->args.outputs
                             : op->args.coll == DD_COLL_REDUCE_SCATTER ? op->args.inputs
                                                                       : NULL;
    int n = launch->group->size;
    bool is_staged =
        blocks != NULL && blocks[0].nbytes > 0 && nccl_are_equal(blocks, n) && !are_adjacent(blocks, n);
    return is_staged ? blocks : NULL;
}

static dd_status
stage_before(nccl_launch *launch)
{
    const dd_nccl_call *call = launch->call;
    int n = launch->group->size;
    for (size_t i = 0; i < call->nops; i++) {
        const dd_block *blocks = blocks_to_stage(launch, &call->ops[i]);
        if (blocks == NULL) {
            continue;
        }
        if (launch->staged == NULL) {
            launch->staged = dd_mem_zalloc(call->nops * sizeof *launch->staged);
            if (launch->staged == NULL) {
                return dd_error_no_memory(launch->err, call->nops * sizeof *launch->staged);
            }
        }
        dd_status status = nccl_scratch_alloc(launch->group, launch->channel, (size_t)n * blocks[0].nbytes,
                                              &launch->staged[i], launch->err);
        bool is_input = call->ops[i].args.coll == DD_COLL_REDUCE_SCATTER;
        for (int k = 0; k < n && is_input && status == DD_OK; k++) {
            char *to = (char *)launch->staged[i] + (size_t)k * blocks[0].nbytes;
            status = nccl_launch_copy_bytes(launch, to, blocks[k].data, blocks[k].nbytes);
        }
        if (status != DD_OK) {
            return status;
        }
    }
    return DD_OK;
}

/* Copy staged outputs to their blocks, unless the call has failed; free the staging memory. */
static dd_status
stage_after(nccl_launch *launch, dd_status status)
{
    for (size_t i = 0; launch->staged != NULL && i < launch->call->nops; i++) {
        const dd_nccl_op *op = &launch->call->ops[i];
        if (launch->staged[i] == NULL) {
            continue;
        }
        for (int k = 0; k < launch->group->size && status == DD_OK && op->args.coll == DD_COLL_ALL_GATHER;
             k++) {
            const dd_block *block = &op->args.outputs[k];
            const char *from = (const char *)launch->staged[i] + (size_t)k * block->nbytes;
            status = nccl_launch_copy_bytes(launch, block->data, from, block->nbytes);
        }
        nccl_scratch_free(launch->group, launch->channel, launch->staged[i]);
    }
    dd_mem_free(launch->staged);
    launch->staged = NULL;
    return status;
}

/* ---- enqueueing a call */

dd_status
nccl_stream_order(nccl_launch *launch, dd_cuda_stream earlier, dd_cuda_stream later)
{
    if (earlier == later) {
        return DD_OK;
    }
    const dd_cuda_api *api = &launch->group->cuda->api;
    nccl_device *device = launch->channel->device;
    /* In a graph capture, use a new event: a captured event must not be recorded elsewhere. */
    dd_cuda_event event = device->order;
    dd_status status =
        launch->is_capturing ? nccl_event_acquire(launch->group, device, false, &event, launch->err) : DD_OK;
    if (status == DD_OK) {
        status = nccl_launch_check_cuda(launch, api->cuEventRecord(event, earlier), "cuEventRecord");
    }
    if (status == DD_OK) {
        status = nccl_launch_check_cuda(launch, api->cuStreamWaitEvent(later, event, 0), "cuStreamWaitEvent");
    }
    if (launch->is_capturing) {
        nccl_event_release(launch->group, device, false, event, false);
    }
    return status;
}

dd_status
nccl_launch_find_capture(nccl_launch *launch)
{
    for (size_t i = 0; i < launch->call->nstreams && !launch->is_capturing; i++) {
        dd_cuda_capture_status capture = DD_CUDA_CAPTURE_NONE;
        dd_status status = nccl_launch_check_cuda(
            launch, launch->group->cuda->api.cuStreamIsCapturing(launch->call->streams[i], &capture),
            "cuStreamIsCapturing");
        if (status != DD_OK) {
            return status;
        }
        launch->is_capturing = capture == DD_CUDA_CAPTURE_ACTIVE;
    }
    return DD_OK;
}

static dd_status
order_call_streams(nccl_launch *launch)
{
    const dd_nccl_call *call = launch->call;
    nccl_channel *channel = launch->channel;
    dd_status status = DD_OK;
    for (size_t i = 0; i < call->nstreams && status == DD_OK; i++) {
        status = nccl_stream_order(launch, call->streams[i], channel->stream);
    }
    /* Scratch memory is allocated in the order of the all-ranks stream, so wait for that stream. */
    bool has_scratch = call->nscratch > 0 && channel->peer != NCCL_ALL_RANKS;
    return status == DD_OK && has_scratch
               ? nccl_stream_order(launch, channel->device->all.stream, channel->stream)
               : status;
}

static dd_status
copy_all(nccl_launch *launch, const dd_nccl_copy *copies, size_t ncopies)
{
    dd_status status = DD_OK;
    for (size_t i = 0; i < ncopies && status == DD_OK; i++) {
        status = nccl_copy_enqueue(launch->group->cuda, launch->channel->stream, &copies[i], launch->err);
    }
    return status;
}

static dd_status
record_event(const nccl_launch *launch, dd_cuda_event event)
{
    return nccl_launch_check_cuda(
        launch, launch->group->cuda->api.cuEventRecord(event, launch->channel->stream), "cuEventRecord");
}

/* Enqueue everything that precedes NCCL's calls. An estimate only needs staging memory. */
static dd_status
launch_before_nccl(nccl_launch *launch)
{
    if (launch->estimate != NULL) {
        return stage_before(launch);
    }
    dd_status status = order_call_streams(launch);
    if (status == DD_OK && launch->work->start != NULL) {
        status = record_event(launch, launch->work->start);
    }
    if (status == DD_OK) {
        status = copy_all(launch, launch->call->before, launch->call->nbefore);
    }
    if (status == DD_OK && atomic_load_explicit(&launch->group->is_nan_check, memory_order_relaxed)) {
        status = nccl_check_nan(launch);
    }
    return status == DD_OK ? stage_before(launch) : status;
}

dd_status
nccl_launch_run(nccl_launch *launch)
{
    const dd_nccl_call *call = launch->call;
    bool is_estimate = launch->estimate != NULL;
    launch->is_run = true;
    dd_status status = launch_before_nccl(launch);
    if (status == DD_OK) {
        status = nccl_launch_post(launch);
    }
    status = stage_after(launch, status);
    if (status == DD_OK && !is_estimate) {
        status = copy_all(launch, call->after, call->nafter);
    }
    for (size_t i = 0; i < call->nscratch; i++) {
        nccl_scratch_free(launch->group, launch->channel, call->scratch[i]);
    }
    return status == DD_OK && !is_estimate ? record_event(launch, launch->work->end) : status;
}
