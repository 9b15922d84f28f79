#include "net/seal.h"

#include "core/little_endian.h"
#include "core/mem.h"

#include <errno.h>
#include <string.h>

#define HEAD_BYTES ((size_t)4)
#define PADDED_FLAG (UINT32_C(1) << 31)
/* Size of the number at the end of a padded record: the padding's size, including this number. */
#define PADDING_BYTES ((size_t)2)
#define RECORDS_PER_KEY (UINT64_C(1) << 16)

typedef struct seal_direction {
    dd_aead *aead;
    dd_cipher cipher;
    size_t full;       /* payload size of a full record, in bytes */
    uint64_t nrecords; /* number of records so far; also the next record's number */
    uint8_t *buffer;   /* memory of buffer_bytes() bytes, or NULL */
    size_t begin;      /* start of the sealed bytes in `buffer`, which end at `end` */
    size_t end;
} seal_direction;

struct dd_seal {
    dd_seal_use use;
    seal_direction out;
    size_t claimed; /* number of bytes of the caller's parts that `out` already contains */
    seal_direction in;
    size_t plain_begin; /* start of the decrypted bytes in in.buffer that were not taken yet */
    size_t plain_end;
};

/* ---- keys of a direction */

/* Replace the key of a direction by the next key, as REKEY of the Noise specification does. */
static bool
turn_key(seal_direction *self)
{
    static const uint8_t zeros[DD_CRYPTO_KEY_BYTES];
    uint8_t sealed[DD_CRYPTO_KEY_BYTES + DD_CRYPTO_TAG_BYTES];
    dd_aead *next = NULL;
    bool is_swapped =
        dd_aead_seal(self->aead, UINT64_MAX, (dd_bytes){0}, dd_bytes_of(zeros, sizeof zeros), sealed) &&
        dd_aead_create(self->cipher, sealed, &next, NULL) == DD_OK;
    dd_crypto_wipe(sealed, sizeof sealed);
    if (is_swapped) {
        dd_aead_destroy(self->aead);
        self->aead = next;
    }
    return is_swapped;
}

/* Count a record, and change the key if it is due. Return false if there is no memory. */
static bool
count_record(seal_direction *self)
{
    return ++self->nrecords % RECORDS_PER_KEY != 0 || turn_key(self);
}

/* ---- buffers of a direction */

static size_t
padded_max(const seal_direction *self)
{
    return self->full + self->full / 16;
}

static size_t
record_max(const seal_direction *self)
{
    return HEAD_BYTES + padded_max(self) + DD_CRYPTO_TAG_BYTES;
}

/* Return the size of a buffer: two full records (not padded), and one with a frame's header. */
static size_t
buffer_bytes(const seal_direction *self)
{
    return 2 * record_max(self);
}

static bool
has_buffer(seal_direction *self)
{
    if (self->buffer == NULL) {
        self->buffer = dd_mem_alloc(buffer_bytes(self));
    }
    return self->buffer != NULL;
}

static void
release_buffer(seal_direction *self, dd_seal_use use)
{
    self->begin = self->end = 0;
    if (use == DD_SEAL_SPARSE) {
        dd_mem_free(self->buffer);
        self->buffer = NULL;
    }
}

/* ---- sending records */

/* Return the size of a record's plain bytes: `nbytes` bytes, padding, and the padding's size. */
static size_t
padded_size(size_t nbytes)
{
    size_t size = nbytes + PADDING_BYTES;
    size_t step = 64;
    while (step * 32 <= size) {
        step *= 2;
    }
    return (size + step - 1) / step * step;
}

