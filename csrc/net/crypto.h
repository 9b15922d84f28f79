/* The ciphers and the key exchange of encrypted connections. OpenSSL's libcrypto implements them,
 * and is loaded for the first encrypted connection. dldist has no cipher of its own. */
#ifndef DD_NET_CRYPTO_H
#define DD_NET_CRYPTO_H

#include "core/bytes.h"
#include "core/status.h"

#include <stdbool.h>
#include <stdint.h>

#define DD_CRYPTO_KEY_BYTES 32
#define DD_CRYPTO_TAG_BYTES ((size_t)16)
#define DD_CRYPTO_POINT_BYTES 32 /* size of X25519 keys and shared secrets, in bytes */

/* Ciphers. The values are part of the wire format. */
typedef enum dd_cipher {
    DD_CIPHER_NONE,
    DD_CIPHER_AES_256_GCM,
    DD_CIPHER_CHACHA20_POLY1305,
    DD_CIPHER_COUNT,
} dd_cipher;

const char *dd_cipher_name(dd_cipher cipher);

/* Load libcrypto; must precede all functions below. DD_NOT_SUPPORTED names its package. */
dd_status dd_crypto_load(dd_error *err) DD_MUST_CHECK;
bool dd_crypto_has(dd_cipher cipher); /* false if the number is not a cipher */
/* Return AES-GCM if the processor has instructions for AES, else ChaCha20-Poly1305. */
dd_cipher dd_crypto_choose(void);

/* Overwrite a secret that is no longer needed. The compiler cannot optimise this call away. */
void dd_crypto_wipe(void *secret, size_t nbytes);

/* ---- X25519 (RFC 7748) */

typedef struct dd_x25519_pair {
    uint8_t secret[DD_CRYPTO_POINT_BYTES];
    uint8_t point[DD_CRYPTO_POINT_BYTES]; /* the public key, which may be sent */
} dd_x25519_pair;

dd_status dd_x25519_make(dd_x25519_pair *pair, dd_error *err) DD_MUST_CHECK;
/* Compute the shared secret of two key pairs. Return false if `point`, the peer's public key, is
 * one of the few keys for which the result does not depend on our secret. */
bool dd_x25519_agree(const dd_x25519_pair *pair, const uint8_t point[DD_CRYPTO_POINT_BYTES],
                     uint8_t common[DD_CRYPTO_POINT_BYTES]);

/* ---- authenticated encryption with one key. A `number` must seal only once. Not thread-safe */

typedef struct dd_aead dd_aead;

dd_status dd_aead_create(dd_cipher cipher, const uint8_t key[DD_CRYPTO_KEY_BYTES], dd_aead **aead,
                         dd_error *err) DD_MUST_CHECK;
void dd_aead_destroy(dd_aead *aead); /* NULL is ignored */

/* Encrypt `plain`. Writes plain.len bytes and a tag to `sealed`, which may be the same memory.
 * `associated` is authenticated but not encrypted. Return false if the library has no memory. */
bool dd_aead_seal(dd_aead *aead, uint64_t number, dd_bytes associated, dd_bytes plain,
                  uint8_t *sealed) DD_MUST_CHECK;
/* Decrypt `sealed` into `plain`, which may be the same memory. Return false if it was not sealed
 * with this key, `number` and `associated`; the content of `plain` must then not be used. */
bool dd_aead_open(dd_aead *aead, uint64_t number, dd_bytes associated, dd_bytes sealed,
                  uint8_t *plain) DD_MUST_CHECK;

#endif
