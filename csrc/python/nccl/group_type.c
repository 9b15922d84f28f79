/* The type dldist.NcclGroup: creation, close, and the table of methods, many from other files. */
#include "core/fork.h"
#include "core/mem.h"
#include "python/base/error.h"
#include "python/nccl/nccl.h"
#include "python/observe/recorder.h"
#include "python/observe/watch.h"
#include "python/store/store.h"

#include <stdio.h>

/* Time limit for the watchdog to notice completed operations when a group is closed. */
#define END_OF_WORKS_NS DD_NS_PER_S
/* Time limit at interpreter exit for the aborts of all groups together. */
#define EXIT_ABORT_NS DD_NS_PER_S

/* ---- the kind's functions */

static dd_status
nccl_kind_check_fork(const py_group *self, dd_error *err)
{
    return self->state->nccl->generation == dd_fork_generation()
               ? DD_OK
               : dd_error_set(err, DD_FORKED, "the group belongs to the process before the fork");
}

/* Abort the group. Ignore errors: they only report communicators that end late or never. */
static void
nccl_kind_abort(const py_group *self, const char *reason, const dd_wait *wait)
{
    (void)!dd_nccl_group_abort(self->nccl->group, reason, wait, NULL);
}

static bool
is_shared_locked(const py_group *self)
{
    const dd_list *groups = &self->state->groups;
    for (dd_list *node = groups->next; node != groups; node = node->next) {
        const py_group *other = DD_CONTAINER_OF(node, py_group, link);
        if (other->nccl != NULL && other->nccl->group == self->nccl->group) {
            return true;
        }
    }
    return false;
}

/* Return true if a second object, created by _host_view(), shares the core's group. */
static bool
is_shared(const py_group *self)
{
    return PY_LOCKED(&self->state->groups_lock, is_shared_locked(self));
}

/* Warn if operations of a group that was not closed are unfinished at the deadline of `wait`. Keeps
 * the current exception. */
static void
warn_if_busy(dd_nccl_group *group, const char *consequence, const dd_wait *wait)
{
    PyObject *exception = py_error_take();
    bool is_idle = PY_WITHOUT_GIL(dd_nccl_group_is_idle(group, wait));
    dd_bytes name = dd_nccl_group_name(group);
    char text[64];
    (void)snprintf(text, sizeof text, "%.*s", (int)name.len, (const char *)name.data);
    if (!is_idle &&
        PyErr_WarnFormat(
            PyExc_RuntimeWarning, 1,
            "%s: operations of the NCCL group \"%s\" (rank %d of %d) have not ended, or have failed, and what "
            "they were to fill is undefined; close() or destroy_process_group() waits for them",
            consequence, text, dd_nccl_group_rank(group), dd_nccl_group_size(group)) < 0) {
        PyErr_WriteUnraisable(NULL);
    }
    py_error_put(exception);
}

static void
nccl_kind_drop(py_group *self)
{
    py_nccl_batches_destroy(self->nccl);
    py_watch_remove_nccl(self);
    if (self->state->nccl != NULL && nccl_kind_check_fork(self, NULL) == DD_OK) {
        if (!self->is_closed && !is_shared(self)) {
            dd_wait wait = dd_wait_after(END_OF_WORKS_NS);
            warn_if_busy(self->nccl->group, "a group was released without being closed", &wait);
        }
        py_nccl_group_drop(self->nccl->group);
    }
    dd_mem_free(self->nccl);
}

static dd_recorder_group *
nccl_kind_recorder_group(const py_group *self)
{
    return self->nccl->recorded;
}

PY_GROUP_KIND_FUNCTIONS(dd_nccl_group, self->nccl->group)

const py_group_kind py_group_kind_nccl = {
    .type_name = "NcclGroup",
    .timeout_name = "NcclGroup.timeout",
    .recorded_name = "nccl",
    .close_timeout_ns = DD_NEVER_NS, /* no limit, because operations have timeouts of their own */
    .is_lost_in_child = true,
    PY_GROUP_KIND_TABLE(nccl_kind),
};

/* ---- creation */

