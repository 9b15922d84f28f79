/* Conversion of a collective's tensors and streams to items of an NCCL call, for communicators
 * without a group. */
#include "core/mem.h"
#include "python/call/reduce_op.h"
#include "python/nccl/team.h"

#include <stdio.h>
#include <string.h>

/* Return the caller's stream: libraries with an unknown stream order their work before this one. */
static bool
get_call_stream(void *ctx, int Py_UNUSED(device), void **stream)
{
    *stream = *(dd_cuda_stream *)ctx;
    if (*stream == NULL) {
        *stream = (void *)1; /* DLPack's number for the legacy default stream */
    }
    return true;
}

bool
py_nccl_team_read_device(const py_argument *argument, int *device)
{
    const py_state *state = argument->state;
    if (PyLong_Check(argument->value)) {
        return py_params_int(state, argument->value, device, argument->function, argument->name);
    }
    PyObject *text = PyObject_Str(argument->value);
    const char *utf8 = text != NULL ? PyUnicode_AsUTF8AndSize(text, NULL) : NULL;
    int nread = 0;
    bool is_ok = utf8 != NULL && sscanf(utf8, "cuda:%9d%n", device, &nread) == 1 && utf8[nread] == '\0';
    if (utf8 != NULL && !is_ok) {
        PyErr_Format(state->errors[PY_ERROR_ARGUMENT], "%s(): argument '%s': got %R, expected CUDA devices",
                     argument->function, argument->name, argument->value);
    }
    Py_XDECREF(text);
    return is_ok;
}

static bool
read_redop(py_nccl_team_call *call, PyObject *op)
{
    static const struct {
        dd_redop op;
        dd_nccl_redop nccl_op;
    } table[] = {
        {DD_REDOP_SUM, DD_NCCL_SUM}, {DD_REDOP_PRODUCT, DD_NCCL_PROD}, {DD_REDOP_MAX, DD_NCCL_MAX},
        {DD_REDOP_MIN, DD_NCCL_MIN}, {DD_REDOP_AVG, DD_NCCL_AVG},
    };
    dd_reduction reduction;
    if (!py_reduce_op_read(call->state, op, &reduction, NULL, call->function)) {
        return false;
    }
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        if (table[i].op == reduction.op) {
            call->redop = table[i].nccl_op;
            return true;
        }
    }
    PyErr_Format(call->state->errors[PY_ERROR_ARGUMENT],
                 "%s(): argument 'op' is %s, expected SUM, PRODUCT, MIN, MAX or AVG", call->function,
                 dd_redop_name(reduction.op));
    return false;
}

static bool
team_call_reserve_streams(py_nccl_team_call *call, size_t count)
{
    if (call->streams == NULL) {
        call->streams = dd_mem_alloc_array(count + 1, sizeof(dd_cuda_stream));
        if (call->streams == NULL) {
            PyErr_NoMemory();
        }
    }
    return call->streams != NULL;
}

/* Add one tensor, which must be contiguous and on the device. The stream of the tensor's library
 * becomes the stream of item i. Returns false with an exception on failure. */
static bool
add_tensor(py_nccl_team_call *call, PyObject *object, py_use use, const char *name, size_t i, int device)
{
    char item_name[64];
    py_device_scope *scope = &call->operands.device;
    scope->device = device;
    scope->nstreams = 0;
    if (call->has_streams) {
        scope->find_stream = get_call_stream;
        scope->ctx = &call->streams[call->is_one_stream ? 0 : i];
    }
    snprintf(item_name, sizeof item_name, "%.40s[%zu]", name, i);
    if (!py_operands_add(&call->operands, object, use, item_name)) {
        return false;
    }
    if (call->operands.pieces[call->operands.npieces - 1].is_staged) {
        py_raise_argument(call->state, call->function, item_name,
                          "has gaps: got a strided array, expected a contiguous one");
        return false;
    }
    if (!call->has_streams) {
        call->streams[i] = scope->nstreams > 0 ? scope->streams[0].handle : NULL;
    }
    return true;
}

/* Add a list of tensors to the call. Return false with an exception on failure. */
static bool
team_call_add(py_nccl_team_call *call, PyObject *list, py_use use, const char *name, Py_ssize_t count,
              const py_nccl_team_target *target)
{
    if (!PyList_Check(list) && !PyTuple_Check(list)) {
        py_raise_wrong_type(call->function, name, "a list or tuple of tensors, one for each device", list);
        return false;
    }
    PyObject *objects = PySequence_Tuple(list);
    Py_ssize_t given = objects != NULL ? PyTuple_Size(objects) : 0;
    bool is_ok = objects != NULL && team_call_reserve_streams(call, (size_t)given);
    if (is_ok && ((count >= 0 && given != count) || given == 0)) {
        py_raise_argument(call->state, call->function, name,
                          "has a wrong length: got %zd tensors, expected %zd", given, count >= 0 ? count : 1);
        is_ok = false;
    }
    for (Py_ssize_t i = 0; is_ok && i < given; i++) {
        is_ok = add_tensor(call, PyTuple_GetItem(objects, i), use, name, (size_t)i,
                           target->devices != NULL ? target->devices[i] : target->device);
    }
    Py_XDECREF(objects);
    return is_ok;
}

