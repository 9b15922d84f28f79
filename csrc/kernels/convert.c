#include "kernels/convert.h"

#include "kernels/copy.h"
#include "kernels/reduce.h"

#include <math.h>

/* Number of elements that are converted at a time by way of float32; they fit into the cache. */
#define PIECE_COUNT ((size_t)1024)

bool
dd_convert_is_supported(dd_dtype to, dd_dtype from)
{
    return dd_dtype_kind_of(to) == DD_KIND_FLOAT && dd_dtype_kind_of(from) == DD_KIND_FLOAT;
}

/* Convert to float32 by means of a sum over one source, which is a copy. Its first stage writes
 * float32 accumulators and its last stage reads them, so reductions' vector kernels convert. */
static void
convert_widen(float *dst, dd_dtype from, const void *src, size_t count)
{
    dd_reduction reduction = {.dtype = from, .op = DD_REDOP_SUM};
    dd_reduce(&reduction, DD_STAGE_FIRST, dst, &src, 1, count);
}

static void
narrow(dd_dtype to, void *dst, const float *src, size_t count)
{
    dd_reduction reduction = {.dtype = to, .op = DD_REDOP_SUM};
    const void *sources[] = {src};
    dd_reduce(&reduction, DD_STAGE_LAST, dst, sources, 1, count);
}

static void
read_piece(float *dst, dd_dtype from, const void *src, size_t count)
{
    if (from != DD_DTYPE_FLOAT64) {
        convert_widen(dst, from, src, count);
        return;
    }
    const double *numbers = src;
    for (size_t i = 0; i < count; i++) {
        dst[i] = isnan(numbers[i]) ? NAN : (float)numbers[i];
    }
}

static void
write_piece(dd_dtype to, void *dst, const float *src, size_t count)
{
    if (to != DD_DTYPE_FLOAT64) {
        narrow(to, dst, src, count);
        return;
    }
    double *numbers = dst;
    for (size_t i = 0; i < count; i++) {
        numbers[i] = isnan(src[i]) ? NAN : (double)src[i];
    }
}

void
dd_convert(dd_dtype to, void *dst, dd_dtype from, const void *src, size_t count)
{
    if (to == from) {
        dd_copy(dst, src, count * dd_dtype_size(to));
    } else if (to == DD_DTYPE_FLOAT32) {
        read_piece(dst, from, src, count);
    } else if (from == DD_DTYPE_FLOAT32) {
        write_piece(to, dst, src, count);
    } else {
        float piece[PIECE_COUNT];
        for (size_t done = 0; done < count; done += PIECE_COUNT) {
            size_t length = count - done < PIECE_COUNT ? count - done : PIECE_COUNT;
            read_piece(piece, from, (const char *)src + done * dd_dtype_size(from), length);
            write_piece(to, (char *)dst + done * dd_dtype_size(to), piece, length);
        }
    }
}
