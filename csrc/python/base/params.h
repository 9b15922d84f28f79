/* Tables of function parameters: names, accepted values, and destinations. Every function of the
 * extension with named parameters parses its arguments by such a table. */
#ifndef DD_PYTHON_BASE_PARAMS_H
#define DD_PYTHON_BASE_PARAMS_H

#include "python/base/argument.h"
#include "python/base/convert.h"
#include "python/base/state.h"

#include <stdbool.h>
#include <stdint.h>

#define PY_PARAMS_MAX 16

/* Values of torch's c10d.OpType for calls that are not in the table of operations
 * (group/operations.h). */
#define PY_OP_TYPE_SEND 12
#define PY_OP_TYPE_RECV 13
#define PY_OP_TYPE_RECV_ANY_SOURCE 14
#define PY_OP_TYPE_BARRIER 15
#define PY_OP_TYPE_COALESCED 17
#define PY_OP_TYPE_UNKNOWN 100

/* Kinds of parameters. A kind determines the accepted values and the C type at py_param.target.
 * Texts and bytes are borrowed from the argument. */
typedef enum py_kind {
    PY_OBJECT,  /* PyObject *, borrowed: accepts any object */
    PY_INT,     /* int: accepts a Python int */
    PY_INT64,   /* int64_t: accepts a Python int */
    PY_FLAG,    /* bool: accepts any object, for its truth value */
    PY_TIMEOUT, /* int64_t, nanoseconds: accepts a timedelta or a number of seconds */
    PY_TEXT,    /* const char *: accepts a str without null characters */
    PY_STRING,  /* dd_bytes: accepts any str */
    PY_BYTES,   /* dd_bytes: accepts a bytes object */
} py_kind;

typedef struct py_param {
    const char *name;
    /* a py_kind; callers of py_params_parse, which ignores the kind, may use kinds of their own */
    int kind;
    void *target; /* address that receives the value; not used by py_params_parse */
} py_param;

typedef struct py_params {
    const char *function;
    int nrequired;   /* number of required parameters, which come first */
    int npositional; /* number of parameters accepted as positional arguments; these come first */
    int count;       /* number of parameters, at most PY_PARAMS_MAX */
    const py_param *list;
    /* ---- fields for operations of a group */
    const char *recorded; /* the operation's name in the flight recorder */
    int op_type;          /* torch's c10d.OpType of the operation */
    bool is_plan;         /* true if the call creates a plan instead of running the collective */
    bool is_async;        /* true if the call always returns a Work */
} py_params;

#define PY_COUNT_PARAMS(...) (sizeof((const py_param[]){__VA_ARGS__}) / sizeof(py_param))
/* Expands to 0. Compilation fails if there are more than PY_PARAMS_MAX parameters. */
#define PY_CHECK_PARAMS(...) (0 * sizeof(char[PY_COUNT_PARAMS(__VA_ARGS__) <= PY_PARAMS_MAX ? 1 : -1]))

/* PY_PARAMS(function, nrequired, npositional, {name, kind, target}, ...): an initializer. */
#define PY_PARAMS(text, required, positional, ...)                                   \
    {                                                                                \
        .function = (text), .nrequired = (required), .npositional = (positional),    \
        .count = (int)(PY_COUNT_PARAMS(__VA_ARGS__) + PY_CHECK_PARAMS(__VA_ARGS__)), \
        .list = (const py_param[])                                                   \
        {                                                                            \
            __VA_ARGS__                                                              \
        }                                                                            \
    }

/* The fields ml_meth and ml_flags of a PyMethodDef, for a C function with the parameters (self,
 * args, nargs, kwnames). */
#define PY_FAST_METHOD(function) (PyCFunction)(void (*)(void)) function, METH_FASTCALL | METH_KEYWORDS

/* Read the arguments of a PY_FAST_METHOD and store their values at py_param.target. The target of
 * an argument that is not given is unchanged. None for an optional parameter counts as not given,
 * except that it sets a flag to false. Exceptions name the function and the argument. */
bool py_params_read(const py_params *params, py_state *state, PyObject *const *args, Py_ssize_t nargs,
                    PyObject *kwnames);
/* Like py_params_read, for the arguments of a tp_new, tp_init or tp_call; kwargs may be NULL. */
bool py_params_read_tuple(const py_params *params, py_state *state, PyObject *args, PyObject *kwargs);

/* Store the arguments of a PY_FAST_METHOD in `values` as borrowed references, in the order of
 * `params`; NULL for an argument that is not given. Allocates nothing. */
bool py_params_parse(const py_params *params, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames,
                     PyObject *values[PY_PARAMS_MAX]);

/* Read an int. The exceptions of this function and of those below name the argument. */
bool py_params_int(const py_state *state, PyObject *value, int *number, const char *function,
                   const char *name);
/* Fail unless the rank is in 0 to size - 1. */
bool py_params_check_rank(const py_state *state, int rank, int size, const char *function, const char *name);
/* Read a rank; fail unless the rank is in 0 to size - 1. */
bool py_params_rank(const py_state *state, PyObject *value, int size, int *rank, const char *function,
                    const char *name);

/* Read an int from each item of an iterable, with `read`, or py_params_int if `read` is NULL. The
 * caller frees the result with PyMem_Free. */
int *py_params_ints(const py_argument *argument, bool (*read)(const py_argument *item, int *number),
                    int *count);

/* Read the truth value of a flag. */
bool py_params_flag(const py_state *state, PyObject *value, bool *is_set, const char *function,
                    const char *name);

#endif
