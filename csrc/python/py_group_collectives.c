/* The collectives: which tensors they take, and how these make up blocks. */
#include "python/py_group_call.h"

#include "core/mem.h"

#include <stdio.h>

/* A collective is two methods with one body: <name> runs it, plan_<name> makes a plan of it. Their parameters are those that BEGIN lists,
 * of which the first `required` must be given and all can be by position, then timeout and, where it is run, async_op. */
#define COLLECTIVE(name)                                                                                \
    static PyObject *call_##name(PyObject *self, bool is_plan, PyObject *const *args, Py_ssize_t nargs, \
                                 PyObject *kwnames);                                                    \
    PY_GROUP_METHOD(name)                                                                               \
    {                                                                                                   \
        return call_##name(self, false, args, nargs, kwnames);                                          \
    }                                                                                                   \
    PY_GROUP_METHOD(plan_##name)                                                                        \
    {                                                                                                   \
        return call_##name(self, true, args, nargs, kwnames);                                           \
    }                                                                                                   \
    static PyObject *call_##name(PyObject *self, bool is_plan, PyObject *const *args, Py_ssize_t nargs, \
                                 PyObject *kwnames)

#define COUNT_OF(...) ((int)(sizeof((py_name[]){__VA_ARGS__}) / sizeof(py_name)))

#define BEGIN(call, text, required, ...)                                                       \
    static const py_params params[] = {                                                        \
        {.function = text,                                                                     \
         .nrequired = required,                                                                \
         .npositional = COUNT_OF(__VA_ARGS__),                                                 \
         .count = COUNT_OF(__VA_ARGS__) + 2,                                                   \
         .names = {__VA_ARGS__, PY_NAME_TIMEOUT, PY_NAME_ASYNC_OP}},                           \
        {.function = "plan_" text,                                                             \
         .nrequired = required,                                                                \
         .npositional = COUNT_OF(__VA_ARGS__),                                                 \
         .count = COUNT_OF(__VA_ARGS__) + 1,                                                   \
         .is_plan = true,                                                                      \
         .names = {__VA_ARGS__, PY_NAME_TIMEOUT}},                                             \
    };                                                                                         \
    py_group_call call;                                                                        \
    if (!py_group_call_begin(&(call), self, &params[is_plan ? 1 : 0], args, nargs, kwnames)) { \
        return NULL;                                                                           \
    }

/* What coalesce() records is not run now. */
#define RECORD(call)                                       \
    if ((call).group->recorders != NULL) {                 \
        PyObject *answer = NULL;                           \
        if (py_group_call_record(&(call), &answer) != 0) { \
            py_group_call_fail(&(call));                   \
            return answer;                                 \
        }                                                  \
    }

static size_t
group_size(const py_group_call *call)
{
    return (size_t)call->group->size;
}

static bool
is_root(const py_group_call *call)
{
    return call->root == call->group->rank;
}

static size_t
count_of(const py_group_call *call, size_t piece)
{
    return call->operands->pieces[piece].tensor.view.count;
}

static void
set_inputs(py_group_call *call, py_layout layout, size_t first, size_t npieces, size_t nblocks)
{
    py_operands_set_side(&call->operands->inputs, layout, first, npieces, nblocks);
}

static void
set_outputs(py_group_call *call, py_layout layout, size_t first, size_t npieces, size_t nblocks)
{
    py_operands_set_side(&call->operands->outputs, layout, first, npieces, nblocks);
}

/* One output block that is its own input. */
static void
set_in_place(py_group_call *call, size_t npieces)
{
    set_inputs(call, PY_LAYOUT_EACH, 0, npieces, 1);
    set_outputs(call, PY_LAYOUT_EACH, 0, npieces, 1);
}

static bool
add(py_group_call *call, int value, py_use use)
{
    return py_operands_add(call->operands, call->values[value], use,
                           py_name_text(call->params->names[value]));
}

static bool
add_list(py_group_call *call, int value, py_use use, Py_ssize_t count)
{
    return py_operands_add_list(call->operands, call->values[value], use,
                                py_name_text(call->params->names[value]), count);
}

