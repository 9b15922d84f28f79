#include "kernels/digest.h"

#include <string.h>

__extension__ typedef unsigned __int128 digest_sum;

#define PAIR (2 * sizeof(uint64_t))

static uint64_t
load(const uint8_t *bytes)
{
    uint64_t word;
    memcpy(&word, bytes, sizeof word);
    return word;
}

static digest_sum
multiply(const uint8_t *data, const uint8_t *keys)
{
    uint64_t a = load(data) + load(keys);
    uint64_t b = load(data + sizeof a) + load(keys + sizeof a);
    return (digest_sum)a * b;
}

void
dd_digest(const void *data, size_t nbytes, const void *keys, uint8_t digest[DD_DIGEST_NBYTES])
{
    const uint8_t *bytes = data;
    const uint8_t *key = keys;
    size_t nfull = nbytes - nbytes % PAIR;
    digest_sum sum = 0;
    for (size_t i = 0; i < nfull; i += PAIR) {
        sum += multiply(bytes + i, key + i);
    }
    if (nfull < nbytes) {
        uint8_t last[PAIR] = {0};
        memcpy(last, bytes + nfull, nbytes - nfull);
        sum += multiply(last, key + nfull);
    }
    memcpy(digest, &sum, DD_DIGEST_NBYTES);
}
