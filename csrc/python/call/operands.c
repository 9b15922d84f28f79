#include "python/call/operands.h"

#include "core/mem.h"
#include "python/base/convert.h"
#include "python/base/object.h"
#include "python/tensor/dtype.h"

#include <stdio.h>
#include <string.h>

#define STAGING_ALIGNMENT 64

void
py_operands_init(py_operands *operands, py_state *state, const char *function)
{
    operands->state = state;
    operands->function = function;
    operands->pieces = operands->inline_pieces;
    operands->npieces = 0;
    operands->capacity = PY_INLINE_PIECES;
    operands->inputs = (py_side){.layout = PY_LAYOUT_NONE};
    operands->outputs = (py_side){.layout = PY_LAYOUT_NONE};
    operands->blocks = operands->inline_blocks;
    operands->staging = NULL;
    operands->staging_nbytes = 0;
    operands->interleaved = NULL;
    operands->is_staged = false;
    operands->is_pinned = false;
    operands->device.state = NULL;
}

void
py_operands_fini(py_operands *operands)
{
    for (size_t i = 0; i < operands->npieces; i++) {
        py_tensor_fini(&operands->pieces[i].tensor);
    }
    operands->npieces = 0;
    if (operands->pieces != operands->inline_pieces) {
        dd_mem_free(operands->pieces);
        operands->pieces = operands->inline_pieces;
    }
    if (operands->blocks != operands->inline_blocks) {
        dd_mem_free(operands->blocks);
        operands->blocks = operands->inline_blocks;
    }
    if (operands->inputs.sizes != NULL || operands->outputs.sizes != NULL || operands->staging != NULL) {
        dd_mem_free(operands->inputs.sizes);
        dd_mem_free(operands->outputs.sizes);
        dd_mem_free(operands->staging);
        operands->inputs.sizes = NULL;
        operands->outputs.sizes = NULL;
        operands->staging = NULL;
    }
    operands->is_staged = false;
}

int
py_operands_traverse(const py_operands *operands, visitproc visit, void *arg)
{
    int rc = 0;
    for (size_t i = 0; i < operands->npieces && rc == 0; i++) {
        rc = py_tensor_traverse(&operands->pieces[i].tensor, visit, arg);
    }
    return rc;
}

dd_dtype
py_operands_dtype(const py_operands *operands)
{
    return operands->npieces > 0 ? operands->pieces[0].tensor.view.dtype : DD_DTYPE_UINT8;
}

uint64_t
py_operands_foreign_dtype(const py_operands *operands)
{
    return operands->npieces > 0 ? operands->pieces[0].tensor.foreign_dtype : 0;
}

bool
py_operands_read_offset(const py_operands *operands, PyObject *value, size_t *nbytes)
{
    int64_t offset = 0;
    if (value != NULL && !py_to_int64(value, &offset, operands->function, "offset")) {
        return false;
    }
    if (offset < 0 ||
        __builtin_mul_overflow((size_t)offset, dd_dtype_size(py_operands_dtype(operands)), nbytes)) {
        py_raise_argument(operands->state, operands->function, "offset",
                          "is out of range: got %lld, expected 0 or more", (long long)offset);
        return false;
    }
    return true;
}

static bool
reserve_pieces(py_operands *operands, size_t more)
{
    size_t wanted = operands->npieces + more;
    if (wanted <= operands->capacity) {
        return true;
    }
    py_piece *pieces = dd_mem_alloc_array(wanted, sizeof *pieces);
    if (pieces == NULL) {
        PyErr_NoMemory();
        return false;
    }
    memcpy(pieces, operands->pieces, operands->npieces * sizeof *pieces);
    if (operands->pieces != operands->inline_pieces) {
        dd_mem_free(operands->pieces);
    }
    operands->pieces = pieces;
    operands->capacity = wanted;
    return true;
}