/* [] counts as not given, as in c10d. */
static bool
is_given(PyObject *object)
{
    if (object == NULL) {
        return false;
    }
    return PyList_Check(object) ? PyList_Size(object) > 0
                                : !PyTuple_Check(object) || PyTuple_Size(object) > 0;
}

/* The list that only the root gives: 1 it is there and has to be; 0 rightly not there; -1 with an
 * exception. */
static int
take_roots_argument(const py_group_call *call, int value)
{
    bool is_there = is_given(call->values[value]);
    if (is_there == is_root(call)) {
        return is_there;
    }
    PyErr_Format(call->group->state->errors[PY_ERROR_ARGUMENT],
                 is_there ? "%s(): argument '%s' must not be given on rank %d: it is for the root, rank %d"
                          : "%s(): argument '%s' must be given on rank %d, the root (%d)",
                 call->params->function, py_name_text(call->params->names[value]), call->group->rank,
                 call->root);
    return -1;
}

/* ---- one tensor a rank */

COLLECTIVE(all_reduce)
{
    BEGIN(call, "all_reduce", 1, PY_NAME_TENSOR, PY_NAME_OP)
    RECORD(call)
    bool is_ok = add(&call, 0, PY_USE_IN_PLACE);
    set_in_place(&call, 1);
    return py_group_call_run(&call, DD_COLL_ALL_REDUCE, is_ok);
}

COLLECTIVE(all_reduce_coalesced)
{
    BEGIN(call, "all_reduce_coalesced", 1, PY_NAME_TENSORS, PY_NAME_OP)
    bool is_ok = add_list(&call, 0, PY_USE_IN_PLACE, -1);
    set_in_place(&call, call.operands->npieces);
    return py_group_call_run(&call, DD_COLL_ALL_REDUCE, is_ok);
}

COLLECTIVE(broadcast)
{
    BEGIN(call, "broadcast", 1, PY_NAME_TENSOR, PY_NAME_ROOT)
    bool is_ok = add(&call, 0, is_root(&call) ? PY_USE_IN_RESULT : PY_USE_OUT);
    if (is_root(&call)) {
        set_inputs(&call, PY_LAYOUT_EACH, 0, 1, 1);
    }
    set_outputs(&call, PY_LAYOUT_EACH, 0, 1, 1);
    return py_group_call_run(&call, DD_COLL_BROADCAST, is_ok);
}

COLLECTIVE(reduce)
{
    BEGIN(call, "reduce", 1, PY_NAME_TENSOR, PY_NAME_ROOT, PY_NAME_OP)
    bool is_ok = add(&call, 0, is_root(&call) ? PY_USE_IN_PLACE : PY_USE_IN_RESULT);
    set_inputs(&call, PY_LAYOUT_EACH, 0, 1, 1);
    if (is_root(&call)) {
        set_outputs(&call, PY_LAYOUT_EACH, 0, 1, 1);
    }
    return py_group_call_run(&call, DD_COLL_REDUCE, is_ok);
}

/* ---- every rank's to one or to all */

COLLECTIVE(all_gather)
{
    BEGIN(call, "all_gather", 2, PY_NAME_OUTPUT_LIST, PY_NAME_TENSOR)
    size_t nranks = group_size(&call);
    bool is_ok = add_list(&call, 0, PY_USE_OUT, (Py_ssize_t)nranks) && add(&call, 1, PY_USE_IN);
    set_outputs(&call, PY_LAYOUT_EACH, 0, nranks, nranks);
    set_inputs(&call, PY_LAYOUT_EACH, nranks, 1, 1);
    return py_group_call_run(&call, DD_COLL_ALL_GATHER, is_ok);
}

/* The tensor of all ranks together must hold what they have. */
static bool
check_together(const py_group_call *call, int together, size_t together_piece, size_t one_piece)
{
    size_t wanted;
    if (!__builtin_mul_overflow(count_of(call, one_piece), group_size(call), &wanted) &&
        count_of(call, together_piece) == wanted) {
        return true;
    }
    PyErr_Format(call->group->state->errors[PY_ERROR_ARGUMENT],
                 "%s(): argument '%s' has %zu elements, and %d ranks with %zu each make another number",
                 call->params->function, py_name_text(call->params->names[together]),
                 count_of(call, together_piece), call->group->size, count_of(call, one_piece));
    return false;
}

