#include "net/seal.h"

#define CLEAR_MAX ((size_t)64)

dd_status
dd_seal_choose(dd_cipher *cipher, dd_error *err)
{
    dd_status status = dd_crypto_load(err);
    if (status == DD_OK) {
        *cipher = dd_crypto_choose();
    }
    return status;
}

bool
dd_seal_knows(dd_cipher cipher)
{
    bool is_one = cipher > DD_CIPHER_NONE && cipher < DD_CIPHER_COUNT;
    return is_one && dd_crypto_load(NULL) == DD_OK && dd_crypto_has(cipher);
}

static dd_status
make_seal(dd_noise_keys *keys, dd_seal_use use, dd_seal **seal, dd_error *err)
{
    dd_status status = dd_seal_create(keys, use, seal, err);
    dd_crypto_wipe(keys, sizeof *keys);
    return status;
}

dd_status
dd_seal_begin(dd_noise *noise, dd_cipher cipher, dd_bytes prologue, uint8_t first[DD_NOISE_FIRST_BYTES],
              dd_error *err)
{
    dd_x25519_pair pair;
    dd_status status = dd_x25519_make(&pair, err);
    if (status == DD_OK) {
        status = dd_noise_dial(noise, cipher, &pair, prologue, first, err);
    }
    dd_crypto_wipe(&pair, sizeof pair);
    return status;
}

dd_status
dd_seal_answer(const dd_noise_offer *offer, dd_bytes secret, dd_seal_use use, dd_bytes clear, uint8_t *second,
               dd_seal **seal, dd_error *err)
{
    dd_noise noise;
    dd_noise_keys keys;
    dd_x25519_pair pair;
    dd_status status = dd_x25519_make(&pair, err);
    if (status == DD_OK) {
        status = dd_noise_answer(&noise, offer, &pair, secret, clear, second, &keys, err);
        dd_noise_wipe(&noise);
    }
    dd_crypto_wipe(&pair, sizeof pair);
    return status == DD_OK ? make_seal(&keys, use, seal, err) : status;
}

dd_status
dd_seal_finish(dd_noise *noise, dd_bytes secret, dd_seal_use use, dd_bytes second, dd_bytes clear,
               dd_seal **seal, dd_error *err)
{
    uint8_t received[CLEAR_MAX];
    dd_noise_keys keys;
    if (second.len != DD_NOISE_SECOND_BYTES(clear.len) || clear.len > sizeof received) {
        return dd_error_set(err, DD_PROTOCOL, "handshake reply has a wrong size: got %zu bytes, expected %zu",
                            second.len, DD_NOISE_SECOND_BYTES(clear.len));
    }
    dd_status status = dd_noise_finish(noise, secret, second, received, &keys, err);
    dd_noise_wipe(noise);
    if (status == DD_OK && !dd_bytes_equal(dd_bytes_of(received, clear.len), clear)) {
        dd_crypto_wipe(&keys, sizeof keys);
        status = dd_error_set(err, DD_AUTH, "handshake reply failed authentication (tampered)");
    }
    return status == DD_OK ? make_seal(&keys, use, seal, err) : status;
}
