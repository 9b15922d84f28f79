/* The methods of a window that move memory and signals. */
#include "python/group/call.h"
#include "python/base/error.h"
#include "python/window/window.h"

/* Copies of up to this many bytes take no longer than releasing and retaking the GIL. */
#define QUICK_NBYTES ((size_t)16384)

static bool
read_channel(const py_window *self, PyObject *value, int *channel, const char *function)
{
    if (!py_params_int(self->state, value, channel, function, "channel")) {
        return false;
    }
    int nchannels = dd_window_nchannels(self->window);
    if (*channel < 0 || *channel >= nchannels) {
        PyErr_Format(self->state->errors[PY_ERROR_ARGUMENT],
                     "%s(): argument 'channel': there is no channel %d, only 0 to %d", function, *channel,
                     nchannels - 1);
        return false;
    }
    return true;
}

static void
init_wait(const py_window *self, py_wait *wait, int64_t timeout_ns)
{
    py_wait_init(wait, self->state,
                 timeout_ns >= 0 ? timeout_ns : dd_group_get_timeout_ns(self->group->group), true);
}

/* ---- put and get */

/* A put or a get. */
typedef struct transfer_call {
    py_window *window;
    bool is_put;
    dd_window_place place;
    int channel;
} transfer_call;

static bool
read_offset(transfer_call *transfer, const py_group_call *call, PyObject *value)
{
    int64_t offset = 0;
    if (value != NULL && !py_to_int64(value, &offset, call->params->function, "offset")) {
        return false;
    }
    size_t element_nbytes = dd_dtype_size(py_operands_dtype(call->operands));
    if (offset < 0 || __builtin_mul_overflow((size_t)offset, element_nbytes, &transfer->place.offset)) {
        PyErr_Format(transfer->window->state->errors[PY_ERROR_ARGUMENT], "%s(): argument 'offset' is %lld",
                     call->params->function, (long long)offset);
        return false;
    }
    return true;
}

static dd_status
move(const transfer_call *transfer, const py_group_call *call, const dd_wait *wait, dd_error *err)
{
    const py_piece *piece = &call->operands->pieces[0];
    dd_block block = {.data = piece->flat, .nbytes = piece->nbytes};
    dd_window *window = transfer->window->window;
    return transfer->is_put ? dd_window_put(window, block, transfer->place, transfer->channel, wait, err)
                            : dd_window_get(window, block, transfer->place, wait, err);
}

static dd_status
post_move(const py_group_call *call, const void *what, const dd_call_options *options, dd_work **work,
          dd_error *err)
{
    const transfer_call *transfer = what;
    const py_piece *piece = &call->operands->pieces[0];
    dd_block block = {.data = piece->flat, .nbytes = piece->nbytes};
    dd_window *window = transfer->window->window;
    return transfer->is_put
               ? dd_window_post_put(window, block, transfer->place, transfer->channel, options, work, err)
               : dd_window_post_get(window, block, transfer->place, options, work, err);
}

/* Whether the transfer is small and to memory that can be seen here: it is copied and signalled at once, without
 * waiting. */
static bool
is_quick(const transfer_call *transfer, const py_group_call *call)
{
    const dd_window *window = transfer->window->window;
    int rank = transfer->place.rank;
    return call->operands->pieces[0].nbytes <= QUICK_NBYTES && dd_window_data(window, rank) != NULL &&
           dd_window_pad(window, rank) != NULL;
}

static PyObject *
move_and_wait(const transfer_call *transfer, py_group_call *call)
{
    py_wait wait;
    dd_error err;
    init_wait(transfer->window, &wait, call->timeout_ns);
    PyThreadState *saved = is_quick(transfer, call) ? NULL : PyEval_SaveThread();
    py_operands_pack(call->operands);
    dd_status status = move(transfer, call, &wait.wait, &err);
    if (status == DD_OK) {
        py_operands_unpack(call->operands);
    }
    if (saved != NULL) {
        PyEval_RestoreThread(saved);
    }
    if (!py_group_finish_wait(&wait, status, &err)) {
        return py_group_call_fail(call);
    }
    py_operands_fini(call->operands);
    Py_RETURN_NONE;
}

