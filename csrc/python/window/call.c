/* Window methods that move data and signals. */
#include "python/group/call.h"
#include "python/base/error.h"
#include "python/window/window.h"

/* Maximum size in bytes of a copy that takes less time than releasing and retaking the GIL; 0
 * without a GIL. */
#ifdef PY_MAY_LACK_GIL
#define QUICK_NBYTES ((size_t)0)
#else
#define QUICK_NBYTES ((size_t)16384)
#endif

static bool
check_channel(const py_window *self, int channel, const char *function)
{
    int nchannels = dd_window_nchannels(self->window);
    if (channel < 0 || channel >= nchannels) {
        PyErr_Format(self->state->errors[PY_ERROR_ARGUMENT],
                     "%s(): argument 'channel' is out of range: got %d, expected 0 to %d", function, channel,
                     nchannels - 1);
        return false;
    }
    return true;
}

/* ---- put and get */

/* A call of put or get. */
typedef struct transfer_call {
    py_window *window;
    bool is_put;
    dd_window_target target;
    int channel;
} transfer_call;

static dd_status
move(const transfer_call *transfer, const py_group_call *call, const dd_wait *wait, dd_error *err)
{
    const py_piece *piece = &call->operands->pieces[0];
    dd_block block = {.data = piece->flat, .nbytes = piece->nbytes};
    dd_window *window = transfer->window->window;
    return transfer->is_put ? dd_window_put(window, block, transfer->target, transfer->channel, wait, err)
                            : dd_window_get(window, block, transfer->target, wait, err);
}

static dd_status
post_move(const py_group_call *call, const void *target, const dd_call_options *options, dd_work **work,
          dd_error *err)
{
    const transfer_call *transfer = target;
    const py_piece *piece = &call->operands->pieces[0];
    dd_block block = {.data = piece->flat, .nbytes = piece->nbytes};
    dd_window *window = transfer->window->window;
    return transfer->is_put
               ? dd_window_post_put(window, block, transfer->target, transfer->channel, options, work, err)
               : dd_window_post_get(window, block, transfer->target, options, work, err);
}

/* Return true if the transfer need not wait: it is small, and the target's memory is mapped. */
static bool
transfer_is_quick(const transfer_call *transfer, const py_group_call *call)
{
    const dd_window *window = transfer->window->window;
    int rank = transfer->target.rank;
    return call->operands->pieces[0].nbytes <= QUICK_NBYTES && dd_window_data(window, rank) != NULL &&
           dd_window_pad(window, rank) != NULL;
}

