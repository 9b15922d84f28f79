/* dldist.Group and NcclGroup: process groups in Python. */
#ifndef DD_PYTHON_GROUP_GROUP_H
#define DD_PYTHON_GROUP_GROUP_H

#include "group/group.h"
#include "python/base/object.h"
#include "python/base/params.h"
#include "python/base/wait.h"
#include "python/call/operands.h"
#include "python/work/work.h"

typedef struct py_group py_group;

/* The functions and constants that differ between Group and NcclGroup. The group must have been
 * opened before these functions are called. */
typedef struct py_group_kind {
    const char *type_name;     /* the type's name, "Group" */
    const char *timeout_name;  /* the attribute's full name, "Group.timeout" */
    const char *recorded_name; /* the kind's name in the flight recorder, like "gloo" */
    int64_t close_timeout_ns;  /* default timeout of close(), in nanoseconds */
    /* true if a forked child cannot use the group, not even read its name */
    bool is_lost_in_child;
    /* return DD_FORKED if called in a forked child, otherwise DD_OK */
    dd_status (*check_fork)(const py_group *self, dd_error *err);
    dd_bytes (*get_name)(const py_group *self);
    int64_t (*get_timeout_ns)(const py_group *self);
    void (*set_timeout_ns)(const py_group *self, int64_t timeout_ns);
    dd_recorder_group *(*find_recorder_group)(const py_group *self);
    /* the functions from here to `abort` must be called without the GIL */
    uint64_t (*get_sequence)(const py_group *self);
    dd_status (*check)(const py_group *self, dd_error *err);
    dd_status (*close)(const py_group *self, const dd_wait *wait, dd_error *err);
    void (*abort)(const py_group *self, const char *reason, const dd_wait *wait);
    /* release the core's group and the group's forms (cached calls); must be called with the GIL */
    void (*drop)(py_group *self);
} py_group_kind;

extern const py_group_kind py_group_kind_cpu;
extern const py_group_kind py_group_kind_nccl;

/* Define the functions of a group kind that only call the core's <prefix>_<function>(core, ...). */
#define PY_GROUP_KIND_FUNCTIONS(prefix, core)                                              \
    static dd_bytes get_name(const py_group *self)                                         \
    {                                                                                      \
        return prefix##_name(core);                                                        \
    }                                                                                      \
    static int64_t get_timeout_ns(const py_group *self)                                    \
    {                                                                                      \
        return prefix##_get_timeout_ns(core);                                              \
    }                                                                                      \
    static void set_timeout_ns(const py_group *self, int64_t timeout_ns)                   \
    {                                                                                      \
        prefix##_set_timeout_ns(core, timeout_ns);                                         \
    }                                                                                      \
    static uint64_t get_sequence(const py_group *self)                                     \
    {                                                                                      \
        return prefix##_sequence(core);                                                    \
    }                                                                                      \
    static dd_status check(const py_group *self, dd_error *err)                            \
    {                                                                                      \
        return prefix##_check(core, err);                                                  \
    }                                                                                      \
    static dd_status close_group(const py_group *self, const dd_wait *wait, dd_error *err) \
    {                                                                                      \
        return prefix##_close(core, wait, err);                                            \
    }
/* Initializers of a py_group_kind's functions. A file must define the functions named <kind>_...
 * itself, and the others with PY_GROUP_KIND_FUNCTIONS. */
#define PY_GROUP_KIND_TABLE(kind)                                                              \
    .check_fork = kind##_check_fork, .get_name = get_name, .get_timeout_ns = get_timeout_ns,   \
    .set_timeout_ns = set_timeout_ns, .find_recorder_group = kind##_recorder_group,            \
    .get_sequence = get_sequence, .check = check, .close = close_group, .abort = kind##_abort, \
    .drop = kind##_drop

struct py_group {
    PY_OBJECT_HEAD;
    dd_list link;              /* entry in state->groups, once opened; guarded by groups_lock */
    PyObject *weak;            /* const after init; owned: a weak reference to this group */
    atomic_bool is_claimed;    /* set once, by the thread that may complete opening; atomic */
    const py_group_kind *kind; /* the type's functions; once; NULL until the group is opened */
    dd_group *group;           /* const after init, until dealloc; owned; NULL for an NcclGroup */
    struct py_nccl_core *nccl; /* const after init, until dealloc; owned; NULL for a Group */
    int rank;                  /* this process's rank; const after init */
    int size;                  /* number of ranks; const after init */
    /* the store: const after init; owned, or NULL; kept because other ranks may still use it */
    PyObject *store;
    PyObject *recorders; /* objects that record calls, one per thread (base/thread_values.h) */
    atomic_bool is_closed;
    py_lock lock;
    /* The fields below are guarded by `lock`. */
    struct py_forms *forms;        /* cached calls; owned; NULL before the first collective */
    struct py_group *device_group; /* NcclGroup for device memory, or NULL; owned */
};

