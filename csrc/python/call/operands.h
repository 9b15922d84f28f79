/* The tensors of one call on a group, and the blocks of memory in them that the core sees.
 *
 * First the tensors are added, then `prepare` makes the blocks. A block lies in a tensor itself if it can. It lies
 * in staging memory if its tensor is not contiguous, if it is made of several tensors, or if it is an input that
 * would be overwritten. `pack` copies into that memory before the operation, and `unpack` copies out of it
 * afterwards.
 *
 * If the group works on devices, `device` is initialised before the first tensor is added, and the blocks are made
 * in parts instead of by `prepare`: tensors are not joined into one block, and each tensor is an operation of its
 * own. */
#ifndef DD_PYTHON_CALL_OPERANDS_H
#define DD_PYTHON_CALL_OPERANDS_H

#include "collective/coll.h"
#include "python/tensor/device.h"
#include "python/tensor/tensor.h"

#define PY_FEW_PIECES 2
#define PY_FEW_BLOCKS 8

/* One tensor. */
typedef struct py_piece {
    py_tensor tensor;
    uint8_t *flat; /* its elements in row-major order: its own memory, or staging */
    size_t nbytes;
    bool is_input;
    bool is_output;
    bool is_result;
    bool is_staged;
} py_piece;

/* How the tensors of one side make up its blocks. */
typedef enum py_layout {
    PY_LAYOUT_NONE,  /* no blocks */
    PY_LAYOUT_EACH,  /* block k is tensor k, or m tensors one after another if npieces is m times nblocks */
    PY_LAYOUT_SPLIT, /* one tensor, cut into blocks */
    PY_LAYOUT_WOVEN, /* block k is the k-th part of the first tensor, then the k-th of the second, ... */
} py_layout;

typedef struct py_side {
    py_layout layout;
    size_t first; /* index of its first piece */
    size_t npieces;
    size_t nblocks;
    size_t *sizes; /* PY_LAYOUT_SPLIT: bytes of each block, owned; NULL for equal ones */
} py_side;

typedef struct py_operands {
    py_state *state;
    const char *function;
    const char *recorded; /* the operation's name in the flight recorder */
    py_piece *pieces;     /* `few_pieces`, or owned */
    size_t npieces;
    size_t capacity;
    py_side inputs;
    py_side outputs;  /* the same pieces as inputs if the call is in place */
    dd_block *blocks; /* of inputs, then of outputs; `few_blocks`, or owned */
    uint8_t *staging; /* owned, or NULL */
    size_t staging_nbytes;
    uint8_t *woven; /* in staging: the blocks of the woven side */
    bool is_staged; /* there is something to pack or to unpack */
    /* set before anything is added: the caller goes on during the operation (py_tensor_pin) */
    bool is_pinned;
    py_device_scope device;
    py_piece few_pieces[PY_FEW_PIECES];
    dd_block few_blocks[PY_FEW_BLOCKS];
} py_operands;

/* May not be moved afterwards. */
void py_operands_init(py_operands *operands, py_state *state, const char *function);
/* Needs the GIL. May be called at any time after init, whatever has failed since. */
void py_operands_fini(py_operands *operands);
/* For the collector: visits the tensors. */
int py_operands_traverse(const py_operands *operands, visitproc visit, void *arg);

typedef enum py_use {
    PY_USE_IN = 1,
    PY_USE_OUT = 2,
    PY_USE_IN_PLACE = 3,
    PY_USE_IN_RESULT = 5, /* only read, but still a result of the call */
} py_use;

/* Adds a tensor, whose dtype must be that of the tensors before it. False with an exception. */
bool py_operands_add(py_operands *operands, PyObject *object, py_use use, const char *name);
/* Adds a list or tuple of `count` tensors, or of any number but 0 if count is -1. False with an exception. */
bool py_operands_add_list(py_operands *operands, PyObject *object, py_use use, const char *name,
                          Py_ssize_t count);

/* Makes a side of `npieces` pieces from `first` on. */
void py_operands_set_side(py_side *side, py_layout layout, size_t first, size_t npieces, size_t nblocks);

/* False with an exception if two outputs share memory. Called by prepare and reserve_parts. */
bool py_operands_check_outputs(const py_operands *operands);

/* Makes room for `count` blocks. May be called only once. False with an exception. */
bool py_operands_reserve_blocks(py_operands *operands, size_t count);

/* Makes the blocks and fills them in in `args`, which is otherwise complete. False with an exception. */
bool py_operands_prepare(py_operands *operands, dd_coll_args *args, int rank);

/* ---- on devices */

/* How many operations the call consists of. Each has the blocks of its sides. */
size_t py_operands_nparts(const py_operands *operands);
/* Marks the tensors that must be staged, and makes room for the blocks of all parts. False with an exception. */
bool py_operands_reserve_parts(py_operands *operands, dd_coll coll, int rank);
/* Gives the staged tensors their places from `base` on, unless it is NULL. Returns how many bytes they need. */
size_t py_operands_place_parts(py_operands *operands, uint8_t *base);
/* Fills in the blocks of a part, which belong to the operands. Called after py_operands_place_parts. */
void py_operands_fill_part(py_operands *operands, size_t part, dd_coll_args *args);

/* ---- on the host */

/* May be called without the GIL. unpack only after the operation has succeeded. */
void py_operands_pack(py_operands *operands);
void py_operands_unpack(py_operands *operands);

/* Appends the tensors that are results of the call, as the caller gave them, in order (py_list_append). */
void py_operands_add_results(const py_operands *operands, PyObject **list);

dd_dtype py_operands_dtype(const py_operands *operands);
/* Reads an argument 'offset', a number of elements of the dtype, as bytes; NULL is 0. False with an exception. */
bool py_operands_read_offset(const py_operands *operands, PyObject *value, size_t *nbytes);

#endif
