/* The two formats of dumps, JSON and pickles. dump.c decides what is written, dump_write.c how. */
#ifndef DD_OBSERVE_DUMP_INTERNAL_H
#define DD_OBSERVE_DUMP_INTERNAL_H

#include "core/bytes.h"

#include <stdbool.h>
#include <stdint.h>

#define DUMP_MAX_KEYS 64

typedef enum dump_container {
    DUMP_DICT,
    DUMP_LIST,
    DUMP_TUPLE, /* a list in JSON */
} dump_container;

/* Nothing is written after the first failure. */
typedef struct dump_writer {
    bool is_json; /* const, like out and err; if false, a pickle of protocol 2 */
    dd_blob *out;
    dd_error *err;
    dd_status status;
    const char *keys[DUMP_MAX_KEYS]; /* a pickle's keys so far; repeats use the index */
    int nkeys;
} dump_writer;

void dump_start(dump_writer *writer);
void dump_finish(dump_writer *writer);
/* Pass a key to each value of a dict: static text, compared by address. NULL otherwise. */
void dump_open(dump_writer *writer, const char *key, dump_container container);
void dump_close(dump_writer *writer, dump_container container);
void dump_name(dump_writer *writer, dd_bytes key); /* a key that is not static */
/* Writes any bytes, replacing those that are not UTF-8; dump_name does the same. */
void dump_text(dump_writer *writer, const char *key, dd_bytes text);
void dump_string(dump_writer *writer, const char *key, const char *text);
void dump_int(dump_writer *writer, const char *key, int64_t value);
void dump_time(dump_writer *writer, const char *key, int64_t ns);   /* 0 is None, or 0 in JSON */
void dump_real(dump_writer *writer, const char *key, double value); /* JSON: six decimals */
void dump_bool(dump_writer *writer, const char *key, bool value);

#endif
