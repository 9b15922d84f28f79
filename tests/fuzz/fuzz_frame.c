/* A frame from a peer, and the cause in an ABORT frame. Accepted ones have fields within their
 * limits and are encoded to the same bytes again. */
#include "transport/cause.h"
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
    /* The encoder may choose a shorter header. */
    uint8_t again[DD_FRAME_NBYTES];
    size_t nbytes = dd_frame_encode(&frame, again);
    check(nbytes == dd_frame_header_nbytes(again[0]) && nbytes <= dd_frame_header_nbytes(data[0]));
    if (nbytes == dd_frame_header_nbytes(data[0])) {
        check(memcmp(again, data, nbytes) == 0);
    }
    dd_frame same;
    check(dd_frame_decode(again, &same, NULL) == DD_OK);
    uint8_t once_more[DD_FRAME_NBYTES];
    check(dd_frame_encode(&same, once_more) == nbytes && memcmp(once_more, again, nbytes) == 0);
}

/* The first byte is the number of ranks. */
static void
check_cause(const uint8_t *data, size_t size)
{
    int nranks = data[0] + 1;
    dd_cause cause;
    dd_error fault;
    if (dd_cause_decode(dd_bytes_of(data + 1, size - 1), nranks, &cause, &fault) != DD_OK) {
        check(fault.code == DD_PROTOCOL);
        return;
    }
    check(cause.code > DD_OK && (int)cause.code < DD_STATUS_COUNT);
    check(cause.origin >= 0 && cause.origin < nranks);
    check(cause.blamed.rank >= -1 && cause.blamed.rank < nranks);
    check(cause.other >= -1 && cause.other < nranks);
    check(memchr(cause.text, '\0', sizeof cause.text) != NULL);
    check(memchr(cause.blamed.host, '\0', sizeof cause.blamed.host) != NULL);
    uint8_t again[DD_CAUSE_MAX_NBYTES];
    check(dd_cause_encode(&cause, again) == size - 1);
    check(memcmp(again, data + 1, size - 1) == 0);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size > 0 && size >= dd_frame_header_nbytes(data[0])) {
        size_t nbytes = dd_frame_header_nbytes(data[0]);
        check_frame(data);
        data += nbytes;
        size -= nbytes;
    }
    if (size > 0) {
        check_cause(data, size);
    }
    return 0;
}
