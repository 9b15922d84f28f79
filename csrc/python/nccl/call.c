/* One call of an operation of an NcclGroup, and several calls that are one operation.
 *
 * Every call has a flight. Most calls do not wait for the end: when one returns, its operation is in the caller's
 * stream. What it needs until the device is done is kept by the flight, or by allocators that reuse memory only in
 * the order of its stream. */
#include "core/mem.h"
#include "nccl/nccl_window.h"
#include "python/base/error.h"
#include "python/call/reduce_op.h"
#include "python/nccl/plan.h"
#include "python/observe/recorder.h"
#include "python/work/flight.h"

#include <string.h>

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

/* ---- one operation */

/* What to start, and how. */
typedef struct py_launch {
    py_group *group;
    py_nccl_plan *plan;
    const py_nccl_item *item; /* the first: its flight is taken over, and it is what is recorded */
    py_flight *flight;        /* that of the item */
    const char *what;
    int64_t timeout_ns; /* negative: the group's own */
    bool is_async;
} py_launch;

/* Fills in the record of the call in `told`. */
static void
record(const py_launch *launch, py_record *told)
{
    const py_group *group = launch->group;
    const dd_nccl_op *op = &launch->item->op;
    const py_operands *operands = &launch->flight->operands;
    if (group->nccl->recorded == NULL) {
        return;
    }
    dd_record_call *call =
        op->kind == DD_NCCL_OP_COLL
            ? py_record_collective(told, group->state, op->args.coll, operands)
            : py_record_message(told, group->state, operands,
                                op->kind != DD_NCCL_OP_RECV && op->kind != DD_NCCL_OP_WAIT_SIGNAL, op->peer);
    if (call != NULL) {
        call->name = launch->what;
    }
    launch->plan->call.record = call;
}

/* Runs without the GIL. *is_started: whether there is a work. */
static dd_status
start(py_launch *launch, const dd_wait *wait, bool *is_started, dd_error *err)
{
    py_nccl_plan *plan = launch->plan;
    dd_nccl_work *work = NULL;
    dd_status status = dd_nccl_group_start(launch->group->nccl->group, &plan->call, &work, wait, err);
    *is_started = status == DD_OK;
    if (status != DD_OK) {
        return status;
    }
    launch->flight->work = &work->base;
    launch->flight->timeout_ns = dd_nccl_work_timeout_ns(work); /* including add_ephemeral_timeout() */
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

/* Releases the flight of a call that the host or its streams have waited for. */
static void
let_go(const py_launch *launch, dd_status status)
{
    PyObject *exception = py_error_take();
    if (launch->plan->call.on_done == NULL) {
        launch->flight->is_stream_ordered = status == DD_OK;
        py_flight_destroy(launch->flight);
    } else {
        py_flight_abandon(launch->flight);
    }
    py_error_put(exception);
}

/* Takes over the flight and ends the plan. Returns a Work or None; NULL with an exception. */
static PyObject *
run(py_launch *launch)
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
    plan->call.what = launch->what;
    flight->timeout_ns = py_group_timeout_or_own(launch->group, launch->timeout_ns);
    plan->call.timeout_ns = flight->timeout_ns;
    flight->is_blocking = plan->is_blocking;
    bool is_started = false;
    py_wait wait;
    dd_error err;
    py_record told;
    record(launch, &told);
    py_wait_init_endless(&wait, state);
    wait.wait.start_ns = dd_clock_now_ns();
    dd_status status = PY_WITHOUT_GIL(start(launch, &wait.wait, &is_started, &err));
    py_nccl_plan_fini(plan);
    bool is_ok = py_group_finish_wait(&wait, status, &err);
    if (is_started && work != NULL) {
        py_work_adopt(work, flight);
    } else if (is_started) {
        let_go(launch, status);
    } else {
        py_flight_destroy(flight);
    }
    if (!is_ok) {
        Py_XDECREF(work);
        return NULL;
    }
    return work != NULL ? work : Py_NewRef(Py_None);
}

/* ---- several calls in one operation */

static py_nccl_batch *
find_batch(const py_nccl_core *core)
{
    if (core->batches == NULL) {
        return NULL;
    }
    unsigned long thread = PyThread_get_thread_ident();
    py_nccl_batch *batch = core->batches;
    while (batch != NULL && batch->thread != thread) {
        batch = batch->next;
    }
    return batch;
}

/* The flights that it still has, and the windows. */
static void
destroy_batch(py_nccl_batch *batch, bool has_flights)
{
    for (size_t i = 0; i < batch->nitems; i++) {
        if (has_flights) {
            py_flight_destroy(batch->items[i].flight);
        }
        dd_nccl_group_window_release(batch->items[i].op.window);
    }
    dd_mem_free(batch->items);
    dd_mem_free(batch);
}

void
py_nccl_batches_destroy(py_nccl_core *core)
{
    while (core->batches != NULL) {
        py_nccl_batch *batch = core->batches;
        core->batches = batch->next;
        destroy_batch(batch, true);
    }
}

