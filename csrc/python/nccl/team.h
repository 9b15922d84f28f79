/* Communicators without groups: what their types have in common. */
#ifndef DD_PYTHON_NCCL_TEAM_H
#define DD_PYTHON_NCCL_TEAM_H

#include "nccl/nccl_team.h"
#include "python/nccl/nccl.h"

/* The head of every object here. */
#define PY_NCCL_OBJECT                                           \
    PyObject ob_base; /* PyObject_HEAD */                        \
    PyObject *module; /* const after new: keeps `state` alive */ \
    py_state *state   /* const after new */

typedef struct py_nccl_object {
    PY_NCCL_OBJECT;
} py_nccl_object;

typedef struct py_nccl_unique_id {
    PY_NCCL_OBJECT;
    dd_nccl_unique_id id; /* const */
} py_nccl_unique_id;

typedef struct py_nccl_abort_handle {
    PY_NCCL_OBJECT;
    dd_nccl_comm *comm; /* counted; const */
} py_nccl_abort_handle;

extern PyType_Spec py_nccl_comms_spec;
extern PyType_Spec py_nccl_rank_comm_spec;
extern PyType_Spec py_nccl_unique_id_spec;
extern PyType_Spec py_nccl_abort_handle_spec;

/* ---- objects */

/* True for DD_OK; otherwise false with an exception. */
bool py_nccl_team_raise(py_state *state, dd_status status, const dd_error *err);
/* A new object, zeroed except for its head; NULL with an exception. */
void *py_nccl_object_create(py_state *state, PyTypeObject *type, PyObject *module);
PyObject *py_nccl_object_new(PyTypeObject *type, PyObject *args, PyObject *kwargs);
void py_nccl_object_free(PyObject *object);
/* Releases the GIL meanwhile. */
void py_nccl_object_drop_comm(dd_nccl_comm *comm);
/* Takes over the communicator. NULL with an exception. */
PyObject *py_nccl_rank_comm_create(py_state *state, PyObject *module, dd_nccl_comm *comm);
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

/* The arguments of a collective of either class. */
typedef struct py_nccl_team_arguments {
    PyObject *outputs; /* NULL if the tensors are both inputs and outputs */
    PyObject *inputs;
    PyObject *op;
    PyObject *root;
    PyObject *streams;
} py_nccl_team_arguments;

/* Indexed by dd_nccl_item_kind. */
extern const py_nccl_team_coll py_nccl_team_colls[];

void py_nccl_team_call_init(py_nccl_team_call *call, py_state *state, const char *function);
void py_nccl_team_call_fini(py_nccl_team_call *call);
bool py_nccl_team_reserve_streams(py_nccl_team_call *call, size_t count);
bool py_nccl_team_read_stream(py_nccl_team_call *call, PyObject *object, dd_cuda_stream *stream);
/* Reads a stream for each item; NULL or None: those of the tensors' libraries. False with an exception. */
bool py_nccl_team_read_streams(py_nccl_team_call *call, PyObject *list, int count);
bool py_nccl_team_parse(const py_nccl_team_coll *coll, PyObject *args, PyObject *kwargs,
                        const char *streams_name, py_nccl_team_arguments *given);

/* Where the tensors of a call are. */
typedef struct py_nccl_team_places {
    const dd_nccl_lib *lib;
    int size;           /* number of ranks */
    Py_ssize_t count;   /* number of tensors; -1: any */
    const int *devices; /* of each tensor; NULL: all are on `device` */
    int device;
} py_nccl_team_places;

/* Reads all arguments but the streams, and makes the items. False with an exception. */
bool py_nccl_team_prepare(py_nccl_team_call *call, const py_nccl_team_coll *coll,
                          const py_nccl_team_arguments *given, const py_nccl_team_places *places);

#define PY_NCCL_RUN_METHOD(type, name, kind)                                         \
    static PyObject *type##_##name(PyObject *self, PyObject *args, PyObject *kwargs) \
    {                                                                                \
        return type##_run(self, args, kwargs, &py_nccl_team_colls[kind]);            \
    }

#define PY_NCCL_KEYWORDS(function) (PyCFunction)(void (*)(void)) function, METH_VARARGS | METH_KEYWORDS

#endif
