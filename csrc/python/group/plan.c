/* A plan keeps everything that a start needs in a flight (work/work.h), like a call that does not
 * wait. If the plan is freed during a run, the operation keeps the flight. */
#include "python/group/plan.h"

#include "core/fork.h"
#include "core/lock.h"
#include "core/mem.h"
#include "python/base/error.h"
#include "python/base/object.h"
#include "python/observe/recorder.h"
#include "python/work/flight.h"

typedef struct py_plan {
    PY_OBJECT_HEAD;
    dd_coll coll; /* the collective; const after new */
    /* `call` and `flight`: const while a thread holds the plan; NULL once the plan has ended */
    dd_prepared_call *call; /* owned: the prepared call of the core */
    py_flight *flight;      /* owned; the flight's work is the work of `call` */
    py_lock lock;
    /* The fields below are guarded by `lock`. */
    bool is_closed;   /* if true, no thread may enter; the last thread that leaves ends the plan */
    bool is_starting; /* true while a thread starts the plan */
    bool is_started;  /* true while the last start is unfinished, until plan_finish_start */
    uint64_t nstarts;
    dd_error previous; /* outcome of the previous start; valid while is_starting */
    int nholders;      /* number of threads that hold the plan and may use `call` and `flight` */
    int nbusy;         /* number of threads that are in start() or wait() */
    /* The field below is guarded by the flight's unpacking_mu. */
    uint64_t nunpacked; /* number of the last start whose outputs have been unpacked */
} py_plan;

bool
py_plan_require(const py_group *group, const py_params *params)
{
    if (group->nccl == NULL) {
        return true;
    }
    PyErr_Format(
        PyExc_NotImplementedError,
        "%s(): an NcclGroup has no plans: capture its calls in a CUDA graph, which can be launched many times",
        params->function);
    return false;
}

PyObject *
py_plan_make(py_group_call *call, const dd_coll_args *args)
{
    py_state *state = call->group->state;
    py_plan *self = (py_plan *)py_object_new(state->plan_type, NULL, NULL);
    if (self == NULL) {
        return py_group_call_fail(call);
    }
    py_record record;
    dd_call_options options = {.timeout_ns = call->timeout_ns,
                               .record = py_record_collective(&record, state, args->coll, call->operands)};
    if (!PY_GROUP_TRY(state, dd_group_prepare_call, call->group->group, args, &options, &self->call)) {
        Py_DECREF(self);
        return py_group_call_fail(call);
    }
    self->coll = args->coll;
    self->flight = call->flight;
    self->flight->work = dd_work_acquire(dd_prepared_work(self->call));
    return (PyObject *)self;
}

/* Release the prepared call and the flight: now, or when an unfinished run ends. */
static void
plan_end(py_plan *self)
{
    dd_prepared_call *call = self->call;
    py_flight *flight = self->flight;
    self->call = NULL;
    self->flight = NULL;
    if (call == NULL || flight->generation != dd_fork_generation()) {
        return; /* a plan of the parent process: here, its locks may be held forever */
    }
    bool is_under_way = PY_WITHOUT_GIL(dd_prepared_destroy(call, py_flight_on_done, flight));
    if (!self->is_started) {
        py_flight_destroy(flight);
        return;
    }
    if (!is_under_way) {
        py_flight_on_done(flight->work, flight);
    }
    py_flight_release(flight); /* an unfinished run still fills the flight's outputs */
}

static void
plan_dealloc(PyObject *object)
{
    py_plan *self = (py_plan *)object;
    py_object_begin_dealloc(object);
    PyObject *exception = py_error_take();
    plan_end(self);
    py_error_put(exception);
    py_object_end_dealloc(object);
}

/* Visit the flight's objects only if no run is unfinished, because an unfinished operation may
 * outlive a reference cycle with the plan. There is no tp_clear: see base/object.h. */
static int
plan_traverse(PyObject *object, visitproc visit, void *arg)
{
    const py_plan *self = (py_plan *)object;
    Py_VISIT(Py_TYPE(object));
    Py_VISIT(self->module);
    if (self->flight == NULL || self->is_started || self->nholders > 0) {
        return 0;
    }
    Py_VISIT(self->flight->group);
    return py_operands_traverse(&self->flight->operands, visit, arg);
}

