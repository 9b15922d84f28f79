#include "python/group/call.h"

#include "python/base/error.h"
#include "python/call/reduce_op.h"
#include "python/group/form.h"
#include "python/group/plan.h"
#include "python/nccl/nccl.h"
#include "python/observe/recorder.h"
#include "python/tensor/foreign.h"

#include <stdio.h>

#include <string.h>

/* Create a flight (Python references) if the operation may outlive the method. */
static bool
begin_flight(py_group_call *call)
{
    bool is_nccl = call->group->nccl != NULL;
    if (!is_nccl && !call->is_async && !call->params->is_plan) {
        return true;
    }
    call->flight = py_flight_create(call->group, call->params->function, call->params->op_type);
    if (call->flight != NULL && is_nccl) {
        py_nccl_call_begin(call);
    }
    return call->flight != NULL;
}

static bool
read_async(py_group_call *call, PyObject *value)
{
    return py_params_flag(call->group->state, value, &call->is_async, call->params->function, "async_op");
}

static bool
read_root(py_group_call *call, PyObject *value)
{
    if (!py_params_int(call->group->state, value, &call->root, call->params->function, "root")) {
        return false;
    }
    if (call->root < 0 || call->root >= call->group->size) {
        py_raise_argument(call->group->state, call->params->function, "root",
                          "is an invalid root rank: got %d, expected 0 to %d", call->root,
                          call->group->size - 1);
        return false;
    }
    return true;
}

static bool
read_common(py_group_call *call)
{
    const py_params *params = call->params;
    py_state *state = call->group->state;
    for (int i = 0; i < params->count; i++) {
        PyObject *value = call->values[i];
        if (value == NULL) {
            continue;
        }
        bool is_ok = true;
        switch ((py_call_kind)params->list[i].kind) {
        case PY_CALL_REDUCTION:
            is_ok = py_reduce_op_read(state, value, &call->reduction,
                                      call->group->nccl != NULL ? &call->factor : NULL, params->function);
            break;
        case PY_CALL_ROOT:
            is_ok = read_root(call, value);
            break;
        case PY_CALL_TIMEOUT:
            is_ok = py_to_timeout_ns(state, value, &call->timeout_ns, params->function, "timeout");
            break;
        case PY_CALL_ASYNC:
            is_ok = read_async(call, value);
            break;
        case PY_CALL_TENSORS:
        case PY_CALL_OTHER:
            break;
        }
        if (!is_ok) {
            return false;
        }
    }
    return true;
}

bool
py_group_call_parse(py_group_call *call, PyObject *self, const py_params *params, PyObject *const *args,
                    Py_ssize_t nargs, PyObject *kwnames)
{
    call->group = (py_group *)self;
    call->params = params;
    if (!py_group_require_open(call->group) || !py_params_parse(params, args, nargs, kwnames, call->values)) {
        return false;
    }
    bool has_optional = kwnames != NULL || nargs > params->nrequired;
    for (int i = params->nrequired; has_optional && i < params->count; i++) {
        call->values[i] = call->values[i] == Py_None ? NULL : call->values[i];
    }
    return true;
}

/* Return a new reference to the first tensor among the arguments, or NULL without an exception. */
static PyObject *
first_tensor(const py_group_call *call)
{
    for (int i = 0; i < call->params->count; i++) {
        PyObject *value = call->params->list[i].kind == PY_CALL_TENSORS ? Py_XNewRef(call->values[i]) : NULL;
        while (value != NULL && (PyList_Check(value) || PyTuple_Check(value))) {
            PyObject *list = value;
            value = PySequence_GetItem(list, 0);
            Py_DECREF(list);
            py_error_forget(); /* the list is empty, or its class does not allow reading items */
        }
        if (value != NULL) {
            return value;
        }
    }
    return NULL;
}

/* Return a new reference to the group for the first tensor's device: the called group, or its
 * NcclGroup for device memory. */
static py_group *
choose_group(const py_group_call *call)
{
    PyObject *tensor = first_tensor(call);
    py_group *chosen = tensor != NULL ? py_group_serving(call->group, tensor, call->params->function)
                                      : (py_group *)Py_NewRef((PyObject *)call->group);
    Py_XDECREF(tensor);
    if (chosen != NULL && !py_group_require_open(chosen)) {
        Py_CLEAR(chosen);
    }
    return chosen;
}

