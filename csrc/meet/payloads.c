/* Reads all ranks' payloads from the end of a meeting; the format is in store/meet_end.c. */
#include "meet/internal.h"

#include "core/little_endian.h"
#include "core/mem.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* Move the first payload of `rest` into `out`. A payload omits the bytes that it has in common with
 * the previous payload, `before`. Return false if there is no valid payload. */
static bool
take_payload(dd_bytes *rest, dd_bytes before, uint8_t *out, dd_bytes *payload)
{
    if (rest->len < MEETING_PAYLOAD_HEAD_NBYTES) {
        return false;
    }
    size_t common = (size_t)dd_get_number(rest->data, 1);
    size_t len = (size_t)dd_get_number(rest->data + 1, 2);
    if (common > before.len || len > rest->len - MEETING_PAYLOAD_HEAD_NBYTES) {
        return false;
    }
    if (common > 0) {
        memcpy(out, before.data, common);
    }
    memcpy(out + common, rest->data + MEETING_PAYLOAD_HEAD_NBYTES, len);
    *payload = dd_bytes_of(out, common + len);
    *rest = dd_bytes_after(*rest, MEETING_PAYLOAD_HEAD_NBYTES + len);
    return true;
}

static dd_status
find_payloads(int size, dd_bytes rest, dd_meeting_end *out, dd_error *err)
{
    int count = 0;
    dd_bytes before = {0};
    dd_status status = DD_OK;
    /* Allocate only if the received bytes can hold `size` payloads, because a peer sends `size`. */
    if (rest.len / MEETING_PAYLOAD_HEAD_NBYTES >= (size_t)size) {
        out->payloads = dd_mem_alloc_array((size_t)size, sizeof *out->payloads);
        status = out->payloads != NULL
                     ? dd_blob_reserve(&out->bytes, rest.len + (size_t)size * UINT8_MAX, err)
                     : dd_error_no_memory(err, (size_t)size * sizeof *out->payloads);
    }
    while (status == DD_OK && out->payloads != NULL && count < size &&
           take_payload(&rest, before, out->bytes.data + out->bytes.len, &out->payloads[count])) {
        before = out->payloads[count++];
        out->bytes.len += before.len;
    }
    if (status == DD_OK && count < size) {
        status = dd_error_set(
            err, DD_STORE,
            "malformed end of a meeting of %d ranks in the store: the payload of rank %d is missing", size,
            count);
    }
    if (status != DD_OK) {
        dd_meeting_end_fini(out);
    }
    return status;
}

dd_status
meeting_decode_end(int size, dd_bytes end, dd_meeting_end *out, dd_error *err)
{
    char text[96];
    meeting_copy_text(end, text, sizeof text);
    char *newline = strchr(text, '\n');
    size_t len = newline != NULL ? (size_t)(newline - text) : strlen(text);
    text[len] = '\0';
    int size_found = 0;
    uint64_t id = 0;
    if (newline == NULL || sscanf(text, "ok %d %" SCNx64, &size_found, &id) != 2 || size_found != size) {
        return dd_error_set(
            err, DD_STORE,
            "malformed end of a meeting in the store: got \"%s\", expected \"ok %d\" and an id", text, size);
    }
    *out = (dd_meeting_end){.id = id};
    return find_payloads(size, dd_bytes_after(end, len + 1), out, err);
}

void
dd_meeting_end_fini(dd_meeting_end *end)
{
    dd_mem_free(end->payloads);
    dd_blob_fini(&end->bytes);
    *end = (dd_meeting_end){0};
}