static bool
check_dtype(const py_operands *operands, const py_tensor *tensor, const char *name)
{
    const py_tensor *first = &operands->pieces[0].tensor;
    if (operands->npieces == 0 ||
        (first->view.dtype == tensor->view.dtype && first->foreign_dtype == tensor->foreign_dtype)) {
        return true;
    }
    py_raise_for_argument(operands->state->errors[PY_ERROR_TYPE], operands->function, name,
                          "has another dtype: got %s, expected %s; all tensors of a call have the same dtype",
                          py_tensor_dtype_name(tensor, (char[PY_DTYPE_TEXT]){""}),
                          py_tensor_dtype_name(first, (char[PY_DTYPE_TEXT]){""}));
    return false;
}

static bool
is_on_device(const py_operands *operands)
{
    return operands->device.state != NULL;
}

static bool
check_device(py_operands *operands, const py_piece *piece, PyObject *object, const char *name)
{
    if (!is_on_device(operands)) {
        return py_tensor_require_cpu(&piece->tensor, operands->state, operands->function, name);
    }
    py_argument argument = {
        .state = operands->state, .function = operands->function, .name = name, .value = object};
    return py_device_take(&operands->device, &piece->tensor, &argument);
}

bool
py_operands_add(py_operands *operands, PyObject *object, py_use use, const char *name)
{
    if (!reserve_pieces(operands, 1)) {
        return false;
    }
    py_piece *piece = &operands->pieces[operands->npieces];
    py_tensor_start(&piece->tensor);
    bool is_output = (use & PY_USE_OUT) != 0;
    piece->tensor.scope = is_on_device(operands) ? &operands->device : NULL;
    piece->tensor.takes_foreign = !is_on_device(operands);
    if (!py_tensor_init(&piece->tensor, operands->state, object, is_output ? PY_TENSOR_OUT : PY_TENSOR_IN,
                        operands->function, name)) {
        return false;
    }
    if (!check_device(operands, piece, object, name) || !check_dtype(operands, &piece->tensor, name) ||
        (operands->is_pinned && !py_tensor_pin(&piece->tensor, operands->state))) {
        py_tensor_fini(&piece->tensor);
        return false;
    }
    piece->flat = piece->tensor.view.data;
    piece->nbytes = dd_view_nbytes(&piece->tensor.view);
    piece->is_input = (use & PY_USE_IN) != 0;
    piece->is_output = is_output;
    piece->is_result = use != PY_USE_IN;
    piece->is_staged = !piece->tensor.view.is_contiguous ||
                       (is_on_device(operands) && py_device_is_cpu(piece->tensor.device_type));
    operands->npieces++;
    return true;
}

static bool
check_count(const py_operands *operands, Py_ssize_t given, const char *name, Py_ssize_t count)
{
    if (count >= 0 && given != count) {
        py_raise_argument(operands->state, operands->function, name,
                          "has a wrong length: got %zd tensors, expected %zd", given, count);
        return false;
    }
    if (given == 0) {
        py_raise_argument(operands->state, operands->function, name,
                          "is empty: got 0 tensors, expected 1 or more");
        return false;
    }
    return true;
}

bool
py_operands_add_list(py_operands *operands, PyObject *object, py_use use, const char *name, Py_ssize_t count)
{
    if (!PyList_Check(object) && !PyTuple_Check(object)) {
        py_raise_wrong_type(operands->function, name, "a list or tuple of tensors", object);
        return false;
    }
    /* Copy the list to a tuple: reading a tensor may run Python code, which may change a list, and
     * a subclass of list may report a wrong length. */
    PyObject *objects = PySequence_Tuple(object);
    if (objects == NULL) {
        return false;
    }
    Py_ssize_t given = PyTuple_Size(objects);
    bool is_done = check_count(operands, given, name, count) && reserve_pieces(operands, (size_t)given);
    for (Py_ssize_t i = 0; is_done && i < given; i++) {
        char item_name[64];
        snprintf(item_name, sizeof item_name, "%.40s[%zd]", name, i);
        is_done = py_operands_add(operands, PyTuple_GetItem(objects, i), use, item_name);
    }
    Py_DECREF(objects);
    return is_done;
}

void
py_operands_set_side(py_side *side, py_layout layout, size_t first, size_t npieces, size_t nblocks)
{
    side->layout = layout;
    side->first = first;
    side->npieces = npieces;
    side->nblocks = nblocks;
}