static bool
raise_closed(void)
{
    PyErr_SetString(PyExc_RuntimeError, "this plan has been closed: create another one");
    return false;
}

static void
hold_locked(py_plan *self, bool is_busy)
{
    self->nholders++;
    self->nbusy += is_busy ? 1 : 0;
}

/* Make this thread hold the plan until plan_leave. Fail if the plan is closed. */
static bool
plan_enter(py_plan *self)
{
    py_lock_take(&self->lock);
    bool is_open = !self->is_closed;
    if (is_open) {
        hold_locked(self, false);
    }
    py_lock_release(&self->lock);
    return is_open || raise_closed();
}

/* End this thread's hold of the plan. If the plan is closed, the last thread that leaves ends the
 * plan. Keeps the current exception. */
static void
plan_leave(py_plan *self, bool is_busy)
{
    py_lock_take(&self->lock);
    self->nholders--;
    self->nbusy -= is_busy ? 1 : 0;
    bool is_end = self->is_closed && self->nholders == 0;
    py_lock_release(&self->lock);
    if (is_end) {
        PyObject *exception = py_error_take();
        plan_end(self);
        py_error_put(exception);
    }
}

static PyObject *
plan_close(PyObject *object, PyObject *Py_UNUSED(unused))
{
    py_plan *self = (py_plan *)object;
    py_lock_take(&self->lock);
    bool is_busy = self->nbusy > 0;
    bool is_end = !is_busy && !self->is_closed && self->nholders == 0;
    self->is_closed = self->is_closed || !is_busy;
    py_lock_release(&self->lock);
    if (is_busy) {
        PyErr_SetString(PyExc_RuntimeError, "close(): another thread is in start() or wait() of this plan");
        return NULL;
    }
    if (is_end) {
        plan_end(self);
    }
    Py_RETURN_NONE;
}

bool
py_plan_describe(const py_state *state, PyObject *plan, py_plan_description *description)
{
    if (!PyObject_TypeCheck(plan, state->plan_type)) {
        py_raise_wrong_type("describe", "plan", "a Plan", plan);
        return false;
    }
    py_plan *self = (py_plan *)plan;
    if (!plan_enter(self)) {
        return false;
    }
    dd_prepared_describe(self->call, &description->args, &description->timeout_ns);
    description->operands = &self->flight->operands;
    return true;
}

void
py_plan_end_description(PyObject *plan)
{
    plan_leave((py_plan *)plan, false);
}

/* ---- starting */

/* Copy the outcome of the last start that has ended. While a thread starts the plan, this outcome
 * is in `previous`, because the start resets the work. */
static void
copy_outcome_locked(const py_plan *self, dd_error *err)
{
    const dd_error *error = self->is_starting ? &self->previous : &self->flight->work->error;
    err->code = DD_OK;
    if (error->code != DD_OK) {
        *err = *error;
    }
}

/* Reserve the plan: no other thread can then start or close the plan until end_reservation. */
static bool
plan_reserve(py_plan *self)
{
    dd_error err;
    err.code = DD_OK;
    py_lock_take(&self->lock);
    bool is_open = !self->is_closed;
    bool is_free = is_open && !self->is_started && !self->is_starting;
    if (is_free) {
        copy_outcome_locked(self, &self->previous);
        self->is_starting = true;
        hold_locked(self, true);
    } else if (is_open && self->is_started && dd_work_is_done(self->flight->work)) {
        copy_outcome_locked(self, &err);
    }
    py_lock_release(&self->lock);
    if (is_free) {
        return true;
    }
    if (!is_open) {
        return raise_closed();
    }
    if (py_error_check_of_group(self->state, err.code, &err)) {
        PyErr_Format(PyExc_RuntimeError, "%R cannot be started again before it has been waited for", self);
    }
    return false;
}

/* End a reservation. is_started must be false if the plan could not be started. */
static void
end_reservation(py_plan *self, bool is_started)
{
    py_lock_take(&self->lock);
    self->is_starting = false;
    if (is_started) {
        self->is_started = true;
        self->nstarts++;
    }
    py_lock_release(&self->lock);
    plan_leave(self, true);
}

