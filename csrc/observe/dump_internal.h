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

/* The first failure stays, and nothing is written after it. */
typedef struct dump_writer {
    bool is_json; /* const, as are these; else a pickle of protocol 2 */
    dd_blob *out;
    dd_error *err;
    dd_status status;
    const char *keys[DUMP_MAX_KEYS]; /* those of a pickle so far: by their place they are written again */
    int nkeys;
} dump_writer;

void dump_start(dump_writer *writer);
void dump_finish(dump_writer *writer);
/* Values have a key in a dict, static text that is known again by its address; NULL in lists, and after dump_name. */
void dump_open(dump_writer *writer, const char *key, dump_container container);
void dump_close(dump_writer *writer, dump_container container);
void dump_name(dump_writer *writer, dd_bytes key);                   /* a key that is not static */
void dump_text(dump_writer *writer, const char *key, dd_bytes text); /* any bytes, as are names: what is not
                                                                      * UTF-8 is replaced */
void dump_string(dump_writer *writer, const char *key, const char *text);
void dump_int(dump_writer *writer, const char *key, int64_t value);
void dump_time(dump_writer *writer, const char *key, int64_t ns); /* 0: None, which torch's JSON calls 0 */
void dump_real(dump_writer *writer, const char *key,
               double value); /* in JSON with six digits after the point */
void dump_bool(dump_writer *writer, const char *key, bool value);

#endif