/* Seal `nbytes` bytes into a record; `plain` may already be at its place in the record. */
static bool
seal_record(seal_direction *self, const uint8_t *plain, size_t nbytes)
{
    bool is_full = nbytes == self->full;
    size_t size = is_full ? nbytes : padded_size(nbytes);
    uint8_t *head = self->buffer + self->end;
    uint8_t *body = head + HEAD_BYTES;
    dd_put_number(head, (size + DD_CRYPTO_TAG_BYTES) | (is_full ? 0 : PADDED_FLAG), HEAD_BYTES);
    if (!is_full) {
        memset(body + nbytes, 0, size - nbytes);
        dd_put_number(body + size - PADDING_BYTES, size - nbytes, PADDING_BYTES);
    }
    if (!dd_aead_seal(self->aead, self->nrecords, dd_bytes_of(head, HEAD_BYTES), dd_bytes_of(plain, size),
                      body)) {
        return false;
    }
    self->end += HEAD_BYTES + size + DD_CRYPTO_TAG_BYTES;
    return count_record(self);
}

typedef struct seal_cursor {
    const struct iovec *parts;
    int nparts;
    size_t at; /* offset of the next byte in parts[0] */
} seal_cursor;

static size_t
left_in_part(const seal_cursor *from)
{
    return from->nparts > 0 ? from->parts->iov_len - from->at : 0;
}

static void
cursor_advance(seal_cursor *from, size_t nbytes)
{
    from->at += nbytes;
    while (from->nparts > 0 && left_in_part(from) == 0) {
        from->parts++;
        from->nparts--;
        from->at = 0;
    }
}

/* Copy small parts into one record. Stops before a part that is large enough for a full record. */
static size_t
gather(seal_cursor *from, size_t full, uint8_t *body)
{
    size_t nbytes = 0;
    while (nbytes < full && from->nparts > 0) {
        size_t left = left_in_part(from);
        size_t room = full - nbytes;
        if (nbytes > 0 && left >= full) {
            break;
        }
        size_t step = left < room ? left : room;
        memcpy(body + nbytes, (const uint8_t *)from->parts->iov_base + from->at, step);
        nbytes += step;
        cursor_advance(from, step);
    }
    return nbytes;
}

/* Seal the next record. A full record is sealed directly from the caller's memory. */
static bool
seal_next(dd_seal *self, seal_cursor *from)
{
    seal_direction *out = &self->out;
    size_t nbytes = out->full;
    const uint8_t *plain = out->buffer + out->end + HEAD_BYTES;
    if (left_in_part(from) >= out->full) {
        plain = (const uint8_t *)from->parts->iov_base + from->at;
        cursor_advance(from, nbytes);
    } else {
        nbytes = gather(from, out->full, out->buffer + out->end + HEAD_BYTES);
    }
    self->claimed += nbytes;
    return seal_record(out, plain, nbytes);
}

static bool
seal_parts(dd_seal *self, const struct iovec *parts, int nparts)
{
    seal_direction *out = &self->out;
    seal_cursor from = {.parts = parts, .nparts = nparts};
    cursor_advance(&from, 0);
    if (!has_buffer(out)) {
        return false;
    }
    while (from.nparts > 0 && buffer_bytes(out) - out->end >= record_max(out)) {
        if (!seal_next(self, &from)) {
            return false;
        }
    }
    return true;
}

dd_io
dd_seal_try_send(dd_seal *self, int fd, const struct iovec *parts, int nparts, size_t *moved)
{
    seal_direction *out = &self->out;
    if (out->begin == out->end && !seal_parts(self, parts, nparts)) {
        errno = ENOMEM;
        return DD_IO_FAILED;
    }
    while (out->begin < out->end) {
        size_t step = 0;
        dd_io io = dd_sock_try_send(fd, out->buffer + out->begin, out->end - out->begin, &step);
        if (io != DD_IO_OK) {
            return io;
        }
        out->begin += step;
    }
    *moved = self->claimed;
    self->claimed = 0;
    release_buffer(out, self->use);
    return DD_IO_OK;
}

/* ---- receiving records */

static size_t
sealed_bytes(const seal_direction *in)
{
    return dd_get_number(in->buffer + in->begin, HEAD_BYTES) & ~(uint64_t)PADDED_FLAG;
}