typedef struct nccl_open_arguments {
    PyObject *store_object;
    int rank;
    int size;
    PyObject *config;
    PyObject *device;
    bool is_blocking_wait;
    dd_nccl_group_options options;
} nccl_open_arguments;

static bool
nccl_group_parse_init(py_state *state, PyObject *args, PyObject *kwargs, nccl_open_arguments *arguments)
{
    dd_nccl_group_options *options = &arguments->options;
    const py_params params = PY_PARAMS(
        "NcclGroup", 3, 3, {"store", PY_OBJECT, &arguments->store_object}, {"rank", PY_INT, &arguments->rank},
        {"size", PY_INT, &arguments->size}, {"timeout", PY_TIMEOUT, &options->timeout_ns},
        {"name", PY_STRING, &options->name}, {"init_timeout", PY_TIMEOUT, &options->init_timeout_ns},
        {"config", PY_OBJECT, &arguments->config}, {"device", PY_OBJECT, &arguments->device},
        {"is_high_priority", PY_FLAG, &options->is_high_priority},
        {"has_timing", PY_FLAG, &options->has_timing}, {"is_nan_check", PY_FLAG, &options->is_nan_check},
        {"is_blocking_wait", PY_FLAG, &arguments->is_blocking_wait},
        {"event_cache", PY_FLAG, &options->has_event_cache},
        {"ranks_per_root", PY_INT, &options->ranks_per_root},
        {"grouped_messages", PY_FLAG, &options->has_grouped_messages});
    *arguments = (nccl_open_arguments){
        .options = {.name = dd_bytes_of_string("default"),
                    .timeout_ns = DD_NCCL_DEFAULT_TIMEOUT_NS,
                    .has_event_cache = true},
    };
    return py_params_read_tuple(&params, state, args, kwargs);
}

static bool
read_device(const py_group *self, PyObject *object, int *device)
{
    *device = PY_NO_DEVICE;
    if (object == NULL || object == Py_None) {
        return true;
    }
    dd_error err;
    if (!py_params_int(self->state, object, device, "NcclGroup", "device")) {
        return false;
    }
    dd_status status = dd_cuda_check_device(self->state->nccl->cuda, *device, &err);
    return py_error_check_of_group(self->state, status, &err);
}

static bool
nccl_group_open(py_group *self, nccl_open_arguments *arguments, dd_store *store)
{
    int rank = arguments->rank;
    int size = arguments->size;
    int device;
    dd_nccl_group_options *options = &arguments->options;
    py_nccl *nccl = py_nccl_get(self->state);
    if (nccl == NULL || !py_nccl_read_config(self->state, arguments->config, &options->config, "NcclGroup") ||
        !read_device(self, arguments->device, &device)) {
        return false;
    }
    dd_recorder_group *recorded =
        py_recorder_add_group(self->state, py_group_kind_nccl.recorded_name, options->name, rank, size);
    dd_nccl_group *group;
    if (!PY_GROUP_TRY(self->state, dd_nccl_group_open, &(dd_nccl_base){nccl->lib, nccl->cuda, nccl->watchdog},
                      store, rank, size, options, recorded, &group)) {
        return false;
    }
    py_nccl_core *core = py_nccl_core_create(group, options, recorded, device);
    /* py_group_claim fails if another thread has opened the group */
    if (core == NULL || !py_group_claim(self, &py_group_kind_nccl)) {
        dd_mem_free(core);
        py_nccl_group_drop(group);
        return false;
    }
    core->is_bound = device != PY_NO_DEVICE;
    core->is_blocking_wait = arguments->is_blocking_wait;
    self->store = Py_NewRef(arguments->store_object);
    py_nccl_group_take(self, &py_group_kind_nccl, core);
    return true;
}