COLLECTIVE(all_gather_single)
{
    BEGIN(call, "all_gather_single", 2, PY_NAME_OUTPUT, PY_NAME_TENSOR)
    RECORD(call)
    bool is_ok = add(&call, 0, PY_USE_OUT) && add(&call, 1, PY_USE_IN) && check_together(&call, 0, 0, 1);
    set_outputs(&call, PY_LAYOUT_SPLIT, 0, 1, group_size(&call));
    set_inputs(&call, PY_LAYOUT_EACH, 1, 1, 1);
    return py_group_call_run(&call, DD_COLL_ALL_GATHER, is_ok);
}

/* A list of lists, [rank][tensor], rank by rank. */
static bool
add_lists(py_group_call *call, PyObject *lists)
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
        PyErr_Format(call->group->state->errors[PY_ERROR_ARGUMENT],
                     "%s(): argument '%s' has %zd lists, and the group has %d ranks", function, name,
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

COLLECTIVE(all_gather_coalesced)
{
    BEGIN(call, "all_gather_coalesced", 2, PY_NAME_OUTPUT_LISTS, PY_NAME_TENSORS)
    bool is_ok = add_lists(&call, call.values[0]);
    size_t noutputs = call.operands->npieces;
    size_t per_rank = noutputs / group_size(&call);
    is_ok = is_ok && add_list(&call, 1, PY_USE_IN, (Py_ssize_t)per_rank);
    set_outputs(&call, PY_LAYOUT_EACH, 0, noutputs, group_size(&call));
    set_inputs(&call, PY_LAYOUT_EACH, noutputs, per_rank, 1);
    return py_group_call_run(&call, DD_COLL_ALL_GATHER, is_ok);
}

static bool
check_all_together(const py_group_call *call, int together, size_t together_first, size_t one_first,
                   size_t npairs)
{
    for (size_t i = 0; i < npairs; i++) {
        if (!check_together(call, together, together_first + i, one_first + i)) {
            return false;
        }
    }
    return true;
}

COLLECTIVE(all_gather_single_coalesced)
{
    BEGIN(call, "all_gather_single_coalesced", 2, PY_NAME_OUTPUTS, PY_NAME_INPUTS)
    bool is_ok = add_list(&call, 0, PY_USE_OUT, -1);
    size_t npairs = call.operands->npieces;
    is_ok = is_ok && add_list(&call, 1, PY_USE_IN, (Py_ssize_t)npairs) &&
            check_all_together(&call, 0, 0, npairs, npairs);
    set_outputs(&call, PY_LAYOUT_WOVEN, 0, npairs, group_size(&call));
    set_inputs(&call, PY_LAYOUT_EACH, npairs, npairs, 1);
    return py_group_call_run(&call, DD_COLL_ALL_GATHER, is_ok);
}

COLLECTIVE(gather)
{
    BEGIN(call, "gather", 1, PY_NAME_TENSOR, PY_NAME_OUTPUT_LIST, PY_NAME_ROOT)
    size_t nranks = group_size(&call);
    int given = take_roots_argument(&call, 1);
    bool is_ok = given >= 0 && add(&call, 0, PY_USE_IN) &&
                 (given == 0 || add_list(&call, 1, PY_USE_OUT, (Py_ssize_t)nranks));
    set_inputs(&call, PY_LAYOUT_EACH, 0, 1, 1);
    if (given > 0) {
        set_outputs(&call, PY_LAYOUT_EACH, 1, nranks, nranks);
    }
    return py_group_call_run(&call, DD_COLL_GATHER, is_ok);
}

COLLECTIVE(gather_single)
{
    BEGIN(call, "gather_single", 1, PY_NAME_TENSOR, PY_NAME_OUTPUT, PY_NAME_ROOT)
    int given = take_roots_argument(&call, 1);
    bool is_ok = given >= 0 && add(&call, 0, PY_USE_IN) &&
                 (given == 0 || (add(&call, 1, PY_USE_OUT) && check_together(&call, 1, 1, 0)));
    set_inputs(&call, PY_LAYOUT_EACH, 0, 1, 1);
    if (given > 0) {
        set_outputs(&call, PY_LAYOUT_SPLIT, 1, 1, group_size(&call));
    }
    return py_group_call_run(&call, DD_COLL_GATHER, is_ok);
}

/* ---- one rank's, or every rank's, to each its part */

COLLECTIVE(scatter)
{
    BEGIN(call, "scatter", 1, PY_NAME_OUTPUT, PY_NAME_INPUT_LIST, PY_NAME_ROOT)
    size_t nranks = group_size(&call);
    int given = take_roots_argument(&call, 1);
    bool is_ok = given >= 0 && add(&call, 0, PY_USE_OUT) &&
                 (given == 0 || add_list(&call, 1, PY_USE_IN, (Py_ssize_t)nranks));
    set_outputs(&call, PY_LAYOUT_EACH, 0, 1, 1);
    if (given > 0) {
        set_inputs(&call, PY_LAYOUT_EACH, 1, nranks, nranks);
    }
    return py_group_call_run(&call, DD_COLL_SCATTER, is_ok);
}

COLLECTIVE(scatter_single)
{
    BEGIN(call, "scatter_single", 1, PY_NAME_OUTPUT, PY_NAME_INPUT, PY_NAME_ROOT)
    int given = take_roots_argument(&call, 1);
    bool is_ok = given >= 0 && add(&call, 0, PY_USE_OUT) &&
                 (given == 0 || (add(&call, 1, PY_USE_IN) && check_together(&call, 1, 1, 0)));
    set_outputs(&call, PY_LAYOUT_EACH, 0, 1, 1);
    if (given > 0) {
        set_inputs(&call, PY_LAYOUT_SPLIT, 1, 1, group_size(&call));
    }
    return py_group_call_run(&call, DD_COLL_SCATTER, is_ok);
}

COLLECTIVE(reduce_scatter)
{
    BEGIN(call, "reduce_scatter", 2, PY_NAME_OUTPUT, PY_NAME_INPUT_LIST, PY_NAME_OP)
    size_t nranks = group_size(&call);
    bool is_ok = add(&call, 0, PY_USE_OUT) && add_list(&call, 1, PY_USE_IN, (Py_ssize_t)nranks);
    set_outputs(&call, PY_LAYOUT_EACH, 0, 1, 1);
    set_inputs(&call, PY_LAYOUT_EACH, 1, nranks, nranks);
    return py_group_call_run(&call, DD_COLL_REDUCE_SCATTER, is_ok);
}

/* ---- splits along dimension 0 */

static size_t
nrows_of(const dd_view *view)
{
    return view->ndim > 0 ? (size_t)view->shape[0] : 1;
}

static bool
raise_split_sum(const py_group_call *call, int value, const char *what, size_t sum, size_t nrows)
{
    PyErr_Format(
        call->group->state->errors[PY_ERROR_ARGUMENT],
        "%s(): argument '%s': Split sizes doesn't match total dim 0 size: they make %zu, and %s has %zu",
        call->params->function, py_name_text(call->params->names[value]), sum, what, nrows);
    return false;
}

/* Bytes of each rank's part, from rows. */
static bool
read_sizes(const py_group_call *call, int value, size_t row_nbytes, size_t *sizes, size_t *sum)
{
    const char *name = py_name_text(call->params->names[value]);
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
            PyErr_Format(call->group->state->errors[PY_ERROR_ARGUMENT],
                         "%s(): argument '%s': Split sizes must be non-negative", call->params->function,
                         name);
            return false;
        }
        if (__builtin_add_overflow(*sum, (size_t)nrows, sum) ||
            __builtin_mul_overflow((size_t)nrows, row_nbytes, &sizes[k])) {
            PyErr_Format(call->group->state->errors[PY_ERROR_ARGUMENT],
                         "%s(): argument '%s': Split sizes do not fit into 64 bits", call->params->function,
                         name);
            return false;
        }
    }
    return true;
}

