/* What a peer says of windows: what is accepted has fields within their limits, and comes out of the encoder as it was. */
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
check_card(const uint8_t *data)
{
    dd_window_card card;
    dd_error error;
    if (dd_window_card_decode(data, &card, &error) != DD_OK) {
        check(error.code == DD_PROTOCOL);
        return;
    }
    check(card.status >= DD_OK && card.status < DD_STATUS_COUNT);
    check(card.data.offset + card.nbytes >= card.nbytes);
    uint8_t again[DD_WINDOW_CARD_NBYTES];
    dd_window_card_encode(&card, again);
    check(memcmp(again, data, sizeof again) == 0);
}

static void
check_note(const uint8_t *data, size_t size)
{
    dd_window_note note;
    dd_error error;
    if (dd_window_note_decode(dd_bytes_of(data, size), &note, &error) != DD_OK) {
        check(error.code == DD_PROTOCOL);
        return;
    }
    size_t inlined = dd_window_note_inline_nbytes(&note);
    check(size == DD_WINDOW_NOTE_NBYTES + inlined && inlined <= DD_WINDOW_INLINE_MAX);
    check(!dd_window_note_has_data(&note) || (inlined == 0 && note.nbytes > DD_WINDOW_INLINE_MAX));
    check(note.offset + note.nbytes >= note.nbytes);
    check(note.window != 0);
    uint8_t again[DD_WINDOW_NOTE_NBYTES];
    dd_window_note_encode(&note, again);
    check(memcmp(again, data, sizeof again) == 0);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size >= DD_WINDOW_CARD_NBYTES) {
        check_card(data);
    }
    check_note(data, size);
    return 0;
}
