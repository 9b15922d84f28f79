/* Looking through floats for NaN before they are sent, for debugging. */
#include "nccl/nccl_nan.h"

#include <stdio.h>

static bool
format_of(dd_dtype dtype, nccl_nan_format *format)
{
    switch (dtype) {
    case DD_DTYPE_FLOAT16:
        *format = (nccl_nan_format){2, 0x7c01, 1};
        return true;
    case DD_DTYPE_BFLOAT16:
        *format = (nccl_nan_format){2, 0x7f81, 1};
        return true;
    case DD_DTYPE_FLOAT8_E4M3FN:
        *format = (nccl_nan_format){1, 0x7f, 1};
        return true;
    case DD_DTYPE_FLOAT8_E5M2:
        *format = (nccl_nan_format){1, 0x7d, 1};
        return true;
    case DD_DTYPE_FLOAT32:
    case DD_DTYPE_COMPLEX64:
        *format = (nccl_nan_format){4, 0x7f800001, dtype == DD_DTYPE_FLOAT32 ? 1 : 2};
        return true;
    case DD_DTYPE_FLOAT64:
    case DD_DTYPE_COMPLEX128:
        *format = (nccl_nan_format){8, UINT64_C(0x7ff0000000000001), dtype == DD_DTYPE_FLOAT64 ? 1 : 2};
        return true;
    case DD_DTYPE_BOOL:
    case DD_DTYPE_INT8:
    case DD_DTYPE_UINT8:
    case DD_DTYPE_INT16:
    case DD_DTYPE_UINT16:
    case DD_DTYPE_INT32:
    case DD_DTYPE_UINT32:
    case DD_DTYPE_INT64:
    case DD_DTYPE_UINT64:
        break;
    }
    return false;
}

/* ---- the inputs of a call */

/* What an operation sends; NULL: no floats. */
static const dd_block *
inputs_of(const nccl_launch *launch, const dd_nccl_op *op, nccl_nan_place *place)
{
    const dd_nccl_group *group = launch->group;
    bool is_coll = op->kind == DD_NCCL_OP_COLL;
    place->ninputs = is_coll ? dd_coll_ninputs(op->args.coll, op->args.root == group->rank, group->size)
                             : op->kind == DD_NCCL_OP_SEND || op->kind == DD_NCCL_OP_PUT;
    if (place->ninputs == 0 || !format_of(is_coll ? op->args.reduction.dtype : op->dtype, &place->format)) {
        return NULL;
    }
    return is_coll ? op->args.inputs : &op->block;
}

bool
nccl_nan_next(const nccl_launch *launch, nccl_nan_place *place, const dd_block **block)
{
    const dd_nccl_call *call = launch->call;
    place->nops = call->nops;
    place->index++;
    for (; place->op < call->nops; place->op++, place->index = 0) {
        const dd_block *inputs = inputs_of(launch, &call->ops[place->op], place);
        for (; inputs != NULL && place->index < place->ninputs; place->index++) {
            if (inputs[place->index].nbytes > 0) {
                *block = &inputs[place->index];
                return true;
            }
        }
    }
    return false;
}

dd_status
nccl_nan_describe(const char *what, const nccl_nan_place *place, uint64_t at, dd_error *err)
{
    char which[32] = "the input";
    uint64_t nfloats = place->format.nfloats > 1 ? place->format.nfloats : 1;
    if (place->ninputs > 1) {
        snprintf(which, sizeof which, "input %d", place->index);
    }
    dd_status status = dd_error_set(err, DD_INVALID_ARGUMENT, "%s: %s has a NaN at element %llu", what, which,
                                    (unsigned long long)(at / nfloats));
    if (place->nops > 1) {
        dd_error_prepend(err, "operation %zu of %zu", place->op, place->nops);
    }
    return status;
}

/* ---- by the device */

dd_status
nccl_nan_wait(nccl_launch *launch, const dd_wait *wait)
{
    const dd_cuda *cuda = launch->group->cuda;
    for (;;) {
        dd_cuda_result result = cuda->api.cuStreamQuery(launch->channel->stream);
        if (result != DD_CUDA_NOT_READY) {
            return nccl_launch_check_cuda(launch, result, "cuStreamQuery");
        }
        if (dd_wait_is_over(wait)) {
            return dd_error_set(launch->err, DD_OP_TIMED_OUT,
                                "the inputs could not be looked through for NaN within %.3f s",
                                dd_wait_elapsed_s(wait));
        }
        if (atomic_load(&launch->group->stop)) {
            return dd_nccl_group_check(launch->group, launch->err);
        }
        dd_status status = dd_wait_sleep(wait, 50 * DD_NS_PER_US, launch->err);
        if (status != DD_OK) {
            return status;
        }
    }
}