/* Start the plan. is_patient is true if the caller waits for the operation's end next. */
static bool
plan_begin(py_plan *self, bool is_patient)
{
    dd_error err;
    py_wait wait;
    if (!plan_reserve(self)) {
        return false;
    }
    py_wait_init_endless(&wait, self->state);
    py_wait_begin(&wait);
    if (self->flight->operands.is_staged) {
        py_wait_on_block(&wait);
        py_operands_pack(&self->flight->operands);
    }
    dd_status status = dd_prepared_start(&self->call, 1, is_patient, &wait.wait, &err);
    py_wait_return(&wait);
    end_reservation(self, status == DD_OK);
    return py_error_check_of_group(self->state, status, &err);
}

static PyObject *
plan_start(PyObject *object, PyObject *Py_UNUSED(unused))
{
    return plan_begin((py_plan *)object, false) ? Py_NewRef(Py_None) : NULL;
}

/* ---- waiting for the end */

/* Unpack the outputs of start number `nstart`. Unpack only once, even if several threads wait. */
static void
plan_unpack_once(py_plan *self, uint64_t nstart)
{
    py_flight *flight = self->flight;
    Py_BEGIN_ALLOW_THREADS
    dd_lock_take(&flight->unpacking_mu);
    if (self->nunpacked < nstart) {
        py_operands_unpack(&flight->operands);
        self->nunpacked = nstart;
    }
    dd_lock_release(&flight->unpacking_mu);
    Py_END_ALLOW_THREADS
}

/* If the operation of start number `nstart` has ended, unpack its outputs and allow the next start.
 * The calling thread must hold the plan. Does nothing if another thread has finished this start,
 * even if that thread has started the plan again. */
static void
plan_finish_start(py_plan *self, uint64_t nstart)
{
    const py_flight *flight = self->flight;
    py_lock_take(&self->lock);
    bool is_pending = self->is_started && self->nstarts == nstart && dd_work_is_done(flight->work);
    bool is_packed = is_pending && flight->operands.is_staged && flight->work->error.code == DD_OK;
    if (is_pending && !is_packed) {
        self->is_started = false;
    }
    py_lock_release(&self->lock);
    if (is_packed) {
        plan_unpack_once(self, nstart);
        py_lock_take(&self->lock);
        if (self->nstarts == nstart) {
            self->is_started = false;
        }
        py_lock_release(&self->lock);
    }
}

/* If the plan has an unfinished start, hold the plan, set *nstart to the start's number and return
 * true. Otherwise set *err to the outcome of the last start that has ended, and return false. */
static bool
hold_start_locked(py_plan *self, bool is_busy, uint64_t *nstart, dd_error *err)
{
    err->code = DD_OK;
    if (self->is_closed) {
        return false;
    }
    if (self->is_started) {
        *nstart = self->nstarts;
        hold_locked(self, is_busy);
        return true;
    }
    copy_outcome_locked(self, err);
    return false;
}

static PyObject *
plan_wait_for(py_plan *self)
{
    py_wait wait;
    dd_error err;
    uint64_t nstart;
    py_lock_take(&self->lock);
    bool is_closed = self->is_closed;
    bool is_held = hold_start_locked(self, true, &nstart, &err);
    py_lock_release(&self->lock);
    if (is_closed) {
        (void)raise_closed();
        return NULL;
    }
    if (!is_held) {
        return py_error_check_of_group(self->state, err.code, &err) ? Py_NewRef(Py_None) : NULL;
    }
    py_wait_init_endless(&wait, self->state);
    py_wait_begin(&wait);
    dd_status status = dd_prepared_wait(self->call, &wait.wait, &err);
    py_wait_return(&wait);
    plan_finish_start(self, nstart);
    plan_leave(self, true);
    return py_group_finish_wait(&wait, status, &err) ? Py_NewRef(Py_None) : NULL;
}

static PyObject *
plan_wait(PyObject *object, PyObject *Py_UNUSED(unused))
{
    return plan_wait_for((py_plan *)object);
}

static PyObject *
plan_run(PyObject *object, PyObject *Py_UNUSED(unused))
{
    py_plan *self = (py_plan *)object;
    return plan_begin(self, true) ? plan_wait_for(self) : NULL;
}

static PyObject *
plan_call(PyObject *object, PyObject *args, PyObject *kwargs)
{
    if (PyTuple_Size(args) > 0 || (kwargs != NULL && PyDict_Size(kwargs) > 0)) {
        PyErr_SetString(PyExc_TypeError, "a plan is called without arguments");
        return NULL;
    }
    return plan_run(object, NULL);
}

