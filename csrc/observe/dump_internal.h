/* The two languages of dumps, JSON and pickles. What is said is in dump.c; how, in dump_write.c. */
#ifndef DD_OBSERVE_DUMP_INTERNAL_H
#define DD_OBSERVE_DUMP_INTERNAL_H

#include "core/bytes.h"

#include <stdbool.h>
#include <stdint.h>

#define DUMP_MAX_DEPTH 8
#define DUMP_MAX_KEYS 64

typedef enum dump_container {
    DUMP_DICT,
    DUMP_LIST,
    DUMP_TUPLE, /* a list in JSON */
} dump_container;

/* The first failure stays, and nothing is written after it. */
typedef struct dump_writer {
    bool is_json; /* const, as are these; else a pickle of protocol 2 */
    dd_blob *out;
    dd_error *err;
    dd_status status;
    /* of a pickle */
    const char *keys[DUMP_MAX_KEYS]; /* those written so far: by their place they are written again */
    int nkeys;
    /* of JSON */
    bool has_items[DUMP_MAX_DEPTH];
    int depth;
    bool is_after_key;
} dump_writer;

void dump_start(dump_writer *writer);
void dump_finish(dump_writer *writer);
void dump_open(dump_writer *writer, dump_container container);
void dump_close(dump_writer *writer, dump_container container);
void dump_key(dump_writer *writer, const char *key); /* static text: known again by its address */
void dump_name(dump_writer *writer, dd_bytes key);   /* a key that is not */
void dump_text(dump_writer *writer,
               dd_bytes text); /* any bytes, as are names: what is not UTF-8 is replaced */
void dump_int(dump_writer *writer, int64_t value);
void dump_real(dump_writer *writer, double value); /* in JSON with six digits after the point */
void dump_bool(dump_writer *writer, bool value);
void dump_none(dump_writer *writer);

#endif
