/* The signature of an operation: the properties on which all ranks must agree. A signature is sent
 * with every message and stored in every arena slot. The layers above define the values
 * (collective/coll.h, window/window_wire.h). In a point-to-point message, only `dtype`, `count`,
 * `extra_bits` and DD_SIGNATURE_TYPED may be set. */
#ifndef DD_TRANSPORT_SIGNATURE_H
#define DD_TRANSPORT_SIGNATURE_H

#include "core/dtype.h"

#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* Flag of a point-to-point message that has a dtype. A message without this flag consists of plain
 * bytes, which match any dtype. */
#define DD_SIGNATURE_TYPED 1u

/* A signature is compared bytewise, so fields that an operation does not use must be zero. */
typedef struct dd_signature {
    uint8_t coll;  /* the collective, a dd_coll */
    uint8_t dtype; /* a dd_dtype */
    uint8_t redop; /* the reduction, a dd_redop; 0 if the operation does not reduce */
    uint8_t flags; /* DD_SIGNATURE_TYPED or 0 */
    uint32_t root;
    uint64_t count; /* number of elements, if it must be the same on all ranks; else 0 */
    /* Bits of the double that PREMUL_SUM multiplies by; or up to eight characters that name a dtype of
     * another library, whose elements are moved as elements of `dtype`; else 0 */
    uint64_t extra_bits;
} dd_signature;

/* Return the name of the dtype in the signature of an operation without a factor. */
static inline const char *
dd_signature_dtype_name(const dd_signature *signature, char out[9])
{
    if (signature->extra_bits == 0) {
        return dd_dtype_name((dd_dtype)signature->dtype);
    }
    memcpy(out, &signature->extra_bits, sizeof signature->extra_bits);
    out[8] = '\0';
    for (int i = 0; i < 8; i++) {
        out[i] = out[i] == '\0' || (out[i] >= ' ' && out[i] <= '~') ? out[i] : '?';
    }
    return out;
}

/* Return the signature of a point-to-point message with `nbytes` bytes of elements of `dtype`. */
static inline dd_signature
dd_signature_of_message(dd_dtype dtype, size_t nbytes)
{
    return (dd_signature){
        .dtype = (uint8_t)dtype, .flags = DD_SIGNATURE_TYPED, .count = nbytes / dd_dtype_size(dtype)};
}

#endif