/* Runs a call whose parameters begin with tensor, rank and offset. */
static PyObject *
run_transfer(transfer_call *transfer, py_group_call *call)
{
    dd_coll_args unused = {.coll = DD_COLL_BROADCAST};
    py_use use = transfer->is_put ? PY_USE_IN : PY_USE_OUT;
    py_side *side = transfer->is_put ? &call->operands->inputs : &call->operands->outputs;
    if (!py_window_read_rank(transfer->window, call->values[1], &transfer->place.rank, call->params->function,
                             "rank") ||
        !py_operands_add(call->operands, call->values[0], use, "tensor") ||
        !read_offset(transfer, call, call->values[2])) {
        return py_group_call_fail(call);
    }
    py_operands_set_side(side, PY_LAYOUT_EACH, 0, 1, 1);
    if (!py_operands_prepare(call->operands, &unused, call->group->rank)) {
        return py_group_call_fail(call);
    }
    return call->flight == NULL
               ? move_and_wait(transfer, call)
               : py_group_call_start(call, post_move, transfer, &(dd_call_options){.record = NULL});
}

PY_WINDOW_METHOD(put)
{
    static const py_params params = {.function = "put",
                                     .op_type = PY_OP_TYPE_UNKNOWN,
                                     .nrequired = 2,
                                     .npositional = 4,
                                     .count = 6,
                                     .names = {PY_NAME_TENSOR, PY_NAME_RANK, PY_NAME_OFFSET, PY_NAME_CHANNEL,
                                               PY_NAME_TIMEOUT, PY_NAME_ASYNC_OP}};
    transfer_call transfer = {.window = (py_window *)self, .is_put = true, .channel = DD_NO_CHANNEL};
    py_group_call call;
    if (!py_window_require_open(transfer.window) ||
        !py_group_call_parse(&call, (PyObject *)transfer.window->group, &params, args, nargs, kwnames) ||
        !py_group_call_begin(&call)) {
        return NULL;
    }
    if (call.values[3] != NULL && !read_channel(transfer.window, call.values[3], &transfer.channel, "put")) {
        return py_group_call_fail(&call);
    }
    return run_transfer(&transfer, &call);
}

PY_WINDOW_METHOD(get)
{
    static const py_params params = {
        .function = "get",
        .op_type = PY_OP_TYPE_UNKNOWN,
        .nrequired = 2,
        .npositional = 3,
        .count = 5,
        .names = {PY_NAME_TENSOR, PY_NAME_RANK, PY_NAME_OFFSET, PY_NAME_TIMEOUT, PY_NAME_ASYNC_OP}};
    transfer_call transfer = {.window = (py_window *)self};
    py_group_call call;
    if (!py_window_require_open(transfer.window) ||
        !py_group_call_parse(&call, (PyObject *)transfer.window->group, &params, args, nargs, kwnames) ||
        !py_group_call_begin(&call)) {
        return NULL;
    }
    return run_transfer(&transfer, &call);
}

PY_WINDOW_METHOD(flush)
{
    static const py_params params = {.function = "flush", .count = 1, .names = {PY_NAME_TIMEOUT}};
    py_window *window = (py_window *)self;
    PyObject *values[PY_PARAMS_MAX];
    int64_t timeout_ns;
    if (!py_window_require_open(window) ||
        !py_params_parse(&params, window->state, args, nargs, kwnames, values) ||
        !py_group_read_timeout(window->group, values[0], &timeout_ns, params.function)) {
        return NULL;
    }
    py_wait wait;
    dd_error err;
    dd_status status;
    init_wait(window, &wait, timeout_ns);
    Py_BEGIN_ALLOW_THREADS
    status = dd_window_flush(window->window, &wait.wait, &err);
    Py_END_ALLOW_THREADS
    return py_group_finish_wait(&wait, status, &err) ? Py_NewRef(Py_None) : NULL;
}

/* ---- signals */

/* A call on one channel, usually with one rank. */
typedef struct signal_call {
    py_window *window;
    int rank;
    int channel;
    int64_t timeout_ns; /* -1: the group's */
} signal_call;

/* Reads a time-out in milliseconds, as in c10d: 0 means the group's. False with an exception. */
static bool
read_timeout_ms(const py_window *self, PyObject *value, int64_t *timeout_ns, const char *function)
{
    int64_t timeout_ms;
    if (!py_to_int64(value, &timeout_ms, function, "timeout_ms")) {
        return false;
    }
    if (timeout_ms < 0) {
        PyErr_Format(self->state->errors[PY_ERROR_ARGUMENT], "%s(): argument 'timeout_ms' is %lld", function,
                     (long long)timeout_ms);
        return false;
    }
    *timeout_ns = timeout_ms == 0                           ? -1
                  : timeout_ms > DD_NEVER_NS / DD_NS_PER_MS ? DD_NEVER_NS
                                                            : timeout_ms * DD_NS_PER_MS;
    return true;
}

