/* OpenSSL's libcrypto, 1.1.1 or 3, used by its EVP interface. A failure leaves an entry in the
 * thread's error queue, which must be cleared: other users of the library could misread it. */
#include "net/crypto_library.h"

#include "core/dylib.h"

#include <limits.h>
#include <string.h>

#define NID_X25519 1034
#define CTRL_GET_TAG 0x10
#define CTRL_SET_TAG 0x11

/* X(result, name, parameters): the functions that are loaded from libcrypto. */
#define OPENSSL_FUNCTIONS(X)                                                                                \
    X(const char *, OpenSSL_version, (int type))                                                            \
    X(void, ERR_clear_error, (void))                                                                        \
    X(void *, EVP_PKEY_new_raw_private_key, (int type, void *engine, const uint8_t *key, size_t nbytes))    \
    X(void *, EVP_PKEY_new_raw_public_key, (int type, void *engine, const uint8_t *key, size_t nbytes))     \
    X(int, EVP_PKEY_get_raw_public_key, (const void *pkey, uint8_t *key, size_t *nbytes))                   \
    X(void, EVP_PKEY_free, (void *pkey))                                                                    \
    X(void *, EVP_PKEY_CTX_new, (void *pkey, void *engine))                                                 \
    X(void, EVP_PKEY_CTX_free, (void *ctx))                                                                 \
    X(int, EVP_PKEY_derive_init, (void *ctx))                                                               \
    X(int, EVP_PKEY_derive_set_peer, (void *ctx, void *peer))                                               \
    X(int, EVP_PKEY_derive, (void *ctx, uint8_t *common, size_t *nbytes))                                   \
    X(const void *, EVP_aes_256_gcm, (void))                                                                \
    X(const void *, EVP_chacha20_poly1305, (void))                                                          \
    X(void *, EVP_CIPHER_CTX_new, (void))                                                                   \
    X(void, EVP_CIPHER_CTX_free, (void *ctx))                                                               \
    X(int, EVP_CIPHER_CTX_ctrl, (void *ctx, int type, int number, void *data))                              \
    X(int, EVP_CipherInit_ex,                                                                               \
      (void *ctx, const void *cipher, void *engine, const uint8_t *key, const uint8_t *nonce, int is_seal)) \
    X(int, EVP_CipherUpdate, (void *ctx, uint8_t *out, int *nout, const uint8_t *in, int nin))              \
    X(int, EVP_CipherFinal_ex, (void *ctx, uint8_t *out, int *nout))

static struct openssl_api {
#define X(result, name, parameters) result(*name) parameters;
    OPENSSL_FUNCTIONS(X)
#undef X
} api;

static const dd_dylib_symbol symbols[] = {
#define X(result, name, parameters) {#name, offsetof(struct openssl_api, name), false},
    OPENSSL_FUNCTIONS(X)
#undef X
};

const char *
crypto_library_name(void)
{
    return api.OpenSSL_version(0);
}

bool
crypto_x25519_point(const uint8_t secret[DD_CRYPTO_POINT_BYTES], uint8_t point[DD_CRYPTO_POINT_BYTES])
{
    size_t nbytes = DD_CRYPTO_POINT_BYTES;
    void *key = api.EVP_PKEY_new_raw_private_key(NID_X25519, NULL, secret, DD_CRYPTO_POINT_BYTES);
    bool is_made = key != NULL && api.EVP_PKEY_get_raw_public_key(key, point, &nbytes) == 1;
    api.EVP_PKEY_free(key);
    if (!is_made) {
        api.ERR_clear_error();
    }
    return is_made;
}

bool
crypto_x25519_agree(const uint8_t secret[DD_CRYPTO_POINT_BYTES], const uint8_t point[DD_CRYPTO_POINT_BYTES],
                    uint8_t common[DD_CRYPTO_POINT_BYTES])
{
    size_t nbytes = DD_CRYPTO_POINT_BYTES;
    void *own = api.EVP_PKEY_new_raw_private_key(NID_X25519, NULL, secret, DD_CRYPTO_POINT_BYTES);
    void *other = api.EVP_PKEY_new_raw_public_key(NID_X25519, NULL, point, DD_CRYPTO_POINT_BYTES);
    void *ctx = own != NULL && other != NULL ? api.EVP_PKEY_CTX_new(own, NULL) : NULL;
    bool is_agreed = ctx != NULL && api.EVP_PKEY_derive_init(ctx) == 1 &&
                     api.EVP_PKEY_derive_set_peer(ctx, other) == 1 &&
                     api.EVP_PKEY_derive(ctx, common, &nbytes) == 1;
    api.EVP_PKEY_CTX_free(ctx);
    api.EVP_PKEY_free(other);
    api.EVP_PKEY_free(own);
    if (!is_agreed) {
        api.ERR_clear_error();
    }
    return is_agreed;
}