/* Begin a call on the group that choose_group returns. */
static bool
begin_on_group(py_group_call *call)
{
    const py_params *params = call->params;
    call->is_async = params->is_async;
    call->flight = NULL;
    call->timeout_ns = -1;
    call->root = 0;
    call->reduction = (dd_reduction){.op = DD_REDOP_SUM, .factor = 1.0};
    call->factor = NULL;
    if ((params->is_plan && !py_plan_require(call->group, params)) || !read_common(call) ||
        !begin_flight(call)) {
        return false;
    }
    if (call->flight != NULL) {
        call->operands = &call->flight->operands;
    } else {
        call->operands = &call->own;
        py_operands_init(call->operands, call->group->state, params->function);
    }
    call->operands->recorded = params->recorded;
    return true;
}

bool
py_group_call_begin(py_group_call *call)
{
    if (__atomic_load_n(&call->group->device_group, __ATOMIC_RELAXED) == NULL) {
        return begin_on_group(call);
    }
    py_group *chosen = choose_group(call);
    if (chosen == NULL) {
        return false;
    }
    call->group = chosen;
    bool is_begun = begin_on_group(call);
    /* No reference to the chosen group is needed: the caller holds the called group, and the flight
     * of an NcclGroup's call holds the NcclGroup. */
    Py_DECREF((PyObject *)chosen);
    return is_begun;
}

PyObject *
py_group_call_fail(py_group_call *call)
{
    PyObject *exception = py_error_take();
    if (call->flight != NULL) {
        py_flight_destroy(call->flight);
    } else {
        py_operands_fini(call->operands);
    }
    py_error_put(exception);
    return NULL;
}

bool
py_group_call_wait(py_group_call *call, py_group_run *run, void *target, dd_call_options *options,
                   bool is_long)
{
    py_wait wait;
    dd_error err;
    py_wait_init_endless(&wait, call->group->state);
    py_wait_begin(&wait);
    if (is_long || call->operands->is_staged) {
        py_wait_on_block(&wait);
    }
    options->timeout_ns = call->timeout_ns;
    err.keeps_memory = false; /* the core sets keeps_memory only in an error with a message */
    py_operands_pack(call->operands);
    dd_status status = run(call, target, options, &wait.wait, &err);
    if (status == DD_OK) {
        py_operands_unpack(call->operands);
    }
    py_wait_return(&wait);
    bool is_in_use = status != DD_OK && err.keeps_memory;
    if (!py_group_finish_wait(&wait, status, &err)) {
        if (!is_in_use) {
            py_group_call_fail(call);
        } /* else leak the tensors: a carrier library may still write to them */
        return false;
    }
    py_operands_fini(call->operands);
    return true;
}

/* Attach the started flight to `work` and return `work`; if the start failed, end the call. Takes
 * ownership of `work`. */
static PyObject *
finish_start(py_group_call *call, PyObject *work, dd_status status, const dd_error *err)
{
    if (!py_error_check_of_group(call->group->state, status, err)) {
        Py_DECREF(work);
        return py_group_call_fail(call);
    }
    py_work_adopt(work, call->flight);
    return work;
}

PyObject *
py_group_call_start(py_group_call *call, py_group_post *post, const void *target, dd_call_options *options)
{
    py_flight *flight = call->flight;
    PyObject *work = py_object_new(call->group->state->work_type, NULL, NULL);
    if (work == NULL) {
        return py_group_call_fail(call);
    }
    flight->timeout_ns = py_group_timeout_or_own(call->group, call->timeout_ns);
    options->timeout_ns = flight->timeout_ns;
    options->on_done = py_flight_on_done;
    options->ctx = flight;
    dd_error err;
    dd_status status;
    Py_BEGIN_ALLOW_THREADS
    py_operands_pack(&flight->operands);
    status = post(call, target, options, &flight->work, &err);
    if (status == DD_OK && !dd_work_is_done(flight->work)) {
        dd_engine_kick(dd_group_engine(call->group->group));
    }
    Py_END_ALLOW_THREADS
    return finish_start(call, work, status, &err);
}

static dd_status
collective_and_wait(const py_group_call *call, void *target, const dd_call_options *options,
                    const dd_wait *wait, dd_error *err)
{
    return dd_group_collective_and_wait(call->group->group, target, options, wait, err);
}

