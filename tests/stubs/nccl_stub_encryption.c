/* ncclSetEncryption: nothing is encrypted, but ranks with different keys cannot create a
 * communicator, as with the real library's handshakes. */
#include "nccl_stub.h"

#include <string.h>

#define PSK_MIN 32

/* Protected by nccl_lock. */
static struct {
    uint64_t key; /* 0: none */
    bool is_settled;
} encryption;

static uint64_t
hash(const char *text)
{
    uint64_t value = 0xcbf29ce484222325ull;
    for (; *text != '\0'; text++) {
        value = (value ^ (unsigned char)*text) * 0x100000001b3ull;
    }
    return value;
}

dd_nccl_result
nccl_set_encryption(const dd_nccl_abi_encryption *config)
{
    bool is_good = config != NULL && config->size == sizeof *config && config->magic == DD_NCCL_MAGIC &&
                   (config->mode == DD_NCCL_ENCRYPTION_MODE_NONE ||
                    (config->psk != NULL && strlen(config->psk) >= PSK_MIN));
    if (!is_good) {
        return nccl_fail(DD_NCCL_INVALID_ARGUMENT, "ncclSetEncryption: invalid configuration");
    }
    pthread_mutex_lock(&nccl_lock);
    bool is_late = encryption.is_settled;
    if (!is_late) {
        encryption.key = config->mode == DD_NCCL_ENCRYPTION_MODE_NONE ? 0 : hash(config->psk);
    }
    pthread_mutex_unlock(&nccl_lock);
    return is_late ? nccl_fail(DD_NCCL_INVALID_USAGE,
                               "ncclSetEncryption: after the first unique id or communicator")
                   : DD_NCCL_SUCCESS;
}

uint64_t
nccl_settle_encryption(void)
{
    pthread_mutex_lock(&nccl_lock);
    encryption.is_settled = true;
    uint64_t key = encryption.key;
    pthread_mutex_unlock(&nccl_lock);
    return key;
}

void
nccl_forget_encryption(void)
{
    pthread_mutex_lock(&nccl_lock);
    encryption.key = 0;
    encryption.is_settled = false;
    pthread_mutex_unlock(&nccl_lock);
}

unsigned long long
dd_stub_encryption(void)
{
    pthread_mutex_lock(&nccl_lock);
    uint64_t key = encryption.key;
    pthread_mutex_unlock(&nccl_lock);
    return key;
}
