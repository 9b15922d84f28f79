#include "transport/cause.h"

#include <stdio.h>
#include <string.h>

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the numbers of causes are little endian; this file copies them as they are"
#endif

/* Wire format of a cause's fixed part; the text follows, without its final zero. No rank: -1. */
typedef struct cause_head {
    uint32_t code;
    uint8_t kind;
    uint8_t zeros[3];
    int32_t origin, blamed, other;
    uint32_t zero;
    uint64_t sequence;
    int64_t elapsed_ns;
    uint64_t blamed_nbytes, other_nbytes;
    dd_signature blamed_signature, other_signature;
    int64_t pid;
    char host[DD_HOST_NAME_MAX];
} cause_head;

_Static_assert(sizeof(cause_head) == DD_CAUSE_HEAD_NBYTES, "no field is padded");

dd_cause
dd_cause_of_error(const dd_error *error, int origin)
{
    dd_cause cause = {
        .kind = DD_CAUSE_OTHER, .code = error->code, .origin = origin, .blamed = error->blamed, .other = -1};
    memcpy(cause.text, error->message, sizeof cause.text);
    return cause;
}

size_t
dd_cause_encode(const dd_cause *cause, uint8_t out[DD_CAUSE_MAX_NBYTES])
{
    cause_head head = {
        .code = (uint32_t)cause->code,
        .kind = (uint8_t)cause->kind,
        .origin = cause->origin,
        .blamed = cause->blamed.rank,
        .other = cause->other,
        .sequence = cause->sequence,
        .elapsed_ns = cause->elapsed_ns,
        .blamed_nbytes = cause->blamed_nbytes,
        .other_nbytes = cause->other_nbytes,
        .blamed_signature = cause->blamed_signature,
        .other_signature = cause->other_signature,
        .pid = cause->blamed.pid,
    };
    memcpy(head.host, cause->blamed.host, strnlen(cause->blamed.host, DD_HOST_NAME_MAX - 1));
    memcpy(out, &head, sizeof head);
    size_t len = strnlen(cause->text, sizeof cause->text - 1);
    memcpy(out + sizeof head, cause->text, len);
    return sizeof head + len;
}

/* Return a description of the first invalid field of a cause; NULL if all are valid. */
static const char *
cause_find_fault(const dd_cause *cause, int nranks)
{
    bool names_two = cause->kind >= DD_CAUSE_CALLS && cause->kind <= DD_CAUSE_MISFIT;
    bool names_one = names_two || (cause->kind >= DD_CAUSE_LOST && cause->kind <= DD_CAUSE_ABORTED) ||
                     cause->kind == DD_CAUSE_REVOKED;
    if (cause->kind < DD_CAUSE_OTHER || cause->kind > DD_CAUSE_REVOKED) {
        return "unknown kind";
    }
    if (cause->code <= DD_OK || cause->code >= DD_STATUS_COUNT) {
        return "unknown code";
    }
    if (cause->origin < 0 || cause->origin >= nranks) {
        return "unknown origin rank";
    }
    if (cause->blamed.rank < -1 || cause->blamed.rank >= nranks || (names_one && cause->blamed.rank < 0)) {
        return "unknown blamed rank";
    }
    bool may_name_two = names_two || (cause->kind == DD_CAUSE_TIMED_OUT && cause->blamed.rank >= 0);
    if (cause->other >= (may_name_two ? nranks : 0) || cause->other < (names_two ? 0 : -1)) {
        return "unknown other rank";
    }
    return cause->elapsed_ns < 0 ? "negative time" : NULL;
}

/* Return true if the text has a final zero, followed only by zeros. */
static bool
is_padded(const char *text, size_t size)
{
    size_t len = strnlen(text, size);
    bool is_clean = len < size;
    for (size_t i = len; i < size; i++) {
        is_clean = is_clean && text[i] == 0;
    }
    return is_clean;
}

dd_status
dd_cause_decode(dd_bytes bytes, int nranks, dd_cause *cause, dd_error *err)
{
    if (bytes.len < DD_CAUSE_HEAD_NBYTES || bytes.len > DD_CAUSE_MAX_NBYTES) {
        return dd_error_set(err, DD_PROTOCOL,
                            "malformed cause of failure: got %zu bytes, expected %zu to %zu", bytes.len,
                            DD_CAUSE_HEAD_NBYTES, DD_CAUSE_MAX_NBYTES);
    }
    cause_head head;
    memcpy(&head, bytes.data, sizeof head);
    size_t len = bytes.len - sizeof head;
    dd_cause read = {
        .kind = (dd_cause_kind)head.kind,
        .code = head.code < DD_STATUS_COUNT ? (dd_status)head.code : DD_OK,
        .origin = head.origin,
        .blamed = {.rank = head.blamed, .pid = head.pid},
        .other = head.other,
        .sequence = head.sequence,
        .elapsed_ns = head.elapsed_ns,
        .blamed_nbytes = head.blamed_nbytes,
        .other_nbytes = head.other_nbytes,
        .blamed_signature = head.blamed_signature,
        .other_signature = head.other_signature,
    };
    memcpy(read.blamed.host, head.host, sizeof head.host);
    memcpy(read.text, (const uint8_t *)bytes.data + sizeof head, len);
    const char *fault = cause_find_fault(&read, nranks);
    if (fault == NULL && (strnlen(read.text, len) != len || !is_padded(head.host, sizeof head.host))) {
        fault = "text with an inner NUL";
    }
    if (fault == NULL && (head.zeros[0] | head.zeros[1] | head.zeros[2] | head.zero) != 0) {
        fault = "reserved bytes are not zero";
    }
    if (fault != NULL) {
        return dd_error_set(
            err, DD_PROTOCOL, "malformed cause of failure: %s (kind %d, code %lu, ranks %d, %d, %d)", fault,
            (int)read.kind, (unsigned long)head.code, read.origin, read.blamed.rank, read.other);
    }
    *cause = read;
    return DD_OK;
}