static bool
allocate_items(py_nccl_team_call *call, size_t count)
{
    call->items = dd_mem_alloc_array(count, sizeof *call->items);
    call->nitems = count;
    if (call->items == NULL) {
        PyErr_NoMemory();
    }
    return call->items != NULL;
}

/* Fill in an item from its input piece and its output piece; in place, both are the same piece. */
static bool
set_item(py_nccl_team_call *call, const dd_nccl_lib *lib, dd_nccl_item *item, const py_piece *send,
         const py_piece *recv)
{
    dd_error err;
    dd_nccl_dtype dtype;
    dd_dtype op = send->tensor.view.dtype;
    if (!py_error_check_of_group(call->state, dd_nccl_dtype_of(lib, op, &dtype, &err), &err)) {
        return false;
    }
    item->send = send->flat;
    item->recv = recv->flat;
    item->dtype = dtype;
    item->redop = call->redop;
    item->root = call->root;
    item->config = call->config;
    item->count = send->tensor.view.count;
    return true;
}

const py_nccl_team_coll py_nccl_team_colls[] = {
    [DD_NCCL_ITEM_ALL_REDUCE] = {"all_reduce", DD_NCCL_ITEM_ALL_REDUCE, .has_op = true},
    [DD_NCCL_ITEM_BROADCAST] = {"broadcast", DD_NCCL_ITEM_BROADCAST, .has_root = true},
    [DD_NCCL_ITEM_REDUCE] = {"reduce", DD_NCCL_ITEM_REDUCE, .has_op = true, .has_root = true},
    [DD_NCCL_ITEM_ALL_GATHER] = {"all_gather", DD_NCCL_ITEM_ALL_GATHER, .has_outputs = true},
    [DD_NCCL_ITEM_REDUCE_SCATTER] = {"reduce_scatter", DD_NCCL_ITEM_REDUCE_SCATTER, .has_op = true,
                                     .has_outputs = true, .is_input_wide = true},
};

static bool
check_counts(const py_nccl_team_call *call, const py_nccl_team_coll *coll, const py_piece *send,
             const py_piece *recv, int size)
{
    size_t input = send->tensor.view.count;
    size_t output = recv->tensor.view.count;
    size_t one = coll->is_input_wide ? output : input;
    size_t all = coll->is_input_wide ? input : output;
    if (!coll->has_outputs || all == one * (size_t)size) {
        return true;
    }
    PyErr_Format(
        call->state->errors[PY_ERROR_ARGUMENT],
        "%s(): sizes of inputs and outputs differ: got %zu elements in and %zu out, expected a factor of %d ranks",
        call->function, input, output, size);
    return false;
}

/* Create n items from n outputs and n inputs, or from n tensors that are both input and output. */
static bool
make_items(py_nccl_team_call *call, const py_nccl_team_coll *coll, const dd_nccl_lib *lib, int size)
{
    size_t n = coll->has_outputs ? call->operands.npieces / 2 : call->operands.npieces;
    bool is_ok = allocate_items(call, n);
    for (size_t i = 0; is_ok && i < n; i++) {
        const py_piece *recv = &call->operands.pieces[i];
        const py_piece *send = coll->has_outputs ? &call->operands.pieces[n + i] : recv;
        dd_nccl_item *item = &call->items[i];
        is_ok = check_counts(call, coll, send, recv, size) && set_item(call, lib, item, send, recv);
        item->kind = coll->kind;
        if (coll->is_input_wide) {
            item->count = recv->tensor.view.count;
        }
    }
    return is_ok;
}

/* ---- streams from the caller */

static bool
read_stream(py_nccl_team_call *call, PyObject *object, dd_cuda_stream *stream)
{
    void *handle = NULL;
    py_argument argument = {
        .state = call->state, .function = call->function, .name = "stream", .value = object};
    bool is_ok = object == Py_None || py_device_read_stream(&argument, &handle);
    *stream = handle;
    return is_ok;
}

/* Read a stream for each item, or one stream for all items. NULL or None means the streams of the
 * tensors' libraries. Return false with an exception on failure. */
