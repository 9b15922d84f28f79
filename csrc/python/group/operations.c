/* The code of all collectives: reads a call's arguments as its row of the table describes. */
#include "python/group/operations.h"

#include "core/mem.h"
#include "python/group/plan.h"

#include <stdio.h>

typedef enum side_kind {
    SIDE_NOTHING,
    SIDE_ONE,
    SIDE_MANY,
    SIDE_RANKS,
    SIDE_LISTS,
    SIDE_WHOLE,
    SIDE_WHOLES,
} side_kind;

typedef struct side_row {
    side_kind kind;
    int value;  /* index of the parameter with the side's tensors */
    int splits; /* index of the parameter with the split sizes; 0 if there is none */
} side_row;

typedef struct operation {
    const char *c10d_call;
    const char *c10d_old_call;
    const char *as_one;
    py_params run;
    py_params plan;
    dd_coll coll;
    side_row input;
    side_row output;
} operation;

enum operation_number {
#define OPERATION_NUMBER(name, ...) NUMBER_##name,
    PY_OPERATION_LIST(OPERATION_NUMBER)
#undef OPERATION_NUMBER
};

/* clang-format off */
#define NOTHING {SIDE_NOTHING, -1, 0}
#define ONE(value) {SIDE_ONE, value, 0}
#define MANY(value) {SIDE_MANY, value, 0}
#define RANKS(value) {SIDE_RANKS, value, 0}
#define LISTS(value) {SIDE_LISTS, value, 0}
#define WHOLE(value) {SIDE_WHOLE, value, 0}
#define WHOLE_BY(value, splits) {SIDE_WHOLE, value, splits}
#define WHOLES(value) {SIDE_WHOLES, value, 0}
/* clang-format on */

#define UNWRAP(...) __VA_ARGS__
#define COUNT_OF(parameters) ((int)(sizeof((const py_param[]){UNWRAP parameters}) / sizeof(py_param)))
#define OPERATION(name, kind, type, call, old_call, record_name, one, required, parameters, in, out, ...) \
    {.c10d_call = call,                                                                                   \
     .c10d_old_call = old_call,                                                                           \
     .as_one = one,                                                                                       \
     .run = {.function = #name,                                                                           \
             .op_type = type,                                                                             \
             .recorded = record_name,                                                                     \
             .nrequired = required,                                                                       \
             .npositional = COUNT_OF(parameters),                                                         \
             .count = COUNT_OF(parameters) + 2,                                                           \
             .list = (const py_param[]){UNWRAP parameters PY_TIME_LIMIT, PY_ASYNC}},                      \
     .plan = {.function = "plan." #name,                                                                  \
              .op_type = type,                                                                            \
              .recorded = record_name,                                                                    \
              .nrequired = required,                                                                      \
              .npositional = COUNT_OF(parameters),                                                        \
              .count = COUNT_OF(parameters) + 1,                                                          \
              .is_plan = true,                                                                            \
              .list = (const py_param[]){UNWRAP parameters PY_TIME_LIMIT}},                               \
     .coll = DD_COLL_##kind,                                                                              \
     .input = in,                                                                                         \
     .output = out},

static const operation operations[] = {PY_OPERATION_LIST(OPERATION)};

/* Return true if coalesce() accepts the call. */
static bool
is_coalescable(const operation *op, const py_group_call *call)
{
    return op->as_one[0] != '\0' && (op->input.splits == 0 || call->values[op->input.splits] == NULL);
}

/* Return true if the argument was given. An empty list counts as not given, as in c10d. */
static bool
is_given(PyObject *object)
{
    if (object == NULL) {
        return false;
    }
    return PyList_Check(object) ? PyList_Size(object) > 0
                                : !PyTuple_Check(object) || PyTuple_Size(object) > 0;
}

/* Return true if the call implies that the blocks of all ranks have equal sizes: the call has one
 * tensor, cut evenly. The other ranks' calls imply the same. */
static bool
is_cut_evenly(const operation *op, const py_group_call *call)
{
    const side_row *sides[] = {&op->input, &op->output};
    bool is_whole = false;
    for (size_t i = 0; i < 2; i++) {
        if (sides[i]->splits > 0 && is_given(call->values[sides[i]->splits])) {
            return false;
        }
        is_whole = is_whole || sides[i]->kind == SIDE_WHOLE;
    }
    return is_whole;
}

static size_t
group_size(const py_group_call *call)
{
    return (size_t)call->group->size;
}

static size_t
piece_count(const py_group_call *call, size_t piece)
{
    return call->operands->pieces[piece].tensor.view.count;
}

