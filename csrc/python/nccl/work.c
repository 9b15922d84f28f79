/* dldist.NcclWork: a Work whose operation is on a device. wait() makes the streams of the tensors'
 * libraries wait, not the host. If the host must wait, wait() blocks like Work.wait(). */
#include "python/base/error.h"
#include "python/nccl/nccl.h"
#include "python/work/flight.h"

/* Streams that must wait for the operation, at most PY_MAX_STREAMS at a time. */
typedef struct waiting_streams {
    void *handles[PY_MAX_STREAMS];
    size_t count;
} waiting_streams;

/* Make the streams in the list wait for the operation, and empty the list. */
static bool
order(const py_work *self, waiting_streams *streams)
{
    dd_error err;
    dd_status status = DD_OK;
    Py_BEGIN_ALLOW_THREADS
    for (size_t i = 0; status == DD_OK && i < streams->count; i++) {
        status = dd_nccl_work_wait_stream(py_flight_nccl_work(self->flight), streams->handles[i], &err);
    }
    Py_END_ALLOW_THREADS
    streams->count = 0;
    return py_error_check_of_group(self->state, status, &err);
}

static bool
is_among(const waiting_streams *streams, const void *handle)
{
    for (size_t i = 0; i < streams->count; i++) {
        if (streams->handles[i] == handle) {
            return true;
        }
    }
    return false;
}

/* Make the current streams of the tensors' libraries wait for the operation. Making a stream wait
 * twice is harmless. Return false with an exception on failure. */
static bool
order_waiting_streams(py_work *self)
{
    waiting_streams streams = {.count = 0};
    for (const py_flight *each = self->flight; each != NULL; each = each->others) {
        const py_device_scope *scope = &each->operands.device;
        void *asked[PY_MAX_STREAMS];
        if (scope->state == NULL) {
            continue; /* a barrier has no tensors, and so no streams */
        }
        if (!py_device_query_streams(scope, asked)) {
            return false;
        }
        for (size_t i = 0; i < scope->nstreams; i++) {
            if (is_among(&streams, asked[i])) {
                continue;
            }
            if (streams.count == PY_MAX_STREAMS && !order(self, &streams)) {
                return false;
            }
            streams.handles[streams.count++] = asked[i];
        }
    }
    return order(self, &streams);
}

static bool
raise_if_failed(const py_work *self)
{
    dd_error err;
    dd_status status = dd_nccl_work_result(py_flight_nccl_work(self->flight), &err);
    if (status != DD_OK) {
        py_error_raise_of_group(self->state, status, &err);
    }
    return status != DD_OK;
}

static PyObject *
nccl_work_wait(PyObject *object, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    py_work *self = (py_work *)object;
    int64_t timeout_ns;
    if (!py_work_require_flight(self, "wait() not implemented.") ||
        !py_work_read_timeout(self, args, nargs, kwnames, &timeout_ns)) {
        return NULL;
    }
    if (raise_if_failed(self)) {
        return NULL;
    }
    bool is_host = timeout_ns > 0 || self->flight->is_blocking;
    /* Make the streams wait even if the host has waited: this costs nothing after the operation's
     * end, and a graph that is being captured must record the wait. */
    bool is_ok = (!is_host || py_work_wait_for_end(self, timeout_ns)) &&
                 (self->flight->is_finished || order_waiting_streams(self));
    return is_ok ? Py_NewRef(Py_True) : NULL;
}

static PyObject *
nccl_work_synchronize(PyObject *object, PyObject *Py_UNUSED(unused))
{
    py_work *self = (py_work *)object;
    if (self->flight == NULL) {
        Py_RETURN_NONE;
    }
    if (raise_if_failed(self) || (!self->flight->is_finished && !order_waiting_streams(self))) {
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyObject *
nccl_work_block_current_stream(PyObject *object, PyObject *unused)
{
    return nccl_work_synchronize(object, unused);
}

/* Implement result(): return the output tensors, also before the operation's end, because streams
 * wait for the tensors' contents. */
static PyObject *
nccl_work_result(PyObject *object, PyObject *Py_UNUSED(unused))
{
    py_work *self = (py_work *)object;
    if (!py_work_require_flight(self, "result() not implemented.") || raise_if_failed(self)) {
        return NULL;
    }
    return py_flight_get_results(self->flight);
}

static PyObject *
nccl_work_get_future_result(PyObject *object, PyObject *Py_UNUSED(unused))
{
    return py_work_require_flight((py_work *)object, "Work::getFutureResult not implemented.")
               ? py_object_call_python(object, "dldist.nccl.future", "result_future_of", NULL, NULL)
               : NULL;
}

static PyMethodDef work_methods[] = {
    {"wait", PY_FAST_METHOD(nccl_work_wait),
     "wait($self, timeout=None)\n--\n\n"
     "Makes the current streams of the tensors' libraries wait for the end. Raises if the operation has already failed.\n"
     "The host waits with a timeout, for a barrier, for tensors of libraries whose stream is not known, and in blocking-wait mode."},
    {"synchronize", nccl_work_synchronize, METH_NOARGS,
     "synchronize($self, /)\n--\n\nMakes the current streams wait."},
    {"block_current_stream", nccl_work_block_current_stream, METH_NOARGS,
     "block_current_stream($self, /)\n--\n\nMakes the current streams wait."},
    {"result", nccl_work_result, METH_NOARGS,
     "result($self, /)\n--\n\nThe tensors that it fills, as the caller gave them. Read them after wait()."},
    {"get_future_result", nccl_work_get_future_result, METH_NOARGS,
     "get_future_result($self, /)\n--\n\nA dldist.Future of the WorkResult: how it ended."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot work_slots[] = {
    {Py_tp_doc, "An operation on a device.\n\n"
                "It keeps its tensors alive until the device is done with them, even if it is dropped."},
    {Py_tp_methods, work_methods},
    {0, NULL},
};

PyType_Spec py_nccl_work_spec = {"dldist.NcclWork", sizeof(py_work), 0, PY_MADE_TYPE_FLAGS, work_slots};
