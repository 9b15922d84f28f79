/* The tensors of one call on a group, and the blocks of memory that the core reads and writes.
 *
 * Add the tensors first; `prepare` then creates the blocks. A block lies in a tensor if possible.
 * It lies in staging memory if its tensor is not contiguous, if it consists of several tensors, or
 * if it is an input that would be overwritten. `pack` copies into staging memory before the
 * operation, `unpack` out of it afterwards.
 *
 * If the group works on devices, initialise `device` before adding a tensor, and create the blocks
 * in parts instead of by `prepare`: each tensor is an operation of its own, and none are joined. */
#ifndef DD_PYTHON_CALL_OPERANDS_H
#define DD_PYTHON_CALL_OPERANDS_H

#include "collective/coll.h"
#include "python/tensor/device.h"
#include "python/tensor/tensor.h"

#define PY_INLINE_PIECES 2
#define PY_INLINE_BLOCKS 8

/* A piece: one tensor of a call. */
typedef struct py_piece {
    py_tensor tensor;
    /* address of the elements in row-major order, in the tensor or in staging memory */
    uint8_t *flat;
    size_t nbytes;
    bool is_input;
    bool is_output;
    bool is_result;
    bool is_staged;
} py_piece;

/* The ways in which the tensors of a side (inputs or outputs) form the side's blocks. */
typedef enum py_layout {
    PY_LAYOUT_NONE,        /* the side has no blocks */
    PY_LAYOUT_EACH,        /* block k is m consecutive tensors, where m = npieces / nblocks */
    PY_LAYOUT_SPLIT,       /* one tensor, cut into blocks */
    PY_LAYOUT_INTERLEAVED, /* block k consists of the k-th parts of all tensors, in order */
} py_layout;

typedef struct py_side {
    py_layout layout;
    size_t first; /* index of the side's first piece */
    size_t npieces;
    size_t nblocks;
    size_t *sizes; /* owned, only for PY_LAYOUT_SPLIT: bytes of each block; NULL if all are equal */
} py_side;

typedef struct py_operands {
    py_state *state;
    const char *function;
    const char *recorded; /* the operation's name in the flight recorder */
    py_piece *pieces;     /* owned array of tensors, or `inline_pieces` */
    size_t npieces;
    size_t capacity;
    py_side inputs;
    py_side outputs; /* outputs of the call; the same pieces as `inputs` if the call is in place */
    /* blocks of the inputs, then of the outputs: `inline_blocks`, or an owned array */
    dd_block *blocks;
    uint8_t *staging; /* owned staging memory, or NULL */
    size_t staging_nbytes;
    uint8_t *interleaved; /* address in staging memory of the blocks with PY_LAYOUT_INTERLEAVED */
    bool is_staged;       /* true if pack or unpack has data to copy */
    /* Must be set before tensors are added if the caller continues during the operation:
     * py_tensor_pin then keeps NumPy from moving the tensors' memory. */
    bool is_pinned;
    py_device_scope device;
    py_piece inline_pieces[PY_INLINE_PIECES];
    dd_block inline_blocks[PY_INLINE_BLOCKS];
} py_operands;

/* Initialise a call's operands. The struct must not be moved in memory after this call. */
void py_operands_init(py_operands *operands, py_state *state, const char *function);
/* Release the tensors and the memory. Must be called with the GIL held. May be called at any time
 * after py_operands_init, even if other functions have failed. */
void py_operands_fini(py_operands *operands);
/* Visit the tensors, for the garbage collector. */
int py_operands_traverse(const py_operands *operands, visitproc visit, void *arg);

typedef enum py_use {
    PY_USE_IN = 1,
    PY_USE_OUT = 2,
    PY_USE_IN_PLACE = 3,
    PY_USE_IN_RESULT = 5, /* an input that is also a result of the call */
} py_use;

/* Add a tensor, which must have the same dtype as the tensors added earlier. */
bool py_operands_add(py_operands *operands, PyObject *object, py_use use, const char *name);
/* Add a list or tuple of `count` tensors; if count is -1, of one or more tensors. */
bool py_operands_add_list(py_operands *operands, PyObject *object, py_use use, const char *name,
                          Py_ssize_t count);

/* Form a side of `nblocks` blocks from the `npieces` pieces that begin at index `first`. */
void py_operands_set_side(py_side *side, py_layout layout, size_t first, size_t npieces, size_t nblocks);

/* Fail if two outputs share memory. py_operands_prepare and py_operands_reserve_parts call this. */
bool py_operands_check_outputs(const py_operands *operands);

/* Reserve memory for `count` blocks. Must be called at most once. */
bool py_operands_reserve_blocks(py_operands *operands, size_t count);

/* Create the blocks and store them in `args`, whose other fields must have been set. */
bool py_operands_prepare(py_operands *operands, dd_coll_args *args, int rank);

/* ---- on devices */

/* Return the number of parts of the call. A part is one operation with input and output blocks. */
size_t py_operands_nparts(const py_operands *operands);
/* Mark the tensors to copy through staging memory, and reserve the blocks of all parts. */
bool py_operands_reserve_parts(py_operands *operands, dd_coll coll, int rank);
/* Place the staged tensors one after another, beginning at address `base`. If `base` is NULL, set
 * no addresses. Return the number of bytes needed. */
size_t py_operands_assign_addresses(py_operands *operands, uint8_t *base);
/* Store a part's blocks (borrowed) in `args`. Must be called after py_operands_assign_addresses. */
void py_operands_fill_part(py_operands *operands, size_t part, dd_coll_args *args);

/* ---- on the host */

/* Copy the inputs into staging memory (pack), or the outputs out of it (unpack). Both may be called
 * without the GIL. Call py_operands_unpack only if the operation has succeeded. */
void py_operands_pack(py_operands *operands);
void py_operands_unpack(py_operands *operands);

/* Append the call's result tensors to the list in order, by py_list_append. They are the objects
 * that the caller passed. */
void py_operands_add_results(const py_operands *operands, PyObject **list);

dd_dtype py_operands_dtype(const py_operands *operands);
uint64_t py_operands_foreign_dtype(const py_operands *operands); /* 0 if there is none (foreign.h) */
/* Read the argument 'offset', a number of elements, as a number of bytes; NULL means 0. */
bool py_operands_read_offset(const py_operands *operands, PyObject *value, size_t *nbytes);

#endif
