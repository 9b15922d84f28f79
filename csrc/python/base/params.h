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

/* Values of c10d's OpType that no row of the table of operations has. */
#define PY_OP_TYPE_SEND 12
#define PY_OP_TYPE_RECV 13
#define PY_OP_TYPE_RECV_ANY_SOURCE 14
#define PY_OP_TYPE_BARRIER 15
#define PY_OP_TYPE_COALESCED 17
#define PY_OP_TYPE_UNKNOWN 100

/* Accepted values, and the type of `place`. Texts and bytes are borrowed from the argument. */
typedef enum py_kind {
    PY_OBJECT,  /* PyObject *, borrowed: anything */
    PY_INT,     /* int */
    PY_INT64,   /* int64_t */
    PY_FLAG,    /* bool: the truth value of the argument */
    PY_TIMEOUT, /* int64_t, nanoseconds: a timedelta or a number of seconds */
    PY_TEXT,    /* const char *: a str without null characters */
    PY_STRING,  /* dd_bytes: any str */
    PY_BYTES,   /* dd_bytes: bytes */
} py_kind;

typedef struct py_param {
    const char *name;
    int kind;    /* a py_kind, or the caller's own kind with py_params_parse, which ignores it */
    void *place; /* destination of the value; not used by py_params_parse */
} py_param;

typedef struct py_params {
    const char *function;
    int nrequired;   /* number of required parameters, which come first */
    int npositional; /* number of parameters that may be positional, which come first */
    int count;       /* at most PY_PARAMS_MAX */
    const py_param *list;
    /* ---- for operations of a group */
    const char *recorded; /* the operation's name in the flight recorder */
    int op_type;          /* c10d's OpType */
    bool is_plan;         /* creates a plan of the collective instead of running it */
    bool is_async;        /* always returns a work */
} py_params;

#define PY_COUNT_PARAMS(...) (sizeof((const py_param[]){__VA_ARGS__}) / sizeof(py_param))
/* Expands to 0; does not compile if there are too many. */
#define PY_CHECK_PARAMS(...) (0 * sizeof(char[PY_COUNT_PARAMS(__VA_ARGS__) <= PY_PARAMS_MAX ? 1 : -1]))

/* PY_PARAMS(function, nrequired, npositional, {name, kind, place}, ...): an initializer. */
#define PY_PARAMS(text, required, positional, ...)                                   \
    {                                                                                \
        .function = (text), .nrequired = (required), .npositional = (positional),    \
        .count = (int)(PY_COUNT_PARAMS(__VA_ARGS__) + PY_CHECK_PARAMS(__VA_ARGS__)), \
        .list = (const py_param[])                                                   \
        {                                                                            \
            __VA_ARGS__                                                              \
        }                                                                            \
    }

/* The middle fields of a PyMethodDef, for a function with parameters (self, args, nargs,
 * kwnames). */
#define PY_FAST_METHOD(function) (PyCFunction)(void (*)(void)) function, METH_FASTCALL | METH_KEYWORDS

/* Read the arguments of a PY_FAST_METHOD and store them at py_param.place. A place is unchanged if
 * its argument is not given. None for an optional parameter counts as not given, except that it
 * sets a flag to false. Exceptions name the function and the argument. */
bool py_params_read(const py_params *params, py_state *state, PyObject *const *args, Py_ssize_t nargs,
                    PyObject *kwnames);
/* Like py_params_read, for the arguments of a tp_new, tp_init or tp_call; kwargs may be NULL. */
bool py_params_read_tuple(const py_params *params, py_state *state, PyObject *args, PyObject *kwargs);

/* Put the arguments of a PY_FAST_METHOD into `values` (borrowed) in the order of `params`, NULL if
 * not given. Allocates nothing. */
bool py_params_parse(const py_params *params, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames,
                     PyObject *values[PY_PARAMS_MAX]);

/* Read an int. Exceptions of this and the functions below name the argument. */
bool py_params_int(const py_state *state, PyObject *value, int *number, const char *function,
                   const char *name);
/* Fail unless the rank is in 0 to size - 1. */
bool py_params_check_rank(const py_state *state, int rank, int size, const char *function, const char *name);
/* Read a rank in 0 to size - 1. */
bool py_params_rank(const py_state *state, PyObject *value, int size, int *rank, const char *function,
                    const char *name);

/* Read an int from each item of an iterable, with `read`, or py_params_int if `read` is NULL. Free
 * the result with PyMem_Free. */
int *py_params_ints(const py_argument *argument, bool (*read)(const py_argument *item, int *number),
                    int *count);

/* Read the truth value of a flag. */
bool py_params_flag(const py_state *state, PyObject *value, bool *is_set, const char *function,
                    const char *name);

#endif