static int
nccl_group_init(PyObject *object, PyObject *args, PyObject *kwargs)
{
    py_group *self = (py_group *)object;
    nccl_open_arguments arguments;
    if (!py_group_require_new(self, &py_group_kind_nccl)) {
        return -1;
    }
    if (!nccl_group_parse_init(self->state, args, kwargs, &arguments)) {
        return -1;
    }
    dd_store *store;
    if (!py_store_acquire_if_any(self->state, arguments.store_object, "NcclGroup", "store", &store)) {
        return -1;
    }
    bool is_ok = nccl_group_open(self, &arguments, store);
    py_store_drop(store);
    return is_ok ? py_watch_add_nccl(self) : -1;
}

static PyObject *
nccl_group_method_abort(PyObject *object, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    py_group *self = (py_group *)object;
    const char *reason = "abort() was called";
    int64_t timeout_ns = PY_GROUP_ABORT_NS;
    const py_params params =
        PY_PARAMS("abort", 0, 2, {"reason", PY_TEXT, &reason}, {"timeout", PY_TIMEOUT, &timeout_ns});
    if (!py_group_require_open(self) || !py_params_read(&params, self->state, args, nargs, kwnames)) {
        return NULL;
    }
    return py_group_abort(self, reason, timeout_ns) ? Py_NewRef(Py_None) : NULL;
}

/* ---- process exit */

/* Remove closed groups and groups inherited through a fork from the list. */
static int
keep_open(PyObject *groups)
{
    for (Py_ssize_t i = PyList_Size(groups); i-- > 0;) {
        const py_group *group = (py_group *)PyList_GetItem(groups, i);
        if ((group->is_closed || group->kind->check_fork(group, NULL) != DD_OK) &&
            PySequence_DelItem(groups, i) < 0) {
            return -1;
        }
    }
    return 0;
}

/* Implement _post_close(groups): start closing the groups of a list, without waiting. The caller
 * then calls each group's close(), which waits. */
PyObject *
py_nccl_post_close(PyObject *module, PyObject *list)
{
    const py_state *state = PyModule_GetState(module);
    if (!PyList_Check(list)) {
        py_raise_wrong_type("_post_close", "groups", "a list of NcclGroup", list);
        return NULL;
    }
    PyObject *tuple = PySequence_Tuple(list); /* owned references to the groups */
    Py_ssize_t count = tuple != NULL ? PyTuple_Size(tuple) : -1;
    dd_nccl_group **groups = count >= 0 ? PyMem_Calloc((size_t)count + 1, sizeof(dd_nccl_group *)) : NULL;
    if (groups == NULL) {
        Py_XDECREF(tuple);
        return PyErr_Occurred() == NULL ? PyErr_NoMemory() : NULL;
    }
    size_t n = 0;
    for (Py_ssize_t i = 0; i < count; i++) {
        py_group *group = (py_group *)PyTuple_GetItem(tuple, i);
        if (PyObject_TypeCheck((PyObject *)group, state->nccl_group_type) && !group->is_closed) {
            groups[n++] = group->nccl->group;
        }
    }
    Py_BEGIN_ALLOW_THREADS
    dd_nccl_groups_post_close(groups, n);
    Py_END_ALLOW_THREADS
    PyMem_Free(groups);
    Py_DECREF(tuple);
    Py_RETURN_NONE;
}

/* Implement _shutdown_nccl(): abort groups that were not destroyed, as torch does. Other ranks may
 * have exited, so operations cannot be waited for. Warn about each group with unfinished
 * operations. */
PyObject *
py_nccl_shut_down(PyObject *module, PyObject *Py_UNUSED(unused))
{
    PyObject *groups = py_group_list(PyModule_GetState(module), &py_group_kind_nccl);
    for (Py_ssize_t i = 0; groups != NULL && i < PyList_Size(groups); i++) {
        /* Stop monitoring the group, so that other ranks get no report when this process exits. */
        py_watch_remove_nccl((py_group *)PyList_GetItem(groups, i));
    }
    if (groups == NULL || keep_open(groups) < 0) {
        Py_XDECREF(groups);
        return NULL;
    }
    dd_wait wait = dd_wait_after(END_OF_WORKS_NS);
    for (Py_ssize_t i = 0; i < PyList_Size(groups); i++) {
        const py_group *group = (py_group *)PyList_GetItem(groups, i);
        warn_if_busy(group->nccl->group, "the process ends", &wait);
    }
    wait = dd_wait_after(EXIT_ABORT_NS);
    for (Py_ssize_t i = 0; i < PyList_Size(groups); i++) {
        const py_group *group = (py_group *)PyList_GetItem(groups, i);
        Py_BEGIN_ALLOW_THREADS
        group->kind->abort(group, "the process ends", &wait);
        Py_END_ALLOW_THREADS
    }
    Py_DECREF(groups);
    Py_RETURN_NONE;
}

