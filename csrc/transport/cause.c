#include "transport/cause.h"

#include "core/little_endian.h"

#include <stdio.h>
#include <string.h>

/* Where the fields are; little endian. The text follows, without a final zero. */
enum {
    AT_CODE = 0,
    AT_KIND = 4,
    AT_ZERO = 5,
    AT_ORIGIN = 8,
    AT_CULPRIT = 12,
    AT_OTHER = 16,
    AT_ZERO_TOO = 20,
    AT_SEQUENCE = 24,
    AT_ELAPSED = 32,
    AT_CULPRIT_NBYTES = 40,
    AT_OTHER_NBYTES = 48,
    AT_CULPRIT_SIGNATURE = 56,
    AT_OTHER_SIGNATURE = 80,
    AT_PID = 104,
    AT_HOST = 112,
};

#define SIGNATURE_NBYTES 24

_Static_assert(AT_OTHER_SIGNATURE + SIGNATURE_NBYTES == AT_PID, "a signature is three words");
_Static_assert(AT_HOST + DD_HOST_NAME_MAX == DD_CAUSE_HEAD_NBYTES, "the text follows the fields");

dd_cause
dd_cause_of_error(const dd_error *error, int origin)
{
    dd_cause cause = {.kind = DD_CAUSE_OTHER,
                      .code = error->code,
                      .origin = origin,
                      .culprit = error->culprit,
                      .other = -1};
    memcpy(cause.text, error->message, sizeof cause.text);
    return cause;
}

static void
put_signature(uint8_t *out, const dd_signature *signature)
{
    out[0] = signature->coll;
    out[1] = signature->dtype;
    out[2] = signature->redop;
    out[3] = signature->flags;
    dd_put_number(out + 4, signature->root, 4);
    dd_put_number(out + 8, signature->count, 8);
    dd_put_number(out + 16, signature->factor_bits, 8);
}

static dd_signature
get_signature(const uint8_t *in)
{
    return (dd_signature){.coll = in[0],
                          .dtype = in[1],
                          .redop = in[2],
                          .flags = in[3],
                          .root = (uint32_t)dd_get_number(in + 4, 4),
                          .count = dd_get_number(in + 8, 8),
                          .factor_bits = dd_get_number(in + 16, 8)};
}

size_t
dd_cause_encode(const dd_cause *cause, uint8_t out[DD_CAUSE_MAX_NBYTES])
{
    memset(out, 0, DD_CAUSE_HEAD_NBYTES);
    dd_put_number(out + AT_CODE, (uint32_t)cause->code, 4);
    out[AT_KIND] = (uint8_t)cause->kind;
    dd_put_number(out + AT_ORIGIN, (uint32_t)cause->origin, 4);
    dd_put_number(out + AT_CULPRIT, (uint32_t)cause->culprit.rank, 4);
    dd_put_number(out + AT_OTHER, (uint32_t)cause->other, 4);
    dd_put_number(out + AT_SEQUENCE, cause->sequence, 8);
    dd_put_number(out + AT_ELAPSED, (uint64_t)cause->elapsed_ns, 8);
    dd_put_number(out + AT_CULPRIT_NBYTES, cause->culprit_nbytes, 8);
    dd_put_number(out + AT_OTHER_NBYTES, cause->other_nbytes, 8);
    put_signature(out + AT_CULPRIT_SIGNATURE, &cause->culprit_signature);
    put_signature(out + AT_OTHER_SIGNATURE, &cause->other_signature);
    dd_put_number(out + AT_PID, (uint64_t)cause->culprit.pid, 8);
    memcpy(out + AT_HOST, cause->culprit.host, strnlen(cause->culprit.host, DD_HOST_NAME_MAX - 1));
    size_t len = strnlen(cause->text, sizeof cause->text - 1);
    memcpy(out + DD_CAUSE_HEAD_NBYTES, cause->text, len);
    return DD_CAUSE_HEAD_NBYTES + len;
}