static bool
read_signal(signal_call *call, PyObject *self, const py_params *params, PyObject *const *args,
            Py_ssize_t nargs, PyObject *kwnames)
{
    py_window *window = (py_window *)self;
    PyObject *values[PY_PARAMS_MAX];
    *call = (signal_call){.window = window, .timeout_ns = -1};
    if (!py_window_require_open(window) ||
        !py_params_parse(params, window->state, args, nargs, kwnames, values)) {
        return false;
    }
    for (int i = 0; i < params->count; i++) {
        PyObject *value = values[i];
        py_name name = params->names[i];
        bool is_read =
            value == NULL             ? true
            : name == PY_NAME_CHANNEL ? read_channel(window, value, &call->channel, params->function)
            : name == PY_NAME_TIMEOUT_MS
                ? read_timeout_ms(window, value, &call->timeout_ns, params->function)
                : py_window_read_rank(window, value, &call->rank, params->function, py_name_text(name));
        if (!is_read) {
            return false;
        }
    }
    return true;
}

typedef dd_status (*signal_function)(dd_window *window, int rank, int channel, const dd_wait *wait,
                                     dd_error *err);

static PyObject *
run_signal(const signal_call *call, signal_function run)
{
    py_window *window = call->window;
    py_wait wait;
    dd_error err;
    dd_status status;
    init_wait(window, &wait, call->timeout_ns);
    Py_BEGIN_ALLOW_THREADS
    status = run(window->window, call->rank, call->channel, &wait.wait, &err);
    Py_END_ALLOW_THREADS
    return py_group_finish_wait(&wait, status, &err) ? Py_NewRef(Py_None) : NULL;
}

#define SIGNAL_PARAMS(text, rank)                                       \
    {                                                                   \
        .function = text, .nrequired = 1, .npositional = 3, .count = 3, \
        .names = {rank, PY_NAME_CHANNEL, PY_NAME_TIMEOUT_MS},           \
    }

PY_WINDOW_METHOD(signal)
{
    static const py_params params = SIGNAL_PARAMS("signal", PY_NAME_DST_RANK);
    signal_call call;
    return read_signal(&call, self, &params, args, nargs, kwnames) ? run_signal(&call, dd_window_signal)
                                                                   : NULL;
}

PY_WINDOW_METHOD(put_signal)
{
    static const py_params params = SIGNAL_PARAMS("put_signal", PY_NAME_DST_RANK);
    signal_call call;
    return read_signal(&call, self, &params, args, nargs, kwnames) ? run_signal(&call, dd_window_signal_alone)
                                                                   : NULL;
}

PY_WINDOW_METHOD(wait_signal)
{
    static const py_params params = SIGNAL_PARAMS("wait_signal", PY_NAME_SRC_RANK);
    signal_call call;
    return read_signal(&call, self, &params, args, nargs, kwnames) ? run_signal(&call, dd_window_wait_signal)
                                                                   : NULL;
}

PY_WINDOW_METHOD(take_signal)
{
    static const py_params params = {.function = "take_signal",
                                     .nrequired = 1,
                                     .npositional = 2,
                                     .count = 2,
                                     .names = {PY_NAME_SRC_RANK, PY_NAME_CHANNEL}};
    signal_call call;
    if (!read_signal(&call, self, &params, args, nargs, kwnames)) {
        return NULL;
    }
    py_window *window = call.window;
    dd_error err;
    dd_status status;
    dd_wait wait = dd_wait_after(0);
    Py_BEGIN_ALLOW_THREADS
    status = dd_window_wait_signal(window->window, call.rank, call.channel, &wait, &err);
    Py_END_ALLOW_THREADS
    if (status != DD_OK && status != DD_OP_TIMED_OUT) {
        py_error_raise_of_group(window->state, status, &err);
        return NULL;
    }
    return PyBool_FromLong(status == DD_OK);
}

static dd_status
run_barrier(dd_window *window, int Py_UNUSED(rank), int channel, const dd_wait *wait, dd_error *err)
{
    return dd_window_barrier(window, channel, wait, err);
}

PY_WINDOW_METHOD(barrier)
{
    static const py_params params = {
        .function = "barrier", .npositional = 2, .count = 2, .names = {PY_NAME_CHANNEL, PY_NAME_TIMEOUT_MS}};
    signal_call call;
    return read_signal(&call, self, &params, args, nargs, kwnames) ? run_signal(&call, run_barrier) : NULL;
}
