/* SHA-256 and HMAC-SHA256 (FIPS 180-4, RFC 2104). */
#ifndef DD_NET_SHA256_H
#define DD_NET_SHA256_H

#include "core/bytes.h"

#include <stddef.h>
#include <stdint.h>

#define DD_SHA256_BYTES 32
#define DD_SHA256_BLOCK 64

typedef struct dd_sha256 {
    uint32_t state[8];
    uint64_t nbytes;
    uint8_t block[DD_SHA256_BLOCK];
} dd_sha256;

void dd_sha256_init(dd_sha256 *sha);
void dd_sha256_update(dd_sha256 *sha, dd_bytes bytes);
void dd_sha256_final(dd_sha256 *sha, uint8_t digest[DD_SHA256_BYTES]);

/* Compute the HMAC of the concatenation of `parts`. */
void dd_hmac_sha256(dd_bytes key, const dd_bytes *parts, size_t nparts, uint8_t mac[DD_SHA256_BYTES]);

#endif