void *
crypto_cipher_create(dd_cipher cipher, const uint8_t key[DD_CRYPTO_KEY_BYTES])
{
    const void *kind = cipher == DD_CIPHER_AES_256_GCM ? api.EVP_aes_256_gcm() : api.EVP_chacha20_poly1305();
    void *ctx = api.EVP_CIPHER_CTX_new();
    if (ctx != NULL && api.EVP_CipherInit_ex(ctx, kind, NULL, key, NULL, 1) != 1) {
        api.EVP_CIPHER_CTX_free(ctx);
        api.ERR_clear_error();
        return NULL;
    }
    return ctx;
}

void
crypto_cipher_destroy(void *state)
{
    api.EVP_CIPHER_CTX_free(state);
}

/* Encrypt or decrypt `in`, without its tag, which the callers handle. */
static bool
run_cipher(void *ctx, const uint8_t nonce[CRYPTO_NONCE_BYTES], bool is_seal, dd_bytes associated, dd_bytes in,
           uint8_t *out)
{
    int nbytes = 0;
    return in.len <= INT_MAX && api.EVP_CipherInit_ex(ctx, NULL, NULL, NULL, nonce, is_seal) == 1 &&
           (associated.len == 0 ||
            api.EVP_CipherUpdate(ctx, NULL, &nbytes, associated.data, (int)associated.len) == 1) &&
           (in.len == 0 || api.EVP_CipherUpdate(ctx, out, &nbytes, in.data, (int)in.len) == 1);
}

bool
crypto_cipher_seal(void *ctx, const uint8_t nonce[CRYPTO_NONCE_BYTES], dd_bytes associated, dd_bytes plain,
                   uint8_t *sealed)
{
    int nbytes = 0;
    uint8_t *tag = sealed + plain.len;
    bool is_sealed = run_cipher(ctx, nonce, true, associated, plain, sealed) &&
                     api.EVP_CipherFinal_ex(ctx, tag, &nbytes) == 1 &&
                     api.EVP_CIPHER_CTX_ctrl(ctx, CTRL_GET_TAG, (int)DD_CRYPTO_TAG_BYTES, tag) == 1;
    if (!is_sealed) {
        api.ERR_clear_error();
    }
    return is_sealed;
}

bool
crypto_cipher_open(void *ctx, const uint8_t nonce[CRYPTO_NONCE_BYTES], dd_bytes associated, dd_bytes sealed,
                   uint8_t *plain)
{
    int nbytes = 0;
    size_t len = sealed.len - DD_CRYPTO_TAG_BYTES;
    uint8_t tag[DD_CRYPTO_TAG_BYTES];
    uint8_t rest[DD_CRYPTO_TAG_BYTES]; /* stays empty: these ciphers leave no bytes at the end */
    memcpy(tag, sealed.data + len, sizeof tag);
    bool is_opened = run_cipher(ctx, nonce, false, associated, dd_bytes_of(sealed.data, len), plain) &&
                     api.EVP_CIPHER_CTX_ctrl(ctx, CTRL_SET_TAG, (int)sizeof tag, tag) == 1 &&
                     api.EVP_CipherFinal_ex(ctx, rest, &nbytes) == 1;
    if (!is_opened) {
        api.ERR_clear_error();
    }
    return is_opened;
}

dd_status
crypto_library_load(dd_error *err)
{
    static const dd_dylib_spec spec = {.label = "libcrypto",
                                       .sonames = {"libcrypto.so.3", "libcrypto.so.1.1"},
                                       .probe = "EVP_PKEY_new_raw_private_key",
                                       .symbols = symbols,
                                       .nsymbols = sizeof symbols / sizeof symbols[0]};
    dd_dylib lib = {0};
    dd_status status = dd_dylib_load(&spec, NULL, &lib, &api, NULL, err);
    dd_dylib_fini(&lib);
    return status;
}
