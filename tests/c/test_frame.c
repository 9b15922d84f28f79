#include "check.h"
#include "core/dtype.h"
#include "transport/frame.h"

#include <string.h>

static dd_frame
sample(dd_frame_type type)
{
    dd_frame frame = {
        .type = type,
        .kind = DD_MESSAGE_COLL,
        .channel = 0x01020304,
        .context = UINT64_C(0x1122334455667788),
        .tag = UINT64_MAX,
        .id = 9,
        .credit = 77,
        .source = 3,
        .target = 4,
        .signature = {.coll = 1, .dtype = 2, .redop = 3, .flags = 4, .root = 5, .count = 6, .extra_bits = 7},
    };
    if (type == DD_FRAME_EAGER) {
        frame.payload = 1000;
        frame.nbytes = 1000;
    } else if (type == DD_FRAME_DATA) {
        frame.offset = 10;
        frame.payload = 20;
        frame.nbytes = 30;
    } else if (type == DD_FRAME_ABORT) {
        frame.payload = 200;
    } else if (type == DD_FRAME_REFUSE) {
        frame.reason = DD_REFUSED_MISMATCH;
    } else if (type == DD_FRAME_ANSWER) {
        frame.offset = 1;
    }
    return frame;
}

TEST(every_type_of_frame_is_decoded_as_it_was_encoded)
{
    for (int type = DD_FRAME_EAGER; type <= DD_FRAME_BYE; type++) {
        dd_frame in = sample((dd_frame_type)type);
        dd_frame out;
        uint8_t bytes[DD_FRAME_NBYTES];
        dd_frame_encode(&in, bytes);
        REQUIRE_OK(dd_frame_decode(bytes, &out, check_err()));
        uint8_t again[DD_FRAME_NBYTES];
        dd_frame_encode(&out, again);
        CHECK_BYTES(dd_bytes_of(again, sizeof again), dd_bytes_of(bytes, sizeof bytes));
        CHECK_INT(out.type, type);
        CHECK(out.tag == in.tag && out.context == in.context && out.channel == in.channel);
        CHECK(memcmp(&out.signature, &in.signature, sizeof in.signature) == 0);
        CHECK_INT(out.credit, 77);
        CHECK(strcmp(dd_frame_type_name(out.type), "unknown") != 0);
    }
}

static void
check_short(const dd_frame *in, size_t nbytes)
{
    uint8_t bytes[DD_FRAME_NBYTES];
    dd_frame out;
    CHECK_INT(dd_frame_encode(in, bytes), nbytes);
    CHECK_INT(dd_frame_header_nbytes(bytes[0]), nbytes);
    REQUIRE_OK(dd_frame_decode(bytes, &out, check_err()));
    CHECK(out.type == in->type && out.kind == in->kind && out.channel == in->channel);
    CHECK(out.context == in->context && out.tag == in->tag && out.credit == in->credit);
    CHECK(out.nbytes == in->nbytes && out.payload == in->payload);
    CHECK(out.source == in->source && out.target == in->target);
    CHECK(memcmp(&out.signature, &in->signature, sizeof in->signature) == 0);
}

TEST(a_message_that_fits_into_one_frame_has_a_short_header)
{
    dd_frame frame = sample(DD_FRAME_EAGER);
    check_short(&frame, DD_FRAME_NBYTES); /* there is no space for a collective's signature */
    frame.id = 0;
    frame.kind = DD_MESSAGE_WINDOW;
    frame.signature = (dd_signature){.dtype = 0};
    check_short(&frame, DD_FRAME_SHORT_NBYTES);
    for (unsigned dtype = 0; dd_dtype_is_valid(dtype); dtype++) {
        frame.kind = DD_MESSAGE_P2P;
        frame.signature = (dd_signature){.dtype = (uint8_t)dtype,
                                         .flags = DD_SIGNATURE_TYPED,
                                         .count = 1000 / dd_dtype_size((dd_dtype)dtype)};
        check_short(&frame, DD_FRAME_SHORT_NBYTES);
    }
    /* the signature belongs to another frame, but is decoded as it was encoded */
    frame.signature.count++;
    check_short(&frame, DD_FRAME_NBYTES);
    frame = sample(DD_FRAME_RTS);
    frame.signature = (dd_signature){.dtype = 0};
    check_short(&frame, DD_FRAME_NBYTES);
}

