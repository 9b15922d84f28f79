#include "python/work/work.h"

#include "core/clock.h"
#include "python/base/convert.h"
#include "python/base/error.h"
#include "python/base/object.h"
#include "python/base/params.h"
#include "python/group/group.h"
#include "python/work/flight.h"

#include <string.h>

static int
work_init(PyObject *object, PyObject *args, PyObject *kwargs)
{
    const py_params params = {.function = "Work"};
    return py_params_read_tuple(&params, ((py_work *)object)->state, args, kwargs) ? 0 : -1;
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
    py_object_begin_dealloc(object);
    if (self->flight != NULL) {
        py_flight_release(self->flight);
    }
    py_object_end_dealloc(object);
}

/* Visit the flight's objects only if the Work has the only reference to the flight: otherwise an
 * unfinished operation may outlive a reference cycle with the Work. */
static int
work_traverse(PyObject *object, visitproc visit, void *arg)
{
    const py_flight *flight = ((py_work *)object)->flight;
    Py_VISIT(Py_TYPE(object));
    Py_VISIT(((py_work *)object)->module);
    if (flight != NULL && flight->is_finished && flight->nowners == 1) {
        Py_VISIT(flight->results);
        Py_VISIT(flight->group);
    }
    return 0;
}

/* ---- queries */

bool
py_work_require_flight(const py_work *self, const char *text)
{
    if (self->flight == NULL) {
        PyErr_SetString(PyExc_RuntimeError, text);
    }
    return self->flight != NULL;
}

int
py_work_poll(py_work *self)
{
    if (self->flight == NULL || !py_flight_is_done(self->flight)) {
        return 0;
    }
    return py_flight_finish(self->flight) ? 1 : -1;
}

static PyObject *
work_is_completed(PyObject *object, PyObject *Py_UNUSED(unused))
{
    int done = py_work_poll((py_work *)object);
    return done >= 0 ? PyBool_FromLong(done) : NULL;
}

static PyObject *
work_is_success(PyObject *object, PyObject *Py_UNUSED(unused))
{
    py_work *self = (py_work *)object;
    if (self->flight == NULL) {
        Py_RETURN_TRUE; /* as in torch: a Work without an operation cannot have failed */
    }
    int done = py_work_poll(self);
    return done >= 0 ? PyBool_FromLong(done && self->flight->work->error.code == DD_OK) : NULL;
}

static PyObject *
work_exception(PyObject *object, PyObject *Py_UNUSED(unused))
{
    py_work *self = (py_work *)object;
    int done = py_work_poll(self);
    if (done < 0) {
        return NULL;
    }
    const dd_error *error = done > 0 ? &self->flight->work->error : NULL;
    if (error == NULL || error->code == DD_OK) {
        Py_RETURN_NONE;
    }
    if (self->flight->is_nccl) {
        dd_nccl_work_note_reported(py_flight_nccl_work(self->flight));
    }
    return py_error_of_group(self->state, error->code, error);
}

/* If the work is not done, raise an error that names the method `label` and return false. */
static bool
require_done(py_work *self, const char *label)
{
    int done = py_work_poll(self);
    if (done == 0) {
        PyErr_Format(PyExc_RuntimeError,
                     "Work needs to be completed before calling %s(). Should call wait() before %s().", label,
                     label);
    }
    return done > 0;
}

static PyObject *
work_result(PyObject *object, PyObject *Py_UNUSED(unused))
{
    py_work *self = (py_work *)object;
    if (!py_work_require_flight(self, "result() not implemented.") || !require_done(self, "result")) {
        return NULL;
    }
    const dd_error *error = &self->flight->work->error;
    return py_error_check_of_group(self->state, error->code, error) ? Py_NewRef(self->flight->results) : NULL;
}

#define NO_SOURCE_RANK \
    "sourceRank() may only be called on work objects that correspond to a recv or recv-from-any call."

/* Return the core's work of a receive that has ended, or NULL with an exception. */
static const dd_work *
read_receive(PyObject *object, const char *label)
{
    py_work *self = (py_work *)object;
    if (!py_work_require_flight(self, NO_SOURCE_RANK) || !require_done(self, label)) {
        return NULL;
    }
    if (self->flight->work->source_rank < 0) {
        PyErr_SetString(PyExc_RuntimeError, NO_SOURCE_RANK);
        return NULL;
    }
    return self->flight->work;
}

/* Like read_receive, but also raise the exception of a receive that failed. */
static const dd_work *
read_received(PyObject *object, const char *label)
{
    const dd_work *work = read_receive(object, label);
    bool is_ok =
        work != NULL && py_error_check_of_group(((py_work *)object)->state, work->error.code, &work->error);
    return is_ok ? work : NULL;
}

