#include "python/nccl/plan.h"

#include "core/mem.h"
#include "python/base/error.h"

#include <string.h>

/* Numbers of the operations, copies and allocations of all items together. */
typedef struct totals {
    size_t nops;
    size_t nbefore;
    size_t nafter;
    size_t nstaged; /* number of items that need scratch memory */
} totals;

/* ---- devices and streams */

static bool
take_device(py_nccl_plan *plan, const py_group *group, const py_device_scope *scope)
{
    if (scope->device == PY_NO_DEVICE) {
        return true;
    }
    if (plan->call.device != PY_NO_DEVICE && plan->call.device != scope->device) {
        PyErr_Format(group->state->errors[PY_ERROR_ARGUMENT],
                     "tensors of one operation are on different devices: got cuda:%d and cuda:%d",
                     plan->call.device, scope->device);
        return false;
    }
    plan->call.device = scope->device;
    return true;
}

static bool
has_stream(const py_nccl_plan *plan, dd_cuda_stream stream)
{
    for (size_t i = 0; i < plan->call.nstreams; i++) {
        if (plan->streams[i] == stream) {
            return true;
        }
    }
    return false;
}

/* Allocate the plan's array of streams, large enough for this number of items. */
static bool
plan_reserve_streams(py_nccl_plan *plan, size_t nitems)
{
    plan->streams =
        nitems <= 1 ? plan->first_streams : dd_mem_alloc_array(nitems, sizeof plan->first_streams);
    if (plan->streams == NULL) {
        PyErr_NoMemory();
    }
    return plan->streams != NULL;
}

static void
add_stream(py_nccl_plan *plan, void *handle)
{
    if (!has_stream(plan, handle)) {
        plan->streams[plan->call.nstreams++] = handle;
    }
}

static bool
take_scope(py_nccl_plan *plan, const py_group *group, const py_device_scope *scope)
{
    if (!take_device(plan, group, scope)) {
        return false;
    }
    for (size_t i = 0; i < scope->nstreams; i++) {
        add_stream(plan, scope->streams[i].handle);
    }
    plan->is_blocking = plan->is_blocking || scope->is_blocking || scope->has_host;
    plan->is_stream_ordered = plan->is_stream_ordered && scope->is_stream_ordered;
    void *own;
    if (scope->is_blocking) {
        /* Libraries whose own stream is unknown have ordered their work before the stream `own`. */
        if (!scope->find_stream(scope->ctx, scope->device, &own)) {
            return false;
        }
        add_stream(plan, own);
    }
    return true;
}

/* ---- counting copies and scratch memory */

static void
count_pieces(const py_operands *operands, totals *sum)
{
    bool is_any = false;
    for (size_t i = 0; i < operands->npieces; i++) {
        const py_piece *piece = &operands->pieces[i];
        sum->nbefore += piece->is_staged && piece->is_input ? 1 : 0;
        sum->nafter += piece->is_staged && piece->is_output ? 1 : 0;
        is_any = is_any || piece->is_staged;
    }
    sum->nstaged += is_any ? 1 : 0;
}

static bool
count_items(const py_group *group, const py_nccl_item *items, size_t nitems, totals *sum)
{
    for (size_t i = 0; i < nitems; i++) {
        py_operands *operands = &items[i].flight->operands;
        bool is_coll = items[i].op.kind == DD_NCCL_OP_COLL;
        if (is_coll && !py_operands_reserve_parts(operands, items[i].op.args.coll, group->rank)) {
            return false;
        }
        sum->nops += is_coll ? py_operands_nparts(operands) : 1;
        count_pieces(operands, sum);
    }
    return true;
}

static bool
plan_allocate(py_nccl_plan *plan, const totals *sum)
{
    size_t ncopies = sum->nbefore + sum->nafter;
    plan->ops = sum->nops <= 1 ? &plan->first_op : dd_mem_alloc_array(sum->nops, sizeof *plan->ops);
    plan->copies = ncopies > 0 ? dd_mem_alloc_array(ncopies, sizeof *plan->copies) : NULL;
    plan->scratch = sum->nstaged > 0 ? dd_mem_alloc_array(sum->nstaged, sizeof *plan->scratch) : NULL;
    if (plan->ops == NULL || (ncopies > 0 && plan->copies == NULL) ||
        (sum->nstaged > 0 && plan->scratch == NULL)) {
        PyErr_NoMemory();
        return false;
    }
    return true;
}

/* ---- staging */

static bool
allocate_scratch(py_nccl_plan *plan, py_group *group, py_operands *operands)
{
    size_t nbytes = py_operands_assign_addresses(operands, NULL);
    if (nbytes == 0) {
        return true;
    }
    dd_nccl_group *core = group->nccl->group;
    void *data = NULL;
    if (!PY_GROUP_TRY(group->state, dd_nccl_group_alloc_scratch, core, plan->call.device, nbytes, &data)) {
        return false;
    }
    plan->scratch[plan->call.nscratch++] = data;
    py_operands_assign_addresses(operands, data);
    return true;
}

