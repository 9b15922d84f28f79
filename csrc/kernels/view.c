#include "kernels/view.h"

#include "kernels/copy.h"

#include <stdlib.h>
#include <string.h>

/* A dimension: its length, and the steps in bytes in the view and in the packed elements. */
typedef struct view_dim {
    int64_t length;
    int64_t in_view;
    int64_t in_packed;
} view_dim;

/* What stays of a view when dimensions of length 1 are left out, and neighbours that lie one after the other
 * joined. At least one dimension; when there are more, the last two are copied at once, and the others
 * walked through. */
typedef struct view_walk {
    int ndim;
    view_dim dims[DD_VIEW_MAX_DIMS];
    int64_t index[DD_VIEW_MAX_DIMS];
    int64_t view_offset;
    int64_t packed_offset;
} view_walk;

/* A plane of elements to copy. */
typedef struct view_plane {
    int64_t rows, columns;
    int64_t dst_row, dst_column; /* steps in bytes */
    int64_t src_row, src_column;
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
    /* In int64, so that offsets are in its range too. */
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

/* Moves the dimension with the shortest step in the view to the last place but one. The last one has the
 * shortest step in the packed elements: the two together touch few cache lines on either side. */
static void
choose_plane(view_walk *walk)
{
    int row = walk->ndim - 2;
    for (int d = 0; d < walk->ndim - 2; d++) {
        if (llabs(walk->dims[d].in_view) < llabs(walk->dims[row].in_view)) {
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
        view_dim next = {.length = view->shape[d], .in_view = view->strides[d]};
        if (next.length == 1) {
            continue;
        }
        in_packed /= next.length;
        next.in_packed = in_packed;
        view_dim *last = walk.ndim > 0 ? &walk.dims[walk.ndim - 1] : NULL;
        if (last != NULL && last->in_view == next.length * next.in_view) {
            next.length *= last->length;
            *last = next;
        } else {
            walk.dims[walk.ndim++] = next;
        }
    }
    choose_plane(&walk);
    return walk;
}

/* To the next plane; false after the last one. */
static bool
step_walk(view_walk *walk)
{
    for (int d = walk->ndim - 3; d >= 0; d--) {
        const view_dim *dim = &walk->dims[d];
        walk->view_offset += dim->in_view;
        walk->packed_offset += dim->in_packed;
        if (++walk->index[d] < dim->length) {
            return true;
        }
        walk->view_offset -= dim->in_view * dim->length;
        walk->packed_offset -= dim->in_packed * dim->length;
        walk->index[d] = 0;
    }
    return false;
}

static inline __attribute__((always_inline)) void
copy_elements(const view_plane *p, char *dst, const char *src, size_t size)
{
    for (int64_t row = 0; row < p->rows; row++) {
        for (int64_t column = 0; column < p->columns; column++) {
            memcpy(dst + row * p->dst_row + column * p->dst_column,
                   src + row * p->src_row + column * p->src_column, size);
        }
    }
}

/* With a size that the compiler knows, each copy is an instruction or two. */
static void
copy_tile(const view_plane *p, char *dst, const char *src, size_t size)
{
    switch (size) {
#define CASE(of_size)                          \
    case of_size:                              \
        copy_elements(p, dst, src, (of_size)); \
        break;
        CASE(1)
        CASE(2)
        CASE(4)
        CASE(8)
    default:
        CASE(16)
#undef CASE
    }
}

/* In tiles: of a matrix that is transposed, one side is walked across its cache lines, and what it fetched
 * should still be there for the next row. */
static void
copy_plane(const view_plane *p, char *dst, const char *src, size_t size)
{
    const int64_t side = 32;
    for (int64_t row = 0; row < p->rows; row += side) {
        for (int64_t column = 0; column < p->columns; column += side) {
            view_plane tile = *p;
            tile.rows = p->rows - row < side ? p->rows - row : side;
            tile.columns = p->columns - column < side ? p->columns - column : side;
            copy_tile(&tile, dst + row * p->dst_row + column * p->dst_column,
                      src + row * p->src_row + column * p->src_column, size);
        }
    }
}

/* Elements of a row lie side by side. */
static void
copy_rows(const view_plane *p, char *dst, const char *src, size_t size)
{
    for (int64_t row = 0; row < p->rows; row++) {
        memcpy(dst + row * p->dst_row, src + row * p->src_row, (size_t)p->columns * size);
    }
}

/* Between the view, at `data`, and its packed elements, which one of dst and src is. */
static void
copy_view(const dd_view *view, char *dst, const char *src, bool is_packing)
{
    size_t size = dd_dtype_size(view->dtype);
    if (view->is_contiguous) {
        dd_copy(dst, src, dd_view_nbytes(view));
        return;
    }
    view_walk walk = plan_walk(view);
    view_dim column = walk.dims[walk.ndim - 1];
    view_dim row = walk.ndim > 1 ? walk.dims[walk.ndim - 2] : (view_dim){.length = 1};
    view_plane packing = {row.length,       column.length, row.in_packed,
                          column.in_packed, row.in_view,   column.in_view};
    view_plane unpacking = {row.length,     column.length, row.in_view,
                            column.in_view, row.in_packed, column.in_packed};
    bool has_rows = column.in_view == (int64_t)size;
    do {
        int64_t to = is_packing ? walk.packed_offset : walk.view_offset;
        int64_t from = is_packing ? walk.view_offset : walk.packed_offset;
        (has_rows ? copy_rows : copy_plane)(is_packing ? &packing : &unpacking, dst + to, src + from, size);
    } while (step_walk(&walk));
}

void
dd_view_pack(const dd_view *view, void *dst)
{
    copy_view(view, dst, view->data, true);
}

void
dd_view_unpack(const dd_view *view, const void *src)
{
    copy_view(view, view->data, src, false);
}
