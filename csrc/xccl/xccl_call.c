/* Collectives as oneCCL calls. All functions except xccl_has run on the communicator's thread. */
#include "nccl/driver/lib.h"
#include "xccl/xccl_internal.h"

#include <string.h>

/* ---- reductions */

typedef struct xccl_fold {
    dd_nccl_dtype dtype;
    dd_nccl_redop op;
    size_t nparts; /* number of oneCCL elements in an element of the array: 2 if complex */
} xccl_fold;

typedef struct redop_info {
    bool is_known;
    bool is_by_parts; /* true if complex numbers may be reduced part by part */
    dd_nccl_redop nccl_op;
} redop_info;

static const redop_info REDOPS[DD_REDOP_COUNT] = {
    [DD_REDOP_SUM] = {true, true, DD_NCCL_SUM},
    [DD_REDOP_PRODUCT] = {true, false, DD_NCCL_PROD},
    [DD_REDOP_MIN] = {true, false, DD_NCCL_MIN},
    [DD_REDOP_MAX] = {true, false, DD_NCCL_MAX},
};

/* Find oneCCL's type and operation for a reduction; return false if oneCCL cannot carry it out.
 * oneCCL has only the data types that all versions of NCCL have. */
static bool
find_fold(dd_dtype dtype, dd_redop op, xccl_fold *fold)
{
    const redop_info *info = &REDOPS[op];
    bool is_complex = dd_dtype_kind_of(dtype) == DD_KIND_COMPLEX;
    dd_dtype part = dtype;
    int since;
    if (is_complex) {
        part = dtype == DD_DTYPE_COMPLEX64 ? DD_DTYPE_FLOAT32 : DD_DTYPE_FLOAT64;
    }
    if (!info->is_known || (is_complex && !info->is_by_parts) ||
        !dd_nccl_dtype_find(part, &fold->dtype, &since)) {
        return false;
    }
    fold->op = info->nccl_op;
    fold->nparts = is_complex ? 2 : 1;
    return since == 0;
}

bool
xccl_has(const dd_carrier *carrier, const dd_carried_call *call)
{
    (void)carrier;
    xccl_fold fold;
    return !dd_coll_is_folding(call->coll) ||
           (find_fold(call->dtype, call->op, &fold) && !dd_carried_needs_nan(call));
}

/* ---- steps: one oneCCL call each. A step that all ranks know to be empty is skipped */

typedef struct xccl_step {
    xccl_carrier *self;
    const dd_carried_call *call;
    size_t size; /* size of an element in bytes */
    dd_error *err;
} xccl_step;

/* Return true if the call was abandoned. Its caller may reuse the memory, so no step may start. */
static bool
is_cancelled(const xccl_step *step)
{
    return atomic_load_explicit(&step->self->job, memory_order_relaxed) == XCCL_ABANDON;
}

static const void *
input_at(const xccl_step *step, int rank)
{
    return (const char *)step->call->input + step->call->in_offsets[rank] * step->size;
}

static void *
output_at(const xccl_step *step, int rank)
{
    return (char *)step->call->output + step->call->out_offsets[rank] * step->size;
}

static dd_status
step_broadcast_block(const xccl_step *step, void *output, size_t count, int root)
{
    xccl_carrier *self = step->self;
    /* oneCCL requires an input on all ranks, but reads only the root's input */
    const void *input = self->rank == root ? step->call->input : output;
    if (count == 0) {
        return DD_OK;
    }
    return xccl_check(self,
                      self->library->api.onecclBroadcast(input, output, count * step->size,
                                                         DD_NCCL_DTYPE_UINT8, root, self->comm, NULL),
                      "onecclBroadcast", step->err);
}

static dd_status
step_reduce_block(const xccl_step *step, const void *input, size_t count, int root)
{
    xccl_carrier *self = step->self;
    xccl_fold fold;
    if (count == 0 || !find_fold(step->call->dtype, step->call->op, &fold)) {
        return DD_OK;
    }
    void *output = self->rank == root ? step->call->output : NULL;
    return xccl_check(self,
                      self->library->api.onecclReduce(input, output, count * fold.nparts, fold.dtype, fold.op,
                                                      root, self->comm, NULL),
                      "onecclReduce", step->err);
}

static dd_status
step_send_block(const xccl_step *step, const void *input, size_t count, int to)
{
    xccl_carrier *self = step->self;
    if (count == 0) {
        return DD_OK;
    }
    return xccl_check(
        self,
        self->library->api.onecclSend(input, count * step->size, DD_NCCL_DTYPE_UINT8, to, self->comm, NULL),
        "onecclSend", step->err);
}

static dd_status
receive_block(const xccl_step *step, void *output, size_t count, int from)
{
    xccl_carrier *self = step->self;
    if (count == 0) {
        return DD_OK;
    }
    return xccl_check(self,
                      self->library->api.onecclRecv(output, count * step->size, DD_NCCL_DTYPE_UINT8, from,
                                                    self->comm, NULL),
                      "onecclRecv", step->err);
}

static dd_status
step_copy_own(const xccl_step *step, void *output, const void *input, size_t count)
{
    if (count > 0 && output != input) {
        memcpy(output, input, count * step->size);
    }
    return DD_OK;
}

/* ---- collectives */

