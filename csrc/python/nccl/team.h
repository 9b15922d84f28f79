/* Communicators without groups: declarations shared by the types NcclComms, NcclRankComm,
 * NcclUniqueId and NcclAbortHandle. */
#ifndef DD_PYTHON_NCCL_TEAM_H
#define DD_PYTHON_NCCL_TEAM_H

#include "nccl/comm/team.h"
#include "python/nccl/nccl.h"

typedef struct py_nccl_unique_id {
    PY_OBJECT_HEAD;
    py_lock lock;
    dd_nccl_unique_id id; /* the unique ID; guarded by lock, because __init__ may run again */
} py_nccl_unique_id;

typedef struct py_nccl_abort_handle {
    PY_OBJECT_HEAD;
    dd_nccl_comm *comm; /* owned reference to the communicator; const */
} py_nccl_abort_handle;

extern PyType_Spec py_nccl_comms_spec;
extern PyType_Spec py_nccl_rank_comm_spec;
extern PyType_Spec py_nccl_unique_id_spec;
extern PyType_Spec py_nccl_abort_handle_spec;

/* ---- handles kept by calls */

/* The base of objects whose `handle` stands for the communicators that they own. If calls are
 * unfinished, close() leaves the destruction of the handle to the last of these calls. A call may
 * hang in NCCL until the communicators are aborted. */
typedef struct py_nccl_handle {
    PY_OBJECT_HEAD;
    py_lock lock;
    /* The fields below are guarded by `lock`. */
    void *handle; /* the object's communicators; owned; NULL before set and after destroyed */
    void (*destroy)(void *handle); /* destroys `handle`; must be called without the GIL */
    int ncalls;
    bool is_closed;
} py_nccl_handle;

/* Begin a call and return the handle, which stays valid until py_nccl_handle_end. Return NULL with
 * an exception if the object is closed. */
void *py_nccl_handle_begin(py_nccl_handle *self);
/* Begin a call even on a closed object, if unfinished calls keep its handle. Return NULL if there
 * is no handle. */
void *py_nccl_handle_begin_late(py_nccl_handle *self);
void py_nccl_handle_end(py_nccl_handle *self);
/* Close the object: destroy the handle now, or when the last unfinished call ends. */
void py_nccl_handle_close(py_nccl_handle *self);
/* Return true if the object is new: it has no handle and is not closed. */
bool py_nccl_handle_is_new(py_nccl_handle *self);
/* Make the object own the handle. Return false if the object is not new. */
bool py_nccl_handle_set(py_nccl_handle *self, void *handle, void (*destroy)(void *handle));

PyObject *py_nccl_handle_enter(PyObject *object, PyObject *unused);
PyObject *py_nccl_handle_exit(PyObject *object, PyObject *args);
void py_nccl_handle_dealloc(PyObject *object);

/* The last rows of the method tables of NcclComms and NcclRankComm. close() and __exit__() ignore
 * their arguments. */
#define PY_NCCL_HANDLE_METHODS(closes)                                                   \
    {"close", py_nccl_handle_exit, METH_NOARGS, "close($self, /)\n--\n\nEnds " closes},  \
        {"__enter__", py_nccl_handle_enter, METH_NOARGS, "__enter__($self, /)\n--\n\n"}, \
        {"__exit__", py_nccl_handle_exit, METH_VARARGS,                                  \
         "__exit__($self, *exception)\n--\n\nCloses " closes},                           \
    {                                                                                    \
        NULL, NULL, 0, NULL                                                              \
    }

/* ---- creating and reading objects */

/* Return a copy of the object's unique ID. */
dd_nccl_unique_id py_nccl_unique_id_get(PyObject *object);
/* Create an NcclRankComm that takes ownership of the communicator. */
PyObject *py_nccl_rank_comm_create(py_state *state, dd_nccl_comm *comm);
/* Read a device number from an int, or from an object whose str() is like "cuda:1". */
bool py_nccl_team_read_device(const py_argument *argument, int *device);

/* ---- calls */

typedef struct py_nccl_team_call {
    py_state *state;
    const char *function;
    py_operands operands;
    dd_nccl_item *items;     /* owned array: the parts of the collective */
    dd_cuda_stream *streams; /* owned array: the stream of each item */
    bool has_streams;        /* true if the caller passed streams */
    bool is_one_stream;      /* true if all items share one stream */
    size_t nitems;
    dd_nccl_redop redop;
    int root;
    PyObject *capsule; /* owned reference to the object that owns `config`, or NULL */
    const dd_nccl_abi_coll_config *config;
} py_nccl_team_call;

/* The parameters of a collective, and how it uses tensors. */
typedef struct py_nccl_team_coll {
    const char *function;
    dd_nccl_item_kind kind;
    bool has_op;
    bool has_root;
    bool has_outputs; /* true if the call takes a list of outputs besides the list of inputs */
    /* true: the input has a block per rank (reduce_scatter); false: the output has (all_gather) */
    bool is_input_wide;
} py_nccl_team_coll;

/* The table of collectives, indexed by dd_nccl_item_kind. */
extern const py_nccl_team_coll py_nccl_team_colls[];

/* The communicators that run a collective. */
typedef struct py_nccl_team_target {
    py_state *state;
    int size; /* number of ranks */
    /* number of tensors in each list; -1 for any number, all on `device` and in one stream */
    int ntensors;
    const int *devices; /* device of each tensor; NULL if all are on `device` */
    int device;
    void *ctx;
    /* Run the call's items. Must be called without the GIL. */
    dd_status (*run)(void *ctx, const py_nccl_team_call *call, const dd_wait *wait, dd_error *err);
} py_nccl_team_target;

/* Read the arguments of a collective and run it. Returns None, or NULL with an exception. */
PyObject *py_nccl_team_run(const py_nccl_team_target *target, const py_nccl_team_coll *coll,
                           PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames);

#define PY_NCCL_RUN_METHOD(type, name, kind)                                                \
    static PyObject *type##_##name(PyObject *self, PyObject *const *args, Py_ssize_t nargs, \
                                   PyObject *kwnames)                                       \
    {                                                                                       \
        return type##_run(self, &py_nccl_team_colls[kind], args, nargs, kwnames);           \
    }

#endif
