/* A sealed stream: the bytes of a socket, encrypted and authenticated, in records.
 *
 * A record has four bytes of length and flags, which are authenticated but not encrypted, and its
 * sealed bytes. Each direction has its own key and numbers its records, so a record that is
 * changed, removed, repeated, moved or sent back ends the stream with DD_IO_FORGED. If the stream
 * is cut between two records, it looks as if the peer had closed it, so a protocol over a sealed
 * stream must mark its own end. After each 2^16 records a direction derives its next key and wipes
 * the old one. All records except full ones are padded, to hide the lengths of keys and values: the
 * size becomes a multiple of 64 bytes or, for larger records, of a 32nd to a 16th of it. */
#ifndef DD_NET_SEAL_H
#define DD_NET_SEAL_H

#include "net/noise.h"
#include "net/sock.h"

#include <sys/uio.h>

typedef struct dd_seal dd_seal;

/* Size in bytes of the payload of a full record, for each use. */
#define DD_SEAL_BULK_RECORD ((size_t)64 << 10)
#define DD_SEAL_SPARSE_RECORD ((size_t)16 << 10)

/* How a sealed stream is used. Both ends must choose the same use. */
typedef enum dd_seal_use {
    DD_SEAL_BULK,   /* for much data: buffers of two records for each direction are kept */
    DD_SEAL_SPARSE, /* for seldom used streams: buffers exist only while data is pending */
} dd_seal_use;

/* Return true if a connection must be sealed. A Unix socket need not: it stays on this host. */
static inline bool
dd_seal_is_wanted(dd_bytes secret, bool is_encryption_off, bool is_unix)
{
    return secret.len > 0 && !is_encryption_off && !is_unix;
}

/* Create a sealed stream with the keys, which the caller may wipe afterwards. */
dd_status dd_seal_create(const dd_noise_keys *keys, dd_seal_use use, dd_seal **seal,
                         dd_error *err) DD_MUST_CHECK;
void dd_seal_destroy(dd_seal *seal); /* NULL is ignored */

/* ---- opening a sealed stream, by the two messages of net/noise.h. The first sealed record of the
 * dialler authenticates the dialler. `clear` is what the listener sends in the clear beside its
 * message, at most 64 bytes; the handshake authenticates these bytes. */

/* Dialler: load the library and choose a cipher. DD_NOT_SUPPORTED names the package to install. */
dd_status dd_seal_choose(dd_cipher *cipher, dd_error *err) DD_MUST_CHECK;
dd_status dd_seal_begin(dd_noise *noise, dd_cipher cipher, dd_bytes prologue,
                        uint8_t first[DD_NOISE_FIRST_BYTES], dd_error *err) DD_MUST_CHECK;
/* Listener: answer; dd_seal_knows(cipher) must be true. DD_AUTH if message 1 was changed. */
bool dd_seal_knows(dd_cipher cipher);
dd_status dd_seal_answer(const dd_noise_offer *offer, dd_bytes secret, dd_seal_use use, dd_bytes clear,
                         uint8_t *second, dd_seal **seal, dd_error *err) DD_MUST_CHECK;
/* Dialler: finish, and wipe `noise`. DD_AUTH if the secrets differ or message 2 was changed. */
dd_status dd_seal_finish(dd_noise *noise, dd_bytes secret, dd_seal_use use, dd_bytes second, dd_bytes clear,
                         dd_seal **seal, dd_error *err) DD_MUST_CHECK;

/* ---- data */

/* Seal as many bytes of `parts` as fit, and send them. On DD_IO_OK the kernel has *moved bytes. On
 * DD_IO_AGAIN some bytes are pending: the parts of the next call must begin with the same bytes. */
dd_io dd_seal_try_send(dd_seal *seal, int fd, const struct iovec *parts, int nparts, size_t *moved);
/* Receive up to `nbytes` bytes, which must be at least 1. If it is at least four full records, no
 * input is left for dd_seal_has_input. DD_IO_FORGED if the received bytes fail authentication. */
dd_io dd_seal_try_recv(dd_seal *seal, int fd, void *data, size_t nbytes, size_t *moved);
/* Set the error for DD_IO_FORGED. It names both ends, because either or none may be to blame. */
dd_status dd_seal_error_forged(int fd, dd_status code, dd_error *err);
/* Return true if dd_seal_try_recv can return bytes without reading from the socket. */
bool dd_seal_has_input(const dd_seal *seal);

/* Send or receive one part. A NULL `seal` means that the connection is not encrypted. */
dd_io dd_sealed_try_send(dd_seal *seal, int fd, const void *data, size_t nbytes, size_t *moved);
dd_io dd_sealed_try_recv(dd_seal *seal, int fd, void *data, size_t nbytes, size_t *moved);

#endif
