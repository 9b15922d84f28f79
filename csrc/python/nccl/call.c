/* Calls of an NcclGroup: single calls, and several calls coalesced into one operation.
 *
 * Every call has a flight, the Python references of its operation (work/work.h). Most calls do not
 * wait for the operation's end: when the call returns, its operation is in the caller's stream.
 * Until the device is done, the operation's memory is kept by the flight, or by allocators that
 * reuse memory only in the order of its stream. */
#include "python/base/error.h"
#include "python/call/reduce_op.h"
#include "python/nccl/batch.h"
#include "python/nccl/plan.h"
#include "python/observe/recorder.h"
#include "python/work/flight.h"

static bool
find_stream(void *ctx, int device, void **stream)
{
    py_group *group = ctx;
    dd_error err;
    dd_status status;
    dd_cuda_stream found = NULL;
    Py_BEGIN_ALLOW_THREADS
    status = dd_nccl_group_check(group->nccl->group, &err);
    if (status == DD_OK) {
        status = dd_nccl_group_stream(group->nccl->group, device, &found, &err);
    }
    Py_END_ALLOW_THREADS
    if (status != DD_OK) {
        py_error_raise_of_group(group->state, status, &err);
    }
    *stream = found;
    return status == DD_OK;
}

void
py_nccl_call_begin(const py_group_call *call)
{
    py_group *group = call->group;
    py_device_scope *scope = &call->flight->operands.device;
    py_device_scope_init(scope, group->state);
    scope->find_stream = find_stream;
    scope->ctx = group;
    scope->is_host_taken = group->nccl->is_host_taken;
}

/* ---- single operations */

/* The data that is needed to start one operation. */
typedef struct py_launch {
    py_group *group;
    py_nccl_plan *plan;
    const py_nccl_item *item; /* the first item, which has the flight and the record */
    py_flight *flight;        /* the item's flight */
    const char *label;
    int64_t timeout_ns; /* timeout; negative means the group's timeout */
    bool is_async;
} py_launch;

/* Start the operation. Must be called without the GIL. Set *is_started to true if the operation has
 * been started, even if waiting for it fails. */
static dd_status
launch_start(py_launch *launch, const dd_wait *wait, bool *is_started, dd_error *err)
{
    py_nccl_plan *plan = launch->plan;
    dd_nccl_work *work = NULL;
    dd_status status = dd_nccl_group_start(launch->group->nccl->group, &plan->call, &work, wait, err);
    *is_started = status == DD_OK;
    if (status != DD_OK) {
        return status;
    }
    launch->flight->work = &work->base;
    /* the work's timeout includes the time added by add_ephemeral_timeout() */
    launch->flight->timeout_ns = dd_nccl_work_timeout_ns(work);
    if (launch->is_async) {
        return DD_OK;
    }
    if (plan->is_blocking) {
        return dd_nccl_work_wait(work, wait, err);
    }
    for (size_t i = 0; status == DD_OK && i < plan->call.nstreams; i++) {
        status = dd_nccl_work_wait_stream(work, plan->streams[i], err);
    }
    return status;
}

/* Release a call's flight after the host or the call's streams have waited for the operation. */
static void
launch_release(const py_launch *launch, dd_status status)
{
    PyObject *exception = py_error_take();
    if (launch->plan->call.on_done == NULL) {
        launch->flight->is_stream_ordered = status == DD_OK;
        py_flight_destroy(launch->flight);
    } else {
        py_flight_release(launch->flight);
    }
    py_error_put(exception);
}

/* Warn once if a NaN check was left out of a CUDA graph. Return false with an exception if the
 * program turns the warning into an error. */
static bool
warn_of_missed_nan(const py_launch *launch)
{
    return !dd_nccl_group_take_nan_missed(launch->group->nccl->group) ||
           PyErr_WarnEx(
               PyExc_RuntimeWarning,
               "NaN is not looked for in CUDA graphs: the CUDA driver does not take dldist's kernels",
               1) == 0;
}

/* Run the operation. Takes ownership of the flight and ends the plan. Return a Work or None, or
 * NULL with an exception on failure. */
