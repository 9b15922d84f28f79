/* What is inside a FileStore's file: a header, then records (docs/file-store.md has the bytes). Parsing and
 * encoding are pure; the bytes are untrusted. Replaying brings the records of a file into a keyspace. */
#ifndef DD_STORE_FILE_LOG_H
#define DD_STORE_FILE_LOG_H

#include "core/bytes.h"
#include "core/status.h"
#include "store/keyspace.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define DD_FILE_RUN_ID_BYTES 16
#define DD_FILE_HEADER_BYTES 64
#define DD_FILE_RECORD_HEAD_BYTES 16
#define DD_FILE_RECORD_MAX_BYTES (UINT64_C(1) << 30)

/* As it stands in the file. */
typedef struct dd_file_header {
    char magic[8];
    uint32_t version;
    uint32_t zero;
    uint8_t run_id[DD_FILE_RUN_ID_BYTES];
    int64_t world_size; /* < 0: not known */
    uint64_t joined;
    uint64_t left; /* in order */
    uint32_t last_zero;
    uint32_t crc; /* of all before it */
} dd_file_header;

typedef enum dd_file_header_state {
    DD_FILE_HEADER_VALID,
    DD_FILE_HEADER_EMPTY,   /* no bytes at all */
    DD_FILE_HEADER_BROKEN,  /* ours, but cut or damaged */
    DD_FILE_HEADER_VERSION, /* ours, whole, of a version this code does not know */
    DD_FILE_HEADER_FOREIGN, /* not ours: hands off */
} dd_file_header_state;

/* Looks at the first bytes of a file; `header` is written only when VALID. */
dd_file_header_state dd_file_header_parse(dd_bytes bytes, dd_file_header *header);
/* Fills in what is the same in all headers, and the checksum. */
void dd_file_header_seal(dd_file_header *header);

/* Reads up to nbytes at the offset, fewer where the file ends; -1 with errno. */
ssize_t dd_file_read(int fd, uint8_t *out, size_t nbytes, uint64_t offset);

/* Whether these bytes start a header of that run. Looks only at what never changes during a run, so that it
 * may be asked while another process writes the counts. */
bool dd_file_header_is_of_run(dd_bytes bytes, const uint8_t run_id[DD_FILE_RUN_ID_BYTES]);

typedef enum dd_file_record_type {
    DD_FILE_RECORD_SET = 1,
    DD_FILE_RECORD_DELETE,
    DD_FILE_RECORD_APPEND,
    DD_FILE_RECORD_PUSH,
    DD_FILE_RECORD_POP,
} dd_file_record_type;

typedef struct dd_file_record {
    dd_file_record_type type;
    dd_bytes key;
    dd_bytes value; /* empty for DELETE and POP */
} dd_file_record;

typedef enum dd_file_record_state {
    DD_FILE_RECORD_WHOLE,
    DD_FILE_RECORD_SHORT,   /* the bytes end before the record does */
    DD_FILE_RECORD_DAMAGED, /* no record */
} dd_file_record_state;

/* Reads the record at the start of `bytes`, which `record` borrows from. *nbytes is the length that the record
 * claims; for SHORT how many bytes it takes to read on, for DAMAGED 0 when nothing was written there. */
dd_file_record_state dd_file_record_parse(dd_bytes bytes, dd_file_record *record, uint64_t *nbytes);

/* Appends the record to out; DD_INVALID_ARGUMENT when it is over DD_FILE_RECORD_MAX_BYTES. */
dd_status dd_file_record_encode(dd_blob *out, const dd_file_record *record, dd_error *err) DD_MUST_CHECK;

/* Does to the keyspace what the record says; on failure nothing has changed. */
dd_status dd_file_record_apply(dd_keyspace *ks, const dd_file_record *record, dd_error *err) DD_MUST_CHECK;

/* A keyspace and how much of the file it holds. */
typedef struct dd_file_log {
    dd_keyspace ks;
    uint64_t offset; /* all records before it are in ks */
    dd_blob read_buf;
} dd_file_log;

typedef enum dd_file_tail {
    DD_FILE_TAIL_CLEAN,   /* the last record ends where the file does */
    DD_FILE_TAIL_TORN,    /* a part of a record is at the end: being written, or its writer died */
    DD_FILE_TAIL_DAMAGED, /* a bad record has others after it, which no crash of a writer explains */
} dd_file_tail;

void dd_file_log_init(dd_file_log *log);
void dd_file_log_fini(dd_file_log *log);

/* Forgets what was read, so that the next replay starts from the first record. */
void dd_file_log_reset(dd_file_log *log);

/* Reads on from log->offset to `size`, the file's size. Stops before the first record that is not whole, and
 * tells by *tail what is there. On failure the keyspace holds just the records before
 * log->offset. */
dd_status dd_file_log_replay(dd_file_log *log, int fd, uint64_t size, dd_file_tail *tail,
                             dd_error *err) DD_MUST_CHECK;

#endif