static PyObject *
work_source_rank(PyObject *object, PyObject *Py_UNUSED(unused))
{
    const dd_work *work = read_receive(object, "source_rank");
    return work != NULL ? PyLong_FromLong(work->source_rank) : NULL;
}

static PyObject *
work_received_tag(PyObject *object, PyObject *Py_UNUSED(unused))
{
    const dd_work *work = read_received(object, "received_tag");
    return work != NULL ? PyLong_FromUnsignedLongLong(work->tag) : NULL;
}

static PyObject *
work_received_nbytes(PyObject *object, PyObject *Py_UNUSED(unused))
{
    const dd_work *work = read_received(object, "received_nbytes");
    return work != NULL ? PyLong_FromSize_t(work->nbytes) : NULL;
}

static PyObject *
work_cancel(PyObject *object, PyObject *Py_UNUSED(unused))
{
    const py_flight *flight = ((py_work *)object)->flight;
    bool is_receive = flight != NULL && !flight->is_nccl &&
                      (flight->op_type == PY_OP_TYPE_RECV || flight->op_type == PY_OP_TYPE_RECV_ANY_SOURCE);
    bool is_cancelled = false;
    if (is_receive) {
        Py_BEGIN_ALLOW_THREADS
        is_cancelled = dd_group_withdraw(((py_group *)flight->group)->group, flight->work);
        Py_END_ALLOW_THREADS
    }
    return PyBool_FromLong(is_cancelled);
}

/* Read the operation's duration in seconds; for NCCL, as measured on the device. */
static bool
read_duration(py_work *self, double *seconds, const char *label)
{
    if (!py_work_require_flight(self, "This Backend doesn't support getDuration.")) {
        return false;
    }
    if (!self->flight->is_nccl) {
        if (!require_done(self, label)) {
            return false;
        }
        const dd_work *work = self->flight->work;
        *seconds = (double)(work->end_ns - work->start_ns) * 1e-9;
        return true;
    }
    float ms;
    dd_error err;
    if (PY_WITHOUT_GIL(dd_nccl_work_duration(py_flight_nccl_work(self->flight), &ms, &err)) != DD_OK) {
        PyErr_SetString(PyExc_RuntimeError, err.message);
        return false;
    }
    *seconds = (double)ms * 1e-3;
    return true;
}

static PyObject *
get_duration(PyObject *object, void *Py_UNUSED(closure))
{
    double seconds;
    return read_duration((py_work *)object, &seconds, "duration") ? PyFloat_FromDouble(seconds) : NULL;
}

static PyObject *
work_get_duration(PyObject *object, PyObject *Py_UNUSED(unused))
{
    double seconds;
    return read_duration((py_work *)object, &seconds, "_get_duration") ? PyFloat_FromDouble(seconds * 1e3)
                                                                       : NULL;
}

static PyObject *
work_get_sequence(PyObject *object, void *Py_UNUSED(closure))
{
    const py_work *self = (py_work *)object;
    return py_work_require_flight(self, "This Backend doesn't support getSequencenumber.")
               ? PyLong_FromUnsignedLongLong(self->flight->work->sequence)
               : NULL;
}

static PyObject *
work_get_sequence_number(PyObject *object, PyObject *Py_UNUSED(unused))
{
    return work_get_sequence(object, NULL);
}

static PyObject *
work_get_op(PyObject *object, void *Py_UNUSED(closure))
{
    const py_work *self = (py_work *)object;
    return py_work_require_flight(self, "this Work has no operation behind it")
               ? PyUnicode_FromString(self->flight->work->label)
               : NULL;
}

/* Return the operation's timeout, or 0 (no limit) if there is no operation. */
static PyObject *
work_get_timeout(PyObject *object, void *Py_UNUSED(closure))
{
    const py_work *self = (py_work *)object;
    return py_from_timeout_ns(self->state, self->flight != NULL ? self->flight->timeout_ns : 0);
}

static PyObject *
work_get_op_type(PyObject *object, PyObject *Py_UNUSED(unused))
{
    const py_flight *flight = ((py_work *)object)->flight;
    return PyLong_FromLong(flight != NULL ? flight->op_type : PY_OP_TYPE_UNKNOWN);
}

