#include "transport/frame.h"

#include "core/dtype.h"
#include "core/little_endian.h"
#include "transport/cause.h"

#include <string.h>

#define MAGIC 0xd1u
#define MAGIC_SHORT 0xd2u

/* Where the fields are; little endian. */
enum {
    AT_MAGIC = 0,
    AT_TYPE = 1,
    AT_KIND = 2,
    AT_REASON = 3,
    AT_CHANNEL = 4,
    AT_CONTEXT = 8,
    AT_TAG = 16,
    AT_ID = 24,
    AT_OFFSET = 32,
    AT_NBYTES = 40,
    AT_PAYLOAD = 48,
    AT_CREDIT = 52,
    AT_SOURCE = 56,
    AT_TARGET = 60,
    AT_COLL = 64,
    AT_DTYPE = 65,
    AT_REDOP = 66,
    AT_FLAGS = 67,
    AT_ROOT = 68,
    AT_COUNT = 72,
    AT_FACTOR = 80,
};

/* The short header, in the same way. */
enum {
    SHORT_AT_KIND = 1,
    SHORT_AT_DTYPE = 2,
    SHORT_AT_FLAGS = 3,
    SHORT_AT_PAYLOAD = 4,
    SHORT_AT_CHANNEL = 8,
    SHORT_AT_CREDIT = 12,
    SHORT_AT_CONTEXT = 16,
    SHORT_AT_TAG = 24,
    SHORT_AT_SOURCE = 32,
    SHORT_AT_TARGET = 36,
};

/* The signature of a message of so many bytes of a dtype. */
static dd_signature
typed_signature(uint8_t dtype, uint32_t nbytes)
{
    return (dd_signature){.dtype = dtype,
                          .flags = DD_SIGNATURE_TYPED,
                          .count = nbytes / (uint32_t)dd_dtype_size((dd_dtype)dtype)};
}

static bool
is_short(const dd_frame *frame)
{
    const dd_signature *signature = &frame->signature;
    if (frame->type != DD_FRAME_EAGER || (frame->id | frame->offset) != 0 || frame->reason != 0 ||
        frame->nbytes != frame->payload) {
        return false;
    }
    dd_signature implied = {.dtype = 0};
    if (signature->flags == DD_SIGNATURE_TYPED && dd_dtype_is_valid(signature->dtype)) {
        implied = typed_signature(signature->dtype, frame->payload);
    }
    return memcmp(signature, &implied, sizeof implied) == 0;
}

static size_t
encode_short(const dd_frame *frame, uint8_t *out)
{
    out[AT_MAGIC] = MAGIC_SHORT;
    out[SHORT_AT_KIND] = (uint8_t)frame->kind;
    out[SHORT_AT_DTYPE] = frame->signature.dtype;
    out[SHORT_AT_FLAGS] = frame->signature.flags;
    dd_put_number(out + SHORT_AT_PAYLOAD, frame->payload, 4);
    dd_put_number(out + SHORT_AT_CHANNEL, frame->channel, 4);
    dd_put_number(out + SHORT_AT_CREDIT, frame->credit, 4);
    dd_put_number(out + SHORT_AT_CONTEXT, frame->context, 8);
    dd_put_number(out + SHORT_AT_TAG, frame->tag, 8);
    dd_put_number(out + SHORT_AT_SOURCE, frame->source, 4);
    dd_put_number(out + SHORT_AT_TARGET, frame->target, 4);
    return DD_FRAME_SHORT_NBYTES;
}

