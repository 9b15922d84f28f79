/* Byte strings: a view that borrows, and a buffer that owns and grows. */
#ifndef DD_CORE_BYTES_H
#define DD_CORE_BYTES_H

#include "core/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Borrowed bytes. `data` may be NULL if `len` is 0. */
typedef struct dd_bytes {
    const uint8_t *data;
    size_t len;
} dd_bytes;

dd_bytes dd_bytes_of(const void *data, size_t len);
dd_bytes dd_bytes_of_string(const char *text);
/* Return the bytes after the first `skipped` bytes; an empty string if there are none. */
dd_bytes dd_bytes_after(dd_bytes bytes, size_t skipped);
bool dd_bytes_equal(dd_bytes a, dd_bytes b);

/* Compare secrets of equal length in a time that does not depend on their contents. */
bool dd_bytes_equal_secret(dd_bytes a, dd_bytes b);

/* Owned bytes. A zeroed blob is valid and empty; dd_blob_fini leaves its blob zeroed. */
typedef struct dd_blob {
    uint8_t *data;
    size_t len;
    size_t capacity;
} dd_blob;

void dd_blob_fini(dd_blob *blob);
dd_bytes dd_blob_view(const dd_blob *blob);

/* Reserve space for `more` bytes after the first `len` bytes. On failure the blob is unchanged. */
dd_status dd_blob_reserve(dd_blob *blob, size_t more, dd_error *err) DD_MUST_CHECK;
dd_status dd_blob_append(dd_blob *blob, const void *data, size_t len, dd_error *err) DD_MUST_CHECK;

/* Replace the contents by a copy of `value`, which must not point into the blob. On failure the
 * contents are unchanged. */
dd_status dd_blob_assign(dd_blob *blob, dd_bytes value, dd_error *err) DD_MUST_CHECK;

/* Remove the first n bytes of the blob and move the remaining bytes to its start. */
void dd_blob_consume(dd_blob *blob, size_t n);

/* Set the length to 0. Also free the memory if the capacity exceeds retained_capacity. */
void dd_blob_clear(dd_blob *blob, size_t retained_capacity);

/* Write `bytes` as text for a message: printable ASCII unchanged, other bytes as \xNN. If the text
 * does not fit, it is truncated and ends in "...". Return `out`. */
const char *dd_bytes_print(dd_bytes bytes, char *out, size_t out_size);

#endif
