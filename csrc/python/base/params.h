/* The parameters of a group's methods. They are parsed without an allocation; names are compared by identity
 * first. */
#ifndef DD_PYTHON_BASE_PARAMS_H
#define DD_PYTHON_BASE_PARAMS_H

#include "python/base/argument.h"
#include "python/base/convert.h"
#include "python/base/state.h"

#include <stdbool.h>
#include <stdint.h>

#define PY_PARAMS_MAX 6

/* The values of c10d's OpType that no row of the table of operations has. */
#define PY_OP_TYPE_SEND 12
#define PY_OP_TYPE_RECV 13
#define PY_OP_TYPE_RECV_ANY_SOURCE 14
#define PY_OP_TYPE_BARRIER 15
#define PY_OP_TYPE_COALESCED 17
#define PY_OP_TYPE_UNKNOWN 100

typedef struct py_params {
    const char *function;
    const char *recorded; /* its name in the flight recorder */
    int op_type;          /* c10d's OpType */
    int nrequired;
    int npositional; /* the others are keyword-only */
    int count;
    bool is_plan;  /* makes a plan of the collective instead of running it */
    bool is_async; /* always returns a work */
    py_name names[PY_PARAMS_MAX];
} py_params;

/* Puts the arguments into `values` (borrowed) in the order of `params`: NULL for those not given, and for None if the
 * parameter is optional. False with an exception. */
bool py_params_parse(const py_params *params, const py_state *state, PyObject *const *args, Py_ssize_t nargs,
                     PyObject *kwnames, PyObject *values[PY_PARAMS_MAX]);

/* Reads a value that fits into an int. False with an exception that names the argument. */
bool py_params_int(const py_state *state, PyObject *value, int *number, const char *function,
                   const char *name);
/* Reads a rank of a group of `size` ranks. False likewise. */
bool py_params_rank(const py_state *state, PyObject *value, int size, int *rank, const char *function,
                    const char *name);

/* Reads an int for each item of an iterable, with `read`, or py_params_int if that is NULL. The caller frees the
 * result with PyMem_Free; NULL with an exception. */
int *py_params_ints(const py_argument *argument, bool (*read)(const py_argument *item, int *number),
                    int *count);

/* Reads whether a flag is set. False with an exception that names the argument. */
bool py_params_flag(const py_state *state, PyObject *value, bool *is_set, const char *function,
                    const char *name);

const char *py_name_text(py_name name);
/* Whether a parameter of this name takes a tensor or tensors. */
bool py_name_is_tensor(py_name name);

#endif