/* ---- staging */

static bool
is_same_side(const py_side *a, const py_side *b)
{
    return a->layout != PY_LAYOUT_NONE && b->layout != PY_LAYOUT_NONE && a->first == b->first;
}

/* Return true if each block consists of several tensors, which must be made adjacent in memory. */
static bool
is_joined(const py_side *side)
{
    return side->layout == PY_LAYOUT_EACH && side->npieces > side->nblocks;
}

static void
stage_joined(py_operands *operands, const py_side *side)
{
    for (size_t i = 0; is_joined(side) && i < side->npieces; i++) {
        operands->pieces[side->first + i].is_staged = true;
    }
}

static size_t
align(size_t offset)
{
    return (offset + STAGING_ALIGNMENT - 1) / STAGING_ALIGNMENT * STAGING_ALIGNMENT;
}

static size_t
side_nbytes(const py_operands *operands, const py_side *side)
{
    size_t nbytes = 0;
    for (size_t i = 0; i < side->npieces; i++) {
        nbytes += operands->pieces[side->first + i].nbytes;
    }
    return nbytes;
}

/* Assign addresses to the side's staged pieces, from base + offset on. If `base` is NULL, assign no
 * addresses. Return the offset of the end of the last piece. */
static size_t
assign_side(py_operands *operands, const py_side *side, uint8_t *base, size_t offset)
{
    size_t per_block = is_joined(side) ? side->npieces / side->nblocks : 1;
    for (size_t i = 0; i < side->npieces; i++) {
        py_piece *piece = &operands->pieces[side->first + i];
        if (!piece->is_staged) {
            continue;
        }
        offset = i % per_block == 0 ? align(offset) : offset;
        if (base != NULL) {
            piece->flat = base + offset;
        }
        offset += piece->nbytes;
    }
    return offset;
}

static const py_side *
interleaved_side(const py_operands *operands)
{
    return operands->inputs.layout == PY_LAYOUT_INTERLEAVED    ? &operands->inputs
           : operands->outputs.layout == PY_LAYOUT_INTERLEAVED ? &operands->outputs
                                                               : NULL;
}

static size_t
assign_list(py_operands *operands, uint8_t *base)
{
    size_t offset = assign_side(operands, &operands->inputs, base, 0);
    if (!is_same_side(&operands->inputs, &operands->outputs)) {
        offset = assign_side(operands, &operands->outputs, base, offset);
    }
    const py_side *interleaved = interleaved_side(operands);
    if (interleaved != NULL) {
        offset = align(offset);
        operands->interleaved = base != NULL ? base + offset : NULL;
        offset += side_nbytes(operands, interleaved);
    }
    return offset;
}

static bool
allocate_staging(py_operands *operands)
{
    dd_mem_free(operands->staging);
    operands->staging = NULL;
    operands->staging_nbytes = 0;
    operands->is_staged = interleaved_side(operands) != NULL;
    for (size_t i = 0; i < operands->npieces; i++) {
        operands->is_staged = operands->is_staged || operands->pieces[i].is_staged;
    }
    if (!operands->is_staged) {
        return true;
    }
    operands->staging_nbytes = assign_list(operands, NULL);
    operands->staging = dd_mem_alloc(operands->staging_nbytes);
    if (operands->staging == NULL) {
        PyErr_NoMemory();
        return false;
    }
    assign_list(operands, operands->staging);
    return true;
}

/* ---- blocks */

static void
fill_split(const py_side *side, const py_piece *piece, dd_block *blocks)
{
    size_t offset = 0;
    for (size_t k = 0; k < side->nblocks; k++) {
        size_t nbytes = side->sizes != NULL ? side->sizes[k] : piece->nbytes / side->nblocks;
        blocks[k] = (dd_block){.data = piece->flat != NULL ? piece->flat + offset : NULL, .nbytes = nbytes};
        offset += nbytes;
    }
}

