/* dldist.nccl's communicators of one process: NcclComms, NcclRankComm, NcclUniqueId, NcclAbortHandle. */
#include "nccl/nccl_team.h"

#include "core/fork.h"
#include "core/mem.h"
#include "python/py_error.h"
#include "python/py_nccl.h"
#include "python/py_reduce_op.h"

#include <stdio.h>
#include <string.h>

#define UNIQUE_ID_NBYTES ((Py_ssize_t)sizeof(dd_nccl_unique_id))

/* What every object here has. */
#define HEAD                                                     \
    PyObject ob_base; /* PyObject_HEAD */                        \
    PyObject *module; /* const after new: keeps `state` alive */ \
    py_state *state   /* const after new */

typedef struct py_nccl_comms {
    HEAD;
    dd_nccl_team *team; /* owned; guarded by the GIL; NULL once it is closed */
    int ncalls;         /* guarded by the GIL: under way; the last one closes what close() could not */
    bool is_closed;     /* guarded by the GIL */
} py_nccl_comms;

typedef struct py_nccl_rank_comm {
    HEAD;
    dd_nccl_comm *comm; /* counted; guarded by the GIL; NULL once it is closed */
    int rank;           /* const */
    int size;           /* const */
    int device;         /* const */
} py_nccl_rank_comm;

typedef struct py_nccl_abort_handle {
    HEAD;
    dd_nccl_comm *comm; /* counted; const */
} py_nccl_abort_handle;

typedef struct py_nccl_unique_id {
    HEAD;
    dd_nccl_unique_id id; /* const */
} py_nccl_unique_id;

static bool
raise(py_state *state, dd_status status, const dd_error *err)
{
    if (status != DD_OK) {
        py_error_raise_of_group(state, status, err);
    }
    return status == DD_OK;
}

static void *
new_object(py_state *state, PyTypeObject *type, PyObject *module)
{
    allocfunc alloc = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    py_nccl_comms *self = (py_nccl_comms *)alloc(type, 0);
    if (self != NULL) {
        self->module = Py_NewRef(module);
        self->state = state;
    }
    return self;
}

static PyObject *
object_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    (void)args;
    (void)kwargs;
    PyObject *module;
    py_state *state = py_state_of_type(type, &module);
    return state != NULL ? new_object(state, type, module) : NULL;
}

static void
free_object(PyObject *object)
{
    PyTypeObject *type = Py_TYPE(object);
    PyObject *module = ((py_nccl_comms *)object)->module;
    freefunc free_memory = (freefunc)PyType_GetSlot(type, Py_tp_free);
    free_memory(object);
    Py_DECREF(type);
    Py_XDECREF(module);
}

static void
release_comm(dd_nccl_comm *comm)
{
    Py_BEGIN_ALLOW_THREADS
    dd_nccl_comm_release(comm);
    Py_END_ALLOW_THREADS
}

/* ---- the tensors of a call, as items of NCCL's */

typedef struct team_call {
    py_state *state;
    const char *function;
    py_operands operands;
    dd_nccl_item *items; /* owned */
    dd_cuda_stream
        *streams;       /* owned: of the items, as the tensors' libraries work on; or as they are given */
    bool has_streams;   /* they are given */
    bool is_one_stream; /* there is one for all items */
    size_t nitems;
    dd_nccl_redop redop;
    int root;
} team_call;

/* A stream that the caller has given: producers that do not say on which they work order themselves before it. */
static bool
give_stream(void *ctx, int device, void **stream)
{
    (void)device;
    *stream = *(dd_cuda_stream *)ctx;
    if (*stream == NULL) {
        *stream = (void *)1; /* DLPack's name for the legacy default stream */
    }
    return true;
}

static void
call_init(team_call *call, py_state *state, const char *function)
{
    call->state = state;
    call->function = function;
    call->items = NULL;
    call->streams = NULL;
    call->has_streams = false;
    call->is_one_stream = false;
    call->nitems = 0;
    call->redop = DD_NCCL_SUM;
    call->root = 0;
    py_operands_init(&call->operands, state, function);
    py_device_scope_init(&call->operands.device, state);
}

static void
call_fini(team_call *call)
{
    py_operands_fini(&call->operands);
    dd_mem_free(call->items);
    dd_mem_free(call->streams);
}

static bool
read_redop(team_call *call, PyObject *op)
{
    static const struct {
        dd_redop ours;
        dd_nccl_redop theirs;
    } table[] = {
        {DD_REDOP_SUM, DD_NCCL_SUM}, {DD_REDOP_PRODUCT, DD_NCCL_PROD}, {DD_REDOP_MAX, DD_NCCL_MAX},
        {DD_REDOP_MIN, DD_NCCL_MIN}, {DD_REDOP_AVG, DD_NCCL_AVG},
    };
    dd_reduction reduction;
    if (!py_reduce_op_read(call->state, op, &reduction, call->function)) {
        return false;
    }
    for (size_t i = 0; i < sizeof table / sizeof table[0]; i++) {
        if (table[i].ours == reduction.op) {
            call->redop = table[i].theirs;
            return true;
        }
    }
    PyErr_Format(call->state->errors[PY_ERROR_ARGUMENT],
                 "%s(): argument 'op': NCCL's are SUM, PRODUCT, MIN, MAX and AVG, not %s", call->function,
                 dd_redop_name(reduction.op));
    return false;
}

