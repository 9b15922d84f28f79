/* dldist.nccl.NcclComms: the communicators of one process, used by one caller. */
#include "python/nccl/team.h"

#include "core/fork.h"

typedef struct py_nccl_comms {
    PY_OBJECT_HEAD;
    dd_nccl_team *team; /* owned; guarded by the GIL; NULL once it is closed */
    int ncalls;         /* guarded by the GIL: unfinished calls; the last one closes what close() could not */
    bool is_closed;     /* guarded by the GIL */
} py_nccl_comms;

static dd_nccl_team *
require_team(const py_nccl_comms *self)
{
    if (self->team == NULL || self->is_closed) {
        PyErr_SetString(self->state->errors[PY_ERROR_BACKEND], "these communicators are closed");
        return NULL;
    }
    return self->team;
}

static int
comms_init(PyObject *object, PyObject *args, PyObject *kwargs)
{
    py_nccl_comms *self = (py_nccl_comms *)object;
    PyObject *list;
    int64_t timeout_ns = DD_NCCL_DEFAULT_TIMEOUT_NS;
    const py_params params =
        PY_PARAMS("NcclComms", 1, 2, {"devices", PY_OBJECT, &list}, {"timeout", PY_TIMEOUT, &timeout_ns});
    int count;
    py_nccl *nccl;
    if (self->team != NULL || self->is_closed) {
        PyErr_SetString(PyExc_RuntimeError, "NcclComms.__init__() was already called on this object");
        return -1;
    }
    if (!py_params_read_tuple(&params, self->state, args, kwargs) ||
        (nccl = py_nccl_get(self->state)) == NULL) {
        return -1;
    }
    const py_argument argument = {
        .state = self->state, .function = "NcclComms", .name = "devices", .value = list};
    int *devices = py_params_ints(&argument, py_nccl_team_read_device, &count);
    if (devices == NULL) {
        return -1;
    }
    py_wait wait;
    dd_error err;
    dd_nccl_team *team = NULL;
    py_wait_init(&wait, self->state, timeout_ns, true);
    dd_status status =
        PY_WITHOUT_GIL(dd_nccl_team_open(nccl->lib, nccl->cuda, devices, count, &team, &wait.wait, &err));
    PyMem_Free(devices);
    if (!py_group_finish_wait(&wait, status, &err)) {
        Py_BEGIN_ALLOW_THREADS
        dd_nccl_team_close(team); /* it was made, but a signal handler raised */
        Py_END_ALLOW_THREADS
        return -1;
    }
    self->team = team;
    return 0;
}

/* Closes the team, or leaves it to the last unfinished call. */
static void
close_team(py_nccl_comms *self)
{
    self->is_closed = true;
    if (self->ncalls > 0 || self->team == NULL) {
        return;
    }
    dd_nccl_team *team = self->team;
    self->team = NULL;
    if (self->state->nccl->generation == dd_fork_generation()) {
        Py_BEGIN_ALLOW_THREADS
        dd_nccl_team_close(team);
        Py_END_ALLOW_THREADS
    }
}

/* Ends a call on the team, whose count has been raised. */
static void
end_call(py_nccl_comms *self)
{
    self->ncalls--;
    if (self->is_closed) {
        close_team(self);
    }
}

static void
comms_dealloc(PyObject *object)
{
    py_object_begin_dealloc(object);
    close_team((py_nccl_comms *)object);
    py_object_end_dealloc(object);
}

static int *
devices_of(const dd_nccl_team *team)
{
    int size = dd_nccl_team_size(team);
    int *devices = PyMem_Calloc((size_t)size, sizeof *devices);
    if (devices == NULL) {
        PyErr_NoMemory();
    }
    for (int i = 0; devices != NULL && i < size; i++) {
        devices[i] = dd_nccl_team_device(team, i);
    }
    return devices;
}

static dd_status
run_team(void *ctx, const py_nccl_team_call *call, const dd_wait *wait, dd_error *err)
{
    return dd_nccl_team_run(ctx, call->function, call->items, 1, call->streams, wait, err);
}