static void
fill_each(const py_side *side, const py_piece *pieces, dd_block *blocks)
{
    size_t per_block = side->npieces / side->nblocks;
    for (size_t k = 0; k < side->nblocks; k++) {
        const py_piece *piece = &pieces[k * per_block];
        blocks[k] = (dd_block){.data = piece->flat, .nbytes = 0};
        for (size_t i = 0; i < per_block; i++) {
            blocks[k].nbytes += piece[i].nbytes;
        }
    }
}

static void
fill_blocks(const py_operands *operands, const py_side *side, dd_block *blocks)
{
    const py_piece *pieces = operands->pieces + side->first;
    switch (side->layout) {
    case PY_LAYOUT_NONE:
        break;
    case PY_LAYOUT_EACH:
        fill_each(side, pieces, blocks);
        break;
    case PY_LAYOUT_SPLIT:
        fill_split(side, pieces, blocks);
        break;
    case PY_LAYOUT_INTERLEAVED:
        for (size_t k = 0; k < side->nblocks; k++) {
            size_t nbytes = side_nbytes(operands, side) / side->nblocks;
            blocks[k] = (dd_block){.data = operands->interleaved + k * nbytes, .nbytes = nbytes};
        }
        break;
    }
}

static bool
overlaps(const dd_block *a, const dd_block *b)
{
    uintptr_t a_start = (uintptr_t)a->data;
    uintptr_t b_start = (uintptr_t)b->data;
    return a->nbytes > 0 && b->nbytes > 0 && a_start < b_start + b->nbytes && b_start < a_start + a->nbytes;
}

static dd_block
bounds_of(const dd_block *blocks, size_t count)
{
    uintptr_t low = UINTPTR_MAX;
    uintptr_t high = 0;
    for (size_t i = 0; i < count; i++) {
        uintptr_t start = (uintptr_t)blocks[i].data;
        if (blocks[i].nbytes > 0) {
            low = start < low ? start : low;
            high = start + blocks[i].nbytes > high ? start + blocks[i].nbytes : high;
        }
    }
    return (dd_block){.data = (void *)low, .nbytes = high > low ? high - low : 0};
}

/* Return true if the input block may be exactly the memory of the output block (see coll.h). */
static bool
may_coincide(dd_coll coll, size_t input, size_t output, int rank)
{
    bool has_many_inputs = dd_coll_traits_of[coll].is_split;
    bool has_many_outputs = dd_coll_traits_of[coll].is_collected;
    return has_many_inputs != has_many_outputs && (has_many_inputs ? input : output) == (size_t)rank;
}

static bool
has_conflict(const py_operands *operands, const dd_block *inputs, dd_coll coll, int rank)
{
    size_t ninputs = operands->inputs.nblocks;
    size_t noutputs = operands->outputs.nblocks;
    const dd_block *outputs = inputs + ninputs;
    dd_block input_bounds = bounds_of(inputs, ninputs);
    dd_block output_bounds = bounds_of(outputs, noutputs);
    if (is_same_side(&operands->inputs, &operands->outputs) || !overlaps(&input_bounds, &output_bounds)) {
        return false;
    }
    for (size_t i = 0; i < ninputs; i++) {
        for (size_t k = 0; k < noutputs; k++) {
            bool is_same = inputs[i].data == outputs[k].data && inputs[i].nbytes == outputs[k].nbytes;
            if (overlaps(&inputs[i], &outputs[k]) && !(is_same && may_coincide(coll, i, k, rank))) {
                return true;
            }
        }
    }
    return false;
}

static size_t
blocks_of_part(const py_operands *operands)
{
    return operands->inputs.nblocks + operands->outputs.nblocks;
}

bool
py_operands_reserve_blocks(py_operands *operands, size_t count)
{
    if (count > PY_INLINE_BLOCKS) {
        operands->blocks = dd_mem_alloc_array(count, sizeof *operands->blocks);
        if (operands->blocks == NULL) {
            operands->blocks = operands->inline_blocks;
            PyErr_NoMemory();
            return false;
        }
    }
    return true;
}

static void
stage_inputs(py_operands *operands)
{
    for (size_t i = 0; i < operands->inputs.npieces; i++) {
        operands->pieces[operands->inputs.first + i].is_staged = true;
    }
}

