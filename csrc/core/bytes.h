/* Byte strings: a view that borrows, and a buffer that owns and grows. */
#ifndef DD_CORE_BYTES_H
#define DD_CORE_BYTES_H

#include "core/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Borrowed bytes; data may be NULL when len is 0. */
typedef struct dd_bytes {
    const uint8_t *data;
    size_t len;
} dd_bytes;

dd_bytes dd_bytes_of(const void *data, size_t len);
dd_bytes dd_bytes_of_string(const char *text);
/* Without the first `skipped` of them; fewer are none. */
dd_bytes dd_bytes_after(dd_bytes bytes, size_t skipped);
bool dd_bytes_equal(dd_bytes a, dd_bytes b);

/* Compares in a time that does not depend on the contents; for secrets. */
bool dd_bytes_equal_secret(dd_bytes a, dd_bytes b);

/* Owned bytes. A zeroed blob is empty and valid; fini accepts it and leaves it so. */
typedef struct dd_blob {
    uint8_t *data;
    size_t len;
    size_t capacity;
} dd_blob;

void dd_blob_fini(dd_blob *blob);
dd_bytes dd_blob_view(const dd_blob *blob);

/* Makes room for `more` bytes after len. On failure the blob is unchanged. */
dd_status dd_blob_reserve(dd_blob *blob, size_t more, dd_error *err) DD_MUST_CHECK;
dd_status dd_blob_append(dd_blob *blob, const void *data, size_t len, dd_error *err) DD_MUST_CHECK;

/* Replaces the contents; on failure they are unchanged. `value` may not point into the blob. */
dd_status dd_blob_assign(dd_blob *blob, dd_bytes value, dd_error *err) DD_MUST_CHECK;

/* Drops the first n bytes and moves the rest down. */
void dd_blob_consume(dd_blob *blob, size_t n);

/* Empties it; keeps at most keep_capacity bytes of memory for the next use. */
void dd_blob_clear(dd_blob *blob, size_t keep_capacity);

/* Writes `bytes` as text into out for a message: printable ASCII as it is, others as \xNN, and "..." where it
 * had to be cut. Returns out. */
const char *dd_bytes_print(dd_bytes bytes, char *out, size_t out_size);

#endif
