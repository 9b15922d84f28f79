/* The type dldist.Group: opening, closing and aborting, and the table of its methods. */
#include "python/base/error.h"
#include "python/base/object.h"
#include "python/group/engine.h"
#include "python/group/form.h"
#include "python/group/operations.h"
#include "python/observe/recorder.h"
#include "python/observe/watch.h"
#include "python/store/store.h"
#include "store/tcp_store.h"

/* ---- functions of the kind */

static dd_status
cpu_kind_check_fork(const py_group *self, dd_error *err)
{
    return dd_engine_check_fork(dd_group_engine(self->group), err);
}

static void
cpu_kind_abort(const py_group *self, const char *reason, const dd_wait *Py_UNUSED(wait))
{
    if (cpu_kind_check_fork(self, NULL) == DD_OK) {
        dd_group_abort(self->group, reason);
    }
}

/* Release a group of the core, or NULL, without the GIL. Must be called with the GIL held. */
static void
release_without_gil(dd_group *group)
{
    Py_BEGIN_ALLOW_THREADS
    dd_group_release(group);
    Py_END_ALLOW_THREADS
}

static void
cpu_kind_drop(py_group *self)
{
    release_without_gil(self->group);
    py_forms_destroy(self->forms);
}

static dd_recorder_group *
cpu_kind_recorder_group(const py_group *self)
{
    return dd_group_recorder_group(self->group);
}

PY_GROUP_KIND_FUNCTIONS(dd_group, self->group)

const py_group_kind py_group_kind_cpu = {
    .type_name = "Group",
    .timeout_name = "Group.timeout",
    .recorded_name = "gloo",
    .close_timeout_ns = 10 * DD_NS_PER_S,
    PY_GROUP_KIND_TABLE(cpu_kind),
};

/* Take ownership of a group of the core, and a new reference to the store, which may be NULL. */
static void
cpu_group_take(py_group *self, dd_group *group, PyObject *store)
{
    int rank = dd_group_rank(group);
    int size = dd_group_size(group);
    dd_recorder_group *recorded =
        py_recorder_add_group(self->state, py_group_kind_cpu.recorded_name, dd_group_name(group), rank, size);
    if (recorded != NULL) {
        dd_group_set_recorder(group, recorded);
        dd_recorder_group_release(recorded);
    }
    self->group = group;
    self->store = Py_XNewRef(store);
    py_group_publish(self, &py_group_kind_cpu, rank, size);
}

/* ---- opening */

/* The arguments of __init__ except the store. */
typedef struct open_arguments {
    int rank;
    int size;
    dd_group_options options;
    int64_t connect_timeout_ns;
    dd_selection selection;
} open_arguments;

