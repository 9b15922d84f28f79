/* The handshake of encrypted connections: the pattern NNpsk2 of the Noise protocol framework
 * (revision 34), with X25519 and SHA-256.
 *
 * Both sides know only one common secret, the job's. Each side generates a fresh X25519 key pair,
 * so a secret that is stolen later does not decrypt earlier traffic. The secret is mixed into the
 * keys, so the first sealed bytes of each side prove that it knows the secret. TLS 1.3 would do the
 * same with certificates, sessions and an engine of its own. There is one message each way:
 *
 *     dialler -> listener   message 1: point 32, tag 16
 *     listener -> dialler   message 2: point 32, payload, tag 16
 *
 * `prologue` is everything that was sent in the clear before the handshake. The payload repeats the
 * bytes that the listener sends in the clear beside its message. So an attacker on the path can
 * change none of these bytes. */
#ifndef DD_NET_NOISE_H
#define DD_NET_NOISE_H

#include "net/crypto.h"
#include "net/sha256.h"

#define DD_NOISE_FIRST_BYTES ((size_t)(DD_CRYPTO_POINT_BYTES + DD_CRYPTO_TAG_BYTES))
/* Size in bytes of message 2 with a payload of payload_nbytes bytes. */
#define DD_NOISE_SECOND_BYTES(payload_nbytes) (DD_NOISE_FIRST_BYTES + (payload_nbytes))

/* The state of one side of a handshake. It contains secrets, so dd_noise_wipe must be called. */
typedef struct dd_noise {
    dd_cipher cipher;
    dd_x25519_pair pair;
    uint8_t chain[DD_SHA256_BYTES];
    uint8_t hash[DD_SHA256_BYTES];
    uint8_t key[DD_SHA256_BYTES]; /* key for the next sealed bytes; used once, with number 0 */
} dd_noise;

/* The dialler's message and choices, as the listener received them. */
typedef struct dd_noise_offer {
    dd_cipher cipher;
    dd_bytes prologue;
    const uint8_t *first; /* message 1 of the handshake */
} dd_noise_offer;

/* The keys of an encrypted connection, one for each direction. */
typedef struct dd_noise_keys {
    dd_cipher cipher;
    uint8_t send[DD_CRYPTO_KEY_BYTES];
    uint8_t receive[DD_CRYPTO_KEY_BYTES];
} dd_noise_keys;

/* Dialler: write message 1. Both sides must first load the library, and pass a fresh key pair. */
dd_status dd_noise_dial(dd_noise *noise, dd_cipher cipher, const dd_x25519_pair *pair, dd_bytes prologue,
                        uint8_t first[DD_NOISE_FIRST_BYTES], dd_error *err) DD_MUST_CHECK;
/* Listener: read message 1, write message 2. DD_AUTH if message 1 or `prologue` was changed. */
dd_status dd_noise_answer(dd_noise *noise, const dd_noise_offer *offer, const dd_x25519_pair *pair,
                          dd_bytes job_secret, dd_bytes payload, uint8_t *second, dd_noise_keys *keys,
                          dd_error *err) DD_MUST_CHECK;
/* Dialler: read message 2. DD_AUTH if secrets differ, or a message or prologue was changed. */
dd_status dd_noise_finish(dd_noise *noise, dd_bytes job_secret, dd_bytes second, uint8_t *payload,
                          dd_noise_keys *keys, dd_error *err) DD_MUST_CHECK;

void dd_noise_wipe(dd_noise *noise);

#endif
