/* The hand-shake of encrypted connections: the pattern NNpsk2 of the Noise protocol framework (revision 34), with X25519 and SHA-256.
 *
 * It fits what there is: both sides know one secret, the job's, and nothing else of each other. Each makes a fresh pair of X25519: a secret
 * that is stolen later does not open what was sent before. The secret goes into the keys: each side shows by its first sealed bytes that
 * it has it. One message each way, as for the proofs of net/auth.h. TLS 1.3 would do the same with
 * certificates, sessions and an engine of its own; Noise is a page of hashes around two calls of a library.
 *
 *     dialler -> listener   message 1: point 32, tag 16
 *     listener -> dialler   message 2: point 32, payload, tag 16
 *
 * Both sides put into `prologue` what was said in the clear before; what the listener says in the clear beside its message goes
 * into the payload, too. So nobody on the way can change any of it. */
#ifndef DD_NET_NOISE_H
#define DD_NET_NOISE_H

#include "net/crypto.h"
#include "net/sha256.h"

#define DD_NOISE_FIRST_BYTES ((size_t)(DD_CRYPTO_POINT_BYTES + DD_CRYPTO_TAG_BYTES))
/* Of message 2, with a payload of that size. */
#define DD_NOISE_SECOND_BYTES(payload_nbytes) (DD_NOISE_FIRST_BYTES + (payload_nbytes))

/* One side of a hand-shake. Holds secrets until dd_noise_wipe. */
typedef struct dd_noise {
    dd_cipher cipher;
    dd_x25519_pair pair;
    uint8_t chain[DD_SHA256_BYTES];
    uint8_t hash[DD_SHA256_BYTES];
    uint8_t key[DD_SHA256_BYTES]; /* of the next sealed bytes, under the number 0 */
} dd_noise;

/* What has come from a dialler. */
typedef struct dd_noise_offer {
    dd_cipher cipher;
    dd_bytes prologue;
    const uint8_t *first; /* message 1 */
} dd_noise_offer;

/* The keys of the two directions. */
typedef struct dd_noise_keys {
    dd_cipher cipher;
    uint8_t send[DD_CRYPTO_KEY_BYTES];
    uint8_t receive[DD_CRYPTO_KEY_BYTES];
} dd_noise_keys;

/* Both sides have loaded the library of crypto.h, which has the cipher, and bring a fresh pair. */

/* The dialler: makes message 1. */
dd_status dd_noise_dial(dd_noise *noise, dd_cipher cipher, const dd_x25519_pair *pair, dd_bytes prologue,
                        uint8_t first[DD_NOISE_FIRST_BYTES], dd_error *err) DD_MUST_CHECK;
/* The listener: takes message 1 and makes message 2. DD_AUTH: message 1 or the prologue is not what was sent. */
dd_status dd_noise_answer(dd_noise *noise, const dd_noise_offer *offer, const dd_x25519_pair *pair,
                          dd_bytes job_secret, dd_bytes payload, uint8_t *second, dd_noise_keys *keys,
                          dd_error *err) DD_MUST_CHECK;
/* The dialler: takes message 2. DD_AUTH: the listener has another secret, or somebody has changed something. */
dd_status dd_noise_finish(dd_noise *noise, dd_bytes job_secret, dd_bytes second, uint8_t *payload,
                          dd_noise_keys *keys, dd_error *err) DD_MUST_CHECK;

void dd_noise_wipe(dd_noise *noise);

#endif
