/* Conversion between the floating-point types. */
#ifndef DD_KERNELS_CONVERT_H
#define DD_KERNELS_CONVERT_H

#include "core/dtype.h"

#include <stdbool.h>
#include <stddef.h>

/* Return true if both are real floating-point types. */
bool dd_convert_is_supported(dd_dtype to, dd_dtype from);

/* Set dst[i] = src[i] for `count` elements, aligned to their size; dst and src must not overlap.
 * Rounds to nearest even, as reductions do; from float64 to 16 and 8 bits by way of float32. Every
 * NaN becomes the NaN of reductions, except between equal types, which is a copy. */
void dd_convert(dd_dtype to, void *dst, dd_dtype from, const void *src, size_t count);

#endif
