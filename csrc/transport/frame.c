#include "transport/frame.h"

#include "core/dtype.h"
#include "transport/cause.h"

#include <string.h>

#define MAGIC 0xd1u
#define MAGIC_SHORT 0xd2u

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "the numbers of frames are little endian; this file copies them as they are"
#endif

typedef struct short_header {
    uint8_t magic;
    uint8_t kind;
    uint8_t dtype;
    uint8_t flags;
    uint32_t payload;
    uint32_t channel;
    uint32_t credit;
    uint64_t context;
    uint64_t tag;
    uint32_t source;
    uint32_t target;
} short_header;

_Static_assert(sizeof(dd_frame) == DD_FRAME_NBYTES, "no field is padded");
_Static_assert(sizeof(short_header) == DD_FRAME_SHORT_NBYTES, "no field is padded");

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
        implied = dd_signature_of_message((dd_dtype)signature->dtype, frame->payload);
    }
    return memcmp(signature, &implied, sizeof implied) == 0;
}

size_t
dd_frame_encode(const dd_frame *frame, uint8_t out[DD_FRAME_NBYTES])
{
    if (!is_short(frame)) {
        memcpy(out, frame, sizeof *frame);
        out[0] = MAGIC;
        return DD_FRAME_NBYTES;
    }
    short_header header = {
        .magic = MAGIC_SHORT,
        .kind = frame->kind,
        .dtype = frame->signature.dtype,
        .flags = frame->signature.flags,
        .payload = frame->payload,
        .channel = frame->channel,
        .credit = frame->credit,
        .context = frame->context,
        .tag = frame->tag,
        .source = frame->source,
        .target = frame->target,
    };
    memcpy(out, &header, sizeof header);
    return DD_FRAME_SHORT_NBYTES;
}

size_t
dd_frame_header_nbytes(uint8_t first)
{
    return first == MAGIC_SHORT ? DD_FRAME_SHORT_NBYTES : DD_FRAME_NBYTES;
}

/* Decode a short header. Returns false if the signature in it is invalid. */
static bool
read_short(const uint8_t *in, dd_frame *frame)
{
    short_header header;
    memcpy(&header, in, sizeof header);
    *frame = (dd_frame){
        .type = DD_FRAME_EAGER,
        .kind = header.kind,
        .channel = header.channel,
        .context = header.context,
        .tag = header.tag,
        .nbytes = header.payload,
        .payload = header.payload,
        .credit = header.credit,
        .source = header.source,
        .target = header.target,
    };
    if (header.flags == 0) {
        return header.dtype == 0;
    }
    if (header.flags != DD_SIGNATURE_TYPED || !dd_dtype_is_valid(header.dtype)) {
        return false;
    }
    frame->signature = dd_signature_of_message((dd_dtype)header.dtype, header.payload);
    return true;
}

/* Return a description of the first invalid field of a frame whose type is known; NULL if valid. */
static const char *
frame_find_fault(const dd_frame *frame)
{
    switch ((dd_frame_type)frame->type) {
    case DD_FRAME_EAGER:
        return frame->payload != frame->nbytes       ? "payload and message differ in size"
               : frame->payload > DD_FRAME_EAGER_MAX ? "payload too large"
                                                     : NULL;
    case DD_FRAME_RTS:
        return frame->payload != 0 ? "unexpected payload" : frame->id == 0 ? "no id" : NULL;
    case DD_FRAME_DATA:
        return frame->payload > DD_FRAME_FRAGMENT_MAX ? "payload too large"
               : frame->offset > frame->nbytes || frame->payload > frame->nbytes - frame->offset
                   ? "data out of range"
               : frame->payload == 0 && frame->nbytes != 0 ? "no payload"
                                                           : NULL;
    case DD_FRAME_REFUSE:
        return frame->reason < DD_REFUSED_TOO_LARGE || frame->reason > DD_REFUSED_CLOSED ? "unknown reason"
               : frame->payload != 0 ? "unexpected payload"
                                     : NULL;
    case DD_FRAME_ABORT:
        return frame->payload < DD_CAUSE_HEAD_NBYTES || frame->payload > DD_CAUSE_MAX_NBYTES
                   ? "wrong payload size"
                   : NULL;
    case DD_FRAME_ANSWER:
        return frame->payload != 0 ? "unexpected payload" : frame->offset > 1 ? "not an answer" : NULL;
    case DD_FRAME_CTS:
    case DD_FRAME_CANCEL:
    case DD_FRAME_CREDIT:
    case DD_FRAME_QUESTION:
    case DD_FRAME_GOODBYE:
    case DD_FRAME_BYE:
        return frame->payload != 0 ? "unexpected payload" : NULL;
    }
    return "unknown type";
}

dd_status
dd_frame_decode(const uint8_t *in, dd_frame *frame, dd_error *err)
{
    bool is_clear = true;
    if (in[0] == MAGIC_SHORT) {
        is_clear = read_short(in, frame);
    } else if (in[0] == MAGIC) {
        memcpy(frame, in, sizeof *frame);
        frame->magic = 0;
    } else {
        return dd_error_set(err, DD_PROTOCOL,
                            "malformed frame: first byte: got 0x%02x, expected 0x%02x or 0x%02x", in[0],
                            MAGIC, MAGIC_SHORT);
    }
    if (frame->kind > DD_MESSAGE_WINDOW) {
        return dd_error_set(err, DD_PROTOCOL, "malformed frame: message kind: got %d, expected 0 to %d",
                            frame->kind, DD_MESSAGE_WINDOW);
    }
    const char *fault = is_clear ? frame_find_fault(frame) : "unknown dtype";
    if (fault == NULL) {
        return DD_OK;
    }
    return dd_error_set(err, DD_PROTOCOL,
                        "malformed frame of type %d (%s): %s (payload %lu, offset %llu, message %llu bytes)",
                        (int)frame->type, dd_frame_type_name((dd_frame_type)frame->type), fault,
                        (unsigned long)frame->payload, (unsigned long long)frame->offset,
                        (unsigned long long)frame->nbytes);
}

const char *
dd_frame_type_name(dd_frame_type type)
{
    static const char *const names[] = {"unknown", "EAGER",   "RTS",    "CTS",   "DATA",
                                        "REFUSE",  "CANCEL",  "CREDIT", "ABORT", "QUESTION",
                                        "ANSWER",  "GOODBYE", "BYE"};
    return (unsigned)type < sizeof names / sizeof names[0] ? names[type] : names[0];
}
