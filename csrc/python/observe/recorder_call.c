/* Filling in flight recorder entries: names and shapes as torch's analyser compares them. */
#include "python/observe/recorder_internal.h"

#include <string.h>

static const dd_view *
view_of(const py_operands *operands, const py_side *side, size_t index)
{
    return &operands->pieces[side->first + index].tensor.view;
}

static bool
has_same_shape(const dd_view *a, const dd_view *b)
{
    return a->ndim == b->ndim && memcmp(a->shape, b->shape, (size_t)a->ndim * sizeof a->shape[0]) == 0;
}

/* Record the tensors of a side in order; consecutive tensors of equal shape share an entry. Return
 * the number of entries. If entries run out, set *more to the number of tensors left. */
static size_t
put_runs(const py_operands *operands, const py_side *side, dd_record_tensor *tensors, uint32_t *more)
{
    size_t count = 0;
    const dd_view *last = NULL;
    for (size_t i = 0; i < side->npieces; i++) { /* usually one iteration, for a single tensor */
        const dd_view *view = view_of(operands, side, i);
        if (last != NULL && has_same_shape(last, view)) {
            tensors[count - 1].count++;
            continue;
        }
        if (count == PY_RECORDER_MAX_TENSORS) {
            *more = (uint32_t)(side->npieces - i);
            break;
        }
        tensors[count++] =
            (dd_record_tensor){.dtype = view->dtype, .ndim = view->ndim, .shape = view->shape, .count = 1};
        last = view;
    }
    return count;
}

/* Record a side that has a tensor for each rank. If all have equal shapes, record one tensor with
 * the rank as first dimension. */
static size_t
put_stacked(const py_operands *operands, const py_side *side, dd_record_tensor *tensors, uint32_t *more)
{
    size_t count = put_runs(operands, side, tensors, more);
    if (count == 1) {
        tensors[0].is_stacked = true;
    }
    return count;
}

/* Record tensors of different shapes as one, because for all_to_all the analyser compares only the
 * sum of the elements over all ranks. */
static size_t
put_total(const py_operands *operands, const py_side *side, dd_record_tensor *tensors, int64_t *total)
{
    *total = 0;
    for (size_t i = 0; i < side->npieces; i++) {
        *total += (int64_t)view_of(operands, side, i)->count;
    }
    tensors[0] =
        (dd_record_tensor){.dtype = view_of(operands, side, 0)->dtype, .ndim = 1, .shape = total, .count = 1};
    return 1;
}

static bool
has_block_per_rank(dd_coll coll, bool is_output)
{
    return is_output ? dd_coll_traits_of[coll].is_collected : dd_coll_traits_of[coll].is_split;
}

static void
put_side(py_record *record, dd_coll coll, const py_operands *operands, bool is_output)
{
    const py_side *side = is_output ? &operands->outputs : &operands->inputs;
    dd_record_tensor *tensors = is_output ? record->outputs : record->inputs;
    uint32_t more = 0;
    size_t count;
    if (side->layout == PY_LAYOUT_EACH && side->npieces == side->nblocks &&
        has_block_per_rank(coll, is_output)) {
        count = put_stacked(operands, side, tensors, &more);
        if (count > 1 && coll == DD_COLL_ALL_TO_ALL) {
            more = 0;
            count = put_total(operands, side, tensors, &record->totals[is_output ? 1 : 0]);
        }
    } else {
        count = put_runs(operands, side, tensors, &more);
    }
    if (is_output) {
        record->call.outputs = tensors;
        record->call.noutputs = count;
        record->call.noutputs_more = more;
    } else {
        record->call.inputs = tensors;
        record->call.ninputs = count;
        record->call.ninputs_more = more;
    }
}

static void
copy_inputs_to_outputs(dd_record_call *call)
{
    call->outputs = call->inputs;
    call->noutputs = call->ninputs;
    call->noutputs_more = call->ninputs_more;
}

static void
copy_outputs_to_inputs(dd_record_call *call)
{
    call->inputs = call->outputs;
    call->ninputs = call->noutputs;
    call->ninputs_more = call->noutputs_more;
}

/* Record both sides of a collective. A broadcast or a reduce is recorded in the same way on all
 * ranks, with the tensor as both input and output. */
static void
put_sides(py_record *record, dd_coll coll, const py_operands *operands)
{
    const py_side *inputs = &operands->inputs;
    const py_side *outputs = &operands->outputs;
    if (coll == DD_COLL_BROADCAST) {
        put_side(record, coll, operands, true);
        copy_outputs_to_inputs(&record->call);
        return;
    }
    put_side(record, coll, operands, false);
    bool is_in_place = inputs->first == outputs->first && inputs->npieces == outputs->npieces;
    if (coll == DD_COLL_REDUCE || (dd_coll_is_array(coll) && is_in_place)) {
        copy_inputs_to_outputs(&record->call);
    } else {
        put_side(record, coll, operands, true);
    }
}

/* Return the name of the operation in the recorder. torch.distributed uses another name if the
 * parts may differ in size. */
static const char *
recorded_name(dd_coll coll, const py_operands *operands)
{
    return coll == DD_COLL_REDUCE_SCATTER && operands->inputs.sizes != NULL ? "reduce_scatter_v"
                                                                            : operands->recorded;
}

static bool
is_recording(const py_state *state)
{
    const py_recorder *self = py_recorder_current(state);
    return self != NULL && dd_recorder_capacity(self->recorder) > 0;
}

static void
record_call_start(dd_record_call *call, py_state *state, const char *name)
{
    *call = (dd_record_call){.name = name, .stack = py_recorder_stack(state)};
}

dd_record_call *
py_record_collective(py_record *record, py_state *state, dd_coll coll, const py_operands *operands)
{
    if (!is_recording(state)) {
        return NULL;
    }
    record_call_start(&record->call, state, recorded_name(coll, operands));
    put_sides(record, coll, operands);
    return &record->call;
}

uint32_t
py_record_stack(py_state *state)
{
    return is_recording(state) ? py_recorder_stack(state) : 0;
}

dd_record_call *
py_record_message(py_record *record, py_state *state, const py_operands *operands, bool is_send, int peer)
{
    if (!is_recording(state)) {
        return NULL;
    }
    record_call_start(&record->call, state, is_send ? "send" : "recv");
    record->call.is_p2p = true;
    record->call.peer = peer;
    put_side(record, DD_COLL_BROADCAST, operands, !is_send);
    return &record->call;
}
