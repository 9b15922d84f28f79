#include "kernels/view.h"

#include "kernels/copy.h"

#include <stdlib.h>
#include <string.h>

/* Indexes of `step` and `offset`: PACKED is for the packed elements, IN_VIEW for the view. */
enum { PACKED, IN_VIEW };

/* A dimension of a walk: its length, and its step in bytes on each side (PACKED, IN_VIEW). */
typedef struct view_dim {
    int64_t length;
    int64_t step[2];
} view_dim;

/* A walk over a view: its dimensions without those of length 1, adjacent ones joined if possible,
 * at least one. copy_plane copies the last two dimensions; step_walk iterates over the other
 * ones. */
typedef struct view_walk {
    int ndim;
    view_dim dims[DD_VIEW_MAX_DIMS];
    int64_t index[DD_VIEW_MAX_DIMS];
    int64_t offset[2];
} view_walk;

/* A plane of elements to copy: the last two dimensions of a walk. */
typedef struct view_plane {
    view_dim row, column;
    int to;      /* side of the destination, PACKED or IN_VIEW; the source is on the other side */
    size_t size; /* size of an element in bytes */
} view_plane;

bool
dd_view_finish(dd_view *view)
{
    if (view->ndim < 0 || view->ndim > DD_VIEW_MAX_DIMS) {
        return false;
    }
    bool is_empty = false;
    for (int d = 0; d < view->ndim; d++) {
        if (view->shape[d] < 0) {
            return false;
        }
        is_empty |= view->shape[d] == 0;
    }
    /* Compute sizes in int64, so that offsets into the view, which are int64, cannot overflow. */
    int64_t nbytes = (int64_t)dd_dtype_size(view->dtype);
    int64_t size = nbytes;
    bool is_contiguous = true;
    for (int d = view->ndim - 1; d >= 0 && !is_empty; d--) {
        is_contiguous &= view->shape[d] == 1 || view->strides[d] == nbytes;
        if (__builtin_mul_overflow(nbytes, view->shape[d], &nbytes)) {
            return false;
        }
    }
    view->count = is_empty ? 0 : (size_t)(nbytes / size);
    view->is_contiguous = is_contiguous;
    return true;
}

size_t
dd_view_nbytes(const dd_view *view)
{
    return view->count * dd_dtype_size(view->dtype);
}

/* Move the dimension with the shortest step in the view to the second-last place. The last one has
 * the shortest step in the packed elements; copying both together touches few cache lines. */
static void
choose_plane(view_walk *walk)
{
    int row = walk->ndim - 2;
    for (int d = 0; d < walk->ndim - 2; d++) {
        if (llabs(walk->dims[d].step[IN_VIEW]) < llabs(walk->dims[row].step[IN_VIEW])) {
            row = d;
        }
    }
    for (int d = row; d >= 0 && d < walk->ndim - 2; d++) {
        view_dim moved = walk->dims[d];
        walk->dims[d] = walk->dims[d + 1];
        walk->dims[d + 1] = moved;
    }
}

static view_walk
plan_walk(const dd_view *view)
{
    view_walk walk = {.ndim = 0};
    int64_t in_packed = (int64_t)dd_view_nbytes(view);
    for (int d = 0; d < view->ndim; d++) {
        view_dim next = {.length = view->shape[d], .step[IN_VIEW] = view->strides[d]};
        if (next.length == 1) {
            continue;
        }
        in_packed /= next.length;
        next.step[PACKED] = in_packed;
        view_dim *last = walk.ndim > 0 ? &walk.dims[walk.ndim - 1] : NULL;
        if (last != NULL && last->step[IN_VIEW] == next.length * next.step[IN_VIEW]) {
            next.length *= last->length;
            *last = next;
        } else {
            walk.dims[walk.ndim++] = next;
        }
    }
    choose_plane(&walk);
    return walk;
}

/* Advance to the next plane of the walk. Return false after the last plane. */
static bool
step_walk(view_walk *walk)
{
    for (int d = walk->ndim - 3; d >= 0; d--) {
        const view_dim *dim = &walk->dims[d];
        walk->offset[PACKED] += dim->step[PACKED];
        walk->offset[IN_VIEW] += dim->step[IN_VIEW];
        if (++walk->index[d] < dim->length) {
            return true;
        }
        walk->offset[PACKED] -= dim->step[PACKED] * dim->length;
        walk->offset[IN_VIEW] -= dim->step[IN_VIEW] * dim->length;
        walk->index[d] = 0;
    }
    return false;
}

static inline __attribute__((always_inline)) void
copy_elements(view_plane p, char *dst, const char *src, size_t size)
{
    int from = !p.to;
    for (int64_t row = 0; row < p.row.length; row++) {
        for (int64_t column = 0; column < p.column.length; column++) {
            memcpy(dst + row * p.row.step[p.to] + column * p.column.step[p.to],
                   src + row * p.row.step[from] + column * p.column.step[from], size);
        }
    }
}

/* Copy a tile. For a size that the compiler knows, an element takes one or two instructions. */
static void
copy_tile(const view_plane *p, char *dst, const char *src)
{
    switch (p->size) {
#define CASE(of_size)                           \
    case of_size:                               \
        copy_elements(*p, dst, src, (of_size)); \
        break;
        CASE(1)
        CASE(2)
        CASE(4)
        CASE(8)
        CASE(16)
#undef CASE
    default:
        copy_elements(*p, dst, src, p->size);
    }
}

/* Copy a plane in tiles. One side of a transposed matrix is traversed across its cache lines; in a
 * tile, these lines are still in the cache for the next row. */
static void
copy_plane(const view_plane *p, char *dst, const char *src)
{
    const int64_t side = 32;
    for (int64_t row = 0; row < p->row.length; row += side) {
        for (int64_t column = 0; column < p->column.length; column += side) {
            view_plane tile = *p;
            tile.row.length = p->row.length - row < side ? p->row.length - row : side;
            tile.column.length = p->column.length - column < side ? p->column.length - column : side;
            copy_tile(&tile, dst + row * p->row.step[p->to] + column * p->column.step[p->to],
                      src + row * p->row.step[!p->to] + column * p->column.step[!p->to]);
        }
    }
}

/* Copy elements from a view to packed memory, or back. `to` is the side of the destination. */
static void
copy_view(const dd_view *view, char *dst, const char *src, int to)
{
    if (view->is_contiguous) {
        dd_copy(dst, src, dd_view_nbytes(view));
        return;
    }
    view_walk walk = plan_walk(view);
    view_plane plane = {.row = walk.ndim > 1 ? walk.dims[walk.ndim - 2] : (view_dim){.length = 1},
                        .column = walk.dims[walk.ndim - 1],
                        .to = to,
                        .size = dd_dtype_size(view->dtype)};
    if (plane.column.step[IN_VIEW] == (int64_t)plane.size) { /* copy each row as one element */
        plane.size *= (size_t)plane.column.length;
        plane.column.length = 1;
    }
    do {
        copy_plane(&plane, dst + walk.offset[to], src + walk.offset[!to]);
    } while (step_walk(&walk));
}

void
dd_view_pack(const dd_view *view, void *dst)
{
    copy_view(view, dst, view->data, PACKED);
}

void
dd_view_unpack(const dd_view *view, const void *src)
{
    copy_view(view, view->data, src, IN_VIEW);
}
