/* The signature of an operation: the properties on which ranks must agree, sent with every message
 * and slot. The layers above define the numbers (collective/coll.h, window/window_wire.h). A
 * point-to-point message has only zeros, or `dtype`, `count` and DD_SIGNATURE_TYPED. */
#ifndef DD_TRANSPORT_SIGNATURE_H
#define DD_TRANSPORT_SIGNATURE_H

#include "core/dtype.h"

#include <stddef.h>
#include <stdint.h>

/* Point-to-point elements have a dtype. Without this flag they are bytes: any dtype matches. */
#define DD_SIGNATURE_TYPED 1u

/* Compared as bytes; fields that the operation does not use must be zero. */
typedef struct dd_signature {
    uint8_t coll;  /* dd_coll */
    uint8_t dtype; /* dd_dtype */
    uint8_t redop; /* dd_redop, for reductions */
    uint8_t flags; /* DD_SIGNATURE_TYPED */
    uint32_t root;
    uint64_t count;       /* number of elements if it must be the same on all ranks; else 0 */
    uint64_t factor_bits; /* bits of the double that is PREMUL_SUM's factor */
} dd_signature;

/* Return the signature of a point-to-point message of `nbytes` bytes of a dtype. */
static inline dd_signature
dd_signature_of_message(dd_dtype dtype, size_t nbytes)
{
    return (dd_signature){
        .dtype = (uint8_t)dtype, .flags = DD_SIGNATURE_TYPED, .count = nbytes / dd_dtype_size(dtype)};
}

#endif
