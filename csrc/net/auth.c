#include "net/auth.h"

#include "core/system.h"

#include <errno.h>

dd_status
dd_auth_random(void *out, size_t nbytes, dd_error *err)
{
    uint8_t *bytes = out;
    for (size_t done = 0; done < nbytes;) {
        ssize_t rc = dd_sys_getrandom(bytes + done, nbytes - done, 0);
        if (rc < 0 && errno != EINTR) {
            return dd_error_set_errno(err, DD_SYSTEM, errno, "cannot get random bytes");
        }
        done += rc > 0 ? (size_t)rc : 0;
    }
    return DD_OK;
}

void
dd_auth_prove(dd_bytes secret, dd_auth_side side, dd_bytes opening, const uint8_t nonce[DD_AUTH_NONCE_BYTES],
              uint8_t proof[DD_SHA256_BYTES])
{
    static const char *const labels[] = {[DD_AUTH_STORE_CLIENT] = "dldist store client",
                                         [DD_AUTH_STORE_SERVER] = "dldist store server",
                                         [DD_AUTH_LINK_DIALER] = "dldist link dialer",
                                         [DD_AUTH_LINK_LISTENER] = "dldist link listener"};
    const dd_bytes parts[] = {dd_bytes_of_string(labels[side]), opening,
                              dd_bytes_of(nonce, DD_AUTH_NONCE_BYTES)};
    dd_hmac_sha256(secret, parts, sizeof parts / sizeof parts[0], proof);
}

bool
dd_auth_check(dd_bytes secret, dd_auth_side side, dd_bytes opening, const uint8_t nonce[DD_AUTH_NONCE_BYTES],
              dd_bytes proof)
{
    uint8_t expected[DD_SHA256_BYTES];
    dd_auth_prove(secret, side, opening, nonce, expected);
    return dd_bytes_equal_secret(dd_bytes_of(expected, sizeof expected), proof);
}
