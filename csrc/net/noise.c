/* Functions are named as in section 5 of the Noise specification, if it has a name for them. */
#include "net/noise.h"

#include <string.h>

#define OUTPUTS_MAX 3

static void
hash_two(dd_bytes a, dd_bytes b, uint8_t digest[DD_SHA256_BYTES])
{
    dd_sha256 sha;
    dd_sha256_init(&sha);
    dd_sha256_update(&sha, a);
    dd_sha256_update(&sha, b);
    dd_sha256_final(&sha, digest);
}

static void
mix_hash(dd_noise *self, dd_bytes bytes)
{
    hash_two(dd_bytes_of(self->hash, sizeof self->hash), bytes, self->hash);
}

/* HKDF as in the Noise specification, with `count` outputs. */
static void
derive(const uint8_t chain[DD_SHA256_BYTES], dd_bytes input, size_t count,
       uint8_t outputs[OUTPUTS_MAX][DD_SHA256_BYTES])
{
    uint8_t extracted[DD_SHA256_BYTES];
    dd_hmac_sha256(dd_bytes_of(chain, DD_SHA256_BYTES), &input, 1, extracted);
    for (size_t i = 0; i < count; i++) {
        const uint8_t number = (uint8_t)(i + 1);
        const dd_bytes parts[] = {dd_bytes_of(i > 0 ? outputs[i - 1] : NULL, i > 0 ? DD_SHA256_BYTES : 0),
                                  dd_bytes_of(&number, 1)};
        dd_hmac_sha256(dd_bytes_of(extracted, sizeof extracted), parts, 2, outputs[i]);
    }
    dd_crypto_wipe(extracted, sizeof extracted);
}

static void
mix_key(dd_noise *self, dd_bytes input)
{
    uint8_t outputs[OUTPUTS_MAX][DD_SHA256_BYTES];
    derive(self->chain, input, 2, outputs);
    memcpy(self->chain, outputs[0], sizeof self->chain);
    memcpy(self->key, outputs[1], sizeof self->key);
    dd_crypto_wipe(outputs, sizeof outputs);
}

/* MixKeyAndHash of Noise, for 32 bytes that are derived from the job's secret (of any length). */
static void
mix_job_secret(dd_noise *self, dd_bytes job_secret)
{
    uint8_t psk[DD_SHA256_BYTES];
    uint8_t outputs[OUTPUTS_MAX][DD_SHA256_BYTES];
    dd_bytes purpose = dd_bytes_of_string("dldist: the key of encrypted connections");
    dd_hmac_sha256(job_secret, &purpose, 1, psk);
    derive(self->chain, dd_bytes_of(psk, sizeof psk), 3, outputs);
    memcpy(self->chain, outputs[0], sizeof self->chain);
    mix_hash(self, dd_bytes_of(outputs[1], sizeof outputs[1]));
    memcpy(self->key, outputs[2], sizeof self->key);
    dd_crypto_wipe(psk, sizeof psk);
    dd_crypto_wipe(outputs, sizeof outputs);
}

static void
mix_point(dd_noise *self, const uint8_t point[DD_CRYPTO_POINT_BYTES])
{
    dd_bytes bytes = dd_bytes_of(point, DD_CRYPTO_POINT_BYTES);
    mix_hash(self, bytes);
    mix_key(self, bytes); /* required in patterns with a PSK, such as NNpsk2 */
}

/* EncryptAndHash of Noise. The nonce is always 0, because each handshake key seals only once. */
static dd_status
encrypt_and_hash(dd_noise *self, dd_bytes plain, uint8_t *sealed, dd_error *err)
{
    dd_aead *aead = NULL;
    dd_status status = dd_aead_create(self->cipher, self->key, &aead, err);
    if (status != DD_OK) {
        return status;
    }
    bool is_sealed = dd_aead_seal(aead, 0, dd_bytes_of(self->hash, sizeof self->hash), plain, sealed);
    dd_aead_destroy(aead);
    if (!is_sealed) {
        return dd_error_set(err, DD_OUT_OF_MEMORY, "libcrypto cannot encrypt");
    }
    mix_hash(self, dd_bytes_of(sealed, plain.len + DD_CRYPTO_TAG_BYTES));
    return DD_OK;
}

static dd_status
decrypt_and_hash(dd_noise *self, dd_bytes sealed, uint8_t *plain, dd_error *err)
{
    dd_aead *aead = NULL;
    dd_status status = dd_aead_create(self->cipher, self->key, &aead, err);
    if (status != DD_OK) {
        return status;
    }
    bool is_opened = dd_aead_open(aead, 0, dd_bytes_of(self->hash, sizeof self->hash), sealed, plain);
    dd_aead_destroy(aead);
    if (!is_opened) {
        return dd_error_set(
            err, DD_AUTH,
            "handshake failed authentication: the secrets differ, or the connection was tampered with");
    }
    mix_hash(self, sealed);
    return DD_OK;
}

