/* A tensor in memory: its address and the layout of its elements. A view does not own the memory;
 * the caller must keep the memory valid. */
#ifndef DD_KERNELS_VIEW_H
#define DD_KERNELS_VIEW_H

#include "core/dtype.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define DD_VIEW_MAX_DIMS 32

typedef struct dd_view {
    void *data; /* address of element [0, 0, ...]; may be NULL if count is 0 */
    dd_dtype dtype;
    bool is_readonly;
    bool is_contiguous; /* true if in row-major order without gaps, or if count <= 1 */
    int ndim;
    size_t count;                      /* number of elements; 1 if ndim is 0 */
    int64_t shape[DD_VIEW_MAX_DIMS];   /* lengths of the dimensions; each >= 0 */
    int64_t strides[DD_VIEW_MAX_DIMS]; /* steps in bytes; may be <= 0; unused if is_contiguous */
} dd_view;

/* Compute `count` and `is_contiguous`; the caller must have set the other fields. Strides of
 * dimensions of length 1 are ignored. Return false if the size in bytes overflows, a length is
 * negative, or ndim is out of range. */
bool dd_view_finish(dd_view *view);

size_t dd_view_nbytes(const dd_view *view);

/* Copy between a view and `count` packed elements in row-major order. The two must not overlap. */
void dd_view_pack(const dd_view *view, void *dst);
void dd_view_unpack(const dd_view *view, const void *src);

#endif
