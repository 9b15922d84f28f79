/* NCCL in Python: the libraries of this process, groups that use them, and communicators of one process. */
#ifndef DD_PYTHON_NCCL_NCCL_H
#define DD_PYTHON_NCCL_NCCL_H

#include "nccl/group.h"
#include "python/group/call.h"

#include <stdatomic.h>

/* What each process loads once, when it is first needed. It is freed with the module. */
typedef struct py_nccl {
    dd_cuda *cuda;
    dd_nccl_lib *lib;
    dd_nccl_watchdog *watchdog;
    uint64_t generation; /* of forks */
    /* values of threads (base/thread_values.h): the configurations of their collectives */
    PyObject *coll_configs;
} py_nccl;

/* The state of NCCL (borrowed). Loads the libraries if needed. NULL with an exception that says what was tried. */
py_nccl *py_nccl_get(py_state *state);
/* Functions of the module. */
PyObject *py_nccl_load(PyObject *module, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames);
/* Why NCCL itself cannot be loaded, regardless of the driver; None if it can. */
PyObject *py_nccl_find_obstacle(PyObject *module, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames);
PyObject *py_nccl_info(PyObject *module, PyObject *unused);
PyObject *py_nccl_config_fields(PyObject *module, PyObject *unused);
PyObject *py_nccl_shut_down(PyObject *module, PyObject *unused);
PyObject *py_nccl_post_close(PyObject *module, PyObject *groups);
void py_nccl_destroy(py_state *state);
/* _nccl_allocator(): the addresses of functions in C that allocate and free memory of ncclMemAlloc. */
PyObject *py_nccl_allocator(PyObject *module, PyObject *unused);
void py_nccl_allocator_end(void); /* from now on the functions do nothing */
/* Releases a communicator, which may be NULL, without the GIL. Called with the GIL held. */
void py_nccl_comm_release(dd_nccl_comm *comm);
/* Makes the watchdog look more often, because somebody waits for a callback. */
void py_nccl_hurry(py_state *state);

/* Memory of ncclMemAlloc; NULL for no bytes. Any thread. */
dd_status py_nccl_mem_alloc(const py_nccl *nccl, int device, size_t nbytes, void **data,
                            dd_error *err) DD_MUST_CHECK;
void py_nccl_mem_free(const py_nccl *nccl, int device, void *data);

/* ---- groups */

/* A call that will be one operation with others. */
typedef struct py_nccl_item {
    py_flight *flight; /* owned once it is in a batch */
    dd_nccl_op op;     /* without its blocks */
    PyObject *config;  /* what op.config is in; counted once it is in a batch; or NULL */
} py_nccl_item;

/* The calls of a thread between start_coalescing and end_coalescing, or of an estimate; batch.h. Only that thread uses
 * it, except for the first two fields. */
typedef struct py_nccl_batch {
    struct py_nccl_batch *next; /* guarded by the core's lock */
    unsigned long thread;       /* const */
    bool is_estimate;
    py_nccl_item *items;
    size_t nitems;
    size_t capacity;
} py_nccl_batch;

/* What an NcclGroup has in addition to a Group. */
typedef struct py_nccl_core {
    /* const once a group has it */
    dd_nccl_group *group;          /* owned by the object of the group */
    dd_nccl_group_options options; /* for groups made from this one; without the name */
    bool is_bound;                 /* the caller has bound the device */
    bool is_blocking_wait;         /* wait() makes the host wait */
    bool is_host_taken;            /* tensors in host memory are accepted, and staged */
    dd_recorder_group *recorded;   /* borrowed from the core's group, or NULL */
    /* atomic (py_nccl_core_device): the device bound to it or first used with it, or PY_NO_DEVICE */
    atomic_int device;
    atomic_uint_fast64_t watch_id; /* atomic: the group's number in the monitor; 0 if it has none */
    py_lock lock;
    py_nccl_batch *batches; /* guarded by the lock */
} py_nccl_core;

static inline int
py_nccl_core_device(const py_nccl_core *core)
{
    return atomic_load_explicit(&core->device, memory_order_relaxed);
}

/* Makes this the group's device, unless it has one. */
static inline void
py_nccl_core_note_device(py_nccl_core *core, int device)
{
    int none = PY_NO_DEVICE;
    (void)atomic_compare_exchange_strong(&core->device, &none, device);
}

/* Chooses the device for an operation without tensors. Warns once if it has to guess. False with an exception. */
bool py_nccl_group_choose_device(py_group *self, int *device);

