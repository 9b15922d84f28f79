/* A peer's messages about windows. Accepted ones have fields within their limits and are encoded to
 * the same bytes again. */
#include "window/window_wire.h"

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
check_part(const uint8_t *data)
{
    dd_window_part part;
    dd_error error;
    if (dd_window_part_decode(data, &part, &error) != DD_OK) {
        check(error.code == DD_PROTOCOL);
        return;
    }
    check(part.status >= DD_OK && part.status < DD_STATUS_COUNT);
    check(part.data.offset + part.nbytes >= part.nbytes);
    uint8_t again[DD_WINDOW_PART_NBYTES];
    dd_window_part_encode(&part, again);
    check(memcmp(again, data, sizeof again) == 0);
}

/* The head of a message, as in the transport's frame. */
static void
check_note(const uint8_t *data)
{
    dd_request head = {.nbytes = 0};
    dd_window_command command;
    dd_error error;
    memcpy(&head.tag, data, 8);
    memcpy(&head.channel, data + 8, 4);
    memcpy(&head.nbytes, data + 12, 8);
    memcpy(&head.signature, data + 20, sizeof head.signature);
    if (dd_window_command_decode(&head, &command, &error) != DD_OK) {
        check(error.code == DD_PROTOCOL);
        return;
    }
    check(command.type >= DD_WINDOW_PUT && command.type <= DD_WINDOW_CLOSED);
    check(command.offset + command.nbytes >= command.nbytes);
    check(command.window != 0);
    check((command.type == DD_WINDOW_PUT ? command.nbytes : 0) == head.nbytes);
    dd_request again = dd_window_command_encode(&command);
    check(again.tag == head.tag && again.channel == head.channel && again.nbytes == head.nbytes);
    check(memcmp(&again.signature, &head.signature, sizeof again.signature) == 0);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size >= DD_WINDOW_PART_NBYTES) {
        check_part(data);
        check_note(data);
    }
    return 0;
}
