/* What an NcclGroup does with its communicators themselves. */
#include "core/mem.h"
#include "python/py_error.h"
#include "python/py_nccl.h"
#include "python/py_store.h"

#include <string.h>

#define BEGIN(self, object)                \
    py_group *self = (py_group *)(object); \
    if (!py_nccl_group_require(self)) {    \
        return NULL;                       \
    }

/* None, or raises. */
static PyObject *
finish(const py_group *self, dd_status status, const dd_error *err)
{
    if (status != DD_OK) {
        py_error_raise_of_group(self->state, status, err);
        return NULL;
    }
    Py_RETURN_NONE;
}

/* The device that is given, or the group's. */
static bool
read_device(py_group *self, PyObject *object, int *device, const char *function)
{
    if (object != NULL && object != Py_None) {
        return py_params_int(self->state, object, device, function, "device");
    }
    return py_nccl_group_choose_device(self, device);
}

/* Acquired, and connected if need be; NULL with an exception. */
static dd_nccl_comm *
connect_to(py_group *self, int device)
{
    py_wait wait;
    dd_error err;
    dd_status status;
    dd_nccl_comm *comm = NULL;
    py_wait_init_endless(&wait, self->state);
    Py_BEGIN_ALLOW_THREADS
    status = dd_nccl_group_connect(self->nccl->group, device, &comm, &wait.wait, &err);
    Py_END_ALLOW_THREADS
    if (!py_group_finish_wait(&wait, status, &err)) {
        dd_nccl_comm_release(comm);
        return NULL;
    }
    if (self->nccl->device == PY_NO_DEVICE) {
        self->nccl->device = device;
    }
    return comm;
}

static void
release(dd_nccl_comm *comm)
{
    Py_BEGIN_ALLOW_THREADS
    dd_nccl_comm_release(comm);
    Py_END_ALLOW_THREADS
}

PY_NCCL_METHOD(connect)
{
    static char *keywords[] = {"device", NULL};
    PyObject *device_object = NULL;
    int device;
    BEGIN(group, self)
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|O:connect", keywords, &device_object) ||
        !read_device(group, device_object, &device, "connect")) {
        return NULL;
    }
    dd_nccl_comm *comm = connect_to(group, device);
    if (comm == NULL) {
        return NULL;
    }
    release(comm);
    Py_RETURN_NONE;
}

/* ---- groups made from this one */

/* What they have in common. */
typedef struct offspring {
    const char *function;
    int *ranks; /* PyMem */
    int nranks;
    dd_nccl_group_options options;
    PyObject *name; /* owned: options.name borrows from it */
    int device;
} offspring;

static void
fini_offspring(offspring *child)
{
    PyMem_Free(child->ranks);
    Py_XDECREF(child->name);
}

static bool
read_ranks(const py_group *self, PyObject *object, offspring *child, const char *name)
{
    PyObject *tuple = PyList_Check(object) || PyTuple_Check(object) ? PySequence_Tuple(object) : NULL;
    if (tuple == NULL) {
        if (PyErr_Occurred() == NULL) {
            py_raise_wrong_type(child->function, name, "a list or tuple of int", object);
        }
        return false;
    }
    child->nranks = (int)PyTuple_Size(tuple);
    child->ranks = PyMem_Calloc((size_t)child->nranks + 1, sizeof *child->ranks);
    bool is_ok = child->ranks != NULL;
    if (!is_ok) {
        PyErr_NoMemory();
    }
    for (int i = 0; is_ok && i < child->nranks; i++) {
        is_ok =
            py_params_int(self->state, PyTuple_GetItem(tuple, i), &child->ranks[i], child->function, name);
        if (is_ok && (child->ranks[i] < 0 || child->ranks[i] >= self->size)) {
            PyErr_Format(self->state->errors[PY_ERROR_ARGUMENT],
                         "%s(): argument '%s': rank %d is not in 0 to %d", child->function, name,
                         child->ranks[i], self->size - 1);
            is_ok = false;
        }
    }
    Py_DECREF(tuple);
    return is_ok;
}

static int
place_of(const offspring *child, int rank)
{
    for (int i = 0; i < child->nranks; i++) {
        if (child->ranks[i] == rank) {
            return i;
        }
    }
    return -1;
}

/* "dp/0,2,5" */
static PyObject *
make_name(const py_group *self, const offspring *child)
{
    dd_bytes name = dd_nccl_group_name(self->nccl->group);
    PyObject *text = PyUnicode_DecodeUTF8((const char *)name.data, (Py_ssize_t)name.len, "replace");
    for (int i = 0; text != NULL && i < child->nranks; i++) {
        PyObject *longer = PyUnicode_FromFormat(i == 0 ? "%U/%d" : "%U,%d", text, child->ranks[i]);
        Py_DECREF(text);
        text = longer;
    }
    return text;
}