static PyObject *
plan_is_completed(PyObject *object, PyObject *Py_UNUSED(unused))
{
    py_plan *self = (py_plan *)object;
    dd_error unused;
    uint64_t nstart;
    py_lock_take(&self->lock);
    bool is_closed = self->is_closed;
    bool is_done = !self->is_starting;
    bool is_held = hold_start_locked(self, false, &nstart, &unused);
    py_lock_release(&self->lock);
    if (is_closed) {
        (void)raise_closed();
        return NULL;
    }
    if (is_held) {
        is_done = PY_BRIEFLY(dd_prepared_poll(self->call));
        plan_finish_start(self, nstart);
        plan_leave(self, false);
    }
    return PyBool_FromLong(is_done);
}

/* ---- several plans */

/* Check that the object is a list or tuple of Plans. Return the Plans as a new tuple. */
static PyObject *
read_plans(py_state *state, PyObject *object, const char *function)
{
    if (!PyList_Check(object) && !PyTuple_Check(object)) {
        py_raise_wrong_type(function, "plans", "a list or tuple of Plans", object);
        return NULL;
    }
    PyObject *plans = PySequence_Tuple(object);
    for (Py_ssize_t i = 0; plans != NULL && i < PyTuple_Size(plans); i++) {
        PyObject *item = PyTuple_GetItem(plans, i);
        if (!PyObject_TypeCheck(item, state->plan_type)) {
            py_raise_wrong_type(function, "plans", "a list or tuple of Plans", item);
            Py_CLEAR(plans);
        }
    }
    return plans;
}

static py_plan *
plan_at(PyObject *plans, Py_ssize_t i)
{
    return (py_plan *)PyTuple_GetItem(plans, i);
}

/* End the reservations of the first `count` plans, of which the first `nstarted` were started. */
static void
release_all(PyObject *plans, Py_ssize_t count, Py_ssize_t nstarted)
{
    for (Py_ssize_t i = 0; i < count; i++) {
        end_reservation(plan_at(plans, i), i < nstarted);
    }
}

/* Reserve all plans for a start. If one plan cannot be reserved, reserve none and return false. */
static bool
take_all(PyObject *plans, dd_prepared_call **calls)
{
    for (Py_ssize_t i = 0; i < PyTuple_Size(plans); i++) {
        py_plan *self = plan_at(plans, i);
        if (!plan_reserve(self)) {
            release_all(plans, i, 0);
            return false;
        }
        calls[i] = self->call;
    }
    return true;
}

/* Return the index after the last of the consecutive plans from `begin` on that share one group. */
static Py_ssize_t
end_of_group(PyObject *plans, Py_ssize_t begin)
{
    Py_ssize_t end = begin + 1;
    while (end < PyTuple_Size(plans) &&
           plan_at(plans, end)->flight->group == plan_at(plans, begin)->flight->group) {
        end++;
    }
    return end;
}

/* Start the reserved plans and return the number of started plans. Needs no GIL, because no other
 * thread uses the tuple or changes reserved plans. */
static Py_ssize_t
start_taken(PyObject *plans, dd_prepared_call *const *calls, dd_status *status, dd_error *err)
{
    Py_ssize_t nstarted = 0;
    const dd_wait at_once = {.deadline_ns = DD_NEVER_NS};
    *status = DD_OK;
    while (*status == DD_OK && nstarted < PyTuple_Size(plans)) {
        Py_ssize_t end = end_of_group(plans, nstarted);
        for (Py_ssize_t i = nstarted; i < end; i++) {
            py_operands_pack(&plan_at(plans, i)->flight->operands);
        }
        *status = dd_prepared_start(calls + nstarted, (size_t)(end - nstarted), false, &at_once, err);
        nstarted = *status == DD_OK ? end : nstarted;
    }
    return nstarted;
}

static bool
start_all(py_state *state, PyObject *plans, dd_prepared_call **calls)
{
    dd_status status;
    dd_error err;
    if (!take_all(plans, calls)) {
        return false;
    }
    Py_ssize_t nstarted = PY_WITHOUT_GIL(start_taken(plans, calls, &status, &err));
    release_all(plans, PyTuple_Size(plans), nstarted);
    return py_error_check_of_group(state, status, &err);
}