/* Fail unless the root passes the argument, and other ranks do not. */
static bool
check_roots_argument(const py_group_call *call, int value)
{
    bool is_present = is_given(call->values[value]);
    if (is_present == (call->root == call->group->rank)) {
        return true;
    }
    py_raise_argument(call->group->state, call->params->function, call->params->list[value].name,
                      is_present
                          ? "is only for the root: got a value on rank %d, expected None (the root is %d)"
                          : "is missing: got None on rank %d, expected a value, as the root is %d",
                      call->group->rank, call->root);
    return false;
}

/* Add the tensors of a list that contains one list of tensors per rank, in rank order. */
static bool
add_lists(const py_group_call *call, PyObject *lists)
{
    const char *function = call->params->function;
    const char *name = "output_lists";
    if (!PyList_Check(lists) && !PyTuple_Check(lists)) {
        py_raise_wrong_type(function, name, "a list or tuple of lists of tensors", lists);
        return false;
    }
    PyObject *tuple = PySequence_Tuple(lists);
    if (tuple == NULL) {
        return false;
    }
    Py_ssize_t per_rank = -1;
    bool is_ok = PyTuple_Size(tuple) == call->group->size;
    if (!is_ok) {
        py_raise_argument(call->group->state, function, name,
                          "has a wrong length: got %zd lists, expected %d, one for each rank",
                          PyTuple_Size(tuple), call->group->size);
    }
    for (Py_ssize_t i = 0; is_ok && i < PyTuple_Size(tuple); i++) {
        char list_name[64];
        snprintf(list_name, sizeof list_name, "%s[%zd]", name, i);
        is_ok =
            py_operands_add_list(call->operands, PyTuple_GetItem(tuple, i), PY_USE_OUT, list_name, per_rank);
        per_rank = per_rank < 0 ? (Py_ssize_t)call->operands->npieces : per_rank;
    }
    Py_DECREF(tuple);
    return is_ok;
}

/* Add the tensors of the side's parameter. If `before` was added earlier, a list must have as many
 * tensors as `before`, or, if `before` is a list of lists, as one of its lists. */
static bool
add_row(const py_group_call *call, const side_row *row, py_use use, const side_row *before)
{
    py_operands *operands = call->operands;
    if (row->kind == SIDE_NOTHING) {
        return true;
    }
    PyObject *value = call->values[row->value];
    const char *name = call->params->list[row->value].name;
    size_t nbefore =
        operands->npieces / (before != NULL && before->kind == SIDE_LISTS ? group_size(call) : 1);
    switch (row->kind) {
    case SIDE_NOTHING:
        break;
    case SIDE_ONE:
    case SIDE_WHOLE:
        return py_operands_add(operands, value, use, name);
    case SIDE_MANY:
    case SIDE_WHOLES:
        return py_operands_add_list(operands, value, use, name, before != NULL ? (Py_ssize_t)nbefore : -1);
    case SIDE_RANKS:
        return py_operands_add_list(operands, value, use, name, call->group->size);
    case SIDE_LISTS:
        return add_lists(call, value);
    }
    return true;
}

/* Add the tensors of a parameter and make them the tensors of a side. */
static bool
add_side(const py_group_call *call, const side_row *row, py_side *side, size_t nblocks,
         const side_row *before)
{
    size_t first = call->operands->npieces;
    py_layout layout = row->kind == SIDE_WHOLE    ? PY_LAYOUT_SPLIT
                       : row->kind == SIDE_WHOLES ? PY_LAYOUT_INTERLEAVED
                                                  : PY_LAYOUT_EACH;
    if (nblocks == 0) {
        return true;
    }
    if (!add_row(call, row, side == &call->operands->inputs ? PY_USE_IN : PY_USE_OUT, before)) {
        return false;
    }
    py_operands_set_side(side, layout, first, call->operands->npieces - first, nblocks);
    return true;
}

/* Add tensors that are inputs and outputs, or on some ranks only inputs or only outputs. */
static bool
add_in_place(const py_group_call *call, const operation *op, size_t ninputs, size_t noutputs)
{
    py_operands *operands = call->operands;
    bool is_read_only = noutputs == 0 || (op->coll == DD_COLL_BROADCAST && ninputs > 0);
    py_use use = is_read_only ? PY_USE_IN_RESULT : ninputs > 0 ? PY_USE_IN_PLACE : PY_USE_OUT;
    if (!add_row(call, &op->input, use, NULL)) {
        return false;
    }
    if (ninputs > 0) {
        py_operands_set_side(&operands->inputs, PY_LAYOUT_EACH, 0, operands->npieces, ninputs);
    }
    if (noutputs > 0) {
        py_operands_set_side(&operands->outputs, PY_LAYOUT_EACH, 0, operands->npieces, noutputs);
    }
    return true;
}