static bool
check_splits(const py_group_call *call, int value)
{
    PyObject *splits = call->values[value];
    const char *name = py_name_text(call->params->names[value]);
    if (!PyList_Check(splits) && !PyTuple_Check(splits)) {
        py_raise_wrong_type(call->params->function, name, "a list or tuple of int", splits);
        return false;
    }
    if (PySequence_Size(splits) != call->group->size) {
        PyErr_Format(call->group->state->errors[PY_ERROR_ARGUMENT],
                     "%s(): argument '%s': Number of tensor splits not equal to group size: %zd for %d ranks",
                     call->params->function, name, PySequence_Size(splits), call->group->size);
        return false;
    }
    return true;
}

/* Cuts the piece of a side as the argument says; evenly when that is not given or empty. */
static bool
set_splits(py_group_call *call, int value, py_side *side, const char *what)
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
            "%s(): Tensor's dim 0 does not divide equally across group size: %s has %zu, for %d ranks",
            call->params->function, what, nrows, call->group->size);
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
    return sum == nrows || raise_split_sum(call, value, what, sum, nrows);
}

COLLECTIVE(reduce_scatter_single)
{
    BEGIN(call, "reduce_scatter_single", 2, PY_NAME_OUTPUT, PY_NAME_INPUT, PY_NAME_OP, PY_NAME_SPLIT_SIZES)
    if (call.values[3] == NULL) {
        RECORD(call)
    }
    bool is_ok = add(&call, 0, PY_USE_OUT) && add(&call, 1, PY_USE_IN);
    set_outputs(&call, PY_LAYOUT_EACH, 0, 1, 1);
    set_inputs(&call, PY_LAYOUT_SPLIT, 1, 1, group_size(&call));
    if (is_ok) {
        is_ok = call.values[3] != NULL ? set_splits(&call, 3, &call.operands->inputs, "the input")
                                       : check_together(&call, 1, 1, 0);
    }
    return py_group_call_run(&call, DD_COLL_REDUCE_SCATTER, is_ok);
}