dd_status
nccl_nan_enqueue(nccl_launch *launch, uint64_t first, dd_cuda_nan_report *report)
{
    nccl_nan_place place = NCCL_NAN_FIRST;
    const dd_block *block;
    dd_status status = DD_OK;
    for (uint64_t number = first; status == DD_OK && nccl_nan_next(launch, &place, &block); number++) {
        dd_cuda_nan_search search = {.data = block->data,
                                     .nfloats = block->nbytes / place.format.width,
                                     .width = place.format.width,
                                     .limit = place.format.limit,
                                     .key = nccl_nan_key(number),
                                     .report = report};
        dd_cuda_result result = dd_cuda_nan_enqueue(launch->group->cuda->nan, launch->channel->device->number,
                                                    &search, launch->channel->stream);
        status = nccl_launch_check_cuda(launch, result, "cuLaunchKernel");
    }
    return status;
}

/* The channel's report says that nothing has been found, once the stream has come so far: kernels of a call that gave up waiting may
 * still be before it. */
static dd_status
reset_report(nccl_launch *launch)
{
    const dd_cuda *cuda = launch->group->cuda;
    nccl_channel *channel = launch->channel;
    if (channel->nan_report == NULL) {
        return nccl_launch_check_cuda(launch, dd_cuda_nan_report_create(cuda->nan, &channel->nan_report),
                                      "cuMemHostAlloc");
    }
    dd_cuda_ptr report = (dd_cuda_ptr)(uintptr_t)channel->nan_report;
    return nccl_launch_check_cuda(
        launch, cuda->api.cuMemsetD8Async(report, 0xff, sizeof *channel->nan_report, channel->stream),
        "cuMemsetD8Async");
}

static dd_status
describe_found(const nccl_launch *launch, uint64_t reported)
{
    nccl_nan_place place = NCCL_NAN_FIRST;
    const dd_block *block;
    for (uint64_t number = 0; nccl_nan_next(launch, &place, &block); number++) {
        if (number == nccl_nan_number(reported)) {
            break;
        }
    }
    return nccl_nan_describe(launch->call->what, &place, nccl_nan_index(reported), launch->err);
}

/* Kernels, and a wait for them. */
static dd_status
check_on_device(nccl_launch *launch)
{
    dd_wait wait = dd_wait_at_most(launch->wait, launch->work->timeout_ns);
    dd_status status = reset_report(launch);
    if (status == DD_OK) {
        status = nccl_nan_enqueue(launch, 0, launch->channel->nan_report);
    }
    if (status == DD_OK) {
        status = nccl_nan_wait(launch, &wait);
    }
    if (status != DD_OK) {
        return status;
    }
    uint64_t reported = atomic_load_explicit(launch->channel->nan_report, memory_order_acquire);
    return reported == DD_CUDA_NAN_NONE ? DD_OK : describe_found(launch, reported);
}

static dd_status
check_inputs(nccl_launch *launch)
{
    nccl_nan_place place = NCCL_NAN_FIRST;
    const dd_block *block;
    if (!nccl_nan_next(launch, &place, &block)) {
        return DD_OK;
    }
    bool has_kernels = dd_cuda_nan_is_ready(launch->group->cuda->nan, launch->channel->device->number);
    if (!launch->is_capturing) {
        return has_kernels ? check_on_device(launch) : nccl_nan_check_on_host(launch);
    }
    if (has_kernels) {
        return nccl_nan_capture(launch);
    }
    nccl_nan_missed none = NCCL_NAN_MISSED_NONE;
    (void)atomic_compare_exchange_strong(&launch->group->nan_missed, &none, NCCL_NAN_MISSED_UNTOLD);
    return DD_OK;
}

dd_status
nccl_check_nan(nccl_launch *launch)
{
    /* Memory may be needed while somebody captures, and streams are asked that no capture is about. */
    dd_cuda_capture_mode mode = dd_cuda_relax_capture(launch->group->cuda);
    dd_status status = check_inputs(launch);
    dd_cuda_restore_capture(launch->group->cuda, mode);
    return status;
}
