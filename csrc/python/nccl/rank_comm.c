/* dldist.nccl.NcclRankComm: one rank's communicator. */
#include "python/nccl/team.h"

typedef struct py_nccl_rank_comm {
    py_nccl_handle base; /* the base, must be first; the handle is a reference to a dd_nccl_comm */
    int rank;            /* rank in the communicator; const */
    int size;            /* number of ranks; const */
    int device;          /* CUDA device number; const */
} py_nccl_rank_comm;

/* Destroy the communicator even if abort handles hold references to it: an abort handle can then no
 * longer abort anything. */
static void
destroy_comm(void *comm)
{
    (void)!dd_nccl_comm_destroy(comm, NULL);
    dd_nccl_comm_release(comm);
}

PyObject *
py_nccl_rank_comm_create(py_state *state, dd_nccl_comm *comm)
{
    py_nccl_rank_comm *self = (py_nccl_rank_comm *)py_object_new(state->nccl_rank_comm_type, NULL, NULL);
    if (self == NULL) {
        py_nccl_comm_release(comm);
        return NULL;
    }
    (void)py_nccl_handle_set(&self->base, comm, destroy_comm);
    self->rank = dd_nccl_comm_rank(comm);
    self->size = dd_nccl_comm_size(comm);
    self->device = dd_nccl_comm_device(comm);
    return (PyObject *)self;
}

static bool
check_rank(py_state *state, int rank, int size)
{
    if (rank >= 0 && rank < size) {
        return true;
    }
    py_raise_argument(state, "init_rank", "rank", "is an invalid rank: got %d, expected 0 to %d", rank,
                      size - 1);
    return false;
}

/* Read a device number; None means the thread's current device, or if there is none, a device
 * chosen by rank. Return false with an exception on failure. */
static bool
choose_device(py_state *state, PyObject *object, int rank, int *device)
{
    if (object != Py_None) {
        py_argument argument = {.state = state, .function = "init_rank", .name = "device", .value = object};
        return py_nccl_team_read_device(&argument, device);
    }
    dd_error err;
    int current = DD_CUDA_NO_CURRENT;
    if (!py_error_check_of_group(state, dd_cuda_current_device(state->nccl->cuda, &current, &err), &err)) {
        return false;
    }
    *device = current != DD_CUDA_NO_CURRENT ? current : rank % state->nccl->cuda->ndevices;
    return true;
}

static PyObject *
rank_comm_init_rank(PyObject *type, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    PyObject *module;
    py_state *state = py_state_of_type((PyTypeObject *)type, &module);
    PyObject *uid;
    PyObject *device_object = Py_None;
    int64_t timeout_ns = DD_NCCL_DEFAULT_TIMEOUT_NS;
    dd_nccl_config config;
    dd_nccl_comm_spec spec = {.config = &config};
    const py_params params =
        PY_PARAMS("init_rank", 3, 5, {"rank", PY_INT, &spec.rank}, {"world_size", PY_INT, &spec.size},
                  {"uid", PY_OBJECT, &uid}, {"device", PY_OBJECT, &device_object},
                  {"timeout", PY_TIMEOUT, &timeout_ns});
    if (state == NULL || !py_params_read(&params, state, args, nargs, kwnames) ||
        !check_rank(state, spec.rank, spec.size)) {
        return NULL;
    }
    if (!PyObject_TypeCheck(uid, state->nccl_unique_id_type)) {
        py_raise_wrong_type("init_rank", "uid", "an NcclUniqueId", uid);
        return NULL;
    }
    const py_nccl *nccl = py_nccl_get(state);
    if (nccl == NULL || !choose_device(state, device_object, spec.rank, &spec.device)) {
        return NULL;
    }
    spec.lib = nccl->lib;
    spec.cuda = nccl->cuda;
    dd_nccl_config_init(&config);
    dd_nccl_unique_id id = py_nccl_unique_id_get(uid);
    dd_nccl_comm *comm = NULL;
    if (!PY_GROUP_CALL(state, timeout_ns, dd_nccl_comm_init, &spec, &id, 1, &comm, NULL)) {
        py_nccl_comm_release(comm); /* not NULL if a signal handler raised after the creation */
        return NULL;
    }
    return py_nccl_rank_comm_create(state, comm);
}

static dd_status
run_comm(void *ctx, const py_nccl_team_call *call, const dd_wait *wait, dd_error *err)
{
    return dd_nccl_comm_run(ctx, call->function, call->items, (int)call->nitems, call->streams[0], wait, err);
}

