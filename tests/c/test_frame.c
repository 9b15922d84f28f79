#include "check.h"
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
        .signature = {.coll = 1, .dtype = 2, .redop = 3, .flags = 4, .root = 5, .count = 6, .factor_bits = 7},
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

TEST(every_type_comes_out_as_it_went_in)
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
        dd_frame_put_credit(bytes, 12345);
        REQUIRE_OK(dd_frame_decode(bytes, &out, check_err()));
        CHECK_INT(out.credit, 12345);
        CHECK(strcmp(dd_frame_type_name(out.type), "unknown") != 0);
    }
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

TEST(frames_that_make_no_sense)
{
    dd_frame frame = sample(DD_FRAME_EAGER);
    frame.nbytes++;
    check_refused(&frame, "its payload is not its message");
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
    check_refused(&frame, "empty");
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
    check_refused(&frame, "no answer");
    frame = sample(DD_FRAME_ABORT);
    frame.payload = DD_CAUSE_MAX_NBYTES + 1;
    check_refused(&frame, "no cause");
    frame.payload = DD_CAUSE_HEAD_NBYTES - 1;
    check_refused(&frame, "no cause");
    frame = sample(DD_FRAME_CTS);
    frame.payload = 1;
    check_refused(&frame, "payload");
    check_refused(&(dd_frame){.type = (dd_frame_type)13}, "unknown");
    check_refused(&(dd_frame){.type = (dd_frame_type)0}, "unknown");
    check_refused(&(dd_frame){.type = DD_FRAME_BYE, .kind = (dd_message_kind)3}, "kind 3");
    uint8_t zeros[DD_FRAME_NBYTES] = {0};
    CHECK_STATUS(dd_frame_decode(zeros, &frame, check_err()), DD_PROTOCOL);
}
