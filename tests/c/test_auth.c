#include "check.h"
#include "net/auth.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void
check_hex(const uint8_t digest[DD_SHA256_BYTES], const char *expected)
{
    char hex[2 * DD_SHA256_BYTES + 1];
    for (size_t i = 0; i < DD_SHA256_BYTES; i++) {
        (void)snprintf(hex + 2 * i, 3, "%02x", digest[i]);
    }
    /* Some vectors contain only the first 16 bytes. */
    CHECK_BYTES(dd_bytes_of(hex, strlen(expected)), dd_bytes_of_string(expected));
}

static void
check_sha256(dd_bytes message, const char *expected)
{
    dd_sha256 sha;
    uint8_t digest[DD_SHA256_BYTES];
    dd_sha256_init(&sha);
    dd_sha256_update(&sha, message);
    dd_sha256_final(&sha, digest);
    check_hex(digest, expected);
}

TEST(sha256_matches_the_known_digests)
{
    check_sha256(BYTES(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    check_sha256(BYTES("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    check_sha256(BYTES("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
                 "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
    size_t len = 1000000;
    char *many = malloc(len);
    REQUIRE(many != NULL);
    memset(many, 'a', len);
    check_sha256(dd_bytes_of(many, len), "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
    free(many);
}

TEST(sha256_of_data_in_pieces_equals_sha256_of_the_whole)
{
    uint8_t data[200];
    for (size_t i = 0; i < sizeof data; i++) {
        data[i] = (uint8_t)(i * 13);
    }
    for (size_t len = 0; len < sizeof data; len++) {
        dd_sha256 whole;
        dd_sha256 pieces;
        uint8_t expected[DD_SHA256_BYTES];
        uint8_t actual[DD_SHA256_BYTES];
        dd_sha256_init(&whole);
        dd_sha256_init(&pieces);
        dd_sha256_update(&whole, dd_bytes_of(data, len));
        dd_sha256_update(&pieces, dd_bytes_of(data, len / 3));
        dd_sha256_update(&pieces, dd_bytes_of(NULL, 0));
        dd_sha256_update(&pieces, dd_bytes_of(data + len / 3, len - len / 3));
        dd_sha256_final(&whole, expected);
        dd_sha256_final(&pieces, actual);
        CHECK_BYTES(dd_bytes_of(actual, sizeof actual), dd_bytes_of(expected, sizeof expected));
    }
}

static void
check_hmac(dd_bytes key, dd_bytes message, const char *expected)
{
    uint8_t mac[DD_SHA256_BYTES];
    dd_hmac_sha256(key, &message, 1, mac);
    check_hex(mac, expected);
    const dd_bytes parts[] = {dd_bytes_of(message.data, message.len / 2), dd_bytes_of(NULL, 0),
                              dd_bytes_of(message.data + message.len / 2, message.len - message.len / 2)};
    dd_hmac_sha256(key, parts, 3, mac);
    check_hex(mac, expected);
}

/* The vectors of RFC 4231. */
TEST(hmac_sha256_matches_the_vectors_of_rfc_4231)
{
    uint8_t aa[131];
    uint8_t b0b[20];
    uint8_t dd[50];
    uint8_t cd[50];
    uint8_t counting[25];
    uint8_t c0c[20];
    memset(aa, 0xaa, sizeof aa);
    memset(b0b, 0x0b, sizeof b0b);
    memset(dd, 0xdd, sizeof dd);
    memset(cd, 0xcd, sizeof cd);
    memset(c0c, 0x0c, sizeof c0c);
    for (size_t i = 0; i < sizeof counting; i++) {
        counting[i] = (uint8_t)(i + 1);
    }
    check_hmac(dd_bytes_of(b0b, 20), BYTES("Hi There"),
               "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7");
    check_hmac(BYTES("Jefe"), BYTES("what do ya want for nothing?"),
               "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
    check_hmac(dd_bytes_of(aa, 20), dd_bytes_of(dd, 50),
               "773ea91e36800e46854db8ebd09181a72959098b3ef8c122d9635514ced565fe");
    check_hmac(dd_bytes_of(counting, 25), dd_bytes_of(cd, 50),
               "82558a389a443c0ea4cc819899f2083a85f0faa3e578f8077a2e3ff46729665b");
    check_hmac(dd_bytes_of(c0c, 20), BYTES("Test With Truncation"), "a3b6167473100ee06e0c796c2955552b");
    check_hmac(dd_bytes_of(aa, 131), BYTES("Test Using Larger Than Block-Size Key - Hash Key First"),
               "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
    check_hmac(
        dd_bytes_of(aa, 131),
        BYTES("This is a test using a larger than block-size key and a larger than block-size data. The key "
              "needs to be hashed before being used by the HMAC algorithm."),
        "9b09ffa71b942fcb27635fbcd5b0e944bfdc63644f0713938a7f51535c3a35e2");
}

/* The bytes of proofs are part of the wire protocol and must not change between versions. */
TEST(authentication_proofs_have_the_bytes_of_the_wire_protocol)
{
    static const char *const expected[] = {
        [DD_AUTH_STORE_CLIENT] = "91724d9fd71d67248c5830c164ee1ccf85a6fc7096c5749c4de792a90c528f23",
        [DD_AUTH_STORE_SERVER] = "b906651e503565816ffcf6bcb35da5aabcf24e5fda4c443ef8195a2344fcbf27",
        [DD_AUTH_LINK_DIALER] = "ba6decab440f18e7ccfccd107a45f97ddc58ea76b166e6d4a3ea9b2640ac933b",
        [DD_AUTH_LINK_LISTENER] = "3edbe74b77ccfc57db2638e9583fdd6d1b08fb59649f13c7c33a075b6836d674",
    };
    uint8_t opening[80];
    uint8_t nonce[DD_AUTH_NONCE_BYTES];
    memset(opening, 'o', sizeof opening);
    memset(nonce, 'n', sizeof nonce);
    for (int side = DD_AUTH_STORE_CLIENT; side <= DD_AUTH_LINK_LISTENER; side++) {
        bool is_store = side <= DD_AUTH_STORE_SERVER;
        uint8_t proof[DD_SHA256_BYTES];
        dd_auth_prove(BYTES("secret"), (dd_auth_side)side, dd_bytes_of(opening, is_store ? 32 : 80), nonce,
                      proof);
        check_hex(proof, expected[side]);
    }
}

TEST(an_authentication_proof_depends_on_each_of_its_inputs)
{
    struct {
        uint8_t opening[80];
        uint8_t nonce[DD_AUTH_NONCE_BYTES];
    } words;
    REQUIRE_OK(dd_auth_random(&words, sizeof words, check_err()));
    uint8_t proof[DD_SHA256_BYTES];
    dd_bytes secret = BYTES("secret");
    dd_bytes opening = dd_bytes_of(words.opening, sizeof words.opening);
    dd_auth_prove(secret, DD_AUTH_STORE_CLIENT, opening, words.nonce, proof);
    dd_bytes bytes = dd_bytes_of(proof, sizeof proof);
    for (int side = DD_AUTH_STORE_CLIENT; side <= DD_AUTH_LINK_LISTENER; side++) {
        CHECK(dd_auth_check(secret, (dd_auth_side)side, opening, words.nonce, bytes) ==
              (side == DD_AUTH_STORE_CLIENT));
    }
    CHECK(!dd_auth_check(BYTES("Secret"), DD_AUTH_STORE_CLIENT, opening, words.nonce, bytes));
    CHECK(!dd_auth_check(BYTES("secre"), DD_AUTH_STORE_CLIENT, opening, words.nonce, bytes));
    CHECK(!dd_auth_check(BYTES(""), DD_AUTH_STORE_CLIENT, opening, words.nonce, bytes));
    CHECK(!dd_auth_check(secret, DD_AUTH_STORE_CLIENT, opening, words.nonce,
                         dd_bytes_of(proof, sizeof proof - 1)));
    CHECK(!dd_auth_check(secret, DD_AUTH_STORE_CLIENT, opening, words.nonce, dd_bytes_of(NULL, 0)));
    for (size_t i = 0; i < 8 * sizeof words; i++) {
        uint8_t *byte = (uint8_t *)&words + i / 8;
        *byte ^= (uint8_t)(1 << (i % 8));
        CHECK(!dd_auth_check(secret, DD_AUTH_STORE_CLIENT, opening, words.nonce, bytes));
        *byte ^= (uint8_t)(1 << (i % 8));
    }
    for (size_t i = 0; i < 8 * sizeof proof; i++) {
        proof[i / 8] ^= (uint8_t)(1 << (i % 8));
        CHECK(!dd_auth_check(secret, DD_AUTH_STORE_CLIENT, opening, words.nonce, bytes));
        proof[i / 8] ^= (uint8_t)(1 << (i % 8));
    }
}

TEST(two_requests_for_random_bytes_return_different_bytes)
{
    uint8_t a[32] = {0};
    uint8_t b[32] = {0};
    CHECK_OK(dd_auth_random(a, sizeof a, check_err()));
    CHECK_OK(dd_auth_random(b, sizeof b, check_err()));
    CHECK(memcmp(a, b, sizeof a) != 0);
    CHECK_OK(dd_auth_random(a, 0, check_err()));
}