static int64_t
earlier_of(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* Return the store's timeout, or the group's timeout if the group's is shorter. */
static int64_t
default_connect_timeout_ns(const open_arguments *arguments, dd_store *store)
{
    int64_t store_ns = store != NULL ? store->ops->get_timeout_ns(store) : DD_STORE_DEFAULT_TIMEOUT_NS;
    return earlier_of(arguments->options.timeout_ns, store_ns);
}

static int
cpu_group_open(py_group *self, dd_store *store, PyObject *store_object, open_arguments *arguments)
{
    dd_bytes secret = store != NULL ? dd_tcp_store_secret(store) : (dd_bytes){0};
    dd_engine *engine = py_engine_get(self->state, secret);
    if (engine == NULL || !py_engine_read_selection(self->state, &arguments->options.selection) ||
        py_recorder_get(self->state) == NULL) {
        return -1;
    }
    dd_group *group = NULL;
    bool is_open = PY_GROUP_CALL(self->state, arguments->connect_timeout_ns, dd_group_open, engine, store,
                                 arguments->rank, arguments->size, &arguments->options, &group);
    /* Opening fails if a signal handler has raised, or another thread has opened the group. */
    if (!is_open || !py_group_claim(self, &py_group_kind_cpu)) {
        release_without_gil(group);
        return -1;
    }
    cpu_group_take(self, group, store_object);
    return 0;
}

static bool
check_rank_and_size(const py_state *state, int rank, int size)
{
    if (size < 1) {
        py_raise_argument(state, "Group", "size", "is out of range: got %d, expected 1 or more", size);
    }
    return size > 0 && py_params_check_rank(state, rank, size, "Group", "rank");
}

static int
cpu_group_init(PyObject *object, PyObject *args, PyObject *kwargs)
{
    py_group *self = (py_group *)object;
    PyObject *store_object;
    open_arguments arguments = {
        .options = {.name = dd_bytes_of_string("default"), .timeout_ns = DD_GROUP_DEFAULT_TIMEOUT_NS},
        .connect_timeout_ns = -1,
    };
    const py_params params =
        PY_PARAMS("Group", 3, 3, {"store", PY_OBJECT, &store_object}, {"rank", PY_INT, &arguments.rank},
                  {"size", PY_INT, &arguments.size}, {"timeout", PY_TIMEOUT, &arguments.options.timeout_ns},
                  {"name", PY_STRING, &arguments.options.name},
                  {"connect_timeout", PY_TIMEOUT, &arguments.connect_timeout_ns});
    if (!py_group_require_new(self, &py_group_kind_cpu)) {
        return -1;
    }
    if (!py_params_read_tuple(&params, self->state, args, kwargs) ||
        !check_rank_and_size(self->state, arguments.rank, arguments.size)) {
        return -1;
    }
    dd_store *store;
    if (!py_store_acquire_if_any(self->state, store_object, "Group", "store", &store)) {
        return -1;
    }
    if (arguments.connect_timeout_ns < 0) {
        arguments.connect_timeout_ns = default_connect_timeout_ns(&arguments, store);
    }
    int rc = cpu_group_open(self, store, store_object, &arguments);
    py_store_drop(store);
    return rc;
}

static int
group_traverse(PyObject *object, visitproc visit, void *arg)
{
    py_group *self = (py_group *)object;
    Py_VISIT(Py_TYPE(object));
    Py_VISIT(self->module);
    Py_VISIT(self->store);
    Py_VISIT(self->weak);
    Py_VISIT(self->recorders);
    Py_VISIT((PyObject *)self->device_group);
    return 0;
}

static int
group_clear(PyObject *object)
{
    py_group *self = (py_group *)object;
    Py_CLEAR(self->store);
    Py_CLEAR(self->recorders);
    Py_CLEAR(self->device_group);
    return 0;
}

static void
group_dealloc(PyObject *object)
{
    py_group *self = (py_group *)object;
    if (self->kind != NULL) {
        py_lock_take(&self->state->groups_lock);
        dd_list_remove(&self->link);
        py_lock_release(&self->state->groups_lock);
    }
    py_object_begin_dealloc(object);
    if (self->kind != NULL) {
        self->kind->drop(self);
    }
    group_clear(object);
    Py_XDECREF(self->weak);
    py_object_end_dealloc(object);
}

/* ---- splitting */

/* Maximum number of ranks shown in a group's name. Several groups may have the same name. */
#define MAX_NAMED_RANKS 8

static PyObject *
cpu_group_split(py_group *self, const int *ranks, int count, const dd_group_options *options)
{
    PyTypeObject *type = Py_TYPE((PyObject *)self);
    py_group *part = (py_group *)py_object_new(type, NULL, NULL);
    if (part == NULL) {
        return NULL;
    }
    dd_group *group = NULL;
    if (!PY_GROUP_CALL(self->state, options->timeout_ns, dd_group_split, self->group, ranks, count, 0,
                       options, &group)) {
        release_without_gil(group); /* not NULL if a signal handler raised after the split */
        Py_DECREF(part);
        return NULL;
    }
    cpu_group_take(part, group, self->store);
    return (PyObject *)part;
}

static PyObject *
group_split(PyObject *object, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    py_group *self = (py_group *)object;
    PyObject *ranks_object;
    dd_group_options options = {.timeout_ns = -1};
    const py_params params =
        PY_PARAMS("split", 1, 3, {"ranks", PY_OBJECT, &ranks_object}, {"name", PY_STRING, &options.name},
                  {"timeout", PY_TIMEOUT, &options.timeout_ns});
    int count;
    if (!py_group_require_cpu(self, "split") || !py_params_read(&params, self->state, args, nargs, kwnames) ||
        !py_engine_read_selection(self->state, &options.selection)) {
        return NULL;
    }
    options.timeout_ns = py_group_timeout_or_own(self, options.timeout_ns);
    int *ranks = py_group_read_ranks(self, ranks_object, &count, "split", "ranks");
    if (ranks == NULL) {
        return NULL;
    }
    PyObject *made = NULL;
    if (options.name.data == NULL) {
        made = py_group_name_part(self, ranks, count, MAX_NAMED_RANKS, &options.name);
    }
    PyObject *part = options.name.data != NULL ? cpu_group_split(self, ranks, count, &options) : NULL;
    Py_XDECREF(made);
    PyMem_Free(ranks);
    return part;
}

static PyObject *
group_describe(PyObject *object, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    const py_group *self = (py_group *)object;
    if (!py_group_require_open(self)) {
        return NULL;
    }
    const dd_carrier_library *carrier = self->group != NULL ? dd_group_carrier(self->group) : NULL;
    const char *kind = carrier != NULL ? carrier->name : self->kind->recorded_name;
    dd_recorder_group_info info = {.kind = kind, .rank = self->rank, .size = self->size};
    return py_recorder_describe(self->state, self->kind->find_recorder_group(self), &info, args, nargs,
                                kwnames);
}

/* ---- closing and aborting groups of both kinds */

static PyObject *
close_now(py_group *self, int64_t timeout_ns)
{
    self->is_closed = true;
    py_wait wait;
    dd_error err;
    py_wait_init(&wait, self->state, timeout_ns, true);
    dd_status status = PY_WITHOUT_GIL(self->kind->close(self, &wait.wait, &err));
    if (self->nccl != NULL) {
        /* no report is lost: if the group has failed, the other ranks have already been notified */
        py_watch_remove_nccl(self);
    }
    py_completions_drain(self->state);
    return py_group_finish_wait(&wait, status, &err) ? Py_NewRef(Py_None) : NULL;
}

PY_GROUP_METHOD(close)
{
    py_group *group = (py_group *)self;
    int64_t timeout_ns = -1;
    const py_params params = PY_PARAMS("close", 0, 1, {"timeout", PY_TIMEOUT, &timeout_ns});
    if (!py_group_require_open(group) || !py_params_read(&params, group->state, args, nargs, kwnames)) {
        return NULL;
    }
    return close_now(group, timeout_ns >= 0 ? timeout_ns : group->kind->close_timeout_ns);
}

bool
py_group_abort(py_group *self, const char *reason, int64_t timeout_ns)
{
    py_wait wait;
    py_wait_init(&wait, self->state, timeout_ns, true);
    Py_BEGIN_ALLOW_THREADS
    self->kind->abort(self, reason, &wait.wait);
    Py_END_ALLOW_THREADS
    py_completions_drain(self->state);
    return py_wait_finish(&wait, DD_OK, NULL);
}

static PyObject *
cpu_group_method_abort(PyObject *object, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    py_group *self = (py_group *)object;
    const char *reason = "abort() was called";
    const py_params params = PY_PARAMS("abort", 0, 1, {"reason", PY_TEXT, &reason});
    if (!py_group_require_cpu(self, "abort") || !py_params_read(&params, self->state, args, nargs, kwnames)) {
        return NULL;
    }
    return py_group_abort(self, reason, PY_GROUP_ABORT_NS) ? Py_NewRef(Py_None) : NULL;
}

/* Implement revoke(): fail unfinished operations with an error that names revoke(). The group can
 * still be split. */
static PyObject *
group_revoke(PyObject *object, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    py_group *self = (py_group *)object;
    const char *reason = "revoke() was called";
    const py_params params = PY_PARAMS("revoke", 0, 1, {"reason", PY_TEXT, &reason});
    if (!py_group_require_cpu(self, "revoke") || !py_group_require_open(self) ||
        !py_params_read(&params, self->state, args, nargs, kwnames)) {
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS
    dd_group_revoke(self->group, reason);
    Py_END_ALLOW_THREADS
    py_completions_drain(self->state);
    Py_RETURN_NONE;
}

static PyObject *
group_suspend(PyObject *object, PyObject *Py_UNUSED(unused))
{
    py_group *self = (py_group *)object;
    if (!py_group_require_cpu(self, "suspend") || !py_group_require_open(self)) {
        return NULL;
    }
    return py_none_if(
        PY_GROUP_CALL(self->state, dd_group_get_timeout_ns(self->group), dd_group_suspend, self->group));
}

static PyObject *
group_resume(PyObject *object, PyObject *Py_UNUSED(unused))
{
    py_group *self = (py_group *)object;
    if (!py_group_require_cpu(self, "resume") || !py_group_require_open(self)) {
        return NULL;
    }
    return py_none_if(PY_GROUP_TRY(self->state, dd_group_resume, self->group));
}

static PyObject *
group_memory_stats(PyObject *object, PyObject *Py_UNUSED(unused))
{
    py_group *self = (py_group *)object;
    if (!py_group_require_cpu(self, "memory_stats") || !py_group_require_open(self)) {
        return NULL;
    }
    dd_group_memory memory;
    Py_BEGIN_ALLOW_THREADS
    dd_group_get_memory(self->group, &memory);
    Py_END_ALLOW_THREADS
    return Py_BuildValue("{snsnsnsn}", "cpu_mem_suspend", (Py_ssize_t)memory.suspend, "cpu_mem_suspended",
                         (Py_ssize_t)memory.suspended, "cpu_mem_persist", (Py_ssize_t)memory.persist,
                         "cpu_mem_total", (Py_ssize_t)(memory.suspend + memory.persist));
}

static PyObject *
group_enter(PyObject *object, PyObject *Py_UNUSED(unused))
{
    return py_group_require_open((py_group *)object) ? Py_NewRef(object) : NULL;
}

/* Abort the group with the exception as the reason, because other ranks may wait for this rank. */
static bool
abort_by_exception(py_group *self, PyObject *type, PyObject *value)
{
    PyObject *type_name = PyType_Check(type) ? PyType_GetName((PyTypeObject *)type) : NULL;
    PyObject *text = type_name != NULL ? PyUnicode_FromFormat("%U: %S", type_name, value) : NULL;
    const char *utf8 = text != NULL ? PyUnicode_AsUTF8AndSize(text, NULL) : NULL;
    PyErr_Clear();
    bool is_ok = py_group_abort(self, utf8 != NULL ? utf8 : "left by an exception", PY_GROUP_ABORT_NS);
    Py_XDECREF(text);
    Py_XDECREF(type_name);
    return is_ok;
}

static PyObject *
group_exit(PyObject *object, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
{
    py_group *self = (py_group *)object;
    PyObject *type;
    PyObject *value;
    PyObject *traceback;
    const py_params params = PY_PARAMS("__exit__", 3, 3, {"type", PY_OBJECT, &type},
                                       {"value", PY_OBJECT, &value}, {"traceback", PY_OBJECT, &traceback});
    if (!py_params_read(&params, self->state, args, nargs, kwnames) || !py_group_require_open(self)) {
        return NULL;
    }
    if (type == Py_None) {
        return close_now(self, self->kind->close_timeout_ns);
    }
    if (!abort_by_exception(self, type, value)) {
        return NULL;
    }
    self->is_closed = true;
    /* Do not close an NcclGroup: its communicators have ended, but the monitor must still report
     * the reason of the abort. */
    if (self->nccl == NULL) {
        Py_XDECREF(close_now(self, 0));
        PyErr_Clear(); /* ignore an error of close(): the caller must see the first exception */
    }
    Py_RETURN_NONE;
}

/* ---- the type */

#define COMMON \
    "\n\nWith async_op=True it returns a Work at once. `timeout` is in seconds, or a timedelta; None means the group's."
#define METHOD(name, signature, doc)                                           \
    {                                                                          \
#name, PY_FAST_METHOD(py_group_##name), #name signature "\n--\n\n" doc \
    }
/* The row of a collective's method. */
#define COLLECTIVE(name, coll, type, call, former, recorded, as_one, nrequired, parameters, input, output, \
                   signature, doc)                                                                         \
    METHOD(name, signature "timeout=None, async_op=False)", doc COMMON),

static PyMethodDef group_methods[] = {
    PY_OPERATION_LIST(COLLECTIVE) METHOD(send, "($self, tensor, dst, tag=0, *, timeout=None)",
                                         "Sends a tensor to a rank, which receives it with the same tag."),
    METHOD(
        recv, "($self, tensor, src=None, tag=0, *, timeout=None, match_dtype=True)",
        "Receives a tensor from a rank, or from any rank, and returns which it was. The message may be smaller than the tensor.\n"
        "If the sender's dtype differs, it raises DistMismatchError, unless one side has bytes (uint8, int8) or match_dtype is False."),
    METHOD(isend, "($self, tensor, dst, tag=0, *, timeout=None)",
           "Starts to send, and returns a Work at once."),
    METHOD(irecv, "($self, tensor, src=None, tag=0, *, timeout=None, match_dtype=True)",
           "Starts to receive, and returns a Work at once."),
    {"_isend_part", PY_FAST_METHOD(py_group_isend_part),
     "_isend_part($self, tensor, dst, tag=0, *, timeout=None)\n--\n\n"
     "Starts to send a part of an object. Only _irecv_part receives it."},
    {"_irecv_part", PY_FAST_METHOD(py_group_irecv_part),
     "_irecv_part($self, tensor, src=None, tag=0, *, timeout=None, match_dtype=True)\n--\n\n"
     "Starts to receive a part of an object."},
    {"_probe", PY_FAST_METHOD(py_group_probe),
     "_probe($self, src=None, tag=-1, is_waiting=True, *, timeout=None)\n--\n\n"
     "Finds a message without receiving it: returns its source, tag and size in bytes, or None."},
    {"monitored_barrier", PY_FAST_METHOD(py_group_monitored_barrier),
     "monitored_barrier($self, timeout=None, wait_all_ranks=False)\n--\n\n"
     "A barrier whose error on rank 0 names the first rank that is missing, or all of them with wait_all_ranks."},
    {"batch_isend_irecv", (PyCFunction)(void (*)(void))py_group_batch_isend_irecv,
     METH_VARARGS | METH_KEYWORDS,
     "batch_isend_irecv($self, p2p_op_list)\n--\n\nStarts the P2POps of a list, and returns their Works."},
    {"coalesce", (PyCFunction)(void (*)(void))py_group_coalesce, METH_VARARGS | METH_KEYWORDS,
     "coalesce($self, *, timeout=None, async_op=False)\n--\n\n"
     "A context manager: the calls in it by this thread, of all_reduce or of the single forms of all_gather and\n"
     "reduce_scatter, are made one operation at its end."},
    {"_set_recorder", py_group_set_recorder, METH_O,
     "_set_recorder($self, recorder, /)\n--\n\nSets the recorder of this thread's calls. Returns the previous one."},
    {"_serving", py_group_find_serving, METH_O,
     "_serving($self, tensor, /)\n--\n\nThe group that serves the tensor's device: this one, or that beside it."},
    {"empty", PY_FAST_METHOD(py_group_empty),
     "empty($self, shape, dtype='float32')\n--\n\n"
     "Create a SharedArray of zeros; of float32 unless a dtype is given.\n\n"
     "The ranks of this host share its memory, so collectives on it copy less."},
    {"_adopt", PY_FAST_METHOD(py_group_adopt),
     "_adopt($self, address, fd, nbytes)\n--\n\n"
     "Returns a SharedArray of the bytes at an address: a shared mapping of fd that only the caller uses and never moves."},
    {"split", PY_FAST_METHOD(group_split),
     "split($self, ranks, name=None, timeout=None)\n--\n\n"
     "Makes a group of these ranks, in this order. Only they call it."},
    {"_carry", PY_FAST_METHOD(py_group_carry),
     "_carry($self, carrier, timeout=None)\n--\n\nFrom now on this library moves the data. All ranks call it first of all."},
    {"_describe", PY_FAST_METHOD(group_describe),
     "_describe($self, name, desc, global_ranks)\n--\n\nSets the group's name in dumps of the flight recorder."},
    {"abort", PY_FAST_METHOD(cpu_group_method_abort),
     "abort($self, reason='abort() was called')\n--\n\n"
     "Ends all operations at once, here and on the other ranks, with a DistAbortedError. May be called from any thread."},
    {"revoke", PY_FAST_METHOD(group_revoke),
     "revoke($self, reason='revoke() was called')\n--\n\n"
     "Ends all operations at once, here and on the other ranks, with a DistAbortedError that says that the group was revoked. split()\n"
     "still works afterwards. May be called from any thread."},
    {"suspend", group_suspend, METH_NOARGS,
     "suspend($self, /)\n--\n\n"
     "Waits for the operations under way and gives the shared memory that the group works in back to the system, until resume(). All\n"
     "ranks call this."},
    {"resume", group_resume, METH_NOARGS, "resume($self, /)\n--\n\nEnds suspend(). All ranks call this."},
    {"memory_stats", group_memory_stats, METH_NOARGS,
     "memory_stats($self, /)\n--\n\n"
     "How many bytes of shared memory this rank of the group answers for, by name: what suspend() gives back at most, what it has given\n"
     "back, what stays, and all."},
    {"close", PY_FAST_METHOD(py_group_close),
     "close($self, timeout=None)\n--\n\n"
     "Waits for the operations that are under way (10 s unless a timeout is given) and leaves the group. May be called from any thread."},
    {"__enter__", group_enter, METH_NOARGS, "__enter__($self, /)\n--\n\n"},
    {"__exit__", PY_FAST_METHOD(group_exit),
     "__exit__($self, *exception)\n--\n\nCloses the group. After an exception, aborts it; the other ranks receive the reason."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot group_slots[] = {
    {Py_tp_doc,
     "Group(store, rank, size, *, timeout=1800.0, name='default', connect_timeout=None)\n--\n\n"
     "A group of `size` processes that meet in a store, which may be None for a group of one.\n\n"
     "Groups over one store have different names. `timeout` (seconds or a timedelta) is for operations;\n"
     "`connect_timeout` for meeting the others: the store's, or `timeout` if that is shorter, unless given."},
    {Py_tp_new, (void *)py_object_new},
    {Py_tp_init, (void *)cpu_group_init},
    {Py_tp_dealloc, (void *)group_dealloc},
    {Py_tp_traverse, (void *)group_traverse},
    {Py_tp_clear, (void *)group_clear},
    {Py_tp_repr, (void *)py_group_repr},
    {Py_tp_methods, group_methods},
    {Py_tp_getset, py_group_getset},
    {Py_tp_members, py_object_members},
    {0, NULL},
};

PyType_Spec py_group_spec = {"dldist.Group", sizeof(py_group), 0, PY_BASE_TYPE_FLAGS | Py_TPFLAGS_HAVE_GC,
                             group_slots};
