#include "transport/connect_internal.h"

#include "core/little_endian.h"
#include "net/auth.h"
#include "net/sock.h"

#include <errno.h>
#include <poll.h>
#include <string.h>

/* Two words, so that nobody takes his own hello, sent back, for an answer. */
#define HELLO_MAGIC "DDlh"
#define ANSWER_MAGIC "DDla"
#define FLAG_SECRET 1u

dd_status
connect_hello_write(connect_hello *hello, dd_error *err)
{
    uint8_t *bytes = hello->bytes;
    memset(bytes, 0, CONNECT_HELLO_BYTES);
    memcpy(bytes, HELLO_MAGIC, 4);
    dd_put_number(bytes + 4, CONNECT_VERSION, 2);
    dd_put_number(bytes + 6, hello->has_secret ? FLAG_SECRET : 0, 2);
    memcpy(bytes + 8, hello->from.bytes, DD_UID_BYTES);
    memcpy(bytes + 24, hello->to.bytes, DD_UID_BYTES);
    dd_put_number(bytes + 40, hello->lane, 4);
    return dd_auth_random(bytes + 48, CONNECT_NONCE_BYTES, err);
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
    hello->version = (uint32_t)dd_get_number(bytes + 4, 2);
    uint32_t flags = (uint32_t)dd_get_number(bytes + 6, 2);
    hello->has_secret = (flags & FLAG_SECRET) != 0;
    memcpy(hello->from.bytes, bytes + 8, DD_UID_BYTES);
    memcpy(hello->to.bytes, bytes + 24, DD_UID_BYTES);
    hello->lane = (uint32_t)dd_get_number(bytes + 40, 4);
    return hello->version != CONNECT_VERSION || (flags <= FLAG_SECRET && dd_get_number(bytes + 44, 4) == 0);
}

void
connect_answer_write(const connect_answer *answer, uint8_t bytes[CONNECT_ANSWER_BYTES])
{
    memset(bytes, 0, CONNECT_ANSWER_BYTES);
    memcpy(bytes, ANSWER_MAGIC, 4);
    dd_put_number(bytes + 4, CONNECT_VERSION, 2);
    bytes[6] = (uint8_t)answer->verdict;
    memcpy(bytes + 8, answer->nonce, CONNECT_NONCE_BYTES);
    memcpy(bytes + 40, answer->proof, DD_SHA256_BYTES);
}

bool
connect_answer_read(const uint8_t bytes[CONNECT_ANSWER_BYTES], connect_answer *answer)
{
    if (memcmp(bytes, ANSWER_MAGIC, 4) != 0 || bytes[6] >= CONNECT_VERDICT_COUNT) {
        return false;
    }
    answer->version = (uint32_t)dd_get_number(bytes + 4, 2);
    answer->verdict = (connect_verdict)bytes[6];
    memcpy(answer->nonce, bytes + 8, CONNECT_NONCE_BYTES);
    memcpy(answer->proof, bytes + 40, DD_SHA256_BYTES);
    return true;
}

void
connect_prove(dd_bytes secret, connect_role role, const connect_hello *hello,
              const uint8_t nonce[CONNECT_NONCE_BYTES], uint8_t proof[DD_SHA256_BYTES])
{
    /* Other words than the store's, or a proof for one could be had from the other. */
    const dd_bytes parts[] = {
        dd_bytes_of_string(role == CONNECT_DIALER ? "dldist link dialer" : "dldist link listener"),
        dd_bytes_of(hello->bytes, CONNECT_HELLO_BYTES),
        dd_bytes_of(nonce, CONNECT_NONCE_BYTES),
    };
    dd_hmac_sha256(secret, parts, sizeof parts / sizeof parts[0], proof);
}

bool
connect_check_proof(dd_bytes secret, connect_role role, const connect_hello *hello,
                    const uint8_t nonce[CONNECT_NONCE_BYTES], const uint8_t proof[DD_SHA256_BYTES])
{
    uint8_t expected[DD_SHA256_BYTES];
    connect_prove(secret, role, hello, nonce, expected);
    return dd_bytes_equal_secret(dd_bytes_of(expected, sizeof expected), dd_bytes_of(proof, DD_SHA256_BYTES));
}

static dd_status
io_error(dd_io io, dd_error *err)
{
    if (io == DD_IO_CLOSED) {
        return dd_error_set(err, DD_NETWORK, "the connection was closed in the middle of the hand-shake");
    }
    return dd_error_set_errno(err, DD_NETWORK, errno,
                              "the connection failed in the middle of the hand-shake");
}

static dd_status
wait_for(int fd, short events, const dd_wait *wait, dd_error *err)
{
    dd_status status = dd_sock_wait(fd, events, wait, err);
    if (status != DD_OK) {
        dd_error_prepend(err, "in the middle of the hand-shake");
    }
    return status;
}

dd_status
connect_send(int fd, const void *data, size_t nbytes, const dd_wait *wait, dd_error *err)
{
    const uint8_t *bytes = data;
    for (size_t done = 0; done < nbytes;) {
        size_t moved = 0;
        dd_io io = dd_sock_try_send(fd, bytes + done, nbytes - done, &moved);
        dd_status status = DD_OK;
        if (io == DD_IO_OK) {
            done += moved;
        } else {
            status = io == DD_IO_AGAIN ? wait_for(fd, POLLOUT, wait, err) : io_error(io, err);
        }
        if (status != DD_OK) {
            return status;
        }
    }
    return DD_OK;
}

dd_status
connect_recv(int fd, void *data, size_t nbytes, const dd_wait *wait, dd_error *err)
{
    uint8_t *bytes = data;
    for (size_t done = 0; done < nbytes;) {
        size_t moved = 0;
        dd_io io = dd_sock_try_recv(fd, bytes + done, nbytes - done, &moved);
        dd_status status = DD_OK;
        if (io == DD_IO_OK) {
            done += moved;
        } else {
            status = io == DD_IO_AGAIN ? wait_for(fd, POLLIN, wait, err) : io_error(io, err);
        }
        if (status != DD_OK) {
            return status;
        }
    }
    return DD_OK;
}