TEST(malformed_short_frame_headers_are_refused)
{
    uint8_t bytes[DD_FRAME_NBYTES];
    dd_frame frame = {.type = DD_FRAME_EAGER, .nbytes = 8, .payload = 8};
    CHECK_INT(dd_frame_encode(&frame, bytes), DD_FRAME_SHORT_NBYTES);
    for (unsigned at = 1; at <= 7; at++) { /* kind, dtype, flags, payload */
        uint8_t kept = bytes[at];
        bytes[at] = at == 4 ? kept : 200;
        bool is_fine = at == 4 || at == 5; /* a payload of 51 KB */
        CHECK_STATUS(dd_frame_decode(bytes, &frame, check_err()), is_fine ? DD_OK : DD_PROTOCOL);
        bytes[at] = kept;
    }
    bytes[3] = 1; /* typed */
    bytes[2] = 250;
    CHECK_STATUS(dd_frame_decode(bytes, &frame, check_err()), DD_PROTOCOL);
    CHECK_CONTAINS(check_message(), "unknown dtype");
}

static void
check_refused(const dd_frame *frame, const char *why)
{
    uint8_t bytes[DD_FRAME_NBYTES];
    dd_frame out;
    dd_frame_encode(frame, bytes);
    CHECK_STATUS(dd_frame_decode(bytes, &out, check_err()), DD_PROTOCOL);
    CHECK_CONTAINS(check_message(), why);
}

TEST(malformed_frames_are_refused)
{
    dd_frame frame = sample(DD_FRAME_EAGER);
    frame.nbytes++;
    check_refused(&frame, "payload and message differ in size");
    frame.payload = DD_FRAME_EAGER_MAX + 1;
    frame.nbytes = frame.payload;
    check_refused(&frame, "too large");
    frame = sample(DD_FRAME_DATA);
    frame.offset = 11;
    check_refused(&frame, "out of range");
    frame.offset = UINT64_MAX;
    check_refused(&frame, "out of range");
    frame.offset = 31;
    frame.payload = 0;
    check_refused(&frame, "out of range");
    frame.offset = 0;
    check_refused(&frame, "no payload");
    frame.nbytes = frame.payload = DD_FRAME_FRAGMENT_MAX + 1;
    check_refused(&frame, "too large");
    frame = sample(DD_FRAME_RTS);
    frame.id = 0;
    check_refused(&frame, "no id");
    frame = sample(DD_FRAME_REFUSE);
    frame.reason = (dd_refusal)9;
    check_refused(&frame, "reason");
    frame = sample(DD_FRAME_ANSWER);
    frame.offset = 2;
    check_refused(&frame, "not an answer");
    frame = sample(DD_FRAME_ABORT);
    frame.payload = DD_CAUSE_MAX_NBYTES + 1;
    check_refused(&frame, "wrong payload size");
    frame.payload = DD_CAUSE_HEAD_NBYTES - 1;
    check_refused(&frame, "wrong payload size");
    frame = sample(DD_FRAME_CTS);
    frame.payload = 1;
    check_refused(&frame, "payload");
    check_refused(&(dd_frame){.type = (dd_frame_type)13}, "unknown");
    check_refused(&(dd_frame){.type = (dd_frame_type)0}, "unknown");
    check_refused(&(dd_frame){.type = DD_FRAME_BYE, .kind = (dd_message_kind)3}, "kind: got 3");
    uint8_t zeros[DD_FRAME_NBYTES] = {0};
    CHECK_STATUS(dd_frame_decode(zeros, &frame, check_err()), DD_PROTOCOL);
}
