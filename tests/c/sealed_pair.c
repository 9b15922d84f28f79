#include "sealed_pair.h"

#include "check.h"

#include <string.h>

bool
sealed_pair_make(dd_cipher cipher, dd_seal_use use, dd_seal *seals[2])
{
    dd_noise_keys keys[2] = {{.cipher = cipher}, {.cipher = cipher}};
    memset(keys[0].send, 1, sizeof keys[0].send);
    memset(keys[0].receive, 2, sizeof keys[0].receive);
    memcpy(keys[1].send, keys[0].receive, sizeof keys[1].send);
    memcpy(keys[1].receive, keys[0].send, sizeof keys[1].receive);
    return CHECK_OK(dd_crypto_load(check_err())) &&
           CHECK_OK(dd_seal_create(&keys[0], use, &seals[0], check_err())) &&
           CHECK_OK(dd_seal_create(&keys[1], use, &seals[1], check_err()));
}