/* Return true if the length in the head of the next record is valid. */
static bool
is_sound(const seal_direction *in)
{
    size_t nbytes = sealed_bytes(in);
    return nbytes > DD_CRYPTO_TAG_BYTES && nbytes <= padded_max(in) + DD_CRYPTO_TAG_BYTES;
}

/* Return true if a complete record has arrived, or a head with an invalid length. */
static bool
has_record(const seal_direction *in)
{
    size_t available = in->end - in->begin;
    return available >= HEAD_BYTES && (available - HEAD_BYTES >= sealed_bytes(in) || !is_sound(in));
}

/* Decrypt the record at in->begin to `plain`, possibly in place. *nbytes excludes the padding. */
static dd_io
open_record(seal_direction *in, uint8_t *plain, size_t *nbytes)
{
    const uint8_t *head = in->buffer + in->begin;
    bool is_padded = (dd_get_number(head, HEAD_BYTES) & PADDED_FLAG) != 0;
    size_t sealed = sealed_bytes(in);
    size_t size = sealed - DD_CRYPTO_TAG_BYTES;
    if (!dd_aead_open(in->aead, in->nrecords, dd_bytes_of(head, HEAD_BYTES),
                      dd_bytes_of(head + HEAD_BYTES, sealed), plain)) {
        return DD_IO_FORGED;
    }
    size_t padding = 0;
    if (is_padded) {
        padding = size < PADDING_BYTES ? 0 : dd_get_number(plain + size - PADDING_BYTES, PADDING_BYTES);
        if (padding < PADDING_BYTES || padding >= size) {
            return DD_IO_FORGED; /* sealed with the right key, so the peer is broken */
        }
    }
    in->begin += HEAD_BYTES + sealed;
    *nbytes = size - padding;
    errno = ENOMEM;
    return count_record(in) ? DD_IO_OK : DD_IO_FAILED;
}

/* Decrypt the next record in place, for a caller that takes its bytes in pieces. */
static dd_io
open_in_place(dd_seal *self)
{
    size_t nbytes = 0;
    size_t body = self->in.begin + HEAD_BYTES;
    dd_io io = open_record(&self->in, self->in.buffer + body, &nbytes);
    self->plain_begin = body;
    self->plain_end = io == DD_IO_OK ? body + nbytes : body;
    return io;
}

static size_t
copy_plain(dd_seal *self, uint8_t *data, size_t nbytes)
{
    size_t available = self->plain_end - self->plain_begin;
    size_t step = available < nbytes ? available : nbytes;
    memcpy(data, self->in.buffer + self->plain_begin, step);
    self->plain_begin += step;
    return step;
}

/* Copy bytes of one record to `data`. Return DD_IO_AGAIN if no complete record has arrived. */
static dd_io
take_some(dd_seal *self, uint8_t *data, size_t nbytes, size_t *moved)
{
    dd_io io = DD_IO_OK;
    if (self->plain_begin == self->plain_end) {
        if (!has_record(&self->in)) {
            return DD_IO_AGAIN;
        }
        if (!is_sound(&self->in)) {
            return DD_IO_FORGED;
        }
        if (sealed_bytes(&self->in) - DD_CRYPTO_TAG_BYTES <= nbytes) {
            return open_record(&self->in, data, moved);
        }
        io = open_in_place(self);
    }
    *moved = io == DD_IO_OK ? copy_plain(self, data, nbytes) : 0;
    return io;
}

/* Copy bytes of all records that have arrived to `data`. */
static dd_io
take_opened(dd_seal *self, uint8_t *data, size_t nbytes, size_t *moved)
{
    *moved = 0;
    while (*moved < nbytes) {
        size_t step = 0;
        dd_io io = take_some(self, data + *moved, nbytes - *moved, &step);
        if (io != DD_IO_OK) {
            return io == DD_IO_AGAIN && *moved > 0 ? DD_IO_OK : io;
        }
        *moved += step;
    }
    return DD_IO_OK;
}

