#include "python/nccl/window.h"

#include "python/base/error.h"
#include "python/base/object.h"

/* ---- creation */

/* Read the tensor whose memory the other ranks may write. */
static bool
nccl_window_take_memory(py_nccl_window *self, PyObject *object, int *device)
{
    py_argument argument = {
        .state = self->state, .function = "new_window", .name = "tensor", .value = object};
    py_device_scope scope;
    py_device_scope_init(&scope, self->state);
    self->memory.scope = &scope;
    bool is_ok =
        py_tensor_init(&self->memory, self->state, object, PY_TENSOR_OUT, argument.function, argument.name) &&
        py_device_take(&scope, &self->memory, &argument);
    self->memory.scope = NULL;
    *device = scope.device;
    if (is_ok && !self->memory.view.is_contiguous) {
        py_argument_raise(&argument, PY_FAULT_VALUE,
                          "has gaps: got a strided array, expected a contiguous one");
        return false;
    }
    if (is_ok && self->memory.view.count == 0) {
        py_argument_raise(&argument, PY_FAULT_VALUE, "has no elements: got size 0, expected 1 or more");
        return false;
    }
    return is_ok;
}

static bool
nccl_window_open(py_nccl_window *self, const dd_nccl_window_spec *spec, int64_t timeout_ns)
{
    dd_nccl_group *group = self->group->nccl->group;
    return PY_GROUP_CALL(self->state, py_group_timeout_or_own(self->group, timeout_ns),
                         dd_nccl_group_window_open, group, spec, &self->window);
}

/* Report to the other ranks, by a failed opening, that this rank has no memory for the window, so
 * that they fail as well. Keeps the current exception. */
static void
nccl_window_report_obstacle(py_nccl_window *self, int64_t timeout_ns)
{
    dd_nccl_window_spec spec = {.device = PY_NO_DEVICE, .obstacle = DD_INVALID_ARGUMENT};
    PyObject *exception = py_error_take();
    (void)nccl_window_open(self, &spec, timeout_ns);
    py_error_put(exception);
}

static bool
nccl_window_take_and_open(py_nccl_window *self, PyObject *tensor, int64_t timeout_ns)
{
    dd_nccl_window_spec spec = {.obstacle = DD_OK};
    if (!nccl_window_take_memory(self, tensor, &spec.device)) {
        nccl_window_report_obstacle(self, timeout_ns);
        return false;
    }
    spec.data = self->memory.view.data;
    spec.nbytes = dd_view_nbytes(&self->memory.view);
    spec.dtype = self->memory.view.dtype;
    py_nccl_core_note_device(self->group->nccl, spec.device);
    return nccl_window_open(self, &spec, timeout_ns);
}

PyObject *
py_nccl_group_new_window(PyObject *object, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    py_group *group = (py_group *)object;
    PyObject *tensor;
    int64_t timeout_ns = -1;
    const py_params params =
        PY_PARAMS("new_window", 1, 1, {"tensor", PY_OBJECT, &tensor}, {"timeout", PY_TIMEOUT, &timeout_ns});
    if (!py_group_require_open(group) || !py_params_read(&params, group->state, args, nargs, kwnames)) {
        return NULL;
    }
    py_nccl_window *self = (py_nccl_window *)py_object_new(group->state->nccl_window_type, NULL, NULL);
    if (self == NULL) {
        return NULL;
    }
    self->group = (py_group *)Py_NewRef(object);
    if (!nccl_window_take_and_open(self, tensor, timeout_ns)) {
        Py_DECREF((PyObject *)self);
        return NULL;
    }
    return (PyObject *)self;
}

/* The type has no tp_clear; base/object.h explains why. */
static int
nccl_window_traverse(PyObject *object, visitproc visit, void *arg)
{
    py_nccl_window *self = (py_nccl_window *)object;
    Py_VISIT(Py_TYPE(object));
    Py_VISIT(self->module);
    Py_VISIT((PyObject *)self->group);
    return py_tensor_traverse(&self->memory, visit, arg);
}

/* Warn if the window is open: NCCL keeps an open window until the communicator ends. */
static void
warn_if_open(const py_nccl_window *self)
{
    PyObject *exception = py_error_take();
    if (self->window != NULL && dd_nccl_group_window_is_open(self->window) &&
        PyErr_WarnEx(
            PyExc_ResourceWarning,
            "a window was released without being closed: the other ranks can still write to its memory",
            1) < 0) {
        PyErr_WriteUnraisable(NULL);
    }
    py_error_put(exception);
}

