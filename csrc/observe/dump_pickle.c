/* Pickle, protocol 2: a program for a machine with a stack. */
#include "observe/dump_internal.h"

#include "core/little_endian.h"

#include <string.h>

static void
put_op(dump_writer *writer, char op)
{
    dump_put_bytes(writer, &op, 1);
}

static void
put_little_endian(dump_writer *writer, uint64_t value, size_t nbytes)
{
    uint8_t bytes[8];
    dd_put_number(bytes, value, nbytes);
    dump_put_bytes(writer, bytes, nbytes);
}

static void
start(dump_writer *writer)
{
    dump_put_bytes(writer, "\x80\x02", 2);
}

static void
finish(dump_writer *writer)
{
    put_op(writer, '.');
}

/* An empty one and a mark; what lies above the mark in the end is put into it. */
static void
open_container(dump_writer *writer, dump_container container)
{
    if (container != DUMP_TUPLE) {
        put_op(writer, container == DUMP_DICT ? '}' : ']');
    }
    put_op(writer, '(');
}

static void
close_container(dump_writer *writer, dump_container container)
{
    put_op(writer, container == DUMP_DICT ? 'u' : container == DUMP_LIST ? 'e' : 't');
}

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

/* Its length comes first, and is known last. */
static void
put_text(dump_writer *writer, dd_bytes text)
{
    put_op(writer, 'X');
    size_t length_at = writer->out->len;
    put_little_endian(writer, 0, 4);
    while (text.len > 0 && writer->status == DD_OK) {
        uint8_t bytes[4];
        dump_put_bytes(writer, bytes, encode(dump_next_character(&text), bytes));
    }
    if (writer->status == DD_OK) {
        dd_put_number(writer->out->data + length_at, writer->out->len - length_at - 4, 4);
    }
}

static void
put_key(dump_writer *writer, const char *key)
{
    for (int i = 0; i < writer->nkeys; i++) {
        if (writer->keys[i] == key) {
            put_op(writer, 'h');
            put_little_endian(writer, (uint64_t)i, 1);
            return;
        }
    }
    put_text(writer, dd_bytes_of_string(key));
    if (writer->nkeys < DUMP_MAX_KEYS) {
        writer->keys[writer->nkeys] = key;
        put_op(writer, 'q');
        put_little_endian(writer, (uint64_t)writer->nkeys++, 1);
    }
}

static void
put_int(dump_writer *writer, int64_t value)
{
    if (value >= 0 && value < 256) {
        put_op(writer, 'K');
        put_little_endian(writer, (uint64_t)value, 1);
    } else if (value >= INT32_MIN && value <= INT32_MAX) {
        put_op(writer, 'J');
        put_little_endian(writer, (uint64_t)value, 4);
    } else {
        dump_put_bytes(writer, "\x8a\x08", 2);
        put_little_endian(writer, (uint64_t)value, 8);
    }
}

static void
put_real(dump_writer *writer, double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    put_op(writer, 'G');
    put_little_endian(writer, __builtin_bswap64(bits), 8);
}

static void
put_bool(dump_writer *writer, bool value)
{
    put_op(writer, value ? '\x88' : '\x89');
}

static void
put_none(dump_writer *writer)
{
    put_op(writer, 'N');
}

const dump_ops dump_pickle_ops = {
    .start = start,
    .finish = finish,
    .open = open_container,
    .close = close_container,
    .put_key = put_key,
    .put_name = put_text,
    .put_text = put_text,
    .put_int = put_int,
    .put_real = put_real,
    .put_bool = put_bool,
    .put_none = put_none,
};
