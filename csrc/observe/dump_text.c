#include "observe/dump_internal.h"

#define REPLACEMENT UINT32_C(0xFFFD)

void
dump_put_bytes(dump_writer *writer, const void *data, size_t len)
{
    if (writer->status == DD_OK) {
        writer->status = dd_blob_append(writer->out, data, len, writer->err);
    }
}

/* How many bytes the character has that begins so; 0: none begins so. */
static size_t
length_of(uint8_t first)
{
    if (first < 0x80) {
        return 1;
    }
    if (first >= 0xC2 && first < 0xE0) {
        return 2;
    }
    if (first >= 0xE0 && first < 0xF0) {
        return 3;
    }
    return first >= 0xF0 && first < 0xF5 ? 4 : 0;
}

/* False for what could be written shorter, for halves of pairs, and for what is past the last character. */
static bool
is_allowed(uint32_t character, size_t len)
{
    static const uint32_t smallest[] = {0, 0, 0x80, 0x800, 0x10000};
    bool is_half = character >= 0xD800 && character < 0xE000;
    return character >= smallest[len] && character <= 0x10FFFF && !is_half;
}

static void
skip(dd_bytes *text, size_t len)
{
    text->data += len;
    text->len -= len;
}

uint32_t
dump_next_character(dd_bytes *text)
{
    static const uint8_t first_mask[] = {0, 0x7F, 0x1F, 0x0F, 0x07};
    size_t len = length_of(text->data[0]);
    uint32_t character = text->data[0] & first_mask[len];
    bool is_whole = len > 0 && len <= text->len;
    for (size_t i = 1; is_whole && i < len; i++) {
        is_whole = (text->data[i] & 0xC0) == 0x80;
        character = (character << 6) | (text->data[i] & 0x3F);
    }
    if (!is_whole || !is_allowed(character, len)) {
        skip(text, 1);
        return REPLACEMENT;
    }
    skip(text, len);
    return character;
}
