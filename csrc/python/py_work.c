#include "python/py_work.h"

#include "core/clock.h"
#include "python/py_group.h"
#include "python/py_group_params.h"
#include "python/py_work_internal.h"

typedef struct py_work {
    PyObject ob_base; /* PyObject_HEAD */
    PyObject *module; /* const after new: keeps `state` alive */
    py_state *state;  /* const after new */
    PyObject *weakrefs;
    py_flight *flight; /* const after adopt: one share in it */
} py_work;

PyObject *
py_work_create(py_state *state)
{
    PyObject *module;
    PyTypeObject *type = state->work_type;
    if (py_state_of_type(type, &module) == NULL) {
        return NULL;
    }
    allocfunc alloc = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    py_work *self = (py_work *)alloc(type, 0);
    if (self != NULL) {
        self->module = Py_NewRef(module);
        self->state = state;
    }
    return (PyObject *)self;
}

void
py_work_adopt(PyObject *work, py_flight *flight)
{
    ((py_work *)work)->flight = flight;
}

static void
work_dealloc(PyObject *object)
{
    py_work *self = (py_work *)object;
    PyTypeObject *type = Py_TYPE(object);
    PyObject_GC_UnTrack(object);
    if (self->weakrefs != NULL) {
        PyObject_ClearWeakRefs(object);
    }
    if (self->flight != NULL) {
        py_flight_abandon(self->flight);
    }
    PyObject *module = self->module;
    freefunc free_object = (freefunc)PyType_GetSlot(type, Py_tp_free);
    free_object(object);
    Py_DECREF(type);
    Py_XDECREF(module);
}

/* What the flight refers to is visited only when nobody else can need it any more: an operation under way may
 * outlive the cycle. */
static int
work_traverse(PyObject *object, visitproc visit, void *arg)
{
    const py_flight *flight = ((py_work *)object)->flight;
    Py_VISIT(Py_TYPE(object));
    Py_VISIT(((py_work *)object)->module);
    if (flight != NULL && flight->is_settled && flight->nowners == 1) {
        Py_VISIT(flight->results);
        Py_VISIT(flight->group);
    }
    return 0;
}

/* ---- questions */

/* 1: done, and what it has brought is where it belongs. 0: not yet. -1 with an exception. */
static int
look(py_work *self)
{
    if (!py_flight_is_done(self->flight)) {
        return 0;
    }
    return py_flight_settle(self->flight) ? 1 : -1;
}

static PyObject *
work_is_completed(PyObject *object, PyObject *unused)
{
    (void)unused;
    int done = look((py_work *)object);
    return done >= 0 ? PyBool_FromLong(done) : NULL;
}

static PyObject *
work_is_success(PyObject *object, PyObject *unused)
{
    (void)unused;
    py_work *self = (py_work *)object;
    int done = look(self);
    return done >= 0 ? PyBool_FromLong(done && self->flight->work->error.code == DD_OK) : NULL;
}

static PyObject *
work_exception(PyObject *object, PyObject *unused)
{
    (void)unused;
    py_work *self = (py_work *)object;
    int done = look(self);
    if (done < 0) {
        return NULL;
    }
    const dd_error *error = &self->flight->work->error;
    if (done == 0 || error->code == DD_OK) {
        Py_RETURN_NONE;
    }
    return py_error_of_group(self->state, error->code, error);
}

/* False with an exception that says that `what` has to wait for the end. */
static bool
require_done(py_work *self, const char *what)
{
    int done = look(self);
    if (done == 0) {
        PyErr_Format(PyExc_RuntimeError,
                     "Work needs to be completed before calling %s(). Should call wait() before %s().", what,
                     what);
    }
    return done > 0;
}

static PyObject *
work_result(PyObject *object, PyObject *unused)
{
    (void)unused;
    py_work *self = (py_work *)object;
    if (!require_done(self, "result")) {
        return NULL;
    }
    const dd_error *error = &self->flight->work->error;
    if (error->code != DD_OK) {
        py_error_raise_of_group(self->state, error->code, error);
        return NULL;
    }
    return Py_NewRef(self->flight->results);
}

static PyObject *
work_source_rank(PyObject *object, PyObject *unused)
{
    (void)unused;
    py_work *self = (py_work *)object;
    if (!require_done(self, "source_rank")) {
        return NULL;
    }
    if (self->flight->work->source_rank < 0) {
        PyErr_SetString(PyExc_RuntimeError,
                        "sourceRank() may only be called on work objects that correspond to "
                        "a recv or recv-from-any call.");
        return NULL;
    }
    return PyLong_FromLong(self->flight->work->source_rank);
}

static PyObject *
get_duration(PyObject *object, void *closure)
{
    (void)closure;
    py_work *self = (py_work *)object;
    if (!require_done(self, "duration")) {
        return NULL;
    }
    const dd_work *work = self->flight->work;
    return PyFloat_FromDouble((double)(work->end_ns - work->start_ns) * 1e-9);
}

static PyObject *
get_sequence(PyObject *object, void *closure)
{
    (void)closure;
    return PyLong_FromUnsignedLongLong(((py_work *)object)->flight->work->sequence);
}

static PyObject *
get_op(PyObject *object, void *closure)
{
    (void)closure;
    return PyUnicode_FromString(((py_work *)object)->flight->work->what);
}

static PyObject *
work_repr(PyObject *object)
{
    py_flight *flight = ((py_work *)object)->flight;
    const dd_work *work = flight->work;
    const char *how = !py_flight_is_done(flight)  ? "under way"
                      : work->error.code == DD_OK ? "done"
                                                  : "failed";
    if (work->sequence == 0) {
        return PyUnicode_FromFormat("<dldist.Work: %s, %s>", work->what, how);
    }
    return PyUnicode_FromFormat("<dldist.Work: %s #%llu, %s>", work->what, (unsigned long long)work->sequence,
                                how);
}

