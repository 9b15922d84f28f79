/* NCCL in Python: the process's libraries, groups, and communicators without groups. */
#ifndef DD_PYTHON_NCCL_NCCL_H
#define DD_PYTHON_NCCL_NCCL_H

#include "nccl/group.h"
#include "python/group/call.h"

#include <stdatomic.h>

/* The process's NCCL state, loaded when first needed and freed with the module. */
typedef struct py_nccl {
    dd_cuda *cuda;
    dd_nccl_lib *lib;
    dd_nccl_watchdog *watchdog;
    /* fork generation in which NCCL was loaded; a forked child must not use its parent's NCCL */
    uint64_t generation;
    /* each thread's configuration of collectives (base/thread_values.h) */
    PyObject *coll_configs;
} py_nccl;

/* Return NCCL's state (borrowed), and load the libraries if needed. */
py_nccl *py_nccl_get(py_state *state);
/* Functions of the module (module.c). */
PyObject *py_nccl_load(PyObject *module, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames);
/* Return the reason why NCCL cannot be loaded, or None if it can. Does not check the driver. */
PyObject *py_nccl_find_obstacle(PyObject *module, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames);
PyObject *py_nccl_info(PyObject *module, PyObject *unused);
PyObject *py_nccl_config_fields(PyObject *module, PyObject *unused);
PyObject *py_nccl_shut_down(PyObject *module, PyObject *unused);
PyObject *py_nccl_post_close(PyObject *module, PyObject *groups);
void py_nccl_destroy(py_state *state);
/* _nccl_allocator(): return the addresses of C functions for ncclMemAlloc and ncclMemFree. */
PyObject *py_nccl_allocator(PyObject *module, PyObject *unused);
void py_nccl_allocator_end(void); /* makes the allocator's functions fail from now on */
/* Release a communicator without the GIL; `comm` may be NULL. Must be called with the GIL held. */
void py_nccl_comm_release(dd_nccl_comm *comm);
/* Make the watchdog poll more often; for operations that a callback waits for. */
void py_nccl_hurry(py_state *state);

/* Allocate memory by ncclMemAlloc; *data is NULL for 0 bytes. May be called on any thread. */
dd_status py_nccl_mem_alloc(const py_nccl *nccl, int device, size_t nbytes, void **data,
                            dd_error *err) DD_MUST_CHECK;
void py_nccl_mem_free(const py_nccl *nccl, int device, void *data);

/* ---- groups */

/* A call to be combined with others into one operation. */
typedef struct py_nccl_item {
    py_flight *flight; /* owned by the batch, once the item is in a batch */
    dd_nccl_op op;     /* the operation, without its blocks */
    /* owner of op.config, or NULL; borrowed, but owned once the item is in a batch */
    PyObject *config;
} py_nccl_item;

/* A thread's calls between start_coalescing and end_coalescing, or of an estimate; see batch.h.
 * Only that thread uses the fields below `thread`. */
typedef struct py_nccl_batch {
    struct py_nccl_batch *next; /* the next batch in the list; guarded by py_nccl_core.lock */
    unsigned long thread;       /* the ID of the batch's thread; const */
    bool is_estimate;
    py_nccl_item *items;
    size_t nitems;
    size_t capacity;
} py_nccl_batch;

/* The fields of an NcclGroup that a Group (on the CPU) lacks. */
typedef struct py_nccl_core {
    /* The fields from here to `recorded` are const once a group has the core. */
    dd_nccl_group *group; /* the core library's group; owned by the Python object */
    /* options for groups created from this group, except the name */
    dd_nccl_group_options options;
    bool is_bound;               /* true if the caller bound the group to a device */
    bool is_blocking_wait;       /* true if wait() blocks the host, not only streams */
    bool is_host_taken;          /* true if tensors in host memory are accepted and staged */
    dd_recorder_group *recorded; /* the flight recorder's entry, borrowed from `group`, or NULL */
    /* the bound or first used device, or PY_NO_DEVICE; atomic (py_nccl_core_device) */
    atomic_int device;
    atomic_uint_fast64_t watch_id; /* the group's id in the monitor, or 0; atomic */
    py_lock lock;
    py_nccl_batch *batches; /* list of the threads' open batches; owned; guarded by lock */
} py_nccl_core;

