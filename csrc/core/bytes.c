#include "core/bytes.h"

#include "core/mem.h"

#include <stdio.h>
#include <string.h>

dd_bytes
dd_bytes_of(const void *data, size_t len)
{
    return (dd_bytes){data, len};
}

dd_bytes
dd_bytes_of_string(const char *text)
{
    return (dd_bytes){(const uint8_t *)text, strlen(text)};
}

dd_bytes
dd_bytes_after(dd_bytes bytes, size_t skipped)
{
    if (skipped >= bytes.len) {
        return (dd_bytes){0};
    }
    return dd_bytes_of(bytes.data + skipped, bytes.len - skipped);
}

bool
dd_bytes_equal(dd_bytes a, dd_bytes b)
{
    return a.len == b.len && (a.len == 0 || memcmp(a.data, b.data, a.len) == 0);
}

bool
dd_bytes_equal_secret(dd_bytes a, dd_bytes b)
{
    if (a.len != b.len) {
        return false;
    }
    unsigned difference = 0;
    for (size_t i = 0; i < a.len; i++) {
        difference |= (unsigned)(a.data[i] ^ b.data[i]);
    }
    return difference == 0;
}

void
dd_blob_fini(dd_blob *blob)
{
    dd_mem_free(blob->data);
    *blob = (dd_blob){0};
}

dd_bytes
dd_blob_view(const dd_blob *blob)
{
    return (dd_bytes){blob->data, blob->len};
}

dd_status
dd_blob_reserve(dd_blob *blob, size_t more, dd_error *err)
{
    if (more <= blob->capacity - blob->len) {
        return DD_OK;
    }
    if (more > SIZE_MAX / 2 - blob->len) {
        return dd_error_no_memory(err, more);
    }
    size_t capacity = blob->len + more;
    /* Most small blobs are values that never grow, so allocate only the requested bytes. Beyond a
     * page, grow by half, so that repeated appends take linear time. */
    if (capacity > 4096 && capacity < blob->capacity + blob->capacity / 2) {
        capacity = blob->capacity + blob->capacity / 2;
    }
    uint8_t *data = dd_mem_realloc(blob->data, capacity);
    if (data == NULL) {
        return dd_error_no_memory(err, capacity);
    }
    blob->data = data;
    blob->capacity = capacity;
    return DD_OK;
}

dd_status
dd_blob_append(dd_blob *blob, const void *data, size_t len, dd_error *err)
{
    dd_status status = dd_blob_reserve(blob, len, err);
    if (status == DD_OK && len > 0) {
        memcpy(blob->data + blob->len, data, len);
        blob->len += len;
    }
    return status;
}

dd_status
dd_blob_assign(dd_blob *blob, dd_bytes value, dd_error *err)
{
    size_t old_len = blob->len;
    blob->len = 0;
    dd_status status = dd_blob_append(blob, value.data, value.len, err);
    if (status != DD_OK) {
        blob->len = old_len;
    }
    return status;
}

void
dd_blob_consume(dd_blob *blob, size_t n)
{
    blob->len -= n;
    if (blob->len > 0 && n > 0) {
        memmove(blob->data, blob->data + n, blob->len);
    }
}

void
dd_blob_clear(dd_blob *blob, size_t retained_capacity)
{
    if (blob->capacity > retained_capacity) {
        dd_blob_fini(blob);
    }
    blob->len = 0;
}

const char *
dd_bytes_print(dd_bytes bytes, char *out, size_t out_size)
{
    size_t used = 0;
    size_t cut = 0; /* length of the text after which "..." still fits */
    for (size_t i = 0; i < bytes.len; i++) {
        char piece[5];
        int len = bytes.data[i] >= 0x20 && bytes.data[i] < 0x7f
                      ? snprintf(piece, sizeof piece, "%c", bytes.data[i])
                      : snprintf(piece, sizeof piece, "\\x%02x", bytes.data[i]);
        if (used + (size_t)len + 1 > out_size) {
            snprintf(out + cut, out_size - cut, "...");
            return out;
        }
        memcpy(out + used, piece, (size_t)len);
        used += (size_t)len;
        if (used + 4 <= out_size) {
            cut = used;
        }
    }
    out[used] = '\0';
    return out;
}