/* Options of the parent, with what the caller wants otherwise. */
static bool
read_options(py_group *self, offspring *child, PyObject *name, PyObject *timeout, PyObject *config)
{
    int64_t timeout_ns;
    child->options = self->nccl->options;
    child->options.timeout_ns = dd_nccl_group_get_timeout_ns(self->nccl->group);
    if (!py_group_read_timeout(self, timeout, &timeout_ns, child->function) ||
        (config != NULL && config != Py_None &&
         !py_nccl_read_config(self->state, config, &child->options.config, child->function))) {
        return false;
    }
    child->options.timeout_ns = timeout_ns >= 0 ? timeout_ns : child->options.timeout_ns;
    child->name = name != NULL && name != Py_None ? Py_NewRef(name) : make_name(self, child);
    Py_ssize_t len;
    const char *text = child->name != NULL ? PyUnicode_AsUTF8AndSize(child->name, &len) : NULL;
    if (text == NULL) {
        return false;
    }
    child->options.name = dd_bytes_of(text, (size_t)len);
    return true;
}

/* Without the GIL: a group of `size` ranks around a communicator, which is taken. */
static dd_status
open_around(const py_group *self, dd_store *store, const offspring *child, int rank,
            dd_recorder_group *recorded, dd_nccl_comm *comm, dd_nccl_group **group, dd_error *err)
{
    const py_nccl *nccl = self->state->nccl;
    dd_status status = dd_nccl_group_open(nccl->lib, nccl->cuda, nccl->watchdog, store, rank, child->nranks,
                                          &child->options, recorded, group, err);
    if (status != DD_OK) {
        dd_nccl_comm_release(comm);
        return status;
    }
    status = dd_nccl_group_adopt(*group, child->device, comm, err);
    if (status != DD_OK) {
        dd_nccl_group_release(*group);
    }
    return status;
}

/* The object for a communicator that has been made; takes it. */
static PyObject *
wrap(py_group *self, const offspring *child, int rank, dd_nccl_comm *comm)
{
    dd_store *store = NULL;
    if (self->store != NULL && self->store != Py_None) {
        store = py_store_acquire(self->state, self->store, child->function, "store");
        if (store == NULL) {
            release(comm);
            return NULL;
        }
    }
    dd_recorder_group *recorded = py_nccl_group_record(self->state, child->options.name, rank, child->nranks);
    dd_nccl_group *group = NULL;
    dd_error err;
    dd_status status;
    Py_BEGIN_ALLOW_THREADS
    status = open_around(self, store, child, rank, recorded, comm, &group, &err);
    Py_END_ALLOW_THREADS
    py_store_drop(store);
    if (status != DD_OK) {
        return finish(self, status, &err);
    }
    return py_nccl_group_wrap(self, group, &child->options, recorded, child->device);
}

/* c10d's: non-negative, and the same on all ranks that give the same list. */
static int
color_of(const offspring *child)
{
    uint32_t hash = 2166136261u;
    for (int i = 0; i < child->nranks; i++) {
        hash = (hash ^ (uint32_t)child->ranks[i]) * 16777619u;
    }
    return (int)(hash & 0x7fffffffu);
}

/* False with an exception; *part is NULL for who is in no part. */
static bool
split_comm(py_group *self, const offspring *child, int color, int key, dd_nccl_comm **part)
{
    dd_nccl_comm *comm = connect_to(self, child->device);
    if (comm == NULL) {
        return false;
    }
    py_wait wait;
    dd_error err;
    dd_status status;
    int64_t init_ns =
        child->options.init_timeout_ns > 0 ? child->options.init_timeout_ns : child->options.timeout_ns;
    py_wait_init(&wait, self->state, init_ns, true);
    Py_BEGIN_ALLOW_THREADS
    status = dd_nccl_comm_split(comm, color, key, &child->options.config, part, NULL, &wait.wait, &err);
    dd_nccl_comm_release(comm);
    Py_END_ALLOW_THREADS
    return py_group_finish_wait(&wait, status, &err);
}

static PyObject *
split(py_group *self, offspring *child, PyObject *color_object)
{
    int key = place_of(child, self->rank);
    int color = color_of(child);
    if (key < 0) {
        PyErr_Format(self->state->errors[PY_ERROR_ARGUMENT],
                     "split(): argument 'ranks': this rank, %d, is not among them: it calls skip_split()",
                     self->rank);
        return NULL;
    }
    if (color_object != NULL && color_object != Py_None &&
        !py_params_int(self->state, color_object, &color, "split", "color")) {
        return NULL;
    }
    dd_nccl_comm *comm = NULL;
    return split_comm(self, child, color, key, &comm) ? wrap(self, child, key, comm) : NULL;
}