static inline int
py_nccl_core_device(const py_nccl_core *core)
{
    return atomic_load_explicit(&core->device, memory_order_relaxed);
}

/* Make `device` the group's device unless the group already has one. */
static inline void
py_nccl_core_note_device(py_nccl_core *core, int device)
{
    int none = PY_NO_DEVICE;
    (void)atomic_compare_exchange_strong(&core->device, &none, device);
}

/* Choose the device for an operation without tensors; warn if the choice is a guess. */
bool py_nccl_group_choose_device(py_group *self, int *device);

extern PyType_Spec py_nccl_group_spec;
extern PyType_Spec py_nccl_array_spec;
/* NcclGroup.empty: create an array of memory from ncclMemAlloc on the group's device. */
PyObject *py_nccl_group_empty(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames);

/* Methods defined in nccl/group_comm.c and nccl/group_comm_make.c. */
#define PY_NCCL_METHOD(name) \
    PyObject *py_nccl_group_##name(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)
/* Declare a method of NcclGroup without arguments. */
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
/* A method defined in nccl/window.c. */
PY_NCCL_METHOD(new_window);

/* Create a core for `group`, with `device` or PY_NO_DEVICE. The caller still owns `group`, and may
 * set more fields, until py_nccl_group_take. Return NULL with an exception on failure. */
py_nccl_core *py_nccl_core_create(dd_nccl_group *group, const dd_nccl_group_options *options,
                                  dd_recorder_group *recorded, int device);
/* Attach the core and its group to the Python object, which takes ownership of both. */
void py_nccl_group_take(py_group *self, const py_group_kind *kind, py_nccl_core *core);
/* Release a group of the core library, without the GIL. Must be called with the GIL held. */
void py_nccl_group_drop(dd_nccl_group *group);
/* Create a group object derived from `parent`. The object takes ownership of `group`. On failure,
 * `group` is released and NULL returned with an exception. */
PyObject *py_nccl_group_wrap(const py_group *parent, dd_nccl_group *group,
                             const dd_nccl_group_options *options, dd_recorder_group *recorded, int device,
                             PyObject *store);
/* Read a communicator's configuration from a dict, NULL or None (nccl/config.c). */
bool py_nccl_read_config(const py_state *state, PyObject *dict, dd_nccl_config *config, const char *function);

/* ---- the configuration of this thread's collectives, set by dldist.nccl.coll_config() */

/* Module functions _nccl_coll_config(dict) and _swap_coll_config(config). */
PyObject *py_nccl_make_coll_config(PyObject *module, PyObject *dict);
PyObject *py_nccl_swap_coll_config(PyObject *module, PyObject *capsule);
/* Find the thread's configuration. *capsule is set to a new reference, which owns *config; both are
 * NULL if there is no configuration. Return false with an exception on failure. */
bool py_nccl_find_coll_config(const py_nccl *nccl, PyObject **capsule,
                              const dd_nccl_abi_coll_config **config);

/* ---- running calls, like py_group_call_run (group/call.c) */

/* Prepare the operands of the call's flight for tensors in device memory. */
void py_nccl_call_begin(const py_group_call *call);
PyObject *py_nccl_call_run(py_group_call *call, dd_coll coll, bool is_ok);
PyObject *py_nccl_call_run_message(py_group_call *call, const py_group_message *message);
/* Run a one-sided call and end it. If is_ok is false, an earlier step failed: only end the call. */
PyObject *py_nccl_call_run_one_sided(py_group_call *call, const dd_nccl_op *op, bool is_ok);

PyObject *py_nccl_group_start_coalescing(PyObject *self, PyObject *unused);
PY_NCCL_METHOD(end_coalescing);
PyObject *py_nccl_group_drop_coalesced(PyObject *self, PyObject *unused);
PyObject *py_nccl_group_start_estimate(PyObject *self, PyObject *unused);
PyObject *py_nccl_group_end_estimate(PyObject *self, PyObject *unused);
PyObject *py_nccl_group_drop_estimate(PyObject *self, PyObject *unused);
PY_NCCL_METHOD(barrier);
/* Destroy the batches that threads have not ended. Called when the group is freed. */
void py_nccl_batches_destroy(py_nccl_core *core);

#endif