size_t
dd_frame_encode(const dd_frame *frame, uint8_t out[DD_FRAME_NBYTES])
{
    if (is_short(frame)) {
        return encode_short(frame, out);
    }
    out[AT_MAGIC] = MAGIC;
    out[AT_TYPE] = (uint8_t)frame->type;
    out[AT_KIND] = (uint8_t)frame->kind;
    out[AT_REASON] = (uint8_t)frame->reason;
    dd_put_number(out + AT_CHANNEL, frame->channel, 4);
    dd_put_number(out + AT_CONTEXT, frame->context, 8);
    dd_put_number(out + AT_TAG, frame->tag, 8);
    dd_put_number(out + AT_ID, frame->id, 8);
    dd_put_number(out + AT_OFFSET, frame->offset, 8);
    dd_put_number(out + AT_NBYTES, frame->nbytes, 8);
    dd_put_number(out + AT_PAYLOAD, frame->payload, 4);
    dd_put_number(out + AT_CREDIT, frame->credit, 4);
    dd_put_number(out + AT_SOURCE, frame->source, 4);
    dd_put_number(out + AT_TARGET, frame->target, 4);
    out[AT_COLL] = frame->signature.coll;
    out[AT_DTYPE] = frame->signature.dtype;
    out[AT_REDOP] = frame->signature.redop;
    out[AT_FLAGS] = frame->signature.flags;
    dd_put_number(out + AT_ROOT, frame->signature.root, 4);
    dd_put_number(out + AT_COUNT, frame->signature.count, 8);
    dd_put_number(out + AT_FACTOR, frame->signature.factor_bits, 8);
    return DD_FRAME_NBYTES;
}

size_t
dd_frame_header_nbytes(uint8_t first)
{
    return first == MAGIC_SHORT ? DD_FRAME_SHORT_NBYTES : DD_FRAME_NBYTES;
}

static void
read_fields(const uint8_t *in, dd_frame *frame)
{
    frame->type = (dd_frame_type)in[AT_TYPE];
    frame->kind = (dd_message_kind)in[AT_KIND];
    frame->reason = (dd_refusal)in[AT_REASON];
    frame->channel = (uint32_t)dd_get_number(in + AT_CHANNEL, 4);
    frame->context = dd_get_number(in + AT_CONTEXT, 8);
    frame->tag = dd_get_number(in + AT_TAG, 8);
    frame->id = dd_get_number(in + AT_ID, 8);
    frame->offset = dd_get_number(in + AT_OFFSET, 8);
    frame->nbytes = dd_get_number(in + AT_NBYTES, 8);
    frame->payload = (uint32_t)dd_get_number(in + AT_PAYLOAD, 4);
    frame->credit = (uint32_t)dd_get_number(in + AT_CREDIT, 4);
    frame->source = (uint32_t)dd_get_number(in + AT_SOURCE, 4);
    frame->target = (uint32_t)dd_get_number(in + AT_TARGET, 4);
    frame->signature.coll = in[AT_COLL];
    frame->signature.dtype = in[AT_DTYPE];
    frame->signature.redop = in[AT_REDOP];
    frame->signature.flags = in[AT_FLAGS];
    frame->signature.root = (uint32_t)dd_get_number(in + AT_ROOT, 4);
    frame->signature.count = dd_get_number(in + AT_COUNT, 8);
    frame->signature.factor_bits = dd_get_number(in + AT_FACTOR, 8);
}

/* False: its signature makes no sense. */
static bool
read_short(const uint8_t *in, dd_frame *frame)
{
    uint8_t dtype = in[SHORT_AT_DTYPE];
    uint8_t flags = in[SHORT_AT_FLAGS];
    uint32_t payload = (uint32_t)dd_get_number(in + SHORT_AT_PAYLOAD, 4);
    *frame = (dd_frame){
        .type = DD_FRAME_EAGER,
        .kind = (dd_message_kind)in[SHORT_AT_KIND],
        .channel = (uint32_t)dd_get_number(in + SHORT_AT_CHANNEL, 4),
        .context = dd_get_number(in + SHORT_AT_CONTEXT, 8),
        .tag = dd_get_number(in + SHORT_AT_TAG, 8),
        .nbytes = payload,
        .payload = payload,
        .credit = (uint32_t)dd_get_number(in + SHORT_AT_CREDIT, 4),
        .source = (uint32_t)dd_get_number(in + SHORT_AT_SOURCE, 4),
        .target = (uint32_t)dd_get_number(in + SHORT_AT_TARGET, 4),
    };
    if (flags == 0) {
        return dtype == 0;
    }
    if (flags != DD_SIGNATURE_TYPED || !dd_dtype_is_valid(dtype)) {
        return false;
    }
    frame->signature = typed_signature(dtype, payload);
    return true;
}

