/* Numbers as little-endian bytes. `nbytes` must be at most 8; a constant `nbytes` compiles to one
 * move. */
#ifndef DD_CORE_LITTLE_ENDIAN_H
#define DD_CORE_LITTLE_ENDIAN_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

static inline uint64_t
dd_little_endian(uint64_t value)
{
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    value = __builtin_bswap64(value);
#endif
    return value;
}

/* Write the low `nbytes` bytes of `value` to `out`. */
static inline void
dd_put_number(uint8_t *out, uint64_t value, size_t nbytes)
{
    value = dd_little_endian(value);
    memcpy(out, &value, nbytes);
}

static inline uint64_t
dd_get_number(const uint8_t *in, size_t nbytes)
{
    uint64_t value = 0;
    memcpy(&value, in, nbytes);
    return dd_little_endian(value);
}

#endif