static bool
stage(py_nccl_plan *plan, py_group *group, const py_nccl_item *items, size_t nitems)
{
    dd_error err;
    dd_status status = PY_WITHOUT_GIL(
        dd_nccl_group_order(group->nccl->group, plan->call.device, plan->streams, plan->call.nstreams, &err));
    bool is_ok = py_error_check_of_group(group->state, status, &err);
    for (size_t i = 0; is_ok && i < nitems; i++) {
        is_ok = allocate_scratch(plan, group, &items[i].flight->operands);
    }
    return is_ok;
}

static dd_view
flat_view(const py_piece *piece)
{
    dd_view view = piece->tensor.view;
    view.data = piece->flat;
    view.is_readonly = false;
    view.is_contiguous = true;
    /* the strides cannot overflow, because the tensor's own strides do not */
    py_tensor_set_row_major(&view);
    return view;
}

static void
add_copies(py_nccl_plan *plan, const py_operands *operands, dd_nccl_copy *after)
{
    for (size_t i = 0; i < operands->npieces; i++) {
        const py_piece *piece = &operands->pieces[i];
        if (piece->is_staged && piece->is_input) {
            plan->copies[plan->call.nbefore++] =
                (dd_nccl_copy){.src = piece->tensor.view, .dst = flat_view(piece)};
        }
        if (piece->is_staged && piece->is_output) {
            after[plan->call.nafter++] = (dd_nccl_copy){.src = flat_view(piece), .dst = piece->tensor.view};
        }
    }
}

/* ---- operations */

static void
add_ops(py_nccl_plan *plan, const py_nccl_item *item)
{
    py_operands *operands = &item->flight->operands;
    if (item->op.kind != DD_NCCL_OP_COLL) {
        dd_nccl_op *op = &plan->ops[plan->call.nops++];
        *op = item->op;
        op->dtype = py_operands_dtype(operands);
        op->block = (dd_block){.data = operands->pieces[0].flat, .nbytes = operands->pieces[0].nbytes};
        return;
    }
    size_t nparts = py_operands_nparts(operands);
    for (size_t part = 0; part < nparts; part++) {
        dd_nccl_op *op = &plan->ops[plan->call.nops++];
        *op = item->op;
        op->dtype = py_operands_dtype(operands);
        py_operands_fill_part(operands, part, &op->args);
    }
}

static void
plan_fill(py_nccl_plan *plan, const py_nccl_item *items, size_t nitems, const totals *sum)
{
    dd_nccl_copy *after = plan->copies != NULL ? plan->copies + sum->nbefore : NULL;
    for (size_t i = 0; i < nitems; i++) {
        if (after != NULL) {
            add_copies(plan, &items[i].flight->operands, after);
        }
        add_ops(plan, &items[i]);
    }
    plan->call.ops = plan->ops;
    plan->call.before = plan->copies;
    plan->call.after = after;
    plan->call.scratch = plan->scratch;
    plan->call.streams = plan->streams;
}

static void
plan_free_scratch(py_nccl_plan *plan, py_group *group)
{
    PyObject *exception = py_error_take();
    Py_BEGIN_ALLOW_THREADS
    for (size_t i = 0; i < plan->call.nscratch; i++) {
        dd_nccl_group_free_scratch(group->nccl->group, plan->call.device, plan->scratch[i]);
    }
    Py_END_ALLOW_THREADS
    py_nccl_plan_fini(plan);
    py_error_put(exception);
}

bool
py_nccl_plan_make(py_nccl_plan *plan, py_group *group, const py_nccl_item *items, size_t nitems)
{
    totals sum = {0};
    memset(plan, 0, offsetof(py_nccl_plan, first_op));
    plan->call.device = PY_NO_DEVICE;
    plan->is_blocking = group->nccl->is_blocking_wait;
    plan->is_stream_ordered = true;
    bool is_ok = plan_reserve_streams(plan, nitems);
    for (size_t i = 0; is_ok && i < nitems; i++) {
        is_ok = take_scope(plan, group, &items[i].flight->operands.device);
    }
    if (is_ok && plan->call.device == PY_NO_DEVICE) {
        is_ok = py_nccl_group_choose_device(group, &plan->call.device);
    }
    is_ok = is_ok && count_items(group, items, nitems, &sum) && plan_allocate(plan, &sum);
    is_ok = is_ok && (sum.nstaged == 0 || stage(plan, group, items, nitems));
    if (!is_ok) {
        plan_free_scratch(plan, group);
        return false;
    }
    py_nccl_core_note_device(group->nccl, plan->call.device);
    plan_fill(plan, items, nitems, &sum);
    return true;
}

void
py_nccl_plan_fini(py_nccl_plan *plan)
{
    if (plan->ops != &plan->first_op) {
        dd_mem_free(plan->ops);
    }
    if (plan->streams != plan->first_streams) {
        dd_mem_free(plan->streams);
    }
    dd_mem_free(plan->copies);
    dd_mem_free(plan->scratch);
}
