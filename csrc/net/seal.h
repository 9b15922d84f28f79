/* A sealed stream: what goes over a socket, encrypted and protected, in records.
 *
 * A record is four bytes of length and flags, which are protected and not hidden, and as many sealed bytes. Each direction has a key of its own and
 * counts its records, so one that is changed, left out, repeated, put elsewhere or sent back is noticed: the stream ends there, as
 * FORGED. A stream that is cut between two records looks like a peer that has closed its connection; what is sent over it has to tell
 * where it ends. After each 2^16 records a direction goes on with the next key, made from the last, which is forgotten.
 *
 * A full record is not padded. All others are, so that their length does not tell that of a key or a value: to a multiple of 64 bytes, or
 * of a 32nd to a 16th of their size. */
#ifndef DD_NET_SEAL_H
#define DD_NET_SEAL_H

#include "net/noise.h"
#include "net/sock.h"

#include <sys/uio.h>

typedef struct dd_seal dd_seal;

/* Bytes that a full record holds. */
#define DD_SEAL_BULK_RECORD ((size_t)64 << 10)
#define DD_SEAL_SPARSE_RECORD ((size_t)16 << 10)

/* Both ends use it alike. */
typedef enum dd_seal_use {
    DD_SEAL_BULK, /* much is sent: keeps its buffers, of two records each way */
    DD_SEAL_SPARSE, /* one of many connections that are seldom busy: has buffers only while something is under way */
} dd_seal_use;

/* Whether a connection is to be sealed. Over Unix sockets there is only this user's own host. */
static inline bool
dd_seal_is_wanted(dd_bytes secret, bool is_encryption_off, bool is_unix)
{
    return secret.len > 0 && !is_encryption_off && !is_unix;
}

/* The keys may be wiped afterwards. */
dd_status dd_seal_create(const dd_noise_keys *keys, dd_seal_use use, dd_seal **seal,
                         dd_error *err) DD_MUST_CHECK;
void dd_seal_destroy(dd_seal *seal); /* NULL is fine */

/* ---- how two come by one: the two messages of net/noise.h. Who has dialled is known to have the secret when something that it has
 * sealed has come. `clear` is what the listener says in the clear beside its message, at most 64 bytes; nobody can change it, either. */

/* The dialler: loads what is needed, and chooses. DD_NOT_SUPPORTED says what to install. */
dd_status dd_seal_choose(dd_cipher *cipher, dd_error *err) DD_MUST_CHECK;
dd_status dd_seal_begin(dd_noise *noise, dd_cipher cipher, dd_bytes prologue,
                        uint8_t first[DD_NOISE_FIRST_BYTES], dd_error *err) DD_MUST_CHECK;
/* The listener, who knows the cipher. DD_AUTH: what the dialler has said was changed on the way. */
bool dd_seal_knows(dd_cipher cipher);
dd_status dd_seal_answer(const dd_noise_offer *offer, dd_bytes secret, dd_seal_use use, dd_bytes clear,
                         uint8_t *second, dd_seal **seal, dd_error *err) DD_MUST_CHECK;
/* The dialler; wipes the noise. DD_AUTH: the listener has another secret, or what it has said was changed. */
dd_status dd_seal_finish(dd_noise *noise, dd_bytes secret, dd_seal_use use, dd_bytes second, dd_bytes clear,
                         dd_seal **seal, dd_error *err) DD_MUST_CHECK;

/* ---- what goes over it */

/* Seals what fits of the parts and sends it; *moved tells how much, once all of that is the kernel's. AGAIN: some of it is not yet. The
 * caller comes again with parts that begin with the same bytes. */
dd_io dd_seal_try_send(dd_seal *seal, int fd, const struct iovec *parts, int nparts, size_t *moved);
/* Moves what there is, up to nbytes >= 1; nothing is left for dd_seal_has_input if nbytes is at least four full records. DD_IO_FORGED: what has come is not what the peer has sealed. */
dd_io dd_seal_try_recv(dd_seal *seal, int fd, void *data, size_t nbytes, size_t *moved);
/* The error of that: it names both ends of the way, as neither process needs to be the culprit. */
dd_status dd_seal_error_forged(int fd, dd_status code, dd_error *err);
/* Whether try_recv has something, whatever the socket says. */
bool dd_seal_has_input(const dd_seal *seal);

/* One part; `seal` may be NULL: in the clear. */
dd_io dd_sealed_try_send(dd_seal *seal, int fd, const void *data, size_t nbytes, size_t *moved);
dd_io dd_sealed_try_recv(dd_seal *seal, int fd, void *data, size_t nbytes, size_t *moved);

#endif
