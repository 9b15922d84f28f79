/* libsodium. It has AES-GCM only on processors with instructions for it. */
#include "net/crypto_library.h"

#include "core/mem.h"

#include <string.h>

/* X(result, name, parameters) */
#define SODIUM_FUNCTIONS(X)                                                                                  \
    X(int, sodium_init, (void))                                                                              \
    X(const char *, sodium_version_string, (void))                                                           \
    X(int, crypto_scalarmult_base, (uint8_t * point, const uint8_t *secret))                                 \
    X(int, crypto_scalarmult, (uint8_t * common, const uint8_t *secret, const uint8_t *point))               \
    X(int, crypto_aead_aes256gcm_is_available, (void))                                                       \
    X(size_t, crypto_aead_aes256gcm_statebytes, (void))                                                      \
    X(int, crypto_aead_aes256gcm_beforenm, (void *state, const uint8_t *key))                                \
    X(int, crypto_aead_aes256gcm_encrypt_afternm,                                                            \
      (uint8_t * out, unsigned long long *nout, const uint8_t *in, unsigned long long nin,                   \
       const uint8_t *beside, unsigned long long nbeside, const uint8_t *secret_nonce, const uint8_t *nonce, \
       const void *state))                                                                                   \
    X(int, crypto_aead_aes256gcm_decrypt_afternm,                                                            \
      (uint8_t * out, unsigned long long *nout, uint8_t *secret_nonce, const uint8_t *in,                    \
       unsigned long long nin, const uint8_t *beside, unsigned long long nbeside, const uint8_t *nonce,      \
       const void *state))                                                                                   \
    X(int, crypto_aead_chacha20poly1305_ietf_encrypt,                                                        \
      (uint8_t * out, unsigned long long *nout, const uint8_t *in, unsigned long long nin,                   \
       const uint8_t *beside, unsigned long long nbeside, const uint8_t *secret_nonce, const uint8_t *nonce, \
       const uint8_t *key))                                                                                  \
    X(int, crypto_aead_chacha20poly1305_ietf_decrypt,                                                        \
      (uint8_t * out, unsigned long long *nout, uint8_t *secret_nonce, const uint8_t *in,                    \
       unsigned long long nin, const uint8_t *beside, unsigned long long nbeside, const uint8_t *nonce,      \
       const uint8_t *key))

static struct sodium_api {
#define X(result, name, parameters) result(*name) parameters;
    SODIUM_FUNCTIONS(X)
#undef X
} api;

static const dd_dylib_symbol symbols[] = {
#define X(result, name, parameters) {#name, offsetof(struct sodium_api, name), false},
    SODIUM_FUNCTIONS(X)
#undef X
};

/* The state of AES-GCM has to be aligned to 16 bytes. */
#define STATE_ALIGN ((uintptr_t)16)

typedef struct sodium_key {
    dd_cipher cipher;
    uint8_t key[DD_CRYPTO_KEY_BYTES]; /* of ChaCha20-Poly1305 */
    void *schedule;                   /* of AES-GCM: in `room` */
    size_t nroom;
    uint8_t room[];
} sodium_key;

static const char *
sodium_name(void)
{
    return "libsodium";
}

static bool
sodium_has(dd_cipher cipher)
{
    return cipher == DD_CIPHER_CHACHA20_POLY1305 ||
           (cipher == DD_CIPHER_AES_256_GCM && api.crypto_aead_aes256gcm_is_available() == 1);
}

static bool
sodium_x25519_point(const uint8_t secret[DD_CRYPTO_POINT_BYTES], uint8_t point[DD_CRYPTO_POINT_BYTES])
{
    return api.crypto_scalarmult_base(point, secret) == 0;
}

static bool
sodium_x25519_agree(const uint8_t secret[DD_CRYPTO_POINT_BYTES], const uint8_t point[DD_CRYPTO_POINT_BYTES],
                    uint8_t common[DD_CRYPTO_POINT_BYTES])
{
    return api.crypto_scalarmult(common, secret, point) == 0;
}

static void *
sodium_create(dd_cipher cipher, const uint8_t key[DD_CRYPTO_KEY_BYTES])
{
    bool is_aes = cipher == DD_CIPHER_AES_256_GCM;
    size_t nroom = is_aes ? api.crypto_aead_aes256gcm_statebytes() + STATE_ALIGN : 0;
    sodium_key *self = dd_mem_zalloc(sizeof *self + nroom);
    if (self == NULL) {
        return NULL;
    }
    self->cipher = cipher;
    self->nroom = nroom;
    memcpy(self->key, key, sizeof self->key);
    if (is_aes) {
        self->schedule = self->room + (-(uintptr_t)self->room & (STATE_ALIGN - 1));
        (void)api.crypto_aead_aes256gcm_beforenm(self->schedule, key);
    }
    return self;
}

static void
sodium_destroy(void *state)
{
    sodium_key *self = state;
    dd_crypto_wipe(self->key, sizeof self->key);
    dd_crypto_wipe(self->room, self->nroom);
    dd_mem_free(self);
}

static bool
sodium_seal(void *state, const uint8_t nonce[CRYPTO_NONCE_BYTES], dd_bytes beside, dd_bytes plain,
            uint8_t *sealed)
{
    const sodium_key *self = state;
    return (self->cipher == DD_CIPHER_AES_256_GCM
                ? api.crypto_aead_aes256gcm_encrypt_afternm(sealed, NULL, plain.data, plain.len, beside.data,
                                                            beside.len, NULL, nonce, self->schedule)
                : api.crypto_aead_chacha20poly1305_ietf_encrypt(sealed, NULL, plain.data, plain.len,
                                                                beside.data, beside.len, NULL, nonce,
                                                                self->key)) == 0;
}

static bool
sodium_open(void *state, const uint8_t nonce[CRYPTO_NONCE_BYTES], dd_bytes beside, dd_bytes sealed,
            uint8_t *plain)
{
    const sodium_key *self = state;
    return (self->cipher == DD_CIPHER_AES_256_GCM
                ? api.crypto_aead_aes256gcm_decrypt_afternm(plain, NULL, NULL, sealed.data, sealed.len,
                                                            beside.data, beside.len, nonce, self->schedule)
                : api.crypto_aead_chacha20poly1305_ietf_decrypt(plain, NULL, NULL, sealed.data, sealed.len,
                                                                beside.data, beside.len, nonce, self->key)) ==
           0;
}

dd_status
crypto_load_sodium(const crypto_library **library, dd_error *err)
{
    static const crypto_library sodium = {
        .name = sodium_name,
        .has = sodium_has,
        .x25519_point = sodium_x25519_point,
        .x25519_agree = sodium_x25519_agree,
        .create = sodium_create,
        .destroy = sodium_destroy,
        .seal = sodium_seal,
        .open = sodium_open,
    };
    static const char *const sonames[] = {"libsodium.so.26", "libsodium.so.23"};
    dd_dylib_place anywhere = {0};
    dd_dylib_search search = {
        .what = "libsodium",
        .sonames = sonames,
        .nsonames = sizeof sonames / sizeof sonames[0],
        .probe = "sodium_init",
        .place = &anywhere,
    };
    dd_dylib lib = {0};
    dd_status status = dd_dylib_open(&search, &lib, err);
    if (status == DD_OK) {
        status = dd_dylib_resolve(&lib, symbols, sizeof symbols / sizeof symbols[0], &api, err);
    }
    if (status == DD_OK && api.sodium_init() < 0) {
        status = dd_error_set(err, DD_NOT_SUPPORTED, "libsodium does not start");
    }
    dd_dylib_fini(&lib);
    *library = &sodium;
    return status;
}
