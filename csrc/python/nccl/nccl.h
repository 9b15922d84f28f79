/* NCCL in Python: the libraries of this process, groups over them, and communicators of one process. */
#ifndef DD_PYTHON_NCCL_NCCL_H
#define DD_PYTHON_NCCL_NCCL_H

#include "nccl/nccl_group.h"
#include "python/group/call.h"

/* What is loaded once a process, when it is first needed; gone with the module. */
typedef struct py_nccl {
    dd_cuda *cuda;
    dd_nccl_lib *lib;
    dd_nccl_watchdog *watchdog;
    uint64_t generation; /* of forks */
} py_nccl;

/* Borrowed; loads the libraries if need be. NULL with an exception that says what was tried. */
py_nccl *py_nccl_get(py_state *state);
/* Functions of the module. */
PyObject *py_nccl_load(PyObject *module, PyObject *args, PyObject *kwargs);
/* What keeps NCCL itself from being loaded, whatever the driver is like; None: nothing. */
PyObject *py_nccl_find_obstacle(PyObject *module, PyObject *args);
PyObject *py_nccl_info(PyObject *module, PyObject *unused);
PyObject *py_nccl_config_fields(PyObject *module, PyObject *unused);
PyObject *py_nccl_shut_down(PyObject *module, PyObject *unused);
/* Before the end of a group that was not closed: warns if operations are still under way at the deadline. Keeps the exception that is set. */
#define PY_NCCL_END_OF_WORKS_NS DD_NS_PER_S /* for the watchdog to find out what has ended */
void py_nccl_group_warn_if_busy(dd_nccl_group *group, const char *what_happens, const dd_wait *wait);
void py_nccl_destroy(py_state *state);
/* Somebody waits to be called back. */
void py_nccl_hurry(py_state *state);

/* ---- groups */

/* A call that waits for others, to be one operation with them. */
typedef struct py_nccl_item {
    py_flight *flight; /* owned once it is in a batch */
    dd_nccl_op op;     /* all but its blocks */
} py_nccl_item;

/* What a thread has called between start_coalescing and end_coalescing. */
typedef struct py_nccl_batch {
    struct py_nccl_batch *next;
    unsigned long thread;
    py_nccl_item *items;
    size_t nitems;
    size_t capacity;
} py_nccl_batch;

/* What an NcclGroup has that a Group has not. */
typedef struct py_nccl_core {
    dd_nccl_group *group;          /* owned */
    dd_nccl_group_options options; /* const: for groups that are made from it; without the name */
    /* guarded by the GIL */
    int device;            /* bound to it, or used first; PY_NO_DEVICE */
    bool is_bound;         /* the caller has said so */
    bool is_blocking_wait; /* wait() means the host */
    bool is_host_taken;    /* tensors of the host are staged */
    py_nccl_batch *batches;
    dd_recorder_group *recorded; /* const; borrowed from the core's group, or NULL */
    uint64_t watch_id;           /* of the monitor; 0: it does not know the group */
} py_nccl_core;

static inline py_nccl_core *
py_nccl_core_of(PyObject *group)
{
    return ((py_group *)group)->nccl;
}

/* False with an exception: never opened; or opened in the parent of this process. */
bool py_nccl_group_require(const py_group *self);
/* The device for what has no tensors of its own; warns once when it has to guess. False with an exception. */
bool py_nccl_group_choose_device(py_group *self, int *device);

/* What a group that is about to be opened is recorded as; it is for the core's group to take. NULL: it goes unrecorded. */
dd_recorder_group *py_nccl_group_record(py_state *state, dd_bytes name, int rank, int size);

PyObject *py_nccl_group_make_type(PyObject *module, PyObject *base);
PyObject *py_nccl_group_repr(PyObject *object);
extern PyGetSetDef py_nccl_group_getset[];
PyObject *py_nccl_array_make_type(PyObject *module);
/* Memory of ncclMemAlloc on the group's device. */
PyObject *py_nccl_group_empty(PyObject *self, PyObject *args, PyObject *kwargs);

/* Methods in nccl/group_comm.c and nccl/group_comm_make.c. */
#define PY_NCCL_METHOD(name) PyObject *py_nccl_group_##name(PyObject *self, PyObject *args, PyObject *kwargs)
PY_NCCL_METHOD(connect);
PY_NCCL_METHOD(split);
PY_NCCL_METHOD(skip_split);
PY_NCCL_METHOD(shrink);
PY_NCCL_METHOD(grow_id);
PY_NCCL_METHOD(grow);
PY_NCCL_METHOD(revoke);
PY_NCCL_METHOD(suspend);
PY_NCCL_METHOD(resume);
PY_NCCL_METHOD(memory_stats);
PY_NCCL_METHOD(register);
PY_NCCL_METHOD(deregister);
PY_NCCL_METHOD(comm_pointer);
PY_NCCL_METHOD(split_count);

/* Makes the object stand for a group of the core, which is taken; false with an exception, and it is not. */
bool py_nccl_group_take(py_group *self, dd_nccl_group *group, const dd_nccl_group_options *options,
                        dd_recorder_group *recorded);
/* Lets a group of the core go, without the GIL. */
void py_nccl_group_drop(dd_nccl_group *group);
/* A new group around what it takes, made from `parent`; NULL with an exception, and the core's group is released. */
PyObject *py_nccl_group_wrap(const py_group *parent, dd_nccl_group *group,
                             const dd_nccl_group_options *options, dd_recorder_group *recorded, int device);
/* A dict, or NULL or None, of fields of NCCL's configuration. */
bool py_nccl_read_config(const py_state *state, PyObject *dict, dd_nccl_config *config, const char *function);

/* ---- calls: what group/call.c does for a Group */

bool py_nccl_call_begin(py_group_call *call);
PyObject *py_nccl_call_run(py_group_call *call, dd_coll coll, bool is_ok);
PyObject *py_nccl_call_run_message(py_group_call *call, const py_group_message *message);

PyObject *py_nccl_group_start_coalescing(PyObject *self, PyObject *unused);
PyObject *py_nccl_group_end_coalescing(PyObject *self, PyObject *args, PyObject *kwargs);
PyObject *py_nccl_group_drop_coalesced(PyObject *self, PyObject *unused);
PyObject *py_nccl_group_barrier(PyObject *self, PyObject *args, PyObject *kwargs);
/* Of threads that have not ended them. */
void py_nccl_batches_destroy(py_nccl_core *core);

#endif
