/* dldist.NcclWindow: memory of all ranks of an NcclGroup that the others write into and signal. */
#ifndef DD_PYTHON_NCCL_NCCL_WINDOW_H
#define DD_PYTHON_NCCL_NCCL_WINDOW_H

#include "nccl/window.h"
#include "python/nccl/nccl.h"

typedef struct py_nccl_window {
    PY_OBJECT_HEAD;
    /* const after it is made */
    py_group *group;              /* owned */
    dd_nccl_group_window *window; /* owned; NULL if it could not be opened */
    py_tensor memory;             /* that this rank gave */
} py_nccl_window;

extern PyType_Spec py_nccl_window_spec;

#endif
