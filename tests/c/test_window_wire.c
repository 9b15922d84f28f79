/* The bytes of windows. */
#include "check.h"
#include "window/window_wire.h"

#include <string.h>

static const dd_window_note examples[] = {
    {.type = DD_WINDOW_PUT, .channel = 3, .window = 1, .offset = 77, .nbytes = 4},
    {.type = DD_WINDOW_PUT, .channel = DD_WINDOW_NO_CHANNEL, .window = 9, .nbytes = DD_WINDOW_INLINE_MAX + 1},
    {.type = DD_WINDOW_PUT, .window = 2},
    {.type = DD_WINDOW_GET, .window = 2, .offset = UINT64_C(1) << 40, .nbytes = 1000000},
    {.type = DD_WINDOW_GOT, .window = 2, .nbytes = DD_WINDOW_INLINE_MAX},
    {.type = DD_WINDOW_GOT, .is_refused = true, .window = 2},
    {.type = DD_WINDOW_ASK, .channel = 1, .window = 2},
    {.type = DD_WINDOW_ASK, .channel = DD_WINDOW_NO_CHANNEL, .window = 2},
    {.type = DD_WINDOW_DONE, .channel = 1, .window = 2},
    {.type = DD_WINDOW_CLOSED, .window = UINT64_MAX},
};
#define NEXAMPLES (sizeof examples / sizeof examples[0])

TEST(notes_come_back)
{
    for (size_t i = 0; i < NEXAMPLES; i++) {
        static uint8_t bytes[DD_WINDOW_NOTE_NBYTES + DD_WINDOW_INLINE_MAX];
        dd_window_note back;
        dd_window_note_encode(&examples[i], bytes);
        size_t nbytes = DD_WINDOW_NOTE_NBYTES + dd_window_note_inline_nbytes(&examples[i]);
        REQUIRE_OK(dd_window_note_decode(dd_bytes_of(bytes, nbytes), &back, check_err()));
        CHECK_INT(back.type, examples[i].type);
        CHECK_INT(back.is_refused, examples[i].is_refused);
        CHECK_INT(back.channel, examples[i].channel);
        CHECK(back.window == examples[i].window);
        CHECK(back.offset == examples[i].offset && back.nbytes == examples[i].nbytes);
        CHECK_STATUS(dd_window_note_decode(dd_bytes_of(bytes, nbytes - 1), &back, check_err()), DD_PROTOCOL);
        CHECK_STATUS(dd_window_note_decode(dd_bytes_of(bytes, nbytes + 1), &back, check_err()), DD_PROTOCOL);
    }
}

static void
check_refused(const dd_window_note *note, const char *why)
{
    uint8_t bytes[DD_WINDOW_NOTE_NBYTES];
    dd_window_note back;
    dd_window_note_encode(note, bytes);
    CHECK_STATUS(dd_window_note_decode(dd_bytes_of(bytes, sizeof bytes), &back, check_err()), DD_PROTOCOL);
    CHECK_CONTAINS(check_message(), why);
}

TEST(notes_that_make_no_sense)
{
    check_refused(&(dd_window_note){.type = (dd_window_note_type)0, .window = 1}, "its type is unknown");
    check_refused(&(dd_window_note){.type = (dd_window_note_type)7, .window = 1}, "its type is unknown");
    check_refused(&(dd_window_note){.type = DD_WINDOW_CLOSED}, "it is about no window");
    check_refused(&(dd_window_note){.type = DD_WINDOW_PUT, .window = 1, .offset = UINT64_MAX, .nbytes = 1},
                  "its place is wrong");
    check_refused(&(dd_window_note){.type = DD_WINDOW_ASK, .window = 1, .nbytes = 1}, "its place is wrong");
    check_refused(&(dd_window_note){.type = DD_WINDOW_GET, .window = 1, .channel = 1}, "it has a channel");
    check_refused(&(dd_window_note){.type = DD_WINDOW_PUT, .window = 1, .is_refused = true},
                  "it is no refusal");
}

TEST(cards_come_back)
{
    dd_window_card card = {.pad_region = 4,
                           .window = 5,
                           .pad_nbytes = 2048,
                           .nbytes = 1 << 20,
                           .data = {.region = 6, .offset = 64}};
    uint8_t bytes[DD_WINDOW_CARD_NBYTES];
    dd_window_card back;
    dd_window_card_encode(&card, bytes);
    REQUIRE_OK(dd_window_card_decode(bytes, &back, check_err()));
    CHECK(back.status == DD_OK && back.pad_region == 4 && back.window == 5 && back.pad_nbytes == 2048);
    CHECK(back.nbytes == 1 << 20 && back.data.region == 6 && back.data.offset == 64);
    card.status = (dd_status)DD_STATUS_COUNT;
    dd_window_card_encode(&card, bytes);
    CHECK_STATUS(dd_window_card_decode(bytes, &back, check_err()), DD_PROTOCOL);
    card.status = DD_OK;
    card.window = 0;
    dd_window_card_encode(&card, bytes);
    CHECK_STATUS(dd_window_card_decode(bytes, &back, check_err()), DD_PROTOCOL);
    card.window = 3;
    card.data.offset = UINT64_MAX;
    dd_window_card_encode(&card, bytes);
    CHECK_STATUS(dd_window_card_decode(bytes, &back, check_err()), DD_PROTOCOL);
}
