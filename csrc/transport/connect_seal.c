/* The handshake of an encrypted link: the messages of net/noise.h replace nonces and proofs. */
#include "transport/connect_internal.h"

/* Number of unencrypted bytes before the public key, in a hello and in an answer. */
#define HELLO_HEAD_BYTES ((size_t)48)
#define ANSWER_HEAD_BYTES ((size_t)8)
#define SECOND_BYTES DD_NOISE_SECOND_BYTES(ANSWER_HEAD_BYTES)

_Static_assert(HELLO_HEAD_BYTES + DD_NOISE_FIRST_BYTES == CONNECT_SEALED_HELLO_BYTES, "");
_Static_assert(ANSWER_HEAD_BYTES + SECOND_BYTES <= CONNECT_ANSWER_BYTES, "");

bool
connect_is_sealed(const dd_connector *connector, bool is_unix)
{
    const dd_connect_options *options = &connector->options;
    return dd_seal_is_wanted(options->secret, options->is_encryption_off, is_unix);
}

dd_status
connect_seal_begin(dd_noise *noise, connect_hello *hello, dd_error *err)
{
    dd_status status = dd_seal_choose(&hello->cipher, err);
    if (status != DD_OK) {
        return status;
    }
    connect_hello_write_head(hello);
    return dd_seal_begin(noise, hello->cipher, dd_bytes_of(hello->bytes, HELLO_HEAD_BYTES),
                         hello->bytes + HELLO_HEAD_BYTES, err);
}

dd_status
connect_seal_answer(dd_bytes secret, const connect_hello *hello, uint8_t answer[CONNECT_ANSWER_BYTES],
                    dd_seal **seal, dd_error *err)
{
    dd_noise_offer offer = {hello->cipher, dd_bytes_of(hello->bytes, HELLO_HEAD_BYTES),
                            hello->bytes + HELLO_HEAD_BYTES};
    return dd_seal_answer(&offer, secret, DD_SEAL_BULK, dd_bytes_of(answer, ANSWER_HEAD_BYTES),
                          answer + ANSWER_HEAD_BYTES, seal, err);
}

dd_status
connect_seal_finish(dd_noise *noise, dd_bytes secret, const uint8_t answer[CONNECT_ANSWER_BYTES],
                    dd_seal **seal, dd_error *err)
{
    return dd_seal_finish(noise, secret, DD_SEAL_BULK, dd_bytes_of(answer + ANSWER_HEAD_BYTES, SECOND_BYTES),
                          dd_bytes_of(answer, ANSWER_HEAD_BYTES), seal, err);
}
