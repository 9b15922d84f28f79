#include "window/window_wire.h"

#include "core/little_endian.h"

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

/* ---- notes */

/* What a type of note has. */
enum {
    HAS_CHANNEL = 1,
    HAS_OFFSET = 2,
    HAS_WISH = 4, /* a number of bytes that the other side is to send */
    HAS_DATA = 8,
};
static const uint8_t parts_of[] = {
    [DD_WINDOW_PUT] = HAS_CHANNEL | HAS_OFFSET | HAS_DATA,
    [DD_WINDOW_GET] = HAS_OFFSET | HAS_WISH,
    [DD_WINDOW_GOT] = HAS_DATA,
    [DD_WINDOW_ASK] = HAS_CHANNEL,
    [DD_WINDOW_DONE] = HAS_CHANNEL,
    [DD_WINDOW_CLOSED] = 0,
};

bool
dd_window_note_has_data(const dd_window_note *note)
{
    return (parts_of[note->type] & HAS_DATA) != 0 && note->nbytes > 0;
}

dd_request
dd_window_note_encode(const dd_window_note *note)
{
    bool has_data = dd_window_note_has_data(note);
    return (dd_request){
        .tag = note->window,
        .channel = note->channel,
        .nbytes = has_data ? note->nbytes : 0,
        .signature = {.coll = (uint8_t)note->type,
                      .flags = note->is_refused ? 1 : 0,
                      .count = note->offset,
                      .factor_bits = has_data ? 0 : note->nbytes},
    };
}

/* What is wrong with a note by itself; NULL if nothing is. */
static const char *
find_fault(const dd_request *request, const dd_window_note *note)
{
    const dd_signature *numbers = &request->signature;
    if (numbers->coll < DD_WINDOW_PUT || numbers->coll > DD_WINDOW_CLOSED) {
        return "its type is unknown";
    }
    unsigned parts = parts_of[numbers->coll];
    if (numbers->dtype != 0 || numbers->redop != 0 || numbers->root != 0) {
        return "it has no zeros where they belong";
    }
    if (numbers->flags > 1 || (note->is_refused && (note->type != DD_WINDOW_GOT || request->nbytes != 0))) {
        return "it is no refusal";
    }
    if (note->window == 0) {
        return "it is about no window";
    }
    if (((parts & HAS_OFFSET) == 0 && note->offset != 0) ||
        ((parts & HAS_WISH) == 0 && numbers->factor_bits != 0) || note->offset > UINT64_MAX - note->nbytes) {
        return "its place is wrong";
    }
    if ((parts & HAS_DATA) == 0 && request->nbytes != 0) {
        return "it has data";
    }
    return (parts & HAS_CHANNEL) == 0 && note->channel != 0 ? "it has a channel" : NULL;
}

dd_status
dd_window_note_decode(const dd_request *request, dd_window_note *note, dd_error *err)
{
    const dd_signature *numbers = &request->signature;
    *note = (dd_window_note){
        .type = (dd_window_note_type)numbers->coll,
        .is_refused = numbers->flags == 1,
        .channel = request->channel,
        .window = request->tag,
        .offset = numbers->count,
        .nbytes = numbers->coll == DD_WINDOW_GET ? numbers->factor_bits : request->nbytes,
    };
    const char *fault = find_fault(request, note);
    return fault == NULL
               ? DD_OK
               : dd_error_set(err, DD_PROTOCOL, "a note about window %llu of type %d makes no sense: %s",
                              (unsigned long long)note->window, numbers->coll, fault);
}
