/* What the module knows: its types, its exceptions, and what it has imported. */
#ifndef DD_PYTHON_PY_STATE_H
#define DD_PYTHON_PY_STATE_H

#include "python/py_api.h"
#include "store/tcp_server.h"

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
    PY_ERROR_COUNT,
} py_error_kind;

/* Lives as long as the module. Objects keep the module alive, so a state taken from an object is valid. */
typedef struct py_state {
    /* const after the module's exec; owned */
    PyTypeObject *store_type;
    PyTypeObject *tcp_store_type;
    PyTypeObject *file_store_type;
    PyTypeObject *hash_store_type;
    PyTypeObject *prefix_store_type;
    PyObject *errors[PY_ERROR_COUNT];
    dd_tcp_registry *tcp_registry;
    /* guarded by the GIL: datetime.timedelta, NULL until first needed */
    PyObject *timedelta;
    /* atomic (relaxed: looked at every slice) */
    atomic_bool is_log_stopping;
} py_state;

/* The state and the module (borrowed) behind one of our types or a class derived from one; NULL with an
 * exception for any other. */
py_state *py_state_of_type(PyTypeObject *type, PyObject **module);

/* datetime.timedelta (borrowed), imported on first use: importing the package must stay cheap. NULL with an
 * exception. */
PyObject *py_state_timedelta(py_state *state);

#endif
