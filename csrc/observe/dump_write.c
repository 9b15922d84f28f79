/* How values are written in either language. Pickles are programs for a machine with a stack. */
#include "observe/dump_internal.h"

#include "core/little_endian.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define REPLACEMENT UINT32_C(0xFFFD)

static void
put_bytes(dump_writer *writer, const void *data, size_t len)
{
    if (writer->status == DD_OK) {
        writer->status = dd_blob_append(writer->out, data, len, writer->err);
    }
}

static void
put_string(dump_writer *writer, const char *text)
{
    put_bytes(writer, text, strlen(text));
}

/* An instruction of a pickle, and its operand. */
static void
put_op(dump_writer *writer, char op, uint64_t operand, size_t nbytes)
{
    uint8_t bytes[9] = {(uint8_t)op};
    dd_put_number(bytes + 1, operand, nbytes);
    put_bytes(writer, bytes, 1 + nbytes);
}

/* ---- text */

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

/* Takes one character off the front of `text`: its number, or U+FFFD for a byte that is not UTF-8. There must be one. */
static uint32_t
next_character(dd_bytes *text)
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

/* In UTF-8. */
static size_t
encode(uint32_t character, uint8_t out[4])
{
    if (character < 0x80) {
        out[0] = (uint8_t)character;
        return 1;
    }
    size_t len = character < 0x800 ? 2 : character < 0x10000 ? 3 : 4;
    static const uint8_t marks[] = {0, 0, 0xC0, 0xE0, 0xF0};
    for (size_t i = len - 1; i > 0; i--) {
        out[i] = (uint8_t)(0x80 | (character & 0x3F));
        character >>= 6;
    }
    out[0] = (uint8_t)(marks[len] | character);
    return len;
}

static void
put_character(dump_writer *writer, uint32_t character)
{
    char escape[16];
    if (character == '"' || character == '\\') {
        snprintf(escape, sizeof escape, "\\%c", (char)character);
    } else if (character >= 0x20 && character < 0x7F) {
        snprintf(escape, sizeof escape, "%c", (char)character);
    } else if (character < 0x10000) {
        snprintf(escape, sizeof escape, "\\u%04x", (unsigned)character);
    } else {
        unsigned rest = (unsigned)character - 0x10000;
        snprintf(escape, sizeof escape, "\\u%04x\\u%04x", 0xD800 + (rest >> 10), 0xDC00 + (rest & 0x3FF));
    }
    put_string(writer, escape);
}

/* ---- containers */

/* What comes before a value in JSON. */
static void
begin_value(dump_writer *writer)
{
    if (writer->is_after_key) {
        writer->is_after_key = false;
        return;
    }
    if (writer->has_items[writer->depth]) {
        put_string(writer, ",");
    }
    writer->has_items[writer->depth] = true;
}

void
dump_start(dump_writer *writer)
{
    if (!writer->is_json) {
        put_op(writer, '\x80', 2, 1);
    }
}

void
dump_finish(dump_writer *writer)
{
    if (!writer->is_json) {
        put_string(writer, ".");
    }
}

void
dump_open(dump_writer *writer, dump_container container)
{
    if (writer->is_json) {
        begin_value(writer);
        put_string(writer, container == DUMP_DICT ? "{" : "[");
        writer->has_items[++writer->depth] = false;
    } else { /* an empty one and a mark; what lies above the mark in the end is put into it */
        put_string(writer, container == DUMP_DICT ? "}(" : container == DUMP_LIST ? "](" : "(");
    }
}

void
dump_close(dump_writer *writer, dump_container container)
{
    if (writer->is_json) {
        writer->depth--;
        put_string(writer, container == DUMP_DICT ? "}" : "]");
    } else {
        put_string(writer, container == DUMP_DICT ? "u" : container == DUMP_LIST ? "e" : "t");
    }
}

/* ---- values */

void
dump_text(dump_writer *writer, dd_bytes text)
{
    size_t begin = writer->out->len;
    if (writer->is_json) {
        begin_value(writer);
        put_string(writer, "\"");
    } else {
        put_op(writer, 'X', 0, 4); /* its length, which is known last */
    }
    while (text.len > 0 && writer->status == DD_OK) {
        uint32_t character = next_character(&text);
        if (writer->is_json) {
            put_character(writer, character);
        } else {
            uint8_t bytes[4];
            put_bytes(writer, bytes, encode(character, bytes));
        }
    }
    if (writer->is_json) {
        put_string(writer, "\"");
    } else if (writer->status == DD_OK) {
        dd_put_number(writer->out->data + begin + 1, writer->out->len - begin - 5, 4);
    }
}

void
dump_name(dump_writer *writer, dd_bytes key)
{
    dump_text(writer, key);
    if (writer->is_json) {
        put_string(writer, ":");
        writer->is_after_key = true;
    }
}

void
dump_key(dump_writer *writer, const char *key)
{
    for (int i = 0; i < writer->nkeys; i++) {
        if (writer->keys[i] == key) {
            put_op(writer, 'h', (uint64_t)i, 1);
            return;
        }
    }
    dump_name(writer, dd_bytes_of_string(key));
    if (!writer->is_json && writer->nkeys < DUMP_MAX_KEYS) {
        writer->keys[writer->nkeys] = key;
        put_op(writer, 'q', (uint64_t)writer->nkeys++, 1);
    }
}

/* A value of JSON without quotes. */
static void
put_word(dump_writer *writer, const char *word)
{
    begin_value(writer);
    put_string(writer, word);
}

void
dump_int(dump_writer *writer, int64_t value)
{
    if (writer->is_json) {
        char number[24];
        snprintf(number, sizeof number, "%lld", (long long)value);
        put_word(writer, number);
    } else if (value >= 0 && value < 256) {
        put_op(writer, 'K', (uint64_t)value, 1);
    } else if (value >= INT32_MIN && value <= INT32_MAX) {
        put_op(writer, 'J', (uint64_t)value, 4);
    } else {
        put_op(writer, '\x8a', 8, 1);
        uint8_t bytes[8];
        dd_put_number(bytes, (uint64_t)value, sizeof bytes);
        put_bytes(writer, bytes, sizeof bytes);
    }
}

/* Without the C library's: that writes a comma in some countries. */
static void
put_real_word(dump_writer *writer, double value)
{
    char number[40] = "null";
    if (fabs(value) < 1e12) {
        long long millionths = llround(fabs(value) * 1e6);
        snprintf(number, sizeof number, "%s%lld.%06lld", value < 0 ? "-" : "", millionths / 1000000,
                 millionths % 1000000);
    }
    put_word(writer, number);
}

void
dump_real(dump_writer *writer, double value)
{
    if (writer->is_json) {
        put_real_word(writer, value);
    } else {
        uint64_t bits;
        memcpy(&bits, &value, sizeof bits);
        put_op(writer, 'G', __builtin_bswap64(bits), 8);
    }
}

void
dump_bool(dump_writer *writer, bool value)
{
    if (writer->is_json) {
        put_word(writer, value ? "true" : "false");
    } else {
        put_string(writer, value ? "\x88" : "\x89");
    }
}

void
dump_none(dump_writer *writer)
{
    if (writer->is_json) {
        put_word(writer, "null");
    } else {
        put_string(writer, "N");
    }
}