/* ---- waiting */

static bool
wait_for_end(py_work *self, int64_t timeout_ns)
{
    py_flight *flight = self->flight;
    py_wait wait;
    dd_error err;
    dd_status status;
    py_wait_init(&wait, self->state, timeout_ns, true);
    Py_BEGIN_ALLOW_THREADS
    status = dd_group_wait(py_group_core(flight->group), flight->work, &wait.wait, &err);
    Py_END_ALLOW_THREADS
    if (dd_work_is_done(flight->work) && !py_flight_settle(flight)) {
        return false;
    }
    return py_group_finish_wait(&wait, status, &err);
}

static PyObject *
work_wait(PyObject *object, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    static const py_params params = {
        .function = "wait", .npositional = 1, .count = 1, .names = {PY_NAME_TIMEOUT}};
    py_work *self = (py_work *)object;
    PyObject *values[PY_PARAMS_MAX];
    int64_t timeout_ns = DD_NEVER_NS;
    if (!py_params_parse(&params, self->state, args, nargs, kwnames, values) ||
        (values[0] != NULL && !py_to_timeout_ns(self->state, values[0], &timeout_ns, "wait", "timeout"))) {
        return NULL;
    }
    int done = look(self);
    if (done < 0) {
        return NULL;
    }
    if (done == 0) {
        if (!wait_for_end(self, timeout_ns)) {
            return NULL;
        }
    } else if (self->flight->work->error.code != DD_OK) {
        py_error_raise_of_group(self->state, self->flight->work->error.code, &self->flight->work->error);
        return NULL;
    }
    Py_RETURN_TRUE;
}

static PyObject *
work_synchronize(PyObject *object, PyObject *unused)
{
    (void)unused;
    PyObject *result = work_wait(object, NULL, 0, NULL);
    Py_XDECREF(result);
    return result != NULL ? Py_NewRef(Py_None) : NULL;
}

/* ---- what is written in Python */

static PyObject *
call_future_module(PyObject *object, const char *function)
{
    PyObject *module = PyImport_ImportModule("dldist._future");
    PyObject *result = module != NULL ? PyObject_CallMethod(module, function, "O", object) : NULL;
    Py_XDECREF(module);
    return result;
}

static PyObject *
work_get_future(PyObject *object, PyObject *unused)
{
    (void)unused;
    return call_future_module(object, "future_of");
}

static PyObject *
work_await(PyObject *object)
{
    return call_future_module(object, "await_work");
}

static PyObject *
work_watch(PyObject *object, PyObject *watcher)
{
    if (!PyCallable_Check(watcher)) {
        py_raise_wrong_type("_watch", "callback", "callable", watcher);
        return NULL;
    }
    if (py_flight_watch(((py_work *)object)->flight, watcher) < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyMethodDef work_methods[] = {
    {"is_completed", work_is_completed, METH_NOARGS,
     "is_completed($self, /)\n--\n\nWhether it has ended, well or not; its outputs can be read then."},
    {"is_success", work_is_success, METH_NOARGS, "is_success($self, /)\n--\n\nWhether it has ended well."},
    {"exception", work_exception, METH_NOARGS,
     "exception($self, /)\n--\n\nWhy it failed; None when it has not, or not ended."},
    {"result", work_result, METH_NOARGS,
     "result($self, /)\n--\n\nThe tensors it has filled, as they were given, in a list."},
    {"source_rank", work_source_rank, METH_NOARGS,
     "source_rank($self, /)\n--\n\nThe rank that sent what was received."},
    {"wait", PY_FAST_METHOD(work_wait),
     "wait($self, timeout=None)\n--\n\nWaits for the end and raises what went wrong. When the time is up it raises "
     "DistTimeoutError,\nand the operation goes on."},
    {"synchronize", work_synchronize, METH_NOARGS, "synchronize($self, /)\n--\n\nThe same as wait()."},
    {"get_future", work_get_future, METH_NOARGS,
     "get_future($self, /)\n--\n\nA dldist.Future whose value is result()."},
    {"_watch", work_watch, METH_O,
     "_watch($self, callback, /)\n--\n\nCalls back without arguments once it has ended."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef work_getset[] = {
    {"duration", get_duration, NULL, "Seconds from its start to its end.", NULL},
    {"sequence", get_sequence, NULL, "Its number among the collectives of its group; 0 for messages.", NULL},
    {"op", get_op, NULL, "Its name: \"all_reduce\" and so on.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMemberDef work_members[] = {
    {"__weaklistoffset__", T_PYSSIZET, offsetof(py_work, weakrefs), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot work_slots[] = {
    {Py_tp_doc,
     "An operation under way.\n\nIt keeps its tensors alive until it has ended, also when it is dropped. "
     "It can be awaited;\nthat gives result()."},
    {Py_tp_dealloc, (void *)work_dealloc},
    {Py_tp_traverse, (void *)work_traverse},
    {Py_tp_repr, (void *)work_repr},
    {Py_tp_methods, work_methods},
    {Py_tp_getset, work_getset},
    {Py_tp_members, work_members},
    {Py_am_await, (void *)work_await},
    {0, NULL},
};

static PyType_Spec work_spec = {
    .name = "dldist.Work",
    .basicsize = sizeof(py_work),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE |
             Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = work_slots,
};

PyObject *
py_work_make_type(PyObject *module)
{
    return PyType_FromModuleAndSpec(module, &work_spec, NULL);
}