static dd_status
post_collective(const py_group_call *call, const void *target, const dd_call_options *options, dd_work **work,
                dd_error *err)
{
    return dd_group_collective(call->group->group, target, options, work, err);
}

/* Fail unless elements of a foreign dtype are only moved, or are dates to reduce by MIN or MAX. */
static bool
check_foreign_dtype(const py_group_call *call, dd_coll_args *args)
{
    const py_tensor *tensor = &call->operands->pieces[0].tensor;
    bool is_choice = args->reduction.op == DD_REDOP_MIN || args->reduction.op == DD_REDOP_MAX;
    args->foreign_dtype = tensor->foreign_dtype;
    args->reduction.has_nat = tensor->has_nat;
    if (tensor->foreign_dtype == 0 || !dd_coll_is_folding(args->coll) || (tensor->has_nat && is_choice)) {
        return true;
    }
    int i = 0;
    while (i + 1 < call->params->count && call->params->list[i].kind != PY_CALL_TENSORS) {
        i++;
    }
    py_argument argument = {.state = call->group->state,
                            .function = call->params->function,
                            .name = call->params->list[i].name,
                            .value = tensor->object};
    char problem[64];
    (void)snprintf(problem, sizeof problem, "cannot be reduced by %s", dd_redop_name(args->reduction.op));
    if (!py_foreign_raise(&argument, problem, "numbers in native byte order")) {
        py_argument_raise(&argument, PY_FAULT_DTYPE, "%s: expected numbers in native byte order", problem);
    }
    return false;
}

/* Run a collective whose arguments have been checked. The flight recorder gets the call's
 * description from the form, or from a record if there is no form. */
static PyObject *
run_checked_collective(py_group_call *call, dd_coll_args *args, py_form *form)
{
    py_record record;
    py_group *group = call->group;
    py_state *state = group->state;
    dd_call_options options = {.form = py_form_core(form)};
    if (form != NULL) {
        options.stack = py_record_stack(state);
    } else {
        options.record = py_record_collective(&record, state, args->coll, call->operands);
    }
    PyObject *result = NULL;
    if (call->flight != NULL) {
        result = py_group_call_start(call, post_collective, args, &options);
    } else if (py_group_call_wait(call, collective_and_wait, args, &options, false)) {
        result = Py_NewRef(Py_None);
    }
    py_form_release(group, form);
    return result;
}

/* Fail, with the argument's name, if this rank's own output has another size than its input. */
static bool
check_own_size(const py_group_call *call, const dd_coll_args *args)
{
    if (call->operands->inputs.nblocks == 0 || call->operands->outputs.nblocks == 0) {
        return true;
    }
    size_t in = args->inputs[dd_coll_own_input(args->coll, call->group->rank)].nbytes;
    size_t out = args->outputs[dd_coll_own_output(args->coll, call->group->rank)].nbytes;
    if (in != out) {
        const py_param *output = call->params->list;
        while (output + 1 < call->params->list + call->params->count &&
               strncmp(output->name, "output", strlen("output")) != 0) {
            output++;
        }
        py_raise_argument(
            call->group->state, call->params->function, output->name,
            "has a wrong size: got %zu bytes for this rank's own data, expected %zu as in its input", out,
            in);
    }
    return in == out;
}

PyObject *
py_group_call_run(py_group_call *call, dd_coll coll, bool is_ok)
{
    if (call->group->nccl != NULL) {
        return py_nccl_call_run(call, coll, is_ok);
    }
    dd_coll_args args = {.coll = coll, .root = call->root, .reduction = call->reduction};
    args.reduction.dtype = py_operands_dtype(call->operands);
    args.reduction.divisor = call->group->size;
    is_ok = is_ok && (call->operands->npieces == 0 || check_foreign_dtype(call, &args));
    py_form *form = is_ok ? py_form_acquire(call, &args) : NULL;
    if (form == NULL) {
        if (!is_ok || PyErr_Occurred() != NULL ||
            !py_operands_prepare(call->operands, &args, call->group->rank) || !check_own_size(call, &args)) {
            return py_group_call_fail(call);
        }
        if (call->params->is_plan) {
            return py_plan_make(call, &args);
        }
        form = py_form_make(call, &args);
        if (form == NULL && PyErr_Occurred() != NULL) {
            return py_group_call_fail(call);
        }
    }
    return run_checked_collective(call, &args, form);
}
