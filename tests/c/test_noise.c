/* The hand-shake of encrypted connections, beside an independent implementation of the framework (the vectors), and what becomes of it
 * when a word is changed. */
#include "check.h"
#include "net/noise.h"

#include <stdio.h>
#include <string.h>

#define SECRET BYTES("a secret")
#define PROLOGUE BYTES("what was said before")
#define PAYLOAD BYTES("beside")
#define SECOND_BYTES DD_NOISE_SECOND_BYTES(6)

static const dd_cipher ciphers[] = {DD_CIPHER_AES_256_GCM, DD_CIPHER_CHACHA20_POLY1305};
#define FOR_EACH_CIPHER(c) for (const dd_cipher *c = ciphers; c < ciphers + 2; c++)

static void
read_hex(const char *hex, uint8_t *out, size_t nbytes)
{
    for (size_t i = 0; i < nbytes; i++) {
        unsigned byte = 0;
        REQUIRE(sscanf(hex + 2 * i, "%2x", &byte) == 1);
        out[i] = (uint8_t)byte;
    }
}

typedef struct vector {
    dd_cipher cipher;
    const char *first;
    const char *second;
    const char *from_dialler; /* "from the dialler", sealed under the first key of its direction */
    const char *from_listener;
} vector;

/* Made by the Python package "noiseprotocol" 0.3.1, with the secrets 0 to 31 and 32 to 63. */
static const vector vectors[] = {
    {DD_CIPHER_AES_256_GCM,
     "8f40c5adb68f25624ae5b214ea767a6ec94d829d3d7b5e1ad1ba6f3e2138285fc2553f36751ba4af08d84977bc1c8fd9",
     "358072d6365880d1aeea329adf9121383851ed21a28e3b75e965d0d2cd166254c766d42ade7f85f5374c3e43b52d947bdabdc3d"
     "fbe9d",
     "7ecef7c38df3fb152100b67b087312b9ef3ffff776a8f2a1789ad32f9a526dd1",
     "14950cbd227c6277bd210746a7c6196bdff9683dcacfd7f0ecb0f2bcddfa140840"},
    {DD_CIPHER_CHACHA20_POLY1305,
     "8f40c5adb68f25624ae5b214ea767a6ec94d829d3d7b5e1ad1ba6f3e2138285f795b5f6621aeec4117e5f7cb1559e552",
     "358072d6365880d1aeea329adf9121383851ed21a28e3b75e965d0d2cd1662547b60ec4f76bbcd95b00dd30228cf8a19eb497fc"
     "62f7a",
     "9f9545e822fd0d465f7274cfd61f11b8ea2812590295f75a109a7d32b4b3e473",
     "c268e13e227f7204913eefb954434dd858684778bd5e96dd2983ee80cbed6b7a2f"},
};

static void
check_sealed(dd_cipher cipher, const uint8_t key[DD_CRYPTO_KEY_BYTES], const char *text, const char *hex)
{
    uint8_t sealed[64];
    uint8_t expected[64];
    size_t nbytes = strlen(text) + DD_CRYPTO_TAG_BYTES;
    dd_aead *aead = NULL;
    read_hex(hex, expected, nbytes);
    REQUIRE_OK(dd_aead_create(cipher, key, &aead, check_err()));
    CHECK(dd_aead_seal(aead, 0, (dd_bytes){0}, dd_bytes_of_string(text), sealed));
    CHECK_BYTES(dd_bytes_of(sealed, nbytes), dd_bytes_of(expected, nbytes));
    dd_aead_destroy(aead);
}

static void
check_vector(const vector *v)
{
    dd_x25519_pair pairs[2];
    uint8_t first[DD_NOISE_FIRST_BYTES];
    uint8_t second[SECOND_BYTES];
    uint8_t expected[SECOND_BYTES];
    uint8_t payload[6];
    dd_noise sides[2];
    dd_noise_keys keys[2];
    for (size_t i = 0; i < 32; i++) {
        pairs[0].secret[i] = (uint8_t)i;
        pairs[1].secret[i] = (uint8_t)(32 + i);
    }
    read_hex(v->first, pairs[0].point, DD_CRYPTO_POINT_BYTES);
    read_hex(v->second, pairs[1].point, DD_CRYPTO_POINT_BYTES);
    REQUIRE_OK(dd_noise_dial(&sides[0], v->cipher, &pairs[0], PROLOGUE, first, check_err()));
    read_hex(v->first, expected, sizeof first);
    CHECK_BYTES(dd_bytes_of(first, sizeof first), dd_bytes_of(expected, sizeof first));
    dd_noise_offer offer = {v->cipher, PROLOGUE, first};
    REQUIRE_OK(dd_noise_answer(&sides[1], &offer, &pairs[1], SECRET, PAYLOAD, second, &keys[1], check_err()));
    read_hex(v->second, expected, sizeof second);
    CHECK_BYTES(dd_bytes_of(second, sizeof second), dd_bytes_of(expected, sizeof second));
    REQUIRE_OK(dd_noise_finish(&sides[0], SECRET, dd_bytes_of(second, sizeof second), payload, &keys[0],
                               check_err()));
    CHECK_BYTES(dd_bytes_of(payload, sizeof payload), PAYLOAD);
    CHECK(memcmp(keys[0].send, keys[1].receive, sizeof keys[0].send) == 0);
    CHECK(memcmp(keys[1].send, keys[0].receive, sizeof keys[0].send) == 0);
    check_sealed(v->cipher, keys[0].send, "from the dialler", v->from_dialler);
    check_sealed(v->cipher, keys[1].send, "from the listener", v->from_listener);
}

