/* Writers of a dump's two formats, JSON and pickles. dump.c decides what a dump contains;
 * dump_write.c writes the formats. */
#ifndef DD_OBSERVE_DUMP_INTERNAL_H
#define DD_OBSERVE_DUMP_INTERNAL_H

#include "core/bytes.h"

#include <stdbool.h>
#include <stdint.h>

#define DUMP_MAX_KEYS 64

typedef enum dump_container {
    DUMP_DICT,
    DUMP_LIST,
    DUMP_TUPLE, /* a list in JSON, which has no tuples */
} dump_container;

/* State of writing a dump. After the first failure, nothing more is written. */
typedef struct dump_writer {
    bool is_json; /* JSON if true, else a pickle of protocol 2; const, like `out` and `err` */
    dd_blob *out;
    dd_error *err;
    dd_status status;
    /* The keys that a pickle contains so far. A repeated key is written as its index here. */
    const char *keys[DUMP_MAX_KEYS];
    int nkeys;
} dump_writer;

void dump_start(dump_writer *writer);
void dump_finish(dump_writer *writer);
/* Open a container; dump_close closes it. Pass `key` to these functions for each value of a dict,
 * as static text (keys are compared by address), and NULL for any other value. */
void dump_open(dump_writer *writer, const char *key, dump_container container);
void dump_close(dump_writer *writer, dump_container container);
void dump_name(dump_writer *writer, dd_bytes key); /* write a dict's key that is not static text */
/* Write text. Here and in dump_name, bytes that are not UTF-8 are replaced. */
void dump_text(dump_writer *writer, const char *key, dd_bytes text);
void dump_string(dump_writer *writer, const char *key, const char *text);
void dump_int(dump_writer *writer, const char *key, int64_t value);
/* Write a time; 0 becomes None, or 0 in JSON. */
void dump_time(dump_writer *writer, const char *key, int64_t ns);
void dump_real(dump_writer *writer, const char *key, double value); /* JSON gets six decimals */
void dump_bool(dump_writer *writer, const char *key, bool value);

#endif
