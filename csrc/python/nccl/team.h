/* Communicators without groups: what their types have in common. */
#ifndef DD_PYTHON_NCCL_TEAM_H
#define DD_PYTHON_NCCL_TEAM_H

#include "nccl/comm/team.h"
#include "python/nccl/nccl.h"

typedef struct py_nccl_unique_id {
    PY_OBJECT_HEAD;
    py_lock lock;
    dd_nccl_unique_id id; /* guarded by lock: __init__ may run again */
} py_nccl_unique_id;

typedef struct py_nccl_abort_handle {
    PY_OBJECT_HEAD;
    dd_nccl_comm *comm; /* counted; const */
} py_nccl_abort_handle;

extern PyType_Spec py_nccl_comms_spec;
extern PyType_Spec py_nccl_rank_comm_spec;
extern PyType_Spec py_nccl_unique_id_spec;
extern PyType_Spec py_nccl_abort_handle_spec;

/* ---- objects */

/* Return a copy of the object's ID. */
dd_nccl_unique_id py_nccl_unique_id_get(PyObject *object);
/* Takes over the communicator. NULL with an exception. */
PyObject *py_nccl_rank_comm_create(py_state *state, dd_nccl_comm *comm);
/* Reads the number of a device from an int, or from an object that prints as "cuda:1". False with an exception. */
bool py_nccl_team_read_device(const py_argument *argument, int *device);

/* ---- calls */

typedef struct py_nccl_team_call {
    py_state *state;
    const char *function;
    py_operands operands;
    dd_nccl_item *items; /* owned */
    dd_cuda_stream
        *streams;       /* owned: of the items, either given or those that the tensors' libraries work on */
    bool has_streams;   /* the streams are given */
    bool is_one_stream; /* all items have the same stream */
    size_t nitems;
    dd_nccl_redop redop;
    int root;
    PyObject *capsule; /* counted: what `config` is in; or NULL */
    const dd_nccl_abi_coll_config *config;
} py_nccl_team_call;

/* How a collective uses its tensors. */
typedef struct py_nccl_team_coll {
    const char *function;
    dd_nccl_item_kind kind;
    bool has_op;
    bool has_root;
    bool has_outputs; /* a list of outputs in addition to that of inputs */
    /* the input has a block for each rank (reduce_scatter); otherwise the output (all_gather) */
    bool is_input_wide;
} py_nccl_team_coll;

/* Indexed by dd_nccl_item_kind. */
extern const py_nccl_team_coll py_nccl_team_colls[];

/* The communicators that a collective runs on. */
typedef struct py_nccl_team_target {
    py_state *state;
    int size;           /* number of ranks */
    int ntensors;       /* of a list; -1: any number, all on `device` and in one stream */
    const int *devices; /* of each tensor; NULL: all are on `device` */
    int device;
    void *ctx;
    /* Runs the items. Called without the GIL. */
    dd_status (*run)(void *ctx, const py_nccl_team_call *call, const dd_wait *wait, dd_error *err);
} py_nccl_team_target;

/* Reads the arguments of a collective and runs it. Returns None; NULL with an exception. */
PyObject *py_nccl_team_run(const py_nccl_team_target *target, const py_nccl_team_coll *coll,
                           PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames);

#define PY_NCCL_RUN_METHOD(type, name, kind)                                                \
    static PyObject *type##_##name(PyObject *self, PyObject *const *args, Py_ssize_t nargs, \
                                   PyObject *kwnames)                                       \
    {                                                                                       \
        return type##_run(self, &py_nccl_team_colls[kind], args, nargs, kwnames);           \
    }

#endif