static bool
read_root(team_call *call, PyObject *root, int size)
{
    if (root == NULL) {
        return true;
    }
    if (!py_params_int(call->state, root, &call->root, call->function, "root")) {
        return false;
    }
    if (call->root < 0 || call->root >= size) {
        PyErr_Format(call->state->errors[PY_ERROR_ARGUMENT], "%s(): argument 'root': %d is not in 0 to %d",
                     call->function, call->root, size - 1);
        return false;
    }
    return true;
}

static bool
reserve_streams(team_call *call, size_t count)
{
    if (call->streams == NULL) {
        call->streams = dd_mem_alloc_array(count + 1, sizeof(dd_cuda_stream));
        if (call->streams == NULL) {
            PyErr_NoMemory();
        }
    }
    return call->streams != NULL;
}

/* One tensor, contiguous, on the device; its library's stream is that of item i. */
static bool
add_tensor(team_call *call, PyObject *object, py_use use, const char *name, size_t i, int device)
{
    char item_name[64];
    py_device_scope *scope = &call->operands.device;
    scope->device = device;
    scope->nstreams = 0;
    if (call->has_streams) {
        scope->find_stream = give_stream;
        scope->ctx = &call->streams[call->is_one_stream ? 0 : i];
    }
    snprintf(item_name, sizeof item_name, "%.40s[%zu]", name, i);
    if (!py_operands_add(&call->operands, object, use, item_name)) {
        return false;
    }
    if (call->operands.pieces[call->operands.npieces - 1].is_staged) {
        PyErr_Format(call->state->errors[PY_ERROR_ARGUMENT], "%s(): argument '%s' is not contiguous",
                     call->function, item_name);
        return false;
    }
    if (!call->has_streams) {
        call->streams[i] = scope->nstreams > 0 ? scope->streams[0].handle : NULL;
    }
    return true;
}

/* Adds a list of tensors. Where `devices` is given, tensor i is on device i; else all are on `device`. */
static bool
add_tensors(team_call *call, PyObject *list, py_use use, const char *name, Py_ssize_t count,
            const int *devices, int device)
{
    if (!PyList_Check(list) && !PyTuple_Check(list)) {
        py_raise_wrong_type(call->function, name, "a list or tuple of tensors, one for each device", list);
        return false;
    }
    PyObject *objects = PySequence_Tuple(list);
    Py_ssize_t given = objects != NULL ? PyTuple_Size(objects) : 0;
    bool is_ok = objects != NULL && reserve_streams(call, (size_t)given);
    if (is_ok && ((count >= 0 && given != count) || given == 0)) {
        PyErr_Format(call->state->errors[PY_ERROR_ARGUMENT],
                     "%s(): argument '%s' has %zd tensors, and %zd are needed", call->function, name, given,
                     count >= 0 ? count : 1);
        is_ok = false;
    }
    for (Py_ssize_t i = 0; is_ok && i < given; i++) {
        is_ok = add_tensor(call, PyTuple_GetItem(objects, i), use, name, (size_t)i,
                           devices != NULL ? devices[i] : device);
    }
    Py_XDECREF(objects);
    return is_ok;
}

static bool
allocate_items(team_call *call, size_t count)
{
    call->items = dd_mem_alloc_array(count, sizeof *call->items);
    call->nitems = count;
    if (call->items == NULL) {
        PyErr_NoMemory();
    }
    return call->items != NULL;
}

/* One item of one or two pieces (the same for calls in place). nblocks: how many ranks' blocks the larger one has. */
static bool
set_item(team_call *call, const dd_nccl_lib *lib, dd_nccl_item *item, const py_piece *send,
         const py_piece *recv)
{
    dd_error err;
    dd_nccl_dtype dtype;
    dd_dtype ours = send->tensor.view.dtype;
    if (!raise(call->state, dd_nccl_dtype_of(lib, ours, &dtype, &err), &err)) {
        return false;
    }
    item->send = send->flat;
    item->recv = recv->flat;
    item->dtype = dtype;
    item->redop = call->redop;
    item->root = call->root;
    item->count = send->tensor.view.count;
    return true;
}

/* How a collective uses its tensors. */
typedef struct team_coll {
    const char *function;
    dd_nccl_item_kind kind;
    bool has_op;
    bool has_root;
    bool has_outputs;   /* a list of outputs beside that of inputs */
    bool is_input_wide; /* reduce_scatter: the input has a block for each rank; all_gather: the output */
} team_coll;

static const team_coll colls[] = {
    [DD_NCCL_ITEM_ALL_REDUCE] = {"all_reduce", DD_NCCL_ITEM_ALL_REDUCE, .has_op = true},
    [DD_NCCL_ITEM_BROADCAST] = {"broadcast", DD_NCCL_ITEM_BROADCAST, .has_root = true},
    [DD_NCCL_ITEM_REDUCE] = {"reduce", DD_NCCL_ITEM_REDUCE, .has_op = true, .has_root = true},
    [DD_NCCL_ITEM_ALL_GATHER] = {"all_gather", DD_NCCL_ITEM_ALL_GATHER, .has_outputs = true},
    [DD_NCCL_ITEM_REDUCE_SCATTER] = {"reduce_scatter", DD_NCCL_ITEM_REDUCE_SCATTER, .has_op = true,
                                     .has_outputs = true, .is_input_wide = true},
};