/* What is wrong with a frame of a known type; NULL if nothing is. */
static const char *
find_fault(const dd_frame *frame)
{
    switch (frame->type) {
    case DD_FRAME_EAGER:
        return frame->payload != frame->nbytes       ? "its payload is not its message"
               : frame->payload > DD_FRAME_EAGER_MAX ? "its payload is too large"
                                                     : NULL;
    case DD_FRAME_RTS:
        return frame->payload != 0 ? "it has a payload" : frame->id == 0 ? "it has no id" : NULL;
    case DD_FRAME_DATA:
        return frame->payload > DD_FRAME_FRAGMENT_MAX ? "its payload is too large"
               : frame->offset > frame->nbytes || frame->payload > frame->nbytes - frame->offset
                   ? "it is out of range"
               : frame->payload == 0 && frame->nbytes != 0 ? "it is empty"
                                                           : NULL;
    case DD_FRAME_REFUSE:
        return frame->reason < DD_REFUSED_TOO_LARGE || frame->reason > DD_REFUSED_CLOSED
                   ? "its reason is unknown"
               : frame->payload != 0 ? "it has a payload"
                                     : NULL;
    case DD_FRAME_ABORT:
        return frame->payload < DD_CAUSE_HEAD_NBYTES || frame->payload > DD_CAUSE_MAX_NBYTES
                   ? "its payload is no cause"
                   : NULL;
    case DD_FRAME_ANSWER:
        return frame->payload != 0 ? "it has a payload" : frame->offset > 1 ? "it is no answer" : NULL;
    case DD_FRAME_CTS:
    case DD_FRAME_CANCEL:
    case DD_FRAME_CREDIT:
    case DD_FRAME_QUESTION:
    case DD_FRAME_GOODBYE:
    case DD_FRAME_BYE:
        return frame->payload != 0 ? "it has a payload" : NULL;
    }
    return "its type is unknown";
}

dd_status
dd_frame_decode(const uint8_t *in, dd_frame *frame, dd_error *err)
{
    bool is_short_one = in[AT_MAGIC] == MAGIC_SHORT;
    if (in[AT_MAGIC] != MAGIC && !is_short_one) {
        return dd_error_set(err, DD_PROTOCOL, "a frame begins with 0x%02x instead of 0x%02x or 0x%02x",
                            in[AT_MAGIC], MAGIC, MAGIC_SHORT);
    }
    uint8_t kind = in[is_short_one ? (int)SHORT_AT_KIND : (int)AT_KIND];
    if (kind > DD_MESSAGE_WINDOW) {
        return dd_error_set(err, DD_PROTOCOL, "a frame has a message of kind %d", kind);
    }
    bool is_clear = true;
    if (is_short_one) {
        is_clear = read_short(in, frame);
    } else {
        read_fields(in, frame);
    }
    const char *fault = is_clear ? find_fault(frame) : "its dtype is unknown";
    if (fault == NULL) {
        return DD_OK;
    }
    return dd_error_set(
        err, DD_PROTOCOL,
        "a frame of type %d (%s) makes no sense: %s (payload %lu, offset %llu, message %llu bytes)",
        (int)frame->type, dd_frame_type_name(frame->type), fault, (unsigned long)frame->payload,
        (unsigned long long)frame->offset, (unsigned long long)frame->nbytes);
}

const char *
dd_frame_type_name(dd_frame_type type)
{
    static const char *const names[] = {"unknown", "EAGER",   "RTS",    "CTS",   "DATA",
                                        "REFUSE",  "CANCEL",  "CREDIT", "ABORT", "QUESTION",
                                        "ANSWER",  "GOODBYE", "BYE"};
    return (unsigned)type < sizeof names / sizeof names[0] ? names[type] : names[0];
}