static PyObject *
launch_run(py_launch *launch)
{
    py_nccl_plan *plan = launch->plan;
    py_flight *flight = launch->item->flight;
    launch->flight = flight;
    py_state *state = launch->group->state;
    PyObject *work = launch->is_async ? py_object_new(state->nccl_work_type, NULL, NULL) : NULL;
    if (launch->is_async && work == NULL) {
        py_nccl_plan_fini(plan);
        py_flight_destroy(flight);
        return NULL;
    }
    bool is_ordered = !launch->is_async && !plan->is_blocking && plan->is_stream_ordered;
    plan->call.on_done = is_ordered ? NULL : py_flight_on_done;
    plan->call.ctx = flight;
    plan->call.label = launch->label;
    flight->timeout_ns = py_group_timeout_or_own(launch->group, launch->timeout_ns);
    plan->call.timeout_ns = flight->timeout_ns;
    flight->is_blocking = plan->is_blocking;
    bool is_started = false;
    py_wait wait;
    dd_error err;
    py_record record;
    plan->call.record = py_nccl_record(launch->group, launch->item, launch->label, &record);
    py_wait_init(&wait, state, DD_NEVER_NS, true);
    dd_status status = PY_WITHOUT_GIL(launch_start(launch, &wait.wait, &is_started, &err));
    py_nccl_plan_fini(plan);
    bool is_ok = py_group_finish_wait(&wait, status, &err);
    if (is_started && work != NULL) {
        py_work_adopt(work, flight);
    } else if (is_started) {
        launch_release(launch, status);
    } else {
        py_flight_destroy(flight);
    }
    if (!is_ok || !warn_of_missed_nan(launch)) {
        Py_XDECREF(work);
        return NULL;
    }
    return work != NULL ? work : Py_NewRef(Py_None);
}

/* ---- coalesced calls */

/* Link the flights of the batch, because its calls share one work. Return the first flight. */
static py_flight *
chain(py_nccl_batch *batch)
{
    for (size_t i = 0; i + 1 < batch->nitems; i++) {
        batch->items[i].flight->others = batch->items[i + 1].flight;
    }
    return batch->items[0].flight;
}

static PyObject *
run_batch(py_group *self, py_nccl_batch *batch, int64_t timeout_ns, bool is_async)
{
    if (batch->nitems == 0) {
        py_nccl_batch_destroy(batch, true);
        Py_RETURN_NONE;
    }
    py_nccl_plan plan;
    if (!py_nccl_plan_make(&plan, self, batch->items, batch->nitems)) {
        py_nccl_batch_destroy(batch, true);
        return NULL;
    }
    py_flight *flight = chain(batch);
    py_launch launch = {.group = self,
                        .plan = &plan,
                        .item = &batch->items[0],
                        .label = flight->operands.function,
                        .timeout_ns = timeout_ns,
                        .is_async = is_async};
    if (batch->nitems > 1) {
        launch.label = "coalesced";
        flight->op_type = PY_OP_TYPE_COALESCED;
    }
    plan.call.is_batch = true;
    PyObject *result = launch_run(&launch);
    py_nccl_batch_destroy(batch, false);
    return result;
}

/* Move the batch's calls into the estimate. Takes ownership of the batch. */
static PyObject *
move_batch(const py_group *self, py_nccl_batch *batch, py_nccl_batch *estimate, bool is_async)
{
    PyObject *result = py_nccl_estimate_add(self, estimate, batch->items, batch->nitems, is_async);
    py_nccl_batch_destroy(batch, result == NULL);
    return result;
}

PyObject *
py_nccl_group_end_coalescing(PyObject *object, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    py_group *self = (py_group *)object;
    int64_t timeout_ns = -1;
    bool is_async = true;
    const py_params params = PY_PARAMS("end_coalescing", 0, 0, {"timeout", PY_TIMEOUT, &timeout_ns},
                                       {"async_op", PY_FLAG, &is_async});
    if (!py_group_require_open(self) || !py_params_read(&params, self->state, args, nargs, kwnames)) {
        return NULL;
    }
    py_nccl_batch *batch = py_nccl_batch_find(self->nccl);
    if (batch == NULL || batch->is_estimate) {
        PyErr_SetString(PyExc_RuntimeError,
                        "end_coalescing(): this thread has not called start_coalescing()");
        return NULL;
    }
    py_nccl_batch_take_out(self->nccl, batch);
    py_nccl_batch *estimate = py_nccl_batch_find(self->nccl);
    return estimate != NULL ? move_batch(self, batch, estimate, is_async)
                            : run_batch(self, batch, timeout_ns, is_async);
}

/* ---- calls */

/* Run a call that is not coalesced, and end it. */
static PyObject *
run_alone(py_group_call *call, const py_nccl_item *item)
{
    py_nccl_plan plan;
    if (!py_nccl_plan_make(&plan, call->group, item, 1)) {
        return py_group_call_fail(call);
    }
    py_launch launch = {.group = call->group,
                        .plan = &plan,
                        .item = item,
                        .label = call->flight->operands.function,
                        .timeout_ns = call->timeout_ns,
                        .is_async = call->is_async};
    return launch_run(&launch);
}

/* Run the call now, or add it to the thread's batch or estimate. Ends the call in any case. */
static PyObject *
run_or_append(py_group_call *call, const dd_nccl_op *op)
{
    py_group *group = call->group;
    py_nccl_item item = {.flight = call->flight, .op = *op};
    if (!py_nccl_find_coll_config(group->state->nccl, &item.config, &item.op.config)) {
        return py_group_call_fail(call);
    }
    py_nccl_batch *batch = py_nccl_batch_find(group->nccl);
    PyObject *result = NULL;
    if (batch == NULL) {
        result = run_alone(call, &item);
    } else if (batch->is_estimate) {
        result = py_nccl_estimate_add(group, batch, &item, 1, call->is_async);
    } else if (py_nccl_batch_append(batch, &item, 1)) {
        result = Py_NewRef(Py_None);
    }
    if (batch != NULL && result == NULL) {
        py_group_call_fail(call);
    }
    Py_XDECREF(item.config);
    return result;
}

