/* The end value of a meeting (a rendezvous), which is its result:
 *
 *     off                           cancelled: the ranks go on to the next meeting. A failure may
 *                                   follow
 *     failed <code> <rank> <pid>    a newline, the blamed rank's host, a newline and a message
 *     ok <size> <id>                a newline, and for each rank's payload: the length of the prefix
 *                                   shared with the previous payload (1 byte), the length of the rest
 *                                   (2, little-endian), and the rest. Payloads (address records) begin
 *                                   with the data of their host, which its ranks have in common */
#include "store/meet_join.h"

#include "core/little_endian.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

dd_bytes
meeting_payload_of(dd_bytes published)
{
    return dd_bytes_after(published, MEETING_NONCE_BYTES);
}

static size_t
count_common(dd_bytes a, dd_bytes b)
{
    size_t len = 0;
    while (len < UINT8_MAX && len < a.len && len < b.len && a.data[len] == b.data[len]) {
        len++;
    }
    return len;
}

static dd_status
append_payloads(const dd_blob_list *published, dd_blob *end, dd_error *err)
{
    dd_bytes before = {0};
    dd_status status = DD_OK;
    for (size_t i = 0; i < published->count && status == DD_OK; i++) {
        dd_bytes payload = meeting_payload_of(dd_blob_view(&published->items[i]));
        size_t common = count_common(before, payload);
        uint8_t head[MEETING_PAYLOAD_HEAD_NBYTES];
        if (payload.len > UINT16_MAX) {
            return dd_error_set(err, DD_STORE,
                                "payload of rank %zu too large: got %zu bytes, expected at most %d", i,
                                payload.len, UINT16_MAX);
        }
        dd_put_number(head, common, 1);
        dd_bytes rest = dd_bytes_after(payload, common);
        dd_put_number(head + 1, rest.len, 2);
        status = dd_blob_append(end, head, sizeof head, err);
        if (status == DD_OK) {
            status = dd_blob_append(end, rest.data, rest.len, err);
        }
        before = payload;
    }
    return status;
}

dd_status
meeting_encode_end(uint64_t id, const dd_blob_list *published, dd_blob *end, dd_error *err)
{
    char line[96];
    int len = snprintf(line, sizeof line, "ok %zu %016" PRIx64 "\n", published->count, id);
    dd_status status = dd_blob_append(end, line, (size_t)len, err);
    return status == DD_OK ? append_payloads(published, end, err) : status;
}

void
meeting_copy_text(dd_bytes bytes, char *out, size_t size)
{
    size_t len = bytes.len < size - 1 ? bytes.len : size - 1;
    if (len > 0) {
        memcpy(out, bytes.data, len);
    }
    out[len] = '\0';
}

size_t
meeting_encode_failure(const dd_error *error, char end[MEETING_FAILURE_MAX])
{
    return (size_t)snprintf(end, MEETING_FAILURE_MAX, "failed %d %d %lld\n%s\n%s", (int)error->code,
                            error->blamed.rank, error->blamed.pid, error->blamed.host, error->message);
}

bool
meeting_decode_failure(dd_bytes end, dd_error *error)
{
    char text[MEETING_FAILURE_MAX];
    if (end.len >= sizeof text) {
        return false;
    }
    meeting_copy_text(end, text, sizeof text);
    int code = 0;
    int rank = 0;
    long long pid = 0;
    char *host = strchr(text, '\n');
    char *message = host != NULL ? strchr(host + 1, '\n') : NULL;
    if (message == NULL || sscanf(text, "failed %d %d %lld", &code, &rank, &pid) != 3 || code <= DD_OK ||
        code >= DD_STATUS_COUNT) {
        return false;
    }
    *host++ = '\0';
    *message++ = '\0';
    dd_error_set(error, (dd_status)code, "%s", message);
    dd_error_blame(error, rank, host, pid);
    return true;
}

/* ---- cancelled meetings */

static const char off[] = "off\n";
#define OFF_LEN (sizeof off - 1)

size_t
meeting_encode_cancelled(const dd_error *why, char end[MEETING_FAILURE_MAX])
{
    size_t len = why != NULL ? meeting_encode_failure(why, end) : 0;
    memmove(end + OFF_LEN, end, len);
    memcpy(end, off, OFF_LEN);
    return OFF_LEN + len;
}

bool
meeting_decode_cancelled(dd_bytes end, dd_error *why)
{
    *why = (dd_error){.code = DD_OK};
    if (end.len < OFF_LEN || memcmp(end.data, off, OFF_LEN) != 0) {
        return false;
    }
    (void)!meeting_decode_failure(dd_bytes_after(end, OFF_LEN), why);
    return true;
}
