#include "transport/connect_internal.h"

#include "core/little_endian.h"
#include "net/sock.h"

#include <errno.h>
#include <string.h>

/* Magic numbers of hellos and answers. They differ, so that a reflected hello is not an answer. */
#define HELLO_MAGIC "DDlh"
#define ANSWER_MAGIC "DDla"
#define FLAG_SECRET 1u
#define FLAG_SEALED 2u
#define FLAGS_ALL (FLAG_SECRET | FLAG_SEALED)

void
connect_hello_write_head(connect_hello *hello)
{
    uint8_t *bytes = hello->bytes;
    memset(bytes, 0, sizeof hello->bytes);
    memcpy(bytes, HELLO_MAGIC, 4);
    dd_put_number(bytes + 4, DD_ENDPOINT_VERSION, 2);
    dd_put_number(bytes + 6, (hello->has_secret ? FLAG_SECRET : 0) | (hello->is_sealed ? FLAG_SEALED : 0), 2);
    memcpy(bytes + 8, hello->from.bytes, DD_UID_BYTES);
    memcpy(bytes + 24, hello->to.bytes, DD_UID_BYTES);
    dd_put_number(bytes + 40, hello->lane, 4);
    dd_put_number(bytes + 44, hello->cipher, 4);
}

dd_status
connect_hello_write(connect_hello *hello, dd_error *err)
{
    connect_hello_write_head(hello);
    return dd_auth_random(hello->bytes + 48, DD_AUTH_NONCE_BYTES, err);
}

static unsigned
read_version(const uint8_t *bytes)
{
    return (unsigned)dd_get_number(bytes + 4, 2);
}

static unsigned
read_flags(const uint8_t *bytes)
{
    return (unsigned)dd_get_number(bytes + 6, 2);
}

size_t
connect_hello_nbytes(const connect_hello *hello)
{
    bool is_sealed =
        read_version(hello->bytes) == DD_ENDPOINT_VERSION && (read_flags(hello->bytes) & FLAG_SEALED) != 0;
    return is_sealed ? CONNECT_SEALED_HELLO_BYTES : CONNECT_HELLO_BYTES;
}

bool
connect_is_hello_so_far(const uint8_t *bytes, size_t nbytes)
{
    return memcmp(bytes, HELLO_MAGIC, nbytes < 4 ? nbytes : 4) == 0;
}

bool
connect_hello_read(connect_hello *hello)
{
    const uint8_t *bytes = hello->bytes;
    if (memcmp(bytes, HELLO_MAGIC, 4) != 0) {
        return false;
    }
    hello->version = read_version(bytes);
    unsigned flags = read_flags(bytes);
    uint64_t cipher = dd_get_number(bytes + 44, 4);
    hello->has_secret = (flags & FLAG_SECRET) != 0;
    hello->is_sealed = (flags & FLAG_SEALED) != 0;
    hello->cipher = cipher < DD_CIPHER_COUNT ? (dd_cipher)cipher : DD_CIPHER_COUNT;
    memcpy(hello->from.bytes, bytes + 8, DD_UID_BYTES);
    memcpy(hello->to.bytes, bytes + 24, DD_UID_BYTES);
    hello->lane = (uint32_t)dd_get_number(bytes + 40, 4);
    bool is_consistent = hello->is_sealed ? hello->has_secret : cipher == DD_CIPHER_NONE;
    return hello->version != DD_ENDPOINT_VERSION || (flags <= FLAGS_ALL && is_consistent);
}

void
connect_answer_write(const connect_answer *answer, uint8_t bytes[CONNECT_ANSWER_BYTES])
{
    memset(bytes, 0, CONNECT_ANSWER_BYTES);
    memcpy(bytes, ANSWER_MAGIC, 4);
    dd_put_number(bytes + 4, DD_ENDPOINT_VERSION, 2);
    bytes[6] = (uint8_t)answer->result;
    memcpy(bytes + 8, answer->nonce, DD_AUTH_NONCE_BYTES);
    memcpy(bytes + 40, answer->proof, DD_SHA256_BYTES);
}

bool
connect_answer_read(const uint8_t bytes[CONNECT_ANSWER_BYTES], connect_answer *answer)
{
    if (memcmp(bytes, ANSWER_MAGIC, 4) != 0 || bytes[6] >= CONNECT_RESULT_COUNT) {
        return false;
    }
    answer->version = (uint32_t)dd_get_number(bytes + 4, 2);
    answer->result = (connect_result)bytes[6];
    memcpy(answer->nonce, bytes + 8, DD_AUTH_NONCE_BYTES);
    memcpy(answer->proof, bytes + 40, DD_SHA256_BYTES);
    return true;
}