static void
nccl_window_dealloc(PyObject *object)
{
    py_nccl_window *self = (py_nccl_window *)object;
    py_object_begin_dealloc(object);
    warn_if_open(self);
    Py_BEGIN_ALLOW_THREADS
    dd_nccl_group_window_release(self->window);
    Py_END_ALLOW_THREADS
    py_tensor_fini(&self->memory);
    Py_XDECREF((PyObject *)self->group);
    py_object_end_dealloc(object);
}

static PyObject *
nccl_window_close(PyObject *object, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    py_nccl_window *self = (py_nccl_window *)object;
    int64_t timeout_ns = -1;
    const py_params params = PY_PARAMS("close", 0, 1, {"timeout", PY_TIMEOUT, &timeout_ns});
    if (!py_params_read(&params, self->state, args, nargs, kwnames)) {
        return NULL;
    }
    return py_none_if(PY_GROUP_CALL(self->state, py_group_timeout_or_own(self->group, timeout_ns),
                                    dd_nccl_group_window_close, self->window));
}

/* ---- operations */

/* One call of a window's method, whose first parameter is a tensor for a put, otherwise a rank. */
typedef struct one_sided {
    py_nccl_window *window;
    const char *rank_name;
    dd_nccl_op op;
} one_sided;

static bool
one_sided_read_int(const one_sided *self, const py_group_call *call, PyObject *value, const char *name,
                   int *number)
{
    return value == NULL || py_params_int(self->window->state, value, number, call->params->function, name);
}

/* Reject a tensor that NCCL cannot send directly, because it would have to be copied first. */
static bool
check_source(const one_sided *self, const py_group_call *call)
{
    const py_piece *piece = &call->operands->pieces[0];
    dd_dtype dtype = self->window->memory.view.dtype;
    if (piece->is_staged) {
        py_raise_argument(self->window->state, "put", "tensor",
                          "has another form: got a strided array or one of the host, expected a contiguous "
                          "one on the device");
        return false;
    }
    if (py_operands_dtype(call->operands) != dtype) {
        PyErr_Format(self->window->state->errors[PY_ERROR_TYPE],
                     "put(): argument 'tensor' has another dtype: got %s, expected %s, as the window",
                     dd_dtype_name(py_operands_dtype(call->operands)), dd_dtype_name(dtype));
        return false;
    }
    return true;
}

/* Begin a call. On failure return false with an exception; the call must not be ended then. */
static bool
one_sided_begin(one_sided *self, PyObject *object, py_group_call *call, py_params *params,
                PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    self->window = (py_nccl_window *)object;
    self->op.window = self->window->window;
    params->op_type = PY_OP_TYPE_UNKNOWN;
    return py_group_call_parse(call, (PyObject *)self->window->group, params, args, nargs, kwnames) &&
           py_group_call_begin(call);
}

static bool
one_sided_read_rank(one_sided *self, const py_group_call *call, PyObject *value)
{
    return py_params_rank(self->window->state, value, self->window->group->size, &self->op.peer,
                          call->params->function, self->rank_name);
}

static PyObject *
window_put(PyObject *object, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    py_params params = PY_PARAMS("put", 2, 4, PY_TENSORS(tensor), PY_OTHER(rank), PY_OTHER(offset),
                                 PY_OTHER(channel), PY_TIME_LIMIT, PY_ASYNC);
    one_sided self = {.rank_name = "rank", .op = {.kind = DD_NCCL_OP_PUT}};
    py_group_call call;
    if (!one_sided_begin(&self, object, &call, &params, args, nargs, kwnames)) {
        return NULL;
    }
    bool is_ok = one_sided_read_rank(&self, &call, call.values[1]) &&
                 py_operands_add(call.operands, call.values[0], PY_USE_IN, "tensor") &&
                 check_source(&self, &call) &&
                 py_operands_read_offset(call.operands, call.values[2], &self.op.offset) &&
                 one_sided_read_int(&self, &call, call.values[3], "channel", &self.op.channel);
    return py_nccl_call_run_one_sided(&call, &self.op, is_ok);
}

/* Run a signal, or a wait for a signal, with the window's tensor as an operand. A signal is then
 * ordered after the caller's use of the tensor, and a wait for a signal before it. */
static PyObject *
run_signal(one_sided *self, py_group_call *call, bool is_ok)
{
    py_use use = self->op.kind == DD_NCCL_OP_SIGNAL ? PY_USE_IN : PY_USE_OUT;
    is_ok = is_ok && py_operands_add(call->operands, self->window->memory.object, use, "window");
    return py_nccl_call_run_one_sided(call, &self->op, is_ok);
}

