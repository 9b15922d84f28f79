/* The two formats of dumps, JSON and pickles. A pickle is a program for a stack machine. C code
 * writes both formats, although a Python program could convert a pickle: with
 * DLDIST_FR_DUMP_FORMAT=json, users find a JSON file when a job hangs, and the monitor's thread
 * writes that file. The interpreter may hang or be killed, so no Python may run before the file is
 * written. A converter would need a second kind of file and a program to run afterwards, and would
 * save only the 60 lines below that write JSON. */
#include "observe/dump_internal.h"

#include "core/little_endian.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

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

/* Write an instruction of a pickle with its operand. */
static void
put_op(dump_writer *writer, char op, uint64_t operand, size_t nbytes)
{
    uint8_t bytes[9] = {(uint8_t)op};
    dd_put_number(bytes + 1, operand, nbytes);
    put_bytes(writer, bytes, 1 + nbytes);
}

/* In JSON, write a comma if one is needed before the next value. */
static void
put_comma(dump_writer *writer)
{
    char last = writer->out->len > 0 ? (char)writer->out->data[writer->out->len - 1] : '{';
    if (writer->is_json && last != '{' && last != '[' && last != ':') {
        put_string(writer, ",");
    }
}

/* ---- text */

/* Decode the first character of `text` and return its length; 0 if the bytes are not UTF-8:
 * truncated, overlong, a surrogate, or beyond the last code point. */
static size_t
read_character(dd_bytes text, uint32_t *character)
{
    static const struct {
        uint8_t mark, mask;
        uint32_t smallest;
    } forms[] = {{0, 0x80, 0}, {0xC0, 0xE0, 0x80}, {0xE0, 0xF0, 0x800}, {0xF0, 0xF8, 0x10000}};
    for (size_t i = 0; i < 4 && i < text.len; i++) {
        if ((text.data[0] & forms[i].mask) != forms[i].mark) {
            continue;
        }
        uint32_t number = text.data[0] & (uint8_t)~forms[i].mask;
        for (size_t k = 1; k <= i; k++) {
            if ((text.data[k] & 0xC0) != 0x80) {
                return 0;
            }
            number = (number << 6) | (text.data[k] & 0x3F);
        }
        *character = number;
        bool is_half = number >= 0xD800 && number < 0xE000;
        return number >= forms[i].smallest && number <= 0x10FFFF && !is_half ? i + 1 : 0;
    }
    return 0;
}

static void
put_escaped(dump_writer *writer, uint32_t character)
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

/* Write text. A byte that is not part of valid UTF-8 becomes U+FFFD. */
static void
put_text(dump_writer *writer, dd_bytes text)
{
    size_t begin = writer->out->len;
    put_comma(writer);
    if (writer->is_json) {
        put_string(writer, "\"");
    } else {
        put_op(writer, 'X', 0, 4); /* the text's length, set at the end */
    }
    while (text.len > 0 && writer->status == DD_OK) {
        uint32_t character = 0xFFFD;
        size_t len = read_character(text, &character);
        if (writer->is_json) {
            put_escaped(writer, len > 0 ? character : 0xFFFD);
        } else if (len > 0) {
            put_bytes(writer, text.data, len);
        } else {
            put_string(writer, "\xEF\xBF\xBD");
        }
        text = dd_bytes_of(text.data + (len > 0 ? len : 1), text.len - (len > 0 ? len : 1));
    }
    if (writer->is_json) {
        put_string(writer, "\"");
    } else if (writer->status == DD_OK) {
        dd_put_number(writer->out->data + begin + 1, writer->out->len - begin - 5, 4);
    }
}

/* ---- keys and containers */

void
dump_name(dump_writer *writer, dd_bytes key)
{
    put_text(writer, key);
    if (writer->is_json) {
        put_string(writer, ":");
    }
}

/* Write a value's key or, if `key` is NULL, a comma. In a pickle, a repeated key is a reference. */
static void
put_key(dump_writer *writer, const char *key)
{
    for (int i = 0; key != NULL && i < writer->nkeys; i++) {
        if (writer->keys[i] == key) {
            put_op(writer, 'h', (uint64_t)i, 1);
            return;
        }
    }
    if (key != NULL) {
        dump_name(writer, dd_bytes_of_string(key));
    } else {
        put_comma(writer);
    }
    if (key != NULL && !writer->is_json && writer->nkeys < DUMP_MAX_KEYS) {
        writer->keys[writer->nkeys] = key;
        put_op(writer, 'q', (uint64_t)writer->nkeys++, 1);
    }
}

void
dump_start(dump_writer *writer)
{
    put_string(writer, writer->is_json ? "" : "\x80\x02");
}

void
dump_finish(dump_writer *writer)
{
    put_string(writer, writer->is_json ? "" : ".");
}

/* Open a container. A pickle gets an empty container and a mark; dump_close then adds all values
 * after the mark to the container. */
void
dump_open(dump_writer *writer, const char *key, dump_container container)
{
    static const char *const json[] = {"{", "[", "["};
    static const char *const pickle[] = {"}(", "](", "("};
    put_key(writer, key);
    put_string(writer, (writer->is_json ? json : pickle)[container]);
}

void
dump_close(dump_writer *writer, dump_container container)
{
    static const char *const json[] = {"}", "]", "]"};
    static const char *const pickle[] = {"u", "e", "t"};
    put_string(writer, (writer->is_json ? json : pickle)[container]);
}

/* ---- values */

void
dump_text(dump_writer *writer, const char *key, dd_bytes text)
{
    if (key != NULL) {
        put_key(writer, key);
    }
    put_text(writer, text);
}

void
dump_string(dump_writer *writer, const char *key, const char *text)
{
    dump_text(writer, key, dd_bytes_of_string(text));
}

void
dump_int(dump_writer *writer, const char *key, int64_t value)
{
    put_key(writer, key);
    if (writer->is_json) {
        char number[24];
        snprintf(number, sizeof number, "%lld", (long long)value);
        put_string(writer, number);
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

void
dump_time(dump_writer *writer, const char *key, int64_t ns)
{
    if (ns != 0 || writer->is_json) {
        dump_int(writer, key, ns);
    } else {
        put_key(writer, key);
        put_string(writer, "N");
    }
}

/* Write a number. JSON must not use the C library's format: some locales have decimal commas. */
void
dump_real(dump_writer *writer, const char *key, double value)
{
    char number[40] = "null";
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    put_key(writer, key);
    if (!writer->is_json) {
        put_op(writer, 'G', __builtin_bswap64(bits), 8);
        return;
    }
    if (fabs(value) < 1e12) {
        long long millionths = llround(fabs(value) * 1e6);
        snprintf(number, sizeof number, "%s%lld.%06lld", value < 0 ? "-" : "", millionths / 1000000,
                 millionths % 1000000);
    }
    put_string(writer, number);
}

void
dump_bool(dump_writer *writer, const char *key, bool value)
{
    put_key(writer, key);
    put_string(writer, writer->is_json ? (value ? "true" : "false") : (value ? "\x88" : "\x89"));
}