static bool
read_streams(py_nccl_team_call *call, PyObject *object, const py_nccl_team_target *target)
{
    call->is_one_stream = target->ntensors < 0;
    call->has_streams = object != NULL && object != Py_None;
    if (!call->has_streams) {
        return true;
    }
    if (call->is_one_stream) {
        return team_call_reserve_streams(call, 1) && read_stream(call, object, &call->streams[0]);
    }
    PyObject *tuple = PySequence_Tuple(object);
    bool is_ok = tuple != NULL && team_call_reserve_streams(call, (size_t)target->ntensors);
    if (is_ok && PyTuple_Size(tuple) != target->ntensors) {
        PyErr_Format(call->state->errors[PY_ERROR_ARGUMENT],
                     "%s(): argument 'streams' has a wrong length: got %zd, expected %d, one for each device",
                     call->function, PyTuple_Size(tuple), target->ntensors);
        is_ok = false;
    }
    for (int i = 0; is_ok && i < target->ntensors; i++) {
        is_ok = read_stream(call, PyTuple_GetItem(tuple, i), &call->streams[i]);
    }
    Py_XDECREF(tuple);
    return is_ok;
}

/* ---- arguments */

typedef struct team_arguments {
    PyObject *outputs; /* list of outputs; NULL if the inputs are also the outputs */
    PyObject *inputs;
    PyObject *op;
    PyObject *root;
    PyObject *streams;
} team_arguments;

static bool
team_call_parse(const py_nccl_team_target *target, const py_nccl_team_coll *coll, PyObject *const *args,
                Py_ssize_t nargs, PyObject *kwnames, team_arguments *given)
{
    py_param list[5];
    int count = 0;
    *given = (team_arguments){NULL};
    if (coll->has_outputs) {
        list[count++] = (py_param){"outputs", PY_OBJECT, &given->outputs};
    }
    list[count++] = (py_param){coll->has_outputs ? "inputs" : "tensors", PY_OBJECT, &given->inputs};
    int nrequired = count;
    if (coll->has_root) {
        list[count++] = (py_param){"root", PY_OBJECT, &given->root};
    }
    if (coll->has_op) {
        list[count++] = (py_param){"op", PY_OBJECT, &given->op};
    }
    list[count++] = (py_param){target->ntensors < 0 ? "stream" : "streams", PY_OBJECT, &given->streams};
    const py_params params = {.function = coll->function,
                              .nrequired = nrequired,
                              .npositional = count,
                              .count = count,
                              .list = list};
    return py_params_read(&params, target->state, args, nargs, kwnames);
}

/* Read the call's arguments and create its items. Return false with an exception on failure. */
static bool
team_call_prepare(py_nccl_team_call *call, const py_nccl_team_coll *coll, const team_arguments *given,
                  const py_nccl_team_target *target)
{
    py_use use = coll->has_outputs ? PY_USE_IN : PY_USE_IN_PLACE;
    if (!read_streams(call, given->streams, target) || (given->op != NULL && !read_redop(call, given->op)) ||
        (given->root != NULL &&
         !py_params_rank(call->state, given->root, target->size, &call->root, call->function, "root"))) {
        return false;
    }
    if (coll->has_outputs &&
        !team_call_add(call, given->outputs, PY_USE_OUT, "outputs", target->ntensors, target)) {
        return false;
    }
    Py_ssize_t ninputs = coll->has_outputs ? (Py_ssize_t)call->operands.npieces : target->ntensors;
    return team_call_add(call, given->inputs, use, coll->has_outputs ? "inputs" : "tensors", ninputs,
                         target) &&
           make_items(call, coll, target->state->nccl->lib, target->size);
}

PyObject *
py_nccl_team_run(const py_nccl_team_target *target, const py_nccl_team_coll *coll, PyObject *const *args,
                 Py_ssize_t nargs, PyObject *kwnames)
{
    team_arguments given;
    if (!team_call_parse(target, coll, args, nargs, kwnames, &given)) {
        return NULL;
    }
    py_nccl_team_call call = {.state = target->state, .function = coll->function, .redop = DD_NCCL_SUM};
    py_operands_init(&call.operands, call.state, call.function);
    py_device_scope_init(&call.operands.device, call.state);
    bool is_ok = py_nccl_find_coll_config(call.state->nccl, &call.capsule, &call.config) &&
                 team_call_prepare(&call, coll, &given, target);
    if (is_ok) {
        py_wait wait;
        dd_error err;
        py_wait_init(&wait, call.state, DD_NCCL_DEFAULT_TIMEOUT_NS, true);
        dd_status status = PY_WITHOUT_GIL(target->run(target->ctx, &call, &wait.wait, &err));
        is_ok = py_group_finish_wait(&wait, status, &err);
    }
    py_operands_fini(&call.operands);
    dd_mem_free(call.items);
    dd_mem_free(call.streams);
    Py_XDECREF(call.capsule);
    return is_ok ? Py_NewRef(Py_None) : NULL;
}