/* Return the core's group (borrowed) of a Group, which must have been opened. */
dd_group *py_group_core(PyObject *group);

/* Like py_wait_finish, but raise a group's exceptions (py_error_raise_of_group). */
bool py_group_finish_wait(py_wait *wait, dd_status status, const dd_error *err);

/* Call the core's function(..., &wait, &err) without the GIL. The value is true, or on failure
 * false with an exception, as by py_group_finish_wait. */
#define PY_GROUP_CALL(state, timeout_ns, function, ...)                                                     \
    __extension__({                                                                                         \
        py_wait py_call_wait;                                                                               \
        dd_error py_call_err;                                                                               \
        py_wait_init(&py_call_wait, state, timeout_ns, true);                                               \
        dd_status py_call_status = PY_WITHOUT_GIL(function(__VA_ARGS__, &py_call_wait.wait, &py_call_err)); \
        py_group_finish_wait(&py_call_wait, py_call_status, &py_call_err);                                  \
    })
/* Like PY_GROUP_CALL, for a core function(..., &err) that does not wait. */
#define PY_GROUP_TRY(state, function, ...)                                              \
    __extension__({                                                                     \
        dd_error py_call_err;                                                           \
        dd_status py_call_status = PY_WITHOUT_GIL(function(__VA_ARGS__, &py_call_err)); \
        py_error_check_of_group(state, py_call_status, &py_call_err);                   \
    })

/* Return "Group" or "NcclGroup", even if the group was never opened. */
const char *py_group_type_name(const py_group *self);
/* Fail if the group has been opened, or is not of this kind's type. */
bool py_group_require_new(const py_group *self, const py_group_kind *kind);
/* Reserve the object for the group that this thread has opened. Only one thread can succeed. */
bool py_group_claim(py_group *self, const py_group_kind *kind);
/* Fail if the group was never opened. */
bool py_group_require_open(const py_group *self);
/* Like py_group_require_open; also fail in a forked child, where core locks may be held forever. */
bool py_group_require_usable(const py_group *self);
/* Like py_group_require_open; also fail for an NcclGroup, which lacks this method of a Group. */
bool py_group_require_cpu(const py_group *self, const char *function);

/* Return timeout_ns, or the group's timeout if timeout_ns is negative. */
int64_t py_group_timeout_or_own(const py_group *self, int64_t timeout_ns);

/* Return a new reference to the group that serves device memory, or NULL without an exception. */
py_group *py_group_get_device_group(py_group *self);
/* Return a new reference to the group for the tensor's device: this group or its NcclGroup. */
py_group *py_group_serving(py_group *self, PyObject *tensor, const char *function);

/* Publish the opened group: other threads may use the group from now on. The caller must have set
 * all other fields that are const after init. */
void py_group_publish(py_group *self, const py_group_kind *kind, int rank, int size);
/* Return a new list of the groups of a kind that have been opened and not freed. */
PyObject *py_group_list(py_state *state, const py_group_kind *kind);

/* Read different ranks of the group from a list or tuple. Free the result with PyMem_Free. */
int *py_group_read_ranks(const py_group *self, PyObject *object, int *count, const char *function,
                         const char *name);
/* Return the name of a part of a group as a new str, like "dp/0,2,5", with at most max_named ranks.
 * *name borrows from this str. */
PyObject *py_group_name_part(const py_group *self, const int *ranks, int count, int max_named,
                             dd_bytes *name);

#define PY_GROUP_ABORT_NS (10 * DD_NS_PER_S)
/* Abort the group, waiting at most timeout_ns. Return false if a signal handler has raised. */
bool py_group_abort(py_group *self, const char *reason, int64_t timeout_ns);

extern PyType_Spec py_group_spec;
extern PyType_Spec py_shared_array_spec;
/* Create the type of the items of group.members. */
PyObject *py_group_make_member_type(void);

/* ---- methods defined in other files */

#define PY_GROUP_METHOD(name) \
    PyObject *py_group_##name(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)

PY_GROUP_METHOD(send);
PY_GROUP_METHOD(recv);
PY_GROUP_METHOD(isend);
PY_GROUP_METHOD(irecv);
PY_GROUP_METHOD(isend_part);
PY_GROUP_METHOD(irecv_part);
PY_GROUP_METHOD(probe);
PY_GROUP_METHOD(monitored_barrier);
PY_GROUP_METHOD(empty);
PY_GROUP_METHOD(adopt);
PY_GROUP_METHOD(close);
PY_GROUP_METHOD(carry);

PyObject *py_group_coalesce(PyObject *self, PyObject *args, PyObject *kwargs);
PyObject *py_group_batch_isend_irecv(PyObject *self, PyObject *args, PyObject *kwargs);
PyObject *py_group_set_recorder(PyObject *object, PyObject *recorder);
PyObject *py_group_repr(PyObject *object);
PyObject *py_group_find_serving(PyObject *object, PyObject *tensor);
extern PyGetSetDef py_group_getset[];

#endif