static PyObject *
work_repr(PyObject *object)
{
    py_flight *flight = ((py_work *)object)->flight;
    if (flight == NULL) {
        PyObject *name = PyType_GetName(Py_TYPE(object));
        PyObject *text =
            name != NULL ? PyUnicode_FromFormat("<%U without an operation of dldist>", name) : NULL;
        Py_XDECREF(name);
        return text;
    }
    const dd_work *work = flight->work;
    const char *type = flight->is_nccl ? "NcclWork" : "Work";
    const char *how = !py_flight_is_done(flight)  ? "under way"
                      : work->error.code == DD_OK ? "done"
                                                  : "failed";
    if (work->sequence == 0) {
        return PyUnicode_FromFormat("<dldist.%s: %s, %s>", type, work->label, how);
    }
    return PyUnicode_FromFormat("<dldist.%s: %s #%llu, %s>", type, work->label,
                                (unsigned long long)work->sequence, how);
}

/* ---- waiting */

bool
py_work_wait_for_end(py_work *self, int64_t timeout_ns)
{
    py_flight *flight = self->flight;
    py_wait wait;
    dd_error err;
    py_wait_init(&wait, self->state, timeout_ns > 0 ? timeout_ns : DD_NEVER_NS, true);
    dd_status status = PY_WITHOUT_GIL(py_flight_wait(flight, &wait.wait, &err));
    if (dd_work_is_done(flight->work) && !py_flight_finish(flight)) {
        return false;
    }
    return py_group_finish_wait(&wait, status, &err);
}

bool
py_work_read_timeout(const py_work *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames,
                     int64_t *timeout_ns)
{
    const py_params params = PY_PARAMS("wait", 0, 1, {"timeout", PY_TIMEOUT, timeout_ns});
    *timeout_ns = 0;
    return py_params_read(&params, self->state, args, nargs, kwnames);
}

static PyObject *
work_wait(PyObject *object, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    py_work *self = (py_work *)object;
    int64_t timeout_ns;
    if (!py_work_require_flight(self, "wait() not implemented.") ||
        !py_work_read_timeout(self, args, nargs, kwnames, &timeout_ns)) {
        return NULL;
    }
    int done = py_work_poll(self);
    if (done < 0) {
        return NULL;
    }
    if (done == 0) {
        if (!py_work_wait_for_end(self, timeout_ns)) {
            return NULL;
        }
    } else if (self->flight->work->error.code != DD_OK) {
        py_error_raise_of_group(self->state, self->flight->work->error.code, &self->flight->work->error);
        return NULL;
    }
    Py_RETURN_TRUE;
}

static PyObject *
work_synchronize(PyObject *object, PyObject *Py_UNUSED(unused))
{
    if (((py_work *)object)->flight == NULL) {
        Py_RETURN_NONE;
    }
    PyObject *result = work_wait(object, NULL, 0, NULL);
    Py_XDECREF(result);
    return result != NULL ? Py_NewRef(Py_None) : NULL;
}

/* ---- methods written in Python */

static PyObject *
work_get_future(PyObject *object, PyObject *Py_UNUSED(unused))
{
    return py_work_require_flight((py_work *)object, "Work::getFuture not implemented.")
               ? py_object_call_python(object, "dldist._base.future", "future_of", NULL, NULL)
               : NULL;
}

static PyObject *
work_await(PyObject *object)
{
    return py_work_require_flight((py_work *)object, "Work::getFuture not implemented.")
               ? py_object_call_python(object, "dldist._base.future", "await_work", NULL, NULL)
               : NULL;
}

