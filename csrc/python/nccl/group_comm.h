/* What the methods of an NcclGroup about its communicators share. */
#ifndef DD_PYTHON_NCCL_GROUP_COMM_H
#define DD_PYTHON_NCCL_GROUP_COMM_H

#include "python/nccl/nccl.h"

#define PY_NCCL_BEGIN(self, object)        \
    py_group *self = (py_group *)(object); \
    if (!py_nccl_group_require(self)) {    \
        return NULL;                       \
    }

/* None, or raises. */
PyObject *py_nccl_comm_finish(const py_group *self, dd_status status, const dd_error *err);
/* The device that is given, or the group's. */
bool py_nccl_comm_read_device(py_group *self, PyObject *object, int *device, const char *function);
/* Acquired, and connected if need be; NULL with an exception. */
dd_nccl_comm *py_nccl_comm_connect(py_group *self, int device);
/* Lets the GIL go meanwhile. */
void py_nccl_comm_release(dd_nccl_comm *comm);

#endif