/* ---- the host view, and small switches */

static PyObject *
group_host_view(PyObject *object, PyObject *Py_UNUSED(unused))
{
    const py_group *self = (py_group *)object;
    int device;
    if (!py_group_require_open(self) || !py_nccl_group_choose_device((py_group *)object, &device)) {
        return NULL;
    }
    dd_nccl_group *group = dd_nccl_group_acquire(self->nccl->group);
    return py_nccl_group_wrap(self, group, &self->nccl->options, self->nccl->recorded, device, self->store);
}

static PyObject *
set_flag(PyObject *object, PyObject *value, void (*set)(dd_nccl_group *group, bool is_on))
{
    const py_group *self = (py_group *)object;
    int is_on = PyObject_IsTrue(value);
    if (is_on < 0 || !py_group_require_open(self)) {
        return NULL;
    }
    set(self->nccl->group, is_on > 0);
    Py_RETURN_NONE;
}

static PyObject *
group_set_nan_check(PyObject *object, PyObject *value)
{
    return set_flag(object, value, dd_nccl_group_set_nan_check);
}

static PyObject *
group_set_timing(PyObject *object, PyObject *value)
{
    return set_flag(object, value, dd_nccl_group_set_timing);
}

static PyObject *
group_add_ephemeral_timeout(PyObject *object, PyObject *value)
{
    const py_group *self = (py_group *)object;
    int64_t extra_ns;
    if (!py_group_require_open(self) ||
        !py_to_timeout_ns(self->state, value, &extra_ns, "add_ephemeral_timeout", "timeout")) {
        return NULL;
    }
    dd_nccl_group_add_ephemeral_timeout_ns(self->nccl->group, extra_ns);
    Py_RETURN_NONE;
}

static PyObject *
group_wait_for_works(PyObject *object, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    const py_group *self = (py_group *)object;
    int64_t timeout_ns = DD_NEVER_NS;
    const py_params params = PY_PARAMS("_wait_for_works", 0, 1, {"timeout", PY_TIMEOUT, &timeout_ns});
    if (!py_group_require_open(self) || !py_params_read(&params, self->state, args, nargs, kwnames)) {
        return NULL;
    }
    return py_none_if(PY_GROUP_CALL(self->state, timeout_ns, dd_nccl_group_wait_works, self->nccl->group));
}

/* ---- the type */

