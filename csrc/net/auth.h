/* Mutual proof that both ends of a connection know the same secret, without sending the secret. The
 * TCP store and the links between ranks use it for connections that are not encrypted; encrypted
 * connections use the handshake of net/noise.h.
 * 1. The connecting side sends an opening with a fresh nonce: to a store, only the nonce; to a
 *    listener of links, the whole hello.
 * 2. The accepting side answers with its own nonce and its proof.
 * 3. The connecting side checks that proof, and sends its own proof.
 * A proof is HMAC-SHA256(secret, label || opening || nonce of the answer). It includes both nonces,
 * so it is not valid on another connection. Each side of each protocol has its own label, so a
 * proof cannot be sent back as the other side's. The bytes after the opening are neither encrypted
 * nor authenticated. */
#ifndef DD_NET_AUTH_H
#define DD_NET_AUTH_H

#include "core/bytes.h"
#include "core/status.h"
#include "net/sha256.h"

#include <stdint.h>

#define DD_AUTH_NONCE_BYTES 32

/* The side that makes a proof. Each side has its own label. */
typedef enum dd_auth_side {
    DD_AUTH_STORE_CLIENT,
    DD_AUTH_STORE_SERVER,
    DD_AUTH_LINK_DIALER,
    DD_AUTH_LINK_LISTENER,
} dd_auth_side;

/* Generate random bytes, for a nonce or a name. Return DD_SYSTEM if the kernel provides none. */
dd_status dd_auth_random(void *out, size_t nbytes, dd_error *err) DD_MUST_CHECK;

void dd_auth_prove(dd_bytes secret, dd_auth_side side, dd_bytes opening,
                   const uint8_t nonce[DD_AUTH_NONCE_BYTES], uint8_t proof[DD_SHA256_BYTES]);
/* Return true if `proof`, which may have any length, is the proof of `side`. For a proof of the
 * right length, the time does not depend on the bytes of the proof. */
bool dd_auth_check(dd_bytes secret, dd_auth_side side, dd_bytes opening,
                   const uint8_t nonce[DD_AUTH_NONCE_BYTES], dd_bytes proof);

#endif
