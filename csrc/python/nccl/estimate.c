/* Estimates: a thread's calls are collected, and NCCL estimates their total duration at the end.
 * The thread's ncclGroup is open only during this last step, so that no code between the calls can
 * leave the ncclGroup open, or add calls to it. */
#include "python/base/error.h"
#include "python/nccl/batch.h"
#include "python/nccl/plan.h"
#include "python/work/flight.h"

static bool
check_items(const py_group *group, const py_nccl_item *items, size_t nitems)
{
    for (size_t i = 0; i < nitems; i++) {
        dd_error err;
        dd_status status = dd_nccl_op_check_estimate(&items[i].op, &err);
        if (status != DD_OK) {
            dd_error_prepend(&err, "%s()", items[i].flight->operands.function);
            return py_error_check_of_group(group->state, status, &err);
        }
    }
    return true;
}

/* Create a completed Work with the tensors that the calls would fill. */
static PyObject *
make_work(const py_nccl_item *items, size_t nitems)
{
    PyObject *results = PyList_New(0);
    for (size_t i = 0; i < nitems; i++) {
        py_operands_add_results(&items[i].flight->operands, &results);
    }
    PyObject *work = results != NULL
                         ? py_object_call_python(results, "dldist._base.works", "done_work", NULL, NULL)
                         : NULL;
    Py_XDECREF(results);
    return work;
}

/* Remove an item's streams: an estimate runs nothing that a stream would have to wait for. */
static void
clear_streams(const py_nccl_item *item)
{
    py_device_scope *scope = &item->flight->operands.device;
    scope->nstreams = 0;
    scope->is_blocking = false;
}

PyObject *
py_nccl_estimate_add(const py_group *group, py_nccl_batch *estimate, const py_nccl_item *items, size_t nitems,
                     bool is_async)
{
    if (nitems == 0) {
        Py_RETURN_NONE;
    }
    PyObject *work = !check_items(group, items, nitems) ? NULL
                     : is_async                         ? make_work(items, nitems)
                                                        : Py_NewRef(Py_None);
    if (work == NULL || !py_nccl_batch_append(estimate, items, nitems)) {
        Py_XDECREF(work);
        return NULL;
    }
    py_record record;
    const char *label = nitems > 1 ? "coalesced" : items[0].flight->operands.function;
    dd_nccl_group_note_estimated(group->nccl->group, py_nccl_record(group, &items[0], label, &record));
    for (size_t i = 0; i < nitems; i++) {
        clear_streams(&items[i]);
    }
    return work;
}

PyObject *
py_nccl_group_start_estimate(PyObject *object, PyObject *Py_UNUSED(unused))
{
    py_group *self = (py_group *)object;
    dd_error err;
    if (!py_group_require_open(self)) {
        return NULL;
    }
    dd_status status = dd_nccl_need(self->state->nccl->lib, DD_NCCL_CAN_GROUP_SIMULATE, &err);
    if (!py_error_check_of_group(self->state, status, &err)) {
        return NULL;
    }
    if (py_nccl_batch_find(self->nccl) != NULL) {
        PyErr_SetString(PyExc_RuntimeError,
                        "_start_time_estimate(): this thread has already called it, or start_coalescing()");
        return NULL;
    }
    return py_nccl_batch_open(self->nccl, true) != NULL ? Py_NewRef(Py_None) : NULL;
}

/* Get NCCL's estimate of the calls' duration. Return false with an exception on failure. */
static bool
estimate_items(py_group *self, const py_nccl_batch *estimate, float *microseconds)
{
    py_nccl_plan plan;
    if (!py_nccl_plan_make(&plan, self, estimate->items, estimate->nitems)) {
        return false;
    }
    plan.call.label = "time_estimate";
    plan.call.is_batch = true;
    plan.call.timeout_ns = -1;
    py_wait wait;
    dd_error err;
    py_wait_init(&wait, self->state, DD_NEVER_NS, true);
    dd_status status =
        PY_WITHOUT_GIL(dd_nccl_group_estimate(self->nccl->group, &plan.call, microseconds, &wait.wait, &err));
    py_nccl_plan_fini(&plan);
    return py_group_finish_wait(&wait, status, &err);
}

PyObject *
py_nccl_group_end_estimate(PyObject *object, PyObject *Py_UNUSED(unused))
{
    py_group *self = (py_group *)object;
    if (!py_group_require_open(self)) {
        return NULL;
    }
    py_nccl_batch *estimate = py_nccl_batch_find(self->nccl);
    if (estimate == NULL || !estimate->is_estimate) {
        PyErr_SetString(PyExc_RuntimeError,
                        estimate == NULL
                            ? "_end_time_estimate(): this thread has not called _start_time_estimate()"
                            : "_end_time_estimate(): this thread has not called end_coalescing()");
        return NULL;
    }
    py_nccl_batch_take_out(self->nccl, estimate);
    float microseconds = DD_NCCL_NO_ESTIMATE;
    bool is_ok = estimate->nitems == 0 || estimate_items(self, estimate, &microseconds);
    PyObject *exception = py_error_take();
    py_nccl_batch_destroy(estimate, true);
    py_error_put(exception);
    return is_ok ? PyFloat_FromDouble((double)microseconds) : NULL;
}

PyObject *
py_nccl_group_drop_estimate(PyObject *object, PyObject *Py_UNUSED(unused))
{
    py_group *self = (py_group *)object;
    bool is_open = py_group_require_open(self);
    while (is_open && py_nccl_estimate_find(self->nccl) != NULL) {
        py_nccl_batch *batch = py_nccl_batch_find(self->nccl);
        py_nccl_batch_take_out(self->nccl, batch);
        py_nccl_batch_destroy(batch, true);
    }
    return is_open ? Py_NewRef(Py_None) : NULL;
}
