/* Digests, which show whether the content of a block has changed, without a copy of the block. */
#ifndef DD_KERNELS_DIGEST_H
#define DD_KERNELS_DIGEST_H

#include <stddef.h>
#include <stdint.h>

#define DD_DIGEST_NBYTES 16

/* Compute the universal hash NH: the sum, modulo 2^128, of (a + key) * (b + key) over pairs of
 * 64-bit words, zero-padded. `keys` must have as many random bytes as the data, rounded up to a
 * pair. Two contents of the same length collide with a probability of at most 2^-64, if the author
 * of the contents does not know the keys. */
void dd_digest(const void *data, size_t nbytes, const void *keys, uint8_t digest[DD_DIGEST_NBYTES]);

#endif
