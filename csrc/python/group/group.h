/* dldist.Group: a process group in Python. */
#ifndef DD_PYTHON_GROUP_GROUP_H
#define DD_PYTHON_GROUP_GROUP_H

#include "group/group.h"
#include "python/base/params.h"
#include "python/base/wait.h"
#include "python/call/operands.h"
#include "python/work/work.h"

typedef struct py_group {
    PyObject ob_base; /* PyObject_HEAD */
    PyObject *module; /* const after new: keeps `state` alive */
    py_state *state;  /* const after new */
    PyObject *weakrefs;
    dd_list link;              /* in the state's groups; guarded by the GIL */
    dd_group *group;           /* const after init, until dealloc; owned; NULL for an NcclGroup */
    struct py_nccl_core *nccl; /* the same; of an NcclGroup only */
    int rank;                  /* const after init */
    int size;                  /* const after init */
    PyObject *store;           /* const after init, may be NULL: others may need it longer than we do */
    PyObject
        *recorders; /* guarded by the GIL: dict from thread to what records its calls; NULL: nobody does */
    bool is_closed; /* guarded by the GIL */
    struct py_forms *forms; /* the same; owned; NULL until a collective has run */
    struct py_group
        *device_group; /* the same; owned: the NcclGroup that serves memory of devices; NULL: nobody does */
} py_group;

/* The core's group behind an object that is a group and open. */
dd_group *py_group_core(PyObject *group);

/* py_wait_finish for a call into a group. */
bool py_group_finish_wait(py_wait *wait, dd_status status, const dd_error *err);

/* False with an exception: it was never opened. */
bool py_group_require_open(const py_group *self);

/* The same, and in a forked child, where a lock of the core may be held for ever. */
bool py_group_require_usable(const py_group *self);

/* Of either kind: it has been opened; and not in the parent of a forked child. */
bool py_group_require_either(const py_group *self);
bool py_group_require_alive(const py_group *self);

/* The group that serves the device of a tensor: this one, or the one beside it (borrowed). NULL with an exception. */
py_group *py_group_serving(py_group *self, PyObject *tensor, const char *function);

/* NULL or None: -1, which is the group's own. */
bool py_group_read_timeout(const py_group *self, PyObject *value, int64_t *timeout_ns, const char *function);

/* Makes the object stand for a group of the core, which is taken. */
void py_group_take(py_group *self, dd_group *group);
/* Lets a group of the core go, without the GIL. */
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
