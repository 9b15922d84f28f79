#include "python/nccl/batch.h"

#include "core/mem.h"
#include "nccl/window.h"
#include "python/work/flight.h"

static py_nccl_batch *
find_batch_locked(const py_nccl_core *core, unsigned long thread, bool is_estimate)
{
    py_nccl_batch *batch = core->batches;
    while (batch != NULL && (batch->thread != thread || (is_estimate && !batch->is_estimate))) {
        batch = batch->next;
    }
    return batch;
}

static py_nccl_batch *
find_batch(py_nccl_core *core, bool is_estimate)
{
    unsigned long thread = PyThread_get_thread_ident();
    return PY_LOCKED(&core->lock, find_batch_locked(core, thread, is_estimate));
}

py_nccl_batch *
py_nccl_batch_find(py_nccl_core *core)
{
    return find_batch(core, false);
}

py_nccl_batch *
py_nccl_estimate_find(py_nccl_core *core)
{
    return find_batch(core, true);
}

py_nccl_batch *
py_nccl_batch_open(py_nccl_core *core, bool is_estimate)
{
    py_nccl_batch *batch = dd_mem_zalloc(sizeof *batch);
    if (batch == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    batch->thread = PyThread_get_thread_ident();
    batch->is_estimate = is_estimate;
    py_lock_take(&core->lock);
    batch->next = core->batches;
    core->batches = batch;
    py_lock_release(&core->lock);
    return batch;
}

bool
py_nccl_batch_append(py_nccl_batch *batch, const py_nccl_item *items, size_t nitems)
{
    size_t wanted = batch->nitems + nitems;
    if (wanted > batch->capacity) {
        size_t capacity = wanted > 2 * batch->capacity ? wanted + 7 : 2 * batch->capacity;
        py_nccl_item *room = dd_mem_realloc(batch->items, capacity * sizeof *room);
        if (room == NULL) {
            PyErr_NoMemory();
            return false;
        }
        batch->items = room;
        batch->capacity = capacity;
    }
    for (size_t i = 0; i < nitems; i++) {
        batch->items[batch->nitems++] = items[i];
        Py_XINCREF(items[i].config);
        if (items[i].op.window != NULL) {
            (void)dd_nccl_group_window_acquire(items[i].op.window);
        }
    }
    return true;
}

void
py_nccl_batch_take_out(py_nccl_core *core, py_nccl_batch *batch)
{
    py_lock_take(&core->lock);
    py_nccl_batch **link = &core->batches;
    while (*link != batch) {
        link = &(*link)->next;
    }
    *link = batch->next;
    py_lock_release(&core->lock);
}

void
py_nccl_batch_destroy(py_nccl_batch *batch, bool has_flights)
{
    for (size_t i = 0; i < batch->nitems; i++) {
        if (has_flights) {
            py_flight_destroy(batch->items[i].flight);
        }
        dd_nccl_group_window_release(batch->items[i].op.window);
        Py_XDECREF(batch->items[i].config);
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
        py_nccl_batch_destroy(batch, true);
    }
}

dd_record_call *
py_nccl_record(const py_group *group, const py_nccl_item *item, const char *label, py_record *record)
{
    const dd_nccl_op *op = &item->op;
    const py_operands *operands = &item->flight->operands;
    if (group->nccl->recorded == NULL) {
        return NULL;
    }
    dd_record_call *call =
        op->kind == DD_NCCL_OP_COLL
            ? py_record_collective(record, group->state, op->args.coll, operands)
            : py_record_message(record, group->state, operands,
                                op->kind != DD_NCCL_OP_RECV && op->kind != DD_NCCL_OP_WAIT_SIGNAL, op->peer);
    if (call != NULL) {
        call->name = label;
    }
    return call;
}

PyObject *
py_nccl_group_start_coalescing(PyObject *object, PyObject *Py_UNUSED(unused))
{
    py_group *self = (py_group *)object;
    if (!py_group_require_open(self)) {
        return NULL;
    }
    const py_nccl_batch *outer = py_nccl_batch_find(self->nccl);
    if (outer != NULL && !outer->is_estimate) {
        PyErr_SetString(PyExc_RuntimeError, "start_coalescing(): this thread has already called it");
        return NULL;
    }
    return py_nccl_batch_open(self->nccl, false) != NULL ? Py_NewRef(Py_None) : NULL;
}

PyObject *
py_nccl_group_drop_coalesced(PyObject *object, PyObject *Py_UNUSED(unused))
{
    py_group *self = (py_group *)object;
    if (!py_group_require_open(self)) {
        return NULL;
    }
    py_nccl_batch *batch = py_nccl_batch_find(self->nccl);
    if (batch != NULL && !batch->is_estimate) {
        py_nccl_batch_take_out(self->nccl, batch);
        py_nccl_batch_destroy(batch, true);
    }
    Py_RETURN_NONE;
}