PY_NCCL_METHOD(split)
{
    static char *keywords[] = {"ranks", "name", "timeout", "color", "config", "device", NULL};
    PyObject *ranks;
    PyObject *name = NULL;
    PyObject *timeout = NULL;
    PyObject *color = NULL;
    PyObject *config = NULL;
    PyObject *device = NULL;
    offspring child = {.function = "split"};
    BEGIN(group, self)
    bool is_read = PyArg_ParseTupleAndKeywords(args, kwargs, "O|OO$OOO:split", keywords, &ranks, &name,
                                               &timeout, &color, &config, &device) &&
                   read_ranks(group, ranks, &child, "ranks") &&
                   read_options(group, &child, name, timeout, config) &&
                   read_device(group, device, &child.device, "split");
    PyObject *part = is_read ? split(group, &child, color) : NULL;
    fini_offspring(&child);
    return part;
}

PY_NCCL_METHOD(skip_split)
{
    static char *keywords[] = {"device", NULL};
    PyObject *device = NULL;
    offspring child = {.function = "skip_split"};
    BEGIN(group, self)
    dd_nccl_comm *none = NULL;
    bool is_ok = PyArg_ParseTupleAndKeywords(args, kwargs, "|O:skip_split", keywords, &device) &&
                 read_device(group, device, &child.device, "skip_split") &&
                 read_options(group, &child, NULL, NULL, NULL) &&
                 split_comm(group, &child, DD_NCCL_NO_COLOR, 0, &none);
    fini_offspring(&child);
    return is_ok ? Py_NewRef(Py_None) : NULL;
}

/* The ranks that stay, in place of the excluded ones. */
static bool
turn_into_rest(const py_group *self, offspring *child)
{
    int *rest = PyMem_Calloc((size_t)self->size, sizeof *rest);
    if (rest == NULL) {
        PyErr_NoMemory();
        return false;
    }
    int count = 0;
    for (int rank = 0; rank < self->size; rank++) {
        if (place_of(child, rank) < 0) {
            rest[count++] = rank;
        }
    }
    PyMem_Free(child->ranks);
    child->ranks = rest;
    child->nranks = count;
    return true;
}

static PyObject *
shrink(py_group *self, offspring *child, const int *excluded, int nexcluded, bool is_abort)
{
    int rank = place_of(child, self->rank);
    if (rank < 0) {
        PyErr_Format(self->state->errors[PY_ERROR_ARGUMENT],
                     "shrink(): this rank, %d, is excluded: it does not call", self->rank);
        return NULL;
    }
    dd_nccl_comm *parent = dd_nccl_group_find_comm(self->nccl->group, child->device);
    if (parent == NULL) {
        PyErr_Format(self->state->errors[PY_ERROR_BACKEND],
                     "shrink(): there is no communicator on cuda:%d to shrink", child->device);
        return NULL;
    }
    py_wait wait;
    dd_error err;
    dd_status status;
    dd_nccl_comm *comm = NULL;
    py_wait_init(&wait, self->state, child->options.timeout_ns, true);
    Py_BEGIN_ALLOW_THREADS
    status = dd_nccl_comm_shrink(parent, excluded, nexcluded, is_abort, &child->options.config, &comm, NULL,
                                 &wait.wait, &err);
    dd_nccl_comm_release(parent);
    Py_END_ALLOW_THREADS
    return py_group_finish_wait(&wait, status, &err) ? wrap(self, child, rank, comm) : NULL;
}

PY_NCCL_METHOD(shrink)
{
    static char *keywords[] = {"excluded", "name", "timeout", "is_abort", "config", NULL};
    PyObject *excluded_object;
    PyObject *name = NULL;
    PyObject *timeout = NULL;
    PyObject *config = NULL;
    int is_abort = 0;
    offspring child = {.function = "shrink"};
    BEGIN(group, self)
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|OO$pO:shrink", keywords, &excluded_object, &name,
                                     &timeout, &is_abort, &config) ||
        !read_ranks(group, excluded_object, &child, "excluded")) {
        fini_offspring(&child);
        return NULL;
    }
    int nexcluded = child.nranks;
    int *excluded = PyMem_Calloc((size_t)nexcluded + 1, sizeof *excluded);
    PyObject *part = NULL;
    if (excluded == NULL) {
        PyErr_NoMemory();
    } else {
        memcpy(excluded, child.ranks, (size_t)nexcluded * sizeof *excluded);
        bool is_read = turn_into_rest(group, &child) && read_options(group, &child, name, timeout, config) &&
                       py_nccl_group_choose_device(group, &child.device);
        part = is_read ? shrink(group, &child, excluded, nexcluded, is_abort != 0) : NULL;
    }
    PyMem_Free(excluded);
    fini_offspring(&child);
    return part;
}

