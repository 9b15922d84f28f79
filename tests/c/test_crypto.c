#include "check.h"
#include "net/crypto_library.h"

#include <string.h>

/* The vectors of RFC 7748, 6.1. */
TEST(x25519_matches_the_vectors_of_rfc_7748)
{
    static const uint8_t alice[] = {0x77, 0x07, 0x6d, 0x0a, 0x73, 0x18, 0xa5, 0x7d, 0x3c, 0x16, 0xc1,
                                    0x72, 0x51, 0xb2, 0x66, 0x45, 0xdf, 0x4c, 0x2f, 0x87, 0xeb, 0xc0,
                                    0x99, 0x2a, 0xb1, 0x77, 0xfb, 0xa5, 0x1d, 0xb9, 0x2c, 0x2a};
    static const uint8_t bob[] = {0x5d, 0xab, 0x08, 0x7e, 0x62, 0x4a, 0x8a, 0x4b, 0x79, 0xe1, 0x7f,
                                  0x8b, 0x83, 0x80, 0x0e, 0xe6, 0x6f, 0x3b, 0xb1, 0x29, 0x26, 0x18,
                                  0xb6, 0xfd, 0x1c, 0x2f, 0x8b, 0x27, 0xff, 0x88, 0xe0, 0xeb};
    static const uint8_t common[] = {0x4a, 0x5d, 0x9d, 0x5b, 0xa4, 0xce, 0x2d, 0xe1, 0x72, 0x8e, 0x3b,
                                     0xf4, 0x80, 0x35, 0x0f, 0x25, 0xe0, 0x7e, 0x21, 0xc9, 0x47, 0xd1,
                                     0x9e, 0x33, 0x76, 0xf0, 0x9b, 0x3c, 0x1e, 0x16, 0x17, 0x42};
    uint8_t points[2][DD_CRYPTO_POINT_BYTES];
    uint8_t found[DD_CRYPTO_POINT_BYTES];
    REQUIRE_OK(dd_crypto_load(check_err()));
    CHECK(crypto_x25519_point(alice, points[0]) && crypto_x25519_point(bob, points[1]));
    CHECK(crypto_x25519_agree(alice, points[1], found) && memcmp(found, common, sizeof common) == 0);
    CHECK(crypto_x25519_agree(bob, points[0], found) && memcmp(found, common, sizeof common) == 0);
}

/* Check that sealed bytes can be opened with the same key, but not after a bit has changed. */
static void
check_sealing(dd_cipher cipher, size_t nbytes)
{
    static uint8_t plain[1000];
    uint8_t sealed[1000 + DD_CRYPTO_TAG_BYTES];
    uint8_t opened[1000];
    const uint8_t key[DD_CRYPTO_KEY_BYTES] = {1, 2, 3};
    const uint8_t nonce[CRYPTO_NONCE_BYTES] = {4, 5};
    dd_bytes all = dd_bytes_of(sealed, nbytes + DD_CRYPTO_TAG_BYTES);
    for (size_t i = 0; i < nbytes; i++) {
        plain[i] = (uint8_t)(i * 7);
    }
    void *here = crypto_cipher_create(cipher, key);
    void *there = crypto_cipher_create(cipher, key);
    REQUIRE(here != NULL && there != NULL);
    CHECK(crypto_cipher_seal(here, nonce, BYTES("beside"), dd_bytes_of(plain, nbytes), sealed));
    CHECK(crypto_cipher_open(there, nonce, BYTES("beside"), all, opened));
    CHECK_BYTES(dd_bytes_of(opened, nbytes), dd_bytes_of(plain, nbytes));
    CHECK(!crypto_cipher_open(there, nonce, BYTES("Beside"), all, opened));
    sealed[nbytes / 2] ^= 1;
    CHECK(!crypto_cipher_open(there, nonce, BYTES("beside"), all, opened));
    sealed[nbytes / 2] ^= 1;
    CHECK(crypto_cipher_open(there, nonce, BYTES("beside"), all, sealed)); /* in place */
    CHECK_BYTES(dd_bytes_of(sealed, nbytes), dd_bytes_of(plain, nbytes));
    crypto_cipher_destroy(here);
    crypto_cipher_destroy(there);
}

TEST(encrypted_bytes_are_decrypted_unless_a_bit_has_changed)
{
    static const size_t sizes[] = {0, 1, 15, 16, 17, 64, 999, 1000};
    REQUIRE_OK(dd_crypto_load(check_err()));
    for (size_t k = 0; k < sizeof sizes / sizeof sizes[0]; k++) {
        check_sealing(DD_CIPHER_AES_256_GCM, sizes[k]);
        check_sealing(DD_CIPHER_CHACHA20_POLY1305, sizes[k]);
    }
}

TEST(the_ciphers_aes_256_gcm_and_chacha20_poly1305_are_available)
{
    REQUIRE_OK(dd_crypto_load(check_err()));
    CHECK(dd_crypto_has(DD_CIPHER_AES_256_GCM) && dd_crypto_has(DD_CIPHER_CHACHA20_POLY1305));
    CHECK(!dd_crypto_has(DD_CIPHER_NONE) && !dd_crypto_has(DD_CIPHER_COUNT));
    CHECK(dd_crypto_has(dd_crypto_choose()));
    CHECK_CONTAINS(crypto_library_name(), "OpenSSL");
    CHECK_CONTAINS(dd_cipher_name(DD_CIPHER_AES_256_GCM), "AES-256-GCM");
}
