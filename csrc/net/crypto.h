/* The ciphers and the key exchange of encrypted connections, done by OpenSSL's libcrypto. There is no cipher of our own. The library
 * is loaded when a connection is to be encrypted for the first time. */
#ifndef DD_NET_CRYPTO_H
#define DD_NET_CRYPTO_H

#include "core/bytes.h"
#include "core/status.h"

#include <stdbool.h>
#include <stdint.h>

#define DD_CRYPTO_KEY_BYTES 32
#define DD_CRYPTO_TAG_BYTES ((size_t)16)
#define DD_CRYPTO_POINT_BYTES 32 /* of X25519: a private number, a public one, and what two have in common */

/* The numbers are those on the wire. */
typedef enum dd_cipher {
    DD_CIPHER_NONE,
    DD_CIPHER_AES_256_GCM,
    DD_CIPHER_CHACHA20_POLY1305,
    DD_CIPHER_COUNT,
} dd_cipher;

const char *dd_cipher_name(dd_cipher cipher);

/* Load the library, once a process. DD_NOT_SUPPORTED says what to install. All functions below need it. */
dd_status dd_crypto_load(dd_error *err) DD_MUST_CHECK;
bool dd_crypto_has(dd_cipher cipher); /* false for a number that is no cipher */
/* AES-GCM where the processor has instructions for it, ChaCha20-Poly1305 elsewhere. */
dd_cipher dd_crypto_choose(void);

/* Overwrites a secret that is no longer needed; the compiler does not leave it out. */
void dd_crypto_wipe(void *secret, size_t nbytes);

/* ---- X25519 (RFC 7748) */

typedef struct dd_x25519_pair {
    uint8_t secret[DD_CRYPTO_POINT_BYTES];
    uint8_t point[DD_CRYPTO_POINT_BYTES]; /* for everybody to see */
} dd_x25519_pair;

/* A fresh one. */
dd_status dd_x25519_make(dd_x25519_pair *pair, dd_error *err) DD_MUST_CHECK;
/* What two have in common who know each other's points. False: the point is one of the few that give the same whatever our secret is. */
bool dd_x25519_agree(const dd_x25519_pair *own, const uint8_t point[DD_CRYPTO_POINT_BYTES],
                     uint8_t common[DD_CRYPTO_POINT_BYTES]);

/* ---- authenticated encryption under one key. A number may seal one message only. Not thread-safe. */

typedef struct dd_aead dd_aead;

dd_status dd_aead_create(dd_cipher cipher, const uint8_t key[DD_CRYPTO_KEY_BYTES], dd_aead **aead,
                         dd_error *err) DD_MUST_CHECK;
void dd_aead_destroy(dd_aead *aead); /* NULL is fine */

/* Seals `plain` to plain.len bytes and a tag at `sealed`, which may be plain.data. `beside` is protected and not hidden. False: the
 * library has failed, as it does without memory. */
bool dd_aead_seal(dd_aead *aead, uint64_t number, dd_bytes beside, dd_bytes plain,
                  uint8_t *sealed) DD_MUST_CHECK;
/* The reverse, in place or not. False: it is not what was sealed with this key, number and `beside`; what stands in `plain` then is
 * worth nothing. */
bool dd_aead_open(dd_aead *aead, uint64_t number, dd_bytes beside, dd_bytes sealed,
                  uint8_t *plain) DD_MUST_CHECK;

#endif