TEST(noise_vectors)
{
    REQUIRE_OK(dd_crypto_load(check_err()));
    check_vector(&vectors[0]);
    check_vector(&vectors[1]);
}

/* A whole hand-shake, in which bit `changed` of all that is said or known is another one to the listener (of message 1 and the prologue) or
 * the dialler (of message 2); -1: none. */
static dd_status
shake(dd_cipher cipher, dd_bytes secret_of_listener, int changed)
{
    uint8_t said[DD_NOISE_FIRST_BYTES + 20 + SECOND_BYTES];
    uint8_t *first = said;
    uint8_t *prologue = said + DD_NOISE_FIRST_BYTES;
    uint8_t *second = prologue + PROLOGUE.len;
    uint8_t payload[6];
    dd_x25519_pair pairs[2];
    dd_noise sides[2];
    dd_noise_keys keys[2];
    memcpy(prologue, PROLOGUE.data, PROLOGUE.len);
    if (!CHECK_OK(dd_x25519_make(&pairs[0], check_err())) ||
        !CHECK_OK(dd_x25519_make(&pairs[1], check_err())) ||
        !CHECK_OK(dd_noise_dial(&sides[0], cipher, &pairs[0], PROLOGUE, first, check_err()))) {
        return DD_INTERNAL;
    }
    bool is_early = changed >= 0 && (size_t)changed < 8 * (size_t)(second - said);
    if (is_early) {
        said[changed / 8] ^= (uint8_t)(1 << (changed % 8));
    }
    dd_noise_offer offer = {cipher, dd_bytes_of(prologue, PROLOGUE.len), first};
    dd_status status = dd_noise_answer(&sides[1], &offer, &pairs[1], secret_of_listener, PAYLOAD, second,
                                       &keys[1], check_err());
    if (status != DD_OK) {
        return status;
    }
    if (changed >= 0 && !is_early) {
        said[changed / 8] ^= (uint8_t)(1 << (changed % 8));
    }
    return dd_noise_finish(&sides[0], SECRET, dd_bytes_of(second, SECOND_BYTES), payload, &keys[0],
                           check_err());
}

TEST(every_bit_of_the_hand_shake_counts)
{
    REQUIRE_OK(dd_crypto_load(check_err()));
    int nbits = 8 * (int)(DD_NOISE_FIRST_BYTES + PROLOGUE.len + SECOND_BYTES);
    FOR_EACH_CIPHER(cipher)
    {
        CHECK_OK(shake(*cipher, SECRET, -1));
        for (int bit = 0; bit < nbits; bit++) {
            /* X25519 takes no notice of the highest bit of a point, but the hash does. */
            CHECK_STATUS(shake(*cipher, SECRET, bit), DD_AUTH);
        }
    }
}

TEST(another_secret_is_noticed_by_the_dialler)
{
    REQUIRE_OK(dd_crypto_load(check_err()));
    FOR_EACH_CIPHER(cipher)
    {
        CHECK_STATUS(shake(*cipher, BYTES("another secret"), -1), DD_AUTH);
        CHECK_CONTAINS(check_message(), "another secret");
        CHECK_STATUS(shake(*cipher, BYTES("a secre"), -1), DD_AUTH);
    }
}

TEST(a_point_that_leads_nowhere_is_refused)
{
    static const uint8_t low_order[][DD_CRYPTO_POINT_BYTES] = {
        {0},
        {1},
        {0xe0, 0xeb, 0x7a, 0x7c, 0x3b, 0x41, 0xb8, 0xae, 0x16, 0x56, 0xe3, 0xfa, 0xf1, 0x9f, 0xc4, 0x6a,
         0xda, 0x09, 0x8d, 0xeb, 0x9c, 0x32, 0xb1, 0xfd, 0x86, 0x62, 0x05, 0x16, 0x5f, 0x49, 0xb8, 0x00},
    };
    dd_x25519_pair pair;
    uint8_t common[DD_CRYPTO_POINT_BYTES];
    REQUIRE_OK(dd_crypto_load(check_err()));
    REQUIRE_OK(dd_x25519_make(&pair, check_err()));
    for (size_t i = 0; i < sizeof low_order / sizeof low_order[0]; i++) {
        CHECK(!dd_x25519_agree(&pair, low_order[i], common));
    }
}

TEST(a_short_second_message_is_refused)
{
    dd_x25519_pair pair;
    dd_noise noise;
    dd_noise_keys keys;
    uint8_t first[DD_NOISE_FIRST_BYTES];
    uint8_t payload[1];
    REQUIRE_OK(dd_crypto_load(check_err()));
    REQUIRE_OK(dd_x25519_make(&pair, check_err()));
    REQUIRE_OK(dd_noise_dial(&noise, DD_CIPHER_AES_256_GCM, &pair, PROLOGUE, first, check_err()));
    CHECK_STATUS(
        dd_noise_finish(&noise, SECRET, dd_bytes_of(first, sizeof first - 1), payload, &keys, check_err()),
        DD_PROTOCOL);
}