PyObject *
py_plan_start_all(PyObject *module, PyObject *object)
{
    py_state *state = PyModule_GetState(module);
    PyObject *plans = read_plans(state, object, "start_all");
    if (plans == NULL) {
        return NULL;
    }
    dd_prepared_call **calls =
        dd_mem_alloc_array((size_t)PyTuple_Size(plans) + 1, sizeof(dd_prepared_call *));
    bool is_ok = calls != NULL ? start_all(state, plans, calls) : PyErr_NoMemory() != NULL;
    dd_mem_free(calls);
    Py_DECREF(plans);
    return is_ok ? Py_NewRef(Py_None) : NULL;
}

PyObject *
py_plan_wait_all(PyObject *module, PyObject *object)
{
    PyObject *plans = read_plans(PyModule_GetState(module), object, "wait_all");
    bool is_ok = plans != NULL;
    for (Py_ssize_t i = 0; is_ok && i < PyTuple_Size(plans); i++) {
        PyObject *waited = plan_wait_for(plan_at(plans, i));
        is_ok = waited != NULL;
        Py_XDECREF(waited);
    }
    Py_XDECREF(plans);
    return is_ok ? Py_NewRef(Py_None) : NULL;
}

static PyObject *
plan_get_op(PyObject *object, void *Py_UNUSED(closure))
{
    return PyUnicode_FromString(dd_coll_name(((py_plan *)object)->coll));
}

static PyObject *
get_tensors(PyObject *object, void *Py_UNUSED(closure))
{
    py_plan *self = (py_plan *)object;
    if (!plan_enter(self)) {
        return NULL;
    }
    PyObject *tensors = PyList_New(0);
    py_operands_add_results(&self->flight->operands, &tensors);
    plan_leave(self, false);
    return tensors;
}

static PyObject *
plan_repr(PyObject *object)
{
    py_plan *self = (py_plan *)object;
    py_lock_take(&self->lock);
    const char *how = self->is_closed                         ? "closed"
                      : self->is_started || self->is_starting ? "started"
                                                              : "ready";
    py_lock_release(&self->lock);
    return PyUnicode_FromFormat("<dldist.Plan: %s, %s>", dd_coll_name(self->coll), how);
}

static PyMethodDef plan_methods[] = {
    /* __call__ is defined in addition to tp_call, because the tp_call slot shows no signature. */
    {"__call__", plan_run, METH_NOARGS | METH_COEXIST, "__call__($self, /)\n--\n\nstart() and wait()."},
    {"start", plan_start, METH_NOARGS,
     "start($self, /)\n--\n\nStarts the collective. Its place among the group's collectives is that of this call."},
    {"wait", plan_wait, METH_NOARGS,
     "wait($self, /)\n--\n\nWaits until the last start has ended, and raises its exception if it failed."},
    {"is_completed", plan_is_completed, METH_NOARGS,
     "is_completed($self, /)\n--\n\n"
     "Whether the last start has ended, successfully or not. Its outputs can be read then."},
    {"close", plan_close, METH_NOARGS,
     "close($self, /)\n--\n\nReleases the tensors, once an unfinished start has ended. Does not wait."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef plan_getset[] = {
    {"op", plan_get_op, NULL, "Its name: \"all_reduce\" and so on.", NULL},
    {"tensors", get_tensors, NULL, "A list of the tensors that it fills, as the caller gave them.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot plan_slots[] = {
    {Py_tp_doc,
     "A collective that can be started many times. Group.plan.all_reduce() and similar methods make one.\n\n"
     "Calling a Plan starts it and waits for it."},
    {Py_tp_call, (void *)plan_call},
    {Py_tp_dealloc, (void *)plan_dealloc},
    {Py_tp_traverse, (void *)plan_traverse},
    {Py_tp_repr, (void *)plan_repr},
    {Py_tp_methods, plan_methods},
    {Py_tp_getset, plan_getset},
    {Py_tp_members, py_object_members},
    {0, NULL},
};

PyType_Spec py_plan_spec = {"dldist.Plan", sizeof(py_plan), 0, PY_MADE_TYPE_FLAGS | Py_TPFLAGS_HAVE_GC,
                            plan_slots};
