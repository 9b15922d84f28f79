/* A tensor in memory: where it starts and how its elements lie. Borrowed; the caller
 * keeps the memory alive. */
#ifndef DD_KERNELS_VIEW_H
#define DD_KERNELS_VIEW_H

#include "core/dtype.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define DD_VIEW_MAX_DIMS 32

typedef struct dd_view {
    void *data; /* of element [0, 0, ...]; may be NULL when count is 0 */
    dd_dtype dtype;
    bool is_readonly;
    bool is_contiguous; /* in row-major order; true for count <= 1 */
    int ndim;
    size_t count;                      /* elements: the product of shape; 1 for ndim 0 */
    int64_t shape[DD_VIEW_MAX_DIMS];   /* each >= 0 */
    int64_t strides[DD_VIEW_MAX_DIMS]; /* in bytes, may be negative or 0; of no meaning where is_contiguous */
} dd_view;

/* Finishes a view whose data, dtype, is_readonly, ndim, shape and strides are set: count and is_contiguous
 * (strides of dimensions of length 1 do not matter). False when count times the element size overflows, or a
 * length is negative. */
bool dd_view_finish(dd_view *view);

size_t dd_view_nbytes(const dd_view *view);

/* Between a view and `count` elements in row-major order that do not overlap it. */
void dd_view_pack(const dd_view *view, void *dst);
void dd_view_unpack(const dd_view *view, const void *src);

#endif