PyObject *
py_nccl_call_run(py_group_call *call, dd_coll coll, bool is_ok)
{
    dd_nccl_op op = {
        .kind = DD_NCCL_OP_COLL,
        .args = {.coll = coll, .root = call->root, .reduction = call->reduction},
        .is_flat = call->is_flat,
    };
    op.args.reduction.dtype = py_operands_dtype(call->operands);
    op.args.reduction.divisor = call->group->size;
    is_ok =
        is_ok && (call->factor == NULL || py_reduce_op_add_factor(call->factor, call->operands, &op.factor));
    return is_ok ? run_or_append(call, &op) : py_group_call_fail(call);
}

PyObject *
py_nccl_call_run_message(py_group_call *call, const py_group_message *message)
{
    if (message->rank == DD_ANY_RANK) {
        PyErr_Format(PyExc_NotImplementedError, "%s(): NCCL cannot receive from any rank: give 'src'",
                     call->params->function);
        return py_group_call_fail(call);
    }
    /* Messages and records use the names send and recv also for isend and irecv. */
    call->flight->operands.function = message->is_send ? "send" : "recv";
    /* Do not copy a received tensor's old contents: the message fills the whole tensor. */
    call->operands->pieces[0].is_input = message->is_send;
    dd_nccl_op op = {.kind = message->is_send ? DD_NCCL_OP_SEND : DD_NCCL_OP_RECV, .peer = message->rank};
    PyObject *result = run_or_append(call, &op);
    if (result != Py_None || call->is_async || message->is_send) {
        return result;
    }
    Py_DECREF(result);
    return PyLong_FromLong(message->rank);
}

PyObject *
py_nccl_call_run_one_sided(py_group_call *call, const dd_nccl_op *op, bool is_ok)
{
    return is_ok ? run_or_append(call, op) : py_group_call_fail(call);
}

/* ---- the barrier */

static bool
read_device_ids(py_group *self, PyObject *device_ids, int *device)
{
    Py_ssize_t ngiven = device_ids != NULL ? PySequence_Size(device_ids) : 0;
    if (ngiven <= 0) {
        return ngiven == 0 && py_nccl_group_choose_device(self, device);
    }
    PyObject *first = PySequence_GetItem(device_ids, 0);
    bool is_ok = first != NULL && py_params_int(self->state, first, device, "barrier", "device_ids");
    Py_XDECREF(first);
    return is_ok;
}

static PyObject *
estimate_barrier(py_group *self, py_nccl_batch *estimate, const py_nccl_item *item, int device, bool is_async)
{
    py_device_scope *scope = &item->flight->operands.device;
    py_device_scope_init(scope, self->state);
    scope->device = device;
    PyObject *result = py_nccl_estimate_add(self, estimate, item, 1, is_async);
    if (result == NULL) {
        py_flight_destroy(item->flight);
    }
    return result;
}

static PyObject *
run_device_barrier(py_group *self, int device, int64_t timeout_ns, bool is_async)
{
    py_flight *flight = py_flight_create(self, "barrier", PY_OP_TYPE_BARRIER);
    if (flight == NULL) {
        return NULL;
    }
    py_nccl_item item = {.flight = flight,
                         .op = {.kind = DD_NCCL_OP_COLL, .args = {.coll = DD_COLL_BARRIER}}};
    py_nccl_batch *estimate = py_nccl_estimate_find(self->nccl);
    if (estimate != NULL) {
        return estimate_barrier(self, estimate, &item, device, is_async);
    }
    py_nccl_plan plan = {.call = {.device = device, .nops = 1}, .is_blocking = true};
    plan.ops = &plan.first_op;
    plan.first_op = item.op;
    plan.call.ops = plan.ops;
    py_launch launch = {.group = self,
                        .plan = &plan,
                        .item = &item,
                        .label = "barrier",
                        .timeout_ns = timeout_ns,
                        .is_async = is_async};
    return launch_run(&launch);
}

PyObject *
py_nccl_group_barrier(PyObject *object, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    py_group *self = (py_group *)object;
    PyObject *device_ids = NULL;
    bool is_async = false;
    int64_t timeout_ns = -1;
    const py_params params =
        PY_PARAMS("barrier", 0, 0, {"timeout", PY_TIMEOUT, &timeout_ns}, {"async_op", PY_FLAG, &is_async},
                  {"device_ids", PY_OBJECT, &device_ids});
    int device;
    if (!py_group_require_open(self) || !py_params_read(&params, self->state, args, nargs, kwnames) ||
        !read_device_ids(self, device_ids, &device)) {
        return NULL;
    }
    return run_device_barrier(self, device, timeout_ns, is_async);
}