static bool
add_operands(const py_group_call *call, const operation *op)
{
    bool is_root = call->root == call->group->rank;
    size_t ninputs = (size_t)dd_coll_ninputs(op->coll, is_root, call->group->size);
    size_t noutputs = (size_t)dd_coll_noutputs(op->coll, is_root, call->group->size);
    py_side *inputs = &call->operands->inputs;
    py_side *outputs = &call->operands->outputs;
    if (op->input.value == op->output.value) {
        return add_in_place(call, op, ninputs, noutputs);
    }
    if ((op->coll == DD_COLL_GATHER && !check_roots_argument(call, op->output.value)) ||
        (op->coll == DD_COLL_SCATTER && !check_roots_argument(call, op->input.value))) {
        return false;
    }
    return op->input.value < op->output.value ? add_side(call, &op->input, inputs, ninputs, NULL) &&
                                                    add_side(call, &op->output, outputs, noutputs, &op->input)
                                              : add_side(call, &op->output, outputs, noutputs, NULL) &&
                                                    add_side(call, &op->input, inputs, ninputs, &op->output);
}

/* Fail unless the tensor for all ranks is as large as one rank's tensor times the group size. */
static bool
check_together(const py_group_call *call, int together, size_t together_piece, size_t one_piece)
{
    size_t all = piece_count(call, together_piece);
    size_t one = piece_count(call, one_piece);
    size_t product;
    if (!__builtin_mul_overflow(one, group_size(call), &product) && all == product) {
        return true;
    }
    bool is_swapped = all < one && !__builtin_mul_overflow(all, group_size(call), &product) && one == product;
    py_raise_argument(
        call->group->state, call->params->function, call->params->list[together].name,
        "has a wrong size: got %zu elements, expected %d x %zu, one rank's tensor times the ranks%s", all,
        call->group->size, one, is_swapped ? "; the output and the input are swapped" : "");
    return false;
}

static size_t
nrows_of(const dd_view *view)
{
    return view->ndim > 0 ? (size_t)view->shape[0] : 1;
}

static bool
raise_split_sum(const py_group_call *call, int value, const char *label, size_t sum, size_t nrows)
{
    py_raise_argument(
        call->group->state, call->params->function, call->params->list[value].name,
        "is wrong: Split sizes doesn't match total dim 0 size: got a sum of %zu, expected %zu (%s)", sum,
        nrows, label);
    return false;
}

/* Read the number of rows of each rank's part. Set `sizes` to the parts' sizes in bytes, and *sum
 * to the total number of rows. */
static bool
read_sizes(const py_group_call *call, int value, size_t row_nbytes, size_t *sizes, size_t *sum)
{
    const char *name = call->params->list[value].name;
    *sum = 0;
    for (Py_ssize_t k = 0; k < call->group->size; k++) {
        int64_t nrows;
        PyObject *item = PySequence_GetItem(call->values[value], k);
        bool is_read = item != NULL && py_to_int64(item, &nrows, call->params->function, name);
        Py_XDECREF(item);
        if (!is_read) {
            return false;
        }
        if (nrows < 0) {
            py_raise_argument(call->group->state, call->params->function, name,
                              "is wrong: Split sizes must be non-negative: got %lld, expected 0 or more",
                              (long long)nrows);
            return false;
        }
        if (__builtin_add_overflow(*sum, (size_t)nrows, sum) ||
            __builtin_mul_overflow((size_t)nrows, row_nbytes, &sizes[k])) {
            py_raise_argument(call->group->state, call->params->function, name,
                              "is out of range: got a sum of over 64 bits, expected 64");
            return false;
        }
    }
    return true;
}

static bool
check_splits(const py_group_call *call, int value)
{
    PyObject *splits = call->values[value];
    const char *name = call->params->list[value].name;
    if (!PyList_Check(splits) && !PyTuple_Check(splits)) {
        py_raise_wrong_type(call->params->function, name, "a list or tuple of int", splits);
        return false;
    }
    if (PySequence_Size(splits) != call->group->size) {
        py_raise_argument(call->group->state, call->params->function, name,
                          "is wrong: Number of tensor splits not equal to group size: got %zd, expected %d",
                          PySequence_Size(splits), call->group->size);
        return false;
    }
    return true;
}

/* Split the side's piece by the sizes in parameter number `value`. Split it evenly if this
 * parameter is not given or is an empty list. */
static bool
set_splits(const py_group_call *call, int value, py_side *side, const char *label)
{
    const py_piece *piece = &call->operands->pieces[side->first];
    const dd_view *view = &piece->tensor.view;
    size_t nrows = nrows_of(view);
    if (!is_given(call->values[value])) {
        if (nrows % side->nblocks == 0) {
            return true;
        }
        PyErr_Format(
            call->group->state->errors[PY_ERROR_ARGUMENT],
            "%s(): Tensor's dim 0 does not divide equally across group size: got %zu in %s, expected a multiple of %d",
            call->params->function, nrows, label, call->group->size);
        return false;
    }
    if (!check_splits(call, value)) {
        return false;
    }
    side->sizes = dd_mem_alloc_array(side->nblocks, sizeof *side->sizes);
    if (side->sizes == NULL) {
        PyErr_NoMemory();
        return false;
    }
    size_t sum;
    size_t row_nbytes = nrows > 0 ? piece->nbytes / nrows : 0;
    if (!read_sizes(call, value, row_nbytes, side->sizes, &sum)) {
        return false;
    }
    return sum == nrows || raise_split_sum(call, value, label, sum, nrows);
}

