/* Digests by which two states of a block are told apart without keeping either. */
#ifndef DD_KERNELS_DIGEST_H
#define DD_KERNELS_DIGEST_H

#include <stddef.h>
#include <stdint.h>

#define DD_DIGEST_NBYTES 16

/* NH: the sum, modulo 2^128, of (a + key) * (b + key) over pairs of words of 64 bits, the last pair filled up with zeros.
 * `keys` has as many bytes as the data, rounded up to a pair, all of them random. Two different contents of the same length
 * have the same digest with a probability of 2^-64 at most, whatever they are, if who makes them does not know the keys. */
void dd_digest(const void *data, size_t nbytes, const void *keys, uint8_t digest[DD_DIGEST_NBYTES]);

#endif
