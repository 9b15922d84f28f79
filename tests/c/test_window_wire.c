/* The wire format of windows. */
#include "check.h"
#include "window/window_wire.h"

#include <string.h>

static const dd_window_command examples[] = {
    {.type = DD_WINDOW_PUT, .channel = 3, .window = 1, .offset = 77, .nbytes = 4},
    {.type = DD_WINDOW_PUT, .channel = DD_WINDOW_NO_CHANNEL, .window = 9, .nbytes = 100000},
    {.type = DD_WINDOW_PUT, .window = 2},
    {.type = DD_WINDOW_GET, .id = 8, .window = 2, .offset = UINT64_C(1) << 40, .nbytes = 1000000},
    {.type = DD_WINDOW_GET, .id = UINT32_MAX, .window = 2},
    {.type = DD_WINDOW_SIGNAL_ALONE, .channel = 1, .id = 3, .window = 2},
    {.type = DD_WINDOW_WITHDRAW, .id = 3, .window = 2},
    {.type = DD_WINDOW_CLOSED, .window = UINT64_MAX},
};
#define NEXAMPLES (sizeof examples / sizeof examples[0])

TEST(window_commands_are_decoded_as_they_were_encoded)
{
    for (size_t i = 0; i < NEXAMPLES; i++) {
        dd_window_command back;
        dd_request head = dd_window_command_encode(&examples[i]);
        CHECK_INT(head.nbytes, examples[i].type == DD_WINDOW_PUT ? examples[i].nbytes : 0);
        REQUIRE_OK(dd_window_command_decode(&head, &back, check_err()));
        CHECK_INT(back.type, examples[i].type);
        CHECK_INT(back.id, examples[i].id);
        CHECK_INT(back.channel, examples[i].channel);
        CHECK(back.window == examples[i].window);
        CHECK(back.offset == examples[i].offset && back.nbytes == examples[i].nbytes);
    }
}

static void
check_head_refused(const dd_request *head, const char *why)
{
    dd_window_command back;
    CHECK_STATUS(dd_window_command_decode(head, &back, check_err()), DD_PROTOCOL);
    CHECK_CONTAINS(check_message(), why);
}

static void
check_refused(const dd_window_command *command, const char *why)
{
    dd_request head = dd_window_command_encode(command);
    check_head_refused(&head, why);
}

TEST(malformed_window_commands_are_refused)
{
    check_head_refused(&(dd_request){.tag = 1}, "unknown type");
    check_head_refused(&(dd_request){.tag = 1, .signature = {.coll = DD_WINDOW_CLOSED + 1}}, "unknown type");
    check_head_refused(&(dd_request){.tag = 1, .nbytes = 1, .signature = {.coll = DD_WINDOW_CLOSED}},
                       "unexpected data");
    check_head_refused(&(dd_request){.tag = 1, .signature = {.coll = DD_WINDOW_PUT, .flags = 1}},
                       "reserved fields are not zero");
    check_head_refused(&(dd_request){.tag = 1, .signature = {.coll = DD_WINDOW_PUT, .dtype = 1}},
                       "reserved fields are not zero");
    check_refused(&(dd_window_command){.type = DD_WINDOW_CLOSED}, "no window number");
    check_refused(&(dd_window_command){.type = DD_WINDOW_PUT, .window = 1, .offset = UINT64_MAX, .nbytes = 1},
                  "wrong offset or size");
    check_refused(&(dd_window_command){.type = DD_WINDOW_SIGNAL_ALONE, .id = 1, .window = 1, .nbytes = 1},
                  "wrong offset or size");
    check_refused(&(dd_window_command){.type = DD_WINDOW_GET, .id = 1, .window = 1, .channel = 1},
                  "unexpected channel");
    check_refused(&(dd_window_command){.type = DD_WINDOW_GET, .window = 1}, "wrong id");
    check_refused(&(dd_window_command){.type = DD_WINDOW_PUT, .id = 1, .window = 1}, "wrong id");
}

TEST(the_description_of_a_ranks_window_is_decoded_as_it_was_encoded)
{
    dd_window_part part = {.pad_region = 4,
                           .window = 5,
                           .pad_nbytes = 2048,
                           .nbytes = 1 << 20,
                           .data = {.region = 6, .offset = 64},
                           .dtype = DD_DTYPE_FLOAT64};
    uint8_t bytes[DD_WINDOW_PART_NBYTES];
    dd_window_part back;
    dd_window_part_encode(&part, bytes);
    REQUIRE_OK(dd_window_part_decode(bytes, &back, check_err()));
    CHECK(back.status == DD_OK && back.pad_region == 4 && back.window == 5 && back.pad_nbytes == 2048);
    CHECK(back.nbytes == 1 << 20 && back.data.region == 6 && back.data.offset == 64);
    CHECK(back.dtype == DD_DTYPE_FLOAT64);
    part.dtype = (dd_dtype)DD_DTYPE_COUNT;
    dd_window_part_encode(&part, bytes);
    CHECK_STATUS(dd_window_part_decode(bytes, &back, check_err()), DD_PROTOCOL);
    part.dtype = DD_DTYPE_BOOL;
    part.status = (dd_status)DD_STATUS_COUNT;
    dd_window_part_encode(&part, bytes);
    CHECK_STATUS(dd_window_part_decode(bytes, &back, check_err()), DD_PROTOCOL);
    part.status = DD_OK;
    part.window = 0;
    dd_window_part_encode(&part, bytes);
    CHECK_STATUS(dd_window_part_decode(bytes, &back, check_err()), DD_PROTOCOL);
    part.window = 3;
    part.data.offset = UINT64_MAX;
    dd_window_part_encode(&part, bytes);
    CHECK_STATUS(dd_window_part_decode(bytes, &back, check_err()), DD_PROTOCOL);
}
