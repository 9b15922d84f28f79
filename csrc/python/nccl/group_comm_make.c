/* Creation of NcclGroups by splitting, shrinking or growing another NcclGroup's communicator. */
#include "core/mem.h"
#include "python/nccl/group_comm.h"
#include "python/observe/recorder.h"
#include "python/store/store.h"

#include <limits.h>
#include <string.h>

/* A group that is being created from a parent group. */
typedef struct child_group {
    const char *function;
    int *ranks; /* owned array of the new group's ranks; free with PyMem_Free */
    int nranks;
    dd_nccl_group_options options;
    PyObject *name; /* owned name, or NULL; options.name borrows from this object */
    int device;
    PyObject *store; /* borrowed: the new group's store, or NULL for the parent's store */
} child_group;

static void
fini_child(child_group *child)
{
    PyMem_Free(child->ranks);
    Py_XDECREF(child->name);
}

/* Return the index of the rank in the list, or -1. */
static int
index_of_rank(int rank, const int *ranks, int count)
{
    for (int i = 0; i < count; i++) {
        if (ranks[i] == rank) {
            return i;
        }
    }
    return -1;
}

/* Arguments common to split, shrink and grow. If not given, timeout_ns is -1, others are zero. */
typedef struct child_args {
    dd_bytes name;
    int64_t timeout_ns;
    PyObject *config;
} child_args;

/* Copy the parent group's options, and change the options that the arguments set. */
static bool
child_read_options(py_group *self, child_group *child, const child_args *request)
{
    child->options = self->nccl->options;
    child->options.timeout_ns = py_group_timeout_or_own(self, request->timeout_ns);
    if (request->config != NULL &&
        !py_nccl_read_config(self->state, request->config, &child->options.config, child->function)) {
        return false;
    }
    if (request->name.data != NULL) {
        child->options.name = request->name;
        return true;
    }
    /* no list of ranks means growing: a group that grows keeps the parent's name */
    int nnamed = child->ranks != NULL ? child->nranks : 0;
    child->name = py_group_name_part(self, child->ranks, nnamed, INT_MAX, &child->options.name);
    return child->name != NULL;
}

