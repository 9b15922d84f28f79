#include "window/window_wire.h"

#include "core/little_endian.h"

/* ---- cards: numbers one after the other */

enum {
    CARD_STATUS,
    CARD_PAD_REGION,
    CARD_WINDOW,
    CARD_PAD,
    CARD_NBYTES,
    CARD_OFFSET,
    CARD_REGION,
    CARD_ZERO
};
static const uint8_t card_widths[] = {4, 4, 8, 8, 8, 8, 4, 4};
#define NCARD (sizeof card_widths)

void
dd_window_card_encode(const dd_window_card *card, uint8_t out[DD_WINDOW_CARD_NBYTES])
{
    const uint64_t numbers[NCARD] = {
        [CARD_STATUS] = (uint64_t)card->status, [CARD_PAD_REGION] = card->pad_region,
        [CARD_WINDOW] = card->window,           [CARD_PAD] = card->pad_nbytes,
        [CARD_NBYTES] = card->nbytes,           [CARD_OFFSET] = card->data.offset,
        [CARD_REGION] = card->data.region};
    for (size_t i = 0; i < NCARD; out += card_widths[i++]) {
        dd_put_number(out, numbers[i], card_widths[i]);
    }
}

dd_status
dd_window_card_decode(const uint8_t in[DD_WINDOW_CARD_NBYTES], dd_window_card *card, dd_error *err)
{
    uint64_t numbers[NCARD];
    for (size_t i = 0; i < NCARD; in += card_widths[i++]) {
        numbers[i] = dd_get_number(in, card_widths[i]);
    }
    if (numbers[CARD_STATUS] >= DD_STATUS_COUNT) {
        return dd_error_set(err, DD_PROTOCOL, "the card of a window has status %llu",
                            (unsigned long long)numbers[CARD_STATUS]);
    }
    if (numbers[CARD_OFFSET] > UINT64_MAX - numbers[CARD_NBYTES]) {
        return dd_error_set(err, DD_PROTOCOL, "the card of a window has %llu bytes from %llu",
                            (unsigned long long)numbers[CARD_NBYTES],
                            (unsigned long long)numbers[CARD_OFFSET]);
    }
    if (numbers[CARD_STATUS] == DD_OK && numbers[CARD_WINDOW] == 0) {
        return dd_error_set(err, DD_PROTOCOL, "the card of a window has no number for it");
    }
    if (numbers[CARD_ZERO] != 0) {
        return dd_error_set(err, DD_PROTOCOL, "the card of a window does not end in zeros");
    }
    *card = (dd_window_card){
        .status = (dd_status)numbers[CARD_STATUS],
        .pad_region = (uint32_t)numbers[CARD_PAD_REGION],
        .window = numbers[CARD_WINDOW],
        .pad_nbytes = numbers[CARD_PAD],
        .nbytes = numbers[CARD_NBYTES],
        .data = {.region = (uint32_t)numbers[CARD_REGION], .offset = numbers[CARD_OFFSET]},
    };
    return DD_OK;
}

/* ---- notes */

/* What a type of note has. */
enum {
    HAS_CHANNEL = 1,
    HAS_OFFSET = 2,
    HAS_WISH = 4, /* a number of bytes that the other side is to send */
    HAS_DATA = 8,
    HAS_ID = 16,
};
static const uint8_t parts_of[] = {
    [DD_WINDOW_PUT] = HAS_CHANNEL | HAS_OFFSET | HAS_DATA,
    [DD_WINDOW_GET] = HAS_OFFSET | HAS_WISH | HAS_ID,
    [DD_WINDOW_ALONE] = HAS_CHANNEL | HAS_ID,
    [DD_WINDOW_DROP] = HAS_ID,
    [DD_WINDOW_CLOSED] = 0,
};

dd_request
dd_window_note_encode(const dd_window_note *note)
{
    bool has_data = (parts_of[note->type] & HAS_DATA) != 0;
    return (dd_request){
        .tag = note->window,
        .channel = note->channel,
        .nbytes = has_data ? note->nbytes : 0,
        .signature = {.coll = (uint8_t)note->type,
                      .root = note->id,
                      .count = note->offset,
                      .factor_bits = has_data ? 0 : note->nbytes},
    };
}

/* What is wrong with a note by itself; NULL if nothing is. */
static const char *
find_fault(const dd_request *request)
{
    const dd_signature *numbers = &request->signature;
    if (numbers->coll < DD_WINDOW_PUT || numbers->coll > DD_WINDOW_CLOSED) {
        return "its type is unknown";
    }
    unsigned parts = parts_of[numbers->coll];
    if (numbers->dtype != 0 || numbers->redop != 0 || numbers->flags != 0) {
        return "it has no zeros where they belong";
    }
    if (request->tag == 0) {
        return "it is about no window";
    }
    if (((parts & HAS_ID) != 0) != (numbers->root != 0)) {
        return "its id is wrong";
    }
    if (((parts & HAS_OFFSET) == 0 && numbers->count != 0) ||
        ((parts & HAS_WISH) == 0 && numbers->factor_bits != 0) ||
        numbers->count > UINT64_MAX - (request->nbytes | numbers->factor_bits)) {
        return "its place is wrong";
    }
    if ((parts & HAS_DATA) == 0 && request->nbytes != 0) {
        return "it has data";
    }
    return (parts & HAS_CHANNEL) == 0 && request->channel != 0 ? "it has a channel" : NULL;
}

dd_status
dd_window_note_decode(const dd_request *request, dd_window_note *note, dd_error *err)
{
    const dd_signature *numbers = &request->signature;
    const char *fault = find_fault(request);
    if (fault != NULL) {
        return dd_error_set(err, DD_PROTOCOL, "a note about window %llu of type %d makes no sense: %s",
                            (unsigned long long)request->tag, numbers->coll, fault);
    }
    *note = (dd_window_note){
        .type = (dd_window_note_type)numbers->coll,
        .channel = request->channel,
        .id = numbers->root,
        .window = request->tag,
        .offset = numbers->count,
        .nbytes = numbers->coll == DD_WINDOW_GET ? numbers->factor_bits : request->nbytes,
    };
    return DD_OK;
}
