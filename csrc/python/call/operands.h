/* The tensors of one call on a group, and the blocks of memory that the core sees of them.
 *
 * First the tensors are added, then `prepare` finds out how they make up blocks. Where a block can lie in
 * a tensor itself it does; else it lies in staging memory: tensors that are not contiguous, several
 * tensors that make one block, and inputs that would be written over. `pack` fills that memory before the
 * operation and `unpack` empties it afterwards.
 *
 * Where the group works on devices, `device` is initialised before the first tensor is added, and the blocks are made in parts
 * instead of `prepare`: tensors are not put together into one block, but every tensor is an operation of its own. */
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
    PY_LAYOUT_NONE, /* no blocks */
    PY_LAYOUT_EACH, /* block k is tensor k; or m tensors one after the other, npieces being m times nblocks */
    PY_LAYOUT_SPLIT, /* one tensor, cut into blocks */
    PY_LAYOUT_WOVEN, /* block k is the k-th part of the first tensor, then the k-th of the second, ... */
} py_layout;

typedef struct py_side {
    py_layout layout;
    size_t first; /* of the pieces */
    size_t npieces;
    size_t nblocks;
    size_t *sizes; /* PY_LAYOUT_SPLIT: bytes of each block, owned; NULL for equal ones */
} py_side;

typedef struct py_operands {
    py_state *state;
    const char *function;
    const char *recorded; /* what the flight recorder calls the operation */
    py_piece *pieces;     /* `few_pieces`, or owned */
    size_t npieces;
    size_t capacity;
    py_side inputs;
    py_side outputs;  /* the same pieces as inputs where the call is in place */
    dd_block *blocks; /* of inputs, then of outputs; `few_blocks`, or owned */
    uint8_t *staging; /* owned, or NULL */
    uint8_t *woven;   /* in staging: the blocks of the side that is woven */
    bool is_staged;   /* there is something to pack or to unpack */
    bool is_pinned;   /* set before anything is added: the caller goes on meanwhile (py_tensor_pin) */
    py_device_scope device;
    py_piece few_pieces[PY_FEW_PIECES];
    dd_block few_blocks[PY_FEW_BLOCKS];
} py_operands;

/* May not be moved afterwards. */
void py_operands_init(py_operands *operands, py_state *state, const char *function);
/* With the GIL; accepts what init has made, whatever has failed since. */
void py_operands_fini(py_operands *operands);
/* For the collector: the tensors. */
int py_operands_traverse(const py_operands *operands, visitproc visit, void *arg);

typedef enum py_use {
    PY_USE_IN = 1,
    PY_USE_OUT = 2,
    PY_USE_IN_PLACE = 3,
    PY_USE_IN_RESULT = 5, /* only read, and yet what the call is about */
} py_use;

/* False with an exception. The dtype must be that of the tensors before. */
bool py_operands_add(py_operands *operands, PyObject *object, py_use use, const char *name);
/* A list or tuple; `count` of them, or as many as there are for -1. */
bool py_operands_add_list(py_operands *operands, PyObject *object, py_use use, const char *name,
                          Py_ssize_t count);

/* A side of `npieces` pieces from `first` on. */
void py_operands_set_side(py_side *side, py_layout layout, size_t first, size_t npieces, size_t nblocks);

/* False with an exception, where two of several outputs share memory. Called by prepare and reserve_parts. */
bool py_operands_check_outputs(const py_operands *operands);

/* Room for so many blocks, at most once. False with an exception. */
bool py_operands_reserve_blocks(py_operands *operands, size_t count);

/* Makes the blocks. `args` is complete but for its blocks, which are filled in. */
bool py_operands_prepare(py_operands *operands, dd_coll_args *args, int rank);

/* ---- on devices */

/* How many operations the call is made of, each with the blocks of its sides. */
size_t py_operands_nparts(const py_operands *operands);
/* Marks what cannot stay where it is, and finds room for the blocks of all parts. False with an exception. */
bool py_operands_reserve_parts(py_operands *operands, dd_coll coll, int rank);
/* Gives the staged tensors their places from `base` on; NULL tells how much room they need. */
size_t py_operands_place_parts(py_operands *operands, uint8_t *base);
/* Fills in the blocks of a part, which lie in the operands. After placing. */
void py_operands_fill_part(py_operands *operands, size_t part, dd_coll_args *args);

/* ---- on the host */

/* Without the GIL. unpack is for operations that have succeeded. */
void py_operands_pack(py_operands *operands);
void py_operands_unpack(py_operands *operands);

/* The objects that the caller gave to have them filled, in order: a new list, NULL with an exception. */
PyObject *py_operands_results(const py_operands *operands);

dd_dtype py_operands_dtype(const py_operands *operands);

#endif
