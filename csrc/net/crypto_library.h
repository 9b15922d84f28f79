/* What each library has to do for crypto.h. */
#ifndef DD_NET_CRYPTO_LIBRARY_H
#define DD_NET_CRYPTO_LIBRARY_H

#include "core/dylib.h"
#include "net/crypto.h"

#define CRYPTO_NONCE_BYTES 12

typedef struct crypto_library {
    const char *(*name)(void);
    bool (*has)(dd_cipher cipher);
    bool (*x25519_point)(const uint8_t secret[DD_CRYPTO_POINT_BYTES], uint8_t point[DD_CRYPTO_POINT_BYTES]);
    bool (*x25519_agree)(const uint8_t secret[DD_CRYPTO_POINT_BYTES],
                         const uint8_t point[DD_CRYPTO_POINT_BYTES], uint8_t common[DD_CRYPTO_POINT_BYTES]);
    /* Of a cipher that it has; NULL: no memory. */
    void *(*create)(dd_cipher cipher, const uint8_t key[DD_CRYPTO_KEY_BYTES]);
    void (*destroy)(void *state);
    bool (*seal)(void *state, const uint8_t nonce[CRYPTO_NONCE_BYTES], dd_bytes beside, dd_bytes plain,
                 uint8_t *sealed);
    bool (*open)(void *state, const uint8_t nonce[CRYPTO_NONCE_BYTES], dd_bytes beside, dd_bytes sealed,
                 uint8_t *plain);
} crypto_library;

/* Load the library; what is returned is valid for good. DD_NOT_SUPPORTED when there is none. */
dd_status crypto_load_openssl(const crypto_library **library, dd_error *err) DD_MUST_CHECK;
dd_status crypto_load_sodium(const crypto_library **library, dd_error *err) DD_MUST_CHECK;

#endif