static PyObject *
window_signal(PyObject *object, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    py_params params =
        PY_PARAMS("signal", 1, 2, PY_OTHER(dst_rank), PY_OTHER(channel), PY_TIME_LIMIT, PY_ASYNC);
    one_sided self = {.rank_name = "dst_rank", .op = {.kind = DD_NCCL_OP_SIGNAL}};
    py_group_call call;
    if (!one_sided_begin(&self, object, &call, &params, args, nargs, kwnames)) {
        return NULL;
    }
    bool is_ok = one_sided_read_rank(&self, &call, call.values[0]) &&
                 one_sided_read_int(&self, &call, call.values[1], "channel", &self.op.channel);
    return run_signal(&self, &call, is_ok);
}

static PyObject *
window_wait_signal(PyObject *object, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    py_params params = PY_PARAMS("wait_signal", 1, 2, PY_OTHER(src_rank), PY_OTHER(channel), PY_OTHER(count),
                                 PY_TIME_LIMIT, PY_ASYNC);
    one_sided self = {.rank_name = "src_rank", .op = {.kind = DD_NCCL_OP_WAIT_SIGNAL, .count = 1}};
    py_group_call call;
    if (!one_sided_begin(&self, object, &call, &params, args, nargs, kwnames)) {
        return NULL;
    }
    bool is_ok = one_sided_read_rank(&self, &call, call.values[0]) &&
                 one_sided_read_int(&self, &call, call.values[1], "channel", &self.op.channel) &&
                 one_sided_read_int(&self, &call, call.values[2], "count", &self.op.count);
    return run_signal(&self, &call, is_ok);
}

/* ---- the type */

static PyObject *
get_tensor(PyObject *object, void *Py_UNUSED(closure))
{
    return Py_NewRef(((py_nccl_window *)object)->memory.object);
}

static PyObject *
get_buffer_size(PyObject *object, void *Py_UNUSED(closure))
{
    return PyLong_FromSize_t(dd_view_nbytes(&((py_nccl_window *)object)->memory.view));
}

static PyObject *
get_channels(PyObject *object, void *Py_UNUSED(closure))
{
    return PyLong_FromLong(dd_nccl_group_window_nchannels(((py_nccl_window *)object)->window));
}

static PyMethodDef window_methods[] = {
    {"put", PY_FAST_METHOD(window_put),
     "put($self, tensor, rank, offset=0, channel=0, *, timeout=None, async_op=False)\n--\n\n"
     "Writes a tensor into the memory of a rank, from element `offset` on. A signal follows.\n\n"
     "NCCL has no put without a signal: the rank takes one for each put. The tensor must lie in a window of this group."},
    {"signal", PY_FAST_METHOD(window_signal),
     "signal($self, dst_rank, channel=0, *, timeout=None, async_op=False)\n--\n\n"
     "Sends a signal to a rank. It takes it after all that this rank has put there before."},
    {"wait_signal", PY_FAST_METHOD(window_wait_signal),
     "wait_signal($self, src_rank, channel=0, *, count=1, timeout=None, async_op=False)\n--\n\n"
     "Waits for so many signals of a rank, puts and others, and takes them. Like other operations, it makes streams wait."},
    {"close", PY_FAST_METHOD(nccl_window_close),
     "close($self, timeout=None)\n--\n\n"
     "Ends the window. All ranks call it, and the host waits for them. Take all signals before."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef window_getset[] = {
    {"tensor", get_tensor, NULL, "The tensor that this rank gave.", NULL},
    {"buffer_size", get_buffer_size, NULL, "The number of bytes of each rank.", NULL},
    {"channels", get_channels, NULL, "The number of channels for signals.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot window_slots[] = {
    {Py_tp_doc,
     "Memory of all ranks of an NcclGroup that the others write into and signal; made by NcclGroup.new_window.\n\n"
     "Signals belong to the group: its windows on one device share them."},
    {Py_tp_dealloc, (void *)nccl_window_dealloc},
    {Py_tp_traverse, (void *)nccl_window_traverse},
    {Py_tp_methods, window_methods},
    {Py_tp_getset, window_getset},
    {Py_tp_members, py_object_members},
    {0, NULL},
};

PyType_Spec py_nccl_window_spec = {"dldist.NcclWindow", sizeof(py_nccl_window), 0,
                                   PY_MADE_TYPE_FLAGS | Py_TPFLAGS_HAVE_GC, window_slots};