dd_status
connect_explain(connect_result result, connect_role role, unsigned version, dd_error *err)
{
    static const struct {
        dd_status code;
        const char *words[2]; /* text for each connect_role */
    } meanings[CONNECT_RESULT_COUNT] = {
        [CONNECT_OTHER_PROCESS] = {DD_NETWORK,
                                   {"another process uses this address",
                                    "the peer expected another process"}},
        [CONNECT_SECRET_WANTED] = {DD_AUTH,
                                   {"the peer has a secret, and this process has none",
                                    "the peer has no secret"}},
        [CONNECT_NO_SECRET] = {DD_AUTH,
                               {"the peer has no secret, and this process has one",
                                "the peer has a secret, and this process has none"}},
        [CONNECT_DENIED] = {DD_AUTH,
                            {"the secrets differ, or the handshake was tampered with",
                             "the peer has another secret"}},
        [CONNECT_NO_SUCH_LANE] = {DD_PROTOCOL,
                                  {"the peer allows fewer connections",
                                   "the peer opened more connections than allowed"}},
        [CONNECT_ENCRYPTION_WANTED] =
            {DD_AUTH,
             {"the peer encrypts connections, and this process does not; DLDIST_ENCRYPTION must be the same "
              "for all ranks",
              "the peer does not encrypt connections, and this process does; DLDIST_ENCRYPTION must be the "
              "same for all ranks"}},
        [CONNECT_NO_ENCRYPTION] =
            {DD_AUTH,
             {"the peer does not encrypt connections, and this process does; DLDIST_ENCRYPTION must be the "
              "same for all ranks",
              "the peer encrypts connections, and this process does not; DLDIST_ENCRYPTION must be the same "
              "for all ranks"}},
        [CONNECT_NO_CIPHER] =
            {DD_NOT_SUPPORTED,
             {"the peer's host has no library with this process's cipher; install OpenSSL's libcrypto "
              "(libssl3) there",
              "this host has no library with the peer's cipher; install OpenSSL's libcrypto (libssl3)"}},
    };
    if (result == CONNECT_OTHER_VERSION) {
        return dd_error_set(
            err, DD_PROTOCOL,
            "another link protocol version: got %u, expected %u; all ranks need the same version of dldist",
            version, DD_ENDPOINT_VERSION);
    }
    if (result >= CONNECT_RESULT_COUNT || meanings[result].code == DD_OK) {
        return dd_error_set(err, DD_PROTOCOL, "unexpected handshake answer: got %d", (int)result);
    }
    return dd_error_set(err, meanings[result].code, "%s", meanings[result].words[role]);
}

static dd_status
io_error(dd_io io, dd_error *err)
{
    static const char when[] = "during the handshake";
    if (io == DD_IO_FORGED) {
        return dd_error_set(
            err, DD_AUTH,
            "handshake failed authentication: the secrets differ, or the connection was tampered with");
    }
    return io == DD_IO_FAILED ? dd_error_set_errno(err, DD_NETWORK, errno, "the connection failed %s", when)
                              : dd_error_set(err, DD_NETWORK, "the connection was closed %s", when);
}

dd_status
connect_send(int fd, dd_seal *seal, const void *data, size_t nbytes, dd_error *err)
{
    size_t moved = 0;
    dd_io io = dd_sealed_try_send(seal, fd, data, nbytes, &moved);
    if (io == DD_IO_OK && moved == nbytes) {
        return DD_OK;
    }
    if (io == DD_IO_OK || io == DD_IO_AGAIN) {
        return dd_error_set(err, DD_NETWORK, "the connection accepts no data");
    }
    return io_error(io, err);
}

dd_status
connect_receive(int fd, dd_seal *seal, uint8_t *bytes, size_t nbytes, size_t *nreceived, bool *is_whole,
                dd_error *err)
{
    size_t moved = 0;
    dd_io io = dd_sealed_try_recv(seal, fd, bytes + *nreceived, nbytes - *nreceived, &moved);
    if (io != DD_IO_OK && io != DD_IO_AGAIN) {
        return io_error(io, err);
    }
    *nreceived += moved;
    *is_whole = *nreceived == nbytes;
    return DD_OK;
}
