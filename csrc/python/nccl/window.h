/* dldist.NcclWindow: memory of each rank of an NcclGroup that other ranks write and signal. */
#ifndef DD_PYTHON_NCCL_NCCL_WINDOW_H
#define DD_PYTHON_NCCL_NCCL_WINDOW_H

#include "nccl/window.h"
#include "python/nccl/nccl.h"

typedef struct py_nccl_window {
    PY_OBJECT_HEAD;
    /* All fields are const once the window has been created. */
    py_group *group;              /* owned reference to the NcclGroup */
    dd_nccl_group_window *window; /* the core's window; owned; NULL if opening the window failed */
    py_tensor memory;             /* the tensor that this rank passed */
} py_nccl_window;

extern PyType_Spec py_nccl_window_spec;

#endif
