/* dldist.nccl.NcclComms: several communicators in one process, used by one caller. */
#include "python/nccl/team.h"

static void
comms_close_team(void *team)
{
    dd_nccl_team_close(team);
}

static void
raise_made(void)
{
    PyErr_SetString(PyExc_RuntimeError, "NcclComms.__init__() was already called on this object");
}

static int
comms_init(PyObject *object, PyObject *args, PyObject *kwargs)
{
    py_nccl_handle *self = (py_nccl_handle *)object;
    PyObject *list;
    int64_t timeout_ns = DD_NCCL_DEFAULT_TIMEOUT_NS;
    const py_params params =
        PY_PARAMS("NcclComms", 1, 2, {"devices", PY_OBJECT, &list}, {"timeout", PY_TIMEOUT, &timeout_ns});
    int count;
    py_nccl *nccl;
    if (!py_nccl_handle_is_new(self)) {
        raise_made();
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
    dd_nccl_team *team = NULL;
    bool is_done = PY_GROUP_CALL(self->state, timeout_ns, dd_nccl_team_open, nccl->lib, nccl->cuda, devices,
                                 count, &team);
    PyMem_Free(devices);
    if (is_done) {
        if (py_nccl_handle_set(self, team, comms_close_team)) {
            return 0;
        }
        raise_made(); /* another thread has already run __init__ */
    }
    Py_BEGIN_ALLOW_THREADS
    dd_nccl_team_close(team); /* not NULL if a signal handler raised */
    Py_END_ALLOW_THREADS
    return -1;
}

static int *
devices_of_team(const dd_nccl_team *team)
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
    py_nccl_handle *self = (py_nccl_handle *)object;
    dd_nccl_team *team = py_nccl_handle_begin(self);
    if (team == NULL) {
        return NULL;
    }
    int *devices = devices_of_team(team);
    if (devices == NULL) {
        py_nccl_handle_end(self);
        return NULL;
    }
    int size = dd_nccl_team_size(team);
    const py_nccl_team_target target = {.state = self->state,
                                        .size = size,
                                        .ntensors = size,
                                        .devices = devices,
                                        .ctx = team,
                                        .run = run_team};
    PyObject *result = py_nccl_team_run(&target, coll, args, nargs, kwnames);
    py_nccl_handle_end(self);
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
    py_nccl_handle *self = (py_nccl_handle *)object;
    dd_nccl_team *team = py_nccl_handle_begin(self);
    if (team == NULL) {
        return NULL;
    }
    int size = dd_nccl_team_size(team);
    dd_nccl_comm **comms = PyMem_Calloc((size_t)size, sizeof(dd_nccl_comm *));
    if (comms == NULL) {
        py_nccl_handle_end(self);
        return PyErr_NoMemory();
    }
    py_wait wait;
    dd_error err;
    py_wait_init(&wait, self->state, DD_NCCL_DEFAULT_TIMEOUT_NS, true);
    dd_status status = PY_WITHOUT_GIL(dd_nccl_team_take_apart(team, comms, &wait.wait, &err));
    py_nccl_handle_end(self);
    PyObject *list = py_group_finish_wait(&wait, status, &err) ? PyList_New(0) : NULL;
    for (int i = 0; status == DD_OK && i < size; i++) {
        py_list_append(&list, py_nccl_rank_comm_create(self->state, comms[i]));
    }
    PyMem_Free(comms);
    if (status == DD_OK) {
        py_nccl_handle_close(self);
    }
    return list;
}

static PyObject *
comms_abort(PyObject *object, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    py_nccl_handle *self = (py_nccl_handle *)object;
    const char *reason = "abort() was called";
    const py_params params = PY_PARAMS("abort", 0, 1, {"reason", PY_TEXT, &reason});
    if (!py_params_read(&params, self->state, args, nargs, kwnames)) {
        return NULL;
    }
    dd_nccl_team *team = py_nccl_handle_begin_late(self);
    if (team == NULL) {
        Py_RETURN_NONE;
    }
    bool is_done = PY_GROUP_TRY(self->state, dd_nccl_team_abort, team, reason);
    py_nccl_handle_end(self);
    return py_none_if(is_done);
}

static PyObject *
comms_get_size(PyObject *object, void *Py_UNUSED(closure))
{
    const dd_nccl_team *team = py_nccl_handle_begin_late((py_nccl_handle *)object);
    if (team == NULL) {
        return PyLong_FromLong(0);
    }
    PyObject *size = PyLong_FromLong(dd_nccl_team_size(team));
    py_nccl_handle_end((py_nccl_handle *)object);
    return size;
}

static PyObject *
comms_get_devices(PyObject *object, void *Py_UNUSED(closure))
{
    const dd_nccl_team *team = py_nccl_handle_begin_late((py_nccl_handle *)object);
    PyObject *list = PyList_New(0);
    for (int i = 0; list != NULL && team != NULL && i < dd_nccl_team_size(team); i++) {
        py_list_append(&list, PyLong_FromLong(dd_nccl_team_device(team, i)));
    }
    if (team != NULL) {
        py_nccl_handle_end((py_nccl_handle *)object);
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
    PY_NCCL_HANDLE_METHODS("the communicators."),
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
    {Py_tp_dealloc, (void *)py_nccl_handle_dealloc},
    {Py_tp_methods, comms_methods},
    {Py_tp_getset, comms_getset},
    {0, NULL},
};

PyType_Spec py_nccl_comms_spec = {"dldist.nccl.NcclComms", sizeof(py_nccl_handle), 0, PY_TYPE_FLAGS,
                                  comms_slots};