/* Split the side's tensors into one part per rank, if the side's kind has parts for all ranks.
 * `other` is the opposite side. */
static bool
cut_side(const py_group_call *call, const side_row *row, py_side *side, const side_row *other_row,
         const py_side *other)
{
    bool is_whole = row->kind == SIDE_WHOLE || row->kind == SIDE_WHOLES;
    if (!is_whole || side->layout == PY_LAYOUT_NONE) {
        return true;
    }
    if (row->splits > 0 && (call->values[row->splits] != NULL || other_row->kind == SIDE_WHOLE)) {
        return set_splits(call, row->splits, side,
                          side == &call->operands->outputs ? "the output" : "the input");
    }
    bool is_ok = true;
    for (size_t i = 0; i < side->npieces && is_ok; i++) {
        is_ok = check_together(call, row->value, side->first + i, other->first + i);
    }
    return is_ok;
}

static PyObject *
call_operation(enum operation_number number, bool is_plan, PyObject *self, PyObject *const *args,
               Py_ssize_t nargs, PyObject *kwnames)
{
    const operation *op = &operations[number];
    py_group_call call;
    if (!py_group_call_parse(&call, self, is_plan ? &op->plan : &op->run, args, nargs, kwnames)) {
        return NULL;
    }
    PyObject *answer = NULL;
    if (PY_ONCE_GET(&call.group->recorders) != NULL && !is_plan && is_coalescable(op, &call) &&
        py_group_call_record(&call, &answer) != 0) {
        return answer;
    }
    if (!py_group_call_begin(&call)) {
        return NULL;
    }
    call.is_flat = call.group->nccl != NULL && is_cut_evenly(op, &call);
    py_side *inputs = &call.operands->inputs;
    py_side *outputs = &call.operands->outputs;
    bool is_ok = add_operands(&call, op) && cut_side(&call, &op->output, outputs, &op->input, inputs) &&
                 cut_side(&call, &op->input, inputs, &op->output, outputs);
    return py_group_call_run(&call, op->coll, is_ok);
}

#define METHODS(name, ...)                                                       \
    PY_GROUP_METHOD(name)                                                        \
    {                                                                            \
        return call_operation(NUMBER_##name, false, self, args, nargs, kwnames); \
    }                                                                            \
    PY_GROUP_METHOD(plan_##name)                                                 \
    {                                                                            \
        PyObject *group = py_plans_group(self);                                  \
        return call_operation(NUMBER_##name, true, group, args, nargs, kwnames); \
    }
PY_OPERATION_LIST(METHODS)

/* ---- the table of operations as a Python object */

static PyObject *
make_keyword_names(const py_params *params)
{
    PyObject *names = PyTuple_New(params->npositional);
    for (int i = 0; names != NULL && i < params->npositional; i++) {
        PyObject *name = PyUnicode_FromString(params->list[i].name);
        if (name == NULL || PyTuple_SetItem(names, i, name) < 0) {
            Py_CLEAR(names);
        }
    }
    return names;
}

static PyObject *
make_row(const operation *op)
{
    static const char *const kinds[] = {
        [SIDE_NOTHING] = "nothing", [SIDE_ONE] = "one",     [SIDE_MANY] = "many",     [SIDE_RANKS] = "ranks",
        [SIDE_LISTS] = "lists",     [SIDE_WHOLE] = "whole", [SIDE_WHOLES] = "wholes",
    };
    PyObject *names = make_keyword_names(&op->run);
    return names == NULL ? NULL
                         : Py_BuildValue("(ssissssNi(si)(si))", op->run.function, dd_coll_name(op->coll),
                                         op->run.op_type, op->run.recorded, op->c10d_call, op->c10d_old_call,
                                         op->as_one, names, op->run.nrequired, kinds[op->input.kind],
                                         op->input.value, kinds[op->output.kind], op->output.value);
}

PyObject *
py_group_list_operations(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused))
{
    size_t count = sizeof operations / sizeof operations[0];
    PyObject *rows = PyTuple_New((Py_ssize_t)count);
    for (size_t i = 0; rows != NULL && i < count; i++) {
        PyObject *row = make_row(&operations[i]);
        if (row == NULL || PyTuple_SetItem(rows, (Py_ssize_t)i, row) < 0) {
            Py_CLEAR(rows);
        }
    }
    return rows;
}
