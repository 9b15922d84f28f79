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

/* What differs between a Group and an NcclGroup. The functions are for groups that have been opened. */
typedef struct py_group_kind {
    const char *type_name;     /* "Group" */
    const char *timeout_name;  /* "Group.timeout" */
    const char *recorded_name; /* in the flight recorder: "gloo" */
    int64_t close_timeout_ns;  /* of close() by default */
    bool is_lost_in_child;     /* a forked child cannot even ask what the group is called */
    dd_status (*check_fork)(const py_group *self, dd_error *err); /* DD_FORKED in a forked child */
    dd_bytes (*get_name)(const py_group *self);
    int64_t (*get_timeout_ns)(const py_group *self);
    void (*set_timeout_ns)(const py_group *self, int64_t timeout_ns);
    dd_recorder_group *(*find_recorder_group)(const py_group *self);
    /* called without the GIL */
    uint64_t (*get_sequence)(const py_group *self);
    dd_status (*check)(const py_group *self, dd_error *err);
    dd_status (*close)(const py_group *self, const dd_wait *wait, dd_error *err);
    void (*abort)(const py_group *self, const char *reason, const dd_wait *wait);
    /* releases what the group has of the core; called with the GIL */
    void (*drop)(py_group *self);
} py_group_kind;

extern const py_group_kind py_group_kind_cpu;
extern const py_group_kind py_group_kind_nccl;

/* Defines the functions of a kind that are functions of the core, whose names begin with `prefix`, on the group `core` of `self`. */
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
/* All functions of a kind, for its table; the file defines the rest by these names. */
#define PY_GROUP_KIND_TABLE(kind)                                                              \
    .check_fork = kind##_check_fork, .get_name = get_name, .get_timeout_ns = get_timeout_ns,   \
    .set_timeout_ns = set_timeout_ns, .find_recorder_group = kind##_recorder_group,            \
    .get_sequence = get_sequence, .check = check, .close = close_group, .abort = kind##_abort, \
    .drop = kind##_drop

struct py_group {
    PY_OBJECT_HEAD;
    dd_list link;           /* in the state's groups once it is open; guarded by the state's groups_lock */
    PyObject *weak;         /* const after init; owned: a weak reference to this group, for py_group_list */
    atomic_bool is_claimed; /* a thread is in the last steps of opening it, or it is open */
    const py_group_kind *kind; /* once, set last by init; NULL if it was never opened */
    dd_group *group;           /* const after init, until dealloc; owned; NULL for an NcclGroup */
    struct py_nccl_core *nccl; /* const after init, until dealloc; owned; NULL unless it is an NcclGroup */
    int rank;                  /* const after init */
    int size;                  /* const after init */
    PyObject *store;     /* const after init; owned or NULL; other ranks may need it longer than we do */
    PyObject *recorders; /* values of threads (base/thread_values.h): objects that record their calls */
    atomic_bool is_closed;
    py_lock lock;
    /* guarded by lock */
    struct py_forms *forms;        /* owned; NULL until a collective has run */
    struct py_group *device_group; /* owned: the NcclGroup that serves device memory, or NULL */
};

/* The core's group (borrowed) of an object that is an open Group. */
dd_group *py_group_core(PyObject *group);

/* py_wait_finish with the exceptions of groups (py_error_raise_of_group). */
bool py_group_finish_wait(py_wait *wait, dd_status status, const dd_error *err);

/* Call function(..., &wait, &err) of the core without the GIL. False with an exception of groups. */
#define PY_GROUP_CALL(state, timeout_ns, function, ...)                                                     \
    __extension__({                                                                                         \
        py_wait py_call_wait;                                                                               \
        dd_error py_call_err;                                                                               \
        py_wait_init(&py_call_wait, state, timeout_ns, true);                                               \
        dd_status py_call_status = PY_WITHOUT_GIL(function(__VA_ARGS__, &py_call_wait.wait, &py_call_err)); \
        py_group_finish_wait(&py_call_wait, py_call_status, &py_call_err);                                  \
    })
/* The same for function(..., &err), which does not wait. */
#define PY_GROUP_TRY(state, function, ...)                                              \
    __extension__({                                                                     \
        dd_error py_call_err;                                                           \
        dd_status py_call_status = PY_WITHOUT_GIL(function(__VA_ARGS__, &py_call_err)); \
        py_error_check_of_group(state, py_call_status, &py_call_err);                   \
    })

/* "Group" or "NcclGroup", also of a group that was never opened. */
const char *py_group_type_name(const py_group *self);
/* False with an exception if the group has been opened, or is of another type than the kind's. */
bool py_group_require_new(const py_group *self, const py_group_kind *kind);
/* Reserves the object for the group that the caller has opened. False with an exception if another thread was first. */
bool py_group_claim(py_group *self, const py_group_kind *kind);
/* False with an exception if the group was never opened. */
bool py_group_require_open(const py_group *self);
/* Likewise, and also false in a forked child, where a lock of the core may be held for ever. */
bool py_group_require_usable(const py_group *self);
/* Like py_group_require_open, and also false for an NcclGroup, which has no such method, or one of its own. */
bool py_group_require_cpu(const py_group *self, const char *function);

/* The time-out that was read, or the group's own. */
int64_t py_group_timeout_or_own(const py_group *self, int64_t timeout_ns);

/* The group that serves device memory: a new reference; NULL if there is none. */
py_group *py_group_get_device_group(py_group *self);
/* The group that serves the tensor's device, this one or its device group: a new reference; NULL with an exception. */
py_group *py_group_serving(py_group *self, PyObject *tensor, const char *function);

/* Makes the object stand for a group, which it has taken over. Other threads may use it from now on, so the other fields
 * that are const after init must be set. */
void py_group_become(py_group *self, const py_group_kind *kind, int rank, int size);
/* The open groups of a kind: a new list, NULL with an exception. */
PyObject *py_group_list(py_state *state, const py_group_kind *kind);

/* Reads ranks from a list or tuple. The caller frees the result with PyMem_Free; NULL with an exception. */
int *py_group_read_ranks(const py_group *self, PyObject *object, int *count, const char *function,
                         const char *name);
/* The name of a part of a group, "dp/0,2,5", with `max_named` ranks at most: a new str, which `name` borrows from. NULL
 * with an exception. */
PyObject *py_group_name_part(const py_group *self, const int *ranks, int count, int max_named,
                             dd_bytes *name);

#define PY_GROUP_ABORT_NS (10 * DD_NS_PER_S)
/* Aborts the group, waiting for `timeout_ns` at most. False with what a signal handler raised. */
bool py_group_abort(py_group *self, const char *reason, int64_t timeout_ns);

extern PyType_Spec py_group_spec;
extern PyType_Spec py_shared_array_spec;
/* Makes the type of group.members; NULL with an exception. */
PyObject *py_group_make_member_type(void);

/* ---- methods, in files of their own */

#define PY_GROUP_METHOD(name) \
    PyObject *py_group_##name(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)

PY_GROUP_METHOD(send);
PY_GROUP_METHOD(recv);
PY_GROUP_METHOD(isend);
PY_GROUP_METHOD(irecv);
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