static PyObject *
comms_run(PyObject *object, const py_nccl_team_coll *coll, PyObject *const *args, Py_ssize_t nargs,
          PyObject *kwnames)
{
    py_nccl_comms *self = (py_nccl_comms *)object;
    dd_nccl_team *team = require_team(self);
    int *devices = team != NULL ? devices_of(team) : NULL;
    if (devices == NULL) {
        return NULL;
    }
    int size = dd_nccl_team_size(team);
    const py_nccl_team_target target = {.state = self->state,
                                        .size = size,
                                        .ntensors = size,
                                        .devices = devices,
                                        .ctx = team,
                                        .run = run_team};
    self->ncalls++;
    PyObject *result = py_nccl_team_run(&target, coll, args, nargs, kwnames);
    end_call(self);
    PyMem_Free(devices);
    return result;
}

PY_NCCL_RUN_METHOD(comms, all_reduce, DD_NCCL_ITEM_ALL_REDUCE)
PY_NCCL_RUN_METHOD(comms, broadcast, DD_NCCL_ITEM_BROADCAST)
PY_NCCL_RUN_METHOD(comms, reduce, DD_NCCL_ITEM_REDUCE)
PY_NCCL_RUN_METHOD(comms, all_gather, DD_NCCL_ITEM_ALL_GATHER)
PY_NCCL_RUN_METHOD(comms, reduce_scatter, DD_NCCL_ITEM_REDUCE_SCATTER)

static PyObject *
comms_split(PyObject *object, PyObject *Py_UNUSED(unused))
{
    py_nccl_comms *self = (py_nccl_comms *)object;
    dd_nccl_team *team = require_team(self);
    if (team == NULL) {
        return NULL;
    }
    int size = dd_nccl_team_size(team);
    dd_nccl_comm **comms = PyMem_Calloc((size_t)size, sizeof(dd_nccl_comm *));
    if (comms == NULL) {
        return PyErr_NoMemory();
    }
    py_wait wait;
    dd_error err;
    self->ncalls++;
    py_wait_init(&wait, self->state, DD_NCCL_DEFAULT_TIMEOUT_NS, true);
    dd_status status = PY_WITHOUT_GIL(dd_nccl_team_take_apart(team, comms, &wait.wait, &err));
    end_call(self);
    PyObject *list = py_group_finish_wait(&wait, status, &err) ? PyList_New(0) : NULL;
    for (int i = 0; status == DD_OK && i < size; i++) {
        PyObject *comm = py_nccl_rank_comm_create(self->state, comms[i]);
        if (comm == NULL || list == NULL || PyList_Append(list, comm) < 0) {
            Py_CLEAR(list);
        }
        Py_XDECREF(comm);
    }
    PyMem_Free(comms);
    if (status == DD_OK) {
        close_team(self);
    }
    return list;
}

static PyObject *
comms_close(PyObject *object, PyObject *Py_UNUSED(unused))
{
    close_team((py_nccl_comms *)object);
    Py_RETURN_NONE;
}

static PyObject *
comms_abort(PyObject *object, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    py_nccl_comms *self = (py_nccl_comms *)object;
    const char *reason = "abort() was called";
    dd_nccl_team *team = self->team;
    const py_params params = PY_PARAMS("abort", 0, 1, {"reason", PY_TEXT, &reason});
    if (!py_params_read(&params, self->state, args, nargs, kwnames)) {
        return NULL;
    }
    if (team == NULL) {
        Py_RETURN_NONE;
    }
    dd_error err;
    self->ncalls++;
    dd_status status = PY_WITHOUT_GIL(dd_nccl_team_abort(team, reason, &err));
    end_call(self);
    return py_error_check_of_group(self->state, status, &err) ? Py_NewRef(Py_None) : NULL;
}

static PyObject *
comms_enter(PyObject *object, PyObject *Py_UNUSED(unused))
{
    return require_team((py_nccl_comms *)object) != NULL ? Py_NewRef(object) : NULL;
}