static PyObject *
move_and_wait(const transfer_call *transfer, py_group_call *call)
{
    py_wait wait;
    dd_error err;
    py_wait_init(&wait, transfer->window->state,
                 py_group_timeout_or_own(transfer->window->group, call->timeout_ns), true);
    PyThreadState *saved = transfer_is_quick(transfer, call) ? NULL : PyEval_SaveThread();
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

static bool
is_bytes(dd_dtype dtype)
{
    return dtype == DD_DTYPE_UINT8 || dtype == DD_DTYPE_INT8;
}

/* Fail if the tensor has another dtype than the target's memory. Bytes on either side match every
 * dtype, as in messages. */
static bool
check_target_dtype(const transfer_call *transfer, const py_group_call *call)
{
    dd_dtype wanted = dd_window_dtype(transfer->window->window, transfer->target.rank);
    const py_tensor *tensor = &call->operands->pieces[0].tensor;
    if (tensor->foreign_dtype == 0 &&
        (tensor->view.dtype == wanted || is_bytes(tensor->view.dtype) || is_bytes(wanted))) {
        return true;
    }
    py_raise_for_argument(
        transfer->window->state->errors[PY_ERROR_TYPE], call->params->function, "tensor",
        "has another dtype: got %s, expected %s, as the memory of rank %d; to move bytes, pass a view as uint8",
        py_tensor_dtype_name(tensor, (char[PY_DTYPE_TEXT]){""}), dd_dtype_name(wanted),
        transfer->target.rank);
    return false;
}

/* Run a call whose first parameters are tensor, rank and offset. */
static PyObject *
transfer_run(transfer_call *transfer, py_group_call *call)
{
    dd_coll_args unused = {.coll = DD_COLL_BROADCAST};
    py_use use = transfer->is_put ? PY_USE_IN : PY_USE_OUT;
    py_side *side = transfer->is_put ? &call->operands->inputs : &call->operands->outputs;
    if (!py_params_rank(transfer->window->state, call->values[1], transfer->window->group->size,
                        &transfer->target.rank, call->params->function, "rank") ||
        !py_operands_add(call->operands, call->values[0], use, "tensor") ||
        !check_target_dtype(transfer, call) ||
        !py_operands_read_offset(call->operands, call->values[2], &transfer->target.offset)) {
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
    py_params params = PY_PARAMS("put", 2, 4, PY_TENSORS(tensor), PY_OTHER(rank), PY_OTHER(offset),
                                 PY_OTHER(channel), PY_TIME_LIMIT, PY_ASYNC);
    params.op_type = PY_OP_TYPE_UNKNOWN;
    transfer_call transfer = {.window = (py_window *)self, .is_put = true, .channel = DD_NO_CHANNEL};
    py_group_call call;
    if (!py_window_require_open(transfer.window) ||
        !py_group_call_parse(&call, (PyObject *)transfer.window->group, &params, args, nargs, kwnames) ||
        !py_group_call_begin(&call)) {
        return NULL;
    }
    if (call.values[3] != NULL &&
        (!py_params_int(transfer.window->state, call.values[3], &transfer.channel, "put", "channel") ||
         !check_channel(transfer.window, transfer.channel, "put"))) {
        return py_group_call_fail(&call);
    }
    return transfer_run(&transfer, &call);
}

PY_WINDOW_METHOD(get)
{
    py_params params =
        PY_PARAMS("get", 2, 3, PY_TENSORS(tensor), PY_OTHER(rank), PY_OTHER(offset), PY_TIME_LIMIT, PY_ASYNC);
    params.op_type = PY_OP_TYPE_UNKNOWN;
    transfer_call transfer = {.window = (py_window *)self};
    py_group_call call;
    if (!py_window_require_open(transfer.window) ||
        !py_group_call_parse(&call, (PyObject *)transfer.window->group, &params, args, nargs, kwnames) ||
        !py_group_call_begin(&call)) {
        return NULL;
    }
    return transfer_run(&transfer, &call);
}

PY_WINDOW_METHOD(flush)
{
    py_window *window = (py_window *)self;
    int64_t timeout_ns = -1;
    const py_params params = PY_PARAMS("flush", 0, 0, {"timeout", PY_TIMEOUT, &timeout_ns});
    if (!py_window_require_open(window) || !py_params_read(&params, window->state, args, nargs, kwnames)) {
        return NULL;
    }
    return py_none_if(PY_GROUP_CALL(window->state, py_group_timeout_or_own(window->group, timeout_ns),
                                    dd_window_flush, window->window));
}

/* ---- signals */

/* A call on one channel, and with one rank, unless the method takes no rank. */
typedef struct signal_call {
    py_window *window;
    int rank;
    int channel;
    int64_t timeout_ns; /* timeout; -1 means the group's timeout */
} signal_call;

/* Read a timeout in milliseconds, as in torch; 0 means the group's timeout. */
static bool
take_timeout_ms(signal_call *call, int64_t timeout_ms, const char *function)
{
    if (timeout_ms < 0) {
        PyErr_Format(call->window->state->errors[PY_ERROR_ARGUMENT],
                     "%s(): argument 'timeout_ms' is negative: got %lld, expected 0 or more", function,
                     (long long)timeout_ms);
        return false;
    }
    call->timeout_ns = timeout_ms == 0                           ? -1
                       : timeout_ms > DD_NEVER_NS / DD_NS_PER_MS ? DD_NEVER_NS
                                                                 : timeout_ms * DD_NS_PER_MS;
    return true;
}

typedef dd_status (*signal_function)(dd_window *window, int rank, int channel, const dd_wait *wait,
                                     dd_error *err);

/* A row that describes a signal method. */
typedef struct signal_method {
    const char *function;
    const char *rank; /* name of the first parameter, or NULL if the method takes no rank */
    bool has_timeout;
    signal_function run;
} signal_method;

static bool
read_signal(signal_call *call, const signal_method *method, PyObject *self, PyObject *const *args,
            Py_ssize_t nargs, PyObject *kwnames)
{
    int64_t timeout_ms = 0;
    *call = (signal_call){.window = (py_window *)self};
    const py_param list[] = {{method->rank, PY_INT, &call->rank},
                             {"channel", PY_INT, &call->channel},
                             {"timeout_ms", PY_INT64, &timeout_ms}};
    int first = method->rank != NULL ? 0 : 1;
    int count = (method->has_timeout ? 3 : 2) - first;
    const py_params params = {.function = method->function,
                              .nrequired = 1 - first,
                              .npositional = count,
                              .count = count,
                              .list = &list[first]};
    return py_window_require_open(call->window) &&
           py_params_read(&params, call->window->state, args, nargs, kwnames) &&
           (method->rank == NULL ||
            py_window_check_rank(call->window, call->rank, method->function, method->rank)) &&
           check_channel(call->window, call->channel, method->function) &&
           take_timeout_ms(call, timeout_ms, method->function);
}

static PyObject *
call_signal(const signal_method *method, PyObject *self, PyObject *const *args, Py_ssize_t nargs,
            PyObject *kwnames)
{
    signal_call call;
    if (!read_signal(&call, method, self, args, nargs, kwnames)) {
        return NULL;
    }
    int64_t timeout_ns = py_group_timeout_or_own(call.window->group, call.timeout_ns);
    return py_none_if(PY_GROUP_CALL(call.window->state, timeout_ns, method->run, call.window->window,
                                    call.rank, call.channel));
}

static dd_status
barrier_without_rank(dd_window *window, int Py_UNUSED(rank), int channel, const dd_wait *wait, dd_error *err)
{
    return dd_window_barrier(window, channel, wait, err);
}

#define SIGNAL_METHOD(name, rank, run)                                \
    PY_WINDOW_METHOD(name)                                            \
    {                                                                 \
        static const signal_method method = {#name, rank, true, run}; \
        return call_signal(&method, self, args, nargs, kwnames);      \
    }

SIGNAL_METHOD(signal, "dst_rank", dd_window_signal)
SIGNAL_METHOD(put_signal, "dst_rank", dd_window_signal_alone)
SIGNAL_METHOD(wait_signal, "src_rank", dd_window_wait_signal)
SIGNAL_METHOD(barrier, NULL, barrier_without_rank)

PY_WINDOW_METHOD(take_signal)
{
    static const signal_method method = {"take_signal", "src_rank", false, NULL};
    signal_call call;
    if (!read_signal(&call, &method, self, args, nargs, kwnames)) {
        return NULL;
    }
    dd_error err;
    dd_wait wait = dd_wait_after(0);
    dd_status status =
        PY_WITHOUT_GIL(dd_window_wait_signal(call.window->window, call.rank, call.channel, &wait, &err));
    if (status != DD_OK && status != DD_OP_TIMED_OUT) {
        py_error_raise_of_group(call.window->state, status, &err);
        return NULL;
    }
    return PyBool_FromLong(status == DD_OK);
}
