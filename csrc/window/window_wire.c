#include "window/window_wire.h"

#include "core/little_endian.h"

#include <string.h>

/* Where the fields of a card are. */
enum {
    CARD_AT_STATUS = 0,
    CARD_AT_PAD_REGION = 4,
    CARD_AT_WINDOW = 8,
    CARD_AT_PAD_NBYTES = 16,
    CARD_AT_NBYTES = 24,
    CARD_AT_OFFSET = 32,
    CARD_AT_REGION = 40,
    CARD_AT_ZERO = 44,
};

/* The same of a note. */
enum {
    AT_TYPE = 0,
    AT_REFUSED = 1,
    AT_ZERO = 2, /* two bytes */
    AT_CHANNEL = 4,
    AT_WINDOW = 8,
    AT_OFFSET = 16,
    AT_NBYTES = 24,
};

/* What a type of note has. */
enum {
    HAS_CHANNEL = 1,
    HAS_OFFSET = 2,
    HAS_NBYTES = 4,
    HAS_DATA = 8,
};
static const uint8_t parts_of[] = {
    [DD_WINDOW_PUT] = HAS_CHANNEL | HAS_OFFSET | HAS_NBYTES | HAS_DATA,
    [DD_WINDOW_GET] = HAS_OFFSET | HAS_NBYTES,
    [DD_WINDOW_GOT] = HAS_NBYTES | HAS_DATA,
    [DD_WINDOW_ASK] = HAS_CHANNEL,
    [DD_WINDOW_DONE] = HAS_CHANNEL,
    [DD_WINDOW_CLOSED] = 0,
};

void
dd_window_card_encode(const dd_window_card *card, uint8_t out[DD_WINDOW_CARD_NBYTES])
{
    dd_put_number(out + CARD_AT_STATUS, (uint32_t)card->status, 4);
    dd_put_number(out + CARD_AT_PAD_REGION, card->pad_region, 4);
    dd_put_number(out + CARD_AT_WINDOW, card->window, 8);
    dd_put_number(out + CARD_AT_PAD_NBYTES, card->pad_nbytes, 8);
    dd_put_number(out + CARD_AT_NBYTES, card->nbytes, 8);
    dd_put_number(out + CARD_AT_OFFSET, card->data.offset, 8);
    dd_put_number(out + CARD_AT_REGION, card->data.region, 4);
    dd_put_number(out + CARD_AT_ZERO, 0, 4);
}

dd_status
dd_window_card_decode(const uint8_t in[DD_WINDOW_CARD_NBYTES], dd_window_card *card, dd_error *err)
{
    uint32_t code = (uint32_t)dd_get_number(in + CARD_AT_STATUS, 4);
    if (code >= DD_STATUS_COUNT) {
        return dd_error_set(err, DD_PROTOCOL, "the card of a window has status %lu", (unsigned long)code);
    }
    card->status = (dd_status)code;
    card->pad_region = (uint32_t)dd_get_number(in + CARD_AT_PAD_REGION, 4);
    card->window = dd_get_number(in + CARD_AT_WINDOW, 8);
    card->pad_nbytes = dd_get_number(in + CARD_AT_PAD_NBYTES, 8);
    card->nbytes = dd_get_number(in + CARD_AT_NBYTES, 8);
    card->data.offset = dd_get_number(in + CARD_AT_OFFSET, 8);
    card->data.region = (uint32_t)dd_get_number(in + CARD_AT_REGION, 4);
    if (card->data.offset > UINT64_MAX - card->nbytes) {
        return dd_error_set(err, DD_PROTOCOL, "the card of a window has %llu bytes from %llu",
                            (unsigned long long)card->nbytes, (unsigned long long)card->data.offset);
    }
    if (card->status == DD_OK && card->window == 0) {
        return dd_error_set(err, DD_PROTOCOL, "the card of a window has no number for it");
    }
    if (dd_get_number(in + CARD_AT_ZERO, 4) != 0) {
        return dd_error_set(err, DD_PROTOCOL, "the card of a window does not end in zeros");
    }
    return DD_OK;
}

bool
dd_window_note_has_data(const dd_window_note *note)
{
    return (parts_of[note->type] & HAS_DATA) != 0 && note->nbytes > DD_WINDOW_INLINE_MAX;
}

size_t
dd_window_note_inline_nbytes(const dd_window_note *note)
{
    bool has_data = (parts_of[note->type] & HAS_DATA) != 0;
    return has_data && note->nbytes <= DD_WINDOW_INLINE_MAX ? (size_t)note->nbytes : 0;
}

void
dd_window_note_encode(const dd_window_note *note, uint8_t out[DD_WINDOW_NOTE_NBYTES])
{
    memset(out, 0, DD_WINDOW_NOTE_NBYTES);
    out[AT_TYPE] = (uint8_t)note->type;
    out[AT_REFUSED] = note->is_refused ? 1 : 0;
    dd_put_number(out + AT_CHANNEL, note->channel, 4);
    dd_put_number(out + AT_WINDOW, note->window, 8);
    dd_put_number(out + AT_OFFSET, note->offset, 8);
    dd_put_number(out + AT_NBYTES, note->nbytes, 8);
}

/* What is wrong with a note by itself; NULL if nothing is. */
static const char *
find_fault(const uint8_t *in, const dd_window_note *note)
{
    if (in[AT_TYPE] < DD_WINDOW_PUT || in[AT_TYPE] > DD_WINDOW_CLOSED) {
        return "its type is unknown";
    }
    unsigned parts = parts_of[note->type];
    if (in[AT_ZERO] != 0 || in[AT_ZERO + 1] != 0) {
        return "it has no zeros where they belong";
    }
    if (in[AT_REFUSED] > 1 || (note->is_refused && (note->type != DD_WINDOW_GOT || note->nbytes != 0))) {
        return "it is no refusal";
    }
    if (note->window == 0) {
        return "it is about no window";
    }
    if (((parts & HAS_OFFSET) == 0 && note->offset != 0) ||
        ((parts & HAS_NBYTES) == 0 && note->nbytes != 0) || note->offset > UINT64_MAX - note->nbytes) {
        return "its place is wrong";
    }
    return (parts & HAS_CHANNEL) == 0 && note->channel != 0 ? "it has a channel" : NULL;
}

dd_status
dd_window_note_decode(dd_bytes message, dd_window_note *note, dd_error *err)
{
    if (message.len < DD_WINDOW_NOTE_NBYTES) {
        return dd_error_set(err, DD_PROTOCOL, "a note about a window has %zu bytes", message.len);
    }
    const uint8_t *in = message.data;
    *note = (dd_window_note){
        .type = (dd_window_note_type)in[AT_TYPE],
        .is_refused = in[AT_REFUSED] == 1,
        .channel = (uint32_t)dd_get_number(in + AT_CHANNEL, 4),
        .window = dd_get_number(in + AT_WINDOW, 8),
        .offset = dd_get_number(in + AT_OFFSET, 8),
        .nbytes = dd_get_number(in + AT_NBYTES, 8),
    };
    const char *fault = find_fault(in, note);
    if (fault == NULL && message.len != DD_WINDOW_NOTE_NBYTES + dd_window_note_inline_nbytes(note)) {
        fault = "its data are not as long as it says";
    }
    return fault == NULL
               ? DD_OK
               : dd_error_set(err, DD_PROTOCOL, "a note about window %llu of type %d makes no sense: %s",
                              (unsigned long long)note->window, in[AT_TYPE], fault);
}