static PyMethodDef group_methods[] = {
    {"barrier", PY_FAST_METHOD(py_nccl_group_barrier),
     "barrier($self, *, timeout=None, async_op=False, device_ids=None)\n--\n\n"
     "Makes the host wait until all ranks have called it. Uses the first of device_ids, or the group's device."},
    {"start_coalescing", py_nccl_group_start_coalescing, METH_NOARGS,
     "start_coalescing($self, /)\n--\n\nHolds back the calls of this thread until end_coalescing(). They return None."},
    {"end_coalescing", PY_FAST_METHOD(py_nccl_group_end_coalescing),
     "end_coalescing($self, *, timeout=None, async_op=True)\n--\n\n"
     "Makes one operation of the calls since start_coalescing(), and returns its Work, or None if there were no calls."},
    {"drop_coalesced", py_nccl_group_drop_coalesced, METH_NOARGS,
     "drop_coalesced($self, /)\n--\n\nEnds start_coalescing() and drops the calls."},
    {"_start_time_estimate", py_nccl_group_start_estimate, METH_NOARGS,
     "_start_time_estimate($self, /)\n--\n\n"
     "Has the calls of this thread estimated instead of made, until _end_time_estimate()."},
    {"_end_time_estimate", py_nccl_group_end_estimate, METH_NOARGS,
     "_end_time_estimate($self, /)\n--\n\n"
     "How many microseconds the calls since _start_time_estimate() would take, as NCCL says; -1.0 if it says nothing."},
    {"_drop_time_estimate", py_nccl_group_drop_estimate, METH_NOARGS,
     "_drop_time_estimate($self, /)\n--\n\nEnds _start_time_estimate() and drops the calls."},
    {"connect", PY_FAST_METHOD(py_nccl_group_connect),
     "connect($self, device=None)\n--\n\n"
     "Makes the communicator for a device now instead of at the first operation. All ranks call it."},
    {"split", PY_FAST_METHOD(py_nccl_group_split),
     "split($self, ranks, name=None, timeout=None, *, color=None, config=None, device=None)\n--\n\n"
     "Makes a group of these ranks, in this order. All ranks of this group take part; those that are in no part call\n"
     "skip_split(). The ranks of one part give the same ranks and the same color, which is made from the ranks unless\n"
     "it is given."},
    {"skip_split", PY_FAST_METHOD(py_nccl_group_skip_split),
     "skip_split($self, device=None)\n--\n\nTakes part in split() on the other ranks, without being in a new group."},
    {"shrink", PY_FAST_METHOD(py_nccl_group_shrink),
     "shrink($self, excluded, name=None, timeout=None, *, is_abort=False, config=None)\n--\n\n"
     "Makes a group without the excluded ranks, which do not call it. With is_abort, this group has failed and is ended first."},
    {"grow_id", py_nccl_group_grow_id, METH_NOARGS,
     "grow_id($self, /)\n--\n\nMakes the bytes that ranks need to join this group. One rank calls it, and passes the bytes to grow(id=)."},
    {"grow", PY_FAST_METHOD(py_nccl_group_grow),
     "grow($self, store, size, id=None, rank=None, *, name=None, timeout=None, config=None)\n--\n\n"
     "Makes a larger group, whose first ranks are this group's. They all call it; the one that made the id passes it.\n\n"
     "Ranks of other groups join with the id and their new rank. The caller ends this group."},
    {"revoke", py_nccl_group_revoke, METH_NOARGS,
     "revoke($self, /)\n--\n\nEnds unfinished operations. split() still works afterwards."},
    {"suspend", py_nccl_group_suspend, METH_NOARGS,
     "suspend($self, /)\n--\n\nFrees some of NCCL's memory until resume()."},
    {"resume", py_nccl_group_resume, METH_NOARGS, "resume($self, /)\n--\n\nEnds suspend()."},
    {"memory_stats", py_nccl_group_memory_stats, METH_NOARGS,
     "memory_stats($self, /)\n--\n\nHow many bytes NCCL uses, by name."},
    {"properties", py_nccl_group_properties, METH_NOARGS,
     "properties($self, /)\n--\n\nReturns the communicator's properties and capabilities as NCCL reports them, by name."},
    {"register", PY_FAST_METHOD(py_nccl_group_register),
     "register($self, memory, nbytes=None, *, is_window=False)\n--\n\n"
     "Registers memory that is used often with NCCL: a tensor, or an address and a number of bytes. Returns a number for deregister()."},
    {"deregister", PY_FAST_METHOD(py_nccl_group_deregister),
     "deregister($self, registration, *, is_window=False)\n--\n\nEnds register()."},
    {"new_window", PY_FAST_METHOD(py_nccl_group_new_window),
     "new_window($self, tensor, *, timeout=None)\n--\n\n"
     "Makes an NcclWindow: memory that the other ranks write into. All ranks call it, with tensors of one size in memory of\n"
     "ncclMemAlloc, such as empty() makes."},
    {"comm_pointer", PY_FAST_METHOD(py_nccl_group_comm_pointer),
     "comm_pointer($self, device=None)\n--\n\nThe ncclComm_t as a number, for other libraries; 0 if there is none."},
    {"split_count", py_nccl_group_split_count, METH_NOARGS,
     "split_count($self, /)\n--\n\nThe number of groups that have been split off."},
    {"empty", PY_FAST_METHOD(py_nccl_group_empty),
     "empty($self, shape, dtype='float32', device=None)\n--\n\n"
     "Makes an NcclArray: memory from ncclMemAlloc. Once it is registered, collectives can use it without copies."},
    {"_host_view", group_host_view, METH_NOARGS,
     "_host_view($self, /)\n--\n\nThe same group, which also accepts tensors of the CPU. They are copied to the device and back."},
    {"set_nan_check", group_set_nan_check, METH_O,
     "set_nan_check($self, is_on, /)\n--\n\nSets whether floating-point inputs are checked for NaN, for which the host waits."},
    {"set_timing", group_set_timing, METH_O,
     "set_timing($self, is_on, /)\n--\n\nSets whether operations that are called from now on know their duration."},
    {"add_ephemeral_timeout", group_add_ephemeral_timeout, METH_O,
     "add_ephemeral_timeout($self, timeout, /)\n--\n\n"
     "Gives the operations called from now on this much more time, until one of them has ended."},
    {"_wait_for_works", PY_FAST_METHOD(group_wait_for_works),
     "_wait_for_works($self, timeout=None)\n--\n\n"
     "Makes the host wait until no operation of this rank is unfinished. Raises if the group has failed."},
    {"abort", PY_FAST_METHOD(nccl_group_method_abort),
     "abort($self, reason='abort() was called', timeout=None)\n--\n\n"
     "Ends all operations of this rank at once with DistAbortedError, and waits 10 s for the communicators to end, unless a\n"
     "timeout is given. May be called from any thread."},
    {"close", PY_FAST_METHOD(py_group_close),
     "close($self, timeout=None)\n--\n\n"
     "Waits for unfinished operations and ends the communicators. May be called from any thread.\n\n"
     "Without a timeout, operations have the time that they were given, and communicators 10 s after that. Raises if\n"
     "operations have failed with an error that no call has raised, or if the time is over; they are aborted then."},
    {NULL, NULL, 0, NULL},
};