/* Open a group around a communicator; on failure release the communicator. Needs no GIL. */
static dd_status
open_with_comm(const py_group *self, dd_store *store, const child_group *child, int rank,
               dd_recorder_group *recorded, dd_nccl_comm *comm, dd_nccl_group **group, dd_error *err)
{
    const py_nccl *nccl = self->state->nccl;
    dd_status status = dd_nccl_group_open(&(dd_nccl_base){nccl->lib, nccl->cuda, nccl->watchdog}, store, rank,
                                          child->nranks, &child->options, recorded, group, err);
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

/* Create the new group's object around a communicator, and take ownership of the communicator. */
static PyObject *
wrap(py_group *self, const child_group *child, int rank, dd_nccl_comm *comm)
{
    dd_store *store;
    PyObject *store_object = child->store != NULL ? child->store : self->store;
    if (!py_store_acquire_if_any(self->state, store_object, child->function, "store", &store)) {
        py_nccl_comm_release(comm);
        return NULL;
    }
    dd_recorder_group *recorded = py_recorder_add_group(self->state, self->kind->recorded_name,
                                                        child->options.name, rank, child->nranks);
    dd_nccl_group *group = NULL;
    dd_error err;
    dd_status status = PY_WITHOUT_GIL(open_with_comm(self, store, child, rank, recorded, comm, &group, &err));
    py_store_drop(store);
    if (!py_error_check_of_group(self->state, status, &err)) {
        return NULL;
    }
    return py_nccl_group_wrap(self, group, &child->options, recorded, child->device, store_object);
}

/* Return a color like torch's: non-negative, and equal on all ranks that pass the same ranks. */
static int
color_of(const child_group *child)
{
    uint32_t hash = 2166136261u;
    for (int i = 0; i < child->nranks; i++) {
        hash = (hash ^ (uint32_t)child->ranks[i]) * 16777619u;
    }
    return (int)(hash & 0x7fffffffu);
}

static int64_t
init_timeout_of(const child_group *child)
{
    return child->options.init_timeout_ns > 0 ? child->options.init_timeout_ns : child->options.timeout_ns;
}

/* Split the communicator; *part is NULL if this rank is in no part. */
static bool
split_comm(py_group *self, const child_group *child, int color, int key, dd_nccl_comm **part)
{
    dd_nccl_comm *comm = py_nccl_comm_connect(self, child->device);
    if (comm == NULL) {
        return false;
    }
    bool is_made = PY_GROUP_CALL(self->state, init_timeout_of(child), dd_nccl_comm_split, comm, color, key,
                                 &child->options.config, part, NULL);
    py_nccl_comm_release(comm);
    if (!is_made) {
        py_nccl_comm_release(*part); /* not NULL if a signal handler raised after the split */
    }
    return is_made;
}

static PyObject *
child_split(py_group *self, child_group *child, PyObject *color_object)
{
    int key = index_of_rank(self->rank, child->ranks, child->nranks);
    int color = color_of(child);
    if (key < 0) {
        PyErr_Format(
            self->state->errors[PY_ERROR_ARGUMENT],
            "split(): argument 'ranks' lacks this rank: got no %d, expected it; other ranks call skip_split()",
            self->rank);
        return NULL;
    }
    if (color_object != NULL && !py_params_int(self->state, color_object, &color, "split", "color")) {
        return NULL;
    }
    dd_nccl_comm *comm = NULL;
    return split_comm(self, child, color, key, &comm) ? wrap(self, child, key, comm) : NULL;
}

PY_NCCL_METHOD(split)
{
    PyObject *ranks;
    PyObject *color = NULL;
    PyObject *device = NULL;
    child_args request = {.timeout_ns = -1};
    const py_params params =
        PY_PARAMS("split", 1, 3, {"ranks", PY_OBJECT, &ranks}, {"name", PY_STRING, &request.name},
                  {"timeout", PY_TIMEOUT, &request.timeout_ns}, {"color", PY_OBJECT, &color},
                  {"config", PY_OBJECT, &request.config}, {"device", PY_OBJECT, &device});
    child_group child = {.function = "split"};
    PY_NCCL_BEGIN(group, self)
    bool is_ok = py_params_read(&params, group->state, args, nargs, kwnames) &&
                 (child.ranks = py_group_read_ranks(group, ranks, &child.nranks, "split", "ranks")) != NULL &&
                 child_read_options(group, &child, &request) &&
                 py_nccl_comm_read_device(group, device, &child.device, "split");
    PyObject *part = is_ok ? child_split(group, &child, color) : NULL;
    fini_child(&child);
    return part;
}

PY_NCCL_METHOD(skip_split)
{
    PyObject *device = NULL;
    const py_params params = PY_PARAMS("skip_split", 0, 1, {"device", PY_OBJECT, &device});
    child_group child = {.function = "skip_split"};
    PY_NCCL_BEGIN(group, self)
    dd_nccl_comm *none = NULL;
    bool is_ok = py_params_read(&params, group->state, args, nargs, kwnames) &&
                 py_nccl_comm_read_device(group, device, &child.device, "skip_split") &&
                 child_read_options(group, &child, &(child_args){.timeout_ns = -1}) &&
                 split_comm(group, &child, DD_NCCL_NO_COLOR, 0, &none);
    fini_child(&child);
    return is_ok ? Py_NewRef(Py_None) : NULL;
}

/* Set the new group's ranks to those not excluded. Return false with an exception on failure. */
static bool
keep_other_ranks(const py_group *self, const dd_nccl_exclusion *excluded, child_group *child)
{
    child->ranks = PyMem_Calloc((size_t)self->size, sizeof *child->ranks);
    if (child->ranks == NULL) {
        PyErr_NoMemory();
        return false;
    }
    for (int rank = 0; rank < self->size; rank++) {
        if (index_of_rank(rank, excluded->ranks, excluded->nranks) < 0) {
            child->ranks[child->nranks++] = rank;
        }
    }
    return true;
}

/* Shrink the communicator. For an abort, retire the group first, because the device reports a stuck
 * operation as successful once NCCL has released the operation. */
static dd_status
retire_and_shrink(const py_group *self, dd_nccl_comm *parent, const dd_nccl_exclusion *excluded,
                  const dd_nccl_config *config, dd_nccl_comm **comm, const dd_wait *wait, dd_error *err)
{
    if (excluded->is_abort) {
        dd_error cause;
        dd_error_set(&cause, DD_ABORTED, "the group was shrunk without the ranks that have failed");
        dd_nccl_group_retire(self->nccl->group, &cause);
    }
    return dd_nccl_comm_shrink(parent, excluded, config, comm, NULL, wait, err);
}

static PyObject *
shrink(py_group *self, child_group *child, const dd_nccl_exclusion *excluded)
{
    int rank = index_of_rank(self->rank, child->ranks, child->nranks);
    if (rank < 0) {
        PyErr_Format(self->state->errors[PY_ERROR_ARGUMENT],
                     "shrink(): argument 'excluded' has this rank: got %d, expected other ranks", self->rank);
        return NULL;
    }
    dd_nccl_comm *parent = dd_nccl_group_find_comm(self->nccl->group, child->device);
    if (parent == NULL) {
        PyErr_Format(self->state->errors[PY_ERROR_BACKEND],
                     "shrink(): there is no communicator on cuda:%d to shrink", child->device);
        return NULL;
    }
    dd_nccl_comm *comm = NULL;
    bool is_made = PY_GROUP_CALL(self->state, child->options.timeout_ns, retire_and_shrink, self, parent,
                                 excluded, &child->options.config, &comm);
    py_nccl_comm_release(parent);
    if (!is_made) {
        py_nccl_comm_release(comm); /* not NULL if a signal handler raised after the shrinking */
        return NULL;
    }
    return wrap(self, child, rank, comm);
}

PY_NCCL_METHOD(shrink)
{
    PyObject *excluded_object;
    bool is_abort = false;
    child_args request = {.timeout_ns = -1};
    const py_params params =
        PY_PARAMS("shrink", 1, 3, {"excluded", PY_OBJECT, &excluded_object},
                  {"name", PY_STRING, &request.name}, {"timeout", PY_TIMEOUT, &request.timeout_ns},
                  {"is_abort", PY_FLAG, &is_abort}, {"config", PY_OBJECT, &request.config});
    child_group child = {.function = "shrink"};
    PY_NCCL_BEGIN(group, self)
    if (!py_params_read(&params, group->state, args, nargs, kwnames)) {
        return NULL;
    }
    int nexcluded = 0;
    int *ranks = py_group_read_ranks(group, excluded_object, &nexcluded, "shrink", "excluded");
    dd_nccl_exclusion excluded = {.ranks = ranks, .nranks = nexcluded, .is_abort = is_abort};
    bool is_read = ranks != NULL && keep_other_ranks(group, &excluded, &child) &&
                   child_read_options(group, &child, &request) &&
                   py_nccl_group_choose_device(group, &child.device);
    PyObject *part = is_read ? shrink(group, &child, &excluded) : NULL;
    PyMem_Free(ranks);
    fini_child(&child);
    return part;
}

/* ---- growing */

PY_NCCL_PLAIN_METHOD(grow_id)
{
    PY_NCCL_BEGIN(group, self)
    int device;
    if (!py_nccl_group_choose_device(group, &device)) {
        return NULL;
    }
    dd_nccl_comm *comm = py_nccl_comm_connect(group, device);
    if (comm == NULL) {
        return NULL;
    }
    dd_nccl_unique_id id;
    bool is_made = PY_GROUP_TRY(group->state, dd_nccl_comm_grow_id, comm, &id);
    py_nccl_comm_release(comm);
    return is_made ? PyBytes_FromStringAndSize(id.bytes, (Py_ssize_t)sizeof id.bytes) : NULL;
}

/* The arguments of this rank for growing a group. */
typedef struct grow_args {
    dd_nccl_unique_id id;
    bool has_id;
    /* true if this process is a member of the growing group; false if it joins as `rank` */
    bool is_member;
    int rank;
} grow_args;

static bool
read_growth(const py_group *self, PyObject *id, PyObject *rank, grow_args *how)
{
    how->has_id = id != NULL;
    how->is_member = rank == NULL;
    how->rank = self->rank;
    if (how->has_id && (!PyBytes_Check(id) || PyBytes_Size(id) != (Py_ssize_t)sizeof how->id)) {
        py_raise_wrong_type("grow", "id", "the bytes of grow_id()", id);
        return false;
    }
    if (how->has_id) {
        memcpy(&how->id, PyBytes_AsString(id), sizeof how->id);
    } else if (!how->is_member) {
        PyErr_SetString(self->state->errors[PY_ERROR_ARGUMENT], "grow(): a rank that joins needs the 'id'");
        return false;
    }
    return how->is_member || py_params_int(self->state, rank, &how->rank, "grow", "rank");
}

static PyObject *
child_grow(py_group *self, const child_group *child, const grow_args *how)
{
    const py_nccl *nccl = self->state->nccl;
    dd_nccl_comm *parent = how->is_member ? py_nccl_comm_connect(self, child->device) : NULL;
    if (how->is_member && parent == NULL) {
        return NULL;
    }
    dd_nccl_comm_spec spec = {
        .lib = nccl->lib,
        .cuda = nccl->cuda,
        .device = child->device,
        .rank = how->rank,
        .size = child->nranks,
        .config = &child->options.config,
    };
    dd_nccl_comm *comm = NULL;
    bool is_made = PY_GROUP_CALL(self->state, init_timeout_of(child), dd_nccl_comm_grow, parent, &spec,
                                 how->has_id ? &how->id : NULL, &comm, NULL);
    py_nccl_comm_release(parent);
    if (!is_made) {
        py_nccl_comm_release(comm); /* not NULL if a signal handler raised after the growing */
        return NULL;
    }
    return wrap(self, child, how->rank, comm);
}

PY_NCCL_METHOD(grow)
{
    PyObject *id = NULL;
    PyObject *rank = NULL;
    child_args request = {.timeout_ns = -1};
    grow_args how;
    child_group child = {.function = "grow"};
    const py_params params =
        PY_PARAMS("grow", 2, 4, {"store", PY_OBJECT, &child.store}, {"size", PY_INT, &child.nranks},
                  {"id", PY_OBJECT, &id}, {"rank", PY_OBJECT, &rank}, {"name", PY_STRING, &request.name},
                  {"timeout", PY_TIMEOUT, &request.timeout_ns}, {"config", PY_OBJECT, &request.config});
    PY_NCCL_BEGIN(group, self)
    bool is_read = py_params_read(&params, group->state, args, nargs, kwnames) &&
                   read_growth(group, id, rank, &how) && child_read_options(group, &child, &request) &&
                   py_nccl_group_choose_device(group, &child.device);
    if (is_read &&
        (how.rank < 0 || how.rank >= child.nranks || (how.is_member && child.nranks <= group->size))) {
        PyErr_Format(
            group->state->errors[PY_ERROR_ARGUMENT],
            "grow(): argument 'rank' or 'size' is wrong: rank %d of %d got rank %d of %d, expected its rank and a larger size",
            group->rank, group->size, how.rank, child.nranks);
        is_read = false;
    }
    PyObject *whole = is_read ? child_grow(group, &child, &how) : NULL;
    fini_child(&child);
    return whole;
}