COLLECTIVE(reduce_scatter_coalesced)
{
    BEGIN(call, "reduce_scatter_coalesced", 2, PY_NAME_OUTPUTS, PY_NAME_INPUTS, PY_NAME_OP)
    bool is_ok = add_list(&call, 0, PY_USE_OUT, -1);
    size_t npairs = call.operands->npieces;
    is_ok = is_ok && add_list(&call, 1, PY_USE_IN, (Py_ssize_t)npairs) &&
            check_all_together(&call, 1, npairs, 0, npairs);
    set_outputs(&call, PY_LAYOUT_EACH, 0, npairs, 1);
    set_inputs(&call, PY_LAYOUT_WOVEN, npairs, npairs, group_size(&call));
    return py_group_call_run(&call, DD_COLL_REDUCE_SCATTER, is_ok);
}

COLLECTIVE(all_to_all)
{
    BEGIN(call, "all_to_all", 2, PY_NAME_OUTPUT_LIST, PY_NAME_INPUT_LIST)
    size_t nranks = group_size(&call);
    bool is_ok = add_list(&call, 0, PY_USE_OUT, (Py_ssize_t)nranks) &&
                 add_list(&call, 1, PY_USE_IN, (Py_ssize_t)nranks);
    set_outputs(&call, PY_LAYOUT_EACH, 0, nranks, nranks);
    set_inputs(&call, PY_LAYOUT_EACH, nranks, nranks, nranks);
    return py_group_call_run(&call, DD_COLL_ALL_TO_ALL, is_ok);
}

COLLECTIVE(all_to_all_single)
{
    BEGIN(call, "all_to_all_single", 2, PY_NAME_OUTPUT, PY_NAME_INPUT, PY_NAME_OUTPUT_SPLIT_SIZES,
          PY_NAME_INPUT_SPLIT_SIZES)
    bool is_ok = add(&call, 0, PY_USE_OUT) && add(&call, 1, PY_USE_IN);
    set_outputs(&call, PY_LAYOUT_SPLIT, 0, 1, group_size(&call));
    set_inputs(&call, PY_LAYOUT_SPLIT, 1, 1, group_size(&call));
    is_ok = is_ok && set_splits(&call, 2, &call.operands->outputs, "the output") &&
            set_splits(&call, 3, &call.operands->inputs, "the input");
    return py_group_call_run(&call, DD_COLL_ALL_TO_ALL, is_ok);
}