static dd_status
step_barrier(const xccl_step *step)
{
    xccl_carrier *self = step->self;
    uint8_t one = 1;
    return xccl_check(
        self,
        self->library->api.onecclAllReduce(&one, &one, 1, DD_NCCL_DTYPE_UINT8, DD_NCCL_MAX, self->comm, NULL),
        "onecclAllReduce", step->err);
}

static dd_status
step_broadcast(const xccl_step *step)
{
    return step_broadcast_block(step, step->call->output, step->call->count, step->call->root);
}

static dd_status
step_reduce(const xccl_step *step)
{
    return step_reduce_block(step, step->call->input, step->call->count, step->call->root);
}

static dd_status
step_all_reduce(const xccl_step *step)
{
    xccl_carrier *self = step->self;
    const dd_carried_call *call = step->call;
    xccl_fold fold;
    if (call->count == 0 || !find_fold(call->dtype, call->op, &fold)) {
        return DD_OK;
    }
    return xccl_check(self,
                      self->library->api.onecclAllReduce(call->input, call->output, call->count * fold.nparts,
                                                         fold.dtype, fold.op, self->comm, NULL),
                      "onecclAllReduce", step->err);
}

/* Gather blocks on all ranks. onecclAllGather takes only equal blocks; broadcast other blocks. */
static dd_status
step_all_gather(const xccl_step *step)
{
    xccl_carrier *self = step->self;
    const dd_carried_call *call = step->call;
    dd_status status = DD_OK;
    if (call->is_even && call->count > 0) {
        xccl_result result = self->library->api.onecclAllGather(
            call->input, call->output, call->count * step->size, DD_NCCL_DTYPE_UINT8, self->comm, NULL);
        return xccl_check(self, result, "onecclAllGather", step->err);
    }
    for (int k = 0; k < self->nranks && status == DD_OK && !is_cancelled(step); k++) {
        status = step_broadcast_block(step, output_at(step, k), call->out_counts[k], k);
    }
    return status;
}

static dd_status
step_reduce_scatter(const xccl_step *step)
{
    xccl_carrier *self = step->self;
    const dd_carried_call *call = step->call;
    xccl_fold fold;
    dd_status status = DD_OK;
    if (call->is_even && call->count > 0 && find_fold(call->dtype, call->op, &fold)) {
        xccl_result result = self->library->api.onecclReduceScatter(
            call->input, call->output, call->count * fold.nparts, fold.dtype, fold.op, self->comm, NULL);
        return xccl_check(self, result, "onecclReduceScatter", step->err);
    }
    for (int k = 0; k < self->nranks && status == DD_OK && !is_cancelled(step); k++) {
        status = step_reduce_block(step, input_at(step, k), call->in_counts[k], k);
    }
    return status;
}

/* Gather by messages. Sends wait for receives; receiving in rank order avoids a deadlock. */
static dd_status
step_gather(const xccl_step *step)
{
    xccl_carrier *self = step->self;
    const dd_carried_call *call = step->call;
    dd_status status = DD_OK;
    if (self->rank != call->root) {
        return step_send_block(step, call->input, call->count, call->root);
    }
    for (int k = 0; k < self->nranks && status == DD_OK && !is_cancelled(step); k++) {
        void *output = output_at(step, k);
        status = k == self->rank ? step_copy_own(step, output, call->input, call->count)
                                 : receive_block(step, output, call->out_counts[k], k);
    }
    return status;
}

static dd_status
step_scatter(const xccl_step *step)
{
    xccl_carrier *self = step->self;
    const dd_carried_call *call = step->call;
    dd_status status = DD_OK;
    if (self->rank != call->root) {
        return receive_block(step, call->output, call->count, call->root);
    }
    for (int k = 0; k < self->nranks && status == DD_OK && !is_cancelled(step); k++) {
        const void *input = input_at(step, k);
        status = k == self->rank ? step_copy_own(step, call->output, input, call->count)
                                 : step_send_block(step, input, call->in_counts[k], k);
    }
    return status;
}

static dd_status
step_all_to_all(const xccl_step *step)
{
    xccl_carrier *self = step->self;
    const dd_carried_call *call = step->call;
    size_t *send_counts = self->counts;
    size_t *recv_counts = self->counts + self->nranks;
    for (int k = 0; k < self->nranks; k++) {
        send_counts[k] = call->in_counts[k] * step->size;
        recv_counts[k] = call->out_counts[k] * step->size;
    }
    xccl_result result = self->library->api.onecclAllToAllV(
        call->input, send_counts, call->output, recv_counts, DD_NCCL_DTYPE_UINT8, self->comm, NULL);
    return xccl_check(self, result, "onecclAllToAllV", step->err);
}

dd_status
xccl_call(xccl_carrier *self, const dd_carried_call *call, dd_error *err)
{
#define CALL(name, text, inputs, outputs, fold, home) CALL_##home(name, text)
#define CALL_COMMON(name, text) [DD_COLL_##name] = step_##text,
#define CALL_OWN(name, text)
    static dd_status (*const CALLS[])(const xccl_step *step) = {DD_COLL_LIST(CALL)};
#undef CALL
#undef CALL_COMMON
#undef CALL_OWN
    xccl_step step = {.self = self, .call = call, .size = dd_dtype_size(call->dtype), .err = err};
    return CALLS[call->coll](&step);
}
