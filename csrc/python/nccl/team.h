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

/* ---- a handle that calls keep */

/* The communicators of an object. Unfinished calls keep them: close() leaves them to the last call, which may hang in
 * NCCL until it is aborted. */
typedef struct py_nccl_kept {
    PY_OBJECT_HEAD;
    py_lock lock;
    /* guarded by the lock */
    void *handle;                  /* owned; NULL until it is set, and once it is closed */
    void (*destroy)(void *handle); /* set with the handle; called without the GIL */
    int ncalls;
    bool is_closed;
} py_nccl_kept;

/* Begins a call, which keeps the handle until py_nccl_kept_end. NULL with an exception if it is closed. */
void *py_nccl_kept_begin(py_nccl_kept *self);
/* Begins a call that is also allowed while unfinished calls keep a closed handle. NULL without an exception. */
void *py_nccl_kept_begin_late(py_nccl_kept *self);
void py_nccl_kept_end(py_nccl_kept *self);
/* Destroys the handle, or leaves it to the last unfinished call. */
void py_nccl_kept_close(py_nccl_kept *self);
/* True if the object has no handle, and is not closed. */
bool py_nccl_kept_is_new(py_nccl_kept *self);
/* Takes over the handle. False if the object is not new. */
bool py_nccl_kept_set(py_nccl_kept *self, void *handle, void (*destroy)(void *handle));

PyObject *py_nccl_kept_enter(PyObject *object, PyObject *unused);
PyObject *py_nccl_kept_exit(PyObject *object, PyObject *args);
void py_nccl_kept_dealloc(PyObject *object);

/* The end of both tables of methods; close() and __exit__() ignore their arguments. */
#define PY_NCCL_KEPT_METHODS(closes)                                                                        \
    {"close", py_nccl_kept_exit, METH_NOARGS, "close($self, /)\n--\n\nEnds " closes},                       \
        {"__enter__", py_nccl_kept_enter, METH_NOARGS, "__enter__($self, /)\n--\n\n"},                      \
        {"__exit__", py_nccl_kept_exit, METH_VARARGS, "__exit__($self, *exception)\n--\n\nCloses " closes}, \
    {                                                                                                       \
        NULL, NULL, 0, NULL                                                                                 \
    }

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