static void
noise_begin(dd_noise *self, dd_cipher cipher, const dd_x25519_pair *pair, dd_bytes prologue)
{
    const char *name = cipher == DD_CIPHER_AES_256_GCM ? "Noise_NNpsk2_25519_AESGCM_SHA256"
                                                       : "Noise_NNpsk2_25519_ChaChaPoly_SHA256";
    *self = (dd_noise){.cipher = cipher, .pair = *pair};
    if (strlen(name) <= sizeof self->hash) {
        memcpy(self->hash, name, strlen(name));
    } else {
        hash_two(dd_bytes_of_string(name), (dd_bytes){0}, self->hash);
    }
    memcpy(self->chain, self->hash, sizeof self->chain);
    mix_hash(self, prologue);
}

static dd_status
mix_agreement(dd_noise *self, const uint8_t point[DD_CRYPTO_POINT_BYTES], dd_error *err)
{
    uint8_t common[DD_CRYPTO_POINT_BYTES];
    if (!dd_x25519_agree(&self->pair, point, common)) {
        return dd_error_set(err, DD_AUTH, "handshake failed authentication: invalid public key");
    }
    mix_key(self, dd_bytes_of(common, sizeof common));
    dd_crypto_wipe(common, sizeof common);
    return DD_OK;
}

static void
split(dd_noise *self, bool is_dialler, dd_noise_keys *keys)
{
    uint8_t outputs[OUTPUTS_MAX][DD_SHA256_BYTES];
    derive(self->chain, (dd_bytes){0}, 2, outputs);
    keys->cipher = self->cipher;
    memcpy(keys->send, outputs[is_dialler ? 0 : 1], sizeof keys->send);
    memcpy(keys->receive, outputs[is_dialler ? 1 : 0], sizeof keys->receive);
    dd_crypto_wipe(outputs, sizeof outputs);
    dd_noise_wipe(self);
}

dd_status
dd_noise_dial(dd_noise *self, dd_cipher cipher, const dd_x25519_pair *pair, dd_bytes prologue,
              uint8_t first[DD_NOISE_FIRST_BYTES], dd_error *err)
{
    noise_begin(self, cipher, pair, prologue);
    mix_point(self, pair->point);
    memcpy(first, pair->point, sizeof pair->point);
    return encrypt_and_hash(self, (dd_bytes){0}, first + sizeof pair->point, err);
}

dd_status
dd_noise_answer(dd_noise *self, const dd_noise_offer *offer, const dd_x25519_pair *pair, dd_bytes job_secret,
                dd_bytes payload, uint8_t *second, dd_noise_keys *keys, dd_error *err)
{
    uint8_t nothing[1];
    const uint8_t *tag = offer->first + DD_CRYPTO_POINT_BYTES;
    noise_begin(self, offer->cipher, pair, offer->prologue);
    mix_point(self, offer->first);
    dd_status status = decrypt_and_hash(self, dd_bytes_of(tag, DD_CRYPTO_TAG_BYTES), nothing, err);
    if (status == DD_OK) {
        mix_point(self, pair->point);
        memcpy(second, pair->point, sizeof pair->point);
        status = mix_agreement(self, offer->first, err);
    }
    if (status == DD_OK) {
        mix_job_secret(self, job_secret);
        status = encrypt_and_hash(self, payload, second + sizeof pair->point, err);
    }
    if (status == DD_OK) {
        split(self, false, keys);
    }
    return status;
}

dd_status
dd_noise_finish(dd_noise *self, dd_bytes job_secret, dd_bytes second, uint8_t *payload, dd_noise_keys *keys,
                dd_error *err)
{
    if (second.len < DD_NOISE_SECOND_BYTES(0)) {
        return dd_error_set(err, DD_PROTOCOL,
                            "handshake reply too short: got %zu bytes, expected at least %zu", second.len,
                            DD_NOISE_SECOND_BYTES(0));
    }
    mix_point(self, second.data);
    dd_status status = mix_agreement(self, second.data, err);
    if (status == DD_OK) {
        mix_job_secret(self, job_secret);
        status = decrypt_and_hash(
            self, dd_bytes_of(second.data + DD_CRYPTO_POINT_BYTES, second.len - DD_CRYPTO_POINT_BYTES),
            payload, err);
    }
    if (status == DD_OK) {
        split(self, true, keys);
    }
    return status;
}

void
dd_noise_wipe(dd_noise *self)
{
    dd_crypto_wipe(self, sizeof *self);
}