bool
py_operands_prepare(py_operands *operands, dd_coll_args *args, int rank)
{
    stage_joined(operands, &operands->inputs);
    stage_joined(operands, &operands->outputs);
    if (!py_operands_check_outputs(operands) ||
        !py_operands_reserve_blocks(operands, blocks_of_part(operands)) || !allocate_staging(operands)) {
        return false;
    }
    dd_block *outputs = operands->blocks + operands->inputs.nblocks;
    fill_blocks(operands, &operands->inputs, operands->blocks);
    fill_blocks(operands, &operands->outputs, outputs);
    if (has_conflict(operands, operands->blocks, args->coll, rank)) {
        stage_inputs(operands);
        if (!allocate_staging(operands)) {
            return false;
        }
        fill_blocks(operands, &operands->inputs, operands->blocks);
        fill_blocks(operands, &operands->outputs, outputs);
    }
    args->inputs = operands->blocks;
    args->outputs = outputs;
    return true;
}

/* ---- parts of a call on devices */

static size_t
parts_of(const py_side *side)
{
    switch (side->layout) {
    case PY_LAYOUT_EACH:
        return side->npieces / side->nblocks;
    case PY_LAYOUT_INTERLEAVED:
        return side->npieces;
    case PY_LAYOUT_NONE:
    case PY_LAYOUT_SPLIT:
        break;
    }
    return 1;
}

size_t
py_operands_nparts(const py_operands *operands)
{
    size_t ninputs = parts_of(&operands->inputs);
    size_t noutputs = parts_of(&operands->outputs);
    return ninputs > noutputs ? ninputs : noutputs;
}

static void
fill_side_of_part(const py_operands *operands, const py_side *side, size_t part, dd_block *blocks)
{
    const py_piece *pieces = operands->pieces + side->first;
    switch (side->layout) {
    case PY_LAYOUT_NONE:
        break;
    case PY_LAYOUT_EACH:
        for (size_t k = 0; k < side->nblocks; k++) {
            const py_piece *piece = &pieces[k * parts_of(side) + part];
            blocks[k] = (dd_block){.data = piece->flat, .nbytes = piece->nbytes};
        }
        break;
    case PY_LAYOUT_SPLIT:
    case PY_LAYOUT_INTERLEAVED:
        fill_split(side, &pieces[part], blocks);
        break;
    }
}

void
py_operands_fill_part(py_operands *operands, size_t part, dd_coll_args *args)
{
    dd_block *inputs = operands->blocks + part * blocks_of_part(operands);
    dd_block *outputs = inputs + operands->inputs.nblocks;
    fill_side_of_part(operands, &operands->inputs, part, inputs);
    fill_side_of_part(operands, &operands->outputs, part, outputs);
    args->inputs = inputs;
    args->outputs = outputs;
}

bool
py_operands_reserve_parts(py_operands *operands, dd_coll coll, int rank)
{
    size_t nparts = py_operands_nparts(operands);
    if (!py_operands_check_outputs(operands) ||
        !py_operands_reserve_blocks(operands, nparts * blocks_of_part(operands))) {
        return false;
    }
    /* Staging memory overlaps nothing, so check only the tensors' own memory. */
    for (size_t part = 0; part < nparts; part++) {
        dd_coll_args args;
        py_operands_fill_part(operands, part, &args);
        if (has_conflict(operands, args.inputs, coll, rank)) {
            stage_inputs(operands);
            break;
        }
    }
    return true;
}

size_t
py_operands_assign_addresses(py_operands *operands, uint8_t *base)
{
    size_t offset = 0;
    for (size_t i = 0; i < operands->npieces; i++) {
        py_piece *piece = &operands->pieces[i];
        if (!piece->is_staged) {
            continue;
        }
        piece->flat = base != NULL ? base + offset : piece->flat;
        offset = align(offset + piece->nbytes);
    }
    return offset;
}

void
py_operands_add_results(const py_operands *operands, PyObject **list)
{
    for (size_t i = 0; i < operands->npieces; i++) {
        if (operands->pieces[i].is_result) {
            py_list_append(list, Py_XNewRef(operands->pieces[i].tensor.object));
        }
    }
}