extern PyType_Spec py_nccl_group_spec;
extern PyType_Spec py_nccl_array_spec;
/* NcclGroup.empty: memory from ncclMemAlloc on the group's device. */
PyObject *py_nccl_group_empty(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames);

/* Methods in nccl/group_comm.c and nccl/group_comm_make.c. */
#define PY_NCCL_METHOD(name) \
    PyObject *py_nccl_group_##name(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
/* Without arguments. */
#define PY_NCCL_PLAIN_METHOD(name) PyObject *py_nccl_group_##name(PyObject *self, PyObject *Py_UNUSED(unused))
PY_NCCL_METHOD(connect);
PY_NCCL_METHOD(split);
PY_NCCL_METHOD(skip_split);
PY_NCCL_METHOD(shrink);
PY_NCCL_PLAIN_METHOD(grow_id);
PY_NCCL_METHOD(grow);
PY_NCCL_PLAIN_METHOD(revoke);
PY_NCCL_PLAIN_METHOD(suspend);
PY_NCCL_PLAIN_METHOD(resume);
PY_NCCL_PLAIN_METHOD(memory_stats);
PY_NCCL_PLAIN_METHOD(properties);
PY_NCCL_METHOD(register);
PY_NCCL_METHOD(deregister);
PY_NCCL_METHOD(comm_pointer);
PY_NCCL_PLAIN_METHOD(split_count);
/* In nccl/window.c. */
PY_NCCL_METHOD(new_window);

/* A new core on a device, which does not own the group of the core yet. The caller may set further fields before
 * py_nccl_group_take. NULL with an exception. */
py_nccl_core *py_nccl_core_create(dd_nccl_group *group, const dd_nccl_group_options *options,
                                  dd_recorder_group *recorded, int device);
/* Makes the object stand for the core's group, and takes over both. */
void py_nccl_group_take(py_group *self, const py_group_kind *kind, py_nccl_core *core);
/* Releases a group of the core, without the GIL. Called with the GIL held. */
void py_nccl_group_drop(dd_nccl_group *group);
/* A new group, made from `parent`, around the core's group, which it takes over. NULL with an exception; the
 * core's group is released then, too. */
PyObject *py_nccl_group_wrap(const py_group *parent, dd_nccl_group *group,
                             const dd_nccl_group_options *options, dd_recorder_group *recorded, int device,
                             PyObject *store);
/* In nccl/config.c. Reads fields of NCCL's configuration from a dict, NULL or None. False with an exception. */
bool py_nccl_read_config(const py_state *state, PyObject *dict, dd_nccl_config *config, const char *function);

/* ---- the configuration of the collectives that this thread calls, as set by dldist.nccl.coll_config() */

/* _nccl_coll_config(dict) and _swap_coll_config(config): functions of the module. */
PyObject *py_nccl_make_coll_config(PyObject *module, PyObject *dict);
PyObject *py_nccl_swap_coll_config(PyObject *module, PyObject *capsule);
/* *config is in *capsule, a new reference; both are NULL if the thread has none. False with an exception. */
bool py_nccl_find_coll_config(const py_nccl *nccl, PyObject **capsule,
                              const dd_nccl_abi_coll_config **config);

/* ---- calls, like those of a Group in group/call.c */

/* Prepares the operands of the flight for tensors on devices. */
void py_nccl_call_begin(const py_group_call *call);
PyObject *py_nccl_call_run(py_group_call *call, dd_coll coll, bool is_ok);
PyObject *py_nccl_call_run_message(py_group_call *call, const py_group_message *message);
/* Ends the call, also if is_ok is false. */
PyObject *py_nccl_call_run_one_sided(py_group_call *call, const dd_nccl_op *op, bool is_ok);

PyObject *py_nccl_group_start_coalescing(PyObject *self, PyObject *unused);
PY_NCCL_METHOD(end_coalescing);
PyObject *py_nccl_group_drop_coalesced(PyObject *self, PyObject *unused);
PyObject *py_nccl_group_start_estimate(PyObject *self, PyObject *unused);
PyObject *py_nccl_group_end_estimate(PyObject *self, PyObject *unused);
PyObject *py_nccl_group_drop_estimate(PyObject *self, PyObject *unused);
PY_NCCL_METHOD(barrier);
/* Destroys the batches that threads have not ended. */
void py_nccl_batches_destroy(py_nccl_core *core);

#endif