static bool
check_counts(const team_call *call, const team_coll *coll, const py_piece *send, const py_piece *recv,
             int size)
{
    size_t input = send->tensor.view.count;
    size_t output = recv->tensor.view.count;
    size_t one = coll->is_input_wide ? output : input;
    size_t all = coll->is_input_wide ? input : output;
    if (!coll->has_outputs || all == one * (size_t)size) {
        return true;
    }
    PyErr_Format(call->state->errors[PY_ERROR_ARGUMENT],
                 "%s(): %zu elements in and %zu out do not fit together among %d ranks", call->function,
                 input, output, size);
    return false;
}

/* Items of n pairs: the pieces are n outputs and then n inputs, or n that are both. */
static bool
make_items(team_call *call, const team_coll *coll, const dd_nccl_lib *lib, int size)
{
    size_t n = coll->has_outputs ? call->operands.npieces / 2 : call->operands.npieces;
    bool is_ok = allocate_items(call, n);
    for (size_t i = 0; is_ok && i < n; i++) {
        const py_piece *recv = &call->operands.pieces[i];
        const py_piece *send = coll->has_outputs ? &call->operands.pieces[n + i] : recv;
        dd_nccl_item *item = &call->items[i];
        is_ok = check_counts(call, coll, send, recv, size) && set_item(call, lib, item, send, recv);
        item->kind = coll->kind;
        if (coll->is_input_wide) {
            item->count = recv->tensor.view.count;
        }
    }
    return is_ok;
}

/* ---- streams that are given */

static bool
read_stream(team_call *call, PyObject *object, dd_cuda_stream *stream)
{
    void *handle = NULL;
    py_argument argument = {
        .state = call->state, .function = call->function, .name = "stream", .value = object};
    bool is_ok = object == Py_None || py_device_read_stream(&argument, &handle);
    *stream = handle;
    return is_ok;
}

/* One for each item; NULL or None: those of the tensors' libraries. */
static bool
read_streams(team_call *call, PyObject *list, int count)
{
    if (list == NULL || list == Py_None) {
        return true;
    }
    PyObject *tuple = PySequence_Tuple(list);
    bool is_ok = tuple != NULL && PyTuple_Size(tuple) == count && reserve_streams(call, (size_t)count);
    if (tuple != NULL && !is_ok && PyErr_Occurred() == NULL) {
        PyErr_Format(call->state->errors[PY_ERROR_ARGUMENT],
                     "%s(): argument 'streams' has %zd streams for %d devices", call->function,
                     PyTuple_Size(tuple), count);
    }
    call->has_streams = is_ok;
    for (int i = 0; is_ok && i < count; i++) {
        is_ok = read_stream(call, PyTuple_GetItem(tuple, i), &call->streams[i]);
    }
    Py_XDECREF(tuple);
    return is_ok;
}

/* ---- NcclComms */

static dd_nccl_team *
require_team(const py_nccl_comms *self)
{
    if (self->team == NULL || self->is_closed) {
        PyErr_SetString(self->state->errors[PY_ERROR_BACKEND], "these communicators are closed");
        return NULL;
    }
    return self->team;
}

/* Devices as numbers: ints, or what prints as "cuda:1". */
static bool
read_device(const py_state *state, PyObject *object, int *device)
{
    if (PyLong_Check(object)) {
        return py_params_int(state, object, device, "NcclComms", "devices");
    }
    PyObject *text = PyObject_Str(object);
    const char *utf8 = text != NULL ? PyUnicode_AsUTF8AndSize(text, NULL) : NULL;
    int nread = 0;
    bool is_ok = utf8 != NULL && sscanf(utf8, "cuda:%9d%n", device, &nread) == 1 && utf8[nread] == '\0';
    if (utf8 != NULL && !is_ok) {
        PyErr_Format(state->errors[PY_ERROR_ARGUMENT],
                     "NcclComms(): argument 'devices': CUDA devices are needed, not %R", object);
    }
    Py_XDECREF(text);
    return is_ok;
}

/* PyMem; NULL with an exception. */
static int *
read_devices(const py_state *state, PyObject *list, int *count)
{
    PyObject *tuple = PySequence_Tuple(list);
    Py_ssize_t n = tuple != NULL ? PyTuple_Size(tuple) : 0;
    int *devices = tuple != NULL ? PyMem_Calloc((size_t)n + 1, sizeof *devices) : NULL;
    if (tuple != NULL && devices == NULL) {
        PyErr_NoMemory();
    }
    for (Py_ssize_t i = 0; devices != NULL && i < n; i++) {
        if (!read_device(state, PyTuple_GetItem(tuple, i), &devices[i])) {
            PyMem_Free(devices);
            devices = NULL;
        }
    }
    Py_XDECREF(tuple);
    *count = (int)n;
    return devices;
}

static int
comms_init(PyObject *object, PyObject *args, PyObject *kwargs)
{
    static char *keywords[] = {"devices", "timeout", NULL};
    py_nccl_comms *self = (py_nccl_comms *)object;
    PyObject *list;
    PyObject *timeout = NULL;
    int64_t timeout_ns = DD_NCCL_DEFAULT_TIMEOUT_NS;
    int count;
    py_nccl *nccl;
    if (self->team != NULL || self->is_closed) {
        PyErr_SetString(PyExc_RuntimeError, "NcclComms.__init__() was called before on this object");
        return -1;
    }
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|O:NcclComms", keywords, &list, &timeout) ||
        (timeout != NULL && timeout != Py_None &&
         !py_to_timeout_ns(self->state, timeout, &timeout_ns, "NcclComms", "timeout")) ||
        (nccl = py_nccl_get(self->state)) == NULL) {
        return -1;
    }
    int *devices = read_devices(self->state, list, &count);
    if (devices == NULL) {
        return -1;
    }
    py_wait wait;
    dd_error err;
    dd_status status;
    dd_nccl_team *team = NULL;
    py_wait_init(&wait, self->state, timeout_ns, true);
    Py_BEGIN_ALLOW_THREADS
    status = dd_nccl_team_open(nccl->lib, nccl->cuda, devices, count, &team, &wait.wait, &err);
    Py_END_ALLOW_THREADS
    PyMem_Free(devices);
    if (!py_group_finish_wait(&wait, status, &err)) {
        return -1;
    }
    self->team = team;
    return 0;
}

