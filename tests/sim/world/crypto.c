/* A stub of libcrypto for simulated ranks: as small and fast as possible, but it detects every
 * change to the data. The simulator can count and refuse its memory. It keeps nothing secret. */
#include "core/mem.h"
#include "net/crypto_library.h"

#include <string.h>

#define PRIME ((UINT64_C(1) << 61) - 1)
#define GENERATOR UINT64_C(37)

typedef struct sim_cipher {
    uint64_t key;
} sim_cipher;

static uint64_t
mix(uint64_t sum, uint64_t word)
{
    uint64_t z = (sum ^ word) * UINT64_C(0xbf58476d1ce4e5b9) + UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 29) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 32;
}

static uint64_t
mix_bytes(uint64_t sum, const uint8_t *data, size_t len)
{
    sum = mix(sum, len);
    for (size_t at = 0; at < len; at += sizeof(uint64_t)) {
        uint64_t word = 0;
        memcpy(&word, data + at, len - at < sizeof word ? len - at : sizeof word);
        sum = mix(sum, word);
    }
    return sum;
}

const char *
crypto_library_name(void)
{
    return "no library";
}

/* ---- the shared secret: a Diffie-Hellman exchange with numbers that are easy to break */

static uint64_t
power(uint64_t base, uint64_t exponent)
{
    unsigned __int128 square = base % PRIME;
    unsigned __int128 product = 1;
    for (; exponent > 0; exponent >>= 1) {
        product = (exponent & 1) != 0 ? product * square % PRIME : product;
        square = square * square % PRIME;
    }
    return (uint64_t)product;
}

static void
write_power(uint64_t base, const uint8_t secret[DD_CRYPTO_POINT_BYTES], uint8_t point[DD_CRYPTO_POINT_BYTES])
{
    uint64_t exponent;
    memcpy(&exponent, secret, sizeof exponent);
    uint64_t value = power(base, exponent % (PRIME - 1));
    memset(point, 0, DD_CRYPTO_POINT_BYTES);
    memcpy(point, &value, sizeof value);
}

bool
crypto_x25519_point(const uint8_t secret[DD_CRYPTO_POINT_BYTES], uint8_t point[DD_CRYPTO_POINT_BYTES])
{
    write_power(GENERATOR, secret, point);
    return true;
}

bool
crypto_x25519_agree(const uint8_t secret[DD_CRYPTO_POINT_BYTES], const uint8_t point[DD_CRYPTO_POINT_BYTES],
                    uint8_t common[DD_CRYPTO_POINT_BYTES])
{
    uint64_t base;
    memcpy(&base, point, sizeof base);
    write_power(base, secret, common);
    return true;
}

/* ---- sealing */

void *
crypto_cipher_create(dd_cipher cipher, const uint8_t key[DD_CRYPTO_KEY_BYTES])
{
    sim_cipher *self = dd_mem_alloc(sizeof *self);
    if (self != NULL) {
        self->key = mix_bytes((uint64_t)cipher, key, DD_CRYPTO_KEY_BYTES);
    }
    return self;
}

void
crypto_cipher_destroy(void *state)
{
    dd_mem_free(state);
}

static void
hide(uint64_t seed, const uint8_t *in, size_t len, uint8_t *out)
{
    for (size_t at = 0; at < len; at += sizeof(uint64_t)) {
        uint64_t word = 0;
        size_t nbytes = len - at < sizeof word ? len - at : sizeof word;
        memcpy(&word, in + at, nbytes);
        word ^= mix(seed, at);
        memcpy(out + at, &word, nbytes);
    }
}

static void
write_tag(uint64_t seed, dd_bytes beside, const uint8_t *sealed, size_t len, uint8_t tag[DD_CRYPTO_TAG_BYTES])
{
    uint64_t words[2];
    words[0] = mix_bytes(mix_bytes(seed, beside.data, beside.len), sealed, len);
    words[1] = mix(words[0], seed);
    memcpy(tag, words, sizeof words);
}

bool
crypto_cipher_seal(void *state, const uint8_t nonce[CRYPTO_NONCE_BYTES], dd_bytes beside, dd_bytes plain,
                   uint8_t *sealed)
{
    const sim_cipher *self = state;
    uint64_t seed = mix_bytes(self->key, nonce, CRYPTO_NONCE_BYTES);
    hide(seed, plain.data, plain.len, sealed);
    write_tag(seed, beside, sealed, plain.len, sealed + plain.len);
    return true;
}

bool
crypto_cipher_open(void *state, const uint8_t nonce[CRYPTO_NONCE_BYTES], dd_bytes beside, dd_bytes sealed,
                   uint8_t *plain)
{
    const sim_cipher *self = state;
    uint64_t seed = mix_bytes(self->key, nonce, CRYPTO_NONCE_BYTES);
    size_t len = sealed.len - DD_CRYPTO_TAG_BYTES;
    uint8_t tag[DD_CRYPTO_TAG_BYTES];
    write_tag(seed, beside, sealed.data, len, tag);
    bool is_genuine = memcmp(tag, sealed.data + len, sizeof tag) == 0;
    hide(seed, sealed.data, len, plain);
    return is_genuine;
}

dd_status
crypto_library_load(dd_error *err)
{
    (void)err;
    return DD_OK;
}