static bool
append(py_nccl_batch *batch, const py_nccl_item *item)
{
    if (batch->nitems == batch->capacity) {
        size_t capacity = batch->capacity > 0 ? 2 * batch->capacity : 8;
        py_nccl_item *items = dd_mem_realloc(batch->items, capacity * sizeof *items);
        if (items == NULL) {
            PyErr_NoMemory();
            return false;
        }
        batch->items = items;
        batch->capacity = capacity;
    }
    batch->items[batch->nitems++] = *item;
    if (item->op.window != NULL) {
        (void)dd_nccl_group_window_acquire(item->op.window);
    }
    return true;
}

PyObject *
py_nccl_group_start_coalescing(PyObject *object, PyObject *Py_UNUSED(unused))
{
    py_group *self = (py_group *)object;
    if (!py_group_require_open(self)) {
        return NULL;
    }
    if (find_batch(self->nccl) != NULL) {
        PyErr_SetString(PyExc_RuntimeError, "start_coalescing(): this thread has already called it");
        return NULL;
    }
    py_nccl_batch *batch = dd_mem_zalloc(sizeof *batch);
    if (batch == NULL) {
        return PyErr_NoMemory();
    }
    batch->thread = PyThread_get_thread_ident();
    batch->next = self->nccl->batches;
    self->nccl->batches = batch;
    Py_RETURN_NONE;
}

static void
take_out(py_nccl_core *core, py_nccl_batch *batch)
{
    py_nccl_batch **link = &core->batches;
    while (*link != batch) {
        link = &(*link)->next;
    }
    *link = batch->next;
}

/* The first flight, with the others linked behind it, for the work of all. */
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
        destroy_batch(batch, true);
        Py_RETURN_NONE;
    }
    py_nccl_plan plan;
    if (!py_nccl_plan_make(&plan, self, batch->items, batch->nitems)) {
        destroy_batch(batch, true);
        return NULL;
    }
    py_flight *flight = chain(batch);
    py_launch launch = {.group = self,
                        .plan = &plan,
                        .item = &batch->items[0],
                        .what = flight->operands.function,
                        .timeout_ns = timeout_ns,
                        .is_async = is_async};
    if (batch->nitems > 1) {
        launch.what = "coalesced";
        flight->op_type = PY_OP_TYPE_COALESCED;
    }
    plan.call.is_batch = true;
    PyObject *result = run(&launch);
    destroy_batch(batch, false);
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
    py_nccl_batch *batch = find_batch(self->nccl);
    if (batch == NULL) {
        PyErr_SetString(PyExc_RuntimeError,
                        "end_coalescing(): this thread has not called start_coalescing()");
        return NULL;
    }
    take_out(self->nccl, batch);
    return run_batch(self, batch, timeout_ns, is_async);
}

PyObject *
py_nccl_group_drop_coalesced(PyObject *object, PyObject *Py_UNUSED(unused))
{
    py_group *self = (py_group *)object;
    py_nccl_batch *batch = py_group_require_open(self) ? find_batch(self->nccl) : NULL;
    if (batch != NULL) {
        take_out(self->nccl, batch);
        destroy_batch(batch, true);
    }
    return PyErr_Occurred() == NULL ? Py_NewRef(Py_None) : NULL;
}

/* ---- calls */

/* Runs the call now, or adds it to the batch that this thread is making. */
static PyObject *
run_or_append(py_group_call *call, const dd_nccl_op *op)
{
    py_group *group = call->group;
    py_nccl_item item = {.flight = call->flight, .op = *op};
    py_nccl_batch *batch = find_batch(group->nccl);
    if (batch != NULL) {
        if (!append(batch, &item)) {
            return py_group_call_fail(call);
        }
        Py_RETURN_NONE;
    }
    py_nccl_plan plan;
    if (!py_nccl_plan_make(&plan, group, &item, 1)) {
        return py_group_call_fail(call);
    }
    py_launch launch = {.group = group,
                        .plan = &plan,
                        .item = &item,
                        .what = call->flight->operands.function,
                        .timeout_ns = call->timeout_ns,
                        .is_async = call->is_async};
    return run(&launch);
}

PyObject *
py_nccl_call_run(py_group_call *call, dd_coll coll, bool is_ok)
{
    dd_nccl_op op = {
        .kind = DD_NCCL_OP_COLL,
        .args = {.coll = coll, .root = call->root, .reduction = call->reduction},
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
    /* The operation has the same name with and without waiting. */
    call->flight->operands.function = message->is_send ? "send" : "recv";
    /* A message fills all of the tensor. */
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
run_barrier(py_group *self, int device, int64_t timeout_ns, bool is_async)
{
    py_flight *flight = py_flight_create(self, "barrier", PY_OP_TYPE_BARRIER);
    if (flight == NULL) {
        return NULL;
    }
    py_nccl_plan plan = {.call = {.device = device, .nops = 1, .is_barrier = true}, .is_blocking = true};
    plan.ops = &plan.first_op;
    plan.first_op = (dd_nccl_op){.kind = DD_NCCL_OP_COLL, .args = {.coll = DD_COLL_BARRIER}};
    plan.call.ops = plan.ops;
    py_nccl_item item = {.flight = flight, .op = plan.first_op};
    py_launch launch = {.group = self,
                        .plan = &plan,
                        .item = &item,
                        .what = "barrier",
                        .timeout_ns = timeout_ns,
                        .is_async = is_async};
    return run(&launch);
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
    return run_barrier(self, device, timeout_ns, is_async);
}