/* ---- the communicator */

/* Of the group's device, which must be there; acquired. NULL with an exception. */
static dd_nccl_comm *
find(py_group *self, const char *function)
{
    int device;
    if (!py_nccl_group_choose_device(self, &device)) {
        return NULL;
    }
    dd_nccl_comm *comm = dd_nccl_group_find_comm(self->nccl->group, device);
    if (comm == NULL) {
        PyErr_Format(self->state->errors[PY_ERROR_BACKEND],
                     "%s(): there is no communicator on cuda:%d yet: connect() makes it", function, device);
    }
    return comm;
}

typedef dd_status (*comm_call)(dd_nccl_comm *comm, dd_error *err);

static PyObject *
call_comm(PyObject *object, comm_call call, const char *function)
{
    BEGIN(self, object)
    dd_nccl_comm *comm = find(self, function);
    if (comm == NULL) {
        return NULL;
    }
    dd_error err;
    dd_status status;
    Py_BEGIN_ALLOW_THREADS
    status = call(comm, &err);
    dd_nccl_comm_release(comm);
    Py_END_ALLOW_THREADS
    return finish(self, status, &err);
}

PY_NCCL_METHOD(revoke)
{
    return PyArg_ParseTupleAndKeywords(args, kwargs, ":revoke", (char *[]){NULL})
               ? call_comm(self, dd_nccl_comm_revoke, "revoke")
               : NULL;
}

PY_NCCL_METHOD(suspend)
{
    return PyArg_ParseTupleAndKeywords(args, kwargs, ":suspend", (char *[]){NULL})
               ? call_comm(self, dd_nccl_comm_suspend, "suspend")
               : NULL;
}

PY_NCCL_METHOD(resume)
{
    return PyArg_ParseTupleAndKeywords(args, kwargs, ":resume", (char *[]){NULL})
               ? call_comm(self, dd_nccl_comm_resume, "resume")
               : NULL;
}

/* What ncclCommMemStats calls by number. */
static const char *const memory_stat_names[] = {"gpu_mem_suspend", "gpu_mem_suspended", "gpu_mem_persist",
                                                "gpu_mem_total"};
#define NMEMORY_STATS (sizeof memory_stat_names / sizeof memory_stat_names[0])

PY_NCCL_METHOD(memory_stats)
{
    BEGIN(group, self)
    dd_nccl_comm *comm = PyArg_ParseTupleAndKeywords(args, kwargs, ":memory_stats", (char *[]){NULL})
                             ? find(group, "memory_stats")
                             : NULL;
    if (comm == NULL) {
        return NULL;
    }
    uint64_t values[NMEMORY_STATS];
    dd_error err;
    dd_status status = DD_OK;
    Py_BEGIN_ALLOW_THREADS
    for (size_t i = 0; status == DD_OK && i < NMEMORY_STATS; i++) {
        status = dd_nccl_comm_mem_stat(comm, (int)i, &values[i], &err);
    }
    dd_nccl_comm_release(comm);
    Py_END_ALLOW_THREADS
    PyObject *stats = status == DD_OK ? PyDict_New() : finish(group, status, &err);
    for (size_t i = 0; stats != NULL && i < NMEMORY_STATS; i++) {
        PyObject *value = PyLong_FromUnsignedLongLong(values[i]);
        if (value == NULL || PyDict_SetItemString(stats, memory_stat_names[i], value) < 0) {
            Py_CLEAR(stats);
        }
        Py_XDECREF(value);
    }
    return stats;
}

/* ---- buffers */

