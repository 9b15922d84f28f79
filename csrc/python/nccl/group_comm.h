/* Declarations shared by the files with NcclGroup's communicator methods. */
#ifndef DD_PYTHON_NCCL_GROUP_COMM_H
#define DD_PYTHON_NCCL_GROUP_COMM_H

#include "python/nccl/nccl.h"

#define PY_NCCL_BEGIN(self, object)        \
    py_group *self = (py_group *)(object); \
    if (!py_group_require_open(self)) {    \
        return NULL;                       \
    }

/* Read a device number; NULL or None means the group's device. */
bool py_nccl_comm_read_device(py_group *self, PyObject *object, int *device, const char *function);
/* Return a new reference to the group's communicator on a device; connect it if needed. */
dd_nccl_comm *py_nccl_comm_connect(py_group *self, int device);

#endif
