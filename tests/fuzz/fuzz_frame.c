/* A frame from a peer: what is accepted has fields within their limits, and comes out of the encoder as it
 * was. */
#include "transport/frame.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void
check(bool holds)
{
    if (!holds) {
        abort();
    }
}

static void
check_frame(const uint8_t *data)
{
    dd_frame frame;
    dd_error error;
    if (dd_frame_decode(data, &frame, &error) != DD_OK) {
        check(error.code == DD_PROTOCOL);
        return;
    }
    check(frame.payload <= DD_FRAME_FRAGMENT_MAX);
    check(frame.type != DD_FRAME_DATA ||
          (frame.offset <= frame.nbytes && frame.payload <= frame.nbytes - frame.offset));
    check(frame.type != DD_FRAME_EAGER || frame.payload == frame.nbytes);
    check(strcmp(dd_frame_type_name(frame.type), "unknown") != 0);
    uint8_t again[DD_FRAME_NBYTES];
    dd_frame_encode(&frame, again);
    check(memcmp(again, data, sizeof again) == 0);
}

static void
check_error(const uint8_t *data, size_t size)
{
    dd_error error;
    dd_error fault;
    if (dd_frame_decode_error(dd_bytes_of(data, size), &error, &fault) == DD_OK) {
        check(error.code > DD_OK && error.code < DD_STATUS_COUNT);
        check(memchr(error.message, '\0', sizeof error.message) != NULL);
        check(memchr(error.culprit.host, '\0', sizeof error.culprit.host) != NULL);
        uint8_t out[DD_FRAME_ERROR_MAX];
        check(dd_frame_encode_error(&error, out) <= sizeof out);
    } else {
        check(fault.code == DD_PROTOCOL);
    }
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size >= DD_FRAME_NBYTES) {
        check_frame(data);
        data += DD_FRAME_NBYTES;
        size -= DD_FRAME_NBYTES;
    }
    check_error(data, size);
    return 0;
}