static PyObject *
rank_comm_run(PyObject *object, const py_nccl_team_coll *coll, PyObject *const *args, Py_ssize_t nargs,
              PyObject *kwnames)
{
    py_nccl_rank_comm *self = (py_nccl_rank_comm *)object;
    dd_nccl_comm *comm = py_nccl_handle_begin(&self->base);
    if (comm == NULL) {
        return NULL;
    }
    const py_nccl_team_target target = {.state = self->base.state,
                                        .size = self->size,
                                        .ntensors = -1,
                                        .device = self->device,
                                        .ctx = comm,
                                        .run = run_comm};
    PyObject *result = py_nccl_team_run(&target, coll, args, nargs, kwnames);
    py_nccl_handle_end(&self->base);
    return result;
}

PY_NCCL_RUN_METHOD(rank_comm, all_reduce, DD_NCCL_ITEM_ALL_REDUCE)
PY_NCCL_RUN_METHOD(rank_comm, broadcast, DD_NCCL_ITEM_BROADCAST)
PY_NCCL_RUN_METHOD(rank_comm, reduce, DD_NCCL_ITEM_REDUCE)
PY_NCCL_RUN_METHOD(rank_comm, all_gather, DD_NCCL_ITEM_ALL_GATHER)
PY_NCCL_RUN_METHOD(rank_comm, reduce_scatter, DD_NCCL_ITEM_REDUCE_SCATTER)

static PyObject *
rank_comm_abort_handle(PyObject *object, PyObject *Py_UNUSED(unused))
{
    py_nccl_rank_comm *self = (py_nccl_rank_comm *)object;
    dd_nccl_comm *comm = py_nccl_handle_begin(&self->base);
    if (comm == NULL) {
        return NULL;
    }
    PyTypeObject *type = self->base.state->nccl_abort_handle_type;
    py_nccl_abort_handle *handle = (py_nccl_abort_handle *)py_object_new(type, NULL, NULL);
    if (handle != NULL) {
        handle->comm = dd_nccl_comm_acquire(comm);
    }
    py_nccl_handle_end(&self->base);
    return (PyObject *)handle;
}

static PyMethodDef rank_comm_methods[] = {
    {"init_rank", PY_FAST_METHOD(rank_comm_init_rank) | METH_CLASS,
     "init_rank($type, rank, world_size, uid, device=None, timeout=None)\n--\n\n"
     "Makes one rank of `world_size`. All ranks call it with the same NcclUniqueId. It uses the current device unless one is given."},
    {"all_reduce", PY_FAST_METHOD(rank_comm_all_reduce),
     "all_reduce($self, tensors, op='sum', stream=None)\n--\n\n"
     "Reduces each of the tensors with those of the other ranks, in place and in one operation, which goes into `stream`. Nothing waits."},
    {"broadcast", PY_FAST_METHOD(rank_comm_broadcast),
     "broadcast($self, tensors, root=0, stream=None)\n--\n\nCopies the root's tensors to those of all ranks."},
    {"reduce", PY_FAST_METHOD(rank_comm_reduce),
     "reduce($self, tensors, root=0, op='sum', stream=None)\n--\n\nReduces the tensors into those of the root."},
    {"all_gather", PY_FAST_METHOD(rank_comm_all_gather),
     "all_gather($self, outputs, inputs, stream=None)\n--\n\nCopies the inputs of all ranks to each output."},
    {"reduce_scatter", PY_FAST_METHOD(rank_comm_reduce_scatter),
     "reduce_scatter($self, outputs, inputs, op='sum', stream=None)\n--\n\n"
     "Reduces the inputs, and gives this rank's part of the result to each output."},
    {"abort_handle", rank_comm_abort_handle, METH_NOARGS,
     "abort_handle($self, /)\n--\n\nReturns an NcclAbortHandle, for other threads."},
    PY_NCCL_HANDLE_METHODS("the communicator."),
};

static PyMemberDef rank_comm_members[] = {
    {"rank", T_INT, offsetof(py_nccl_rank_comm, rank), READONLY, "This rank."},
    {"world_size", T_INT, offsetof(py_nccl_rank_comm, size), READONLY, "The number of ranks."},
    {"device", T_INT, offsetof(py_nccl_rank_comm, device), READONLY, "The number of its device."},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot rank_comm_slots[] = {
    {Py_tp_doc, "The communicator of one rank, from NcclComms.split() or init_rank().\n\n"
                "All ranks make the same calls at the same time, each from a thread or process of its own."},
    {Py_tp_dealloc, (void *)py_nccl_handle_dealloc},
    {Py_tp_methods, rank_comm_methods},
    {Py_tp_members, rank_comm_members},
    {0, NULL},
};

PyType_Spec py_nccl_rank_comm_spec = {"dldist.nccl.NcclRankComm", sizeof(py_nccl_rank_comm), 0,
                                      PY_MADE_TYPE_FLAGS, rank_comm_slots};