/* Closes it once nobody is in a call. */
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

static void
comms_dealloc(PyObject *object)
{
    close_team((py_nccl_comms *)object);
    free_object(object);
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

/* What is given to a collective of either class. */
typedef struct team_arguments {
    PyObject *outputs; /* NULL where the tensors are both */
    PyObject *inputs;
    PyObject *op;
    PyObject *root;
    PyObject *streams;
} team_arguments;

static bool
parse(const team_coll *coll, PyObject *args, PyObject *kwargs, const char *streams_name,
      team_arguments *given)
{
    char *names[6];
    char format[32] = "";
    PyObject **places[5];
    size_t count = 0;
    *given = (team_arguments){NULL};
    if (coll->has_outputs) {
        names[count] = "outputs";
        places[count++] = &given->outputs;
    }
    names[count] = coll->has_outputs ? "inputs" : "tensors";
    places[count++] = &given->inputs;
    size_t nrequired = count;
    if (coll->has_root) {
        names[count] = "root";
        places[count++] = &given->root;
    }
    if (coll->has_op) {
        names[count] = "op";
        places[count++] = &given->op;
    }
    names[count] = (char *)(uintptr_t)streams_name;
    places[count++] = &given->streams;
    names[count] = NULL;
    PyObject *ignored = NULL;
    snprintf(format, sizeof format, "%.*s|%.*s:%s", (int)nrequired, "OO", (int)(count - nrequired), "OOO",
             coll->function);
    for (size_t i = count; i < 5; i++) {
        places[i] = &ignored;
    }
    return PyArg_ParseTupleAndKeywords(args, kwargs, format, names, places[0], places[1], places[2],
                                       places[3], places[4]) != 0;
}

/* Reads all but the streams, and makes the items. */
static bool
prepare(team_call *call, const team_coll *coll, const team_arguments *given, const dd_nccl_lib *lib, int size,
        Py_ssize_t count, const int *devices, int device)
{
    py_use use = coll->has_outputs ? PY_USE_IN : PY_USE_IN_PLACE;
    if ((given->op != NULL && !read_redop(call, given->op)) || !read_root(call, given->root, size)) {
        return false;
    }
    if (coll->has_outputs &&
        !add_tensors(call, given->outputs, PY_USE_OUT, "outputs", count, devices, device)) {
        return false;
    }
    Py_ssize_t ninputs = coll->has_outputs ? (Py_ssize_t)call->operands.npieces : count;
    return add_tensors(call, given->inputs, use, coll->has_outputs ? "inputs" : "tensors", ninputs, devices,
                       device) &&
           make_items(call, coll, lib, size);
}

static PyObject *
comms_run(PyObject *object, PyObject *args, PyObject *kwargs, const team_coll *coll)
{
    py_nccl_comms *self = (py_nccl_comms *)object;
    team_arguments given;
    dd_nccl_team *team = require_team(self);
    if (team == NULL || !parse(coll, args, kwargs, "streams", &given)) {
        return NULL;
    }
    int *devices = devices_of(team);
    if (devices == NULL) {
        return NULL;
    }
    team_call call;
    int size = dd_nccl_team_size(team);
    call_init(&call, self->state, coll->function);
    self->ncalls++;
    bool is_ok = read_streams(&call, given.streams, size) &&
                 prepare(&call, coll, &given, self->state->nccl->lib, size, size, devices, 0);
    PyMem_Free(devices);
    if (is_ok) {
        py_wait wait;
        dd_error err;
        dd_status status;
        py_wait_init(&wait, self->state, DD_NCCL_DEFAULT_TIMEOUT_NS, true);
        Py_BEGIN_ALLOW_THREADS
        status = dd_nccl_team_run(team, coll->function, call.items, 1, call.streams, &wait.wait, &err);
        Py_END_ALLOW_THREADS
        is_ok = py_group_finish_wait(&wait, status, &err);
    }
    call_fini(&call);
    self->ncalls--;
    if (self->is_closed) {
        close_team(self);
    }
    return is_ok ? Py_NewRef(Py_None) : NULL;
}

#define RUN_METHOD(type, name, kind)                                                 \
    static PyObject *type##_##name(PyObject *self, PyObject *args, PyObject *kwargs) \
    {                                                                                \
        return type##_run(self, args, kwargs, &colls[kind]);                         \
    }

RUN_METHOD(comms, all_reduce, DD_NCCL_ITEM_ALL_REDUCE)
RUN_METHOD(comms, broadcast, DD_NCCL_ITEM_BROADCAST)
RUN_METHOD(comms, reduce, DD_NCCL_ITEM_REDUCE)
RUN_METHOD(comms, all_gather, DD_NCCL_ITEM_ALL_GATHER)
RUN_METHOD(comms, reduce_scatter, DD_NCCL_ITEM_REDUCE_SCATTER)

/* Takes the communicator. */
static PyObject *
make_rank_comm(py_state *state, PyObject *module, dd_nccl_comm *comm)
{
    py_nccl_rank_comm *self = new_object(state, state->nccl_rank_comm_type, module);
    if (self == NULL) {
        release_comm(comm);
        return NULL;
    }
    self->comm = comm;
    self->rank = dd_nccl_comm_rank(comm);
    self->size = dd_nccl_comm_size(comm);
    self->device = dd_nccl_comm_device(comm);
    return (PyObject *)self;
}

static PyObject *
comms_split(PyObject *object, PyObject *unused)
{
    (void)unused;
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
    dd_error err;
    dd_status status;
    self->ncalls++;
    Py_BEGIN_ALLOW_THREADS
    status = dd_nccl_team_take_apart(team, comms, &err);
    Py_END_ALLOW_THREADS
    self->ncalls--;
    PyObject *list = raise(self->state, status, &err) ? PyList_New(0) : NULL;
    for (int i = 0; status == DD_OK && i < size; i++) {
        PyObject *comm = make_rank_comm(self->state, self->module, comms[i]);
        if (comm == NULL || list == NULL || PyList_Append(list, comm) < 0) {
            Py_CLEAR(list);
        }
        Py_XDECREF(comm);
    }
    PyMem_Free(comms);
    if (status == DD_OK || self->is_closed) {
        close_team(self);
    }
    return list;
}

static PyObject *
comms_close(PyObject *object, PyObject *unused)
{
    (void)unused;
    close_team((py_nccl_comms *)object);
    Py_RETURN_NONE;
}

static PyObject *
comms_abort(PyObject *object, PyObject *args)
{
    py_nccl_comms *self = (py_nccl_comms *)object;
    const char *reason = "abort() was called";
    dd_nccl_team *team = self->team;
    if (!PyArg_ParseTuple(args, "|s:abort", &reason)) {
        return NULL;
    }
    if (team == NULL) {
        Py_RETURN_NONE;
    }
    dd_error err;
    dd_status status;
    self->ncalls++;
    Py_BEGIN_ALLOW_THREADS
    status = dd_nccl_team_abort(team, reason, &err);
    Py_END_ALLOW_THREADS
    self->ncalls--;
    if (self->is_closed) {
        close_team(self);
    }
    return raise(self->state, status, &err) ? Py_NewRef(Py_None) : NULL;
}

static PyObject *
comms_enter(PyObject *object, PyObject *unused)
{
    (void)unused;
    return require_team((py_nccl_comms *)object) != NULL ? Py_NewRef(object) : NULL;
}

static PyObject *
comms_exit(PyObject *object, PyObject *args)
{
    (void)args;
    return comms_close(object, NULL);
}

static PyObject *
comms_get_size(PyObject *object, void *closure)
{
    (void)closure;
    const dd_nccl_team *team = ((py_nccl_comms *)object)->team;
    return PyLong_FromLong(team != NULL ? dd_nccl_team_size(team) : 0);
}

static PyObject *
comms_get_devices(PyObject *object, void *closure)
{
    (void)closure;
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

#define KEYWORDS(function) (PyCFunction)(void (*)(void)) function, METH_VARARGS | METH_KEYWORDS
#define ON_STREAMS \
    "\n\nIt is put into `streams`, one for each device, or into those that the tensors' libraries work on; nothing waits."

static PyMethodDef comms_methods[] = {
    {"all_reduce", KEYWORDS(comms_all_reduce),
     "all_reduce($self, tensors, op='sum', streams=None)\n--\n\nReduces the tensors of all devices, in place." ON_STREAMS},
    {"broadcast", KEYWORDS(comms_broadcast),
     "broadcast($self, tensors, root=0, streams=None)\n--\n\nGives every tensor what tensors[root] has." ON_STREAMS},
    {"reduce", KEYWORDS(comms_reduce),
     "reduce($self, tensors, root=0, op='sum', streams=None)\n--\n\nReduces the tensors into tensors[root]." ON_STREAMS},
    {"all_gather", KEYWORDS(comms_all_gather),
     "all_gather($self, outputs, inputs, streams=None)\n--\n\n"
     "Gives every output all inputs, one after another in the order of the devices." ON_STREAMS},
    {"reduce_scatter", KEYWORDS(comms_reduce_scatter),
     "reduce_scatter($self, outputs, inputs, op='sum', streams=None)\n--\n\n"
     "Reduces the inputs, and gives output k the k-th part." ON_STREAMS},
    {"split", comms_split, METH_NOARGS,
     "split($self, /)\n--\n\nThe communicators, an NcclRankComm for each device, for a thread each. This object has none then."},
    {"abort", comms_abort, METH_VARARGS,
     "abort($self, reason='abort() was called', /)\n--\n\nEnds what is under way, with errors. From any thread."},
    {"close", comms_close, METH_NOARGS, "close($self, /)\n--\n\nEnds the communicators."},
    {"__enter__", comms_enter, METH_NOARGS, "__enter__($self, /)\n--\n\n"},
    {"__exit__", comms_exit, METH_VARARGS, "__exit__($self, *exception)\n--\n\nCloses."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef comms_getset[] = {
    {"size", comms_get_size, NULL, "How many devices there are; 0 after the end.", NULL},
    {"devices", comms_get_devices, NULL, "Their numbers.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot comms_slots[] = {
    {Py_tp_doc,
     "NcclComms(devices, timeout=None)\n--\n\n"
     "Communicators of one process, one for each device (numbers, or \"cuda:1\"), for calls with a tensor for each.\n\n"
     "The current device of the caller stays what it is."},
    {Py_tp_new, (void *)object_new},
    {Py_tp_init, (void *)comms_init},
    {Py_tp_dealloc, (void *)comms_dealloc},
    {Py_tp_methods, comms_methods},
    {Py_tp_getset, comms_getset},
    {0, NULL},
};

static PyType_Spec comms_spec = {
    .name = "dldist.nccl.NcclComms",
    .basicsize = sizeof(py_nccl_comms),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = comms_slots,
};

/* ---- NcclRankComm */

static dd_nccl_comm *
require_comm(const py_nccl_rank_comm *self)
{
    if (self->comm == NULL) {
        PyErr_SetString(self->state->errors[PY_ERROR_BACKEND], "this communicator is closed");
    }
    return self->comm;
}

static bool
check_rank(py_state *state, int rank, int size)
{
    if (rank >= 0 && rank < size) {
        return true;
    }
    PyErr_Format(state->errors[PY_ERROR_ARGUMENT], "init_rank(): rank %d is not in 0 to %d", rank, size - 1);
    return false;
}

/* The device that is given, or the current one, or the rank's number. */
static bool
choose_device(py_state *state, PyObject *object, int rank, int *device)
{
    if (object != Py_None) {
        return read_device(state, object, device);
    }
    dd_error err;
    int current = DD_CUDA_NO_CURRENT;
    if (!raise(state, dd_cuda_current_device(state->nccl->cuda, &current, &err), &err)) {
        return false;
    }
    *device = current != DD_CUDA_NO_CURRENT ? current : rank % state->nccl->cuda->ndevices;
    return true;
}

static PyObject *
rank_comm_init_rank(PyObject *type, PyObject *args, PyObject *kwargs)
{
    static char *keywords[] = {"rank", "world_size", "uid", "device", "timeout", NULL};
    PyObject *module;
    py_state *state = py_state_of_type((PyTypeObject *)type, &module);
    PyObject *uid;
    PyObject *device_object = Py_None;
    PyObject *timeout = Py_None;
    int64_t timeout_ns = DD_NCCL_DEFAULT_TIMEOUT_NS;
    dd_nccl_config config;
    dd_nccl_comm_spec spec = {.config = &config};
    if (state == NULL ||
        !PyArg_ParseTupleAndKeywords(args, kwargs, "iiO!|OO:init_rank", keywords, &spec.rank, &spec.size,
                                     state->nccl_unique_id_type, &uid, &device_object, &timeout) ||
        !check_rank(state, spec.rank, spec.size) ||
        (timeout != Py_None && !py_to_timeout_ns(state, timeout, &timeout_ns, "init_rank", "timeout"))) {
        return NULL;
    }
    const py_nccl *nccl = py_nccl_get(state);
    if (nccl == NULL || !choose_device(state, device_object, spec.rank, &spec.device)) {
        return NULL;
    }
    spec.lib = nccl->lib;
    spec.cuda = nccl->cuda;
    dd_nccl_config_init(&config);
    py_wait wait;
    dd_error err;
    dd_status status;
    dd_nccl_comm *comm = NULL;
    py_wait_init(&wait, state, timeout_ns, true);
    Py_BEGIN_ALLOW_THREADS
    status = dd_nccl_comm_init(&spec, &((py_nccl_unique_id *)uid)->id, 1, &comm, NULL, &wait.wait, &err);
    Py_END_ALLOW_THREADS
    return py_group_finish_wait(&wait, status, &err) ? make_rank_comm(state, module, comm) : NULL;
}

#define RANK_STREAMS 1

static PyObject *
rank_comm_run(PyObject *object, PyObject *args, PyObject *kwargs, const team_coll *coll)
{
    py_nccl_rank_comm *self = (py_nccl_rank_comm *)object;
    team_arguments given;
    dd_nccl_comm *comm = require_comm(self);
    if (comm == NULL || !parse(coll, args, kwargs, "stream", &given)) {
        return NULL;
    }
    team_call call;
    dd_cuda_stream stream = NULL;
    call_init(&call, self->state, coll->function);
    call.has_streams = given.streams != NULL && given.streams != Py_None;
    call.is_one_stream = true;
    bool is_ok = (!call.has_streams || (reserve_streams(&call, RANK_STREAMS) &&
                                        read_stream(&call, given.streams, &call.streams[0]))) &&
                 prepare(&call, coll, &given, self->state->nccl->lib, self->size, -1, NULL, self->device);
    if (is_ok) {
        stream = call.streams[0];
        py_wait wait;
        dd_error err;
        dd_status status;
        dd_nccl_comm_acquire(comm);
        py_wait_init(&wait, self->state, DD_NCCL_DEFAULT_TIMEOUT_NS, true);
        Py_BEGIN_ALLOW_THREADS
        status =
            dd_nccl_comm_run(comm, coll->function, call.items, (int)call.nitems, stream, &wait.wait, &err);
        dd_nccl_comm_release(comm);
        Py_END_ALLOW_THREADS
        is_ok = py_group_finish_wait(&wait, status, &err);
    }
    call_fini(&call);
    return is_ok ? Py_NewRef(Py_None) : NULL;
}

RUN_METHOD(rank_comm, all_reduce, DD_NCCL_ITEM_ALL_REDUCE)
RUN_METHOD(rank_comm, broadcast, DD_NCCL_ITEM_BROADCAST)
RUN_METHOD(rank_comm, reduce, DD_NCCL_ITEM_REDUCE)
RUN_METHOD(rank_comm, all_gather, DD_NCCL_ITEM_ALL_GATHER)
RUN_METHOD(rank_comm, reduce_scatter, DD_NCCL_ITEM_REDUCE_SCATTER)

static PyObject *
rank_comm_abort_handle(PyObject *object, PyObject *unused)
{
    (void)unused;
    py_nccl_rank_comm *self = (py_nccl_rank_comm *)object;
    dd_nccl_comm *comm = require_comm(self);
    if (comm == NULL) {
        return NULL;
    }
    py_nccl_abort_handle *handle = new_object(self->state, self->state->nccl_abort_handle_type, self->module);
    if (handle != NULL) {
        handle->comm = dd_nccl_comm_acquire(comm);
    }
    return (PyObject *)handle;
}

/* In good order, whoever still has an abort handle: that is none any more. */
static void
close_rank_comm(py_nccl_rank_comm *self)
{
    dd_nccl_comm *comm = self->comm;
    self->comm = NULL;
    if (comm == NULL || self->state->nccl->generation != dd_fork_generation()) {
        return;
    }
    Py_BEGIN_ALLOW_THREADS
    dd_status ignored = dd_nccl_comm_destroy(comm, NULL);
    (void)ignored;
    dd_nccl_comm_release(comm);
    Py_END_ALLOW_THREADS
}

static PyObject *
rank_comm_close(PyObject *object, PyObject *unused)
{
    (void)unused;
    close_rank_comm((py_nccl_rank_comm *)object);
    Py_RETURN_NONE;
}

static void
rank_comm_dealloc(PyObject *object)
{
    close_rank_comm((py_nccl_rank_comm *)object);
    free_object(object);
}

static PyObject *
rank_comm_enter(PyObject *object, PyObject *unused)
{
    (void)unused;
    return require_comm((py_nccl_rank_comm *)object) != NULL ? Py_NewRef(object) : NULL;
}

static PyObject *
rank_comm_exit(PyObject *object, PyObject *args)
{
    (void)args;
    return rank_comm_close(object, NULL);
}

static PyMethodDef rank_comm_methods[] = {
    {"init_rank", (PyCFunction)(void (*)(void))rank_comm_init_rank, METH_VARARGS | METH_KEYWORDS | METH_CLASS,
     "init_rank($type, rank, world_size, uid, device=None, timeout=None)\n--\n\n"
     "One rank of `world_size`, which all call it with the same NcclUniqueId; on the current device unless another is given."},
    {"all_reduce", KEYWORDS(rank_comm_all_reduce),
     "all_reduce($self, tensors, op='sum', stream=None)\n--\n\n"
     "Reduces each of the tensors with those of the other ranks, in place, all at once; into `stream`, and nothing waits."},
    {"broadcast", KEYWORDS(rank_comm_broadcast),
     "broadcast($self, tensors, root=0, stream=None)\n--\n\nGives the tensors what those of the root have."},
    {"reduce", KEYWORDS(rank_comm_reduce),
     "reduce($self, tensors, root=0, op='sum', stream=None)\n--\n\nReduces the tensors into those of the root."},
    {"all_gather", KEYWORDS(rank_comm_all_gather),
     "all_gather($self, outputs, inputs, stream=None)\n--\n\nGives each output the inputs of all ranks."},
    {"reduce_scatter", KEYWORDS(rank_comm_reduce_scatter),
     "reduce_scatter($self, outputs, inputs, op='sum', stream=None)\n--\n\n"
     "Reduces the inputs, and gives each output this rank's part."},
    {"abort_handle", rank_comm_abort_handle, METH_NOARGS,
     "abort_handle($self, /)\n--\n\nAn NcclAbortHandle, for other threads."},
    {"close", rank_comm_close, METH_NOARGS, "close($self, /)\n--\n\nEnds the communicator."},
    {"__enter__", rank_comm_enter, METH_NOARGS, "__enter__($self, /)\n--\n\n"},
    {"__exit__", rank_comm_exit, METH_VARARGS, "__exit__($self, *exception)\n--\n\nCloses."},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef rank_comm_members[] = {
    {"rank", T_INT, offsetof(py_nccl_rank_comm, rank), READONLY, "This rank."},
    {"world_size", T_INT, offsetof(py_nccl_rank_comm, size), READONLY, "How many ranks there are."},
    {"device", T_INT, offsetof(py_nccl_rank_comm, device), READONLY, "The number of its device."},
    {NULL, 0, 0, 0, NULL},
};

static PyType_Slot rank_comm_slots[] = {
    {Py_tp_doc, "The communicator of one rank: of NcclComms.split(), or made with init_rank().\n\n"
                "All ranks make the same calls at the same time, from threads or processes of their own."},
    {Py_tp_dealloc, (void *)rank_comm_dealloc},
    {Py_tp_methods, rank_comm_methods},
    {Py_tp_members, rank_comm_members},
    {0, NULL},
};

static PyType_Spec rank_comm_spec = {
    .name = "dldist.nccl.NcclRankComm",
    .basicsize = sizeof(py_nccl_rank_comm),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = rank_comm_slots,
};

/* ---- NcclAbortHandle */

static PyObject *
abort_handle_abort(PyObject *object, PyObject *args)
{
    py_nccl_abort_handle *self = (py_nccl_abort_handle *)object;
    const char *reason = "abort() was called";
    if (!PyArg_ParseTuple(args, "|s:abort", &reason)) {
        return NULL;
    }
    dd_error err;
    dd_status status;
    Py_BEGIN_ALLOW_THREADS
    status = dd_nccl_comm_abort(self->comm, reason, &err);
    Py_END_ALLOW_THREADS
    return raise(self->state, status, &err) ? Py_NewRef(Py_None) : NULL;
}

static PyObject *
abort_handle_is_aborted(PyObject *object, void *closure)
{
    (void)closure;
    return PyBool_FromLong(dd_nccl_comm_is_aborted(((py_nccl_abort_handle *)object)->comm));
}

static void
abort_handle_dealloc(PyObject *object)
{
    py_nccl_abort_handle *self = (py_nccl_abort_handle *)object;
    if (self->comm != NULL && self->state->nccl->generation == dd_fork_generation()) {
        release_comm(self->comm);
    }
    free_object(object);
}

static PyMethodDef abort_handle_methods[] = {
    {"abort", abort_handle_abort, METH_VARARGS,
     "abort($self, reason='abort() was called', /)\n--\n\n"
     "Ends what is under way on the communicator, and the communicator. From any thread, any number of times."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef abort_handle_getset[] = {
    {"is_aborted", abort_handle_is_aborted, NULL, "Whether the communicator has been aborted, or has ended.",
     NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot abort_handle_slots[] = {
    {Py_tp_doc, "Aborts an NcclRankComm from any thread; made by its abort_handle()."},
    {Py_tp_dealloc, (void *)abort_handle_dealloc},
    {Py_tp_methods, abort_handle_methods},
    {Py_tp_getset, abort_handle_getset},
    {0, NULL},
};

static PyType_Spec abort_handle_spec = {
    .name = "dldist.nccl.NcclAbortHandle",
    .basicsize = sizeof(py_nccl_abort_handle),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = abort_handle_slots,
};

/* ---- NcclUniqueId */

static int
unique_id_init(PyObject *object, PyObject *args, PyObject *kwargs)
{
    static char *keywords[] = {"data", NULL};
    py_nccl_unique_id *self = (py_nccl_unique_id *)object;
    const char *bytes = NULL;
    Py_ssize_t len = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|y#:NcclUniqueId", keywords, &bytes, &len)) {
        return -1;
    }
    if (bytes != NULL && len != UNIQUE_ID_NBYTES) {
        PyErr_Format(self->state->errors[PY_ERROR_ARGUMENT], "NcclUniqueId(): %zd bytes are needed, not %zd",
                     UNIQUE_ID_NBYTES, len);
        return -1;
    }
    if (bytes != NULL) {
        memcpy(&self->id, bytes, sizeof self->id);
        return 0;
    }
    const py_nccl *nccl = py_nccl_get(self->state);
    if (nccl == NULL) {
        return -1;
    }
    dd_error err;
    dd_status status;
    Py_BEGIN_ALLOW_THREADS
    status = dd_nccl_make_unique_id(nccl->lib, &self->id, &err);
    Py_END_ALLOW_THREADS
    return raise(self->state, status, &err) ? 0 : -1;
}

static PyObject *
unique_id_as_bytes(PyObject *object, PyObject *unused)
{
    (void)unused;
    return PyBytes_FromStringAndSize(((py_nccl_unique_id *)object)->id.bytes, UNIQUE_ID_NBYTES);
}

static PyObject *
unique_id_reduce(PyObject *object, PyObject *unused)
{
    PyObject *bytes = unique_id_as_bytes(object, unused);
    return bytes != NULL ? Py_BuildValue("O(N)", (PyObject *)Py_TYPE(object), bytes) : NULL;
}

static PyMethodDef unique_id_methods[] = {
    {"as_bytes", unique_id_as_bytes, METH_NOARGS, "as_bytes($self, /)\n--\n\nIts 128 bytes."},
    {"__bytes__", unique_id_as_bytes, METH_NOARGS, "__bytes__($self, /)\n--\n\nIts 128 bytes."},
    {"__reduce__", unique_id_reduce, METH_NOARGS, "__reduce__($self, /)\n--\n\nFor pickle and copy."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot unique_id_slots[] = {
    {Py_tp_doc,
     "NcclUniqueId(data=None)\n--\n\n"
     "By which the ranks of one communicator find each other: a new one, or one of these 128 bytes."},
    {Py_tp_new, (void *)object_new},
    {Py_tp_init, (void *)unique_id_init},
    {Py_tp_dealloc, (void *)free_object},
    {Py_tp_methods, unique_id_methods},
    {0, NULL},
};

static PyType_Spec unique_id_spec = {
    .name = "dldist.nccl.NcclUniqueId",
    .basicsize = sizeof(py_nccl_unique_id),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = unique_id_slots,
};

int
py_nccl_team_add_types(PyObject *module, py_state *state)
{
    const struct {
        PyTypeObject **place;
        PyType_Spec *spec;
    } types[] = {
        {&state->nccl_comms_type, &comms_spec},
        {&state->nccl_rank_comm_type, &rank_comm_spec},
        {&state->nccl_unique_id_type, &unique_id_spec},
        {&state->nccl_abort_handle_type, &abort_handle_spec},
    };
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        PyObject *type = PyType_FromModuleAndSpec(module, types[i].spec, NULL);
        *types[i].place = (PyTypeObject *)type;
        if (type == NULL || PyModule_AddType(module, *types[i].place) < 0) {
            return -1;
        }
    }
    return 0;
}