/* An address and a number of bytes, or a tensor, which the caller keeps. */
static bool
read_memory(const py_group *self, PyObject *memory, PyObject *nbytes_object, void **data, size_t *nbytes)
{
    if (PyLong_Check(memory)) {
        *data = PyLong_AsVoidPtr(memory);
        *nbytes = nbytes_object != NULL && PyErr_Occurred() == NULL ? PyLong_AsSize_t(nbytes_object) : 0;
        if (nbytes_object == NULL) {
            PyErr_SetString(PyExc_TypeError, "register(): argument 'nbytes' is needed with an address");
        }
        return PyErr_Occurred() == NULL;
    }
    py_device_scope scope;
    py_device_scope_init(&scope, self->state);
    py_tensor tensor = {.scope = &scope};
    if (!py_tensor_init(&tensor, self->state, memory, PY_TENSOR_IN, "register", "memory")) {
        return false;
    }
    py_argument argument = {.state = self->state, .function = "register", .name = "memory", .value = memory};
    bool is_ok = py_device_take(&scope, &tensor, &argument);
    if (is_ok && !tensor.view.is_contiguous) {
        py_argument_raise(&argument, PY_FAULT_VALUE, "is not contiguous");
        is_ok = false;
    }
    *data = tensor.view.data;
    *nbytes = dd_view_nbytes(&tensor.view);
    py_tensor_fini(&tensor);
    return is_ok;
}

PY_NCCL_METHOD(register)
{
    static char *keywords[] = {"memory", "nbytes", "is_window", NULL};
    PyObject *memory;
    PyObject *nbytes_object = NULL;
    int is_window = 0;
    void *data;
    size_t nbytes;
    BEGIN(group, self)
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|O$p:register", keywords, &memory, &nbytes_object,
                                     &is_window) ||
        !read_memory(group, memory, nbytes_object == Py_None ? NULL : nbytes_object, &data, &nbytes)) {
        return NULL;
    }
    dd_nccl_comm *comm = find(group, "register");
    if (comm == NULL) {
        return NULL;
    }
    void *registration = NULL;
    py_wait wait;
    dd_error err;
    dd_status status;
    py_wait_init(&wait, group->state, dd_nccl_group_get_timeout_ns(group->nccl->group), true);
    Py_BEGIN_ALLOW_THREADS
    status = dd_nccl_comm_register(comm, data, nbytes, is_window != 0, &registration, &wait.wait, &err);
    dd_nccl_comm_release(comm);
    Py_END_ALLOW_THREADS
    return py_group_finish_wait(&wait, status, &err) ? PyLong_FromVoidPtr(registration) : NULL;
}

PY_NCCL_METHOD(deregister)
{
    static char *keywords[] = {"registration", "is_window", NULL};
    PyObject *number;
    int is_window = 0;
    BEGIN(group, self)
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!|$p:deregister", keywords, &PyLong_Type, &number,
                                     &is_window)) {
        return NULL;
    }
    void *registration = PyLong_AsVoidPtr(number);
    dd_nccl_comm *comm = registration != NULL ? find(group, "deregister") : NULL;
    if (comm == NULL) {
        return PyErr_Occurred() == NULL ? Py_NewRef(Py_None) : NULL; /* NCCL knows windows that are nothing */
    }
    dd_error err;
    dd_status status;
    Py_BEGIN_ALLOW_THREADS
    status = dd_nccl_comm_deregister(comm, registration, is_window != 0, &err);
    dd_nccl_comm_release(comm);
    Py_END_ALLOW_THREADS
    return finish(group, status, &err);
}

/* ---- what others want to know */

PY_NCCL_METHOD(comm_pointer)
{
    static char *keywords[] = {"device", NULL};
    PyObject *device_object = NULL;
    int device;
    BEGIN(group, self)
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|O:comm_pointer", keywords, &device_object)) {
        return NULL;
    }
    if (group->nccl->device == PY_NO_DEVICE && (device_object == NULL || device_object == Py_None)) {
        return PyLong_FromLong(0);
    }
    if (!read_device(group, device_object, &device, "comm_pointer")) {
        return NULL;
    }
    dd_nccl_comm *comm = dd_nccl_group_find_comm(group->nccl->group, device);
    dd_nccl_comm_handle handle = NULL;
    if (comm != NULL) {
        Py_BEGIN_ALLOW_THREADS
        if (dd_nccl_comm_enter(comm, &handle, NULL) == DD_OK) {
            dd_nccl_comm_leave(comm);
        }
        dd_nccl_comm_release(comm);
        Py_END_ALLOW_THREADS
    }
    return PyLong_FromVoidPtr(handle);
}

PY_NCCL_METHOD(split_count)
{
    BEGIN(group, self)
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, ":split_count", (char *[]){NULL})) {
        return NULL;
    }
    dd_nccl_comm *comm = group->nccl->device != PY_NO_DEVICE
                             ? dd_nccl_group_find_comm(group->nccl->group, group->nccl->device)
                             : NULL;
    uint64_t count = comm != NULL ? dd_nccl_comm_nsplits(comm) : 0;
    release(comm);
    return PyLong_FromUnsignedLongLong(count);
}