static PyObject *
comms_exit(PyObject *object, PyObject *Py_UNUSED(args))
{
    return comms_close(object, NULL);
}

static PyObject *
comms_get_size(PyObject *object, void *Py_UNUSED(closure))
{
    const dd_nccl_team *team = ((py_nccl_comms *)object)->team;
    return PyLong_FromLong(team != NULL ? dd_nccl_team_size(team) : 0);
}

static PyObject *
comms_get_devices(PyObject *object, void *Py_UNUSED(closure))
{
    const dd_nccl_team *team = ((py_nccl_comms *)object)->team;
    PyObject *list = PyList_New(0);
    for (int i = 0; list != NULL && team != NULL && i < dd_nccl_team_size(team); i++) {
        PyObject *device = PyLong_FromLong(dd_nccl_team_device(team, i));
        if (device == NULL || PyList_Append(list, device) < 0) {
            Py_CLEAR(list);
        }
        Py_XDECREF(device);
    }
    return list;
}

#define ON_STREAMS \
    "\n\nThe operation goes into `streams`, one for each device, or into those that the tensors' libraries work on. Nothing waits."

static PyMethodDef comms_methods[] = {
    {"all_reduce", PY_FAST_METHOD(comms_all_reduce),
     "all_reduce($self, tensors, op='sum', streams=None)\n--\n\nReduces the tensors of all devices, in place." ON_STREAMS},
    {"broadcast", PY_FAST_METHOD(comms_broadcast),
     "broadcast($self, tensors, root=0, streams=None)\n--\n\nCopies tensors[root] to every tensor." ON_STREAMS},
    {"reduce", PY_FAST_METHOD(comms_reduce),
     "reduce($self, tensors, root=0, op='sum', streams=None)\n--\n\nReduces the tensors into tensors[root]." ON_STREAMS},
    {"all_gather", PY_FAST_METHOD(comms_all_gather),
     "all_gather($self, outputs, inputs, streams=None)\n--\n\n"
     "Copies all inputs to every output, one after another in the order of the devices." ON_STREAMS},
    {"reduce_scatter", PY_FAST_METHOD(comms_reduce_scatter),
     "reduce_scatter($self, outputs, inputs, op='sum', streams=None)\n--\n\n"
     "Reduces the inputs, and gives the k-th part of the result to output k." ON_STREAMS},
    {"split", comms_split, METH_NOARGS,
     "split($self, /)\n--\n\nReturns the communicators: an NcclRankComm for each device, each for one thread. This object has none afterwards."},
    {"abort", PY_FAST_METHOD(comms_abort),
     "abort($self, reason='abort() was called')\n--\n\nEnds unfinished operations with errors. May be called from any thread."},
    {"close", comms_close, METH_NOARGS, "close($self, /)\n--\n\nEnds the communicators."},
    {"__enter__", comms_enter, METH_NOARGS, "__enter__($self, /)\n--\n\n"},
    {"__exit__", comms_exit, METH_VARARGS, "__exit__($self, *exception)\n--\n\nCloses the communicators."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef comms_getset[] = {
    {"size", comms_get_size, NULL, "The number of devices; 0 after the end.", NULL},
    {"devices", comms_get_devices, NULL, "The numbers of the devices.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot comms_slots[] = {
    {Py_tp_doc,
     "NcclComms(devices, timeout=None)\n--\n\n"
     "The communicators of one process, one for each device (a number, or \"cuda:1\"). Calls have a tensor for each.\n\n"
     "The caller's current device does not change."},
    {Py_tp_new, (void *)py_object_new},
    {Py_tp_init, (void *)comms_init},
    {Py_tp_dealloc, (void *)comms_dealloc},
    {Py_tp_methods, comms_methods},
    {Py_tp_getset, comms_getset},
    {0, NULL},
};

PyType_Spec py_nccl_comms_spec = {"dldist.nccl.NcclComms", sizeof(py_nccl_comms), 0, PY_TYPE_FLAGS,
                                  comms_slots};
