/* The two languages of dumps. What is said is in dump.c; how, in dump_pickle.c and dump_json.c. */
#ifndef DD_OBSERVE_DUMP_INTERNAL_H
#define DD_OBSERVE_DUMP_INTERNAL_H

#include "core/bytes.h"

#include <stdbool.h>
#include <stdint.h>

#define DUMP_MAX_DEPTH 8
#define DUMP_MAX_KEYS 64

typedef struct dump_writer dump_writer;

typedef enum dump_container {
    DUMP_DICT,
    DUMP_LIST,
    DUMP_TUPLE, /* a list where the language has none */
} dump_container;

typedef struct dump_ops {
    void (*start)(dump_writer *writer);
    void (*finish)(dump_writer *writer);
    void (*open)(dump_writer *writer, dump_container container);
    void (*close)(dump_writer *writer, dump_container container);
    void (*put_key)(dump_writer *writer, const char *key); /* static text: known again by its address */
    void (*put_name)(dump_writer *writer, dd_bytes key);   /* a key that is not */
    /* Any bytes, as for names: what is not UTF-8 is replaced. */
    void (*put_text)(dump_writer *writer, dd_bytes text);
    void (*put_int)(dump_writer *writer, int64_t value);
    void (*put_real)(dump_writer *writer, double value); /* in JSON with six digits after the point */
    void (*put_bool)(dump_writer *writer, bool value);
    void (*put_none)(dump_writer *writer);
    /* Torch's JSON differs from its pickles in more than the language. */
    bool is_none_zero;    /* times that are not known */
    bool is_status_text;  /* numbers of pg_status */
    bool has_empty_comms; /* nccl_comm_state is there when it is empty */
} dump_ops;

/* The first failure stays, and nothing is written after it. */
struct dump_writer {
    const dump_ops *ops;
    dd_blob *out;
    dd_error *err;
    dd_status status;
    /* dump_pickle.c */
    const char *keys[DUMP_MAX_KEYS]; /* those written so far: by their place they are written again */
    int nkeys;
    /* dump_json.c */
    bool has_items[DUMP_MAX_DEPTH];
    int depth;
    bool is_after_key;
};

extern const dump_ops dump_pickle_ops;
extern const dump_ops dump_json_ops;

void dump_put_bytes(dump_writer *writer, const void *data, size_t len);

/* Takes one character off the front of `text`: its number, or U+FFFD for a byte that is not UTF-8. There must be one. */
uint32_t dump_next_character(dd_bytes *text);

#endif
