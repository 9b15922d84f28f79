/* Checks of a call's arguments before anything is sent. */
#include "nccl/call/internal.h"

/* ---- blocks */

static dd_status
check_op_block(const dd_block *block, size_t element, const char *which, int k, dd_error *err)
{
    if (block->nbytes > 0 && block->data == NULL) {
        return dd_error_set(err, DD_INVALID_ARGUMENT, "%s %d: size %zu with a NULL address", which, k,
                            block->nbytes);
    }
    if (block->nbytes % element != 0) {
        return dd_error_set(err, DD_INVALID_ARGUMENT,
                            "%s %d: invalid size: got %zu bytes, expected a multiple of %zu", which, k,
                            block->nbytes, element);
    }
    return DD_OK;
}

static dd_status
check_op_blocks(const dd_block *blocks, int n, size_t element, const char *which, dd_error *err)
{
    if (n > 0 && blocks == NULL) {
        return dd_error_set(err, DD_INVALID_ARGUMENT, "got no %ss, expected %d", which, n);
    }
    for (int k = 0; k < n; k++) {
        dd_status status = check_op_block(&blocks[k], element, which, k, err);
        if (status != DD_OK) {
            return status;
        }
    }
    return DD_OK;
}

static dd_status
check_own_share(const dd_nccl_group *group, const dd_coll_args *args, dd_error *err)
{
    bool is_root = args->root == group->rank;
    int ninputs = dd_coll_ninputs(args->coll, is_root, group->size);
    int noutputs = dd_coll_noutputs(args->coll, is_root, group->size);
    if (ninputs == 0 || noutputs == 0) {
        return DD_OK;
    }
    const dd_block *input = &args->inputs[dd_coll_own_input(args->coll, group->rank)];
    const dd_block *output = &args->outputs[dd_coll_own_output(args->coll, group->rank)];
    if (input->nbytes != output->nbytes) {
        return dd_error_set(
            err, DD_INVALID_ARGUMENT,
            "this rank's output has a wrong size: got %zu bytes, expected %zu as in its input",
            output->nbytes, input->nbytes);
    }
    return DD_OK;
}

dd_status
nccl_check_kind(dd_coll coll, dd_error *err)
{
    if ((unsigned)coll >= DD_COLL_COUNT) {
        return dd_error_set(err, DD_INVALID_ARGUMENT, "unknown collective: got %d, expected 0 to %d",
                            (int)coll, DD_COLL_COUNT - 1);
    }
    return dd_coll_traits_of[coll].is_common
               ? DD_OK
               : dd_error_set(err, DD_NOT_SUPPORTED,
                              "NCCL has no %s: move the tensors to the CPU and use a CPU group",
                              dd_coll_name(coll));
}

static dd_status
check_coll(const dd_nccl_group *group, const dd_nccl_op *op, dd_error *err)
{
    const dd_coll_args *args = &op->args;
    dd_status status = nccl_check_kind(args->coll, err);
    if (status != DD_OK || args->coll == DD_COLL_BARRIER) {
        return status;
    }
    if (!dd_dtype_is_valid((unsigned)args->reduction.dtype)) {
        return dd_error_set(err, DD_INVALID_ARGUMENT, "unknown dtype: got %d, expected 0 to %d",
                            (int)args->reduction.dtype, DD_DTYPE_COUNT - 1);
    }
    if (dd_coll_has_root(args->coll) && (args->root < 0 || args->root >= group->size)) {
        return dd_error_set(err, DD_INVALID_ARGUMENT, "invalid root rank: got %d, expected 0 to %d",
                            args->root, group->size - 1);
    }
    if (dd_coll_is_folding(args->coll)) {
        nccl_wire wire;
        status = nccl_wire_of(group->lib, &args->reduction, op->factor, &wire, err);
        if (status != DD_OK) {
            return status;
        }
    }
    bool is_root = args->root == group->rank;
    size_t element = dd_dtype_size(args->reduction.dtype);
    status = check_op_blocks(args->inputs, dd_coll_ninputs(args->coll, is_root, group->size), element,
                             "input", err);
    if (status == DD_OK) {
        status = check_op_blocks(args->outputs, dd_coll_noutputs(args->coll, is_root, group->size), element,
                                 "output", err);
    }
    return status == DD_OK ? check_own_share(group, args, err) : status;
}

static dd_status
check_message(const dd_nccl_group *group, const dd_nccl_call *call, const dd_nccl_op *op, dd_error *err)
{
    if (op->peer < 0 || op->peer >= group->size) {
        return dd_error_set(err, DD_INVALID_ARGUMENT, "invalid rank: got %d, expected 0 to %d", op->peer,
                            group->size - 1);
    }
    if (op->peer == group->rank && call->nops == 1) {
        return dd_error_set(err, DD_INVALID_ARGUMENT,
                            "message of rank %d to itself: NCCL needs the send and the receive in one batch",
                            op->peer);
    }
    return check_op_block(&op->block, 1, "tensor", 0, err);
}

static dd_status
check_config(const dd_nccl_group *group, const dd_nccl_op *op, dd_error *err)
{
    if (op->config != NULL && nccl_is_made_of_messages(group, op)) {
        return dd_error_set(err, DD_NOT_SUPPORTED,
                            op->kind == DD_NCCL_OP_COLL
                                ? "this collective uses messages, for which NCCL has no configuration"
                                : "NCCL has no configuration for messages");
    }
    return DD_OK;
}

static dd_status
check_copies(const dd_nccl_copy *copies, size_t ncopies, dd_error *err)
{
    for (size_t i = 0; i < ncopies; i++) {
        const dd_view *src = &copies[i].src;
        const dd_view *dst = &copies[i].dst;
        bool is_same = src->dtype == dst->dtype && src->ndim == dst->ndim && src->count == dst->count;
        for (int d = 0; is_same && d < src->ndim; d++) {
            is_same = src->shape[d] == dst->shape[d];
        }
        if (!is_same) {
            return dd_error_set(
                err, DD_INVALID_ARGUMENT,
                "copy %zu: source and destination differ: got %zu elements of %s, expected %zu of %s with "
                "its shape",
                i, src->count, dd_dtype_name(src->dtype), dst->count, dd_dtype_name(dst->dtype));
        }
    }
    return DD_OK;
}

dd_status
nccl_check_call(const dd_nccl_group *group, const dd_nccl_call *call, dd_error *err)
{
    dd_status status = dd_cuda_check_device(group->cuda, call->device, err);
    for (size_t i = 0; i < call->nops && status == DD_OK; i++) {
        const dd_nccl_op *op = &call->ops[i];
        status = op->kind == DD_NCCL_OP_COLL ? check_coll(group, op, err)
                 : nccl_is_one_sided(op)     ? nccl_window_check(group, call, op, err)
                                             : check_message(group, call, op, err);
        status = status == DD_OK ? check_config(group, op, err) : status;
        if (status != DD_OK && call->nops > 1) {
            dd_error_prepend(err, "operation %zu of %zu", i, call->nops);
        }
    }
    if (status == DD_OK) {
        status = check_copies(call->before, call->nbefore, err);
    }
    if (status == DD_OK) {
        status = check_copies(call->after, call->nafter, err);
    }
    return status;
}
