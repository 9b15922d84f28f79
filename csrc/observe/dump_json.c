#include "observe/dump_internal.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static void
put_string(dump_writer *writer, const char *text)
{
    dump_put_bytes(writer, text, strlen(text));
}

/* What comes before a value. */
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

static void
do_nothing(dump_writer *writer)
{
    (void)writer;
}

static void
open_container(dump_writer *writer, dump_container container)
{
    begin_value(writer);
    put_string(writer, container == DUMP_DICT ? "{" : "[");
    writer->has_items[++writer->depth] = false;
}

static void
close_container(dump_writer *writer, dump_container container)
{
    writer->depth--;
    put_string(writer, container == DUMP_DICT ? "}" : "]");
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

static void
quote(dump_writer *writer, dd_bytes text)
{
    put_string(writer, "\"");
    while (text.len > 0 && writer->status == DD_OK) {
        put_character(writer, dump_next_character(&text));
    }
    put_string(writer, "\"");
}

static void
put_text(dump_writer *writer, dd_bytes text)
{
    begin_value(writer);
    quote(writer, text);
}

static void
put_name(dump_writer *writer, dd_bytes key)
{
    put_text(writer, key);
    put_string(writer, ":");
    writer->is_after_key = true;
}

static void
put_key(dump_writer *writer, const char *key)
{
    put_name(writer, dd_bytes_of_string(key));
}

static void
put_int(dump_writer *writer, int64_t value)
{
    char number[32];
    begin_value(writer);
    snprintf(number, sizeof number, "%lld", (long long)value);
    put_string(writer, number);
}

/* Without the C library's: that writes a comma in some countries. */
static void
put_real(dump_writer *writer, double value)
{
    char number[40];
    begin_value(writer);
    if (!(fabs(value) < 1e12)) {
        put_string(writer, "null");
        return;
    }
    long long millionths = llround(fabs(value) * 1e6);
    snprintf(number, sizeof number, "%s%lld.%06lld", value < 0 ? "-" : "", millionths / 1000000,
             millionths % 1000000);
    put_string(writer, number);
}

static void
put_bool(dump_writer *writer, bool value)
{
    begin_value(writer);
    put_string(writer, value ? "true" : "false");
}

static void
put_none(dump_writer *writer)
{
    begin_value(writer);
    put_string(writer, "null");
}

const dump_ops dump_json_ops = {
    .start = do_nothing,
    .finish = do_nothing,
    .open = open_container,
    .close = close_container,
    .put_key = put_key,
    .put_name = put_name,
    .put_text = put_text,
    .put_int = put_int,
    .put_real = put_real,
    .put_bool = put_bool,
    .put_none = put_none,
    .is_none_zero = true,
    .is_status_text = true,
    .has_empty_comms = true,
};