/* Ranks that are nobody come out as -1, those that make no sense as something else that is out of range. */
static int
get_rank(const uint8_t *in)
{
    uint32_t number = (uint32_t)dd_get_number(in, 4);
    return number == UINT32_MAX ? -1 : number > INT32_MAX ? INT32_MAX : (int)number;
}

/* What is wrong with it; NULL: nothing. */
static const char *
find_fault(const dd_cause *cause, int nranks)
{
    bool names_two = cause->kind >= DD_CAUSE_CALLS && cause->kind <= DD_CAUSE_MISFIT;
    bool names_one = names_two || (cause->kind >= DD_CAUSE_LOST && cause->kind <= DD_CAUSE_ABORTED);
    if (cause->kind < DD_CAUSE_OTHER || cause->kind > DD_CAUSE_TIMED_OUT) {
        return "its kind is unknown";
    }
    if (cause->code <= DD_OK || cause->code >= DD_STATUS_COUNT) {
        return "its code is unknown";
    }
    if (cause->origin < 0 || cause->origin >= nranks) {
        return "it comes from a rank that does not exist";
    }
    if (cause->culprit.rank >= nranks || (names_one && cause->culprit.rank < 0)) {
        return "it blames a rank that does not exist";
    }
    bool may_name_two = names_two || (cause->kind == DD_CAUSE_TIMED_OUT && cause->culprit.rank >= 0);
    if (cause->other >= (may_name_two ? nranks : 0) || cause->other < (names_two ? 0 : -1)) {
        return "it names a rank that does not exist";
    }
    return cause->elapsed_ns < 0 ? "its time is negative" : NULL;
}

/* A text with its zero, and nothing but zeros behind it. */
static bool
is_padded(const uint8_t *text, size_t size)
{
    size_t len = strnlen((const char *)text, size);
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
        return dd_error_set(err, DD_PROTOCOL, "a cause of %zu bytes has come", bytes.len);
    }
    const uint8_t *in = bytes.data;
    size_t len = bytes.len - DD_CAUSE_HEAD_NBYTES;
    uint32_t code = (uint32_t)dd_get_number(in + AT_CODE, 4);
    dd_cause read = {
        .kind = (dd_cause_kind)in[AT_KIND],
        .code = code < DD_STATUS_COUNT ? (dd_status)code : DD_OK,
        .origin = get_rank(in + AT_ORIGIN),
        .culprit = {.rank = get_rank(in + AT_CULPRIT), .pid = (int64_t)dd_get_number(in + AT_PID, 8)},
        .other = get_rank(in + AT_OTHER),
        .sequence = dd_get_number(in + AT_SEQUENCE, 8),
        .elapsed_ns = (int64_t)dd_get_number(in + AT_ELAPSED, 8),
        .culprit_nbytes = dd_get_number(in + AT_CULPRIT_NBYTES, 8),
        .other_nbytes = dd_get_number(in + AT_OTHER_NBYTES, 8),
        .culprit_signature = get_signature(in + AT_CULPRIT_SIGNATURE),
        .other_signature = get_signature(in + AT_OTHER_SIGNATURE),
    };
    memcpy(read.culprit.host, in + AT_HOST, DD_HOST_NAME_MAX);
    memcpy(read.text, in + DD_CAUSE_HEAD_NBYTES, len);
    const char *fault = find_fault(&read, nranks);
    if (fault == NULL && (strnlen(read.text, len) != len || !is_padded(in + AT_HOST, DD_HOST_NAME_MAX))) {
        fault = "a text of it ends before its end";
    }
    if (fault == NULL && (dd_get_number(in + AT_ZERO, 3) != 0 || dd_get_number(in + AT_ZERO_TOO, 4) != 0)) {
        fault = "it says something that is not known here";
    }
    if (fault != NULL) {
        return dd_error_set(err, DD_PROTOCOL,
                            "a cause makes no sense: %s (kind %d, code %lu, ranks %d, %d, %d)", fault,
                            (int)read.kind, (unsigned long)code, read.origin, read.culprit.rank, read.other);
    }
    *cause = read;
    return DD_OK;
}
