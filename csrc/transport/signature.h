/* What an operation is, as far as ranks must agree on it. It travels with every message and every slot;
 * the layers above give the numbers their meaning (collective/coll.h, window/window_wire.h). That of a message from
 * rank to rank is all zero, or has `dtype`, `count` and DD_SIGNATURE_TYPED. */
#ifndef DD_TRANSPORT_SIGNATURE_H
#define DD_TRANSPORT_SIGNATURE_H

#include "core/dtype.h"

#include <stddef.h>
#include <stdint.h>

/* The elements of a message from rank to rank have a dtype. Without the flag they are bytes, which go with
 * every dtype. */
#define DD_SIGNATURE_TYPED 1u

/* Compared as bytes; fields without meaning for the operation are zero. */
typedef struct dd_signature {
    uint8_t coll;  /* dd_coll */
    uint8_t dtype; /* dd_dtype */
    uint8_t redop; /* dd_redop, of operations that reduce */
    uint8_t flags; /* DD_SIGNATURE_TYPED */
    uint32_t root;
    uint64_t count;       /* elements, where all ranks must have the same number; else 0 */
    uint64_t factor_bits; /* of PREMUL_SUM: the double */
} dd_signature;

/* Of a message from rank to rank that is so many bytes of a dtype. */
static inline dd_signature
dd_signature_of_message(dd_dtype dtype, size_t nbytes)
{
    return (dd_signature){
        .dtype = (uint8_t)dtype, .flags = DD_SIGNATURE_TYPED, .count = nbytes / dd_dtype_size(dtype)};
}

#endif
