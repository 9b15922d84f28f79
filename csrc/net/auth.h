/* Mutual proof that both ends of a connection know the same secret, without sending it.
 *
 * The client sends a nonce, the server answers with its own and its proof, the client checks that and sends its own
 * proof. A proof is HMAC-SHA256(secret, role || client nonce || server nonce): the role keeps one side's proof from
 * being played back as the other's. It authenticates the opening of a connection; what follows is not encrypted. */
#ifndef DD_NET_AUTH_H
#define DD_NET_AUTH_H

#include "core/bytes.h"
#include "core/status.h"
#include "net/sha256.h"

#include <stdint.h>

#define DD_AUTH_NONCE_BYTES 32

typedef enum dd_auth_role {
    DD_AUTH_CLIENT,
    DD_AUTH_SERVER,
} dd_auth_role;

typedef struct dd_auth_nonces {
    uint8_t client[DD_AUTH_NONCE_BYTES];
    uint8_t server[DD_AUTH_NONCE_BYTES];
} dd_auth_nonces;

/* Random bytes for a nonce or a name. DD_SYSTEM when the kernel has none. */
dd_status dd_auth_random(void *out, size_t nbytes, dd_error *err) DD_MUST_CHECK;

void dd_auth_prove(dd_bytes secret, dd_auth_role role, const dd_auth_nonces *nonces,
                   uint8_t proof[DD_SHA256_BYTES]);
bool dd_auth_check(dd_bytes secret, dd_auth_role role, const dd_auth_nonces *nonces, dd_bytes proof);

#endif
