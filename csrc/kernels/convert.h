/* Conversion between the floating-point types. */
#ifndef DD_KERNELS_CONVERT_H
#define DD_KERNELS_CONVERT_H

#include "core/dtype.h"

#include <stdbool.h>
#include <stddef.h>

/* Return true if both types are real floating-point types. */
bool dd_convert_is_supported(dd_dtype to, dd_dtype from);

/* Set dst[i] to the converted value of src[i], for `count` elements. dst and src must be aligned to
 * their elements and must not overlap. Values are rounded to nearest even, as in reductions;
 * float64 is converted to 16 and 8 bits by way of float32. Every NaN becomes the canonical NaN of
 * reductions, except between equal types: then the bits are copied. */
void dd_convert(dd_dtype to, void *dst, dd_dtype from, const void *src, size_t count);

#endif