/* Read once from the socket. All decrypted bytes must have been taken before. */
static dd_io
receive_records(dd_seal *self, int fd)
{
    seal_direction *in = &self->in;
    if (!has_buffer(in)) {
        errno = ENOMEM;
        return DD_IO_FAILED;
    }
    memmove(in->buffer, in->buffer + in->begin, in->end - in->begin);
    in->end -= in->begin;
    in->begin = self->plain_begin = self->plain_end = 0;
    size_t step = 0;
    dd_io io = dd_sock_try_recv(fd, in->buffer + in->end, buffer_bytes(in) - in->end, &step);
    in->end += step;
    return io;
}

dd_io
dd_seal_try_recv(dd_seal *self, int fd, void *data, size_t nbytes, size_t *moved)
{
    dd_io io = take_opened(self, data, nbytes, moved);
    if (io == DD_IO_AGAIN) {
        io = receive_records(self, fd);
        if (io == DD_IO_OK) {
            io = take_opened(self, data, nbytes, moved);
        }
    }
    if (self->plain_begin == self->plain_end && self->in.begin == self->in.end) {
        self->plain_begin = self->plain_end = 0;
        release_buffer(&self->in, self->use);
    }
    return io;
}

dd_status
dd_seal_error_forged(int fd, dd_status code, dd_error *err)
{
    char local_text[DD_ADDR_TEXT_MAX];
    char available[DD_ADDR_TEXT_MAX];
    dd_addr own_address = dd_sock_local_addr(fd);
    dd_addr peer_address = dd_sock_peer_addr(fd);
    return dd_error_set(
        err, code,
        "encrypted connection %s -> %s: record failed authentication (tampered, replayed or truncated)",
        dd_addr_print(&peer_address, available), dd_addr_print(&own_address, local_text));
}

bool
dd_seal_has_input(const dd_seal *self)
{
    return self->plain_begin < self->plain_end || has_record(&self->in);
}

/* ---- functions for a connection that may be unsealed */

dd_io
dd_sealed_try_send(dd_seal *seal, int fd, const void *data, size_t nbytes, size_t *moved)
{
    const struct iovec part = {.iov_base = (void *)(uintptr_t)data, .iov_len = nbytes};
    return seal != NULL ? dd_seal_try_send(seal, fd, &part, 1, moved)
                        : dd_sock_try_send(fd, data, nbytes, moved);
}

dd_io
dd_sealed_try_recv(dd_seal *seal, int fd, void *data, size_t nbytes, size_t *moved)
{
    return seal != NULL ? dd_seal_try_recv(seal, fd, data, nbytes, moved)
                        : dd_sock_try_recv(fd, data, nbytes, moved);
}

/* ---- opening and closing */

static dd_status
open_direction(seal_direction *self, dd_seal_use use, dd_cipher cipher,
               const uint8_t key[DD_CRYPTO_KEY_BYTES], dd_error *err)
{
    self->full = use == DD_SEAL_BULK ? DD_SEAL_BULK_RECORD : DD_SEAL_SPARSE_RECORD;
    self->cipher = cipher;
    return dd_aead_create(cipher, key, &self->aead, err);
}

static void
close_direction(seal_direction *self)
{
    dd_aead_destroy(self->aead);
    dd_mem_free(self->buffer);
}

dd_status
dd_seal_create(const dd_noise_keys *keys, dd_seal_use use, dd_seal **seal, dd_error *err)
{
    dd_seal *self = dd_mem_zalloc(sizeof *self);
    if (self == NULL) {
        return dd_error_no_memory(err, sizeof *self);
    }
    self->use = use;
    dd_status status = open_direction(&self->out, use, keys->cipher, keys->send, err);
    if (status == DD_OK) {
        status = open_direction(&self->in, use, keys->cipher, keys->receive, err);
    }
    if (status != DD_OK) {
        dd_seal_destroy(self);
        return status;
    }
    *seal = self;
    return DD_OK;
}

void
dd_seal_destroy(dd_seal *self)
{
    if (self != NULL) {
        close_direction(&self->out);
        close_direction(&self->in);
        dd_mem_free(self);
    }
}
