/* One-sided operations (puts, signals and waits for signals): checks, and the NCCL calls. */
#include "nccl/call/internal.h"

#include "core/lock.h"

int
dd_nccl_group_window_nchannels(const dd_nccl_group_window *window)
{
    dd_nccl_config_value value = {.is_set = false};
    dd_status status = dd_nccl_config_get(&window->group->options.config, "num_rma_sig", &value, NULL);
    return status == DD_OK && value.is_set ? (int)value.number : 1;
}

static bool
is_in_window(const dd_nccl_group_window *window, const dd_block *block)
{
    return (uintptr_t)block->data >= (uintptr_t)window->data &&
           (uintptr_t)block->data + block->nbytes <= (uintptr_t)window->data + window->nbytes;
}

/* Return true if the block is in a window: from other memory, an NCCL put would fail the group. */
static bool
is_source(const dd_nccl_group_window *to, const dd_block *block)
{
    dd_nccl_group *group = to->group;
    bool is_found = block->nbytes == 0;
    dd_lock_take(&group->lock);
    for (dd_list *node = group->windows.next; node != &group->windows && !is_found; node = node->next) {
        const dd_nccl_group_window *window = DD_CONTAINER_OF(node, dd_nccl_group_window, link);
        is_found = window->device == to->device && is_in_window(window, block);
    }
    dd_lock_release(&group->lock);
    return is_found;
}

static dd_status
check_put(const dd_nccl_op *op, dd_error *err)
{
    const dd_nccl_group_window *window = op->window;
    if (op->offset > window->nbytes || op->block.nbytes > window->nbytes - op->offset) {
        return dd_error_set(
            err, DD_INVALID_ARGUMENT,
            "out of range: got %zu bytes at offset %zu, expected at most %zu bytes in the window of rank %d",
            op->block.nbytes, op->offset, window->nbytes, op->peer);
    }
    if (!is_source(window, &op->block)) {
        return dd_error_set(
            err, DD_INVALID_ARGUMENT,
            "NCCL needs a tensor that is in a window of this group on its device; put a part of this "
            "window's tensor, or create a window of the tensor");
    }
    return DD_OK;
}

static dd_status
check_window_open(const dd_nccl_group_window *window, dd_error *err)
{
    return atomic_load(&window->is_closed) ? dd_error_set(err, DD_CLOSED, "the window has been closed")
                                           : DD_OK;
}

dd_status
nccl_window_check(const dd_nccl_group *group, const dd_nccl_call *call, const dd_nccl_op *op, dd_error *err)
{
    const dd_nccl_group_window *window = op->window;
    int nchannels = dd_nccl_group_window_nchannels(window);
    if (window->group != group || window->device != call->device) {
        return dd_error_set(err, DD_INVALID_ARGUMENT, "the window belongs to another group or device");
    }
    if (op->peer < 0 || op->peer >= group->size) {
        return dd_error_set(err, DD_INVALID_ARGUMENT, "invalid rank: got %d, expected 0 to %d", op->peer,
                            group->size - 1);
    }
    if (op->channel < 0 || op->channel >= nchannels) {
        return dd_error_set(
            err, DD_INVALID_ARGUMENT,
            "invalid channel: got %d, expected 0 to %d (set num_rma_sig of the configuration, with NCCL "
            "2.31 or newer)",
            op->channel, nchannels - 1);
    }
    if (op->kind == DD_NCCL_OP_WAIT_SIGNAL && op->count < 1) {
        return dd_error_set(err, DD_INVALID_ARGUMENT,
                            "invalid number of signals: got %d, expected at least 1", op->count);
    }
    dd_status status = check_window_open(window, err);
    return status == DD_OK && op->kind == DD_NCCL_OP_PUT ? check_put(op, err) : status;
}

dd_status
nccl_window_check_open(const nccl_launch *launch)
{
    dd_status status = DD_OK;
    for (size_t i = 0; i < launch->call->nops && status == DD_OK; i++) {
        const dd_nccl_group_window *window = launch->call->ops[i].window;
        status = window != NULL ? check_window_open(window, launch->err) : DD_OK;
    }
    if (status != DD_OK) {
        dd_error_prepend(launch->err, "%s", launch->call->label);
    }
    return status;
}

dd_status
nccl_window_post(const nccl_launch *launch, const dd_nccl_op *op)
{
    const dd_nccl_api *api = &launch->group->lib->api;
    dd_cuda_stream stream = launch->channel->stream;
    dd_nccl_result result;
    dd_nccl_capability called;
    if (op->kind == DD_NCCL_OP_WAIT_SIGNAL) {
        dd_nccl_signal_wait wait = {.opCnt = op->count, .peer = op->peer, .sigIdx = op->channel};
        result = api->ncclWaitSignal(1, &wait, launch->comm, stream);
        called = DD_NCCL_CAN_WAIT_SIGNAL;
    } else if (op->kind == DD_NCCL_OP_SIGNAL || op->block.nbytes == 0) {
        result = api->ncclSignal(op->peer, op->channel, 0, 0, launch->comm, stream);
        called = DD_NCCL_CAN_SIGNAL;
    } else {
        result = api->ncclPutSignal(op->block.data, op->block.nbytes, DD_NCCL_DTYPE_UINT8, op->peer,
                                    op->window->handle, op->offset, op->channel, 0, 0, launch->comm, stream);
        called = DD_NCCL_CAN_PUT_SIGNAL;
    }
    return nccl_launch_check(launch, result, dd_nccl_capability_name(called));
}
