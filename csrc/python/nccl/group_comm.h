/* Shared by the methods of an NcclGroup that deal with its communicators. */
#ifndef DD_PYTHON_NCCL_GROUP_COMM_H
#define DD_PYTHON_NCCL_GROUP_COMM_H

#include "python/nccl/nccl.h"

#define PY_NCCL_BEGIN(self, object)        \
    py_group *self = (py_group *)(object); \
    if (!py_group_require_open(self)) {    \
        return NULL;                       \
    }

/* Reads the given device; NULL or None means the group's. False with an exception. */
bool py_nccl_comm_read_device(py_group *self, PyObject *object, int *device, const char *function);
/* The communicator on a device, connected if needed; a new reference. NULL with an exception. */
dd_nccl_comm *py_nccl_comm_connect(py_group *self, int device);

#endif
