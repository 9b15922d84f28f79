/* The state of the module: its types, its exceptions, and the objects that it has imported. */
#ifndef DD_PYTHON_BASE_STATE_H
#define DD_PYTHON_BASE_STATE_H

#include "core/list.h"
#include "python/base/lock.h"
#include "store/tcp_server.h"
#include "transport/engine.h"

#include <stdatomic.h>
#include <stdbool.h>

typedef enum py_error_kind {
    PY_ERROR_DIST,
    PY_ERROR_BACKEND,
    PY_ERROR_NETWORK,
    PY_ERROR_STORE,
    PY_ERROR_QUEUE_EMPTY,
    PY_ERROR_TIMEOUT,
    PY_ERROR_STORE_TIMEOUT,
    PY_ERROR_NETWORK_TIMEOUT,
    PY_ERROR_AUTH,
    PY_ERROR_PEER_LOST,
    PY_ERROR_MISMATCH,
    PY_ERROR_ABORTED,
    PY_ERROR_ARGUMENT,
    PY_ERROR_TYPE,
    PY_ERROR_COUNT,
} py_error_kind;

/* X(name, text): attributes that are read often; their names are interned once. */
#define PY_NAME_LIST(X)                          \
    X(EXCHANGE_API, "__dlpack_c_exchange_api__") \
    X(DLPACK, "__dlpack__")                      \
    X(DLPACK_DEVICE, "__dlpack_device__")        \
    X(MAX_VERSION, "max_version")                \
    X(STREAM, "stream")                          \
    X(IS_NEG, "is_neg")                          \
    X(IS_CONJ, "is_conj")                        \
    X(BASE, "base")                              \
    X(OBJ, "obj")                                \
    X(MASK, "mask")

typedef enum py_name {
#define PY_NAME_ENUM(name, text) PY_NAME_##name,
    PY_NAME_LIST(PY_NAME_ENUM)
#undef PY_NAME_ENUM
        PY_NAME_COUNT,
} py_name;

const char *py_name_text(py_name name);

/* The state of the module, which lives as long as the module. Objects keep the module alive, so a
 * state taken from an object is valid. base/lock.h explains the protections of the fields. */
typedef struct py_state {
    /* size in bytes of Python's own fields in an object; const after exec */
    Py_ssize_t object_size;
    /* The types, exceptions, names and the registry below are const after exec, and owned. */
    PyTypeObject *store_type;
    PyTypeObject *tcp_store_type;
    PyTypeObject *file_store_type;
    PyTypeObject *hash_store_type;
    PyTypeObject *prefix_store_type;
    PyTypeObject *group_type;
    PyTypeObject *work_type;
    PyTypeObject *nccl_group_type;
    PyTypeObject *nccl_work_type;
    PyTypeObject *nccl_array_type;
    PyTypeObject *nccl_window_type;
    PyTypeObject *nccl_comms_type;
    PyTypeObject *nccl_rank_comm_type;
    PyTypeObject *nccl_unique_id_type;
    PyTypeObject *nccl_abort_handle_type;
    PyTypeObject *reduce_op_type;
    PyTypeObject *shared_array_type;
    PyTypeObject *plan_type;
    PyTypeObject *plans_type;
    PyTypeObject *window_type;
    PyTypeObject *member_type; /* type of the items of Group.members: a struct sequence */
    PyObject *errors[PY_ERROR_COUNT];
    PyObject *names[PY_NAME_COUNT]; /* the interned str of each py_name */
    dd_tcp_registry *tcp_registry;
    PyObject *timedelta; /* datetime.timedelta; once; owned */
    /* numpy.ndarray; once; owned; NULL until arrays are read directly (tensor/numpy.h) */
    PyObject *ndarray_type;
    atomic_bool has_seen_ndarray;
    struct py_tensor_types *tensor_types; /* cached facts about classes; const after exec; owned */
    struct py_devices *devices;           /* streams of libraries; once; owned; NULL before use */
    struct py_nccl *nccl;                 /* NCCL's state; once; owned; NULL until loaded */
    /* Held while an engine opens, so that threads that open groups at the same time share one
     * engine. Must be held only briefly, and without calls of Python. */
    py_lock engines_lock;
    /* one engine for each secret of the process's groups: owned list, guarded by engines_lock */
    struct py_engine *engines;
    /* queue of ended works; atomic (py_completions_get); NULL before the first work; never freed */
    struct py_completions *completions;
    /* the monitor; atomic (find_watch); NULL before a group of several ranks; never freed */
    struct py_watch *watch;
    py_lock groups_lock;
    dd_list groups; /* the py_groups that have been opened; guarded by groups_lock */
    /* flight recorder; atomic (py_recorder_current); NULL before the first group; never freed */
    struct py_recorder *recorder;
    /* true once the log stops; atomic, relaxed, because waits for log records read it often */
    atomic_bool is_log_stopping;
} py_state;

#define PY_MODULE_NAME "dldist._core"

#ifdef Py_TARGET_ABI3T
/* The value of the module's Py_mod_token, which identifies the module. */
extern const char py_module_token[];
#endif

/* Return the module's state for a dldist type, or for a class derived from one. Set *module to the
 * module (borrowed). */
py_state *py_state_of_type(PyTypeObject *type, PyObject **module);

/* Return datetime.timedelta (borrowed). The first call imports datetime, so that `import dldist` is
 * fast. */
PyObject *py_state_timedelta(py_state *state);

#endif
