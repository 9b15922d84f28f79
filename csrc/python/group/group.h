/* dldist.Group: a process group in Python. */
#ifndef DD_PYTHON_GROUP_GROUP_H
#define DD_PYTHON_GROUP_GROUP_H

#include "group/group.h"
#include "python/base/object.h"
#include "python/base/params.h"
#include "python/base/wait.h"
#include "python/call/operands.h"
#include "python/work/work.h"

typedef struct py_group {
    PY_OBJECT_HEAD;
    dd_list link;              /* in the state's groups; guarded by the GIL */
    dd_group *group;           /* const after init, until dealloc; owned; NULL for an NcclGroup */
    struct py_nccl_core *nccl; /* const after init, until dealloc; owned; NULL unless it is an NcclGroup */
    int rank;                  /* const after init */
    int size;                  /* const after init */
    PyObject *store; /* const after init; owned or NULL; other ranks may need it longer than we do */
    /* guarded by the GIL */
    PyObject *recorders; /* owned: dict from thread to what records its calls; NULL: no calls are recorded */
    bool is_closed;
    struct py_forms *forms;        /* owned; NULL until a collective has run */
    struct py_group *device_group; /* owned: the NcclGroup that serves device memory, or NULL */
} py_group;

/* The core's group (borrowed) of an object that is an open Group. */
dd_group *py_group_core(PyObject *group);

/* py_wait_finish with the exceptions of groups (py_error_raise_of_group). */
bool py_group_finish_wait(py_wait *wait, dd_status status, const dd_error *err);

/* False with an exception if the group was never opened. */
bool py_group_require_open(const py_group *self);

/* Likewise, and also false in a forked child, where a lock of the core may be held for ever. */
bool py_group_require_usable(const py_group *self);

/* py_group_require_open and py_group_require_usable for groups of either kind, a Group or an NcclGroup. */
bool py_group_require_either(const py_group *self);
bool py_group_require_alive(const py_group *self);

/* The group that serves the tensor's device: this one or its device group (borrowed). NULL with an exception. */
py_group *py_group_serving(py_group *self, PyObject *tensor, const char *function);

/* Reads a time-out. NULL or None gives -1, which means the group's own. False with an exception. */
bool py_group_read_timeout(const py_group *self, PyObject *value, int64_t *timeout_ns, const char *function);

/* Makes the object stand for a group of the core, and takes the group over. */
void py_group_take(py_group *self, dd_group *group);
/* Releases a group of the core, without the GIL. Called with the GIL held. */
void py_group_drop(dd_group *group);

/* Makes the types; NULL with an exception. */
PyObject *py_group_make_type(PyObject *module);
PyObject *py_group_make_member_type(void);
PyObject *py_shared_array_make_type(PyObject *module);

/* ---- methods, in files of their own */

#define PY_GROUP_METHOD(name) \
    PyObject *py_group_##name(PyObject *self, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames)

PY_GROUP_METHOD(send);
PY_GROUP_METHOD(recv);
PY_GROUP_METHOD(isend);
PY_GROUP_METHOD(irecv);

PyObject *py_group_monitored_barrier(PyObject *self, PyObject *args, PyObject *kwargs);
PyObject *py_group_coalesce(PyObject *self, PyObject *args, PyObject *kwargs);
PyObject *py_group_batch_isend_irecv(PyObject *self, PyObject *args, PyObject *kwargs);
PyObject *py_group_set_recorder(PyObject *object, PyObject *recorder);
PyObject *py_group_repr(PyObject *object);
PyObject *py_group_find_serving(PyObject *object, PyObject *tensor);
extern PyGetSetDef py_group_getset[];
PyObject *py_group_empty(PyObject *self, PyObject *args, PyObject *kwargs);
PyObject *py_group_adopt(PyObject *self, PyObject *args);

#endif