static PyObject *
work_watch(PyObject *object, PyObject *watcher)
{
    if (!PyCallable_Check(watcher)) {
        py_raise_wrong_type("_watch", "callback", "callable", watcher);
        return NULL;
    }
    const py_work *self = (py_work *)object;
    if (!py_work_require_flight(self, "Work::getFuture not implemented.") ||
        py_flight_watch(self->flight, watcher) < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

/* ---- methods that only backends of other devices support */

static PyObject *
work_get_future_result(PyObject *Py_UNUSED(object), PyObject *Py_UNUSED(unused))
{
    PyErr_SetString(PyExc_RuntimeError, "Work::getFutureResult not implemented.");
    return NULL;
}

static PyObject *
work_block_current_stream(PyObject *Py_UNUSED(object), PyObject *Py_UNUSED(unused))
{
    PyErr_SetString(PyExc_RuntimeError, "Failed to create StreamBlock: the CPU has no streams; call wait()");
    return NULL;
}

/* torch wraps a work for TorchScript; dldist needs no wrapper. */
static PyObject *
work_boxed(PyObject *object, PyObject *Py_UNUSED(unused))
{
    return Py_NewRef(object);
}

static PyObject *
work_unbox(PyObject *type, PyObject *boxed)
{
    int is_work = PyObject_IsInstance(boxed, type);
    if (is_work == 0) {
        py_raise_wrong_type("unbox", "boxed", "a Work", boxed);
    }
    return is_work > 0 ? Py_NewRef(boxed) : NULL;
}

static PyMethodDef work_methods[] = {
    {"is_completed", work_is_completed, METH_NOARGS,
     "is_completed($self, /)\n--\n\nWhether it has ended, successfully or not. Its outputs can be read then."},
    {"is_success", work_is_success, METH_NOARGS,
     "is_success($self, /)\n--\n\nWhether it has ended successfully."},
    {"exception", work_exception, METH_NOARGS,
     "exception($self, /)\n--\n\nThe exception of an operation that failed; None if it has not failed, or not ended."},
    {"result", work_result, METH_NOARGS,
     "result($self, /)\n--\n\nA list of the tensors that it filled, as the caller gave them."},
    {"source_rank", work_source_rank, METH_NOARGS,
     "source_rank($self, /)\n--\n\nThe rank that sent the message."},
    {"received_tag", work_received_tag, METH_NOARGS,
     "received_tag($self, /)\n--\n\nThe tag of the received message."},
    {"received_nbytes", work_received_nbytes, METH_NOARGS,
     "received_nbytes($self, /)\n--\n\nThe size of the received message in bytes."},
    {"cancel", work_cancel, METH_NOARGS,
     "cancel($self, /)\n--\n\nTakes back a receive that no message has matched yet. Returns True if it ends with DistAbortedError,\n"
     "False if nothing changes: a message has matched, the operation has ended, or it is no receive."},
    {"_source_rank", work_source_rank, METH_NOARGS,
     "_source_rank($self, /)\n--\n\nThe same as source_rank()."},
    {"wait", PY_FAST_METHOD(work_wait),
     "wait($self, timeout=None)\n--\n\nWaits for the end, and raises the exception of an operation that failed. "
     "After the timeout it raises\nDistTimeoutError, and the operation goes on. 0 means no limit, as in c10d."},
    {"synchronize", work_synchronize, METH_NOARGS, "synchronize($self, /)\n--\n\nThe same as wait()."},
    {"get_future", work_get_future, METH_NOARGS,
     "get_future($self, /)\n--\n\nA dldist.Future whose value is result()."},
    {"get_future_result", work_get_future_result, METH_NOARGS,
     "get_future_result($self, /)\n--\n\nNot supported on the CPU: raises RuntimeError."},
    {"block_current_stream", work_block_current_stream, METH_NOARGS,
     "block_current_stream($self, /)\n--\n\nNot supported on the CPU: raises RuntimeError."},
    {"boxed", work_boxed, METH_NOARGS, "boxed($self, /)\n--\n\nThe work itself."},
    {"unbox", work_unbox, METH_O | METH_CLASS,
     "unbox($type, boxed, /)\n--\n\nThe work that boxed() returned."},
    {"_get_duration", work_get_duration, METH_NOARGS,
     "_get_duration($self, /)\n--\n\nMilliseconds from its start to its end."},
    {"_get_sequence_number", work_get_sequence_number, METH_NOARGS,
     "_get_sequence_number($self, /)\n--\n\nThe same as sequence."},
    {"_get_op_type", work_get_op_type, METH_NOARGS,
     "_get_op_type($self, /)\n--\n\nIts number in c10d's OpType."},
    {"_watch", work_watch, METH_O,
     "_watch($self, callback, /)\n--\n\nCalls the callback without arguments once the operation has ended."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef work_getset[] = {
    {"duration", get_duration, NULL,
     "Seconds from start to end; on a device, only if the group measures them.", NULL},
    {"sequence", work_get_sequence, NULL,
     "Its number among the collectives of its group, from 1; 0 for messages.", NULL},
    {"op", work_get_op, NULL, "Its name: \"all_reduce\" and so on.", NULL},
    {"timeout", work_get_timeout, NULL, "How long the operation may take; 0 means there is no limit.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot work_slots[] = {
    {Py_tp_doc,
     "Work()\n--\n\nAn operation that has been started.\n\nIt keeps its tensors alive until it has ended, even if the Work is dropped. "
     "A Work can be awaited,\nwhich gives result(). Work() itself is a base class to derive from: it has no operation."},
    {Py_tp_new, (void *)py_object_new},
    {Py_tp_init, (void *)work_init},
    {Py_tp_dealloc, (void *)work_dealloc},
    {Py_tp_traverse, (void *)work_traverse},
    {Py_tp_repr, (void *)work_repr},
    {Py_tp_methods, work_methods},
    {Py_tp_getset, work_getset},
    {Py_tp_members, py_object_members},
    {Py_am_await, (void *)work_await},
    {0, NULL},
};

PyType_Spec py_work_spec = {"dldist.Work", sizeof(py_work), 0, PY_BASE_TYPE_FLAGS | Py_TPFLAGS_HAVE_GC,
                            work_slots};
