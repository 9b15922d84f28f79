/* The parameters of a function: their names, what a caller may give for each, and where that is put. Every function
 * of the extension that has names for its parameters reads its arguments by such a table. */
#ifndef DD_PYTHON_BASE_PARAMS_H
#define DD_PYTHON_BASE_PARAMS_H

#include "python/base/argument.h"
#include "python/base/convert.h"
#include "python/base/state.h"

#include <stdbool.h>
#include <stdint.h>

#define PY_PARAMS_MAX 16

/* The values of c10d's OpType that no row of the table of operations has. */
#define PY_OP_TYPE_SEND 12
#define PY_OP_TYPE_RECV 13
#define PY_OP_TYPE_RECV_ANY_SOURCE 14
#define PY_OP_TYPE_BARRIER 15
#define PY_OP_TYPE_COALESCED 17
#define PY_OP_TYPE_UNKNOWN 100

/* What a caller may give, and the type of the place for it. Texts and bytes are borrowed from the argument. */
typedef enum py_kind {
    PY_OBJECT,  /* PyObject *, borrowed: anything */
    PY_INT,     /* int */
    PY_INT64,   /* int64_t */
    PY_FLAG,    /* bool: whether the argument is true */
    PY_TIMEOUT, /* int64_t, nanoseconds: a timedelta or a number of seconds */
    PY_TEXT,    /* const char *: a str without null characters */
    PY_STRING,  /* dd_bytes: any str */
    PY_BYTES,   /* dd_bytes: bytes */
} py_kind;

typedef struct py_param {
    const char *name;
    int kind;    /* a py_kind; py_params_parse leaves it to the caller, who may have kinds of his own */
    void *place; /* not used by py_params_parse */
} py_param;

typedef struct py_params {
    const char *function;
    int nrequired;   /* the first ones; the others are optional */
    int npositional; /* the first ones; the others are given by name */
    int count;       /* PY_PARAMS_MAX at most */
    const py_param *list;
    /* ---- of operations of a group */
    const char *recorded; /* its name in the flight recorder */
    int op_type;          /* c10d's OpType */
    bool is_plan;         /* makes a plan of the collective instead of running it */
    bool is_async;        /* always returns a work */
} py_params;

#define PY_COUNT_PARAMS(...) (sizeof((const py_param[]){__VA_ARGS__}) / sizeof(py_param))
/* 0; does not compile if there are too many. */
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

/* The middle two fields of a PyMethodDef, for a function that has the parameters (self, args, nargs, kwnames). */
#define PY_FAST_METHOD(function) (PyCFunction)(void (*)(void)) function, METH_FASTCALL | METH_KEYWORDS

/* Reads the arguments of a PY_FAST_METHOD into their places. A place stays as it is if its argument is not given. None
 * for an optional parameter counts as not given, except that a flag becomes false. False with an exception that names
 * the function and the argument. */
bool py_params_read(const py_params *params, py_state *state, PyObject *const *args, Py_ssize_t nargs,
                    PyObject *kwnames);
/* The same for a tuple and a dict, which may be NULL: the arguments of a tp_new, tp_init or tp_call. */
bool py_params_read_tuple(const py_params *params, py_state *state, PyObject *args, PyObject *kwargs);

/* Puts the arguments of a PY_FAST_METHOD into `values` (borrowed) in the order of `params`, without an allocation:
 * NULL for those not given. False with an exception. */
bool py_params_parse(const py_params *params, PyObject *const *args, Py_ssize_t nargs, PyObject *kwnames,
                     PyObject *values[PY_PARAMS_MAX]);

/* Reads a value that fits into an int. False with an exception that names the argument. */
bool py_params_int(const py_state *state, PyObject *value, int *number, const char *function,
                   const char *name);
/* False with an exception that names the argument unless the rank is one of a group of `size` ranks. */
bool py_params_check_rank(const py_state *state, int rank, int size, const char *function, const char *name);
/* Reads such a rank. False likewise. */
bool py_params_rank(const py_state *state, PyObject *value, int size, int *rank, const char *function,
                    const char *name);

/* Reads an int for each item of an iterable, with `read`, or py_params_int if that is NULL. The caller frees the
 * result with PyMem_Free; NULL with an exception. */
int *py_params_ints(const py_argument *argument, bool (*read)(const py_argument *item, int *number),
                    int *count);

/* Reads whether a flag is set. False with an exception that names the argument. */
bool py_params_flag(const py_state *state, PyObject *value, bool *is_set, const char *function,
                    const char *name);

#endif
