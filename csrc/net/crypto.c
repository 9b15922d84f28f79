#include "net/crypto_library.h"

#include "core/cpu.h"
#include "core/lock.h"
#include "core/log.h"
#include "core/mem.h"
#include "net/auth.h"

#include <stdatomic.h>
#include <string.h>

struct dd_aead {
    dd_cipher cipher;
    void *state;
};

static dd_lock loading = DD_LOCK_INITIALIZER(DD_LOCK_CRYPTO);
static atomic_bool is_loaded; /* set with release, read with acquire */

const char *
dd_cipher_name(dd_cipher cipher)
{
    static const char *const names[DD_CIPHER_COUNT] = {"no cipher", "AES-256-GCM", "ChaCha20-Poly1305"};
    return cipher < DD_CIPHER_COUNT ? names[cipher] : "an unknown cipher";
}

dd_status
dd_crypto_load(dd_error *err)
{
    dd_error why;
    if (atomic_load_explicit(&is_loaded, memory_order_acquire)) {
        return DD_OK;
    }
    dd_lock_take(&loading);
    bool is_first = !atomic_load_explicit(&is_loaded, memory_order_relaxed);
    bool is_available = !is_first || crypto_library_load(&why) == DD_OK;
    atomic_store_explicit(&is_loaded, is_available, memory_order_release);
    dd_lock_release(&loading);
    if (!is_available) {
        return dd_error_set(
            err, DD_NOT_SUPPORTED,
            "a job with a secret encrypts its connections, which needs OpenSSL's libcrypto: install it "
            "(libssl3), or set DLDIST_ENCRYPTION=off for all ranks");
    }
    if (is_first) {
        DD_LOG(DD_LOG_INFO, "connections over TCP are encrypted with %s, by %s",
               dd_cipher_name(dd_crypto_choose()), crypto_library_name());
    }
    return DD_OK;
}

bool
dd_crypto_has(dd_cipher cipher)
{
    return cipher == DD_CIPHER_AES_256_GCM || cipher == DD_CIPHER_CHACHA20_POLY1305;
}

dd_cipher
dd_crypto_choose(void)
{
    return (dd_cpu_features() & DD_CPU_AES) != 0 ? DD_CIPHER_AES_256_GCM : DD_CIPHER_CHACHA20_POLY1305;
}

void
dd_crypto_wipe(void *secret, size_t nbytes)
{
    explicit_bzero(secret, nbytes);
}

dd_status
dd_x25519_make(dd_x25519_pair *pair, dd_error *err)
{
    dd_status status = dd_auth_random(pair->secret, sizeof pair->secret, err);
    if (status == DD_OK && !crypto_x25519_point(pair->secret, pair->point)) {
        status = dd_error_set(err, DD_OUT_OF_MEMORY, "libcrypto cannot create a key");
    }
    return status;
}

bool
dd_x25519_agree(const dd_x25519_pair *pair, const uint8_t point[DD_CRYPTO_POINT_BYTES],
                uint8_t common[DD_CRYPTO_POINT_BYTES])
{
    static const uint8_t nothing[DD_CRYPTO_POINT_BYTES];
    return crypto_x25519_agree(pair->secret, point, common) &&
           !dd_bytes_equal_secret(dd_bytes_of(common, DD_CRYPTO_POINT_BYTES),
                                  dd_bytes_of(nothing, sizeof nothing));
}

dd_status
dd_aead_create(dd_cipher cipher, const uint8_t key[DD_CRYPTO_KEY_BYTES], dd_aead **aead, dd_error *err)
{
    dd_aead *self = dd_mem_zalloc(sizeof *self);
    void *state = self != NULL ? crypto_cipher_create(cipher, key) : NULL;
    if (state == NULL) {
        dd_mem_free(self);
        return dd_error_no_memory(err, sizeof *self);
    }
    *self = (dd_aead){.cipher = cipher, .state = state};
    *aead = self;
    return DD_OK;
}

void
dd_aead_destroy(dd_aead *self)
{
    if (self != NULL) {
        crypto_cipher_destroy(self->state);
        dd_mem_free(self);
    }
}

/* Encode a nonce as in Noise: four zero bytes, and the number in the cipher's byte order. */
static void
write_nonce(dd_cipher cipher, uint64_t number, uint8_t nonce[CRYPTO_NONCE_BYTES])
{
    memset(nonce, 0, CRYPTO_NONCE_BYTES);
    for (int i = 0; i < 8; i++) {
        nonce[cipher == DD_CIPHER_AES_256_GCM ? 11 - i : 4 + i] = (uint8_t)(number >> (8 * i));
    }
}

bool
dd_aead_seal(dd_aead *self, uint64_t number, dd_bytes associated, dd_bytes plain, uint8_t *sealed)
{
    uint8_t nonce[CRYPTO_NONCE_BYTES];
    write_nonce(self->cipher, number, nonce);
    return crypto_cipher_seal(self->state, nonce, associated, plain, sealed);
}

bool
dd_aead_open(dd_aead *self, uint64_t number, dd_bytes associated, dd_bytes sealed, uint8_t *plain)
{
    uint8_t nonce[CRYPTO_NONCE_BYTES];
    write_nonce(self->cipher, number, nonce);
    return sealed.len >= DD_CRYPTO_TAG_BYTES &&
           crypto_cipher_open(self->state, nonce, associated, sealed, plain);
}
