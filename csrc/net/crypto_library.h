/* The cryptographic primitives under crypto.h, by libcrypto (crypto_openssl.c) or the simulator. */
#ifndef DD_NET_CRYPTO_LIBRARY_H
#define DD_NET_CRYPTO_LIBRARY_H

#include "net/crypto.h"

#define CRYPTO_NONCE_BYTES 12

/* Load the library; must be called once, before all other functions. DD_NOT_SUPPORTED if none. */
dd_status crypto_library_load(dd_error *err) DD_MUST_CHECK;
const char *crypto_library_name(void);

bool crypto_x25519_point(const uint8_t secret[DD_CRYPTO_POINT_BYTES], uint8_t point[DD_CRYPTO_POINT_BYTES]);
bool crypto_x25519_agree(const uint8_t secret[DD_CRYPTO_POINT_BYTES],
                         const uint8_t point[DD_CRYPTO_POINT_BYTES], uint8_t common[DD_CRYPTO_POINT_BYTES]);

/* Create the state of a cipher with one key. Return NULL if there is no memory. */
void *crypto_cipher_create(dd_cipher cipher, const uint8_t key[DD_CRYPTO_KEY_BYTES]);
void crypto_cipher_destroy(void *state);
bool crypto_cipher_seal(void *state, const uint8_t nonce[CRYPTO_NONCE_BYTES], dd_bytes associated,
                        dd_bytes plain, uint8_t *sealed);
bool crypto_cipher_open(void *state, const uint8_t nonce[CRYPTO_NONCE_BYTES], dd_bytes associated,
                        dd_bytes sealed, uint8_t *plain);

#endif