static PyObject *
nccl_group_get_device(PyObject *object, void *Py_UNUSED(closure))
{
    const py_group *self = (py_group *)object;
    if (!py_group_require_open(self)) {
        return NULL;
    }
    int device = py_nccl_core_device(self->nccl);
    return device != PY_NO_DEVICE ? PyLong_FromLong(device) : Py_NewRef(Py_None);
}

static PyObject *
get_grouped_messages(PyObject *object, void *Py_UNUSED(closure))
{
    const py_group *self = (py_group *)object;
    return py_group_require_open(self) ? PyBool_FromLong(self->nccl->options.has_grouped_messages) : NULL;
}

static PyGetSetDef group_getset[] = {
    {"device", nccl_group_get_device, NULL,
     "The device it is bound to or was first used with; None if it is not known yet.", NULL},
    {"grouped_messages", get_grouped_messages, NULL,
     "Whether gather, scatter and all_to_all are grouped messages with every NCCL.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot group_slots[] = {
    {Py_tp_doc,
     "NcclGroup(store, rank, size, *, timeout=600.0, name='default', init_timeout=None, config=None, device=None, "
     "is_high_priority=False, has_timing=False, is_nan_check=False, is_blocking_wait=False, event_cache=True, "
     "ranks_per_root=0, grouped_messages=False)\n--\n\n"
     "A Group whose data NCCL moves, for tensors on CUDA devices.\n\n"
     "The ranks meet in the store when they first use a device. A call puts its operation into a stream. The streams\n"
     "that the tensors' libraries work on wait for its end, not the host. `config` is a dict of fields of NCCL's\n"
     "configuration."},
    {Py_tp_init, (void *)nccl_group_init},
    {Py_tp_methods, group_methods},
    {Py_tp_getset, group_getset},
    {0, NULL},
};

PyType_Spec py_nccl_group_spec = {"dldist.NcclGroup", sizeof(py_group), 0, PY_BASE_TYPE_FLAGS, group_slots};
