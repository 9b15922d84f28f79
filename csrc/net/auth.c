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
dd_auth_prove(dd_bytes secret, dd_auth_role role, const dd_auth_nonces *nonces,
              uint8_t proof[DD_SHA256_BYTES])
{
    const dd_bytes parts[] = {
        dd_bytes_of_string(role == DD_AUTH_CLIENT ? "dldist store client" : "dldist store server"),
        dd_bytes_of(nonces->client, sizeof nonces->client),
        dd_bytes_of(nonces->server, sizeof nonces->server),
    };
    dd_hmac_sha256(secret, parts, sizeof parts / sizeof parts[0], proof);
}

bool
dd_auth_check(dd_bytes secret, dd_auth_role role, const dd_auth_nonces *nonces, dd_bytes proof)
{
    uint8_t expected[DD_SHA256_BYTES];
    dd_auth_prove(secret, role, nonces, expected);
    return dd_bytes_equal_secret(dd_bytes_of(expected, sizeof expected), proof);
}
