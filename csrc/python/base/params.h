/* Parameters of the methods of a group: parsed without an allocation, names compared by identity first. */
#ifndef DD_PYTHON_BASE_PARAMS_H
#define DD_PYTHON_BASE_PARAMS_H

#include "python/base/convert.h"
#include "python/base/state.h"

#include <stdbool.h>
#include <stdint.h>

#define PY_PARAMS_MAX 6

/* Numbers of c10d's OpType that no row of the operations has. */
#define PY_OP_TYPE_SEND 12
#define PY_OP_TYPE_RECV 13
#define PY_OP_TYPE_RECV_ANY_SOURCE 14
#define PY_OP_TYPE_BARRIER 15
#define PY_OP_TYPE_COALESCED 17
#define PY_OP_TYPE_UNKNOWN 100

typedef struct py_params {
    const char *function;
    const char *recorded; /* what the flight recorder calls it */
    int op_type;          /* c10d's OpType */
    int nrequired;
    int npositional; /* the others are given by name only */
    int count;
    bool is_plan;  /* of a collective: it is not run, but made a plan of */
    bool is_async; /* it always gives a work */
    py_name names[PY_PARAMS_MAX];
} py_params;

/* Puts the arguments in the order of `params` into `values` (borrowed), NULL for those not given and for
 * None where the parameter is not required. */
bool py_params_parse(const py_params *params, const py_state *state, PyObject *const *args, Py_ssize_t nargs,
                     PyObject *kwnames, PyObject *values[PY_PARAMS_MAX]);

/* An int that fits; else an exception that names the argument. */
bool py_params_int(const py_state *state, PyObject *value, int *number, const char *function,
                   const char *name);
/* The same for a rank of a group of that size. */
bool py_params_rank(const py_state *state, PyObject *value, int size, int *rank, const char *function,
                    const char *name);

/* Whether a flag is set; an exception that names the argument where that cannot be told. */
bool py_params_flag(const py_state *state, PyObject *value, bool *is_set, const char *function,
                    const char *name);

/* The text of a name. */
const char *py_name_text(py_name name);
/* Whether what goes by that name is a tensor, or tensors. */
bool py_name_is_tensor(py_name name);

#endif
