/* Reject outputs that share memory: the result would depend on which write comes last. */
#include "python/call/operands.h"

#include "core/mem.h"

#include <stdlib.h>

/* Number of extents that fit on the stack, without an allocation. */
#define INLINE_EXTENTS 8

/* A range of bytes that a call certainly writes in an output. */
typedef struct extent {
    uintptr_t start;
    uintptr_t end;
    size_t piece;
} extent;

/* Return a piece's extent. The extent of a strided view is only its first element, because the full
 * extents of interleaved views overlap although their elements do not. */
static extent
extent_of(const py_operands *operands, size_t piece)
{
    const dd_view *view = &operands->pieces[piece].tensor.view;
    uintptr_t start = (uintptr_t)view->data;
    size_t nbytes = view->is_contiguous ? operands->pieces[piece].nbytes : dd_dtype_size(view->dtype);
    return (extent){.start = start, .end = start + nbytes, .piece = piece};
}

static bool
is_written(const py_piece *piece)
{
    return piece->is_output && piece->nbytes > 0;
}

/* Return the number of outputs to check. Return 0 if every output begins after the end of the
 * previous one, like consecutive parts of a tensor, because such outputs cannot overlap. */
static size_t
count_unordered(const py_operands *operands)
{
    size_t count = 0;
    uintptr_t end = 0;
    bool is_ordered = true;
    for (size_t i = 0; i < operands->npieces; i++) {
        if (is_written(&operands->pieces[i])) {
            extent own_extent = extent_of(operands, i);
            is_ordered = is_ordered && own_extent.start >= end;
            end = own_extent.end;
            count++;
        }
    }
    return is_ordered ? 0 : count;
}

static int
compare_starts(const void *a, const void *b)
{
    uintptr_t a_start = ((const extent *)a)->start;
    uintptr_t b_start = ((const extent *)b)->start;
    size_t a_piece = ((const extent *)a)->piece;
    size_t b_piece = ((const extent *)b)->piece;
    return a_start != b_start ? (a_start < b_start ? -1 : 1) : (a_piece > b_piece) - (a_piece < b_piece);
}

/* Sort the extents. If two overlap, set `pair` to the indices of their pieces and return true. */
static bool
find_overlap(extent *extents, size_t count, size_t pair[2])
{
    qsort(extents, count, sizeof *extents, compare_starts);
    size_t furthest = 0;
    for (size_t i = 1; i < count; i++) {
        if (extents[i].start < extents[furthest].end) {
            size_t a = extents[furthest].piece;
            size_t b = extents[i].piece;
            pair[0] = a < b ? a : b;
            pair[1] = a < b ? b : a;
            return true;
        }
        furthest = i;
    }
    return false;
}

/* Return the position of a piece in its argument as text: "[1]", or "[1][0]" in a list of lists. */
static PyObject *
print_position(const py_operands *operands, size_t piece)
{
    const py_side *side = &operands->outputs;
    size_t position = piece - side->first;
    size_t per_block =
        side->layout == PY_LAYOUT_EACH && side->nblocks > 1 ? side->npieces / side->nblocks : 1;
    return per_block > 1 ? PyUnicode_FromFormat("[%zu][%zu]", position / per_block, position % per_block)
                         : PyUnicode_FromFormat("[%zu]", position);
}

static void
raise_pair(const py_operands *operands, const size_t pair[2])
{
    PyObject *first = print_position(operands, pair[0]);
    PyObject *second = first != NULL ? print_position(operands, pair[1]) : NULL;
    if (second != NULL) {
        PyErr_Format(operands->state->errors[PY_ERROR_ARGUMENT],
                     "%s(): outputs %U and %U are the same memory or overlap: each needs memory of its own",
                     operands->function, first, second);
    }
    Py_XDECREF(first);
    Py_XDECREF(second);
}

bool
py_operands_check_outputs(const py_operands *operands)
{
    size_t count = count_unordered(operands);
    if (count == 0) {
        return true;
    }
    extent inline_extents[INLINE_EXTENTS];
    extent *extents = count <= INLINE_EXTENTS ? inline_extents : dd_mem_alloc_array(count, sizeof *extents);
    if (extents == NULL) {
        PyErr_NoMemory();
        return false;
    }
    size_t nfound = 0;
    for (size_t i = 0; i < operands->npieces; i++) {
        if (is_written(&operands->pieces[i])) {
            extents[nfound++] = extent_of(operands, i);
        }
    }
    size_t pair[2];
    bool is_found = find_overlap(extents, nfound, pair);
    if (extents != inline_extents) {
        dd_mem_free(extents);
    }
    if (is_found) {
        raise_pair(operands, pair);
    }
    return !is_found;
}
